// SparseAdd, its gradient, and the transpose of the gradient.
#pragma once
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "rowgrad/coordinates.h"
#include "rowgrad/dispatch.h"
#include "rowgrad/kernel.h"

namespace rowgrad {

template <class T>
struct RealOf {
  using type = T;
};
template <class R>
struct RealOf<std::complex<R>> {
  using type = R;
};

// Whether thresh <= |sum|; false for NaN. As in TensorFlow, 8- and 16-bit integers are promoted, while the smallest
// int32 or int64 has no absolute value and stays negative.
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

// The positions of a walk in both operands.
struct Heads {
  std::int64_t a = 0, b = 0;
  bool operator==(const Heads&) const = default;
};

// Inputs a_indices, a_values, a_shape, b_indices, b_values, b_shape, thresh → sum_indices, sum_values, sum_shape.
//
// Both operands should be sorted; unsorted entries are merged in the order met. The merge is cut at given entries of
// the longer operand; its state is the position in the other. It runs once, in measure, and compute replays its steps.
class SparseAdd : public Kernel {
 public:
  Status measure() override {
    const std::int64_t all = in[0].rows() + in[3].rows(), parts = walk_parts(all);
    steps_ = Scratch<std::uint8_t>(all);
    first_ = workspace<std::int64_t>(parts + 1);
    other_passed_ = workspace<std::int64_t>(parts + 1);
    visit(Numbers{}, in[1].dtype, [&]<class T>(std::type_identity<T>) {
      visit_rank(in[0].row_size(), [&]<int R>(std::integral_constant<int, R>) {
        guess_passed_of_other<R>();
        walk_in_parts(other_passed_, [&](std::int64_t part, bool alone) { return merge<T, R>(part, alone); });
      });
    });
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    rows = first_.back();
    return {};
  }

  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    visit(Numbers{}, in[1].dtype, [&]<class T>(std::type_identity<T>) {
      visit_rank(in[0].row_size(), [&]<int R>(std::integral_constant<int, R>) {
        parallel_tasks(parts(), [&](std::int64_t part) { follow<T, R>(part, out); });
      });
    });
    std::copy_n(in[2].as<const std::int64_t>(), in[2].size(), out[2].as<std::int64_t>());
  }

 private:
  // The entries that a step takes, and whether the result keeps them.
  static constexpr std::uint8_t kTakesA = 1, kTakesB = 2, kKeeps = 4;

  std::int64_t parts() const { return std::int64_t(first_.size()) - 1; }
  bool longer_is_a() const { return in[0].rows() >= in[3].rows(); }
  Coordinates longer() const { return coordinates(in[longer_is_a() ? 0 : 3]); }
  Coordinates other() const { return coordinates(in[longer_is_a() ? 3 : 0]); }
  std::int64_t cut(std::int64_t part) const { return longer().rows * part / parts(); }
  Heads heads(std::int64_t part, std::int64_t other_passed) const {
    return longer_is_a() ? Heads{cut(part), other_passed} : Heads{other_passed, cut(part)};
  }

  template <int R>
  void guess_passed_of_other() {
    for (std::int64_t part = 1; part < parts(); ++part) {
      const std::int64_t passed = cut(part);
      const std::int64_t guess = guess_passed<R>(longer(), passed, other(), longer().row(passed - 1));
      other_passed_[part] = std::max(guess, other_passed_[part - 1]);
    }
    other_passed_.back() = other().rows;
  }

  template <class T, int R>
  std::optional<std::int64_t> merge(std::int64_t part, bool alone) {
    const auto a = coordinates(in[0]), b = coordinates(in[3]);
    const T *a_values = in[1].as<T>(), *b_values = in[4].as<T>();
    const auto thresh = *in[6].as<typename RealOf<T>::type>();
    const std::int64_t rank = R > 0 ? R : a.cols, bound = alone ? other().rows : other_passed_[part + 1];
    const Heads end = heads(part + 1, bound);
    auto [i, j] = heads(part, other_passed_[part]);
    std::int64_t fewer = 0;  // entries that do not lengthen the sum
    std::uint8_t* step = steps_.data() + i + j;
    while (i < end.a && j < end.b) {
      // This many steps reach neither end.
      for (std::int64_t steps = std::min(end.a - i, end.b - j); steps > 0; --steps) {
        const std::int64_t *x = a.data + i * rank, *y = b.data + j * rank;
        bool a_first, b_first;
        relate<R>(x, y, rank, a_first, b_first);
        const bool takes_a = !b_first, takes_b = !a_first;
        std::uint8_t keeps = kKeeps;
        if (takes_a & takes_b) {
          keeps = reaches(sum_of(a_values[i], b_values[j]), thresh) ? kKeeps : 0;
          fewer += keeps ? 1 : 2;
        }
        *step++ = std::uint8_t(keeps | takes_b << 1 | takes_a);
        i += takes_a;
        j += takes_b;
      }
    }
    const auto passed = finish<R>(part, longer_is_a() ? Heads{i, j} : Heads{j, i}, bound);
    if (passed) first_[part + 1] = cut(part + 1) - cut(part) + *passed - other_passed_[part] - fewer;
    return passed;
  }

  // Called when one side of the merge has reached its bound, with `at.a` on the longer side: returns how many entries
  // of the other side are passed at the end of the part, or nothing if the merge would have passed `bound`.
  template <int R>
  std::optional<std::int64_t> finish(std::int64_t part, Heads at, std::int64_t bound) const {
    const auto list = longer(), rest = other();
    if (part + 1 == parts()) return rest.rows;
    for (; bound < rest.rows && at.a < cut(part + 1); ++at.a)
      if (!before<R>(list.row(at.a), rest.row(bound), list.cols)) return {};
    return at.b;
  }

  template <class T, int R>
  void follow(std::int64_t part, std::span<const Array> out) const {
    const auto a = coordinates(in[0]), b = coordinates(in[3]);
    const T *a_values = in[1].as<T>(), *b_values = in[4].as<T>();
    const std::int64_t rank = R > 0 ? R : a.cols;
    const Heads end = heads(part + 1, other_passed_[part + 1]);
    auto [i, j] = heads(part, other_passed_[part]);
    const std::uint8_t* step = steps_.data() + i + j;
    std::int64_t* to = mat<std::int64_t>(out[0]).row(first_[part]);
    T* sums = out[1].as<T>() + first_[part];
    while (i < end.a && j < end.b) {
      const std::uint8_t what = *step++;
      const bool takes_a = what & kTakesA;
      if (what & kKeeps) {
        const std::int64_t* row = takes_a ? a.data + i * rank : b.data + j * rank;
        for (std::int64_t d = 0; d < rank; ++d) *to++ = row[d];
        const T* one = takes_a ? a_values + i : b_values + j;
        *sums++ = what == (kTakesA | kTakesB | kKeeps) ? sum_of(a_values[i], b_values[j]) : *one;
      }
      i += takes_a;
      j += (what & kTakesB) != 0;
    }
    to = std::copy(a.row(i), a.row(end.a), to);
    std::copy(b.row(j), b.row(end.b), to);
    sums = std::copy(a_values + i, a_values + end.a, sums);
    std::copy(b_values + j, b_values + end.b, sums);
  }

  Scratch<std::uint8_t> steps_;             // a part's steps begin at the number of entries passed before it
  std::vector<std::int64_t> other_passed_;  // before each part
  std::vector<std::int64_t> first_;         // of each part: the output position of its first entry
};

// Shared by the gradient and its transpose: TensorFlow's walk along both operands and the sum, cut along the sum; its
// state is the position in the operands. Unsorted lists lose matches, as in TensorFlow.
class SumWalk : public Kernel {
 protected:
  // Cuts the walk along these lists, with guessed positions.
  void prepare(const Array& a, const Array& b, const Array& sum) {
    a_ = coordinates(a), b_ = coordinates(b), sum_ = coordinates(sum);
    heads_.resize(static_cast<std::size_t>(walk_parts(a_.rows + b_.rows) + 1));
    visit_rank(sum_.cols, [&]<int R>(std::integral_constant<int, R>) {
      for (std::int64_t part = 1; part < parts(); ++part) {
        const std::int64_t passed = cut(part);
        if (passed == 0) continue;
        const std::int64_t* x = sum_.row(passed - 1);
        heads_[part].a = std::max(guess_passed<R>(sum_, passed, a_, x), heads_[part - 1].a);
        heads_[part].b = std::max(guess_passed<R>(sum_, passed, b_, x), heads_[part - 1].b);
      }
    });
    heads_.back() = {a_.rows, b_.rows};
  }

  std::int64_t parts() const { return std::int64_t(heads_.size()) - 1; }
  std::int64_t cut(std::int64_t part) const { return sum_.rows * part / parts(); }

  // Walks one part; returns nothing if it would pass entries of an operand that belong to the next part, unless it
  // `may_overrun`. Calls `on` with the current entries i, j, k of the operands and the sum, in order:
  //   on.pass(i, j, k, match_a, match_b)  k is passed, and i and j if they match it, all within this part;
  //   on.pass_a(i, k, match), on.pass_b(j, k, match)  i or j is passed; k may not be passed yet.
  template <int R, class On>
  std::optional<Heads> walk(std::int64_t part, bool may_overrun, On&& on) const {
    const auto a = a_, b = b_, sum = sum_;
    const Heads border = heads_[part + 1], bound = may_overrun ? Heads{a.rows, b.rows} : border;
    const std::int64_t rank = R > 0 ? R : sum.cols, end = cut(part + 1);
    std::int64_t k = cut(part);
    auto [i, j] = heads_[part];
    bool within = true;
    // Compares an operand's entry with k; returns false if k cannot be passed yet.
    auto look = [&](Coordinates x, std::int64_t& head, std::int64_t last, const auto& pass) {
      if (head == x.rows) return true;
      bool behind, ahead;
      relate<R>(x.data + head * rank, sum.data + k * rank, rank, behind, ahead);
      if (ahead) return true;
      if (head == last) return within = false;
      pass(head++, k, !behind);
      return !behind;
    };
    while (within && k < end && (i < a.rows || j < b.rows)) {
      std::tie(i, j, k) = stride<R>(Heads{i, j}, k, border, end, on);
      if (k == end) break;
      const bool past_a = look(a, i, bound.a, [&on](auto... x) { on.pass_a(x...); });
      const bool past_b = look(b, j, bound.b, [&on](auto... x) { on.pass_b(x...); });
      k += past_a && past_b;
    }
    return within ? std::optional(Heads{i, j}) : std::nullopt;
  }

  // Walks as long as no operand is behind the sum and no border is reached: nearly all of it for sorted lists.
  template <int R, class On>
  std::tuple<std::int64_t, std::int64_t, std::int64_t> stride(Heads at, std::int64_t k, Heads border, std::int64_t end,
                                                              On&& on) const {
    const std::int64_t rank = R > 0 ? R : sum_.cols;
    const std::int64_t *a = a_.data, *b = b_.data, *sum = sum_.data;
    auto [i, j] = at;
    while (true) {
      std::int64_t steps = std::min({end - k, border.a - i, border.b - j});  // this many steps reach no border
      if (steps <= 0) return {i, j, k};
      for (; steps > 0; --steps, ++k) {
        const std::int64_t *x = a + i * rank, *y = b + j * rank, *z = sum + k * rank;
        bool behind_a, behind_b, ahead_a, ahead_b;
        relate<R>(x, z, rank, behind_a, ahead_a);
        relate<R>(y, z, rank, behind_b, ahead_b);
        if (behind_a | behind_b) return {i, j, k};
        const bool match_a = !ahead_a, match_b = !ahead_b;
        on.pass(i, j, k, match_a, match_b);
        i += match_a;
        j += match_b;
      }
    }
  }

  Coordinates a_{}, b_{}, sum_{};
  std::vector<Heads> heads_;  // before each part
};

// Inputs backprop_val_grad, a_indices, b_indices, sum_indices → a_val_grad, b_val_grad.
class SparseAddGrad : public SumWalk {
 public:
  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    prepare(in[1], in[2], in[3]);
    visit_width(in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const Pick<T> pick{in[0].as<T>(), out[0].as<T>(), out[1].as<T>()};
      visit_rank(sum_.cols, [&]<int R>(std::integral_constant<int, R>) {
        walk_in_parts(heads_, [&](std::int64_t part, bool alone) { return walk<R>(part, alone, pick); });
      });
      std::fill(pick.a + heads_.back().a, pick.a + a_.rows, T{});
      std::fill(pick.b + heads_.back().b, pick.b + b_.rows, T{});
    });
  }

 private:
  template <class T>
  struct Pick {
    const T* grad;
    T *a, *b;
    void pass_a(std::int64_t i, std::int64_t k, bool match) const { a[i] = match ? grad[k] : T{}; }
    void pass_b(std::int64_t j, std::int64_t k, bool match) const { b[j] = match ? grad[k] : T{}; }
    // Unmatched entries are not passed, so they are written again, by this part or by a rerun of the next one.
    void pass(std::int64_t i, std::int64_t j, std::int64_t k, bool, bool) const { a[i] = b[j] = grad[k]; }
  };
};

// The transpose. Inputs da, db, a_indices, b_indices, sum_indices → one value per entry of the sum.
class SparseAddGradGrad : public SumWalk {
 public:
  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    prepare(in[2], in[3], in[4]);
    visit(Numbers{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      T* result = out[0].as<T>();
      visit_rank(sum_.cols, [&]<int R>(std::integral_constant<int, R>) {
        walk_in_parts(heads_, [&](std::int64_t part, bool) {
          // A part writes only its own entries of the sum, whichever operand entries it passes, so it may always pass
          // them.
          std::fill(result + cut(part), result + cut(part + 1), T{});
          return walk<R>(part, true, Sum<T>{in[0].as<T>(), in[1].as<T>(), result});
        });
      });
    });
  }

 private:
  template <class T>
  struct Sum {
    const T *da, *db;
    T* result;
    std::int64_t last = -1;  // matches of one k are consecutive: another k means a first match

    void add(T value, std::int64_t k) {
      result[k] = k == last ? sum_of(result[k], value) : value;
      last = k;
    }
    void pass_a(std::int64_t i, std::int64_t k, bool match) {
      if (match) add(da[i], k);
    }
    void pass_b(std::int64_t j, std::int64_t k, bool match) {
      if (match) add(db[j], k);
    }
    void pass(std::int64_t i, std::int64_t j, std::int64_t k, bool match_a, bool match_b) {
      pass_a(i, k, match_a);
      pass_b(j, k, match_b);
    }
  };
};

}  // namespace rowgrad
