// SIMD packs of columns, using the vector extensions of GCC and Clang, so one source serves every instruction set.
//
// A Lane<T, N> is N neighbouring columns in the accumulator's type. All operations are elementwise, so N never changes
// a bit. Include only in code that is compiled once per level; everything here has internal linkage.
#pragma once
#include <cstdint>
#include <cstring>

#include "rowgrad/dtype.h"
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace rowgrad {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class A, int N>
struct VectorOf {
  typedef A type __attribute__((vector_size(N * sizeof(A))));
  typedef A loose __attribute__((vector_size(N * sizeof(A)), aligned(alignof(A)), may_alias));
};
template <class A>
struct VectorOf<A, 1> {
  using type = A;
  using loose = A;
};
template <class A, int N>
using Vector = typename VectorOf<A, N>::type;

// Signed integers are added as unsigned, so that sums wrap.
template <class A>
struct SummandOf {
  using type = A;
};
template <class A>
  requires std::is_integral_v<A>
struct SummandOf<A> {
  using type = std::make_unsigned_t<A>;
};
template <class T>
using Summand = typename SummandOf<Accumulator<T>>::type;

template <class T, int N>
using Lane = Vector<Summand<T>, N>;

template <class T, int N>
inline Lane<T, N> load_lane(const T* p) {
  using A = Summand<T>;
  if constexpr (N == 1) {
    return A(load(*p));
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    typedef std::uint16_t Bits __attribute__((vector_size(N * 2), aligned(2), may_alias));
    typedef std::uint16_t Narrow __attribute__((vector_size(N * 2)));
    const Narrow bits = *reinterpret_cast<const Bits*>(p);
    return reinterpret_cast<Vector<float, N>>(__builtin_convertvector(bits, Vector<std::uint32_t, N>) << 16);
  } else if constexpr (std::is_same_v<T, half>) {
#if defined(__F16C__)
    if constexpr (N == 4) return reinterpret_cast<Vector<float, N>>(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i*)p)));
    if constexpr (N == 8)
      return reinterpret_cast<Vector<float, N>>(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)));
#if defined(__AVX512F__)
    if constexpr (N == 16)
      return reinterpret_cast<Vector<float, N>>(_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i*)p)));
#endif
#else
    Vector<float, N> v{};
    for (int i = 0; i < N; ++i) v[i] = widen(p[i]);
    return v;
#endif
  } else {
    return *reinterpret_cast<const typename VectorOf<A, N>::loose*>(p);
  }
}

template <class T, int N>
inline void store_lane(T* p, Lane<T, N> v) {
  using A = Summand<T>;
  if constexpr (N == 1) {
    *p = store<T>(Accumulator<T>(v));
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    using U = Vector<std::uint32_t, N>;
    const U u = reinterpret_cast<U>(v);
    const U rounded = u + 0x7fffu + ((u >> 16) & 1u);
    const U nan = reinterpret_cast<U>((u & 0x7fffffffu) > 0x7f800000u);  // all ones for NaN
    const U bits = (((u | 0x400000u) & nan) | (rounded & ~nan)) >> 16;
    typedef std::uint16_t Narrow __attribute__((vector_size(N * 2)));
    typedef std::uint16_t Bits __attribute__((vector_size(N * 2), aligned(2), may_alias));
    *reinterpret_cast<Bits*>(p) = __builtin_convertvector(bits, Narrow);
  } else if constexpr (std::is_same_v<T, half>) {
#if defined(__F16C__)
    if constexpr (N == 4) _mm_storel_epi64((__m128i*)p, _mm_cvtps_ph(reinterpret_cast<__m128>(v), 0));
    if constexpr (N == 8) _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(reinterpret_cast<__m256>(v), 0));
#if defined(__AVX512F__)
    if constexpr (N == 16)
      _mm256_storeu_si256((__m256i*)p, _mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(v), 0));
#endif
#else
    for (int i = 0; i < N; ++i) p[i] = store<half>(v[i]);
#endif
  } else {
    *reinterpret_cast<typename VectorOf<A, N>::loose*>(p) = v;
  }
}

// Several lanes side by side: enough work per loaded row.
template <class T, int N, int K>
struct Block {
  static constexpr std::int64_t columns = N * K;
  Lane<T, N> lane[K];

  void set(const T* p) {
    for (int k = 0; k < K; ++k) lane[k] = load_lane<T, N>(p + k * N);
  }
  void clear() {
    for (int k = 0; k < K; ++k) lane[k] = Lane<T, N>{};
  }
  void add(const T* p) {
    for (int k = 0; k < K; ++k) lane[k] += load_lane<T, N>(p + k * N);
  }
  void add(const Block& other) {
    for (int k = 0; k < K; ++k) lane[k] += other.lane[k];
  }
  template <class S>
  void add_scaled(const T* p, S s) {
    for (int k = 0; k < K; ++k) lane[k] += load_lane<T, N>(p + k * N) * s;
  }
  template <class S>
  void multiply(S s) {
    for (int k = 0; k < K; ++k) lane[k] *= s;
  }
  // x/0 is 0.
  template <class S>
  void divide_no_nan(S s) {
    if (s == S(0)) return clear();
    for (int k = 0; k < K; ++k) lane[k] /= s;
  }
  // Rounds to T and back.
  void round() {
    for (int k = 0; k < K; ++k) {
      T rounded[N];
      store_lane<T, N>(rounded, lane[k]);
      lane[k] = load_lane<T, N>(rounded);
    }
  }
  void store(T* p) const {
    for (int k = 0; k < K; ++k) store_lane<T, N>(p + k * N, lane[k]);
  }
};

// Calls fn.template operator()<N, K>(first column) until all columns are done: four whole vectors at a time, then two,
// one, then ever shorter ones. Integers use whole vectors only: shorter ones cost compile time for no gain.
template <class T, class Fn>
inline void for_blocks(std::int64_t cols, Fn&& fn) {
  using A = Summand<T>;
  constexpr int whole = sizeof(A) < kVectorBytes ? kVectorBytes / int(sizeof(A)) : 1;
  constexpr bool full = std::is_floating_point_v<A>;
  std::int64_t c = 0;
#if defined(__AVX512F__)  // 32 registers: enough for eight sums and the eight rows of a block
  if constexpr (full)
    for (; c + 8 * whole <= cols; c += 8 * whole) fn.template operator()<whole, 8>(c);
#endif
  if constexpr (full)
    for (; c + 4 * whole <= cols; c += 4 * whole) fn.template operator()<whole, 4>(c);
  if constexpr (full)
    if (c + 2 * whole <= cols) {
      fn.template operator()<whole, 2>(c);
      c += 2 * whole;
    }
  for (; c + whole <= cols; c += whole) fn.template operator()<whole, 1>(c);
  auto shorter = [&]<int N>(auto&& self, std::integral_constant<int, N>) {
    if constexpr (N > 1) {
      constexpr bool exists = N * sizeof(A) >= 16;  // the shortest vector
      if constexpr (exists)
        if (c + N <= cols) {
          fn.template operator()<N, 1>(c);
          c += N;
        }
      self(self, std::integral_constant<int, N / 2>{});
    }
  };
  if constexpr (full) shorter(shorter, std::integral_constant<int, whole / 2>{});
  if constexpr (full && sizeof(A) == 4) {  // one pass for the last two or three columns, fewer than any vector
    if (cols - c == 3) return fn.template operator()<1, 3>(c);
    if (cols - c == 2) return fn.template operator()<1, 2>(c);
  }
  for (; c < cols; ++c) fn.template operator()<1, 1>(c);
}

}  // namespace
}  // namespace rowgrad
