// The XLA custom-call handler of all kernels.
#pragma once
#include <nanobind/nanobind.h>

namespace rowgrad {

// Adds `xla_handler()`, the handler as a capsule; `set_xla_messages(f)`, where f(op, fault, position, value, bound, got)
// returns the error message of a fault; and `set_xla_checker(f)`, where f(script, argument shapes, result shapes)
// returns what is wrong with a call, or "".
void bind_xla(nanobind::module_& m);

}  // namespace rowgrad
