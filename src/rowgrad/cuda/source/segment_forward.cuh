// Rows of a table added up by bag, in TensorFlow's order: a first block of n mod 8 rows, then blocks of eight.
#pragma once
#include "packs.cuh"

namespace rowgrad {

// What both kernels know of a batch of bags. `checks` are of the batch; `earlier`, checks its lists had to pass before, or
// null.
struct LookAtBags {
  const void* segments;
  int64_t segments_wide;
  int64_t size;
  int64_t bags;
  int64_t* offsets;
  const Checks* earlier;
  Checks* checks;
};

// offsets[s]: where the ids of bag s begin; offsets[bags]: how many ids there are. Segments that fall, or are no bag's,
// are found here and named by sum_bags, which looks at the ids.
DEVICE void look_at_bags(const LookAtBags& p) {
  constexpr int kAtOnce = 4;
  const Ids segments{p.segments, p.segments_wide != 0};
  const unsigned lane = lane_of_thread();
  const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, threads = int64_t(gridDim.x) * blockDim.x;
  if (p.earlier && is_raised(p.earlier)) return;
  bool bad = false;
  // A warp has 32 · kAtOnce neighbours.
  for (int64_t base = (thread - lane) * kAtOnce; base < p.size; base += threads * kAtOnce) {
    int64_t segment[kAtOnce], before[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t i = base + j * 32 + lane;
      segment[j] = i < p.size ? segments[i] : 0;
      before[j] = lane == 0 && i > 0 && i < p.size ? segments[i - 1] : -1;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t i = base + j * 32 + lane, neighbour = __shfl_up_sync(kAllLanes, segment[j], 1);
      if (lane > 0) before[j] = neighbour;
      const bool is_there = i < p.size;
      const bool fits = is_there && is_below(segment[j], p.bags) && segment[j] >= before[j] && before[j] >= -1;
      bad |= is_there && !fits;
      // Bags (before, segment] begin here. Many at once are empty bags: all lanes help to write them.
      const bool begins = fits && segment[j] > before[j];
      const bool is_long = begins && segment[j] - before[j] > 8;
      if (begins && !is_long)
        for (int64_t s = before[j] + 1; s <= segment[j]; ++s) p.offsets[s] = i;
      for (unsigned rest = __ballot_sync(kAllLanes, is_long); rest; rest &= rest - 1) {
        const int from = __ffs(int(rest)) - 1;
        const int64_t first = __shfl_sync(kAllLanes, before[j], from) + 1;
        const int64_t last = __shfl_sync(kAllLanes, segment[j], from);
        for (int64_t s = first + lane; s <= last; s += 32) p.offsets[s] = base + j * 32 + from;
      }
    }
  }
  const int64_t last = p.size > 0 ? segments[p.size - 1] : -1;
  if (last >= -1 && last < p.bags)
    for (int64_t s = last + 1 + thread; s <= p.bags; s += threads) p.offsets[s] = p.size;
  if (bad) atomicOr(&p.checks->raised, 1u);
}

struct SumBags {
  const void* data;
  void* out;
  int64_t columns;
  int64_t lanes;
  const void* ids;
  int64_t ids_wide;
  const void* segments;
  int64_t segments_wide;
  int64_t size;
  int64_t rows;
  const int64_t* offsets;
  int64_t bags;
  int64_t reduce;
  const Checks* earlier;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// In TensorFlow's order: the last segment against the number of bags; then run by run: against the next run, against the
// number of bags, its ids against the table.
DEVICE void name_bad_bag(const SumBags& p) {
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

constexpr int64_t kLongBag = 512;  // beyond it a whole block of threads adds up a bag
constexpr int kMostRows = 9;       // of a block

DEVICE int first_block(int64_t n) {
  const int rest = int(n & 7);
  return n < 10 ? int(n) : rest < 2 ? rest + 8 : rest;
}

// One lane's columns of the sums of bags. I is the type of ids.
template <class T, int W, class I>
struct BagLane {
  typedef Accumulator<T> A;
  const T* data;
  const I* ids;
  int64_t columns, rows;
  bool is_column;
  bool bad;
  I next[kMostRows];

  // Ids of the block that will be added up next: they are on their way while rows before them are added.
  DEVICE void ask(int64_t from, int count) {
#pragma unroll
    for (int j = 0; j < kMostRows; ++j)
      if (j < count) next[j] = ids[from + j];
  }

  // The sum of the rows that were asked for, left to right; an id that names no row is noticed, and names nothing. Then
  // `count` ids are asked for.
  DEVICE void sum(A (&total)[W], int rows_asked, int64_t from, int count) {
    Pack<T, W> row[kMostRows];
#pragma unroll
    for (int j = 0; j < kMostRows; ++j)
      if (j < rows_asked) {
        const bool fits = is_below(int64_t(next[j]), rows);
        bad |= !fits;
        if (fits && is_column) row[j] = fetch<T, W>(data + int64_t(next[j]) * columns);
      }
    ask(from, count);
#pragma unroll
    for (int j = 0; j < kMostRows; ++j)
      if (j < rows_asked)
#pragma unroll
        for (int w = 0; w < W; ++w)
          total[w] = j == 0 ? load<T>(row[j].at[w]) : plus(total[w], load<T>(row[j].at[w]));
  }

  DEVICE void put(T* out, const A (&sum)[W], int64_t n, int64_t reduce) const {
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
    if (is_column) *reinterpret_cast<Pack<T, W>*>(out) = packed;
  }
};

// A group of lanes has a bag; long bags are left for all groups of the block together. Gives whether an id was bad.
template <class T, int W, class I>
DEVICE bool sum_bags_of(const SumBags& p) {
  typedef Accumulator<T> A;
  SHARED;
  constexpr int kBlocks = 4;  // of eight rows, that a group adds up at a time in a long bag
  A* parts = reinterpret_cast<A*>(shared_memory);
  const int lanes = int(p.lanes), lane = threadIdx.x % lanes, group = threadIdx.x / lanes, groups = blockDim.x / lanes;
  const int64_t column = (int64_t(blockIdx.y) * lanes + lane) * W, first_bag = int64_t(blockIdx.x) * groups;
  T* out = static_cast<T*>(p.out) + column;
  BagLane<T, W, I> me;
  me.data = static_cast<const T*>(p.data) + column;
  me.ids = static_cast<const I*>(p.ids);
  me.columns = p.columns;
  me.rows = p.rows;
  me.is_column = column < p.columns;
  me.bad = false;

  const int64_t bag = first_bag + group;
  bool is_long = false;
  if (bag < p.bags) {
    const int64_t begin = p.offsets[bag], n = p.offsets[bag + 1] - begin;
    is_long = n > kLongBag;
    T* to = out + bag * p.columns;
    if (n == 1) {
      const int64_t id = int64_t(me.ids[begin]);
      me.bad = !is_below(id, p.rows);
      if (!me.bad && me.is_column) *reinterpret_cast<Pack<T, W>*>(to) = fetch<T, W>(me.data + id * p.columns);
    } else if (!is_long) {
      A sum[W], block[W];
#pragma unroll
      for (int w = 0; w < W; ++w) sum[w] = A();
      int count = first_block(n);
      me.ask(begin, count);
      if (n > 0) me.sum(sum, count, begin + count, n > count ? 8 : 0);
      for (int64_t at = count; at < n; at += 8) {
        me.sum(block, 8, begin + at + 8, at + 8 < n ? 8 : 0);
#pragma unroll
        for (int w = 0; w < W; ++w) sum[w] = plus(sum[w], block[w]);
      }
      me.put(to, sum, n, n ? p.reduce : 0);
    }
  }
  if (!any_thread(is_long)) return me.bad;
  for (int g = 0; g < groups && first_bag + g < p.bags; ++g) {
    const int64_t begin = p.offsets[first_bag + g], n = p.offsets[first_bag + g + 1] - begin;
    if (n <= kLongBag) continue;
    A sum[W], block[W];
    int64_t at = first_block(n);
    if (group == 0) {
      me.ask(begin, int(at));
      me.sum(sum, int(at), 0, 0);
    }
    for (; at < n; at += int64_t(8) * kBlocks * groups) {
      for (int b = 0; b < kBlocks; ++b) {
        const int part = b * groups + group;
        if (at + part * 8 >= n) continue;
        me.ask(begin + at + part * 8, 8);
        me.sum(block, 8, 0, 0);
#pragma unroll
        for (int w = 0; w < W; ++w) parts[(part * lanes + lane) * W + w] = block[w];
      }
      __syncthreads();
      for (int part = 0; group == 0 && part < kBlocks * groups && at + part * 8 < n; ++part)
#pragma unroll
        for (int w = 0; w < W; ++w) sum[w] = plus(sum[w], parts[(part * lanes + lane) * W + w]);
      __syncthreads();
    }
    if (group == 0) me.put(out + (first_bag + g) * p.columns, sum, n, p.reduce);
  }
  return me.bad;
}

template <class T, int W>
DEVICE void sum_bags(const SumBags& p) {
  if (p.earlier && is_raised(p.earlier)) return;
  bool bad = false;
  if (!is_raised(p.checks)) bad = p.ids_wide ? sum_bags_of<T, W, int64_t>(p) : sum_bags_of<T, W, int32_t>(p);
  if (must_name(p.checks, bad)) name_bad_bag(p);
}

}  // namespace rowgrad
