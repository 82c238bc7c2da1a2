// Neighbouring columns that are moved at once.
#pragma once
#include "device.cuh"

namespace rowgrad {

template <class T, int W>
struct alignas(sizeof(T) * W) Pack {
  T at[W];
};

template <class T, int W>
DEVICE Pack<T, W> fetch(const T* from) {
#ifdef __CUDACC_RTC__
  if constexpr (sizeof(T) * W == 16) {
    const uint4 bits = __ldg(reinterpret_cast<const uint4*>(from));
    return *reinterpret_cast<const Pack<T, W>*>(&bits);
  }
#endif
  return *reinterpret_cast<const Pack<T, W>*>(from);
}

}  // namespace rowgrad
