#include "weighted.h"

#include <string>

#include "poison.h"

namespace rowgrad::cuda {
namespace {

constexpr std::int64_t kThreads = 256;
constexpr std::int64_t kLongShared = 32 * 1024 + 4 * 64 * 16;  // the layout in sum_long_segment

Grid loop(const Queue& queue, std::int64_t items, std::int64_t waves = 8) {
  return {std::min<std::int64_t>(ceil_div(items, kThreads), queue.device.processors * waves)};
}

// The threads of rows: each takes some adjacent columns, sixteen bytes if rows and addresses are aligned.
struct RowThreads {
  std::string variant;
  std::int64_t log_lanes, blocks;

  RowThreads(const Matrix& data, Address out, std::int64_t rows) {
    const std::int64_t bytes = itemsize(data.dtype);
    std::int64_t width = 16 / bytes;
    if (data.columns % width || (data.data | out) % static_cast<Address>(width * bytes)) width = 1;
    const std::int64_t groups = std::max<std::int64_t>(ceil_div(data.columns, width) - 1, 0);
    log_lanes = std::min<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(groups)), 8);
    variant = std::string(type_name(data.dtype)) + ", " + std::to_string(width);
    blocks = ceil_div(rows << log_lanes, kThreads);
  }
};

// Queues the validation of ids, if there are any, and segments. `state`: zeros, for the checks and a word that is set if
// segments do not ascend. `bounds`: see check_weighted; 0 for none.
void check(const Queue& queue, const WeightedIds& batch, std::int64_t data_rows, std::int64_t segment_rows,
           const Report& report, Address state, Address bounds) {
  CheckWeighted params;
  params.indices = batch.ids.data;
  params.wide_indices = batch.ids.wide;
  params.data_rows = data_rows;
  params.segments = batch.segments.data;
  params.wide_segments = batch.segments.wide;
  params.segment_rows = segment_rows;
  params.size = batch.size;
  params.checks = state;
  params.falls = state + 8;
  params.bounds = bounds;
  params.fault = report.fault;
  params.alarm = report.alarm;
  queue.device.launch(queue.stream, "", loop(queue, batch.size), 0, params);
}

// A report that is never read: earlier checks have reported the same faults.
Report discarded_report(const Queue& queue) {
  const Address memory = queue.allocate(5 * 8);
  return {memory, memory + 4 * 8, 0};
}

// The ids of each segment, as GroupedIds in weighted_segment.cuh reads them. Only the device knows whether segments
// ascend; if they do, the sort does nothing.
class Groups {
 public:
  // Queues validation, and the sort.
  Groups(const Queue& queue, const WeightedIds& batch, std::int64_t data_rows, std::int64_t rows, const Report& report)
      : size_(batch.size) {
    IdSort::Options options;
    options.zeroed = 16 + 2 * rows * 8;
    options.cleared = true;
    options.finds_rows = false;
    const IdSort sort(queue.device, size_, rows, 1, options);
    const Address memory = queue.allocate(sort.bytes());
    state_ = sort.entries(memory).zeroed;
    bounds_ = state_ + 16;
    sort.clear(queue.device, queue.stream, memory);
    check(queue, batch, data_rows, rows, report, state_, bounds_);
    const SortedEntries entries =
        sort.run(queue.device, queue.stream, memory,
                 {.ids = batch.segments, .by_segment = false, .faults = {0}, .needed = state_ + 8}, discarded_report(queue));
    sorted_ = entries.ids;
    positions_ = entries.values;
  }

  Address checks() const { return state_; }

  template <class Params>
  void fill(Params& params) const {
    params.bounds = bounds_;
    params.sorted = sorted_;
    params.positions = positions_;
    params.falls = state_ + 8;
    params.size = size_;
    params.checks = state_;
  }

 private:
  const std::int64_t size_;
  Address state_, bounds_, sorted_, positions_;
};

// Returns the weights in the dtype of sums.
Address convert(const Queue& queue, const WeightedIds& batch, DType dtype, Address checks) {
  if (batch.weights.dtype == dtype) return batch.weights.data;
  ConvertWeights params;
  params.weights = batch.weights.data;
  params.size = batch.size;
  params.brought = queue.allocate(batch.size * itemsize(dtype));
  params.checks = checks;
  queue.device.launch(queue.stream, std::string(type_name(batch.weights.dtype)) + ", " + type_name(dtype),
                      loop(queue, batch.size), 0, params);
  return params.brought;
}

// Returns the divisor of each segment, in this dtype.
Address divisors(const Queue& queue, const Groups& groups, const Weights& weights, DType dtype, std::int64_t rows,
                 std::int64_t reduce) {
  TotalWeights params;
  groups.fill(params);
  params.weights = weights.data;
  params.rows = rows;
  params.is_squared = Reduction(reduce) == Reduction::sqrtn;
  params.totals = queue.allocate(rows * itemsize(dtype));
  queue.device.launch(queue.stream, std::string(type_name(weights.dtype)) + ", " + type_name(dtype), loop(queue, rows),
                      0, params);
  return params.totals;
}

// The memory of a sort of segments, in case they do not ascend.
struct SegmentSort {
  static constexpr std::int64_t kThreads = 512, kTile = kThreads * 8;  // as in sort_segments

  std::int64_t passes, bits, bins, tiles, size, zeroed;

  SegmentSort(std::int64_t size, std::int64_t bags) : size(size) {
    check_limits(size, bags, 1);
    const int digits = bags > 1 ? std::bit_width(static_cast<std::uint64_t>(bags - 1)) : 1;
    passes = ceil_div(digits, 10);
    bits = ceil_div(digits, passes);
    bins = std::int64_t(1) << bits;
    tiles = ceil_div(size, kTile);
    zeroed = passes * bins * (1 + tiles);
  }
  // The layouts in scan_block and sort_tile.
  std::int64_t shared() const {
    return std::max(passes * bins * 16, 34 * 8 + kTile * 8 + bins * 8 + kThreads / 32 * bins * 2);
  }
};

// Fills the fields that both kernels of bags have.
template <class Params>
void name_bags(Params& params, const Matrix& data, const WeightedIds& batch, std::int64_t bags, std::int64_t reduce,
               Address out, Address rest) {
  params.data = data.data;
  params.out = out;
  params.columns = data.columns;
  params.ids = batch.ids.data;
  params.ids_wide = batch.ids.wide;
  params.segments = batch.segments.data;
  params.segments_wide = batch.segments.wide;
  params.weights = batch.weights.data;
  params.size = batch.size;
  params.rows = data.rows;
  params.bags = bags;
  params.has_divisor = has_divisor(reduce);
  params.is_squared = Reduction(reduce) == Reduction::sqrtn;
  params.rest = rest;
}

}  // namespace

void sum_weighted_bags(const Queue& queue, const Matrix& data, const WeightedIds& batch, std::int64_t bags,
                       std::int64_t reduce, Address out, bool poisons) {
  if (data.columns == 0) {
    check(queue, batch, data.rows, bags, queue.report, queue.zeros(16), 0);
    return;
  }
  const SegmentSort sort(batch.size, bags);
  const int bytes = itemsize(data.dtype);
  const ColumnShape shape(data.dtype, data.columns, {{data.data, bytes}, {out, bytes}});
  const std::string variant =
      std::string(type_name(data.dtype)) + ", " + std::to_string(shape.width) + ", " + type_name(batch.weights.dtype);
  constexpr std::int64_t kRestState = 64;  // at least the size of RestState
  const Address rest_state = queue.allocate(kRestState);

  // Enough bags per block for one wave of blocks, but few enough that their ids mostly fit in shared memory.
  constexpr std::int64_t kWave = 6, kListed = 4096, kMaxRounds = 16;
  const std::int64_t workers = queue.device.threads_of<WeightedBags>(variant) / shape.lanes;
  const std::int64_t rounds = std::min(ceil_div(bags, workers * kWave * queue.device.processors),
                                       3 * kListed * bags / (4 * workers * (batch.size + 1)));
  WeightedBags sums;
  name_bags(sums, data, batch, bags, reduce, out, rest_state);
  sums.lanes = shape.lanes;
  sums.block_bags = workers * std::clamp<std::int64_t>(rounds, 1, kMaxRounds);
  sums.capacity = std::min(kListed, 3 * sums.block_bags * (batch.size / (bags + 1) + 8) / 2);
  sums.checks = queue.report.checks;
  queue.device.launch(queue.stream, variant,
                      {std::max<std::int64_t>(ceil_div(bags, sums.block_bags), 1), std::max<std::int64_t>(shape.tiles, 1)},
                      8 * (sums.block_bags + 2) + 4 * (sums.capacity + sums.block_bags), sums);

  RestOfWeightedBags rest;
  name_bags(rest, data, batch, bags, reduce, out, rest_state);
  rest.log_lanes = std::bit_width(static_cast<std::uint64_t>(shape.lanes)) - 1;
  rest.poison = poison_of(data.dtype);
  rest.poisons = poisons;
  rest.passes = sort.passes;
  rest.bits = sort.bits;
  rest.zeroed = sort.zeroed;
  rest.histograms = queue.allocate(sort.zeroed * 4);
  rest.states = rest.histograms + static_cast<Address>(sort.passes * sort.bins * 4);
  if (sort.passes > 1) rest.pairs = queue.allocate(batch.size * 8);
  if (sort.passes > 2) rest.other_pairs = queue.allocate(batch.size * 8);
  rest.sorted = queue.allocate(batch.size * 4);
  rest.positions = queue.allocate(batch.size * 4);
  rest.fault = queue.report.fault;
  rest.alarm = queue.report.alarm;
  queue.device.launch(queue.stream, variant, {queue.device.processors * 2}, std::max(sort.shared(), kLongShared), rest);
}

namespace {

// Queues the gradient row of each id. `totals`: the divisors of segments, or 0.
void write_rows(const Queue& queue, const Matrix& grad, const WeightedIds& batch, Address totals, Address out,
                Address checks) {
  const RowThreads threads(grad, out, batch.size);
  WeightedRows params;
  params.grad = grad.data;
  params.cols = grad.columns;
  params.segments = batch.segments.data;
  params.wide = batch.segments.wide;
  params.weights = convert(queue, batch, accumulator_of(grad.dtype), checks);
  params.totals = totals;
  params.size = batch.size;
  params.log_lanes = threads.log_lanes;
  params.out = out;
  params.checks = checks;
  queue.device.launch(queue.stream, threads.variant,
                      {std::min<std::int64_t>(threads.blocks, queue.device.processors * 64)}, 0, params);
}

}  // namespace

Address weighted_gradient_rows(const Queue& queue, const Matrix& grad, const WeightedIds& batch, std::int64_t reduce,
                               Address out) {
  if (batch.size == 0 || grad.columns == 0 || !has_divisor(reduce)) {
    const Address checks = queue.zeros(16);
    check(queue, batch, 0, grad.rows, queue.report, checks, 0);
    if (batch.size > 0 && grad.columns > 0) write_rows(queue, grad, batch, 0, out, checks);
    return checks;
  }
  const Groups groups(queue, batch, 0, grad.rows, queue.report);
  const Address totals = divisors(queue, groups, batch.weights, accumulator_of(grad.dtype), grad.rows, reduce);
  write_rows(queue, grad, batch, totals, out, groups.checks());
  return groups.checks();
}

namespace {

// Validates segments again, unreported, and returns the divisor of each; 0 for sums.
Address divisors_of_valid(const Queue& queue, const Matrix& grad, WeightedIds batch, std::int64_t reduce) {
  if (!has_divisor(reduce)) return 0;
  batch.ids = {};
  const Groups groups(queue, batch, 0, grad.rows, discarded_report(queue));
  return divisors(queue, groups, batch.weights, accumulator_of(grad.dtype), grad.rows, reduce);
}

SortedEntries weigh(const Queue& queue, const SortedEntries& entries, const Matrix& grad, const WeightedIds& batch,
                    Address totals) {
  const DType sums = accumulator_of(grad.dtype);
  const std::int64_t list = ceil_div(padded(entries.size) * itemsize(sums), 256) * 256;
  SortedEntries found = entries;
  found.scales = queue.allocate(totals ? 2 * list : list);
  if (totals) found.divisors = found.scales + static_cast<Address>(list);
  WeighEntries params;
  params.values = entries.values;
  params.segments = batch.segments.data;
  params.wide_segments = batch.segments.wide;
  params.weights = batch.weights.data;
  params.totals = totals;
  params.size = entries.size;
  params.scales = found.scales;
  params.divisors = found.divisors;
  params.checks = entries.checks;
  queue.device.launch(queue.stream, std::string(type_name(batch.weights.dtype)) + ", " + type_name(sums),
                      loop(queue, entries.size, 16), 0, params);
  return found;
}

}  // namespace

SortedEntries weigh_entries(const Queue& queue, const SortedEntries& entries, const Matrix& grad,
                            const WeightedIds& batch, std::int64_t reduce) {
  return weigh(queue, entries, grad, batch, divisors_of_valid(queue, grad, batch, reduce));
}

Address weighted_gradient(const Queue& queue, const Matrix& grad, const WeightedIds& batch, std::int64_t num_rows,
                          const Weighting& how, Address out) {
  Device& device = queue.device;
  const int bytes = itemsize(grad.dtype);
  const ColumnShape shape(grad.dtype, grad.columns, {{grad.data, bytes}, {out, bytes}});
  const int run_shift = run_shift_of(how.order);
  const Joins joins(batch.size, shape, grad.dtype, run_shift);
  const IdSort sort(device, batch.size, num_rows, grad.rows, {false, 0, joins.zeroed, joins.workspace});
  const Address memory = queue.allocate(sort.bytes());
  Address totals = 0;
  SideWork side(device, queue.stream, has_divisor(how.reduce));
  if (has_divisor(how.reduce)) {  // beside the sort of ids, which does not need them
    const auto allocate = [&](std::int64_t size) { return queue.allocate(size); };  // a copy would share its blocks
    const Queue beside{device, side.side(), queue.report, allocate};
    totals = divisors_of_valid(beside, grad, batch, how.reduce);
    side.mark();
  }
  const SortedEntries entries = [&] {
    const ZeroedOutput zeroed(device, queue.stream, out, num_rows * grad.columns * bytes);
    const SortedEntries sorted =
        sort.run(device, queue.stream, memory, {.ids = batch.ids, .segments = batch.segments, .by_segment = false},
                 queue.report);
    side.wait();
    return weigh(queue, sorted, grad, batch, totals);
  }();
  sum_sorted(device, queue.stream, entries, grad.data, grad.dtype, out, shape, how.mode(grad.dtype), run_shift, false);
  return entries.checks;
}

}  // namespace rowgrad::cuda
