// SparseSlice, its gradient, and the transpose of the gradient.
#pragma once
#include "coordinates.cuh"

namespace rowgrad {

// Maps signed numbers to unsigned ones in the same order.
DEVICE uint64_t ordered(int64_t x) { return uint64_t(x) ^ 0x8000000000000000ull; }

struct SliceCount {
  const int64_t* indices;
  int64_t size;
  int64_t rank;
  const int64_t* start;
  const int64_t* last;
  int64_t* counts;
};

// Whether an entry is in [start[d], last[d]] in every dimension; start[d] <= last[d].
DEVICE bool is_in_slice(const int64_t* entry, const int64_t* start, const int64_t* last, int64_t rank) {
  bool is_in = true;
  for (int64_t d = 0; d < rank; ++d)
    is_in &= uint64_t(wrapping_minus(entry[d], start[d])) <= uint64_t(wrapping_minus(last[d], start[d]));
  return is_in;
}

DEVICE void slice_count(const SliceCount& p) {
  const Part part = part_of(p.size);
  int64_t kept = 0;
  for (int64_t i = part.begin + threadIdx.x; i < part.end; i += blockDim.x)
    kept += is_in_slice(p.indices + i * p.rank, p.start, p.last, p.rank);
  kept = sum_of_block(kept);
  if (threadIdx.x == 0) p.counts[blockIdx.x] = kept;
}

struct SliceMove {
  const int64_t* indices;
  int64_t size;
  int64_t rank;
  const int64_t* start;
  const int64_t* last;
  const int64_t* counts;
  const uint8_t* values;
  int64_t* to_indices;
  uint8_t* to_values;
};

// Uses the grid of `slice_count`: writes the entries of the slice, relative to its start.
template <class U>
DEVICE void slice_move(const SliceMove& p) {
  const U* values = reinterpret_cast<const U*>(p.values);
  U* to_values = reinterpret_cast<U*>(p.to_values);
  const Part part = part_of(p.size);
  int64_t before = p.counts[blockIdx.x];
  for (int64_t base = part.begin; base < part.end; base += blockDim.x) {
    const int64_t i = base + threadIdx.x, *entry = p.indices + i * p.rank;
    const uint32_t is_kept = i < part.end && is_in_slice(entry, p.start, p.last, p.rank);
    uint32_t total;
    const int64_t to = before + scan_block(is_kept, total);
    before += total;
    if (!is_kept) continue;
    for (int64_t d = 0; d < p.rank; ++d) p.to_indices[to * p.rank + d] = wrapping_minus(entry[d], p.start[d]);
    to_values[to] = values[i];
  }
}

// The gradient and its transpose make one greedy pass over the input: each output entry, in order, takes the next input
// entry it equals. Input entries outside the bounding box of all output entries are never taken. If the entries inside
// equal the output entries one by one, the pass takes exactly them: always the case for results of SparseSlice, in any
// order. For any other input, one warp makes the pass.

struct SliceBox {
  const int64_t* start;
  const int64_t* output;
  int64_t size;
  int64_t rank;
  uint64_t* box;
};

// The bounding box of all output entries in input coordinates. In each dimension `box` holds the complement of the
// minimum, and the maximum, as ordered unsigned numbers, so that both grow from zero.
DEVICE void slice_box(const SliceBox& p) {
  for (int64_t d = 0; d < p.rank; ++d) {
    uint64_t low = 0, high = 0;
    const int64_t stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t k = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; k < p.size; k += stride) {
      const uint64_t moved = ordered(plus(p.output[k * p.rank + d], p.start[d]));
      low = ~moved > low ? ~moved : low;
      high = moved > high ? moved : high;
    }
    for (unsigned with = 16; with > 0; with /= 2) {
      const uint64_t other_low = __shfl_xor_sync(0xffffffffu, low, with);
      const uint64_t other_high = __shfl_xor_sync(0xffffffffu, high, with);
      low = other_low > low ? other_low : low;
      high = other_high > high ? other_high : high;
    }
    if ((threadIdx.x & 31u) != 0) continue;
    atomicMax(&p.box[2 * d], low);
    atomicMax(&p.box[2 * d + 1], high);
  }
}

DEVICE bool is_in_box(const int64_t* entry, const uint64_t* box, int64_t rank) {
  bool is_in = true;
  for (int64_t d = 0; d < rank; ++d) is_in &= ordered(entry[d]) >= ~box[2 * d] && ordered(entry[d]) <= box[2 * d + 1];
  return is_in;
}

DEVICE bool is_sliced_from(const int64_t* output, const int64_t* input, const int64_t* start, int64_t rank) {
  bool is_same = true;
  for (int64_t d = 0; d < rank; ++d) is_same &= wrapping_minus(input[d], start[d]) == output[d];
  return is_same;
}

struct BoxCount {
  const int64_t* input;
  int64_t size;
  int64_t rank;
  const uint64_t* box;
  int64_t* counts;
};

DEVICE void box_count(const BoxCount& p) {
  const Part part = part_of(p.size);
  int64_t inside = 0;
  for (int64_t i = part.begin + threadIdx.x; i < part.end; i += blockDim.x)
    inside += is_in_box(p.input + i * p.rank, p.box, p.rank);
  inside = sum_of_block(inside);
  if (threadIdx.x == 0) p.counts[blockIdx.x] = inside;
}

struct BoxMatch {
  const int64_t* input;
  int64_t size;
  int64_t rank;
  const int64_t* start;
  const int64_t* output;
  int64_t output_size;
  const uint64_t* box;
  const int64_t* counts;
  int64_t* taken;
  Checks* differ;
};

// Uses the grid of `box_count`: the input entry that each output entry takes; raises `differ` if the general pass is
// needed.
DEVICE void box_match(const BoxMatch& p) {
  const Part part = part_of(p.size);
  int64_t before = p.counts[blockIdx.x];
  bool differs = p.counts[gridDim.x] != p.output_size;
  for (int64_t base = part.begin; base < part.end; base += blockDim.x) {
    const int64_t i = base + threadIdx.x, *entry = p.input + i * p.rank;
    const uint32_t is_inside = i < part.end && is_in_box(entry, p.box, p.rank);
    uint32_t total;
    const int64_t k = before + scan_block(is_inside, total);
    before += total;
    if (!is_inside) continue;
    if (k < p.output_size && is_sliced_from(p.output + k * p.rank, entry, p.start, p.rank))
      p.taken[k] = i;
    else
      differs = true;
  }
  if (differs) atomicOr(&p.differ->raised, 1u);
}

struct SliceWalk {
  const int64_t* input;
  int64_t size;
  int64_t rank;
  const int64_t* start;
  const int64_t* output;
  int64_t output_size;
  int64_t* taken;
  const Checks* differ;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// One warp: the general pass, 32 input entries at a time, one match after the other. Slow, and only needed for output
// entries that are not from a slice. Output entries that are left over are a fault.
DEVICE void slice_walk(const SliceWalk& p) {
  if (!is_raised(p.differ)) return;
  const unsigned lane = threadIdx.x;
  int64_t k = 0;
  for (int64_t base = 0; base < p.size && k < p.output_size; base += 32) {
    const int64_t i = base + lane;
    unsigned ahead = 0xffffffffu;  // lanes that are not passed yet
    while (k < p.output_size) {
      const bool is_match = (ahead >> lane & 1u) && i < p.size &&
                            is_sliced_from(p.output + k * p.rank, p.input + i * p.rank, p.start, p.rank);
      const unsigned matches = __ballot_sync(0xffffffffu, is_match);
      if (matches == 0) break;
      const unsigned first = __ffs(int(matches)) - 1;
      if (lane == first) p.taken[k] = i;
      ++k;
      ahead = first == 31 ? 0 : 0xffffffffu << (first + 1);
    }
  }
  if (k == p.output_size || lane != 0) return;
  p.checks->raised = 1;
  report(p.fault, p.alarm, fault_slice_left_over, -1, k, p.output_size);
}

struct SliceSpread {
  const int64_t* taken;
  int64_t size;
  const uint8_t* grad;
  uint8_t* to;
  const Checks* checks;
};

// For an output that holds zeros: writes every output entry's value to the input entry it took.
template <class U>
DEVICE void slice_spread(const SliceSpread& p) {
  if (is_raised(p.checks)) return;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t k = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; k < p.size; k += stride)
    reinterpret_cast<U*>(p.to)[p.taken[k]] = reinterpret_cast<const U*>(p.grad)[k];
}

struct SlicePick {
  const int64_t* taken;
  int64_t size;
  const uint8_t* grad;
  uint8_t* to;
  const Checks* checks;
};

// The transpose.
template <class U>
DEVICE void slice_pick(const SlicePick& p) {
  if (is_raised(p.checks)) return;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t k = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; k < p.size; k += stride)
    reinterpret_cast<U*>(p.to)[k] = reinterpret_cast<const U*>(p.grad)[p.taken[k]];
}

}  // namespace rowgrad
