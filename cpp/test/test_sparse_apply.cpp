// Optimizer steps: every rule against its naive loop, bags against row by row, and that rejected calls write nothing.
#include "rowgrad/sparse_apply.h"

#include "call.h"
#include "naive.h"
#include "naive_rule.h"

using namespace test;

namespace {

DType accumulator_of(DType dtype) { return dtype == DType::float64 ? dtype : DType::float32; }

// Hyperparameters and options of one step, as kernels read them.
struct Step {
  Rule rule;
  StepNumbers numbers = {};
  bool lazy = true, random = false;
  std::int64_t seed = 7, number = 3;

  Numbers64 attrs(std::int64_t rows, const Numbers64& own = {}) const {
    Numbers64 all = {std::int64_t(rule), rows, lazy, random, seed, number};
    all.insert(all.end(), own.begin(), own.end());
    return all;
  }
  Tensor tensor() const { return numbers.tensor(); }
};

// A table and its slots. Slots are squares, so not negative; the only NaN is the processor's own (random.h).
std::vector<Tensor> random_state(Rng& rng, Rule rule, DType dtype, std::int64_t rows, std::int64_t cols) {
  std::vector<Tensor> state = {random_tensor(rng, dtype, {rows, cols})};
  for (int s = 0; s < slots_of(rule); ++s) {
    state.push_back(random_tensor(rng, accumulator_of(dtype), {rows, slot_size(rule, cols)}));
    visit(Floats{}, state.back().dtype, [&]<class A>(std::type_identity<A>) {
      for (std::int64_t i = 0; i < state.back().size(); ++i) {
        const auto x = load(state.back().as<A>()[i]);
        if (x < 0) state.back().as<A>()[i] = store<A>(-x);
      }
    });
  }
  return state;
}

struct Updated {
  Status status;
  std::vector<Tensor> state;
};

Updated update(const std::string& name, const Numbers64& attrs, const std::vector<Tensor>& in,
               std::vector<Tensor> state) {
  std::vector<Array> views, out;
  for (const Tensor& t : in) views.push_back(t.view());
  for (const Tensor& t : state) out.push_back(t.view());
  std::unique_ptr<Kernel> kernel;
  for (const KernelEntry& e : update_kernels())
    if (name == e.name) kernel = e.make();
  kernel->in = views;
  kernel->attr = attrs;
  EXPECT(kernel->fills());
  const Status status = guarded([&]() -> Status {
    if (const Status s = kernel->measure()) return s;
    if (const Status s = kernel->check()) return s;
    kernel->compute(out);
    return {};
  });
  return {status, std::move(state)};
}

void expect_same(const Updated& a, const Updated& b) {
  EXPECT_EQ(a.status.fault, b.status.fault);
  EXPECT_EQ(a.status.position, b.status.position);
  for (std::size_t i = 0; i < a.state.size(); ++i) EXPECT_EQ(first_difference(a.state[i], b.state[i]), -1);
}

Updated update_same(const char* name, const Numbers64& attrs, const std::vector<Tensor>& in,
                    const std::vector<Tensor>& state) {
  const Where where(name);
  set_num_threads(1);
  Updated first = update(name, attrs, in, state);
  for (int threads : {2, 3, 8}) {
    if (kSanitized && threads != 2) continue;
    const Where where_threads("run", {{"threads", threads}});
    set_num_threads(threads);
    expect_same(update(name, attrs, in, state), first);
  }
  return first;
}

// -- rules, one number at a time --------------------------------------------------------------------------------------

std::uint32_t naive_random_bits(const Step& step, std::int64_t row, std::int64_t column) {
  const std::uint64_t key = random_key(std::uint64_t(step.seed), std::uint64_t(step.number));
  const std::uint64_t bits = splitmix64(key ^ std::uint64_t(row));
  std::uint32_t h = std::uint32_t(column) * 0x9e3779b9u + std::uint32_t(bits);
  h = (h ^ (h >> 16)) * 0x7feb352du;
  h ^= std::uint32_t(bits >> 32);
  h = (h ^ (h >> 15)) * 0x846ca68bu;
  return h ^ (h >> 16);
}

// Adds random bits to the bits that are cut off; a carry rounds away from zero.
template <class T>
T naive_stochastic(float x, std::uint32_t random_bits) {
  constexpr int below = std::is_same_v<T, half> ? 13 : 16, last = std::is_same_v<T, half> ? 10 : 7;
  constexpr int lowest = std::is_same_v<T, half> ? -14 : -126;
  if (!std::isfinite(x)) return store<T>(x);
  int exponent = 0;
  std::frexp(double(x), &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 1, lowest) - last);
  const double parts = std::floor(std::fabs(double(x)) / unit * double(1 << below)) + double(random_bits >> (32 - below));
  return store<T>(float(std::copysign(std::floor(parts / double(1 << below)) * unit, double(x))));
}

std::vector<Tensor> expected(const Step& step, std::vector<Tensor> state, const Tensor& grad, const Numbers64& ids) {
  return naive_step(step.rule, step.numbers, step.lazy, std::move(state), grad, ids,
                    [&]<class T>(std::int64_t row, std::int64_t c, T* w, Accumulator<T> to) {
                      if constexpr (is_16bit_float<T>)
                        *w = step.random ? naive_stochastic<T>(to, naive_random_bits(step, row, c)) : store<T>(to);
                      else
                        *w = to;
                    });
}

Numbers64 some_rows(Rng& rng, std::int64_t rows, std::int64_t one_in) {
  Numbers64 ids;
  for (std::int64_t r = 0; r < rows; ++r)
    if (rng.chance(one_in)) ids.push_back(r);
  return ids;
}

Numbers64 every_row(std::int64_t rows) {
  Numbers64 ids(static_cast<std::size_t>(rows));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

void expect_state(const Updated& found, const std::vector<Tensor>& expected_state) {
  EXPECT_EQ(found.status.fault, Fault::none);
  for (std::size_t i = 0; i < expected_state.size(); ++i) {
    const Where where("array", {{"number", std::int64_t(i)}});
    EXPECT_EQ(first_difference(found.state[i], expected_state[i]), -1);
  }
}

void check_rules(Rng& rng, DType dtype, std::int64_t rows, std::int64_t cols) {
  for (Rule rule : kRules)
    for (int variant = 0; variant < 4; ++variant) {
      Step step{rule};
      step.numbers.weight_decay = variant % 2 ? 0.1 : 0;
      step.numbers.nesterov = variant % 2;
      step.numbers.l2_shrinkage = variant % 2 ? 0.03 : 0;
      if (variant == 3) step.numbers.lr_power = -0.7;
      step.lazy = variant < 2;
      step.random = variant > 0;
      const Where where("rule", {{"rule", int(rule)}, {"dtype", int(dtype)}, {"cols", cols}, {"variant", variant}});
      const auto state = random_state(rng, rule, dtype, rows, cols);
      const Numbers64 ids = some_rows(rng, rows, 3);
      const Tensor grad = random_tensor(rng, dtype, {std::int64_t(ids.size()), cols});
      expect_state(
          update_same("apply_rows", step.attrs(rows), {grad, ids_of(ids, rng.chance(2)), step.tensor()}, state),
          expected(step, state, grad, ids));
      const Tensor all = random_tensor(rng, dtype, {rows, cols});
      expect_state(update_same("apply_all", step.attrs(rows), {all, step.tensor()}, state),
                   expected(step, state, all, every_row(rows)));
    }
}

// -- bags -------------------------------------------------------------------------------------------------------------

// Kernels of the catalogue's ops, by name.
Result op(const char* name, const Numbers64& attrs, const std::vector<Tensor>& in, const Outputs& outputs) {
  set_num_threads(2);
  return run(name, attrs, in, outputs);
}

void check_bags(Rng& rng, DType dtype, std::int64_t n, std::int64_t rows, std::int64_t segments, std::int64_t cols,
                Rule rule) {
  const Tensor grad = random_tensor(rng, dtype, {segments, cols});
  const Tensor indices = ids_of(random_ids(rng, n, rows), rng.chance(2));
  const Tensor segment_ids = ids_of(random_ids(rng, n, segments), rng.chance(2));
  const Tensor weights = random_tensor(rng, rng.chance(2) ? dtype : DType::float32, {n});
  const auto state = random_state(rng, rule, dtype, rows, cols);
  for (Reduction kind : {Reduction::sum, Reduction::mean, Reduction::sqrtn})
    for (bool weighted : {false, true}) {
      Step step{rule};
      step.lazy = rng.chance(2);
      step.random = rng.chance(2);
      const auto order = std::int64_t(rng.below(2)), rounding = std::int64_t(rng.below(2));
      const Where where("bags", {{"rule", std::int64_t(rule)}, {"dtype", int(dtype)}, {"n", n}, {"cols", cols},
                                 {"kind", std::int64_t(kind)}, {"weighted", weighted}});
      // In two steps: the row-sparse gradient, then its rows.
      const Result unique = op("sparse_segment_grad", {std::int64_t(kind), 1, order},
                               {grad, indices, segment_ids, scalar_of(rows)}, [&](std::int64_t found) {
                                 return std::vector<Tensor>{Tensor(dtype, {found, cols}),
                                                            Tensor(indices.dtype, {found})};
                               });
      Tensor rows_of = unique.out[0];
      if (weighted) {
        const Result dense =
            op("weighted_segment_grad", {std::int64_t(kind), rounding, order},
               {grad, indices, segment_ids, weights, scalar_of(rows)}, table_of(dtype, rows, cols));
        const Ids ids(unique.out[1].view());
        for (std::int64_t k = 0; k < ids.size; ++k) rows_of.copy(k * cols, dense.out[0], ids[k] * cols, cols);
      }
      const Updated expected_state =
          update_same("apply_rows", step.attrs(rows), {rows_of, unique.out[1], step.tensor()}, state);
      const Numbers64 attrs = step.attrs(rows, {std::int64_t(kind), weighted, rounding, order});
      std::vector<Tensor> in = {grad, indices, segment_ids};
      if (weighted) in.push_back(weights);
      in.push_back(step.tensor());
      expect_state(update_same("apply_bags", attrs, in, state), expected_state.state);

      const Result plan = op("row_plan", {}, {indices, segment_ids, scalar_of(rows), scalar_of(segments)},
                             [&](std::int64_t found) {
                               return std::vector<Tensor>{Tensor(indices.dtype, {found}), Tensor(DType::int64, {found}),
                                                          Tensor(segment_ids.dtype, {n}), Tensor(DType::int64, {n}),
                                                          Tensor(DType::int64, {segments})};
                             });
      std::vector<Tensor> planned = {grad};
      if (weighted) planned.push_back(weights);
      planned.insert(planned.end(), plan.out.begin(), plan.out.end());
      planned.push_back(scalar_of(rows));
      planned.push_back(step.tensor());
      expect_state(update_same("apply_planned", attrs, planned, state), expected_state.state);
    }
}

// -- faults -----------------------------------------------------------------------------------------------------------

void expect_fault(const Updated& found, const std::vector<Tensor>& before, Fault fault, std::int64_t position,
                  std::int64_t value, std::int64_t bound) {
  EXPECT_EQ(found.status.fault, fault);
  EXPECT_EQ(found.status.position, position);
  EXPECT_EQ(found.status.value, value);
  EXPECT_EQ(found.status.bound, bound);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(first_difference(found.state[i], before[i]), -1);
}

void test_faults(Rng& rng) {
  const std::int64_t rows = 10, cols = 3;
  const Step step{Rule::adam};
  const auto state = random_state(rng, step.rule, DType::float32, rows, cols);
  const Tensor grad = random_tensor(rng, DType::float32, {3, cols});
  auto apply = [&](const Numbers64& ids) {
    return update_same("apply_rows", step.attrs(rows), {grad, ids_of(ids), step.tensor()}, state);
  };
  expect_fault(apply({1, 4, rows}), state, Fault::row_ids, 2, rows, rows);
  expect_fault(apply({-1, 4, 5}), state, Fault::row_ids, 0, -1, rows);
  expect_fault(apply({1, 4, 4}), state, Fault::row_ids, 2, 4, rows);
  expect_fault(apply({4, 1, 5}), state, Fault::row_ids, 1, 1, rows);
  auto bags = [&](const Numbers64& indices, const Numbers64& segments) {
    return update_same("apply_bags", step.attrs(rows, {0, 0, 1, 0}),
                       {grad, ids_of(indices), ids_of(segments), step.tensor()}, state);
  };
  expect_fault(bags({1, rows, 2}, {0, 1, 2}), state, Fault::index_not_in_output, 1, rows, rows);
  expect_fault(bags({1, 3, 2}, {0, 5, 2}), state, Fault::segment_not_in_grad, 1, 5, 3);
  expect_fault(bags({1, 3, 2}, {0, 1, 3}), state, Fault::segment_count, 2, 3, 3);
  // A table without rows: no id is validated, as for a gradient.
  const auto no_rows = random_state(rng, step.rule, DType::float32, 0, cols);
  expect_state(update_same("apply_bags", step.attrs(0, {0, 0, 1, 0}),
                           {grad, ids_of({1, 3, 2}), ids_of({0, 1, 2}), step.tensor()}, no_rows),
               no_rows);
  auto planned = [&](const Numbers64& plan_rows, std::int64_t num_rows) {
    return update_same("apply_planned", step.attrs(rows, {0, 0, 1, 0}),
                       {grad, ids_of(plan_rows), ids_of({0, 1}), ids_of({0, 1}), ids_of({0, 1}), ids_of({1, 1, 0}),
                        scalar_of(num_rows), step.tensor()},
                       state);
  };
  expect_fault(planned({2, 9}, rows + 1), state, Fault::plan_num_rows, -1, rows + 1, rows);
  expect_fault(planned({2, 10}, rows), state, Fault::plan_rows, 1, 10, rows);
  EXPECT_EQ(planned({2, 9}, rows).status.fault, Fault::none);
}

}  // namespace

int main() {
  const FlushSubnormals flush;
  Rng rng(9);
  for (DType dtype : Floats::list()) {
    for (std::int64_t cols : {1, 2, 3, 5, 8, 16, 31, 64, 133}) {
      if (kSanitized && cols > 31) continue;
      check_rules(rng, dtype, 20, cols);
    }
    for (Rule rule : kRules) {
      check_bags(rng, dtype, 0, 5, 3, 4, rule);
      check_bags(rng, dtype, 300, 40, 30, 9, rule);
      if (!kSanitized) check_bags(rng, dtype, 200, 2000, 50, 70, rule);
    }
  }
  check_bags(rng, DType::float32, kLarge / 4, 5000, 2000, 3, Rule::row_wise_adagrad);
  check_bags(rng, DType::float64, 30, 20, 5, 520, Rule::sgd);  // rows that are not prefetched whole
  check_rules(rng, DType::float32, kSanitized ? 2000 : 9000, 8);
  test_faults(rng);
  set_num_threads(1);
  return test::finish();
}
