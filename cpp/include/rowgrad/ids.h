// Lists of ids: range and order checks, and the starts of runs of equal ids.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "rowgrad/kernel.h"
#include "rowgrad/parallel.h"
#include "rowgrad/rows.h"
#include "rowgrad/status.h"
#include "rowgrad/view.h"

namespace rowgrad {

struct Ids : IdList {
  Ids(const void* data, std::int64_t size, bool wide) : IdList{data, size, wide} {}
  explicit Ids(const Array& a) : IdList{a.data, a.size(), a.dtype == DType::int64} {}
  explicit Ids(const Scratch<std::int64_t>& list) : IdList{list.data(), list.size(), true} {}
  explicit Ids(const Vec<const std::int64_t>& list) : IdList{list.data, list.size, true} {}
  std::int64_t operator[](std::int64_t i) const {
    return wide ? static_cast<const std::int64_t*>(data)[i] : static_cast<const std::int32_t*>(data)[i];
  }
  // Id i, clamped to [0, bound) even if another thread changed it.
  std::int64_t bounded(std::int64_t i, std::int64_t bound) const {
    return wide ? bounded_id(static_cast<const std::int64_t*>(data) + i, last_id<std::int64_t>(bound))
                : bounded_id(static_cast<const std::int32_t*>(data) + i, last_id<std::int32_t>(bound));
  }
  // Calls fn with a typed pointer.
  template <class Fn>
  void typed(Fn&& fn) const {
    if (wide)
      fn(static_cast<const std::int64_t*>(data));
    else
      fn(static_cast<const std::int32_t*>(data));
  }
};

constexpr std::int64_t kScanGrain = 1 << 16;

// A private copy of the caller's ids. A kernel validates the copy and then reads only the copy: another thread or
// process may change the caller's array during the call, for example through shared memory, but not the ids that become
// addresses. Every id that is validated in one pass and becomes an address in a later one needs a copy, unless it is
// bounded where it is read again (bounded_id), which is cheaper for large batches.
class IdSnapshot : public Ids {
 public:
  IdSnapshot() : Ids(nullptr, 0, true) {}
  explicit IdSnapshot(const Ids& source) : Ids(nullptr, source.size, source.wide) {
    if (size == 0) return;
    const std::int64_t width = wide ? 8 : 4;
    memory_ = Scratch<std::int64_t>(wide ? size : (size + 1) / 2);
    data = memory_.data();
    const auto* from = static_cast<const char*>(source.data);
    auto* to = reinterpret_cast<char*>(memory_.data());
    parallel_ranges(size, kScanGrain, [=](std::int64_t begin, std::int64_t end) {
      std::memcpy(to + begin * width, from + begin * width, static_cast<std::size_t>((end - begin) * width));
    });
  }

 private:
  Scratch<std::int64_t> memory_;
};

// Whether every id is in [0, bound). Fast; to find the first bad id, scan again in order.
inline bool all_below(const Ids& ids, std::int64_t bound) {
  std::atomic<bool> bad{false};
  ids.typed([&](auto* p) {
    parallel_ranges(ids.size, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
      bool any = false;
      for (std::int64_t i = begin; i < end; ++i) any |= std::uint64_t(std::int64_t(p[i])) >= std::uint64_t(bound);
      if (any) bad.store(true, std::memory_order_relaxed);
    });
  });
  return !bad.load();
}

inline bool is_below(std::int64_t v, std::int64_t bound) { return std::uint64_t(v) < std::uint64_t(bound); }

// Returns the first i in [0, n) for which bad(i) is true, else n.
template <class Bad>
std::int64_t first_where(std::int64_t n, const Bad& bad) {
  std::atomic<std::int64_t> first{n};
  parallel_ranges(n, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (!bad(i)) continue;
      std::int64_t earliest = first.load();
      while (i < earliest && !first.compare_exchange_weak(earliest, i)) {
      }
      return;
    }
  });
  return first.load();
}

// Reports the first id outside [0, bound) as `fault`.
inline Status check_ids(const Ids& ids, std::int64_t bound, Fault fault) {
  if (all_below(ids, bound)) return {};
  for (std::int64_t i = 0; i < ids.size; ++i)  // may find nothing: another thread may have changed the id back
    if (const std::int64_t id = ids[i]; !is_below(id, bound)) return {fault, i, id, bound};
  return {};
}

// Whether bad(previous id, id) is false for every id.
template <class Bad>
bool no_adjacent_pair(const Ids& ids, const Bad& bad) {
  std::atomic<bool> found{false};
  ids.typed([&](auto* p) {
    parallel_ranges(ids.size, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
      bool any = false;
      for (std::int64_t i = std::max<std::int64_t>(begin, 1); i < end; ++i) any |= bad(p[i - 1], p[i]);
      if (any) found.store(true, std::memory_order_relaxed);
    });
  });
  return !found.load();
}

inline bool non_decreasing(const Ids& ids) {
  return no_adjacent_pair(ids, [](auto before, auto id) { return id < before; });
}

inline bool strictly_ascending(const Ids& ids) {
  return no_adjacent_pair(ids, [](auto before, auto id) { return id <= before; });
}

// Reports the first id that is not greater than the previous one, or is outside [0, bound), as `fault`.
inline Status check_ascending(const Ids& ids, std::int64_t bound, Fault fault) {
  const std::int64_t n = ids.size;
  if (n == 0 || (strictly_ascending(ids) && ids[0] >= 0 && ids[n - 1] < bound)) return {};
  for (std::int64_t i = 0; i < n; ++i)  // may find nothing: as in check_ids
    if (const std::int64_t id = ids[i]; !is_below(id, bound) || (i > 0 && id <= ids[i - 1])) return {fault, i, id, bound};
  return {};
}

// Whether all ids of two lists are below their bounds, and whether the second list is non-decreasing.
struct Scan {
  bool in_range = true, sorted = true;
};

inline Scan scan(const Ids& indices, std::int64_t index_bound, const Ids& segments, std::int64_t segment_bound) {
  std::atomic<unsigned> flags{0};
  parallel_ranges(indices.size, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
    flags.fetch_or(scan_ops().scan(indices, index_bound, segments, segment_bound, begin, end));
  });
  return {!(flags.load() & kOutOfRange), !(flags.load() & kDecreases)};
}

// Reports the first id whose index (as `bad_index`) or segment is out of range; the index takes precedence.
inline Status first_out_of_range(const Ids& indices, std::int64_t index_bound, Fault bad_index, const Ids& segments,
                            std::int64_t segment_bound) {
  for (std::int64_t i = 0; i < indices.size; ++i) {  // may find nothing: as in check_ids
    const std::int64_t index = indices[i], segment = segments[i];
    if (!is_below(index, index_bound)) return {bad_index, i, index, index_bound};
    if (!is_below(segment, segment_bound)) return {Fault::segment_not_in_grad, i, segment, segment_bound};
  }
  return {};
}

// Returns where each run of equal ids begins, then the number of ids.
inline std::vector<std::int64_t> run_starts(const Ids& ids) {
  std::vector<std::int64_t> starts;
  ids.typed([&](auto* p) {
    for (std::int64_t i = 0; i < ids.size; ++i)
      if (i == 0 || p[i] != p[i - 1]) starts.push_back(i);
  });
  starts.push_back(ids.size);
  return starts;
}

// Validates sorted segments in TensorFlow's order of checks: each run against the next run, then against the output,
// then its indices against the data. `found` is the result of scanning both lists.
inline Status check_runs(const Scan& found, const Ids& indices, const Ids& segments, std::int64_t data_rows,
                         std::int64_t out_rows, Fault bad_index = Fault::index_not_in_data) {
  if (found.in_range && found.sorted) return {};
  const std::int64_t n = segments.size;
  for (std::int64_t begin = 0, end; begin < n; begin = end) {  // may find nothing: as in check_ids
    const std::int64_t id = segments[begin];
    for (end = begin + 1; end < n && segments[end] == id;) ++end;
    if (end < n && segments[end] < id) return {Fault::segments_not_increasing, end, segments[end], id};
    if (!is_below(id, out_rows)) return {Fault::segment_not_in_output, begin, id, out_rows};
    for (std::int64_t i = begin; i < end; ++i)
      if (!is_below(indices[i], data_rows)) return {bad_index, i, indices[i], data_rows};
  }
  return {};
}

}  // namespace rowgrad
