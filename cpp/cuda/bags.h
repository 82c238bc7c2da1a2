// Sums of a table's rows by bag: SparseSegment{Sum,Mean,SqrtN} and bags by offsets.
#pragma once
#include <vector>

#include "layout.h"

namespace rowgrad::cuda {

// The ids of a batch, and the bag of each.
struct SegmentBags {
  IdList ids, segments;
  std::int64_t size, bags;
};

// The ids of a batch, and where each bag begins; `has_end`: the last offset is the end of the last bag.
struct OffsetBags {
  IdList ids, offsets;
  bool has_end;
  std::int64_t size, bags;
};

// Queues validation and sums. `out` has a row per bag. `earlier`: the state of checks that have to pass first, or 0.
// `poisons`: if ids are bad, the whole output gets `poison_of` its dtype; else it is undefined.
void sum_bags(Device& device, Stream stream, const Matrix& data, const SegmentBags& bags, Address out,
              std::int64_t reduce, const Report& report, Address earlier = 0, bool poisons = false);

// Does this for offsets, at least one. `segments`: memory for the bag of each id as int32, or 0.
void sum_bags(Device& device, Stream stream, const Matrix& data, const OffsetBags& bags, Address out,
              std::int64_t reduce, const Report& report, Address segments = 0);

// A feature of a batch: its ids and bags, the table that they look up, and its output. Without offsets, bags have the same
// size. Features of one table are consecutive. Ids that equal `padding` are ignored, if it is not negative.
struct FeatureBags {
  int table_number;
  Matrix table;
  std::int64_t reduce, padding;
  IdList ids, offsets;
  std::int64_t size;
  Address out = 0;
};

// Features of tables of one dtype and width. Their tables form a stack: row r of a table is row `row_firsts` + r. If ids
// may be ignored, their row is `ignored_row`, the only one of a last entry in the lists of tables.
struct FeatureGroup {
  std::vector<int> features, tables;
  DType dtype;
  std::int64_t columns;
  std::int64_t size = 0;                  // ids
  std::int64_t rows = 0;                  // of the stack
  std::vector<std::int64_t> row_firsts;   // multiples of 32
  std::vector<std::int64_t> table_sizes;  // the most ids of each table
  std::vector<std::int64_t> table_rows;
  bool has_padding = false;
  std::int64_t ignored_row = -1;
  // In the memory of the lookup, if it is recorded.
  std::int64_t failed_at = 0, rows_at = 0, segments_at = 0, scales_at = 0;

  bool is_shared() const { return tables.size() < features.size(); }
};

// A lookup of many features and their tables.
class FeatureLookup {
 public:
  // `joined`: the features share a vector of ids, and have consecutive parts of a list of offsets with its end. `keeps`: a
  // backward pass will read the ids of the stack and the segments of all features.
  FeatureLookup(std::vector<FeatureBags> features, std::int64_t bags, bool has_end, bool joined, bool keeps);

  // Whether all lists fit the kernels' numbers.
  bool is_supported() const { return is_supported_; }
  // The bytes of memory: the workspace, and what a backward pass reads; and of memory that only the lookup needs.
  std::int64_t bytes() const { return bytes_; }
  std::int64_t scratch_bytes() const { return scratch_bytes_; }
  std::int64_t bags() const { return bags_; }
  const std::vector<FeatureGroup>& groups() const { return groups_; }
  const FeatureBags& feature(int f) const { return features_[static_cast<std::size_t>(f)]; }
  std::int64_t segment_shift() const { return segment_shift_; }

  // Queues validation and sums. `outs`: the memory of each group's outputs, one after the other; or if `stacked`, bag by
  // bag.
  void run(Device& device, Stream stream, Address memory, Address scratch, const std::vector<Address>& outs, bool stacked,
           const Report& report);

 private:
  void add_feature(int number);
  // Whether a backward pass will read ids of a vector that several groups share. Each group then ignores those of others.
  bool is_split() const { return keeps_ && joined_ && groups_.size() > 1; }
  // Whether the ids of a group are listed in another order, or some are ignored.
  bool selects(const FeatureGroup& group) const {
    return group.has_padding || (keeps_ && group.is_shared()) || is_split();
  }

  std::vector<FeatureBags> features_;
  const std::int64_t bags_;
  const bool has_end_, joined_, keeps_;
  std::vector<FeatureGroup> groups_;
  std::vector<std::int64_t> kept_at_;  // in the scratch memory: the ids of each feature that are not ignored
  std::int64_t segment_shift_ = 0, words_ = 0, bytes_ = 0, scratch_bytes_ = 0;
  bool is_supported_ = true, selects_ = false;
};

}  // namespace rowgrad::cuda
