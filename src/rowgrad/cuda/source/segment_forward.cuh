// Rows of a table added up by bag, in TensorFlow's order: a first block of n mod 8 rows, then blocks of eight.
#pragma once
#include "packs.cuh"

namespace rowgrad {

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
#ifndef FLIGHT
#define FLIGHT 8
#endif
constexpr int kFlight = FLIGHT;  // rows in flight

DEVICE int first_block(int64_t n) {
  const int rest = int(n & 7);
  return n < 10 ? int(n) : rest < 2 ? rest + 8 : rest;
}

// How many segments are below a bag, of ascending ones; a whole warp asks. Whatever the segments are, at most `size`.
template <class S>
DEVICE int64_t segments_below(const S* segments, int64_t size, int64_t bag) {
  const unsigned lane = lane_of_thread();
  int64_t low = 0, high = size;
  while (low < high) {
    const int64_t step = (high - low + 31) / 32, at = low + int64_t(lane) * step + step - 1;
    const bool is_below_bag = at < high && int64_t(segments[at]) < bag;
    const int64_t passed = low + __popc(__ballot_sync(kAllLanes, is_below_bag)) * step;
    high = passed + step - 1 < high ? passed + step - 1 : high;
    low = passed < high ? passed : high;
  }
  return low;
}

// Where the bags of a block begin: starts[k] of the k-th, starts[count] where the last ends. Gives whether segments were
// found that fall, or are no bag's: every segment is looked at by the block whose bags it should belong to.
template <class S>
DEVICE bool find_bags(const SumBags& p, int64_t first, int count, int64_t* starts) {
  const S* segments = static_cast<const S*>(p.segments);
  const unsigned warp = threadIdx.x / 32u;
  if (warp < 2) {
    const int64_t found = segments_below(segments, p.size, first + (warp ? count : 0));
    if (lane_of_thread() == 0) starts[warp ? count : 0] = found;
  }
  __syncthreads();
  const int64_t begin = starts[0], end = starts[count];
  __syncthreads();
  bool bad = begin > end || (first == 0 && begin != 0) || (first + count == p.bags && end != p.size);
  for (int k = threadIdx.x; k < count; k += blockDim.x) starts[k] = end;
  __syncthreads();
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const int64_t bag = int64_t(segments[i]) - first, before = i > begin ? int64_t(segments[i - 1]) - first : -1;
    if (before > bag || before < -1 || bag >= count)
      bad = true;
    else
      for (int64_t k = before + 1; k <= bag; ++k) starts[k] = i;
  }
  return any_thread(bad);
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

  // The sum of `count` rows, left to right; an id that names no row is noticed, and names nothing.
  DEVICE void sum(A (&total)[W], int64_t from, int count) {
#pragma unroll 1
    for (int first = 0; first < count; first += kFlight) {
      Pack<T, W> row[kFlight];
#pragma unroll
      for (int j = 0; j < kFlight; ++j)
        if (first + j < count) {
          const I id = ids[from + first + j];
          const bool fits = is_below(int64_t(id), rows);
          bad |= !fits;
          if (fits && is_column) row[j] = fetch<T, W>(data + int64_t(id) * columns);
        }
#pragma unroll
      for (int j = 0; j < kFlight; ++j)
        if (first + j < count)
#pragma unroll
          for (int w = 0; w < W; ++w)
            total[w] = first + j == 0 ? load<T>(row[j].at[w]) : plus(total[w], load<T>(row[j].at[w]));
    }
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
DEVICE bool sum_bags_of(const SumBags& p, int64_t first_bag, int bags, const int64_t* starts, unsigned char* memory) {
  typedef Accumulator<T> A;
  A* parts = reinterpret_cast<A*>(memory);
  const int lanes = int(p.lanes), lane = threadIdx.x % lanes, group = threadIdx.x / lanes, groups = blockDim.x / lanes;
  const int64_t column = (int64_t(blockIdx.y) * lanes + lane) * W;
  T* out = static_cast<T*>(p.out) + first_bag * p.columns + column;
  BagLane<T, W, I> me;
  me.data = static_cast<const T*>(p.data) + column;
  me.ids = static_cast<const I*>(p.ids);
  me.columns = p.columns;
  me.rows = p.rows;
  me.is_column = column < p.columns;
  me.bad = false;

  bool is_long = false;
  if (group < bags) {
    const int64_t begin = starts[group], n = starts[group + 1] - begin;
    is_long = n > kLongBag;
    T* to = out + group * p.columns;
    if (n == 1) {
      const int64_t id = int64_t(me.ids[begin]);
      me.bad = !is_below(id, p.rows);
      if (!me.bad && me.is_column) *reinterpret_cast<Pack<T, W>*>(to) = fetch<T, W>(me.data + id * p.columns);
    } else if (!is_long) {
      A sum[W], block[W];
#pragma unroll
      for (int w = 0; w < W; ++w) sum[w] = A();
      const int count = first_block(n);
      me.sum(sum, begin, count);
#pragma unroll 1
      for (int64_t at = count; at < n; at += 8) {
        me.sum(block, begin + at, 8);
#pragma unroll
        for (int w = 0; w < W; ++w) sum[w] = plus(sum[w], block[w]);
      }
      me.put(to, sum, n, n ? p.reduce : 0);
    }
  }
  if (!any_thread(is_long)) return me.bad;
  for (int g = 0; g < bags; ++g) {
    const int64_t begin = starts[g], n = starts[g + 1] - begin;
    if (n <= kLongBag) continue;
    A sum[W], block[W];
    int64_t at = first_block(n);
    if (group == 0) me.sum(sum, begin, int(at));
    for (; at < n; at += int64_t(8) * groups) {
      if (at + group * 8 < n) {
        me.sum(block, begin + at + group * 8, 8);
#pragma unroll
        for (int w = 0; w < W; ++w) parts[(group * lanes + lane) * W + w] = block[w];
      }
      __syncthreads();
      for (int part = 0; group == 0 && part < groups && at + part * 8 < n; ++part)
#pragma unroll
        for (int w = 0; w < W; ++w) sum[w] = plus(sum[w], parts[(part * lanes + lane) * W + w]);
      __syncthreads();
    }
    if (group == 0) me.put(out + g * p.columns, sum, n, p.reduce);
  }
  return me.bad;
}

template <class T, int W>
DEVICE void sum_bags(const SumBags& p) {
  if (p.earlier && is_raised(p.earlier)) return;
  SHARED;
  int64_t* starts = reinterpret_cast<int64_t*>(shared_memory);  // one for every group, and one more
  const int groups = int(blockDim.x / p.lanes);
  unsigned char* memory = shared_memory + sizeof(int64_t) * (groups + groups % 2 + 2);
  const int64_t first = int64_t(blockIdx.x) * groups;
  const int bags = int(p.bags - first < groups ? p.bags - first : groups);
  bool bad = p.segments_wide ? find_bags<int64_t>(p, first, bags, starts) : find_bags<int32_t>(p, first, bags, starts);
  if (!bad)
    bad = p.ids_wide ? sum_bags_of<T, W, int64_t>(p, first, bags, starts, memory)
                     : sum_bags_of<T, W, int32_t>(p, first, bags, starts, memory);
  if (must_name_and_clear(p.checks, bad)) name_bad_bag(p);
}

}  // namespace rowgrad
