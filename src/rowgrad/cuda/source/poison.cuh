// Marks the results of a rejected call.
#pragma once
#include "device.cuh"

namespace rowgrad {

struct PoisonResults {
  void* out;
  int64_t size;
  uint64_t poison;
  const Checks* checks;
};

// Fills the elements, of type U, if the checks found a fault.
template <class U>
DEVICE void poison_results(const PoisonResults& p) {
  if (!is_raised(p.checks)) return;
  fill_with<U>(p.out, p.size, p.poison, int64_t(blockIdx.x) * blockDim.x + threadIdx.x,
               int64_t(gridDim.x) * blockDim.x);
}

}  // namespace rowgrad
