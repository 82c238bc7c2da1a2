// {Sparse,Ragged}FillEmptyRows, their gradient and its transpose.
#include "rowgrad/sparse_rows.h"

#include "call.h"
#include "naive.h"

using namespace test;

namespace {

// Ragged calls (rank 0) pass row ids as a vector and the number of rows as a scalar.
Result fill(const Tensor& indices, const Tensor& values, std::int64_t rows, std::int64_t rank, const Tensor& fallback) {
  Numbers64 dims(static_cast<std::size_t>(std::max<std::int64_t>(rank, 1)), 9);
  dims[0] = rows;
  Tensor shape = ids_of(dims);
  if (rank == 0) shape.shape.clear();
  return run_same("fill_empty_rows", {}, {indices, values, shape, fallback}, [&](std::int64_t n) {
    return std::vector<Tensor>{Tensor(DType::int64, rank == 0 ? Shape{n} : Shape{n, rank}), Tensor(values.dtype, {n}),
                               Tensor(DType::bool_, {rows}), Tensor(DType::int64, {indices.rows()})};
  });
}

void check_fill(Rng& rng, DType dtype, std::int64_t n, std::int64_t rows, std::int64_t rank) {
  const Where where("fill", {{"dtype", int(dtype)}, {"n", n}, {"rows", rows}, {"rank", rank}});
  const std::int64_t cols = std::max<std::int64_t>(rank, 1);
  Tensor indices(DType::int64, rank == 0 ? Shape{n} : Shape{n, rank});
  Numbers64 row_ids;
  for (std::int64_t i = 0; i < n * cols; ++i) {
    indices.as<std::int64_t>()[i] = rng.below(i % cols ? 9 : rows);
    if (i % cols == 0) row_ids.push_back(indices.as<std::int64_t>()[i]);
  }
  const Tensor values = random_tensor(rng, dtype, {n}), fallback = random_tensor(rng, dtype, {});

  // Row by row: its entries in input order, or one default entry at column 0.
  const naive::Groups groups(row_ids, rows);
  std::int64_t total = n;
  for (std::int64_t r = 0; r < rows; ++r) total += groups.size(r) == 0;
  Tensor out_indices(DType::int64, rank == 0 ? Shape{total} : Shape{total, rank}), out_values(dtype, {total});
  Tensor empty(DType::bool_, {rows}), map(DType::int64, {n});
  for (std::int64_t r = 0, k = 0; r < rows; ++r) {
    if (groups.size(r) == 0) {
      empty.as<bool>()[r] = true;
      out_indices.as<std::int64_t>()[k * cols] = r;
      out_values.copy(k++, fallback, 0);
    }
    for (std::int64_t g = groups.start[r]; g < groups.start[r + 1]; ++g, ++k) {
      out_indices.copy(k * cols, indices, groups.at[g] * cols, cols);
      out_values.copy(k, values, groups.at[g]);
      map.as<std::int64_t>()[groups.at[g]] = k;
    }
  }
  const Result r = fill(indices, values, rows, rank, fallback);
  EXPECT_EQ(r.rows, total);
  EXPECT_OUTPUT(r, 0, out_indices);
  EXPECT_OUTPUT(r, 1, out_values);
  EXPECT_OUTPUT(r, 2, empty);
  EXPECT_OUTPUT(r, 3, map);
}

Result gradient(const Tensor& map, const Tensor& grad) {
  return run_same("fill_empty_rows_grad", {}, {map, grad}, [&](std::int64_t) {
    return std::vector<Tensor>{Tensor(grad.dtype, {map.rows()}), Tensor(grad.dtype, {})};
  });
}

Result transpose(const Tensor& map, const Tensor& values, const Tensor& fallback, const Tensor& grad) {
  return run_same("fill_empty_rows_grad_grad", {}, {map, values, fallback, grad},
                  [&](std::int64_t) { return std::vector<Tensor>{Tensor(grad.dtype, grad.shape)}; });
}

// A map of n entries into `length` positions: distinct ones as FillEmptyRows returns, or random ones.
Numbers64 random_map(Rng& rng, std::int64_t n, std::int64_t length, bool distinct) {
  if (!distinct) return random_ids(rng, n, length);
  Numbers64 all;
  for (std::int64_t i = 0; i < length; ++i) all.push_back(i);
  for (std::int64_t i = 0; i < length; ++i) std::swap(all[i], all[rng.below(i + 1)]);
  all.resize(static_cast<std::size_t>(n));
  return all;
}

void check_gradient(Rng& rng, DType dtype, std::int64_t n, std::int64_t length, bool distinct) {
  const Where where("gradient", {{"dtype", int(dtype)}, {"n", n}, {"length", length}, {"distinct", distinct}});
  const auto map = random_map(rng, n, length, distinct);
  const naive::Groups entries_at(map, length);
  const Tensor grad = random_tensor(rng, dtype, {length}), values = random_tensor(rng, dtype, {n});
  const Tensor fallback = random_tensor(rng, dtype, {});
  // d_values copies; d_default_value sums the unmapped positions, rounded to T at every step. The transpose copies
  // where one value is mapped; several are summed in input order and rounded once.
  Tensor picked(dtype, {n}), rest(dtype, {}), back(dtype, {length});
  for (std::int64_t i = 0; i < n; ++i) picked.copy(i, grad, map[i]);
  for (std::int64_t j = 0; j < length; ++j)
    if (entries_at.size(j) == 0)
      back.copy(j, fallback, 0);
    else
      back.copy(j, values, entries_at.at[entries_at.start[j]]);
  visit(Numbers{}, dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t j = 0; j < length; ++j) {
      if (entries_at.size(j) == 0) *rest.as<T>() = store<T>(naive::added(load(*rest.as<T>()), load(grad.as<T>()[j])));
      if (entries_at.size(j) < 2) continue;
      auto sum = load(values.as<T>()[entries_at.at[entries_at.start[j]]]);
      for (std::int64_t g = entries_at.start[j] + 1; g < entries_at.start[j + 1]; ++g)
        sum = naive::added(sum, load(values.as<T>()[entries_at.at[g]]));
      back.as<T>()[j] = store<T>(sum);
    }
  });
  const Result r = gradient(ids_of(map), grad);
  EXPECT_OUTPUT(r, 0, picked);
  EXPECT_OUTPUT(r, 1, rest);
  EXPECT_OUTPUT(transpose(ids_of(map), values, fallback, grad), 0, back);
}

// A position that is mapped once keeps its bits even if others are sums: here a NaN that no conversion returns.
void test_single_value_keeps_bits() {
  Tensor values(DType::float16, {3}), expected(DType::float16, {2});
  const std::uint16_t bits[] = {0x3c00, 0x7d01, 0x3c00};  // 1, NaN, 1
  std::memcpy(values.at(0), bits, sizeof bits);
  const std::uint16_t back[] = {0x4000, 0x7d01};  // 2, NaN
  std::memcpy(expected.at(0), back, sizeof back);
  const Tensor fallback(DType::float16, {}), grad(DType::float16, {2});
  EXPECT_OUTPUT(transpose(ids_of({0, 1, 0}), values, fallback, grad), 0, expected);
}

void test_values(Rng& rng) {
  for (std::int64_t n : {0, 1, 3, 200}) {
    for (DType dtype : all_dtypes())
      for (std::int64_t rank : {0, 1, 2, 4}) check_fill(rng, dtype, n, 1 + rng.below(2 * n + 1), rank);
    for (DType dtype : Numbers::list())
      for (std::int64_t more : {0, 1, 50})
        for (bool distinct : {true, false})
          if (n + more > 0) check_gradient(rng, dtype, n, n + more, distinct);
  }
  check_fill(rng, DType::float32, 0, 0, 2);  // empty
}

void test_large(Rng& rng) {
  check_fill(rng, DType::float32, kLarge, 150000, 2);
  for (bool distinct : {true, false}) check_gradient(rng, DType::float32, kLarge, kLarge + 50000, distinct);
  if (kSanitized) return;
  check_fill(rng, DType::complex128, kLarge, 300000, 0);
  check_gradient(rng, DType::float16, kLarge, 300000, false);
}

void test_faults(Rng& rng, std::int64_t n) {
  const std::int64_t rows = 40, early = n / 3, late = n - 1;
  const Tensor values = random_tensor(rng, DType::float32, {n}), fallback = random_tensor(rng, DType::float32, {});
  const Tensor grad = random_tensor(rng, DType::float32, {rows});
  for (std::int64_t bad : {std::int64_t{-1}, rows, INT64_MAX, INT64_MIN}) {
    const Where where("faults", {{"n", n}, {"bad", bad}});
    // Two faults in different threads' parts: the first is reported.
    auto ids = random_ids(rng, n, rows);
    ids[late] = rows;
    ids[early] = bad;
    EXPECT_FAULT(fill(ids_of(ids), values, rows, 0, fallback), Fault::row_not_in_shape, early, bad, rows);
    EXPECT_FAULT(fill(ids_of(ids), values, 0, 0, fallback), Fault::row_not_in_shape, 0, ids[0], 0);
    EXPECT_FAULT(gradient(ids_of(ids), grad), Fault::reverse_index_not_in_grad, early, bad, rows);
    EXPECT_FAULT(transpose(ids_of(ids), values, fallback, grad), Fault::reverse_index_not_in_grad, early, bad, rows);
  }
  // More rows than fit into memory are rejected, but a bad id is reported first.
  const std::int64_t absurd = std::int64_t{1} << 60;
  auto ids = random_ids(rng, n, rows);
  EXPECT_EQ(fill(ids_of(ids), values, absurd, 0, fallback).status.fault, Fault::out_of_memory);
  ids[early] = -1;
  EXPECT_FAULT(fill(ids_of(ids), values, absurd, 0, fallback), Fault::row_not_in_shape, early, -1, absurd);
}

// Sizes beyond any machine's memory are rejected before anything is allocated.
void test_absurd_sizes() {
  const Tensor value(DType::float32, {1}), no_values(DType::float32, {0}), fallback(DType::float32, {});
  EXPECT_FAULT(fill(ids_of({}), no_values, -1, 0, fallback), Fault::out_of_memory, -1, -1, memory_limit());
  EXPECT_FAULT(fill(ids_of({5}), value, -7, 0, fallback), Fault::out_of_memory, -1, -7, memory_limit());
  // As many positions as the machine has bytes: rejected before their gaps are counted.
  const Tensor map = ids_of({0, 1, 2});
  const Shape shape{memory_limit()};
  const std::vector<Array> in{map.view(), {nullptr, DType::int8, shape}};
  FillEmptyRowsGrad kernel;
  kernel.in = in;
  const Status status = guarded([&] { return kernel.check(); });
  EXPECT_EQ(status.fault, Fault::out_of_memory);
  EXPECT_EQ(status.value, memory_limit());
}

}  // namespace

int main() {
  const FlushSubnormals flush;
  Rng rng(7);
  test_values(rng);
  test_single_value_keeps_bits();
  test_absurd_sizes();
  test_large(rng);
  for (std::int64_t n : {std::int64_t{7}, kLarge}) test_faults(rng, n);
  set_num_threads(1);
  return test::finish();
}
