// Restores the ids of a plan, and runs every check of a plan.
#pragma once
#include "bag_ids.cuh"

namespace rowgrad {

struct CheckPlanArrays {
  const void* rows;
  int64_t wide_rows;
  int64_t num_rows;
  const int64_t* starts;
  int64_t listed;
  const void* segments;
  int64_t wide_segments;
  const int64_t* positions;
  int64_t size;
  int64_t num_segments;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Validates everything that becomes an address: rows ascend, starts ascend from 0, then segments and positions are in
// range.
DEVICE void check_plan_arrays(const CheckPlanArrays& p) {
  const Ids rows{p.rows, p.wide_rows != 0}, starts{p.starts, true}, segments{p.segments, p.wide_segments != 0};
  const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, stride = int64_t(gridDim.x) * blockDim.x;
  auto ascends = [](const Ids& list, int64_t bound, int64_t k) {
    return is_below(list[k], bound) && (k == 0 || list[k - 1] < list[k]);
  };
  const bool begins_late = p.size > 0 && (p.listed == 0 || p.starts[0] != 0);
  bool bad = begins_late;
  for (int64_t k = first; k < p.listed; k += stride)
    bad |= !ascends(rows, p.num_rows, k) || !ascends(starts, p.size, k);
  for (int64_t i = first; i < p.size; i += stride)
    bad |= !is_below(segments[i], p.num_segments) || !is_below(p.positions[i], p.size);
  if (!must_report(p.checks, bad)) return;
  for (int64_t k = 0; k < p.listed; ++k)
    if (!ascends(rows, p.num_rows, k)) return report(p.fault, p.alarm, fault_plan_rows, k, rows[k], p.num_rows);
  if (begins_late)
    return report(p.fault, p.alarm, fault_plan_starts, 0, p.listed > 0 ? p.starts[0] : -1, p.size);
  for (int64_t k = 0; k < p.listed; ++k)
    if (!ascends(starts, p.size, k)) return report(p.fault, p.alarm, fault_plan_starts, k, p.starts[k], p.size);
  for (int64_t i = 0; i < p.size; ++i)
    if (!is_below(segments[i], p.num_segments))
      return report(p.fault, p.alarm, fault_plan_segments, i, segments[i], p.num_segments);
  int64_t i = 0;
  while (is_below(p.positions[i], p.size)) ++i;
  report(p.fault, p.alarm, fault_plan_positions, i, p.positions[i], p.size);
}

struct PlannedIds {
  const void* rows;
  int64_t wide_rows;
  const int64_t* starts;
  int64_t listed;
  const void* segments;
  int64_t wide_segments;
  const int64_t* positions;
  int64_t size;
  uint32_t* seen;
  uint64_t* found;
  void* indices;
  void* segment_ids;
  const Checks* before;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Writes every entry to its position: there must be one at each, ascending within a row. `seen` counts entries by
// position and `found` by segment, starting from zeros.
DEVICE void planned_ids(const PlannedIds& p) {
  if (is_raised(p.before)) return;
  const Ids rows{p.rows, p.wide_rows != 0}, segments{p.segments, p.wide_segments != 0};
  const IdsOut indices{p.indices, p.wide_rows != 0}, segment_ids{p.segment_ids, p.wide_segments != 0};
  auto start = [&](int64_t k) { return p.starts[k]; };
  bool bad = false;
  each_in_runs(start, p.listed, p.size, [&](int64_t i, int64_t k) {
    const int64_t position = p.positions[i], segment = segments[i];
    bad |= atomicAdd(&p.seen[position], 1u) != 0;
    bad |= p.starts[k] != i && position < p.positions[i - 1];
    atomicAdd(&p.found[segment], uint64_t(1));
    indices.put(position, rows[k]);
    segment_ids.put(position, segment);
  });
  if (!must_report(p.checks, bad)) return;
  for (int64_t i = 0; i < p.size; ++i) p.seen[i] = 0;
  for (int64_t i = 0, k = 0;; ++i) {
    const bool begins = k < p.listed && p.starts[k] == i;
    k += begins;
    if (p.seen[p.positions[i]]++ || (!begins && p.positions[i] < p.positions[i - 1]))
      return report(p.fault, p.alarm, fault_plan_positions, i, p.positions[i], p.size);
  }
}

struct CheckPlanCounts {
  const int64_t* counts;
  const uint64_t* found;
  int64_t num_segments;
  const Checks* arrays;
  const Checks* entries;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Validates that counts match those found, if the checks of arrays and entries raised nothing.
DEVICE void check_plan_counts(const CheckPlanCounts& p) {
  if (is_raised(p.arrays) || is_raised(p.entries)) return;
  auto differs = [&](int64_t s) { return p.counts[s] != int64_t(p.found[s]); };
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  bool bad = false;
  for (int64_t s = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; s < p.num_segments; s += stride) bad |= differs(s);
  if (!must_report(p.checks, bad)) return;
  int64_t s = 0;
  while (!differs(s)) ++s;
  report(p.fault, p.alarm, fault_plan_counts, s, p.counts[s], int64_t(p.found[s]));
}

}  // namespace rowgrad
