// How the rows of a bag are combined, and the one number each reduction needs.
//
// Every switch here lists all reductions and has no default: a new one does not compile until each says what it does.
#pragma once
#include <cmath>
#include <cstdint>

#include "rowgrad/enums.h"

namespace rowgrad {

// Whether sums of rows are divided, and so whether ids have to be counted.
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

// The divisor of the sum of n rows, in double.
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

// What the sum of n rows is divided by. A root is taken in double and rounded once to A.
template <class A>
static inline A divisor(Reduction kind, std::int64_t n) {
  return A(exact_divisor(kind, n));
}

// What a gradient row is multiplied by: computed in double, rounded once.
template <class A>
static inline A gradient_scale(Reduction kind, std::int64_t n) {
  return A(1.0 / exact_divisor(kind, n));
}

}  // namespace rowgrad
