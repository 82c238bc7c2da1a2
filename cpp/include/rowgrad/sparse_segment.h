// SparseSegment{Sum,Mean,SqrtN}, their gradients (dense, and by unique rows), and the gradients' transposes.
#pragma once
#include <atomic>
#include <limits>

#include "rowgrad/dispatch.h"
#include "rowgrad/plan.h"
#include "rowgrad/reduce.h"

namespace rowgrad {

// Ids as they came, int32 or int64.
struct Ids {
  const void* data;
  std::int64_t size;
  bool wide;

  explicit Ids(const Array& a) : data(a.data), size(a.size()), wide(a.dtype == DType::int64) {}
  std::int64_t operator[](std::int64_t i) const {
    return wide ? static_cast<const std::int64_t*>(data)[i] : static_cast<const std::int32_t*>(data)[i];
  }
  // Calls fn with a typed pointer.
  template <class Fn>
  void typed(Fn&& fn) const {
    if (wide)
      fn(static_cast<const std::int64_t*>(data));
    else
      fn(static_cast<const std::int32_t*>(data));
  }
};

constexpr std::int64_t kScanGrain = 1 << 16;

// Whether every id is in [0, bound): a fast yes or no; who needs the first offender looks again, in order.
inline bool all_below(const Ids& ids, std::int64_t bound) {
  std::atomic<bool> bad{false};
  ids.typed([&](auto* p) {
    parallel_ranges(ids.size, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
      bool any = false;
      for (std::int64_t i = begin; i < end; ++i) any |= std::uint64_t(std::int64_t(p[i])) >= std::uint64_t(bound);
      if (any) bad.store(true, std::memory_order_relaxed);
    });
  });
  return !bad.load();
}

inline bool non_decreasing(const Ids& ids) {
  std::atomic<bool> bad{false};
  ids.typed([&](auto* p) {
    parallel_ranges(ids.size, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
      bool any = false;
      for (std::int64_t i = std::max<std::int64_t>(begin, 1); i < end; ++i) any |= p[i] < p[i - 1];
      if (any) bad.store(true, std::memory_order_relaxed);
    });
  });
  return !bad.load();
}

inline bool is_below(std::int64_t v, std::int64_t bound) { return std::uint64_t(v) < std::uint64_t(bound); }

// Starts of the runs of equal ids, closed by the length.
inline std::vector<std::int64_t> run_starts(const Ids& ids) {
  std::vector<std::int64_t> starts;
  ids.typed([&](auto* p) {
    for (std::int64_t i = 0; i < ids.size; ++i)
      if (i == 0 || p[i] != p[i - 1]) starts.push_back(i);
  });
  starts.push_back(ids.size);
  return starts;
}

// Sorted segments, in TensorFlow's order of checks: a run is compared with the next one, then with the
// output, then its indices with the data. `bad_index` is the fault an index gives.
inline Status check_runs(const Ids& indices, const Ids& segments, std::int64_t data_rows, std::int64_t out_rows,
                         Fault bad_index = Fault::index_not_in_data) {
  if (non_decreasing(segments) && all_below(segments, out_rows) && all_below(indices, data_rows)) return {};
  const std::int64_t n = segments.size;
  for (std::int64_t begin = 0, end; begin < n; begin = end) {
    const std::int64_t id = segments[begin];
    for (end = begin + 1; end < n && segments[end] == id;) ++end;
    if (end < n && segments[end] < id) return {Fault::segments_not_increasing, end, segments[end], id};
    if (!is_below(id, out_rows)) return {Fault::segment_not_in_output, begin, id, out_rows};
    for (std::int64_t i = begin; i < end; ++i)
      if (!is_below(indices[i], data_rows)) return {bad_index, i, indices[i], data_rows};
  }
  return {};
}

// How many rows a forward has: the last segment id + 1, or num_segments. Only the low half of an int64
// num_segments reaches TensorFlow's comparison; where it would act on a truncated number, we refuse.
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
    rows = needed;
  }
  if (rows < 0 || (n && rows == 0)) return {Fault::segment_negative, n - 1, last, 0};
  return {};
}

// attr: reduce, whether num_segments is input 3.
class SparseSegment : public Kernel {
 public:
  Status measure() override {
    const std::int64_t* num_segments = nullptr;
    std::int64_t value = 0;
    if (attr[1]) {
      value = Ids(in[3])[0];
      num_segments = &value;
    }
    return forward_rows(Ids(in[2]), in[1].dtype == DType::int64, num_segments, rows);
  }

  Status check() override {
    const Ids indices(in[1]), segments(in[2]);
    return check_runs(indices, segments, in[0].rows(), rows);
  }

  void compute(std::span<const Array> out) override {
    const Ids segments(in[2]);
    const auto starts = run_starts(segments);
    visit(Reals{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      Ids(in[1]).typed([&](auto* indices) { reduce_runs(mat<T>(in[0]), indices, segments, starts, mat<T>(out[0])); });
    });
  }

 private:
  template <class T, class I>
  void reduce_runs(Mat<T> data, const I* indices, const Ids& segments, const std::vector<std::int64_t>& starts,
                   Mat<T> out) {
    const auto& ops = sum_ops<T>();
    const auto kind = Reduce(attr[0]);
    parallel_groups(starts, data.cols, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t g = first; g < last; ++g) {
        T* row = out.row(segments[starts[g]]);
        const std::int64_t n = starts[g + 1] - starts[g];
        if constexpr (sizeof(I) == 4)
          ops.reduce_i32(row, data.data, data.cols, indices + starts[g], n, kind);
        else
          ops.reduce_i64(row, data.data, data.cols, indices + starts[g], n, kind);
      }
    });
  }
};

// In TensorFlow's order of checks. `segments_first`: the dense Mean and SqrtN gradients look at all segment
// ids before any index.
inline Status check_gradient_ids(const Ids& indices, const Ids& segments, std::int64_t out_rows,
                                 std::int64_t grad_rows, bool segments_first) {
  const std::int64_t n = indices.size;
  const std::int64_t last = segments[n - 1];
  if (last >= grad_rows) return {Fault::segment_count, n - 1, last, grad_rows};
  if (all_below(indices, out_rows) && all_below(segments, grad_rows)) return {};
  auto bad_segment = [&](std::int64_t i) { return Status{Fault::segment_not_in_grad, i, segments[i], grad_rows}; };
  if (segments_first)
    for (std::int64_t i = 0; i < n; ++i)
      if (!is_below(segments[i], grad_rows)) return bad_segment(i);
  for (std::int64_t i = 0; i < n; ++i) {
    if (!is_below(indices[i], out_rows)) return {Fault::index_not_in_output, i, indices[i], out_rows};
    if (!is_below(segments[i], grad_rows)) return bad_segment(i);
  }
  return {};
}

// 1, 1/n or 1/√n for every segment; empty for sums.
template <class A>
std::vector<A> gradient_scales(const Ids& segments, std::int64_t grad_rows, Reduce kind) {
  if (kind == Reduce::sum) return {};
  auto count = workspace<std::int64_t>(grad_rows);
  segments.typed([&](auto* p) {
    for (std::int64_t i = 0; i < segments.size; ++i) ++count[p[i]];
  });
  auto scale = workspace<A>(grad_rows);
  parallel_ranges(grad_rows, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t s = begin; s < end; ++s)
      scale[s] = gradient_scale<A>(kind, std::max<std::int64_t>(count[s], 1));
  });
  return scale;
}

template <class P>
std::vector<Entry<P>> sorted_entries(const Ids& indices, const Ids& segments, std::int64_t num_rows) {
  auto entries = workspace<Entry<P>>(indices.size);
  indices.typed([&](auto* row) {
    segments.typed([&](auto* from) {
      parallel_ranges(indices.size, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) entries[i] = {P(row[i]), P(from[i])};
      });
    });
  });
  sort_by_row(entries, num_rows);
  return entries;
}

// Inputs grad, indices, segment_ids, output_dim0; attr: reduce, whether outputs are the unique rows.
// Every output row is summed by one thread in input order, whatever the number of threads.
class SparseSegmentGrad : public Kernel {
 public:
  Status measure() override {
    out_rows_ = Ids(in[3])[0];
    unique_ = attr[1] != 0;
    kind_ = Reduce(attr[0]);
    empty_ = in[1].size() == 0 || out_rows_ == 0;  // then nothing else is looked at
    if (!unique_) return {};
    rows = 0;
    if (empty_) return {};
    if (const Status s = check_ids()) return s;
    sort();
    rows = std::int64_t(starts_.size()) - 1;
    return {};
  }

  Status check() override { return empty_ || unique_ ? Status{} : check_ids(); }

  void compute(std::span<const Array> out) override {
    if (empty_) return;
    if (!unique_) sort();
    if (narrow_.empty())
      accumulate(wide_, out);
    else
      accumulate(narrow_, out);
  }

 private:
  Status check_ids() const {
    return check_gradient_ids(Ids(in[1]), Ids(in[2]), out_rows_, in[0].rows(), !unique_ && kind_ != Reduce::sum);
  }

  void sort() {
    const Ids indices(in[1]), segments(in[2]);
    if (in[0].rows() <= std::int64_t{1} << 32) {
      narrow_ = sorted_entries<std::uint32_t>(indices, segments, out_rows_);
      starts_ = row_starts(narrow_);
    } else {
      wide_ = sorted_entries<std::uint64_t>(indices, segments, out_rows_);
      starts_ = row_starts(wide_);
    }
  }

  template <class P>
  void accumulate(const std::vector<Entry<P>>& entries, std::span<const Array> out) {
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto grad = mat<T>(in[0]);
      const auto rows_out = mat<T>(out[0]);
      const auto scales = gradient_scales<Accumulator<T>>(Ids(in[2]), grad.rows, kind_);
      const auto* scale = scales.empty() ? nullptr : scales.data();
      const auto& ops = grad_ops<T>();
      parallel_groups(starts_, grad.cols, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t g = first; g < last; ++g) {
          const Entry<P>* e = entries.data() + starts_[g];
          const std::int64_t n = starts_[g + 1] - starts_[g];
          T* row = rows_out.row(unique_ ? g : std::int64_t(e->row));
          if constexpr (sizeof(P) == 4)
            ops.accumulate_u32(row, grad.data, grad.cols, e, n, scale);
          else
            ops.accumulate_u64(row, grad.data, grad.cols, e, n, scale);
        }
      });
    });
    if (!unique_) return;
    visit(Indices{}, out[1].dtype, [&]<class I>(std::type_identity<I>) {
      for (std::int64_t g = 0; g < rows; ++g) out[1].as<I>()[g] = I(entries[starts_[g]].row);
    });
  }

  std::int64_t out_rows_ = 0;
  bool unique_ = false, empty_ = false;
  Reduce kind_ = Reduce::sum;
  std::vector<Entry<std::uint32_t>> narrow_;
  std::vector<Entry<std::uint64_t>> wide_;
  std::vector<std::int64_t> starts_;
};

// The transpose of a gradient: the forward, but segment ids in any order and the number of rows given.
// Inputs data, indices, segment_ids, num_segments; attr: reduce. Sorted ids give the forward's bits.
class SparseSegmentGradGrad : public Kernel {
 public:
  Status check() override {
    out_rows_ = Ids(in[3])[0];
    empty_ = in[1].size() == 0 || in[0].rows() == 0;  // the gradient looked at no id either
    if (empty_) return {};
    const Ids indices(in[1]), segments(in[2]);
    const std::int64_t data_rows = in[0].rows();
    if (all_below(indices, data_rows) && all_below(segments, out_rows_)) return {};
    for (std::int64_t i = 0; i < indices.size; ++i) {
      if (!is_below(indices[i], data_rows)) return {Fault::index_not_in_data, i, indices[i], data_rows};
      if (!is_below(segments[i], out_rows_)) return {Fault::segment_not_in_grad, i, segments[i], out_rows_};
    }
    return {};
  }

  void compute(std::span<const Array> out) override {
    if (empty_) return;
    const auto entries = sorted_entries<std::uint64_t>(Ids(in[2]), Ids(in[1]), out_rows_);
    const auto starts = row_starts(entries);
    auto ids = workspace<std::int64_t>(std::int64_t(entries.size()));
    for (std::size_t i = 0; i < entries.size(); ++i) ids[i] = std::int64_t(entries[i].from);
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto data = mat<T>(in[0]);
      const auto rows_out = mat<T>(out[0]);
      const auto& ops = sum_ops<T>();
      parallel_groups(starts, data.cols, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t g = first; g < last; ++g)
          ops.reduce_i64(rows_out.row(entries[starts[g]].row), data.data, data.cols, ids.data() + starts[g],
                         starts[g + 1] - starts[g], Reduce(attr[0]));
      });
    });
  }

 private:
  std::int64_t out_rows_ = 0;
  bool empty_ = false;
};

}  // namespace rowgrad
