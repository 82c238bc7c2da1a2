// Optimizer steps of many tables in one call: what describes a step, and steps from row-sparse gradients.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "rowgrad/sparse_apply.h"

namespace rowgrad {

// One step of one table, as its optimizer describes it.
struct TableUpdate {
  void* data;
  std::array<void*, kMostSlots> slots;
  std::int64_t rows, cols;
  Rule rule;
  bool lazy, random;
  std::uint64_t seed, step;
  const double* numbers;  // in the order of ROWGRAD_STEP_NUMBERS

  bool skips_rest() const { return lazy || !fades(rule); }

  template <class T>
  RowUpdate<T> rows_of() const {
    using A = Accumulator<T>;
    const double* number = numbers;
    RowUpdate<T> u{};
    u.rule = rule;
    u.table = static_cast<T*>(data);
    for (int s = 0; s < slots_of(rule); ++s) u.slots[s] = static_cast<A*>(slots[static_cast<std::size_t>(s)]);
    u.rows = rows;
    u.cols = cols;
#define ROWGRAD_NUMBER(name) u.name = A(*number++);
    ROWGRAD_STEP_NUMBERS(ROWGRAD_NUMBER)
#undef ROWGRAD_NUMBER
    u.random = random;
    u.key = random_key(seed, step);
    return u;
  }
};

// A part of the work of one owner: a table, or a feature.
struct OwnedRange {
  std::int64_t owner, begin, end;
};

constexpr std::int64_t kInlineWork = 1 << 15;  // elements that one thread handles faster than several

// Cuts [0, n) of one owner into ranges of about equal work, a few per thread in all; `own` of `work` elements are its.
inline void add_ranges(std::vector<OwnedRange>& ranges, std::int64_t owner, std::int64_t n, std::int64_t own,
                       std::int64_t work) {
  if (n == 0) return;
  const std::int64_t grain = std::max<std::int64_t>(work / (num_threads() * 8), kInlineWork / 2);
  const std::int64_t parts = num_threads() > 1 ? std::clamp<std::int64_t>(own / grain, 1, n) : 1;
  for (std::int64_t p = 0; p < parts; ++p) ranges.push_back({owner, n * p / parts, n * (p + 1) / parts});
}

// Calls fn(task), on several threads if there is enough work.
template <class Fn>
void each_task(std::int64_t tasks, std::int64_t work, const Fn& fn) {
  if (work < kInlineWork || tasks < 2)
    for (std::int64_t t = 0; t < tasks; ++t) fn(t);
  else
    parallel_tasks(tasks, fn);
}

// The row-sparse gradient of one table: `size` rows and their ids, int64, strictly ascending.
struct RowsOfTable {
  const std::int64_t* ids;
  const void* rows;
  std::int64_t size;
};

// Returns the first table whose ids do not ascend or are out of range, or -1.
inline std::int64_t first_invalid(std::span<const TableUpdate> steps, std::span<const RowsOfTable> gradients) {
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (check_ascending(Ids(gradients[i].ids, gradients[i].size, true), steps[i].rows, Fault::row_ids))
      return std::int64_t(i);
  return -1;
}

// Updates the rows of every table in place. Ids were validated, and are bounded where they are read again.
template <class T>
void apply_rows(std::span<const TableUpdate> steps, std::span<const RowsOfTable> gradients) {
  constexpr std::int64_t ahead = 8;  // rows to prefetch
  std::vector<RowUpdate<T>> updates;
  std::vector<OwnedRange> ranges;
  std::int64_t work = 0;
  updates.reserve(steps.size());
  for (const TableUpdate& s : steps) updates.push_back(s.template rows_of<T>());
  for (std::size_t i = 0; i < steps.size(); ++i) work += gradients[i].size * work_per_row(updates[i]);
  for (std::size_t i = 0; i < steps.size(); ++i)
    add_ranges(ranges, std::int64_t(i), gradients[i].size, gradients[i].size * work_per_row(updates[i]), work);
  each_task(std::int64_t(ranges.size()), work, [&](std::int64_t t) {
    const OwnedRange range = ranges[static_cast<std::size_t>(t)];
    const auto i = static_cast<std::size_t>(range.owner);
    const IdList ids{gradients[i].ids, gradients[i].size, true};
    const T* rows = static_cast<const T*>(gradients[i].rows) + range.begin * updates[i].cols;
    update_ops<T>().listed(updates[i], rows, ids, range.begin, range.end, ahead);
  });
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (!steps[i].skips_rest()) fade_other_rows(updates[i], Ids(gradients[i].ids, gradients[i].size, true));
}

}  // namespace rowgrad
