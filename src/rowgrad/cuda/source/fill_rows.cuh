// {Sparse,Ragged}FillEmptyRows, their gradient, and the transpose of the gradient.
#pragma once
#include "coordinates.cuh"

namespace rowgrad {

struct FillCount {
  const int64_t* ids;
  int64_t step;
  int64_t size;
  int64_t rows;
  int64_t* counts;
  Checks* order;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Validates that row ids are in [0, rows). Counts per part where an id differs from the previous one, and raises
// `order` where ids decrease; for sorted ids the counts are of rows with entries.
DEVICE void fill_count(const FillCount& p) {
  const Part part = part_of(p.size);
  bool is_bad = false, falls = false;
  int64_t filled = 0;
  for (int64_t i = part.begin + threadIdx.x; i < part.end; i += blockDim.x) {
    const int64_t id = p.ids[i * p.step], previous = i == 0 ? -1 : p.ids[(i - 1) * p.step];
    is_bad |= !is_below(id, p.rows);
    falls |= id < previous;
    filled += id != previous;
  }
  if (falls) atomicOr(&p.order->raised, 1u);
  filled = sum_of_block(filled);
  if (threadIdx.x == 0) p.counts[blockIdx.x] = filled;
  if (!must_report(p.checks, is_bad)) return;
  int64_t i = 0;
  while (is_below(p.ids[i * p.step], p.rows)) ++i;
  report(p.fault, p.alarm, fault_row_not_in_shape, i, p.ids[i * p.step], p.rows);
}

struct FillEntries {
  const int64_t* ids;
  int64_t step;
  int64_t size;
  const int64_t* order;
  const int64_t* counts;
  const int64_t* indices;
  int64_t columns;
  const uint8_t* values;
  int64_t* to_indices;
  uint8_t* to_values;
  int64_t* map;
  const Checks* checks;
};

// Moves every entry up by the number of empty rows before it. `ids` are sorted; `order`, if not null, has the original
// position of each entry.
template <class U>
DEVICE void fill_entries(const FillEntries& p) {
  if (is_raised(p.checks)) return;
  const U* values = reinterpret_cast<const U*>(p.values);
  U* to_values = reinterpret_cast<U*>(p.to_values);
  const Part part = part_of(p.size);
  int64_t before = p.counts[blockIdx.x];  // rows with entries that began before this tile
  for (int64_t base = part.begin; base < part.end; base += blockDim.x) {
    const int64_t i = base + threadIdx.x;
    const bool is_in = i < part.end;
    const int64_t id = is_in ? p.ids[i * p.step] : 0;
    const uint32_t begins = is_in && (i == 0 || p.ids[(i - 1) * p.step] != id);
    uint32_t total;
    const int64_t filled = before + scan_block(begins, total) + begins;
    before += total;
    if (!is_in) continue;
    const int64_t from = p.order ? p.order[i] : i, to = i + (id + 1 - filled);
    for (int64_t d = 0; d < p.columns; ++d) p.to_indices[to * p.columns + d] = p.indices[from * p.columns + d];
    to_values[to] = values[from];
    p.map[from] = to;
  }
}

struct FillRows {
  const int64_t* ids;
  int64_t step;
  int64_t size;
  const int64_t* order;
  const int64_t* map;
  int64_t rows;
  int64_t columns;
  const uint8_t* default_value;
  int64_t* to_indices;
  uint8_t* to_values;
  uint8_t* empty;
  const Checks* checks;
};

// Returns how many ids are below `row`, known to be in [low, high].
DEVICE int64_t ids_below(const FillRows& p, int64_t row, int64_t low, int64_t high) {
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (p.ids[middle * p.step] < row)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// After `fill_entries`: flags empty rows and writes their entries. A block takes neighbouring rows, so that it searches
// the whole list only for the first and the last of them.
template <class U>
DEVICE void fill_rows(const FillRows& p) {
  if (is_raised(p.checks)) return;
  __shared__ int64_t ends[2];
  const U default_value = *reinterpret_cast<const U*>(p.default_value);
  U* to_values = reinterpret_cast<U*>(p.to_values);
  for (int64_t first = int64_t(blockIdx.x) * blockDim.x; first < p.rows; first += int64_t(gridDim.x) * blockDim.x) {
    if (threadIdx.x < 2) ends[threadIdx.x] = ids_below(p, first + threadIdx.x * int64_t(blockDim.x), 0, p.size);
    __syncthreads();
    const int64_t low = ends[0], high = ends[1], row = first + threadIdx.x;
    __syncthreads();
    if (row >= p.rows) continue;
    const int64_t through = ids_below(p, row + 1, low, high), last = through - 1;  // entries up to this row
    const int64_t last_row = last < 0 ? -1 : p.ids[last * p.step];
    p.empty[row] = last_row != row;
    if (last_row == row) continue;
    const int64_t last_place = last < 0 ? -1 : p.map[p.order ? p.order[last] : last], to = last_place + (row - last_row);
    p.to_indices[to * p.columns] = row;
    for (int64_t d = 1; d < p.columns; ++d) p.to_indices[to * p.columns + d] = 0;
    to_values[to] = default_value;
  }
}

struct NamePositions {
  const int64_t* map;
  int64_t size;
  int64_t positions;
  uint32_t* named;
  Checks* twice;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Validates that every position in the map is in [0, positions) and flags it; raises `twice` where one occurs more than
// once.
DEVICE void name_positions(const NamePositions& p) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  bool is_bad = false, is_twice = false;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += stride) {
    const int64_t position = p.map[i];
    if (is_below(position, p.positions))
      is_twice |= atomicExch(&p.named[position], 1u) != 0;
    else
      is_bad = true;
  }
  if (is_twice) atomicOr(&p.twice->raised, 1u);
  if (!must_report(p.checks, is_bad)) return;
  int64_t i = 0;
  while (is_below(p.map[i], p.positions)) ++i;
  report(p.fault, p.alarm, fault_reverse_index_not_in_grad, i, p.map[i], p.positions);
}

struct CountUnnamed {
  const uint32_t* named;
  int64_t positions;
  int64_t* counts;
};

DEVICE void count_unnamed(const CountUnnamed& p) {
  const Part part = part_of(p.positions);
  int64_t unnamed = 0;
  for (int64_t i = part.begin + threadIdx.x; i < part.end; i += blockDim.x) unnamed += p.named[i] == 0;
  unnamed = sum_of_block(unnamed);
  if (threadIdx.x == 0) p.counts[blockIdx.x] = unnamed;
}

struct SplitGrad {
  const int64_t* map;
  int64_t size;
  const uint8_t* grad;
  const uint32_t* named;
  int64_t positions;
  const int64_t* counts;
  uint8_t* values;
  uint8_t* rest;
  const Checks* checks;
};

// Uses the grid of `count_unnamed`. Entries copy their values; values of unmapped positions go to `rest`, in order.
template <class U>
DEVICE void split_grad(const SplitGrad& p) {
  if (is_raised(p.checks)) return;
  const U* grad = reinterpret_cast<const U*>(p.grad);
  U *values = reinterpret_cast<U*>(p.values), *rest = reinterpret_cast<U*>(p.rest);
  const Part entries = part_of(p.size), part = part_of(p.positions);
  for (int64_t i = entries.begin + threadIdx.x; i < entries.end; i += blockDim.x) values[i] = grad[p.map[i]];
  int64_t before = p.counts[blockIdx.x];
  for (int64_t base = part.begin; base < part.end; base += blockDim.x) {
    const int64_t i = base + threadIdx.x;
    const uint32_t is_rest = i < part.end && p.named[i] == 0;
    uint32_t total;
    const int64_t to = before + scan_block(is_rest, total);
    if (is_rest) rest[to] = grad[i];
    before += total;
  }
}

struct AddRest {
  const uint8_t* rest;
  const int64_t* size;
  uint8_t* sum;
  const Checks* checks;
};

// One block. The order of the sum is fixed and each step is rounded to T: one thread adds, while the other warps load
// the next tile.
template <class T>
DEVICE void add_rest(const AddRest& p) {
  if (is_raised(p.checks)) return;
  constexpr int kTile = 1024;
  __shared__ T tiles[2][kTile];
  const T* rest = reinterpret_cast<const T*>(p.rest);
  const int64_t size = *p.size;
  for (int64_t i = threadIdx.x; i < kTile && i < size; i += blockDim.x) tiles[0][i] = rest[i];
  __syncthreads();
  T sum = T();
  int now = 0;
  for (int64_t base = 0; base < size; base += kTile, now ^= 1) {
    const int64_t after = base + kTile;
    if (threadIdx.x >= 32)
      for (int64_t i = threadIdx.x - 32; i < kTile && after + i < size; i += blockDim.x - 32)
        tiles[now ^ 1][i] = rest[after + i];
    if (threadIdx.x == 0) {
      const int count = size - base < kTile ? int(size - base) : kTile;
#pragma unroll 8
      for (int i = 0; i < count; ++i) sum = sum_of(sum, tiles[now][i]);
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *reinterpret_cast<T*>(p.sum) = sum;
}

struct AddRestIntegers {
  const uint8_t* rest;
  const int64_t* size;
  uint8_t* sum;
  const Checks* checks;
};

// For integers, which wrap and may be added in any order.
template <class T>
DEVICE void add_rest_integers(const AddRestIntegers& p) {
  if (is_raised(p.checks)) return;
  const T* rest = reinterpret_cast<const T*>(p.rest);
  const int64_t size = *p.size;
  uint64_t sum = 0;
  for (int64_t i = threadIdx.x; i < size; i += blockDim.x) sum += uint64_t(rest[i]);
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *reinterpret_cast<T*>(p.sum) = T(sum);
}

struct FillListedRows {
  const int64_t* map;
  int64_t size;
  const uint8_t* values;
  const uint8_t* default_value;
  const uint32_t* named;
  int64_t positions;
  uint8_t* to;
  const Checks* twice;
  const Checks* checks;
};

// Writes the default to unmapped positions and the value to all others, except for maps with a repeated position, which
// `add_named` handles.
template <class U>
DEVICE void fill_listed_rows(const FillListedRows& p) {
  if (is_raised(p.checks)) return;
  const U default_value = *reinterpret_cast<const U*>(p.default_value);
  const U* values = reinterpret_cast<const U*>(p.values);
  U* to = reinterpret_cast<U*>(p.to);
  const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = first; i < p.positions; i += stride)
    if (p.named[i] == 0) to[i] = default_value;
  if (is_raised(p.twice)) return;
  for (int64_t i = first; i < p.size; i += stride) to[p.map[i]] = values[i];
}

struct AddNamed {
  const int64_t* map;
  int64_t size;
  const uint8_t* values;
  uint32_t* named;
  uint8_t* sums;
  uint8_t* to;
  const Checks* twice;
  const Checks* checks;
};

// One block, which processes a map with repeated positions sequentially; FillEmptyRows never returns such maps. In
// every tile, the first thread of those with the same position adds for all of them, in order. A position's first value
// is copied; sums are in A and rounded once. `sums` is `to` itself if A is T.
template <class T>
DEVICE void add_named(const AddNamed& p) {
  if (is_raised(p.checks) || !is_raised(p.twice)) return;
  typedef Accumulator<T> A;
  constexpr uint32_t kNamed = 1, kOne = 2, kMore = 3;
  __shared__ int64_t places[256];
  const T* values = reinterpret_cast<const T*>(p.values);
  T* to = reinterpret_cast<T*>(p.to);
  A* sums = reinterpret_cast<A*>(p.sums);
  const int mine = threadIdx.x;
  for (int64_t base = 0; base < p.size; base += 256) {
    const int count = p.size - base < 256 ? int(p.size - base) : 256;
    if (mine < count) places[mine] = p.map[base + mine];
    __syncthreads();
    bool is_first = mine < count;
    const int64_t place = is_first ? places[mine] : 0;
    for (int i = 0; is_first && i < mine; ++i) is_first = places[i] != place;
    if (is_first) {
      const T own = values[base + mine];
      uint32_t state = p.named[place];
      A sum = state == kNamed ? load(own) : plus(sums[place], load(own));
      T result = own;
      state = state == kNamed ? kOne : kMore;
      for (int i = mine + 1; i < count; ++i)
        if (places[i] == place) {
          sum = plus(sum, load(values[base + i]));
          state = kMore;
        }
      if (state == kMore) result = store<T>(sum);
      sums[place] = sum;
      to[place] = result;
      p.named[place] = state;
    }
    __syncthreads();
  }
}

}  // namespace rowgrad
