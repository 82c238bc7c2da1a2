// The lists of kernels by name.
#pragma once
#include <string>
#include <vector>

#include "rowgrad/kernel.h"

namespace rowgrad {

// Kernels of the catalogue's ops.
const std::vector<KernelEntry>& kernels();
// Kernels that change arrays in place: optimizer steps.
const std::vector<KernelEntry>& update_kernels();

}  // namespace rowgrad
