// Packs of neighbouring columns that are loaded and stored at once.
#pragma once
#include "device.cuh"

namespace rowgrad {

template <class T, int W>
struct alignas(sizeof(T) * W < 16 ? sizeof(T) * W : 16) Pack {
  T at[W];
};

#ifdef __CUDACC_RTC__
template <int BYTES>
struct Word {
  typedef uint4 type;
};
template <>
struct Word<8> {
  typedef uint2 type;
};
template <>
struct Word<4> {
  typedef uint32_t type;
};
template <>
struct Word<2> {
  typedef uint16_t type;
};
template <>
struct Word<1> {
  typedef uint8_t type;
};
template <class T, int W>
using WordOf = typename Word<sizeof(T) * W>::type;
#endif

template <int W, class T>
DEVICE Pack<T, W> load_pack(const T* p) {
#ifdef __CUDACC_RTC__
  Pack<T, W> pack;
#pragma unroll
  for (int k = 0; k < int(sizeof(pack) / sizeof(WordOf<T, W>)); ++k)
    reinterpret_cast<WordOf<T, W>*>(&pack)[k] = reinterpret_cast<const WordOf<T, W>*>(p)[k];
  return pack;
#else
  return *reinterpret_cast<const Pack<T, W>*>(p);
#endif
}

template <int W, class T>
DEVICE void store_pack(T* p, const Pack<T, W>& pack) {
  *reinterpret_cast<Pack<T, W>*>(p) = pack;
}

// Stores to global memory. Written out because the compiler would store packs column by column. `lasts`: keep the line
// in caches because it is soon accessed again.
template <int W, bool lasts = false, class T>
DEVICE void put_pack(T* p, const Pack<T, W>& pack) {
#ifdef __CUDACC_RTC__
#pragma unroll
  for (int k = 0; k < int(sizeof(pack) / sizeof(WordOf<T, W>)); ++k) {
    WordOf<T, W>* to = reinterpret_cast<WordOf<T, W>*>(p) + k;
    const WordOf<T, W> word = reinterpret_cast<const WordOf<T, W>*>(&pack)[k];
    if constexpr (lasts)
      __stwb(to, word);
    else
      __stcs(to, word);
  }
#else
  store_pack<W>(p, pack);
#endif
}

// Loads memory that no thread writes while the kernel runs.
template <class T, int W>
DEVICE Pack<T, W> fetch(const T* from) {
#ifdef __CUDACC_RTC__
  if constexpr (sizeof(T) * W == 16 || sizeof(T) * W == 8) {
    const WordOf<T, W> bits = __ldg(reinterpret_cast<const WordOf<T, W>*>(from));
    return *reinterpret_cast<const Pack<T, W>*>(&bits);
  }
#endif
  return load_pack<W>(from);
}

// A lane's columns in rows of fewer than 2³² bytes.
template <class T>
struct LaneOfRows {
  unsigned char* first;  // in row 0
  uint32_t row_bytes;

  DEVICE LaneOfRows(const void* rows, int64_t cols, int64_t column)
      : first(static_cast<unsigned char*>(const_cast<void*>(rows)) + column * int64_t(sizeof(T))),
        row_bytes(uint32_t(cols * int64_t(sizeof(T)))) {
#ifdef __CUDACC_RTC__
    asm volatile("" : "+l"(first));  // keeps the compiler from adding the column again for every row
#endif
  }

  DEVICE T* operator[](int64_t row) const { return reinterpret_cast<T*>(first + uint64_t(row) * row_bytes); }
  DEVICE T* operator[](int32_t row) const { return (*this)[uint32_t(row)]; }
  DEVICE T* operator[](uint32_t row) const {
#ifdef __CUDACC_RTC__
    uint64_t at;  // one instruction instead of four
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(at) : "r"(row), "r"(row_bytes), "l"(first));
    return reinterpret_cast<T*>(at);
#else
    return reinterpret_cast<T*>(first + uint64_t(row) * row_bytes);
#endif
  }
};

// Converts columns to the accumulator's type. Two bfloat16 are halves of a word: a shift and a mask.
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

// Rounds sums to T.
template <class T, int W>
DEVICE Pack<T, W> packed(const Accumulator<T> (&sum)[W]) {
  Pack<T, W> pack;
#pragma unroll
  for (int w = 0; w < W; ++w) pack.at[w] = store<T>(sum[w]);
  return pack;
}

// Sums in memory that other threads of the same kernel read and write: bypasses the L1 cache, with sixteen-byte
// accesses where possible.
template <class A, int W>
DEVICE void put_shared_sum(A* to, const A (&sum)[W]) {
  if constexpr (sizeof(A) * W % 16 == 0) {
    put_pack<W, true>(to, *reinterpret_cast<const Pack<A, W>*>(&sum));
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
