// What weighted bags and their gradients share, the divisors of bags, and the gradient row of each id.
#pragma once
#include "segment_sum.cuh"

namespace rowgrad {

struct CheckWeighted {
  const void* indices;
  int64_t wide_indices;
  int64_t data_rows;
  const void* segments;
  int64_t wide_segments;
  int64_t segment_rows;
  int64_t size;
  int64_t* falls;
  int64_t* bounds;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Validates that all indices, then all segments are in range; either list may be null. Sets `falls` if a segment is
// below the previous one; if none is, `bounds` (may be null) has the range of each segment.
DEVICE void check_weighted(const CheckWeighted& p) {
  const Ids indices{p.indices, p.wide_indices != 0}, segments{p.segments, p.wide_segments != 0};
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  bool bad = false, falls = false;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += stride) {
    if (p.indices) bad |= !is_below(indices[i], p.data_rows);
    if (!p.segments) continue;
    const bool in_range = is_below(segments[i], p.segment_rows);
    bad |= !in_range;
    falls |= i > 0 && segments[i] < segments[i - 1];
    if (in_range && p.bounds) mark_bounds(segments, p.size, i, p.bounds);
  }
  if (falls) *static_cast<volatile int64_t*>(p.falls) = 1;
  if (!must_report(p.checks, bad)) return;
  int64_t i = 0;
  if (p.indices) {
    while (i < p.size && is_below(indices[i], p.data_rows)) ++i;
    if (i < p.size) return report(p.fault, p.alarm, fault_index_not_in_params, i, indices[i], p.data_rows);
  }
  for (i = 0; is_below(segments[i], p.segment_rows);) ++i;
  report(p.fault, p.alarm, fault_segment_not_in_grad, i, segments[i], p.segment_rows);
}

// The ids of each segment, in input order: the lists as passed if segments ascend, else in the order of `positions`.
struct GroupedIds {
  const int64_t* bounds;
  const int32_t *sorted, *positions;
  int64_t size;
  bool falls;

  template <class P>
  explicit DEVICE GroupedIds(const P& p)
      : bounds(p.bounds), sorted(p.sorted), positions(p.positions), size(p.size), falls(*p.falls != 0) {}

  // Returns how many sorted segments are below one.
  DEVICE int64_t below(int64_t segment) const {
    int64_t low = 0;
    for (int64_t high = size; low < high;) {
      const int64_t middle = (low + high) / 2;
      if (int64_t(sorted[middle]) < segment)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
  DEVICE int64_t begin_of(int64_t segment) const { return falls ? below(segment) : bounds[2 * segment]; }
  DEVICE int64_t end_of(int64_t segment) const { return falls ? below(segment + 1) : bounds[2 * segment + 1]; }
  // Returns the position of the k-th of the grouped ids.
  DEVICE int64_t at(int64_t k) const { return falls ? int64_t(positions[k]) : k; }
};

struct ConvertWeights {
  const void* weights;
  int64_t size;
  void* brought;
  const Checks* checks;
};

// Converts weights of type W to the accumulator's type.
template <class W, class A>
DEVICE void convert_weights(const ConvertWeights& p) {
  if (is_raised(p.checks)) return;
  const W* weights = static_cast<const W*>(p.weights);
  A* to = static_cast<A*>(p.brought);
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += stride)
    to[i] = convert_to(load(weights[i]), A());
}

// Returns the sum of `term(0)`, …, `term(size - 1)`, left to right from +0, in all lanes of a warp: they load together
// and ahead, and each adds the loaded values in order. Values past the end are +0, which changes no sum that began with
// +0.
template <class A, class Term>
DEVICE A sum_by_warp(int64_t size, const Term& term) {
  constexpr int parts = 8;
  const int lane = threadIdx.x % 32;
  auto read = [&](int64_t i) { return i < size ? term(i) : A(0); };
  A sum = A(0), ahead[parts];
  for (int k = 0; k < parts; ++k) ahead[k] = read(k * 32 + lane);
  for (int64_t tile = 0; tile < size; tile += parts * 32) {
    A mine[parts];
    for (int k = 0; k < parts; ++k) {
      mine[k] = ahead[k];
      ahead[k] = read(tile + (parts + k) * 32 + lane);
    }
#pragma unroll
    for (int k = 0; k < parts; ++k)
      for (int from = 0; from < 32; ++from) sum = plus(sum, __shfl_sync(0xffffffffu, mine[k], from));
  }
  return sum;
}

// The divisor of a segment of weights: Σw or √Σw², left to right from +0.
template <class A>
struct Divisor {
  bool is_squared;

  DEVICE A term(A weight) const { return is_squared ? times(weight, weight) : weight; }
  DEVICE A of(A sum) const { return is_squared ? root(sum) : sum; }
};

struct TotalWeights {
  const void* weights;
  const int64_t* bounds;
  const int32_t* sorted;
  const int32_t* positions;
  const int64_t* falls;
  int64_t size;
  int64_t rows;
  int64_t is_squared;
  void* totals;
  const Checks* checks;
};

// Writes the divisor of every segment; weights have type W. One lane sums a short segment, a whole warp a long one.
template <class W, class A>
DEVICE void total_weights(const TotalWeights& p) {
  if (is_raised(p.checks)) return;
  constexpr int64_t longest_alone = 64;
  const GroupedIds ids(p);
  const W* weights = static_cast<const W*>(p.weights);
  A* totals = static_cast<A*>(p.totals);
  const Divisor<A> divisor{p.is_squared != 0};
  auto term = [&](int64_t k) { return divisor.term(convert_to(load(weights[ids.at(k)]), A())); };
  const int lane = threadIdx.x % 32;
  const int64_t warp = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x / 32 * 32;
  for (int64_t first = warp * 32; first < p.rows; first += stride) {
    const int64_t s = first + lane;
    const int64_t begin = s < p.rows ? ids.begin_of(s) : 0, n = s < p.rows ? ids.end_of(s) - begin : 0;
    const bool is_long = n > longest_alone;
    A total = A(0);
    for (int64_t k = begin; k < begin + n && !is_long; ++k) total = plus(total, term(k));
    for (unsigned left = __ballot_sync(0xffffffffu, is_long); left; left &= left - 1) {
      const int owner = __ffs(int(left)) - 1;
      const int64_t from = __shfl_sync(0xffffffffu, begin, owner), size = __shfl_sync(0xffffffffu, n, owner);
      const A sum = sum_by_warp<A>(size, [&](int64_t k) { return term(from + k); });
      if (lane == owner) total = sum;
    }
    if (s < p.rows) totals[s] = divisor.of(total);
  }
}

struct WeightedRows {
  const void* grad;
  int64_t cols;
  const void* segments;
  int64_t wide;
  const void* weights;
  const void* totals;
  int64_t size;
  int64_t log_lanes;
  void* out;
  const Checks* checks;
};

// Writes the contribution of every id: (gradient row of its segment / total of its segment) · weight.
template <class T, int V>
DEVICE void weighted_rows(const WeightedRows& p) {
  if (is_raised(p.checks)) return;
  typedef Accumulator<T> A;
  const T* grad = static_cast<const T*>(p.grad);
  const A *weights = static_cast<const A*>(p.weights), *totals = static_cast<const A*>(p.totals);
  const Ids segments{p.segments, p.wide != 0};
  T* out = static_cast<T*>(p.out);
  const int64_t lanes = int64_t(1) << p.log_lanes, thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x >> p.log_lanes;
  for (int64_t i = thread >> p.log_lanes; i < p.size; i += stride) {
    const int64_t s = segments[i];
    const A weight = weights[i], total = totals ? totals[s] : A(1);
    for (int64_t c = (thread & (lanes - 1)) * V; c < p.cols; c += lanes * V) {
      const Pack<T, V> x = fetch<T, V>(grad + s * p.cols + c);
      Pack<T, V> result;
      for (int v = 0; v < V; ++v) {
        const A g = load(x.at[v]);
        result.at[v] = store<T>(times(totals ? over_no_nan(g, total) : g, weight));
      }
      put_pack<V>(out + i * p.cols + c, result);
    }
  }
}

}  // namespace rowgrad
