// Weighted bags: Σwx, Σwx/Σw and Σwx/√Σw², in the order of SegmentSum.
//
//   weighted_bags  validates and sums bags of ascending segments;
//   rest_of_weighted_bags  has nothing to do if all segments ascend, all ids are valid and all bags are short. Else it
//     sums the long bags; or it sorts the segments and sums all bags; or it reports the first fault.
#pragma once
#include "segment_forward.cuh"
#include "sorting.cuh"
#include "weighted_segment.cuh"

namespace rowgrad {

constexpr int64_t kLongestAlone = 256;             // ids of a bag that one group of lanes sums
constexpr uint32_t kUnordered = 1, kHasLong = 2;  // what is left: ids are bad or segments do not ascend; long bags

// What `weighted_bags` leaves to the rest, whose blocks take tickets: in order, each phase after the one before.
struct RestState {
  uint32_t left;
  uint32_t tickets;
  uint32_t bad;      // whether an id or a segment is out of range
  uint32_t done[6];  // tickets of each phase: zeros, the scan of ids, at most four passes of the sort
};

// Sums of one bag; W is the type of weights.
template <class T, class W>
struct WeightedSums {
  typedef Accumulator<T> A;
  const T* const data;
  const W* const weights;
  T* const out;
  const int64_t columns;
  const bool has_divisor;
  const Divisor<A> divisor;

  template <class P>
  explicit DEVICE WeightedSums(const P& p)
      : data(static_cast<const T*>(p.data)),
        weights(static_cast<const W*>(p.weights)),
        out(static_cast<T*>(p.out)),
        columns(p.columns),
        has_divisor(p.has_divisor != 0),
        divisor{p.is_squared != 0} {}

  DEVICE A weight(int64_t i) const { return convert_to(load(weights[i]), A()); }
  DEVICE A term(int64_t i) const { return divisor.term(weight(i)); }
  DEVICE T result(A sum, A total) const { return store<T>(has_divisor ? over_no_nan(sum, total) : sum); }

  // Sums the n ids of a bag, for the columns c, c + step, … and the next V - 1 of each. `id(j)` is the j-th id, and
  // `at(j)` the position of its weight.
  template <int V, class Id, class At>
  DEVICE void put(int64_t bag, int64_t n, int64_t c, int64_t step, const Id& id, const At& at) const {
    A total = A(0);
    if (has_divisor) {
#pragma unroll 4
      for (int64_t j = 0; j < n; ++j) total = plus(total, term(at(j)));
      total = divisor.of(total);
    }
    auto add = [](A a, A b) { return plus(a, b); };
    for (; c < columns; c += step) {
      const LaneOfRows<T> rows(data, columns, c);
      auto product = [&](int64_t j) {
        const A factor = weight(at(j));
        const Pack<T, V> x = fetch<T, V>(rows[id(j)]);
        Columns<A, V> products;
        for (int v = 0; v < V; ++v) products.at[v] = times(load(x.at[v]), factor);
        return products;
      };
      const Columns<A, V> sum = n == 1 ? product(0) : sum_of_segment<T, V, A>(n, c, columns, product, add);
      Pack<T, V> results;
      for (int v = 0; v < V; ++v) results.at[v] = result(sum.at[v], total);
      put_pack<V>(out + bag * columns + c, results);
    }
  }

  // Sums a long bag for the columns of a chunk; called by a whole block.
  template <class Id, class At>
  DEVICE void put_long(int64_t bag, int64_t n, int64_t first, const Id& id, const At& at) const {
    A total = A(0);
    if (has_divisor) {
      SHARED;
      A* shared_total = reinterpret_cast<A*>(shared_memory);
      if (threadIdx.x < 32) {
        total = sum_by_warp<A>(n, [&](int64_t j) { return term(at(j)); });
        if (threadIdx.x == 0) *shared_total = divisor.of(total);
      }
      __syncthreads();
      total = *shared_total;
      __syncthreads();  // it has been read
    }
    sum_long_segment<A>(
        n, columns, first,
        [&](int64_t j, int64_t c) { return times(load(data[id(j) * columns + c]), weight(at(j))); },
        [](A a, A b) { return plus(a, b); },
        [&](int64_t c, A sum) { out[bag * columns + c] = result(sum, total); });
  }
};

struct WeightedBags {
  const void* data;
  void* out;
  int64_t columns;
  int64_t lanes;
  const void* ids;
  int64_t ids_wide;
  const void* segments;
  int64_t segments_wide;
  const void* weights;
  int64_t size;
  int64_t rows;
  int64_t bags;
  int64_t block_bags;
  int64_t capacity;
  int64_t has_divisor;
  int64_t is_squared;
  RestState* rest;
  Checks* checks;
};

// Sums the bags of a block, a group of lanes each; returns whether it left a long one. `ids` are those of the block.
template <class T, int V, class W, class I>
DEVICE bool sum_short_bags(const WeightedBags& p, int64_t first, const BlockOfBags& block, const I* ids) {
  const WeightedSums<T, W> sums(p);
  const int lanes = int(p.lanes), lane = threadIdx.x % lanes, groups = blockDim.x / lanes;
  const int64_t column = (int64_t(blockIdx.y) * lanes + lane) * V;
  bool has_long = false;
  for (int bag = threadIdx.x / lanes; bag < block.bags; bag += groups) {
    const int64_t begin = block.starts[bag], n = block.starts[bag + 1] - begin;
    const I* own = ids + (begin - block.starts[0]) + (Same<I, uint32_t>::value ? bag : 0);
    if (n > kLongestAlone)
      has_long = true;
    else
      sums.template put<V>(
          first + bag, n, column, p.columns, [&](int64_t j) { return own[j]; },
          [&](int64_t j) { return begin + j; });
  }
  return has_long;
}

// Called at the end by all blocks: the last one stores what is left, and resets the checks.
DEVICE void leave_rest(const WeightedBags& p, uint32_t left) {
  if (left && threadIdx.x == 0) atomicOr(&p.checks->raised, left);
  if (!is_last_of_grid(p.checks)) return;
  RestState rest{};
  rest.left = *static_cast<volatile uint32_t*>(&p.checks->raised);
  *p.rest = rest;
  p.checks->finished = 0;
  p.checks->raised = 0;
}

// Each block finds consecutive bags and lists their ids, as in sum_bags. V columns per lane.
template <class T, int V, class W>
DEVICE void weighted_bags(const WeightedBags& p) {
  SHARED;
  BlockOfBags block;
  block.starts = reinterpret_cast<int64_t*>(shared_memory);
  block.list = reinterpret_cast<uint32_t*>(block.starts + p.block_bags + 2);
  const int64_t first = blockIdx.x * p.block_bags, rest = p.bags - first;
  block.bags = int(rest < p.block_bags ? rest : p.block_bags);
  if (find_bags_of(p, first, block)) return leave_rest(p, kUnordered);
  bool has_long;
  if (block.is_listed)
    has_long = sum_short_bags<T, V, W>(p, first, block, block.list);
  else if (p.ids_wide)
    has_long = sum_short_bags<T, V, W>(p, first, block, static_cast<const int64_t*>(p.ids) + block.starts[0]);
  else
    has_long = sum_short_bags<T, V, W>(p, first, block, static_cast<const int32_t*>(p.ids) + block.starts[0]);
  leave_rest(p, any_thread(has_long) ? kHasLong : 0);
}

// -- The rest ---------------------------------------------------------------------------------------------------------

struct RestOfWeightedBags {
  const void* data;
  void* out;
  int64_t columns;
  int64_t log_lanes;
  const void* ids;
  int64_t ids_wide;
  const void* segments;
  int64_t segments_wide;
  const void* weights;
  int64_t size;
  int64_t rows;
  int64_t bags;
  int64_t has_divisor;
  int64_t is_squared;
  uint64_t poison;
  int64_t poisons;
  int64_t passes;
  int64_t bits;
  uint32_t* histograms;
  uint32_t* states;
  int64_t zeroed;
  uint64_t* pairs;
  uint64_t* other_pairs;
  uint32_t* sorted;
  uint32_t* positions;
  RestState* rest;
  Fault* fault;
  int64_t* alarm;
};

DEVICE void report_bad_weighted(const RestOfWeightedBags& p) {
  const Ids ids{p.ids, p.ids_wide != 0}, segments{p.segments, p.segments_wide != 0};
  int64_t i = 0;
  while (i < p.size && is_below(ids[i], p.rows)) ++i;
  if (i < p.size) return report(p.fault, p.alarm, fault_index_not_in_params, i, ids[i], p.rows);
  for (i = 0; is_below(segments[i], p.bags);) ++i;
  report(p.fault, p.alarm, fault_segment_not_in_grad, i, segments[i], p.bags);
}

// Waits until `count` tickets of a phase are done; called by a whole block.
DEVICE void wait_for_phase(const RestState* rest, int phase, int64_t count) {
  if (threadIdx.x == 0) {
    while (int64_t(read_state(&rest->done[phase])) < count) continue;
    __threadfence();
  }
  __syncthreads();
}

// Validates ids and segments, and sorts the segments; returns whether all are valid. A block takes the next ticket until
// there are no more. It waits only for tickets before its own, which other blocks have begun: so it does not matter how
// many blocks run at once.
DEVICE bool sort_segments(const RestOfWeightedBags& p) {
  constexpr int kItems = 8;
  constexpr int64_t kTile = 512 * kItems;
  SHARED;
  const int64_t blocks = gridDim.x, tiles = (p.size + kTile - 1) / kTile, all = 2 * blocks + p.passes * tiles;
  const auto is_bad = [&] { return read_state(&p.rest->bad) != 0; };
  for (;;) {
    __syncthreads();  // the memory is no longer used
    uint32_t* shared_ticket = reinterpret_cast<uint32_t*>(shared_memory);
    if (threadIdx.x == 0) *shared_ticket = atomicAdd(&p.rest->tickets, 1u);
    __syncthreads();
    const int64_t ticket = *shared_ticket;
    __syncthreads();
    if (ticket >= all) break;
    const int phase = ticket < blocks ? 0 : ticket < 2 * blocks ? 1 : int(2 + (ticket - 2 * blocks) / tiles);
    if (phase > 0) wait_for_phase(p.rest, phase == 1 ? 0 : 1, blocks);
    if (phase > 1 && is_bad()) return false;  // before waiting for a pass, which nobody completes then
    if (phase > 2) wait_for_phase(p.rest, phase - 1, tiles);
    if (phase == 0) {
      for (int64_t i = ticket * blockDim.x + threadIdx.x; i < p.zeroed; i += blocks * blockDim.x) p.histograms[i] = 0;
    } else if (phase == 1) {
      ScanIds scan{};
      scan.ids = p.segments;
      scan.ids_wide = p.segments_wide;
      scan.size = p.size;
      scan.rows = p.bags;
      scan.passes = p.passes;
      scan.bits = p.bits;
      scan.histograms = p.histograms;
      bool bad = scan_block(scan, ticket - blocks, blocks);
      const Ids ids{p.ids, p.ids_wide != 0};
      for (int64_t i = (ticket - blocks) * blockDim.x + threadIdx.x; i < p.size; i += blocks * blockDim.x)
        bad |= !is_below(ids[i], p.rows);
      if (bad) atomicOr(&p.rest->bad, 1u);
    } else {
      const int number = phase - 2;
      SortPass pass{};
      pass.ids = p.segments;
      pass.ids_wide = p.segments_wide;
      pass.pairs = number == 0 ? nullptr : number % 2 ? p.pairs : p.other_pairs;
      pass.sorted = number == p.passes - 1 ? nullptr : number % 2 ? p.other_pairs : p.pairs;
      pass.sorted_ids = p.sorted;
      pass.sorted_values = p.positions;
      pass.size = p.size;
      pass.shift = number * p.bits;
      pass.bits = p.bits;
      pass.histogram = p.histograms + (int64_t(number) << p.bits);
      pass.states = p.states + (number * tiles << p.bits);
      sort_tile<kItems>(pass, ticket - 2 * blocks - number * tiles);
    }
    __syncthreads();
    if (threadIdx.x != 0) continue;
    __threadfence();  // after the barrier, so that it covers what all threads have written
    if (int64_t(atomicAdd(&p.rest->done[phase], 1u)) + 1 == blocks && phase == 1 && is_bad()) report_bad_weighted(p);
  }
  wait_for_phase(p.rest, 1, blocks);
  if (is_bad()) return false;
  wait_for_phase(p.rest, int(p.passes) + 1, tiles);
  return true;
}

// The ids of each bag, in input order: the lists as passed if segments ascend, else in the order of `positions`.
struct BagOrder {
  Ids segments;  // ascending
  const uint32_t* positions;
  int64_t size;

  // Returns how many segments are below one.
  DEVICE int64_t below(int64_t segment) const {
    int64_t low = 0;
    for (int64_t high = size; low < high;) {
      const int64_t middle = (low + high) / 2;
      if (segments[middle] < segment)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
  DEVICE int64_t at(int64_t k) const { return positions ? int64_t(positions[k]) : k; }
};

template <class T, int V, class W>
DEVICE void rest_of_weighted_bags(const RestOfWeightedBags& p) {
  const uint32_t left = p.rest->left;
  if (left == 0) return;
  const bool is_unordered = left & kUnordered;
  const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, threads = int64_t(gridDim.x) * blockDim.x;
  if (is_unordered && !sort_segments(p)) {
    if (p.poisons) fill_with<T>(p.out, p.bags * p.columns, p.poison, thread, threads);
    return;
  }
  const BagOrder order = is_unordered ? BagOrder{{p.sorted, false}, p.positions, p.size}
                                      : BagOrder{{p.segments, p.segments_wide != 0}, nullptr, p.size};
  const WeightedSums<T, W> sums(p);
  const Ids ids{p.ids, p.ids_wide != 0};
  if (is_unordered) {
    const int64_t lanes = int64_t(1) << p.log_lanes;
    for (int64_t bag = thread >> p.log_lanes; bag < p.bags; bag += threads >> p.log_lanes) {
      const int64_t begin = order.below(bag), n = order.below(bag + 1) - begin;
      if (n > kLongestAlone) continue;
      sums.template put<V>(
          bag, n, (thread & (lanes - 1)) * V, lanes * V, [&](int64_t j) { return ids[order.at(begin + j)]; },
          [&](int64_t j) { return order.at(begin + j); });
    }
  }
  // A long bag has an id at a multiple of its least size; the first such id stands for it.
  constexpr int64_t kLeast = kLongestAlone + 1;
  const int64_t chunks = (p.columns + kLongChunk - 1) / kLongChunk, items = (p.size + kLeast - 1) / kLeast * chunks;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t k = item / chunks, bag = order.segments[k * kLeast];
    const int64_t begin = order.below(bag), n = order.below(bag + 1) - begin;
    if (n < kLeast || (begin + kLongestAlone) / kLeast != k) continue;
    sums.put_long(
        bag, n, (item - k * chunks) * kLongChunk, [&](int64_t j) { return ids[order.at(begin + j)]; },
        [&](int64_t j) { return order.at(begin + j); });
  }
}

}  // namespace rowgrad
