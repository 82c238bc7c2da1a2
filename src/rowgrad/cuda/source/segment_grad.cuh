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
constexpr int kAtOnce = 8;    // sums in flight, where sums of runs are added up
#ifndef BATCH
#define BATCH 8
#define STAGES 2
#endif
constexpr int kBatch = BATCH, kStages = STAGES;  // entries in flight: so many batches of so many

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

  DEVICE void leave(int row_begin, int run, const A (&sum)[W]) const {
    if (column < p.columns) put_shared_sum<A, W>(part(row_begin, run), sum);
  }

  // A sum was left. If it was the last of 64, or of the row, to be so, they are added up, and so on.
  DEVICE void arrive(int row_begin, int run, bool is_last, int64_t row) const {
    for (int level = 0;; ++level) {
      const int group = run >> 6, child = run & 63, shift = 6 * level;
      __threadfence();
      __syncwarp(mask);
      unsigned arrived = 0;
      if (lane == 0) {
        // Seven bits count to 64, whoever is last counting for those that are not there; seven more say how many are.
        const unsigned told = is_last ? (unsigned(child + 1) << 7) + unsigned(64 - child) : 1u;
        uint64_t* counter = &p.arrivals[slot(row_begin, (group << 6) << shift) * tiles + tile];
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
            get_shared_sum<A, W>(parts[j], part(row_begin, ((group << 6) + first + j) << shift));
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
      if (group == 0 && is_last) return put(row, sum);
      if (column < p.columns) put_shared_sum<A, W>(part(row_begin, group << 6 << shift), sum);
    }
  }
};

// Entries on their way to a worker, in shared memory: batches of them in a ring. A batch holds the gradient rows, each
// thread's own columns, and of every entry its scale, divisor and row; a batch's segments come one round before its rows.
template <class T, int W, int MODE>
struct Ring {
  typedef Accumulator<T> A;
  struct Batch {
    A scales[kBatch];
    A divisors[(MODE & kDivide) != 0 ? kBatch : 16 / sizeof(A)];
    uint32_t ids[kBatch];
  };
  struct Lists {
    Batch batches[kStages];
    uint32_t segments[2 * kStages][kBatch];
  };
  Pack<T, W>* rows;  // [stage][entry][thread]
  Lists* lists;      // of the worker

  DEVICE explicit Ring(unsigned char* memory, unsigned worker) {
    rows = reinterpret_cast<Pack<T, W>*>(memory) + threadIdx.x;
    lists = reinterpret_cast<Lists*>(memory + sizeof(Pack<T, W>) * kStages * kBatch * blockDim.x) + worker;
  }
  DEVICE Pack<T, W>& row(int batch, int j) const { return rows[((batch % kStages) * kBatch + j) * blockDim.x]; }
  DEVICE Batch& batch(int number) const { return lists->batches[number % kStages]; }
  DEVICE uint32_t* segments(int batch) const { return lists->segments[batch % (2 * kStages)]; }
};

// Copies a list of a batch, sixteen bytes a lane.
template <class A>
DEVICE void copy_list(A* to, const A* from, unsigned lane, unsigned lanes) {
  constexpr unsigned kParts = sizeof(A) * kBatch / 16;
  for (unsigned part = lane; part < kParts; part += lanes)
    copy_aside<16>(reinterpret_cast<unsigned char*>(to) + 16 * part, reinterpret_cast<const unsigned char*>(from) + 16 * part);
}

template <class T, int W, int MODE>
DEVICE void sum_rows(const SumRows& p) {
  typedef Accumulator<T> A;
  SHARED;
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

  const Ring<T, W, MODE> ring(shared_memory, group);
  const int base = at & ~(kBatch - 1), batches = (limit - base + kBatch - 1) / kBatch;
  auto ask_segments = [&](int batch) {
    if (batch < batches) copy_list(ring.segments(batch), p.segments + base + batch * kBatch, lane, lanes);
  };
  // Rows of a batch whose segments are there, and the segments of a later one: one group.
  auto ask = [&](int batch) {
    if (batch < batches) {
      const int from = base + batch * kBatch;
      const uint32_t* segments = ring.segments(batch);
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        if (is_column && from + j >= at && from + j < limit)
          copy_aside<sizeof(T) * W>(&ring.row(batch, j), grad + int64_t(segments[j]) * p.columns);
      typename Ring<T, W, MODE>::Batch& lists = ring.batch(batch);
      if constexpr ((MODE & kScale) != 0) copy_list(lists.scales, static_cast<const A*>(p.scales) + from, lane, lanes);
      if constexpr ((MODE & kDivide) != 0)
        copy_list(lists.divisors, static_cast<const A*>(p.divisors) + from, lane, lanes);
      if (!p.unique) copy_list(lists.ids, p.ids + from, lane, lanes);
      ask_segments(batch + kStages);
    }
    end_group();
  };
  for (int batch = 0; batch < kStages; ++batch) ask_segments(batch);
  end_group();
  await_groups<0>();
  __syncwarp(mask);
  for (int batch = 0; batch < kStages; ++batch) ask(batch);

  alignas(16) A sum[W];
#pragma unroll
  for (int w = 0; w < W; ++w) sum[w] = A();
  int run_end = at + run_length;
  for (int batch = 0; batch < batches; ++batch) {
    await_groups<kStages - 1>();
    __syncwarp(mask);
    const int from = base + batch * kBatch;
    const int first = from < at ? at - from : 0, count = limit - from < kBatch ? limit - from : kBatch;
    // Bit j: a row begins after entry j.
    const uint64_t words = uint64_t(p.heads[from / 32]) | uint64_t(p.heads[from / 32 + 1]) << 32;
    const unsigned ends = unsigned(words >> (from % 32) >> 1);
    const typename Ring<T, W, MODE>::Batch& lists = ring.batch(batch);
    for (int j = first; j < count; ++j) {
      const Pack<T, W> row = ring.row(batch, j);
#pragma unroll
      for (int w = 0; w < W; ++w) {
        A x = load<T>(row.at[w]);
        if constexpr ((MODE & kDivide) != 0) x = lists.divisors[j] == A(0) ? A(0) : over(x, lists.divisors[j]);
        if constexpr ((MODE & kScale) != 0) x = times(x, lists.scales[j]);
        if constexpr ((MODE & kRound) != 0) x = load<T>(store<T>(x));
        sum[w] = plus(sum[w], x);
        if constexpr ((MODE & kRound) != 0) sum[w] = load<T>(store<T>(sum[w]));
      }
      const bool is_row_end = ends >> j & 1u;
      if (!is_row_end && from + j + 1 != run_end) continue;
      const uint32_t row_id = p.unique ? row_number : lists.ids[j];
      if (run == 0 && is_row_end) {
        worker.put(int64_t(row_id), sum);
      } else {
        worker.leave(row_begin, run, sum);
        worker.arrive(row_begin, run, is_row_end, int64_t(row_id));
      }
#pragma unroll
      for (int w = 0; w < W; ++w) sum[w] = A();
      run_end = from + j + 1 + run_length;
      ++run;
      if (is_row_end) {
        run = 0;
        row_begin = from + j + 1;
        ++row_number;
      }
    }
    __syncwarp(mask);  // all have read the lists
    ask(batch + kStages);
  }
  await_groups<0>();
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
#ifndef FILLS
#define FILLS 4
#endif
  int64_t i = at;
  for (; i + (FILLS - 1) * step < p.blocks; i += FILLS * step)
#pragma unroll
    for (int k = 0; k < FILLS; ++k) out[i + k * step] = Block16{0, 0};
  for (; i < p.blocks; i += step) out[i] = Block16{0, 0};
  uint8_t* rest = static_cast<uint8_t*>(p.out) + p.blocks * 16;
  if (at < p.bytes - p.blocks * 16) rest[at] = 0;
}

}  // namespace rowgrad
