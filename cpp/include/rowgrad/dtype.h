// The list of dtypes (ROWGRAD_DTYPES), and conversions between 16-bit floats and float32.
#pragma once
#include <bit>
#include <complex>
#include <cstdint>
#include <type_traits>

namespace rowgrad {

// 16-bit floats are storage types: all arithmetic widens them to float32 first. The conversions use integer arithmetic
// only, so flush-to-zero mode cannot change subnormals. Functions are `static` because some translation units that
// include them are compiled for newer processors: no two may share a definition.
struct half {
  std::uint16_t bits;
};
struct bfloat16 {
  std::uint16_t bits;
};

static inline float widen(bfloat16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

static inline float widen(half x) {
  const std::uint32_t sign = std::uint32_t(x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  if (magnitude == 0) return std::bit_cast<float>(sign);
  const int shift = std::countl_zero(magnitude) - 21;  // brings the leading one to bit 10
  return std::bit_cast<float>(sign | std::uint32_t(113 - shift) << 23 | ((magnitude << shift) & 0x3ffu) << 13);
}

static inline bfloat16 narrow_to(std::type_identity<bfloat16>, float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {std::uint16_t((u >> 16) | 0x40u)};
  return {std::uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

static inline half narrow_to(std::type_identity<half>, float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const auto sign = std::uint16_t((u >> 16) & 0x8000u);
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {std::uint16_t(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {std::uint16_t(sign | 0x7c00u)};  // rounds to 65536 or more
  if (magnitude >= 0x38800000u) {
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return {std::uint16_t(sign | ((rounded - 0x38000000u) >> 13))};
  }
  if (magnitude < 0x33000000u) return {sign};  // below half of the smallest subnormal
  const int shift = 126 - int(magnitude >> 23);
  const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t quotient = mantissa >> shift;
  const std::uint32_t rest = mantissa & ((1u << shift) - 1u);
  const std::uint32_t tie = 1u << (shift - 1);
  return {std::uint16_t(sign | (quotient + (rest > tie || (rest == tie && (quotient & 1u)))))};
}

// Code, Python name, C++ type. Codes are positions in this list. Quantized types hold plain integers.
#define ROWGRAD_DTYPES(X)             \
  X(float16, half)                    \
  X(bfloat16, bfloat16)               \
  X(float32, float)                   \
  X(float64, double)                  \
  X(int8, std::int8_t)                \
  X(int16, std::int16_t)              \
  X(int32, std::int32_t)              \
  X(int64, std::int64_t)              \
  X(uint8, std::uint8_t)              \
  X(uint16, std::uint16_t)            \
  X(uint32, std::uint32_t)            \
  X(uint64, std::uint64_t)            \
  X(complex64, std::complex<float>)   \
  X(complex128, std::complex<double>) \
  X(bool_, bool)                      \
  X(qint8, std::int8_t)               \
  X(quint8, std::uint8_t)             \
  X(qint32, std::int32_t)

enum class DType : std::uint8_t {
#define ROWGRAD_CODE(name, type) name,
  ROWGRAD_DTYPES(ROWGRAD_CODE)
#undef ROWGRAD_CODE
};

// The type of a sum of T.
template <class T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<half> {
  using type = float;
};
template <>
struct AccumulatorOf<bfloat16> {
  using type = float;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

template <class T>
inline constexpr bool is_16bit_float = std::is_same_v<T, half> || std::is_same_v<T, bfloat16>;

template <class T>
static inline Accumulator<T> load(T x) {
  if constexpr (is_16bit_float<T>)
    return widen(x);
  else
    return x;
}

template <class T>
static inline T store(Accumulator<T> x) {
  if constexpr (is_16bit_float<T>)
    return narrow_to(std::type_identity<T>{}, x);
  else
    return x;
}

// Integer sums wrap: they are added as unsigned, since signed overflow is undefined.
template <class A>
static inline A plus(A a, A b) {
  if constexpr (std::is_integral_v<A> && std::is_signed_v<A>) {
    using U = std::make_unsigned_t<A>;
    return A(U(a) + U(b));
  } else {
    return A(a + b);
  }
}

#define ROWGRAD_WIDTH(name, type) sizeof(type),
inline constexpr std::int64_t kWidthOf[] = {ROWGRAD_DTYPES(ROWGRAD_WIDTH)};
#undef ROWGRAD_WIDTH

inline constexpr std::int64_t width_of(DType dtype) { return kWidthOf[static_cast<std::size_t>(dtype)]; }

}  // namespace rowgrad
