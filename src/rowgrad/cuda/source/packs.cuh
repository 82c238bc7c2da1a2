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
#ifdef __CUDACC_RTC__
  if constexpr (sizeof(T) * W == 8) {
    const uint2 bits = __ldg(reinterpret_cast<const uint2*>(from));
    return *reinterpret_cast<const Pack<T, W>*>(&bits);
  }
#endif
  return *reinterpret_cast<const Pack<T, W>*>(from);
}

// Copies into shared memory that go on while the thread does other things. They are waited for in groups, in order.
template <int BYTES>
DEVICE void copy_aside(void* to, const void* from) {
#ifdef __CUDACC_RTC__
  const unsigned at = unsigned(__cvta_generic_to_shared(to));
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  else if constexpr (BYTES == 8)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(at), "l"(from) : "memory");
  else if constexpr (BYTES == 4)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
  else
    *static_cast<Pack<uint8_t, BYTES>*>(to) = *static_cast<const Pack<uint8_t, BYTES>*>(from);
#else
  *static_cast<Pack<uint8_t, BYTES>*>(to) = *static_cast<const Pack<uint8_t, BYTES>*>(from);
#endif
}

DEVICE void end_group() {
#ifdef __CUDACC_RTC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until all but the newest groups are there.
template <int NEWEST>
DEVICE void await_groups() {
#ifdef __CUDACC_RTC__
  asm volatile("cp.async.wait_group %0;" ::"n"(NEWEST) : "memory");
#endif
}

// Sums in memory that other threads of the same kernel read and write: past the cache of one multiprocessor, sixteen
// bytes at a time where there are as many.
template <class A, int W>
DEVICE void put_shared_sum(A* to, const A (&sum)[W]) {
  if constexpr (sizeof(A) * W % 16 == 0) {
#pragma unroll
    for (int part = 0; part < int(sizeof(A) * W / 16); ++part)
      reinterpret_cast<Pack<A, 16 / sizeof(A)>*>(to)[part] =
          reinterpret_cast<const Pack<A, 16 / sizeof(A)>*>(&sum)[part];
  } else {
#pragma unroll
    for (int w = 0; w < W; ++w) to[w] = sum[w];
  }
}

template <class A, int W>
DEVICE void get_shared_sum(A (&sum)[W], const A* from) {
#ifdef __CUDACC_RTC__
  if constexpr (sizeof(A) * W % 16 == 0) {
#pragma unroll
    for (int part = 0; part < int(sizeof(A) * W / 16); ++part)
      reinterpret_cast<uint4*>(&sum)[part] = __ldcg(reinterpret_cast<const uint4*>(from) + part);
    return;
  } else if constexpr (sizeof(A) == 8) {
    *reinterpret_cast<unsigned long long*>(&sum) = __ldcg(reinterpret_cast<const unsigned long long*>(from));
    return;
  } else if constexpr (sizeof(A) == 4) {
    *reinterpret_cast<unsigned*>(&sum) = __ldcg(reinterpret_cast<const unsigned*>(from));
    return;
  }
#endif
#pragma unroll
  for (int w = 0; w < W; ++w) sum[w] = from[w];
}

}  // namespace rowgrad
