// Batches of ids sorted by output row with a stable radix sort: entries of a row stay in input order.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "rowgrad/kernel.h"
#include "rowgrad/parallel.h"
#include "rowgrad/rows.h"

namespace rowgrad {

template <class P>
using Entries = Scratch<Entry<P>>;

namespace detail {

constexpr int kDigitBits = 11;
constexpr std::int64_t kSortGrain = 1 << 14;

// One stable counting-sort pass over `bits` bits from `shift`. Every part counts its digits, then writes its entries
// after those of the parts before it, so the number of parts does not change the result. `row_at(i)` returns the row of
// entry i and is called before `at(i)`, which returns the entry.
template <class P, class RowAt, class At>
void radix_pass(std::int64_t n, const RowAt& row_at, const At& at, Entry<P>* out, int shift, int bits) {
  const std::int64_t parts = pieces(n, kSortGrain), digits = std::int64_t{1} << bits;
  const P mask = P(digits - 1);
  std::vector<std::int64_t> count(static_cast<std::size_t>(parts * digits));
  // Capture by value: by reference, the compiler would have to assume that a counter aliases a captured variable.
  parallel_tasks(parts, [=, &count](std::int64_t t) {
    std::int64_t* mine = count.data() + t * digits;
    const std::int64_t end = n * (t + 1) / parts;
    for (std::int64_t i = n * t / parts; i < end; ++i) ++mine[(row_at(i) >> shift) & mask];
  });
  std::int64_t total = 0;
  for (std::int64_t d = 0; d < digits; ++d)
    for (std::int64_t t = 0; t < parts; ++t) total += std::exchange(count[t * digits + d], total);
  parallel_tasks(parts, [=, &count](std::int64_t t) {
    std::int64_t* mine = count.data() + t * digits;
    const std::int64_t end = n * (t + 1) / parts;
    for (std::int64_t i = n * t / parts; i < end; ++i) {
      const Entry<P> e = at(i);
      out[mine[(e.row >> shift) & mask]++] = e;
    }
  });
}

}  // namespace detail

// Returns the n entries {row_at(i), from_at(i)} sorted by row, in input order within a row. Rows are below `num_rows`;
// only the bits of num_rows - 1 are sorted. Both functions are called once per entry, since another thread may change
// what they read.
template <class P, class RowAt, class FromAt>
Entries<P> sorted_by_row(std::int64_t n, std::int64_t num_rows, const RowAt& row_at, const FromAt& from_at) {
  Entries<P> entries(n), other;
  const int bits = std::bit_width(std::uint64_t(std::max<std::int64_t>(num_rows, 1) - 1));
  const int passes = std::max(1, (bits + detail::kDigitBits - 1) / detail::kDigitBits);
  for (int p = 0; p < passes; ++p) {
    const int from = bits * p / passes, width = bits * (p + 1) / passes - from;
    if (p == 0) {
      Scratch<P> rows(n);
      P* row = rows.data();
      detail::radix_pass<P>(
          n, [row, row_at](std::int64_t i) { return row[i] = row_at(i); },
          [row, from_at](std::int64_t i) { return Entry<P>{row[i], from_at(i)}; }, entries.data(), from, width);
    } else {
      if (other.empty()) other = Entries<P>(n);
      const Entry<P>* in = entries.data();
      detail::radix_pass<P>(
          n, [in](std::int64_t i) { return in[i].row; }, [in](std::int64_t i) { return in[i]; }, other.data(), from,
          width);
      std::swap(entries, other);
    }
  }
  return entries;
}

// Into how many parts to cut `n` entries of `work_per_entry` each: a few per thread, for load balance.
inline std::int64_t work_parts(std::int64_t n, std::int64_t work_per_entry) {
  return std::min(std::max<std::int64_t>(n, 1), pieces(n * std::max<std::int64_t>(work_per_entry, 4), 1 << 15, 4));
}

// Calls fn(begin, end, part) on consecutive ranges that cover [0, n).
template <class Fn>
void parallel_parts(std::int64_t n, std::int64_t parts, Fn&& fn) {
  parallel_tasks(parts, [&](std::int64_t t) { fn(n * t / parts, n * (t + 1) / parts, t); });
}

// Returns the number of runs of equal rows that begin before each of `parts` parts, then the total.
template <class P>
std::vector<std::int64_t> runs_before(const Entries<P>& sorted, std::int64_t parts) {
  const std::int64_t n = sorted.size();
  std::vector<std::int64_t> before(static_cast<std::size_t>(parts) + 1);
  parallel_parts(n, parts, [&](std::int64_t begin, std::int64_t end, std::int64_t part) {
    std::int64_t runs = 0;
    for (std::int64_t i = begin; i < end; ++i) runs += i == 0 || sorted[i].row != sorted[i - 1].row;
    before[part + 1] = runs;
  });
  for (std::size_t p = 1; p < before.size(); ++p) before[p] += before[p - 1];
  return before;
}

// Returns the distinct rows of a sorted batch. Rows are below `num_rows`.
template <class P>
RowList distinct_rows(const Entries<P>& sorted, std::int64_t num_rows) {
  const std::int64_t parts = work_parts(sorted.size(), 1);
  const auto before = runs_before(sorted, parts);
  RowList list = row_list(num_rows);
  std::visit(
      [&]<class I>(std::vector<I>& rows) {
        rows.resize(static_cast<std::size_t>(before.back()));
        const Entry<P>* e = sorted.data();
        parallel_parts(sorted.size(), parts, [&](std::int64_t begin, std::int64_t end, std::int64_t part) {
          I* to = rows.data() + before[part];
          for (std::int64_t i = begin; i < end; ++i)
            if (i == 0 || e[i].row != e[i - 1].row) *to++ = I(e[i].row);
        });
      },
      list);
  return list;
}

// Returns where the entries of each distinct row begin, then the number of entries.
template <class P>
std::vector<std::int64_t> row_starts(const Entries<P>& sorted) {
  std::vector<std::int64_t> starts;
  const std::int64_t n = sorted.size();
  for (std::int64_t i = 0; i < n; ++i)
    if (i == 0 || sorted[i].row != sorted[i - 1].row) starts.push_back(i);
  starts.push_back(n);
  return starts;
}

// Calls fn(first, last) on ranges of groups with about equal numbers of entries; `starts` as returned by row_starts.
template <class Fn>
void parallel_groups(const std::vector<std::int64_t>& starts, std::int64_t work_per_entry, Fn&& fn) {
  const auto groups = std::int64_t(starts.size()) - 1;
  const std::int64_t n = starts.back();
  const std::int64_t parts = pieces(n * std::max<std::int64_t>(work_per_entry, 1), 1 << 14, 4);
  auto cut = [&](std::int64_t t) {
    if (t == parts) return groups;
    return std::int64_t(std::lower_bound(starts.begin(), starts.end() - 1, n * t / parts) - starts.begin());
  };
  parallel_tasks(parts, [&](std::int64_t t) { fn(cut(t), cut(t + 1)); });
}

}  // namespace rowgrad
