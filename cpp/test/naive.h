// The row functions of rows.h once more, with their signatures: one column at a time, in the order their descriptions
// in rows.h and rows.cpp give.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "rowgrad/rows.h"

namespace naive {

using namespace rowgrad;
using std::int64_t;

template <class A>
A added(A a, A b) {
  if constexpr (std::is_integral_v<A>)
    return A(std::uint64_t(a) + std::uint64_t(b));
  else
    return a + b;
}

// SparseSegment*: a first block of n mod 8 rows (0 → 8, 1 → 9), then blocks of eight, each summed on its own.
template <class A>
A fold_in_eights(const A* x, int64_t n) {
  A total{};
  for (int64_t begin = 0, end = n % 8 < 2 ? n % 8 + 8 : n % 8; begin < n; begin = end, end += 8) {
    A block = x[begin];
    for (int64_t j = begin + 1; j < end && j < n; ++j) block = added(block, x[j]);
    total = begin == 0 ? block : added(total, block);
  }
  return total;
}

template <class A>
A fold_from_zero(const A* x, int64_t n, A total = A(0)) {
  for (int64_t j = 0; j < n; ++j) total = added(total, x[j]);
  return total;
}

// SegmentSum. In whole packets of 32 bytes, row j of the first n/4·4 goes to partial sum j mod 4; the rest follow.
template <class A>
A fold_like_segment_sum(const A* x, int64_t n, int64_t c, int64_t cols, int64_t packet) {
  if (n == 1) return x[0];
  if (n < 16 || c >= cols / packet * packet) return fold_from_zero(x, n);
  A lane[4] = {A(0), A(0), A(0), A(0)};
  for (int64_t j = 0; j < n / 4 * 4; ++j) lane[j % 4] = added(lane[j % 4], x[j]);
  const A total = added(added(added(lane[0], lane[1]), lane[2]), lane[3]);
  return fold_from_zero(x + n / 4 * 4, n % 4, total);
}

template <class T, class I>
void reduce(T* out, const T* data, int64_t cols, const I* ids, int64_t n, Reduce kind) {
  using A = Accumulator<T>;
  std::vector<A> x(static_cast<std::size_t>(n));
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t j = 0; j < n; ++j) x[j] = load(data[ids[j] * cols + c]);
    A sum = fold_in_eights(x.data(), n);
    if constexpr (std::is_floating_point_v<A>) {
      const A d = kind == Reduce::mean ? A(n) : A(std::sqrt(double(n)));
      if (kind != Reduce::sum) sum = n < 10 ? sum * (A(1) / d) : sum / d;
    }
    out[c] = n == 1 ? data[ids[0] * cols + c] : store<T>(sum);  // one row is a copy of the bits
  }
}

// A 16-bit float that is one after every sum.
template <class T>
struct Stored {
  T value{};
  Stored() = default;
  explicit Stored(float v) : value(store<T>(v)) {}
  Stored operator+(Stored other) const { return Stored(load(value) + load(other.value)); }
};

// 16-bit floats are rounded at every sum, but their packets are those of float.
template <class T>
void segment_sum(T* out, const T* rows, int64_t cols, int64_t n) {
  using A = std::conditional_t<is_16bit_float<T>, Stored<T>, T>;
  std::vector<A> x(static_cast<std::size_t>(n));
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t j = 0; j < n; ++j) x[j] = A(load(rows[j * cols + c]));
    const A sum = fold_like_segment_sum(x.data(), n, c, cols, int64_t(32 / sizeof(Accumulator<T>)));
    if constexpr (is_16bit_float<T>)
      out[c] = n == 1 ? rows[c] : sum.value;
    else
      out[c] = n == 1 ? rows[c] : sum;
  }
}

template <class T, class P>
void accumulate(T* out, const T* grad, int64_t cols, const Entry<P>* e, int64_t n, const Accumulator<T>* scale) {
  for (int64_t c = 0; c < cols; ++c) {
    Accumulator<T> sum(0);
    for (int64_t j = 0; j < n; ++j) {
      const auto from = int64_t(e[j].from);
      const Accumulator<T> g = load(grad[from * cols + c]);
      sum = added<Accumulator<T>>(sum, scale ? g * scale[from] : g);
    }
    out[c] = store<T>(sum);
  }
}

template <class A>
A divided(A x, const A* total) {
  if (!total) return x;
  return *total == A(0) ? A(0) : x / *total;
}

template <class T>
void weighted_reduce(T* out, const T* data, int64_t cols, const int64_t* ids, const Accumulator<T>* weights, int64_t n,
                     const Accumulator<T>* total) {
  using A = Accumulator<T>;
  std::vector<A> x(static_cast<std::size_t>(n));
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t j = 0; j < n; ++j) x[j] = load(data[ids[j] * cols + c]) * weights[j];
    out[c] = store<T>(divided(fold_like_segment_sum(x.data(), n, c, cols, int64_t(32 / sizeof(A))), total));
  }
}

template <class T>
void weighted_row(T* out, const T* grad_row, int64_t cols, Accumulator<T> weight, const Accumulator<T>* total) {
  for (int64_t c = 0; c < cols; ++c) out[c] = store<T>(divided(load(grad_row[c]), total) * weight);
}

template <class T>
void weighted_accumulate(T* out, const T* grad, int64_t cols, const int64_t* from, int64_t n, const int64_t* segments,
                         const Accumulator<T>* weights, const Accumulator<T>* totals, Rounding rounding) {
  using A = Accumulator<T>;
  for (int64_t c = 0; c < cols; ++c) {
    A sum(0);
    for (int64_t j = 0; j < n; ++j) {
      const int64_t s = segments[from[j]];
      const A term = divided<A>(load(grad[s * cols + c]), totals ? totals + s : nullptr) * weights[from[j]];
      sum = rounding == Rounding::each_add ? load(store<T>(sum + load(store<T>(term)))) : sum + term;
    }
    out[c] = store<T>(sum);
  }
}

// Column c goes to partial sum c mod 8; they meet as a tree.
template <class T>
Accumulator<T> dot(const T* a, const T* b, int64_t cols) {
  Accumulator<T> p[8] = {};
  for (int64_t c = 0; c < cols; ++c) p[c % 8] += load(a[c]) * load(b[c]);
  return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

// The input positions of each id, in input order: those of id r are at[start[r]] up to at[start[r + 1]].
struct Groups {
  std::vector<int64_t> start, at;
  std::vector<Entry<std::uint64_t>> entries;  // the same as `at`

  Groups(const std::vector<int64_t>& ids, int64_t bound) : start(static_cast<std::size_t>(bound + 1)), at(ids.size()) {
    for (int64_t id : ids) ++start[id + 1];
    for (int64_t r = 0; r < bound; ++r) start[r + 1] += start[r];
    std::vector<int64_t> next = start;
    for (std::size_t i = 0; i < ids.size(); ++i) at[next[ids[i]]++] = int64_t(i);
    for (int64_t i : at) entries.push_back({0, std::uint64_t(i)});
  }
  int64_t size(int64_t r) const { return start[r + 1] - start[r]; }
};

}  // namespace naive
