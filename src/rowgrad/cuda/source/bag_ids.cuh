// Bags by offsets: conversion to segment ids, and bags of many features stacked for one table.
#pragma once
#include "device.cuh"

namespace rowgrad {

// Returns the last run in [low, high) that begins at or before i, or `low`; `start(run)` should never decrease. The
// result is in [low, high) whatever it returns.
template <class Starts>
DEVICE int64_t run_of(const Starts& start, int64_t low, int64_t high, int64_t i) {
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (start(middle) <= i)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// Does this over `count` runs with a whole warp, which probes 32 positions at once.
template <class Starts>
DEVICE int64_t run_of_by_warp(const Starts& start, int64_t count, int64_t i) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    const int64_t step = (high - low + 32) / 33, at = low + step * (threadIdx.x % 32 + 1);
    const int before = __popc(__ballot_sync(0xffffffffu, at < high && start(at) <= i));
    const int64_t next = low + step * (before + 1);
    low += step * before;
    if (next < high) high = next;
  }
  return low;
}

constexpr int64_t kRunTile = 1024;  // items per block and iteration

// Calls fn(i, run of i) for all i in [0, size); the grid's blocks share tiles. All threads of a block must call this,
// with at least two warps, and with at least one run unless size is 0. The two ends of a tile are searched in all runs,
// items between them only in the runs of the tile.
template <class Starts, class Fn>
DEVICE void each_in_runs(const Starts& start, int64_t count, int64_t size, const Fn& fn) {
  __shared__ int64_t edges[2];
  for (int64_t begin = blockIdx.x * kRunTile; begin < size; begin += gridDim.x * kRunTile) {
    const int64_t end = begin + kRunTile < size ? begin + kRunTile : size;
    __syncthreads();  // the previous tile is done
    if (threadIdx.x < 64) {
      const int64_t run = run_of_by_warp(start, count, threadIdx.x < 32 ? begin : end - 1);
      if (threadIdx.x % 32 == 0) edges[threadIdx.x / 32] = run;
    }
    __syncthreads();
    const int64_t first = edges[0], last = edges[1];
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) fn(i, run_of(start, first, last + 1, i));
  }
}

// Checks of the offsets of a list of `ids` ids. `has_end`: the last offset is the end of the last bag and begins none.
// `base` is added to the position of a fault.
struct OffsetChecks {
  Ids list;
  int64_t size, ids;
  bool has_end;
  int64_t base = 0;

  DEVICE bool ends_wrong(int64_t last) const { return last > ids || (has_end && last != ids); }

  DEVICE bool is_broken_at(int64_t i) const {
    const int64_t offset = list[i];
    return offset < (i ? list[i - 1] : 0) || (i == 0 && offset > 0) || (i == size - 1 && ends_wrong(offset));
  }

  // Reports the first fault in the order of the checks; returns whether there is one.
  DEVICE bool report_first(Fault* fault, int64_t* alarm) const {
    if (list[0] != 0) {
      report(fault, alarm, fault_offsets_begin, base, list[0], 0);
      return true;
    }
    for (int64_t i = 1; i < size; ++i)
      if (list[i] < list[i - 1]) {
        report(fault, alarm, fault_offsets_fall, base + i, list[i], list[i - 1]);
        return true;
      }
    const int64_t last = list[size - 1];
    if (ends_wrong(last)) report(fault, alarm, fault_offsets_end, base + size - 1, last, ids);
    return ends_wrong(last);
  }
};

struct CheckOffsets {
  const void* offsets;
  int64_t wide;
  int64_t size;
  int64_t ids;
  int64_t has_end;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Validates that offsets (at least one) begin at 0, never decrease and end at the number of ids.
DEVICE void check_offsets(const CheckOffsets& p) {
  const OffsetChecks offset_checks{{p.offsets, p.wide != 0}, p.size, p.ids, p.has_end != 0};
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  bool bad = false;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += stride)
    bad |= offset_checks.is_broken_at(i);
  if (must_report(p.checks, bad)) offset_checks.report_first(p.fault, p.alarm);
}

struct SegmentIdsOfOffsets {
  const void* offsets;
  int64_t wide;
  int64_t bags;
  int64_t ids;
  void* segments;
  const Checks* checks;
};

// Writes the bag of every id.
DEVICE void segment_ids_of_offsets(const SegmentIdsOfOffsets& p) {
  if (is_raised(p.checks)) return;
  const Ids offsets{p.offsets, p.wide != 0};
  const IdsOut segments{p.segments, p.wide != 0};
  each_in_runs([&](int64_t bag) { return offsets[bag]; }, p.bags, p.ids,
               [&](int64_t i, int64_t bag) { segments.put(i, bag); });
}

struct CheckBags {
  const void* indices;
  int64_t wide_indices;
  const void* offsets;
  int64_t wide_offsets;
  const int64_t* feature_rows;
  const int64_t* feature_first;
  int64_t ids;
  int64_t features;
  int64_t examples;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Whether ids of this width can address all rows of a feature.
DEVICE bool feature_fits(const CheckBags& p, int64_t limit, int64_t f) {
  const int64_t rows = p.feature_rows[f], first = p.feature_first[f];
  return rows >= 0 && first >= 0 && rows <= limit - first;
}

// Validates offsets, then features, then the ids of every feature.
DEVICE void check_bags(const CheckBags& p) {
  const Ids indices{p.indices, p.wide_indices != 0}, offsets{p.offsets, p.wide_offsets != 0};
  const OffsetChecks offset_checks{offsets, p.features * p.examples + 1, p.ids, true};
  const int64_t limit = p.wide_indices ? 0x7fffffffffffffff : 0x7fffffff;
  const int64_t start = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, stride = int64_t(gridDim.x) * blockDim.x;
  bool bad = false;
  for (int64_t i = start; i < offset_checks.size; i += stride) bad |= offset_checks.is_broken_at(i);
  for (int64_t f = start; f < p.features; f += stride) bad |= !feature_fits(p, limit, f);
  each_in_runs([&](int64_t f) { return offsets[f * p.examples]; }, p.features, p.examples ? p.ids : 0,
               [&](int64_t i, int64_t f) { bad |= !is_below(indices[i], p.feature_rows[f]); });
  if (!must_report(p.checks, bad) || offset_checks.report_first(p.fault, p.alarm)) return;
  for (int64_t f = 0; f < p.features; ++f) {
    const int64_t rows = p.feature_rows[f], first = p.feature_first[f];
    if (rows < 0 || first < 0)
      return report(p.fault, p.alarm, fault_feature_negative, f, rows < first ? rows : first, 0);
    if (rows > limit - first) return report(p.fault, p.alarm, fault_feature_too_far, f, first, limit - rows);
  }
  for (int64_t f = 0; f < p.features; ++f) {
    const int64_t bound = p.feature_rows[f], end = offsets[(f + 1) * p.examples];
    for (int64_t i = offsets[f * p.examples]; i < end; ++i)
      if (!is_below(indices[i], bound)) return report(p.fault, p.alarm, fault_id_not_in_feature, i, indices[i], bound);
  }
}

struct StackedStarts {
  const void* offsets;
  int64_t wide;
  int64_t features;
  int64_t examples;
  int64_t* starts;
  const Checks* checks;
};

// Writes where bag b of feature f begins in the stacked order, b * features + f: after the bags of earlier examples (a
// difference of offsets per feature) and those of the same example and earlier features. So it is a sum over features,
// and examples are independent. A lane takes an example, a warp a part of the features.
DEVICE void stacked_starts(const StackedStarts& p) {
  if (is_raised(p.checks)) return;
  constexpr int most_warps = 16;
  __shared__ int64_t earlier_in[most_warps][32], own_in[most_warps][32];
  const Ids offsets{p.offsets, p.wide != 0};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int64_t part = (p.features + warps - 1) / warps, first = warp * part;
  const int64_t last = first + part < p.features ? first + part : p.features;
  for (int64_t tile = int64_t(blockIdx.x) * 32; tile < p.examples; tile += int64_t(gridDim.x) * 32) {
    const int64_t b = tile + lane;
    int64_t earlier = 0, own = 0;
    for (int64_t f = first; f < last && b < p.examples; ++f) {
      const int64_t at = f * p.examples + b, begin = offsets[at];
      earlier += begin - offsets[f * p.examples];
      own += offsets[at + 1] - begin;
    }
    __syncthreads();  // the previous tile is done
    earlier_in[warp][lane] = earlier;
    own_in[warp][lane] = own;
    __syncthreads();
    int64_t start = 0;
    for (int w = 0; w < warps; ++w) start += earlier_in[w][lane] + (w < warp ? own_in[w][lane] : 0);
    for (int64_t f = first; f < last && b < p.examples; ++f) {
      const int64_t at = f * p.examples + b;
      p.starts[b * p.features + f] = start;
      start += offsets[at + 1] - offsets[at];
    }
  }
}

struct StackBags {
  const void* indices;
  int64_t wide_indices;
  const void* offsets;
  int64_t wide_offsets;
  const int64_t* feature_first;
  int64_t ids;
  int64_t features;
  int64_t examples;
  const int64_t* starts;
  void* stacked;
  void* segments;
  int64_t* positions;
  const Checks* checks;
};

// Writes the id of every output position. `positions` may be null.
DEVICE void stack_bags(const StackBags& p) {
  if (is_raised(p.checks)) return;
  const Ids indices{p.indices, p.wide_indices != 0}, offsets{p.offsets, p.wide_offsets != 0};
  const IdsOut stacked{p.stacked, p.wide_indices != 0}, segments{p.segments, p.wide_offsets != 0};
  each_in_runs([&](int64_t bag) { return p.starts[bag]; }, p.features * p.examples, p.ids, [&](int64_t i, int64_t bag) {
    const int64_t b = bag / p.features, f = bag - b * p.features;
    const int64_t from = offsets[f * p.examples + b] + (i - p.starts[bag]);
    stacked.put(i, indices[from] + p.feature_first[f]);
    segments.put(i, bag);
    if (p.positions) p.positions[i] = from;
  });
}

}  // namespace rowgrad
