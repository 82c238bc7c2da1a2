// Sums of a table's rows by bag, in TensorFlow's order: a first block of n mod 8 rows, then blocks of eight.
#pragma once
#include "bag_ids.cuh"
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
  int64_t block_bags;
  int64_t capacity;
  int64_t reduce;
  uint64_t poison;
  int64_t poisons;
  const Checks* earlier;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Reports the first fault in TensorFlow's order: the last segment against the number of bags; then each run against the
// next run, against the number of bags, and its ids against the table.
DEVICE void report_bad_bag(const SumBags& p) {
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

constexpr int64_t kLongBag = 512;  // a whole block of threads sums longer bags

DEVICE int first_block(int64_t n) {
  const int rest = int(n & 7);
  return n < 10 ? int(n) : rest < 2 ? rest + 8 : rest;
}

// Returns how many sorted segments are below a bag; called by a whole warp. For any segments, the result is at most
// `size`. Bags are often of similar size: the first round probes around `guess`, in steps that grow with the distance.
template <class S>
DEVICE int64_t segments_below(const S* segments, int64_t size, int64_t bag, int64_t guess) {
  const unsigned lane = lane_of_thread();
  const int64_t away = lane < 16 ? -(int64_t(1) << (15 - lane)) : (int64_t(1) << (lane - 16)) - 1;
  const int64_t near = guess + away;
  const bool is_near_below = near < 0 || (near < size && int64_t(segments[near]) < bag);
  const int passed_near = __popc(__ballot_sync(kAllLanes, is_near_below));
  const int64_t last = __shfl_sync(kAllLanes, near, passed_near ? passed_near - 1 : 0) + 1;
  const int64_t next = __shfl_sync(kAllLanes, near, passed_near < 32 ? passed_near : 31);
  int64_t low = !passed_near || last < 0 ? 0 : last < size ? last : size;
  int64_t high = passed_near < 32 && next < size ? next : size;
  while (low < high) {
    const int64_t step = (high - low + 31) / 32, at = low + int64_t(lane) * step + step - 1;
    const bool is_below_bag = at < high && int64_t(segments[at]) < bag;
    const int64_t passed = low + __popc(__ballot_sync(kAllLanes, is_below_bag)) * step;
    high = passed + step - 1 < high ? passed + step - 1 : high;
    low = passed < high ? passed : high;
  }
  return low;
}

// Whether an id is in [0, rows).
DEVICE bool is_valid_id(int64_t id, int64_t rows) { return is_below(id, rows); }
DEVICE bool is_valid_id(int32_t id, int64_t rows) {
  return rows > 0x7fffffff ? id >= 0 : uint32_t(id) < uint32_t(rows);
}

// The bags of a block: where each begins, then where the last ends, and their ids if they fit. The list has one unused
// word between bags: otherwise bags of equal size, which groups of lanes read side by side, would share memory banks.
struct BlockOfBags {
  int64_t* starts;
  uint32_t* list;
  int bags;
  bool is_listed;

  DEVICE int64_t size_of(int bag) const { return starts[bag + 1] - starts[bag]; }
  DEVICE const void* ids_of(const void* ids) const { return ids; }
};

// Finds the bags of a block and validates their segments and ids. Returns whether a segment decreases or is out of
// range, or an id is out of range. The block whose bags an entry should belong to validates that entry.
template <class S, class I, class P>
DEVICE bool find_bags(const P& p, int64_t first, BlockOfBags& block) {
  const S* segments = static_cast<const S*>(p.segments);
  const I* ids = static_cast<const I*>(p.ids);
  const int count = block.bags;
  int64_t* starts = block.starts;
  const unsigned warp = threadIdx.x / 32u;
  if (warp < 2) {
    const int64_t bag = first + (warp ? count : 0);
    const int64_t guess = p.bags > 0 ? int64_t(double(bag) * (double(p.size) / double(p.bags))) : 0;
    const int64_t found = segments_below(segments, p.size, bag, guess < p.size ? guess : p.size);
    if (lane_of_thread() == 0) starts[warp ? count : 0] = found;
  }
  __syncthreads();
  const int64_t begin = starts[0], end = starts[count];
  __syncthreads();
  bool bad = begin > end || (first == 0 && begin != 0) || (first + count == p.bags && end != p.size);
  block.is_listed = end - begin <= p.capacity && p.rows <= (int64_t(1) << 32);
  for (int k = threadIdx.x; k < count; k += blockDim.x) starts[k] = end;
  __syncthreads();
  constexpr int kAtOnce = 4;
  for (int64_t from = begin + threadIdx.x; from < end; from += kAtOnce * blockDim.x) {
    I id[kAtOnce];
    S segment[kAtOnce], last[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t i = from + j * blockDim.x;
      if (i >= end) continue;
      id[j] = ids[i];
      segment[j] = segments[i];
      last[j] = i > begin ? segments[i - 1] : S(0);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t i = from + j * blockDim.x;
      if (i >= end) continue;
      const int64_t bag = int64_t(segment[j]) - first, before = i > begin ? int64_t(last[j]) - first : -1;
      if (before > bag || before < -1 || bag < 0 || bag >= count || !is_valid_id(id[j], p.rows))
        bad = true;
      else if (before < bag)
        for (int64_t k = before + 1; k <= bag; ++k)  // one thread per bag; if segments are bad, any of them
          atomicExch(reinterpret_cast<unsigned long long*>(&starts[k]), (unsigned long long)(i));
      if (block.is_listed && bag >= 0 && bag < count) block.list[i - begin + bag] = uint32_t(id[j]);
    }
  }
  return any_thread(bad);
}

// Divides sums of n rows. Fewer than ten are multiplied by the reciprocal, as in TensorFlow.
template <class A, int W>
DEVICE_CALL Pack<A, W> divided(Pack<A, W> sum, int n, int reduce) {
  const A divisor = A(exact_divisor(Reduction(reduce), double(n)));
  if (n < 10) {
    const A factor = over(A(1), divisor);
#pragma unroll
    for (int w = 0; w < W; ++w) sum.at[w] = times(sum.at[w], factor);
  } else {
#pragma unroll
    for (int w = 0; w < W; ++w) sum.at[w] = over(sum.at[w], divisor);
  }
  return sum;
}

// One lane's columns of the sums of bags. I is the type of ids, which are already validated; P is the kernel's struct.
template <class T, int W, class I>
struct BagLane {
  typedef Accumulator<T> A;
  LaneOfRows<T> data;  // lanes beyond the last column read the first columns
  bool is_column;

  template <class P>
  DEVICE BagLane(const P& p, int64_t column)
      : data(p.data, p.columns, column < p.columns ? column : 0), is_column(column < p.columns) {}

  DEVICE Pack<T, W> row(I id) const { return fetch<T, W>(data[id]); }

  // Sums N rows, left to right.
  template <int N>
  DEVICE void sum_of(A (&total)[W], const I* ids) const {
    Pack<T, W> rows[N];
#pragma unroll
    for (int j = 0; j < N; ++j) rows[j] = row(ids[j]);
    unpack<T, W>(total, rows[0]);
#pragma unroll
    for (int j = 1; j < N; ++j) add(total, rows[j]);
  }

  // Sums the first block of a bag: one to nine rows, left to right.
  DEVICE void sum_first(A (&total)[W], const I* ids, int count) const {
    if (count == 8)
      sum_of<8>(total, ids);
    else if (count <= 4)
      sum_some<4>(total, ids, count);
    else
      sum_some<9>(total, ids, count);
  }

  // Sums one to N rows.
  template <int N>
  DEVICE void sum_some(A (&total)[W], const I* ids, int count) const {
    Pack<T, W> rows[N < 8 ? N : 8];
#pragma unroll
    for (int j = 0; j < N && j < 8; ++j)
      if (j < count) rows[j] = row(ids[j]);
    unpack<T, W>(total, rows[0]);
#pragma unroll
    for (int j = 1; j < N && j < 8; ++j)
      if (j < count) add(total, rows[j]);
    if (N > 8 && count > 8) add(total, row(ids[8]));
  }

  DEVICE void add(A (&total)[W], const Pack<T, W>& row) const {
    A next[W];
    unpack<T, W>(next, row);
#pragma unroll
    for (int w = 0; w < W; ++w) total[w] = plus(total[w], next[w]);
  }

  DEVICE void put(T* out, const A (&sum)[W], int n, int reduce) const {
    Pack<A, W> total;
#pragma unroll
    for (int w = 0; w < W; ++w) total.at[w] = sum[w];
    if constexpr (IsFloat<A>::value)
      if (has_divisor(Reduction(reduce))) total = divided<A, W>(total, n, reduce);
    if (is_column) put_pack<W>(out, packed<T, W>(total.at));
  }
};

// Returns the elements between the outputs of neighbouring bags.
template <class P>
DEVICE int64_t out_stride(const P& p) {
  return p.columns;
}

// Each group of lanes sums one bag at a time; all groups of the block sum long bags together. `ids` are those of the
// whole block.
template <class T, int W, class I, class P, class Block>
DEVICE void sum_bags_of(const P& p, int64_t first_bag, const Block& block, const I* ids, void* memory) {
  typedef Accumulator<T> A;
  A* parts = static_cast<A*>(memory);
  const int lanes = int(p.lanes), lane = threadIdx.x % lanes, group = threadIdx.x / lanes, groups = blockDim.x / lanes;
  const int64_t column = (int64_t(blockIdx.y) * lanes + lane) * W, begin = block.starts[0];
  const LaneOfRows<T> out(static_cast<T*>(p.out) + first_bag * out_stride(p), out_stride(p), column);
  const BagLane<T, W, I> me(p, column);
  // Lists in shared memory are short; offsets in global memory may need 64 bits.
  auto ids_of = [&](int bag) {
    if constexpr (Same<I, uint32_t>::value)
      return ids + int(block.starts[bag] - begin) + bag;
    else
      return ids + (block.starts[bag] - begin);
  };

  bool any_long = false;
#pragma unroll 1
  for (int bag = group; bag < block.bags; bag += groups) {
    const int64_t all = block.size_of(bag);
    if (all > kLongBag) {
      any_long = true;
      continue;
    }
    const int n = int(all);
    const I* own = ids_of(bag);
    if (n == 1) {
      if (me.is_column) put_pack<W>(out[bag], me.row(own[0]));
    } else {
      A sum[W], eight[W];
#pragma unroll
      for (int w = 0; w < W; ++w) sum[w] = A();
      const int count = first_block(n);
      if (count) me.sum_first(sum, own, count);
#pragma unroll 1
      for (int at = count; at < n; at += 8) {
        me.template sum_of<8>(eight, own + at);
#pragma unroll
        for (int w = 0; w < W; ++w) sum[w] = plus(sum[w], eight[w]);
      }
      me.put(out[bag], sum, n, n ? int(p.reduce) : 0);
    }
  }
  if (!any_thread(any_long)) return;
  for (int bag = 0; bag < block.bags; ++bag) {
    const int64_t n = block.size_of(bag);
    const I* own = ids_of(bag);
    if (n <= kLongBag) continue;
    A sum[W], eight[W];
    int64_t at = first_block(n);
    if (group == 0) me.sum_first(sum, own, int(at));
    for (; at < n; at += int64_t(8) * groups) {
      if (at + group * 8 < n) {
        me.template sum_of<8>(eight, own + at + group * 8);
#pragma unroll
        for (int w = 0; w < W; ++w) parts[(group * lanes + lane) * W + w] = eight[w];
      }
      __syncthreads();
      for (int part = 0; group == 0 && part < groups && at + part * 8 < n; ++part)
#pragma unroll
        for (int w = 0; w < W; ++w) sum[w] = plus(sum[w], parts[(part * lanes + lane) * W + w]);
      __syncthreads();
    }
    if (group == 0) me.put(out[bag], sum, int(n), int(p.reduce));
  }
}

// Finds and validates the bags of a block with `find(first, block)`, then sums them. Returns whether one is bad.
template <class T, int W, class Block = BlockOfBags, class P, class Find>
DEVICE bool sum_block_of_bags(const P& p, int64_t number, const Find& find) {
  SHARED;
  // Layout: partial sums of long bags | starts | list
  unsigned char* memory = shared_memory + sizeof(Accumulator<T>) * W * blockDim.x;
  Block block;
  block.starts = reinterpret_cast<int64_t*>(memory);
  block.list = reinterpret_cast<uint32_t*>(block.starts + p.block_bags + 2);
  const int64_t first = number * p.block_bags, rest = p.bags - first;
  block.bags = int(rest < p.block_bags ? rest : p.block_bags);
  const bool bad = find(first, block);
  if (!bad && p.columns > 0) {
    if (block.is_listed)
      sum_bags_of<T, W, uint32_t>(p, first, block, block.list, shared_memory);
    else if (p.ids_wide)
      sum_bags_of<T, W>(p, first, block, static_cast<const int64_t*>(block.ids_of(p.ids)) + block.starts[0], shared_memory);
    else
      sum_bags_of<T, W>(p, first, block, static_cast<const int32_t*>(block.ids_of(p.ids)) + block.starts[0], shared_memory);
  }
  return bad;
}

// Does this for lists of any width.
template <class P>
DEVICE bool find_bags_of(const P& p, int64_t first, BlockOfBags& block) {
  if (p.segments_wide)
    return p.ids_wide ? find_bags<int64_t, int64_t>(p, first, block) : find_bags<int64_t, int32_t>(p, first, block);
  return p.ids_wide ? find_bags<int32_t, int64_t>(p, first, block) : find_bags<int32_t, int32_t>(p, first, block);
}

template <class T, int W>
DEVICE void sum_bags(const SumBags& p) {
  if (p.earlier && is_raised(p.earlier)) return;
  const bool bad = sum_block_of_bags<T, W>(
      p, blockIdx.x, [&](int64_t first, BlockOfBags& block) { return find_bags_of(p, first, block); });
  const bool is_rejected = must_report_and_reset(p.checks, bad);
  if (is_rejected) report_bad_bag(p);
  // All blocks are done: the last one marks the results.
  if (p.poisons && any_thread(is_rejected)) fill_with<T>(p.out, p.bags * p.columns, p.poison, threadIdx.x, blockDim.x);
}

// -- Bags by offsets --------------------------------------------------------------------------------------------------

struct SumOffsetBags {
  const void* data;
  void* out;
  int64_t columns;
  int64_t lanes;
  const void* ids;
  int64_t ids_wide;
  const void* offsets;
  int64_t offsets_wide;
  int64_t has_end;
  int64_t size;
  int64_t rows;
  int64_t bags;
  int64_t block_bags;
  int64_t capacity;
  int64_t reduce;
  int32_t* segments;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Reports the first fault: of the offsets, as `check_offsets` does, then of the ids. A gradient that reads `segments`
// then finds one that is out of range, although bad offsets leave the list unwritten.
DEVICE void report_bad_offset_bag(const SumOffsetBags& p) {
  if (p.segments && p.size > 0) p.segments[0] = -1;
  const OffsetChecks offset_checks{{p.offsets, p.offsets_wide != 0}, p.bags + (p.has_end != 0), p.size, p.has_end != 0};
  if (offset_checks.report_first(p.fault, p.alarm)) return;
  const Ids ids{p.ids, p.ids_wide != 0};
  for (int64_t i = 0; i < p.size; ++i)
    if (!is_below(ids[i], p.rows)) return report(p.fault, p.alarm, fault_index_not_in_data, i, ids[i], p.rows);
}

// Reads the bags of a block and validates their bounds and ids. `start(k)` is where bag k begins, from 0 to `size`: the
// first bag at 0 if `begins`, and the last one ends at `size` if `ends`. Calls `put(i, id, bag)` for each id of the
// block if `keeps`. Returns whether an offset or an id is bad.
template <class I, class P, class Start, class Put>
DEVICE bool read_bags(const P& p, int64_t size, int64_t first, BlockOfBags& block, bool begins, bool ends, bool keeps,
                      const Start& start, const Put& put) {
  const I* ids = static_cast<const I*>(p.ids);
  const int count = block.bags;
  int64_t* starts = block.starts;
  for (int k = threadIdx.x; k <= count; k += blockDim.x) starts[k] = start(first + k);
  __syncthreads();
  bool bad = (begins && first == 0 && starts[0] != 0) || (ends && first + count == p.bags && starts[count] != size);
  for (int k = threadIdx.x; k < count; k += blockDim.x)
    bad |= starts[k] < 0 || starts[k] > starts[k + 1] || starts[k + 1] > size;
  if (any_thread(bad)) return true;  // the starts delimit no ids
  const int64_t begin = starts[0], end = starts[count];
  block.is_listed = end - begin <= p.capacity && p.rows <= (int64_t(1) << 32);
  constexpr int kAtOnce = 4;
  for (int64_t from = begin + threadIdx.x; from < end; from += kAtOnce * blockDim.x) {
    I id[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (from + j * blockDim.x < end) id[j] = ids[from + j * blockDim.x];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t i = from + j * blockDim.x;
      if (i >= end) continue;
      bad |= !is_valid_id(id[j], p.rows);
      if (!block.is_listed && !keeps) continue;
      int bag = 0;  // the last one that begins at or before i
      for (int high = count; high - bag > 1;) {
        const int middle = (bag + high) / 2;
        if (starts[middle] <= i)
          bag = middle;
        else
          high = middle;
      }
      if (block.is_listed) block.list[i - begin + bag] = uint32_t(id[j]);
      if (keeps) put(i, id[j], first + bag);
    }
  }
  return any_thread(bad);
}

// Does this for the bags of one list; stores the bag of each id in `segments`, if a gradient will read it.
template <class O, class I>
DEVICE bool read_offset_bags(const SumOffsetBags& p, int64_t first, BlockOfBags& block) {
  const O* offsets = static_cast<const O*>(p.offsets);
  return read_bags<I>(
      p, p.size, first, block, true, true, p.segments && blockIdx.y == 0,
      [&](int64_t bag) { return bag < p.bags || p.has_end ? int64_t(offsets[bag]) : p.size; },
      [&](int64_t i, I, int64_t bag) { p.segments[i] = int32_t(bag); });
}

template <class T, int W>
DEVICE void sum_offset_bags(const SumOffsetBags& p) {
  const bool bad = sum_block_of_bags<T, W>(p, blockIdx.x, [&](int64_t first, BlockOfBags& block) {
    if (p.offsets_wide)
      return p.ids_wide ? read_offset_bags<int64_t, int64_t>(p, first, block) : read_offset_bags<int64_t, int32_t>(p, first, block);
    return p.ids_wide ? read_offset_bags<int32_t, int64_t>(p, first, block) : read_offset_bags<int32_t, int32_t>(p, first, block);
  });
  if (must_report_and_reset(p.checks, bad)) report_bad_offset_bag(p);
}

}  // namespace rowgrad
