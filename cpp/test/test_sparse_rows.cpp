// {Sparse,Ragged}FillEmptyRows, their gradient and its transpose.
#include "rowgrad/sparse_rows.h"

#include "call.h"
#include "random.h"

using namespace test;

namespace {

Tensor random_bits(Rng& rng, DType dtype, Shape shape) {
  Tensor t(dtype, std::move(shape));
  for (std::byte& b : t.bytes) b = std::byte(rng.bits() & (dtype == DType::bool_ ? 1 : 255));
  return t;
}

// Ragged calls give row ids as a vector and the number of rows as a scalar; rank is then 0.
Result fill(const Tensor& indices, const Tensor& values, std::int64_t rows, std::int64_t rank, const Tensor& fallback) {
  const Tensor shape = rank == 0 ? scalar(rows) : vector_of([&] {
    std::vector<std::int64_t> dims(static_cast<std::size_t>(rank), 9);
    dims[0] = rows;
    return dims;
  }());
  return run_same("fill_empty_rows", {}, {indices, values, shape, fallback}, [&](std::int64_t n) {
    return std::vector{Tensor(DType::int64, rank == 0 ? Shape{n} : Shape{n, rank}), Tensor(values.dtype, {n}),
                       Tensor(DType::bool_, {rows}), Tensor(DType::int64, {indices.shape[0]})};
  });
}

void check_fill(Rng& rng, DType dtype, std::int64_t n, std::int64_t rows, std::int64_t rank) {
  const Where where("fill", {{"dtype", int(dtype)}, {"n", n}, {"rows", rows}, {"rank", rank}});
  const std::int64_t cols = std::max<std::int64_t>(rank, 1), width = width_of(dtype);
  Tensor indices(DType::int64, rank == 0 ? Shape{n} : Shape{n, rank});
  for (std::int64_t i = 0; i < n * cols; ++i) indices.as<std::int64_t>()[i] = rng.below(i % cols ? 9 : rows);
  const Tensor values = random_bits(rng, dtype, {n}), fallback = random_bits(rng, dtype, {});

  // Row by row: its entries in input order, or one entry of the fallback at column 0.
  std::vector<std::vector<std::int64_t>> entries(static_cast<std::size_t>(rows));
  for (std::int64_t i = 0; i < n; ++i) entries[indices.as<std::int64_t>()[i * cols]].push_back(i);
  std::vector<std::int64_t> out_indices, map(static_cast<std::size_t>(n));
  std::vector<std::byte> out_values;
  Tensor empty(DType::bool_, {rows});
  std::int64_t k = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    empty.as<bool>()[r] = entries[r].empty();
    if (entries[r].empty()) {
      out_indices.push_back(r);
      out_indices.resize(out_indices.size() + static_cast<std::size_t>(cols - 1));
      out_values.insert(out_values.end(), fallback.bytes.begin(), fallback.bytes.end());
      ++k;
    }
    for (std::int64_t i : entries[r]) {
      const auto* row = indices.as<std::int64_t>() + i * cols;
      out_indices.insert(out_indices.end(), row, row + cols);
      out_values.insert(out_values.end(), values.bytes.begin() + i * width, values.bytes.begin() + (i + 1) * width);
      map[i] = k++;
    }
  }
  const Result r = fill(indices, values, rows, rank, fallback);
  EXPECT_EQ(r.status.fault, Fault::none);
  if (!EXPECT_EQ(r.rows, k)) return;
  EXPECT_SAME(r.out[0], tensor(out_indices, r.out[0].shape));
  EXPECT(r.out[1].bytes == out_values);
  EXPECT_SAME(r.out[2], empty);
  EXPECT_SAME(r.out[3], ids_of(map));
}

Result gradient(const Tensor& map, const Tensor& grad) {
  return run_same("fill_empty_rows_grad", {}, {map, grad}, [&](std::int64_t) {
    return std::vector{Tensor(grad.dtype, {map.shape[0]}), Tensor(grad.dtype, {})};
  });
}

Result transpose(const Tensor& map, const Tensor& values, const Tensor& fallback, const Tensor& grad) {
  return run_same("fill_empty_rows_grad_grad", {}, {map, values, fallback, grad},
                  [&](std::int64_t) { return std::vector{Tensor(grad.dtype, grad.shape)}; });
}

// A map of n entries into `length` positions: distinct ones as FillEmptyRows gives, or any.
std::vector<std::int64_t> random_map(Rng& rng, std::int64_t n, std::int64_t length, bool distinct) {
  if (!distinct) return random_ids(rng, n, length);
  std::vector<std::int64_t> all(static_cast<std::size_t>(length));
  for (std::int64_t i = 0; i < length; ++i) all[i] = i;
  for (std::int64_t i = 0; i < length; ++i) std::swap(all[i], all[rng.below(i + 1)]);
  all.resize(static_cast<std::size_t>(n));
  return all;
}

template <class T>
void check_gradient(Rng& rng, std::int64_t n, std::int64_t length, bool distinct) {
  using A = Accumulator<T>;
  const Where where("gradient", {{"dtype", int(code_of<T>())}, {"n", n}, {"length", length}, {"distinct", distinct}});
  const auto map = random_map(rng, n, length, distinct);
  const auto grad = random_values<T>(rng, length), values = random_values<T>(rng, n);
  const T fallback = random_value<T>(rng);
  std::vector<std::vector<std::int64_t>> named(static_cast<std::size_t>(length));
  for (std::int64_t i = 0; i < n; ++i) named[map[i]].push_back(i);

  // d_values picks; d_default_value is the sum of what is not named, rounded to T at every step.
  std::vector<T> picked, back;
  T rest{};
  for (std::int64_t j : map) picked.push_back(grad[j]);
  for (std::int64_t j = 0; j < length; ++j) {
    if (named[j].empty()) {
      rest = store<T>(plus(load(rest), load(grad[j])));
      back.push_back(fallback);
      continue;
    }
    // The transpose: one value is copied, more are summed in input order and rounded once.
    A sum = load(values[named[j][0]]);
    for (std::size_t k = 1; k < named[j].size(); ++k) sum = plus<A>(sum, load(values[named[j][k]]));
    back.push_back(named[j].size() == 1 ? values[named[j][0]] : store<T>(sum));
  }
  const Result r = gradient(ids_of(map), vector_of(grad));
  EXPECT_EQ(r.status.fault, Fault::none);
  EXPECT_SAME(r.out[0], vector_of(picked));
  EXPECT_SAME(r.out[1], scalar(rest));
  const Result t = transpose(ids_of(map), vector_of(values), scalar(fallback), vector_of(grad));
  EXPECT_EQ(t.status.fault, Fault::none);
  EXPECT_SAME(t.out[0], vector_of(back));
}

void test_values(Rng& rng) {
  for (std::int64_t n : {0, 1, 3, 200}) {
    for (int code = 0; code <= int(DType::qint32); ++code)
      for (std::int64_t rank : {0, 1, 2, 4}) check_fill(rng, DType(code), n, 1 + rng.below(2 * n + 1), rank);
    each_type(Numbers{}, [&]<class T>(std::type_identity<T>) {
      for (std::int64_t more : {0, 1, 50})
        for (bool distinct : {true, false})
          if (n + more > 0) check_gradient<T>(rng, n, n + more, distinct);
    });
  }
  check_fill(rng, DType::float32, 0, 0, 2);  // nothing at all
}

void test_large(Rng& rng) {
  check_fill(rng, DType::float32, 200000, 150000, 2);
  check_fill(rng, DType::complex128, 150000, 300000, 0);
  for (bool distinct : {true, false}) check_gradient<float>(rng, 200000, 300000, distinct);
  check_gradient<half>(rng, 100000, 300000, false);
}

void test_faults(Rng& rng, std::int64_t n) {
  const std::int64_t rows = 40, early = n / 3, late = n - 1;
  const Tensor values = vector_of(random_values<float>(rng, n)), fallback = scalar(1.5f);
  for (std::int64_t bad : {std::int64_t{-1}, rows, INT64_MAX, INT64_MIN}) {
    const Where where("faults", {{"n", n}, {"bad", bad}});
    // Two faults in different threads' shares: the first is told.
    auto ids = random_ids(rng, n, rows);
    ids[late] = rows;
    ids[early] = bad;
    EXPECT_FAULT(fill(ids_of(ids), values, rows, 0, fallback), Fault::row_not_in_shape, early, bad, rows);
    EXPECT_FAULT(fill(ids_of(ids), values, 0, 0, fallback), Fault::row_not_in_shape, 0, ids[0], 0);
    const Tensor grad = vector_of(random_values<float>(rng, rows));
    EXPECT_FAULT(gradient(ids_of(ids), grad), Fault::reverse_index_not_in_grad, early, bad, rows);
    EXPECT_FAULT(transpose(ids_of(ids), values, fallback, grad), Fault::reverse_index_not_in_grad, early, bad, rows);
  }
  // More rows than the machine could hold, but only where the ids are good.
  const std::int64_t absurd = std::int64_t{1} << 60;
  auto ids = random_ids(rng, n, rows);
  EXPECT_EQ(fill(ids_of(ids), values, absurd, 0, fallback).status.fault, Fault::out_of_memory);
  ids[early] = -1;
  EXPECT_FAULT(fill(ids_of(ids), values, absurd, 0, fallback), Fault::row_not_in_shape, early, -1, absurd);
}

}  // namespace

int main() {
  const FlushSubnormals flush;
  Rng rng(7);
  test_values(rng);
  test_large(rng);
  for (std::int64_t n : {7, 200000}) test_faults(rng, n);
  set_num_threads(1);
  return test::finish();
}
