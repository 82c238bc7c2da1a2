// Gather: copies rows of a table, bit for bit.
#pragma once
#include "device.cuh"

namespace rowgrad {

struct CheckGather {
  const void* ids;
  int64_t wide;
  int64_t size;
  int64_t bound;
  int64_t code;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Validates that every id is in [0, bound); reports the first that is not as `code`.
DEVICE void check_gather(const CheckGather& p) {
  const Ids ids{p.ids, p.wide != 0};
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  bool bad = false;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += stride)
    bad |= !is_below(ids[i], p.bound);
  if (!must_report(p.checks, bad)) return;
  int64_t i = 0;
  while (is_below(ids[i], p.bound)) ++i;
  report(p.fault, p.alarm, p.code, i, ids[i], p.bound);
}

struct GatherRows {
  const uint8_t* source;
  uint8_t* to;
  const void* ids;
  int64_t wide;
  int64_t size;
  int64_t row_units;
  const Checks* checks;
};

// U is the unit to copy, as wide as rows and addresses allow. Threads of a block copy consecutive units.
template <class U>
DEVICE void gather_rows(const GatherRows& p) {
  if (is_raised(p.checks)) return;
  const Ids ids{p.ids, p.wide != 0};
  const U* from = reinterpret_cast<const U*>(p.source);
  U* to = reinterpret_cast<U*>(p.to);
  const int64_t total = p.size * p.row_units, stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += stride) {
    const int64_t row = i / p.row_units;
    to[i] = from[ids[row] * p.row_units + (i - row * p.row_units)];
  }
}

}  // namespace rowgrad
