// A plan from its kernel, optionally corrupted by the input.
#pragma once
#include "naive_bags.h"

namespace fuzz {

// Runs row_plan on these ids; returns no outputs if they are rejected. num_rows and num_segments must not be negative.
inline Result plan_of(const BagIds& b, std::int64_t num_rows, std::int64_t num_segments) {
  return test::run("row_plan", {},
                   {b.index_tensor(), b.segment_tensor(), test::scalar_of(num_rows), test::scalar_of(num_segments)},
                   [&](std::int64_t rows) {
                     bound_result(num_segments);
                     return std::vector<Tensor>{Tensor(b.index_dtype(), {rows}), Tensor(DType::int64, {rows}),
                                                Tensor(b.segment_tensor().dtype, {b.size()}),
                                                Tensor(DType::int64, {b.size()}), Tensor(DType::int64, {num_segments})};
                   });
}

// Corrupts numbers of some arrays; returns whether any was changed.
inline bool change(Input& in, std::vector<Tensor>& plan) {
  bool changed = false;
  for (std::int64_t times = in.below(3); times > 0; --times) {
    Tensor& t = plan[static_cast<std::size_t>(in.below(5))];
    if (t.size() == 0) continue;
    const std::int64_t at = in.below(t.size());
    const std::int64_t to = in.number(t.size());
    changed = true;
    if (t.dtype == DType::int64)
      t.as<std::int64_t>()[at] = to;
    else
      t.as<std::int32_t>()[at] = std::int32_t(std::uint32_t(std::uint64_t(to)));
  }
  return changed;
}

}  // namespace fuzz
