// {Sparse,Ragged}FillEmptyRows, their gradient, and the gradient's transpose.
#pragma once
#include <algorithm>
#include <atomic>
#include <vector>

#include "rowgrad/dispatch.h"
#include "rowgrad/sparse_segment.h"

namespace rowgrad {

// Whether id(i) is in [0, bound) for every i below n; the fault names the first that is not.
template <class IdAt>
Status check_below(std::int64_t n, std::int64_t bound, Fault fault, IdAt&& id) {
  std::atomic<std::int64_t> first{n};
  parallel_ranges(n, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (is_below(id(i), bound)) continue;
      std::int64_t seen = first.load();
      while (i < seen && !first.compare_exchange_weak(seen, i)) {
      }
      return;
    }
  });
  const std::int64_t i = first.load();
  return i == n ? Status{} : Status{fault, i, id(i), bound};
}

// Inputs indices [N, r], values, dense_shape, default_value; ragged: value_rowids [N], values, nrows, default_value.
// The two differ in nothing: row ids are a matrix of one column, and dense_shape begins with the number of rows.
class FillEmptyRows : public Kernel {
 public:
  Status measure() override {
    const auto indices = mat<const std::int64_t>(in[0]);
    const std::int64_t dense_rows = in[2].as<std::int64_t>()[0];
    // Ids before workspace: a bad id is told even where the number of rows is absurd.
    if (const Status s = check_below(indices.rows, dense_rows, Fault::row_not_in_shape,
                                     [&](std::int64_t i) { return indices.row(i)[0]; }))
      return s;
    next_ = workspace<std::int64_t>(dense_rows);
    std::int64_t filled = 0;
    std::int64_t* count = next_.data();
    for (std::int64_t i = 0, n = indices.rows; i < n; ++i) filled += count[indices.row(i)[0]]++ == 0;
    rows = indices.rows + dense_rows - filled;
    return {};
  }

  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    bool* empty = out[2].as<bool>();
    place(empty, out[3].as<std::int64_t>());
    visit_width(in[1].dtype, [&]<class T>(std::type_identity<T>) {
      move_entries(vec<const T>(in[1]), out[3].as<const std::int64_t>(), mat<std::int64_t>(out[0]), out[1].as<T>());
      fill_rows(empty, *in[3].as<T>(), mat<std::int64_t>(out[0]), out[1].as<T>());
    });
  }

 private:
  // Turns the counts into each row's first position in the output, then gives its entries consecutive positions.
  // An empty row's position stays where it is.
  void place(bool* empty, std::int64_t* map) {
    std::int64_t position = 0;
    for (std::size_t row = 0; row < next_.size(); ++row) {
      const std::int64_t count = next_[row];
      empty[row] = count == 0;
      next_[row] = position;
      position += std::max<std::int64_t>(count, 1);
    }
    const auto indices = mat<const std::int64_t>(in[0]);
    std::int64_t* next = next_.data();
    for (std::int64_t i = 0, n = indices.rows; i < n; ++i) map[i] = next[indices.row(i)[0]]++;
  }

  template <class T>
  void move_entries(Vec<const T> values, const std::int64_t* map, Mat<std::int64_t> out_indices, T* out_values) {
    const auto indices = mat<const std::int64_t>(in[0]);
    parallel_ranges(values.size, kScanGrain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t to = map[i];
        for (std::int64_t d = 0; d < indices.cols; ++d) out_indices.row(to)[d] = indices.row(i)[d];
        out_values[to] = values[i];
      }
    });
  }

  template <class T>
  void fill_rows(const bool* empty, T default_value, Mat<std::int64_t> out_indices, T* out_values) {
    parallel_ranges(std::int64_t(next_.size()), kScanGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        if (!empty[row]) continue;
        std::int64_t* place = out_indices.row(next_[row]);
        std::fill_n(place, out_indices.cols, 0);
        place[0] = row;
        out_values[next_[row]] = default_value;
      }
    });
  }

  std::vector<std::int64_t> next_;  // of each row: how many entries; in compute, where the next one goes
};

// What the gradient and its transpose share: the map is input 0, grad_values the last input.
class ReverseIndexMap : public Kernel {
 public:
  Status check() override {
    const auto map = vec<const std::int64_t>(in.front());
    const std::int64_t positions = in.back().size();
    if (const Status s = check_below(map.size, positions, Fault::reverse_index_not_in_grad,
                                     [&](std::int64_t i) { return map[i]; }))
      return s;
    named_ = workspace<std::uint8_t>(positions);
    // Locals: a byte that is written might be any member, for all the compiler knows.
    std::uint8_t* named = named_.data();
    const std::int64_t* position = map.data;
    const std::int64_t n = map.size;
    std::uint8_t twice = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      twice |= named[position[i]];
      named[position[i]] = 1;
    }
    shared_ = twice != 0;
    return {};
  }

 protected:
  std::vector<std::uint8_t> named_;  // of each position: whether the map names it
  bool shared_ = false;              // whether some position is named more than once
};

// Inputs reverse_index_map, grad_values → d_values, d_default_value.
class FillEmptyRowsGrad : public ReverseIndexMap {
 public:
  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    const auto map = vec<const std::int64_t>(in[0]);
    visit(Numbers{}, in[1].dtype, [&]<class T>(std::type_identity<T>) {
      const auto grad = vec<const T>(in[1]);
      T* values = out[0].as<T>();
      parallel_ranges(map.size, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) values[i] = grad[map[i]];
      });
      // In T itself, as TensorFlow does: 16-bit floats are rounded at every step.
      T sum{};
      const std::uint8_t* named = named_.data();
      const std::int64_t n = grad.size;
      for (std::int64_t j = 0; j < n; ++j)
        if (!named[j]) sum = store<T>(plus(load(sum), load(grad[j])));
      *out[1].as<T>() = sum;
    });
  }
};

// The transpose. Inputs reverse_index_map, dd_values, dd_default_value, grad_values (for its length alone).
class FillEmptyRowsGradGrad : public ReverseIndexMap {
 public:
  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    visit(Numbers{}, in[1].dtype, [&]<class T>(std::type_identity<T>) {
      const auto result = vec<T>(out[0]);
      const T default_value = *in[2].as<T>();
      parallel_ranges(result.size, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t j = begin; j < end; ++j)
          if (!named_[j]) result[j] = default_value;
      });
      if (shared_)
        add_values(vec<const T>(in[1]), result);
      else
        copy_values(vec<const T>(in[1]), result);
    });
  }

 private:
  template <class T>
  void copy_values(Vec<const T> values, Vec<T> result) {
    const auto* map = in[0].as<const std::int64_t>();
    parallel_ranges(values.size, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) result[map[i]] = values[i];
    });
  }

  // A position's first value is copied, so that what is named once keeps its bits; sums are rounded once.
  template <class T>
  void add_values(Vec<const T> values, Vec<T> result) {
    const auto* map = in[0].as<const std::int64_t>();
    auto sums = workspace<Accumulator<T>>(result.size);
    auto terms = workspace<std::uint8_t>(result.size);  // none, one, more
    for (std::int64_t i = 0; i < values.size; ++i) {
      const std::int64_t j = map[i];
      if (terms[j] == 0) {
        result[j] = values[i];
        sums[j] = load(values[i]);
      } else {
        sums[j] = plus(sums[j], load(values[i]));
      }
      terms[j] = std::uint8_t(std::min(terms[j] + 1, 2));
    }
    for (std::int64_t j = 0; j < result.size; ++j)
      if (terms[j] == 2) result[j] = store<T>(sums[j]);
  }
};

}  // namespace rowgrad
