#include "weighted.h"

#include <string>

namespace rowgrad::cuda {
namespace {

constexpr std::int64_t kThreads = 256;
constexpr std::int64_t kLongest = 256;                      // longer segments are summed by a second kernel
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

// The state of the checks of a list, and whether its segments are not ascending.
struct Checked {
  Address checks, falls;
};

Checked check(const Queue& queue, const IdList& ids, std::int64_t data_rows, const IdList& segments,
              std::int64_t segment_rows, std::int64_t size, const Report& report) {
  CheckWeighted params;
  params.indices = ids.data;
  params.wide_indices = ids.wide;
  params.data_rows = data_rows;
  params.segments = segments.data;
  params.wide_segments = segments.wide;
  params.segment_rows = segment_rows;
  params.size = size;
  params.checks = queue.zeros(16);
  params.falls = params.checks + 8;
  params.fault = report.fault;
  params.alarm = report.alarm;
  queue.device.launch(queue.stream, "", loop(queue, size), 0, params);
  return {params.checks, params.falls};
}

// A report that is never read: earlier checks have reported the same faults.
Report discarded_report(const Queue& queue) {
  const Address memory = queue.allocate(5 * 8);
  return {memory, memory + 4 * 8, 0};
}

// Segments in ascending order, equal ones in input order; `positions` are theirs in the batch. If `falls` is 0, the
// batch is in order already, and both lists are undefined.
struct SortedSegments {
  Address segments, positions, falls;
};

SortedSegments sort_segments(const Queue& queue, const Checked& checked, const IdList& segments, std::int64_t size,
                             std::int64_t rows) {
  const IdSort sort(queue.device, size, rows, 1, {});
  const SortedEntries entries = sort.run(queue.device, queue.stream, queue.allocate(sort.bytes()), 
                                         {.ids = segments, .by_segment = false, .faults = {0}, .needed = checked.falls},
                                         discarded_report(queue));
  return {entries.ids, entries.values, checked.falls};
}

Address mark_bounds(const Queue& queue, const IdList& segments, const SortedSegments& sorted, std::int64_t size,
                    std::int64_t rows, Address checks) {
  MarkSegments params;
  params.segments = segments.data;
  params.wide = segments.wide;
  params.sorted = sorted.segments;
  params.falls = sorted.falls;
  params.size = size;
  params.bounds = queue.zeros(2 * rows * 8);
  params.checks = checks;
  queue.device.launch(queue.stream, "", loop(queue, size), 0, params);
  return params.bounds;
}

// Weights in the dtype of sums and, if requested, ids, both in the order of sorted segments.
struct Converted {
  Address weights;
  IdList ids;
};

Converted convert(const Queue& queue, const Weights& weights, DType dtype, const SortedSegments& sorted,
                  const IdList& ids, std::int64_t size, Address checks) {
  if (weights.dtype == dtype && !sorted.positions && !ids.data) return {weights.data, {}};
  ConvertWeights params;
  params.weights = weights.data;
  params.indices = ids.data;
  params.wide_indices = ids.wide;
  params.positions = sorted.positions;
  params.falls = sorted.falls;
  params.size = size;
  params.brought = queue.allocate(size * itemsize(dtype));
  params.brought_indices = ids.data ? queue.allocate(size * (ids.wide ? 8 : 4)) : 0;
  params.checks = checks;
  queue.device.launch(queue.stream, std::string(type_name(weights.dtype)) + ", " + type_name(dtype),
                      loop(queue, size), 0, params);
  return {params.brought, {params.brought_indices, ids.wide}};
}

// Returns the divisor of each segment; 0 for sums.
Address totals(const Queue& queue, Address weights, DType dtype, Address bounds, std::int64_t rows, std::int64_t reduce,
               Address checks) {
  if (!has_divisor(reduce)) return 0;
  TotalWeights params;
  params.weights = weights;
  params.bounds = bounds;
  params.rows = rows;
  params.is_squared = Reduction(reduce) == Reduction::sqrtn;
  params.totals = queue.allocate(rows * itemsize(dtype));
  params.checks = checks;
  queue.device.launch(queue.stream, type_name(dtype), loop(queue, rows), 0, params);
  return params.totals;
}

// Returns the divisors of segments in any order, in this dtype; 0 for sums.
Address totals_in_any_order(const Queue& queue, const Checked& checked, const IdList& segments, const Weights& weights,
                            DType dtype, std::int64_t size, std::int64_t rows, std::int64_t reduce) {
  if (!has_divisor(reduce)) return 0;
  const SortedSegments sorted = sort_segments(queue, checked, segments, size, rows);
  const Address bounds = mark_bounds(queue, segments, sorted, size, rows, checked.checks);
  const Converted converted = convert(queue, weights, dtype, sorted, {}, size, checked.checks);
  return totals(queue, converted.weights, dtype, bounds, rows, reduce, checked.checks);
}

}  // namespace

Address sum_weighted_bags(const Queue& queue, const Matrix& data, const IdList& ids, const IdList& segments,
                          const Weights& weights, std::int64_t size, std::int64_t bags, std::int64_t reduce,
                          Address out) {
  const Checked checked = check(queue, ids, data.rows, segments, bags, size, queue.report);
  if (data.columns == 0) return checked.checks;
  const DType sums = accumulator_of(data.dtype);
  const SortedSegments sorted = sort_segments(queue, checked, segments, size, bags);
  const Address bounds = mark_bounds(queue, segments, sorted, size, bags, checked.checks);
  const Converted in_order = convert(queue, weights, sums, sorted, ids, size, checked.checks);
  const RowThreads threads(data, out, bags);
  WeightedBags params;
  params.data = data.data;
  params.cols = data.columns;
  params.indices = in_order.ids.data;
  params.wide = in_order.ids.wide;
  params.weights = in_order.weights;
  params.totals = totals(queue, in_order.weights, sums, bounds, bags, reduce, checked.checks);
  params.bounds = bounds;
  params.rows = bags;
  params.longest = kLongest;
  params.found = queue.zeros((1 + size / (kLongest + 1)) * 8);
  params.log_lanes = threads.log_lanes;
  params.out = out;
  params.checks = checked.checks;
  queue.device.launch(queue.stream, threads.variant,
                      {std::min<std::int64_t>(threads.blocks, queue.device.processors * 64)}, 0, params);
  if (size <= kLongest) return checked.checks;
  WeightedLongBags rest;
  rest.data = data.data;
  rest.cols = data.columns;
  rest.indices = params.indices;
  rest.wide = params.wide;
  rest.weights = params.weights;
  rest.totals = params.totals;
  rest.bounds = bounds;
  rest.found = params.found;
  rest.out = out;
  rest.checks = checked.checks;
  const std::int64_t most = size / (kLongest + 1) * ceil_div(data.columns, 64);
  queue.device.launch(queue.stream, type_name(data.dtype), {std::min<std::int64_t>(most, queue.device.processors * 4)},
                      kLongShared, rest);
  return checked.checks;
}

Address weighted_gradient_rows(const Queue& queue, const Matrix& grad, const IdList& segments, const Weights& weights,
                               std::int64_t size, std::int64_t reduce, Address out) {
  const Checked checked = check(queue, {}, 0, segments, grad.rows, size, queue.report);
  if (size == 0 || grad.columns == 0) return checked.checks;
  const DType sums = accumulator_of(grad.dtype);
  const RowThreads threads(grad, out, size);
  WeightedRows params;
  params.grad = grad.data;
  params.cols = grad.columns;
  params.segments = segments.data;
  params.wide = segments.wide;
  params.weights = convert(queue, weights, sums, {}, {}, size, checked.checks).weights;
  params.totals = totals_in_any_order(queue, checked, segments, weights, sums, size, grad.rows, reduce);
  params.size = size;
  params.log_lanes = threads.log_lanes;
  params.out = out;
  params.checks = checked.checks;
  queue.device.launch(queue.stream, threads.variant,
                      {std::min<std::int64_t>(threads.blocks, queue.device.processors * 64)}, 0, params);
  return checked.checks;
}

SortedEntries weigh_entries(const Queue& queue, const SortedEntries& entries, const Matrix& grad, const IdList& segments,
                            const Weights& weights, std::int64_t reduce) {
  const DType sums = accumulator_of(grad.dtype);
  const std::int64_t list = ceil_div(padded(entries.size) * itemsize(sums), 256) * 256;
  SortedEntries found = entries;
  found.scales = queue.allocate(has_divisor(reduce) ? 2 * list : list);
  if (has_divisor(reduce)) found.divisors = found.scales + static_cast<Address>(list);
  Address divisors = 0;
  if (has_divisor(reduce)) {
    const Checked checked = check(queue, {}, 0, segments, grad.rows, entries.size, discarded_report(queue));
    divisors = totals_in_any_order(queue, checked, segments, weights, sums, entries.size, grad.rows, reduce);
  }
  WeighEntries params;
  params.values = entries.values;
  params.segments = segments.data;
  params.wide_segments = segments.wide;
  params.weights = weights.data;
  params.totals = divisors;
  params.size = entries.size;
  params.scales = found.scales;
  params.divisors = found.divisors;
  params.checks = entries.checks;
  queue.device.launch(queue.stream, std::string(type_name(weights.dtype)) + ", " + type_name(sums),
                      loop(queue, entries.size, 16), 0, params);
  return found;
}

Address weighted_gradient(const Queue& queue, const Matrix& grad, const IdList& ids, const IdList& segments,
                          const Weights& weights, std::int64_t size, std::int64_t num_rows, const Weighting& how,
                          Address out) {
  const int bytes = itemsize(grad.dtype);
  const ColumnShape shape(grad.dtype, grad.columns, {{grad.data, bytes}, {out, bytes}});
  const int run_shift = run_shift_of(how.order);
  const Joins joins(size, shape, grad.dtype, run_shift);
  const IdSort sort(queue.device, size, num_rows, grad.rows, {false, 0, joins.zeroed, joins.workspace});
  const Address memory = queue.allocate(sort.bytes());
  const SortedEntries entries = [&] {
    const ZeroedOutput zeroed(queue.device, queue.stream, out, num_rows * grad.columns * bytes);
    const SortedEntries sorted =
        sort.run(queue.device, queue.stream, memory, {.ids = ids, .segments = segments, .by_segment = false},
                 queue.report);
    return weigh_entries(queue, sorted, grad, segments, weights, how.reduce);
  }();
  sum_sorted(queue.device, queue.stream, entries, grad.data, grad.dtype, out, shape, how.mode(grad.dtype), run_shift,
             false);
  return entries.checks;
}

}  // namespace rowgrad::cuda
