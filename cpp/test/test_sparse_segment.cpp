// SparseSegment{Sum,Mean,SqrtN}, their gradients and the transposes of the gradients, against one row at a time.
#include "rowgrad/sparse_segment.h"

#include "call.h"
#include "naive.h"

using namespace test;

namespace {

constexpr Reduction kKinds[] = {Reduction::sum, Reduction::mean, Reduction::sqrtn};

// Ids of one call; each list is int32 or int64.
struct Batch {
  std::int64_t data_rows, segments;  // exclusive upper bounds of the ids
  Numbers64 indices, segment_ids;
  bool wide_indices, wide_segments;

  Batch(Rng& rng, std::int64_t n, std::int64_t data_rows_, std::int64_t segments_, bool sorted)
      : data_rows(data_rows_),
        segments(segments_),
        indices(random_ids(rng, n, data_rows)),
        segment_ids(sorted ? sorted_ids(rng, n, segments) : random_ids(rng, n, segments)),
        wide_indices(rng.chance(2)),
        wide_segments(rng.chance(2)) {}

  // The inputs that all calls share: a table, indices, segment_ids.
  std::vector<Tensor> with(const Tensor& table) const {
    return {table, ids_of(indices, wide_indices), ids_of(segment_ids, wide_segments)};
  }
};

// attr is {reduce, whether num_segments is an input}; a negative num_segments omits it.
Result forward(const Tensor& data, const Batch& b, Reduction kind, std::int64_t num_segments = -1) {
  auto in = b.with(data);
  if (num_segments >= 0) in.push_back(scalar_of(num_segments));
  return run_same("sparse_segment", {std::int64_t(kind), num_segments >= 0}, in, table_of(data.dtype, -1, data.cols()));
}

Result gradient(const Tensor& grad, const Batch& b, Reduction kind, bool unique, std::int64_t out_rows,
                Order order = Order::sequential) {
  auto in = b.with(grad);
  in.push_back(scalar_of(out_rows, false));
  return run_same("sparse_segment_grad", {std::int64_t(kind), unique, std::int64_t(order)}, in, [&](std::int64_t rows) {
    std::vector<Tensor> out{Tensor(grad.dtype, {unique ? rows : out_rows, grad.cols()})};
    if (unique) out.push_back(Tensor(b.wide_indices ? DType::int64 : DType::int32, {rows}));
    return out;
  });
}

Result padded(const Tensor& grad, const Batch& b, Reduction kind, std::int64_t out_rows, std::int64_t size,
              std::int64_t fill) {
  auto in = b.with(grad);
  in.push_back(scalar_of(out_rows, false));
  in.push_back(scalar_of(size));
  in.push_back(scalar_of(fill));
  return run_same("sparse_segment_grad_padded", {std::int64_t(kind), 1, std::int64_t(Order::sequential)}, in,
                  [&](std::int64_t rows) {
                    return std::vector<Tensor>{Tensor(grad.dtype, {rows, grad.cols()}),
                                               Tensor(b.wide_indices ? DType::int64 : DType::int32, {rows})};
                  });
}

Result transpose(const Tensor& data, const Batch& b, Reduction kind, std::int64_t num_segments) {
  auto in = b.with(data);
  in.push_back(scalar_of(num_segments));
  return run_same("sparse_segment_grad_grad", {std::int64_t(kind)}, in,
                  table_of(data.dtype, num_segments, data.cols()));
}

Tensor expected_forward(const Tensor& data, const Batch& b, Reduction kind, std::int64_t rows) {
  const std::int64_t cols = data.cols();
  Tensor out(data.dtype, {rows, cols});
  const naive::Groups groups(b.segment_ids, rows);
  Numbers64 ids;
  for (std::int64_t i : groups.at) ids.push_back(b.indices[i]);
  visit(Reals{}, data.dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t s = 0; s < rows; ++s)
      if (groups.size(s))
        naive::reduce(out.as<T>() + s * cols, data.as<T>(), cols, ids.data() + groups.start[s], groups.size(s), kind);
  });
  return out;
}

Tensor expected_gradient(const Tensor& grad, const Batch& b, Reduction kind, Order order) {
  const std::int64_t cols = grad.cols();
  Tensor out(grad.dtype, {b.data_rows, cols});
  const naive::Groups members(b.segment_ids, grad.rows()), groups(b.indices, b.data_rows);
  std::vector<double> scale;
  for (std::int64_t s = 0; s < grad.rows(); ++s)
    scale.push_back(1.0 / (kind == Reduction::mean ? double(members.size(s)) : std::sqrt(double(members.size(s)))));
  visit(Floats{}, grad.dtype, [&]<class T>(std::type_identity<T>) {
    const std::vector<Accumulator<T>> rounded(scale.begin(), scale.end());
    for (std::int64_t r = 0; r < b.data_rows; ++r) {
      Numbers64 from;
      for (std::int64_t i : groups.of(r)) from.push_back(b.segment_ids[i]);
      const auto* scale_of = kind == Reduction::sum ? nullptr : rounded.data();
      naive::accumulate(out.as<T>() + r * cols, grad.as<T>(), cols, from, scale_of, order);
    }
  });
  return out;
}

void check_gradient(const Tensor& grad, const Batch& b, Reduction kind) {
  const Tensor expected = expected_gradient(grad, b, kind, Order::sequential);
  EXPECT_OUTPUT(gradient(grad, b, kind, false, b.data_rows), 0, expected);
  EXPECT_OUTPUT(gradient(grad, b, kind, false, b.data_rows, Order::blocked), 0,
                expected_gradient(grad, b, kind, Order::blocked));

  // The unique rows are those rows of the dense gradient that have ids, ascending.
  const std::int64_t cols = grad.cols();
  const naive::Groups groups(b.indices, b.data_rows);
  Numbers64 unique_ids;
  for (std::int64_t r = 0; r < b.data_rows; ++r)
    if (groups.size(r)) unique_ids.push_back(r);
  Tensor rows(grad.dtype, {std::int64_t(unique_ids.size()), cols});
  for (std::size_t k = 0; k < unique_ids.size(); ++k)
    rows.copy(std::int64_t(k) * cols, expected, unique_ids[k] * cols, cols);
  const Result unique = gradient(grad, b, kind, true, b.data_rows);
  EXPECT_OUTPUT(unique, 0, rows);
  EXPECT_OUTPUT(unique, 1, ids_of(unique_ids, b.wide_indices));
  if (b.indices.empty() || kind != Reduction::mean) return;

  // Padded by three rows that are not in the table, and with a size that is one row too small.
  const auto count = std::int64_t(unique_ids.size());
  Tensor more(grad.dtype, {count + 3, cols});
  more.copy(0, rows, 0, count * cols);
  unique_ids.insert(unique_ids.end(), 3, b.data_rows + 2);
  const Result wide = padded(grad, b, kind, b.data_rows, count + 3, b.data_rows + 2);
  EXPECT_OUTPUT(wide, 0, more);
  EXPECT_OUTPUT(wide, 1, ids_of(unique_ids, b.wide_indices));
  Batch bad = b;
  bad.indices[0] = -1;
  EXPECT_FAULT(padded(grad, bad, kind, b.data_rows, count, 0), Fault::index_not_in_output, 0, -1, b.data_rows);
  const Result short_of_one = padded(grad, b, kind, b.data_rows, count - 1, b.data_rows);
  EXPECT_FAULT(short_of_one, Fault::rows_exceed_size, -1, count, count - 1);
}

void check_batch(Rng& rng, DType dtype, std::int64_t n, std::int64_t data_rows, std::int64_t segments,
                 std::int64_t cols) {
  for (Reduction kind : kKinds) {
    const Where where("batch", {{"dtype", int(dtype)}, {"n", n}, {"cols", cols}, {"kind", std::int64_t(kind)}});
    const bool is_float = dtype <= DType::float64;
    if (kind != Reduction::sum && !is_float) break;  // integers have no mean
    if (kSanitized && n == kLarge && kind != Reduction::mean) continue;
    const Tensor data = random_tensor(rng, dtype, {data_rows, cols});
    const Batch sorted(rng, n, data_rows, segments, true);
    const std::int64_t rows = n ? sorted.segment_ids.back() + 1 : 0;
    EXPECT_OUTPUT(forward(data, sorted, kind), 0, expected_forward(data, sorted, kind, rows));
    EXPECT_OUTPUT(forward(data, sorted, kind, segments + 3), 0, expected_forward(data, sorted, kind, segments + 3));
    if (!is_float) continue;
    const Batch any(rng, n, data_rows, segments, false);
    EXPECT_OUTPUT(transpose(data, any, kind, segments), 0, expected_forward(data, any, kind, segments));
    const Tensor grad = random_tensor(rng, dtype, {segments, cols});
    check_gradient(grad, sorted, kind);
    check_gradient(grad, any, kind);
  }
}

void test_small(Rng& rng) {
  for (DType dtype : Reals::list())
    for (std::int64_t n : {0, 1, 2, 9, 40, 300})
      for (std::int64_t cols : {0, 1, 5, 66}) check_batch(rng, dtype, n, 1 + rng.below(20), 1 + rng.below(12), cols);
}

// Bags of a few ids, then of thousands.
void test_large(Rng& rng) {
  check_batch(rng, DType::float32, kLarge, 5000, 30000, 3);
  if (!kSanitized) check_batch(rng, DType::float16, kLarge, 70, 40, 2);
}

// Narrow tables on several threads: a few neighbouring rows have most ids.
void test_narrow(Rng& rng) {
  for (DType dtype : Floats::list())
    for (std::int64_t cols = 1; cols <= kNarrow; ++cols)
      for (Reduction kind : {Reduction::sum, Reduction::sqrtn}) {
        const Where where("narrow", {{"dtype", int(dtype)}, {"cols", cols}, {"kind", std::int64_t(kind)}});
        if (kSanitized && cols % 3 != 1) continue;
        Batch b(rng, 35000 + rng.below(100), 9000, 3000, kind == Reduction::sum);
        for (std::int64_t& id : b.indices) id = rng.chance(8) ? id : id / 2000 * 7;
        check_gradient(random_tensor(rng, dtype, {b.segments, cols}), b, kind);
      }
}

// Both algorithms return the same bits, so a wrong choice would cost only time.
void test_choose_algorithm() {
  auto is_narrow = [](Order order, std::int64_t ids, std::int64_t rows, std::int64_t cols, std::int64_t segments = 9) {
    return choose_algorithm(order, ids, rows, segments, cols, 4) == GradientAlgorithm::narrow;
  };
  constexpr std::int64_t most = (1 << 20) / 8;  // rows of two columns that fit into the cache
  set_num_threads(8);
  EXPECT(is_narrow(Order::sequential, most / 4, most, 2));
  EXPECT(!is_narrow(Order::sequential, most / 4 - 1, most, 2));
  EXPECT(!is_narrow(Order::sequential, most, most + 1, 2));
  EXPECT(!is_narrow(Order::blocked, most, most, 2));
  EXPECT(is_narrow(Order::sequential, 9, 9, kNarrow));
  EXPECT(!is_narrow(Order::sequential, 9, 9, kNarrow + 1));
  EXPECT(!is_narrow(Order::sequential, 9, 9, 0));
  EXPECT(is_narrow(Order::sequential, 9, 9, 1, kNarrowSegments));
  EXPECT(!is_narrow(Order::sequential, 9, 9, 1, kNarrowSegments + 1));
  set_num_threads(9);
  EXPECT(!is_narrow(Order::sequential, most / 4, most, 2));
}

// The rows that a reused output must clear before the next call: those written, or all of a narrow table.
void test_written(Rng& rng) {
  set_num_threads(2);
  for (std::int64_t n : {0, 40})
    for (std::int64_t cols : {kNarrow, kNarrow + 1}) {
      const Where where("written", {{"n", n}, {"cols", cols}});
      const Batch b(rng, n, 50, 20, false);
      auto in = b.with(random_tensor(rng, DType::float32, {20, cols}));
      in.push_back(scalar_of(50, false));
      const Tensor out(DType::float32, {50, cols});
      const std::vector<Array> views{in[0].view(), in[1].view(), in[2].view(), in[3].view()}, outputs{out.view()};
      const Numbers64 attrs{0, 0, std::int64_t(Order::sequential)};
      SparseSegmentGrad kernel;
      kernel.in = views;
      kernel.attr = attrs;
      EXPECT_EQ(kernel.measure().fault, 0);
      EXPECT_EQ(kernel.check().fault, 0);
      kernel.compute(outputs);
      const bool all = n > 0 && cols == kNarrow;
      EXPECT_EQ(kernel.wrote_all(), all);
      const naive::Groups groups(b.indices, 50);
      Numbers64 expected;
      for (std::int64_t r = 0; r < 50; ++r)
        if (all || groups.size(r)) expected.push_back(r);
      const auto rows = std::get<std::vector<std::int32_t>>(kernel.written());
      EXPECT(std::equal(rows.begin(), rows.end(), expected.begin(), expected.end()));
    }
}

// Rows out of range, in a list that another thread may have changed, are skipped.
void test_clearing(Rng& rng) {
  for (bool wide : {false, true}) {
    Tensor table = random_tensor(rng, DType::float32, {16, 3}), expected = table;
    const Tensor rows = ids_of({0, 15, 7, -1, 16, INT32_MIN, INT32_MAX}, wide), zeros(DType::float32, {3});
    for (std::int64_t r : {0, 7, 15}) expected.copy(r * 3, zeros, 0, 3);
    clear_rows(table.view(), rows.view());
    EXPECT_EQ(first_difference(table, expected), -1);
  }
  const Tensor two = ids_of({0, 1});
  EXPECT(covers_most_rows({two.view()}, Tensor(DType::float32, {16, 3}).view()));
  EXPECT(!covers_most_rows({two.view()}, Tensor(DType::float32, {17, 3}).view()));
  EXPECT(!covers_most_rows({}, Tensor(DType::float32, {0, 3}).view()));
}

// Rows whose ids add only zeros are unique rows, too.
void test_rows_of_zeros(Rng& rng) {
  for (DType dtype : Floats::list()) {
    const Where where("zeros", {{"dtype", int(dtype)}});
    const Batch b(rng, 400, 300, 200, false);
    Tensor grad(dtype, {b.segments, 1});  // +0, then -0 and the smallest subnormals of both signs
    const std::int64_t width = width_of(dtype);
    for (std::int64_t s = 0; s < b.segments; ++s) {
      if (s % 4 / 2) grad.at(s)[0] = std::byte(1);
      if (s % 2) grad.at(s)[width - 1] = std::byte(0x80);
    }
    for (Reduction kind : kKinds) check_gradient(grad, b, kind);
  }
}

void test_forward_faults(Rng& rng, std::int64_t n) {
  const Tensor data = random_tensor(rng, DType::float32, {50, 2});
  const Batch good(rng, n, 50, n / 2 + 2, true);
  const std::int64_t rows = good.segment_ids.back() + 1, middle = n / 2, late = n - 1;
  for (std::int64_t bad : {std::int64_t{-1}, std::int64_t{50}, std::int64_t{INT32_MAX}, std::int64_t{INT32_MIN}}) {
    Batch b = good;
    b.indices[late] = 50;  // the first is reported, whichever thread finds it
    b.indices[middle] = bad;
    EXPECT_FAULT(forward(data, b, Reduction::sum), Fault::index_not_in_data, middle, bad, 50);
  }
  Batch b = good;
  b.segment_ids[middle] = -3;
  EXPECT_FAULT(forward(data, b, Reduction::mean), Fault::segments_not_increasing, middle, -3, b.segment_ids[middle - 1]);
  // A decrease by one at the border between two threads.
  for (std::int64_t at : {n / 2, n / 3, 2 * n / 3}) {
    b = good;
    const std::int64_t before = b.segment_ids[at - 1];
    if (before == 0) continue;
    b.segment_ids[at] = before - 1;
    EXPECT_FAULT(forward(data, b, Reduction::sum), Fault::segments_not_increasing, at, before - 1, before);
  }
  b = good;
  b.segment_ids[0] = -1;
  EXPECT_FAULT(forward(data, b, Reduction::mean), Fault::segment_not_in_output, 0, -1, rows);
  b = good;
  b.segment_ids[late] = -1;
  EXPECT_FAULT(forward(data, b, Reduction::sum), Fault::segment_negative, late, -1, 0);
  b.segment_ids[late] = INT32_MAX;
  b.wide_indices = false;
  EXPECT_FAULT(forward(data, b, Reduction::sum), Fault::last_segment_too_big, late, INT32_MAX, INT32_MAX);
  b.wide_indices = b.wide_segments = true;
  b.segment_ids[late] = INT64_MAX;
  EXPECT_FAULT(forward(data, b, Reduction::sum), Fault::last_segment_too_big, late, INT64_MAX, INT64_MAX);
  b.wide_indices = false;
  b.segment_ids = {-(std::int64_t{1} << 32) + 1};  // + 1, in 32 bits: two rows
  b.indices = {0};
  EXPECT_FAULT(forward(data, b, Reduction::sum), Fault::segment_not_in_output, 0, b.segment_ids[0], 2);
  EXPECT_FAULT(forward(data, good, Reduction::sum, rows - 1), Fault::num_segments_too_small, late, rows - 1, rows - 1);
  const std::int64_t high = (std::int64_t{1} << 32) + rows;  // only its low half would be valid
  EXPECT_FAULT(forward(data, good, Reduction::sum, high), Fault::num_segments_too_big, -1, high, INT32_MAX);
}

void test_gradient_faults(Rng& rng, std::int64_t n) {
  const std::int64_t segments = 30, rows = 50, middle = n / 2, late = n - 1;
  const Tensor grad = random_tensor(rng, DType::float64, {segments, 2});
  const Batch good(rng, n, rows, segments, false);
  for (bool unique : {false, true})
    for (Reduction kind : kKinds) {
      if (kSanitized && n == kLarge && unique) continue;
      const Where where("gradient fault", {{"n", n}, {"unique", unique}, {"kind", std::int64_t(kind)}});
      Batch b = good;
      b.indices[middle] = rows;
      EXPECT_FAULT(gradient(grad, b, kind, unique, rows), Fault::index_not_in_output, middle, rows, rows);
      // A bad index, then a bad segment: dense Mean and SqrtN check all segments first, as in TensorFlow.
      b.segment_ids[late - 1] = -7;
      const bool segments_first = !unique && kind != Reduction::sum;
      const Status expected = segments_first ? Status{Fault::segment_not_in_grad, late - 1, -7, segments}
                                             : Status{Fault::index_not_in_output, middle, rows, rows};
      EXPECT_FAULT(gradient(grad, b, kind, unique, rows), expected);
      b.segment_ids[late] = segments;  // the last segment is checked first
      EXPECT_FAULT(gradient(grad, b, kind, unique, rows), Fault::segment_count, late, segments, segments);
      EXPECT_FAULT(gradient(grad, b, kind, unique, 0), Fault::none);  // no output row: no id is validated
    }
  const Tensor data = random_tensor(rng, DType::float64, {rows, 2});
  Batch b = good;
  b.segment_ids[late] = segments;
  EXPECT_FAULT(transpose(data, b, Reduction::sum, segments), Fault::segment_not_in_grad, late, segments, segments);
  b.indices[middle] = -1;
  EXPECT_FAULT(transpose(data, b, Reduction::sum, segments), Fault::index_not_in_data, middle, -1, rows);
  EXPECT_FAULT(transpose(Tensor(DType::float64, {0, 2}), b, Reduction::sum, segments), Fault::none);
}

// With sorted ids the bits are those of the forward op.
void test_transpose_is_forward(Rng& rng) {
  const Tensor data = random_tensor(rng, DType::bfloat16, {100, 7});
  const Batch b(rng, 3000, 100, 200, true);
  for (Reduction kind : kKinds) EXPECT_OUTPUT(transpose(data, b, kind, 200), 0, forward(data, b, kind, 200).out.at(0));
}

}  // namespace

int main() {
  const FlushSubnormals flush;
  Rng rng(4);
  test_small(rng);
  test_large(rng);
  test_narrow(rng);
  test_choose_algorithm();
  test_written(rng);
  test_clearing(rng);
  test_rows_of_zeros(rng);
  for (std::int64_t n : {std::int64_t{7}, kLarge}) {
    test_forward_faults(rng, n);
    test_gradient_faults(rng, n);
  }
  test_transpose_is_forward(rng);
  set_num_threads(1);
  return test::finish();
}
