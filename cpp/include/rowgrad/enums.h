// Enums and optimizer rules, written by tools/gen_headers.py from src/rowgrad/_catalog. Do not edit.
#pragma once
#include <cstdint>
#include <initializer_list>

namespace rowgrad {

// How the rows of a bag are combined.
enum class Reduction : std::int64_t { sum = 0, mean = 1, sqrtn = 2 };

// The order in which a gradient's contributions to one row are added; docs/reference/orders.md defines both.
enum class Order : std::int64_t { sequential = 0, blocked = 1 };

// When sums of 16-bit floats are rounded: after every addition, as TensorFlow does, or once at the end.
enum class Rounding : std::int64_t { each_add = 0, at_end = 1 };

// What a kernel found wrong with its data.
enum class Fault : std::uint8_t {
  none = 0,
  out_of_memory = 1,
  last_segment_too_big = 2,
  segment_negative = 3,
  num_segments_too_small = 4,
  num_segments_too_big = 5,
  last_segment_overflows = 6,
  segments_not_increasing = 7,
  segment_not_in_output = 8,
  index_not_in_data = 9,
  index_not_in_params = 10,
  segment_count = 11,
  segment_not_in_grad = 12,
  index_not_in_output = 13,
  row_not_in_shape = 14,
  reverse_index_not_in_grad = 15,
  slice_left_over = 16,
  id_not_listed = 17,
  plan_segments_not_in_grad = 18,
  plan_rows = 19,
  plan_starts = 20,
  plan_segments = 21,
  plan_positions = 22,
  plan_counts = 23,
  offsets_begin = 24,
  offsets_fall = 25,
  offsets_end = 26,
  feature_negative = 27,
  feature_too_far = 28,
  id_not_in_feature = 29,
  plan_num_rows = 30,
  row_ids = 31,
  rows_exceed_size = 32,
  number_unfit = 33,
};

#define ROWGRAD_FAULTS(X) \
  X(none) \
  X(out_of_memory) \
  X(last_segment_too_big) \
  X(segment_negative) \
  X(num_segments_too_small) \
  X(num_segments_too_big) \
  X(last_segment_overflows) \
  X(segments_not_increasing) \
  X(segment_not_in_output) \
  X(index_not_in_data) \
  X(index_not_in_params) \
  X(segment_count) \
  X(segment_not_in_grad) \
  X(index_not_in_output) \
  X(row_not_in_shape) \
  X(reverse_index_not_in_grad) \
  X(slice_left_over) \
  X(id_not_listed) \
  X(plan_segments_not_in_grad) \
  X(plan_rows) \
  X(plan_starts) \
  X(plan_segments) \
  X(plan_positions) \
  X(plan_counts) \
  X(offsets_begin) \
  X(offsets_fall) \
  X(offsets_end) \
  X(feature_negative) \
  X(feature_too_far) \
  X(id_not_in_feature) \
  X(plan_num_rows) \
  X(row_ids) \
  X(rows_exceed_size) \
  X(number_unfit)

// What an optimizer does to a row (src/rowgrad/_catalog/rules.py).
enum class Rule : std::int64_t {
  sgd = 0,
  adagrad = 1,
  row_wise_adagrad = 2,
  adam = 3,
  adamw = 4,
  momentum = 5,
  lion = 6,
  ftrl = 7,
};

#define ROWGRAD_RULES(X) \
  X(sgd) \
  X(adagrad) \
  X(row_wise_adagrad) \
  X(adam) \
  X(adamw) \
  X(momentum) \
  X(lion) \
  X(ftrl)

constexpr int kMostSlots = 2;

// Functions are `static`, as in dtype.h: this header is compiled for newer processors as well.

// How many slots a rule has.
static constexpr int slots_of(Rule rule) {
  switch (rule) {
    case Rule::sgd:
      return 0;
    case Rule::adagrad:
      return 1;
    case Rule::row_wise_adagrad:
      return 1;
    case Rule::adam:
      return 2;
    case Rule::adamw:
      return 2;
    case Rule::momentum:
      return 1;
    case Rule::lion:
      return 1;
    case Rule::ftrl:
      return 2;
  }
  __builtin_unreachable();  // kernels reject other numbers
}

// Whether its slot is one number for a whole row.
static constexpr bool is_per_row(Rule rule) {
  switch (rule) {
    case Rule::sgd:
      return false;
    case Rule::adagrad:
      return false;
    case Rule::row_wise_adagrad:
      return true;
    case Rule::adam:
      return false;
    case Rule::adamw:
      return false;
    case Rule::momentum:
      return false;
    case Rule::lion:
      return false;
    case Rule::ftrl:
      return false;
  }
  __builtin_unreachable();  // kernels reject other numbers
}

// Whether moments of rows without a gradient fade.
static constexpr bool fades(Rule rule) {
  switch (rule) {
    case Rule::sgd:
      return false;
    case Rule::adagrad:
      return false;
    case Rule::row_wise_adagrad:
      return false;
    case Rule::adam:
      return true;
    case Rule::adamw:
      return true;
    case Rule::momentum:
      return false;
    case Rule::lion:
      return false;
    case Rule::ftrl:
      return false;
  }
  __builtin_unreachable();  // kernels reject other numbers
}

// Whether weight_decay is a part of the gradient.
static constexpr bool decays_in_gradient(Rule rule) {
  switch (rule) {
    case Rule::sgd:
      return true;
    case Rule::adagrad:
      return true;
    case Rule::row_wise_adagrad:
      return true;
    case Rule::adam:
      return true;
    case Rule::adamw:
      return false;
    case Rule::momentum:
      return true;
    case Rule::lion:
      return false;
    case Rule::ftrl:
      return false;
  }
  __builtin_unreachable();  // kernels reject other numbers
}

// Whether its learning rate must be above 0.
static constexpr bool needs_positive_lr(Rule rule) {
  switch (rule) {
    case Rule::sgd:
      return false;
    case Rule::adagrad:
      return false;
    case Rule::row_wise_adagrad:
      return false;
    case Rule::adam:
      return false;
    case Rule::adamw:
      return false;
    case Rule::momentum:
      return false;
    case Rule::lion:
      return false;
    case Rule::ftrl:
      return true;
  }
  __builtin_unreachable();  // kernels reject other numbers
}

// Its class in CUDA sources.
static constexpr const char* class_of(Rule rule) {
  switch (rule) {
    case Rule::sgd:
      return "SGD";
    case Rule::adagrad:
      return "Adagrad";
    case Rule::row_wise_adagrad:
      return "RowWiseAdagrad";
    case Rule::adam:
      return "Adam";
    case Rule::adamw:
      return "AdamW";
    case Rule::momentum:
      return "Momentum";
    case Rule::lion:
      return "Lion";
    case Rule::ftrl:
      return "Ftrl";
  }
  __builtin_unreachable();  // kernels reject other numbers
}

// The numbers of a step, in the order in which kernels read them.
#define ROWGRAD_STEP_NUMBERS(X) \
  X(lr) \
  X(eps) \
  X(weight_decay) \
  X(beta1) \
  X(beta2) \
  X(rate) \
  X(momentum) \
  X(nesterov) \
  X(lr_power) \
  X(l1) \
  X(l2) \
  X(l2_shrinkage)

}  // namespace rowgrad
