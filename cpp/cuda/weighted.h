// Weighted bags: Σwx, Σwx/Σw, Σwx/√Σw², their gradients, and the gradient row of each id.
#pragma once
#include "row_sums.h"

namespace rowgrad::cuda {

struct Weights {
  Address data;
  DType dtype;
};

// How weighted gradient rows are combined.
struct Weighting {
  std::int64_t reduce;
  Rounding rounding;
  Order order;

  // The mode of sum_sorted; 16-bit floats may be rounded after each addition.
  int mode(DType dtype) const {
    return kScale | (has_divisor(reduce) ? kDivide : 0) | (rounding == Rounding::each_add && is_16bit(dtype) ? kRound : 0);
  }
};

// The ids of a batch of weighted bags, in any order of segments.
struct WeightedIds {
  IdList ids;  // none for gradient rows before equal ids are summed
  IdList segments;
  Weights weights;
  std::int64_t size;
};

// Queues validation and sums of bags. `poisons`: results of a rejected call are marked.
void sum_weighted_bags(const Queue& queue, const Matrix& data, const WeightedIds& batch, std::int64_t bags,
                       std::int64_t reduce, Address out, bool poisons);

// Queues validation and the gradient row of each id, before equal ids are summed. Returns the state of the checks.
Address weighted_gradient_rows(const Queue& queue, const Matrix& grad, const WeightedIds& batch, std::int64_t reduce,
                               Address out);

// Replaces positions of sorted entries by segments and adds weights and divisors; the batch is valid if the checks of
// `entries` pass.
SortedEntries weigh_entries(const Queue& queue, const SortedEntries& entries, const Matrix& grad,
                            const WeightedIds& batch, std::int64_t reduce);

// Queues validation and the dense gradient. Returns the state of the checks.
Address weighted_gradient(const Queue& queue, const Matrix& grad, const WeightedIds& batch, std::int64_t num_rows,
                          const Weighting& how, Address out);

}  // namespace rowgrad::cuda
