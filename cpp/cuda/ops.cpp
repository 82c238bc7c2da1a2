#include "ops.h"

#include <array>
#include <limits>
#include <numeric>
#include <string>

#include "bags.h"
#include "poison.h"
#include "row_sums.h"
#include "weighted.h"

namespace rowgrad::cuda {
namespace {

constexpr std::int64_t kThreads = 256;  // per block, of the kernels that loop over ids
constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

std::int64_t number(const OpArray& host) { return host.numbers[0]; }

// Blocks of a loop over `items`: at most `waves` per multiprocessor.
Grid loop(const OpCall& call, std::int64_t items, std::int64_t waves = 8, std::int64_t per_block = kThreads) {
  return {std::min<std::int64_t>(ceil_div(items, per_block), call.device.processors * waves)};
}

template <class Params>
void set_report(const OpCall& call, Params& params, Address checks) {
  params.checks = checks;
  params.fault = call.report.fault;
  params.alarm = call.report.alarm;
}

std::int64_t elements_of(const OpArray& array) {
  return std::accumulate(array.shape.begin(), array.shape.end(), std::int64_t(1), std::multiplies<>());
}

std::int64_t bytes_of(const OpArray& array) { return elements_of(array) * itemsize(array.dtype); }

// Marks all results if the checks found a fault.
void poison_all(const OpCall& call, Address checks) {
  if (!call.poisons) return;
  for (const OpArray& out : call.out)
    poison(call.device, call.stream, out.data, out.dtype, elements_of(out), checks);
}

// -- Bags and their gradients -----------------------------------------------------------------------------------------

// data, indices, segment_ids, num_segments; reduction, sized
void sparse_segment(const OpCall& call) {
  const OpArray &data = call.in[0], &ids = call.in[1], &segments = call.in[2], &out = call.out[0];
  const std::int64_t bags = number(call.in[3]);
  if (bags > kInt32Max) throw Rejected{{Fault::num_segments_too_big, -1, bags, kInt32Max}};
  sum_bags(call.device, call.stream, data.matrix(), SegmentBags{ids.ids(), segments.ids(), ids.rows(), bags}, out.data,
           call.constants[0], call.report, 0, call.poisons);
}

// grad, indices, segment_ids, output_dim0; reduction, unique, order
void sparse_segment_grad(const OpCall& call) {
  const OpArray &grad = call.in[0], &ids = call.in[1], &segments = call.in[2], &out = call.out[0];
  const std::int64_t rows = number(call.in[3]), size = ids.rows();
  if (size == 0 || rows == 0) {  // as TensorFlow: nothing else is validated
    call.device.zero(call.stream, out.data, bytes_of(out));
    return;
  }
  const Gradient gradient(call.device, grad.matrix(), out.data, size, rows, call.constants[0],
                          Order(call.constants[2]), false);
  const SortedEntries entries = gradient.run(call.device, call.stream, call.allocate(gradient.bytes()), ids.ids(),
                                             segments.ids(), {}, call.report);
  poison_all(call, entries.checks);
}

// grad, indices, segment_ids, dense_output_dim0, size, fill_id; reduction, unique, order
void sparse_segment_grad_padded(const OpCall& call) {
  const OpArray &grad = call.in[0], &ids = call.in[1], &segments = call.in[2];
  const PaddedGradient gradient(call.device, grad.matrix(), call.out[0].data, ids.rows(), number(call.in[3]),
                                number(call.in[4]), call.constants[0], Order(call.constants[2]));
  const Address memory = gradient.bytes() ? call.allocate(gradient.bytes()) : 0;
  gradient.run(call.device, call.stream, memory, ids.ids(), segments.ids(), call.out[1].ids(), number(call.in[5]),
               call.report, call.poisons);
}

// data, indices, segment_ids, num_segments; reduction
void sparse_segment_grad_grad(const OpCall& call) {
  const OpArray &data = call.in[0], &ids = call.in[1], &segments = call.in[2], &out = call.out[0];
  const std::int64_t bags = number(call.in[3]), size = ids.rows(), rows = data.rows();
  if (size == 0 || rows == 0) {  // the gradient does not validate ids either
    call.device.zero(call.stream, out.data, bytes_of(out));
    return;
  }
  IdSort::Options options;
  options.finds_rows = false;
  const IdSort sort(call.device, size, bags, rows, options);
  const IdFaults faults{3, Fault::segment_not_in_grad, Fault::index_not_in_data};
  const SortedEntries entries = sort.run(call.device, call.stream, call.allocate(sort.bytes()),
                                         {.ids = segments.ids(), .segments = ids.ids(), .faults = faults}, call.report);
  sum_bags(call.device, call.stream, data.matrix(),
           SegmentBags{{entries.values, false}, {entries.ids, false}, size, bags}, out.data, call.constants[0],
           call.report, entries.checks);
  poison_all(call, entries.checks);
}

// offsets, num_ids; include_last_offset
void segment_ids_from_offsets(const OpCall& call) {
  const OpArray &offsets = call.in[0], &out = call.out[0];
  const std::int64_t ids = number(call.in[1]), has_end = call.constants[0], size = offsets.rows();
  if (size == 0) {  // nothing on the device to validate
    if (ids || has_end) throw Rejected{{Fault::offsets_end, -1, 0, ids}};
    return;
  }
  constexpr std::int64_t kTile = 1024;  // ids per block and iteration
  CheckOffsets check;
  check.offsets = offsets.data;
  check.wide = offsets.dtype == DType::int64;
  check.size = size;
  check.ids = ids;
  check.has_end = has_end;
  set_report(call, check, call.zeros(8));
  call.device.launch(call.stream, "", loop(call, size), 0, check);
  SegmentIdsOfOffsets write;
  write.offsets = offsets.data;
  write.wide = check.wide;
  write.bags = size - has_end;
  write.ids = ids;
  write.segments = out.data;
  write.checks = check.checks;
  call.device.launch(call.stream, "", loop(call, ids, 8, kTile), 0, write);
  poison_all(call, check.checks);
}

// -- Rows -------------------------------------------------------------------------------------------------------------

// params, indices
void gather_rows(const OpCall& call) {
  const OpArray &params = call.in[0], &ids = call.in[1], &out = call.out[0];
  CheckGather check;
  check.ids = ids.data;
  check.wide = ids.dtype == DType::int64;
  check.size = ids.rows();
  check.bound = params.rows();
  check.code = static_cast<std::int64_t>(Fault::index_not_in_params);
  set_report(call, check, call.zeros(8));
  call.device.launch(call.stream, "", loop(call, check.size), 0, check);
  const std::int64_t row_bytes = params.columns() * itemsize(params.dtype);
  if (row_bytes == 0) return;
  const auto unit = static_cast<std::int64_t>(
      std::gcd(std::gcd(Address(row_bytes), params.data), std::gcd(out.data, Address(16))));
  GatherRows gather;
  gather.source = params.data;
  gather.to = out.data;
  gather.ids = ids.data;
  gather.wide = check.wide;
  gather.size = check.size;
  gather.row_units = row_bytes / unit;
  gather.checks = check.checks;
  call.device.launch(call.stream, unit_name(unit), loop(call, check.size * gather.row_units, 128), 0, gather);
  poison_all(call, check.checks);
}

// grad, indices, num_rows
void scatter_rows(const OpCall& call) {
  const OpArray &grad = call.in[0], &ids = call.in[1], &out = call.out[0];
  const std::int64_t size = ids.rows();
  if (size == 0) {
    call.device.zero(call.stream, out.data, bytes_of(out));
    return;
  }
  const IdSort sort(call.device, size, out.rows(), 1, {});
  const Address memory = call.allocate(sort.bytes());
  const SortedEntries entries = [&] {
    const ZeroedOutput zeroed(call.device, call.stream, out.data, bytes_of(out));
    return sort.run(call.device, call.stream, memory, {.ids = ids.ids(), .by_segment = false, .faults = {0}}, call.report);
  }();
  const int bytes = itemsize(grad.dtype);
  const ColumnShape shape(grad.dtype, grad.columns(), {{grad.data, bytes}, {out.data, bytes}});
  sum_sorted(call.device, call.stream, entries, grad.data, grad.dtype, out.data, shape, 0,
             run_shift_of(Order::sequential), false);
  poison_all(call, entries.checks);
}

// sorted_ids, ids
void row_positions(const OpCall& call) {
  const OpArray &listed = call.in[0], &ids = call.in[1], &out = call.out[0];
  RowPositions params;
  params.list = listed.data;
  params.wide_list = listed.ids().wide;
  params.listed = listed.rows();
  params.ids = ids.data;
  params.wide_ids = ids.ids().wide;
  params.size = ids.rows();
  params.positions = out.data;
  params.wide_positions = out.ids().wide;
  set_report(call, params, call.zeros(8));
  call.device.launch(call.stream, "", loop(call, params.size), 0, params);
  poison_all(call, params.checks);
}

// Row numbers of the products, or none for all rows in order.
void multiply_rows(const OpCall& call, const OpArray& x, const IdList& x_ids, const OpArray& y, const IdList& y_ids,
                   std::int64_t size, Address checks) {
  RowDots params;
  params.x = x.data;
  params.x_ids = x_ids.data;
  params.x_wide = x_ids.wide;
  params.y = y.data;
  params.y_ids = y_ids.data;
  params.y_wide = y_ids.wide;
  params.size = size;
  params.cols = x.columns();
  params.dots = call.out[0].data;
  params.checks = checks;
  call.device.launch(call.stream, type_name(x.dtype), loop(call, size, 32, kThreads / 8), 0, params);
}

// x, y
void row_dot(const OpCall& call) { multiply_rows(call, call.in[0], {}, call.in[1], {}, call.in[0].rows(), 0); }

// grad, data, indices, segment_ids
void sparse_segment_dot(const OpCall& call) {
  const OpArray &grad = call.in[0], &data = call.in[1], &ids = call.in[2], &segments = call.in[3];
  CheckPairs check;
  check.indices = ids.data;
  check.wide_indices = ids.ids().wide;
  check.data_rows = data.rows();
  check.segments = segments.data;
  check.wide_segments = segments.ids().wide;
  check.grad_rows = grad.rows();
  check.size = ids.rows();
  set_report(call, check, call.zeros(8));
  call.device.launch(call.stream, "", loop(call, check.size), 0, check);
  multiply_rows(call, grad, segments.ids(), data, ids.ids(), check.size, check.checks);
  poison_all(call, check.checks);
}

// x
void sqrt(const OpCall& call) {
  const OpArray& x = call.in[0];
  Roots params;
  params.x = x.data;
  params.roots = call.out[0].data;
  params.size = elements_of(x);
  call.device.launch(call.stream, type_name(x.dtype), loop(call, params.size, 32), 0, params);
}

// -- Weighted bags ----------------------------------------------------------------------------------------------------

// The batch of a call whose inputs are, from `first` on, segment ids and weights.
WeightedIds batch_of(const OpCall& call, std::size_t first, const IdList& ids) {
  const OpArray &segments = call.in[first], &weights = call.in[first + 1];
  return {ids, segments.ids(), {weights.data, weights.dtype}, segments.rows()};
}

// data, indices, segment_ids, weights, num_segments; reduction, sized
void weighted_segment(const OpCall& call) {
  const OpArray& out = call.out[0];
  const WeightedIds batch = batch_of(call, 2, call.in[1].ids());
  if (batch.size == 0) {
    call.device.zero(call.stream, out.data, bytes_of(out));
    return;
  }
  sum_weighted_bags(call, call.in[0].matrix(), batch, number(call.in[4]), call.constants[0], out.data, call.poisons);
}

// grad, indices, segment_ids, weights, output_dim0; reduction, accumulate, order
void weighted_segment_grad(const OpCall& call) {
  const OpArray& out = call.out[0];
  const WeightedIds batch = batch_of(call, 2, call.in[1].ids());
  const std::int64_t rows = number(call.in[4]);
  if (batch.size == 0 || rows == 0) {  // as TensorFlow: nothing else is validated
    call.device.zero(call.stream, out.data, bytes_of(out));
    return;
  }
  const Weighting how{call.constants[0], Rounding(call.constants[1]), Order(call.constants[2])};
  poison_all(call, weighted_gradient(call, call.in[0].matrix(), batch, rows, how, out.data));
}

// grad, segment_ids, weights; reduction
void weighted_segment_grad_rows(const OpCall& call) {
  const WeightedIds batch = batch_of(call, 1, {});
  poison_all(call, weighted_gradient_rows(call, call.in[0].matrix(), batch, call.constants[0], call.out[0].data));
}

struct NamedOp {
  std::string_view name;
  RunOp run;
};

constexpr std::array kOps = {
    NamedOp{"sparse_segment", sparse_segment},
    NamedOp{"sparse_segment_grad", sparse_segment_grad},
    NamedOp{"sparse_segment_grad_padded", sparse_segment_grad_padded},
    NamedOp{"sparse_segment_grad_grad", sparse_segment_grad_grad},
    NamedOp{"segment_ids_from_offsets", segment_ids_from_offsets},
    NamedOp{"gather_rows", gather_rows},
    NamedOp{"scatter_rows", scatter_rows},
    NamedOp{"row_positions", row_positions},
    NamedOp{"row_dot", row_dot},
    NamedOp{"sparse_segment_dot", sparse_segment_dot},
    NamedOp{"sqrt", sqrt},
    NamedOp{"weighted_segment", weighted_segment},
    NamedOp{"weighted_segment_grad", weighted_segment_grad},
    NamedOp{"weighted_segment_grad_rows", weighted_segment_grad_rows},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kOps.size()> names;
  for (std::size_t i = 0; i < kOps.size(); ++i) names[i] = kOps[i].name;
  return names;
}();

}  // namespace

RunOp find_op(std::string_view kernel) {
  for (const NamedOp& op : kOps)
    if (op.name == kernel) return op.run;
  return nullptr;
}

std::span<const std::string_view> op_names() { return kNames; }

}  // namespace rowgrad::cuda
