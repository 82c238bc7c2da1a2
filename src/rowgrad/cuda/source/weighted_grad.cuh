// Converts sorted positions into the contributions of weighted bags' gradients.
#pragma once
#include "device.cuh"

namespace rowgrad {

struct WeighEntries {
  uint32_t* values;
  const void* segments;
  int64_t wide_segments;
  const void* weights;
  const void* totals;
  int64_t size;
  void* scales;
  void* divisors;
  const Checks* checks;
};

// For every entry: replaces its position by its segment, and writes its weight and its segment's total (null: none).
// Weights have type W; A is the accumulator's type.
template <class W, class A>
DEVICE void weigh_entries(const WeighEntries& p) {
  if (is_raised(p.checks)) return;
  const Ids segments{p.segments, p.wide_segments != 0};
  const W* weights = static_cast<const W*>(p.weights);
  const A* totals = static_cast<const A*>(p.totals);
  A *scales = static_cast<A*>(p.scales), *divisors = static_cast<A*>(p.divisors);
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += stride) {
    const int64_t position = p.values[i], segment = segments[position];
    p.values[i] = uint32_t(segment);
    scales[i] = convert_to(load(weights[position]), A());
    if (totals) divisors[i] = totals[segment];
  }
}

}  // namespace rowgrad
