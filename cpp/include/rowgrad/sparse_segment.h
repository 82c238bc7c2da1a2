// SparseSegment{Sum,Mean,SqrtN}, their gradients (dense and row-sparse), and the transposes of the gradients.
#pragma once
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "rowgrad/dispatch.h"
#include "rowgrad/ids.h"
#include "rowgrad/reused_output.h"
#include "rowgrad/narrow_gradient.h"
#include "rowgrad/sorted_batch.h"

namespace rowgrad {

// Sets the number of output rows: the last segment id + 1, or num_segments. TensorFlow compares only the low 32 bits of
// an int64 num_segments; where it would act on a truncated number, report a fault instead. TensorFlow counts rows in
// the type of the indices, so a segment id far below zero can yield a positive number of rows.
inline Status forward_rows(const Ids& segments, bool wide_indices, const std::int64_t* num_segments,
                           std::int64_t& rows) {
  const std::int64_t n = segments.size, last = n ? segments[n - 1] : 0;
  constexpr std::int64_t int32_max = std::numeric_limits<std::int32_t>::max();
  const std::int64_t limit = wide_indices ? std::numeric_limits<std::int64_t>::max() : int32_max;
  if (last >= limit) return {Fault::last_segment_too_big, n - 1, last, limit};
  std::int64_t needed = n ? last + 1 : 0;
  if (n && !segments.wide) needed = std::int32_t(std::uint32_t(needed));
  if (num_segments) {
    const auto low = std::int64_t(std::int32_t(std::uint32_t(std::uint64_t(*num_segments))));
    if (low < needed) return {Fault::num_segments_too_small, n - 1, last, *num_segments};
    if (*num_segments != low) return {Fault::num_segments_too_big, -1, *num_segments, int32_max};
    rows = low;
  } else {
    rows = wide_indices ? needed : std::int64_t(std::int32_t(std::uint32_t(std::uint64_t(needed))));
  }
  if (rows < 0 || (n && rows == 0)) return {Fault::segment_negative, n - 1, last, 0};
  return {};
}

// Inputs data, indices, segment_ids; attr: reduce, whether num_segments is input 3.
class SparseSegment : public Kernel {
 public:
  Status measure() override {
    const std::int64_t* num_segments = nullptr;
    std::int64_t value = 0;
    if (attr[1]) {
      value = Ids(in[3])[0];
      num_segments = &value;
    }
    const Ids segments(in[2]);
    if (const Status s = forward_rows(segments, in[1].dtype == DType::int64, num_segments, rows)) return s;
    // A negative last id is always a fault: report it before the caller allocates an output of that many rows.
    return !num_segments && segments.size && segments[segments.size - 1] < 0 ? check() : Status{};
  }

  Status check() override {
    const Ids indices(in[1]), segments(in[2]);
    const std::int64_t data_rows = in[0].rows();
    return check_runs(scan(indices, data_rows, segments, rows), indices, segments, data_rows, rows);
  }

  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    // No copy of the caller's arrays: it would cost a tenth of the time. Segments are bounded where they become output
    // rows; an index that another thread changes can lead to a read outside of `data` (SECURITY.md).
    const Ids indices(in[1]), segments(in[2]);
    if (indices.size == 0) {
      if (out[0].bytes() > 0) std::memset(out[0].data, 0, static_cast<std::size_t>(out[0].bytes()));
      return;
    }
    visit(Reals{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto data = mat<T>(in[0]);
      const Bags<T> bags{out[0].as<T>(), rows, data.data, data.rows, data.cols, indices, segments, Reduction(attr[0])};
      const std::int64_t parts = work_parts(indices.size, data.cols);
      parallel_parts(indices.size, parts, [&](std::int64_t begin, std::int64_t end, std::int64_t) {
        sum_ops<T>().reduce_runs(bags, begin, end);
      });
    });
  }
};

// Validates ids in TensorFlow's order. `segments_first`: the dense Mean and SqrtN gradients check all segment ids
// before any index. Sets `sorted` to whether the segment ids are non-decreasing.
inline Status check_gradient_ids(const Ids& indices, const Ids& segments, std::int64_t out_rows,
                                 std::int64_t grad_rows, bool segments_first, bool& sorted) {
  const Scan found = scan(indices, out_rows, segments, grad_rows);
  const std::int64_t n = indices.size, last = segments[n - 1];
  if (last >= grad_rows) return {Fault::segment_count, n - 1, last, grad_rows};
  sorted = found.sorted;
  if (found.in_range) return {};
  if (segments_first)
    if (const Status s = check_ids(segments, grad_rows, Fault::segment_not_in_grad)) return s;
  return first_out_of_range(indices, out_rows, Fault::index_not_in_output, segments, grad_rows);
}

inline void clear_unless(bool holds_zeros, const Array& out) {
  if (!holds_zeros) clear(out);
}

// The algorithm of a gradient in sequential order. Both add a row's contributions in input order, so they return the
// same bits. The blocked order adds sums of runs, which one total per row cannot represent, so it always sorts.
//
//   sorted   sorts ids by row, then sums each row in registers: about 5 ns per id for the sort, shared by the threads,
//            and one read of every gradient row;
//   narrow   keeps the whole table in cache and adds each id to its row: about 0.9 ns per id for the thread that owns
//            the row, 0.15 ns for every other thread; so it suits few threads, and tables of few columns that fit.
enum class GradientAlgorithm { sorted, narrow };

inline GradientAlgorithm choose_algorithm(Order order, std::int64_t ids, std::int64_t table_rows,
                                          std::int64_t segments, std::int64_t cols, std::int64_t bytes_per_sum) {
  if (is_blocked(order) || cols < 1 || cols > kNarrow || segments > kNarrowSegments) return GradientAlgorithm::sorted;
  constexpr std::int64_t cache = std::int64_t{1} << 20;  // per core
  const bool fits = table_rows <= cache / (cols * bytes_per_sum);
  return fits && ids >= table_rows / 4 && num_threads() <= 8 ? GradientAlgorithm::narrow : GradientAlgorithm::sorted;
}

// Inputs grad, indices, segment_ids, output_dim0; attr: reduce, whether to return only the unique rows, order. One
// thread sums each output row, so the number of threads does not change the result.
class SparseSegmentGrad : public Kernel {
 public:
  Status measure() override {
    out_rows_ = Ids(in[3])[0];
    unique_ = attr[1] != 0;
    kind_ = Reduction(attr[0]);
    order_ = Order(attr[2]);
    empty_ = in[1].size() == 0 || out_rows_ == 0;  // then no id is validated, as in TensorFlow
    if (!unique_) return {};
    rows = 0;
    if (empty_) return {};
    if (const Status s = check_ids()) return s;
    choose();
    if (algorithm_ == GradientAlgorithm::narrow) {
      visit(Floats{}, in[0].dtype,
            [&]<class T>(std::type_identity<T>) { narrow_.add(mat<T>(in[0]), narrow_batch()); });
      rows = narrow_.count();
      return {};
    }
    sort();
    const std::int64_t parts = work_parts(in[1].size(), in[0].row_size());  // once: the thread count may change
    before_ = batch_.visit([parts](const auto& entries) { return runs_before(entries, parts); });
    rows = before_.back();
    return {};
  }

  Status check() override { return empty_ || unique_ ? Status{} : check_ids(); }
  bool fills() const override { return unique_ || !fresh_zeros || is_written_whole(out_rows_, in[0]); }

  bool wrote_all() const override { return !empty_ && algorithm_ == GradientAlgorithm::narrow; }

  RowList written() const override {
    if (empty_) return {};
    if (algorithm_ == GradientAlgorithm::sorted) return batch_.rows();
    std::vector<std::int32_t> all(static_cast<std::size_t>(out_rows_));  // narrow tables write every row
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  void compute(std::span<const Array> out) override {
    if (empty_) return clear_unless(holds_zeros, out[0]);
    if (!unique_) choose();
    if (algorithm_ == GradientAlgorithm::narrow) return compute_narrow(out);
    if (!unique_) sort();
    batch_.visit([&](const auto& entries) { accumulate(entries, out); });
  }

 private:
  Status check_ids() {
    const bool segments_first = !unique_ && has_divisor(kind_);
    return check_gradient_ids(Ids(in[1]), Ids(in[2]), out_rows_, in[0].rows(), segments_first, sorted_);
  }

  void choose() {
    const std::int64_t bytes_per_sum = std::max<std::int64_t>(width_of(in[0].dtype), 4);
    algorithm_ = choose_algorithm(order_, in[1].size(), out_rows_, in[0].rows(), in[0].row_size(), bytes_per_sum);
  }

  NarrowBatch narrow_batch() const { return {Ids(in[1]), Ids(in[2]), sorted_, kind_, out_rows_}; }

  void compute_narrow(std::span<const Array> out) const {
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      if (!unique_) return narrow_table(mat<T>(in[0]), narrow_batch(), out[0].as<T>(), holds_zeros);
      visit(Indices{}, out[1].dtype, [&]<class I>(std::type_identity<I>) {
        narrow_.write(out[0].as<T>(), out[1].as<I>());
      });
    });
  }

  void sort() { batch_ = SortedBatch::by_segment(Ids(in[1]), Ids(in[2]), out_rows_, in[0].rows()); }

  template <class P>
  void accumulate(const Entries<P>& entries, std::span<const Array> out) {
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto grad = mat<T>(in[0]);
      const auto scales = gradient_scales<Accumulator<T>>(Ids(in[2]), sorted_, grad.rows, kind_);
      const auto* scale = scales.empty() ? nullptr : scales.data();
      const std::int64_t n = entries.size();
      const SortedRows<T, P> batch{out[0].as<T>(), grad.data, grad.cols, entries.data(), n, scale, unique_, order_,
                                   unique_ || holds_zeros ? 0 : out_rows_, grad.cols};
      const std::int64_t parts = unique_ ? std::int64_t(before_.size()) - 1 : work_parts(n, grad.cols);
      parallel_parts(n, parts, [&](std::int64_t begin, std::int64_t end, std::int64_t part) {
        const std::int64_t first = unique_ ? before_[part] : 0;
        grad_ops<T>().accumulate_runs(batch, begin, end, first);
      });
    });
    if (!unique_) return;
    visit(Indices{}, out[1].dtype, [&]<class I>(std::type_identity<I>) {
      I* ids = out[1].as<I>();
      const std::int64_t n = entries.size(), parts = std::int64_t(before_.size()) - 1;
      parallel_parts(n, parts, [&](std::int64_t begin, std::int64_t end, std::int64_t part) {
        std::int64_t k = before_[part];
        for (std::int64_t i = begin; i < end; ++i)
          if (i == 0 || entries[i].row != entries[i - 1].row) ids[k++] = I(entries[i].row);
      });
    });
  }

  std::int64_t out_rows_ = 0;
  bool unique_ = false, empty_ = false, sorted_ = false;
  Reduction kind_ = Reduction::sum;
  Order order_ = Order::sequential;
  SortedBatch batch_;
  std::vector<std::int64_t> before_;  // distinct rows before each part of the work
  NarrowRows narrow_;
  GradientAlgorithm algorithm_ = GradientAlgorithm::sorted;
};

// The row-sparse gradient, padded to `size` rows: zeros after the last row, with `fill_id` as their id. Two more
// inputs, size and fill_id.
class PaddedSegmentGrad : public SparseSegmentGrad {
 public:
  Status measure() override {
    if (const Status s = SparseSegmentGrad::measure()) return s;
    unique_rows_ = rows;
    rows = Ids(in[4])[0];
    if (unique_rows_ > rows) return {Fault::rows_exceed_size, -1, unique_rows_, rows};
    return {};
  }

  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    SparseSegmentGrad::compute(out);
    const std::int64_t fill = Ids(in[5])[0], cols = out[0].row_size(), left = rows - unique_rows_;
    const std::int64_t shape[] = {left, cols};
    clear({out[0].as<char>() + unique_rows_ * cols * width_of(out[0].dtype), out[0].dtype, shape});
    visit(Indices{}, out[1].dtype, [&]<class I>(std::type_identity<I>) {
      std::fill(out[1].as<I>() + unique_rows_, out[1].as<I>() + rows, I(fill));
    });
  }

 private:
  std::int64_t unique_rows_ = 0;
};

// The transpose of a gradient: the forward op with segment ids in any order and a given number of rows. Inputs data,
// indices, segment_ids, num_segments; attr: reduce. Sorted ids have the bits of the forward op.
class SparseSegmentGradGrad : public Kernel {
 public:
  Status check() override {
    out_rows_ = Ids(in[3])[0];
    empty_ = in[1].size() == 0 || in[0].rows() == 0;  // the gradient validated no id either
    if (empty_) return {};
    const Ids indices(in[1]), segments(in[2]);
    const std::int64_t data_rows = in[0].rows();
    if (scan(indices, data_rows, segments, out_rows_).in_range) return {};
    return first_out_of_range(indices, data_rows, Fault::index_not_in_data, segments, out_rows_);
  }

  bool fills() const override { return !fresh_zeros; }

  void compute(std::span<const Array> out) override {
    if (empty_) return clear_unless(holds_zeros, out[0]);
    const auto batch = SortedBatch::by_segment(Ids(in[2]), Ids(in[1]), out_rows_, in[0].rows());
    batch.visit([&](const auto& entries) { reduce(entries, out); });
  }

 private:
  template <class P>
  void reduce(const Entries<P>& entries, std::span<const Array> out) const {
    const auto starts = row_starts(entries);
    Scratch<std::int64_t> ids(entries.size());
    parallel_ranges(entries.size(), kScanGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) ids[i] = std::int64_t(entries[i].from);
    });
    clear_unless(holds_zeros, out[0]);
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto data = mat<T>(in[0]);
      const auto rows_out = mat<T>(out[0]);
      const auto& ops = sum_ops<T>();
      parallel_groups(starts, data.cols, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t g = first; g < last; ++g)
          ops.reduce_i64(rows_out.row(entries[starts[g]].row), data.data, data.cols, ids.data() + starts[g],
                         starts[g + 1] - starts[g], Reduction(attr[0]));
      });
    });
  }

  std::int64_t out_rows_ = 0;
  bool empty_ = false;
};

}  // namespace rowgrad
