// Sums of a table's rows by bag: SparseSegment{Sum,Mean,SqrtN} and bags by offsets.
#pragma once
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

}  // namespace rowgrad::cuda
