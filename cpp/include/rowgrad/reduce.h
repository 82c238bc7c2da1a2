// The three ways to combine the rows of a bag, and the one number each needs.
#pragma once
#include <cmath>
#include <cstdint>

namespace rowgrad {

enum class Reduce : std::int64_t { sum = 0, mean = 1, sqrtn = 2 };

// What the sum of n rows is divided by, for a mean or a sqrtn. The root is taken in double and rounded once to A.
template <class A>
static inline A divisor(Reduce kind, std::int64_t n) {
  return kind == Reduce::mean ? A(n) : A(std::sqrt(double(n)));
}

// What a gradient row is multiplied by, for a mean or a sqrtn: computed in double, rounded once.
template <class A>
static inline A gradient_scale(Reduce kind, std::int64_t n) {
  return A(1.0 / (kind == Reduce::mean ? double(n) : std::sqrt(double(n))));
}

}  // namespace rowgrad
