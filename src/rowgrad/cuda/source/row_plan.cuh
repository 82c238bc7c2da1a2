// Writes a plan from a batch that was sorted by row.
#pragma once
#include "device.cuh"

namespace rowgrad {

struct WritePlan {
  const uint32_t* sorted_positions;
  const void* segment_ids;
  int64_t wide_segments;
  int64_t size;
  const uint32_t* found;
  int64_t num_segments;
  void* segments;
  int64_t* positions;
  int64_t* counts;
  const Checks* checks;
};

// Writes the position and segment of every sorted entry, and the counts of segments, which `found` has in 32 bits.
DEVICE void write_plan(const WritePlan& p) {
  if (is_raised(p.checks)) return;
  const Ids segment_ids{p.segment_ids, p.wide_segments != 0};
  const IdsOut segments{p.segments, p.wide_segments != 0};
  const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = first; i < p.size; i += stride) {
    const int64_t position = p.sorted_positions[i];
    p.positions[i] = position;
    segments.put(i, segment_ids[position]);
  }
  for (int64_t s = first; s < p.num_segments; s += stride) p.counts[s] = p.found[s];
}

}  // namespace rowgrad
