// A batch of ids sorted by row, with 32-bit entries if its numbers fit.
#pragma once
#include "rowgrad/ids.h"
#include "rowgrad/radix_sort.h"

namespace rowgrad {

// The ids may be the caller's array, which another thread may change: each is bounded, and read only once.
class SortedBatch {
 public:
  SortedBatch() = default;

  // Entries {indices[i], segments[i]}.
  static SortedBatch by_segment(const Ids& indices, const Ids& segments, std::int64_t num_rows, std::int64_t sources) {
    SortedBatch batch;
    segments.typed([&]<class S>(const S* from) {
      batch.sort(indices, num_rows, sources, [from, last = last_id<S>(sources)](std::int64_t i) {
        return bounded_id(from + i, last);
      });
    });
    return batch;
  }

  // Entries {ids[i], i}.
  static SortedBatch by_position(const Ids& ids, std::int64_t num_rows) {
    SortedBatch batch;
    batch.sort(ids, num_rows, ids.size, [](std::int64_t i) { return i; });
    return batch;
  }

  // Calls fn with the 32-bit or the 64-bit entries.
  template <class Fn>
  auto visit(Fn&& fn) const {
    return wide_.empty() ? fn(narrow_) : fn(wide_);
  }

  // The distinct rows, ascending.
  RowList rows() const {
    return visit([this](const auto& entries) { return distinct_rows(entries, num_rows_); });
  }

 private:
  template <class From>
  void sort(const Ids& ids, std::int64_t num_rows, std::int64_t sources, const From& from) {
    constexpr std::int64_t limit = std::int64_t{1} << 32;
    num_rows_ = num_rows;
    ids.typed([&]<class I>(const I* id) {
      auto sorted = [&]<class P>(std::type_identity<P>) {
        return sorted_by_row<P>(
            ids.size, num_rows, [id, last = last_id<I>(num_rows)](std::int64_t i) { return P(bounded_id(id + i, last)); },
            [from](std::int64_t i) { return P(from(i)); });
      };
      if (num_rows <= limit && sources <= limit)
        narrow_ = sorted(std::type_identity<std::uint32_t>{});
      else
        wide_ = sorted(std::type_identity<std::uint64_t>{});
    });
  }

  std::int64_t num_rows_ = 0;
  Entries<std::uint32_t> narrow_;
  Entries<std::uint64_t> wide_;
};

}  // namespace rowgrad
