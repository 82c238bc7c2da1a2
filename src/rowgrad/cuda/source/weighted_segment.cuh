// Weighted bags: Σwx, Σwx/Σw, Σwx/√Σw², and the gradient row of each id.
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
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Validates that all indices, then all segments are in range; either list may be null. Sets `falls` if a segment is
// below the previous one.
DEVICE void check_weighted(const CheckWeighted& p) {
  const Ids indices{p.indices, p.wide_indices != 0}, segments{p.segments, p.wide_segments != 0};
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  bool bad = false, falls = false;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += stride) {
    if (p.indices) bad |= !is_below(indices[i], p.data_rows);
    if (!p.segments) continue;
    bad |= !is_below(segments[i], p.segment_rows);
    falls |= i > 0 && segments[i] < segments[i - 1];
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

struct ConvertWeights {
  const void* weights;
  const void* indices;
  int64_t wide_indices;
  const int32_t* positions;
  const int64_t* falls;
  int64_t size;
  void* brought;
  void* brought_indices;
  const Checks* checks;
};

// Converts weights of type W to the accumulator's type, and copies indices if `brought_indices` is not null: in the order
// of `positions` if that is not null and `falls` is set, else in input order.
template <class W, class A>
DEVICE void convert_weights(const ConvertWeights& p) {
  if (is_raised(p.checks)) return;
  const W* weights = static_cast<const W*>(p.weights);
  const Ids indices{p.indices, p.wide_indices != 0};
  const IdsOut brought_indices{p.brought_indices, p.wide_indices != 0};
  A* to = static_cast<A*>(p.brought);
  const bool is_moved = p.positions && (!p.falls || *p.falls != 0);
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += stride) {
    const int64_t from = is_moved ? p.positions[i] : i;
    to[i] = convert_to(load(weights[from]), A());
    if (p.brought_indices) brought_indices.put(i, indices[from]);
  }
}

struct TotalWeights {
  const void* weights;
  const int64_t* bounds;
  int64_t rows;
  int64_t is_squared;
  void* totals;
  const Checks* checks;
};

// Σw or √Σw² of every segment, left to right from +0. One lane sums a short segment; a whole warp loads a long one, and
// all its lanes add the loaded values in order while loading ahead. Values past the end are +0, which changes no sum
// that began with +0.
template <class A>
DEVICE void total_weights(const TotalWeights& p) {
  if (is_raised(p.checks)) return;
  constexpr int64_t longest_alone = 64;
  constexpr int parts = 8;
  const A* weights = static_cast<const A*>(p.weights);
  A* totals = static_cast<A*>(p.totals);
  const bool is_squared = p.is_squared != 0;
  auto term = [&](int64_t i) { return is_squared ? times(weights[i], weights[i]) : weights[i]; };
  const int lane = threadIdx.x % 32;
  const int64_t warp = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x / 32 * 32;
  for (int64_t first = warp * 32; first < p.rows; first += stride) {
    const int64_t s = first + lane;
    const int64_t begin = s < p.rows ? p.bounds[2 * s] : 0, n = s < p.rows ? p.bounds[2 * s + 1] - begin : 0;
    const bool is_long = n > longest_alone;
    A total = A(0);
    for (int64_t i = begin; i < begin + n && !is_long; ++i) total = plus(total, term(i));
    for (unsigned left = __ballot_sync(0xffffffffu, is_long); left; left &= left - 1) {
      const int owner = __ffs(int(left)) - 1;
      const int64_t from = __shfl_sync(0xffffffffu, begin, owner), size = __shfl_sync(0xffffffffu, n, owner);
      auto read = [&](int64_t i) { return i < size ? term(from + i) : A(0); };
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
          for (int from_lane = 0; from_lane < 32; ++from_lane)
            sum = plus(sum, __shfl_sync(0xffffffffu, mine[k], from_lane));
      }
      if (lane == owner) total = sum;
    }
    if (s < p.rows) totals[s] = is_squared ? root(total) : total;
  }
}

struct WeightedBags {
  const void* data;
  int64_t cols;
  const void* indices;
  int64_t wide;
  const void* weights;
  const void* totals;
  const int64_t* bounds;
  int64_t rows;
  int64_t longest;
  uint64_t* found;
  int64_t log_lanes;
  void* out;
  const Checks* checks;
};

// Sums the products of a bag in the order of SegmentSum, in the accumulator's type, and divides by its total (null: no
// division). Ids and weights are sorted by segment. 2^log_lanes threads share a bag, V columns each; long bags are
// left.
template <class T, int V>
DEVICE void weighted_bags(const WeightedBags& p) {
  if (is_raised(p.checks)) return;
  typedef Accumulator<T> A;
  const T* data = static_cast<const T*>(p.data);
  const A *weights = static_cast<const A*>(p.weights), *totals = static_cast<const A*>(p.totals);
  const Ids indices{p.indices, p.wide != 0};
  T* out = static_cast<T*>(p.out);
  const int64_t lanes = int64_t(1) << p.log_lanes, thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x >> p.log_lanes;
  auto add = [](A a, A b) { return plus(a, b); };
  for (int64_t s = thread >> p.log_lanes; s < p.rows; s += stride) {
    const int64_t begin = p.bounds[2 * s], n = p.bounds[2 * s + 1] - begin;
    if (defer_if_long(n, p.longest, s, (thread & (lanes - 1)) == 0, p.found)) continue;
    const A total = totals ? totals[s] : A(1);
    for (int64_t c = (thread & (lanes - 1)) * V; c < p.cols; c += lanes * V) {
      auto product = [&](int64_t j) {
        const A weight = weights[begin + j];
        const Pack<T, V> x = fetch<T, V>(data + indices[begin + j] * p.cols + c);
        Columns<A, V> products;
        for (int v = 0; v < V; ++v) products.at[v] = times(load(x.at[v]), weight);
        return products;
      };
      const Columns<A, V> sum = n == 1 ? product(0) : sum_of_segment<T, V, A>(n, c, p.cols, product, add);
      Pack<T, V> result;
      for (int v = 0; v < V; ++v) result.at[v] = store<T>(totals ? over_no_nan(sum.at[v], total) : sum.at[v]);
      put_pack<V>(out + s * p.cols + c, result);
    }
  }
}

struct WeightedLongBags {
  const void* data;
  int64_t cols;
  const void* indices;
  int64_t wide;
  const void* weights;
  const void* totals;
  const int64_t* bounds;
  const uint64_t* found;
  void* out;
  const Checks* checks;
};

// Sums the bags that `weighted_bags` left.
template <class T>
DEVICE void weighted_long_bags(const WeightedLongBags& p) {
  if (is_raised(p.checks)) return;
  typedef Accumulator<T> A;
  const T* data = static_cast<const T*>(p.data);
  const A *weights = static_cast<const A*>(p.weights), *totals = static_cast<const A*>(p.totals);
  const Ids indices{p.indices, p.wide != 0};
  T* out = static_cast<T*>(p.out);
  each_long_segment(p.found, p.cols, [&](int64_t s, int64_t first) {
    const int64_t begin = p.bounds[2 * s], n = p.bounds[2 * s + 1] - begin;
    sum_long_segment<A>(
        n, p.cols, first,
        [&](int64_t j, int64_t c) {
          return times(load(data[indices[begin + j] * p.cols + c]), weights[begin + j]);
        },
        [](A a, A b) { return plus(a, b); },
        [&](int64_t c, A sum) { out[s * p.cols + c] = store<T>(totals ? over_no_nan(sum, totals[s]) : sum); });
  });
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
