// Outputs that are reused and still hold an earlier result, and when all of an output is written.
#pragma once
#include <cstring>
#include <vector>

#include "rowgrad/ids.h"

namespace rowgrad {

inline void clear(const Array& array) {
  if (array.bytes() == 0) return;  // data may be null
  parallel_ranges(array.bytes(), 1 << 20, [&](std::int64_t begin, std::int64_t end) {
    std::memset(array.as<char>() + begin, 0, static_cast<std::size_t>(end - begin));
  });
}

// `rows` are distinct, so no two threads write the same row. Rows out of range are skipped.
inline void clear_rows(const Array& table, const Array& rows) {
  const std::int64_t bytes = table.row_size() * width_of(table.dtype);
  Ids(rows).typed([&](auto* row) {
    parallel_ranges(rows.size(), 1 + (1 << 16) / (bytes + 1), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        if (const std::int64_t r = read_once(row + i); is_below(r, table.rows()))
          std::memset(table.as<char>() + r * bytes, 0, static_cast<std::size_t>(bytes));
    });
  });
}

// Whether so many rows are stale that overwriting the whole table costs less than clearing them one by one.
inline bool covers_most_rows(const std::vector<Array>& stale, const Array& table) {
  return !stale.empty() && table.rows() <= 8 * stale[0].size();
}

// Dense gradients up to this size are written completely, zeros included, into memory that the process already has. For
// larger ones fresh zeros from the system are cheaper, since only pages of rows with a gradient are ever touched.
constexpr std::int64_t kWrittenWhole = std::int64_t{64} << 20;

inline bool is_written_whole(std::int64_t rows, std::int64_t row_bytes) {
  return row_bytes == 0 || rows <= kWrittenWhole / row_bytes;
}
inline bool is_written_whole(std::int64_t rows, const Array& grad) {
  return is_written_whole(rows, grad.row_size() * width_of(grad.dtype));
}

}  // namespace rowgrad
