// The Python binding of the CUDA launcher (cpp/cuda).
#pragma once
#include <nanobind/nanobind.h>

#include "../cuda/device.h"

void bind_cuda(nanobind::module_& m);

// The number of devices that Python still refers to.
int cuda_objects_alive();

// Calls with torch tensors, in one crossing from Python.
void bind_cuda_torch(nanobind::module_& m);

// XLA's custom calls on CUDA devices.
void bind_xla_cuda(nanobind::module_& m);

namespace rowgrad::cuda {

// A loader that calls `load(kernel, variant)`, which returns machine code, the name of its entry and the block size.
Loader python_loader(nanobind::object load);

// The installed driver for None, or one of these functions by name.
Driver python_driver(nanobind::object functions);

}  // namespace rowgrad::cuda
