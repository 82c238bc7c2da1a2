// Optimizer steps of tables as XLA calls them. Tables and slots are operands that are also results, in the same memory.
//
// The attribute `call`, besides `op` and `got` (xla_call.h):
//   the index of the kernel in update_kernels(); the number of its attributes, and these, whose rows, seed and step are
//   ignored; the number of tables, and the seed of each; whether the learning rate is an operand; the numbers of the step in
//   the order of ROWGRAD_STEP_NUMBERS, as the bits of doubles.
// The operands: each table and its slots; for each table, the gradient and its row ids, or the ids and segment ids of bags;
// the number of the step, from 1; the learning rate, if it is an operand.
// The position of a fault has the number of the table above bit 40, and `got` a line for each. On CPUs a call has one table:
// XLA runs calls concurrently there.
#pragma once
#include <array>
#include <vector>

#include "../kernels/kernels.h"
#include "rowgrad/enums.h"
#include "rowgrad/view.h"
#include "xla_call.h"

namespace rowgrad::xla {

// The step of one table.
struct TableStep {
  std::vector<Array> state;   // the table, then its slots
  Array grad, ids, segments;  // `segments` has no shape for a step by rows
  std::int64_t seed;

  const Array& table() const { return state[0]; }
};

// A validated call. The memory of arrays is that of the call's device. All tables have one dtype and width.
struct StepCall {
  explicit StepCall(const XLA_FFI_CallFrame* frame);
  StepCall(const StepCall&) = delete;
  StepCall& operator=(const StepCall&) = delete;

  const KernelEntry& kernel;
  std::array<double, 12> numbers;
  std::vector<TableStep> tables;  // at least one
  Array step;                     // an int32
  Array lr;                       // a float32 or float64; without memory if it is not an operand

  // The attributes of the kernel for one table, in step number `number`.
  std::vector<std::int64_t> attributes(const TableStep& table, std::int64_t number) const;
  bool is_from_bags() const { return !tables[0].segments.shape.empty(); }
  DType dtype() const { return tables[0].table().dtype; }
  Rule rule() const { return Rule(common_[0]); }
  bool is_random() const { return common_[3] != 0; }
  std::int64_t reduction() const { return common_[6]; }
  std::int64_t order() const { return common_[9]; }

 private:
  StepCall(const XLA_FFI_CallFrame* frame, Script script);

  std::vector<std::int64_t> common_;
};

// The handler of CPUs, as a pointer to a function of XLA.
void* step_handler();

}  // namespace rowgrad::xla
