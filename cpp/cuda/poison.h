// The results of calls that were rejected on the device: for callers whose programs cannot raise, as those of XLA.
#pragma once
#include "layout.h"

namespace rowgrad::cuda {

// The bits that mark an element of a rejected result: NaN, or the lowest integer (unsigned: the highest). The parts of a
// complex number are marked one by one. Booleans have no mark.
std::uint64_t poison_of(DType dtype);

// Queues the kernel that fills the memory if `checks` found a fault.
void poison(Device& device, Stream stream, Address memory, DType dtype, std::int64_t elements, Address checks);

// The name of the unsigned type of this many bytes in CUDA sources, up to 16.
const char* unit_name(std::int64_t bytes);

}  // namespace rowgrad::cuda
