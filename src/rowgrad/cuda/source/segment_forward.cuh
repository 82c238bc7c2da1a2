// Rows of a table added up by bag, in TensorFlow's order: a first block of n mod 8 rows, then blocks of eight.
#pragma once
#include "packs.cuh"

namespace rowgrad {

struct LookAtBags {
  const void* ids;
  int64_t ids_wide;
  const void* segments;
  int64_t segments_wide;
  int64_t size;
  int64_t rows;
  int64_t bags;
  int64_t* offsets;
  const Checks* earlier;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// In TensorFlow's order: the last segment against the number of bags; then run by run: against the next run, against the
// number of bags, its ids against the table.
DEVICE void name_bad_bag(const LookAtBags& p) {
  const Ids ids{p.ids, p.ids_wide != 0}, segments{p.segments, p.segments_wide != 0};
  const int64_t n = p.size, last = segments[n - 1], int32_max = 0x7fffffff;
  const int64_t limit = p.ids_wide ? 0x7fffffffffffffff : int32_max;
  if (last >= limit) return report(p.fault, p.alarm, fault_last_segment_too_big, n - 1, last, limit);
  const int64_t needed = p.segments_wide ? last + 1 : int64_t(int32_t(uint32_t(last + 1)));
  if (p.bags < needed) return report(p.fault, p.alarm, fault_num_segments_too_small, n - 1, last, p.bags);
  if (p.bags <= 0) return report(p.fault, p.alarm, fault_segment_negative, n - 1, last, 0);
  for (int64_t begin = 0, end; begin < n; begin = end) {
    const int64_t id = segments[begin];
    for (end = begin + 1; end < n && segments[end] == id;) ++end;
    if (end < n && segments[end] < id)
      return report(p.fault, p.alarm, fault_segments_not_increasing, end, segments[end], id);
    if (!is_below(id, p.bags)) return report(p.fault, p.alarm, fault_segment_not_in_output, begin, id, p.bags);
    for (int64_t i = begin; i < end; ++i)
      if (!is_below(ids[i], p.rows)) return report(p.fault, p.alarm, fault_index_not_in_data, i, ids[i], p.rows);
  }
}

// offsets[s]: where the ids of bag s begin; offsets[bags]: how many ids there are.
// earlier: checks the lists have already passed, or not, or null.
DEVICE void look_at_bags(const LookAtBags& p) {
  if (p.earlier && is_raised(p.earlier)) return;
  const Ids ids{p.ids, p.ids_wide != 0}, segments{p.segments, p.segments_wide != 0};
  const unsigned lane = lane_of_thread();
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, step = int64_t(gridDim.x) * blockDim.x;
  bool bad = false;
  for (int64_t base = at - lane; base < p.size; base += step) {  // whole warps
    const int64_t i = base + lane;
    const bool is_there = i < p.size;
    const int64_t segment = is_there ? segments[i] : 0;
    const int64_t before = is_there && i > 0 ? segments[i - 1] : -1;
    const bool fits = is_there && is_below(segment, p.bags) && segment >= before && before >= -1 && is_below(ids[i], p.rows);
    bad |= is_there && !fits;
    // Bags (before, segment] begin here. Many at once are empty bags: all lanes help to write them.
    const bool begins = fits && segment > before;
    const bool is_long = begins && segment - before > 8;
    if (begins && !is_long)
      for (int64_t s = before + 1; s <= segment; ++s) p.offsets[s] = i;
    for (unsigned rest = __ballot_sync(kAllLanes, is_long); rest; rest &= rest - 1) {
      const int from = __ffs(int(rest)) - 1;
      const int64_t first = __shfl_sync(kAllLanes, before, from) + 1, last = __shfl_sync(kAllLanes, segment, from);
      for (int64_t s = first + lane; s <= last; s += 32) p.offsets[s] = base + from;
    }
  }
  const int64_t last = p.size > 0 ? segments[p.size - 1] : -1;
  if (last >= -1 && last < p.bags)
    for (int64_t s = last + 1 + at; s <= p.bags; s += step) p.offsets[s] = p.size;
  if (must_name(p.checks, bad)) name_bad_bag(p);
}

struct SumBags {
  const void* data;
  void* out;
  int64_t columns;
  int64_t lanes;
  const void* ids;
  int64_t ids_wide;
  const int64_t* offsets;
  int64_t bags;
  int64_t reduce;
  const Checks* checks;
};

constexpr int64_t kLongBag = 512;  // beyond it a whole block of threads adds up a bag

template <class T, int W>
DEVICE void add_rows(Accumulator<T> (&sum)[W], const Pack<T, W>& row, bool is_first) {
#pragma unroll
  for (int w = 0; w < W; ++w) sum[w] = is_first ? load<T>(row.at[w]) : plus(sum[w], load<T>(row.at[w]));
}

// The sum of rows [from, from + count), count at most nine, left to right.
template <class T, int W>
DEVICE void sum_block(Accumulator<T> (&sum)[W], const T* data, int64_t columns, const Ids& ids, int64_t from, int count) {
  Pack<T, W> rows[9];
#pragma unroll
  for (int j = 0; j < 9; ++j)
    if (j < count) rows[j] = fetch<T, W>(data + ids[from + j] * columns);
#pragma unroll
  for (int j = 0; j < 9; ++j)
    if (j < count) add_rows<T, W>(sum, rows[j], j == 0);
}

template <class T, int W>
DEVICE void put_bag(T* out, Accumulator<T> (&sum)[W], int64_t n, int64_t reduce) {
  typedef Accumulator<T> A;
  Pack<T, W> packed;
#pragma unroll
  for (int w = 0; w < W; ++w) {
    A total = sum[w];
    if constexpr (IsFloat<A>::value) {
      if (reduce != 0) {
        const A divisor = reduce == 1 ? A(n) : A(sqrt(double(n)));
        total = n < 10 ? times(total, over(A(1), divisor)) : over(total, divisor);
      }
    }
    packed.at[w] = store<T>(total);
  }
  *reinterpret_cast<Pack<T, W>*>(out) = packed;
}

DEVICE int first_block(int64_t n) {
  const int rest = int(n & 7);
  return n < 10 ? int(n) : rest < 2 ? rest + 8 : rest;
}

// A group of lanes has a bag; long bags are left for all groups of the block together.
template <class T, int W>
DEVICE void sum_bags(const SumBags& p) {
  typedef Accumulator<T> A;
  if (is_raised(p.checks)) return;
  SHARED;
  constexpr int kBlocks = 4;  // of eight rows, that a group adds up at a time in a long bag
  A* parts = reinterpret_cast<A*>(shared_memory);
  const int lanes = int(p.lanes), lane = threadIdx.x % lanes, group = threadIdx.x / lanes, groups = blockDim.x / lanes;
  const int64_t column = (int64_t(blockIdx.y) * lanes + lane) * W, first_bag = int64_t(blockIdx.x) * groups;
  const bool is_column = column < p.columns;
  const T* data = static_cast<const T*>(p.data) + column;
  T* out = static_cast<T*>(p.out) + column;
  const Ids ids{p.ids, p.ids_wide != 0};

  const int64_t bag = first_bag + group;
  bool is_long = false;
  if (bag < p.bags && is_column) {
    const int64_t begin = p.offsets[bag], n = p.offsets[bag + 1] - begin;
    is_long = n > kLongBag;
    T* to = out + bag * p.columns;
    if (n == 1) {
      *reinterpret_cast<Pack<T, W>*>(to) = fetch<T, W>(data + ids[begin] * p.columns);
    } else if (n == 0) {
      Pack<T, W> zeros;
#pragma unroll
      for (int w = 0; w < W; ++w) zeros.at[w] = T();
      *reinterpret_cast<Pack<T, W>*>(to) = zeros;
    } else if (!is_long) {
      A sum[W], block[W];
      int64_t at = first_block(n);
      sum_block<T, W>(sum, data, p.columns, ids, begin, int(at));
      for (; at < n; at += 8) {
        sum_block<T, W>(block, data, p.columns, ids, begin + at, 8);
#pragma unroll
        for (int w = 0; w < W; ++w) sum[w] = plus(sum[w], block[w]);
      }
      put_bag<T, W>(to, sum, n, p.reduce);
    }
  }
  if (!any_thread(is_long)) return;
  for (int g = 0; g < groups && first_bag + g < p.bags; ++g) {
    const int64_t begin = p.offsets[first_bag + g], n = p.offsets[first_bag + g + 1] - begin;
    if (n <= kLongBag) continue;
    A sum[W], block[W];
    int64_t at = first_block(n);
    if (group == 0 && is_column) sum_block<T, W>(sum, data, p.columns, ids, begin, int(at));
    for (; at < n; at += int64_t(8) * kBlocks * groups) {
      for (int b = 0; b < kBlocks; ++b) {
        const int part = b * groups + group;
        if (at + part * 8 >= n || !is_column) continue;
        sum_block<T, W>(block, data, p.columns, ids, begin + at + part * 8, 8);
#pragma unroll
        for (int w = 0; w < W; ++w) parts[(part * lanes + lane) * W + w] = block[w];
      }
      __syncthreads();
      for (int part = 0; group == 0 && is_column && part < kBlocks * groups && at + part * 8 < n; ++part)
#pragma unroll
        for (int w = 0; w < W; ++w) sum[w] = plus(sum[w], parts[(part * lanes + lane) * W + w]);
      __syncthreads();
    }
    if (group == 0 && is_column) put_bag<T, W>(out + (first_bag + g) * p.columns, sum, n, p.reduce);
  }
}

}  // namespace rowgrad
