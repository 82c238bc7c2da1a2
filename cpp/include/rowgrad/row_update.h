// Optimizer rules: the update of one row of a table and its slots. docs/reference/optimizers.md has the formulas.
//
// The arithmetic is compiled once per instruction-set level (update_rows.cpp), column by column as in rows.h, so all
// levels return the same bits; `update_ops<T>()` returns the table of this machine.
#pragma once
#include <cstdint>

#include "rowgrad/dtype.h"
#include "rowgrad/enums.h"
#include "rowgrad/rows.h"

namespace rowgrad {

// Returns how many elements of a slot belong to one row.
static constexpr std::int64_t slot_size(Rule rule, std::int64_t cols) { return is_per_row(rule) ? 1 : cols; }

// One optimizer step on one table. Hyperparameters, slots and all arithmetic are in the accumulator's type.
template <class T>
struct RowUpdate {
  using A = Accumulator<T>;
  Rule rule;
  T* table;
  A* slots[kMostSlots];  // slots_of(rule) of them
  std::int64_t rows, cols;
#define ROWGRAD_NUMBER(name) A name;
  ROWGRAD_STEP_NUMBERS(ROWGRAD_NUMBER)
#undef ROWGRAD_NUMBER
  bool random;  // stochastic rounding of 16-bit weights
  std::uint64_t key;  // of the random numbers
};

// Always inlined: GCC treats the function by itself as having no effect and drops calls to it.
[[gnu::always_inline]] static inline void prefetch_bytes(const void* p, std::int64_t bytes) {
  constexpr std::int64_t most = 4096;  // beyond that the hardware prefetcher has detected the pattern
  for (std::int64_t b = 0; b < bytes && b < most; b += 64) __builtin_prefetch(static_cast<const char*>(p) + b);
}

// Prefetches a row of the table and its slots.
template <class T>
[[gnu::always_inline]] static inline void prefetch_row(const RowUpdate<T>& u, std::int64_t row) {
  prefetch_bytes(u.table + row * u.cols, u.cols * std::int64_t(sizeof(T)));
  const std::int64_t size = slot_size(u.rule, u.cols);
  for (int s = 0; s < slots_of(u.rule); ++s)
    prefetch_bytes(u.slots[s] + row * size, size * std::int64_t(sizeof(Accumulator<T>)));
}

template <class T>
struct UpdateOps {
  // Updates rows ids[begin], …, ids[end - 1] with the rows of `grad`, starting at its first row, and prefetches the row
  // that is `ahead` places further on in the list.
  void (*listed)(const RowUpdate<T>&, const T* grad, const IdList& ids, std::int64_t begin, std::int64_t end,
                std::int64_t ahead);
  // Updates rows [first, last) of the table with the same rows of `grad`.
  void (*all)(const RowUpdate<T>&, const T* grad, std::int64_t first, std::int64_t last);
  // Updates rows [first, last), which have no gradient: moments decay and still move the weights.
  void (*fade)(const RowUpdate<T>&, std::int64_t first, std::int64_t last);
};

template <class T>
const UpdateOps<T>& update_ops();

// -- counter-based random numbers: one per (seed, step, row, column), in any order and on any thread ------------------

static inline std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static inline std::uint64_t random_key(std::uint64_t seed, std::uint64_t step) {
  return splitmix64(splitmix64(seed) ^ step);
}

}  // namespace rowgrad
