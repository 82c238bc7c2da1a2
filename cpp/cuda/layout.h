// How the launcher describes arguments in device memory, and how kernels divide rows among threads.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "device.h"
#include "kernel_structs.h"
#include "rowgrad/dtype.h"
#include "rowgrad/enums.h"

namespace rowgrad::cuda {

// A table, or rows of one.
struct Matrix {
  Address data;
  DType dtype;
  std::int64_t rows, columns;
};

// A list of int32 or int64 ids; `data` is 0 if there is none.
struct IdList {
  Address data = 0;
  bool wide = false;
};

// Where a call's kernels report a fault, and the check state that they share and reset.
struct Report {
  Address fault, alarm, checks;
};

// Arguments that exceed what the kernels can count.
struct TooLarge : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr bool is_16bit(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }
constexpr bool is_float(DType dtype) {
  return is_16bit(dtype) || dtype == DType::float32 || dtype == DType::float64;
}
// The dtype of sums.
constexpr DType accumulator_of(DType dtype) { return is_16bit(dtype) ? DType::float32 : dtype; }
constexpr bool has_divisor(std::int64_t reduce) { return Reduction(reduce) != Reduction::sum; }

// The name of a dtype in CUDA sources.
const char* type_name(DType dtype);

// The bytes of one element.
inline int itemsize(DType dtype) { return static_cast<int>(width_of(dtype)); }

// Queues the writing of words to device memory, whose values a captured graph keeps.
void put_words(Device& device, Stream stream, Address to, const std::vector<std::int64_t>& words);

// The assignment of columns to lanes: each lane has `width` adjacent columns, `lanes` lanes a tile, tiles a row.
struct ColumnShape {
  std::int64_t columns;
  int width, lanes;
  std::int64_t tiles;

  // `memory`: all memory that is read or written by rows, with its element size.
  struct Memory {
    Address data;
    int itemsize;
  };
  ColumnShape(DType dtype, std::int64_t columns, std::initializer_list<Memory> memory);
};

}  // namespace rowgrad::cuda
