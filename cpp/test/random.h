// Random inputs. The same seed gives the same test on every machine.
#pragma once
#include <algorithm>
#include <bit>
#include <complex>
#include <cstdint>
#include <limits>
#include <vector>

#include "rowgrad/dtype.h"

namespace test {

// splitmix64: the standard library's distributions differ between implementations.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, n).
  std::int64_t below(std::int64_t n) { return std::int64_t(bits() % std::uint64_t(n)); }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool chance(std::int64_t one_in) { return below(one_in) == 0; }

 private:
  std::uint64_t state_;
};

// The sign of the NaN this processor makes itself. Where a sum meets two different NaNs, the one that survives depends
// on the order of an addition's operands, which C++ leaves to the compiler; with only this one, results are determined.
inline bool machine_nan_is_negative() {
  volatile double infinity = std::numeric_limits<double>::infinity();
  return std::bit_cast<std::uint64_t>(infinity - infinity) >> 63 != 0;
}

// A float put together from bits, so that no mode flushes it: magnitudes around 1 whose sums round, with the odd zero
// of either sign, subnormal, infinity and NaN.
inline std::uint64_t random_float_bits(Rng& rng, int width, int mantissa) {
  const std::uint64_t sign = (rng.bits() & 1) << (width - 1), fraction = rng.bits() >> (64 - mantissa);
  const std::uint64_t all_ones = (std::uint64_t{1} << (width - 1 - mantissa)) - 1, bias = all_ones >> 1;
  switch (rng.below(400)) {
    case 0:
      return sign | all_ones << mantissa;
    case 1:
      return std::uint64_t{machine_nan_is_negative()} << (width - 1) | (2 * all_ones + 1) << (mantissa - 1);
    case 2:
    case 3:
      return sign;
    case 4:
    case 5:
    case 6:
      return sign | fraction;
  }
  return sign | (bias + std::uint64_t(rng.below(9)) - 4) << mantissa | fraction;
}

template <class T>
T random_value(Rng& rng) {
  if constexpr (std::is_same_v<T, rowgrad::half>)
    return {std::uint16_t(random_float_bits(rng, 16, 10))};
  else if constexpr (std::is_same_v<T, rowgrad::bfloat16>)
    return {std::uint16_t(random_float_bits(rng, 16, 7))};
  else if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<float>(std::uint32_t(random_float_bits(rng, 32, 23)));
  else if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<double>(random_float_bits(rng, 64, 52));
  else if constexpr (std::is_same_v<T, std::complex<float>>)
    return {random_value<float>(rng), random_value<float>(rng)};
  else if constexpr (std::is_same_v<T, std::complex<double>>)
    return {random_value<double>(rng), random_value<double>(rng)};
  else
    return T(rng.bits());  // any bits: sums wrap
}

template <class T>
std::vector<T> random_values(Rng& rng, std::int64_t n) {
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& v : values) v = random_value<T>(rng);
  return values;
}

inline std::vector<std::int64_t> random_ids(Rng& rng, std::int64_t n, std::int64_t bound) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(n));
  for (std::int64_t& id : ids) id = rng.below(bound);
  return ids;
}

inline std::vector<std::int64_t> sorted_ids(Rng& rng, std::int64_t n, std::int64_t bound) {
  auto ids = random_ids(rng, n, bound);
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace test
