// SparseSlice, its gradient, and the transpose of the gradient.
#pragma once
#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "rowgrad/coordinates.h"
#include "rowgrad/dispatch.h"
#include "rowgrad/kernel.h"

namespace rowgrad {

// Selected entries are stored as one bit each, in 64-bit words that no two parts of a walk share.
constexpr std::int64_t kWord = 64;

// Returns the first entry of a part, aligned to a word.
inline std::int64_t part_begin(std::int64_t n, std::int64_t part, std::int64_t parts) {
  return part == parts ? n : n * part / parts / kWord * kWord;
}

// Calls fn(b) for every set bit b, in ascending order.
template <class Fn>
void each_bit(std::uint64_t bits, Fn&& fn) {
  for (; bits != 0; bits &= bits - 1) fn(std::int64_t(std::countr_zero(bits)));
}

// The coordinates from low[d] to high[d], inclusive, in every dimension d; empty at first.
struct Box {
  std::vector<std::int64_t> low, high;

  explicit Box(std::int64_t rank)
      : low(static_cast<std::size_t>(rank), INT64_MAX), high(static_cast<std::size_t>(rank), INT64_MIN) {}

  std::int64_t rank() const { return std::int64_t(low.size()); }
  bool empty() const {
    for (std::size_t d = 0; d < low.size(); ++d)
      if (low[d] > high[d]) return true;
    return false;
  }
  void stretch(const Box& other) {
    for (std::size_t d = 0; d < low.size(); ++d) {
      low[d] = std::min(low[d], other.low[d]);
      high[d] = std::max(high[d], other.high[d]);
    }
  }
};

// Returns one bit per entry, for at most a word of entries: whether it is inside the box, which must not be empty.
template <int R>
std::uint64_t inside(const Box& box, const std::int64_t* entry, std::int64_t count) {
  const std::int64_t *low = box.low.data(), *high = box.high.data(), rank = R > 0 ? R : box.rank();
  std::uint64_t bits = 0;
  for (std::int64_t b = 0; b < count; ++b, entry += rank) {
    bool in = true;
    for (std::int64_t d = 0; d < rank && (R > 0 || in); ++d)
      in &= std::uint64_t(wrapping_minus(entry[d], low[d])) <= std::uint64_t(wrapping_minus(high[d], low[d]));
    bits |= std::uint64_t(in) << b;
  }
  return bits;
}

// Inputs indices, values, shape, start, size → output_indices, output_values, output_shape.
class SparseSlice : public Kernel {
 public:
  Status measure() override {
    const auto indices = coordinates(in[0]);
    const std::int64_t n = indices.rows, parts = pieces(n, kEntryGrain);
    const Box box = selection();
    const bool none = box.empty();
    selected_ = Scratch<std::uint64_t>((n + kWord - 1) / kWord);
    first_ = workspace<std::int64_t>(parts + 1);
    visit_rank(indices.cols, [&]<int R>(std::integral_constant<int, R>) {
      parallel_tasks(parts, [&](std::int64_t part) {
        const std::int64_t end = part_begin(n, part + 1, parts);
        std::int64_t selected = 0;
        for (std::int64_t i = part_begin(n, part, parts); i < end; i += kWord) {
          const std::uint64_t bits = none ? 0 : inside<R>(box, indices.row(i), std::min(end - i, kWord));
          selected_[i / kWord] = bits;
          selected += std::popcount(bits);
        }
        first_[part + 1] = selected;
      });
    });
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    rows = first_.back();
    return {};
  }

  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    visit_width(in[1].dtype, [&]<class T>(std::type_identity<T>) {
      visit_rank(in[3].size(), [&]<int R>(std::integral_constant<int, R>) {
        parallel_tasks(std::int64_t(first_.size()) - 1, [&](std::int64_t part) { move_selected<T, R>(part, out); });
      });
    });
    for (std::int64_t d = 0; d < in[3].size(); ++d) out[2].as<std::int64_t>()[d] = extent(d);
  }

 private:
  Box selection() const {
    Box box(in[3].size());
    const auto* start = in[3].as<const std::int64_t>();
    const auto* size = in[4].as<const std::int64_t>();
    for (std::int64_t d = 0; d < box.rank(); ++d) {
      const std::int64_t end = plus(start[d], size[d]);
      if (end <= start[d]) continue;  // selects nothing; also if the end wraps
      box.low[d] = start[d];
      box.high[d] = end - 1;
    }
    return box;
  }

  template <class T, int R>
  void move_selected(std::int64_t part, std::span<const Array> out) const {
    const auto from = coordinates(in[0]);
    const auto* start = in[3].as<const std::int64_t>();
    const T* values = in[1].as<T>();
    const std::int64_t rank = R > 0 ? R : from.cols, parts = std::int64_t(first_.size()) - 1;
    const std::int64_t end = part_begin(from.rows, part + 1, parts);
    std::int64_t* to = mat<std::int64_t>(out[0]).row(first_[part]);
    T* selected_values = out[1].as<T>() + first_[part];
    for (std::int64_t i = part_begin(from.rows, part, parts); i < end; i += kWord)
      each_bit(selected_[i / kWord], [&](std::int64_t b) {
        const std::int64_t* row = from.data + (i + b) * rank;
        for (std::int64_t d = 0; d < rank; ++d) *to++ = wrapping_minus(row[d], start[d]);
        *selected_values++ = values[i + b];
      });
  }

  std::int64_t extent(std::int64_t d) const {
    const std::int64_t dim = in[2].as<std::int64_t>()[d], start = in[3].as<std::int64_t>()[d];
    const std::int64_t size = in[4].as<std::int64_t>()[d];
    if (start < wrapping_minus(dim, size)) return size;
    return start < dim ? wrapping_minus(dim, start) : 0;
  }

  Scratch<std::uint64_t> selected_;  // a bit per entry
  std::vector<std::int64_t> first_;      // of each part: the output position of its first selected entry
};

// Shared by the gradient and its transpose: inputs 1 to 3 are input_indices, input_start, output_indices.
class SliceMatch : public Kernel {
 public:
  // One greedy pass over the input: each output entry, in order, is matched with the next input entry it equals.
  Status check() override {
    const auto input = coordinates(in[1]), output = coordinates(in[3]);
    const std::int64_t parts = walk_parts(input.rows);
    matched_ = Scratch<std::uint64_t>((input.rows + kWord - 1) / kWord);
    first_ = workspace<std::int64_t>(parts + 1);
    visit_rank(input.cols, [&]<int R>(std::integral_constant<int, R>) {
      const Box box = bounding_box<R>();
      guess_first<R>();
      walk_in_parts(first_, [&](std::int64_t part, bool) {
        const std::int64_t begin = part_begin(input.rows, part, parts), end = part_begin(input.rows, part + 1, parts);
        return match<R>(box, first_[part], begin, end);
      });
    });
    const std::int64_t used = first_.back();
    return used == output.rows ? Status{} : Status{Fault::slice_left_over, -1, used, output.rows};
  }

 protected:
  // Calls fn(i, count, bits, k) for every word: its first input entry, its number of entries, which of them are
  // matched, and the output entry of the first match.
  template <class Fn>
  void parallel_words(Fn&& fn) const {
    const std::int64_t n = in[1].rows(), parts = std::int64_t(first_.size()) - 1;
    parallel_tasks(parts, [&, n, parts](std::int64_t part) {
      std::int64_t k = first_[part];
      const std::int64_t end = part_begin(n, part + 1, parts);
      for (std::int64_t i = part_begin(n, part, parts); i < end; i += kWord) {
        const std::uint64_t bits = matched_[i / kWord];
        fn(i, std::min(end - i, kWord), bits, k);
        k += std::popcount(bits);
      }
    });
  }

 private:
  // Returns the bounding box of all output entries in input coordinates. Input entries outside of it have no match.
  template <int R>
  Box bounding_box() const {
    const auto output = coordinates(in[3]);
    const std::int64_t parts = pieces(output.rows, kEntryGrain);
    std::vector<Box> boxes(static_cast<std::size_t>(parts), Box(output.cols));
    parallel_tasks(parts, [&](std::int64_t part) {
      bound<R>(boxes[part], output.rows * part / parts, output.rows * (part + 1) / parts);
    });
    for (const Box& other : boxes) boxes[0].stretch(other);
    return boxes[0];
  }

  // One dimension at a time, so that its bounds stay in registers, over as many entries as fit into the cache.
  template <int R>
  void bound(Box& box, std::int64_t begin, std::int64_t end) const {
    constexpr std::int64_t kStretch = 512;
    const std::int64_t rank = R > 0 ? R : box.rank();
    for (std::int64_t last; begin < end; begin = last) {
      last = std::min(end, begin + kStretch);
      for (std::int64_t d = 0; d < rank; ++d) {
        const std::int64_t start = in[2].as<const std::int64_t>()[d], *x = in[3].as<const std::int64_t>() + d;
        std::int64_t low = box.low[d], high = box.high[d];
        for (std::int64_t k = begin; k < last; ++k) {
          const std::int64_t moved = plus(x[k * rank], start);
          low = std::min(low, moved);
          high = std::max(high, moved);
        }
        box.low[d] = low;
        box.high[d] = high;
      }
    }
  }

  template <int R>
  void guess_first() {
    const auto input = coordinates(in[1]), output = coordinates(in[3]);
    const auto* start = in[2].as<const std::int64_t>();
    const std::int64_t parts = std::int64_t(first_.size()) - 1;
    auto moved = workspace<std::int64_t>(input.cols);
    for (std::int64_t part = 1; part < parts; ++part) {
      const std::int64_t passed = part_begin(input.rows, part, parts);
      for (std::int64_t d = 0; d < input.cols; ++d) moved[d] = wrapping_minus(input.row(passed - 1)[d], start[d]);
      first_[part] = guess_passed<R>(input, passed, output, moved.data());
    }
  }

  // Matches input entries [begin, end), starting with output entry k; returns the next output entry to match.
  template <int R>
  std::int64_t match(const Box& box, std::int64_t k, std::int64_t begin, std::int64_t end) {
    const auto input = coordinates(in[1]);
    const std::int64_t m = in[3].rows(), rank = R > 0 ? R : input.cols;
    std::uint64_t* matched = matched_.data();
    for (std::int64_t i = begin; i < end; i += kWord) {
      const std::int64_t count = std::min(end - i, kWord);
      std::uint64_t bits = k == m ? 0 : inside<R>(box, input.data + i * rank, count);
      if (!matches_all<R>(i, bits, k)) bits = match_one_by_one<R>(i, count, k);
      matched[i / kWord] = bits;
      k += std::popcount(bits);
    }
    return k;
  }

  // Whether exactly these entries of the word at i match the output entries from k on: all others are outside the box.
  template <int R>
  bool matches_all(std::int64_t i, std::uint64_t bits, std::int64_t k) const {
    if (in[3].rows() - k < kWord && in[3].rows() - k < std::popcount(bits)) return false;
    const std::int64_t rank = R > 0 ? R : in[3].row_size();
    const std::int64_t *input = in[1].as<const std::int64_t>() + i * rank, *start = in[2].as<const std::int64_t>();
    const std::int64_t* output = in[3].as<const std::int64_t>() + k * rank;
    std::uint64_t differ = 0;
    each_bit(bits, [&](std::int64_t b) {
      for (std::int64_t d = 0; d < rank; ++d)
        differ |= std::uint64_t(wrapping_minus(input[b * rank + d], start[d])) ^ std::uint64_t(*output++);
    });
    return differ == 0;
  }

  template <int R>
  std::uint64_t match_one_by_one(std::int64_t i, std::int64_t count, std::int64_t k) const {
    const std::int64_t m = in[3].rows(), rank = R > 0 ? R : in[3].row_size();
    const std::int64_t *input = in[1].as<const std::int64_t>() + i * rank, *start = in[2].as<const std::int64_t>();
    const std::int64_t* output = in[3].as<const std::int64_t>() + k * rank;
    std::uint64_t bits = 0;
    for (std::int64_t b = 0; b < count && k < m; ++b, input += rank) {
      std::int64_t d = 0;
      while (d < rank && wrapping_minus(input[d], start[d]) == output[d]) ++d;
      if (d < rank) continue;
      bits |= std::uint64_t{1} << b;
      output += rank;
      ++k;
    }
    return bits;
  }

  Scratch<std::uint64_t> matched_;   // a bit per input entry
  std::vector<std::int64_t> first_;  // of each part: the first output entry to match
};

// Input 0 is backprop_val_grad, one per output entry → val_grad, one per input entry.
class SparseSliceGrad : public SliceMatch {
 public:
  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    visit_width(in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const T* grad = in[0].as<T>();
      T* result = out[0].as<T>();
      parallel_words([=](std::int64_t i, std::int64_t count, std::uint64_t bits, std::int64_t k) {
        std::fill_n(result + i, count, T{});
        each_bit(bits, [&](std::int64_t b) { result[i + b] = grad[k++]; });
      });
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
      parallel_words([=](std::int64_t i, std::int64_t, std::uint64_t bits, std::int64_t k) {
        each_bit(bits, [&](std::int64_t b) { result[k++] = grad[i + b]; });
      });
    });
  }
};

}  // namespace rowgrad
