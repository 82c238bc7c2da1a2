// 16-bit floats against double arithmetic, which represents all their values and midpoints exactly.
#include "rowgrad/dtype.h"

#include <cmath>
#include <limits>

#include "expect.h"
#include "random.h"
#include "rowgrad/float_mode.h"

using namespace rowgrad;
using test::Where;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A 16-bit format: its number of fraction bits, and the exponent of its smallest normal number.
template <class T>
struct Format;
template <>
struct Format<half> {
  static constexpr int fraction = 10, smallest = -14;
};
template <>
struct Format<bfloat16> {
  static constexpr int fraction = 7, smallest = -126;
};

// The value of the bits, by the definition of the format.
template <class T>
double meaning(std::uint16_t bits) {
  using F = Format<T>;
  const int exponent = (bits & 0x7fff) >> F::fraction, all_ones = (1 << (15 - F::fraction)) - 1;
  const double fraction = bits & ((1 << F::fraction) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == all_ones) return fraction != 0 ? std::nan("") : sign * kInfinity;
  if (exponent == 0) return sign * std::ldexp(fraction, F::smallest - F::fraction);
  return sign * std::ldexp(fraction + (1 << F::fraction), exponent - 1 + F::smallest - F::fraction);
}

// Round to nearest, ties to even: nearbyint on a number scaled so that 1 is one step of the format.
template <class T>
std::uint16_t reference_bits(double x) {
  using F = Format<T>;
  const int all_ones = (1 << (15 - F::fraction)) - 1;
  const auto sign = std::uint16_t(std::signbit(x) ? 0x8000 : 0);
  const double magnitude = std::fabs(x);
  if (magnitude == 0) return sign;
  if (magnitude == kInfinity) return std::uint16_t(sign | all_ones << F::fraction);
  const int exponent = std::max(std::ilogb(magnitude), F::smallest);
  const double steps = std::nearbyint(std::ldexp(magnitude, F::fraction - exponent));
  // Steps carry into the exponent; subnormals have no exponent bits.
  const double bits = steps + double(exponent - F::smallest) * (1 << F::fraction);
  return std::uint16_t(sign | int(std::fmin(bits, double(all_ones << F::fraction))));
}

template <class T>
bool is_nan(T x) {
  return (x.bits & 0x7fff) > (((1 << (15 - Format<T>::fraction)) - 1) << Format<T>::fraction);
}

template <class T>
void check_narrow(std::uint32_t float_bits) {
  const float x = std::bit_cast<float>(float_bits);
  const Where where("narrow", {{"fraction", Format<T>::fraction}, {"float bits", float_bits}});
  EXPECT_EQ((narrow_to(std::type_identity<T>{}, x).bits), reference_bits<T>(x));
}

template <class T>
void test_widen_and_round_trip() {
  for (std::uint32_t b = 0; b < 0x10000; ++b) {
    const Where where("widen", {{"fraction", Format<T>::fraction}, {"bits", b}});
    const T x{std::uint16_t(b)};
    const float wide = widen(x);
    const T back = narrow_to(std::type_identity<T>{}, wide);
    if (is_nan(x)) {
      EXPECT(std::isnan(wide));
      EXPECT(is_nan(back));
      EXPECT_EQ(std::signbit(wide), b >= 0x8000);
      EXPECT_EQ(back.bits >= 0x8000, b >= 0x8000);
    } else {
      EXPECT_EQ(std::bit_cast<std::uint64_t>(double(wide)), std::bit_cast<std::uint64_t>(meaning<T>(x.bits)));
      EXPECT_EQ(back.bits, x.bits);
    }
  }
}

// Every value, every midpoint between neighbours (the last is halfway to overflow), and the floats next to them.
template <class T>
void test_narrow_around_ties() {
  const std::uint32_t infinity = ((1 << (15 - Format<T>::fraction)) - 1) << Format<T>::fraction;
  for (std::uint32_t b = 0; b < infinity; ++b) {
    const double low = meaning<T>(std::uint16_t(b));
    const double step = b + 1 < infinity ? meaning<T>(std::uint16_t(b + 1)) - low
                                         : low - meaning<T>(std::uint16_t(b - 1));
    for (double x : {low, low + step / 2})
      for (std::uint32_t sign : {0u, 0x80000000u})
        for (int off = -2; off <= 2; ++off) {
          const std::uint32_t u = std::bit_cast<std::uint32_t>(float(x));
          if (off < 0 && u < std::uint32_t(-off)) continue;
          if (u + std::uint32_t(off) <= 0x7f800000u) check_narrow<T>(sign | (u + std::uint32_t(off)));
        }
  }
}

template <class T>
void test_narrow_everywhere() {
  test::Rng rng(1);
  for (std::uint64_t u = 0; u < 0x100000000u; u += 1 + std::uint64_t(rng.below(8191))) {
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      EXPECT(is_nan(narrow_to(std::type_identity<T>{}, std::bit_cast<float>(std::uint32_t(u)))));
    } else {
      check_narrow<T>(std::uint32_t(u));
    }
  }
  // A NaN whose only set bits are dropped by narrowing must not become an infinity.
  for (std::uint32_t u : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u, 0xff801fffu})
    EXPECT(is_nan(narrow_to(std::type_identity<T>{}, std::bit_cast<float>(u))));
  EXPECT_EQ((narrow_to(std::type_identity<T>{}, float(kInfinity)).bits), (reference_bits<T>(kInfinity)));
  EXPECT_EQ((narrow_to(std::type_identity<T>{}, -float(kInfinity)).bits), (reference_bits<T>(-kInfinity)));
}

// Conversions use integer arithmetic: flush-to-zero must not change them.
template <class T>
void test_flushing_changes_nothing() {
  for (std::uint32_t b = 0; b < 0x10000; ++b) {
    const T x{std::uint16_t(b)};
    const auto plain = std::bit_cast<std::uint32_t>(widen(x));
    const FlushSubnormals flush;
    const Where where("flushed", {{"fraction", Format<T>::fraction}, {"bits", b}});
    EXPECT_EQ(std::bit_cast<std::uint32_t>(widen(x)), plain);
    if (!is_nan(x)) EXPECT_EQ((narrow_to(std::type_identity<T>{}, std::bit_cast<float>(plain)).bits), x.bits);
  }
}

template <class A>
void test_sums_wrap() {
  const A low = std::numeric_limits<A>::min(), high = std::numeric_limits<A>::max();
  EXPECT_EQ(plus<A>(high, A(1)), low);
  EXPECT_EQ(plus<A>(low, high), A(std::uint64_t(low) + std::uint64_t(high)));
  EXPECT_EQ(plus<A>(high, high), A(std::uint64_t(high) * 2));
}

template <class T>
void test_format() {
  test_widen_and_round_trip<T>();
  test_narrow_around_ties<T>();
  test_narrow_everywhere<T>();
  test_flushing_changes_nothing<T>();
}

}  // namespace

int main() {
  test_format<half>();
  test_format<bfloat16>();
  test_sums_wrap<std::int8_t>();
  test_sums_wrap<std::int16_t>();
  test_sums_wrap<std::int32_t>();
  test_sums_wrap<std::int64_t>();
  test_sums_wrap<std::uint8_t>();
  test_sums_wrap<std::uint64_t>();
  EXPECT_EQ(width_of(DType::bool_), 1);
  EXPECT_EQ(width_of(DType::float16), 2);
  EXPECT_EQ(width_of(DType::bfloat16), 2);
  EXPECT_EQ(width_of(DType::qint32), 4);
  EXPECT_EQ(width_of(DType::complex128), 16);
  return test::finish();
}
