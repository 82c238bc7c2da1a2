// Random inputs: the same seed produces the same test on every machine.
#pragma once
#include <algorithm>
#include <bit>
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

// The sign of the NaN that this processor generates. If a sum meets two different NaNs, the result depends on the order
// of the operands, which C++ leaves to the compiler; with only this NaN, results are deterministic.
inline bool machine_nan_is_negative() {
  volatile double infinity = std::numeric_limits<double>::infinity();
  return std::bit_cast<std::uint64_t>(infinity - infinity) >> 63 != 0;
}

// Builds a float from bits, so that no mode flushes it: magnitudes around 1 whose sums round, with an occasional zero
// of either sign, subnormal, infinity or NaN.
inline std::uint64_t random_float(Rng& rng, int width, int mantissa) {
  const std::uint64_t r = rng.bits(), sign = (r & 1) << (width - 1), fraction = rng.bits() >> (64 - mantissa);
  const std::uint64_t all_ones = (std::uint64_t{1} << (width - 1 - mantissa)) - 1, bias = all_ones >> 1;
  const std::uint64_t kind = (r >> 8) % 512;
  if (kind == 0) return sign | all_ones << mantissa;
  if (kind == 1) return std::uint64_t{machine_nan_is_negative()} << (width - 1) | (2 * all_ones + 1) << (mantissa - 1);
  if (kind < 5) return sign;
  if (kind < 9) return sign | fraction;
  return sign | (bias + (r >> 32) % 9 - 4) << mantissa | fraction;
}

// The bits of one element; a complex number takes two. Integers have random bits, so that sums wrap.
inline std::uint64_t random_bits(Rng& rng, rowgrad::DType dtype) {
  using rowgrad::DType;
  switch (dtype) {
    case DType::float16:
      return random_float(rng, 16, 10);
    case DType::bfloat16:
      return random_float(rng, 16, 7);
    case DType::float32:
    case DType::complex64:
      return random_float(rng, 32, 23);
    case DType::float64:
    case DType::complex128:
      return random_float(rng, 64, 52);
    case DType::bool_:
      return rng.bits() & 1;
    default:
      return rng.bits();
  }
}

inline std::vector<std::int64_t> random_ids(Rng& rng, std::int64_t n, std::int64_t bound) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(n));
  for (std::int64_t& id : ids) id = rng.below(bound);
  return ids;
}

// Ascending ids. A counting sort: comparisons are what sanitizers slow down most.
inline std::vector<std::int64_t> sorted_ids(Rng& rng, std::int64_t n, std::int64_t bound) {
  std::vector<std::int64_t> count(static_cast<std::size_t>(bound)), ids;
  for (std::int64_t i = 0; i < n; ++i) ++count[rng.below(bound)];
  for (std::int64_t id = 0; id < bound; ++id) ids.insert(ids.end(), static_cast<std::size_t>(count[id]), id);
  return ids;
}

}  // namespace test
