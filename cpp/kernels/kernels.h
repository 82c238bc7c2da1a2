// Every kernel by name, and one call of one of them.
#pragma once
#include <string>
#include <vector>

#include "rowgrad/kernel.h"

namespace rowgrad {

const std::vector<KernelEntry>& kernels();

}  // namespace rowgrad
