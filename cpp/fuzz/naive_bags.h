// Random bags and their gradients, computed one row and column at a time.
#pragma once
#include <map>

#include "../test/naive.h"
#include "input.h"

namespace fuzz {

// Ids of one call; each list is int32 or int64.
struct BagIds {
  Numbers64 indices, segments;
  bool wide_indices, wide_segments;

  BagIds(Input& in, std::int64_t n, std::int64_t rows, std::int64_t segment_bound, bool sorted)
      : wide_indices(in.flag()), wide_segments(in.flag()) {
    indices = in.ids(n, std::max<std::int64_t>(rows, 1), !wide_indices);
    segments = in.ids(n, std::max<std::int64_t>(segment_bound, 1), !wide_segments, sorted);
  }
  std::int64_t size() const { return std::int64_t(indices.size()); }
  DType index_dtype() const { return wide_indices ? DType::int64 : DType::int32; }
  Tensor index_tensor() const { return test::ids_of(indices, wide_indices); }
  Tensor segment_tensor() const { return test::ids_of(segments, wide_segments); }
  // Returns the positions of each row's ids, in input order.
  std::map<std::int64_t, Numbers64> by_row() const {
    std::map<std::int64_t, Numbers64> rows;
    for (std::int64_t i = 0; i < size(); ++i) rows[indices[i]].push_back(i);
    return rows;
  }
};

// Weights in the accumulator's type, and Σw or √Σw² of every segment below `bound`.
template <class A>
struct NaiveWeights {
  std::vector<A> values, totals;

  NaiveWeights(const Tensor& weights, const Numbers64& segments, std::int64_t bound, Reduction kind)
      : totals(static_cast<std::size_t>(kind == Reduction::sum ? 0 : bound)) {
    visit(Floats{}, weights.dtype, [&]<class W>(std::type_identity<W>) {
      for (std::int64_t i = 0; i < weights.size(); ++i) values.push_back(A(load(weights.as<W>()[i])));
    });
    if (kind == Reduction::sum) return;
    for (std::size_t i = 0; i < segments.size(); ++i)
      totals[segments[i]] += kind == Reduction::mean ? values[i] : values[i] * values[i];
    for (A& t : totals)
      if (kind == Reduction::sqrtn) t = std::sqrt(t);
  }
  const A* total_or_null() const { return totals.empty() ? nullptr : totals.data(); }
};

// The distinct rows, ascending, and their gradients. `weights` may be null.
struct NaiveGradient {
  Numbers64 rows;
  Tensor values;

  NaiveGradient(const Tensor& grad, const BagIds& b, Reduction kind, Order order, const Tensor* weights, Rounding rounding)
      : values(grad.dtype, {0, grad.cols()}) {
    const auto positions = b.by_row();
    const std::int64_t cols = grad.cols();
    values = Tensor(grad.dtype, {std::int64_t(positions.size()), cols});
    Numbers64 count(static_cast<std::size_t>(grad.rows()));
    for (std::int64_t s : b.segments) ++count[s];
    visit(Floats{}, grad.dtype, [&]<class T>(std::type_identity<T>) {
      using A = Accumulator<T>;
      std::vector<A> scale;
      for (std::int64_t n : count)
        scale.push_back(A(1.0 / (kind == Reduction::mean ? double(std::max<std::int64_t>(n, 1))
                                                      : std::sqrt(double(std::max<std::int64_t>(n, 1))))));
      T* row = values.as<T>();
      for (const auto& [id, at] : positions) {
        rows.push_back(id);
        if (weights) {
          const NaiveWeights<A> w(*weights, b.segments, grad.rows(), kind);
          naive::weighted_accumulate(row, grad.as<T>(), cols, at, b.segments, w.values.data(), w.total_or_null(),
                                     rounding, order);
        } else {
          Numbers64 from;
          for (std::int64_t i : at) from.push_back(b.segments[i]);
          naive::accumulate(row, grad.as<T>(), cols, from, kind == Reduction::sum ? nullptr : scale.data(), order);
        }
        row += cols;
      }
    });
  }

  Tensor table(std::int64_t table_rows) const {
    const std::int64_t cols = values.cols();
    Tensor out(values.dtype, {table_rows, cols});
    for (std::size_t k = 0; k < rows.size(); ++k) out.copy(rows[k] * cols, values, std::int64_t(k) * cols, cols);
    return out;
  }
};

// Whether a gradient accepts these ids. Without ids or rows it validates none.
inline bool gradient_accepts(const BagIds& b, std::int64_t out_rows, std::int64_t grad_rows) {
  return b.size() == 0 || out_rows == 0 || (all_in(b.indices, out_rows) && all_in(b.segments, grad_rows));
}

}  // namespace fuzz
