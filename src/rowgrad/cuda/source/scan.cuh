// Prefix sums. A list has as many parts as the grid has blocks: one kernel counts per part, `scan_parts` sums up the
// counts, and a second kernel processes the parts again, each from the sum before it. So the counts per item are never
// stored.
#pragma once
#include "device.cuh"

namespace rowgrad {

struct Part {
  int64_t begin;
  int64_t end;
};

// This block's part of a list.
DEVICE Part part_of(int64_t size) {
  return {size * blockIdx.x / gridDim.x, size * (int64_t(blockIdx.x) + 1) / gridDim.x};
}

// Returns the sum of the values of the threads before this one, and the sum of all in `total`. Called by all threads of
// a block, whose size is a multiple of 32.
template <class N>
DEVICE N scan_block(N value, N& total) {
  __shared__ N sums[32];
  const unsigned lane = threadIdx.x & 31u, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  N through = value;
  for (unsigned d = 1; d < 32; d *= 2) {
    const N below = __shfl_up_sync(0xffffffffu, through, d);
    if (lane >= d) through += below;
  }
  if (lane == 31) sums[warp] = through;
  __syncthreads();
  if (warp == 0) {
    N sum = lane < warps ? sums[lane] : N(0);
    for (unsigned d = 1; d < 32; d *= 2) {
      const N below = __shfl_up_sync(0xffffffffu, sum, d);
      if (lane >= d) sum += below;
    }
    if (lane < warps) sums[lane] = sum;
  }
  __syncthreads();
  const N before = warp == 0 ? N(0) : sums[warp - 1];
  total = sums[warps - 1];
  __syncthreads();
  return before + through - value;
}

template <class N>
DEVICE N sum_of_block(N value) {
  N total;
  scan_block(value, total);
  return total;
}

struct ScanParts {
  int64_t* counts;
  int64_t parts;
  const Checks* unless;
};

// Block b replaces its list, parts + 1 numbers at counts + b * (parts + 1), by exclusive prefix sums; the last element
// becomes the total, or -1 if `unless` is raised.
DEVICE void scan_parts(const ScanParts& p) {
  constexpr int kItems = 8;  // per thread and iteration
  int64_t* counts = p.counts + int64_t(blockIdx.x) * (p.parts + 1);
  int64_t before = 0;
  for (int64_t base = 0; base < p.parts; base += int64_t(blockDim.x) * kItems) {
    const int64_t first = base + int64_t(threadIdx.x) * kItems;
    int64_t items[kItems], sum = 0, total;
    for (int i = 0; i < kItems; ++i) {
      items[i] = first + i < p.parts ? counts[first + i] : 0;
      sum += items[i];
    }
    int64_t sofar = before + scan_block(sum, total);
    for (int i = 0; i < kItems; ++i) {
      if (first + i < p.parts) counts[first + i] = sofar;
      sofar += items[i];
    }
    before += total;
  }
  if (threadIdx.x == 0) counts[p.parts] = p.unless && is_raised(p.unless) ? -1 : before;
}

struct SortCount {
  const int64_t* keys;
  int64_t step;
  int64_t size;
  int64_t shift;
  int64_t* counts;
};

// Stable radix sort of non-negative keys, eight bits at a time from the lowest. Both kernels have 256 threads, one per
// value of the eight bits. First kernel: counts each value per part.
DEVICE void sort_count(const SortCount& p) {
  __shared__ uint32_t seen[256];
  seen[threadIdx.x] = 0;
  __syncthreads();
  const Part part = part_of(p.size);
  for (int64_t i = part.begin + threadIdx.x; i < part.end; i += blockDim.x)
    atomicAdd(&seen[uint64_t(p.keys[i * p.step]) >> p.shift & 255u], 1u);
  __syncthreads();
  p.counts[int64_t(threadIdx.x) * gridDim.x + blockIdx.x] = seen[threadIdx.x];
}

struct SortMove {
  const int64_t* keys;
  int64_t step;
  const int64_t* order;
  int64_t size;
  int64_t shift;
  const int64_t* counts;
  int64_t* to_keys;
  int64_t* to_order;
};

// Second kernel: moves keys and their original positions. `order` null: keys are in their original order.
DEVICE void sort_move(const SortMove& p) {
  __shared__ int64_t next[256];
  __shared__ uint32_t seen[8][256];
  const unsigned mine = threadIdx.x, lane = mine & 31u, warp = mine >> 5;
  next[mine] = p.counts[int64_t(mine) * gridDim.x + blockIdx.x];
  const Part part = part_of(p.size);
  for (int64_t base = part.begin; base < part.end; base += 256) {
    for (int w = 0; w < 8; ++w) seen[w][mine] = 0;
    __syncthreads();
    const int64_t i = base + mine;
    const bool is_in = i < part.end;
    const int64_t key = is_in ? p.keys[i * p.step] : 0;
    const unsigned digit = is_in ? unsigned(uint64_t(key) >> p.shift & 255u) : 256u;
    const unsigned same = __match_any_sync(0xffffffffu, digit);
    const unsigned rank = __popc(same & ((1u << lane) - 1u));
    if (is_in && rank == 0) seen[warp][digit] = __popc(same);
    __syncthreads();
    uint32_t sofar = 0;
    for (int w = 0; w < 8; ++w) {
      const uint32_t count = seen[w][mine];
      seen[w][mine] = sofar;
      sofar += count;
    }
    __syncthreads();
    if (is_in) {
      const int64_t to = next[digit] + seen[warp][digit] + rank;
      p.to_keys[to] = key;
      p.to_order[to] = p.order ? p.order[i] : i;
    }
    __syncthreads();
    next[mine] += sofar;
  }
}

}  // namespace rowgrad
