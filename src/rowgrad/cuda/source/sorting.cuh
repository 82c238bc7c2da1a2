// Sorts ids by row: a stable radix sort over only the bits that the table needs, and where rows begin.
//
//   scan_ids  reads every id once: validates it, counts digits, and counts the ids of each segment;
//   sort_pass    sorts by one digit: tiles of ids count their digits, wait for the counts of earlier tiles, and write;
//   find_rows    scans the sorted list: which entries begin a row, and the rows before each chunk of entries.
//
// A tile only waits for earlier tiles, which were started before it: blocks start in the order of their numbers. CUDA does
// not document this, but its own library relies on it in the same way (CUB's scans), and a counter would cost each tile
// an atomic operation before its first load.
#pragma once
#include "device.cuh"

namespace rowgrad {

constexpr int kCopies = 4;  // of histograms in shared memory, so that neighbouring lanes rarely collide
constexpr int kChunk = 32;  // entries per worker of the sums

// The state a tile publishes for later tiles: nothing yet, its own count, or the count up to its end.
constexpr uint32_t kNothing = 0, kOwn = 1u << 30, kAll = 2u << 30, kCount = (1u << 30) - 1u;

DEVICE uint32_t read_state(const uint32_t* p) { return *static_cast<const volatile uint32_t*>(p); }
DEVICE uint64_t read_state(const uint64_t* p) { return *static_cast<const volatile uint64_t*>(p); }
DEVICE void publish(uint32_t* p, uint32_t value) { *static_cast<volatile uint32_t*>(p) = value; }
DEVICE void publish(uint64_t* p, uint64_t value) { *static_cast<volatile uint64_t*>(p) = value; }

struct ScanIds {
  const void* ids;
  int64_t ids_wide;
  const void* segments;
  int64_t segments_wide;
  int64_t size;
  int64_t rows;
  int64_t sources;
  int64_t passes;
  int64_t bits;
  uint32_t* histograms;
  uint32_t* counts;
  int64_t order;
  int64_t id_code;
  int64_t segment_code;
  const int64_t* needed;
  const Checks* earlier;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Reports the first fault as a single thread would find it, and returns whether there is one. `order`: 0 id and segment
// in turn; 1 the last segment first, as in TensorFlow's gradients; 2 then all segments, as in its dense Mean and SqrtN
// gradients; 3 segment and id in turn. `first` is added to its position.
DEVICE bool report_bad_id(const ScanIds& p, int64_t first) {
  const Ids ids{p.ids, p.ids_wide != 0}, segments{p.segments, p.segments_wide != 0};
  const bool has_segments = p.segments != nullptr;
  const bool is_gradient = p.order == 1 || p.order == 2;
  const auto found = [&](int64_t code, int64_t i, int64_t value, int64_t bound) {
    report(p.fault, p.alarm, code, first + i, value, bound);
    return true;
  };
  if (is_gradient && segments[p.size - 1] >= p.sources)
    return found(fault_segment_count, p.size - 1, segments[p.size - 1], p.sources);
  for (int64_t i = 0; p.order == 2 && i < p.size; ++i)
    if (!is_below(segments[i], p.sources)) return found(p.segment_code, i, segments[i], p.sources);
  for (int64_t i = 0; i < p.size; ++i) {
    if (p.order == 3 && !is_below(segments[i], p.sources)) return found(p.segment_code, i, segments[i], p.sources);
    if (!is_below(ids[i], p.rows)) return found(p.id_code, i, ids[i], p.rows);
    if (has_segments && !is_below(segments[i], p.sources)) return found(p.segment_code, i, segments[i], p.sources);
  }
  return false;
}

// Validates and counts the ids of one of `blocks` blocks; returns whether one was bad. I and S are the types of ids and
// segments.
template <class I, class S>
DEVICE bool count_ids(const ScanIds& p, uint32_t* found, int64_t block, int64_t blocks) {
  constexpr int kAtOnce = 8;  // loads in flight
  const I* ids = static_cast<const I*>(p.ids);
  const S* segments = static_cast<const S*>(p.segments);
  const bool has_segments = segments != nullptr, counts = p.counts != nullptr;
  const int passes = int(p.passes), bits = int(p.bits);
  const uint32_t digit = (1u << bits) - 1u;
  const unsigned lane = lane_of_thread();
  bool bad = false;
  const int64_t step = int64_t(blockDim.x) * kAtOnce;
  for (int64_t base = block * step; base < p.size; base += blocks * step) {
    I id[kAtOnce];
    S segment[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t i = base + j * blockDim.x + threadIdx.x;
      id[j] = i < p.size ? ids[i] : I(0);
      segment[j] = has_segments && i < p.size ? segments[i] : S(-1);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const bool in_list = base + j * blockDim.x + threadIdx.x < p.size;
      const bool is_valid = is_below(int64_t(id[j]), p.rows);
      bad |= in_list && !is_valid;
      if (in_list && is_valid) {
        uint32_t rest = uint32_t(id[j]);
        uint32_t* own = found;
        for (int pass = 0; pass < passes; ++pass, rest >>= bits, own += kCopies << bits)
          atomicAdd(&own[(rest & digit) * kCopies], 1u);
      }
      if (!has_segments) continue;
      const bool fits = is_below(int64_t(segment[j]), p.sources);
      bad |= in_list && !fits;
      if (!counts) continue;
      // The first of neighbours with the same segment counts them all.
      const S before = __shfl_up_sync(kAllLanes, segment[j], 1);
      const bool begins = lane == 0 || before != segment[j];
      const unsigned rest = __ballot_sync(kAllLanes, begins) >> lane >> 1;
      if (begins && fits) atomicAdd(&p.counts[segment[j]], rest ? uint32_t(__ffs(int(rest))) : 32u - lane);
    }
  }
  return bad;
}

// Does this, and adds the counts of the block to the histograms of all.
DEVICE bool scan_block(const ScanIds& p, int64_t block, int64_t blocks) {
  SHARED;
  uint32_t* found = reinterpret_cast<uint32_t*>(shared_memory);
  const int bins = int(p.passes) << p.bits;
  for (int i = threadIdx.x; i < bins * kCopies; i += blockDim.x) found[i] = 0;
  __syncthreads();
  uint32_t* own = found + lane_of_thread() % kCopies;
  const bool bad = p.ids_wide ? (p.segments_wide ? count_ids<int64_t, int64_t>(p, own, block, blocks)
                                                 : count_ids<int64_t, int32_t>(p, own, block, blocks))
                              : (p.segments_wide ? count_ids<int32_t, int64_t>(p, own, block, blocks)
                                                 : count_ids<int32_t, int32_t>(p, own, block, blocks));
  __syncthreads();
  for (int i = threadIdx.x; i < bins; i += blockDim.x) {
    uint32_t sum = 0;
    for (int k = 0; k < kCopies; ++k) sum += found[i * kCopies + k];
    if (sum) atomicAdd(&p.histograms[i], sum);
  }
  return bad;
}

DEVICE void scan_ids(const ScanIds& p) {
  // If the checks `earlier` (may be null) have failed, their call has reported it; if `needed` (may be null) is 0, the ids
  // are in order. Later kernels see a fault, and do nothing.
  if ((p.earlier && is_raised(p.earlier)) || (p.needed && *p.needed == 0)) {
    if (threadIdx.x == 0) atomicOr(&p.checks->raised, 1u);
    return;
  }
  if (must_report(p.checks, scan_block(p, blockIdx.x, gridDim.x))) report_bad_id(p, 0);
}

// Returns the factor of a gradient row whose segment has `count` ids: 1/n or 1/√n, in double, rounded once.
template <class A>
DEVICE A gradient_scale(int64_t reduce, int64_t count) {
  return A(1.0 / exact_divisor(Reduction(reduce), double(count < 1 ? 1 : count)));
}

struct SortPass {
  const void* ids;
  int64_t ids_wide;
  const void* values;
  int64_t values_wide;
  const uint64_t* pairs;
  uint64_t* sorted;
  uint32_t* sorted_ids;
  uint32_t* sorted_values;
  int64_t size;
  int64_t shift;
  int64_t bits;
  const uint32_t* histogram;
  uint32_t* states;
  const uint32_t* counts;
  void* segment_scales;
  int64_t sources;
  int64_t reduce;
  const Checks* checks;
};

// Returns the sum over all earlier threads of the block, of two 32-bit numbers at once. `scratch` holds 33 numbers.
DEVICE uint64_t sum_before(uint64_t mine, uint64_t* scratch) {
  const unsigned lane = lane_of_thread(), warp = threadIdx.x / 32u, warps = (blockDim.x + 31u) / 32u;
  uint64_t total = mine;
  for (unsigned d = 1; d < 32; d *= 2) {
    const uint64_t other = __shfl_up_sync(kAllLanes, total, d);
    if (lane >= d) total += other;
  }
  if (lane == 31) scratch[warp] = total;
  __syncthreads();
  if (warp == 0) {
    uint64_t sum = lane < warps ? scratch[lane] : 0;
    for (unsigned d = 1; d < 32; d *= 2) {
      const uint64_t other = __shfl_up_sync(kAllLanes, sum, d);
      if (lane >= d) sum += other;
    }
    scratch[lane] = sum;
  }
  __syncthreads();
  return total - mine + (warp ? scratch[warp - 1] : 0);
}

// Returns the lanes of the warp that have the same number of `bits` bits as this one.
DEVICE unsigned lanes_with(uint32_t number, int bits) {
  unsigned same = kAllLanes;
  for (int b = 0; b < bits; ++b) {
    const bool is_set = number >> b & 1u;
    const unsigned votes = __ballot_sync(kAllLanes, is_set);
    same &= is_set ? votes : ~votes;
  }
  return same;
}

// Returns how often a digit occurs in earlier tiles.
DEVICE uint32_t count_before(const uint32_t* states, int64_t tile, int64_t bins, int64_t bin) {
  constexpr int kAtOnce = 16;
  uint32_t sum = 0;
  for (int64_t t = tile - 1; t >= 0; t -= kAtOnce) {
    uint32_t state[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) state[k] = t >= k ? read_state(&states[(t - k) * bins + bin]) : kAll;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      while ((state[k] & ~kCount) == kNothing) state[k] = read_state(&states[(t - k) * bins + bin]);
      sum += state[k] & kCount;
      if (state[k] & kAll) return sum;
    }
  }
  return sum;
}

// Sorts a tile of 512 · ITEMS ids by one digit. Shared memory (the launcher computes the same size):
//   scratch [34] 64 bit | staged [tile] 64 bit | starts [bins] | offsets [bins] | counts of warps [warps][bins] 16 bit
template <int ITEMS>
DEVICE void sort_tile(const SortPass& p, int64_t tile) {
  constexpr int kThreads = 512, kWarps = kThreads / 32, kTile = kThreads * ITEMS;
  SHARED;
  const int bins = 1 << p.bits, shift = int(p.shift);
  const uint32_t digit = uint32_t(bins - 1);
  uint64_t* scratch = reinterpret_cast<uint64_t*>(shared_memory);
  uint64_t* staged = scratch + 34;
  uint32_t* starts = reinterpret_cast<uint32_t*>(staged + kTile);
  uint32_t* offsets = starts + bins;
  uint16_t* counts = reinterpret_cast<uint16_t*>(offsets + bins);
  const unsigned lane = lane_of_thread(), warp = threadIdx.x / 32u;
  uint16_t* own = counts + warp * bins;
  const int64_t begin = tile * kTile;

  uint32_t key[ITEMS], value[ITEMS];
  const int64_t first = begin + int64_t(warp) * (32 * ITEMS) + lane;
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const int64_t i = first + j * 32;
    key[j] = value[j] = 0;
    if (i >= p.size) continue;
    if (p.pairs) {
      const uint64_t pair = p.pairs[i];
      key[j] = uint32_t(pair);
      value[j] = uint32_t(pair >> 32);
    } else {
      key[j] = uint32_t(Ids{p.ids, p.ids_wide != 0}[i]);
      value[j] = p.values ? uint32_t(Ids{p.values, p.values_wide != 0}[i]) : uint32_t(i);
    }
  }
  for (int i = lane; i < bins; i += 32) own[i] = 0;
  __syncwarp();

  // The rank of every id among equal digits of this warp, in input order.
  uint32_t rank[ITEMS];
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    const bool in_list = first + j * 32 < p.size;
    const uint32_t d = in_list ? (key[j] >> shift) & digit : uint32_t(bins);
    const unsigned peers = lanes_with(d, int(p.bits) + 1);
    const unsigned before = __popc(peers & lanes_before(lane));
    const uint32_t counted = in_list ? own[d] : 0;
    __syncwarp();
    if (in_list && before == 0) own[d] = uint16_t(counted + __popc(peers));
    __syncwarp();
    rank[j] = counted + before;
  }
  __syncthreads();

  // Every thread has a few neighbouring digits: replace counts per warp by counts of earlier warps.
  const int mine = (bins + kThreads - 1) / kThreads, from = threadIdx.x * mine;
  constexpr int kMost = 2;  // digits per thread: at most ten bits
  uint32_t total[kMost], all[kMost];
  uint64_t sum = 0;
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    total[k] = all[k] = 0;
    if (k >= mine || from + k >= bins) continue;
    for (int w = 0; w < kWarps; ++w) {
      const uint16_t count = counts[w * bins + from + k];
      counts[w * bins + from + k] = uint16_t(total[k]);
      total[k] += count;
    }
    publish(&p.states[tile * bins + from + k], (tile == 0 ? kAll : kOwn) | total[k]);
    all[k] = p.histogram[from + k];
    sum += uint64_t(all[k]) << 32 | total[k];
  }
  uint64_t before = sum_before(sum, scratch);
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    if (k >= mine || from + k >= bins) continue;
    starts[from + k] = uint32_t(before);
    offsets[from + k] = uint32_t(before >> 32) - uint32_t(before);
    before += uint64_t(all[k]) << 32 | total[k];
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) {
    if (first + j * 32 >= p.size) continue;
    const uint32_t d = (key[j] >> shift) & digit;
    staged[starts[d] + own[d] + rank[j]] = uint64_t(value[j]) << 32 | key[j];
  }
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    if (k >= mine || from + k >= bins || tile == 0) continue;
    const uint32_t earlier = count_before(p.states, tile, bins, from + k);
    publish(&p.states[tile * bins + from + k], kAll | (earlier + total[k]));
    offsets[from + k] += earlier;
  }
  __syncthreads();
  const int64_t rest = p.size - begin;
  const int count = int(rest < kTile ? rest : kTile);
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const uint64_t pair = staged[i];
    const int64_t to = int64_t(offsets[(uint32_t(pair) >> shift) & digit] + uint32_t(i));
    if (p.sorted) {
      p.sorted[to] = pair;
    } else {
      p.sorted_ids[to] = uint32_t(pair);
      p.sorted_values[to] = uint32_t(pair >> 32);
    }
  }
}

// Sorts by one digit. The first pass also computes segment_scales, of type A, from the counts. BLOCKS per multiprocessor.
template <int ITEMS, class A, int BLOCKS>
DEVICE void sort_pass(const SortPass& p) {
  if (is_raised(p.checks)) return;
  if (p.segment_scales)
    for (int64_t s = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; s < p.sources; s += int64_t(gridDim.x) * blockDim.x)
      static_cast<A*>(p.segment_scales)[s] = gradient_scale<A>(p.reduce, int64_t(p.counts[s]));
  sort_tile<ITEMS>(p, blockIdx.x);
}

struct FindRows {
  const uint32_t* ids;
  int64_t size;
  uint32_t* heads;
  uint32_t* firsts;
  uint32_t* begins;
  uint64_t* states;
  int64_t* total;
  int64_t* host_total;
  void* rows;
  int64_t rows_wide;
  int64_t* starts;
  const uint32_t* segments;
  const void* segment_scales;
  void* scales;
  int64_t most_rows;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// The state of a tile: two status bits, the number of rows that begin up to its end (31 bits), and one more than the
// position where the last of them begins, or 0 if none does (31 bits).
constexpr uint64_t kOwnRows = 1ull << 62, kAllRows = 2ull << 62;
constexpr uint64_t kPlace = (1ull << 31) - 1ull;

DEVICE uint64_t joined(uint64_t before, uint64_t after) {
  const uint64_t rows = ((before >> 31) + (after >> 31)) & kPlace;
  return rows << 31 | ((after & kPlace) ? after & kPlace : before & kPlace);
}

// Returns the joined state of all earlier tiles; called by a whole warp.
DEVICE uint64_t rows_before(const uint64_t* states, int64_t tile) {
  const unsigned lane = lane_of_thread();
  uint64_t sum = 0;
  for (int64_t t = tile - 1; t >= 0; t -= 32) {
    const int64_t at = t - lane;
    uint64_t state = at >= 0 ? read_state(&states[at]) : kAllRows;
    while ((state >> 62) == 0) state = read_state(&states[at]);
    const unsigned ends = __ballot_sync(kAllLanes, (state & kAllRows) != 0);
    const unsigned last = ends ? unsigned(__ffs(int(ends)) - 1) : 31u;
    state = lane <= last ? state & ~(3ull << 62) : 0;
    for (unsigned d = 1; d < 32; d *= 2) {  // lanes are in reverse order of tiles
      const uint64_t other = __shfl_down_sync(kAllLanes, state, d);
      if (lane + d < 32) state = joined(other, state);
    }
    sum = joined(__shfl_sync(kAllLanes, state, 0), sum);
    if (ends) break;
  }
  return sum;
}

DEVICE void put_total(const FindRows& p, int64_t total) {
  *p.total = total;
  if (!p.host_total) return;
  __threadfence_system();
  *static_cast<volatile int64_t*>(p.host_total) = total;
}

// heads: a bit per entry, set where a row begins, and everywhere past the end.
// firsts, begins: for each chunk, the number of the row of its first entry, and where that row begins.
// rows, starts: the distinct rows and where they begin, if requested; total: their number. More rows than `most_rows`
// are a fault; those past it are not written.
// host_total: the same number in host memory, if a host waits for it there, or 0 after a fault, which is reported before.
// scales: the factor of each entry's gradient row, if requested; of type A.
template <class A>
DEVICE void find_rows(const FindRows& p) {
  constexpr int kThreads = 256, kWarps = kThreads / 32, kWords = 8, kTile = kThreads * kWords;
  if (is_raised(p.checks)) {
    if (blockIdx.x == 0 && threadIdx.x == 0) put_total(p, 0);
    return;
  }
  SHARED;
  uint64_t* ends = reinterpret_cast<uint64_t*>(shared_memory);  // of warps, then of earlier tiles
  const unsigned lane = lane_of_thread(), warp = threadIdx.x / 32u;
  const int64_t tile = blockIdx.x, first = tile * kTile + int64_t(warp) * (32 * kWords);
  const IdsOut rows{p.rows, p.rows_wide != 0};
  uint32_t id[kWords];
  unsigned word[kWords];
#pragma unroll
  for (int j = 0; j < kWords; ++j) {
    const int64_t i = first + j * 32 + lane;
    id[j] = i < p.size ? p.ids[i] : 0;
  }
  if (p.scales) {
    uint32_t segment[kWords];
#pragma unroll
    for (int j = 0; j < kWords; ++j)
      if (first + j * 32 + lane < p.size) segment[j] = p.segments[first + j * 32 + lane];
#pragma unroll
    for (int j = 0; j < kWords; ++j)
      if (first + j * 32 + lane < p.size)
        static_cast<A*>(p.scales)[first + j * 32 + lane] = static_cast<const A*>(p.segment_scales)[segment[j]];
  }
  uint64_t sum = 0;
#pragma unroll
  for (int j = 0; j < kWords; ++j) {
    const int64_t i = first + j * 32 + lane;
    uint32_t before = __shfl_up_sync(kAllLanes, id[j], 1);
    if (lane == 0 && i > 0 && i < p.size) before = p.ids[i - 1];
    const bool begins = i < p.size && (i == 0 || before != id[j]);
    word[j] = __ballot_sync(kAllLanes, begins);
    const unsigned past = __ballot_sync(kAllLanes, i >= p.size);
    if (lane == 0) p.heads[i / 32] = word[j] | past;
    const uint64_t last = word[j] ? uint64_t(first + j * 32 + 32 - __clz(int(word[j]))) : 0;
    sum = joined(sum, uint64_t(__popc(word[j])) << 31 | last);
  }
  if (lane == 0) ends[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    uint64_t own = 0;
    for (int w = 0; w < kWarps; ++w) own = joined(own, ends[w]);
    if (lane == 0) publish(&p.states[tile], (tile == 0 ? kAllRows : kOwnRows) | own);
    const uint64_t earlier = tile == 0 ? 0 : rows_before(p.states, tile);
    if (lane == 0) {
      if (tile != 0) publish(&p.states[tile], kAllRows | joined(earlier, own));
      ends[kWarps] = earlier;
      if (tile == int64_t(gridDim.x) - 1) {
        const int64_t total = int64_t(joined(earlier, own) >> 31 & kPlace);
        if (total > p.most_rows) {
          atomicOr(&p.checks->raised, 1u);
          report(p.fault, p.alarm, fault_rows_exceed_size, -1, total, p.most_rows);
        }
        put_total(p, total);
      }
    }
  }
  __syncthreads();
  uint64_t at = ends[kWarps];
  for (unsigned w = 0; w < warp; ++w) at = joined(at, ends[w]);
#pragma unroll
  for (int j = 0; j < kWords; ++j) {
    const int64_t i = first + j * 32 + lane;
    const uint32_t rows_so_far = uint32_t(at >> 31);
    if ((word[j] >> lane & 1u) && p.rows) {
      const int64_t row = rows_so_far + __popc(word[j] & lanes_before(lane));
      if (row < p.most_rows) {
        rows.put(row, int64_t(id[j]));
        if (p.starts) p.starts[row] = i;
      }
    }
    if (lane == 0 && i < p.size) {
      const bool begins = word[j] & 1u;
      p.firsts[i / kChunk] = begins ? rows_so_far : rows_so_far - 1;
      p.begins[i / kChunk] = begins ? uint32_t(i) : uint32_t(at & kPlace) - 1;
    }
    const uint64_t last = word[j] ? uint64_t(first + j * 32 + 32 - __clz(int(word[j]))) : 0;
    at = joined(at, uint64_t(__popc(word[j])) << 31 | last);
  }
}

}  // namespace rowgrad
