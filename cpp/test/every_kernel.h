// A call of every kernel, large enough to be split over threads, and a runner for such calls.
#pragma once
#include <algorithm>
#include <set>
#include <string>

#include "call.h"
#include "naive_rule.h"
#include "rowgrad/row_update.h"

namespace test {

struct Case {
  std::string kernel;
  Numbers64 attrs;
  std::vector<Tensor> in;
  Outputs outputs;  // their sizes; for an update kernel, the state before the step
  bool updates = false;
};

// Creates the kernel of a case.
inline std::unique_ptr<Kernel> make_kernel(const Case& c) {
  for (const auto* list : {&kernels(), &update_kernels()})
    for (const KernelEntry& e : *list)
      if (c.kernel == e.name) return e.make();
  return nullptr;
}

class EveryKernel {
 public:
  EveryKernel(std::int64_t ids, std::uint64_t seed) : n_(ids), rng_(seed) {
    segment_kernels();
    row_kernels();
    plan_kernels();
    coordinate_kernels();
    update_kernels_();
  }

  std::vector<Case> cases;

  // Whether every kernel has a case.
  bool is_complete() const {
    std::set<std::string> here;
    for (const Case& c : cases) here.insert(c.kernel);
    for (const auto* list : {&kernels(), &update_kernels()})
      for (const KernelEntry& e : *list)
        if (!here.count(e.name)) {
          std::printf("no case for the kernel %s\n", e.name);
          return false;
        }
    return true;
  }

 private:
  static constexpr std::int64_t kRows = 3000, kBags = 1500, kCols = 5;
  static constexpr DType kF = DType::float32;

  Tensor floats(Shape shape) { return random_tensor(rng_, kF, std::move(shape)); }
  Tensor below(std::int64_t bound) {
    Numbers64 list(static_cast<std::size_t>(n_));
    for (auto& id : list) id = rng_.below(bound);
    return ids_of(list, false);
  }
  Tensor ascending(std::int64_t bound) {
    Numbers64 list(static_cast<std::size_t>(n_));
    for (std::int64_t i = 0; i < n_; ++i) list[i] = i * bound / n_;
    return ids_of(list, false);
  }
  static Tensor counting(std::int64_t n, std::int64_t step, std::int64_t first = 0) {
    Numbers64 list(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) list[i] = first + i * step;
    return ids_of(list);
  }
  static Outputs of(std::vector<Tensor> tensors) {
    return [=](std::int64_t) { return tensors; };
  }
  void add(const char* kernel, Numbers64 attrs, std::vector<Tensor> in, Outputs outputs, bool updates = false) {
    cases.push_back({kernel, std::move(attrs), std::move(in), std::move(outputs), updates});
  }

  void segment_kernels() {
    const Tensor table = floats({kRows, kCols}), grad = floats({kBags, kCols}), ids = below(kRows);
    const Tensor sorted = ascending(kBags), mixed = below(kBags), weights = floats({n_});
    const Tensor short_weights = random_tensor(rng_, DType::float16, {n_});
    const Tensor rows = scalar_of(kRows, false), bags = scalar_of(kBags, false);
    auto unique = [](std::int64_t measured) {
      return std::vector<Tensor>{Tensor(kF, {measured, kCols}), Tensor(DType::int32, {measured})};
    };
    for (std::int64_t kind : {0, 1, 2}) {
      add("sparse_segment", {kind, 1}, {table, ids, sorted, bags}, table_of(kF, -1, kCols));
      for (std::int64_t order : {0, 1})
        add("sparse_segment_grad", {kind, 0, order}, {grad, ids, mixed, rows}, table_of(kF, kRows, kCols));
      add("sparse_segment_grad", {kind, 1, 0}, {grad, ids, mixed, rows}, unique);
      add("sparse_segment_grad_grad", {kind}, {table, ids, mixed, bags}, table_of(kF, kBags, kCols));
      add("weighted_segment", {kind, 0}, {table, ids, sorted, short_weights}, table_of(kF, -1, kCols));
      add("weighted_segment", {kind, 1}, {table, ids, mixed, weights, bags}, table_of(kF, kBags, kCols));
      add("weighted_segment_grad", {kind, 1, 0}, {grad, ids, mixed, short_weights, rows}, table_of(kF, kRows, kCols));
      add("weighted_segment_grad_rows", {kind}, {grad, mixed, weights}, table_of(kF, n_, kCols));
      // Two columns of 16 bits: the narrow algorithm.
      const Tensor narrow = random_tensor(rng_, DType::float16, {kBags, 2});
      add("sparse_segment_grad", {kind, 0, 0}, {narrow, ids, mixed, rows}, table_of(DType::float16, kRows, 2));
    }
    const Tensor size = scalar_of(kRows + 9), fill = scalar_of(kRows);
    add("sparse_segment_grad_padded", {0, 1, 0}, {grad, ids, mixed, rows, size, fill}, unique);
  }

  void row_kernels() {
    const Tensor table = floats({kRows, kCols}), ids = below(kRows), long_rows = floats({n_, kCols});
    add("segment_sum", {}, {long_rows, ascending(kBags)}, table_of(kF, -1, kCols));
    add("gather_rows", {}, {table, ids}, table_of(kF, n_, kCols));
    add("scatter_rows", {}, {long_rows, ids, scalar_of(kRows, false)}, table_of(kF, kRows, kCols));
    const Tensor numbers = random_tensor(rng_, DType::int64, {n_, kCols});
    add("scatter_rows", {}, {numbers, ids, scalar_of(kRows, false)}, table_of(DType::int64, kRows, kCols));
    add("row_positions", {}, {counting(n_, 2), counting(n_ / 2, 4)}, of({Tensor(DType::int64, {n_ / 2})}));
    add("sqrt", {}, {long_rows}, table_of(kF, n_, kCols));
    add("sparse_segment_dot", {}, {floats({kBags, kCols}), table, ids, below(kBags)}, of({Tensor(kF, {n_})}));
    add("row_dot", {}, {long_rows, floats({n_, kCols})}, of({Tensor(kF, {n_})}));
    add("segment_ids_from_offsets", {0}, {counting(n_ / 4, 4), scalar_of(n_)}, of({Tensor(DType::int64, {n_})}));
    const Tensor places(DType::int64, {n_});
    const std::vector<Tensor> stacked{Tensor(DType::int32, {n_}), places, places};
    add("stack_bags", {1}, {ids, counting(n_ / 4 + 1, 4), ids_of({kRows, kRows}), ids_of({0, kRows})}, of(stacked));
  }

  // A plan of random ids: the outputs of row_plan, and num_rows.
  std::vector<Tensor> plan(const Case& row_plan) {
    Result r = run(row_plan.kernel, row_plan.attrs, row_plan.in, row_plan.outputs);
    EXPECT_EQ(r.status.fault, 0);
    r.out.push_back(scalar_of(kRows));
    return r.out;
  }

  static std::vector<Tensor> joined(std::vector<Tensor> first, const std::vector<Tensor>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }

  void plan_kernels() {
    const std::int64_t n = n_;
    add("row_plan", {}, {below(kRows), below(kBags), scalar_of(kRows), scalar_of(kBags)}, [n](std::int64_t rows) {
      return std::vector<Tensor>{Tensor(DType::int32, {rows}), Tensor(DType::int64, {rows}), Tensor(DType::int32, {n}),
                                 Tensor(DType::int64, {n}), Tensor(DType::int64, {kBags})};
    });
    plan_ = plan(cases.back());
    add("planned_ids", {}, plan_, of({Tensor(DType::int32, {n_}), Tensor(DType::int32, {n_})}));
    const Tensor grad = floats({kBags, kCols}), weights = random_tensor(rng_, DType::float16, {n_});
    for (std::int64_t kind : {0, 1, 2}) {
      add("planned_segment_grad", {kind, 0, 0}, joined({grad}, plan_), table_of(kF, kRows, kCols));
      add("planned_weighted_grad", {kind, 1, 0}, joined({grad, weights}, plan_), table_of(kF, kRows, kCols));
    }
  }

  void coordinate_kernels() {
    const DType long_ids = DType::int64;
    const std::int64_t n = n_, half = n_ / 2;
    // Sorted rows with gaps; then unsorted ones.
    for (std::int64_t step : {2, -2}) {
      const Tensor rows = counting(half, step, step > 0 ? 0 : n - 2);
      add("fill_empty_rows", {}, {rows, floats({half}), ids_of({n}), floats({})}, [=](std::int64_t entries) {
        return std::vector<Tensor>{Tensor(long_ids, {entries, 1}), Tensor(kF, {entries}), Tensor(DType::bool_, {n}),
                                   Tensor(long_ids, {half})};
      });
      cases.back().in[0].shape = {half, 1};
      add("fill_empty_rows_grad", {}, {rows, floats({n})}, of({Tensor(kF, {half}), Tensor(kF, {})}));
      const Tensor map = step > 0 ? rows : counting(half, 0, 3);  // one position, repeated
      add("fill_empty_rows_grad_grad", {}, {map, floats({half}), floats({}), floats({n})}, of({Tensor(kF, {n})}));
    }
    const Tensor a = matrix(n, 3), b = matrix(n / 3, 7), shape = ids_of({4 * n, 2});
    const Tensor a_values = floats({n}), b_values = floats({n / 3}), zero(kF, {});
    auto coo = [=](std::int64_t entries) {
      return std::vector<Tensor>{Tensor(long_ids, {entries, 2}), Tensor(kF, {entries}), Tensor(long_ids, {2})};
    };
    add("sparse_add", {}, {a, a_values, shape, b, b_values, shape, zero}, coo);
    const Result sum = run("sparse_add", {}, cases.back().in, coo);
    const Tensor &places = sum.out[0], &sums = sum.out[1];
    add("sparse_add_grad", {}, {sums, a, b, places}, of({Tensor(kF, {n}), Tensor(kF, {n / 3})}));
    add("sparse_add_grad_grad", {}, {a_values, b_values, a, b, places}, of({Tensor(kF, {sum.rows})}));
    const Tensor start = ids_of({n, 0}), size = ids_of({n, 1});
    add("sparse_slice", {}, {a, a_values, shape, start, size}, coo);
    const Result cut = run("sparse_slice", {}, cases.back().in, coo);
    add("sparse_slice_grad", {}, {cut.out[1], a, start, cut.out[0]}, of({Tensor(kF, {n})}));
    add("sparse_slice_grad_grad", {}, {a_values, a, start, cut.out[0]}, of({Tensor(kF, {cut.rows})}));
  }

  // Entries (step·i, i mod 2).
  static Tensor matrix(std::int64_t n, std::int64_t step) {
    Numbers64 list;
    for (std::int64_t i = 0; i < n; ++i) list.insert(list.end(), {i * step, i % 2});
    return matrix_of(list, n, 2);
  }

  void update_kernels_() {
    const Tensor numbers = StepNumbers().tensor();
    const Tensor grad = floats({kBags, kCols}), ids = below(kRows), bags = below(kBags);
    const Tensor weights = random_tensor(rng_, DType::float16, {n_});
    for (Rule rule : kRules) {
      std::vector<Tensor> state{floats({kRows, kCols})};
      for (int s = 0; s < slots_of(rule); ++s) state.push_back(Tensor(kF, {kRows, slot_size(rule, kCols)}));
      const Numbers64 own{std::int64_t(rule), kRows, 0, 0, 0, 1};
      auto with = [&own](const Numbers64& more) {
        Numbers64 all = own;
        all.insert(all.end(), more.begin(), more.end());
        return all;
      };
      add("apply_rows", own, {floats({kRows / 2, kCols}), counting(kRows / 2, 2), numbers}, of(state), true);
      add("apply_all", own, {floats({kRows, kCols}), numbers}, of(state), true);
      add("apply_bags", with({1, 0, 1, 0}), {grad, ids, bags, numbers}, of(state), true);
      add("apply_bags", with({1, 1, 1, 0}), {grad, ids, bags, weights, numbers}, of(state), true);
      add("apply_planned", with({1, 0, 1, 0}), joined(joined({grad}, plan_), {numbers}), of(state), true);
      add("apply_planned", with({2, 1, 1, 0}), joined(joined({grad, weights}, plan_), {numbers}), of(state), true);
    }
  }

  std::int64_t n_;
  Rng rng_;
  std::vector<Tensor> plan_;
};

// Runs every step of a call on the caller's memory: allocates nothing itself between `begin` and `end`. `out` has
// outputs of the right size with the contents that the kernel expects; without `fresh_zeros` they hold garbage.
struct Run {
  Status status;
  bool computed = false;
};

template <class Begin, class End>
Run run_on(const Case& c, std::vector<Tensor>& out, std::int64_t rows_expected, const Begin& begin, const End& end,
           bool fresh_zeros) {
  std::vector<Array> views, out_views;
  for (const Tensor& t : c.in) views.push_back(t.view());
  for (Tensor& t : out) out_views.push_back(t.view());
  Run result;
  begin();
  try {
    const FlushSubnormals flush;
    const std::unique_ptr<Kernel> kernel = make_kernel(c);
    kernel->in = views;
    kernel->attr = c.attrs;
    kernel->fresh_zeros = fresh_zeros;
    result.status = kernel->measure();
    if (!result.status) result.status = kernel->check();
    if (!result.status && kernel->rows == rows_expected) {
      kernel->holds_zeros = !kernel->fills();
      kernel->compute(out_views);
      result.computed = true;
    }
  } catch (const OutOfMemory& e) {
    result.status = {Fault::out_of_memory, -1, e.elements, memory_limit()};
  } catch (const std::bad_alloc&) {
    result.status = {Fault::out_of_memory, -1, 0, memory_limit()};
  }
  end();
  return result;
}

// The number of rows of a call, and its outputs before it: the state of an update, zeros, or garbage.
struct Prepared {
  std::int64_t rows = -1;
  std::vector<Tensor> before;
};

inline Prepared prepared(const Case& c, bool fresh_zeros) {
  std::vector<Array> views;
  for (const Tensor& t : c.in) views.push_back(t.view());
  const FlushSubnormals flush;
  const std::unique_ptr<Kernel> kernel = make_kernel(c);
  kernel->in = views;
  kernel->attr = c.attrs;
  kernel->fresh_zeros = fresh_zeros;
  EXPECT_EQ(kernel->measure().fault, 0);
  EXPECT_EQ(kernel->check().fault, 0);
  Prepared p{kernel->rows, c.outputs(kernel->rows)};
  if (kernel->fills() && !c.updates)
    for (Tensor& t : p.before) std::fill(t.bytes.begin(), t.bytes.end(), std::byte(0xa5));
  return p;
}

inline bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (first_difference(a[i], b[i]) != -1) return false;
  return a.size() == b.size();
}

}  // namespace test
