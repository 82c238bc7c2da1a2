// Optimizer steps with the gradient of bags: gradient rows are added up and used at once, and never stored.
//
//   update_bags       a group of lanes takes a row of the table, adds up its entries, which stand sorted by row, and does the
//                     step. In blocked order it leaves rows of more entries than a run has.
//   update_long_bags  what was left, a run at a time: sums of runs go through memory, 64 of them make one, and who completes
//                     the last of a row does its step. So it is open who adds up what, but not in which order.
#pragma once
#include "update_rules.cuh"

namespace rowgrad {

constexpr int kRunOfUpdate = 64;
constexpr int kRowsAtOnce = 8;  // gradient rows in flight

// How entries become contributions: as in segment_grad.cuh.
constexpr int64_t kScales = 1, kDivides = 2, kRounds = 4;

// A run of a row that was left.
struct LeftRun {
  uint32_t number, run;  // of the row among those named; of the run in the row
};

struct UpdateBags {
  void* table;
  void* slot0;
  void* slot1;
  int64_t cols;
  double lr;
  double eps;
  double weight_decay;
  double beta1;
  double beta2;
  double rate;
  int64_t random;
  int64_t seed;
  int64_t step;
  int64_t lanes;
  const void* grad;
  const uint32_t* values;
  const void* scales;
  const void* divisors;
  int64_t size;
  int64_t mode;
  const void* ids;
  int64_t wide;
  const int64_t* starts;
  int64_t listed;
  const int64_t* count;
  int64_t longest;
  LeftRun* left;
  unsigned long long* left_count;
  const Checks* checks;
};

struct UpdateLongBags {
  void* table;
  void* slot0;
  void* slot1;
  int64_t cols;
  double lr;
  double eps;
  double weight_decay;
  double beta1;
  double beta2;
  double rate;
  int64_t random;
  int64_t seed;
  int64_t step;
  int64_t lanes;
  const void* grad;
  const uint32_t* values;
  const void* scales;
  const void* divisors;
  int64_t size;
  int64_t mode;
  const void* ids;
  int64_t wide;
  const int64_t* starts;
  int64_t listed;
  const int64_t* count;
  const LeftRun* left;
  const unsigned long long* left_count;
  void* partials;
  unsigned long long* arrivals;
  const Checks* checks;
};

// What memory holds is asked for before it is used.
DEVICE void prefetch(const void* p) {
#ifdef __CUDACC_RTC__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

template <class T, int W, class P>
DEVICE void add_rounded(const P& p, Accumulator<T> (&sum)[W], int j, Accumulator<T> x) {
  sum[j] = plus(sum[j], x);
  if constexpr (sizeof(T) == 2)
    if (p.mode & kRounds) sum[j] = load(store<T>(sum[j]));
}

// Entries [begin, end) at columns [c, c + W), left to right from +0. The values of the next ones are asked for while the
// rows of these are on their way.
template <class T, int W, class P>
DEVICE void sum_entries(const P& p, int64_t begin, int64_t end, int64_t c, Accumulator<T> (&sum)[W]) {
  typedef Accumulator<T> A;
  const T* grad = static_cast<const T*>(p.grad) + c;
  const A *scales = static_cast<const A*>(p.scales), *divisors = static_cast<const A*>(p.divisors);
  uint32_t value[kRowsAtOnce];
#pragma unroll
  for (int j = 0; j < kRowsAtOnce; ++j)
    if (begin + j < end) value[j] = p.values[begin + j];
#pragma unroll
  for (int w = 0; w < W; ++w) sum[w] = zero_of<A>();
#pragma unroll 1
  for (int64_t i = begin; i < end; i += kRowsAtOnce) {
    Pack<T, W> row[kRowsAtOnce];
    A scale[kRowsAtOnce], divisor[kRowsAtOnce];
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j) {
      if (i + j >= end) continue;
      row[j] = load_pack<W>(grad + int64_t(value[j]) * p.cols);
      if (p.mode & kScales) scale[j] = scales[i + j];
      if (p.mode & kDivides) divisor[j] = divisors[i + j];
    }
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j)
      if (i + kRowsAtOnce + j < end) value[j] = p.values[i + kRowsAtOnce + j];
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j) {
      if (i + j >= end) continue;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        A x = load(row[j].at[w]);
        if (p.mode & kDivides) x = over_no_nan(x, divisor[j]);
        if (p.mode & kScales) x = times(x, scale[j]);
        if constexpr (sizeof(T) == 2)
          if (p.mode & kRounds) x = load(store<T>(x));
        add_rounded<T, W>(p, sum, w, x);
      }
    }
  }
}

// A row's step with the gradient that `sum(c, g)` adds up: once, but for rows that are wider than a group and a rule that
// looks at whole rows.
template <class Rule, int W, class T, class Sum>
DEVICE void update_summed(const RowUpdate<T>& u, const LaneGroup& group, int64_t row, const Sum& sum,
                          Accumulator<T>* staged) {
  typedef Accumulator<T> A;
  int64_t held_at = -1;
  A held[W];
  update_row<Rule, W>(
      u, group, row,
      [&](int64_t c, A(&g)[W]) {
        if (c != held_at) {
          sum(c, held);
          for (int j = 0; j < W; ++j) held[j] = load(store<T>(held[j]));
          held_at = c;
        }
        for (int j = 0; j < W; ++j) g[j] = held[j];
      },
      staged);
}

template <class T, class Rule, int W>
DEVICE Accumulator<T>* staging_of(const LaneGroup& group) {
  if constexpr (Rule::per_row) {
    SHARED;
    return reinterpret_cast<Accumulator<T>*>(shared_memory) + (int(threadIdx.x) - group.lane) * W;
  } else {
    return nullptr;
  }
}

template <class T, class Rule, int W>
DEVICE void update_bags(const UpdateBags& p) {
  typedef Accumulator<T> A;
  if (is_raised(p.checks)) return;
  const LaneGroup group(p.lanes);
  A* staged = staging_of<T, Rule, W>(group);
  const RowUpdate<T> u = row_update_of<T>(p);
  const Ids ids{p.ids, p.wide != 0};
  const int64_t groups = blockDim.x / group.lanes, stride = gridDim.x * groups, count = p.count ? *p.count : p.listed;
  for (int64_t k = blockIdx.x * groups + threadIdx.x / group.lanes; k < count; k += stride) {
    const int64_t begin = p.starts[k], end = k + 1 < count ? p.starts[k + 1] : p.size, row = ids[k];
    if (end - begin > p.longest) {
      const int64_t runs = (end - begin + kRunOfUpdate - 1) / kRunOfUpdate;
      unsigned long long to = 0;
      if (group.lane == 0) to = atomicAdd(p.left_count, (unsigned long long)(runs));
      to = __shfl_sync(group.mask, to, 0, group.lanes);
      for (int64_t run = group.lane; run < runs; run += group.lanes) p.left[to + run] = {uint32_t(k), uint32_t(run)};
      continue;
    }
    const int64_t own = int64_t(group.lane) * W;
    if (own < u.cols) {
      prefetch(u.table + row * u.cols + own);
      if constexpr (Rule::slots > 0) prefetch(u.slot0 + row * u.cols + own);
      if constexpr (Rule::slots > 1) prefetch(u.slot1 + row * u.cols + own);
    }
    update_summed<Rule, W>(
        u, group, row, [&](int64_t c, A(&sum)[W]) { sum_entries<T, W>(p, begin, end, c, sum); }, staged);
  }
}

// Sums that other threads of the same kernel wrote: past the cache of one multiprocessor.
DEVICE float fresh(const float* p) { return __ldcg(p); }
DEVICE double fresh(const double* p) { return __ldcg(p); }

// Where the sum of a run is kept: 64 entries have at most one first run of a row of several runs, and one of the others.
DEVICE int64_t place_of(int64_t row_begin, int64_t run) {
  return ((row_begin + run * kRunOfUpdate) / kRunOfUpdate) * 2 + (run != 0);
}

template <class T, class Rule, int W>
DEVICE void update_long_bags(const UpdateLongBags& p) {
  typedef Accumulator<T> A;
  if (is_raised(p.checks)) return;
  const LaneGroup group(p.lanes);
  A* staged = staging_of<T, Rule, W>(group);
  const RowUpdate<T> u = row_update_of<T>(p);
  const Ids ids{p.ids, p.wide != 0};
  const int64_t groups = blockDim.x / group.lanes, stride = gridDim.x * groups, left = int64_t(*p.left_count);
  const int64_t rows = p.count ? *p.count : p.listed, first = int64_t(group.lane) * W, round = int64_t(group.lanes) * W;
  for (int64_t n = blockIdx.x * groups + threadIdx.x / group.lanes; n < left; n += stride) {
    const LeftRun task = p.left[n];
    const int64_t k = task.number, begin = p.starts[k], end = k + 1 < rows ? p.starts[k + 1] : p.size;
    auto part = [&](int64_t run) { return static_cast<A*>(p.partials) + place_of(begin, run) * p.cols; };
    int64_t run = task.run;
    const int64_t from = begin + run * kRunOfUpdate;
    bool is_last = from + kRunOfUpdate >= end;
    for (int64_t c = first; c < p.cols; c += round) {
      A sum[W];
      sum_entries<T, W>(p, from, is_last ? end : from + kRunOfUpdate, c, sum);
      for (int j = 0; j < W; ++j) part(run)[c + j] = sum[j];
    }
    for (int level = 0;; ++level) {
      const int64_t parent = run >> 6, child = run & 63;
      const int shift = 6 * level;
      __threadfence();
      __syncwarp(group.mask);
      unsigned arrived = 0;
      if (group.lane == 0) {
        // Seven bits count to 64, whoever is last counting for those that are not there; seven more say how many are.
        const unsigned told = is_last ? (unsigned(child + 1) << 7) + unsigned(64 - child) : 1u;
        unsigned long long* counter = &p.arrivals[place_of(begin, (parent << 6) << shift)];
        const unsigned long long before = atomicAdd(counter, (unsigned long long)(told) << (14 * level));
        arrived = (unsigned(before >> (14 * level)) + told) & 0x3fffu;
      }
      arrived = __shfl_sync(group.mask, arrived, 0, group.lanes);
      if ((arrived & 127u) != 64u) break;
      __threadfence();
      is_last = (arrived >> 7) != 0;
      const int children = is_last ? int(arrived >> 7) : 64;
      auto joined_sum = [&](int64_t c, A(&sum)[W]) {
        for (int j = 0; j < W; ++j) sum[j] = zero_of<A>();
#pragma unroll 4
        for (int i = 0; i < children; ++i) {
          const A* some = part(((parent << 6) + i) << shift) + c;
          for (int j = 0; j < W; ++j) add_rounded<T, W>(p, sum, j, fresh(some + j));
        }
      };
      if (parent == 0 && is_last) {
        update_summed<Rule, W>(u, group, ids[k], joined_sum, staged);
        break;
      }
      for (int64_t c = first; c < p.cols; c += round) {
        A sum[W];
        joined_sum(c, sum);
        for (int j = 0; j < W; ++j) part((parent << 6) << shift)[c + j] = sum[j];
      }
      run = parent;
    }
    __syncwarp(group.mask);
  }
}

}  // namespace rowgrad
