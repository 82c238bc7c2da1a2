// Weighted bags: Σwx, Σwx/Σw, Σwx/√Σw², and their gradients for data.
#pragma once
#include <cmath>

#include "rowgrad/segment_rows.h"

namespace rowgrad {

// Weights in the accumulator's type, and Σw or √Σw² per segment.
template <class A>
class Weights {
 public:
  Weights(const Array& weights, const Ids& segments, std::int64_t num_segments, Reduction kind) {
    visit(Floats{}, weights.dtype, [&]<class W>(std::type_identity<W>) {
      if constexpr (std::is_same_v<W, A>)
        value_ = weights.as<A>();
      else
        convert(weights.as<const W>(), weights.size());
    });
    if (!has_divisor(kind) || segments.size == 0) return;
    total_ = Scratch<A>(num_segments);
    total_.clear();
    const auto add_terms = [&](auto term) {
      segments.typed([&](auto* p) { add_up(p, segments.size, num_segments, term, non_decreasing(segments)); });
    };
    switch (kind) {
      case Reduction::sum:
        break;
      case Reduction::mean:
        add_terms([](A w) { return w; });
        break;
      case Reduction::sqrtn:
        add_terms([](A w) { return w * w; });
        for (std::int64_t s = 0; s < num_segments; ++s) total_[s] = std::sqrt(total_[s]);
        break;
    }
  }

  const A* values() const { return value_; }
  const A* totals() const { return total_.empty() ? nullptr : total_.data(); }
  const A* total_of(std::int64_t segment) const { return total_.empty() ? nullptr : total_.data() + segment; }

 private:
  template <class W>
  void convert(const W* w, std::int64_t n) {
    converted_ = Scratch<A>(n);
    A* to = converted_.data();
    parallel_ranges(n, kScanGrain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = A(load(w[i]));
    });
    value_ = to;
  }

  // Adds in input order. With sorted segments, parts that begin at a segment share none.
  template <class S, class Term>
  void add_up(const S* segment, std::int64_t n, std::int64_t num_segments, Term term, bool sorted) {
    const auto last = last_id<S>(num_segments);
    const A* w = value_;
    A* total = total_.data();
    parallel_parts(n, sorted ? pieces(n, kScanGrain) : 1, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
      while (begin > 0 && begin < end && segment[begin] == segment[begin - 1]) ++begin;
      while (end > begin && end < n && segment[end] == segment[end - 1]) ++end;
      for (std::int64_t i = begin; i < end;) {
        const std::int64_t s = bounded_id(segment + i, last);
        A sum = total[s];
        do {
          sum += term(w[i]);
        } while (++i < end && segment[i] == S(s));
        total[s] = sum;
      }
    });
  }

  const A* value_ = nullptr;
  Scratch<A> converted_;
  Scratch<A> total_;  // empty for sums
};

// Inputs data, indices, segment_ids, weights; attr: reduce, transpose. In the transpose of the gradient, input 4 is the
// number of segments, and segment ids may be in any order.
class WeightedSegment : public Kernel {
 public:
  Status measure() override {
    // Indices first: TensorFlow gathers before it sums.
    if (const Status s = check_ids(Ids(in[1]), in[0].rows(), Fault::index_not_in_params)) return s;
    if (!attr[1]) return forward_rows(Ids(in[2]), true, nullptr, rows);
    rows = Ids(in[4])[0];
    return {};
  }

  Status check() override {
    const Ids indices(in[1]), segments(in[2]);
    if (attr[1]) return check_ids(segments, rows, Fault::segment_not_in_grad);
    const std::int64_t data_rows = in[0].rows();
    return check_runs(scan(indices, data_rows, segments, rows), indices, segments, data_rows, rows,
                      Fault::index_not_in_params);
  }

  bool fills() const override { return in[1].size() > 0; }

  void compute(std::span<const Array> out) override {
    const Ids indices(in[1]), segments(in[2]);  // not copied: as in SparseSegment
    const std::int64_t n = indices.size;
    if (n == 0) return;
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      using A = Accumulator<T>;
      const Weights<A> weights(in[3], segments, rows, Reduction(attr[0]));
      if (non_decreasing(segments))  // the common case
        return reduce<T>(out[0], indices, segments, weights.values(), weights.totals());
      Scratch<std::int64_t> sorted_indices(n), sorted_segments(n);
      Scratch<A> sorted_weights(n);
      SortedBatch::by_position(segments, rows).visit([&](const auto& entries) {
        parallel_ranges(n, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            const auto from = std::int64_t(entries[i].from);
            sorted_indices[i] = indices[from];
            sorted_segments[i] = std::int64_t(entries[i].row);
            sorted_weights[i] = weights.values()[from];
          }
        });
      });
      reduce<T>(out[0], Ids(sorted_indices), Ids(sorted_segments), sorted_weights.data(), weights.totals());
    });
  }

 private:
  template <class T>
  void reduce(const Array& out, const Ids& indices, const Ids& segments, const Accumulator<T>* weights,
              const Accumulator<T>* totals) const {
    const auto data = mat<T>(in[0]);
    const WeightedBags<T> bags{out.as<T>(), rows, data.data, data.rows, data.cols, indices, segments, weights, totals};
    parallel_parts(indices.size, work_parts(indices.size, data.cols),
                   [&](std::int64_t begin, std::int64_t end, std::int64_t) {
                     grad_ops<T>().weighted_bags(bags, begin, end);
                   });
  }
};

// The gradient for data. Inputs grad, indices, segment_ids, weights, output_dim0; attr: reduce, rounding, order.
class WeightedSegmentGrad : public Kernel {
 public:
  Status check() override {
    out_rows_ = Ids(in[4])[0];
    empty_ = in[1].size() == 0 || out_rows_ == 0;
    if (empty_) return {};
    bool sorted = false;
    segments_ = IdSnapshot(Ids(in[2]));
    return check_gradient_ids(Ids(in[1]), segments_, out_rows_, in[0].rows(), false, sorted);
  }

  bool fills() const override { return !fresh_zeros || is_written_whole(Ids(in[4])[0], in[0]); }
  RowList written() const override { return batch_.rows(); }

  void compute(std::span<const Array> out) override {
    if (empty_) return clear_unless(holds_zeros, out[0]);
    const Ids& segments = segments_;
    batch_ = SortedBatch::by_position(Ids(in[1]), out_rows_);
    batch_.visit([&]<class P>(const Entries<P>& entries) {
      rowgrad::visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
        const auto grad = mat<T>(in[0]);
        const Weights<Accumulator<T>> weights(in[3], segments, grad.rows, Reduction(attr[0]));
        const WeightedIds<T> ids{segments, weights.values(), weights.totals(), Rounding(attr[1])};
        const std::int64_t n = entries.size();
        const SortedRows<T, P> batch{out[0].as<T>(), grad.data, grad.cols, entries.data(), n, nullptr, false,
                                     Order(attr[2]), holds_zeros ? 0 : out_rows_, grad.cols};
        parallel_parts(n, work_parts(n, grad.cols), [&](std::int64_t begin, std::int64_t end, std::int64_t) {
          grad_ops<T>().weighted_runs(batch, ids, begin, end, 0);
        });
      });
    });
  }

 private:
  std::int64_t out_rows_ = 0;
  bool empty_ = false;
  IdSnapshot segments_;
  SortedBatch batch_;
};

// The gradient row of each id, before equal ids are summed. Inputs grad, segment_ids, weights; attr: reduce.
class WeightedSegmentGradRows : public Kernel {
 public:
  Status check() override {
    segments_ = IdSnapshot(Ids(in[1]));
    return check_ids(segments_, in[0].rows(), Fault::segment_not_in_grad);
  }

  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    const Ids& segments = segments_;
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto grad = mat<T>(in[0]);
      const auto result = mat<T>(out[0]);
      const Weights<Accumulator<T>> weights(in[2], segments, grad.rows, Reduction(attr[0]));
      const auto& ops = grad_ops<T>();
      parallel_ranges(segments.size, 1 + (1 << 14) / (grad.cols + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          ops.weighted_row(result.row(i), grad.row(segments[i]), grad.cols, weights.values()[i],
                           weights.total_of(segments[i]));
      });
    });
  }

 private:
  IdSnapshot segments_;
};

}  // namespace rowgrad
