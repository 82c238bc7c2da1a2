// The Python binding of the CUDA launcher (cpp/cuda).
#pragma once
#include <nanobind/nanobind.h>

void bind_cuda(nanobind::module_& m);

// The number of devices that Python still refers to.
int cuda_objects_alive();

// Calls with torch tensors, in one crossing from Python.
void bind_cuda_torch(nanobind::module_& m);
