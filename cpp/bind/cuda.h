// The Python binding of the CUDA launcher (cpp/cuda).
#pragma once
#include <nanobind/nanobind.h>

void bind_cuda(nanobind::module_& m);
