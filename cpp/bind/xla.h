// XLA's way to the kernels: one handler for all of them.
#pragma once
#include <nanobind/nanobind.h>

namespace rowgrad {

// Adds `xla_handler()`, the handler as a capsule, and `set_xla_words(f)`: f(op, fault, position, value, bound, got) puts
// what a kernel found into words; it is called for faults only.
void bind_xla(nanobind::module_& m);

}  // namespace rowgrad
