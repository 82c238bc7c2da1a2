// Sums of bags: SparseSegment* with and without num_segments, transposes of the gradients, weighted bags, SegmentSum.
#include "naive_bags.h"

using namespace fuzz;
using test::scalar_of;
using test::table_of;

namespace {

// Returns the reduced row of every segment below `rows`.
Tensor expected_bags(const Tensor& data, const BagIds& b, Reduction kind, std::int64_t rows, const Tensor* weights) {
  const std::int64_t cols = data.cols();
  Tensor out(data.dtype, {rows, cols});
  std::map<std::int64_t, Numbers64> members;
  for (std::int64_t i = 0; i < b.size(); ++i) members[b.segments[i]].push_back(i);
  for (const auto& member : members) {  // not a structured binding: lambdas cannot capture those in clang 14
    const std::int64_t segment = member.first;
    const Numbers64& at = member.second;
    Numbers64 ids;
    for (std::int64_t i : at) ids.push_back(b.indices[i]);
    const auto n = std::int64_t(ids.size());
    if (weights)
      visit(Floats{}, data.dtype, [&]<class T>(std::type_identity<T>) {
        const NaiveWeights<Accumulator<T>> w(*weights, b.segments, rows, kind);
        std::vector<Accumulator<T>> own;
        for (std::int64_t i : at) own.push_back(w.values[i]);
        naive::weighted_reduce(out.as<T>() + segment * cols, data.as<T>(), cols, ids.data(), own.data(), n,
                               w.total_or_null() ? &w.totals[segment] : nullptr);
      });
    else
      visit(Reals{}, data.dtype, [&]<class T>(std::type_identity<T>) {
        naive::reduce(out.as<T>() + segment * cols, data.as<T>(), cols, ids.data(), n, kind);
      });
  }
  return out;
}

// Returns the number of output rows, or -1 if the ids must be rejected. int32 segment ids are counted in int32.
std::int64_t forward_rows(const BagIds& b, bool wide_indices, const std::int64_t* num_segments) {
  const std::int64_t last = b.segments.empty() ? -1 : b.segments.back();
  const std::int64_t limit = wide_indices ? INT64_MAX : INT32_MAX;
  if (last >= limit || (!b.wide_segments && last == INT32_MAX)) return -1;
  if (num_segments && (*num_segments < last + 1 || *num_segments < 0 || *num_segments > INT32_MAX)) return -1;
  const std::int64_t rows = num_segments ? *num_segments : last + 1;
  return is_non_decreasing(b.segments) && all_in(b.segments, rows) ? rows : -1;
}

void forward(Input& in) {
  const DType dtype = in.pick(Reals::list());
  const std::int64_t rows = in.below(40), cols = in.columns(), n = in.length();
  const Reduction kind = dtype <= DType::float64 ? Reduction(in.below(3)) : Reduction::sum;
  const BagIds b(in, n, rows, 1 + in.below(60), in.byte() % 8 != 7);
  const Tensor data = in.values(dtype, {rows, cols});
  std::vector<Tensor> inputs{data, b.index_tensor(), b.segment_tensor()};
  const bool has_num_segments = in.flag();
  std::int64_t num_segments = in.flag() ? in.number(30) : in.below(80);
  if (has_num_segments) {
    const bool wide = in.flag();
    if (!wide) num_segments = std::int32_t(std::uint32_t(std::uint64_t(num_segments)));
    inputs.push_back(scalar_of(num_segments, wide));
  }
  const Numbers64 attrs{std::int64_t(kind), has_num_segments};
  const Result r = test::run("sparse_segment", attrs, inputs, [&](std::int64_t measured) {
    bound_result(measured, cols);
    return std::vector<Tensor>{Tensor(dtype, {measured, cols})};
  });
  const std::int64_t expected_rows = forward_rows(b, b.wide_indices, has_num_segments ? &num_segments : nullptr);
  if (!accepted(r, expected_rows >= 0 && all_in(b.indices, rows))) return;
  EXPECT_EQ(r.rows, expected_rows);
  EXPECT(same_numbers(r.out[0], expected_bags(data, b, kind, expected_rows, nullptr)));
}

void transpose(Input& in) {
  const DType dtype = in.pick(Floats::list());
  const std::int64_t rows = in.below(40), cols = in.columns(), n = in.length(), segments = in.below(60);
  const auto kind = Reduction(in.below(3));
  const BagIds b(in, n, rows, segments, in.flag());
  const Tensor data = in.values(dtype, {rows, cols});
  const Result r = test::run("sparse_segment_grad_grad", {std::int64_t(kind)},
                             {data, b.index_tensor(), b.segment_tensor(), scalar_of(segments)},
                             table_of(dtype, segments, cols));
  const bool empty = n == 0 || rows == 0;
  if (!accepted(r, empty || (all_in(b.indices, rows) && all_in(b.segments, segments)))) return;
  EXPECT(same_numbers(r.out[0], empty ? Tensor(dtype, {segments, cols})
                                      : expected_bags(data, b, kind, segments, nullptr)));
}

void weighted(Input& in) {
  const DType dtype = in.pick(Floats::list());
  const std::int64_t rows = in.below(40), cols = in.columns(), n = in.length(), segments = in.below(60);
  const auto kind = Reduction(in.below(3));
  const bool is_transpose = in.flag();
  const BagIds b(in, n, rows, segments, !is_transpose);
  const Tensor data = in.values(dtype, {rows, cols}), weights = in.values(in.pick(Floats::list()), {n});
  std::vector<Tensor> inputs{data, b.index_tensor(), b.segment_tensor(), weights};
  if (is_transpose) inputs.push_back(scalar_of(segments));
  const Result r = test::run("weighted_segment", {std::int64_t(kind), is_transpose}, inputs, [&](std::int64_t measured) {
    bound_result(measured, cols);
    return std::vector<Tensor>{Tensor(dtype, {measured, cols})};
  });
  const std::int64_t expected_rows =
      is_transpose ? (all_in(b.segments, segments) ? segments : -1) : forward_rows(b, true, nullptr);
  if (!accepted(r, expected_rows >= 0 && all_in(b.indices, rows))) return;
  EXPECT(same_numbers(r.out[0], expected_bags(data, b, kind, expected_rows, &weights)));
}

void segment_sum(Input& in) {
  const DType dtype = in.pick(Numbers::list());
  const std::int64_t cols = in.columns(), n = in.length();
  const bool wide = in.flag();
  const Numbers64 segments = in.ids(n, 1 + in.below(40), !wide, in.byte() % 8 != 7);
  const Tensor data = in.values(dtype, {n, cols});
  const Result r = test::run("segment_sum", {}, {data, test::ids_of(segments, wide)}, [&](std::int64_t measured) {
    bound_result(measured, cols);
    return std::vector<Tensor>{Tensor(dtype, {measured, cols})};
  });
  const std::int64_t last = segments.empty() ? -1 : segments.back();
  const bool valid = last < INT64_MAX && is_non_decreasing(segments) && all_in(segments, INT64_MAX);
  if (!accepted(r, valid)) return;
  Tensor expected(dtype, {last + 1, cols});
  visit(Numbers{}, dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t begin = 0, end; begin < n; begin = end) {
      for (end = begin + 1; end < n && segments[end] == segments[begin];) ++end;
      naive::segment_sum(expected.as<T>() + segments[begin] * cols, data.as<T>() + begin * cols, cols, end - begin);
    }
  });
  EXPECT(same_numbers(r.out[0], expected));
}

void one(Input& in) {
  static constexpr void (*calls[])(Input&) = {forward, transpose, weighted, segment_sum};
  calls[in.below(std::int64_t(std::size(calls)))](in);
}

}  // namespace

FUZZ_TARGET(one)
