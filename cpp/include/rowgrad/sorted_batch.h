// A batch of ids sorted by the row they name, in entries as small as its numbers allow.
#pragma once
#include "rowgrad/ids.h"
#include "rowgrad/plan.h"

namespace rowgrad {

// Ids are read several times: callers pass an IdSnapshot, never the caller's array.
class SortedBatch {
 public:
  SortedBatch() = default;

  // Entries {indices[i], segments[i]}.
  static SortedBatch by_segment(const Ids& indices, const Ids& segments, std::int64_t num_rows, std::int64_t sources) {
    SortedBatch batch;
    segments.typed([&](auto* from) {
      batch.sort(indices, num_rows, sources, [from](std::int64_t i) { return std::uint64_t(from[i]); });
    });
    return batch;
  }

  // Entries {ids[i], i}.
  static SortedBatch by_position(const Ids& ids, std::int64_t num_rows) {
    SortedBatch batch;
    batch.sort(ids, num_rows, ids.size, [](std::int64_t i) { return std::uint64_t(i); });
    return batch;
  }

  // Calls fn with the entries, of 32 or of 64 bits.
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
    ids.typed([&](auto* row) {
      if (num_rows <= limit && sources <= limit)
        narrow_ = sorted_by_row<std::uint32_t>(ids.size, num_rows, [row, from](std::int64_t i) {
          return Entry<std::uint32_t>{std::uint32_t(row[i]), std::uint32_t(from(i))};
        });
      else
        wide_ = sorted_by_row<std::uint64_t>(ids.size, num_rows, [row, from](std::int64_t i) {
          return Entry<std::uint64_t>{std::uint64_t(row[i]), from(i)};
        });
    });
  }

  std::int64_t num_rows_ = 0;
  Entries<std::uint32_t> narrow_;
  Entries<std::uint64_t> wide_;
};

}  // namespace rowgrad
