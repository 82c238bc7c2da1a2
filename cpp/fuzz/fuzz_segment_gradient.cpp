// Gradients of bags: dense, row-sparse, padded and weighted; sorted and narrow algorithms.
#include "naive_bags.h"

using namespace fuzz;
using test::scalar_of;

namespace {

// A table, or unique rows and their ids.
test::Outputs outputs_of(const Tensor& grad, const BagIds& b, bool unique, std::int64_t out_rows) {
  return [&grad, &b, unique, out_rows](std::int64_t measured) {
    const std::int64_t rows = unique ? measured : out_rows;
    bound_result(rows, grad.cols());
    std::vector<Tensor> out{Tensor(grad.dtype, {rows, grad.cols()})};
    if (unique) out.push_back(Tensor(b.index_dtype(), {rows}));
    return out;
  };
}

void plain(Input& in) {
  const DType dtype = in.pick(Floats::list());
  const std::int64_t variant = in.below(3), grad_rows = in.below(50), cols = in.columns(), n = in.length();
  const bool unique = variant > 0, padded = variant > 1;
  const auto kind = Reduction(in.below(3));
  const auto order = Order(in.below(2));
  // Unique rows may belong to any table size that output_dim0 can hold.
  std::int64_t out_rows = in.below(200);
  if (unique && in.flag()) out_rows = in.bits() & INT32_MAX;
  const BagIds b(in, n, out_rows, grad_rows, in.flag());
  const Tensor grad = in.values(dtype, {grad_rows, cols});
  std::vector<Tensor> inputs{grad, b.index_tensor(), b.segment_tensor(), scalar_of(out_rows, false)};
  const std::int64_t size = in.below(700), fill = b.wide_indices ? in.number(out_rows) : in.below(9000);
  if (padded) {
    inputs.push_back(scalar_of(size));
    inputs.push_back(scalar_of(fill));
  }
  const Result r = test::run(padded ? "sparse_segment_grad_padded" : "sparse_segment_grad",
                             {std::int64_t(kind), unique, std::int64_t(order)}, inputs,
                             outputs_of(grad, b, unique, out_rows));
  const bool empty = n == 0 || out_rows == 0;
  bool valid = gradient_accepts(b, out_rows, grad_rows);
  const std::int64_t unique_rows = empty || !valid ? 0 : std::int64_t(b.by_row().size());
  valid &= !padded || unique_rows <= size;
  if (!accepted(r, valid)) return;
  if (empty) {
    const std::int64_t rows = padded ? size : unique ? 0 : out_rows;
    EXPECT(same_bits(r.out[0], Tensor(dtype, {rows, cols})));
    if (padded) EXPECT(same_bits(r.out[1], test::ids_of(Numbers64(static_cast<std::size_t>(size), fill), b.wide_indices)));
    return;
  }
  NaiveGradient expected(grad, b, kind, order, nullptr, Rounding{});
  if (!unique) {
    EXPECT(same_numbers(r.out[0], expected.table(out_rows)));
    return;
  }
  if (padded) {
    Tensor more(dtype, {size, cols});
    more.copy(0, expected.values, 0, unique_rows * cols);
    expected.values = more;
    expected.rows.resize(static_cast<std::size_t>(size), fill);
  }
  EXPECT(same_numbers(r.out[0], expected.values));
  EXPECT(same_bits(r.out[1], test::ids_of(expected.rows, b.wide_indices)));
}

void weighted(Input& in) {
  const DType dtype = in.pick(Floats::list());
  const std::int64_t out_rows = in.below(60), grad_rows = in.below(50), cols = in.columns(), n = in.length();
  const auto kind = Reduction(in.below(3));
  const auto order = Order(in.below(2));
  const auto rounding = Rounding(in.below(2));
  const BagIds b(in, n, out_rows, grad_rows, in.flag());
  const Tensor grad = in.values(dtype, {grad_rows, cols}), weights = in.values(in.pick(Floats::list()), {n});
  const Result r =
      test::run("weighted_segment_grad", {std::int64_t(kind), std::int64_t(rounding), std::int64_t(order)},
                {grad, b.index_tensor(), b.segment_tensor(), weights, scalar_of(out_rows, false)},
                outputs_of(grad, b, false, out_rows));
  if (!accepted(r, gradient_accepts(b, out_rows, grad_rows))) return;
  if (n == 0 || out_rows == 0)
    EXPECT(same_bits(r.out[0], Tensor(dtype, {out_rows, cols})));
  else
    EXPECT(same_numbers(r.out[0], NaiveGradient(grad, b, kind, order, &weights, rounding).table(out_rows)));
}

void weighted_rows(Input& in) {
  const DType dtype = in.pick(Floats::list());
  const std::int64_t grad_rows = in.below(50), cols = in.columns(), n = in.length();
  const auto kind = Reduction(in.below(3));
  const BagIds b(in, n, 1, grad_rows, in.flag());
  const Tensor grad = in.values(dtype, {grad_rows, cols}), weights = in.values(in.pick(Floats::list()), {n});
  const Result r = test::run("weighted_segment_grad_rows", {std::int64_t(kind)}, {grad, b.segment_tensor(), weights},
                             test::table_of(dtype, n, cols));
  if (!accepted(r, all_in(b.segments, grad_rows))) return;
  Tensor expected(dtype, {n, cols});
  visit(Floats{}, dtype, [&]<class T>(std::type_identity<T>) {
    const NaiveWeights<Accumulator<T>> w(weights, b.segments, grad_rows, kind);
    for (std::int64_t i = 0; i < n; ++i)
      naive::weighted_row(expected.as<T>() + i * cols, grad.as<T>() + b.segments[i] * cols, cols, w.values[i],
                          w.total_or_null() ? &w.totals[b.segments[i]] : nullptr);
  });
  EXPECT(same_numbers(r.out[0], expected));
}

void one(Input& in) {
  static constexpr void (*calls[])(Input&) = {plain, plain, weighted, weighted_rows};
  calls[in.below(std::int64_t(std::size(calls)))](in);
}

}  // namespace

FUZZ_TARGET(one)
