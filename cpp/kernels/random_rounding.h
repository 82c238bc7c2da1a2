// Stochastic rounding of 16-bit weights: up with a probability equal to the fraction that is cut off.
//
// Random bits are a hash of (seed, step, row, column) only, so threads and vector widths change no bit. Include only in
// code that is compiled once per level; everything here has internal linkage.
#pragma once
#include <cstdint>

#include "packs.h"
#include "rowgrad/row_update.h"

namespace rowgrad {
namespace {

// Random bits of one row: 32 per column.
struct RowRandomBits {
  std::uint32_t low, high;

  RowRandomBits(std::uint64_t key, std::int64_t row) {
    const std::uint64_t bits = splitmix64(key ^ std::uint64_t(row));
    low = std::uint32_t(bits);
    high = std::uint32_t(bits >> 32);
  }

  template <int N>
  Vector<std::uint32_t, N> at(std::int64_t column) const {
    Vector<std::uint32_t, N> h{};
    if constexpr (N == 1)
      h = std::uint32_t(column);
    else
      for (int i = 0; i < N; ++i) h[i] = std::uint32_t(column) + std::uint32_t(i);
    h = h * 0x9e3779b9u + low;
    h = (h ^ (h >> 16)) * 0x7feb352du;
    h = h ^ high;
    h = (h ^ (h >> 15)) * 0x846ca68bu;
    return h ^ (h >> 16);
  }
};

template <int N>
inline Vector<std::uint32_t, N> bits_of(Vector<float, N> v) {
  if constexpr (N == 1)
    return std::bit_cast<std::uint32_t>(v);
  else
    return reinterpret_cast<Vector<std::uint32_t, N>>(v);
}

// Converts numbers below 2⁻¹⁴ to multiples of 2⁻³⁷, truncating.
template <int N>
inline Vector<std::uint32_t, N> as_fixed(Vector<std::uint32_t, N> bits) {
  if constexpr (N == 1)
    return std::uint32_t(std::int32_t(std::bit_cast<float>(bits) * 0x1p37f));
  else
    return reinterpret_cast<Vector<std::uint32_t, N>>(
        __builtin_convertvector(reinterpret_cast<Vector<float, N>>(bits) * 0x1p37f, Vector<std::int32_t, N>));
}

// Returns the bits of the 16-bit float in the low half. As many random bits are added to the 16 (bfloat16) or 13
// (float16) bits that are cut off; a carry rounds up. Infinities and NaNs do not change.
template <int N>
inline Vector<std::uint32_t, N> rounded_bits(std::type_identity<bfloat16>, Vector<float, N> v,
                                             Vector<std::uint32_t, N> random_bits) {
  using U = Vector<std::uint32_t, N>;
  const U u = bits_of<N>(v), magnitude = u & 0x7fffffffu;
  const U finite = (u + (random_bits >> 16)) >> 16;
  const U special = (u >> 16) | (magnitude > 0x7f800000u ? U{} + 0x40u : U{});
  return magnitude >= 0x7f800000u ? special : finite;
}

template <int N>
inline Vector<std::uint32_t, N> rounded_bits(std::type_identity<half>, Vector<float, N> v,
                                             Vector<std::uint32_t, N> random_bits) {
  using U = Vector<std::uint32_t, N>;
  const U u = bits_of<N>(v), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu, few = random_bits >> 19;
  const U normal = (magnitude - 0x38000000u + few) >> 13;
  // Below 2⁻¹⁴, float16 is a multiple of 2⁻²⁴; 13 bits below that is 2⁻³⁷.
  const U subnormal = (as_fixed<N>(magnitude < 0x38800000u ? magnitude : U{}) + few) >> 13;
  const U finite = magnitude < 0x38800000u ? subnormal : normal;
  const U bounded = magnitude >= 0x47800000u ? U{} + 0x7c00u : finite;  // 65536 or more
  return sign | (magnitude > 0x7f800000u ? U{} + 0x7e00u : bounded);
}

template <class T, int N>
inline void store_stochastic(T* p, Lane<T, N> v, Vector<std::uint32_t, N> random_bits) {
  const auto bits = rounded_bits<N>(std::type_identity<T>{}, v, random_bits);
  if constexpr (N == 1) {
    p->bits = std::uint16_t(bits);
  } else {
    typedef std::uint16_t Narrow __attribute__((vector_size(N * 2)));
    typedef std::uint16_t Bits __attribute__((vector_size(N * 2), aligned(2), may_alias));
    *reinterpret_cast<Bits*>(p) = __builtin_convertvector(bits, Narrow);
  }
}

}  // namespace
}  // namespace rowgrad
