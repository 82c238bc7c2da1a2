// Expands a plan into lists of sorted entries, as a sort would produce them.
#pragma once
#include "bag_ids.cuh"
#include "sorting.cuh"

namespace rowgrad {

struct ExpandPlan {
  const void* rows;
  int64_t wide_rows;
  int64_t num_rows;
  const int64_t* starts;
  int64_t listed;
  const void* segments;
  int64_t wide_segments;
  const int64_t* positions;
  const int64_t* counts;
  int64_t num_segments;
  int64_t size;
  int64_t reduce;
  uint32_t* ids;
  uint32_t* values;
  void* scales;
  uint32_t* heads;
  uint32_t* firsts;
  uint32_t* begins;
  void* rows_out;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Whether a list is in [0, bound) and ascends at k.
DEVICE bool ascends_at(const Ids& list, int64_t bound, int64_t k) {
  const int64_t value = list[k];
  return is_below(value, bound) && (k == 0 || list[k - 1] < value);
}

DEVICE void report_bad_plan(const ExpandPlan& p) {
  const Ids rows{p.rows, p.wide_rows != 0}, starts{p.starts, true}, segments{p.segments, p.wide_segments != 0};
  for (int64_t k = 0; k < p.listed; ++k)
    if (!ascends_at(rows, p.num_rows, k)) return report(p.fault, p.alarm, fault_plan_rows, k, rows[k], p.num_rows);
  const int64_t first = p.listed > 0 ? starts[0] : -1;
  if (p.size > 0 && first != 0) return report(p.fault, p.alarm, fault_plan_starts, 0, first, p.size);
  for (int64_t k = 0; k < p.listed; ++k)
    if (!ascends_at(starts, p.size, k)) return report(p.fault, p.alarm, fault_plan_starts, k, starts[k], p.size);
  for (int64_t i = 0; i < p.size; ++i)
    if (!is_below(segments[i], p.num_segments))
      return report(p.fault, p.alarm, fault_plan_segments, i, segments[i], p.num_segments);
  for (int64_t i = 0; i < p.size; ++i)
    if (!is_below(p.positions[i], p.size))
      return report(p.fault, p.alarm, fault_plan_positions, i, p.positions[i], p.size);
}

// Validates everything that becomes an address, and writes the lists that `find_rows` writes for sorted ids: `heads`,
// `firsts` and `begins`, the row of each entry in `ids` (null: unused), and in `values` its segment, or its position if
// `positions` is not null. `scales`, of type A, has the factor of each entry by the size of its segment (null: none).
// `rows_out` gets a copy of the rows (null: not requested).
//
// A block has a tile of entries. One warp searches the row of the first entry; the following rows set a bit where they
// begin, and an entry's row follows from counting bits. Even for a corrupted plan no row beyond those listed is read:
// each bit represents one of them.
template <class A>
DEVICE void expand_plan(const ExpandPlan& p) {
  constexpr int kThreads = 256, kWarps = kThreads / 32, kItems = 4, kTile = kThreads * kItems;
  static_assert(kTile / 32 == 32, "a lane has a word of the tile");
  __shared__ uint32_t words[kTile / 32];
  __shared__ int64_t first_row;
  const Ids rows{p.rows, p.wide_rows != 0}, starts{p.starts, true}, segments{p.segments, p.wide_segments != 0};
  const IdsOut rows_out{p.rows_out, p.wide_rows != 0};
  const unsigned lane = lane_of_thread(), warp = threadIdx.x / 32u;
  const int64_t begin = int64_t(blockIdx.x) * kTile, first = begin + threadIdx.x;
  bool bad = p.size > 0 && p.listed == 0;

  int64_t value[kItems], count[kItems];
#pragma unroll
  for (int j = 0; j < kItems; ++j) value[j] = first + j * kThreads < p.size ? segments[first + j * kThreads] : 0;
  if (warp == 0) {
    words[lane] = 0;
    const int64_t row = p.listed > 0 ? run_of_by_warp([&](int64_t k) { return p.starts[k]; }, p.listed, begin) : 0;
    if (lane == 0) first_row = row;
  }
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int64_t i = first + j * kThreads;
    count[j] = 1;
    if (i >= p.size) continue;
    const bool fits = is_below(value[j], p.num_segments);
    bad |= !fits;
    if (p.scales && fits) count[j] = p.counts[value[j]];
    if (p.positions) {
      value[j] = p.positions[i];
      bad |= !is_below(value[j], p.size);
    }
  }
  for (int64_t k = int64_t(blockIdx.x) * kThreads + threadIdx.x; k < p.listed; k += int64_t(gridDim.x) * kThreads) {
    bad |= !ascends_at(rows, p.num_rows, k) || !ascends_at(starts, p.size, k) || (k == 0 && starts[0] != 0);
    if (p.rows_out) rows_out.put(k, rows[k]);
  }
  // One scale at a time, because its code is long: the lists rotate by one.
  A scale[kItems] = {};
#pragma unroll 1
  for (int turn = 0; p.scales && turn < kItems; ++turn) {
    const A next = gradient_scale<A>(p.reduce, count[0]);
#pragma unroll
    for (int j = 0; j + 1 < kItems; ++j) {
      count[j] = count[j + 1];
      scale[j] = scale[j + 1];
    }
    scale[kItems - 1] = next;
  }
  __syncthreads();
  const int64_t row_before = first_row;
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int64_t k = row_before + 1 + j * kThreads + threadIdx.x;
    if (k >= p.listed) continue;
    const int64_t at = p.starts[k] - begin;
    if (is_below(at, kTile)) atomicOr(&words[at / 32], 1u << (at % 32));
  }
  const bool begins_here = p.listed > 0 && p.starts[row_before] == begin;
  if (begins_here && threadIdx.x == 0) atomicOr(&words[0], 1u);
  __syncthreads();

  // The row of an entry is `base` plus the number of bits up to it.
  const int64_t base = begins_here ? row_before - 1 : row_before;
  const uint32_t own = words[lane];
  uint32_t counted = __popc(own);
  for (unsigned d = 1; d < 32; d *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, counted, d);
    if (lane >= d) counted += other;
  }
  counted -= __popc(own);
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int number = j * kWarps + int(warp);
    const uint32_t word = __shfl_sync(kAllLanes, own, number), before = __shfl_sync(kAllLanes, counted, number);
    const int64_t i = begin + number * 32 + lane;
    const int64_t row = base + before + __popc(word & ((2u << lane) - 1u));
    const unsigned past = __ballot_sync(kAllLanes, i >= p.size);
    if (lane == 0) p.heads[i / 32] = word | past;
    if (i >= p.size) continue;
    p.values[i] = uint32_t(value[j]);
    if (p.scales) static_cast<A*>(p.scales)[i] = scale[j];
    if (row >= p.listed) continue;  // no row is listed
    if (p.ids) p.ids[i] = uint32_t(rows[row]);
    if (lane == 0) {
      p.firsts[i / kChunk] = uint32_t(row);
      p.begins[i / kChunk] = uint32_t(p.starts[row]);
    }
  }
  if (must_report(p.checks, bad)) report_bad_plan(p);
}

struct PlaceSegments {
  const void* segments;
  int64_t wide_segments;
  const int64_t* positions;
  int64_t size;
  unsigned long long* placed;
  const Checks* checks;
};

// Writes the segment of every position to the lower half of `placed`, which is zero at first, with the entry's number
// above it: if entries share a position the last one wins, and a position without an entry gets segment 0.
DEVICE void place_segments(const PlaceSegments& p) {
  if (is_raised(p.checks)) return;
  const Ids segments{p.segments, p.wide_segments != 0};
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += stride)
    atomicMax(&p.placed[p.positions[i]], (unsigned long long)(i + 1) << 32 | (unsigned long long)(segments[i]));
}

struct TakeSegments {
  const uint64_t* placed;
  int64_t size;
  uint32_t* segments;
  const Checks* checks;
};

// Extracts the segments. If a check failed, nothing reads them, but they are in range anyway.
DEVICE void take_segments(const TakeSegments& p) {
  const bool raised = is_raised(p.checks);
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += stride)
    p.segments[i] = raised ? 0 : uint32_t(p.placed[i]);
}

}  // namespace rowgrad
