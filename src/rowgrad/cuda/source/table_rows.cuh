// Gradients of many tables that form a stack, dense or of rows, in one memory for all, and steps of many tables with row
// gradients.
#pragma once
#include "row_ops.cuh"
#include "table_steps.cuh"
#include "updates.cuh"

namespace rowgrad {

// A table of the stack: its first row there, and the first place of its gradient. The entry after the last table has the
// ends.
struct PlaceEntry {
  int64_t row_first;
  int64_t place_first;
};

struct FindTables {
  const PlaceEntry* tables;
  int64_t count_tables;
  const uint32_t* rows;
  const int64_t* total;
  int64_t* shifts;
  int64_t* counts;
  const Checks* checks;
};

// Finds the part of each table in the list of distinct rows: `counts` gets the number of its rows, or -1 if the checks
// have failed; `shifts` what has to be added to the number of a row in the list for its place.
DEVICE void find_tables(const FindTables& p) {
  const bool failed = is_raised(p.checks);
  const int64_t total = failed ? 0 : *p.total;
  const auto first_of = [&](int64_t row) {  // the first of the list that is not below the row
    int64_t low = 0, high = total;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (int64_t(p.rows[middle]) < row)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  for (int64_t t = threadIdx.x; t < p.count_tables; t += blockDim.x) {
    const int64_t first = first_of(p.tables[t].row_first);
    p.counts[t] = failed ? -1 : first_of(p.tables[t + 1].row_first) - first;
    p.shifts[t] = p.tables[t].place_first - first;
  }
}

// Where the sums of a table's rows go. A worker meets tables in ascending order.
struct PlaceInTable {
  const PlaceEntry* tables;
  const int64_t* shifts;
  int count, table;
  uint32_t end, shift;  // of the table; its end in the stack

  DEVICE bool reads_ids() const { return true; }
  DEVICE uint32_t operator()(uint32_t number, uint32_t id) {
    if (id >= end) find(id);
    return number + shift;
  }
  DEVICE void find(uint32_t id) {
    int high = count;
    while (high - table > 1) {
      const int middle = (table + high) / 2;
      if (tables[middle].row_first <= int64_t(id))
        table = middle;
      else
        high = middle;
    }
    end = uint32_t(tables[table + 1].row_first);
    shift = uint32_t(shifts[table]);
  }
};

struct SumTableRows {
  const PlaceEntry* tables;
  int64_t count_tables;
  const int64_t* shifts;
  const int64_t* grads;
  int64_t grad_stride;
  int64_t segment_shift;
  int64_t ignored_row;
  SUM_FIELDS;
};

// Does what sum_feature_rows does, into the places of each table's gradient.
template <class T, int W, int MODE>
DEVICE void sum_table_rows(const SumTableRows& p) {
  sum_rows_of<T, W, MODE>(p, gradients_of<T, W>(p), PlaceInTable{p.tables, p.shifts, int(p.count_tables), 0, 0u, 0u});
}

struct SumStackRows {
  const int64_t* grads;
  int64_t grad_stride;
  int64_t segment_shift;
  int64_t ignored_row;
  SUM_FIELDS;
};

// Where the sums of a dense gradient go.
struct RowOfId {
  DEVICE bool reads_ids() const { return true; }
  DEVICE uint32_t operator()(uint32_t, uint32_t id) const { return id; }
};

// Does what sum_feature_rows does, into the rows of the stack.
template <class T, int W, int MODE>
DEVICE void sum_stack_rows(const SumStackRows& p) {
  sum_rows_of<T, W, MODE>(p, gradients_of<T, W>(p), RowOfId());
}

struct PadTableGradients {
  const PlaceEntry* tables;
  const uint32_t* rows;
  const int64_t* shifts;
  const int64_t* counts;
  void* values;
  int64_t units;
  int64_t* ids;
};

// Writes the ids of each table's gradient, and after its rows zeros for the last of them, as pad_row_gradient does. Blocks
// of one table have the same `blockIdx.y`.
template <class U>
DEVICE void pad_table_gradients(const PadTableGradients& p) {
  const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, stride = int64_t(gridDim.x) * blockDim.x;
  const PlaceEntry& table = p.tables[blockIdx.y];
  const int64_t begin = table.place_first, size = (&table)[1].place_first - begin;
  const int64_t count = p.counts[blockIdx.y] < 0 ? 0 : p.counts[blockIdx.y];
  const uint32_t* rows = p.rows + (begin - p.shifts[blockIdx.y]);
  int64_t* ids = p.ids + begin;
  const int64_t last = count ? int64_t(rows[count - 1]) - table.row_first : 0;
  for (int64_t i = first; i < size; i += stride) ids[i] = i < count ? int64_t(rows[i]) - table.row_first : last;
  U* values = static_cast<U*>(p.values) + begin * p.units;
  for (int64_t i = count * p.units + first; i < size * p.units; i += stride) values[i] = U();
}

// -- Steps --------------------------------------------------------------------------------------------------------------

// A table and its row gradient, whose number of rows is in `count`, or if that is null `size`. With `found`, ids are padded
// as for RisingIds: the check writes the number of those before the padding there. `first`: its first place among the rows
// of all tables, a multiple of kRowsAtOnce.
struct ListEntry {
  void* table;
  void* slot0;
  void* slot1;
  int64_t seed;
  int64_t rows;
  const void* grad;
  const void* ids;
  int64_t wide;
  const int64_t* count;
  int64_t* found;
  int64_t size;
  int64_t first;
};

DEVICE int64_t size_of(const ListEntry& list) { return list.count ? *list.count : list.size; }
DEVICE int64_t rows_of(const ListEntry& list) { return list.found ? *list.found : size_of(list); }
DEVICE RisingIds ids_of(const ListEntry& list) {
  return {{list.ids, list.wide != 0}, size_of(list), list.rows, list.found != nullptr};
}

struct CheckTableLists {
  const ListEntry* tables;
  int64_t count_tables;
  int64_t code;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Does for each table what check_row_ids does; a fault's position has the number of the table above bit 40. Blocks of one
// table have the same `blockIdx.y`.
DEVICE void check_table_lists(const CheckTableLists& p) {
  const ListEntry& list = p.tables[blockIdx.y];
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  const RisingIds ids = ids_of(list);
  const bool bad = !ids.hold(int64_t(blockIdx.x) * blockDim.x + threadIdx.x, stride, list.found);
  if (!must_report(p.checks, bad)) return;
  for (int64_t t = 0; t < p.count_tables; ++t) {
    const RisingIds own = ids_of(p.tables[t]);
    const int64_t i = own.first_bad();
    if (i < own.size) return report(p.fault, p.alarm, p.code, t << 40 | i, own.ids[i], own.bound);
  }
}

struct StepTableLists {
  const ListEntry* tables;
  int64_t count_tables;
  UPDATE_FIELDS;
  int64_t size;
  const Checks* checks;
};

// Does what step_rows does for the rows of many gradients. A group of lanes takes rows of one table.
template <class T, class Rule, int W>
DEVICE void step_table_lists(const StepTableLists& p) {
  if (is_raised(p.checks)) return;
  RowSteps<T, W, Rule, TablesOfStep<T, ListEntry>> steps(p);
  const int64_t groups = blockDim.x / steps.group.lanes, stride = gridDim.x * groups * kRowsAtOnce;
  const int64_t row_bytes = p.cols * int64_t(sizeof(T));
#pragma unroll 1
  for (int64_t k = (blockIdx.x * groups + threadIdx.x / steps.group.lanes) * kRowsAtOnce; k < p.size; k += stride) {
    int table = 0;
    for (int high = int(p.count_tables); high - table > 1;) {
      const int middle = (table + high) / 2;
      if (p.tables[middle].first <= k)
        table = middle;
      else
        high = middle;
    }
    const ListEntry& list = p.tables[table];
    const int64_t at = k - list.first, left = rows_of(list) - at;
    if (left <= 0) continue;
    const Ids ids{list.ids, list.wide != 0};
    steps.waiting = left < kRowsAtOnce ? int(left) : kRowsAtOnce;
    for (int j = steps.group.lane; j < steps.waiting; j += steps.group.lanes) {
      steps.rows.ids[j] = int64_t(table) << 32 | ids[at + j];
      steps.rows.sources[j] = reinterpret_cast<int64_t>(list.grad) + (at + j) * row_bytes;
    }
    __syncwarp(steps.group.mask);
    steps.take();
  }
}

}  // namespace rowgrad
