// Weighted bags and their gradients for data, for every dtype of data with every dtype of weights.
#include "rowgrad/weighted_segment.h"

#include "call.h"
#include "naive.h"
#include "random.h"

using namespace test;

namespace {

constexpr Reduce kKinds[] = {Reduce::sum, Reduce::mean, Reduce::sqrtn};

struct Batch {
  std::int64_t table_rows, segments;  // both above every id
  std::vector<std::int64_t> indices, segment_ids;
  Tensor weights;

  template <class W>
  Batch(Rng& rng, std::type_identity<W>, std::int64_t n, std::int64_t table_rows_, std::int64_t segments_, bool sorted)
      : table_rows(table_rows_),
        segments(segments_),
        indices(random_ids(rng, n, table_rows)),
        segment_ids(sorted ? sorted_ids(rng, n, segments) : random_ids(rng, n, segments)),
        weights(vector_of(random_values<W>(rng, n))) {
    // Zeros, and pairs that cancel: divisors of 0 with and without terms.
    for (std::int64_t i = 1; i < n; ++i)
      if (rng.chance(6)) weights.as<W>()[i] = rng.chance(2) ? W{} : weights.as<W>()[i - 1];
  }

  Tensor index_tensor() const { return ids_of(indices, indices.size() % 2); }
  Tensor segment_tensor() const { return ids_of(segment_ids, indices.size() % 3); }
};

Outputs table_of(DType dtype, std::int64_t rows, std::int64_t cols) {
  return [=](std::int64_t measured) { return std::vector{Tensor(dtype, {rows < 0 ? measured : rows, cols})}; };
}

Result forward(const Tensor& data, const Batch& b, Reduce kind) {
  const std::vector<Tensor> in{data, b.index_tensor(), b.segment_tensor(), b.weights};
  return run_same("weighted_segment", {std::int64_t(kind), 0}, in, table_of(data.dtype, -1, data.shape[1]));
}

Result transpose(const Tensor& data, const Batch& b, Reduce kind) {
  const std::vector<Tensor> in{data, b.index_tensor(), b.segment_tensor(), b.weights, scalar(b.segments)};
  return run_same("weighted_segment", {std::int64_t(kind), 1}, in, table_of(data.dtype, b.segments, data.shape[1]));
}

Result gradient(const Tensor& grad, const Batch& b, Reduce kind, Rounding rounding, std::int64_t rows) {
  const std::vector<Tensor> in{grad, b.index_tensor(), b.segment_tensor(), b.weights, scalar(std::int32_t(rows))};
  return run_same("weighted_segment_grad", {std::int64_t(kind), std::int64_t(rounding)}, in,
                  table_of(grad.dtype, rows, grad.shape[1]));
}

Result gradient_rows(const Tensor& grad, const Batch& b, Reduce kind) {
  return run_same("weighted_segment_grad_rows", {std::int64_t(kind)}, {grad, b.segment_tensor(), b.weights},
                  table_of(grad.dtype, b.weights.size(), grad.shape[1]));
}

// The batch with everything spelled out: weights in the accumulator's type, the divisor of every segment.
template <class T>
struct Spelled {
  using A = Accumulator<T>;
  const Batch& b;
  Reduce kind;
  std::vector<A> weight, total;

  Spelled(const Batch& b_, Reduce kind_) : b(b_), kind(kind_), total(static_cast<std::size_t>(b.segments)) {
    visit(Floats{}, b.weights.dtype, [&]<class W>(std::type_identity<W>) {
      for (std::int64_t i = 0; i < b.weights.size(); ++i) weight.push_back(A(load(b.weights.as<W>()[i])));
    });
    for (std::size_t i = 0; i < weight.size(); ++i) {
      A& t = total[b.segment_ids[i]];
      t = t + (kind == Reduce::mean ? weight[i] : weight[i] * weight[i]);
    }
    if (kind == Reduce::sqrtn)
      for (A& t : total) t = std::sqrt(t);
  }

  A divided(A x, std::int64_t segment) const {
    if (kind == Reduce::sum) return x;
    return total[segment] == 0 ? A(0) : x / total[segment];
  }
  // What id i adds to column c of its index's row.
  A contribution(const Tensor& grad, std::int64_t i, std::int64_t c) const {
    const std::int64_t s = b.segment_ids[i];
    return divided(load(grad.as<T>()[s * grad.shape[1] + c]), s) * weight[i];
  }

  Tensor forward(const Tensor& data, std::int64_t rows) const {
    const std::int64_t cols = data.shape[1];
    Tensor out(data.dtype, {rows, cols});
    const auto groups = positions_of(b.segment_ids, rows);
    for (std::int64_t s = 0; s < rows; ++s) {
      if (groups[s].empty()) continue;  // rows of zeros
      auto term = [&](std::int64_t j, std::int64_t c) {
        const std::int64_t i = groups[s][j];
        return load(data.as<T>()[b.indices[i] * cols + c]) * weight[i];
      };
      const auto sums = sum_like_segment_sum<A>(cols, std::int64_t(groups[s].size()), term);
      for (std::int64_t c = 0; c < cols; ++c) out.as<T>()[s * cols + c] = store<T>(divided(sums[c], s));
    }
    return out;
  }

  Tensor gradient(const Tensor& grad, Rounding rounding) const {
    const std::int64_t cols = grad.shape[1];
    Tensor out(grad.dtype, {b.table_rows, cols});
    const auto groups = positions_of(b.indices, b.table_rows);
    for (std::int64_t r = 0; r < b.table_rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) {
        A sum(0);
        for (std::int64_t i : groups[r]) {
          const A x = contribution(grad, i, c);
          sum = rounding == Rounding::each_add ? load(store<T>(sum + load(store<T>(x)))) : sum + x;
        }
        out.as<T>()[r * cols + c] = store<T>(sum);
      }
    return out;
  }

  Tensor gradient_rows(const Tensor& grad) const {
    const std::int64_t cols = grad.shape[1], n = b.weights.size();
    Tensor out(grad.dtype, {n, cols});
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t c = 0; c < cols; ++c) out.as<T>()[i * cols + c] = store<T>(contribution(grad, i, c));
    return out;
  }
};

void check_same(const Result& r, const Tensor& expected, const char* what) {
  const Where where(what);
  EXPECT_EQ(r.status.fault, Fault::none);
  if (EXPECT_EQ(r.out.size(), 1u)) EXPECT_SAME(r.out[0], expected);
}

template <class T, class W>
void check_batch(Rng& rng, std::int64_t n, std::int64_t table_rows, std::int64_t segments, std::int64_t cols) {
  const std::type_identity<W> w;
  const Tensor data = tensor(random_values<T>(rng, table_rows * cols), {table_rows, cols});
  const Tensor grad = tensor(random_values<T>(rng, segments * cols), {segments, cols});
  for (Reduce kind : kKinds) {
    const Where where("batch", {{"T", int(code_of<T>())}, {"weights", int(code_of<W>())}, {"n", n}, {"cols", cols},
                                {"kind", std::int64_t(kind)}});
    const Batch sorted(rng, w, n, table_rows, segments, true), any(rng, w, n, table_rows, segments, false);
    const Spelled<T> by_run(sorted, kind), by_any(any, kind);
    check_same(forward(data, sorted, kind), by_run.forward(data, n ? sorted.segment_ids.back() + 1 : 0), "forward");
    check_same(transpose(data, any, kind), by_any.forward(data, segments), "transpose");
    for (Rounding rounding : {Rounding::each_add, Rounding::at_end})
      check_same(gradient(grad, any, kind, rounding, table_rows), by_any.gradient(grad, rounding), "gradient");
    check_same(gradient_rows(grad, any, kind), by_any.gradient_rows(grad), "rows");
  }
}

void test_small(Rng& rng) {
  each_type(Floats{}, [&]<class T>(std::type_identity<T>) {
    each_type(Floats{}, [&]<class W>(std::type_identity<W>) {
      for (std::int64_t n : {0, 1, 2, 30, 200})
        for (std::int64_t cols : {0, 1, 17}) check_batch<T, W>(rng, n, 1 + rng.below(20), 1 + rng.below(12), cols);
    });
  });
}

void test_large(Rng& rng) {
  check_batch<float, float>(rng, 200000, 5000, 20000, 3);
  check_batch<bfloat16, float>(rng, 200000, 50, 60, 2);
}

void test_faults(Rng& rng, std::int64_t n) {
  const std::int64_t rows = 20, segments = 30, middle = n / 2, late = n - 1;
  const Tensor data = tensor(random_values<float>(rng, rows * 2), {rows, 2});
  const Tensor grad = tensor(random_values<float>(rng, segments * 2), {segments, 2});
  const std::type_identity<float> w;
  const Batch sorted(rng, w, n, rows, segments, true), any(rng, w, n, rows, segments, false);
  for (Reduce kind : kKinds) {
    const Where where("faults", {{"n", n}, {"kind", std::int64_t(kind)}});
    const std::int64_t out_rows = sorted.segment_ids.back() + 1;
    Batch b = sorted;
    b.segment_ids[middle] = -1;
    EXPECT_FAULT(forward(data, b, kind), Fault::segments_not_increasing, middle, -1, b.segment_ids[middle - 1]);
    b.indices[late] = rows;  // all indices come before any segment
    EXPECT_FAULT(forward(data, b, kind), Fault::index_not_in_params, late, rows, rows);
    b = sorted;
    b.segment_ids[0] = -1;
    EXPECT_FAULT(forward(data, b, kind), Fault::segment_not_in_output, 0, -1, out_rows);
    b.segment_ids[late] = -5;
    EXPECT_FAULT(forward(data, b, kind), Fault::segment_negative, late, -5, 0);

    for (std::int64_t bad : {std::int64_t{-1}, segments, std::int64_t{INT32_MIN}}) {
      b = any;
      b.segment_ids[middle] = bad;
      EXPECT_FAULT(transpose(data, b, kind), Fault::segment_not_in_grad, middle, bad, segments);
      EXPECT_FAULT(gradient_rows(grad, b, kind), Fault::segment_not_in_grad, middle, bad, segments);
      EXPECT_FAULT(gradient(grad, b, kind, Rounding::at_end, rows), Fault::segment_not_in_grad, middle, bad, segments);
      b.indices[middle] = -2;  // of one id, the index comes first
      EXPECT_FAULT(gradient(grad, b, kind, Rounding::at_end, rows), Fault::index_not_in_output, middle, -2, rows);
      b.segment_ids[late] = segments;
      EXPECT_FAULT(gradient(grad, b, kind, Rounding::at_end, rows), Fault::segment_count, late, segments, segments);
      EXPECT_EQ(gradient(grad, b, kind, Rounding::at_end, 0).status.fault, Fault::none);  // nothing is looked at
    }
  }
}

}  // namespace

int main() {
  const FlushSubnormals flush;
  Rng rng(6);
  test_small(rng);
  test_large(rng);
  for (std::int64_t n : {7, 200000}) test_faults(rng, n);
  set_num_threads(1);
  return test::finish();
}
