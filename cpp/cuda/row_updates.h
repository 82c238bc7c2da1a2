// Optimizer steps of tables in place: by rows, of all rows, and fused with the gradient of bags.
#pragma once
#include <array>
#include <vector>

#include "row_sums.h"

namespace rowgrad::cuda {

// Numbers of a step that are in device memory; 0: the host knows them.
struct OnDevice {
  Address lr = 0;
  bool lr_wide = false;  // whether it is a double
  Address count = 0;     // of completed steps, a double that is counted up
  Address number = 0;    // of this step, an int32

  explicit operator bool() const { return lr || count || number; }
};

// One step of one table.
struct RowUpdate {
  Rule rule;
  Matrix table;
  std::array<Address, kMostSlots> slots{};  // in the dtype of the arithmetic; one number per row, or as the table
  std::array<double, 12> numbers{};         // in the order of ROWGRAD_STEP_NUMBERS
  bool lazy = false;                        // rows without a gradient stay unchanged
  bool random = false;                      // stochastic rounding
  std::int64_t seed = 0, step = 0;
  OnDevice on_device{};
  Address live = 0;  // of the numbers that `read_numbers` writes, if some are on the device

  // Whether rows without a gradient change too.
  bool fades_others() const { return fades(rule) && !lazy && table.rows > 0 && table.columns > 0; }
  // The bytes of workspace of `fade_other_rows`.
  std::int64_t mark_bytes() const { return fades_others() ? ceil_div(table.rows, 32) * 4 : 0; }
};

// Sorted entries from which rows with a single entry read their gradient; other rows read a stored sum.
struct Singles {
  Address starts, bags;
  const SortedEntries& entries;
};

// Queues the reading of `on_device` for each table, and the count of their steps. `entries`, `live`: memory of
// `numbers_bytes` and `live_bytes`. If a number is bad, `checks` is set.
void read_numbers(Device& device, Stream stream, const std::vector<RowUpdate>& updates, Address entries, Address live,
                  Address checks, const Report& report);
// The sizes of LiveNumbers in source/update_rules.cuh, and of NumbersEntry.
constexpr std::int64_t live_bytes(std::int64_t tables) { return tables * 24; }
constexpr std::int64_t numbers_bytes(std::int64_t tables) { return tables > 1 ? tables * 64 : 0; }

// Queues the steps of the rows in `ids`, or of all rows if there is no list; row k of `grad` is the gradient of the k-th.
// `count`: the address of the number of rows, at most `size`, or 0 for `size`. `checks`: state of checks that have to
// pass, or 0.
void step_rows(Device& device, Stream stream, const RowUpdate& update, Address grad, const IdList& ids,
               std::int64_t size, Address checks, Address count = 0, const Singles* singles = nullptr);

// Queues the decay of moments for the rows that `listed` does not name. `marks`: `mark_bytes()` of memory.
void fade_other_rows(Device& device, Stream stream, const RowUpdate& update, Address marks, const IdList& listed,
                     std::int64_t size, Address checks, Address count = 0);

// A step with gradient rows of distinct ids, which are validated first.
class UpdateFromRows {
 public:
  // `padded`: ids may be followed by padding, the number of rows of the table. What a rejected gradient leaves, the lowest
  // number, is no step either; the gradient has reported it.
  explicit UpdateFromRows(const RowUpdate& update, bool padded = false) : update_(update), padded_(padded) {}
  std::int64_t bytes() const { return 512 + update_.mark_bytes(); }
  // `count`: the address of the number of rows, at most `size`, or 0 for `size`.
  void run(Device& device, Stream stream, Address memory, Address grad, const IdList& ids, std::int64_t size,
           Address count, const Report& report) const;

 private:
  const RowUpdate update_;
  const bool padded_;
};

// A step with the gradient of all rows.
class UpdateOfAll {
 public:
  explicit UpdateOfAll(const RowUpdate& update) : update_(update) {}
  std::int64_t bytes() const { return update_.on_device ? 512 : 0; }
  void run(Device& device, Stream stream, Address memory, Address grad, const Report& report) const;

 private:
  const RowUpdate update_;
};

// The part of a step after entries were sorted by row: sums, then steps. `mode` is that of the sums.
class UpdateFromEntries {
 public:
  // `listed`: the most rows that entries have. `grad`: a row per bag.
  UpdateFromEntries(const RowUpdate& update, const Matrix& grad, std::int64_t entries, std::int64_t listed, int mode,
                    Order order);
  std::int64_t bytes() const { return 256 + sum_bytes_ + update_.mark_bytes(); }
  // `rows` and `starts`: the distinct rows and their first entries; `count`: as in step_rows.
  void run(Device& device, Stream stream, Address memory, const SortedEntries& entries, const IdList& rows,
           Address starts, Address count, const Report& report) const;

 private:
  const RowUpdate update_;
  const Matrix grad_;
  const std::int64_t listed_;
  const int mode_;
  const Order order_;
  std::int64_t sum_bytes_;
};

// A step fused with the gradient of sum, mean or sqrtn bags.
class UpdateFromBags {
 public:
  UpdateFromBags(const Device& device, const RowUpdate& update, const Matrix& grad, std::int64_t size, bool wide_ids,
                 std::int64_t reduce, Order order);
  std::int64_t bytes() const { return bytes_; }
  // `earlier`: the state of checks that have to pass first, or 0.
  void run(Device& device, Stream stream, Address memory, const IdList& ids, const IdList& segments,
           const Report& report, Address earlier = 0) const;

 private:
  const std::int64_t reduce_;
  const bool wide_ids_;
  const ColumnShape shape_;
  const IdSort sort_;
  const UpdateFromEntries rest_;
  std::int64_t starts_at_, rest_at_, bytes_;
  std::int64_t rows_at_;
};

// Tables whose steps differ in nothing but the table.
struct AlikeUpdates {
  RowUpdate common;  // with the bits of all addresses, which decide their alignment
  std::vector<std::size_t> tables;
};

// Steps of many tables of one dtype and width, fused with the gradients of the bags of their features.
class UpdateTables {
 public:
  // `updates`: of each table of the stack, in order; those whose table has no address are not updated. `row_firsts`: the
  // first row of each table in the stack.
  UpdateTables(const Device& device, std::vector<RowUpdate> updates, std::vector<std::int64_t> row_firsts,
               const StackedBatch& batch, Order order);

  // Whether the kernels support rows of this width.
  bool is_supported() const;
  std::int64_t bytes() const { return bytes_; }
  void run(Device& device, Stream stream, Address memory, const Report& report) const;

 private:
  const std::vector<RowUpdate> updates_;
  const std::vector<std::int64_t> row_firsts_;
  const StackedBatch batch_;
  const Order order_;
  const ColumnShape shape_;  // of the sums
  const IdSort sort_;
  std::vector<AlikeUpdates> groups_;
  bool is_live_ = false;  // whether numbers of any step are on the device
  std::int64_t listed_, rows_at_, starts_at_, sums_at_, words_at_, numbers_at_, live_at_, marks_at_, bytes_;
};

// A table and the gradient of its bags; `segments` has the bag of each id, a row of `grad`.
struct UpdateFromSegments {
  RowUpdate update;
  Matrix grad;
  IdList ids, segments;
  std::int64_t size;
};

// Queues the steps of many tables of one dtype and width, fused with the gradients of sum, mean or sqrtn bags. If the ids
// of one are bad, none is updated; the position of the fault has the number of the table above bit 40. Nothing is
// validated or updated for tables without rows or ids.
void update_from_segments(const Queue& queue, const std::vector<UpdateFromSegments>& tables, std::int64_t reduce,
                          Order order);

// A table and its row gradient: ids that ascend strictly, and a row for each. `count`: the address of their number, at
// most `size`, or 0 for `size`. `padded`: as for UpdateFromRows.
struct UpdateFromList {
  RowUpdate update;
  Address grad, ids, count;
  std::int64_t size;
  bool wide = true, padded = false;
};

// Steps of many tables with their row gradients. If the ids of one are bad, none is updated; the position of the fault has
// the number of the table above bit 40.
class UpdateLists {
 public:
  explicit UpdateLists(std::vector<UpdateFromList> lists);

  // Whether one kernel updates all tables that are alike; else each has launches of its own.
  bool is_supported() const;
  std::int64_t bytes() const { return bytes_; }
  void run(Device& device, Stream stream, Address memory, const Report& report) const;

 private:
  const std::vector<UpdateFromList> lists_;
  std::vector<AlikeUpdates> groups_;
  std::vector<Address> grad_bits_;  // of each group
  bool is_live_ = false;
  std::int64_t founds_at_, entries_at_, numbers_at_, live_at_, marks_at_, bytes_;
};

}  // namespace rowgrad::cuda
