// Kernel ops of the catalogue on a device: a whole call from its arguments, the same for every array library.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "layout.h"
#include "rowgrad/status.h"

namespace rowgrad::cuda {

// An argument or result: an array in device memory, or the numbers of a host input.
struct OpArray {
  Address data = 0;
  DType dtype = DType::float32;
  std::span<const std::int64_t> shape;
  std::span<const std::int64_t> numbers;

  std::int64_t rows() const { return shape[0]; }
  std::int64_t columns() const {
    std::int64_t found = 1;
    for (std::size_t d = 1; d < shape.size(); ++d) found *= shape[d];
    return found;
  }
  Matrix matrix() const { return {data, dtype, rows(), columns()}; }
  IdList ids() const { return {data, dtype == DType::int64}; }
};

// One call. Shapes, dtypes and host numbers are validated; integers that the op declares as int64 may have 32 bits.
struct OpCall : Queue {
  std::span<const std::int64_t> constants;  // the kernel's parameters, as on the CPU
  std::span<const OpArray> in, out;
  bool poisons;  // results of a rejected call are marked (poison.h); else they are undefined
};

// A fault that the host finds: the queued work, if any, may have written results.
struct Rejected {
  Status status;
};

using RunOp = void (*)(const OpCall& call);

// Returns the function that queues a kernel of the catalogue; null if only Python can put its calls together.
RunOp find_op(std::string_view kernel);

// The names of all kernels with such a function.
std::span<const std::string_view> op_names();

}  // namespace rowgrad::cuda
