// Bags of many features and their tables: one launch looks up all of them.
//
// A backward pass treats the tables as one: row r of a table is row `row_first` + r of the stack of all tables, and bag b
// of a feature is segment `segment_first` + b. The lookup writes both for every id, so that one sort serves all tables.
// Ids of a table that several features read are listed example by example, as by StackBags: the order of additions.
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

// A feature of a batch: its table, its output, its ids and where its bags begin; `offsets` is null if all bags have the
// same size. The ids of its table begin at `entry_first` of the list of all; 0 if all features share a vector.
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

// A feature's place among the `readers` of its table, which are consecutive, and the id that is ignored, or -1; `kept` is
// memory for the other ids.
struct SelectionEntry {
  int64_t reader;
  int64_t readers;
  int64_t padding;
  void* kept;
};

// The lists of a group of tables that form a stack, and the row of ids that are ignored.
struct ListsEntry {
  int32_t* rows;
  int32_t* segments;
  int64_t ignored_row;
};

struct SumFeatureBags {
  const FeatureEntry* features;
  const SelectionEntry* selections;
  const ListsEntry* lists;
  int64_t count_lists;
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
  int64_t entries;
  int64_t ignored_row;
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

// Reports the first fault of all features, also of those that other launches look up: of the offsets, then of the ids.
DEVICE_CALL void report_bad_feature(const SumFeatureBags& p) {
  for (int64_t f = 0; f < (p.joined ? 1 : p.count); ++f) {
    const FeatureEntry& x = p.features[f];
    const int64_t size = (p.joined ? p.count * p.bags : p.bags) + (p.has_end != 0);
    const OffsetChecks checks{{x.offsets, x.offsets_wide != 0}, size, x.size, p.has_end != 0, f << kFeatureShift};
    if (x.offsets && checks.report_first(p.fault, p.alarm)) return;
  }
  for (int64_t f = 0; f < p.count; ++f) {
    const FeatureEntry& x = p.features[f];
    const Ids ids{x.ids, x.ids_wide != 0}, offsets{x.offsets, x.offsets_wide != 0};
    const int64_t begin = p.joined ? offsets[f * p.bags] : 0, end = p.joined ? offsets[(f + 1) * p.bags] : x.size;
    for (int64_t i = begin; i < end; ++i)
      if (!is_below(ids[i], x.rows))
        return report(p.fault, p.alarm, fault_id_not_in_feature, (f << kFeatureShift) + i, ids[i], x.rows);
  }
}

// Returns where a bag of feature f begins in its list of ids; for the number of bags, where the list ends.
DEVICE int64_t start_of(const SumFeatureBags& p, int64_t f, int64_t bag) {
  const FeatureEntry& x = p.features[f];
  if (!x.offsets) return bag * (x.size / p.bags);
  if (bag == p.bags && !p.has_end) return x.size;
  return Ids{x.offsets, x.offsets_wide != 0}[(p.joined ? f * p.bags : 0) + bag];
}

// Returns what has to be added to the place of the ids of a bag in the list of feature f, for their place among the ids of
// all features. It is not meaningful if offsets are bad.
DEVICE_CALL uint32_t place_shift(const SumFeatureBags& p, int64_t f, int64_t bag) {
  const SelectionEntry& own = p.selections[f];
  const int64_t first = f - own.reader;
  uint32_t shift = uint32_t(p.joined ? start_of(p, first, 0) : p.features[f].entry_first);
  for (int64_t other = first; other < first + own.readers; ++other) {
    if (p.joined) shift -= uint32_t(start_of(p, other, 0));
    if (other != f) shift += uint32_t(start_of(p, other, bag + (other < f)));
  }
  return shift;
}

DEVICE BagsOfFeature bags_of(const SumFeatureBags& p, int64_t f) {
  const FeatureEntry& x = p.features[f];
  return {x.data, x.out, p.columns, p.lanes, p.stride, x.ids, x.ids_wide,
          x.rows, p.bags, p.block_bags, p.capacity, x.reduce};
}

// Writes the factors of the gradients of a block of bags. A is the type of sums.
template <class A, class Block>
DEVICE void put_scales(const SumFeatureBags& p, int64_t f, int64_t first, const Block& block) {
  const FeatureEntry& x = p.features[f];
  if (p.scales && blockIdx.y == 0)
    for (int k = threadIdx.x; k < block.bags; k += blockDim.x)
      static_cast<A*>(p.scales)[x.segment_first + first + k] = gradient_scale<A>(x.reduce, block.size_of(k));
}

// Reads a block of bags of feature f; returns whether an offset or an id is bad. O and I are the types of offsets and ids.
template <class O, class I>
DEVICE bool read_feature_bags(const SumFeatureBags& p, const BagsOfFeature& own, int64_t f, int64_t first,
                              BlockOfBags& block) {
  const FeatureEntry& x = p.features[f];
  const O* offsets = static_cast<const O*>(x.offsets) + (p.joined ? f * p.bags : 0);
  const int64_t size = x.size, row_first = x.row_first, segment_first = x.segment_first, entry_first = x.entry_first;
  const int64_t length = x.offsets ? 0 : size / p.bags;
  return read_bags<I>(
      own, size, first, block, !p.joined || f == 0, !p.joined || f == p.count - 1, p.segments && blockIdx.y == 0,
      [&](int64_t bag) {
        if (!x.offsets) return bag * length;
        return bag < p.bags || p.has_end ? int64_t(offsets[bag]) : size;
      },
      [&](int64_t i, I id, int64_t bag) {
        p.rows[entry_first + i] = int32_t(row_first + id);
        p.segments[entry_first + i] = int32_t(segment_first + bag);
      });
}

template <class A>
DEVICE bool read_block(const SumFeatureBags& p, const BagsOfFeature& own, int64_t f, int64_t first, BlockOfBags& block) {
  const bool is_wide = p.features[f].offsets_wide != 0;
  const bool bad = is_wide ? (own.ids_wide ? read_feature_bags<int64_t, int64_t>(p, own, f, first, block)
                                           : read_feature_bags<int64_t, int32_t>(p, own, f, first, block))
                           : (own.ids_wide ? read_feature_bags<int32_t, int64_t>(p, own, f, first, block)
                                           : read_feature_bags<int32_t, int32_t>(p, own, f, first, block));
  if (!bad) put_scales<A>(p, f, first, block);
  return bad;
}

// A block of bags whose ids get places in another order, or of which some are ignored: how many ids each bag has then, and
// the ids if they are not listed.
struct SelectedBags : BlockOfBags {
  uint32_t* counts;
  const void* ids;

  DEVICE int64_t size_of(int bag) const { return int64_t(counts[bag]); }
  DEVICE const void* ids_of(const void*) const { return ids; }
};

// Copies the ids of each bag that are not ignored, and counts them. A warp takes a bag; `first_of(bag)` is the place of its
// first id in both lists, which may be the same list.
template <class I, class First>
DEVICE void select_ids(const SelectedBags& block, const I* from, I* to, I padding, const First& first_of) {
  const unsigned lane = lane_of_thread();
  for (int bag = threadIdx.x / 32; bag < block.bags; bag += blockDim.x / 32) {
    const int64_t first = first_of(bag), size = block.BlockOfBags::size_of(bag);
    uint32_t count = 0;
#pragma unroll 1
    for (int64_t i = lane; i - lane < size; i += 32) {
      const I id = i < size ? from[first + i] : padding;
      const unsigned kept = __ballot_sync(kAllLanes, id != padding);  // all lanes have read their ids
      if (id != padding) to[first + count + __popc(kept & lanes_before(lane))] = id;
      count += __popc(kept);
    }
    if (lane == 0) block.counts[bag] = count;
  }
}

template <class I>
DEVICE bool read_selected_bags(const SumFeatureBags& p, const BagsOfFeature& own, int64_t f, int64_t first,
                               SelectedBags& block) {
  const FeatureEntry& x = p.features[f];
  const SelectionEntry& selection = p.selections[f];
  const int64_t row_first = x.row_first, segment_first = x.segment_first, padding = selection.padding;
  const bool keeps = p.segments && blockIdx.y == 0;
  // Layout: what sum_block_of_bags has | counts | what is added to the places of each bag's ids
  block.counts = block.list + p.capacity + p.block_bags;
  uint32_t* const shifts = block.counts + p.block_bags;
  for (int k = threadIdx.x; keeps && k < block.bags; k += blockDim.x) shifts[k] = place_shift(p, f, first + k);
  const bool bad = read_bags<I>(
      own, x.size, first, block, !p.joined || f == 0, !p.joined || f == p.count - 1, keeps,
      [&](int64_t bag) { return start_of(p, f, bag); },
      [&](int64_t i, I id, int64_t bag) {
        const uint32_t at = uint32_t(i) + shifts[bag - first];
        if (at >= p.entries) return;  // offsets of another feature of the table are bad
        p.rows[at] = int32_t(id == padding ? p.ignored_row : row_first + id);
        p.segments[at] = int32_t(segment_first + bag);
        for (int64_t k = 0; k < p.count_lists; ++k) {
          const ListsEntry& lists = p.lists[k];
          if (lists.rows == p.rows) continue;
          lists.rows[at] = int32_t(lists.ignored_row);
          lists.segments[at] = 0;
        }
      });
  if (bad) return true;
  block.ids = own.ids;
  if (padding < 0) {
    for (int k = threadIdx.x; k < block.bags; k += blockDim.x) block.counts[k] = uint32_t(block.BlockOfBags::size_of(k));
  } else if (block.is_listed) {
    const int64_t begin = block.starts[0];
    select_ids(block, block.list, block.list, uint32_t(padding),
               [&](int bag) { return block.starts[bag] - begin + bag; });
  } else {
    block.ids = selection.kept;
    select_ids(block, static_cast<const I*>(own.ids), static_cast<I*>(selection.kept), I(padding),
               [&](int bag) { return block.starts[bag]; });
  }
  __syncthreads();
  return false;
}

template <class A>
DEVICE bool read_block(const SumFeatureBags& p, const BagsOfFeature& own, int64_t f, int64_t first,
                       SelectedBags& block) {
  const bool bad = own.ids_wide ? read_selected_bags<int64_t>(p, own, f, first, block)
                                : read_selected_bags<int32_t>(p, own, f, first, block);
  if (!bad) put_scales<A>(p, f, first, block);
  return bad;
}

// Sums the bags of the features in `members`, a number of blocks for each. If a gradient will read them, `rows` and
// `segments` get the stacked ids, `scales` the factor of each segment's gradient, and `failed` whether an id was bad.
// `lists`: those of all groups of tables, if they share a vector; each group ignores the ids of the others. Block: how bags
// are read.
template <class T, int W, class Block>
DEVICE void sum_feature_bags(const SumFeatureBags& p) {
  const int64_t f = p.members[blockIdx.x / p.blocks];
  const BagsOfFeature own = bags_of(p, f);
  const bool bad = sum_block_of_bags<T, W, Block>(own, blockIdx.x % p.blocks, [&](int64_t first, Block& block) {
    return read_block<Accumulator<T>>(p, own, f, first, block);
  });
  if (bad && p.failed) atomicOr(&p.failed->raised, 1u);
  if (must_report_and_reset(p.checks, bad)) report_bad_feature(p);
}

}  // namespace rowgrad
