// The interface of every kernel. One object serves one call, so `compute` can reuse a sort or a count of `measure`.
//
//   measure  reads as little of the inputs as possible to find the number of output rows where the data determines it;
//   check    validates the inputs; nothing has been written yet. Another thread may change the caller's arrays at any
//            time, so ids that become addresses are copied before they are validated (IdSnapshot) or bounded where they
//            are read again (bounded_id). SECURITY.md names exceptions;
//   compute  fills the outputs, and fails only if a workspace allocation fails. Outputs hold zeros, unless `fills()` is
//            true: then they may hold anything (`holds_zeros` is false) and every element is written.
#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rowgrad/status.h"
#include "rowgrad/view.h"

namespace rowgrad {

// Row numbers, as int32 where the table's size allows: a reused output stores one per written row.
using RowList = std::variant<std::vector<std::int32_t>, std::vector<std::int64_t>>;

// Returns an empty list for row numbers below `num_rows`.
inline RowList row_list(std::int64_t num_rows) {
  if (num_rows > std::int64_t{1} << 31) return std::vector<std::int64_t>();
  return std::vector<std::int32_t>();
}

class Kernel {
 public:
  std::span<const Array> in;           // in the order of the op's signature
  std::span<const std::int64_t> attr;  // the record's constants, then the call's attributes
  std::int64_t rows = -1;              // set by measure if the data determines the output size
  bool fresh_zeros = true;             // set by the caller before check: zeroed outputs cost nothing (fresh pages)
  bool holds_zeros = true;             // set by the caller before compute: the outputs hold zeros

  virtual ~Kernel() = default;
  virtual Status measure() { return {}; }
  virtual Status check() { return {}; }
  virtual bool fills() const { return false; }
  virtual void compute(std::span<const Array> out) = 0;
  // After compute: the distinct output rows that were written, ascending; the next call clears them in a reused output.
  virtual RowList written() const { return {}; }
  // Whether every output row was written; callers that already have a list of all rows need not call written().
  virtual bool wrote_all() const { return false; }
};

struct KernelParameters;

struct KernelEntry {
  const char* name;
  std::unique_ptr<Kernel> (*make)();
  std::vector<DType> dtypes;  // dtypes of the op's T that it is compiled for

  const KernelParameters* parameters = nullptr;  // the integer attributes it reads

  // Returns what is wrong with a call's attributes, or "". Kernels switch over attributes without a default.
  std::string parameter_error(std::span<const std::int64_t> attr) const;
};

// Thrown if a workspace does not fit into memory; the binding turns it into a Status.
struct OutOfMemory {
  std::int64_t elements;
};

// Physical memory in bytes. No allocation may be larger, and no workspace larger than half of it.
std::int64_t memory_limit();

// Zeroed workspace whose size comes from the caller's inputs. Throws OutOfMemory before allocating if it cannot fit.
template <class T>
std::vector<T> workspace(std::int64_t n) {
  if (n < 0 || n > memory_limit() / 2 / std::int64_t(sizeof(T))) throw OutOfMemory{n};
  try {
    return std::vector<T>(static_cast<std::size_t>(n));
  } catch (const std::bad_alloc&) {
    throw OutOfMemory{n};
  }
}

// Uninitialized memory that the process caches on release, up to a limit: faulting in fresh pages costs more than the
// sort that uses them.
void* allocate_scratch(std::int64_t bytes);
void release_scratch(void* memory, std::int64_t bytes) noexcept;

// Zeros from the system, aligned to cache lines: untouched pages cost nothing. Large pages are used although the first
// row on each clears all of it: still cheaper than many small page faults.
void* allocate_zeros(std::int64_t bytes);
void release_zeros(void* memory, std::int64_t bytes) noexcept;

// Asks the system to back memory of several untouched pages with large pages.
void prefer_large_pages(void* memory, std::int64_t bytes) noexcept;

// Uninitialized workspace, for data that is written before it is read.
template <class T>
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(std::int64_t n) : size_(n) {
    if (n < 0 || n > memory_limit() / 2 / std::int64_t(sizeof(T))) throw OutOfMemory{n};
    try {
      data_ = static_cast<T*>(allocate_scratch(bytes()));
    } catch (const std::bad_alloc&) {
      throw OutOfMemory{n};
    }
  }
  Scratch(Scratch&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Scratch& operator=(Scratch&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Scratch() {
    if (data_) release_scratch(data_, bytes());
  }

  void clear() { std::memset(static_cast<void*>(data_), 0, static_cast<std::size_t>(bytes())); }
  T* data() { return data_; }
  const T* data() const { return data_; }
  std::int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](std::int64_t i) { return data_[i]; }
  const T& operator[](std::int64_t i) const { return data_[i]; }

 private:
  std::int64_t bytes() const { return size_ * std::int64_t(sizeof(T)); }
  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace rowgrad
