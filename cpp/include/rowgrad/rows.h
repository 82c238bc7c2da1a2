// Arithmetic on rows: the only code compiled once per instruction-set level.
//
// Every function works column by column, so a vector unit of any width produces the same bits.
// rows.cpp defines one table per level; `row_ops<T>()` is the table of this machine.
#pragma once
#include <cstdint>
#include <type_traits>

#include "rowgrad/dtype.h"
#include "rowgrad/reduction.h"

namespace rowgrad {

// One entry of a batch sorted by output row: which row, and where its contribution comes from.
// 32 bits each where both fit, else 64.
template <class P>
struct Entry {
  P row;
  P from;
};

// Rows of at most kRun ids have the same bits under both orders of addition; docs/orders.md defines them.
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

// Ids as they came, int32 or int64.
struct IdList {
  const void* data;
  std::int64_t size;
  bool wide;
};

// Ids are the caller's memory, which another thread may change after they were validated. Whatever reads them again and
// makes an address of them bounds them: the result may then be wrong, but nothing outside the arrays is written or read.
// `static`: see dtype.h.

// The largest id below `bound`, as bounded_id takes it. `bound` is at least 1.
template <class I>
static inline std::make_unsigned_t<I> last_id(std::int64_t bound) {
  using U = std::make_unsigned_t<I>;
  constexpr std::int64_t most = std::int64_t(U(~U(0)) >> 1);
  return U(bound - 1 < most ? bound - 1 : most);
}

// At most `last`, whatever the id is now.
template <class I>
static inline std::int64_t bounded_id(const I* id, std::make_unsigned_t<I> last) {
  const auto value = std::make_unsigned_t<I>(__atomic_load_n(id, __ATOMIC_RELAXED));
  return std::int64_t(value < last ? value : last);
}

// A batch of bags: rows of `data` named by ids, bags named by runs of equal segment ids.
template <class T>
struct Bags {
  T* out;
  std::int64_t rows;  // of the output; those without a bag are set to zero
  const T* data;
  std::int64_t data_rows, cols;
  IdList ids, segments;
  Reduction kind;
};

// The same with a weight for every id; segments are sorted.
template <class T>
struct WeightedBags {
  T* out;
  std::int64_t rows;
  const T* data;
  std::int64_t data_rows, cols;
  IdList ids, segments;
  const Accumulator<T>* weights;
  const Accumulator<T>* totals;  // of every segment: its divisor; may be null
};

// A batch sorted by row: runs of entries with one output row. `unique`: runs are written one after the other,
// otherwise each to the row it names.
template <class T, class P>
struct SortedRows {
  T* out;
  const T* grad;
  std::int64_t cols;
  const Entry<P>* entries;
  std::int64_t size;
  const Accumulator<T>* scale;  // of every segment; may be null
  bool unique;
  Order order;
  std::int64_t table_rows;  // of the output, where rows that no run names are to be cleared; else 0
};

// The same out of a plan: the entries of row k begin at starts[k] and end where those of the next begin.
template <class T, class I>
struct PlannedRows {
  T* out;
  const T* grad;
  std::int64_t cols;
  IdList ids;             // which row of the table row k is
  std::int64_t num_rows;  // of the table
  const std::int64_t* starts;
  std::int64_t rows;
  const I* from;
  std::int64_t size;
  const Accumulator<T>* scale;  // of every segment; may be null
  bool unique;
  Order order;
  bool clears;  // rows of the table that no id names
};

// What a weighted batch knows of its ids; its entries' `from` is the id's position in these.
template <class T>
struct WeightedIds {
  IdList segments;
  const Accumulator<T>* weights;
  const Accumulator<T>* totals;  // of every segment: its divisor; may be null
  Rounding rounding;
};

// A narrow table, of 1 to kNarrow columns, held whole while the batch goes by. Ids of rows outside
// [first, first + rows) are passed over.
constexpr std::int64_t kNarrow = 4;
constexpr std::int64_t kNarrowSegments = std::int64_t{1} << 31;  // at most, in a batch added to such a table
template <class A>
struct NarrowTable {
  A* sums;         // all its rows, zeros at first
  const A* terms;  // of every segment: what its ids add
  std::int64_t cols, first, rows;
  IdList ids, segments;
  std::int64_t table_rows, num_segments;  // what ids and segments are below
};

// What a pass over two lists of ids found.
enum ScanFlags : unsigned { kOutOfRange = 1, kFalls = 2 };

struct ScanOps {
  // Ids outside [0, bound) in either list; segments smaller than the one before.
  unsigned (*scan)(const IdList& ids, std::int64_t bound, const IdList& segments, std::int64_t segment_bound,
                   std::int64_t begin, std::int64_t end);
  // count[s] += the length of every run of segment s that begins in [begin, end); segments are below `bound`.
  void (*count_runs)(const IdList& segments, std::int64_t bound, std::int64_t begin, std::int64_t end,
                     std::int64_t* count);
};

template <class T>
struct SumOps {
  // out = rows of `data` named by ids, combined in the order of SparseSegment*.
  void (*reduce_i32)(T* out, const T* data, std::int64_t cols, const std::int32_t* ids, std::int64_t n, Reduction);
  void (*reduce_i64)(T* out, const T* data, std::int64_t cols, const std::int64_t* ids, std::int64_t n, Reduction);
  // The same for every bag that begins in [begin, end).
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
  // Every run's row = Σ grad[e.from] · scale[e.from] from zero, for the runs that begin in [begin, end); the first of
  // them is number `first` among all.
  void (*accumulate_runs_u32)(const SortedRows<T, std::uint32_t>&, std::int64_t begin, std::int64_t end,
                              std::int64_t first);
  void (*accumulate_runs_u64)(const SortedRows<T, std::uint64_t>&, std::int64_t begin, std::int64_t end,
                              std::int64_t first);
  // The same for a list of runs: the row of run k, which begins at starts[k] and ends at starts[k + 1], is row k of the
  // output.
  void (*accumulate_listed_u32)(const SortedRows<T, std::uint32_t>&, const std::int64_t* starts, std::int64_t runs);
  void (*accumulate_listed_u64)(const SortedRows<T, std::uint64_t>&, const std::int64_t* starts, std::int64_t runs);
  // The same for rows [first, last) of a plan.
  void (*accumulate_planned_i32)(const PlannedRows<T, std::int32_t>&, std::int64_t first, std::int64_t last);
  void (*accumulate_planned_i64)(const PlannedRows<T, std::int64_t>&, std::int64_t first, std::int64_t last);
  // terms[s] = grad[s] · the scale of count[s] ids, for segments [begin, end); sums have no scale.
  void (*scale_terms)(A* terms, const T* grad, std::int64_t cols, const std::int64_t* count, Reduction, std::int64_t begin,
                      std::int64_t end);
  // sums[ids[i]] += terms[segments[i]] for all i, in order.
  void (*accumulate_narrow)(const NarrowTable<A>&);
  // Every bag's row = Σ data[ids[j]] · weights[j] in the order of SegmentSum, divided by its total unless null (x/0 is
  // 0), for the bags that begin in [begin, end).
  void (*weighted_bags)(const WeightedBags<T>&, std::int64_t begin, std::int64_t end);
  // out = contribution of one id: grad_row / total · weight; total may be null.
  void (*weighted_row)(T* out, const T* grad_row, std::int64_t cols, A weight, const A* total);
  // Runs, listed runs, and rows of a plan, of such contributions summed from zero.
  void (*weighted_runs_u32)(const SortedRows<T, std::uint32_t>&, const WeightedIds<T>&, std::int64_t begin,
                            std::int64_t end);
  void (*weighted_runs_u64)(const SortedRows<T, std::uint64_t>&, const WeightedIds<T>&, std::int64_t begin,
                            std::int64_t end);
  void (*weighted_listed_u32)(const SortedRows<T, std::uint32_t>&, const WeightedIds<T>&, const std::int64_t* starts,
                              std::int64_t runs);
  void (*weighted_listed_u64)(const SortedRows<T, std::uint64_t>&, const WeightedIds<T>&, const std::int64_t* starts,
                              std::int64_t runs);
  void (*weighted_planned)(const PlannedRows<T, std::int64_t>&, const WeightedIds<T>&, std::int64_t first,
                           std::int64_t last);
  // Σ a[c]·b[c]: eight interleaved partial sums, then their pairwise tree.
  A (*dot)(const T* a, const T* b, std::int64_t cols);

  // The families by the type of their entries.
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
                     std::int64_t end) const {
    weighted_runs_u32(r, ids, begin, end);
  }
  void weighted_runs(const SortedRows<T, std::uint64_t>& r, const WeightedIds<T>& ids, std::int64_t begin,
                     std::int64_t end) const {
    weighted_runs_u64(r, ids, begin, end);
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

struct RowTable;  // all of the above for every T
const RowTable& row_table();
// "baseline", "x86-64-v3" or "x86-64-v4".
const char* row_level();

const ScanOps& scan_ops();
template <class T>
const SumOps<T>& sum_ops();
template <class T>
const SegmentSumOps<T>& segment_sum_ops();
template <class T>
const GradOps<T>& grad_ops();

}  // namespace rowgrad
