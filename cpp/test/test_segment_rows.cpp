// Whole rows: SegmentSum, gather, scatter, positions and inner products, against one row at a time.
#include "rowgrad/segment_rows.h"

#include "call.h"
#include "naive.h"

using namespace test;

namespace {

Result segment_sum(const Tensor& data, const Tensor& segments) {
  return run_same("segment_sum", {}, {data, segments}, table_of(data.dtype, -1, data.cols()));
}

Result gather(const Tensor& params, const Tensor& ids) {
  return run_same("gather_rows", {}, {params, ids}, table_of(params.dtype, ids.size(), params.cols()));
}

Result scatter(const Tensor& grad, const Tensor& ids, std::int64_t rows, bool wide = true) {
  return run_same("scatter_rows", {}, {grad, ids, scalar_of(rows, wide)}, table_of(grad.dtype, rows, grad.cols()));
}

Outputs vector_of(DType dtype, std::int64_t n) {
  return [=](std::int64_t) { return std::vector<Tensor>{Tensor(dtype, {n})}; };
}

Result positions(const Tensor& list, const Tensor& ids) {
  return run_same("row_positions", {}, {list, ids}, vector_of(DType::int64, ids.size()));
}

void check_segment_sum(Rng& rng, DType dtype, std::int64_t n, std::int64_t cols, std::int64_t segments) {
  const auto ids = sorted_ids(rng, n, segments);
  const std::int64_t rows = n ? ids.back() + 1 : 0;
  const Tensor data = random_tensor(rng, dtype, {n, cols});
  Tensor expected(dtype, {rows, cols});
  const naive::Groups groups(ids, rows);
  visit(Numbers{}, dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t s = 0; s < rows; ++s)
      naive::segment_sum(expected.as<T>() + s * cols, data.as<T>() + groups.start[s] * cols, cols, groups.size(s));
  });
  EXPECT_OUTPUT(segment_sum(data, ids_of(ids, rng.chance(2))), 0, expected);
}

void check_scatter(Rng& rng, DType dtype, std::int64_t n, std::int64_t cols, std::int64_t rows) {
  const auto ids = random_ids(rng, n, rows);
  const Tensor grad = random_tensor(rng, dtype, {n, cols});
  Tensor expected(dtype, {rows, cols});
  const naive::Groups groups(ids, rows);
  visit(Numbers{}, dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t r = 0; r < rows; ++r)
      naive::accumulate<T>(expected.as<T>() + r * cols, grad.as<T>(), cols, groups.of(r), nullptr, Order::sequential);
  });
  const bool wide = rng.chance(2);
  EXPECT_OUTPUT(scatter(grad, ids_of(ids, wide), rows, !wide), 0, expected);
}

void check_gather(Rng& rng, DType dtype, std::int64_t n, std::int64_t cols, std::int64_t rows) {
  const Tensor params = random_tensor(rng, dtype, {rows, cols});
  const auto ids = random_ids(rng, n, rows);
  Tensor expected(dtype, {n, cols});
  for (std::int64_t i = 0; i < n; ++i) expected.copy(i * cols, params, ids[i] * cols, cols);
  EXPECT_OUTPUT(gather(params, ids_of(ids, rng.chance(2))), 0, expected);
}

void check_dots(Rng& rng, DType dtype, std::int64_t n, std::int64_t cols, std::int64_t rows) {
  const Tensor grad = random_tensor(rng, dtype, {9, cols}), data = random_tensor(rng, dtype, {rows, cols});
  const Tensor more = random_tensor(rng, dtype, {rows, cols});
  const auto indices = random_ids(rng, n, rows), segments = random_ids(rng, n, 9);
  const DType accumulator = width_of(dtype) == 2 ? DType::float32 : dtype;
  Tensor by_id(accumulator, {n}), by_row(accumulator, {rows});
  visit(Floats{}, dtype, [&]<class T>(std::type_identity<T>) {
    const T *g = grad.as<T>(), *x = data.as<T>(), *y = more.as<T>();
    for (std::int64_t i = 0; i < n; ++i)
      by_id.as<Accumulator<T>>()[i] = naive::dot(g + segments[i] * cols, x + indices[i] * cols, cols);
    for (std::int64_t r = 0; r < rows; ++r)
      by_row.as<Accumulator<T>>()[r] = naive::dot(x + r * cols, y + r * cols, cols);
  });
  const std::vector<Tensor> in{grad, data, ids_of(indices, rng.chance(2)), ids_of(segments, rng.chance(2))};
  EXPECT_OUTPUT(run_same("sparse_segment_dot", {}, in, vector_of(accumulator, n)), 0, by_id);
  EXPECT_OUTPUT(run_same("row_dot", {}, {data, more}, vector_of(accumulator, rows)), 0, by_row);
}

void check_positions(Rng& rng, std::int64_t n, std::int64_t bound) {
  Numbers64 list, ids;
  for (std::int64_t id = 0; id < bound; ++id)
    if (id == 0 || rng.chance(2)) list.push_back(id);
  const auto size = std::int64_t(list.size());
  const auto expected = random_ids(rng, n, size);
  for (std::int64_t p : expected) ids.push_back(list[p]);
  const bool wide = rng.chance(2);
  EXPECT_OUTPUT(positions(ids_of(list, wide), ids_of(ids, wide)), 0, ids_of(expected));
  ids.push_back(bound);
  EXPECT_FAULT(positions(ids_of(list, wide), ids_of(ids, wide)), Fault::id_not_listed, n, bound, size);
}

void test_values(Rng& rng) {
  for (std::int64_t cols : {0, 1, 5, 33})
    for (std::int64_t n : {0, 1, 2, 40, 300}) {
      auto rows = [&] { return 1 + rng.below(30); };
      for (DType dtype : all_dtypes()) {
        const Where where("values", {{"dtype", int(dtype)}, {"n", n}, {"cols", cols}});
        check_gather(rng, dtype, n, cols, rows());
        if (dtype > DType::complex128) continue;  // bool and quantized types are only copied
        check_segment_sum(rng, dtype, n, cols, rows());
        check_scatter(rng, dtype, n, cols, rows());
        if (dtype <= DType::float64) check_dots(rng, dtype, n, cols, rows());
      }
      check_positions(rng, n, 50);
    }
  EXPECT_OUTPUT(positions(ids_of({}), ids_of({})), 0, ids_of({}));
}

void test_large(Rng& rng) {
  const Where where("large");
  check_segment_sum(rng, DType::float32, kLarge, 3, 20000);
  check_scatter(rng, DType::float16, kLarge, 3, 5000);
  check_gather(rng, DType::float32, kLarge, 3, 5000);
  check_dots(rng, DType::float64, kLarge, 3, 50000);
  if (kSanitized) return;
  check_segment_sum(rng, DType::complex64, kLarge, 3, 50);
  check_scatter(rng, DType::int16, kLarge, 3, 50);
  check_gather(rng, DType::quint8, kLarge, 1, 50);
  check_positions(rng, kLarge, 100000);
}

void test_faults(Rng& rng, std::int64_t n) {
  const Tensor data = random_tensor(rng, DType::float32, {n, 2}), table = random_tensor(rng, DType::float32, {10, 2});
  const auto segments = sorted_ids(rng, n, n), indices = random_ids(rng, n, 10);
  const std::int64_t middle = n / 2, late = n - 1;
  auto with = [](Numbers64 ids, std::int64_t at, std::int64_t bad) {
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

  const auto out = vector_of(DType::float32, n);
  for (std::int64_t bad : {std::int64_t{-1}, std::int64_t{10}, std::int64_t{INT32_MIN}})
    for (bool wide : {false, true}) {
      if (kSanitized && n == kLarge && (bad != 10 || wide)) continue;
      // Two faults, far apart: the first is reported, whichever thread finds it.
      const Tensor ids = ids_of(with(with(indices, late, 10), middle, bad), wide);
      EXPECT_FAULT(gather(table, ids), Fault::index_not_in_params, middle, bad, 10);
      EXPECT_FAULT(scatter(data, ids, 10), Fault::index_not_in_output, middle, bad, 10);
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
  for (std::int64_t n : {std::int64_t{7}, kLarge}) test_faults(rng, n);
  set_num_threads(1);
  return test::finish();
}
