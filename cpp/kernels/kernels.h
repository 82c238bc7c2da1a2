// Every kernel by name, and one call of one of them.
#pragma once
#include <string>
#include <vector>

#include "rowgrad/kernel.h"

namespace rowgrad {

// The kernels of the catalogue's ops.
const std::vector<KernelEntry>& kernels();
// Those that change arrays in place: optimizers' steps.
const std::vector<KernelEntry>& update_kernels();

}  // namespace rowgrad
