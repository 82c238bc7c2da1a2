// Gradients of tables that fit a core's cache: every id adds to its row at once, in input order.
//
// Threads own ranges of rows. Each looks at all ids, which costs it little, and adds those of its own rows.
#pragma once
#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "rowgrad/segment_counts.h"

namespace rowgrad {

// A batch of ids and what to make of it.
struct NarrowBatch {
  Ids indices, segments;
  bool sorted;  // whether segments never fall
  Reduction kind;
  std::int64_t table_rows;
};

// Where each thread's rows begin, so that about as many ids name rows of one as of another: hot rows are often
// neighbours. By a sample, taken so that ids which come in columns all have their share. Closed by the number of rows.
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

// What an id of each segment adds: the gradient itself where nothing scales or widens it.
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
    made_ = Scratch<A>(grad.rows * grad.cols);
    parallel_ranges(grad.rows, 1 << 13, [&](std::int64_t begin, std::int64_t end) {
      grad_ops<T>().scale_terms(made_.data(), grad.data, grad.cols, count.data(), batch.kind, begin, end);
    });
    terms_ = made_.data();
  }
  const A* data() const { return terms_; }

 private:
  Scratch<A> made_;
  const A* terms_ = nullptr;
};

// Sets every row of `sums` to `zero` and adds what belongs to it; then calls done(first row, last row, part). `zero` is
// anything that addition takes for zero; the caller says so if the sums are known to be zeros.
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

// The gradient as a table.
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

// The gradient by unique rows: added up first, and written when there is memory for as many rows as there are.
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
      std::int64_t named = 0;
      for (std::int64_t r = first; r < last; ++r) named += is_named(sums[r * cols_]);
      before_[part + 1] = named;
    };
    add_narrow(grad, batch, cuts_, sums, kUnnamed<A>, false, count);
    std::partial_sum(before_.begin(), before_.end(), before_.begin());
  }

  std::int64_t count() const { return before_.back(); }

  template <class T, class I>
  void write(T* values, I* ids) const {
    parallel_tasks(std::int64_t(cuts_.size()) - 1, [&](std::int64_t part) {
      cols_ == 1 ? write_part(values, ids, 1, part) : write_part(values, ids, cols_, part);  // as a constant
    });
  }

 private:
  // What sums begin with. Kernels run with subnormals flushed (float_mode.h): addition takes this for +0, and never
  // gives it. So a row that still holds it was named by no id, which costs no mark of its own.
  template <class A>
  static constexpr A kUnnamed = std::numeric_limits<A>::denorm_min();

  // By bits: comparison takes it for zero as well.
  template <class A>
  static bool is_named(A sum) {
    using Bits = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
    return std::bit_cast<Bits>(sum) != std::bit_cast<Bits>(kUnnamed<A>);
  }

  // Every row is written where the next one that is named belongs: no branches, which would be toss-ups.
  template <class T, class I>
  void write_part(T* values, I* ids, const std::int64_t cols, std::int64_t part) const {
    const auto* sums = reinterpret_cast<const Accumulator<T>*>(sums_.data());
    const std::int64_t end = before_[part + 1];
    std::int64_t k = before_[part];
    for (std::int64_t r = cuts_[part]; k < end; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) values[k * cols + c] = store<T>(sums[r * cols + c]);
      ids[k] = I(r);
      k += is_named(sums[r * cols]);
    }
  }

  std::int64_t cols_ = 0;
  std::vector<std::int64_t> cuts_, before_;  // rows, and named rows, before each part
  Scratch<std::byte> sums_;
};

}  // namespace rowgrad
