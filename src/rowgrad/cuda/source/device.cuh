// Shared by all kernels: types, number formats and their arithmetic, lists of ids, and faults.
//
// The same source is compiled twice: by NVRTC for a GPU, and by a host compiler for the tests, which run blocks and
// threads one after the other (`emulated.h` replaces CUDA). So nothing else may be included.
//
// A kernel takes one struct whose fields are all eight bytes wide. Python parses the structs in these files and fills
// fields by name.
#pragma once
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define DEVICE __device__ __forceinline__
#define DEVICE_CALL __device__ __noinline__  // rarely used code must not cost the common path registers
#define SHARED extern __shared__ __align__(16) unsigned char shared_memory[]
#else
#include "emulated.h"
#define DEVICE inline
#define DEVICE_CALL inline
#define SHARED unsigned char* shared_memory = emulated::shared()
#endif
#include "enums.cuh"

namespace rowgrad {

// Whether a reduction divides the sum, and its divisor in double. Both switches list every reduction
// (tests/test_completeness.py).
DEVICE constexpr bool has_divisor(Reduction kind) {
  switch (kind) {
    case Reduction::sum:
      return false;
    case Reduction::mean:
    case Reduction::sqrtn:
      return true;
  }
  return false;
}

DEVICE double exact_divisor(Reduction kind, double n) {
  switch (kind) {
    case Reduction::sum:
      return 1.0;
    case Reduction::mean:
      return n;
    case Reduction::sqrtn:
      return sqrt(n);
  }
  return 1.0;
}

template <class T, class U>
struct Same {
  static constexpr bool value = false;
};
template <class T>
struct Same<T, T> {
  static constexpr bool value = true;
};

constexpr unsigned kAllLanes = 0xffffffffu;
DEVICE unsigned lane_of_thread() { return threadIdx.x % 32u; }
DEVICE unsigned lanes_before(unsigned lane) { return (1u << lane) - 1u; }

template <class T>
struct IsFloat {
  static constexpr bool value = Same<T, float>::value || Same<T, double>::value;
};

// Whether the condition holds for any thread of the block; a barrier for all of them.
DEVICE bool any_thread(bool condition) {
#ifdef __CUDACC_RTC__
  return __syncthreads_or(condition) != 0;
#else
  return emulated::any_of_block(condition);
#endif
}

DEVICE float float_of(uint32_t bits) {
  union {
    uint32_t bits;
    float value;
  } u;
  u.bits = bits;
  return u.value;
}
DEVICE uint32_t bits_of(float value) {
  union {
    uint32_t bits;
    float value;
  } u;
  u.value = value;
  return u.bits;
}
DEVICE uint64_t bits_of(double value) {
  union {
    uint64_t bits;
    double value;
  } u;
  u.value = value;
  return u.bits;
}

// 16-bit floats are storage types: all arithmetic widens them first. The conversions never flush subnormals: PTX's have
// no .ftz, and those of the host use integer arithmetic.
struct half {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

DEVICE float widen(bfloat16 x) { return float_of(uint32_t(x.bits) << 16); }

DEVICE float widen(half x) {
#ifdef __CUDACC_RTC__
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#else
  const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400u) return float_of(sign | ((magnitude << 13) + 0x38000000u));
  if (magnitude == 0) return float_of(sign);
  const int shift = __clz(int(magnitude)) - 21;  // brings the leading one to bit 10
  return float_of(sign | uint32_t(113 - shift) << 23 | ((magnitude << shift) & 0x3ffu) << 13);
#endif
}

template <class T>
struct Narrowed;
template <>
struct Narrowed<bfloat16> {
  static DEVICE bfloat16 from(float x) {
    bfloat16 narrow;
#ifdef __CUDACC_RTC__
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
#else
    const uint32_t u = bits_of(x);
    narrow.bits = (u & 0x7fffffffu) > 0x7f800000u ? uint16_t((u >> 16) | 0x40u)
                                                   : uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
    return narrow;
  }
};
template <>
struct Narrowed<half> {
  static DEVICE half from(float x) {
    half narrow;
#ifdef __CUDACC_RTC__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    if ((bits_of(x) & 0x7fffffffu) > 0x7f800000u) narrow.bits = uint16_t((bits_of(x) >> 16 & 0x8000u) | 0x7e00u);
#else
    const uint32_t u = bits_of(x), magnitude = u & 0x7fffffffu;
    const uint16_t sign = uint16_t((u >> 16) & 0x8000u);
    if (magnitude > 0x7f800000u) {
      narrow.bits = uint16_t(sign | 0x7e00u);
    } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
      narrow.bits = uint16_t(sign | 0x7c00u);
    } else if (magnitude >= 0x38800000u) {
      narrow.bits = uint16_t(sign | ((magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13));
    } else if (magnitude < 0x33000000u) {  // below half of the smallest subnormal
      narrow.bits = sign;
    } else {
      const int shift = 126 - int(magnitude >> 23);
      const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u, quotient = mantissa >> shift;
      const uint32_t rest = mantissa & ((1u << shift) - 1u), tie = 1u << (shift - 1);
      narrow.bits = uint16_t(sign | (quotient + (rest > tie || (rest == tie && (quotient & 1u)))));
    }
#endif
    return narrow;
  }
};

template <class P>
struct complex {
  P re, im;
};

// The type of a sum of T.
template <class T>
struct AccumulatorOf {
  typedef T type;
};
template <>
struct AccumulatorOf<half> {
  typedef float type;
};
template <>
struct AccumulatorOf<bfloat16> {
  typedef float type;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

template <class T>
DEVICE Accumulator<T> load(T x) {
  if constexpr (Same<T, half>::value || Same<T, bfloat16>::value)
    return widen(x);
  else
    return x;
}
template <class T>
DEVICE T store(Accumulator<T> x) {
  if constexpr (Same<T, half>::value || Same<T, bfloat16>::value)
    return Narrowed<T>::from(x);
  else
    return x;
}

// Flushes subnormals to zero, for inputs and results. For float32 a compiler flag does it; PTX has none for doubles.
DEVICE double flushed(double x) {
#ifdef __CUDACC_RTC__
  return (bits_of(x) & 0x7ff0000000000000ull) == 0 ? copysign(0.0, x) : x;
#else
  return x;  // the tests run with subnormals flushed
#endif
}
DEVICE float flushed(float x) { return x; }

// Whether a product or quotient, rounded to 53 bits, is below 2^-1022 and not zero. Its own bits do not tell: a CPU that
// flushes rounds to 53 bits first, a device to multiples of 2^-1074, so that 2^-1022 - 2^-1075 becomes 2^-1022. Sums below
// 2^-1022 are exact. Factors of 2^64 bring the calculation to where numbers have all bits, or to infinity.
DEVICE bool is_product_subnormal(double a, double b) { return fabs(a * 0x1p64 * b) < 0x1p-958; }
DEVICE bool is_quotient_subnormal(double a, double b) {
  const double least = fabs(b) * 0x1p-958;  // subnormal, or not exact, only if the quotient is far above 2^-1022
  return least - fabs(a) * 0x1p64 > least * 0x1p-54;
}

// Sums and products are rounded once each, never contracted. Integers wrap.
template <class A>
DEVICE A plus(A a, A b) {
  return A(a + b);
}
template <>
DEVICE int32_t plus(int32_t a, int32_t b) {
  return int32_t(uint32_t(a) + uint32_t(b));
}
template <>
DEVICE int64_t plus(int64_t a, int64_t b) {
  return int64_t(uint64_t(a) + uint64_t(b));
}
template <>
DEVICE double plus(double a, double b) {
  return flushed(flushed(a) + flushed(b));
}
template <>
DEVICE complex<float> plus(complex<float> a, complex<float> b) {
  return {a.re + b.re, a.im + b.im};
}
template <>
DEVICE complex<double> plus(complex<double> a, complex<double> b) {
  return {plus(a.re, b.re), plus(a.im, b.im)};
}

template <class A>
DEVICE A minus(A a, A b) {
  return a - b;
}
template <>
DEVICE double minus(double a, double b) {
  return flushed(flushed(a) - flushed(b));
}

template <class A>
DEVICE A times(A a, A b) {
  return a * b;
}
template <>
DEVICE double times(double a, double b) {
  const double x = flushed(a), y = flushed(b), product = x * y;
  return is_product_subnormal(x, y) ? copysign(0.0, product) : product;
}

template <class A>
DEVICE A over(A a, A b) {
  return a / b;
}
template <>
DEVICE double over(double a, double b) {
  const double x = flushed(a), y = flushed(b), quotient = x / y;
  return is_quotient_subnormal(x, y) ? copysign(0.0, quotient) : quotient;
}

// x/0 is 0.
template <class A>
DEVICE A over_no_nan(A a, A b) {
  return b == A(0) ? A(0) : over(a, b);
}

// Square roots, correctly rounded.
DEVICE float root(float a) { return sqrtf(a); }
DEVICE double root(double a) { return sqrt(flushed(a)); }

// Converts any float to the accumulator type A, rounded once. Flushes subnormals explicitly, since conversions differ:
// a double underflows float32 if it does so after rounding to 24 bits.
DEVICE float convert_to(float x, float) { return x; }
DEVICE double convert_to(double x, double) { return x; }
DEVICE double convert_to(float x, double) {
  return (bits_of(x) & 0x7f800000u) == 0 ? copysign(0.0, double(x)) : double(x);
}
DEVICE float convert_to(double x, float) {
  const double least = 1.1754943157898259e-38;  // 2^-126 - 2^-151
  return fabs(x) < least ? float(copysign(0.0, x)) : float(x);
}

// Sixteen bytes, copied at once.
struct alignas(16) Block16 {
  uint64_t low, high;
};

template <class A>
DEVICE A zero_of() {
  return A();
}

// A list of 32- or 64-bit ids.
struct Ids {
  const void* data;
  bool wide;
  DEVICE int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

struct IdsOut {
  void* data;
  bool wide;
  DEVICE void put(int64_t i, int64_t value) const {
    if (wide)
      static_cast<int64_t*>(data)[i] = value;
    else
      static_cast<int32_t*>(data)[i] = int32_t(value);
  }
};

DEVICE bool is_below(int64_t value, int64_t bound) { return uint64_t(value) < uint64_t(bound); }

// Fills elements first, first + stride, … with these bits.
template <class T>
DEVICE_CALL void fill_with(void* out, int64_t size, uint64_t bits, int64_t first, int64_t stride) {
  union Element {
    uint64_t bits;
    T value;
  } element = {bits};
  for (int64_t i = first; i < size; i += stride) static_cast<T*>(out)[i] = element.value;
}

// A fault report in host memory; the codes are those of Python's Fault enum, and Python has the messages.
struct Fault {
  int64_t code;
  int64_t position;
  int64_t value;
  int64_t bound;
};

// The state of one call's checks, in device memory, zero at first. Later kernels return at once if `raised` is set.
struct Checks {
  uint32_t raised;    // whether any thread found a fault
  uint32_t finished;  // blocks of the checking kernel that are done
};

DEVICE bool is_raised(const Checks* checks) { return *static_cast<const volatile uint32_t*>(&checks->raised) != 0; }

// Writes a fault report. `alarm` is the only word that the host polls.
DEVICE void report(Fault* fault, int64_t* alarm, int64_t code, int64_t position, int64_t value, int64_t bound) {
  volatile Fault* report = fault;
  report->position = position;
  report->value = value;
  report->bound = bound;
  __threadfence_system();  // the host may read the report because of another call's alarm
  report->code = code;
  __threadfence_system();
  *static_cast<volatile int64_t*>(alarm) = 1;
}

// Called by all threads of all blocks at the end of a kernel. Returns true for one thread of the grid, which sees what all
// other blocks and its own have written. The fences are between the barrier and the count, and after the count: so what
// any thread wrote is ordered before what that thread reads.
DEVICE bool is_last_of_grid(Checks* checks) {
  __syncthreads();
  if (threadIdx.x != 0) return false;
  __threadfence();
  if (atomicAdd(&checks->finished, 1u) + 1 != gridDim.x * gridDim.y) return false;
  __threadfence();
  return true;
}

// Called by all threads of all blocks at the end of a checking kernel. Returns true for one thread of the grid, after
// all others are done, if there was a fault: that thread then finds the first fault in TensorFlow's order sequentially,
// which is slow but only done after a fault.
DEVICE bool must_report(Checks* checks, bool found) {
  if (found) atomicOr(&checks->raised, 1u);
  return is_last_of_grid(checks) && is_raised(checks);
}

// Does the same and resets the state to zero, for calls where no later kernel reads it.
DEVICE bool must_report_and_reset(Checks* checks, bool found) {
  if (found) atomicOr(&checks->raised, 1u);
  if (!is_last_of_grid(checks)) return false;
  const bool raised = is_raised(checks);
  checks->finished = 0;
  checks->raised = 0;
  return raised;
}

}  // namespace rowgrad
