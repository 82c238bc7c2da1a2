// Plans: a batch of ids sorted by row, as arrays that can be stored, sent and reused; and gradients computed from a
// plan.
//
// A plan is six inputs, in this order: rows (the distinct rows, ascending), starts (where the entries of each row
// begin), segments and positions (of each entry: its segment and its position in the batch; ascending within a row),
// counts (the number of ids of each segment), num_rows.
#pragma once
#include <optional>

#include "rowgrad/weighted_segment.h"

namespace rowgrad {

// Inputs indices, segment_ids, num_rows, num_segments → rows, starts, segments, positions, counts.
class RowPlan : public Kernel {
 public:
  Status measure() override {
    num_rows_ = Ids(in[2])[0];
    const std::int64_t num_segments = Ids(in[3])[0];
    rows = 0;
    const Ids indices(in[0]), segments(in[1]);
    const Scan found = scan(indices, num_rows_, segments, num_segments);
    sorted_ = found.sorted;
    if (!found.in_range)
      return first_out_of_range(indices, num_rows_, Fault::index_not_in_output, segments, num_segments);
    batch_ = SortedBatch::by_position(indices, num_rows_);
    const std::int64_t parts = work_parts(indices.size, 1);  // read once: the number of threads may change
    before_ = batch_.visit([parts](const auto& entries) { return runs_before(entries, parts); });
    rows = before_.back();
    return {};
  }

  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    const Ids segments(in[1]);
    segments.typed([&](auto* segment_of) {
      rowgrad::visit(Indices{}, out[0].dtype, [&]<class I>(std::type_identity<I>) {
        batch_.visit([&](const auto& entries) { write<I>(entries, segment_of, out); });
      });
    });
    std::int64_t* count = out[4].as<std::int64_t>();
    std::fill_n(count, out[4].size(), 0);
    count_ids(segments, sorted_, out[4].size(), count);
  }

 private:
  template <class I, class P, class S>
  void write(const Entries<P>& entries, const S* segment_of, std::span<const Array> out) const {
    I* row = out[0].as<I>();
    std::int64_t *starts = out[1].as<std::int64_t>(), *positions = out[3].as<std::int64_t>();
    S* segments = out[2].as<S>();
    const Entry<P>* e = entries.data();
    parallel_parts(entries.size(), std::int64_t(before_.size()) - 1,
                   [=, this](std::int64_t begin, std::int64_t end, std::int64_t part) {
                     std::int64_t k = before_[part];
                     for (std::int64_t i = begin; i < end; ++i) {
                       if (i == 0 || e[i].row != e[i - 1].row) {
                         row[k] = I(e[i].row);
                         starts[k++] = i;
                       }
                       positions[i] = std::int64_t(e[i].from);
                       segments[i] = segment_of[e[i].from];
                     }
                   });
  }

  std::int64_t num_rows_ = 0;
  bool sorted_ = false;
  SortedBatch batch_;
  std::vector<std::int64_t> before_;  // distinct rows before each part
};

// A kernel's view of a plan in inputs [at, at + 6), with its checks. The arrays are the caller's and another thread may
// change them after the check, so kernels bound every number that becomes an address (bounded_id).
struct PlanView {
  Ids rows, segments;
  Vec<const std::int64_t> starts, positions, counts;
  std::int64_t num_rows;

  PlanView(std::span<const Array> in, std::size_t at)
      : rows(in[at]),
        segments(in[at + 2]),
        starts(vec<const std::int64_t>(in[at + 1])),
        positions(vec<const std::int64_t>(in[at + 3])),
        counts(vec<const std::int64_t>(in[at + 4])),
        num_rows(Ids(in[at + 5])[0]) {}

  // Validates every number that becomes an address. `grad_rows`: exclusive upper bound of the segments.
  Status check(std::int64_t grad_rows, bool uses_positions) const {
    const std::int64_t n = segments.size;
    if (counts.size > grad_rows) return {Fault::plan_segments_not_in_grad, -1, counts.size, grad_rows};
    if (const Status s = check_ascending(rows, num_rows, Fault::plan_rows)) return s;
    const std::int64_t first = starts.size > 0 ? starts[0] : -1;
    if (n > 0 && first != 0) return {Fault::plan_starts, 0, first, n};
    if (const Status s = check_ascending(Ids(starts), n, Fault::plan_starts)) return s;
    if (const Status s = check_ids(segments, counts.size, Fault::plan_segments)) return s;
    if (!uses_positions) return {};
    const std::int64_t i = first_where(n, [this, n](std::int64_t j) { return !is_below(positions[j], n); });
    return i == n ? Status{} : Status{Fault::plan_positions, i, positions[i], n};
  }

  // Validates the rest: each position occurs once and ascends within its row; counts match the segments.
  Status check_consistency() const {
    const std::int64_t n = segments.size;
    auto used = workspace<std::uint8_t>(n);
    for (std::int64_t i = 0, k = 0; i < n; ++i) {
      const bool begins = k < starts.size && starts[k] == i;
      k += begins;
      if (used[positions[i]]++ || (!begins && positions[i] < positions[i - 1]))
        return {Fault::plan_positions, i, positions[i], n};
    }
    auto count = workspace<std::int64_t>(counts.size);
    count_ids(segments, false, counts.size, count.data());
    const std::int64_t s = first_where(counts.size, [&](std::int64_t j) { return count[j] != counts[j]; });
    return s == counts.size ? Status{} : Status{Fault::plan_counts, s, counts[s], count[s]};
  }

  std::int64_t end(std::int64_t k) const { return k + 1 < starts.size ? starts[k + 1] : segments.size; }

  RowList all_rows() const {
    RowList list = row_list(num_rows);
    std::visit(
        [this]<class I>(std::vector<I>& all) {
          for (std::int64_t k = 0; k < rows.size; ++k) all.push_back(I(rows[k]));
        },
        list);
    return list;
  }

  std::int64_t row_parts(std::int64_t work_per_entry) const { return work_parts(segments.size, work_per_entry); }

  // Calls fn(first, last, part) on ranges of rows with about equal numbers of entries.
  template <class Fn>
  void parallel_rows(std::int64_t parts, const Fn& fn) const {
    const std::int64_t n = segments.size;
    const std::int64_t *begin = starts.data, *end = starts.data + starts.size;
    auto cut = [=](std::int64_t t) {
      return (t == parts ? end : std::lower_bound(begin, end, n * t / parts)) - begin;
    };
    parallel_tasks(parts, [&](std::int64_t t) { fn(cut(t), cut(t + 1), t); });
  }
};

// Restores the ids of a plan in input order: the six inputs → indices, segment_ids. Runs every check.
class PlannedIds : public Kernel {
 public:
  Status check() override {
    PlanView& plan = plan_.emplace(in, 0);
    rows_ = IdSnapshot(plan.rows);
    segments_ = IdSnapshot(plan.segments);
    starts_ = IdSnapshot(Ids(plan.starts));
    positions_ = IdSnapshot(Ids(plan.positions));
    plan.rows = rows_;
    plan.segments = segments_;
    plan.starts.data = static_cast<const std::int64_t*>(starts_.data);
    plan.positions.data = static_cast<const std::int64_t*>(positions_.data);
    if (const Status s = plan.check(plan.counts.size, true)) return s;
    return plan.check_consistency();
  }

  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    const PlanView& plan = *plan_;
    rowgrad::visit(Indices{}, out[0].dtype, [&]<class I>(std::type_identity<I>) {
      rowgrad::visit(Indices{}, out[1].dtype, [&]<class S>(std::type_identity<S>) {
        I* indices = out[0].as<I>();
        S* segments = out[1].as<S>();
        plan.parallel_rows(plan.row_parts(1), [&](std::int64_t first, std::int64_t last, std::int64_t) {
          for (std::int64_t k = first; k < last; ++k)
            for (std::int64_t i = plan.starts[k]; i < plan.end(k); ++i) {
              indices[plan.positions[i]] = I(plan.rows[k]);
              segments[plan.positions[i]] = S(plan.segments[i]);
            }
        });
      });
    });
  }

 private:
  IdSnapshot rows_, segments_, starts_, positions_;
  std::optional<PlanView> plan_;  // a view of these copies
};

// Returns the segment of each position of the batch: weights are summed in input order.
inline Scratch<std::int64_t> segments_in_input_order(const PlanView& plan) {
  const std::int64_t n = plan.segments.size;
  Scratch<std::int64_t> segment_of(n);
  std::fill_n(segment_of.data(), n, 0);  // repeated positions leave others unset, which must still be valid segments
  plan.segments.typed([&]<class S>(const S* segment) {
    const auto last_segment = last_id<S>(plan.counts.size);
    const auto last_position = last_id<std::int64_t>(n);
    for (std::int64_t i = 0; i < n; ++i)
      segment_of[bounded_id(plan.positions.data + i, last_position)] = bounded_id(segment + i, last_segment);
  });
  return segment_of;
}

// Describes the sum of a plan's rows into `out`: into a whole table, or with `unique` one row after the other.
template <class T, class I>
PlannedRows<T, I> planned_rows(const PlanView& plan, const Array& gradient, const I* from, const Accumulator<T>* scale,
                               bool unique, Order order, T* out) {
  const auto grad = mat<T>(gradient);
  PlannedRows<T, I> batch{};
  batch.out = out;
  batch.grad = grad.data;
  batch.cols = grad.cols;
  batch.ids = plan.rows;
  batch.num_rows = plan.num_rows;
  batch.starts = plan.starts.data;
  batch.rows = plan.starts.size;
  batch.from = from;
  batch.size = plan.segments.size;
  batch.scale = scale;
  batch.unique = unique;
  batch.order = order;
  return batch;
}

// Shared by gradients with a plan; grad is input 0.
class PlannedGradient : public Kernel {
 public:
  RowList written() const override { return plan().all_rows(); }

 protected:
  virtual PlanView plan() const = 0;
  // Whether to clear the rows of the table that no id refers to.
  bool clears(bool unique) const { return !unique && !holds_zeros; }
};

// Inputs grad, plan; attr: reduce, whether to return only the unique rows, order.
class PlannedSegmentGrad : public PlannedGradient {
 public:
  Status check() override { return plan().check(in[0].rows(), false); }
  bool fills() const override { return attr[1] != 0 || !fresh_zeros || is_written_whole(PlanView(in, 1).num_rows, in[0]); }

  void compute(std::span<const Array> out) override {
    const PlanView plan = this->plan();
    const bool unique = attr[1] != 0;
    if (plan.segments.size == 0) return clear_unless(holds_zeros, out[0]);
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto scales = gradient_scales<Accumulator<T>>(plan.counts.data, plan.counts.size, Reduction(attr[0]));
      const auto* scale = scales.empty() ? nullptr : scales.data();
      plan.segments.typed([&](auto* from) {
        auto batch = planned_rows<T>(plan, in[0], from, scale, unique, Order(attr[2]), out[0].as<T>());
        batch.clears = clears(unique);
        plan.parallel_rows(plan.row_parts(batch.cols), [&](std::int64_t first, std::int64_t last, std::int64_t) {
          grad_ops<T>().accumulate_planned(batch, first, last);
        });
      });
    });
    if (unique) std::copy_n(static_cast<const char*>(plan.rows.data), out[1].bytes(), out[1].as<char>());
  }

 private:
  PlanView plan() const override { return {in, 1}; }
};

// Inputs grad, weights, plan; attr: reduce, rounding, order.
class PlannedWeightedGrad : public PlannedGradient {
 public:
  Status check() override { return plan().check(in[0].rows(), true); }
  bool fills() const override { return !fresh_zeros || is_written_whole(PlanView(in, 2).num_rows, in[0]); }

  void compute(std::span<const Array> out) override {
    const PlanView plan = this->plan();
    if (plan.segments.size == 0) return clear_unless(holds_zeros, out[0]);
    const auto segment_of = segments_in_input_order(plan);
    const Ids segments(segment_of);
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const Weights<Accumulator<T>> weights(in[1], segments, in[0].rows(), Reduction(attr[0]));
      const WeightedIds<T> ids{segments, weights.values(), weights.totals(), Rounding(attr[1])};
      auto batch = planned_rows<T>(plan, in[0], plan.positions.data, nullptr, false, Order(attr[2]), out[0].as<T>());
      batch.clears = clears(false);
      plan.parallel_rows(plan.row_parts(batch.cols), [&](std::int64_t first, std::int64_t last, std::int64_t) {
        grad_ops<T>().weighted_planned(batch, ids, first, last);
      });
    });
  }

 private:
  PlanView plan() const override { return {in, 2}; }
};

}  // namespace rowgrad
