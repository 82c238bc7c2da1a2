// Gradient rows added up by the row of the table they belong to.
//
// The entries of a batch stand sorted by row. A row's entries are cut into runs of 64 (of all its entries, in sequential
// order); a run is added up left to right from +0. A chunk of 32 entries is one worker's: it adds up the runs that begin
// in the chunk, also past its end. A worker is a group of lanes, side by side over the columns.
//
// Where a row has several runs, their sums are added up by the same law, 64 at a time, until one is left. Workers leave
// sums of runs in memory and count themselves in; whoever completes 64 of them, or the row's last, adds those up. So it is
// open who does it, but not in which order.
#pragma once
#include "packs.cuh"
#include "sorting.cuh"

namespace rowgrad {

constexpr int kRunShift = 6;  // runs of 64
constexpr int kAtOnce = 8;    // rows in flight

struct SumRows {
  const void* grad;
  void* out;
  int64_t columns;
  int64_t lanes;
  const uint32_t* ids;
  const uint32_t* segments;
  const void* scales;
  const void* divisors;
  const uint32_t* heads;
  const uint32_t* firsts;
  const uint32_t* begins;
  int64_t size;
  int64_t run_shift;
  int64_t unique;
  void* partials;
  uint64_t* arrivals;
  const Checks* checks;
};

// How entries become contributions: they are multiplied by their scale, divided before that, and everything is rounded to
// T, products and sums.
constexpr int kScale = 1, kDivide = 2, kRound = 4;

// The sum of one of a row's several runs, which was left in memory.
struct Left {
  int row_begin, run;
  uint32_t row;
  bool is_last;
};

// One lane's place in the sums of a worker.
template <class T, int W, int MODE>
struct Worker {
  typedef Accumulator<T> A;
  const SumRows& p;
  unsigned lane, mask;
  int64_t column, tile, tiles;

  DEVICE void put(int64_t row, const A (&sum)[W]) const {
    if (column >= p.columns) return;
    Pack<T, W> packed;
#pragma unroll
    for (int w = 0; w < W; ++w) packed.at[w] = store<T>(sum[w]);
    *reinterpret_cast<Pack<T, W>*>(static_cast<T*>(p.out) + row * p.columns + column) = packed;
  }

  // Where the sum of a run is left: 64 entries have at most one first run of a row of several runs, and one of the others.
  DEVICE int64_t slot(int row_begin, int run) const {
    return int64_t((row_begin + (run << kRunShift)) >> 6) * 2 + (run != 0);
  }

  DEVICE A* part(int row_begin, int run) const {
    return static_cast<A*>(p.partials) + slot(row_begin, run) * p.columns + column;
  }

  DEVICE void leave(const Left& left, const A (&sum)[W]) const {
    if (column < p.columns) put_shared_sum<A, W>(part(left.row_begin, left.run), sum);
  }

  // A sum was left. If it was the last of 64, or of the row, to be so, they are added up, and so on.
  DEVICE void arrive(const Left& left) const {
    int run = left.run;
    bool is_last = left.is_last;
    for (int level = 0;; ++level) {
      const int group = run >> 6, child = run & 63, shift = 6 * level;
      __threadfence();
      __syncwarp(mask);
      unsigned arrived = 0;
      if (lane == 0) {
        // Seven bits count to 64, whoever is last counting for those that are not there; seven more say how many are.
        const unsigned told = is_last ? (unsigned(child + 1) << 7) + unsigned(64 - child) : 1u;
        uint64_t* counter = &p.arrivals[slot(left.row_begin, (group << 6) << shift) * tiles + tile];
        const uint64_t before = atomicAdd(reinterpret_cast<unsigned long long*>(counter),
                                          (unsigned long long)(told) << (14 * level));
        arrived = (unsigned(before >> (14 * level)) + told) & 0x3fffu;
      }
      arrived = __shfl_sync(mask, arrived, 0, int(p.lanes));
      if ((arrived & 127u) != 64u) return;
      __threadfence();
      const int children = (arrived >> 7) ? int(arrived >> 7) : 64;
      is_last = (arrived >> 7) != 0;
      alignas(16) A sum[W];
#pragma unroll
      for (int w = 0; w < W; ++w) sum[w] = A();
#pragma unroll 1
      for (int first = 0; first < children; first += kAtOnce) {
        alignas(16) A parts[kAtOnce][W];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
          if (first + j < children && column < p.columns)
            get_shared_sum<A, W>(parts[j], part(left.row_begin, ((group << 6) + first + j) << shift));
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
#pragma unroll
          for (int w = 0; w < W; ++w)
            if (first + j < children) {
              sum[w] = plus(sum[w], parts[j][w]);
              if constexpr ((MODE & kRound) != 0) sum[w] = load<T>(store<T>(sum[w]));
            }
      }
      run = group;
      if (group == 0 && is_last) return put(left.row, sum);
      if (column < p.columns) put_shared_sum<A, W>(part(left.row_begin, group << 6 << shift), sum);
    }
  }
};

template <class T, int W, int MODE>
DEVICE void sum_rows(const SumRows& p) {
  typedef Accumulator<T> A;
  constexpr int kParts = kAtOnce / 4;
  const unsigned lanes = unsigned(p.lanes), lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
  const unsigned mask = lanes == 32 ? kAllLanes : ((1u << lanes) - 1u) << (lane_of_thread() / lanes * lanes);
  const int64_t number = int64_t(blockIdx.x) * (blockDim.x / lanes) + group;
  if (number * kChunk >= p.size) return;
  // Entries are fewer than 2^30.
  const int chunk = int(number), begin = chunk * kChunk, size = int(p.size), shift = int(p.run_shift);
  const int run_length = 1 << shift, end = begin + kChunk < size ? begin + kChunk : size;
  const Worker<T, W, MODE> worker{p, lane, mask, (int64_t(blockIdx.y) * lanes + lane) * W, blockIdx.y, gridDim.y};
  const bool is_column = worker.column < p.columns;
  const T* grad = static_cast<const T*>(p.grad) + worker.column;
  const A* scales = static_cast<const A*>(p.scales);
  const A* divisors = static_cast<const A*>(p.divisors);

  uint32_t row_number = p.firsts[chunk];
  int row_begin = int(p.begins[chunk]);
  const unsigned heads = p.heads[chunk];
  const uint64_t beyond = uint64_t(p.heads[chunk + 1]) | uint64_t(p.heads[chunk + 2]) << 32;
  if (is_raised(p.checks)) return;
  // The first run that begins here.
  int run = (begin - row_begin + run_length - 1) >> shift;
  int at = row_begin + (run << shift);
  const int first_head = heads ? begin + __ffs(int(heads)) - 1 : end;
  if (!(heads & 1u) && first_head <= at) {  // a row begins before that, or there
    at = first_head;
    row_begin = at;
    run = 0;
    ++row_number;
  }
  if (at >= end) return;
  // Where the last run that begins here ends: at the next row, or after `run_length`.
  const int last_head = heads ? begin + 31 - __clz(int(heads)) : -1;
  const int last_row = last_head >= 0 && last_head < end ? last_head : row_begin;
  int limit = last_row + (((end - last_row + run_length - 1) >> shift) << shift);
  int next_head = beyond ? begin + kChunk + __ffsll(int64_t(beyond)) - 1 : 0x7fffffff;
  if (!beyond && shift != kRunShift)  // sequential order: a row ends anywhere
    for (int next = chunk + 3; next_head == 0x7fffffff; ++next)
      if (const unsigned word = p.heads[next]) next_head = next * kChunk + __ffs(int(word)) - 1;
  if (next_head < limit) limit = next_head;
  if (limit > size) limit = size;

  alignas(16) A sum[W];
#pragma unroll
  for (int w = 0; w < W; ++w) sum[w] = A();
  int run_end = at + run_length, base = at & ~(kAtOnce - 1);
  Pack<uint32_t, 4> segment[kParts];
#pragma unroll
  for (int j = 0; j < kParts; ++j) segment[j] = fetch<uint32_t, 4>(p.segments + base + 4 * j);
#pragma unroll 1
  for (; base < limit; base += kAtOnce) {
    Pack<T, W> rows[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (is_column && base + j >= at && base + j < limit)
        rows[j] = fetch<T, W>(grad + int64_t(segment[j / 4].at[j % 4]) * p.columns);
    Pack<uint32_t, 4> id[kParts];
    A scale[kAtOnce], divisor[kAtOnce];
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      segment[j] = fetch<uint32_t, 4>(p.segments + base + kAtOnce + 4 * j);  // of the next entries
      if (!p.unique) id[j] = fetch<uint32_t, 4>(p.ids + base + 4 * j);
    }
    if constexpr (MODE != 0) {
      constexpr int kWide = 16 / sizeof(A);
#pragma unroll
      for (int j = 0; j < kAtOnce / kWide; ++j) {
        const Pack<A, kWide> some = fetch<A, kWide>(scales + base + kWide * j);
#pragma unroll
        for (int k = 0; k < kWide; ++k) scale[kWide * j + k] = some.at[k];
        if constexpr ((MODE & kDivide) != 0) {
          const Pack<A, kWide> others = fetch<A, kWide>(divisors + base + kWide * j);
#pragma unroll
          for (int k = 0; k < kWide; ++k) divisor[kWide * j + k] = others.at[k];
        }
      }
    }
    // Bit j: a row begins after entry j.
    const uint64_t words = uint64_t(p.heads[base / 32]) | uint64_t(p.heads[base / 32 + 1]) << 32;
    const unsigned ends = unsigned(words >> (base % 32) >> 1);
    Left first, second;
    int left = 0;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = base + j;
      if (i < at || i >= limit) continue;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        A x = load<T>(rows[j].at[w]);
        if constexpr ((MODE & kDivide) != 0) x = divisor[j] == A(0) ? A(0) : over(x, divisor[j]);
        if constexpr ((MODE & kScale) != 0) x = times(x, scale[j]);
        if constexpr ((MODE & kRound) != 0) x = load<T>(store<T>(x));
        sum[w] = plus(sum[w], x);
        if constexpr ((MODE & kRound) != 0) sum[w] = load<T>(store<T>(sum[w]));
      }
      const bool is_row_end = ends >> j & 1u;
      if (!is_row_end && i + 1 != run_end) continue;
      const uint32_t row = p.unique ? row_number : id[j / 4].at[j % 4];
      if (run == 0 && is_row_end) {
        worker.put(int64_t(row), sum);
      } else {  // at most twice among so few entries: where a run ends, and where its row does
        const Left now{row_begin, run, row, is_row_end};
        worker.leave(now, sum);
        if (left++ == 0)
          first = now;
        else
          second = now;
      }
#pragma unroll
      for (int w = 0; w < W; ++w) sum[w] = A();
      run_end = i + 1 + run_length;
      ++run;
      if (is_row_end) {
        run = 0;
        row_begin = i + 1;
        ++row_number;
      }
    }
#pragma unroll 1
    for (int l = 0; l < left; ++l) worker.arrive(l == 0 ? first : second);
  }
}

struct FillZeros {
  void* out;
  int64_t blocks;
  int64_t bytes;
};

// Sixteen bytes at a time, then the rest.
DEVICE void fill_zeros(const FillZeros& p) {
  Block16* out = static_cast<Block16*>(p.out);
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = at; i < p.blocks; i += step) out[i] = Block16{0, 0};
  uint8_t* rest = static_cast<uint8_t*>(p.out) + p.blocks * 16;
  if (at < p.bytes - p.blocks * 16) rest[at] = 0;
}

}  // namespace rowgrad
