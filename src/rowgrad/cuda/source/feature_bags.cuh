// Bags of many features, each in its own table: one launch looks up all of them.
//
// A backward pass treats the tables as one: row r of a table is row `row_first` + r of the stack of all tables, and bag b
// of a feature is segment `segment_first` + b. The lookup writes both for every id, so that one sort serves all tables.
#pragma once
#include "segment_forward.cuh"
#include "sorting.cuh"

namespace rowgrad {

struct PutWords {
  int64_t* to;
  int64_t count;
  int64_t words[480];  // the arguments of a launch have at most 4096 bytes
};

// Writes words that the host knows to device memory. A captured graph contains them.
DEVICE void put_words(const PutWords& p) {
  for (int i = threadIdx.x; i < int(p.count); i += blockDim.x) p.to[i] = p.words[i];
}

// A feature of a batch: its table, its output, its ids and where its bags begin.
struct FeatureEntry {
  const void* data;
  int64_t rows;
  int64_t reduce;
  void* out;
  const void* ids;
  int64_t ids_wide;
  const void* offsets;
  int64_t offsets_wide;
  int64_t size;
  int64_t row_first;
  int64_t segment_first;
  int64_t entry_first;
};

struct SumFeatureBags {
  const FeatureEntry* features;
  int64_t count;
  const int64_t* members;
  int64_t blocks;
  int64_t columns;
  int64_t lanes;
  int64_t stride;
  int64_t bags;
  int64_t block_bags;
  int64_t capacity;
  int64_t has_end;
  int64_t joined;
  int32_t* rows;
  int32_t* segments;
  void* scales;
  Checks* failed;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
};

// The bags of one feature, with the names of the fields that sums read.
struct BagsOfFeature {
  const void* data;
  void* out;
  int64_t columns, lanes, stride;
  const void* ids;
  int64_t ids_wide, rows, bags, block_bags, capacity, reduce;
};
DEVICE int64_t out_stride(const BagsOfFeature& p) { return p.stride; }

constexpr int kFeatureShift = 40;  // a fault's position has the number of the feature above this bit

// Reports the first fault of all features, also of those that other launches look up. Features that share a vector of ids
// are validated as StackBags does: all offsets, then the ids of every feature. Others are separate lookups.
DEVICE void report_bad_feature(const SumFeatureBags& p) {
  if (p.joined) {
    const FeatureEntry& x = p.features[0];
    const OffsetChecks offset_checks{{x.offsets, x.offsets_wide != 0}, p.count * p.bags + 1, x.size, true};
    if (offset_checks.report_first(p.fault, p.alarm)) return;
  }
  for (int64_t f = 0; f < p.count; ++f) {
    const FeatureEntry& x = p.features[f];
    const Ids ids{x.ids, x.ids_wide != 0}, offsets{x.offsets, x.offsets_wide != 0};
    const int64_t base = f << kFeatureShift;
    int64_t begin = 0, end = x.size;
    if (p.joined) {
      begin = offsets[f * p.bags];
      end = offsets[(f + 1) * p.bags];
    } else {
      const OffsetChecks offset_checks{offsets, p.bags + (p.has_end != 0), x.size, p.has_end != 0, base};
      if (offset_checks.report_first(p.fault, p.alarm)) return;
    }
    for (int64_t i = begin; i < end; ++i)
      if (!is_below(ids[i], x.rows))
        return report(p.fault, p.alarm, fault_id_not_in_feature, base + i, ids[i], x.rows);
  }
}

// Reads a block of bags of feature f. O and I are the types of offsets and ids.
template <class O, class I>
DEVICE bool read_feature_bags(const SumFeatureBags& p, const BagsOfFeature& own, int64_t f, int64_t first,
                              BlockOfBags& block) {
  const FeatureEntry& x = p.features[f];
  const O* offsets = static_cast<const O*>(x.offsets) + (p.joined ? f * p.bags : 0);
  const int64_t size = x.size, row_first = x.row_first, segment_first = x.segment_first, entry_first = x.entry_first;
  return read_bags<I>(
      own, size, first, block, !p.joined || f == 0, !p.joined || f == p.count - 1, p.segments && blockIdx.y == 0,
      [&](int64_t bag) { return bag < p.bags || p.has_end ? int64_t(offsets[bag]) : size; },
      [&](int64_t i, I id, int64_t bag) {
        p.rows[entry_first + i] = int32_t(row_first + id);
        p.segments[entry_first + i] = int32_t(segment_first + bag);
      });
}

// Sums the bags of the features in `members`, a number of blocks for each. If a gradient will read them, `rows` and
// `segments` get the stacked ids, `scales` the factor of each segment's gradient, and `failed` whether an id was bad.
template <class T, int W>
DEVICE void sum_feature_bags(const SumFeatureBags& p) {
  const int64_t f = p.members[blockIdx.x / p.blocks];
  const FeatureEntry& x = p.features[f];
  const BagsOfFeature own{x.data, x.out, p.columns, p.lanes, p.stride, x.ids, x.ids_wide,
                          x.rows, p.bags, p.block_bags, p.capacity, x.reduce};
  const bool is_wide = x.offsets_wide != 0;
  const bool bad = sum_block_of_bags<T, W>(own, blockIdx.x % p.blocks, [&](int64_t first, BlockOfBags& block) {
    const bool found =
        is_wide ? (own.ids_wide ? read_feature_bags<int64_t, int64_t>(p, own, f, first, block)
                                : read_feature_bags<int64_t, int32_t>(p, own, f, first, block))
                : (own.ids_wide ? read_feature_bags<int32_t, int64_t>(p, own, f, first, block)
                                : read_feature_bags<int32_t, int32_t>(p, own, f, first, block));
    if (!found && p.scales && blockIdx.y == 0)
      for (int k = threadIdx.x; k < block.bags; k += blockDim.x)
        static_cast<Accumulator<T>*>(p.scales)[x.segment_first + first + k] =
            gradient_scale<Accumulator<T>>(own.reduce, block.starts[k + 1] - block.starts[k]);
    return found;
  });
  if (bad && p.failed) atomicOr(&p.failed->raised, 1u);
  if (must_report_and_reset(p.checks, bad)) report_bad_feature(p);
}

}  // namespace rowgrad
