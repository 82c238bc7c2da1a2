#include "row_sums.h"

#include <string>

namespace rowgrad::cuda {
namespace {

constexpr int kTileThreads = 512;
constexpr std::int64_t kRowsTile = 2048, kPast = 96;  // entries that kernels read past the end
constexpr std::int64_t kMaxIds = std::int64_t(1) << 30, kMaxRows = std::int64_t(1) << 31;

// The shared memory of a block of sort_pass; see there.
std::int64_t pass_shared_bytes(int items, int bits) {
  const std::int64_t bins = std::int64_t(1) << bits;
  return 34 * 8 + std::int64_t(kTileThreads) * items * 8 + bins * 8 + kTileThreads / 32 * bins * 2;
}

int digit_bits(std::int64_t rows) {
  return rows > 1 ? static_cast<int>(std::bit_width(static_cast<std::uint64_t>(rows - 1))) : 1;
}

}  // namespace

std::int64_t padded(std::int64_t size) { return ceil_div(size + kPast, kRowsTile) * kRowsTile; }

void check_limits(std::int64_t size, std::int64_t rows, std::int64_t sources) {
  if (size >= kMaxIds || rows > kMaxRows || sources > kMaxRows)
    throw TooLarge("a CUDA call supports at most " + std::to_string(kMaxIds - 1) + " ids of " +
                   std::to_string(kMaxRows) + " rows");
}

// Adds a part, aligned to 256 bytes.
std::int64_t IdSort::part(std::int64_t bytes) {
  if (bytes == 0) return -1;
  const std::int64_t at = bytes_;
  bytes_ += ceil_div(bytes, 256) * 256;
  return at;
}

IdSort::IdSort(const Device& device, std::int64_t size, std::int64_t rows, std::int64_t sources,
               const Options& options)
    : size_(size),
      rows_(rows),
      sources_(sources),
      scale_bytes_(options.scale_bytes),
      cleared_(options.cleared),
      finds_rows_(options.finds_rows) {
  check_limits(size, rows, sources);
  // As few passes as digits of at most ten bits allow.
  const int total_bits = digit_bits(rows);
  passes_ = static_cast<int>(ceil_div(total_bits, 10));
  bits_ = static_cast<int>(ceil_div(total_bits, passes_));
  items_ = 16;
  for (const int items : {4, 8})
    if (ceil_div(size, kTileThreads * items) <= device.processors) {
      items_ = items;
      break;
    }
  while (pass_shared_bytes(items_, bits_) > device.shared_limit && items_ > 4) items_ /= 2;
  tiles_ = ceil_div(size, kTileThreads * items_);
  doubled_ = tiles_ > 2 * device.processors;
  row_tiles_ = ceil_div(size + kPast, kRowsTile);
  const std::int64_t bins = std::int64_t(1) << bits_, capacity = padded(size);
  checks_ = part(8);
  total_ = part(8);
  histograms_ = part(passes_ * bins * 4);
  states_ = part(passes_ * tiles_ * bins * 4);
  row_states_ = part(row_tiles_ * 8);
  counts_ = part(options.counted ? sources * 4 : 0);
  zeroed_ = part(options.zeroed);
  zeros_ = bytes_;
  ids_ = part(capacity * 4);
  values_ = part(capacity * 4);
  pairs_ = part(passes_ > 1 ? capacity * 8 : 0);
  pairs2_ = part(passes_ > 1 ? capacity * 8 : 0);
  heads_ = part(capacity / 8);
  firsts_ = part(capacity / kSortedChunk * 4);
  begins_ = part(capacity / kSortedChunk * 4);
  scales_ = part(capacity * scale_bytes_);
  segment_scales_ = part(options.scaled ? 0 : sources * scale_bytes_);
  workspace_ = part(options.workspace);
}

SortedEntries IdSort::entries(Address memory) const {
  const auto at = [&](std::int64_t offset) { return offset < 0 ? Address(0) : memory + static_cast<Address>(offset); };
  SortedEntries found;
  found.size = size_;
  found.checks = at(checks_);
  found.total = at(total_);
  found.counts = at(counts_);
  found.zeroed = at(zeroed_);
  found.workspace = at(workspace_);
  found.ids = at(ids_);
  found.values = at(values_);
  found.heads = at(heads_);
  found.firsts = at(firsts_);
  found.begins = at(begins_);
  found.scales = at(scales_);
  return found;
}

SortedEntries IdSort::run(Device& device, Stream stream, Address memory, const Batch& batch,
                          const Report& report) const {
  const IdList &ids = batch.ids, &segments = batch.segments;
  constexpr std::int64_t kCheckBlocks = 2;  // per processor
  const auto at = [&](std::int64_t offset) { return offset < 0 ? Address(0) : memory + static_cast<Address>(offset); };
  const SortedEntries found = entries(memory);
  const std::int64_t bins = std::int64_t(1) << bits_;
  if (!cleared_) clear(device, stream, memory);

  ScanIds scan;
  scan.ids = ids.data;
  scan.ids_wide = ids.wide;
  scan.segments = segments.data;
  scan.segments_wide = segments.wide;
  scan.size = size_;
  scan.rows = rows_;
  scan.sources = sources_;
  scan.passes = passes_;
  scan.bits = bits_;
  scan.histograms = at(histograms_);
  scan.counts = found.counts;
  scan.order = batch.faults.order;
  scan.id_code = static_cast<std::int64_t>(batch.faults.id);
  scan.segment_code = static_cast<std::int64_t>(batch.faults.segment);
  scan.earlier = batch.lookup.failed;
  scan.checks = found.checks;
  scan.fault = report.fault;
  scan.alarm = report.alarm;
  scan.needed = batch.needed;
  device.launch(stream, "", {std::min(ceil_div(size_, 2048), device.processors * kCheckBlocks)}, passes_ * bins * 16,
                scan);

  const char* const scale_type = scale_bytes_ == 8 ? "double" : "float";
  const std::string variant = std::to_string(items_) + ", " + scale_type + ", " + (doubled_ && items_ == 16 ? "2" : "1");
  const std::int64_t shared = pass_shared_bytes(items_, bits_);
  Address source = 0, target = at(pairs_);
  for (int number = 0; number < passes_; ++number) {
    SortPass pass;
    pass.ids = ids.data;
    pass.ids_wide = ids.wide;
    pass.values = batch.by_segment ? segments.data : 0;
    pass.values_wide = segments.wide;
    pass.pairs = source;
    pass.sorted = number == passes_ - 1 ? 0 : target;
    pass.sorted_ids = found.ids;
    pass.sorted_values = found.values;
    pass.size = size_;
    pass.shift = number * bits_;
    pass.bits = bits_;
    pass.histogram = at(histograms_) + static_cast<Address>(number * bins * 4);
    pass.states = at(states_) + static_cast<Address>(number * tiles_ * bins * 4);
    pass.counts = found.counts;
    pass.segment_scales = number || batch.lookup.scales ? 0 : at(segment_scales_);
    pass.sources = sources_;
    pass.reduce = batch.reduce;
    pass.checks = found.checks;
    device.launch(stream, variant, {tiles_}, shared, pass);
    source = target;
    target = target == at(pairs_) ? at(pairs2_) : at(pairs_);
  }

  if (!finds_rows_) return found;
  FindRows find;
  find.ids = found.ids;
  find.size = size_;
  find.heads = found.heads;
  find.firsts = found.firsts;
  find.begins = found.begins;
  find.states = at(row_states_);
  find.total = found.total;
  find.host_total = batch.host_total;
  find.rows = batch.rows_out.data;
  find.rows_wide = batch.rows_out.wide;
  find.starts = batch.starts_out;
  find.segments = found.values;
  find.segment_scales = batch.lookup.scales ? batch.lookup.scales : at(segment_scales_);
  find.scales = found.scales;
  find.checks = found.checks;
  find.most_rows = batch.most_rows;
  find.fault = report.fault;
  find.alarm = report.alarm;
  device.launch(stream, scale_type, {row_tiles_}, 9 * 8, find);
  return found;
}

int run_shift_of(Order order) {
  switch (order) {
    case Order::sequential:
      return 30;
    case Order::blocked:
      return 6;
  }
  throw std::invalid_argument("order");
}

Joins::Joins(std::int64_t size, const ColumnShape& shape, DType dtype, int run_shift) {
  slots = run_shift == run_shift_of(Order::blocked) ? 2 * (size / 64 + 1) : 0;
  sums = ceil_div(slots * shape.columns * itemsize(accumulator_of(dtype)), 16) * 16;
  zeroed = slots ? 16 + slots * shape.tiles * 8 : 0;
  workspace = sums + slots * 16;
}

namespace {

// Queues the sums; `sum` has the fields that name the gradient.
template <class Params>
void launch_sums(Device& device, Stream stream, Params sum, const SortedEntries& entries, DType dtype, Address out,
                 const ColumnShape& shape, int mode, int run_shift, bool unique) {
  const Joins joins(entries.size, shape, dtype, run_shift);
  const std::string columns = std::string(type_name(dtype)) + ", " + std::to_string(shape.width);
  const std::string variant = columns + ", " + std::to_string(mode);
  const std::int64_t workers = device.threads_of<Params>(variant) / shape.lanes;
  sum.out = out;
  sum.cols = shape.columns;
  sum.lanes = shape.lanes;
  sum.ids = entries.ids;
  sum.segments = entries.values;
  sum.scales = entries.scales;
  sum.divisors = entries.divisors;
  sum.heads = entries.heads;
  sum.firsts = entries.firsts;
  sum.begins = entries.begins;
  sum.size = entries.size;
  sum.run_shift = run_shift;
  sum.unique = unique;
  sum.partials = entries.workspace;
  sum.lefts = entries.workspace + static_cast<Address>(joins.sums);
  sum.left_count = entries.zeroed;
  sum.checks = entries.checks;
  device.launch(stream, variant, {ceil_div(ceil_div(entries.size, kSortedChunk), workers), shape.tiles}, 0, sum);
  if (!joins.slots || entries.size <= 64) return;
  JoinRuns join;
  join.out = out;
  join.cols = shape.columns;
  join.lanes = shape.lanes;
  join.lefts = sum.lefts;
  join.left_count = sum.left_count;
  join.partials = sum.partials;
  join.arrivals = entries.zeroed + 16;
  join.checks = entries.checks;
  device.launch(stream, columns + (mode & kRound ? ", true" : ", false"),
                {std::min<std::int64_t>(ceil_div(joins.slots, workers), 2 * device.processors), shape.tiles}, 0, join);
}

}  // namespace

void sum_sorted(Device& device, Stream stream, const SortedEntries& entries, Address grad, DType dtype, Address out,
                const ColumnShape& shape, int mode, int run_shift, bool unique) {
  SumRows sum;
  sum.grad = grad;
  launch_sums(device, stream, sum, entries, dtype, out, shape, mode, run_shift, unique);
}

void sum_sorted(Device& device, Stream stream, const SortedEntries& entries, const FeatureGradients& grads, DType dtype,
                Address out, const ColumnShape& shape, int mode, int run_shift) {
  SumFeatureRows sum;
  sum.grads = grads.grads;
  sum.grad_stride = grads.stride;
  sum.segment_shift = grads.shift;
  sum.ignored_row = grads.ignored_row;
  launch_sums(device, stream, sum, entries, dtype, out, shape, mode, run_shift, true);
}

namespace {

// The elements in which rows of a gradient are copied or zeroed: sixteen bytes if they can be.
struct RowUnits {
  std::string name;
  std::int64_t count;  // of a row

  RowUnits(DType dtype, std::int64_t columns, Address data) {
    const int bytes = itemsize(dtype);
    const bool is_wide = (columns * bytes) % 16 == 0 && data % 16 == 0;
    name = unit_name(is_wide ? 16 : bytes);
    count = is_wide ? columns * bytes / 16 : columns;
  }
};

}  // namespace

ZeroedOutput::ZeroedOutput(Device& device, Stream stream, Address out, std::int64_t bytes)
    : beside_(device, stream, bytes > kSideStreamBytes) {
  device.zero(beside_.side(), out, bytes);
}

Gradient::Gradient(const Device& device, const Matrix& grad, Address out, std::int64_t size, std::int64_t num_rows,
                   std::int64_t reduce, Order order, bool unique)
    : Gradient(device, grad, out, size, num_rows, reduce, order, unique,
               ColumnShape(grad.dtype, grad.columns, {{grad.data, itemsize(grad.dtype)}, {out, itemsize(grad.dtype)}})) {}

Gradient::Gradient(const Device& device, const Matrix& grad, Address out, std::int64_t size, std::int64_t num_rows,
                   std::int64_t reduce, Order order, bool unique, const ColumnShape& shape)
    : grad_(grad),
      out_(out),
      num_rows_(num_rows),
      reduce_(reduce),
      unique_(unique),
      run_shift_(run_shift_of(order)),
      shape_(shape),
      sort_(device, size, num_rows, grad.rows, options_of(grad, size, reduce, shape, run_shift_of(order))) {}

IdSort::Options Gradient::options_of(const Matrix& grad, std::int64_t size, std::int64_t reduce,
                                     const ColumnShape& shape, int run_shift) {
  const Joins joins(size, shape, grad.dtype, run_shift);
  return {has_divisor(reduce), has_divisor(reduce) ? itemsize(accumulator_of(grad.dtype)) : 0, joins.zeroed,
          joins.workspace};
}

SortedEntries Gradient::run(Device& device, Stream stream, Address memory, const IdList& ids, const IdList& segments,
                            const IdList& rows, const Report& report, std::int64_t most_rows, Address host_total) const {
  const bool segments_first = !unique_ && has_divisor(reduce_);
  const SortedEntries entries = [&] {
    const ZeroedOutput zeroed(device, stream, out_, unique_ ? 0 : num_rows_ * grad_.columns * itemsize(grad_.dtype));
    return sort_.run(device, stream, memory,
                     {.ids = ids,
                      .segments = segments,
                      .faults = {segments_first ? 2 : 1},
                      .reduce = reduce_,
                      .rows_out = unique_ ? rows : IdList{},
                      .most_rows = most_rows,
                      .host_total = host_total},
                     report);
  }();
  sum_sorted(device, stream, entries, grad_.data, grad_.dtype, out_, shape_, has_divisor(reduce_) ? kScale : 0,
             run_shift_, unique_);
  return entries;
}

PaddedGradient::PaddedGradient(const Device& device, const Matrix& grad, Address out, std::int64_t ids,
                               std::int64_t num_rows, std::int64_t size, std::int64_t reduce, Order order)
    : grad_(grad), out_(out), size_(size) {
  if (ids && num_rows) gradient_.emplace(device, grad, out, ids, num_rows, reduce, order, true);
}

void PaddedGradient::run(Device& device, Stream stream, Address memory, const IdList& ids, const IdList& segments,
                         const IdList& rows, std::int64_t fill_id, const Report& report, bool poisons) const {
  constexpr std::int64_t kThreads = 256;
  PadRows pad;
  if (gradient_) {
    const SortedEntries entries = gradient_->run(device, stream, memory, ids, segments, rows, report, size_);
    pad.total = entries.total;
    pad.checks = entries.checks;
  }
  pad.rows = out_;
  pad.ids = rows.data;
  pad.wide_ids = rows.wide;
  pad.size = size_;
  pad.cols = grad_.columns;
  pad.fill_id = fill_id;
  pad.poisons = poisons;
  pad.row_poison = poison_of(grad_.dtype);
  pad.id_poison = poison_of(rows.wide ? DType::int64 : DType::int32);
  const std::int64_t blocks = ceil_div(size_ * std::max<std::int64_t>(grad_.columns, 1), kThreads);
  device.launch(stream, unit_name(itemsize(grad_.dtype)), {std::min<std::int64_t>(blocks, 4 * device.processors)}, 0,
                pad);
}

void Gradient::run_counted(Device& device, Stream stream, Address memory, const IdList& ids, const IdList& segments,
                           Address rows, std::int64_t capacity, Address count, const Report& report) const {
  constexpr std::int64_t kBlocks = 4;  // per multiprocessor
  PadRowGradient pad;
  pad.total = run(device, stream, memory, ids, segments, {rows, true}, report).total;
  const RowUnits row(grad_.dtype, grad_.columns, out_);
  pad.values = out_;
  pad.units = row.count;
  pad.ids = rows;
  pad.count = count;
  pad.checks = sort_.entries(memory).checks;
  pad.size = capacity;
  const int threads = device.threads_of<PadRowGradient>(row.name);
  const std::int64_t items = std::max<std::int64_t>(capacity * std::max<std::int64_t>(pad.units, 1), 1);
  device.launch(stream, row.name, {std::min(ceil_div(items, threads), kBlocks * device.processors)}, 0, pad);
}

// -- Many tables ------------------------------------------------------------------------------------------------------

Address StackedBatch::grad_bits() const {
  Address bits = 0;
  for (const Address grad : grads) bits |= grad;
  return bits;
}

IdSort StackedBatch::sort(const Device& device, const ColumnShape& shape, DType dtype, Order order) const {
  const Joins joins(size, shape, dtype, run_shift_of(order));
  return IdSort(device, size, stack_rows, static_cast<std::int64_t>(grads.size()) << segment_shift,
                {.counted = !lookup.scales,
                 .scale_bytes = itemsize(accumulator_of(dtype)),
                 .zeroed = joins.zeroed,
                 .workspace = joins.workspace,
                 .scaled = lookup.scales != 0});
}

TableGradients::TableGradients(const Device& device, DType dtype, std::int64_t columns,
                               std::vector<std::int64_t> row_firsts, std::vector<std::int64_t> capacities,
                               const StackedBatch& batch, Address values, Order order)
    : dtype_(dtype),
      row_firsts_(std::move(row_firsts)),
      capacities_(std::move(capacities)),
      batch_(batch),
      values_(values),
      order_(order),
      shape_(dtype, columns, {{batch.grad_bits(), itemsize(dtype)}, {values, itemsize(dtype)}}),
      sort_(batch.sort(device, shape_, dtype, order)) {
  const auto tables = static_cast<std::int64_t>(row_firsts_.size());
  bytes_ = sort_.bytes();
  const auto part = [&](std::int64_t size) {
    const std::int64_t at = bytes_;
    bytes_ += ceil_div(size, 256) * 256;
    return at;
  };
  rows_at_ = part(std::min(batch.size, batch.stack_rows) * 4);
  words_at_ = part(static_cast<std::int64_t>(batch.grads.size()) * 8 + (tables + 1) * std::int64_t(sizeof(PlaceEntry)));
  shifts_at_ = part(tables * 8);
}

void TableGradients::run(Device& device, Stream stream, Address memory, Address ids, Address counts,
                         const Report& report) const {
  constexpr std::int64_t kBlocks = 4;  // per multiprocessor
  const auto at = [&](std::int64_t offset) { return memory + static_cast<Address>(offset); };
  const auto tables = static_cast<std::int64_t>(row_firsts_.size());
  std::vector<std::int64_t> words(batch_.grads.begin(), batch_.grads.end());
  std::int64_t place = 0;
  for (std::size_t t = 0; t < row_firsts_.size(); ++t) {
    words.insert(words.end(), {row_firsts_[t], place});
    place += capacities_[t];
  }
  words.insert(words.end(), {batch_.stack_rows, place});
  put_words(device, stream, at(words_at_), words);
  const Address places = at(words_at_) + 8 * batch_.grads.size();

  const IdList rows{at(rows_at_), false};
  const SortedEntries sorted = sort_.run(
      device, stream, memory,
      {.ids = batch_.rows, .segments = batch_.segments, .rows_out = rows, .lookup = batch_.lookup}, report);
  FindTables find;
  find.tables = places;
  find.count_tables = tables;
  find.rows = rows.data;
  find.total = sorted.total;
  find.shifts = at(shifts_at_);
  find.counts = counts;
  find.checks = sorted.checks;
  device.launch(stream, "", {1}, 0, find);

  SumTableRows sum;
  sum.tables = places;
  sum.count_tables = tables;
  sum.shifts = find.shifts;
  sum.grads = at(words_at_);
  sum.grad_stride = batch_.grad_stride;
  sum.segment_shift = batch_.segment_shift;
  sum.ignored_row = batch_.ignored_row;
  launch_sums(device, stream, sum, sorted, dtype_, values_, shape_, kScale, run_shift_of(order_), false);

  const RowUnits row(dtype_, shape_.columns, values_);
  PadTableGradients pad;
  pad.tables = places;
  pad.rows = rows.data;
  pad.shifts = find.shifts;
  pad.counts = counts;
  pad.values = values_;
  pad.units = row.count;
  pad.ids = ids;
  const std::int64_t most = *std::max_element(capacities_.begin(), capacities_.end());
  const std::int64_t blocks = ceil_div(most * std::max<std::int64_t>(row.count, 1),
                                       device.threads_of<PadTableGradients>(row.name));
  device.launch(stream, row.name,
                {std::clamp<std::int64_t>(kBlocks * device.processors / tables, 1, std::max<std::int64_t>(blocks, 1)), tables},
                0, pad);
}

void StackGradient::run(Device& device, Stream stream, Address memory, const Report& report) const {
  const Address words = memory + static_cast<Address>(sort_.bytes());
  put_words(device, stream, words, {batch_.grads.begin(), batch_.grads.end()});
  const SortedEntries sorted = [&] {
    const ZeroedOutput zeroed(device, stream, values_, batch_.stack_rows * shape_.columns * itemsize(dtype_));
    return sort_.run(device, stream, memory,
                     {.ids = batch_.rows, .segments = batch_.segments, .lookup = batch_.lookup}, report);
  }();
  SumStackRows sum;
  sum.grads = words;
  sum.grad_stride = batch_.grad_stride;
  sum.segment_shift = batch_.segment_shift;
  sum.ignored_row = batch_.ignored_row;
  launch_sums(device, stream, sum, sorted, dtype_, values_, shape_, kScale, run_shift_of(order_), false);
}

}  // namespace rowgrad::cuda
