// Sorted segments: their bounds, and the sums of their rows in the order of SegmentSum.
#pragma once
#include "packs.cuh"

namespace rowgrad {

// If the segment of id i begins or ends at i, writes that to its pair of `bounds`. Pairs of segments without ids stay
// zero.
DEVICE void mark_bounds(const Ids& segments, int64_t size, int64_t i, int64_t* bounds) {
  const int64_t segment = segments[i];
  if (i == 0 || segments[i - 1] != segment) bounds[2 * segment] = i;
  if (i == size - 1 || segments[i + 1] != segment) bounds[2 * segment + 1] = i + 1;
}

struct CheckSegments {
  const void* segments;
  int64_t wide;
  int64_t size;
  int64_t rows;
  int64_t* bounds;
  const Checks* before;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Validates that segments are sorted and in [0, rows): each run is compared with the next one, then with the output.
// Writes their bounds if `bounds` is not null. A fault of the checks `before` (may be null) is raised here too.
DEVICE void check_segments(const CheckSegments& p) {
  const Ids segments{p.segments, p.wide != 0};
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  const bool was_raised = p.before && is_raised(p.before);
  bool bad = was_raised;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += stride) {
    const bool in_range = is_below(segments[i], p.rows);
    bad |= !in_range || (i > 0 && segments[i] < segments[i - 1]);
    if (in_range && p.bounds) mark_bounds(segments, p.size, i, p.bounds);
  }
  if (!must_report(p.checks, bad) || was_raised) return;
  for (int64_t begin = 0, end; begin < p.size; begin = end) {
    const int64_t id = segments[begin];
    for (end = begin + 1; end < p.size && segments[end] == id;) ++end;
    if (end < p.size && segments[end] < id)
      return report(p.fault, p.alarm, fault_segments_not_increasing, end, segments[end], id);
    if (!is_below(id, p.rows)) return report(p.fault, p.alarm, fault_segment_not_in_output, begin, id, p.rows);
  }
}

// Neighbouring columns in the accumulator's type.
template <class A, int V>
struct Columns {
  A at[V];
};

// Sums rows 0 to n - 1, returned by `row(j)`, from +0 with `add`. With one lane: left to right. With four: lane k sums
// rows k, k + 4, …; then ((0 + 1) + 2) + 3, then the last n mod 4 rows. Loads four rows at a time.
template <int lanes, int V, class A, class Row, class Add>
DEVICE Columns<A, V> sum_in_lanes(int64_t n, const Row& row, const Add& add) {
  Columns<A, V> sum[lanes];
  for (int k = 0; k < lanes; ++k)
    for (int v = 0; v < V; ++v) sum[k].at[v] = zero_of<A>();
  auto put = [&](Columns<A, V>& to, const Columns<A, V>& x) {
    for (int v = 0; v < V; ++v) to.at[v] = add(to.at[v], x.at[v]);
  };
  const int64_t whole = n / 4 * 4;
  for (int64_t j = 0; j < whole; j += 4) {
    const Columns<A, V> rows[4] = {row(j), row(j + 1), row(j + 2), row(j + 3)};
    for (int k = 0; k < 4; ++k) put(sum[k % lanes], rows[k]);
  }
  for (int k = 1; k < lanes; ++k) put(sum[0], sum[k]);
  for (int64_t j = whole; j < n; ++j) put(sum[0], row(j));
  return sum[0];
}

// Integers wrap, so the order of their sums does not matter: one lane is enough.
template <class T>
struct LanesOf {
  static constexpr bool is_integer = Same<T, uint8_t>::value || Same<T, uint16_t>::value || Same<T, uint32_t>::value ||
                                     Same<T, uint64_t>::value;
  static constexpr int value = is_integer ? 1 : 4;
};

// Sums a segment in the order of SegmentSum, for the V columns from column c on; n is at least 2.
template <class T, int V, class A, class Row, class Add>
DEVICE Columns<A, V> sum_of_segment(int64_t n, int64_t c, int64_t cols, const Row& row, const Add& add) {
  constexpr int64_t packet = 32 / int64_t(sizeof(A));
  if (n >= 16 && c < cols / packet * packet) return sum_in_lanes<LanesOf<T>::value, V, A>(n, row, add);
  return sum_in_lanes<1, V, A>(n, row, add);
}

// Whether a segment is long and left to blocks of its own, which load ahead together. `found` has the number of such
// segments, then their list. One of the threads that share a segment adds it (`enters`).
DEVICE bool defer_if_long(int64_t n, int64_t longest, int64_t segment, bool enters, uint64_t* found) {
  if (n <= longest) return false;
  if (enters) found[1 + atomicAdd(found, uint64_t(1))] = uint64_t(segment);
  return true;
}

// The columns of a long segment per block, and the bytes of shared memory for its rows, followed by four sums per
// column.
constexpr int64_t kLongChunk = 64, kTileBytes = 32 * 1024;

// Calls fn(segment, first column) for the column chunks of long segments; the grid's blocks share them.
template <class Fn>
DEVICE void each_long_segment(const uint64_t* found, int64_t cols, const Fn& fn) {
  const int64_t chunks = (cols + kLongChunk - 1) / kLongChunk, items = int64_t(found[0]) * chunks;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t k = item / chunks;
    fn(int64_t(found[1 + k]), (item - k * chunks) * kLongChunk);
  }
}

// Sums a chunk of columns of a long segment in the order of SegmentSum. All threads of the block load tiles of `row(j,
// c)` into shared memory; one thread per lane of a column adds them. Calls `finish(c, sum)` for every column.
template <class A, class Row, class Add, class Finish>
DEVICE void sum_long_segment(int64_t n, int64_t cols, int64_t first, const Row& row, const Add& add,
                             const Finish& finish) {
  SHARED;
  A* tile = reinterpret_cast<A*>(shared_memory);
  A* sums = reinterpret_cast<A*>(shared_memory + kTileBytes);
  constexpr int64_t packet = 32 / int64_t(sizeof(A));
  const int width = int(cols - first < kLongChunk ? cols - first : kLongChunk);
  const int tile_rows = int(kTileBytes / int64_t(sizeof(A))) / width / 4 * 4;
  const int lane = threadIdx.x / width, column = threadIdx.x % width;
  const int64_t c = first + column;
  const int lanes = c < cols / packet * packet ? 4 : 1;  // n is at least 16
  const int64_t in_lanes = n / lanes * lanes;
  A sum = zero_of<A>();
  for (int64_t begin = 0; begin < n; begin += tile_rows) {
    const int rows = int(n - begin < tile_rows ? n - begin : tile_rows);
#pragma unroll 8
    for (int i = threadIdx.x; i < rows * width; i += blockDim.x) tile[i] = row(begin + i / width, first + i % width);
    __syncthreads();
    const int end = in_lanes - begin < rows ? int(in_lanes - begin) : rows;
    if (lane < lanes) {
#pragma unroll 8
      for (int j = lane; j < end; j += lanes) sum = add(sum, tile[j * width + column]);
    }
    __syncthreads();
  }
  if (lane < lanes) sums[lane * kLongChunk + column] = sum;
  __syncthreads();
  if (lane == 0) {
    for (int k = 1; k < lanes; ++k) sum = add(sum, sums[k * kLongChunk + column]);
    for (int64_t j = in_lanes; j < n; ++j) sum = add(sum, row(j, c));
    finish(c, sum);
  }
  __syncthreads();  // sums have been read
}

struct SumSegments {
  const void* data;
  int64_t cols;
  const int64_t* bounds;
  int64_t rows;
  int64_t longest;
  uint64_t* found;
  int64_t log_lanes;
  void* out;
  const Checks* checks;
};

// Sums the rows of every segment, except for long segments; 16-bit floats are rounded at every addition. 2^log_lanes
// threads share a segment, V columns each.
template <class T, int V>
DEVICE void sum_segments(const SumSegments& p) {
  if (is_raised(p.checks)) return;
  typedef Accumulator<T> A;
  const T* data = static_cast<const T*>(p.data);
  T* out = static_cast<T*>(p.out);
  const int64_t lanes = int64_t(1) << p.log_lanes, thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x >> p.log_lanes;
  auto add = [](A a, A b) { return load(store<T>(plus(a, b))); };
  for (int64_t s = thread >> p.log_lanes; s < p.rows; s += stride) {
    const int64_t begin = p.bounds[2 * s], n = p.bounds[2 * s + 1] - begin;
    if (defer_if_long(n, p.longest, s, (thread & (lanes - 1)) == 0, p.found)) continue;
    for (int64_t c = (thread & (lanes - 1)) * V; c < p.cols; c += lanes * V) {
      const T* from = data + begin * p.cols + c;
      Pack<T, V> result;
      if (n == 1) {
        result = fetch<T, V>(from);
      } else {
        auto row = [&](int64_t j) {
          const Pack<T, V> x = fetch<T, V>(from + j * p.cols);
          Columns<A, V> wide;
          for (int v = 0; v < V; ++v) wide.at[v] = load(x.at[v]);
          return wide;
        };
        const Columns<A, V> sum = sum_of_segment<T, V, A>(n, c, p.cols, row, add);
        for (int v = 0; v < V; ++v) result.at[v] = store<T>(sum.at[v]);
      }
      put_pack<V>(out + s * p.cols + c, result);
    }
  }
}

struct SumLongSegments {
  const void* data;
  int64_t cols;
  const int64_t* bounds;
  const uint64_t* found;
  void* out;
  const Checks* checks;
};

// Sums the segments that `sum_segments` left.
template <class T>
DEVICE void sum_long_segments(const SumLongSegments& p) {
  if (is_raised(p.checks)) return;
  typedef Accumulator<T> A;
  const T* data = static_cast<const T*>(p.data);
  T* out = static_cast<T*>(p.out);
  each_long_segment(p.found, p.cols, [&](int64_t s, int64_t first) {
    const int64_t begin = p.bounds[2 * s], n = p.bounds[2 * s + 1] - begin;
    sum_long_segment<A>(
        n, p.cols, first, [&](int64_t j, int64_t c) { return load(data[(begin + j) * p.cols + c]); },
        [](A a, A b) { return load(store<T>(plus(a, b))); },
        [&](int64_t c, A sum) { out[s * p.cols + c] = store<T>(sum); });
  });
}

}  // namespace rowgrad
