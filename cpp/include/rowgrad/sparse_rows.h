// {Sparse,Ragged}FillEmptyRows, their gradient, and the transpose of the gradient.
#pragma once
#include <algorithm>
#include <atomic>
#include <numeric>
#include <vector>

#include "rowgrad/coordinates.h"
#include "rowgrad/dispatch.h"
#include "rowgrad/ids.h"
#include "rowgrad/kernel.h"

namespace rowgrad {

// Copies the first column of `ids` and reports the first id outside [0, bound) as `fault`. Callers then read only the
// copy, as with an IdSnapshot.
inline Status copy_below(Mat<const std::int64_t> ids, std::int64_t bound, Fault fault, Scratch<std::int64_t>& copy) {
  const std::int64_t n = ids.rows;
  if (copy.empty()) copy = Scratch<std::int64_t>(n);
  std::int64_t* to = copy.data();
  std::atomic<bool> outside{false};
  parallel_ranges(n, kScanGrain, [=, &outside](std::int64_t begin, std::int64_t end) {
    std::uint64_t signs = 0, most = 0;
    if (ids.cols == 1)  // vectorizes: the sign bit is set by an id below 0 or above the last
      for (std::int64_t i = begin; i < end; ++i) {
        to[i] = ids.data[i];
        signs |= std::uint64_t(to[i]) | (std::uint64_t(bound) - 1 - std::uint64_t(to[i]));
      }
    else
      for (std::int64_t i = begin; i < end; ++i) {
        to[i] = ids.row(i)[0];
        most = std::max(most, std::uint64_t(to[i]));
      }
    if (signs >> 63 || most >= std::uint64_t(bound)) outside.store(true, std::memory_order_relaxed);
  });
  if (!outside) return {};
  const std::int64_t i = first_where(n, [=](std::int64_t j) { return !is_below(to[j], bound); });
  return i == n ? Status{} : Status{fault, i, to[i], bound};
}

// Inputs indices [N, r], values, dense_shape, default_value; ragged: value_rowids [N], values, nrows, default_value.
// One class serves both: row ids are a matrix of one column, and dense_shape begins with the number of rows.
//
// Entries sorted by row, the common case, keep their order and move up by the number of empty rows before them.
// Unsorted entries are placed row by row. Both read a copy of the row ids that was validated, as with an IdSnapshot.
class FillEmptyRows : public Kernel {
 public:
  Status measure() override {
    const auto indices = mat<const std::int64_t>(in[0]);
    const std::int64_t dense_rows = dense_rows_ = in[2].as<std::int64_t>()[0];
    sorted_ = count_filled(indices, dense_rows);
    // Validate ids before allocating: a bad id is reported even if num_rows is absurdly large.
    if (!sorted_)
      if (const Status s = copy_below(indices, dense_rows, Fault::row_not_in_shape, row_ids_)) return s;
    const std::int64_t filled = sorted_ ? filled_.back() : count_entries();
    rows = indices.rows + dense_rows - filled;
    return {};
  }

  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    bool* empty = out[2].as<bool>();
    std::int64_t* map = out[3].as<std::int64_t>();
    if (!sorted_) place(empty, map);
    visit_width(in[1].dtype, [&]<class T>(std::type_identity<T>) {
      const Filled<T> filled{mat<std::int64_t>(out[0]), out[1].as<T>(), empty, map};
      if (sorted_) {
        const std::int64_t parts = std::int64_t(filled_.size()) - 1;
        parallel_tasks(parts, [&](std::int64_t part) { move_stretches(part, filled); });
        fill_after_last(filled);
      } else {
        move_entries(filled);
        fill_rows(filled);
      }
    });
  }

 private:
  // The outputs.
  template <class T>
  struct Filled {
    Mat<std::int64_t> indices;
    T* values;
    bool* empty;
    std::int64_t* map;

    // Writes the default entry of an empty row.
    void put_default(std::int64_t row, std::int64_t position, T value) const {
      std::int64_t* place = indices.row(position);
      std::fill_n(place, indices.cols, 0);
      place[0] = row;
      values[position] = value;
    }
  };

  // Whether the row ids are in range and non-decreasing. If so, filled_ counts rows with entries: a row begins where an
  // id differs from the previous one.
  bool count_filled(Mat<const std::int64_t> indices, std::int64_t dense_rows) {
    const std::int64_t n = indices.rows, parts = pieces(n, kScanGrain);
    if (n > 0 && (indices.row(0)[0] < 0 || indices.row(n - 1)[0] >= dense_rows)) return false;
    row_ids_ = Scratch<std::int64_t>(n);
    filled_ = workspace<std::int64_t>(parts + 1);
    std::atomic<bool> unsorted{false};
    std::int64_t* const copy = row_ids_.data();
    parallel_tasks(parts, [&, n, parts, copy](std::int64_t part) {
      const std::int64_t end = n * (part + 1) / parts, cols = indices.cols;
      std::int64_t i = n * part / parts, previous = -1, filled = 0;
      bool decreased = false;
      if (i > 0) previous = copy[i] = indices.row(i)[0], ++i;  // compared with the previous part below
      // In chunks, so that an unsorted list is not read to its end.
      while (i < end && !unsorted.load(std::memory_order_relaxed)) {
        const std::int64_t *id = indices.row(i), last = std::min(end, i + kStretch);
        std::int64_t *to = copy + i, *const to_end = copy + last;
        i = last;
        for (; to < to_end; ++to, id += cols) {
          const std::int64_t row = *to = *id;
          decreased |= row < previous;
          filled += row != previous;
          previous = row;
        }
        if (decreased) unsorted.store(true, std::memory_order_relaxed);
      }
      filled_[part + 1] = filled;
    });
    bool sorted = !unsorted;
    for (std::int64_t part = 1; sorted && part < parts; ++part) {
      const std::int64_t first = n * part / parts;
      sorted = copy[first - 1] <= copy[first];
      filled_[part + 1] += copy[first - 1] != copy[first];
    }
    std::partial_sum(filled_.begin(), filled_.end(), filled_.begin());
    // The same limit on rows as for unsorted entries, which need workspace per row.
    if (sorted && (dense_rows < 0 || dense_rows > memory_limit() / 2 / std::int64_t(sizeof(std::int64_t))))
      throw OutOfMemory{dense_rows};
    return sorted && (n == 0 || (copy[0] >= 0 && copy[n - 1] < dense_rows));  // check the copy
  }

  // Returns how many rows have entries, and counts the entries of each row in next_.
  std::int64_t count_entries() {
    next_ = workspace<std::int64_t>(dense_rows_);
    std::int64_t filled = 0;
    std::int64_t* count = next_.data();
    const std::int64_t* row = row_ids_.data();
    for (std::int64_t i = 0, n = row_ids_.size(); i < n; ++i) filled += count[row[i]]++ == 0;
    return filled;
  }

  // Moves the sorted entries of one part in stretches between empty rows, and fills the empty rows before each stretch.
  template <class T>
  void move_stretches(std::int64_t part, const Filled<T>& to) const {
    const auto indices = mat<const std::int64_t>(in[0]);
    const T *values = in[1].as<T>(), default_value = *in[3].as<T>();
    const std::int64_t n = indices.rows, cols = indices.cols, parts = std::int64_t(filled_.size()) - 1;
    const std::int64_t end = n * (part + 1) / parts, *const row_ids = row_ids_.data();
    std::int64_t begin = n * part / parts, done = begin == 0 ? -1 : row_ids[begin - 1];  // rows up to here are done
    std::int64_t shift = done + 1 - filled_[part];                                        // empty rows so far
    for (std::int64_t last; begin < end; begin = last) {
      const std::int64_t row = row_ids[begin];
      while (done + 1 < row) {
        to.empty[++done] = true;
        to.put_default(done, begin + shift++, default_value);
      }
      last = stretch_end(row_ids, begin, end);
      std::copy_n(indices.row(begin), (last - begin) * cols, to.indices.row(begin + shift));
      std::copy_n(values + begin, last - begin, to.values + begin + shift);
      std::iota(to.map + begin, to.map + last, begin + shift);
      const std::int64_t last_row = row_ids[last - 1];
      std::fill(to.empty + done + 1, to.empty + last_row + 1, false);
      done = last_row;
    }
  }

  // Returns the end of the entries from `begin` on without an empty row between them, at most kStretch of them: the
  // caller reads them again while they are in cache.
  static std::int64_t stretch_end(const std::int64_t* row_ids, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kBlock = 8;
    const std::int64_t most = std::min(end, begin + kStretch);
    std::int64_t i = begin + 1;
    if (i < most && row_ids[i] - row_ids[i - 1] > 1) return i;
    for (std::int64_t steps = 0; i + kBlock <= most; i += kBlock) {  // steps are >= 0: or-ed, <= 1 if all are
      for (std::int64_t j = i; j < i + kBlock; ++j) steps |= row_ids[j] - row_ids[j - 1];
      if (steps > 1) break;
    }
    while (i < most && row_ids[i] - row_ids[i - 1] <= 1) ++i;
    return i;
  }

  template <class T>
  void fill_after_last(const Filled<T>& to) const {
    const std::int64_t n = row_ids_.size(), first = n == 0 ? 0 : row_ids_[n - 1] + 1;
    const std::int64_t shift = n - filled_.back(), after = dense_rows_ - first;
    const T default_value = *in[3].as<T>();
    parallel_ranges(after, kScanGrain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = first + begin; row < first + end; ++row) {
        to.empty[row] = true;
        to.put_default(row, row + shift, default_value);
      }
    });
  }

  // Replaces the counts by each row's first output position, then assigns consecutive positions to its entries. next_
  // of an empty row stays its position.
  void place(bool* empty, std::int64_t* map) {
    std::int64_t position = 0;
    for (std::size_t row = 0; row < next_.size(); ++row) {
      const std::int64_t count = next_[row];
      empty[row] = count == 0;
      next_[row] = position;
      position += std::max<std::int64_t>(count, 1);
    }
    std::int64_t* next = next_.data();
    std::int64_t* row = row_ids_.data();  // becomes the position; outputs may be shared memory: not read back
    for (std::int64_t i = 0, n = row_ids_.size(); i < n; ++i) map[i] = row[i] = next[row[i]]++;
  }

  template <class T>
  void move_entries(const Filled<T>& to) const {
    const auto indices = mat<const std::int64_t>(in[0]);
    const T* values = in[1].as<T>();
    const std::int64_t* positions = row_ids_.data();  // see place()
    parallel_ranges(indices.rows, kScanGrain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        std::int64_t* place = to.indices.row(positions[i]);
        for (std::int64_t d = 0; d < indices.cols; ++d) place[d] = indices.row(i)[d];
        to.values[positions[i]] = values[i];
      }
    });
  }

  template <class T>
  void fill_rows(const Filled<T>& to) const {
    const T default_value = *in[3].as<T>();
    parallel_ranges(std::int64_t(next_.size()), kScanGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        if (to.empty[row] && next_[row] < rows) to.put_default(row, next_[row], default_value);
    });
  }

  static constexpr std::int64_t kStretch = 512;  // entries; fits into the L1 cache

  bool sorted_ = false;
  std::int64_t dense_rows_ = 0;
  Scratch<std::int64_t> row_ids_;     // per entry
  std::vector<std::int64_t> filled_;  // if sorted: rows begun before each part
  std::vector<std::int64_t> next_;    // if unsorted, per row: its entries; in compute, the position of its next entry
};

// Shared by the gradient and its transpose: the map is input 0, grad_values the last input.
//
// An ascending map, as of sorted entries, is a list of runs of positions with gaps between them: find the gaps once,
// then copy runs. For other maps, flag every position in the map.
class ReverseIndexMap : public Kernel {
 public:
  Status check() override {
    const auto map = vec<const std::int64_t>(in.front());
    const std::int64_t positions = in.back().size();
    ascending_ = find_gaps(map.size, positions);
    if (ascending_) return {};
    if (const Status s = copy_below({map.data, map.size, 1}, positions, Fault::reverse_index_not_in_grad, map_)) return s;
    mapped_ = workspace<std::uint8_t>(positions);
    // Locals: a byte store may alias any member.
    std::uint8_t* mapped = mapped_.data();
    const std::int64_t* position = map_.data();
    const std::int64_t n = map.size;
    std::uint8_t twice = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      twice |= mapped[position[i]];
      mapped[position[i]] = 1;
    }
    shared_ = twice != 0;
    return {};
  }

 protected:
  // For an ascending map: calls run(i, position, count) for entries with consecutive positions, and gap(position, k,
  // count) for positions that are not in the map; the first of them is number k of all such positions.
  template <class OnRun, class OnGap>
  void parallel_stretches(OnRun&& run, OnGap&& gap) const {
    const std::int64_t n = in.front().size(), parts = std::int64_t(gap_count_.size());
    parallel_tasks(parts, [&, n, parts](std::int64_t part) {
      std::int64_t i = n * part / parts, unmapped = unmapped_before_[part];
      const Gap* next = gaps_.data() + unmapped;
      for (const Gap* last = next + gap_count_[part]; next < last; ++next) {
        run(i, i + unmapped, next->entry - i);
        gap(next->entry + unmapped, unmapped, next->unmapped - unmapped);
        i = next->entry;
        unmapped = next->unmapped;
      }
      const std::int64_t end = n * (part + 1) / parts;
      run(i, i + unmapped, end - i);
      if (part + 1 == parts) gap(end + unmapped, unmapped, gaps_.size() - unmapped);
    });
  }

  bool ascending_ = false;
  Scratch<std::int64_t> map_;        // a copy of a map that is not ascending
  std::vector<std::uint8_t> mapped_;  // per position: whether it is in the map
  bool shared_ = false;              // whether some position is in the map more than once

 private:
  // A gap before an entry, and the number of unmapped positions before that entry.
  struct Gap {
    std::int64_t entry, unmapped;
  };

  // Returns the number of unmapped positions before entry i - 1 of an ascending map. A gap directly before an entry
  // belongs to the part of that entry.
  std::int64_t unmapped_before(std::int64_t i) const {
    return i == 0 ? 0 : wrapping_minus(in.front().as<std::int64_t>()[i - 1], i - 1);
  }

  // Whether the map is ascending and in range. If so, gaps_ has the gaps of each part from index unmapped_before_[part]
  // on: there are at most as many gaps as unmapped positions.
  bool find_gaps(std::int64_t n, std::int64_t positions) {
    constexpr std::int64_t kBytes = 32;  // of a gap, and later of a value, per unmapped position
    if (positions < n || positions - n > memory_limit() / 2 / kBytes) return false;
    const std::int64_t parts = pieces(n, kScanGrain);
    // Bounds per part, so that no two parts write to the same memory even if the map changes; each entry is read once.
    unmapped_before_ = workspace<std::int64_t>(parts + 1);
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t through = unmapped_before(n * (part + 1) / parts);
      if (through < unmapped_before_[part] || through > positions - n) return false;
      unmapped_before_[part + 1] = through;
    }
    gaps_ = Scratch<Gap>(positions - n);
    gap_count_ = workspace<std::int64_t>(parts);
    std::atomic<bool> ascends{true};
    parallel_tasks(parts, [&, n, parts](std::int64_t part) {
      gap_count_[part] = find_gaps_between(n * part / parts, n * (part + 1) / parts, unmapped_before_[part],
                                           unmapped_before_[part + 1]);
      if (gap_count_[part] < 0) ascends.store(false, std::memory_order_relaxed);
    });
    return ascends;
  }

  // Returns the number of gaps in entries [begin, end), or -1 if the map does not ascend. `unmapped`, `most`: the number
  // of unmapped positions before the first entry and before the end.
  std::int64_t find_gaps_between(std::int64_t begin, std::int64_t end, std::int64_t unmapped, const std::int64_t most) {
    constexpr std::int64_t kBlock = 32;
    const auto* map = in.front().as<const std::int64_t>();
    Gap *const first = gaps_.data() + unmapped, *next = first;
    for (std::int64_t last; begin < end; begin = last) {
      last = std::min(end, begin + kBlock);
      if (is_consecutive(map + begin, last - begin, begin + unmapped)) continue;
      for (std::int64_t i = begin; i < last; ++i) {
        const std::int64_t now = wrapping_minus(map[i], i);
        if (now < unmapped || now > most) return -1;
        if (now > unmapped) *next++ = {i, now};
        unmapped = now;
      }
    }
    return next - first;
  }

  // Whether these entries have consecutive positions, without a branch per entry.
  static bool is_consecutive(const std::int64_t* map, std::int64_t count, std::int64_t position) {
    std::int64_t differ = 0;
    for (std::int64_t i = 0; i < count; ++i) differ |= map[i] ^ (position + i);
    return differ == 0;
  }

  Scratch<Gap> gaps_;
  std::vector<std::int64_t> unmapped_before_;  // of each part, and the total
  std::vector<std::int64_t> gap_count_;       // of each part
};

// Inputs reverse_index_map, grad_values → d_values, d_default_value.
class FillEmptyRowsGrad : public ReverseIndexMap {
 public:
  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    visit(Numbers{}, in[1].dtype, [&]<class T>(std::type_identity<T>) {
      T* values = out[0].as<T>();
      *out[1].as<T>() = ascending_ ? split_by_gaps(values) : pick_by_map(values);
    });
  }

 private:
  // Both write d_values and return d_default_value, a sum in T as in TensorFlow: 16-bit floats are rounded at every
  // step.
  template <class T>
  T split_by_gaps(T* values) const {
    const T* grad = in[1].as<T>();
    Scratch<T> unmapped(in[1].size() - in[0].size());
    T* rest = unmapped.data();
    parallel_stretches(
        [=](std::int64_t i, std::int64_t position, std::int64_t count) {
          std::copy_n(grad + position, count, values + i);
        },
        [=](std::int64_t position, std::int64_t k, std::int64_t count) {
          std::copy_n(grad + position, count, rest + k);
        });
    return std::accumulate(rest, rest + unmapped.size(), T{}, sum_of<T>);
  }

  template <class T>
  T pick_by_map(T* values) const {
    const std::int64_t* map = map_.data();
    const auto grad = vec<const T>(in[1]);
    parallel_ranges(map_.size(), kScanGrain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) values[i] = grad[map[i]];
    });
    T sum{};
    const std::uint8_t* mapped = mapped_.data();
    for (std::int64_t j = 0; j < grad.size; ++j)
      if (!mapped[j]) sum = sum_of(sum, grad[j]);
    return sum;
  }
};

// The transpose. Inputs reverse_index_map, dd_values, dd_default_value, grad_values (only its length is read).
class FillEmptyRowsGradGrad : public ReverseIndexMap {
 public:
  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    visit(Numbers{}, in[1].dtype, [&]<class T>(std::type_identity<T>) {
      const auto values = vec<const T>(in[1]);
      const auto result = vec<T>(out[0]);
      if (ascending_) return fill_stretches(values, result);
      if (shared_) return add_values(values, result);
      fill_unmapped(result);
      copy_values(values, result);
    });
  }

 private:
  template <class T>
  void fill_stretches(Vec<const T> values, Vec<T> result) const {
    const T default_value = *in[2].as<T>();
    parallel_stretches(
        [=](std::int64_t i, std::int64_t position, std::int64_t count) {
          std::copy_n(values.data + i, count, result.data + position);
        },
        [=](std::int64_t position, std::int64_t, std::int64_t count) {
          std::fill_n(result.data + position, count, default_value);
        });
  }

  template <class T>
  void fill_unmapped(Vec<T> result) const {
    const T default_value = *in[2].as<T>();
    parallel_ranges(result.size, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t j = begin; j < end; ++j)
        if (!mapped_[j]) result[j] = default_value;
    });
  }

  template <class T>
  void copy_values(Vec<const T> values, Vec<T> result) const {
    const std::int64_t* map = map_.data();
    parallel_ranges(values.size, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) result[map[i]] = values[i];
    });
  }

  // Copies the first value of a position, so that a single value keeps its bits; sums are rounded once.
  template <class T>
  void add_values(Vec<const T> values, Vec<T> result) {
    const std::int64_t* map = map_.data();
    auto sums = workspace<Accumulator<T>>(result.size);
    auto terms = workspace<std::uint8_t>(result.size);  // 0, 1 or 2 (more than one)
    fill_unmapped(result);                               // after all allocations
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
