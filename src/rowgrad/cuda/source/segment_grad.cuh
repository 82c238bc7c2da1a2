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

// One lane's place in the sums of a worker.
template <class T, int W, int MODE>
struct Worker {
  typedef Accumulator<T> A;
  const SumRows& p;
  unsigned lane, mask;
  int64_t column, tile, tiles;

  DEVICE bool is_first() const { return lane == 0; }

  DEVICE void put(int64_t row, const A (&sum)[W]) const {
    if (column >= p.columns) return;
    Pack<T, W> packed;
#pragma unroll
    for (int w = 0; w < W; ++w) packed.at[w] = store<T>(sum[w]);
    *reinterpret_cast<Pack<T, W>*>(static_cast<T*>(p.out) + row * p.columns + column) = packed;
  }

  // Where the sum of a run is left: a chunk of 64 entries has at most one first run of a row of several runs, and one of
  // the others.
  DEVICE int64_t slot(int64_t row_begin, int64_t run) const {
    return ((row_begin + (run << kRunShift)) >> 6) * 2 + (run != 0);
  }

  // The sum of one of several runs is there; `is_last`: it is the row's last.
  DEVICE void leave(A (&sum)[W], int64_t row_begin, int64_t run, bool is_last, int64_t row) const {
    A* partials = static_cast<A*>(p.partials);
    for (int level = 0;; ++level) {
      const int64_t group = run >> 6, child = run & 63;
      const int shift = 6 * level;
      A* mine = partials + slot(row_begin, run << shift) * p.columns + column;
      if (column < p.columns) put_shared_sum<A, W>(mine, sum);
      __threadfence();
      __syncwarp(mask);
      uint64_t arrived = 0;
      if (is_first()) {
        // Seven bits count to 64, whoever is last counting for those that are not there; seven more say how many are.
        const uint64_t told = is_last ? (uint64_t(child + 1) << 7) + uint64_t(64 - child) : 1;
        uint64_t* counter = &p.arrivals[slot(row_begin, (group << 6) << shift) * tiles + tile];
        arrived = ((atomicAdd(reinterpret_cast<unsigned long long*>(counter), (unsigned long long)(told << (14 * level))) >>
                    (14 * level)) + told) & 0x3fff;
      }
      arrived = __shfl_sync(mask, arrived, 0, int(p.lanes));
      if ((arrived & 127) != 64) return;
      __threadfence();
      const int children = (arrived >> 7) ? int(arrived >> 7) : 64;
      is_last = (arrived >> 7) != 0;
#pragma unroll
      for (int w = 0; w < W; ++w) sum[w] = A();
      for (int first = 0; first < children; first += kAtOnce) {
        alignas(16) A part[kAtOnce][W];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const A* from = partials + slot(row_begin, ((group << 6) + first + j) << shift) * p.columns + column;
          if (first + j < children && column < p.columns) get_shared_sum<A, W>(part[j], from);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
#pragma unroll
          for (int w = 0; w < W; ++w)
            if (first + j < children) {
              sum[w] = plus(sum[w], part[j][w]);
              if constexpr ((MODE & kRound) != 0) sum[w] = load<T>(store<T>(sum[w]));
            }
      }
      run = group;
      if (group == 0 && is_last) return put(row, sum);
    }
  }
};

template <class T, int W, int MODE>
DEVICE void sum_rows(const SumRows& p) {
  typedef Accumulator<T> A;
  if (is_raised(p.checks)) return;
  const unsigned lanes = unsigned(p.lanes), lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
  const unsigned mask = lanes == 32 ? kAllLanes : ((1u << lanes) - 1u) << (lane_of_thread() / lanes * lanes);
  const int64_t chunk = int64_t(blockIdx.x) * (blockDim.x / lanes) + group;
  const int64_t begin = chunk * kChunk;
  if (begin >= p.size) return;
  const Worker<T, W, MODE> worker{p, lane, mask, (int64_t(blockIdx.y) * lanes + lane) * W, blockIdx.y, gridDim.y};
  const bool is_column = worker.column < p.columns;
  const T* grad = static_cast<const T*>(p.grad) + worker.column;
  const A* scales = static_cast<const A*>(p.scales);
  const A* divisors = static_cast<const A*>(p.divisors);
  const int64_t run_length = int64_t(1) << p.run_shift;

  int64_t row_number = p.firsts[chunk], row_begin = p.begins[chunk];
  const int64_t end = begin + kChunk < p.size ? begin + kChunk : p.size;
  const unsigned heads = p.heads[chunk];
  // The first run that begins here.
  int64_t run = (begin - row_begin + run_length - 1) >> p.run_shift;
  int64_t at = row_begin + (run << p.run_shift);
  const int64_t first_head = heads ? begin + __ffs(int(heads)) - 1 : end;
  if (first_head < at) {
    at = first_head;
    row_begin = at;
    run = 0;
    ++row_number;
  }
  if (at >= end) return;
  // Where the last run that begins here ends: at the next row, or after `run_length`.
  const int64_t last_head = heads ? begin + 31 - __clz(int(heads)) : -1;
  const int64_t last_row = last_head >= 0 && last_head < end ? last_head : row_begin;
  int64_t limit = last_row + (((end - last_row + run_length - 1) >> p.run_shift) << p.run_shift);
  for (int64_t next = chunk + 1; next * kChunk < limit; ++next) {
    const unsigned word = p.heads[next];
    if (!word) continue;
    const int64_t head = next * kChunk + __ffs(int(word)) - 1;
    if (head < limit) limit = head;
    break;
  }
  if (limit > p.size) limit = p.size;

  alignas(16) A sum[W];
#pragma unroll
  for (int w = 0; w < W; ++w) sum[w] = A();
  int64_t run_end = at + run_length;
  for (int64_t base = at & ~int64_t(kAtOnce - 1); base < limit; base += kAtOnce) {
    Pack<uint32_t, 4> segment[kAtOnce / 4], id[kAtOnce / 4];
    A scale[kAtOnce], divisor[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce / 4; ++j) {
      segment[j] = fetch<uint32_t, 4>(p.segments + base + 4 * j);
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
    Pack<T, W> rows[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (is_column && base + j >= at && base + j < limit)
        rows[j] = fetch<T, W>(grad + int64_t(segment[j / 4].at[j % 4]) * p.columns);
    // Bit j: a row begins after entry j.
    const uint64_t words = uint64_t(p.heads[base / 32]) | uint64_t(p.heads[base / 32 + 1]) << 32;
    const unsigned ends = unsigned(words >> (base % 32) >> 1);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t i = base + j;
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
      const int64_t row = p.unique ? row_number : int64_t(id[j / 4].at[j % 4]);
      if (run == 0 && is_row_end)
        worker.put(row, sum);
      else
        worker.leave(sum, row_begin, run, is_row_end, row);
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
