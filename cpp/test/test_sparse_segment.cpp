// SparseSegment{Sum,Mean,SqrtN}, their gradients and the gradients' transposes, against one group at a time.
#include "rowgrad/sparse_segment.h"

#include <numeric>

#include "call.h"
#include "naive.h"
#include "random.h"

using namespace test;

namespace {

constexpr Reduce kKinds[] = {Reduce::sum, Reduce::mean, Reduce::sqrtn};

// Ids of one call, each kept as int32 or as int64.
struct Batch {
  std::int64_t data_rows, segments;  // both above every id
  std::vector<std::int64_t> indices, segment_ids;
  bool wide_indices, wide_segments;

  Batch(Rng& rng, std::int64_t n, std::int64_t data_rows_, std::int64_t segments_, bool sorted)
      : data_rows(data_rows_),
        segments(segments_),
        indices(random_ids(rng, n, data_rows)),
        segment_ids(sorted ? sorted_ids(rng, n, segments) : random_ids(rng, n, segments)),
        wide_indices(rng.chance(2)),
        wide_segments(rng.chance(2)) {}

  std::int64_t size() const { return std::int64_t(indices.size()); }
  Tensor index_tensor() const { return ids_of(indices, wide_indices); }
  Tensor segment_tensor() const { return ids_of(segment_ids, wide_segments); }
};

template <class T>
Tensor random_table(Rng& rng, std::int64_t rows, std::int64_t cols) {
  return tensor(random_values<T>(rng, rows * cols), {rows, cols});
}

Outputs table_of(DType dtype, std::int64_t cols, std::int64_t rows = -1) {
  return [=](std::int64_t measured) { return std::vector{Tensor(dtype, {rows < 0 ? measured : rows, cols})}; };
}

// attr is {reduce, whether num_segments is given}; num_segments < 0 leaves it out.
Result forward(const Tensor& data, const Batch& b, Reduce kind, std::int64_t num_segments = -1) {
  std::vector<Tensor> in{data, b.index_tensor(), b.segment_tensor()};
  if (num_segments >= 0) in.push_back(scalar(num_segments));
  return run_same("sparse_segment", {std::int64_t(kind), num_segments >= 0}, in, table_of(data.dtype, data.shape[1]));
}

Result gradient(const Tensor& grad, const Batch& b, Reduce kind, bool unique, std::int64_t out_rows) {
  const DType ids = b.wide_indices ? DType::int64 : DType::int32;
  const std::vector<Tensor> in{grad, b.index_tensor(), b.segment_tensor(), scalar(std::int32_t(out_rows))};
  return run_same("sparse_segment_grad", {std::int64_t(kind), unique}, in, [&](std::int64_t rows) {
    std::vector<Tensor> out{Tensor(grad.dtype, {unique ? rows : out_rows, grad.shape[1]})};
    if (unique) out.push_back(Tensor(ids, {rows}));
    return out;
  });
}

Result transpose(const Tensor& data, const Batch& b, Reduce kind, std::int64_t num_segments) {
  const std::vector<Tensor> in{data, b.index_tensor(), b.segment_tensor(), scalar(num_segments)};
  return run_same("sparse_segment_grad_grad", {std::int64_t(kind)}, in,
                  table_of(data.dtype, data.shape[1], num_segments));
}

template <class T>
Tensor expected_forward(const Tensor& data, const Batch& b, Reduce kind, std::int64_t rows) {
  const std::int64_t cols = data.shape[1];
  Tensor out(data.dtype, {rows, cols});
  const auto groups = positions_of(b.segment_ids, rows);
  for (std::int64_t s = 0; s < rows; ++s) {
    if (groups[s].empty()) continue;
    std::vector<std::int64_t> ids;
    for (std::int64_t i : groups[s]) ids.push_back(b.indices[i]);
    const auto row = naive_reduce(data.as<T>(), cols, ids, kind);
    std::copy(row.begin(), row.end(), out.as<T>() + s * cols);
  }
  return out;
}

template <class T>
Tensor expected_gradient(const Tensor& grad, const Batch& b, Reduce kind, std::int64_t rows) {
  using A = Accumulator<T>;
  const std::int64_t cols = grad.shape[1];
  Tensor out(grad.dtype, {rows, cols});
  const auto members = positions_of(b.segment_ids, grad.shape[0]), groups = positions_of(b.indices, rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto n = std::int64_t(groups[r].size());
    const auto sums = sum_from_zero<A>(cols, n, [&](std::int64_t j, std::int64_t c) {
      const std::int64_t s = b.segment_ids[groups[r][j]];
      const auto count = double(members[s].size());
      const A g = load(grad.as<T>()[s * cols + c]);
      if (kind == Reduce::sum) return g;
      return A(g * A(kind == Reduce::mean ? 1.0 / count : 1.0 / std::sqrt(count)));
    });
    for (std::int64_t c = 0; c < cols; ++c) out.as<T>()[r * cols + c] = store<T>(sums[c]);
  }
  return out;
}

template <class T>
void check_gradient(const Tensor& grad, const Batch& b, Reduce kind) {
  const Tensor expected = expected_gradient<T>(grad, b, kind, b.data_rows);
  const Result dense = gradient(grad, b, kind, false, b.data_rows);
  EXPECT_EQ(dense.status.fault, Fault::none);
  EXPECT_SAME(dense.out[0], expected);

  // The unique rows are the dense gradient's rows that some index names, in ascending order.
  const Result unique = gradient(grad, b, kind, true, b.data_rows);
  const std::int64_t cols = grad.shape[1];
  auto named = b.indices;
  std::sort(named.begin(), named.end());
  named.erase(std::unique(named.begin(), named.end()), named.end());
  std::vector<T> rows;
  for (std::int64_t r : named)
    rows.insert(rows.end(), expected.as<T>() + r * cols, expected.as<T>() + (r + 1) * cols);
  EXPECT_EQ(unique.status.fault, Fault::none);
  EXPECT_EQ(unique.rows, std::int64_t(named.size()));
  EXPECT_SAME(unique.out[0], tensor(rows, {std::int64_t(named.size()), cols}));
  EXPECT_SAME(unique.out[1], ids_of(named, b.wide_indices));
}

template <class T>
void check_batch(Rng& rng, std::int64_t n, std::int64_t data_rows, std::int64_t segments, std::int64_t cols) {
  for (Reduce kind : kKinds) {
    const Where where("batch", {{"dtype", int(code_of<T>())}, {"n", n}, {"cols", cols}, {"kind", std::int64_t(kind)}});
    if (kind != Reduce::sum && std::is_integral_v<T>) break;  // the others have no integer kernel
    const Tensor data = random_table<T>(rng, data_rows, cols);
    const Batch sorted(rng, n, data_rows, segments, true);
    const std::int64_t rows = n ? sorted.segment_ids.back() + 1 : 0;
    const Result plain = forward(data, sorted, kind), wider = forward(data, sorted, kind, segments + 3);
    EXPECT_EQ(plain.status.fault, Fault::none);
    EXPECT_EQ(plain.rows, rows);
    EXPECT_SAME(plain.out[0], expected_forward<T>(data, sorted, kind, rows));
    EXPECT_EQ(wider.status.fault, Fault::none);
    EXPECT_SAME(wider.out[0], expected_forward<T>(data, sorted, kind, segments + 3));
    if constexpr (std::is_floating_point_v<Accumulator<T>>) {
      const Batch any(rng, n, data_rows, segments, false);
      EXPECT_SAME(transpose(data, any, kind, segments).out[0], expected_forward<T>(data, any, kind, segments));
      const Tensor grad = random_table<T>(rng, segments, cols);
      check_gradient<T>(grad, sorted, kind);
      check_gradient<T>(grad, any, kind);
    }
  }
}

// Every dtype and every size on one thread's worth of work.
void test_small(Rng& rng) {
  each_type(Reals{}, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t n : {0, 1, 2, 9, 40, 300})
      for (std::int64_t cols : {0, 1, 5, 66}) check_batch<T>(rng, n, 1 + rng.below(20), 1 + rng.below(12), cols);
  });
}

// Enough for scans, sorts and sums to be shared out, with bags of one id and bags of thousands.
void test_large(Rng& rng) {
  check_batch<float>(rng, 200000, 5000, 30000, 3);
  check_batch<half>(rng, 200000, 70, 40, 2);
}

void test_forward_faults(Rng& rng, std::int64_t n) {
  const Tensor data = random_table<float>(rng, 50, 2);
  const Batch good(rng, n, 50, n / 2 + 2, true);
  const std::int64_t rows = good.segment_ids.back() + 1, middle = n / 2, late = n - 1;
  constexpr Fault index = Fault::index_not_in_data;
  for (std::int64_t bad : {std::int64_t{-1}, std::int64_t{50}, std::int64_t{INT32_MAX}, std::int64_t{INT32_MIN}})
    for (std::int64_t at : {std::int64_t{0}, middle, late}) {
      Batch b = good;
      b.indices[late] = 50;  // the first is told, whichever thread finds which
      b.indices[at] = bad;
      EXPECT_FAULT(forward(data, b, Reduce::sum), index, at, bad, 50);
    }
  Batch b = good;
  b.segment_ids[middle] = -3;
  EXPECT_FAULT(forward(data, b, Reduce::mean), Fault::segments_not_increasing, middle, -3, b.segment_ids[middle - 1]);
  b = good;
  b.segment_ids[0] = -1;
  EXPECT_FAULT(forward(data, b, Reduce::mean), Fault::segment_not_in_output, 0, -1, rows);
  b = good;
  b.segment_ids[late] = -1;
  EXPECT_FAULT(forward(data, b, Reduce::sum), Fault::segment_negative, late, -1, 0);
  b.segment_ids[late] = INT32_MAX;
  b.wide_indices = false;
  EXPECT_FAULT(forward(data, b, Reduce::sum), Fault::last_segment_too_big, late, INT32_MAX, INT32_MAX);
  b.wide_indices = b.wide_segments = true;
  b.segment_ids[late] = INT64_MAX;
  EXPECT_FAULT(forward(data, b, Reduce::sum), Fault::last_segment_too_big, late, INT64_MAX, INT64_MAX);
  EXPECT_FAULT(forward(data, good, Reduce::sum, rows - 1), Fault::num_segments_too_small, late, rows - 1, rows - 1);
  const std::int64_t high = (std::int64_t{1} << 32) + rows;  // its low half would do; the whole number is refused
  EXPECT_FAULT(forward(data, good, Reduce::sum, high), Fault::num_segments_too_big, -1, high, INT32_MAX);
}

void test_gradient_faults(Rng& rng, std::int64_t n) {
  const std::int64_t segments = 30, rows = 50, middle = n / 2, late = n - 1;
  const Tensor grad = random_table<double>(rng, segments, 2);
  const Batch good(rng, n, rows, segments, false);
  for (bool unique : {false, true})
    for (Reduce kind : kKinds) {
      const Where where("gradient fault", {{"n", n}, {"unique", unique}, {"kind", std::int64_t(kind)}});
      Batch b = good;
      b.indices[middle] = rows;
      EXPECT_FAULT(gradient(grad, b, kind, unique, rows), Fault::index_not_in_output, middle, rows, rows);
      // An index, then a segment: dense Mean and SqrtN look at all segments first, as TensorFlow does.
      b.segment_ids[late - 1] = -7;
      if (!unique && kind != Reduce::sum)
        EXPECT_FAULT(gradient(grad, b, kind, unique, rows), Fault::segment_not_in_grad, late - 1, -7, segments);
      else
        EXPECT_FAULT(gradient(grad, b, kind, unique, rows), Fault::index_not_in_output, middle, rows, rows);
      b.segment_ids[late] = segments;  // the last segment comes before everything
      EXPECT_FAULT(gradient(grad, b, kind, unique, rows), Fault::segment_count, late, segments, segments);
      // No output row: nothing is looked at.
      EXPECT_EQ(gradient(grad, b, kind, unique, 0).status.fault, Fault::none);
    }
  const Tensor data = random_table<double>(rng, rows, 2);
  Batch b = good;
  b.segment_ids[late] = segments;
  EXPECT_FAULT(transpose(data, b, Reduce::sum, segments), Fault::segment_not_in_grad, late, segments, segments);
  b.indices[middle] = -1;
  EXPECT_FAULT(transpose(data, b, Reduce::sum, segments), Fault::index_not_in_data, middle, -1, rows);
  EXPECT_EQ(transpose(Tensor(DType::float64, {0, 2}), b, Reduce::sum, segments).status.fault, Fault::none);
}

// Sorted ids give the forward's bits.
void test_transpose_is_forward(Rng& rng) {
  const Tensor data = random_table<bfloat16>(rng, 100, 7);
  const Batch b(rng, 3000, 100, 200, true);
  for (Reduce kind : kKinds)
    EXPECT_SAME(transpose(data, b, kind, 200).out[0], forward(data, b, kind, 200).out[0]);
}

}  // namespace

int main() {
  const FlushSubnormals flush;
  Rng rng(4);
  test_small(rng);
  test_large(rng);
  for (std::int64_t n : {7, 200000}) {
    test_forward_faults(rng, n);
    test_gradient_faults(rng, n);
  }
  test_transpose_is_forward(rng);
  set_num_threads(1);
  return test::finish();
}
