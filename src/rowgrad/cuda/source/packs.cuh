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

// Columns in the type they are added up in. Two bfloat16 are halves of a word, each but a shift or a mask away.
template <class T, int W>
DEVICE void unpack(Accumulator<T> (&to)[W], const Pack<T, W>& from) {
  if constexpr (Same<T, bfloat16>::value && W % 2 == 0) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(&from);
#pragma unroll
    for (int w = 0; w < W / 2; ++w) {
      to[2 * w] = float_of(words[w] << 16);
      to[2 * w + 1] = float_of(words[w] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int w = 0; w < W; ++w) to[w] = load<T>(from.at[w]);
  }
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
