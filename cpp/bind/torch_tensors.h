// Reads the memory, shape and dtype of torch tensors through DLPack's table of C functions.
//
// torch provides the table from version 2.10 on (`torch.Tensor.__dlpack_c_exchange_api__`). One call per tensor replaces
// six attributes read from Python; with 26 tables and their slots that is most of a small training step.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "rowgrad/dtype.h"

namespace rowgrad {

// A tensor that a kernel may access: aligned, and within its storage. Valid while the tensor is unchanged.
struct TensorView {
  void* data;
  DType dtype;
  int ndim;
  const std::int64_t* shape;
  const std::int64_t* strides;

  std::int64_t size() const {
    std::int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= shape[d];
    return n;
  }
  bool is_contiguous() const {
    std::int64_t step = 1;
    for (int d = ndim - 1; d >= 0; --d) {
      if (shape[d] > 1 && strides[d] != step && size() > 0) return false;
      step *= shape[d];
    }
    return true;
  }
};

// Where tensors have to be: DLPack's number of a kind of device, and the device's index.
struct Place {
  std::int32_t kind = 1;  // the CPU
  std::int32_t index = 0;
  static constexpr std::int32_t kCuda = 2;
};

// Returns how to access a tensor; nothing if it is of another class than torch's own and the registered ones, on another
// device, of another dtype than floats and int32 or int64, negated lazily, unaligned, or larger than its storage.
std::optional<TensorView> read_tensor(PyObject* tensor, Place place = {});

// Returns the address of a strided tensor's first element, of any dtype and device; 0 if it has none.
std::uintptr_t address_of_tensor(PyObject* tensor);

// Allocates a matrix on the CPU with the dtype of `like`, by rowgrad's `new_tensor` if it is large. The elements are zero
// or uninitialized. Throws torch's error if there is not enough memory.
nanobind::object new_matrix(nanobind::handle like, DType dtype, std::int64_t rows, std::int64_t columns, bool zeros);

// Returns torch's current stream of a CUDA device; nothing if this version of torch has no function for it.
std::optional<void*> current_stream(std::int32_t device);

void bind_torch_tensors(nanobind::module_& m);

}  // namespace rowgrad
