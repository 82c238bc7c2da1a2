// Whole rows: SegmentSum, gathering, scattering, positions and products, against one row at a time.
#include "rowgrad/segment_rows.h"

#include "call.h"
#include "naive.h"
#include "random.h"

using namespace test;

namespace {

Outputs table_of(DType dtype, Shape shape) {
  return [=](std::int64_t measured) {
    Shape known = shape;
    for (std::int64_t& d : known) d = d < 0 ? measured : d;
    return std::vector{Tensor(dtype, known)};
  };
}

Result segment_sum(const Tensor& data, const Tensor& segments) {
  return run_same("segment_sum", {}, {data, segments}, table_of(data.dtype, {-1, data.shape[1]}));
}

Result gather(const Tensor& params, const Tensor& ids) {
  return run_same("gather_rows", {}, {params, ids}, table_of(params.dtype, {ids.shape[0], params.shape[1]}));
}

template <class N = std::int64_t>
Result scatter(const Tensor& grad, const Tensor& ids, N rows) {
  return run_same("scatter_rows", {}, {grad, ids, scalar(rows)}, table_of(grad.dtype, {rows, grad.shape[1]}));
}

Result positions(const Tensor& list, const Tensor& ids) {
  return run_same("row_positions", {}, {list, ids}, table_of(DType::int64, {ids.shape[0]}));
}

template <class T>
void check_segment_sum(Rng& rng, std::int64_t n, std::int64_t cols, std::int64_t segments) {
  const auto ids = sorted_ids(rng, n, segments);
  const std::int64_t rows = n ? ids.back() + 1 : 0;
  const Tensor data = tensor(random_values<T>(rng, n * cols), {n, cols});
  Tensor expected(data.dtype, {rows, cols});
  for (const auto& group : positions_of(ids, rows)) {
    if (group.empty()) continue;
    const auto sums = naive_segment_sum(data.as<T>() + group[0] * cols, cols, std::int64_t(group.size()));
    std::copy(sums.begin(), sums.end(), expected.as<T>() + ids[group[0]] * cols);
  }
  const Result r = segment_sum(data, ids_of(ids, rng.chance(2)));
  EXPECT_EQ(r.status.fault, Fault::none);
  EXPECT_EQ(r.rows, rows);
  EXPECT_SAME(r.out[0], expected);
}

template <class T>
void check_scatter(Rng& rng, std::int64_t n, std::int64_t cols, std::int64_t rows) {
  using A = Accumulator<T>;
  const auto ids = random_ids(rng, n, rows);
  const Tensor grad = tensor(random_values<T>(rng, n * cols), {n, cols});
  Tensor expected(grad.dtype, {rows, cols});
  const auto groups = positions_of(ids, rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto sums = sum_from_zero<A>(cols, std::int64_t(groups[r].size()), [&](std::int64_t j, std::int64_t c) {
      return load(grad.as<T>()[groups[r][j] * cols + c]);
    });
    for (std::int64_t c = 0; c < cols; ++c) expected.as<T>()[r * cols + c] = store<T>(sums[c]);
  }
  const Result r = rng.chance(2) ? scatter(grad, ids_of(ids), rows) : scatter(grad, ids_of(ids, false), int(rows));
  EXPECT_EQ(r.status.fault, Fault::none);
  EXPECT_SAME(r.out[0], expected);
}

// Any bits, any dtype, any rank below the row.
void check_gather(Rng& rng, DType dtype, std::int64_t n, std::int64_t cols, std::int64_t rows) {
  Tensor params(dtype, {rows, cols});
  for (std::byte& b : params.bytes) b = std::byte(rng.bits());
  const auto ids = random_ids(rng, n, rows);
  const std::int64_t width = cols * width_of(dtype);
  Tensor expected(dtype, {n, cols});
  for (std::int64_t i = 0; i < n; ++i)
    std::copy_n(params.bytes.begin() + ids[i] * width, width, expected.bytes.begin() + i * width);
  const Result r = gather(params, ids_of(ids, rng.chance(2)));
  EXPECT_EQ(r.status.fault, Fault::none);
  EXPECT_SAME(r.out[0], expected);
}

template <class T>
Accumulator<T> naive_dot(const T* a, const T* b, std::int64_t cols) {
  Accumulator<T> p[8] = {};
  for (std::int64_t c = 0; c < cols; ++c) p[c % 8] += load(a[c]) * load(b[c]);
  return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

template <class T>
void check_dots(Rng& rng, std::int64_t n, std::int64_t cols, std::int64_t rows) {
  using A = Accumulator<T>;
  const Tensor grad = tensor(random_values<T>(rng, 9 * cols), {9, cols});
  const Tensor data = tensor(random_values<T>(rng, rows * cols), {rows, cols});
  const Tensor more = tensor(random_values<T>(rng, rows * cols), {rows, cols});
  const auto indices = random_ids(rng, n, rows), segments = random_ids(rng, n, 9);
  std::vector<A> by_id, by_row;
  for (std::int64_t i = 0; i < n; ++i)
    by_id.push_back(naive_dot(grad.as<T>() + segments[i] * cols, data.as<T>() + indices[i] * cols, cols));
  for (std::int64_t r = 0; r < rows; ++r)
    by_row.push_back(naive_dot(data.as<T>() + r * cols, more.as<T>() + r * cols, cols));
  const std::vector<Tensor> in{grad, data, ids_of(indices, rng.chance(2)), ids_of(segments, rng.chance(2))};
  EXPECT_SAME(run_same("sparse_segment_dot", {}, in, table_of(code_of<A>(), {n})).out[0], vector_of(by_id));
  EXPECT_SAME(run_same("row_dot", {}, {data, more}, table_of(code_of<A>(), {rows})).out[0], vector_of(by_row));
}

void check_positions(Rng& rng, std::int64_t n, std::int64_t bound) {
  auto list = sorted_ids(rng, n + 1, bound);
  list.erase(std::unique(list.begin(), list.end()), list.end());
  const auto expected = random_ids(rng, n, std::int64_t(list.size()));
  std::vector<std::int64_t> ids;
  for (std::int64_t p : expected) ids.push_back(list[p]);
  const bool wide = rng.chance(2);
  const Result r = positions(ids_of(list, wide), ids_of(ids, wide));
  EXPECT_EQ(r.status.fault, Fault::none);
  EXPECT_SAME(r.out[0], ids_of(expected));
  ids.push_back(bound);
  const auto size = std::int64_t(list.size());
  EXPECT_FAULT(positions(ids_of(list, wide), ids_of(ids, wide)), Fault::id_not_listed, n, bound, size);
}

void test_values(Rng& rng) {
  for (std::int64_t cols : {0, 1, 5, 33})
    for (std::int64_t n : {0, 1, 2, 40, 300}) {
      const Where where("values", {{"n", n}, {"cols", cols}});
      each_type(Numbers{}, [&]<class T>(std::type_identity<T>) {
        const Where where_type("type", {{"dtype", int(code_of<T>())}});
        check_segment_sum<T>(rng, n, cols, 1 + rng.below(30));
        check_scatter<T>(rng, n, cols, 1 + rng.below(30));
      });
      each_type(Floats{}, [&]<class T>(std::type_identity<T>) { check_dots<T>(rng, n, cols, 1 + rng.below(30)); });
      for (int code = 0; code <= int(DType::qint32); ++code) check_gather(rng, DType(code), n, cols, 1 + rng.below(30));
      check_positions(rng, n, 50);
    }
  EXPECT_SAME(positions(ids_of({}), ids_of({})).out[0], ids_of({}));
}

void test_large(Rng& rng) {
  const std::int64_t n = 200000;
  check_segment_sum<float>(rng, n, 3, 20000);
  check_segment_sum<std::complex<float>>(rng, n, 3, 50);
  check_scatter<half>(rng, n, 3, 5000);
  check_scatter<std::int16_t>(rng, n, 3, 50);
  check_gather(rng, DType::float32, n, 3, 5000);
  check_gather(rng, DType::quint8, n, 1, 50);
  check_dots<double>(rng, n, 3, 50000);
  check_positions(rng, n, 500000);
}

void test_faults(Rng& rng, std::int64_t n) {
  const Tensor data = tensor(random_values<float>(rng, n * 2), {n, 2});
  const Tensor table = tensor(random_values<float>(rng, 20), {10, 2});
  const auto segments = sorted_ids(rng, n, n), indices = random_ids(rng, n, 10);
  const std::int64_t middle = n / 2, late = n - 1;
  auto with = [](std::vector<std::int64_t> ids, std::int64_t at, std::int64_t bad) {
    ids[at] = bad;
    return ids;
  };
  EXPECT_FAULT(segment_sum(data, ids_of(with(segments, middle, -2))), Fault::segments_not_increasing, middle, -2,
               segments[middle - 1]);
  EXPECT_FAULT(segment_sum(data, ids_of(with(segments, 0, -2))), Fault::segment_not_in_output, 0, -2,
               segments[late] + 1);
  for (std::int64_t bad : {std::int64_t{-1}, INT64_MIN})
    EXPECT_FAULT(segment_sum(data, ids_of(with(segments, late, bad))), Fault::segment_negative, late, bad, 0);
  EXPECT_FAULT(segment_sum(data, ids_of(with(segments, late, INT64_MAX))), Fault::last_segment_overflows, late,
               INT64_MAX, INT64_MIN);

  for (std::int64_t bad : {std::int64_t{-1}, std::int64_t{10}, std::int64_t{INT32_MIN}, std::int64_t{INT32_MAX}})
    for (bool wide : {false, true}) {
      // Two faults, far apart: the first is told, whichever thread finds which.
      const Tensor ids = ids_of(with(with(indices, late, 10), middle, bad), wide);
      EXPECT_FAULT(gather(table, ids), Fault::index_not_in_params, middle, bad, 10);
      EXPECT_FAULT(scatter(data, ids, 10), Fault::index_not_in_output, middle, bad, 10);
      const auto out = table_of(DType::float32, {n});
      EXPECT_FAULT(run_same("sparse_segment_dot", {}, {data, table, ids, ids_of(segments)}, out),
                   Fault::index_not_in_params, middle, bad, 10);
      EXPECT_FAULT(run_same("sparse_segment_dot", {}, {table, data, ids_of(segments), ids}, out),
                   Fault::segment_not_in_grad, middle, bad, 10);
    }
}

}  // namespace

int main() {
  const FlushSubnormals flush;
  Rng rng(5);
  test_values(rng);
  test_large(rng);
  for (std::int64_t n : {7, 200000}) test_faults(rng, n);
  set_num_threads(1);
  return test::finish();
}
