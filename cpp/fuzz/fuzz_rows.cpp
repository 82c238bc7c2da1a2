// Whole rows and bags by offsets: gather, scatter, positions, stacking, inner products, roots.
#include "../test/naive.h"
#include "input.h"

using namespace fuzz;
using test::ids_of;
using test::scalar_of;
using test::table_of;

namespace {

void gather(Input& in) {
  const DType dtype = in.pick(test::all_dtypes());
  const std::int64_t rows = in.below(30), cols = in.columns(), n = in.length();
  const bool wide = in.flag();
  const Numbers64 ids = in.ids(n, std::max<std::int64_t>(rows, 1), !wide);
  const Tensor params = in.values(dtype, {rows, cols});
  const Result r = test::run("gather_rows", {}, {params, ids_of(ids, wide)}, table_of(dtype, n, cols));
  if (!accepted(r, all_in(ids, rows))) return;
  Tensor expected(dtype, {n, cols});
  for (std::int64_t i = 0; i < n; ++i) expected.copy(i * cols, params, ids[i] * cols, cols);
  EXPECT(same_bits(r.out[0], expected));
}

void scatter(Input& in) {
  const DType dtype = in.pick(Numbers::list());
  const std::int64_t rows = in.below(300), cols = in.columns(), n = in.length();
  const bool wide = in.flag();
  const Numbers64 ids = in.ids(n, std::max<std::int64_t>(rows, 1), !wide);
  const Tensor grad = in.values(dtype, {n, cols});
  bound_result(rows, cols);
  const Result r =
      test::run("scatter_rows", {}, {grad, ids_of(ids, wide), scalar_of(rows, wide)}, table_of(dtype, rows, cols));
  if (!accepted(r, all_in(ids, rows))) return;
  Tensor expected(dtype, {rows, cols});
  visit(Numbers{}, dtype, [&]<class T>(std::type_identity<T>) {
    std::vector<Accumulator<T>> sum(static_cast<std::size_t>(rows * cols));
    for (std::int64_t i = 0; i < n * cols; ++i) {
      auto& s = sum[ids[i / cols] * cols + i % cols];
      s = naive::added(s, load(grad.as<T>()[i]));
    }
    for (std::int64_t i = 0; i < rows * cols; ++i) expected.as<T>()[i] = store<T>(sum[i]);
  });
  EXPECT(same_numbers(r.out[0], expected));
}

void positions(Input& in) {
  const std::int64_t m = in.length(), n = in.length();
  const bool wide = in.flag(), ascending = in.flag();
  Numbers64 list = in.ids(m, 400, !wide, ascending);
  if (ascending) list.erase(std::unique(list.begin(), list.end()), list.end());
  const Numbers64 ids = in.ids(n, 400, !wide);
  const Result r = test::run("row_positions", {}, {ids_of(list, wide), ids_of(ids, wide)}, [&](std::int64_t) {
    return std::vector<Tensor>{Tensor(DType::int64, {n})};
  });
  if (!is_non_decreasing(list)) return;  // any result is fine as long as no access is out of bounds
  Numbers64 at;
  for (std::int64_t id : ids) {
    const auto found = std::find(list.begin(), list.end(), id);
    if (found != list.end()) at.push_back(found - list.begin());
  }
  if (accepted(r, at.size() == ids.size())) EXPECT(same_bits(r.out[0], ids_of(at)));
}

void offsets(Input& in) {
  const std::int64_t bags = in.length(), n = in.length();
  const bool wide = in.flag(), has_end = in.flag();
  const Numbers64 list = in.ids(bags, n + 1, !wide, in.flag());
  const Result r =
      test::run("segment_ids_from_offsets", {has_end}, {ids_of(list, wide), scalar_of(n)}, [&](std::int64_t) {
        return std::vector<Tensor>{Tensor(wide ? DType::int64 : DType::int32, {n})};
      });
  const bool ends = list.empty() ? n == 0 && !has_end : has_end ? list.back() == n : list.back() <= n;
  const bool valid = ends && is_non_decreasing(list) && (list.empty() || list[0] == 0);
  if (!accepted(r, valid)) return;
  Numbers64 expected;
  for (std::int64_t i = 0; i < n; ++i)
    expected.push_back(std::int64_t(std::upper_bound(list.begin(), list.end(), i) - list.begin()) - 1);
  EXPECT(same_bits(r.out[0], ids_of(expected, wide)));
}

void stack(Input& in) {
  const std::int64_t features = 1 + in.below(5), examples = in.below(9), n = in.length();
  const bool wide = in.flag(), wide_segments = in.flag(), wants_positions = in.flag();
  Numbers64 ends = in.ids(features * examples, n + 1, false, true), rows, first;
  ends.insert(ends.begin(), 0);
  if (in.flag()) ends.back() = n;
  for (std::int64_t f = 0; f < features; ++f) {
    rows.push_back(in.flag() ? in.number(40) : 1 + in.below(40));
    first.push_back(in.flag() ? in.number(40) : in.below(99));
  }
  const Numbers64 ids = in.ids(n, 8, !wide);
  const Result r = test::run("stack_bags", {wants_positions},
                             {ids_of(ids, wide), ids_of(ends), ids_of(rows), ids_of(first)}, [&](std::int64_t) {
                               return std::vector<Tensor>{
                                   Tensor(wide ? DType::int64 : DType::int32, {n}),
                                   Tensor(wide_segments ? DType::int64 : DType::int32, {n}),
                                   Tensor(DType::int64, {wants_positions ? n : 0})};
                             });
  const __int128 limit = wide ? INT64_MAX : INT32_MAX;
  bool valid = ends[0] == 0 && is_non_decreasing(ends) && ends.back() == n;
  for (std::int64_t f = 0; f < features && valid; ++f) {
    valid = rows[f] >= 0 && first[f] >= 0 && __int128(rows[f]) + first[f] <= limit;
  }
  Numbers64 stacked, bags, from;
  for (std::int64_t b = 0; valid && b < examples; ++b)
    for (std::int64_t f = 0; f < features; ++f)
      for (std::int64_t i = ends[f * examples + b]; i < ends[f * examples + b + 1]; ++i) {
        valid &= ids[i] >= 0 && ids[i] < rows[f];
        stacked.push_back(valid ? ids[i] + first[f] : 0);
        bags.push_back(b * features + f);
        from.push_back(i);
      }
  if (!accepted(r, valid)) return;
  EXPECT(same_bits(r.out[0], ids_of(stacked, wide)));
  EXPECT(same_bits(r.out[1], ids_of(bags, wide_segments)));
  if (wants_positions) EXPECT(same_bits(r.out[2], ids_of(from)));
}

void dot(Input& in) {
  const DType dtype = in.pick(Floats::list());
  const std::int64_t rows = in.below(20), bags = in.below(20), cols = in.columns(), n = in.length();
  const bool wide = in.flag(), whole = in.flag();
  const Numbers64 indices = in.ids(n, std::max<std::int64_t>(rows, 1), !wide);
  const Numbers64 segments = in.ids(n, std::max<std::int64_t>(bags, 1), !wide);
  const Tensor grad = in.values(dtype, {whole ? n : bags, cols}), data = in.values(dtype, {whole ? n : rows, cols});
  const DType sums = dtype == DType::float64 ? dtype : DType::float32;
  const auto outputs = [&](std::int64_t) { return std::vector<Tensor>{Tensor(sums, {n})}; };
  const Result r = whole ? test::run("row_dot", {}, {grad, data}, outputs)
                         : test::run("sparse_segment_dot", {},
                                     {grad, data, ids_of(indices, wide), ids_of(segments, wide)}, outputs);
  if (!accepted(r, whole || (all_in(indices, rows) && all_in(segments, bags)))) return;
  Tensor expected(sums, {n});
  visit(Floats{}, dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t i = 0; i < n; ++i)
      expected.as<Accumulator<T>>()[i] = naive::dot(grad.as<T>() + (whole ? i : segments[i]) * cols,
                                                    data.as<T>() + (whole ? i : indices[i]) * cols, cols);
  });
  EXPECT(same_numbers(r.out[0], expected));
}

void roots(Input& in) {
  const DType dtype = in.pick(Floats::list());
  const std::int64_t n = in.length();
  const Tensor x = in.values(dtype, {n});
  const Result r = test::run("sqrt", {}, {x}, [&](std::int64_t) { return std::vector<Tensor>{Tensor(dtype, {n})}; });
  if (!accepted(r, true)) return;
  Tensor expected(dtype, {n});
  visit(Floats{}, dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t i = 0; i < n; ++i) expected.as<T>()[i] = store<T>(std::sqrt(load(x.as<T>()[i])));
  });
  EXPECT(same_numbers(r.out[0], expected));
}

void one(Input& in) {
  static constexpr void (*calls[])(Input&) = {gather, scatter, positions, offsets, stack, dot, roots};
  calls[in.below(std::int64_t(std::size(calls)))](in);
}

}  // namespace

FUZZ_TARGET(one)
