// The three ways to combine the rows of a bag, and the one number each needs.
#pragma once
#include <cmath>
#include <cstdint>

namespace rowgrad {

enum class Reduce : std::int64_t { sum = 0, mean = 1, sqrtn = 2 };

// What the sum of n rows is divided by. The root is taken in double and rounded once to A.
template <class A>
static inline A divisor(Reduce kind, std::int64_t n) {
  switch (kind) {
    case Reduce::mean:
      return A(n);
    case Reduce::sqrtn:
      return A(std::sqrt(double(n)));
    default:
      return A(1);
  }
}

// What a gradient row is multiplied by: computed in double, rounded once.
template <class A>
static inline A gradient_scale(Reduce kind, std::int64_t n) {
  switch (kind) {
    case Reduce::mean:
      return A(1.0 / double(n));
    case Reduce::sqrtn:
      return A(1.0 / std::sqrt(double(n)));
    default:
      return A(1);
  }
}

}  // namespace rowgrad
