// {Sparse,Ragged}FillEmptyRows, their gradient and its transpose.
#include "naive_bags.h"

using namespace fuzz;
using test::ids_of;

namespace {

void fill(Input& in) {
  const DType dtype = in.pick(test::all_dtypes());
  const std::int64_t rank = in.below(4), cols = std::max<std::int64_t>(rank, 1), n = in.length();  // 0: ragged
  const std::int64_t rows = in.byte() % 8 == 7 ? in.number(50) : in.below(700);
  Tensor indices(DType::int64, rank == 0 ? Shape{n} : Shape{n, rank});
  const std::int64_t bound = rows > 0 && rows < 5000 ? rows : 50;
  const Numbers64 row_ids = in.ids(n, bound, false, in.flag());
  for (std::int64_t i = 0; i < n * cols; ++i)
    indices.as<std::int64_t>()[i] = i % cols ? in.number(9) : row_ids[i / cols];
  Numbers64 dims(static_cast<std::size_t>(cols), 9);
  dims[0] = rows;
  Tensor shape = ids_of(dims);
  if (rank == 0) shape.shape.clear();
  const Tensor values = in.values(dtype, {n}), fallback = in.values(dtype, {});
  const Result r = test::run("fill_empty_rows", {}, {indices, values, shape, fallback}, [&](std::int64_t total) {
    bound_result(total, cols);
    bound_result(rows);
    return std::vector<Tensor>{Tensor(DType::int64, rank == 0 ? Shape{total} : Shape{total, rank}),
                               Tensor(dtype, {total}), Tensor(DType::bool_, {rows}), Tensor(DType::int64, {n})};
  });
  // More rows than fit into memory are rejected, and so is a negative number, which shapes never have.
  if (!accepted(r, all_in(row_ids, rows) && rows >= 0)) return;
  const naive::Groups groups(row_ids, rows);
  std::int64_t total = n, k = 0;
  for (std::int64_t row = 0; row < rows; ++row) total += groups.size(row) == 0;
  Tensor out_indices(DType::int64, rank == 0 ? Shape{total} : Shape{total, rank}), out_values(dtype, {total});
  Tensor empty(DType::bool_, {rows}), map(DType::int64, {n});
  for (std::int64_t row = 0; row < rows; ++row) {
    if (groups.size(row) == 0) {
      empty.as<bool>()[row] = true;
      out_indices.as<std::int64_t>()[k * cols] = row;
      out_values.copy(k++, fallback, 0);
    }
    for (std::int64_t g = groups.start[row]; g < groups.start[row + 1]; ++g, ++k) {
      out_indices.copy(k * cols, indices, groups.at[g] * cols, cols);
      out_values.copy(k, values, groups.at[g]);
      map.as<std::int64_t>()[groups.at[g]] = k;
    }
  }
  EXPECT_EQ(r.rows, total);
  EXPECT(same_bits(r.out[0], out_indices));
  EXPECT(same_bits(r.out[1], out_values));
  EXPECT(same_bits(r.out[2], empty));
  EXPECT(same_bits(r.out[3], map));
}

void gradients(Input& in) {
  const DType dtype = in.pick(Numbers::list());
  const std::int64_t n = in.length(), length = in.flag() ? n + in.below(9) : in.below(700);
  Numbers64 map = in.ids(n, std::max<std::int64_t>(length, 1), false, in.flag());
  const bool distinct = in.flag();  // distinct and with gaps, as FillEmptyRows returns them
  for (std::int64_t i = 0, at = 0; distinct && i < n; ++i) map[i] = at += i > 0 || map[i] % 4 == 1 ? 1 + (map[i] % 16 == 3) : 0;
  const Tensor grad = in.values(dtype, {length}), values = in.values(dtype, {n}), fallback = in.values(dtype, {});
  const Result r = test::run("fill_empty_rows_grad", {}, {ids_of(map), grad}, [&](std::int64_t) {
    return std::vector<Tensor>{Tensor(dtype, {n}), Tensor(dtype, {})};
  });
  const Result back_r = test::run("fill_empty_rows_grad_grad", {}, {ids_of(map), values, fallback, grad},
                                  [&](std::int64_t) { return std::vector<Tensor>{Tensor(dtype, {length})}; });
  const bool valid = all_in(map, length);
  if (!accepted(r, valid) || !accepted(back_r, valid)) return;
  const naive::Groups entries_at(map, length);
  Tensor picked(dtype, {n}), rest(dtype, {}), back(dtype, {length});
  for (std::int64_t i = 0; i < n; ++i) picked.copy(i, grad, map[i]);
  visit(Numbers{}, dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t j = 0; j < length; ++j) {
      if (entries_at.size(j) == 0) {
        *rest.as<T>() = store<T>(naive::added(load(*rest.as<T>()), load(grad.as<T>()[j])));
        back.copy(j, fallback, 0);
        continue;
      }
      back.copy(j, values, entries_at.at[entries_at.start[j]]);
      if (entries_at.size(j) < 2) continue;
      auto sum = load(values.as<T>()[entries_at.at[entries_at.start[j]]]);
      for (std::int64_t g = entries_at.start[j] + 1; g < entries_at.start[j + 1]; ++g)
        sum = naive::added(sum, load(values.as<T>()[entries_at.at[g]]));
      back.as<T>()[j] = store<T>(sum);
    }
  });
  EXPECT(same_bits(r.out[0], picked));
  EXPECT(same_numbers(r.out[1], rest));
  EXPECT(same_numbers(back_r.out[0], back));
}

void one(Input& in) { in.flag() ? fill(in) : gradients(in); }

}  // namespace

FUZZ_TARGET(one)
