// Whole rows: inner products, positions in a list, and padding.
#pragma once
#include "device.cuh"

namespace rowgrad {

// Returns ⟨a, b⟩, computed by eight neighbouring threads: thread `lane` adds columns lane, lane + 8, … to +0, and the
// eight sums are added as a tree. All threads of the warp must call this, those without a row with no columns. Every
// lane gets the result.
template <class T>
DEVICE Accumulator<T> inner_product(const T* a, const T* b, int64_t cols, int lane) {
  typedef Accumulator<T> A;
  A sum = A(0);
#pragma unroll 4
  for (int64_t c = lane; c < cols; c += 8) sum = plus(sum, times(load(a[c]), load(b[c])));
  sum = plus(sum, __shfl_xor_sync(0xffffffffu, sum, 4));
  sum = plus(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
  return plus(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
}

struct CheckPairs {
  const void* indices;
  int64_t wide_indices;
  int64_t data_rows;
  const void* segments;
  int64_t wide_segments;
  int64_t grad_rows;
  int64_t size;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Validates two lists of ids pair by pair.
DEVICE void check_pairs(const CheckPairs& p) {
  const Ids indices{p.indices, p.wide_indices != 0}, segments{p.segments, p.wide_segments != 0};
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  bool bad = false;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += stride)
    bad |= !is_below(indices[i], p.data_rows) || !is_below(segments[i], p.grad_rows);
  if (!must_report(p.checks, bad)) return;
  int64_t i = 0;
  while (is_below(indices[i], p.data_rows) && is_below(segments[i], p.grad_rows)) ++i;
  if (!is_below(indices[i], p.data_rows))
    report(p.fault, p.alarm, fault_index_not_in_params, i, indices[i], p.data_rows);
  else
    report(p.fault, p.alarm, fault_segment_not_in_grad, i, segments[i], p.grad_rows);
}

struct RowDots {
  const void* x;
  const void* x_ids;
  int64_t x_wide;
  const void* y;
  const void* y_ids;
  int64_t y_wide;
  int64_t size;
  int64_t cols;
  void* dots;
  const Checks* checks;
};

// ⟨x[x_ids[i]], y[y_ids[i]]⟩ for every i; without ids (and so without checks) row i is used. A warp takes four rows.
template <class T>
DEVICE void row_dots(const RowDots& p) {
  if (p.checks && is_raised(p.checks)) return;
  const Ids x_ids{p.x_ids, p.x_wide != 0}, y_ids{p.y_ids, p.y_wide != 0};
  const T *x = static_cast<const T*>(p.x), *y = static_cast<const T*>(p.y);
  Accumulator<T>* dots = static_cast<Accumulator<T>*>(p.dots);
  const int64_t warp = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int64_t warps = int64_t(gridDim.x) * blockDim.x / 32;
  const int lane = threadIdx.x % 8, row_of_warp = threadIdx.x % 32 / 8;
  for (int64_t first = warp * 4; first < p.size; first += warps * 4) {
    const int64_t i = first + row_of_warp;
    const bool has_row = i < p.size;
    const int64_t a = !has_row ? 0 : p.x_ids ? x_ids[i] : i, b = !has_row ? 0 : p.y_ids ? y_ids[i] : i;
    const Accumulator<T> dot = inner_product(x + a * p.cols, y + b * p.cols, has_row ? p.cols : 0, lane);
    if (has_row && lane == 0) dots[i] = dot;
  }
}

// Returns the first position in the list whose id is not below this one.
DEVICE int64_t place_of(const Ids& list, int64_t size, int64_t id) {
  int64_t low = 0, high = size;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (list[middle] < id)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

struct RowPositions {
  const void* list;
  int64_t wide_list;
  int64_t listed;
  const void* ids;
  int64_t wide_ids;
  int64_t size;
  int64_t* positions;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Writes the position of each id in the list; a missing id is a fault.
DEVICE void row_positions(const RowPositions& p) {
  const Ids list{p.list, p.wide_list != 0}, ids{p.ids, p.wide_ids != 0};
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  auto is_at = [&](int64_t place, int64_t id) { return place < p.listed && list[place] == id; };
  bool bad = false;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += stride) {
    const int64_t id = ids[i], place = place_of(list, p.listed, id);
    bad |= !is_at(place, id);
    p.positions[i] = place;
  }
  if (!must_report(p.checks, bad)) return;
  int64_t i = 0;
  while (is_at(place_of(list, p.listed, ids[i]), ids[i])) ++i;
  report(p.fault, p.alarm, fault_id_not_listed, i, ids[i], p.listed);
}

struct PadRows {
  void* rows;
  void* ids;
  int64_t wide_ids;
  const int64_t* total;
  int64_t size;
  int64_t cols;
  int64_t fill_id;
  Fault* fault;
  int64_t* alarm;
};

// Writes zeros and the fill id after the last unique row. U is as wide as an element.
template <class U>
DEVICE void pad_rows(const PadRows& p) {
  const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, stride = int64_t(gridDim.x) * blockDim.x;
  const int64_t total = *p.total;
  if (first == 0 && total > p.size) report(p.fault, p.alarm, fault_rows_exceed_size, -1, total, p.size);
  U* rows = static_cast<U*>(p.rows);
  for (int64_t i = total * p.cols + first; i < p.size * p.cols; i += stride) rows[i] = U(0);
  for (int64_t i = total + first; i < p.size; i += stride) {
    if (p.wide_ids)
      static_cast<int64_t*>(p.ids)[i] = p.fill_id;
    else
      static_cast<int32_t*>(p.ids)[i] = int32_t(p.fill_id);
  }
}

struct PadRowGradient {
  void* values;
  int64_t units;
  int64_t* ids;
  const int64_t* total;
  int64_t* count;
  int64_t size;
};

// Repeats the id of the last of `total` rows, or 0, up to `size` rows, whose values are zeros: added to it, they change
// nothing. A row has `units` U. Writes the number to `count`.
template <class U>
DEVICE void pad_row_gradient(const PadRowGradient& p) {
  const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, stride = int64_t(gridDim.x) * blockDim.x;
  const int64_t total = *p.total;
  const int64_t last = total > 0 ? p.ids[total - 1] : 0;
  if (first == 0) *p.count = total;
  U* values = static_cast<U*>(p.values);
  for (int64_t i = total * p.units + first; i < p.size * p.units; i += stride) values[i] = U();
  for (int64_t i = total + first; i < p.size; i += stride) p.ids[i] = last;
}

}  // namespace rowgrad
