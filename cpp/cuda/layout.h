// How the launcher describes arguments in device memory, and how kernels divide rows among threads.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
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

// Memory of one call. Small pieces share blocks, because allocators take locks.
class Pieces {
 public:
  // `allocate` returns a block of this many bytes, aligned to 256.
  explicit Pieces(std::function<Address(std::int64_t)> allocate) : allocate_(std::move(allocate)) {}

  Address operator()(std::int64_t bytes) {
    constexpr std::int64_t kAlignment = 256, kBlock = std::int64_t(256) << 10;
    const std::int64_t size = ceil_div(std::max<std::int64_t>(bytes, 1), kAlignment) * kAlignment;
    if (size > left_) {
      if (size >= kBlock) return allocate_(size);
      next_ = allocate_(kBlock);
      left_ = kBlock;
    }
    const Address found = next_;
    next_ += static_cast<Address>(size);
    left_ -= size;
    return found;
  }

 private:
  std::function<Address(std::int64_t)> allocate_;
  Address next_ = 0;
  std::int64_t left_ = 0;
};

// Where a call queues work, and its memory.
struct Queue {
  Device& device;
  Stream stream;
  Report report;
  std::function<Address(std::int64_t bytes)> allocate;  // memory that stays until the queued work is done

  // Allocates zeros.
  Address zeros(std::int64_t bytes) const {
    const Address memory = allocate(bytes);
    device.zero(stream, memory, bytes);
    return memory;
  }
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
