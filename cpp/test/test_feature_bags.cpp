// Bags of many features against the ops: forward passes, gradients, fused steps, and that invalid ids are rejected.
#include "rowgrad/feature_bags.h"

#include "call.h"
#include "naive_rule.h"

using namespace test;

namespace {

// The address of weights; null would mean that there are no weights.
const void* weights_of(const Tensor& weights) {
  static const double empty = 0;
  return weights.size() ? weights.as<void>() : static_cast<const void*>(&empty);
}

// A random batch: every table has one or two features, whose ids may be int32 or int64.
struct Batch {
  std::vector<FeatureTable> tables;
  std::vector<std::int64_t> table_of;
  std::int64_t bags;
  std::vector<Numbers64> ids, offsets;  // per feature; offsets with the end
  std::vector<Tensor> id_tensors, offset_tensors, weight_tensors, data, grads;
  bool weighted;
  DType dtype;

  Batch(Rng& rng, DType type, std::int64_t bag_count, std::int64_t most_ids, bool has_weights, std::int64_t large = 0)
      : bags(bag_count), weighted(has_weights), dtype(type) {
    const std::int64_t count = large ? 2 : 3;
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t rows = large ? large : rng.between(1, 40), cols = rng.between(1, 20);
      tables.push_back({rows, cols, rng.chance(2) ? rng.below(rows) : -1, Reduction(rng.below(3))});
      for (std::int64_t k = rng.between(1, 2); k > 0; --k) table_of.push_back(t);
      data.push_back(random_tensor(rng, dtype, {rows, cols}));
    }
    for (const std::int64_t t : table_of) {
      const std::int64_t n = bags ? rng.below(most_ids + 1) : 0;
      Numbers64 starts = sorted_ids(rng, bags, n + 1);
      if (bags > 0) starts[0] = 0;
      starts.push_back(n);
      ids.push_back(random_ids(rng, n, tables[static_cast<std::size_t>(t)].rows));
      offsets.push_back(starts);
      id_tensors.push_back(ids_of(ids.back(), rng.chance(2)));
      const bool open = rng.chance(2) && bags > 0;  // without the end
      if (open) starts.pop_back();
      offset_tensors.push_back(ids_of(starts, rng.chance(2)));
      weight_tensors.push_back(random_tensor(rng, rng.chance(2) ? dtype : DType::float32, {n}));
      grads.push_back(random_tensor(rng, dtype, {bags, tables[static_cast<std::size_t>(t)].cols}));
    }
  }

  FeatureLayout layout() const { return {dtype, tables, table_of}; }

  std::vector<FeatureInput> inputs() const {
    std::vector<FeatureInput> list;
    for (std::size_t f = 0; f < table_of.size(); ++f)
      list.push_back({Ids(id_tensors[f].view()), Ids(offset_tensors[f].view()),
                      weighted ? weights_of(weight_tensors[f]) : nullptr, weight_tensors[f].dtype});
    return list;
  }

  // What the ops take for a table: ids, bags and weights without padding, example by example, and the gradient.
  struct Call {
    Numbers64 ids, segments;
    Tensor weights, grad;
    std::int64_t readers;
  };
  Call call(std::int64_t t) const {
    const FeatureTable& table = tables[static_cast<std::size_t>(t)];
    const DType wide = dtype == DType::float64 ? DType::float64 : DType::float32;
    std::vector<std::size_t> readers;
    for (std::size_t f = 0; f < table_of.size(); ++f)
      if (table_of[f] == t) readers.push_back(f);
    const auto k = std::int64_t(readers.size());
    Call c{{}, {}, Tensor(wide, {0}), Tensor(dtype, {bags * k, table.cols}), k};
    std::vector<double> weights;
    for (std::int64_t b = 0; b < bags; ++b)
      for (std::int64_t j = 0; j < k; ++j) {
        const std::size_t f = readers[static_cast<std::size_t>(j)];
        c.grad.copy((b * k + j) * table.cols, grads[f], b * table.cols, table.cols);
        for (std::int64_t i = offsets[f][b]; i < offsets[f][b + 1]; ++i) {
          if (ids[f][i] == table.padding) continue;
          c.ids.push_back(ids[f][i]);
          c.segments.push_back(b * k + j);
          visit(Floats{}, weight_tensors[f].dtype, [&]<class W>(std::type_identity<W>) {
            weights.push_back(double(load(weight_tensors[f].as<W>()[i])));
          });
        }
      }
    c.weights = Tensor(wide, {std::int64_t(weights.size())});
    visit(Floats{}, wide, [&]<class A>(std::type_identity<A>) {
      for (std::size_t i = 0; i < weights.size(); ++i) c.weights.as<A>()[i] = store<A>(Accumulator<A>(weights[i]));
    });
    return c;
  }
};

template <class T>
std::vector<StridedRows<const T>> rows_of(const std::vector<Tensor>& tensors) {
  std::vector<StridedRows<const T>> rows;
  for (const Tensor& t : tensors) rows.push_back({t.as<const T>(), t.cols()});
  return rows;
}

template <class T>
void check_forward(const Batch& b, FeatureBatch& batch) {
  std::vector<Tensor> outs;
  std::vector<StridedRows<T>> to;
  std::vector<const T*> data;
  for (const std::int64_t t : b.table_of) {
    outs.emplace_back(b.dtype, Shape{b.bags, b.tables[static_cast<std::size_t>(t)].cols});
    std::fill(outs.back().bytes.begin(), outs.back().bytes.end(), std::byte(0xa5));
  }
  for (const Tensor& t : outs) to.push_back({t.as<T>(), t.cols()});
  for (const Tensor& t : b.data) data.push_back(t.as<const T>());
  {
    const FlushSubnormals flush;
    batch.forward<T>(data, to);
  }
  for (std::size_t t = 0; t < b.tables.size(); ++t) {
    const FeatureTable& table = b.tables[t];
    const Batch::Call c = b.call(std::int64_t(t));
    const std::int64_t segments = b.bags * c.readers;
    const auto out = table_of(b.dtype, segments, table.cols);
    const Result expected =
        b.weighted ? run("weighted_segment", {std::int64_t(table.kind), 1},
                         {b.data[t], ids_of(c.ids), ids_of(c.segments), c.weights, scalar_of(segments)}, out)
                   : run("sparse_segment", {std::int64_t(table.kind), 1},
                         {b.data[t], ids_of(c.ids), ids_of(c.segments), scalar_of(segments)}, out);
    if (!EXPECT_EQ(expected.status.fault, 0)) continue;
    std::int64_t j = 0;
    for (std::size_t f = 0; f < b.table_of.size(); ++f) {
      if (b.table_of[f] != std::int64_t(t)) continue;
      Tensor own(b.dtype, {b.bags, table.cols});
      for (std::int64_t bag = 0; bag < b.bags; ++bag)
        own.copy(bag * table.cols, expected.out[0], (bag * c.readers + j) * table.cols, table.cols);
      EXPECT_EQ(first_difference(outs[f], own), -1);
      ++j;
    }
  }
}

template <class T>
void check_gradients(const Batch& b, FeatureBatch& batch) {
  for (std::size_t t = 0; t < b.tables.size(); ++t) {
    const FeatureTable& table = b.tables[t];
    const Batch::Call c = b.call(std::int64_t(t));
    for (const Order order : {Order::sequential, Order::blocked}) {
      const auto out = table_of(b.dtype, table.rows, table.cols);
      const Result expected =
          b.weighted
              ? run("weighted_segment_grad", {std::int64_t(table.kind), std::int64_t(Rounding::at_end), std::int64_t(order)},
                    {c.grad, ids_of(c.ids), ids_of(c.segments), c.weights, scalar_of(table.rows, false)}, out)
              : run("sparse_segment_grad", {std::int64_t(table.kind), 0, std::int64_t(order)},
                    {c.grad, ids_of(c.ids), ids_of(c.segments), scalar_of(table.rows, false)}, out);
      if (!EXPECT_EQ(expected.status.fault, 0)) continue;
      const FlushSubnormals flush;
      const std::int64_t number[] = {std::int64_t(t)};
      batch.sort(number);
      Tensor dense(b.dtype, {table.rows, table.cols});
      const auto gradients = rows_of<T>(b.grads);
      batch.gradient<T>(std::int64_t(t), gradients, order, Rounding::at_end, dense.as<T>(), nullptr);
      EXPECT_EQ(first_difference(dense, expected.out[0]), -1);
      const std::int64_t count = batch.distinct(std::int64_t(t));
      Tensor rows(b.dtype, {count, table.cols}), scattered(b.dtype, {table.rows, table.cols});
      Tensor ids(DType::int64, {std::max<std::int64_t>(count, 1)});  // no ids at all mean a dense gradient
      batch.gradient<T>(std::int64_t(t), gradients, order, Rounding::at_end, rows.as<T>(), ids.as<std::int64_t>());
      for (std::int64_t i = 0; i < count; ++i) {
        EXPECT(i == 0 || ids.as<std::int64_t>()[i] > ids.as<std::int64_t>()[i - 1]);
        scattered.copy(ids.as<std::int64_t>()[i] * table.cols, rows, i * table.cols, table.cols);
      }
      EXPECT_EQ(first_difference(scattered, expected.out[0]), -1);
    }
  }
}

// Fused steps against the kernel that steps one table.
template <class T>
void check_updates(Rng& rng, const Batch& b, FeatureBatch& batch) {
  const Rule rule = kRules[rng.below(std::int64_t(std::size(kRules)))];
  const bool lazy = rng.chance(2);
  const Tensor step = StepNumbers().tensor();
  const DType wide = b.dtype == DType::float64 ? DType::float64 : DType::float32;
  std::vector<std::vector<Tensor>> states, expected;
  std::vector<TableUpdate> updates;
  Numbers64 numbers;
  for (std::size_t t = 0; t < b.tables.size(); ++t) {
    const FeatureTable& table = b.tables[t];
    std::vector<Tensor> state = {b.data[t]};
    for (int s = 0; s < slots_of(rule); ++s)
      state.emplace_back(wide, Shape{table.rows, slot_size(rule, table.cols)});
    const Batch::Call c = b.call(std::int64_t(t));
    std::vector<Tensor> in = {c.grad, ids_of(c.ids), ids_of(c.segments)};
    if (b.weighted) in.push_back(c.weights);
    in.push_back(step);
    std::vector<Tensor> other = state;
    std::vector<Array> views, out;
    for (const Tensor& x : in) views.push_back(x.view());
    for (const Tensor& x : other) out.push_back(x.view());
    const Numbers64 attrs = {std::int64_t(rule), table.rows, lazy, 0, 7, 3, std::int64_t(table.kind), b.weighted,
                             std::int64_t(Rounding::at_end), std::int64_t(Order::sequential)};
    std::unique_ptr<Kernel> kernel;
    for (const KernelEntry& e : update_kernels())
      if (std::string(e.name) == "apply_bags") kernel = e.make();
    kernel->in = views;
    kernel->attr = attrs;
    const FlushSubnormals flush;
    EXPECT_EQ(kernel->check().fault, 0);
    kernel->compute(out);
    states.push_back(std::move(state));
    expected.push_back(std::move(other));
  }
  for (std::size_t t = 0; t < b.tables.size(); ++t) {
    TableUpdate u{};
    u.rows = b.tables[t].rows;
    u.cols = b.tables[t].cols;
    numbers.push_back(std::int64_t(t));
    u.data = states[t][0].as<void>();
    for (std::size_t s = 1; s < states[t].size(); ++s) u.slots[s - 1] = states[t][s].as<void>();
    u.rule = rule;
    u.lazy = lazy;
    u.seed = 7;
    u.step = 3;
    u.numbers = step.as<const double>();
    updates.push_back(u);
  }
  {
    const FlushSubnormals flush;
    const auto gradients = rows_of<T>(b.grads);
    batch.update<T>(numbers, updates, gradients, Order::sequential, Rounding::at_end);
  }
  for (std::size_t t = 0; t < states.size(); ++t)
    for (std::size_t s = 0; s < states[t].size(); ++s) EXPECT_EQ(first_difference(states[t][s], expected[t][s]), -1);
}

// Steps from row-sparse gradients, all tables at once, against the kernel that steps one table.
template <class T>
void check_rows(Rng& rng, const Batch& b) {
  const Rule rule = kRules[rng.below(std::int64_t(std::size(kRules)))];
  const bool lazy = rng.chance(2);
  const Tensor step = StepNumbers().tensor();
  const DType wide = b.dtype == DType::float64 ? DType::float64 : DType::float32;
  std::vector<std::vector<Tensor>> states, expected;
  std::vector<Tensor> ids, rows;
  std::vector<TableUpdate> updates;
  std::vector<RowsOfTable> gradients;
  for (std::size_t t = 0; t < b.tables.size(); ++t) {
    const FeatureTable& table = b.tables[t];
    Numbers64 chosen;
    for (std::int64_t row = 0; row < table.rows; ++row)
      if (rng.chance(2)) chosen.push_back(row);
    ids.push_back(ids_of(chosen));
    rows.push_back(random_tensor(rng, b.dtype, {std::int64_t(chosen.size()), table.cols}));
    states.push_back({b.data[t]});
    for (int s = 0; s < slots_of(rule); ++s)
      states.back().emplace_back(wide, Shape{table.rows, slot_size(rule, table.cols)});
    expected.push_back(states.back());
    std::vector<Array> out;
    for (const Tensor& x : expected.back()) out.push_back(x.view());
    const std::vector<Array> in = {rows.back().view(), ids.back().view(), step.view()};
    const Numbers64 attrs = {std::int64_t(rule), table.rows, lazy, 0, 7, 3};
    ApplyRows kernel;
    kernel.in = in;
    kernel.attr = attrs;
    const FlushSubnormals flush;
    EXPECT_EQ(kernel.check().fault, 0);
    kernel.compute(out);
  }
  for (std::size_t t = 0; t < b.tables.size(); ++t) {
    std::array<void*, kMostSlots> slots{};
    for (std::size_t s = 1; s < states[t].size(); ++s) slots[s - 1] = states[t][s].as<void>();
    updates.push_back({states[t][0].as<void>(), slots, b.tables[t].rows, b.tables[t].cols, rule, lazy, false, 7, 3,
                       step.as<const double>()});
    gradients.push_back({ids[t].as<std::int64_t>(), rows[t].as<void>(), ids[t].size()});
  }
  const FlushSubnormals flush;
  EXPECT_EQ(first_invalid(updates, gradients), -1);
  apply_rows<T>(updates, gradients);
  for (std::size_t t = 0; t < states.size(); ++t)
    for (std::size_t s = 0; s < states[t].size(); ++s) EXPECT_EQ(first_difference(states[t][s], expected[t][s]), -1);
  if (ids.back().size() > 0) {
    ids.back().as<std::int64_t>()[0] = b.tables.back().rows;
    EXPECT_EQ(first_invalid(updates, gradients), std::int64_t(updates.size()) - 1);
  }
}

void check_batch(Rng& rng, DType dtype, std::int64_t bags, std::int64_t most_ids, bool weighted, std::int64_t large = 0) {
  const Where where("batch", {{"dtype", std::int64_t(dtype)}, {"bags", bags}, {"ids", most_ids}, {"weighted", weighted}});
  const Batch b(rng, dtype, bags, most_ids, weighted, large);
  const FeatureLayout layout = b.layout();
  for (int threads : {1, 3}) {
    set_num_threads(threads);
    visit(Floats{}, dtype, [&]<class T>(std::type_identity<T>) {
      FeatureBatch batch(layout, bags);
      EXPECT(FeatureBatch::fits(layout, bags, b.inputs()));
      if (!EXPECT(batch.read(b.inputs(), false))) return;
      check_forward<T>(b, batch);
      check_gradients<T>(b, batch);
      check_updates<T>(rng, b, batch);
      check_rows<T>(rng, b);
    });
  }
}

bool is_valid(const Numbers64& ids, const Numbers64& offsets, std::int64_t bags, bool wide = true) {
  const FeatureLayout layout(DType::float32, {{5, 2, -1, Reduction::sum}}, {0});
  const Tensor id = ids_of(ids, wide), offset = ids_of(offsets, wide);
  const FeatureInput input{Ids(id.view()), Ids(offset.view()), nullptr, DType::float32};
  return FeatureBatch(layout, bags).read(std::span(&input, 1), false);
}

void check_invalid() {
  EXPECT(is_valid({1, 2, 4}, {0, 1}, 2));
  EXPECT(is_valid({1, 2, 4}, {0, 1, 3}, 2));
  EXPECT(is_valid({}, {}, 0));
  for (const bool wide : {false, true}) {
    EXPECT(!is_valid({1, 5}, {0, 1}, 2, wide));
    EXPECT(!is_valid({1, -1}, {0, 1}, 2, wide));
    EXPECT(!is_valid({1, 2}, {0, -1}, 2, wide));
    EXPECT(!is_valid({1, 2, 3}, {0, 2, 1}, 3, wide));
    EXPECT(!is_valid({1, 2}, {0, 3}, 2, wide));
    EXPECT(!is_valid({1, 2}, {1, 2}, 2, wide));
  }
  EXPECT(!is_valid({1, std::int64_t{1} << 32}, {0, 1}, 2));  // its low bits are a valid id
  EXPECT(!is_valid({1, 2, 3}, {0, 1, 2}, 2));
  EXPECT(!is_valid({1, 2, 3}, {0, 1}, 3));
  EXPECT(!is_valid({1}, {}, 0));
}

// One list for all features: their offsets continue.
void check_joined() {
  const FeatureLayout layout(DType::float32, {{5, 1, -1, Reduction::sum}, {9, 1, -1, Reduction::sum}}, {0, 1});
  const Tensor ids = ids_of({1, 4, 8, 7}), offsets = ids_of({0, 1, 2, 3, 4});
  auto inputs = [&](std::int64_t size) {
    std::vector<FeatureInput> list;
    for (std::int64_t f = 0; f < 2; ++f)
      list.push_back({Ids(ids.as<void>(), size, true), Ids(offsets.as<std::int64_t>() + 2 * f, 3, true), nullptr,
                      DType::float32});
    return list;
  };
  EXPECT(FeatureBatch(layout, 2).read(inputs(4), true));
  EXPECT(!FeatureBatch(layout, 2).read(inputs(4), false));  // the second feature does not begin at 0
  EXPECT(!FeatureBatch(layout, 2).read(inputs(3), true));
  ids.as<std::int64_t>()[1] = 5;  // a row of the second table only
  EXPECT(!FeatureBatch(layout, 2).read(inputs(4), true));
}

}  // namespace

int main() {
  Rng rng(23);
  const int rounds = kSanitized ? 2 : 6;
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64})
    for (const bool weighted : {false, true})
      for (int round = 0; round < rounds; ++round) {
        check_batch(rng, dtype, rng.below(30), 60, weighted);
        check_batch(rng, dtype, 40 + rng.below(200), 900, weighted);
      }
  check_batch(rng, DType::float32, 0, 0, false);
  check_batch(rng, DType::float32, 3000, kLarge, false, 100000);
  check_batch(rng, DType::float32, 3000, kLarge / 4, true, 100000);
  check_invalid();
  check_joined();
  set_num_threads(1);
  return test::finish();
}
