// The bags of many tables as bags of one stack of tables, so that one sort serves all (table_steps.cuh).
#pragma once
#include "sorting.cuh"

namespace rowgrad {

// The bags of a table, and where they are in the stack: its first row, segment and id. `number` is that of the table in
// errors.
struct BagsEntry {
  const void* ids;
  int64_t ids_wide;
  const void* segments;
  int64_t segments_wide;
  int64_t size;
  int64_t rows;
  int64_t bags;
  int64_t number;
  int64_t row_first;
  int64_t segment_first;
  int64_t entry_first;
};

struct StackTableBags {
  const BagsEntry* tables;
  int64_t count_tables;
  int64_t id_code;
  int64_t segment_code;
  uint32_t* rows;
  uint32_t* segments;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// Validates the ids and segments of each table as scan_ids does for a gradient, and writes those of the stack; a fault's
// position has the number of the table above bit 40. Blocks of one table have the same `blockIdx.y`.
DEVICE void stack_table_bags(const StackTableBags& p) {
  const BagsEntry& own = p.tables[blockIdx.y];
  const Ids ids{own.ids, own.ids_wide != 0}, segments{own.segments, own.segments_wide != 0};
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  bool bad = false;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < own.size; i += stride) {
    const int64_t id = ids[i], segment = segments[i];
    bad |= !is_below(id, own.rows) || !is_below(segment, own.bags);
    p.rows[own.entry_first + i] = uint32_t(own.row_first + id);
    p.segments[own.entry_first + i] = uint32_t(own.segment_first + segment);
  }
  if (!must_report(p.checks, bad)) return;
  for (int64_t t = 0; t < p.count_tables; ++t) {
    const BagsEntry& each = p.tables[t];
    ScanIds scan{};
    scan.ids = each.ids;
    scan.ids_wide = each.ids_wide;
    scan.segments = each.segments;
    scan.segments_wide = each.segments_wide;
    scan.size = each.size;
    scan.rows = each.rows;
    scan.sources = each.bags;
    scan.order = 1;
    scan.id_code = p.id_code;
    scan.segment_code = p.segment_code;
    scan.fault = p.fault;
    scan.alarm = p.alarm;
    if (report_bad_id(scan, each.number << 40)) return;
  }
}

}  // namespace rowgrad
