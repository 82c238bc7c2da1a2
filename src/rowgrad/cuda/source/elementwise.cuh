// Elementwise functions whose bits must not depend on the math library.
#pragma once
#include "device.cuh"

namespace rowgrad {

struct Roots {
  const void* x;
  void* roots;
  int64_t size;
};

// Writes the square root of every number; 16-bit floats are computed in float32 and then rounded.
template <class T>
DEVICE void roots(const Roots& p) {
  const T* x = static_cast<const T*>(p.x);
  T* to = static_cast<T*>(p.roots);
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += stride)
    to[i] = store<T>(root(load(x[i])));
}

}  // namespace rowgrad
