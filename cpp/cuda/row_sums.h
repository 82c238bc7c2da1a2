// Ids sorted by row, and sums of gradient rows by table row.
#pragma once
#include <optional>
#include <vector>

#include "layout.h"
#include "poison.h"

namespace rowgrad::cuda {

// -- Sorted ids -------------------------------------------------------------------------------------------------------

constexpr std::int64_t kSortedChunk = 32;  // sorted entries of a worker of the sums

// The allocated length of a list of sorted entries: kernels read past the end.
std::int64_t padded(std::int64_t size);

// Throws TooLarge if row ids or source ids do not fit the 32 bits that entries have for each.
void check_limits(std::int64_t size, std::int64_t rows, std::int64_t sources);

constexpr std::int64_t kAnyRows = std::int64_t(1) << 62;

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
    bool cleared = false;       // the caller has called `clear`
    bool finds_rows = true;     // find the distinct rows; else the sort ends with `ids` and `values`
  };
  IdSort(const Device& device, std::int64_t size, std::int64_t rows, std::int64_t sources, const Options& options);

  std::int64_t bytes() const { return bytes_; }
  int passes() const { return passes_; }
  int bits() const { return bits_; }  // of a digit

  // Queues the zeros with which the memory starts, also those of the caller.
  void clear(Device& device, Stream stream, Address memory) const { device.zero(stream, memory, zeros_); }

  // What is sorted, and where results go that other kernels read.
  struct Batch {
    IdList ids{}, segments{};
    bool by_segment = true;  // entries have segments, or else positions
    IdFaults faults{};
    std::int64_t reduce = 0;
    IdList rows_out{};       // memory for the distinct rows
    Address starts_out = 0;  // memory for their first entries
    LookupState lookup{};
    std::int64_t most_rows = kAnyRows;  // more distinct rows are a fault
    Address host_total = 0;  // host memory for the number of distinct rows, where a thread waits for it, or 0
    Address needed = 0;      // of a number that is 0 if the ids are in order, so that nothing need be done
  };
  // Queues validation and sort.
  SortedEntries run(Device& device, Stream stream, Address memory, const Batch& batch, const Report& report) const;
  // The addresses without a launch.
  SortedEntries entries(Address memory) const;

 private:
  std::int64_t part(std::int64_t bytes);

  std::int64_t size_, rows_, sources_;
  int passes_, bits_, items_, scale_bytes_;
  std::int64_t tiles_, row_tiles_, bytes_ = 0, zeros_ = 0;
  bool doubled_;  // two blocks per multiprocessor
  bool cleared_, finds_rows_;
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
// elements between rows. The sum of `ignored_row`, the last one, is not needed; -1 if no row is ignored.
struct FeatureGradients {
  Address grads;
  std::int64_t stride, shift, ignored_row;
};

// Bags of many tables, as a lookup or a kernel has left them, and the gradients of their sums.
struct StackedBatch {
  IdList rows, segments;  // of the stack of tables; see FeatureGroup
  std::int64_t size, stack_rows, segment_shift;
  std::int64_t ignored_row = -1;  // of the stack, with the ids that are ignored
  LookupState lookup;             // if it has no scales, they are those of `reduce`
  std::vector<Address> grads;     // of each feature's or table's output, all readable
  std::int64_t grad_stride;    // elements between rows
  std::int64_t reduce = 0;

  // The bits of all addresses, which decide their alignment.
  Address grad_bits() const;
  // The sort of its entries.
  IdSort sort(const Device& device, const ColumnShape& shape, DType dtype, Order order) const;
};

// Queues the sums of sorted entries: into table rows, or if `unique` into consecutive rows.
void sum_sorted(Device& device, Stream stream, const SortedEntries& entries, Address grad, DType dtype, Address out,
                const ColumnShape& shape, int mode, int run_shift, bool unique);
// Does this for segments of many features, into consecutive rows. `mode` must contain kScale and no more than kSeveral.
void sum_sorted(Device& device, Stream stream, const SortedEntries& entries, const FeatureGradients& grads, DType dtype,
                Address out, const ColumnShape& shape, int mode, int run_shift);

// Larger outputs are zeroed concurrently with the sort.
constexpr std::int64_t kSideStreamBytes = std::int64_t(16) << 20;

// Queues zeros; a large output is zeroed concurrently with the work that is queued while this object lives. The end
// waits for it, also if a launch fails: the output must not be released while it is being zeroed.
class ZeroedOutput {
 public:
  ZeroedOutput(Device& device, Stream stream, Address out, std::int64_t bytes);
  ZeroedOutput(const ZeroedOutput&) = delete;
  ZeroedOutput& operator=(const ZeroedOutput&) = delete;

 private:
  SideWork beside_;
};

// A gradient of sum, mean or sqrtn bags: the workspace, and the launches. `unique`: consecutive distinct rows.
class Gradient {
 public:
  Gradient(const Device& device, const Matrix& grad, Address out, std::int64_t size, std::int64_t num_rows,
           std::int64_t reduce, Order order, bool unique);

  std::int64_t bytes() const { return sort_.bytes(); }
  // `rows`: memory for the distinct rows, if unique; more than `most_rows` are a fault. `host_total`: host memory for
  // their number, which is written before they are summed, or 0.
  SortedEntries run(Device& device, Stream stream, Address memory, const IdList& ids, const IdList& segments,
                    const IdList& rows, const Report& report, std::int64_t most_rows = kAnyRows,
                    Address host_total = 0) const;
  // Does this for unique rows, and writes their number to `count`, or -1 if an id is bad. Rows after the last distinct
  // one are zeros for the same id, up to `capacity`. `rows`: memory for their ids, of 64 bits.
  void run_counted(Device& device, Stream stream, Address memory, const IdList& ids, const IdList& segments,
                   Address rows, std::int64_t capacity, Address count, const Report& report) const;

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

// The row gradients of many tables of one dtype and width, one after the other in one memory. Each is padded to its most
// distinct rows, `capacities`, as by `Gradient::run_counted`.
class TableGradients {
 public:
  // `row_firsts`: the first row of each table in the stack. `values`: memory for all rows.
  TableGradients(const Device& device, DType dtype, std::int64_t columns, std::vector<std::int64_t> row_firsts,
                 std::vector<std::int64_t> capacities, const StackedBatch& batch, Address values, Order order);

  std::int64_t bytes() const { return bytes_; }
  // `ids`: memory for the row of each, int64. `counts`: memory for the number of rows of each table, or -1 if ids are bad.
  void run(Device& device, Stream stream, Address memory, Address ids, Address counts, const Report& report) const;

 private:
  const DType dtype_;
  const std::vector<std::int64_t> row_firsts_, capacities_;
  const StackedBatch batch_;
  const Address values_;
  const Order order_;
  const ColumnShape shape_;
  const IdSort sort_;
  std::int64_t rows_at_, words_at_, shifts_at_, bytes_;
};

// The dense gradient of a stack of tables: those of the tables, one after the other, with rows of zeros between them.
class StackGradient {
 public:
  // `values`: memory for all rows of the stack.
  StackGradient(const Device& device, DType dtype, std::int64_t columns, const StackedBatch& batch, Address values,
                Order order)
      : dtype_(dtype),
        batch_(batch),
        values_(values),
        order_(order),
        shape_(dtype, columns, {{batch.grad_bits(), itemsize(dtype)}, {values, itemsize(dtype)}}),
        sort_(batch.sort(device, shape_, dtype, order)) {}

  std::int64_t bytes() const { return sort_.bytes() + words_bytes(); }
  void run(Device& device, Stream stream, Address memory, const Report& report) const;

 private:
  std::int64_t words_bytes() const { return static_cast<std::int64_t>(batch_.grads.size()) * 8; }

  const DType dtype_;
  const StackedBatch batch_;
  const Address values_;
  const Order order_;
  const ColumnShape shape_;
  const IdSort sort_;
};

// A gradient by distinct rows in memory of `size` rows, padded with zeros and a fill id; more distinct rows are a fault.
class PaddedGradient {
 public:
  PaddedGradient(const Device& device, const Matrix& grad, Address out, std::int64_t ids, std::int64_t num_rows,
                 std::int64_t size, std::int64_t reduce, Order order);
  std::int64_t bytes() const { return gradient_ ? gradient_->bytes() : 0; }
  // `rows`: memory for `size` ids. `poisons`: a rejected call fills its results; else they are undefined.
  void run(Device& device, Stream stream, Address memory, const IdList& ids, const IdList& segments, const IdList& rows,
           std::int64_t fill_id, const Report& report, bool poisons) const;

 private:
  const Matrix grad_;
  const Address out_;
  const std::int64_t size_;
  std::optional<Gradient> gradient_;  // none without ids or table rows: nothing is validated then, as in TensorFlow
};

}  // namespace rowgrad::cuda
