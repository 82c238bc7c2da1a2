#include "bags.h"

#include <cstring>

#include "poison.h"

namespace rowgrad::cuda {
namespace {

// The launch of a kernel in which each block sums consecutive bags and lists their ids in shared memory.
struct BlocksOfBags {
  std::string variant;
  Grid grid;
  std::int64_t shared, block_bags, capacity;
  ColumnShape shape;

  template <class Params>
  static BlocksOfBags of(Device& device, const Matrix& data, Address out, std::int64_t size, std::int64_t bags,
                         const char* rest = "") {
    constexpr std::int64_t kWave = 7;         // blocks per multiprocessor
    constexpr std::int64_t kListed = 4096;    // ids of a block in shared memory
    constexpr std::int64_t kMaxRounds = 16;
    const int bytes = itemsize(data.dtype);
    const ColumnShape shape(data.dtype, data.columns, {{data.data, bytes}, {out, bytes}});
    std::string variant = std::string(type_name(data.dtype)) + ", " + std::to_string(shape.width) + rest;
    const int threads = device.threads_of<Params>(variant);
    const std::int64_t workers = threads / shape.lanes;
    // Enough bags per block for one wave of blocks, but few enough that their ids mostly fit in shared memory.
    const std::int64_t rounds = std::min(ceil_div(bags, workers * kWave * device.processors),
                                         3 * kListed * bags / (4 * workers * (size + 1)));
    const std::int64_t block_bags = workers * std::clamp<std::int64_t>(rounds, 1, kMaxRounds);
    // Half as many ids again as an average block has.
    const std::int64_t capacity = std::min(kListed, 3 * block_bags * (size / (bags + 1) + 8) / 2);
    const std::int64_t shared = std::int64_t(threads) * shape.width * itemsize(accumulator_of(data.dtype)) +
                                8 * (block_bags + 2) + 4 * (capacity + block_bags);
    const Grid grid{std::max<std::int64_t>(ceil_div(bags, block_bags), 1), std::max<std::int64_t>(shape.tiles, 1)};
    return {std::move(variant), grid, shared, block_bags, capacity, shape};
  }

  // Fills the fields that the kernels share, and queues the kernel.
  template <class Params>
  void launch(Device& device, Stream stream, const Matrix& data, Address out, const IdList& ids, std::int64_t size,
              std::int64_t bags, std::int64_t reduce, const Report& report, Params params) const {
    params.data = data.data;
    params.out = out;
    params.columns = shape.columns;
    params.lanes = shape.lanes;
    params.ids = ids.data;
    params.ids_wide = ids.wide;
    params.size = size;
    params.rows = data.rows;
    params.bags = bags;
    params.block_bags = block_bags;
    params.capacity = capacity;
    params.reduce = reduce;
    params.checks = report.checks;
    params.fault = report.fault;
    params.alarm = report.alarm;
    device.launch(stream, variant, grid, shared, params);
  }
};

}  // namespace

void sum_bags(Device& device, Stream stream, const Matrix& data, const SegmentBags& bags, Address out,
              std::int64_t reduce, const Report& report, Address earlier, bool poisons) {
  SumBags params;
  params.poisons = poisons;
  params.poison = poison_of(data.dtype);
  params.segments = bags.segments.data;
  params.segments_wide = bags.segments.wide;
  params.earlier = earlier;
  BlocksOfBags::of<SumBags>(device, data, out, bags.size, bags.bags)
      .launch(device, stream, data, out, bags.ids, bags.size, bags.bags, reduce, report, params);
}

void sum_bags(Device& device, Stream stream, const Matrix& data, const OffsetBags& bags, Address out,
              std::int64_t reduce, const Report& report, Address segments) {
  SumOffsetBags params;
  params.offsets = bags.offsets.data;
  params.offsets_wide = bags.offsets.wide;
  params.has_end = bags.has_end;
  params.segments = segments;
  BlocksOfBags::of<SumOffsetBags>(device, data, out, bags.size, bags.bags)
      .launch(device, stream, data, out, bags.ids, bags.size, bags.bags, reduce, report, params);
}

namespace {

constexpr std::int64_t kMaxRows = std::int64_t(1) << 31;
constexpr std::int64_t kEntryWords = sizeof(FeatureEntry) / 8, kSelectionWords = sizeof(SelectionEntry) / 8,
                       kListsWords = sizeof(ListsEntry) / 8;

std::int64_t aligned(std::int64_t bytes) { return ceil_div(bytes, 256) * 256; }

}  // namespace

FeatureLookup::FeatureLookup(std::vector<FeatureBags> features, std::int64_t bags, bool has_end, bool joined, bool keeps)
    : features_(std::move(features)), bags_(bags), has_end_(has_end), joined_(joined), keeps_(keeps) {
  const auto count = static_cast<std::int64_t>(features_.size());
  while ((std::int64_t(1) << segment_shift_) < bags_) ++segment_shift_;
  for (int f = 0; f < count; ++f) add_feature(f);
  selects_ = std::any_of(groups_.begin(), groups_.end(), [&](const FeatureGroup& group) { return selects(group); });
  // Words that the launcher writes: whether each group failed, the features, the members of groups, selections, and the
  // lists of groups.
  const auto group_count = static_cast<std::int64_t>(groups_.size());
  words_ = group_count + count * (kEntryWords + 1);
  if (selects_) words_ += count * kSelectionWords;
  if (is_split()) words_ += group_count * kListsWords;
  bytes_ = aligned(words_ * 8);
  const auto part = [&](std::int64_t bytes) {
    const std::int64_t at = bytes_;
    bytes_ += aligned(bytes);
    return at;
  };
  for (const FeatureBags& feature : features_) {
    const bool is_first = scratch_bytes_ == 0;
    kept_at_.push_back(joined_ ? 0 : scratch_bytes_);
    if (feature.padding < 0) continue;
    if (feature.size >= kMaxRows) is_supported_ = false;
    if (is_first || !joined_) scratch_bytes_ += aligned(feature.size * (feature.ids.wide ? 8 : 4));
  }
  if (!keeps_) return;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    FeatureGroup& group = groups_[g];
    if (group.has_padding || is_split()) {
      group.ignored_row = group.rows;
      group.row_firsts.push_back(group.rows);
      group.table_sizes.push_back(1);
      group.table_rows.push_back(1);
      group.rows += 32;
    }
    group.failed_at = is_split() ? 0 : static_cast<std::int64_t>(g) * 8;  // each list has ids of all
    group.rows_at = part(group.size * 4);
    group.segments_at = part(group.size * 4);
    const std::int64_t segments = static_cast<std::int64_t>(group.features.size()) << segment_shift_;
    group.scales_at = part(segments * itemsize(accumulator_of(group.dtype)));
    is_supported_ = is_supported_ && group.rows <= kMaxRows && segments <= kMaxRows && group.size < kMaxRows / 2;
  }
}

void FeatureLookup::add_feature(int number) {
  const FeatureBags& feature = features_[static_cast<std::size_t>(number)];
  if (feature.table.rows >= kMaxRows) is_supported_ = false;
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const FeatureGroup& group) {
    return group.dtype == feature.table.dtype && group.columns == feature.table.columns;
  });
  FeatureGroup& group = found != groups_.end() ? *found : groups_.emplace_back();
  group.dtype = feature.table.dtype;
  group.columns = feature.table.columns;
  group.features.push_back(number);
  if (group.tables.empty() || group.tables.back() != feature.table_number) {
    group.tables.push_back(feature.table_number);
    group.row_firsts.push_back(group.rows);
    group.rows += ceil_div(feature.table.rows, 32) * 32;
    group.table_rows.push_back(feature.table.rows);
    group.table_sizes.push_back(0);
  }
  group.has_padding = group.has_padding || feature.padding >= 0;
  std::int64_t& table_size = group.table_sizes.back();
  table_size = joined_ ? feature.size : table_size + feature.size;
  group.size = joined_ ? feature.size : group.size + feature.size;
}

void FeatureLookup::run(Device& device, Stream stream, Address memory, Address scratch,
                        const std::vector<Address>& outs, bool stacked, const Report& report) {
  const auto count = static_cast<std::int64_t>(features_.size());
  const auto group_count = static_cast<std::int64_t>(groups_.size());
  const auto at = [&](std::int64_t offset) { return memory + static_cast<Address>(offset); };
  std::vector<FeatureEntry> entries(features_.size());
  std::vector<SelectionEntry> selections(features_.size());
  std::vector<std::int64_t> words(static_cast<std::size_t>(words_), 0);
  std::int64_t member = group_count + count * kEntryWords;
  std::vector<std::int64_t> first_members;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const FeatureGroup& group = groups_[g];
    first_members.push_back(member);
    const std::int64_t out_columns = stacked ? group.columns : bags_ * group.columns;
    std::int64_t entry_first = 0, reader = 0;
    for (std::size_t k = 0, table = 0; k < group.features.size(); ++k, ++reader) {
      const int f = group.features[k];
      FeatureBags& feature = features_[static_cast<std::size_t>(f)];
      feature.out = outs[g] + static_cast<Address>(static_cast<std::int64_t>(k) * out_columns * itemsize(group.dtype));
      FeatureEntry& entry = entries[static_cast<std::size_t>(f)];
      entry.data = feature.table.data;
      entry.rows = feature.table.rows;
      entry.reduce = feature.reduce;
      entry.out = feature.out;
      entry.ids = feature.ids.data;
      entry.ids_wide = feature.ids.wide;
      entry.offsets = feature.offsets.data;
      entry.offsets_wide = feature.offsets.wide;
      entry.size = feature.size;
      if (feature.table_number != group.tables[table]) {
        entry_first += group.table_sizes[table++];
        reader = 0;
      }
      entry.row_first = group.row_firsts[table];
      entry.segment_first = static_cast<std::int64_t>(k) << segment_shift_;
      entry.entry_first = joined_ ? 0 : entry_first;
      for (std::int64_t r = 0; r <= reader; ++r) selections[static_cast<std::size_t>(f - r)].readers = reader + 1;
      SelectionEntry& selection = selections[static_cast<std::size_t>(f)];
      selection.reader = reader;
      selection.padding = feature.padding;
      selection.kept = scratch + static_cast<Address>(kept_at_[static_cast<std::size_t>(f)]);
      words[static_cast<std::size_t>(member++)] = f;
    }
  }
  std::memcpy(words.data() + group_count, entries.data(), entries.size() * sizeof(FeatureEntry));
  const std::int64_t selections_first = group_count + count * (kEntryWords + 1);
  if (selects_)
    std::memcpy(words.data() + selections_first, selections.data(), selections.size() * sizeof(SelectionEntry));
  const std::int64_t lists_first = selections_first + count * kSelectionWords;
  for (std::size_t g = 0; is_split() && g < groups_.size(); ++g) {
    ListsEntry lists;
    lists.rows = at(groups_[g].rows_at);
    lists.segments = at(groups_[g].segments_at);
    lists.ignored_row = groups_[g].ignored_row;
    std::memcpy(words.data() + lists_first + static_cast<std::int64_t>(g) * kListsWords, &lists, sizeof lists);
  }
  put_words(device, stream, memory, words);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const FeatureGroup& group = groups_[g];
    const auto members = static_cast<std::int64_t>(group.features.size());
    Matrix tables{0, group.dtype, 0, group.columns};  // with the bits of all addresses, which decide their alignment
    std::int64_t size = joined_ ? group.size * members / count : 0;
    for (const int f : group.features) {
      tables.data |= feature(f).table.data;
      if (!joined_) size = std::max(size, members * feature(f).size);
    }
    // A block has bags of one feature. Blocks are chosen for the largest feature, or the average one if sizes are unknown.
    auto blocks = BlocksOfBags::of<SumFeatureBags>(device, tables, outs[g], size, bags_ * members,
                                                   selects(group) ? ", SelectedBags" : ", BlockOfBags");
    if (selects(group)) blocks.shared += 8 * blocks.block_bags;  // for the lists of SelectedBags
    const std::int64_t blocks_each = ceil_div(bags_, blocks.block_bags);
    SumFeatureBags params;
    params.features = at(group_count * 8);
    params.selections = at(selections_first * 8);
    params.count = count;
    params.members = at(first_members[g] * 8);
    params.blocks = blocks_each;
    params.columns = group.columns;
    params.lanes = blocks.shape.lanes;
    params.stride = stacked ? members * group.columns : group.columns;
    params.bags = bags_;
    params.block_bags = blocks.block_bags;
    params.capacity = blocks.capacity;
    params.has_end = has_end_ || joined_;
    params.joined = joined_;
    if (keeps_) {
      params.entries = group.size;
      params.ignored_row = group.ignored_row;
      params.lists = at(lists_first * 8);
      params.count_lists = is_split() ? group_count : 0;
      params.rows = at(group.rows_at);
      params.segments = at(group.segments_at);
      params.failed = at(group.failed_at);
      params.scales = at(group.scales_at);
    }
    params.checks = report.checks;
    params.fault = report.fault;
    params.alarm = report.alarm;
    device.launch(stream, blocks.variant, {blocks_each * members, blocks.grid.y}, blocks.shared, params);
  }
}

}  // namespace rowgrad::cuda
