// The interface of every kernel.
//
//   measure  reads the inputs just enough to know how many rows the outputs of unknown size have;
//   check    reads everything a fault could hide in; nothing has been written yet;
//            another thread may change the caller's arrays at any time, so ids that become addresses are copied before they
//            are validated (IdSnapshot) or bounded where they are read again (bounded_id). SECURITY.md names exceptions;
//   compute  fills outputs that hold zeros; where `fills()` says so they may hold anything (`holds_zeros` is false then)
//            and every element is written;
//            nothing but want of workspace can stop it.
//
// One object serves one call, so what `measure` learns (a sort, a count) is there for `compute`.
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

// Rows of a table, in as few bytes as its size allows: what a reused output remembers costs memory per id.
using RowList = std::variant<std::vector<std::int32_t>, std::vector<std::int64_t>>;

// An empty list of rows below `num_rows`.
inline RowList row_list(std::int64_t num_rows) {
  if (num_rows > std::int64_t{1} << 31) return std::vector<std::int64_t>();
  return std::vector<std::int32_t>();
}

class Kernel {
 public:
  std::span<const Array> in;           // in the order of the op's signature
  std::span<const std::int64_t> attr;  // the record's constants, then the call's attributes
  std::int64_t rows = -1;              // set by measure when outputs are sized by the data
  bool fresh_zeros = true;             // set by the caller before check: whether outputs can hold zeros for nothing
  bool holds_zeros = true;             // set by the caller before compute: what the outputs hold

  virtual ~Kernel() = default;
  virtual Status measure() { return {}; }
  virtual Status check() { return {}; }
  virtual bool fills() const { return false; }
  virtual void compute(std::span<const Array> out) = 0;
  // After compute: the distinct rows of the output that were written, ascending; what a reused output clears next time.
  virtual RowList written() const { return {}; }
  // Whether those are all rows there are: a list that says so already need not be made again.
  virtual bool wrote_all() const { return false; }
};

struct KernelParameters;

struct KernelEntry {
  const char* name;
  std::unique_ptr<Kernel> (*make)();
  std::vector<DType> dtypes;  // those of the op's T it was compiled for

  const KernelParameters* parameters = nullptr;  // the numbers it reads

  // What is wrong with the numbers of a call; empty where they are what the kernel reads. Kernels switch over them.
  std::string parameter_error(std::span<const std::int64_t> attr) const;
};

// Raised when a workspace would not fit the machine's memory; the binding turns it into a Status.
struct OutOfMemory {
  std::int64_t elements;
};

// Bytes of physical memory: nothing larger is ever allocated, and workspace is at most half.
std::int64_t memory_limit();

// Workspace whose size comes from the caller's numbers. Zeroed; a size beyond the machine's memory is an error
// before it is touched.
template <class T>
std::vector<T> workspace(std::int64_t n) {
  if (n < 0 || n > memory_limit() / 2 / std::int64_t(sizeof(T))) throw OutOfMemory{n};
  try {
    return std::vector<T>(static_cast<std::size_t>(n));
  } catch (const std::bad_alloc&) {
    throw OutOfMemory{n};
  }
}

// Raw memory that stays with the process when it is given back, up to some megabytes: fresh pages cost more than the
// sorting done in them.
void* take_scratch(std::int64_t bytes);
void give_scratch(void* memory, std::int64_t bytes) noexcept;

// Zeros from the system: untouched pages cost nothing, and they begin on a line of the cache. A large page has to be
// cleared whole for its first row, which is still the cheaper way to come by the memory of a table.
void* take_zeros(std::int64_t bytes);
void give_zeros(void* memory, std::int64_t bytes) noexcept;

// Tells the system to use large pages for memory of several pages that has not been touched yet.
void prefer_large_pages(void* memory, std::int64_t bytes) noexcept;

// Workspace without zeros, for what is written before it is read.
template <class T>
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(std::int64_t n) : size_(n) {
    if (n < 0 || n > memory_limit() / 2 / std::int64_t(sizeof(T))) throw OutOfMemory{n};
    try {
      data_ = static_cast<T*>(take_scratch(bytes()));
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
    if (data_) give_scratch(data_, bytes());
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
