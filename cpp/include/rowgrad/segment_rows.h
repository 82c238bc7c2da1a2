// Whole rows: segment sums, gather, scatter, positions, inner products.
#pragma once
#include "rowgrad/sparse_segment.h"

namespace rowgrad {

// Inputs data, segment_ids, sorted.
class SegmentSum : public Kernel {
 public:
  Status measure() override {
    const Ids segments(in[1]);
    const std::int64_t n = segments.size;
    const std::int64_t last = n ? segments[n - 1] : -1;
    constexpr auto limit = std::numeric_limits<std::int64_t>::max();
    if (last == limit) return {Fault::last_segment_overflows, n - 1, last, std::numeric_limits<std::int64_t>::min()};
    rows = last + 1;
    if (n && rows <= 0) return {Fault::segment_negative, n - 1, last, 0};
    return {};
  }

  Status check() override {
    segments_ = IdSnapshot(Ids(in[1]));
    const Ids& segments = segments_;
    if (non_decreasing(segments) && all_below(segments, rows)) return {};
    for (std::int64_t begin = 0, end; begin < segments.size; begin = end) {  // may find nothing: as in check_ids
      const std::int64_t id = segments[begin];
      for (end = begin + 1; end < segments.size && segments[end] == id;) ++end;
      if (end < segments.size && segments[end] < id) return {Fault::segments_not_increasing, end, segments[end], id};
      if (!is_below(id, rows)) return {Fault::segment_not_in_output, begin, id, rows};
    }
    return {};
  }

  bool fills() const override { return !fresh_zeros; }

  void compute(std::span<const Array> out) override {
    const Ids& segments = segments_;
    const auto starts = run_starts(segments);
    clear_unless(holds_zeros, out[0]);
    visit(Numbers{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto data = mat<T>(in[0]);
      const auto sums = mat<T>(out[0]);
      const auto& ops = segment_sum_ops<T>();
      parallel_groups(starts, data.cols, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t g = first; g < last; ++g)
          ops.segment_sum(sums.row(segments[starts[g]]), data.row(starts[g]), data.cols, starts[g + 1] - starts[g]);
      });
    });
  }

 private:
  IdSnapshot segments_;
};

// Inputs params, indices → the selected rows, bit for bit.
class GatherRows : public Kernel {
 public:
  Status check() override {
    ids_ = IdSnapshot(Ids(in[1]));
    return check_ids(ids_, in[0].rows(), Fault::index_not_in_params);
  }

  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    const std::int64_t bytes = in[0].row_size() * width_of(in[0].dtype);
    const auto* from = in[0].as<const char>();
    auto* to = out[0].as<char>();
    ids_.typed([&](auto* ids) {
      parallel_ranges(ids_.size, 1 + (1 << 16) / (bytes + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          std::copy_n(from + std::int64_t(ids[i]) * bytes, bytes, to + i * bytes);
      });
    });
  }

 private:
  IdSnapshot ids_;
};

// Inputs sorted_ids (ascending, distinct), ids → the position of each id in sorted_ids.
class RowPositions : public Kernel {
 public:
  Status check() override {
    const Ids list(in[0]), ids(in[1]);
    positions_ = workspace<std::int64_t>(ids.size);
    for (std::int64_t i = 0; i < ids.size; ++i) {
      std::int64_t low = 0, high = list.size;
      while (low < high) {
        const std::int64_t mid = low + (high - low) / 2;
        if (list[mid] < ids[i])
          low = mid + 1;
        else
          high = mid;
      }
      if (low == list.size || list[low] != ids[i]) return {Fault::id_not_listed, i, ids[i], list.size};
      positions_[i] = low;
    }
    return {};
  }

  void compute(std::span<const Array> out) override {
    std::copy(positions_.begin(), positions_.end(), out[0].as<std::int64_t>());
  }

 private:
  std::vector<std::int64_t> positions_;
};

// The transpose of GatherRows: inputs grad, indices, num_rows. Rows are summed in input order, from zero.
class ScatterRows : public Kernel {
 public:
  Status check() override {
    bound_ = Ids(in[2])[0];
    return check_ids(Ids(in[1]), bound_, Fault::index_not_in_output);
  }

  RowList written() const override { return batch_.rows(); }
  bool fills() const override { return !fresh_zeros; }

  void compute(std::span<const Array> out) override {
    if (in[1].size() == 0) return clear_unless(holds_zeros, out[0]);
    batch_ = SortedBatch::by_position(Ids(in[1]), bound_);
    batch_.visit([&](const auto& entries) {
      rowgrad::visit(Numbers{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
        if constexpr (std::is_floating_point_v<Accumulator<T>>) {
          clear_unless(holds_zeros, out[0]);
          accumulate(entries, mat<T>(in[0]), out[0].as<T>());
        } else {
          const auto starts = row_starts(entries);
          clear_unless(holds_zeros, out[0]);
          add_up(entries, starts, mat<T>(in[0]), mat<T>(out[0]));
        }
      });
    });
  }

 private:
  template <class T, class P>
  static void accumulate(const Entries<P>& entries, Mat<T> grad, T* out) {
    const std::int64_t n = entries.size();
    const SortedRows<T, P> batch{out, grad.data, grad.cols, entries.data(), n, nullptr, false, Order::sequential, 0,
                                 grad.cols};
    parallel_parts(n, work_parts(n, grad.cols), [&](std::int64_t begin, std::int64_t end, std::int64_t) {
      grad_ops<T>().accumulate_runs(batch, begin, end, 0);
    });
  }

  template <class T, class P>
  static void add_up(const Entries<P>& entries, const std::vector<std::int64_t>& starts, Mat<T> grad, Mat<T> result) {
    parallel_groups(starts, grad.cols, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = starts[first]; i < starts[last]; ++i) {
        T* row = result.row(std::int64_t(entries[i].row));
        const T* from = grad.row(std::int64_t(entries[i].from));
        for (std::int64_t c = 0; c < grad.cols; ++c) row[c] = plus<T>(row[c], from[c]);
      }
    });
  }

  std::int64_t bound_ = 0;
  SortedBatch batch_;
};

// ⟨grad[segment_ids[i]], data[indices[i]]⟩ for every i: the gradient of a weighted sum with respect to its weights.
// Inputs grad, data, indices, segment_ids; the result is in the accumulator's type.
class SparseSegmentDot : public Kernel {
 public:
  Status check() override {
    const std::int64_t data_rows = in[1].rows(), grad_rows = in[0].rows();
    indices_ = IdSnapshot(Ids(in[2]));
    segments_ = IdSnapshot(Ids(in[3]));
    if (scan(indices_, data_rows, segments_, grad_rows).in_range) return {};
    return first_out_of_range(indices_, data_rows, Fault::index_not_in_params, segments_, grad_rows);
  }

  void compute(std::span<const Array> out) override {
    const Ids &indices = indices_, &segments = segments_;
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto grad = mat<T>(in[0]);
      const auto data = mat<T>(in[1]);
      auto* result = out[0].as<Accumulator<T>>();
      const auto& ops = grad_ops<T>();
      parallel_ranges(indices.size, 1 + (1 << 14) / (grad.cols + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          result[i] = ops.dot(grad.row(segments[i]), data.row(indices[i]), grad.cols);
      });
    });
  }

 private:
  IdSnapshot indices_, segments_;
};

// ⟨x[i], y[i]⟩ for every row i. Inputs x, y.
class RowDot : public Kernel {
 public:
  void compute(std::span<const Array> out) override {
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto x = mat<T>(in[0]);
      const auto y = mat<T>(in[1]);
      auto* result = out[0].as<Accumulator<T>>();
      const auto& ops = grad_ops<T>();
      parallel_ranges(x.rows, 1 + (1 << 14) / (x.cols + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) result[i] = ops.dot(x.row(i), y.row(i), x.cols);
      });
    });
  }
};

}  // namespace rowgrad
