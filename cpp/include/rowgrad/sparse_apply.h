// Optimizer steps on the rows of a table: from row-sparse gradients, or fused with the gradient of bags, which sums a
// few rows at a time and never stores the table's gradient.
//
// Nothing is written before all ids are validated and all memory is allocated. `out` is the table and the rule's slots,
// updated in place. The last input has the step's hyperparameters, float64, in the order of ROWGRAD_STEP_NUMBERS. A
// row's gradient is rounded to the table's T before the rule reads it, stored or not, so both paths return the same
// bits.
#pragma once
#include <algorithm>

#include "rowgrad/row_plan.h"
#include "rowgrad/row_update.h"

namespace rowgrad {

// Returns how many elements of a row are read or written: weights, gradient and slots.
template <class T>
std::int64_t work_per_row(const RowUpdate<T>& u) {
  return u.cols * (2 + slots_of(u.rule));
}

// Updates the rows that are not in `updated`, which is ascending.
template <class T>
void fade_other_rows(const RowUpdate<T>& u, const Ids& updated) {
  const std::int64_t parts = work_parts(u.rows, work_per_row(u));
  updated.typed([&](auto* ids) {
    parallel_parts(u.rows, parts, [&](std::int64_t row, std::int64_t end, std::int64_t) {
      for (auto* id = std::lower_bound(ids, ids + updated.size, row); row < end; ++id) {
        const std::int64_t next = id == ids + updated.size ? end : std::clamp<std::int64_t>(read_once(id), row, end);
        update_ops<T>().fade(u, row, next);
        if (next == end) return;
        row = next + 1;
      }
    });
  });
}

// attr: rule, rows of the table, lazy (rows without a gradient do not change), stochastic rounding, seed, step; then
// the attributes of the kernel from kOwn on.
class RowOptimizer : public Kernel {
 public:
  bool fills() const override { return true; }  // outputs are updated in place: never clear them

 protected:
  static constexpr std::size_t kOwn = 6;
  std::int64_t table_rows() const { return attr[1]; }
  bool skips_rest() const { return attr[2] != 0 || !fades(Rule(attr[0])); }

  template <class T>
  RowUpdate<T> update(std::span<const Array> out) const {
    using A = Accumulator<T>;
    const double* number = in.back().as<const double>();
    RowUpdate<T> u{};
    u.rule = Rule(attr[0]);
    u.table = out[0].as<T>();
    for (int s = 0; s < slots_of(u.rule); ++s) u.slots[s] = out[s + 1].as<A>();
    u.rows = table_rows();
    u.cols = out[0].row_size();
#define ROWGRAD_NUMBER(name) u.name = A(*number++);
    ROWGRAD_STEP_NUMBERS(ROWGRAD_NUMBER)
#undef ROWGRAD_NUMBER
    u.random = attr[3] != 0;
    u.key = random_key(std::uint64_t(attr[4]), std::uint64_t(attr[5]));
    return u;
  }

  template <class T>
  void fade_rest(const RowUpdate<T>& u, const Ids& updated) const {
    if (!skips_rest()) fade_other_rows(u, updated);
  }
};

// Inputs grad (a row per id), row ids (strictly ascending), hyperparameters.
class ApplyRows : public RowOptimizer {
  static constexpr std::int64_t kAhead = 8;  // rows to prefetch

 public:
  Status check() override { return check_ascending(Ids(in[1]), table_rows(), Fault::row_ids); }

  void compute(std::span<const Array> out) override {
    const Ids ids(in[1]);
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto u = update<T>(out);
      const auto grad = mat<const T>(in[0]);
      parallel_parts(ids.size, work_parts(ids.size, work_per_row(u)),
                     [&](std::int64_t begin, std::int64_t end, std::int64_t) {
                       update_ops<T>().listed(u, grad.row(begin), ids, begin, end, kAhead);
                     });
      fade_rest(u, ids);
    });
  }
};

// Inputs grad (of the whole table), hyperparameters.
class ApplyAll : public RowOptimizer {
 public:
  void compute(std::span<const Array> out) override {
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto u = update<T>(out);
      parallel_parts(u.rows, work_parts(u.rows, work_per_row(u)),
                     [&](std::int64_t begin, std::int64_t end, std::int64_t) {
                       update_ops<T>().all(u, in[0].as<const T>(), begin, end);
                     });
    });
  }
};

// A buffer for a few gradient rows per part: few enough that they stay in cache, enough to hide the latency of
// prefetching their table rows while they are summed.
template <class T>
class RowChunks {
 public:
  static constexpr std::int64_t kMost = 32;  // rows

  RowChunks(std::int64_t parts, std::int64_t cols)
      : rows_(std::clamp<std::int64_t>(kBytes / (std::max<std::int64_t>(cols, 1) * std::int64_t(sizeof(T))), 1, kMost)),
        stride_((rows_ * cols + kLine - 1) / kLine * kLine),
        memory_(parts * stride_) {}

  std::int64_t rows() const { return rows_; }
  T* of(std::int64_t part) { return memory_.data() + part * stride_; }

 private:
  static constexpr std::int64_t kBytes = 2 << 10, kLine = 64;
  std::int64_t rows_, stride_;
  Scratch<T> memory_;
};

// Iterates over the runs of a sorted batch that begin in [begin, end).
template <class P>
class RunList {
 public:
  RunList(const Entries<P>& entries, std::int64_t begin, std::int64_t end)
      : e_(entries.data()), n_(entries.size()), at_(begin), end_(end) {}

  bool done() const { return at_ >= end_; }

  // Writes the rows and starts of the runs that begin in the next `most` entries, then the end of the last run; returns
  // how many runs. Branch-free: whether an entry begins a run is hard to predict.
  std::int64_t next(std::int64_t most, std::int64_t* rows, std::int64_t* starts) {
    const std::int64_t stop = std::min(at_ + most, end_);
    std::int64_t k = 0;
    for (std::int64_t i = at_; i < stop; ++i) {
      rows[k] = std::int64_t(e_[i].row);
      starts[k] = i;
      k += i == 0 || e_[i].row != e_[i - 1].row;
    }
    at_ = stop;
    if (k == 0) return 0;
    while (at_ < n_ && e_[at_].row == e_[at_ - 1].row) ++at_;
    starts[k] = at_;
    return k;
  }

 private:
  const Entry<P>* e_;
  std::int64_t n_, at_, end_;
};

// Updates the runs that begin in [begin, end), a chunk at a time: `sum(starts, k)` sums k runs into `gradient`, then
// the rule is applied while the rows of the next chunk are prefetched.
template <class T, class P, class Sum>
void update_runs(const RowUpdate<T>& u, const Entries<P>& entries, std::int64_t begin, std::int64_t end,
                 const T* gradient, std::int64_t chunk, const Sum& sum) {
  constexpr std::int64_t most = RowChunks<T>::kMost;
  std::int64_t rows[2 * most + 1], list[2][most + 1];  // rows of this chunk and the next
  std::int64_t *starts = list[0], *later = list[1];
  RunList<P> runs(entries, begin, end);
  for (std::int64_t k = 0, more;; k = more) {
    const bool last = runs.done();
    more = last ? 0 : runs.next(chunk, rows + k, later);
    if (k > 0) {
      sum(starts, k);
      update_ops<T>().listed(u, gradient, IdList{rows, k + more, true}, 0, k, k);
    }
    for (std::int64_t j = 2 * k; j < k + more; ++j) prefetch_row(u, rows[j]);  // if the next chunk is larger
    if (last) return;
    std::copy_n(rows + k, more, rows);
    std::swap(starts, later);
  }
}

// attr: … reduce, whether there are weights, rounding, order.
class BagOptimizer : public RowOptimizer {
 protected:
  Reduction kind() const { return Reduction(attr[kOwn]); }
  bool weighted() const { return attr[kOwn + 1] != 0; }
  Rounding rounding() const { return Rounding(attr[kOwn + 2]); }
  Order order() const { return Order(attr[kOwn + 3]); }
};

// Inputs grad (a row per bag), indices, segment_ids, weights if any, hyperparameters.
class ApplyBags : public BagOptimizer {
 public:
  Status check() override {
    empty_ = in[1].size() == 0 || table_rows() == 0;  // then no id is validated, as for a gradient
    if (empty_) return {};
    if (weighted()) segments_ = IdSnapshot(Ids(in[2]));
    return check_gradient_ids(Ids(in[1]), segments(), table_rows(), in[0].rows(), false, sorted_);
  }

  void compute(std::span<const Array> out) override {
    if (!empty_)
      batch_ = weighted() ? SortedBatch::by_position(Ids(in[1]), table_rows())
                          : SortedBatch::by_segment(Ids(in[1]), segments(), table_rows(), in[0].rows());
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto u = update<T>(out);
      // Before anything is written: this allocates and may fail.
      const RowList updated = empty_ || skips_rest() ? RowList{} : batch_.rows();
      if (!empty_) batch_.visit([&](const auto& entries) { weighted() ? with_weights(u, entries) : plain(u, entries); });
      std::visit(
          [&]<class I>(const std::vector<I>& rows) {
            fade_rest(u, Ids(rows.data(), std::int64_t(rows.size()), sizeof(I) == 8));
          },
          updated);
    });
  }

 private:
  // With weights, a private copy: segments are read as addresses again after the sort.
  Ids segments() const { return weighted() ? Ids(segments_) : Ids(in[2]); }

  template <class T, class P>
  void plain(const RowUpdate<T>& u, const Entries<P>& entries) const {
    const auto scales = gradient_scales<Accumulator<T>>(segments(), sorted_, in[0].rows(), kind());
    const auto* scale = scales.empty() ? nullptr : scales.data();
    in_chunks(u, entries, scale, [](const SortedRows<T, P>& batch, const std::int64_t* starts, std::int64_t runs) {
      grad_ops<T>().accumulate_listed(batch, starts, runs);
    });
  }

  template <class T, class P>
  void with_weights(const RowUpdate<T>& u, const Entries<P>& entries) const {
    const Weights<Accumulator<T>> weights(in[3], segments(), in[0].rows(), kind());
    const WeightedIds<T> ids{segments(), weights.values(), weights.totals(), rounding()};
    in_chunks(u, entries, nullptr, [&](const SortedRows<T, P>& batch, const std::int64_t* starts, std::int64_t runs) {
      grad_ops<T>().weighted_listed(batch, ids, starts, runs);
    });
  }

  template <class T, class P, class Sum>
  void in_chunks(const RowUpdate<T>& u, const Entries<P>& entries, const Accumulator<T>* scale, const Sum& sum) const {
    const std::int64_t n = entries.size(), parts = work_parts(n, u.cols);
    RowChunks<T> chunks(parts, u.cols);
    parallel_parts(n, parts, [&](std::int64_t begin, std::int64_t end, std::int64_t part) {
      const SortedRows<T, P> batch{chunks.of(part), in[0].as<const T>(), u.cols, entries.data(), n, scale, true,
                                   order(), 0, u.cols};
      update_runs(u, entries, begin, end, chunks.of(part), chunks.rows(),
                  [&](const std::int64_t* starts, std::int64_t runs) { sum(batch, starts, runs); });
    });
  }

  bool empty_ = false, sorted_ = false;
  IdSnapshot segments_;
  SortedBatch batch_;
};

// Inputs grad, weights if any, plan, hyperparameters.
class ApplyPlanned : public BagOptimizer {
 public:
  Status check() override {
    const PlanView plan = this->plan();
    if (plan.num_rows != table_rows()) return {Fault::plan_num_rows, -1, plan.num_rows, table_rows()};
    return plan.check(in[0].rows(), weighted());
  }

  void compute(std::span<const Array> out) override {
    const PlanView plan = this->plan();
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto u = update<T>(out);
      if (plan.segments.size > 0) weighted() ? with_weights(u, plan) : plain(u, plan);
      fade_rest(u, plan.rows);
    });
  }

 private:
  PlanView plan() const { return {in, weighted() ? 2u : 1u}; }

  template <class T>
  void plain(const RowUpdate<T>& u, const PlanView& plan) const {
    const auto scales = gradient_scales<Accumulator<T>>(plan.counts.data, plan.counts.size, kind());
    const auto* scale = scales.empty() ? nullptr : scales.data();
    plan.segments.typed([&]<class I>(const I* from) {
      in_chunks(u, plan, from, scale, [](const PlannedRows<T, I>& batch, std::int64_t rows) {
        grad_ops<T>().accumulate_planned(batch, 0, rows);
      });
    });
  }

  template <class T>
  void with_weights(const RowUpdate<T>& u, const PlanView& plan) const {
    const auto segment_of = segments_in_input_order(plan);
    const Ids segments(segment_of);
    const Weights<Accumulator<T>> weights(in[1], segments, in[0].rows(), kind());
    const WeightedIds<T> ids{segments, weights.values(), weights.totals(), rounding()};
    in_chunks(u, plan, plan.positions.data, static_cast<const Accumulator<T>*>(nullptr),
              [&](const PlannedRows<T, std::int64_t>& batch, std::int64_t rows) {
                grad_ops<T>().weighted_planned(batch, ids, 0, rows);
              });
  }

  // `sum(batch, k)` sums the first k rows of `batch`, a plan that begins at the chunk.
  template <class T, class I, class Sum>
  void in_chunks(const RowUpdate<T>& u, const PlanView& plan, const I* from, const Accumulator<T>* scale,
                 const Sum& sum) const {
    const std::int64_t parts = plan.row_parts(u.cols);
    RowChunks<T> chunks(parts, u.cols);
    plan.parallel_rows(parts, [&](std::int64_t first, std::int64_t last, std::int64_t part) {
      for (std::int64_t k = first; k < std::min(first + chunks.rows(), last); ++k)
        prefetch_row(u, plan.rows.bounded(k, u.rows));
      for (std::int64_t k = first, next; k < last; k = next) {
        next = std::min(k + chunks.rows(), last);
        auto batch = planned_rows<T>(plan, in[0], from, scale, true, order(), chunks.of(part));
        batch.starts += k;
        batch.rows -= k;
        sum(batch, next - k);
        update_ops<T>().listed(u, chunks.of(part), plan.rows, k, next, chunks.rows());
      }
    });
  }
};

}  // namespace rowgrad
