// A batch of ids turned round: entries sorted by output row, input order kept inside a row.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "rowgrad/kernel.h"
#include "rowgrad/parallel.h"
#include "rowgrad/rows.h"

namespace rowgrad {

namespace detail {

constexpr int kDigitBits = 11;
constexpr std::int64_t kSortGrain = 1 << 14;

// One stable pass over `bits` bits from `shift`: every part counts its digits, then writes them where the
// parts before it stop, so the result does not depend on how many parts there were.
template <class P>
void radix_pass(const std::vector<Entry<P>>& in, std::vector<Entry<P>>& out, int shift, int bits) {
  const auto n = std::int64_t(in.size());
  const std::int64_t parts = pieces(n, kSortGrain), digits = std::int64_t{1} << bits;
  const P mask = P(digits - 1);
  std::vector<std::int64_t> count(static_cast<std::size_t>(parts * digits));
  parallel_tasks(parts, [&](std::int64_t t) {
    std::int64_t* mine = count.data() + t * digits;
    for (std::int64_t i = n * t / parts; i < n * (t + 1) / parts; ++i) ++mine[(in[i].row >> shift) & mask];
  });
  std::int64_t total = 0;
  for (std::int64_t d = 0; d < digits; ++d)
    for (std::int64_t t = 0; t < parts; ++t) total += std::exchange(count[t * digits + d], total);
  parallel_tasks(parts, [&](std::int64_t t) {
    std::int64_t* mine = count.data() + t * digits;
    for (std::int64_t i = n * t / parts; i < n * (t + 1) / parts; ++i)
      out[mine[(in[i].row >> shift) & mask]++] = in[i];
  });
}

}  // namespace detail

// Stable sort by row; rows are below `num_rows`, and only the bits that takes are sorted.
template <class P>
void sort_by_row(std::vector<Entry<P>>& entries, std::int64_t num_rows) {
  if (std::is_sorted(entries.begin(), entries.end(), [](auto& a, auto& b) { return a.row < b.row; })) return;
  const int bits = std::bit_width(std::uint64_t(num_rows - 1));
  const int passes = (bits + detail::kDigitBits - 1) / detail::kDigitBits;
  std::vector<Entry<P>> other = workspace<Entry<P>>(std::int64_t(entries.size()));
  for (int p = 0; p < passes; ++p) {
    const int from = bits * p / passes, to = bits * (p + 1) / passes;
    detail::radix_pass(entries, other, from, to - from);
    entries.swap(other);
  }
}

// Where each distinct row's entries begin; one more element closes the last.
template <class P>
std::vector<std::int64_t> row_starts(const std::vector<Entry<P>>& sorted) {
  std::vector<std::int64_t> starts;
  const auto n = std::int64_t(sorted.size());
  for (std::int64_t i = 0; i < n; ++i)
    if (i == 0 || sorted[i].row != sorted[i - 1].row) starts.push_back(i);
  starts.push_back(n);
  return starts;
}

// Calls fn(first, last) on ranges of groups with about equal numbers of entries; starts as from row_starts.
template <class Fn>
void parallel_groups(const std::vector<std::int64_t>& starts, std::int64_t work_per_entry, Fn&& fn) {
  const auto groups = std::int64_t(starts.size()) - 1;
  const std::int64_t n = starts.back();
  const std::int64_t parts = pieces(n * std::max<std::int64_t>(work_per_entry, 1), 1 << 14, 4);
  auto cut = [&](std::int64_t t) {
    return t == parts ? groups
                      : std::int64_t(std::lower_bound(starts.begin(), starts.end() - 1, n * t / parts) - starts.begin());
  };
  parallel_tasks(parts, [&](std::int64_t t) { fn(cut(t), cut(t + 1)); });
}

}  // namespace rowgrad
