// Gradients of tables that fit into a core's cache: each id is added to its row in input order, without a sort.
//
// Each thread owns a range of rows. It reads all ids, which costs little, and adds those of its own rows.
#pragma once
#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "rowgrad/segment_counts.h"

namespace rowgrad {

// A batch of ids and its reduction.
struct NarrowBatch {
  Ids indices, segments;
  bool sorted;  // segments are non-decreasing
  Reduction kind;
  std::int64_t table_rows;
};

// Returns where each thread's rows begin, then the number of rows, such that each thread owns about as many ids:
// frequent rows are often neighbours. Estimated from a sample whose positions vary in stride, so that no column of a
// 2-D batch is left out.
inline std::vector<std::int64_t> cut_by_ids(const Ids& ids, std::int64_t rows) {
  constexpr std::int64_t most = 1024;
  const std::int64_t parts = pieces(ids.size, 1 << 14);
  if (parts == 1) return {0, rows};
  const std::int64_t n = std::min(ids.size, most), stride = ids.size / n;
  std::vector<std::int64_t> sample, cuts{0};
  for (std::int64_t i = 0; i < n; ++i) sample.push_back(ids.bounded(stride * i + i * 7919 % stride, rows));
  std::sort(sample.begin(), sample.end());
  for (std::int64_t p = 1; p < parts; ++p) cuts.push_back(sample[n * p / parts]);
  cuts.push_back(rows);
  return cuts;
}

// The row that each id of a segment adds: the gradient row itself if nothing scales or widens it.
template <class T>
class NarrowTerms {
  using A = Accumulator<T>;

 public:
  NarrowTerms(const Mat<T>& grad, const NarrowBatch& batch) {
    if constexpr (std::is_same_v<T, A>) {
      terms_ = grad.data;
      if (!has_divisor(batch.kind)) return;
    }
    Scratch<std::int64_t> count;
    if (has_divisor(batch.kind)) count = segment_counts(batch.segments, batch.sorted, grad.rows);
    scaled_ = Scratch<A>(grad.rows * grad.cols);
    parallel_ranges(grad.rows, 1 << 13, [&](std::int64_t begin, std::int64_t end) {
      grad_ops<T>().scale_terms(scaled_.data(), grad.data, grad.cols, count.data(), batch.kind, begin, end);
    });
    terms_ = scaled_.data();
  }
  const A* data() const { return terms_; }

 private:
  Scratch<A> scaled_;
  const A* terms_ = nullptr;
};

// Sets every row of `sums` to `zero` and adds the ids of the row, then calls done(first row, last row, part). `zero` is
// a value that adds like zero; with `holds_zeros`, `sums` is not initialized.
template <class T, class Done>
void add_narrow(const Mat<T>& grad, const NarrowBatch& batch, const std::vector<std::int64_t>& cuts,
                Accumulator<T>* sums, Accumulator<T> zero, bool holds_zeros, const Done& done) {
  const NarrowTerms<T> terms(grad, batch);
  const std::int64_t parts = std::int64_t(cuts.size()) - 1;
  parallel_tasks(parts, [&](std::int64_t part) {
    const std::int64_t first = cuts[part], last = cuts[part + 1];
    if (!holds_zeros) std::fill(sums + first * grad.cols, sums + last * grad.cols, zero);
    grad_ops<T>().accumulate_narrow(
        {sums, terms.data(), grad.cols, first, last - first, batch.indices, batch.segments, batch.table_rows, grad.rows});
    done(first, last, part);
  });
}

// Writes the dense gradient.
template <class T>
void narrow_table(const Mat<T>& grad, const NarrowBatch& batch, T* out, bool holds_zeros) {
  using A = Accumulator<T>;
  const auto cuts = cut_by_ids(batch.indices, batch.table_rows);
  if constexpr (std::is_same_v<T, A>) {
    add_narrow(grad, batch, cuts, out, A(0), holds_zeros, [](std::int64_t, std::int64_t, std::int64_t) {});
  } else {
    Scratch<A> sums(batch.table_rows * grad.cols);
    add_narrow(grad, batch, cuts, sums.data(), A(0), false, [&](std::int64_t first, std::int64_t last, std::int64_t) {
      for (std::int64_t i = first * grad.cols; i < last * grad.cols; ++i) out[i] = store<T>(sums[i]);
    });
  }
}

// The row-sparse gradient: summed first, written once the outputs are allocated for the number of rows found.
class NarrowRows {
 public:
  template <class T>
  void add(const Mat<T>& grad, const NarrowBatch& batch) {
    using A = Accumulator<T>;
    cols_ = grad.cols;
    cuts_ = cut_by_ids(batch.indices, batch.table_rows);
    before_.assign(cuts_.size(), 0);
    sums_ = Scratch<std::byte>(batch.table_rows * cols_ * std::int64_t(sizeof(A)));
    A* sums = reinterpret_cast<A*>(sums_.data());
    auto count = [&](std::int64_t first, std::int64_t last, std::int64_t part) {
      std::int64_t touched = 0;
      for (std::int64_t r = first; r < last; ++r) touched += is_touched(sums[r * cols_]);
      before_[part + 1] = touched;
    };
    add_narrow(grad, batch, cuts_, sums, kUntouched<A>, false, count);
    std::partial_sum(before_.begin(), before_.end(), before_.begin());
  }

  std::int64_t count() const { return before_.back(); }

  template <class T, class I>
  void write(T* values, I* ids) const {
    parallel_tasks(std::int64_t(cuts_.size()) - 1, [&](std::int64_t part) {
      cols_ == 1 ? write_part(values, ids, 1, part) : write_part(values, ids, cols_, part);  // constant 1
    });
  }

 private:
  // The initial value of sums. Kernels run with subnormals flushed (float_mode.h), so it adds like +0 and is never a
  // result: a row that still holds it has no id. That saves a separate flag per row.
  template <class A>
  static constexpr A kUntouched = std::numeric_limits<A>::denorm_min();

  // Compares bits: a float comparison treats it as zero.
  template <class A>
  static bool is_touched(A sum) {
    using Bits = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
    return std::bit_cast<Bits>(sum) != std::bit_cast<Bits>(kUntouched<A>);
  }

  // Writes every row to the next output row and advances only past rows that have ids: branches would be mispredicted.
  template <class T, class I>
  void write_part(T* values, I* ids, const std::int64_t cols, std::int64_t part) const {
    const auto* sums = reinterpret_cast<const Accumulator<T>*>(sums_.data());
    const std::int64_t end = before_[part + 1];
    std::int64_t k = before_[part];
    for (std::int64_t r = cuts_[part]; k < end; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) values[k * cols + c] = store<T>(sums[r * cols + c]);
      ids[k] = I(r);
      k += is_touched(sums[r * cols]);
    }
  }

  std::int64_t cols_ = 0;
  std::vector<std::int64_t> cuts_, before_;  // table rows, and rows with ids, before each part
  Scratch<std::byte> sums_;
};

}  // namespace rowgrad
