// Reductions of a bag's rows: sum, mean, sqrtn.
//
// Every switch lists all reductions and has no default, so a new reduction does not compile until each switch handles
// it.
#pragma once
#include <cmath>
#include <cstdint>

#include "rowgrad/enums.h"

namespace rowgrad {

// Whether the reduction divides the sum, so that ids must be counted.
static constexpr bool has_divisor(Reduction kind) {
  switch (kind) {
    case Reduction::sum:
      return false;
    case Reduction::mean:
    case Reduction::sqrtn:
      return true;
  }
  __builtin_unreachable();  // kernels reject other numbers
}

// Returns the divisor of the sum of n rows, in double.
static inline double exact_divisor(Reduction kind, std::int64_t n) {
  switch (kind) {
    case Reduction::sum:
      return 1.0;
    case Reduction::mean:
      return double(n);
    case Reduction::sqrtn:
      return std::sqrt(double(n));
  }
  __builtin_unreachable();
}

// Returns the divisor of the sum of n rows: computed in double, rounded once to A.
template <class A>
static inline A divisor(Reduction kind, std::int64_t n) {
  return A(exact_divisor(kind, n));
}

// Returns the factor of a gradient row: computed in double, rounded once to A.
template <class A>
static inline A gradient_scale(Reduction kind, std::int64_t n) {
  return A(1.0 / exact_divisor(kind, n));
}

}  // namespace rowgrad
