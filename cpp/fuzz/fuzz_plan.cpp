// Plans: their contents, the ids restored from them, gradients with a plan, and corrupted plans.
#include "naive_plan.h"

using namespace fuzz;
using test::ids_of;
using test::scalar_of;

namespace {

void expect_plan(const Result& plan, const BagIds& b, std::int64_t num_segments) {
  Numbers64 rows, starts, segments, positions, counts(static_cast<std::size_t>(num_segments));
  for (const auto& [row, at] : b.by_row()) {
    rows.push_back(row);
    starts.push_back(std::int64_t(positions.size()));
    for (std::int64_t i : at) {
      positions.push_back(i);
      segments.push_back(b.segments[i]);
    }
  }
  for (std::int64_t s : b.segments) ++counts[s];
  EXPECT(same_bits(plan.out[0], ids_of(rows, b.wide_indices)));
  EXPECT(same_bits(plan.out[1], ids_of(starts)));
  EXPECT(same_bits(plan.out[2], ids_of(segments, b.wide_segments)));
  EXPECT(same_bits(plan.out[3], ids_of(positions)));
  EXPECT(same_bits(plan.out[4], ids_of(counts)));
}

std::vector<Tensor> with(std::vector<Tensor> before, const std::vector<Tensor>& plan, std::int64_t num_rows) {
  before.insert(before.end(), plan.begin(), plan.end());
  before.push_back(scalar_of(num_rows));
  return before;
}

void one(Input& in) {
  // Tables of more than 2^32 rows are sorted with 64-bit entries.
  const std::int64_t n = in.length(), segments = in.below(60), cols = in.columns();
  const std::int64_t num_rows = in.byte() % 8 == 7 ? std::int64_t(in.bits() & INT64_MAX) : in.below(200);
  const BagIds b(in, n, num_rows, segments, in.flag());
  Result plan = plan_of(b, num_rows, segments);
  if (!accepted(plan, all_in(b.indices, num_rows) && all_in(b.segments, segments))) return;
  expect_plan(plan, b, segments);
  const bool changed = change(in, plan.out);

  const Result ids = test::run("planned_ids", {}, with({}, plan.out, num_rows), [&](std::int64_t) {
    return std::vector<Tensor>{Tensor(b.index_dtype(), {n}), Tensor(b.segment_tensor().dtype, {n})};
  });
  if (!changed && accepted(ids, true)) {
    EXPECT(same_bits(ids.out[0], b.index_tensor()));
    EXPECT(same_bits(ids.out[1], b.segment_tensor()));
  }

  const DType dtype = in.pick(Floats::list());
  const auto kind = Reduction(in.below(3));
  const auto order = Order(in.below(2));
  const auto rounding = Rounding(in.below(2));
  const std::int64_t variant = in.below(3), found = plan.out[0].size(), grad_rows = segments + in.below(3) - 1;
  if (grad_rows < 0) return;
  const Tensor grad = in.values(dtype, {grad_rows, cols}), weights = in.values(in.pick(Floats::list()), {n});
  const auto outputs = [&](std::int64_t) {
    const std::int64_t rows = variant == 1 ? found : num_rows;
    bound_result(rows, cols);
    std::vector<Tensor> out{Tensor(dtype, {rows, cols})};
    if (variant == 1) out.push_back(Tensor(b.index_dtype(), {rows}));
    return out;
  };
  const Result r = variant == 2 ? test::run("planned_weighted_grad",
                                            {std::int64_t(kind), std::int64_t(rounding), std::int64_t(order)},
                                            with({grad, weights}, plan.out, num_rows), outputs)
                                : test::run("planned_segment_grad", {std::int64_t(kind), variant, std::int64_t(order)},
                                            with({grad}, plan.out, num_rows), outputs);
  if (changed || !accepted(r, grad_rows >= segments)) return;  // a corrupted plan is rejected or returns any gradient
  const NaiveGradient expected(grad, b, kind, order, variant == 2 ? &weights : nullptr, rounding);
  EXPECT(same_numbers(r.out[0], variant == 1 ? expected.values : expected.table(num_rows)));
  if (variant == 1) EXPECT(same_bits(r.out[1], ids_of(expected.rows, b.wide_indices)));
}

}  // namespace

FUZZ_TARGET(one)
