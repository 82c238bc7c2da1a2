// Row arithmetic: the only code that is compiled once per instruction-set level.
//
// Every function works column by column, so vector units of any width return the same bits. rows.cpp defines one table
// per level; `row_table()` returns the table of this machine.
#pragma once
#include <cstdint>
#include <type_traits>

#include "rowgrad/dtype.h"
#include "rowgrad/reduction.h"

namespace rowgrad {

// An entry of a batch sorted by output row: the row, and the index of its contribution. 32 bits each if both fit, else
// 64.
template <class P>
struct Entry {
  P row;
  P from;
};

// Rows of at most kRun ids have the same bits in both orders of addition, which docs/reference/orders.md defines.
constexpr std::int64_t kRun = 64;

static constexpr bool is_blocked(Order order) {
  switch (order) {
    case Order::sequential:
      return false;
    case Order::blocked:
      return true;
  }
  __builtin_unreachable();  // kernels reject other numbers
}

static constexpr bool rounds_each_add(Rounding rounding) {
  switch (rounding) {
    case Rounding::each_add:
      return true;
    case Rounding::at_end:
      return false;
  }
  __builtin_unreachable();
}

// A list of ids, int32 or int64.
struct IdList {
  const void* data;
  std::int64_t size;
  bool wide;
};

// Another thread may change the caller's ids after they were validated. Code that reads them again as addresses bounds
// them: the result may then be wrong, but no access is out of bounds. `static`: see dtype.h.

// Returns the largest id below `bound`, for bounded_id. `bound` must be at least 1.
template <class I>
static inline std::make_unsigned_t<I> last_id(std::int64_t bound) {
  using U = std::make_unsigned_t<I>;
  constexpr std::int64_t most = std::int64_t(U(~U(0)) >> 1);
  return U(bound - 1 < most ? bound - 1 : most);
}

// Returns the id clamped to [0, last], even if another thread changed it.
template <class I>
static inline std::int64_t bounded_id(const I* id, std::make_unsigned_t<I> last) {
  const auto value = std::make_unsigned_t<I>(__atomic_load_n(id, __ATOMIC_RELAXED));
  return std::int64_t(value < last ? value : last);
}

// A batch of bags: ids select rows of `data`, runs of equal segment ids form bags.
template <class T>
struct Bags {
  T* out;
  std::int64_t rows;  // of the output; rows without a bag are set to zero
  const T* data;
  std::int64_t data_rows, cols;
  IdList ids, segments;
  Reduction kind;
};

// Bags with a weight per id; segments are sorted.
template <class T>
struct WeightedBags {
  T* out;
  std::int64_t rows;
  const T* data;
  std::int64_t data_rows, cols;
  IdList ids, segments;
  const Accumulator<T>* weights;
  const Accumulator<T>* totals;  // divisor per segment; may be null
};

// Bags by offsets: bag b has the ids from starts[b] to starts[b + 1]. The ids are validated copies.
template <class T>
struct OffsetBags {
  T* out;
  std::int64_t stride;  // elements from one row of `out` to the next
  const T* data;
  std::int64_t data_rows, cols;
  const std::uint32_t* ids;
  const std::uint32_t* starts;
  std::int64_t bags;
  Reduction kind;
  const Accumulator<T>* weights;  // per id; null: every row counts once
  const Accumulator<T>* totals;   // divisor per bag, with weights; may be null
};

// A batch sorted by row: runs of entries that share an output row. With `unique`, runs are written one after the other,
// otherwise each to its row.
template <class T, class P>
struct SortedRows {
  T* out;
  const T* grad;
  std::int64_t cols;
  const Entry<P>* entries;
  std::int64_t size;
  const Accumulator<T>* scale;  // per segment; may be null
  bool unique;
  Order order;
  std::int64_t table_rows;  // of the output, if rows without a run must be cleared; else 0
  std::int64_t stride;      // elements from one row of `grad` to the next
};

// A batch from a plan: the entries of row k begin at starts[k] and end where those of the next row begin.
template <class T, class I>
struct PlannedRows {
  T* out;
  const T* grad;
  std::int64_t cols;
  IdList ids;             // table row of each plan row k
  std::int64_t num_rows;  // of the table
  const std::int64_t* starts;
  std::int64_t rows;
  const I* from;
  std::int64_t size;
  const Accumulator<T>* scale;  // per segment; may be null
  bool unique;
  Order order;
  bool clears;  // whether to clear rows of the table that no id refers to
};

// Per-id data of a weighted batch; an entry's `from` is an index into these lists.
template <class T>
struct WeightedIds {
  IdList segments;
  const Accumulator<T>* weights;
  const Accumulator<T>* totals;  // divisor per segment; may be null
  Rounding rounding;
};

// A table of 1 to kNarrow columns that stays in cache while the batch is added. Ids outside [first, first + rows) are
// skipped.
constexpr std::int64_t kNarrow = 4;
constexpr std::int64_t kNarrowSegments = std::int64_t{1} << 31;  // largest number of segments for a narrow table
template <class A>
struct NarrowTable {
  A* sums;         // all rows of the table, zero at first
  const A* terms;  // per segment: the row that each of its ids adds
  std::int64_t cols, first, rows;
  IdList ids, segments;
  std::int64_t table_rows, num_segments;  // exclusive upper bounds of ids and segments
};

// The findings of a pass over two lists of ids.
enum ScanFlags : unsigned { kOutOfRange = 1, kDecreases = 2 };

struct ScanOps {
  // out[i - begin] = the low 32 bits of ids[i], for i in [begin, end); returns whether all ids are in [0, bound). Only
  // what is stored is compared with `bound`, which is at most 2³¹: another thread may change the ids.
  bool (*narrow)(const IdList& ids, std::int64_t begin, std::int64_t end, std::int64_t bound, std::uint32_t* out);
  // Flags ids outside [0, bound) in either list, and segments smaller than the previous one.
  unsigned (*scan)(const IdList& ids, std::int64_t bound, const IdList& segments, std::int64_t segment_bound,
                   std::int64_t begin, std::int64_t end);
  // count[s] += the length of every run of segment s that begins in [begin, end); segments are below `bound`.
  void (*count_runs)(const IdList& segments, std::int64_t bound, std::int64_t begin, std::int64_t end,
                     std::int64_t* count);
};

template <class T>
struct SumOps {
  // out = rows of `data` selected by ids, combined in the order of SparseSegment*.
  void (*reduce_i32)(T* out, const T* data, std::int64_t cols, const std::int32_t* ids, std::int64_t n, Reduction);
  void (*reduce_i64)(T* out, const T* data, std::int64_t cols, const std::int64_t* ids, std::int64_t n, Reduction);
  // Does this for every bag that begins in [begin, end).
  void (*reduce_runs)(const Bags<T>&, std::int64_t begin, std::int64_t end);
};

template <class T>
struct SegmentSumOps {
  // out = sum of n consecutive rows, in the order of SegmentSum.
  void (*segment_sum)(T* out, const T* data, std::int64_t cols, std::int64_t n);
};

template <class T>
struct GradOps {
  using A = Accumulator<T>;
  // Each run's row = Σ grad[e.from] · scale[e.from], from zero, for the runs that begin in [begin, end). The first of
  // them is run number `first` of the batch.
  void (*accumulate_runs_u32)(const SortedRows<T, std::uint32_t>&, std::int64_t begin, std::int64_t end,
                              std::int64_t first);
  void (*accumulate_runs_u64)(const SortedRows<T, std::uint64_t>&, std::int64_t begin, std::int64_t end,
                              std::int64_t first);
  // Sums listed runs: run k begins at starts[k], ends at starts[k + 1] and is written to output row k.
  void (*accumulate_listed_u32)(const SortedRows<T, std::uint32_t>&, const std::int64_t* starts, std::int64_t runs);
  void (*accumulate_listed_u64)(const SortedRows<T, std::uint64_t>&, const std::int64_t* starts, std::int64_t runs);
  // Sums rows [first, last) of a plan.
  void (*accumulate_planned_i32)(const PlannedRows<T, std::int32_t>&, std::int64_t first, std::int64_t last);
  void (*accumulate_planned_i64)(const PlannedRows<T, std::int64_t>&, std::int64_t first, std::int64_t last);
  // terms[s] = grad[s] · scale for a segment of count[s] ids, for segments [begin, end); sums have no scale.
  void (*scale_terms)(A* terms, const T* grad, std::int64_t cols, const std::int64_t* count, Reduction, std::int64_t begin,
                      std::int64_t end);
  // sums[ids[i]] += terms[segments[i]] for all i, in order.
  void (*accumulate_narrow)(const NarrowTable<A>&);
  // Each bag's row = Σ data[ids[j]] · weights[j] in the order of SegmentSum, divided by its total unless null (x/0 is
  // 0), for the bags that begin in [begin, end).
  void (*weighted_bags)(const WeightedBags<T>&, std::int64_t begin, std::int64_t end);
  // Each bag's row, as SumOps or weighted_bags combine it, for bags [begin, end).
  void (*reduce_offsets)(const OffsetBags<T>&, std::int64_t begin, std::int64_t end);
  // out = the contribution of one id: grad_row / total · weight; total may be null.
  void (*weighted_row)(T* out, const T* grad_row, std::int64_t cols, A weight, const A* total);
  // Sums of such contributions from zero: for runs, listed runs and rows of a plan.
  void (*weighted_runs_u32)(const SortedRows<T, std::uint32_t>&, const WeightedIds<T>&, std::int64_t begin,
                            std::int64_t end, std::int64_t first);
  void (*weighted_runs_u64)(const SortedRows<T, std::uint64_t>&, const WeightedIds<T>&, std::int64_t begin,
                            std::int64_t end, std::int64_t first);
  void (*weighted_listed_u32)(const SortedRows<T, std::uint32_t>&, const WeightedIds<T>&, const std::int64_t* starts,
                              std::int64_t runs);
  void (*weighted_listed_u64)(const SortedRows<T, std::uint64_t>&, const WeightedIds<T>&, const std::int64_t* starts,
                              std::int64_t runs);
  void (*weighted_planned)(const PlannedRows<T, std::int64_t>&, const WeightedIds<T>&, std::int64_t first,
                           std::int64_t last);
  // Σ a[c]·b[c]: eight interleaved partial sums, then their pairwise tree.
  A (*dot)(const T* a, const T* b, std::int64_t cols);

  // Overloads by entry type.
  void accumulate_runs(const SortedRows<T, std::uint32_t>& r, std::int64_t begin, std::int64_t end,
                       std::int64_t first) const {
    accumulate_runs_u32(r, begin, end, first);
  }
  void accumulate_runs(const SortedRows<T, std::uint64_t>& r, std::int64_t begin, std::int64_t end,
                       std::int64_t first) const {
    accumulate_runs_u64(r, begin, end, first);
  }
  void accumulate_listed(const SortedRows<T, std::uint32_t>& r, const std::int64_t* starts, std::int64_t runs) const {
    accumulate_listed_u32(r, starts, runs);
  }
  void accumulate_listed(const SortedRows<T, std::uint64_t>& r, const std::int64_t* starts, std::int64_t runs) const {
    accumulate_listed_u64(r, starts, runs);
  }
  void accumulate_planned(const PlannedRows<T, std::int32_t>& r, std::int64_t first, std::int64_t last) const {
    accumulate_planned_i32(r, first, last);
  }
  void accumulate_planned(const PlannedRows<T, std::int64_t>& r, std::int64_t first, std::int64_t last) const {
    accumulate_planned_i64(r, first, last);
  }
  void weighted_runs(const SortedRows<T, std::uint32_t>& r, const WeightedIds<T>& ids, std::int64_t begin,
                     std::int64_t end, std::int64_t first) const {
    weighted_runs_u32(r, ids, begin, end, first);
  }
  void weighted_runs(const SortedRows<T, std::uint64_t>& r, const WeightedIds<T>& ids, std::int64_t begin,
                     std::int64_t end, std::int64_t first) const {
    weighted_runs_u64(r, ids, begin, end, first);
  }
  void weighted_listed(const SortedRows<T, std::uint32_t>& r, const WeightedIds<T>& ids, const std::int64_t* starts,
                       std::int64_t runs) const {
    weighted_listed_u32(r, ids, starts, runs);
  }
  void weighted_listed(const SortedRows<T, std::uint64_t>& r, const WeightedIds<T>& ids, const std::int64_t* starts,
                       std::int64_t runs) const {
    weighted_listed_u64(r, ids, starts, runs);
  }
};

struct RowTable;  // all of these tables for every T
const RowTable& row_table();
// Returns "baseline", "x86-64-v3" or "x86-64-v4".
const char* row_level();

const ScanOps& scan_ops();
template <class T>
const SumOps<T>& sum_ops();
template <class T>
const SegmentSumOps<T>& segment_sum_ops();
template <class T>
const GradOps<T>& grad_ops();

}  // namespace rowgrad
