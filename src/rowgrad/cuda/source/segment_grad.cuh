// Sums gradient rows by table row.
//
//   sum_rows   sums the sorted entries of a batch. A row's entries are cut into runs of 64 (one run in sequential order),
//              each summed left to right from +0. A worker is a group of lanes, side by side over the columns. It has a
//              chunk of 32 entries and sums the runs that begin in it, also past its end. Rows of one run are written;
//              sums of other runs are left in `partials`.
//   join_runs  sums what was left in the same order, 64 sums at a time, until one is left. Above the first level,
//              workers count arrivals, and the one that completes 64 sums, or the row's last sums, adds them: which
//              worker does it may vary, but not the order.
#pragma once
#include "packs.cuh"
#include "sorting.cuh"

namespace rowgrad {

constexpr int kRunShift = 6;   // runs of 64
constexpr int kBatch = 8;      // rows in flight
constexpr int kAtOnce = 16;    // sums in flight in join_runs

// Up to 64 sums of runs that were left, the last of which is this run; they are added to one sum.
struct alignas(16) Left {
  int32_t row_begin, run;
  int32_t is_last;  // of the row
  uint32_t row;
};

struct SumRows {
  const void* grad;
  SUM_FIELDS;
};

// How entries become contributions: kDivide divides, then kScale multiplies, kRound rounds every product and sum to T.
// kSeveral: skip rows of one entry, whose entry is read directly elsewhere.
constexpr int kScale = 1, kDivide = 2, kRound = 4, kSeveral = 8;

// Where the sum of a run is left: 64 entries contain at most one first run of a row of several runs, and one other run.
DEVICE int64_t slot_of(int row_begin, int run) {
  return int64_t((row_begin + (run << kRunShift)) >> 6) * 2 + (run != 0);
}

// Several loaded entries, and what each adds to the sum.
template <class T, int W, int MODE>
struct Batch {
  typedef Accumulator<T> A;
  Pack<T, W> rows[kBatch];
  A scale[kBatch], divisor[kBatch];

  DEVICE void add(A (&sum)[W], int j) const {
    A row[W];
    unpack<T, W>(row, rows[j]);
#pragma unroll
    for (int w = 0; w < W; ++w) {
      A x = row[w];
      if constexpr ((MODE & kDivide) != 0) x = divisor[j] == A(0) ? A(0) : over(x, divisor[j]);
      if constexpr ((MODE & kScale) != 0) x = times(x, scale[j]);
      if constexpr ((MODE & kRound) != 0) x = load<T>(store<T>(x));
      sum[w] = plus(sum[w], x);
      if constexpr ((MODE & kRound) != 0) sum[w] = load<T>(store<T>(sum[w]));
    }
  }
};

template <class A>
DEVICE void fetch_list(A (&to)[kBatch], const void* from, int64_t at) {
  constexpr int kWide = 16 / sizeof(A);
#pragma unroll
  for (int j = 0; j < kBatch / kWide; ++j) {
    const Pack<A, kWide> some = fetch<A, kWide>(static_cast<const A*>(from) + at + kWide * j);
#pragma unroll
    for (int k = 0; k < kWide; ++k) to[kWide * j + k] = some.at[k];
  }
}

// Returns the first of the lane's columns.
template <int W, class P>
DEVICE int64_t column_of(const P& p) {
  const unsigned lanes = unsigned(p.lanes);
  return (int64_t(blockIdx.y) * lanes + threadIdx.x % lanes) * W;
}

template <class T, int W>
DEVICE void put_row(const LaneOfRows<T>& rows, uint32_t row, const Accumulator<T> (&sum)[W]) {
  put_pack<W>(rows[row], packed<T, W>(sum));
}

// Where the sum of a row goes: consecutive rows if they are `unique`, else to its id.
struct OutputRow {
  const SumRows& p;
  DEVICE bool reads_ids() const { return !p.unique; }
  DEVICE uint32_t operator()(uint32_t number, uint32_t id) const { return p.unique ? number : id; }
};

// Whether the row of an entry needs no sum.
DEVICE bool is_ignored(const SumRows&, int) { return false; }

// `grad[segment]` is the address of a segment's columns; `place(number, id)` is the row of `out` for the row of this id,
// the number-th. P is the kernel's struct.
template <class T, int W, int MODE, class P, class Grad, class Place>
DEVICE void sum_rows_of(const P& p, const Grad& grad, Place place) {
  typedef Accumulator<T> A;
  const unsigned lanes = unsigned(p.lanes), lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
  const int64_t number = int64_t(blockIdx.x) * (blockDim.x / lanes) + group;
  if (number * kChunk >= p.size) return;
  // There are fewer than 2^30 entries.
  const int chunk = int(number), begin = chunk * kChunk, size = int(p.size), shift = int(p.run_shift);
  const int run_length = 1 << shift, end = begin + kChunk < size ? begin + kChunk : size;
  const int64_t column = column_of<W>(p);
  const bool is_column = column < p.cols;
  const LaneOfRows<T> out(p.out, p.cols, column);

  uint32_t row_number = p.firsts[chunk];
  int row_begin = int(p.begins[chunk]);
  const unsigned heads = p.heads[chunk], next_heads = p.heads[chunk + 1];
  const uint64_t beyond = uint64_t(next_heads) | uint64_t(p.heads[chunk + 2]) << 32;
  if (is_raised(p.checks) || is_ignored(p, begin)) return;
  // Find the first run that begins here.
  int run = (begin - row_begin + run_length - 1) >> shift;
  int at = row_begin + (run << shift);
  const int first_head = heads ? begin + __ffs(int(heads)) - 1 : end;
  if (!(heads & 1u) && first_head <= at) {  // a row begins before that run, or with it
    at = first_head;
    row_begin = at;
    run = 0;
    ++row_number;
  }
  if (at >= end) return;
  if constexpr ((MODE & kSeveral) != 0) {
    if (run == 0) {  // a row begins here: skip to the first one with several entries
      const unsigned several = (heads & ~(heads >> 1 | next_heads << 31)) & (0xffffffffu << (at - begin));
      if (!several) return;
      const int skipped = __ffs(int(several)) - 1 - (at - begin);
      row_number += unsigned(skipped);
      at += skipped;
      row_begin = at;
    }
    if (at >= end) return;
  }
  // The end of the last run that begins here: the next row, or `run_length` entries.
  const int last_head = heads ? begin + 31 - __clz(int(heads)) : -1;
  const int last_row = last_head >= 0 && last_head < end ? last_head : row_begin;
  int limit = last_row + (((end - last_row + run_length - 1) >> shift) << shift);
  int next_head = beyond ? begin + kChunk + __ffsll(int64_t(beyond)) - 1 : 0x7fffffff;
  if (!beyond && shift != kRunShift)  // sequential order: a row may end anywhere
    for (int next = chunk + 3; next_head == 0x7fffffff; ++next)
      if (const unsigned word = p.heads[next]) next_head = next * kChunk + __ffs(int(word)) - 1;
  if (next_head < limit) limit = next_head;
  if (limit > size) limit = size;

  alignas(16) A sum[W];
#pragma unroll
  for (int w = 0; w < W; ++w) sum[w] = A();
  int run_end = at + run_length, from = at & ~(kBatch - 1);
  uint32_t segment[kBatch];
  fetch_list(segment, p.segments, from);
#pragma unroll 1
  for (; from < limit; from += kBatch) {
    const int low = at > from ? at - from : 0, high = limit - from < kBatch ? limit - from : kBatch;
    unsigned rest = ((1u << high) - 1u) & ~((1u << low) - 1u);  // a bit per entry
    // A bit per entry that begins a row; shifted by one, per entry that ends one.
    const int offset = from - begin;
    uint64_t words;
    if (shift == kRunShift)
      words = offset < 32 ? (uint64_t(next_heads) << 32 | heads) >> offset : beyond >> (offset - 32);
    else
      words = (uint64_t(p.heads[from / 32 + 1]) << 32 | p.heads[from / 32]) >> (from % 32);
    const unsigned ends = unsigned(words >> 1) & rest;
    const unsigned singles = (MODE & kSeveral) != 0 ? unsigned(words) & ends : 0u;
    Batch<T, W, MODE> batch;
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      if (is_column && ((rest & ~singles) >> j & 1u)) batch.rows[j] = fetch<T, W>(grad[segment[j]]);
    uint32_t id[kBatch];
    if (place.reads_ids()) fetch_list(id, p.ids, from);
    if constexpr ((MODE & kScale) != 0) fetch_list(batch.scale, p.scales, from);
    if constexpr ((MODE & kDivide) != 0) fetch_list(batch.divisor, p.divisors, from);
    fetch_list(segment, p.segments, from + kBatch);
    while (true) {
      // A run of a row with several runs ends at `stop` and is left in `partials`; all rows before that have one run.
      const int row_end_at = (ends & rest) ? __ffs(int(ends & rest)) - 1 : kBatch, run_end_at = run_end - 1 - from;
      const int stop = run > 0 && row_end_at < run_end_at ? row_end_at
                       : run > 0 || run_end_at < row_end_at ? run_end_at : kBatch;
      const bool stops = stop < high;
      const unsigned now = stops ? rest & ((2u << stop) - 1u) : rest;
      const unsigned whole = ends & now & ~(stops ? 1u << stop : 0u);
      if (now == (1u << kBatch) - 1u && whole == 0) {
#pragma unroll
        for (int j = 0; j < kBatch; ++j) batch.add(sum, j);
      } else {
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          if ((now & ~singles) >> j & 1u) batch.add(sum, j);
          if (whole >> j & 1u) {
            if (is_column && !(singles >> j & 1u)) put_row<T, W>(out, place(row_number, id[j]), sum);
            ++row_number;
#pragma unroll
            for (int w = 0; w < W; ++w) sum[w] = A();
          }
        }
        if (whole) {
          row_begin = from + 32 - __clz(int(whole));
          run_end = row_begin + run_length;
          run = 0;
        }
      }
      if (!stops) break;
      const bool is_row_end = ends >> stop & 1u;
      if (is_column) put_shared_sum<A, W>(static_cast<A*>(p.partials) + slot_of(row_begin, run) * p.cols + column, sum);
      if ((is_row_end || (run & 63) == 63) && lane == 0 && blockIdx.y == 0)
        p.lefts[atomicAdd(p.left_count, 1u)] =
            Left{row_begin, run, is_row_end, place(row_number, place.reads_ids() ? p.ids[from + stop] : 0u)};
#pragma unroll
      for (int w = 0; w < W; ++w) sum[w] = A();
      run_end = from + stop + 1 + run_length;
      ++run;
      if (is_row_end) {
        run = 0;
        row_begin = from + stop + 1;
        ++row_number;
      }
      rest &= ~now;
      if (!rest) break;
    }
  }
}

template <class T, int W, int MODE>
DEVICE void sum_rows(const SumRows& p) {
  sum_rows_of<T, W, MODE>(p, LaneOfRows<T>(p.grad, p.cols, column_of<W>(p)), OutputRow{p});
}

struct JoinRuns {
  void* out;
  int64_t cols;
  int64_t lanes;
  const Left* lefts;
  const uint32_t* left_count;
  void* partials;
  uint64_t* arrivals;
  const Checks* checks;
};

// ROUNDS: every sum is rounded to T.
template <class T, int W, bool ROUNDS>
DEVICE void join_runs(const JoinRuns& p) {
  typedef Accumulator<T> A;
  if (is_raised(p.checks)) return;
  const unsigned lanes = unsigned(p.lanes), lane = threadIdx.x % lanes, groups = blockDim.x / lanes;
  const unsigned mask = lanes == 32 ? kAllLanes : ((1u << lanes) - 1u) << (lane_of_thread() / lanes * lanes);
  const int64_t column = column_of<W>(p);
  const bool is_column = column < p.cols;
  const unsigned count = *p.left_count;
  for (unsigned number = blockIdx.x * groups + threadIdx.x / lanes; number < count; number += gridDim.x * groups) {
    const Left left = p.lefts[number];
    auto part = [&](int run) { return static_cast<A*>(p.partials) + slot_of(left.row_begin, run) * p.cols + column; };
    int group = left.run >> 6, children = (left.run & 63) + 1;
    bool is_last = left.is_last != 0;
    for (int level = 0;; ++level) {
      const int shift = 6 * level;
      alignas(16) A sum[W];
#pragma unroll
      for (int w = 0; w < W; ++w) sum[w] = A();
#pragma unroll 1
      for (int first = 0; first < children; first += kAtOnce) {
        alignas(16) A parts[kAtOnce][W];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
          if (first + j < children && is_column) get_shared_sum<A, W>(parts[j], part(((group << 6) + first + j) << shift));
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
#pragma unroll
          for (int w = 0; w < W; ++w)
            if (first + j < children) {
              sum[w] = plus(sum[w], parts[j][w]);
              if constexpr (ROUNDS) sum[w] = load<T>(store<T>(sum[w]));
            }
      }
      if (group == 0 && is_last) {
        if (is_column) put_row<T, W>(LaneOfRows<T>(p.out, p.cols, column), left.row, sum);
        break;
      }
      if (is_column) put_shared_sum<A, W>(part((group << 6) << shift), sum);
      const int child = group & 63;
      group >>= 6;
      __syncwarp(mask);  // first, so that the fence is for the sums of all lanes
      __threadfence();
      unsigned arrived = 0;
      if (lane == 0) {
        // Seven bits count to 64, where the last group also counts for the missing ones; seven more hold the number of
        // groups.
        const unsigned arrival = is_last ? (unsigned(child + 1) << 7) + unsigned(64 - child) : 1u;
        uint64_t* counter =
            &p.arrivals[slot_of(left.row_begin, (group << 6) << (shift + 6)) * gridDim.y + blockIdx.y];
        const uint64_t before =
            atomicAdd(reinterpret_cast<unsigned long long*>(counter), (unsigned long long)(arrival) << (14 * level));
        arrived = (unsigned(before >> (14 * level)) + arrival) & 0x3fffu;
      }
      arrived = __shfl_sync(mask, arrived, 0, int(lanes));
      if ((arrived & 127u) != 64u) break;
      __threadfence();
      __syncwarp(mask);  // the lane that counted has seen the others' sums; the barrier passes this on
      children = (arrived >> 7) ? int(arrived >> 7) : 64;
      is_last = (arrived >> 7) != 0;
    }
  }
}

}  // namespace rowgrad
