// Optimizer steps on rows, whole tables, bags and plans. A rejected call must change nothing.
#include "naive_plan.h"
#include "../test/naive_rule.h"

using namespace fuzz;
using test::ids_of;
using test::scalar_of;

namespace {

// Hyperparameters and options of one step, as kernels read them.
struct Step {
  Rule rule;
  bool lazy, random;
  test::StepNumbers numbers;
  std::int64_t seed = 7, number = 3;

  explicit Step(Input& in)
      : rule(test::kRules[in.below(std::size(test::kRules))]), lazy(in.flag()), random(in.flag()) {
    if (in.flag()) numbers.weight_decay = 0.1;
    if (in.flag()) seed = std::int64_t(in.bits());
    if (rule == Rule::momentum) numbers.nesterov = in.flag();
    if (rule == Rule::ftrl && in.flag()) {
      numbers.l2_shrinkage = 0.03;
      numbers.lr_power = in.flag() ? -0.7 : 0;
    }
  }
  Numbers64 attrs(std::int64_t rows, const Numbers64& own = {}) const {
    Numbers64 all = {std::int64_t(rule), rows, lazy, random, seed, number};
    all.insert(all.end(), own.begin(), own.end());
    return all;
  }
  Tensor tensor() const { return numbers.tensor(); }
};

// Without stochastic rounding, which is tested by comparing kernels with one another.
std::vector<Tensor> naive_step(const Step& step, std::vector<Tensor> state, const Tensor& grad, const Numbers64& ids) {
  return test::naive_step(step.rule, step.numbers, step.lazy, std::move(state), grad, ids,
                          []<class T>(std::int64_t, std::int64_t, T* w, Accumulator<T> to) { *w = store<T>(to); });
}

struct Updated {
  Status status;
  std::vector<Tensor> state;
};

Updated update(const std::string& name, const Numbers64& attrs, const std::vector<Tensor>& in,
               const std::vector<Tensor>& before) {
  Updated u{{}, before};
  std::vector<Array> views, out;
  for (const Tensor& t : in) views.push_back(t.view());
  for (const Tensor& t : u.state) out.push_back(t.view());
  std::unique_ptr<Kernel> kernel;
  for (const KernelEntry& e : update_kernels())
    if (name == e.name) kernel = e.make();
  kernel->in = views;
  kernel->attr = attrs;
  u.status = test::guarded([&]() -> Status {
    if (const Status s = kernel->measure()) return s;
    if (const Status s = kernel->check()) return s;
    kernel->compute(out);
    return {};
  });
  if (u.status)
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT(same_bits(u.state[i], before[i]));
  return u;
}

void expect_state(const std::vector<Tensor>& found, const std::vector<Tensor>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT(same_numbers(found[i], expected[i]));
}

bool has_naive_result(const Step& step, DType dtype) { return !step.random || width_of(dtype) > 2; }

std::vector<Tensor> state_of(Input& in, Rule rule, DType dtype, std::int64_t rows, std::int64_t cols) {
  std::vector<Tensor> state{in.values(dtype, {rows, cols})};
  for (int s = 0; s < slots_of(rule); ++s)
    state.push_back(in.values(dtype == DType::float64 ? dtype : DType::float32, {rows, slot_size(rule, cols)}));
  return state;
}

void rows(Input& in, const Step& step, DType dtype, std::int64_t table_rows, std::int64_t cols) {
  const bool wide = in.flag(), ascending = in.byte() % 4 != 3, all = in.flag();
  Numbers64 ids = in.ids(in.length(), std::max<std::int64_t>(table_rows, 1), !wide, ascending);
  if (ascending) ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const auto before = state_of(in, step.rule, dtype, table_rows, cols);
  if (all) {
    ids.resize(static_cast<std::size_t>(table_rows));
    for (std::int64_t r = 0; r < table_rows; ++r) ids[r] = r;
  }
  const Tensor grad = in.values(dtype, {std::int64_t(ids.size()), cols});
  const Updated u = all ? update("apply_all", step.attrs(table_rows), {grad, step.tensor()}, before)
                        : update("apply_rows", step.attrs(table_rows), {grad, ids_of(ids, wide), step.tensor()}, before);
  const bool is_ascending = std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
  if (accepted(u.status, is_ascending && all_in(ids, table_rows)) && has_naive_result(step, dtype))
    expect_state(u.state, naive_step(step, before, grad, ids));
}

void bags(Input& in, const Step& step, DType dtype, std::int64_t table_rows, std::int64_t cols) {
  const std::int64_t n = in.length(), segments = in.below(40);
  const auto kind = Reduction(in.below(3));
  const auto order = Order(in.below(2));
  const auto rounding = Rounding(in.below(2));
  const bool weighted = in.flag(), planned = in.flag();
  const BagIds b(in, n, table_rows, segments, in.flag());
  const Tensor grad = in.values(dtype, {segments, cols}), weights = in.values(in.pick(Floats::list()), {n});
  const auto before = state_of(in, step.rule, dtype, table_rows, cols);
  const Numbers64 attrs =
      step.attrs(table_rows, {std::int64_t(kind), weighted, std::int64_t(rounding), std::int64_t(order)});
  std::vector<Tensor> inputs{grad};
  bool changed = false, valid = gradient_accepts(b, table_rows, segments);
  if (planned) {
    Result plan = plan_of(b, table_rows, segments);
    if (!accepted(plan, all_in(b.indices, table_rows) && all_in(b.segments, segments))) return;
    changed = change(in, plan.out);
    if (weighted) inputs.push_back(weights);
    inputs.insert(inputs.end(), plan.out.begin(), plan.out.end());
    inputs.push_back(scalar_of(table_rows));
    valid = true;
  } else {
    inputs.push_back(b.index_tensor());
    inputs.push_back(b.segment_tensor());
    if (weighted) inputs.push_back(weights);
  }
  inputs.push_back(step.tensor());
  const Updated u = update(planned ? "apply_planned" : "apply_bags", attrs, inputs, before);
  if (changed || !accepted(u.status, valid)) return;
  BagIds used = b;
  if (n == 0 || table_rows == 0) used.indices = used.segments = {};
  const NaiveGradient gradient(grad, used, kind, order, weighted ? &weights : nullptr, rounding);
  if (has_naive_result(step, dtype))
    return expect_state(u.state, naive_step(step, before, gradient.values, gradient.rows));
  const std::vector<Tensor> by_rows{gradient.values, ids_of(gradient.rows), step.tensor()};
  expect_state(u.state, update("apply_rows", step.attrs(table_rows), by_rows, before).state);
}

void one(Input& in) {
  const Step step(in);
  const DType dtype = in.pick(Floats::list());
  const std::int64_t table_rows = in.below(120), cols = 1 + in.columns();
  in.flag() ? rows(in, step, dtype, table_rows, cols) : bags(in, step, dtype, table_rows, cols);
}

}  // namespace

FUZZ_TARGET(one)
