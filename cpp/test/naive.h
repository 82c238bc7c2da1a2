// The orders of summation, one column at a time, written from their description in rows.h and rows.cpp.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "rowgrad/dtype.h"
#include "rowgrad/reduce.h"

namespace test {

template <class A>
A added(A a, A b) {
  if constexpr (std::is_integral_v<A>)
    return A(std::uint64_t(a) + std::uint64_t(b));
  else
    return a + b;
}

// SparseSegment*: a first block of n mod 8 rows (0 → 8, 1 → 9), then blocks of eight, each summed on its own.
template <class A>
A fold_in_eights(const std::vector<A>& x) {
  const std::size_t n = x.size();
  std::size_t end = n % 8 < 2 ? n % 8 + 8 : n % 8;
  A total{};
  for (std::size_t begin = 0; begin < n; begin = end, end += 8) {
    A block = x[begin];
    for (std::size_t j = begin + 1; j < end && j < n; ++j) block = added(block, x[j]);
    total = begin == 0 ? block : added(total, block);
  }
  return total;
}

template <class A>
A fold_from_zero(const std::vector<A>& x) {
  A total(0);
  for (const A& v : x) total = added(total, v);
  return total;
}

// SegmentSum in whole packets of 32 bytes: row j of the first n/4·4 goes to partial sum j mod 4, the rest follow.
template <class A>
A fold_in_four(const std::vector<A>& x) {
  const std::size_t whole = x.size() / 4 * 4;
  std::vector<A> lane(4, A(0));
  for (std::size_t j = 0; j < whole; ++j) lane[j % 4] = added(lane[j % 4], x[j]);
  A total = added(added(added(lane[0], lane[1]), lane[2]), lane[3]);
  for (std::size_t j = whole; j < x.size(); ++j) total = added(total, x[j]);
  return total;
}

// fold over term(j, c) for every column c.
template <class A, class Term, class Fold>
std::vector<A> fold_columns(std::int64_t cols, std::int64_t n, Term term, Fold fold) {
  std::vector<A> sums(static_cast<std::size_t>(cols)), x(static_cast<std::size_t>(n));
  for (std::int64_t c = 0; c < cols; ++c) {
    for (std::int64_t j = 0; j < n; ++j) x[j] = term(j, c);
    sums[c] = fold(c, x);
  }
  return sums;
}

template <class A, class Term>
std::vector<A> sum_from_zero(std::int64_t cols, std::int64_t n, Term term) {
  return fold_columns<A>(cols, n, term, [](std::int64_t, const std::vector<A>& x) { return fold_from_zero(x); });
}

// A packet is 32 bytes of what sums are held in, which for 16-bit floats is float even where every sum is rounded.
template <class A, class Term>
std::vector<A> sum_like_segment_sum(std::int64_t cols, std::int64_t n, Term term,
                                    std::int64_t packet = 32 / std::int64_t(sizeof(A))) {
  const std::int64_t packed = cols - cols % packet;
  return fold_columns<A>(cols, n, term, [&](std::int64_t c, const std::vector<A>& x) {
    if (n == 1) return x[0];
    return n >= 16 && c < packed ? fold_in_four(x) : fold_from_zero(x);
  });
}

// A 16-bit float that is one after every sum.
template <class T>
struct Stored {
  T value{};
  Stored() = default;
  explicit Stored(float v) : value(rowgrad::store<T>(v)) {}
  Stored operator+(Stored other) const { return Stored(rowgrad::load(value) + rowgrad::load(other.value)); }
};

// n consecutive rows as SegmentSum itself adds them: 16-bit floats are rounded at every sum.
template <class T>
std::vector<T> naive_segment_sum(const T* rows, std::int64_t cols, std::int64_t n) {
  if (n == 1) return {rows, rows + cols};  // a copy of the bits
  auto term = [&](std::int64_t j, std::int64_t c) { return rowgrad::load(rows[j * cols + c]); };
  if constexpr (rowgrad::is_16bit_float<T>) {
    auto stored = [&](std::int64_t j, std::int64_t c) { return Stored<T>(term(j, c)); };
    std::vector<T> out;
    for (auto s : sum_like_segment_sum<Stored<T>>(cols, n, stored, 8)) out.push_back(s.value);
    return out;
  } else {
    return sum_like_segment_sum<T>(cols, n, term);
  }
}

// Whole rows in the order of SparseSegment*: mean and √n multiply by the reciprocal below ten rows.
template <class T>
std::vector<T> naive_reduce(const T* data, std::int64_t cols, const std::vector<std::int64_t>& ids,
                            rowgrad::Reduce kind) {
  using A = rowgrad::Accumulator<T>;
  const auto n = std::int64_t(ids.size());
  std::vector<T> out(static_cast<std::size_t>(cols));
  if (n == 1) {  // a copy of the bits
    std::copy_n(data + ids[0] * cols, cols, out.begin());
    return out;
  }
  auto term = [&](std::int64_t j, std::int64_t c) { return rowgrad::load(data[ids[j] * cols + c]); };
  const auto sums = fold_columns<A>(cols, n, term, [](std::int64_t, const auto& x) { return fold_in_eights(x); });
  for (std::int64_t c = 0; c < cols; ++c) {
    A sum = sums[c];
    if constexpr (std::is_floating_point_v<A>) {
      if (kind != rowgrad::Reduce::sum) {
        const A d = kind == rowgrad::Reduce::mean ? A(n) : A(std::sqrt(double(n)));
        sum = n < 10 ? sum * (A(1) / d) : sum / d;
      }
    }
    out[c] = rowgrad::store<T>(sum);
  }
  return out;
}

// Positions of each id, in input order.
inline std::vector<std::vector<std::int64_t>> positions_of(const std::vector<std::int64_t>& ids, std::int64_t bound) {
  std::vector<std::vector<std::int64_t>> groups(static_cast<std::size_t>(bound));
  for (std::size_t i = 0; i < ids.size(); ++i) groups[ids[i]].push_back(std::int64_t(i));
  return groups;
}

}  // namespace test
