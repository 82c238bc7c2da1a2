// Optimizer steps on rows of a table whose gradients are rows in memory: several rows at a time, to keep memory busy.
#pragma once
#include "update_rules.cuh"

namespace rowgrad {

constexpr int kRowsAtOnce = 8;

struct StepRows {
  void* table;
  void* slot0;
  void* slot1;
  int64_t cols;
  STEP_NUMBERS;
  int64_t random;
  int64_t seed;
  int64_t step;
  int64_t lanes;
  const void* grad;
  const void* ids;
  int64_t wide;
  int64_t size;
  const int64_t* count;
  const int64_t* starts;
  int64_t entries;
  const void* bags;
  const uint32_t* segments;
  const void* scales;
  const Checks* checks;
};

// A group's rows in shared memory: their numbers, the addresses of their gradients, and then the gradients themselves.
template <class T, int W>
struct RowsOfGroup {
  typedef Accumulator<T> A;
  const int stride;
  A *sums, *factors;  // factors: scales at first
  int64_t *ids, *sources;

  explicit DEVICE RowsOfGroup(int lanes)
      : stride((lanes + (lanes < 8 ? 1 : 8 / W)) * W) {  // pad rows so that neighbouring rows are in different banks
    SHARED;
    constexpr int kNumbers = kRowsAtOnce * 2 * sizeof(int64_t) / sizeof(A);
    sums = reinterpret_cast<A*>(shared_memory) +
           int(threadIdx.x) / lanes * (kRowsAtOnce * stride + kRowsAtOnce + kNumbers);
    factors = sums + kRowsAtOnce * stride;
    ids = reinterpret_cast<int64_t*>(factors + kRowsAtOnce);
    sources = ids + kRowsAtOnce;
  }
};

// A listed row and the range of its sorted entries.
struct Listed {
  int64_t row, begin, end;
};

// The steps of up to eight rows by a group of lanes.
//
// Rules with one slot per row need the sum of squares of whole rows, each in one group: column c adds to sum c mod 8,
// then a tree over the eight, as for inner products. Eight lanes share a row, or one lane has a row if the group has
// fewer.
template <class T, int W, class Rule>
struct RowSteps {
  typedef Accumulator<T> A;
  static constexpr int kRowsLoaded = Rule::slots == 0 ? kRowsAtOnce : Rule::slots == 1 ? 4 : 2;  // in flight
  static constexpr bool loads_all = kRowsLoaded == kRowsAtOnce;
  const RowUpdate<T> u;
  const LaneGroup group;
  const RowsOfGroup<T, W> rows;
  const int64_t column;
  const bool is_column;
  int waiting;

  explicit DEVICE RowSteps(const StepRows& p)
      : u(row_update_of<T>(p)),
        group(p.lanes),
        rows(group.lanes),
        column((int64_t(blockIdx.y) * group.lanes + group.lane) * W),
        is_column(column < p.cols),
        waiting(0) {}

  DEVICE A* own_columns(int j) const { return rows.sums + j * rows.stride + group.lane * W; }

  // Returns row k + j of the list.
  DEVICE Listed listed(const StepRows& p, int64_t k, int j, int64_t count) const {
    const Ids ids{p.ids, p.wide != 0};
    Listed found{k + j, 0, 0};
    if (k + j >= count) return found;
    if (p.ids) found.row = ids[k + j];
    if (p.starts) {
      found.begin = p.starts[k + j];
      found.end = k + j + 1 < count ? p.starts[k + j + 1] : p.entries;
    }
    return found;
  }

  // Stores the source of a row's gradient. If its lowest bit is set, the source is a single entry, to be multiplied by
  // its scale.
  DEVICE void place(const StepRows& p, int64_t k, int j, const Listed& found) const {
    const int64_t row_bytes = p.cols * int64_t(sizeof(T));
    int64_t source = reinterpret_cast<int64_t>(p.grad) + (k + j) * row_bytes;
    if (found.begin + 1 == found.end) {
      source = (reinterpret_cast<int64_t>(p.bags) + int64_t(p.segments[found.begin]) * row_bytes) | 1;
      rows.factors[j] = p.scales ? static_cast<const A*>(p.scales)[found.begin] : A(1);
    }
    rows.ids[j] = found.row;
    rows.sources[j] = source;
  }

  // Steps rows from k on, and prefetches the list entries after the next `stride`: `ahead` is one of them.
  DEVICE void take_from(const StepRows& p, int64_t k, int64_t stride, int64_t count, Listed& ahead) {
    waiting = count - k < kRowsAtOnce ? int(count - k) : kRowsAtOnce;
    if (group.lanes >= kRowsAtOnce) {
      if (group.lane < waiting) place(p, k, group.lane, ahead);
      if (group.lane < kRowsAtOnce) ahead = listed(p, k + stride, group.lane, count);
    } else {
      for (int j = group.lane; j < waiting; j += group.lanes) place(p, k, j, listed(p, k, j, count));
    }
    __syncwarp(group.mask);
    take();
  }

  DEVICE void load_rows(Columns<Rule, W, T> (&loaded)[kRowsLoaded], int first) const {
#pragma unroll
    for (int j = 0; j < kRowsLoaded; ++j)
      if (is_column && first + j < waiting) loaded[j] = load_columns<Rule, W>(u, rows.ids[first + j], column);
  }

  // Loads the gradients of all rows, four in flight.
  DEVICE void read_gradients() const {
    constexpr int kRead = 4;
#pragma unroll
    for (int first = 0; first < kRowsAtOnce; first += kRead) {
      Pack<T, W> read[kRead];
#pragma unroll
      for (int j = 0; j < kRead; ++j)
        if (is_column && first + j < waiting)
          read[j] = fetch<T, W>(reinterpret_cast<const T*>(rows.sources[first + j] & ~int64_t(1)) + column);
#pragma unroll
      for (int j = 0; j < kRead; ++j)
        if (is_column && first + j < waiting) {
          Pack<A, W> g;
          const bool is_entry = rows.sources[first + j] & 1;
          const A scale = is_entry ? rows.factors[first + j] : A(1);
#pragma unroll
          for (int w = 0; w < W; ++w) {
            g.at[w] = load<T>(read[j].at[w]);
            if (is_entry) g.at[w] = load<T>(store<T>(plus(zero_of<A>(), times(g.at[w], scale))));
          }
          store_pack<W>(own_columns(first + j), g);
        }
    }
    __syncwarp(group.mask);
  }

  DEVICE void take() const {
    Columns<Rule, W, T> loaded[kRowsLoaded];
    A slot = zero_of<A>();  // of a rule with one slot per row
    if constexpr (Rule::per_row)
      if (group.lanes >= kRowsAtOnce && group.lane < waiting) slot = u.slot0[rows.ids[group.lane]];
    if constexpr (loads_all) load_rows(loaded, 0);
    read_gradients();
    if constexpr (Rule::per_row) {
      if (u.decays) decay(loaded);
      find_factors(slot);
    }
#pragma unroll 1
    for (int first = 0; first < waiting; first += kRowsLoaded) {
      if constexpr (!loads_all) load_rows(loaded, first);
      step(loaded, first);
    }
    __syncwarp(group.mask);
  }

  // Adds weight decay before the sum of squares, for rules with one slot per row.
  DEVICE void decay(const Columns<Rule, W, T> (&loaded)[kRowsLoaded]) const {
#pragma unroll
    for (int j = 0; j < kRowsLoaded; ++j)
      if (is_column && j < waiting) {
        Pack<A, W> g = load_pack<W>(own_columns(j));
#pragma unroll
        for (int w = 0; w < W; ++w) g.at[w] = decayed<Rule>(u, g.at[w], load(loaded[j].weight.at[w]));
        store_pack<W>(own_columns(j), g);
      }
    __syncwarp(group.mask);
  }

  DEVICE void step(Columns<Rule, W, T> (&loaded)[kRowsLoaded], int first) const {
#pragma unroll
    for (int j = 0; j < kRowsLoaded; ++j)
      if (is_column && first + j < waiting) {
        Pack<A, W> g = load_pack<W>(own_columns(first + j));
        A factor = zero_of<A>();
        if constexpr (Rule::per_row) {
          factor = rows.factors[first + j];
        } else {
#pragma unroll
          for (int w = 0; w < W; ++w) g.at[w] = decayed<Rule>(u, g.at[w], load(loaded[j].weight.at[w]));
        }
        step_columns<Rule, true, W>(u, rows.ids[first + j], column, loaded[j], g.at, factor);
      }
  }

  DEVICE void find_factors(A slot) const {
    if (group.lanes >= 8) {
#pragma unroll 1
      for (int first = 0; first < waiting; first += group.lanes / 8) {
        const int j = first + group.lane / 8;
        A sum = zero_of<A>();
        if (j < waiting) {
          const A* from = rows.sums + j * rows.stride;
#pragma unroll 4
          for (int c = group.lane % 8; c < int(u.cols); c += 8) sum = plus(sum, times(from[c], from[c]));
        }
        sum = plus(sum, __shfl_xor_sync(group.mask, sum, 4));
        sum = plus(sum, __shfl_xor_sync(group.mask, sum, 2));
        sum = plus(sum, __shfl_xor_sync(group.mask, sum, 1));
        if (j < waiting && group.lane % 8 == 0) rows.factors[j] = sum;
      }
      __syncwarp(group.mask);
      if (group.lane < waiting) {
        A& factor = rows.factors[group.lane];
        factor = factor_of(u, rows.ids[group.lane], slot, factor);
      }
    } else {
      for (int j = group.lane; j < waiting; j += group.lanes)
        rows.factors[j] = factor_of(u, rows.ids[j], u.slot0[rows.ids[j]], sum_of_squares(rows.sums + j * rows.stride));
    }
    __syncwarp(group.mask);
  }

  DEVICE A sum_of_squares(const A* from) const {
    A eight[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) eight[i] = zero_of<A>();
#pragma unroll 1
    for (int c = 0; c < int(u.cols); c += 8)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (c + i < int(u.cols)) eight[i] = plus(eight[i], times(from[c + i], from[c + i]));
    return plus(plus(plus(eight[0], eight[4]), plus(eight[2], eight[6])),
                plus(plus(eight[1], eight[5]), plus(eight[3], eight[7])));
  }
};

// A group of lanes steps rows ids[k], …, ids[k + 7], or without ids rows k, …, k + 7, with row k of `grad` as the
// gradient of the k-th. With `starts`, a row may have a single sorted entry: then its gradient is the entry's row of
// `bags` times its scale, rounded like any sum. If the host does not know the number of rows, it is in `count`.
template <class T, class Rule, int W>
DEVICE void step_rows(const StepRows& p) {
  if (p.checks && is_raised(p.checks)) return;
  RowSteps<T, W, Rule> steps(p);
  const int64_t groups = blockDim.x / steps.group.lanes, stride = gridDim.x * groups * kRowsAtOnce;
  const int64_t count = p.count ? *p.count : p.size;
  const int64_t first = (blockIdx.x * groups + threadIdx.x / steps.group.lanes) * kRowsAtOnce;
  Listed ahead = steps.listed(p, first, steps.group.lane % kRowsAtOnce, count);
#pragma unroll 1
  for (int64_t k = first; k < count; k += stride) steps.take_from(p, k, stride, count, ahead);
}

}  // namespace rowgrad
