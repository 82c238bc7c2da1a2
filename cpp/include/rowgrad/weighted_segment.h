// Weighted bags: Σwx, Σwx/Σw, Σwx/√Σw², and their gradients for data.
#pragma once
#include <cmath>

#include "rowgrad/segment_rows.h"

namespace rowgrad {

// Weights in the accumulator's type, and Σw or √Σw² of every segment.
template <class A>
struct Weights {
  std::vector<A> value;
  std::vector<A> total;  // empty for sums

  Weights(const Array& weights, const Ids& segments, std::int64_t num_segments, Reduce kind)
      : value(workspace<A>(weights.size())) {
    visit(Floats{}, weights.dtype, [&]<class W>(std::type_identity<W>) {
      const W* w = weights.as<W>();
      for (std::size_t i = 0; i < value.size(); ++i) value[i] = A(load(w[i]));
    });
    if (kind == Reduce::sum) return;
    total = workspace<A>(num_segments);
    for (std::int64_t i = 0; i < segments.size; ++i)
      total[segments[i]] += kind == Reduce::mean ? value[i] : value[i] * value[i];
    if (kind == Reduce::sqrtn)
      for (A& t : total) t = std::sqrt(t);
  }

  const A* total_of(std::int64_t segment) const { return total.empty() ? nullptr : total.data() + segment; }
};

inline std::vector<std::int64_t> as_int64(const Ids& ids) {
  auto out = workspace<std::int64_t>(ids.size);
  for (std::int64_t i = 0; i < ids.size; ++i) out[i] = ids[i];
  return out;
}

// Inputs data, indices, segment_ids, weights; attr: reduce, whether this is the transpose of the gradient:
// then input 4 gives the number of segments and their ids come in any order.
class WeightedSegment : public Kernel {
 public:
  Status measure() override {
    // Ids first: TensorFlow gathers before it sums.
    if (const Status s = check_ids(Ids(in[1]), in[0].rows(), Fault::index_not_in_params)) return s;
    if (!attr[1]) return forward_rows(Ids(in[2]), true, nullptr, rows);
    rows = Ids(in[4])[0];
    return {};
  }

  Status check() override {
    const Ids segments(in[2]);
    if (!attr[1]) return check_runs(Ids(in[1]), segments, in[0].rows(), rows, Fault::index_not_in_params);
    return check_ids(segments, rows, Fault::segment_not_in_grad);
  }

  void compute(std::span<const Array> out) override {
    const Ids indices(in[1]), segments(in[2]);
    // By segment, input order kept; most batches come that way.
    const bool in_order = non_decreasing(segments);
    const auto entries = in_order ? Entries<std::uint64_t>() : sorted_positions(segments, rows);
    const auto starts = in_order ? run_starts(segments) : row_starts(entries);
    auto position = [&](std::int64_t i) { return in_order ? i : std::int64_t(entries[i].from); };
    Scratch<std::int64_t> ids(indices.size);
    parallel_ranges(indices.size, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) ids[i] = indices[position(i)];
    });
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      using A = Accumulator<T>;
      const auto data = mat<T>(in[0]);
      const auto result = mat<T>(out[0]);
      const Weights<A> weights(in[3], segments, rows, Reduce(attr[0]));
      Scratch<A> ordered(indices.size);
      for (std::int64_t i = 0; i < indices.size; ++i) ordered[i] = weights.value[position(i)];
      const auto& ops = grad_ops<T>();
      parallel_groups(starts, data.cols, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t g = first; g < last; ++g) {
          const std::int64_t begin = starts[g], s = segments[position(begin)];
          ops.weighted_reduce(result.row(s), data.data, data.cols, ids.data() + begin, ordered.data() + begin,
                              starts[g + 1] - begin, weights.total_of(s));
        }
      });
    });
  }
};

// The gradient for data. Inputs grad, indices, segment_ids, weights, output_dim0; attr: reduce, rounding.
class WeightedSegmentGrad : public Kernel {
 public:
  Status check() override {
    out_rows_ = Ids(in[4])[0];
    empty_ = in[1].size() == 0 || out_rows_ == 0;
    if (empty_) return {};
    return check_gradient_ids(Ids(in[1]), Ids(in[2]), out_rows_, in[0].rows(), false);
  }

  std::vector<std::int64_t> written() const override { return distinct_rows(entries_); }

  void compute(std::span<const Array> out) override {
    if (empty_) return;
    const Ids indices(in[1]), segments(in[2]);
    entries_ = sorted_positions(indices, out_rows_);
    const auto& entries = entries_;
    const auto starts = row_starts(entries);
    auto from = workspace<std::int64_t>(indices.size);
    for (std::int64_t i = 0; i < indices.size; ++i) from[i] = std::int64_t(entries[i].from);
    const auto segment_of = as_int64(segments);
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto grad = mat<T>(in[0]);
      const auto result = mat<T>(out[0]);
      const Weights<Accumulator<T>> weights(in[3], segments, grad.rows, Reduce(attr[0]));
      const auto& ops = grad_ops<T>();
      parallel_groups(starts, grad.cols, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t g = first; g < last; ++g)
          ops.weighted_accumulate(result.row(entries[starts[g]].row), grad.data, grad.cols, from.data() + starts[g],
                                  starts[g + 1] - starts[g], segment_of.data(), weights.value.data(),
                                  weights.total_of(0), Rounding(attr[1]));
      });
    });
  }

 private:
  std::int64_t out_rows_ = 0;
  bool empty_ = false;
  Entries<std::uint64_t> entries_;
};

// The gradient of each id's own row, before equal ids are summed. Inputs grad, segment_ids, weights; attr: reduce.
class WeightedSegmentGradRows : public Kernel {
 public:
  Status check() override {
    return check_ids(Ids(in[1]), in[0].rows(), Fault::segment_not_in_grad);
  }

  void compute(std::span<const Array> out) override {
    const Ids segments(in[1]);
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto grad = mat<T>(in[0]);
      const auto result = mat<T>(out[0]);
      const Weights<Accumulator<T>> weights(in[2], segments, grad.rows, Reduce(attr[0]));
      const auto& ops = grad_ops<T>();
      parallel_ranges(segments.size, 1 + (1 << 14) / (grad.cols + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          ops.weighted_row(result.row(i), grad.row(segments[i]), grad.cols, weights.value[i],
                           weights.total_of(segments[i]));
      });
    });
  }
};

}  // namespace rowgrad
