// Optimizer steps of tables as XLA calls them. Table and slots are operands that are also results, in the same memory.
//
// The attribute `call`, besides `op` and `got` (xla_call.h):
//   the index of the kernel in update_kernels(); the number of its attributes, and these, whose step is ignored;
//   whether the learning rate is an operand; the numbers of the step in the order of ROWGRAD_STEP_NUMBERS, as the bits of
//   doubles.
// The operands: the table and its slots; the gradient; its row ids, or the ids and segment ids of bags; the number of the
// step, from 1; the learning rate, if it is an operand.
#pragma once
#include <array>
#include <vector>

#include "../kernels/kernels.h"
#include "rowgrad/enums.h"
#include "rowgrad/view.h"
#include "xla_call.h"

namespace rowgrad::xla {

// A validated call. The memory of arrays is that of the call's device.
struct StepCall {
  explicit StepCall(const XLA_FFI_CallFrame* frame);
  StepCall(const StepCall&) = delete;
  StepCall& operator=(const StepCall&) = delete;

  const KernelEntry& kernel;
  std::vector<std::int64_t> attr;
  std::array<double, 12> numbers;
  std::vector<Array> state;   // the table, then its slots
  Array grad, ids, segments;  // `segments` has no shape for a step by rows
  Array step;                 // an int32
  Array lr;                   // a float32 or float64; without memory if it is not an operand

  bool is_from_bags() const { return !segments.shape.empty(); }
  Rule rule() const { return Rule(attr[0]); }
  bool is_random() const { return attr[3] != 0; }
  std::int64_t seed() const { return attr[4]; }
  std::int64_t reduction() const { return attr[6]; }
  std::int64_t order() const { return attr[9]; }

 private:
  StepCall(const XLA_FFI_CallFrame* frame, Script script);
};

// The handler of CPUs, as a pointer to a function of XLA.
void* step_handler();

}  // namespace rowgrad::xla
