// Plans: their contents, gradients with the same bits as without a plan, and rejected plans.
#include "rowgrad/row_plan.h"

#include "call.h"
#include "naive.h"

using namespace test;

namespace {

struct Batch {
  std::int64_t rows, segments;
  Numbers64 indices, segment_ids;
  bool wide_indices, wide_segments;

  Batch(Rng& rng, std::int64_t n, std::int64_t rows_, std::int64_t segments_)
      : rows(rows_),
        segments(segments_),
        indices(random_ids(rng, n, rows)),
        segment_ids(random_ids(rng, n, segments)),
        wide_indices(rng.chance(2)),
        wide_segments(rng.chance(2)) {}

  Tensor index_tensor() const { return ids_of(indices, wide_indices); }
  Tensor segment_tensor() const { return ids_of(segment_ids, wide_segments); }
  std::int64_t size() const { return std::int64_t(indices.size()); }
};

Result plan_of(const Batch& b) {
  return run_same("row_plan", {}, {b.index_tensor(), b.segment_tensor(), scalar_of(b.rows), scalar_of(b.segments)},
                  [&](std::int64_t rows) {
                    return std::vector<Tensor>{Tensor(b.index_tensor().dtype, {rows}), Tensor(DType::int64, {rows}),
                                               Tensor(b.segment_tensor().dtype, {b.size()}),
                                               Tensor(DType::int64, {b.size()}), Tensor(DType::int64, {b.segments})};
                  });
}

// Returns `before` followed by the inputs of a plan.
std::vector<Tensor> inputs(std::vector<Tensor> before, const std::vector<Tensor>& plan, std::int64_t rows) {
  before.insert(before.end(), plan.begin(), plan.end());
  before.push_back(scalar_of(rows));
  return before;
}

Result restored_ids(const std::vector<Tensor>& plan, const Batch& b) {
  return run_same("planned_ids", {}, inputs({}, plan, b.rows), [&](std::int64_t) {
    return std::vector<Tensor>{Tensor(plan[0].dtype, {b.size()}), Tensor(plan[2].dtype, {b.size()})};
  });
}

void check_plan(const Batch& b, const Result& plan) {
  const naive::Groups groups(b.indices, b.rows), members(b.segment_ids, b.segments);
  Numbers64 rows, starts, segments, counts;
  for (std::int64_t r = 0; r < b.rows; ++r)
    if (groups.size(r)) {
      rows.push_back(r);
      starts.push_back(groups.start[r]);
    }
  for (std::int64_t i : groups.at) segments.push_back(b.segment_ids[i]);
  for (std::int64_t s = 0; s < b.segments; ++s) counts.push_back(members.size(s));
  EXPECT_OUTPUT(plan, 0, ids_of(rows, b.wide_indices));
  EXPECT_OUTPUT(plan, 1, ids_of(starts));
  EXPECT_OUTPUT(plan, 2, ids_of(segments, b.wide_segments));
  EXPECT_OUTPUT(plan, 3, ids_of(groups.at));
  EXPECT_OUTPUT(plan, 4, ids_of(counts));
  const Result ids = restored_ids(plan.out, b);
  EXPECT_OUTPUT(ids, 0, b.index_tensor());
  EXPECT_OUTPUT(ids, 1, b.segment_tensor());
}

// Compares gradients from ids with gradients from the plan; both have the same attributes.
void check_gradients(const Tensor& grad, const Tensor& weights, const Batch& b, const Result& plan,
                     const Numbers64& kinds) {
  const auto table = table_of(grad.dtype, b.rows, grad.cols());
  const Tensor size = scalar_of(b.rows, false);
  const std::vector<Tensor> with_ids{grad, b.index_tensor(), b.segment_tensor(), size};
  EXPECT_OUTPUT(run_same("planned_segment_grad", {kinds[0], 0, kinds[1]}, inputs({grad}, plan.out, b.rows), table), 0,
                run("sparse_segment_grad", {kinds[0], 0, kinds[1]}, with_ids, table).out[0]);
  const Outputs rows = [&](std::int64_t) {
    return std::vector<Tensor>{Tensor(grad.dtype, {plan.rows, grad.cols()}), Tensor(plan.out[0].dtype, {plan.rows})};
  };
  const Result unique = run("sparse_segment_grad", {kinds[0], 1, kinds[1]}, with_ids, rows);
  const Result planned = run_same("planned_segment_grad", {kinds[0], 1, kinds[1]}, inputs({grad}, plan.out, b.rows), rows);
  EXPECT_OUTPUT(planned, 0, unique.out[0]);
  EXPECT_OUTPUT(planned, 1, unique.out[1]);
  const std::vector<Tensor> weighted{grad, b.index_tensor(), b.segment_tensor(), weights, size};
  const Numbers64 attrs{kinds[0], kinds[2], kinds[1]};
  EXPECT_OUTPUT(run_same("planned_weighted_grad", attrs, inputs({grad, weights}, plan.out, b.rows), table), 0,
                run("weighted_segment_grad", attrs, weighted, table).out[0]);
}

void test_values(Rng& rng) {
  for (std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{9}, std::int64_t{300}, kLarge})
    for (DType dtype : Floats::list()) {
      if (n == kLarge && dtype != DType::float32) continue;
      const Batch b(rng, n, 1 + rng.below(n > 1000 ? 2000 : 12), 1 + rng.below(20));
      const Where where("plan", {{"n", n}, {"dtype", int(dtype)}});
      const Result plan = plan_of(b);
      check_plan(b, plan);
      for (std::int64_t reduce = 0; reduce < 3; ++reduce)
        check_gradients(random_tensor(rng, dtype, {b.segments + rng.below(2), 1 + rng.below(20)}),
                        random_tensor(rng, DType::float32, {n}), b, plan, {reduce, rng.below(2), rng.below(2)});
    }
}

void test_faults(Rng& rng, std::int64_t n) {
  Batch b(rng, n, 50, 10);
  const std::int64_t last = n - 1;
  b.indices[last] = 50;
  EXPECT_FAULT(plan_of(b), Fault::index_not_in_output, last, 50, 50);
  b.indices[last] = 49;
  b.segment_ids[last] = -1;
  EXPECT_FAULT(plan_of(b), Fault::segment_not_in_grad, last, -1, 10);
  b.segment_ids[last] = 9;
  b.wide_indices = b.wide_segments = true;
  const std::vector<Tensor> plan = plan_of(b).out;
  const Tensor grad = random_tensor(rng, DType::float32, {10, 2}), few = random_tensor(rng, DType::float32, {9, 2});
  const Tensor weights = random_tensor(rng, DType::float32, {n});
  const auto table = table_of(DType::float32, 50, 2);
  auto gradient = [&](const std::vector<Tensor>& p, const Tensor& g) {
    return run_same("planned_segment_grad", {1, 0, 0}, inputs({g}, p, 50), table);
  };
  auto weighted = [&](const std::vector<Tensor>& p) {
    return run_same("planned_weighted_grad", {1, 0, 0}, inputs({grad, weights}, p, 50), table);
  };
  EXPECT_FAULT(gradient(plan, few), Fault::plan_segments_not_in_grad, -1, 10, 9);
  // Change one number of one array: every kernel rejects it if it becomes an address; planned_ids rejects all others,
  // too.
  auto changed = [&](std::size_t array, std::int64_t at, std::int64_t value) {
    auto p = plan;
    p[array].as<std::int64_t>()[at] = value;
    return p;
  };
  const std::int64_t rows = plan[0].size(), middle = n / 2;
  for (std::int64_t bad : {std::int64_t{-1}, std::int64_t{50}, INT64_MIN}) {
    EXPECT_FAULT(gradient(changed(0, rows - 1, bad), grad), Fault::plan_rows, rows - 1, bad, 50);
    EXPECT_FAULT(weighted(changed(2, middle, bad)), Fault::plan_segments, middle, bad, 10);
  }
  EXPECT_FAULT(gradient(changed(0, 1, plan[0].as<std::int64_t>()[0]), grad), Fault::plan_rows, 1,
               plan[0].as<std::int64_t>()[0], 50);
  EXPECT_FAULT(gradient(changed(1, 0, 1), grad), Fault::plan_starts, 0, 1, n);
  EXPECT_FAULT(gradient(changed(1, rows - 1, n), grad), Fault::plan_starts, rows - 1, n, n);
  EXPECT_FAULT(gradient(changed(1, 1, 0), grad), Fault::plan_starts, 1, 0, n);
  EXPECT_FAULT(weighted(changed(3, middle, n)), Fault::plan_positions, middle, n, n);
  EXPECT_FAULT(weighted(changed(3, middle, plan[3].as<std::int64_t>()[0])), Fault::none);  // any bag, but no crash
  EXPECT_EQ(int(restored_ids(changed(3, middle, plan[3].as<std::int64_t>()[0]), b).status.fault),
            int(Fault::plan_positions));
  // Two entries of one row in the wrong order.
  std::int64_t second = 1;
  while (plan[3].as<std::int64_t>()[second] < plan[3].as<std::int64_t>()[second - 1] ||
         std::count(plan[1].as<std::int64_t>(), plan[1].as<std::int64_t>() + rows, second))
    ++second;
  auto swapped = changed(3, second - 1, plan[3].as<std::int64_t>()[second]);
  swapped[3].copy(second, plan[3], second - 1);
  EXPECT_FAULT(restored_ids(swapped, b), Fault::plan_positions, second, swapped[3].as<std::int64_t>()[second], n);
  const std::int64_t count = plan[4].as<std::int64_t>()[3];
  EXPECT_FAULT(restored_ids(changed(4, 3, count + 1), b), Fault::plan_counts, 3, count + 1, count);
}

// More rows than a 32-bit id or a 32-bit entry can hold: the same plan.
void test_more_rows_than_ids(Rng& rng) {
  for (bool wide : {false, true}) {
    Batch b(rng, 300, 50, 10);
    b.wide_indices = wide;
    const Result plan = plan_of(b);
    for (std::int64_t rows : {1LL << 31, 1LL << 32, (1LL << 32) + 1, 1LL << 40}) {
      b.rows = rows;
      const Where where("rows", {{"rows", rows}, {"wide", wide}});
      const Result same = plan_of(b);
      for (std::size_t i = 0; i < 5; ++i) EXPECT_OUTPUT(same, i, plan.out[i]);
      Batch bad = b;
      bad.indices[7] = -1;
      EXPECT_FAULT(plan_of(bad), Fault::index_not_in_output, 7, -1, rows);
    }
  }
}

// Whether a kernel fills an output, given as memory that is zeroed by the system or not.
template <class K>
bool fills(const std::vector<Tensor>& in, bool fresh_zeros) {
  std::vector<Array> views;
  for (const Tensor& t : in) views.push_back(t.view());
  const Numbers64 attrs{0, 0, 0};
  K kernel;
  kernel.in = views;
  kernel.attr = attrs;
  kernel.fresh_zeros = fresh_zeros;
  EXPECT_EQ(kernel.measure().fault, 0);
  return kernel.fills();
}

// Dense gradients up to kWrittenWhole are written whole; larger ones only into memory that is not fresh.
void test_written_whole() {
  const Tensor grad(DType::float32, {1, 16}), none = ids_of({}), weights(DType::float32, {0});
  const std::vector<Tensor> plan{none, none, none, none, ids_of({0})};
  constexpr std::int64_t most = kWrittenWhole / (16 * 4);
  for (std::int64_t rows : {most, most + 1})
    for (bool fresh_zeros : {false, true}) {
      const Where where("written whole", {{"rows", rows}, {"fresh zeros", fresh_zeros}});
      const bool whole = rows == most || !fresh_zeros;
      const Tensor size = scalar_of(rows, false);
      EXPECT_EQ(fills<SparseSegmentGrad>({grad, none, none, size}, fresh_zeros), whole);
      EXPECT_EQ(fills<WeightedSegmentGrad>({grad, none, none, weights, size}, fresh_zeros), whole);
      EXPECT_EQ(fills<PlannedSegmentGrad>(inputs({grad}, plan, rows), fresh_zeros), whole);
      EXPECT_EQ(fills<PlannedWeightedGrad>(inputs({grad, weights}, plan, rows), fresh_zeros), whole);
    }
}

}  // namespace

int main() {
  const FlushSubnormals flush;
  Rng rng(8);
  test_values(rng);
  test_more_rows_than_ids(rng);
  test_written_whole();
  for (std::int64_t n : {std::int64_t{400}, kLarge}) test_faults(rng, n);
  set_num_threads(1);
  return test::finish();
}
