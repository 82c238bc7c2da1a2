// Dispatch from run-time dtype codes to template arguments.
#pragma once
#include <type_traits>
#include <utility>
#include <vector>

#include "rowgrad/dtype.h"

namespace rowgrad {

template <DType... codes>
struct DTypes {
  static std::vector<DType> list() { return {codes...}; }
};

template <DType code>
struct TypeOf;
#define ROWGRAD_TYPE_OF(name, cpp)  \
  template <>                       \
  struct TypeOf<DType::name> {      \
    using type = cpp;               \
  };
ROWGRAD_DTYPES(ROWGRAD_TYPE_OF)
#undef ROWGRAD_TYPE_OF

using Floats = DTypes<DType::float16, DType::bfloat16, DType::float32, DType::float64>;
using Reals = DTypes<DType::float16, DType::bfloat16, DType::float32, DType::float64, DType::int8, DType::int16,
                     DType::int32, DType::int64, DType::uint8, DType::uint16, DType::uint32, DType::uint64>;
using Numbers = DTypes<DType::float16, DType::bfloat16, DType::float32, DType::float64, DType::int8, DType::int16,
                       DType::int32, DType::int64, DType::uint8, DType::uint16, DType::uint32, DType::uint64,
                       DType::complex64, DType::complex128>;
using Indices = DTypes<DType::int32, DType::int64>;

// Calls fn(std::type_identity<T>{}) for the C++ type of `dtype`. Callers reject codes outside the list: Python's checks
// are generated from the same lists, and a test compares the two.
template <DType... codes, class Fn>
void visit(DTypes<codes...>, DType dtype, Fn&& fn) {
  (void)((dtype == codes && (fn(std::type_identity<typename TypeOf<codes>::type>{}), true)) || ...);
}

// For kernels that only copy values: dispatch by element width. NumPy aligns complex64 to 4 bytes only.
struct Bytes8 {
  std::uint32_t low, high;
};
struct Bytes16 {
  std::uint64_t low, high;
};

template <class Fn>
void visit_width(DType dtype, Fn&& fn) {
  switch (width_of(dtype)) {
    case 1:
      return fn(std::type_identity<std::uint8_t>{});
    case 2:
      return fn(std::type_identity<std::uint16_t>{});
    case 4:
      return fn(std::type_identity<std::uint32_t>{});
    case 8:
      return fn(std::type_identity<Bytes8>{});
    default:  // 16
      return fn(std::type_identity<Bytes16>{});
  }
}

}  // namespace rowgrad
