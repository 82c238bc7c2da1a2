// Kernel parameters, written by tools/gen_headers.py from src/rowgrad/_catalog. Do not edit.
#pragma once
#include <cstdint>
#include <initializer_list>

namespace rowgrad {

// The numbers each kernel reads besides its arrays. A parameter takes the values 0, …, count - 1; 0: any.
struct Parameter {
  const char* name;
  std::int64_t count;
};
struct KernelParameters {
  const char* kernel;
  std::initializer_list<Parameter> list;
};
inline const KernelParameters kKernelParameters[] = {
    {"sparse_segment", {{"reduction", 3}, {"sized", 2}}},
    {"sparse_segment_grad", {{"reduction", 3}, {"unique", 2}, {"order", 2}}},
    {"sparse_segment_grad_padded", {{"reduction", 3}, {"unique", 2}, {"order", 2}}},
    {"sparse_segment_grad_grad", {{"reduction", 3}}},
    {"fill_empty_rows", {{"ragged", 2}}},
    {"fill_empty_rows_grad", {}},
    {"fill_empty_rows_grad_grad", {}},
    {"sparse_slice", {}},
    {"sparse_slice_grad", {}},
    {"sparse_slice_grad_grad", {}},
    {"sparse_add", {}},
    {"sparse_add_grad", {}},
    {"sparse_add_grad_grad", {}},
    {"weighted_segment", {{"reduction", 3}, {"sized", 2}}},
    {"weighted_segment_grad", {{"reduction", 3}, {"accumulate", 2}, {"order", 2}}},
    {"weighted_segment_grad_rows", {{"reduction", 3}}},
    {"row_plan", {}},
    {"planned_ids", {}},
    {"planned_segment_grad", {{"reduction", 3}, {"unique", 2}, {"order", 2}}},
    {"planned_weighted_grad", {{"reduction", 3}, {"accumulate", 2}, {"order", 2}}},
    {"segment_sum", {}},
    {"gather_rows", {}},
    {"scatter_rows", {}},
    {"row_positions", {}},
    {"sparse_segment_dot", {}},
    {"row_dot", {}},
    {"segment_ids_from_offsets", {{"include_last_offset", 2}}},
    {"stack_bags", {{"positions", 2}}},
    {"sqrt", {}},
    {"apply_rows", {{"rule", 8}, {"rows", 0}, {"lazy", 2}, {"stochastic_rounding", 2}, {"seed", 0}, {"step", 0}}},
    {"apply_all", {{"rule", 8}, {"rows", 0}, {"lazy", 2}, {"stochastic_rounding", 2}, {"seed", 0}, {"step", 0}}},
    {"apply_bags", {{"rule", 8}, {"rows", 0}, {"lazy", 2}, {"stochastic_rounding", 2}, {"seed", 0}, {"step", 0}, {"reduction", 3}, {"weighted", 2}, {"accumulate", 2}, {"order", 2}}},
    {"apply_planned", {{"rule", 8}, {"rows", 0}, {"lazy", 2}, {"stochastic_rounding", 2}, {"seed", 0}, {"step", 0}, {"reduction", 3}, {"weighted", 2}, {"accumulate", 2}, {"order", 2}}},
};

}  // namespace rowgrad
