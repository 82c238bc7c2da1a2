// Ids sorted by row, and sums of gradient rows by table row.
#pragma once
#include <vector>

#include "layout.h"

namespace rowgrad::cuda {

// -- Sorted ids -------------------------------------------------------------------------------------------------------

constexpr std::int64_t kSortedChunk = 32;  // sorted entries of a worker of the sums

// The allocated length of a list of sorted entries: kernels read past the end.
std::int64_t padded(std::int64_t size);

// Throws TooLarge if row ids or source ids do not fit the 32 bits that entries have for each.
void check_limits(std::int64_t size, std::int64_t rows, std::int64_t sources);

// Which order a fault is searched in, and how it is named; see report_bad_id in sorting.cuh.
struct IdFaults {
  std::int64_t order = 1;
  Fault id = Fault::index_not_in_output, segment = Fault::segment_not_in_grad;
};

// Addresses of sorted entries that later kernels read; 0 for lists that do not exist.
struct SortedEntries {
  std::int64_t size = 0;
  Address checks = 0, total = 0, counts = 0, zeroed = 0, workspace = 0;
  Address ids = 0, values = 0, heads = 0, firsts = 0, begins = 0, scales = 0, divisors = 0;
};

// What a lookup has left in memory for a sort of its ids.
struct LookupState {
  Address scales = 0;  // the reciprocal divisors of sources, if the sort is `scaled`
  Address failed = 0;  // the check state: if the lookup failed, all launches of the sort do nothing
};

// One sort by row, in memory of `bytes` bytes that the caller allocates. Entries are pairs (row, value); a value is a
// segment id or a position.
class IdSort {
 public:
  struct Options {
    bool counted = false;       // count the ids of each source
    int scale_bytes = 0;        // of the reciprocal divisor of each entry; 0: none
    std::int64_t zeroed = 0;    // further bytes that start as zeros
    std::int64_t workspace = 0; // further bytes
    bool scaled = false;        // the caller has the reciprocal divisors of sources
  };
  IdSort(const Device& device, std::int64_t size, std::int64_t rows, std::int64_t sources, const Options& options);

  std::int64_t bytes() const { return bytes_; }
  int passes() const { return passes_; }
  int bits() const { return bits_; }  // of a digit

  // Queues validation and sort. `values`: what entries carry, or none for positions. `rows_out`, `starts_out`: memory
  // for the distinct rows and their first entries, or none.
  SortedEntries run(Device& device, Stream stream, Address memory, const IdList& ids, const IdList& segments,
                    bool by_segment, const IdFaults& faults, std::int64_t reduce, const Report& report,
                    const IdList& rows_out = {}, Address starts_out = 0, const LookupState& lookup = {}) const;
  // The addresses without a launch.
  SortedEntries entries(Address memory) const;

 private:
  std::int64_t part(std::int64_t bytes);

  std::int64_t size_, rows_, sources_;
  int passes_, bits_, items_, scale_bytes_;
  std::int64_t tiles_, row_tiles_, bytes_ = 0, zeros_ = 0;
  bool doubled_;  // two blocks per multiprocessor
  // Offsets of the parts; -1 for those that do not exist.
  std::int64_t checks_, total_, histograms_, states_, row_states_, counts_, zeroed_;
  std::int64_t ids_, values_, pairs_, pairs2_, heads_, firsts_, begins_, scales_, segment_scales_, workspace_;
};

// -- Sums -------------------------------------------------------------------------------------------------------------

// Bits of the mode of sum_sorted; see segment_grad.cuh.
constexpr int kScale = 1, kDivide = 2, kRound = 4, kSeveral = 8;

// log2 of the run length of an order of additions.
int run_shift_of(Order order);

// The workspace of partial sums that a second kernel joins: `zeroed` bytes for counters, `workspace` bytes for sums.
struct Joins {
  std::int64_t slots, sums, zeroed, workspace;
  Joins(std::int64_t size, const ColumnShape& shape, DType dtype, int run_shift);
};

// Gradients of the outputs of features: the address of each, whose segments are the numbers below 2^shift, and the
// elements between rows.
struct FeatureGradients {
  Address grads;
  std::int64_t stride, shift;
};

// Queues the sums of sorted entries: into table rows, or if `unique` into consecutive rows.
void sum_sorted(Device& device, Stream stream, const SortedEntries& entries, Address grad, DType dtype, Address out,
                const ColumnShape& shape, int mode, int run_shift, bool unique);
// Does this for segments of many features, into consecutive rows. `mode` must contain kScale and no more than kSeveral.
void sum_sorted(Device& device, Stream stream, const SortedEntries& entries, const FeatureGradients& grads, DType dtype,
                Address out, const ColumnShape& shape, int mode, int run_shift);

// A gradient of sum, mean or sqrtn bags: the workspace, and the launches. `unique`: consecutive distinct rows.
class Gradient {
 public:
  Gradient(const Device& device, const Matrix& grad, Address out, std::int64_t size, std::int64_t num_rows,
           std::int64_t reduce, Order order, bool unique);

  std::int64_t bytes() const { return sort_.bytes(); }
  // `rows`: memory for the distinct rows, if unique. Returns the address of their number.
  Address run(Device& device, Stream stream, Address memory, const IdList& ids, const IdList& segments,
              const IdList& rows, const Report& report) const;
  // Does this for `capacity` unique rows with 64-bit ids, at least as many as there can be. Rows after the last distinct
  // one are zeros for the same id. Writes their number to `count`.
  void run_padded(Device& device, Stream stream, Address memory, const IdList& ids, const IdList& segments, Address rows,
                  std::int64_t capacity, Address count, const Report& report) const;

 private:
  Gradient(const Device& device, const Matrix& grad, Address out, std::int64_t size, std::int64_t num_rows,
           std::int64_t reduce, Order order, bool unique, const ColumnShape& shape);
  static IdSort::Options options_of(const Matrix& grad, std::int64_t size, std::int64_t reduce,
                                    const ColumnShape& shape, int run_shift);

  const Matrix grad_;
  const Address out_;
  const std::int64_t num_rows_, reduce_;
  const bool unique_;
  const int run_shift_;
  const ColumnShape shape_;
  const IdSort sort_;
};

// Larger outputs are zeroed concurrently with the sort.
constexpr std::int64_t kSideStreamBytes = std::int64_t(16) << 20;

}  // namespace rowgrad::cuda
