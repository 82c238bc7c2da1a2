// Weighted bags and their gradients with respect to data, for every dtype of data and weights.
#include "rowgrad/weighted_segment.h"

#include "call.h"
#include "naive.h"

using namespace test;

namespace {

constexpr Reduction kKinds[] = {Reduction::sum, Reduction::mean, Reduction::sqrtn};

struct Batch {
  std::int64_t table_rows, segments;  // exclusive upper bounds of the ids
  Numbers64 indices, segment_ids;
  Tensor weights;
  bool wide_indices, wide_segments;

  Batch(Rng& rng, DType weight_dtype, std::int64_t n, std::int64_t table_rows_, std::int64_t segments_, bool sorted)
      : table_rows(table_rows_),
        segments(segments_),
        indices(random_ids(rng, n, table_rows)),
        segment_ids(sorted ? sorted_ids(rng, n, segments) : random_ids(rng, n, segments)),
        weights(random_tensor(rng, weight_dtype, {n})),
        wide_indices(rng.chance(2)),
        wide_segments(rng.chance(2)) {
    const Tensor zero(weight_dtype, {});
    for (std::int64_t i = 0; i < n; ++i)
      if (segment_ids[i] % 4 == 1 || rng.chance(8)) weights.copy(i, zero, 0);  // so that some divisors are 0
  }

  Tensor index_tensor() const { return ids_of(indices, wide_indices); }
  Tensor segment_tensor() const { return ids_of(segment_ids, wide_segments); }
};

Result forward(const Tensor& data, const Batch& b, Reduction kind) {
  return run_same("weighted_segment", {std::int64_t(kind), 0},
                  {data, b.index_tensor(), b.segment_tensor(), b.weights}, table_of(data.dtype, -1, data.cols()));
}

Result transpose(const Tensor& data, const Batch& b, Reduction kind) {
  return run_same("weighted_segment", {std::int64_t(kind), 1},
                  {data, b.index_tensor(), b.segment_tensor(), b.weights, scalar_of(b.segments)},
                  table_of(data.dtype, b.segments, data.cols()));
}

Result gradient(const Tensor& grad, const Batch& b, Reduction kind, Rounding rounding, std::int64_t rows,
                Order order = Order::sequential) {
  return run_same("weighted_segment_grad", {std::int64_t(kind), std::int64_t(rounding), std::int64_t(order)},
                  {grad, b.index_tensor(), b.segment_tensor(), b.weights, scalar_of(rows, false)},
                  table_of(grad.dtype, rows, grad.cols()));
}

Result gradient_rows(const Tensor& grad, const Batch& b, Reduction kind) {
  return run_same("weighted_segment_grad_rows", {std::int64_t(kind)}, {grad, b.segment_tensor(), b.weights},
                  table_of(grad.dtype, b.weights.size(), grad.cols()));
}

// Weights in the accumulator's type.
template <class A>
std::vector<A> as_accumulators(const Tensor& weights) {
  std::vector<A> out;
  visit(Floats{}, weights.dtype, [&]<class W>(std::type_identity<W>) {
    for (std::int64_t i = 0; i < weights.size(); ++i) out.push_back(A(load(weights.as<W>()[i])));
  });
  return out;
}

// Σw or √Σw² of every segment.
template <class A>
std::vector<A> totals_of(const Batch& b, const std::vector<A>& weights, Reduction kind) {
  std::vector<A> total(static_cast<std::size_t>(b.segments));
  for (std::size_t i = 0; i < weights.size(); ++i)
    total[b.segment_ids[i]] += kind == Reduction::mean ? weights[i] : weights[i] * weights[i];
  for (A& t : total)
    if (kind == Reduction::sqrtn) t = std::sqrt(t);
  return total;
}

Tensor expected_forward(const Tensor& data, const Batch& b, Reduction kind, std::int64_t rows) {
  const std::int64_t cols = data.cols();
  Tensor out(data.dtype, {rows, cols});
  const naive::Groups groups(b.segment_ids, rows);
  Numbers64 ids;
  for (std::int64_t i : groups.at) ids.push_back(b.indices[i]);
  visit(Floats{}, data.dtype, [&]<class T>(std::type_identity<T>) {
    const auto weights = as_accumulators<Accumulator<T>>(b.weights);
    const auto totals = totals_of(b, weights, kind);
    auto ordered = weights;
    for (std::size_t j = 0; j < groups.at.size(); ++j) ordered[j] = weights[groups.at[j]];
    for (std::int64_t s = 0; s < rows; ++s)
      if (groups.size(s))
        naive::weighted_reduce(out.as<T>() + s * cols, data.as<T>(), cols, ids.data() + groups.start[s],
                               ordered.data() + groups.start[s], groups.size(s),
                               kind == Reduction::sum ? nullptr : &totals[s]);
  });
  return out;
}

// Without `rounding` (null), the gradient row of each id.
Tensor expected_gradient(const Tensor& grad, const Batch& b, Reduction kind, const Rounding* rounding,
                         Order order = Order::sequential) {
  const std::int64_t cols = grad.cols(), rows = rounding ? b.table_rows : b.weights.size();
  Tensor out(grad.dtype, {rows, cols});
  const naive::Groups groups(b.indices, b.table_rows);
  visit(Floats{}, grad.dtype, [&]<class T>(std::type_identity<T>) {
    const auto weights = as_accumulators<Accumulator<T>>(b.weights);
    const auto totals = totals_of(b, weights, kind);
    const auto* total = kind == Reduction::sum ? nullptr : totals.data();
    for (std::int64_t r = 0; r < rows; ++r) {
      T* row = out.as<T>() + r * cols;
      if (rounding) {
        naive::weighted_accumulate(row, grad.as<T>(), cols, groups.of(r), b.segment_ids, weights.data(), total,
                                   *rounding, order);
      } else {
        const std::int64_t s = b.segment_ids[r];
        naive::weighted_row(row, grad.as<T>() + s * cols, cols, weights[r], total ? total + s : nullptr);
      }
    }
  });
  return out;
}

void check_batch(Rng& rng, DType dtype, DType weights, std::int64_t n, std::int64_t table_rows, std::int64_t segments,
                 std::int64_t cols) {
  const Tensor data = random_tensor(rng, dtype, {table_rows, cols}), grad = random_tensor(rng, dtype, {segments, cols});
  for (Reduction kind : kKinds) {
    if (kSanitized && n == kLarge && kind != Reduction::mean) continue;
    const Where where("batch", {{"dtype", int(dtype)}, {"weights", int(weights)}, {"n", n}, {"cols", cols},
                                {"kind", std::int64_t(kind)}});
    const Batch sorted(rng, weights, n, table_rows, segments, true), any(rng, weights, n, table_rows, segments, false);
    const std::int64_t rows = n ? sorted.segment_ids.back() + 1 : 0;
    EXPECT_OUTPUT(forward(data, sorted, kind), 0, expected_forward(data, sorted, kind, rows));
    EXPECT_OUTPUT(transpose(data, any, kind), 0, expected_forward(data, any, kind, segments));
    for (Rounding rounding : {Rounding::each_add, Rounding::at_end}) {
      const Order order = rng.chance(2) ? Order::sequential : Order::blocked;
      EXPECT_OUTPUT(gradient(grad, any, kind, rounding, table_rows, order), 0,
                    expected_gradient(grad, any, kind, &rounding, order));
    }
    EXPECT_OUTPUT(gradient_rows(grad, any, kind), 0, expected_gradient(grad, any, kind, nullptr));
  }
}

void test_small(Rng& rng) {
  for (DType dtype : Floats::list())
    for (DType weights : Floats::list())
      for (std::int64_t n : {0, 1, 2, 30, 200})
        for (std::int64_t cols : {0, 1, 17})
          check_batch(rng, dtype, weights, n, 1 + rng.below(20), 1 + rng.below(12), cols);
}

void test_large(Rng& rng) {
  check_batch(rng, DType::float32, DType::float32, kLarge, 5000, 20000, 3);
  if (!kSanitized) check_batch(rng, DType::bfloat16, DType::float32, kLarge, 50, 60, 2);
}

// A segment that spans several threads' parts is summed by the first thread alone.
void test_one_segment(Rng& rng) {
  const Tensor data = random_tensor(rng, DType::float64, {20, 1});
  Batch b(rng, DType::float64, kLarge, 20, 2, true);
  const std::int64_t alone = rng.below(30);
  for (std::int64_t i = 0; i < kLarge; ++i) {
    b.segment_ids[i] = i >= alone;
    b.weights.as<double>()[i] = double(1 + i % 3);  // small integers, so that a weight added twice changes the sum
  }
  EXPECT_OUTPUT(forward(data, b, Reduction::mean), 0, expected_forward(data, b, Reduction::mean, 2));
}

void test_faults(Rng& rng, std::int64_t n) {
  const std::int64_t rows = 20, segments = 30, middle = n / 2, late = n - 1;
  const Tensor data = random_tensor(rng, DType::float32, {rows, 2});
  const Tensor grad = random_tensor(rng, DType::float32, {segments, 2});
  const Batch sorted(rng, DType::float32, n, rows, segments, true), any(rng, DType::float32, n, rows, segments, false);
  for (Reduction kind : kKinds) {
    if (kSanitized && n == kLarge && kind != Reduction::mean) continue;
    const Where where("faults", {{"n", n}, {"kind", std::int64_t(kind)}});
    const std::int64_t out_rows = sorted.segment_ids.back() + 1;
    Batch b = sorted;
    b.segment_ids[middle] = -1;
    EXPECT_FAULT(forward(data, b, kind), Fault::segments_not_increasing, middle, -1, b.segment_ids[middle - 1]);
    b.indices[late] = rows;  // all indices are checked before any segment
    EXPECT_FAULT(forward(data, b, kind), Fault::index_not_in_params, late, rows, rows);
    b = sorted;
    b.segment_ids[0] = -1;
    EXPECT_FAULT(forward(data, b, kind), Fault::segment_not_in_output, 0, -1, out_rows);
    b.segment_ids[late] = -5;
    EXPECT_FAULT(forward(data, b, kind), Fault::segment_negative, late, -5, 0);

    for (std::int64_t bad : {std::int64_t{-1}, segments, std::int64_t{INT32_MIN}}) {
      if (kSanitized && n == kLarge && bad != segments) continue;
      b = any;
      b.segment_ids[middle] = bad;
      EXPECT_FAULT(transpose(data, b, kind), Fault::segment_not_in_grad, middle, bad, segments);
      EXPECT_FAULT(gradient_rows(grad, b, kind), Fault::segment_not_in_grad, middle, bad, segments);
      EXPECT_FAULT(gradient(grad, b, kind, Rounding::at_end, rows), Fault::segment_not_in_grad, middle, bad, segments);
      b.indices[middle] = -2;  // an id's index is checked before its segment
      EXPECT_FAULT(gradient(grad, b, kind, Rounding::at_end, rows), Fault::index_not_in_output, middle, -2, rows);
      b.segment_ids[late] = segments;
      EXPECT_FAULT(gradient(grad, b, kind, Rounding::at_end, rows), Fault::segment_count, late, segments, segments);
      EXPECT_FAULT(gradient(grad, b, kind, Rounding::at_end, 0), Fault::none);  // no id is validated
    }
  }
}

}  // namespace

int main() {
  const FlushSubnormals flush;
  Rng rng(6);
  test_small(rng);
  test_large(rng);
  test_one_segment(rng);
  for (std::int64_t n : {std::int64_t{7}, kLarge}) test_faults(rng, n);
  set_num_threads(1);
  return test::finish();
}
