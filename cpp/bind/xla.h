// XLA's way to the kernels: one handler for all of them.
#pragma once
#include <nanobind/nanobind.h>

namespace rowgrad {

// Adds `xla_handler()`, the handler as a capsule; `set_xla_words(f)`: f(op, fault, position, value, bound, got) puts
// what a kernel found into words, and is called for faults only; and `set_xla_checker(f)`: f(script, shapes of the
// arguments, shapes of the results) returns what is wrong with a call, or "".
void bind_xla(nanobind::module_& m);

}  // namespace rowgrad
