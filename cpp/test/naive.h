// The row functions of rows.h with the same signatures, one column at a time, in the order that rows.h and rows.cpp
// describe.
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
void reduce(T* out, const T* data, int64_t cols, const I* ids, int64_t n, Reduction kind) {
  using A = Accumulator<T>;
  std::vector<A> x(static_cast<std::size_t>(n));
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t j = 0; j < n; ++j) x[j] = load(data[ids[j] * cols + c]);
    A sum = fold_in_eights(x.data(), n);
    if constexpr (std::is_floating_point_v<A>) {
      const A d = kind == Reduction::mean ? A(n) : A(std::sqrt(double(n)));
      if (kind != Reduction::sum) sum = n < 10 ? sum * (A(1) / d) : sum / d;
    }
    out[c] = n == 1 ? data[ids[0] * cols + c] : store<T>(sum);  // one row: copy the bits
  }
}

// A 16-bit float that is rounded after every addition.
template <class T>
struct Stored {
  T value{};
  Stored() = default;
  explicit Stored(float v) : value(store<T>(v)) {}
  Stored operator+(Stored other) const { return Stored(load(value) + load(other.value)); }
};

// 16-bit floats are rounded at every addition, but their packets are those of float.
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

// Order::blocked: sums x in runs of 64, then their sums in runs of 64, until one is left. `add` adds two.
template <class A, class Add>
A fold_in_order(std::vector<A> x, Order order, Add add) {
  auto run = [&](std::size_t begin, std::size_t end) {
    A sum(0);
    for (std::size_t j = begin; j < end; ++j) sum = add(sum, x[j]);
    return sum;
  };
  while (order == Order::blocked && x.size() > 64) {
    std::vector<A> sums;
    for (std::size_t j = 0; j < x.size(); j += 64) sums.push_back(run(j, std::min(j + 64, x.size())));
    x = sums;
  }
  return run(0, x.size());
}

// Sums one output row: entry j adds row from[j] of grad.
template <class T>
void accumulate(T* out, const T* grad, int64_t cols, const std::vector<int64_t>& from, const Accumulator<T>* scale,
                Order order) {
  using A = Accumulator<T>;
  for (int64_t c = 0; c < cols; ++c) {
    std::vector<A> x;
    for (int64_t i : from) {
      const A g = load(grad[i * cols + c]);
      x.push_back(scale ? A(g * scale[i]) : g);
    }
    out[c] = store<T>(fold_in_order(x, order, added<A>));
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

// One bag, with the signature of rows.h.
template <class T>
void weighted_bags(const WeightedBags<T>& b, int64_t, int64_t) {
  weighted_reduce(b.out, b.data, b.cols, static_cast<const int64_t*>(b.ids.data), b.weights, b.ids.size, b.totals);
}

template <class T>
void weighted_row(T* out, const T* grad_row, int64_t cols, Accumulator<T> weight, const Accumulator<T>* total) {
  for (int64_t c = 0; c < cols; ++c) out[c] = store<T>(divided(load(grad_row[c]), total) * weight);
}

// Sums one output row: entry j adds id from[j].
template <class T>
void weighted_accumulate(T* out, const T* grad, int64_t cols, const std::vector<int64_t>& from,
                         const std::vector<int64_t>& segments, const Accumulator<T>* weights,
                         const Accumulator<T>* totals, Rounding rounding, Order order) {
  using A = Accumulator<T>;
  auto rounded = [&](A x) { return rounding == Rounding::each_add ? A(load(store<T>(x))) : x; };
  for (int64_t c = 0; c < cols; ++c) {
    std::vector<A> x;
    for (int64_t i : from) {
      const int64_t s = segments[i];
      x.push_back(rounded(divided<A>(load(grad[s * cols + c]), totals ? totals + s : nullptr) * weights[i]));
    }
    out[c] = store<T>(fold_in_order(x, order, [&](A a, A b) { return rounded(a + b); }));
  }
}

// With the signatures of rows.h: one run, one row of a plan.
template <class E>
std::vector<int64_t> sources(const E* e, int64_t n) {
  std::vector<int64_t> from;
  for (int64_t j = 0; j < n; ++j) {
    if constexpr (std::is_integral_v<E>)
      from.push_back(int64_t(e[j]));
    else
      from.push_back(int64_t(e[j].from));
  }
  return from;
}

inline std::vector<int64_t> as_int64(const IdList& ids) {
  return ids.wide ? sources(static_cast<const int64_t*>(ids.data), ids.size)
                  : sources(static_cast<const std::int32_t*>(ids.data), ids.size);
}

template <class T, class P>
void accumulate_runs(const SortedRows<T, P>& r, int64_t begin, int64_t end, int64_t) {
  accumulate(r.out, r.grad, r.cols, sources(r.entries + begin, end - begin), r.scale, r.order);
}

template <class T, class I>
void accumulate_planned(const PlannedRows<T, I>& r, int64_t, int64_t) {
  accumulate(r.out, r.grad, r.cols, sources(r.from, r.size), r.scale, r.order);
}

template <class T, class P>
void weighted_runs(const SortedRows<T, P>& r, const WeightedIds<T>& ids, int64_t begin, int64_t end, int64_t) {
  weighted_accumulate(r.out, r.grad, r.cols, sources(r.entries + begin, end - begin), as_int64(ids.segments),
                      ids.weights, ids.totals, ids.rounding, r.order);
}

template <class T>
void weighted_planned(const PlannedRows<T, int64_t>& r, const WeightedIds<T>& ids, int64_t, int64_t) {
  weighted_accumulate(r.out, r.grad, r.cols, sources(r.from, r.size), as_int64(ids.segments), ids.weights, ids.totals,
                      ids.rounding, r.order);
}

// Column c is added to partial sum c mod 8; the partial sums are added as a tree.
template <class T>
Accumulator<T> dot(const T* a, const T* b, int64_t cols) {
  Accumulator<T> p[8] = {};
  for (int64_t c = 0; c < cols; ++c) p[c % 8] += load(a[c]) * load(b[c]);
  return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

// The input positions of each id, in input order: those of id r are at[start[r]] to at[start[r + 1] - 1].
struct Groups {
  std::vector<int64_t> start, at;

  Groups(const std::vector<int64_t>& ids, int64_t bound) : start(static_cast<std::size_t>(bound + 1)), at(ids.size()) {
    for (int64_t id : ids) ++start[id + 1];
    for (int64_t r = 0; r < bound; ++r) start[r + 1] += start[r];
    std::vector<int64_t> next = start;
    for (std::size_t i = 0; i < ids.size(); ++i) at[next[ids[i]]++] = int64_t(i);
  }
  int64_t size(int64_t r) const { return start[r + 1] - start[r]; }
  std::vector<int64_t> of(int64_t r) const { return {at.begin() + start[r], at.begin() + start[r + 1]}; }
};

}  // namespace naive
