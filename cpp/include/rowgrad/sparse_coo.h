// SparseSlice and SparseAdd on coordinate lists, their gradients, and the gradients' transposes.
//
// Coordinates are never checked against a shape and may be any int64: all arithmetic on them wraps.
#pragma once
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "rowgrad/dispatch.h"
#include "rowgrad/kernel.h"
#include "rowgrad/parallel.h"

namespace rowgrad {

constexpr std::int64_t kEntryGrain = 1 << 14;

// One coordinate list: a row of indices per entry.
using Coordinates = Mat<const std::int64_t>;

inline Coordinates coordinates(const Array& indices) { return mat<const std::int64_t>(indices); }

inline std::int64_t wrapping_minus(std::int64_t a, std::int64_t b) {
  return std::int64_t(std::uint64_t(a) - std::uint64_t(b));
}

// Below, at or above zero as a comes before, with or after b in lexicographic order. R: the rank where the compiler
// may know it, else 0.
template <int R>
int compare(const std::int64_t* a, const std::int64_t* b, std::int64_t rank) {
  for (std::int64_t d = 0; d < (R > 0 ? R : rank); ++d)
    if (a[d] != b[d]) return a[d] < b[d] ? -1 : 1;
  return 0;
}

// Calls fn with the rank as a constant: matrices are what most people have.
template <class Fn>
void visit_rank(std::int64_t rank, Fn&& fn) {
  if (rank == 2)
    fn(std::integral_constant<int, 2>{});
  else
    fn(std::integral_constant<int, 0>{});
}

// Inputs indices, values, shape, start, size → output_indices, output_values, output_shape.
class SparseSlice : public Kernel {
 public:
  Status measure() override {
    const std::int64_t rank = in[3].size();
    const auto* start = in[3].as<const std::int64_t>();
    const auto* size = in[4].as<const std::int64_t>();
    length_ = workspace<std::uint64_t>(rank);
    for (std::int64_t d = 0; d < rank; ++d) {
      const std::int64_t end = plus(start[d], size[d]);  // one that wraps keeps nothing
      length_[d] = end > start[d] ? std::uint64_t(end) - std::uint64_t(start[d]) : 0;
    }
    parts_ = pieces(in[0].rows(), kEntryGrain);
    first_ = workspace<std::int64_t>(parts_ + 1);
    parallel_tasks(parts_, [&](std::int64_t part) {
      std::int64_t kept = 0;
      each_kept(part, [&](std::int64_t) { ++kept; });
      first_[part + 1] = kept;
    });
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    rows = first_.back();
    return {};
  }

  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    const auto from = coordinates(in[0]);
    const auto to = mat<std::int64_t>(out[0]);
    const auto* start = in[3].as<const std::int64_t>();
    visit_width(in[1].dtype, [&]<class T>(std::type_identity<T>) {
      const T* values = in[1].as<T>();
      T* kept_values = out[1].as<T>();
      parallel_tasks(parts_, [&](std::int64_t part) {
        std::int64_t k = first_[part];
        each_kept(part, [&](std::int64_t i) {
          for (std::int64_t d = 0; d < from.cols; ++d) to.row(k)[d] = wrapping_minus(from.row(i)[d], start[d]);
          kept_values[k++] = values[i];
        });
      });
    });
    for (std::int64_t d = 0; d < from.cols; ++d) out[2].as<std::int64_t>()[d] = extent(d);
  }

 private:
  // Calls fn(i) for the entries of one part that lie in the slice, in order.
  template <class Fn>
  void each_kept(std::int64_t part, Fn&& fn) const {
    const auto indices = coordinates(in[0]);
    const auto* start = in[3].as<const std::int64_t>();
    const std::uint64_t* length = length_.data();
    const std::int64_t end = indices.rows * (part + 1) / parts_;
    for (std::int64_t i = indices.rows * part / parts_; i < end; ++i) {
      const std::int64_t* row = indices.row(i);
      std::int64_t d = 0;
      while (d < indices.cols && std::uint64_t(wrapping_minus(row[d], start[d])) < length[d]) ++d;
      if (d == indices.cols) fn(i);
    }
  }

  std::int64_t extent(std::int64_t d) const {
    const std::int64_t dim = in[2].as<std::int64_t>()[d], start = in[3].as<std::int64_t>()[d];
    const std::int64_t size = in[4].as<std::int64_t>()[d];
    if (start < wrapping_minus(dim, size)) return size;
    return start < dim ? wrapping_minus(dim, start) : 0;
  }

  std::vector<std::uint64_t> length_;  // of the kept interval, per dimension
  std::int64_t parts_ = 1;
  std::vector<std::int64_t> first_;  // of each part: where its kept entries go
};

// What the gradient of a slice and its transpose share: inputs 1 to 3 are input_indices, input_start, output_indices.
class SliceMatch : public Kernel {
 public:
  // One greedy pass over the input: each output entry, in order, takes the next input entry that it was sliced from.
  Status check() override {
    const auto input = coordinates(in[1]), output = coordinates(in[3]);
    const auto* start = in[2].as<const std::int64_t>();
    from_ = Scratch<std::int64_t>(output.rows);
    std::int64_t j = 0;
    std::int64_t* from = from_.data();
    visit_rank(input.cols, [&]<int R>(std::integral_constant<int, R>) {
      const std::int64_t rank = R > 0 ? R : input.cols, n = input.rows, m = output.rows;
      std::int64_t k = 0;
      for (std::int64_t i = 0; i < n && k < m; ++i) {
        const std::int64_t *a = input.data + i * rank, *b = output.data + k * rank;
        std::int64_t d = 0;
        while (d < rank && a[d] == plus(b[d], start[d])) ++d;
        if (d == rank) from[k++] = i;
      }
      j = k;
    });
    return j == output.rows ? Status{} : Status{Fault::slice_left_over, -1, j, output.rows};
  }

 protected:
  // Calls fn(i, j) for every output entry j and the input entry i it was matched with; no i comes twice.
  template <class Fn>
  void parallel_pairs(Fn&& fn) const {
    parallel_ranges(from_.size(), kEntryGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t j = begin; j < end; ++j) fn(from_[j], j);
    });
  }

 private:
  Scratch<std::int64_t> from_;
};

// Input 0 is backprop_val_grad, one per output entry → val_grad, one per input entry.
class SparseSliceGrad : public SliceMatch {
 public:
  void compute(std::span<const Array> out) override {
    visit_width(in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const T* grad = in[0].as<T>();
      T* result = out[0].as<T>();
      parallel_pairs([&](std::int64_t i, std::int64_t j) { result[i] = grad[j]; });
    });
  }
};

// The transpose. Input 0 has one value per input entry → one per output entry.
class SparseSliceGradGrad : public SliceMatch {
 public:
  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    visit_width(in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const T* grad = in[0].as<T>();
      T* result = out[0].as<T>();
      parallel_pairs([&](std::int64_t i, std::int64_t j) { result[j] = grad[i]; });
    });
  }
};

template <class T>
struct RealOf {
  using type = T;
};
template <class R>
struct RealOf<std::complex<R>> {
  using type = R;
};

template <class T>
T sum_of(T a, T b) {
  return store<T>(plus(load(a), load(b)));
}

// thresh <= |sum|; never for NaN. As in TensorFlow, 8- and 16-bit integers are promoted, while the smallest int32 or
// int64 has no absolute value and stays negative.
template <class T>
bool reaches(T sum, typename RealOf<T>::type thresh) {
  if constexpr (std::is_unsigned_v<T>)
    return thresh <= sum;
  else if constexpr (std::is_integral_v<T> && sizeof(T) < sizeof(int))
    return thresh <= std::abs(int(sum));
  else if constexpr (std::is_integral_v<T>)
    return thresh <= (sum < 0 ? T(wrapping_minus(0, sum)) : sum);
  else
    return load(thresh) <= std::abs(load(sum));
}

// Inputs a_indices, a_values, a_shape, b_indices, b_values, b_shape, thresh → sum_indices, sum_values, sum_shape.
class SparseAdd : public Kernel {
 public:
  Status measure() override {
    visit(Numbers{}, in[1].dtype, [&]<class T>(std::type_identity<T>) {
      const T *a = in[1].as<T>(), *b = in[4].as<T>();
      const auto thresh = *in[6].as<typename RealOf<T>::type>();
      merge([&](std::int64_t i, std::int64_t j) { return reaches(sum_of(a[i], b[j]), thresh); });
    });
    return {};
  }

  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    const auto a_indices = coordinates(in[0]), b_indices = coordinates(in[3]);
    const auto sum_indices = mat<std::int64_t>(out[0]);
    visit(Numbers{}, in[1].dtype, [&]<class T>(std::type_identity<T>) {
      const T *a = in[1].as<T>(), *b = in[4].as<T>();
      T* sums = out[1].as<T>();
      parallel_ranges(rows, kEntryGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t k = begin; k < end; ++k) {
          const auto [i, j] = source_[k];
          std::copy_n(i == kNone ? b_indices.row(j) : a_indices.row(i), sum_indices.cols, sum_indices.row(k));
          sums[k] = i == kNone ? b[j] : j == kNone ? a[i] : sum_of(a[i], b[j]);
        }
      });
    });
    std::copy_n(in[2].as<const std::int64_t>(), in[2].size(), out[2].as<std::int64_t>());
  }

 private:
  static constexpr std::int64_t kNone = -1;
  // Where an entry of the sum comes from; kNone where one side has no such entry.
  struct Source {
    std::int64_t a, b;
  };

  // Both sides are taken to be sorted; what is not gives a merge in the order met.
  template <class Keep>
  void merge(Keep&& keep) {
    const auto a = coordinates(in[0]), b = coordinates(in[3]);
    source_ = Scratch<Source>(a.rows + b.rows);
    visit_rank(a.cols, [&]<int R>(std::integral_constant<int, R>) {
      Source* to = source_.data();
      const std::int64_t na = a.rows, nb = b.rows, rank = R > 0 ? R : a.cols;
      std::int64_t i = 0, j = 0;
      while (i < na && j < nb) {
        const int order = compare<R>(a.data + i * rank, b.data + j * rank, rank);
        if (order < 0) {
          *to++ = {i++, kNone};
        } else if (order > 0) {
          *to++ = {kNone, j++};
        } else {
          if (keep(i, j)) *to++ = {i, j};
          ++i, ++j;
        }
      }
      while (i < na) *to++ = {i++, kNone};
      while (j < nb) *to++ = {kNone, j++};
      rows = to - source_.data();
    });
  }

  Scratch<Source> source_;  // of the first `rows` entries
};

// TensorFlow's walk along both operands and the sum: calls on_a(i, k) and on_b(j, k) where an operand's entry is found
// in the sum. k never decreases. Unsorted lists lose matches, as they do there.
template <class OnA, class OnB>
void walk_sum(Coordinates a, Coordinates b, Coordinates sum, OnA&& on_a, OnB&& on_b) {
  visit_rank(sum.cols, [=]<int R>(std::integral_constant<int, R>) {
    const std::int64_t rank = R > 0 ? R : sum.cols;
    // One look at an operand's head; false where the sum has to wait for it.
    auto step = [=](Coordinates x, std::int64_t& head, std::int64_t k, const auto& on_match) {
      if (head == x.rows) return true;
      const int order = compare<R>(x.data + head * rank, sum.data + k * rank, rank);
      if (order == 0) on_match(head, k);
      if (order <= 0) ++head;
      return order >= 0;
    };
    for (std::int64_t i = 0, j = 0, k = 0; k < sum.rows && (i < a.rows || j < b.rows);) {
      const bool past_a = step(a, i, k, on_a), past_b = step(b, j, k, on_b);
      if (past_a && past_b) ++k;
    }
  });
}

// Inputs backprop_val_grad, a_indices, b_indices, sum_indices → a_val_grad, b_val_grad.
class SparseAddGrad : public Kernel {
 public:
  void compute(std::span<const Array> out) override {
    visit_width(in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const T* grad = in[0].as<T>();
      T *a = out[0].as<T>(), *b = out[1].as<T>();
      walk_sum(
          coordinates(in[1]), coordinates(in[2]), coordinates(in[3]),
          [a, grad](std::int64_t i, std::int64_t k) { a[i] = grad[k]; },
          [b, grad](std::int64_t j, std::int64_t k) { b[j] = grad[k]; });
    });
  }
};

// The transpose. Inputs da, db, a_indices, b_indices, sum_indices → one value per entry of the sum.
class SparseAddGradGrad : public Kernel {
 public:
  void compute(std::span<const Array> out) override {
    visit(Numbers{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const T *da = in[0].as<T>(), *db = in[1].as<T>();
      T* result = out[0].as<T>();
      std::int64_t last = -1;  // matches of one k follow each other, so the first is known by this
      auto add = [&](T value, std::int64_t k) {
        result[k] = k == last ? sum_of(result[k], value) : value;
        last = k;
      };
      walk_sum(
          coordinates(in[2]), coordinates(in[3]), coordinates(in[4]),
          [&add, da](std::int64_t i, std::int64_t k) { add(da[i], k); },
          [&add, db](std::int64_t j, std::int64_t k) { add(db[j], k); });
    });
  }
};

}  // namespace rowgrad
