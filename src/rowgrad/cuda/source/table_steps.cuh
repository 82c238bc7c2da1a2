// Steps of many tables, fused with the gradients of their features' bags; feature_bags.cuh describes the stack.
#pragma once
#include "row_steps.cuh"
#include "segment_grad.cuh"

namespace rowgrad {

// Gradients of the outputs of features, each in memory of its own: segment s is bag s mod 2^shift of feature s >> shift.
template <class T>
struct FeatureGradients {
  const int64_t* grads;
  int64_t row_bytes;
  int shift;
  int64_t offset;  // of the first column, in bytes

  DEVICE const T* operator[](uint32_t segment) const {
    const int64_t bag = int64_t(segment & ((1u << shift) - 1u));
    return reinterpret_cast<const T*>(grads[segment >> shift] + bag * row_bytes + offset);
  }
};

template <class T, int W, class P>
DEVICE FeatureGradients<T> gradients_of(const P& p) {
  return {p.grads, p.grad_stride * int64_t(sizeof(T)), int(p.segment_shift), column_of<W>(p) * int64_t(sizeof(T))};
}

struct ConsecutiveRow {
  DEVICE bool reads_ids() const { return false; }
  DEVICE uint32_t operator()(uint32_t number, uint32_t) const { return number; }
};

struct SumFeatureRows {
  const int64_t* grads;
  int64_t grad_stride;
  int64_t segment_shift;
  int64_t ignored_row;
  SUM_FIELDS;
};

// Whether an entry is one of the last row, that of ignored ids. Its sum is not used: only a worker with entries of the row
// before it may add some of them.
template <class P>
DEVICE bool is_ignored(const P& p, int entry) {
  return p.ignored_row >= 0 && p.ids[entry] == uint32_t(p.ignored_row);
}

template <class T, int W, int MODE>
DEVICE void sum_feature_rows(const SumFeatureRows& p) {
  sum_rows_of<T, W, MODE>(p, gradients_of<T, W>(p), ConsecutiveRow());
}

// A table of the stack; `table` is null if this step does not update it.
struct TableEntry {
  int64_t row_first;
  void* table;
  void* slot0;
  void* slot1;
  int64_t seed;
};

struct StepTableRows {
  const TableEntry* tables;
  int64_t count_tables;
  const int64_t* grads;
  int64_t grad_stride;
  int64_t segment_shift;
  UPDATE_FIELDS;
  const void* grad;
  const void* ids;
  int64_t wide;
  int64_t size;
  const int64_t* count;
  const int64_t* starts;
  int64_t entries;
  const uint32_t* segments;
  const void* scales;
  const Checks* checks;
};

template <class T>
DEVICE const void* row_of_segment(const StepTableRows& p, uint32_t segment) {
  return FeatureGradients<T>{p.grads, p.grad_stride * int64_t(sizeof(T)), int(p.segment_shift), 0}[segment];
}

// The tables of a step. An id has the number of a table in its high half and a row in its low half; -1: not updated.
template <class T, class Entry>
struct TablesOfStep {
  RowUpdate<T> u;
  const Entry* tables;
  int count;
  uint64_t step;
  const LiveNumbers* live;  // of each table, or null

  template <class P>
  explicit DEVICE TablesOfStep(const P& p)
      : u(row_update_of<T>(p)), tables(p.tables), count(int(p.count_tables)), step(uint64_t(p.step)), live(p.live) {}

  DEVICE int64_t row_of(int64_t id) const { return id & 0xffffffff; }
  DEVICE bool is_stepped(int64_t id) const { return id >= 0; }
  DEVICE RowUpdate<T> update_of(int64_t id) const {
    const Entry& own = tables[id >> 32];
    RowUpdate<T> found = u;
    found.table = static_cast<T*>(own.table);
    found.slot0 = static_cast<Accumulator<T>*>(own.slot0);
    found.slot1 = static_cast<Accumulator<T>*>(own.slot1);
    if (live) found.read(live[id >> 32]);
    if (u.random) found.key = random_key(uint64_t(own.seed), live ? uint64_t(live[id >> 32].step) : step);
    return found;
  }
};

// The tables of a stack.
template <class T>
struct ManyTables : TablesOfStep<T, TableEntry> {
  using TablesOfStep<T, TableEntry>::TablesOfStep;
  using TablesOfStep<T, TableEntry>::tables;
  using TablesOfStep<T, TableEntry>::count;

  DEVICE int64_t id_of(int64_t row) const {
    int low = 0;  // the last table that begins at or before the row
    for (int high = count; high - low > 1;) {
      const int middle = (low + high) / 2;
      if (tables[middle].row_first <= row)
        low = middle;
      else
        high = middle;
    }
    return tables[low].table ? int64_t(low) << 32 | (row - tables[low].row_first) : -1;
  }
};

// Does what step_rows does for rows of the stack.
template <class T, class Rule, int W>
DEVICE void step_table_rows(const StepTableRows& p) {
  step_listed_rows<T, Rule, W, ManyTables<T>>(p);
}

}  // namespace rowgrad
