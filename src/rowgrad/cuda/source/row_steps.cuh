// Optimizer steps on rows of a table whose gradients are rows in memory: several rows at a time, to keep memory busy.
#pragma once
#include "update_rules.cuh"

namespace rowgrad {

constexpr int kRowsAtOnce = 8;

struct StepRows {
  UPDATE_FIELDS;
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

// The table of a step. `update_of(id)` has the addresses that the row `row_of(id)` belongs to.
template <class T>
struct OneTable {
  RowUpdate<T> u;

  template <class P>
  explicit DEVICE OneTable(const P& p) : u(row_update_of<T>(p)) {}
  DEVICE int64_t id_of(int64_t row) const { return row; }
  DEVICE int64_t row_of(int64_t id) const { return id; }
  DEVICE bool is_stepped(int64_t) const { return true; }
  DEVICE const RowUpdate<T>& update_of(int64_t) const { return u; }
};

// Returns the gradient row of a segment.
template <class T>
DEVICE const void* row_of_segment(const StepRows& p, uint32_t segment) {
  return static_cast<const T*>(p.bags) + int64_t(segment) * p.cols;
}

// The steps of up to eight rows by a group of lanes.
//
// Rules with one slot per row need the sum of squares of whole rows, each in one group: column c adds to sum c mod 8,
// then a tree over the eight, as for inner products. Eight lanes share a row, or one lane has a row if the group has
// fewer.
template <class T, int W, class Rule, class Tables>
struct RowSteps {
  typedef Accumulator<T> A;
  static constexpr int kRowsLoaded = Rule::slots == 0 ? kRowsAtOnce : Rule::slots == 1 ? 4 : 2;  // in flight
  static constexpr bool loads_all = kRowsLoaded == kRowsAtOnce;
  const Tables tables;
  const LaneGroup group;
  const RowsOfGroup<T, W> rows;
  const int64_t column;
  const bool is_column;
  int waiting;

  template <class P>
  explicit DEVICE RowSteps(const P& p)
      : tables(p),
        group(p.lanes),
        rows(group.lanes),
        column((int64_t(blockIdx.y) * group.lanes + group.lane) * W),
        is_column(column < p.cols),
        waiting(0) {}

  DEVICE A* own_columns(int j) const { return rows.sums + j * rows.stride + group.lane * W; }

  // Returns row k + j of the list.
  template <class P>
  DEVICE Listed listed(const P& p, int64_t k, int j, int64_t count) const {
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
  template <class P>
  DEVICE void place(const P& p, int64_t k, int j, const Listed& found) const {
    const int64_t row_bytes = p.cols * int64_t(sizeof(T));
    int64_t source = reinterpret_cast<int64_t>(p.grad) + (k + j) * row_bytes;
    if (found.begin + 1 == found.end) {
      source = reinterpret_cast<int64_t>(row_of_segment<T>(p, p.segments[found.begin])) | 1;
      rows.factors[j] = p.scales ? static_cast<const A*>(p.scales)[found.begin] : A(1);
    }
    rows.ids[j] = tables.id_of(found.row);
    rows.sources[j] = source;
  }

  // Steps rows from k on, and prefetches the list entries after the next `stride`: `ahead` is one of them.
  template <class P>
  DEVICE void take_from(const P& p, int64_t k, int64_t stride, int64_t count, Listed& ahead) {
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
      if (is_column && first + j < waiting) {
        const int64_t id = rows.ids[first + j];
        if (tables.is_stepped(id)) loaded[j] = load_columns<Rule, W>(tables.update_of(id), tables.row_of(id), column);
      }
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
      if (group.lanes >= kRowsAtOnce && group.lane < waiting) slot = slot_of_row(rows.ids[group.lane]);
    if constexpr (loads_all) load_rows(loaded, 0);
    read_gradients();
    if constexpr (Rule::per_row) {
      if (tables.u.decays) decay(loaded);
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
        for (int w = 0; w < W; ++w) g.at[w] = decayed<Rule>(tables.u, g.at[w], load(loaded[j].weight.at[w]));
        store_pack<W>(own_columns(j), g);
      }
    __syncwarp(group.mask);
  }

  DEVICE void step(Columns<Rule, W, T> (&loaded)[kRowsLoaded], int first) const {
#pragma unroll
    for (int j = 0; j < kRowsLoaded; ++j)
      if (is_column && first + j < waiting && tables.is_stepped(rows.ids[first + j])) {
        Pack<A, W> g = load_pack<W>(own_columns(first + j));
        A factor = zero_of<A>();
        if constexpr (Rule::per_row) {
          factor = rows.factors[first + j];
        } else {
#pragma unroll
          for (int w = 0; w < W; ++w) g.at[w] = decayed<Rule>(tables.u, g.at[w], load(loaded[j].weight.at[w]));
        }
        const int64_t id = rows.ids[first + j];
        step_columns<Rule, true, W>(tables.update_of(id), tables.row_of(id), column, loaded[j], g.at, factor);
      }
  }

  DEVICE A slot_of_row(int64_t id) const {
    return tables.is_stepped(id) ? tables.update_of(id).slot0[tables.row_of(id)] : zero_of<A>();
  }

  DEVICE A new_factor(int64_t id, A slot, A squares) const {
    return tables.is_stepped(id) ? factor_of(tables.update_of(id), tables.row_of(id), slot, squares) : zero_of<A>();
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
          for (int c = group.lane % 8; c < int(tables.u.cols); c += 8) sum = plus(sum, times(from[c], from[c]));
        }
        sum = plus(sum, __shfl_xor_sync(group.mask, sum, 4));
        sum = plus(sum, __shfl_xor_sync(group.mask, sum, 2));
        sum = plus(sum, __shfl_xor_sync(group.mask, sum, 1));
        if (j < waiting && group.lane % 8 == 0) rows.factors[j] = sum;
      }
      __syncwarp(group.mask);
      if (group.lane < waiting) {
        A& factor = rows.factors[group.lane];
        factor = new_factor(rows.ids[group.lane], slot, factor);
      }
    } else {
      for (int j = group.lane; j < waiting; j += group.lanes)
        rows.factors[j] = new_factor(rows.ids[j], slot_of_row(rows.ids[j]), sum_of_squares(rows.sums + j * rows.stride));
    }
    __syncwarp(group.mask);
  }

  DEVICE A sum_of_squares(const A* from) const {
    A eight[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) eight[i] = zero_of<A>();
#pragma unroll 1
    for (int c = 0; c < int(tables.u.cols); c += 8)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (c + i < int(tables.u.cols)) eight[i] = plus(eight[i], times(from[c + i], from[c + i]));
    return plus(plus(plus(eight[0], eight[4]), plus(eight[2], eight[6])),
                plus(plus(eight[1], eight[5]), plus(eight[3], eight[7])));
  }
};

// A group of lanes steps rows ids[k], …, ids[k + 7], or without ids rows k, …, k + 7, with row k of `grad` as the
// gradient of the k-th. With `starts`, a row may have a single sorted entry: then its gradient is the entry's row of
// `bags` times its scale, rounded like any sum. If the host does not know the number of rows, it is in `count`.
template <class T, class Rule, int W, class Tables, class P>
DEVICE void step_listed_rows(const P& p) {
  if (p.checks && is_raised(p.checks)) return;
  RowSteps<T, W, Rule, Tables> steps(p);
  const int64_t groups = blockDim.x / steps.group.lanes, stride = gridDim.x * groups * kRowsAtOnce;
  const int64_t count = p.count ? *p.count : p.size;
  const int64_t first = (blockIdx.x * groups + threadIdx.x / steps.group.lanes) * kRowsAtOnce;
  Listed ahead = steps.listed(p, first, steps.group.lane % kRowsAtOnce, count);
#pragma unroll 1
  for (int64_t k = first; k < count; k += stride) steps.take_from(p, k, stride, count, ahead);
}

template <class T, class Rule, int W>
DEVICE void step_rows(const StepRows& p) {
  step_listed_rows<T, Rule, W, OneTable<T>>(p);
}

}  // namespace rowgrad
