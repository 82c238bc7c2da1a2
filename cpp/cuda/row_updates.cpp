#include "row_updates.h"

#include <cstring>
#include <limits>

namespace rowgrad::cuda {
namespace {

constexpr int kThreads = 256;       // of kernels that update one row at a time
constexpr int kRowsAtOnce = 8;      // rows of a group of lanes and iteration in step_rows
constexpr int kResident = 4;        // blocks of step_rows per multiprocessor; each loops over rows and prefetches
constexpr int kLanesOfSum = 8;      // a sum over columns has eight lanes

std::int64_t aligned(std::int64_t bytes) { return ceil_div(bytes, 256) * 256; }

int slot_itemsize(const RowUpdate& update) { return itemsize(accumulator_of(update.table.dtype)); }

std::string variant_of(const RowUpdate& update, int width) {
  return std::string(type_name(update.table.dtype)) + ", " + class_of(update.rule) + ", " + std::to_string(width);
}

// Fills the fields that all kernels that update rows have.
template <class Params>
void fill(Params& params, const RowUpdate& update, std::int64_t lanes) {
  params.table = update.table.data;
  params.slot0 = update.slots[0];
  params.slot1 = update.slots[1];
  params.cols = update.table.columns;
  params.lanes = lanes;
  params.random = update.random;
  params.seed = update.seed;
  params.step = update.step;
  params.live = update.live;
  std::size_t i = 0;
#define ROWGRAD_NUMBER(name) params.name = update.numbers[i++];
  ROWGRAD_STEP_NUMBERS(ROWGRAD_NUMBER)
#undef ROWGRAD_NUMBER
}

// The positions of numbers in `RowUpdate::numbers`.
enum class Number {
#define ROWGRAD_POSITION(name) name,
  ROWGRAD_STEP_NUMBERS(ROWGRAD_POSITION)
#undef ROWGRAD_POSITION
};
double number_of(const RowUpdate& update, Number number) { return update.numbers[static_cast<std::size_t>(number)]; }

NumbersEntry numbers_entry(const RowUpdate& update) {
  NumbersEntry entry;
  entry.lr = update.on_device.lr;
  entry.lr_wide = update.on_device.lr_wide;
  entry.known_lr = number_of(update, Number::lr);
  entry.beta1 = number_of(update, Number::beta1);
  entry.beta2 = number_of(update, Number::beta2);
  entry.count = update.on_device.count;
  entry.number = update.on_device.number;
  entry.known_step = update.step;
  return entry;
}

// Queues the reading of one table's numbers, if they are on the device; returns the step that reads them.
RowUpdate with_numbers(Device& device, Stream stream, const RowUpdate& update, Address memory, Address checks,
                       const Report& report) {
  if (!update.on_device) return update;
  read_numbers(device, stream, {update}, 0, memory, checks, report);
  RowUpdate found = update;
  found.live = memory;
  return found;
}

// The assignment of columns to lanes of step_rows, which also reads `grad` and perhaps `bags`.
ColumnShape step_shape(const RowUpdate& update, Address grad, Address bags) {
  const int bytes = itemsize(update.table.dtype), slot_bytes = slot_itemsize(update);
  return ColumnShape(update.table.dtype, update.table.columns,
                     {{update.table.data, bytes},
                      {update.slots[0], slot_bytes},
                      {update.slots[1], slot_bytes},
                      {grad, bytes},
                      {bags, bytes}});
}

// Whether the rule needs whole rows and a row is wider than a group of lanes.
bool is_too_wide(const RowUpdate& update, const ColumnShape& shape) { return is_per_row(update.rule) && shape.tiles > 1; }

// The launch of a kernel that updates one row at a time with a group of lanes.
struct RowLanes {
  int width;  // columns read at once: sixteen bytes if all memory is aligned, else one
  std::int64_t lanes;

  RowLanes(const RowUpdate& update, Address grad) {
    const int widest = 16 / itemsize(update.table.dtype);
    const bool aligned = (update.table.data | update.slots[0] | update.slots[1] | grad) % 16 == 0;
    width = aligned && update.table.columns % widest == 0 ? widest : 1;
    // The most lanes of which at least three quarters have work.
    const std::int64_t units = update.table.columns / width;
    lanes = 1;
    for (const std::int64_t n : {32, 16, 8, 4, 2})
      if (4 * units >= 3 * n * ceil_div(units, n)) {
        lanes = n;
        break;
      }
    if (is_per_row(update.rule)) lanes = std::max<std::int64_t>(lanes, kLanesOfSum);
  }
  Grid grid(const Device& device, std::int64_t rows) const {
    return {std::min<std::int64_t>(ceil_div(rows, kThreads / lanes), device.processors * 32)};
  }
};

template <class Params>
void name_singles(Params& params, const Singles& singles) {
  params.starts = singles.starts;
  params.entries = singles.entries.size;
  params.segments = singles.entries.values;
  params.scales = singles.entries.scales;
}

// Queues the kernel that updates several rows at a time; `params` has the fields that name rows and gradients.
template <class Params>
void launch_steps(Device& device, Stream stream, Params params, const RowUpdate& update, const ColumnShape& shape) {
  const std::string variant = variant_of(update, shape.width);
  const std::int64_t groups = device.threads_of<Params>(variant) / shape.lanes, bytes = slot_itemsize(update);
  const std::int64_t stride = (shape.lanes + (shape.lanes < 8 ? 1 : 8 / shape.width)) * shape.width;
  const std::int64_t shared = groups * kRowsAtOnce * (stride * bytes + bytes + 16);  // the layout in row_steps.cuh
  fill(params, update, shape.lanes);
  const std::int64_t blocks =
      std::min<std::int64_t>(ceil_div(params.size, groups * kRowsAtOnce), device.processors * kResident);
  device.launch(stream, variant, {blocks, shape.tiles}, shared, params);
}

}  // namespace

void read_numbers(Device& device, Stream stream, const std::vector<RowUpdate>& updates, Address entries, Address live,
                  Address checks, const Report& report) {
  static_assert(sizeof(NumbersEntry) == sizeof(ReadNumbers::only) && numbers_bytes(2) == 2 * sizeof(NumbersEntry));
  ReadNumbers params;
  params.size = static_cast<std::int64_t>(updates.size());
  std::vector<std::int64_t> words(updates.size() * sizeof(NumbersEntry) / 8);
  for (std::size_t t = 0; t < updates.size(); ++t) {
    NumbersEntry entry = numbers_entry(updates[t]);
    if (!updates[t].table.data) entry.known_lr = 1;  // a valid number, which nothing reads
    std::memcpy(words.data() + t * sizeof entry / 8, &entry, sizeof entry);
  }
  if (updates.size() == 1) {
    std::copy(words.begin(), words.end(), params.only);
  } else {
    put_words(device, stream, entries, words);
    params.entries = entries;
  }
  const RowUpdate& first = updates.front();
  params.rule = static_cast<std::int64_t>(first.rule);
  params.has_rate = fades(first.rule);
  params.is_positive = needs_positive_lr(first.rule);
  // The smallest number that float32 rounds to infinity.
  params.most = slot_itemsize(first) == 8 ? std::numeric_limits<double>::infinity() : 0x1p128 - 0x1p103;
  params.out = live;
  params.checks = checks;
  params.fault = report.fault;
  params.alarm = report.alarm;
  device.launch(stream, "", {1}, 0, params);
}

void step_rows(Device& device, Stream stream, const RowUpdate& update, Address grad, const IdList& ids,
               std::int64_t size, Address checks, Address count, const Singles* singles) {
  if (update.table.columns == 0) return;  // no weights
  const auto list = [&](auto& params) {
    params.grad = grad;
    params.ids = ids.data;
    params.wide = ids.wide;
    params.size = size;
    params.count = count;
    params.checks = checks;
  };
  const ColumnShape shape = step_shape(update, grad, singles ? singles->bags : 0);
  if (is_too_wide(update, shape)) {
    const RowLanes how(update, grad);
    UpdateRows params;
    list(params);
    fill(params, update, how.lanes);
    const int square = is_per_row(update.rule) ? (update.table.dtype == DType::float64 ? 8 : 4) : 0;
    device.launch(stream, variant_of(update, how.width), how.grid(device, size), kThreads * how.width * square, params);
    return;
  }
  StepRows params;
  list(params);
  if (singles) {
    params.bags = singles->bags;
    name_singles(params, *singles);
  }
  launch_steps(device, stream, params, update, shape);
}

namespace {

void mark_rows(Device& device, Stream stream, Address marks, const IdList& listed, std::int64_t size, Address checks,
               Address count) {
  MarkRows mark;
  mark.marks = marks;
  mark.ids = listed.data;
  mark.wide = listed.wide;
  mark.size = size;
  mark.count = count;
  mark.checks = checks;
  device.launch(stream, "", {std::min<std::int64_t>(ceil_div(size, kThreads), device.processors * 8)}, 0, mark);
}

void fade_unmarked_rows(Device& device, Stream stream, const RowUpdate& update, Address marks, Address checks) {
  const RowLanes how(update, 0);
  FadeRows fade;
  fill(fade, update, how.lanes);
  fade.marks = marks;
  fade.rows = update.table.rows;
  fade.checks = checks;
  device.launch(stream, variant_of(update, how.width), how.grid(device, update.table.rows), 0, fade);
}

}  // namespace

void fade_other_rows(Device& device, Stream stream, const RowUpdate& update, Address marks, const IdList& listed,
                     std::int64_t size, Address checks, Address count) {
  if (!update.fades_others()) return;
  device.zero(stream, marks, update.mark_bytes());
  mark_rows(device, stream, marks, listed, size, checks, count);
  fade_unmarked_rows(device, stream, update, marks, checks);
}

void UpdateFromRows::run(Device& device, Stream stream, Address memory, Address grad, const IdList& ids,
                         std::int64_t size, Address count, const Report& report) const {
  device.zero(stream, memory, 16);  // the state of the checks, and the number of rows before the padding
  CheckRowIds check;
  check.ids = ids.data;
  check.wide = ids.wide;
  check.size = size;
  check.count = count;
  check.bound = update_.table.rows;
  check.code = static_cast<std::int64_t>(Fault::row_ids);
  check.checks = memory;
  check.fault = report.fault;
  check.alarm = report.alarm;
  if (padded_) count = check.found = memory + 8;
  device.launch(stream, "", {std::min<std::int64_t>(ceil_div(size, kThreads), device.processors * 8)}, 0, check);
  const RowUpdate update = with_numbers(device, stream, update_, memory + 256, memory, report);
  step_rows(device, stream, update, grad, ids, size, memory, count);
  fade_other_rows(device, stream, update, memory + 512, ids, size, memory, count);
}

void UpdateOfAll::run(Device& device, Stream stream, Address memory, Address grad, const Report& report) const {
  if (update_.on_device) device.zero(stream, memory, 8);
  const Address checks = update_.on_device ? memory : 0;
  const RowUpdate update = with_numbers(device, stream, update_, memory + 256, checks, report);
  step_rows(device, stream, update, grad, {}, update.table.rows, checks);
}

UpdateFromEntries::UpdateFromEntries(const RowUpdate& update, const Matrix& grad, std::int64_t entries,
                                     std::int64_t listed, int mode, Order order)
    : update_(update), grad_(grad), listed_(std::min(listed, update.table.rows)), mode_(mode), order_(order) {
  sum_bytes_ = entries ? aligned(listed_ * grad.columns * itemsize(grad.dtype)) : 0;
}

void UpdateFromEntries::run(Device& device, Stream stream, Address memory, const SortedEntries& entries,
                            const IdList& rows, Address starts, Address count, const Report& report) const {
  const RowUpdate update = with_numbers(device, stream, update_, memory, entries.checks, report);
  memory += 256;
  if (grad_.columns && entries.size) {
    // Sums are stored in consecutive rows; rows with a single entry need no sum.
    const bool is_plain = (mode_ == 0 || mode_ == kScale) && !is_too_wide(update, step_shape(update, memory, grad_.data));
    const Singles singles{starts, grad_.data, entries};
    const int bytes = itemsize(grad_.dtype);
    const ColumnShape shape(grad_.dtype, grad_.columns, {{grad_.data, bytes}});
    sum_sorted(device, stream, entries, grad_.data, grad_.dtype, memory, shape, is_plain ? mode_ | kSeveral : mode_,
               run_shift_of(order_), true);
    step_rows(device, stream, update, memory, rows, listed_, entries.checks, count, is_plain ? &singles : nullptr);
  }
  fade_other_rows(device, stream, update, memory + static_cast<Address>(sum_bytes_), rows, listed_, entries.checks,
                  count);
}

UpdateFromBags::UpdateFromBags(const Device& device, const RowUpdate& update, const Matrix& grad, std::int64_t size,
                               bool wide_ids, std::int64_t reduce, Order order)
    : reduce_(reduce),
      wide_ids_(wide_ids),
      shape_(grad.dtype, grad.columns, {{grad.data, itemsize(grad.dtype)}}),
      sort_(device, size, update.table.rows, grad.rows,
            [&]() -> IdSort::Options {
              const Joins joins(size, shape_, grad.dtype, run_shift_of(order));
              const int scale = has_divisor(reduce) ? itemsize(accumulator_of(grad.dtype)) : 0;
              return {has_divisor(reduce), scale, joins.zeroed, joins.workspace};
            }()),
      rest_(update, grad, size, size, has_divisor(reduce) ? kScale : 0, order) {
  rows_at_ = sort_.bytes();
  starts_at_ = rows_at_ + aligned(size * (wide_ids ? 8 : 4));
  rest_at_ = starts_at_ + aligned(size * 8);
  bytes_ = rest_at_ + rest_.bytes();
}

void UpdateFromBags::run(Device& device, Stream stream, Address memory, const IdList& ids, const IdList& segments,
                         const Report& report, Address earlier) const {
  const IdList rows{memory + static_cast<Address>(rows_at_), wide_ids_};
  const Address starts = memory + static_cast<Address>(starts_at_);
  const SortedEntries entries = sort_.run(
      device, stream, memory,
      {.ids = ids,
       .segments = segments,
       .reduce = reduce_,
       .rows_out = rows,
       .starts_out = starts,
       .lookup = {0, earlier}},
      report);
  rest_.run(device, stream, memory + static_cast<Address>(rest_at_), entries, rows, starts, entries.total, report);
}

// -- Many tables ------------------------------------------------------------------------------------------------------

namespace {

bool are_alike(const RowUpdate& a, const RowUpdate& b) {
  return a.rule == b.rule && a.numbers == b.numbers && a.lazy == b.lazy && a.random == b.random && a.step == b.step &&
         a.table.dtype == b.table.dtype && a.table.columns == b.table.columns;
}

// Adds a table to the group of those that are alike; returns the number of the group.
std::size_t add_to_group(std::vector<AlikeUpdates>& groups, const RowUpdate& update, std::size_t table) {
  auto found =
      std::find_if(groups.begin(), groups.end(), [&](const AlikeUpdates& a) { return are_alike(a.common, update); });
  if (found == groups.end()) found = groups.insert(groups.end(), {update, {}});
  found->tables.push_back(table);
  found->common.table.data |= update.table.data;
  for (std::size_t slot = 0; slot < update.slots.size(); ++slot) found->common.slots[slot] |= update.slots[slot];
  return static_cast<std::size_t>(found - groups.begin());
}

}  // namespace

UpdateTables::UpdateTables(const Device& device, std::vector<RowUpdate> updates, std::vector<std::int64_t> row_firsts,
                           const StackedBatch& batch, Order order)
    : updates_(std::move(updates)),
      row_firsts_(std::move(row_firsts)),
      batch_(batch),
      order_(order),
      shape_(updates_[0].table.dtype, updates_[0].table.columns,
             {{batch.grad_bits(), itemsize(updates_[0].table.dtype)}}),
      sort_(batch.sort(device, shape_, updates_[0].table.dtype, order)),
      listed_(std::min(batch.size, batch.stack_rows)) {
  bool fades_others = false;
  for (std::size_t t = 0; t < updates_.size(); ++t) {
    const RowUpdate& update = updates_[t];
    if (!update.table.data) continue;
    fades_others = fades_others || update.fades_others();
    is_live_ = is_live_ || update.on_device;
    add_to_group(groups_, update, t);
  }
  const auto tables = static_cast<std::int64_t>(updates_.size());
  const auto features = static_cast<std::int64_t>(batch.grads.size());
  const std::int64_t words = features + static_cast<std::int64_t>(groups_.size()) * tables * std::int64_t(sizeof(TableEntry) / 8);
  bytes_ = sort_.bytes();
  const auto part = [&](std::int64_t size) {
    const std::int64_t at = bytes_;
    bytes_ += aligned(size);
    return at;
  };
  rows_at_ = part(listed_ * 4);
  starts_at_ = part(listed_ * 8);
  sums_at_ = part(listed_ * shape_.columns * itemsize(updates_[0].table.dtype));
  words_at_ = part(words * 8);
  numbers_at_ = part(is_live_ ? numbers_bytes(tables) : 0);
  live_at_ = part(is_live_ ? live_bytes(tables) : 0);
  marks_at_ = part(fades_others ? ceil_div(batch.stack_rows, 32) * 4 : 0);
}

bool UpdateTables::is_supported() const {
  const Address grads = batch_.grad_bits();
  return std::none_of(groups_.begin(), groups_.end(), [&](const AlikeUpdates& group) {
    return is_too_wide(group.common, step_shape(group.common, 0, grads));
  });
}

void UpdateTables::run(Device& device, Stream stream, Address memory, const Report& report) const {
  const auto at = [&](std::int64_t offset) { return memory + static_cast<Address>(offset); };
  const auto tables = static_cast<std::int64_t>(updates_.size()), features = static_cast<std::int64_t>(batch_.grads.size());
  std::vector<TableEntry> entries(groups_.size() * updates_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    TableEntry* const own = &entries[g * updates_.size()];
    for (std::size_t t = 0; t < updates_.size(); ++t) own[t].row_first = row_firsts_[t];
    for (const std::size_t t : groups_[g].tables) {
      own[t].table = updates_[t].table.data;
      own[t].slot0 = updates_[t].slots[0];
      own[t].slot1 = updates_[t].slots[1];
      own[t].seed = updates_[t].seed;
    }
  }
  std::vector<std::int64_t> words(batch_.grads.begin(), batch_.grads.end());
  words.resize(batch_.grads.size() + entries.size() * sizeof(TableEntry) / 8);
  std::memcpy(words.data() + features, entries.data(), entries.size() * sizeof(TableEntry));
  put_words(device, stream, at(words_at_), words);

  const IdList rows{at(rows_at_), false};
  const Address starts = at(starts_at_), sums = at(sums_at_);
  const SortedEntries sorted = sort_.run(device, stream, memory,
                                         {.ids = batch_.rows,
                                          .segments = batch_.segments,
                                          .reduce = batch_.reduce,
                                          .rows_out = rows,
                                          .starts_out = starts,
                                          .lookup = batch_.lookup},
                                         report);
  const FeatureGradients grads{at(words_at_), batch_.grad_stride, batch_.segment_shift, batch_.ignored_row};
  sum_sorted(device, stream, sorted, grads, updates_[0].table.dtype, sums, shape_, kScale | kSeveral, run_shift_of(order_));
  if (is_live_) read_numbers(device, stream, updates_, at(numbers_at_), at(live_at_), sorted.checks, report);
  const Address grad_bits = batch_.grad_bits();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    RowUpdate common = groups_[g].common;
    if (is_live_) common.live = at(live_at_);
    StepTableRows params;
    params.tables = at(words_at_ + 8 * features) + g * updates_.size() * sizeof(TableEntry);
    params.count_tables = tables;
    params.grads = grads.grads;
    params.grad_stride = grads.stride;
    params.segment_shift = grads.shift;
    params.grad = sums;
    params.ids = rows.data;
    params.size = listed_;
    params.count = sorted.total;
    params.checks = sorted.checks;
    name_singles(params, {starts, 0, sorted});
    launch_steps(device, stream, params, common, step_shape(common, sums, grad_bits));
  }
  bool are_marked = false;
  for (const AlikeUpdates& group : groups_)
    for (const std::size_t t : group.tables) {
      if (!updates_[t].fades_others()) continue;
      if (!are_marked) {
        device.zero(stream, at(marks_at_), ceil_div(batch_.stack_rows, 32) * 4);
        mark_rows(device, stream, at(marks_at_), rows, listed_, sorted.checks, sorted.total);
        are_marked = true;
      }
      RowUpdate update = updates_[t];
      if (is_live_) update.live = at(live_at_ + live_bytes(static_cast<std::int64_t>(t)));
      fade_unmarked_rows(device, stream, update, at(marks_at_ + row_firsts_[t] / 8), sorted.checks);
    }
}

UpdateLists::UpdateLists(std::vector<UpdateFromList> lists) : lists_(std::move(lists)) {
  bool fades_others = false;
  std::int64_t marks = 0;
  for (std::size_t t = 0; t < lists_.size(); ++t) {
    const RowUpdate& update = lists_[t].update;
    const std::size_t group = add_to_group(groups_, update, t);
    grad_bits_.resize(groups_.size(), 0);
    grad_bits_[group] |= lists_[t].grad;
    is_live_ = is_live_ || update.on_device;
    fades_others = fades_others || update.fades_others();
    marks = std::max(marks, update.mark_bytes());
  }
  bytes_ = 256;  // the state of the checks
  const auto part = [&](std::int64_t size) {
    const std::int64_t at = bytes_;
    bytes_ += aligned(size);
    return at;
  };
  const auto count = static_cast<std::int64_t>(lists_.size());
  founds_at_ = part(count * 8);
  entries_at_ = part(count * std::int64_t(sizeof(ListEntry)));
  numbers_at_ = part(is_live_ ? numbers_bytes(count) : 0);
  live_at_ = part(is_live_ ? live_bytes(count) : 0);
  marks_at_ = part(marks);
}

bool UpdateLists::is_supported() const {
  for (std::size_t g = 0; g < groups_.size(); ++g)
    if (is_too_wide(groups_[g].common, step_shape(groups_[g].common, grad_bits_[g], 0))) return false;
  return true;
}

void UpdateLists::run(Device& device, Stream stream, Address memory, const Report& report) const {
  const auto at = [&](std::int64_t offset) { return memory + static_cast<Address>(offset); };
  const Address checks = memory;
  const auto found_of = [&](std::size_t table) { return at(founds_at_ + std::int64_t(table) * 8); };
  // The entries of a group's tables are consecutive.
  std::vector<ListEntry> entries;
  std::vector<std::size_t> tables;
  std::vector<std::int64_t> sizes;
  for (const AlikeUpdates& group : groups_) {
    std::int64_t first = 0;
    for (const std::size_t t : group.tables) {
      const UpdateFromList& list = lists_[t];
      ListEntry& entry = entries.emplace_back();
      entry.table = list.update.table.data;
      entry.slot0 = list.update.slots[0];
      entry.slot1 = list.update.slots[1];
      entry.seed = list.update.seed;
      entry.rows = list.update.table.rows;
      entry.grad = list.grad;
      entry.ids = list.ids;
      entry.wide = list.wide;
      entry.count = list.count;
      entry.found = list.padded ? found_of(t) : 0;
      entry.size = list.size;
      entry.first = first;
      first += ceil_div(list.size, kRowsAtOnce) * kRowsAtOnce;
      tables.push_back(t);
    }
    sizes.push_back(first);
  }
  std::vector<std::int64_t> words(entries.size() * sizeof(ListEntry) / 8);
  std::memcpy(words.data(), entries.data(), entries.size() * sizeof(ListEntry));
  put_words(device, stream, at(entries_at_), words);

  const auto count = static_cast<std::int64_t>(lists_.size());
  std::int64_t most = 0;
  for (const UpdateFromList& list : lists_) most = std::max(most, list.size);
  device.zero(stream, checks, founds_at_ + count * 8);
  CheckTableLists check;
  check.tables = at(entries_at_);
  check.count_tables = count;
  check.code = static_cast<std::int64_t>(Fault::row_ids);
  check.checks = checks;
  check.fault = report.fault;
  check.alarm = report.alarm;
  device.launch(stream, "",
                {std::clamp<std::int64_t>(device.processors * 8 / count, 1, ceil_div(std::max<std::int64_t>(most, 1), kThreads)),
                 count},
                0, check);
  if (is_live_) {
    std::vector<RowUpdate> updates;
    for (const std::size_t t : tables) updates.push_back(lists_[t].update);
    read_numbers(device, stream, updates, at(numbers_at_), at(live_at_), checks, report);
  }
  std::int64_t position = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto own = static_cast<std::int64_t>(groups_[g].tables.size());
    RowUpdate common = groups_[g].common;
    if (is_live_) common.live = at(live_at_ + live_bytes(position));
    const ColumnShape shape = step_shape(common, grad_bits_[g], 0);
    const bool is_joint = !is_too_wide(common, shape);
    if (is_joint) {
      StepTableLists params;
      params.tables = at(entries_at_ + position * std::int64_t(sizeof(ListEntry)));
      params.count_tables = own;
      params.size = sizes[g];
      params.checks = checks;
      launch_steps(device, stream, params, common, shape);
    }
    for (std::int64_t k = 0; k < own; ++k) {
      const std::size_t t = tables[static_cast<std::size_t>(position + k)];
      const UpdateFromList& list = lists_[t];
      const Address listed = list.padded ? found_of(t) : list.count;
      RowUpdate update = list.update;
      if (is_live_) update.live = at(live_at_ + live_bytes(position + k));
      if (!is_joint) step_rows(device, stream, update, list.grad, {list.ids, list.wide}, list.size, checks, listed);
      fade_other_rows(device, stream, update, at(marks_at_), {list.ids, list.wide}, list.size, checks, listed);
    }
    position += own;
  }
}

namespace {

// Whether the entries of these tables fit the numbers of one sort.
bool fit_one_sort(std::int64_t size, std::int64_t rows, std::int64_t segments) {
  try {
    check_limits(size, rows, segments);
    return true;
  } catch (const TooLarge&) {
    return false;
  }
}

}  // namespace

void update_from_segments(const Queue& queue, const std::vector<UpdateFromSegments>& tables, std::int64_t reduce,
                          Order order) {
  std::vector<BagsEntry> entries;
  std::vector<RowUpdate> updates;
  std::vector<std::int64_t> row_firsts;
  StackedBatch batch{};
  std::int64_t bags = 1, most = 0;
  for (const UpdateFromSegments& own : tables) bags = std::max(bags, own.grad.rows);
  while ((std::int64_t(1) << batch.segment_shift) < bags) ++batch.segment_shift;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    const UpdateFromSegments& own = tables[t];
    if (own.size == 0 || own.update.table.rows == 0) continue;  // as for a gradient: nothing is validated
    BagsEntry& entry = entries.emplace_back();
    entry.ids = own.ids.data;
    entry.ids_wide = own.ids.wide;
    entry.segments = own.segments.data;
    entry.segments_wide = own.segments.wide;
    entry.size = own.size;
    entry.rows = own.update.table.rows;
    entry.bags = own.grad.rows;
    entry.number = static_cast<std::int64_t>(t);
    entry.row_first = batch.stack_rows;
    entry.segment_first = static_cast<std::int64_t>(updates.size()) << batch.segment_shift;
    entry.entry_first = batch.size;
    row_firsts.push_back(batch.stack_rows);
    updates.push_back(own.update);
    batch.grads.push_back(own.grad.data);
    batch.stack_rows += ceil_div(entry.rows, 32) * 32;
    batch.size += own.size;
    most = std::max(most, own.size);
  }
  if (updates.empty()) return;
  Device& device = queue.device;
  const auto count = static_cast<std::int64_t>(updates.size());
  batch.grad_stride = tables[0].grad.columns;
  batch.reduce = reduce;
  const bool is_stack = fit_one_sort(batch.size, batch.stack_rows, count << batch.segment_shift);

  const Address memory = queue.allocate(aligned(count * std::int64_t(sizeof(BagsEntry))));
  std::vector<std::int64_t> words(entries.size() * sizeof(BagsEntry) / 8);
  std::memcpy(words.data(), entries.data(), entries.size() * sizeof(BagsEntry));
  put_words(device, queue.stream, memory, words);
  batch.rows = {queue.allocate(batch.size * 4), false};
  batch.segments = {queue.allocate(batch.size * 4), false};
  batch.lookup.failed = queue.zeros(8);
  StackTableBags stack;
  stack.tables = memory;
  stack.count_tables = count;
  stack.id_code = static_cast<std::int64_t>(IdFaults().id);
  stack.segment_code = static_cast<std::int64_t>(IdFaults().segment);
  stack.rows = batch.rows.data;
  stack.segments = batch.segments.data;
  stack.checks = batch.lookup.failed;
  stack.fault = queue.report.fault;
  stack.alarm = queue.report.alarm;
  const std::int64_t blocks = ceil_div(most, kThreads);
  device.launch(queue.stream, "", {std::clamp<std::int64_t>(device.processors * 8 / count, 1, blocks), count}, 0, stack);

  if (is_stack) {
    const UpdateTables step(device, updates, row_firsts, batch, order);
    if (step.is_supported()) return step.run(device, queue.stream, queue.allocate(step.bytes()), queue.report);
  }
  std::vector<UpdateFromBags> steps;  // all, before any is queued: one table may be too large
  for (const BagsEntry& entry : entries) {
    const UpdateFromSegments& own = tables[static_cast<std::size_t>(entry.number)];
    steps.emplace_back(device, own.update, own.grad, own.size, own.ids.wide, reduce, order);
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const UpdateFromSegments& own = tables[static_cast<std::size_t>(entries[i].number)];
    steps[i].run(device, queue.stream, queue.allocate(steps[i].bytes()), own.ids, own.segments, queue.report,
                 batch.lookup.failed);
  }
}

}  // namespace rowgrad::cuda
