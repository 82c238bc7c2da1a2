// Optimizer steps that row_steps.cuh does not cover: wide rows, and rows without a gradient.
#pragma once
#include "update_rules.cuh"

namespace rowgrad {

struct CheckRowIds {
  const void* ids;
  int64_t wide;
  int64_t size;
  const int64_t* count;
  int64_t bound;
  int64_t code;
  int64_t* found;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

DEVICE bool rises_at(const Ids& ids, int64_t i, int64_t bound) {
  return is_below(ids[i], bound) && (i == 0 || ids[i - 1] < ids[i]);
}

// Ids in [0, bound), strictly ascending. If `padded`, they may be followed by any number of `bound`s.
struct RisingIds {
  Ids ids;
  int64_t size, bound;
  bool padded;

  DEVICE bool is_padding(int64_t i) const { return padded && ids[i] == bound; }
  DEVICE bool holds_at(int64_t i) const {
    if (is_padding(i)) return i + 1 == size || ids[i + 1] == bound;
    return rises_at(ids, i, bound);
  }
  // Whether the ids before the padding end here.
  DEVICE bool ends_at(int64_t i) const { return is_padding(i) ? i == 0 : i + 1 == size || is_padding(i + 1); }

  // Whether the ids at first, first + stride, … are good. Writes the number of ids before the padding, if they end there.
  DEVICE bool hold(int64_t first, int64_t stride, int64_t* found) const {
    bool good = size >= 0;
    for (int64_t i = first; i < size; i += stride) {
      good &= holds_at(i);
      if (found && ends_at(i)) *found = is_padding(i) ? 0 : i + 1;
    }
    return good;
  }
  // The position of the first bad id that is to be reported; `size` if all are valid. Neither a gradient that failed
  // (size -1) nor its mark in padded ids (poison.h) is reported again.
  DEVICE int64_t first_bad() const {
    const int64_t mark = ids.wide ? int64_t(1ull << 63) : -(int64_t(1) << 31);
    if (padded && size > 0 && ids[0] == mark) return size;
    int64_t i = 0;
    while (i < size && holds_at(i)) ++i;
    return size < 0 ? size : i;
  }
};

// Validates ids; reports the first bad one as `code`. If the host does not know their number, it is in `count`; it is -1
// if the gradient failed, which was reported then. With `found`, ids are padded: their number is written there.
DEVICE void check_row_ids(const CheckRowIds& p) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x, size = p.count ? *p.count : p.size;
  const RisingIds list{{p.ids, p.wide != 0}, size, p.bound, p.found != nullptr};
  const bool bad = !list.hold(int64_t(blockIdx.x) * blockDim.x + threadIdx.x, stride, p.found);
  if (!must_report(p.checks, bad)) return;
  const int64_t i = list.first_bad();
  if (i < size) report(p.fault, p.alarm, p.code, i, list.ids[i], p.bound);
}

struct UpdateRows {
  UPDATE_FIELDS;
  const void* grad;
  const void* ids;
  int64_t wide;
  int64_t size;
  const int64_t* count;
  const Checks* checks;
};

// Updates rows ids[0], …, ids[size - 1], or without ids rows 0, …, size - 1, with row k of `grad` as the gradient of
// the k-th. If the host does not know the number of rows, it is in `count`. One row at a time: for rows that are wider
// than a group.
template <class T, class Rule, int W>
DEVICE void update_rows(const UpdateRows& p) {
  typedef Accumulator<T> A;
  if (p.checks && is_raised(p.checks)) return;
  const LaneGroup group(p.lanes);
  A* staged = nullptr;
  if constexpr (Rule::per_row) {
    SHARED;
    staged = reinterpret_cast<A*>(shared_memory) + (int(threadIdx.x) - group.lane) * W;
  }
  const RowUpdate<T> u = row_update_of<T>(p);
  const Ids ids{p.ids, p.wide != 0};
  const int64_t groups = blockDim.x / group.lanes, stride = gridDim.x * groups, size = p.count ? *p.count : p.size;
  for (int64_t k = blockIdx.x * groups + threadIdx.x / group.lanes; k < size; k += stride) {
    const T* from = static_cast<const T*>(p.grad) + k * p.cols;
    update_row<Rule, W>(
        u, group, p.ids ? ids[k] : k,
        [from](int64_t c, A(&g)[W]) {
          const Pack<T, W> pack = load_pack<W>(from + c);
          for (int j = 0; j < W; ++j) g[j] = load(pack.at[j]);
        },
        staged);
  }
}

struct MarkRows {
  uint32_t* marks;
  const void* ids;
  int64_t wide;
  int64_t size;
  const int64_t* count;
  const Checks* checks;
};

// Sets a bit for every listed row. If the host does not know their number, it is in `count`.
DEVICE void mark_rows(const MarkRows& p) {
  if (is_raised(p.checks)) return;
  const Ids ids{p.ids, p.wide != 0};
  const int64_t stride = int64_t(gridDim.x) * blockDim.x, size = p.count ? *p.count : p.size;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < size; i += stride)
    atomicOr(&p.marks[ids[i] >> 5], 1u << (ids[i] & 31));
}

struct FadeRows {
  UPDATE_FIELDS;
  const uint32_t* marks;
  int64_t rows;
  const Checks* checks;
};

// Updates rows that are not marked and have no gradient: moments decay and still move the weights.
template <class T, class Rule, int W>
DEVICE void fade_rows(const FadeRows& p) {
  typedef Accumulator<T> A;
  if (is_raised(p.checks)) return;
  const LaneGroup group(p.lanes);
  const RowUpdate<T> u = row_update_of<T>(p);
  const int64_t groups = blockDim.x / group.lanes, stride = gridDim.x * groups;
  const A none[W] = {};
  for (int64_t row = blockIdx.x * groups + threadIdx.x / group.lanes; row < p.rows; row += stride) {
    if (p.marks[row >> 5] >> (row & 31) & 1u) continue;
    for (int64_t c = int64_t(group.lane) * W; c < u.cols; c += int64_t(group.lanes) * W)
      update_columns<Rule, false, W>(u, row, c, none, zero_of<A>());
  }
}

}  // namespace rowgrad
