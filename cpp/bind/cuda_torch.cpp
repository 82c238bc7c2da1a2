// Calls with torch tensors: one crossing from Python reads them, allocates the results and queues all launches.
//
// A function returns None, and has done nothing, where the ops have to do the job: for tensors that are not plain,
// contiguous and on this device, for invalid arguments, for which the ops raise, and while a fault is reported.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../cuda/bags.h"
#include "../cuda/ops.h"
#include "../cuda/row_updates.h"
#include "cuda.h"
#include "cuda_ledger.h"
#include "torch_tensors.h"
#include "without_gil.h"

namespace nb = nanobind;

namespace rowgrad::cuda {
namespace {

constexpr std::int64_t kMaxBags = 0x7fffffff, kMaxRowBytes = std::int64_t(1) << 32;

// How bags are described: by the bag of each id, or by where each begins.
enum class Bounds { segments, offsets, offsets_with_end };

bool is_id(DType dtype) { return dtype == DType::int32 || dtype == DType::int64; }

bool is_list(const TensorView& view) { return view.ndim == 1 && is_id(view.dtype) && view.is_contiguous(); }

IdList list_of(const TensorView& view) {
  return {reinterpret_cast<Address>(view.data), view.dtype == DType::int64};
}

// Rows of a tensor of one dimension or more.
std::optional<Matrix> rows_of(const std::optional<TensorView>& view) {
  if (!view || view->ndim < 1 || !is_float(view->dtype) || !view->is_contiguous()) return {};
  Matrix found{reinterpret_cast<Address>(view->data), view->dtype, view->shape[0], 1};
  for (int d = 1; d < view->ndim; ++d) found.columns *= view->shape[d];
  return found;
}

struct Range {
  Address begin;
  std::int64_t bytes;
  bool overlaps(const Range& other) const {
    return begin < other.begin + static_cast<Address>(other.bytes) && other.begin < begin + static_cast<Address>(bytes);
  }
};
Range range_of(const TensorView& view) {
  return {reinterpret_cast<Address>(view.data), view.size() * width_of(view.dtype)};
}

// Whether memory that is written overlaps other memory.
bool conflicts(std::vector<Range> written, const std::vector<Range>& read) {
  struct Part {
    Address begin, end;
    bool is_written;
  };
  std::vector<Part> parts;
  const auto add = [&](const Range& range, bool is_written) {
    if (range.bytes > 0) parts.push_back({range.begin, range.begin + static_cast<Address>(range.bytes), is_written});
  };
  for (const Range& range : written) add(range, true);
  for (const Range& range : read) add(range, false);
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
  Address any_end = 0, written_end = 0;
  for (const Part& part : parts) {
    if (part.begin < (part.is_written ? any_end : written_end)) return true;
    any_end = std::max(any_end, part.end);
    if (part.is_written) written_end = std::max(written_end, part.end);
  }
  return false;
}

// The most distinct rows of each table of a group.
std::vector<std::int64_t> capacities_of(const FeatureGroup& group) {
  std::vector<std::int64_t> found;
  for (std::size_t t = 0; t < group.table_sizes.size(); ++t)
    found.push_back(std::min(group.table_sizes[t], group.table_rows[t]));
  return found;
}

// Whether row gradients of features that share a vector may be padded to their most rows: each feature could have all ids,
// because only the device knows where the ids of a feature end.
bool fits_padded(const FeatureGroup& group) {
  constexpr std::int64_t kMostTimes = 4, kMostBytes = std::int64_t(256) << 20;
  const std::vector<std::int64_t> capacities = capacities_of(group);
  const std::int64_t rows = std::accumulate(capacities.begin(), capacities.end(), std::int64_t(0));
  return rows <= kMostTimes * group.size || rows * group.columns * itemsize(group.dtype) <= kMostBytes;
}

// A lookup of many features that a backward pass will need, and the memory with what it left.
struct RecordedLookup {
  FeatureLookup lookup;
  nb::object memory;
  Address at;
};

// A validated step of the tables of a lookup. The caller keeps the tensors alive and unchanged until `run`.
struct PreparedTables {
  std::vector<RowUpdate> updates;
  std::vector<std::int64_t> row_firsts;
  StackedBatch batch;
  Order order;
  nb::object caller;
};

// The learning rate and the count of steps as tensors, or None if the host has them.
using LiveTensors = std::tuple<nb::object, nb::object>;

// One validated step of a table. The caller keeps the tensors alive and unchanged until `run`.
struct PreparedStep {
  RowUpdate update;
  Matrix grad;
  IdList ids, segments;
  std::int64_t size, reduce;
  Order order;
  nb::object caller;
};

// One validated step of a table with a row-sparse gradient, or without `ids` with one of all rows.
struct PreparedRows {
  RowUpdate update;
  Address grad;
  IdList ids;
  std::int64_t size;
  Address count;
  nb::object caller;
};

// A validated step of several tables with their row-sparse gradients.
struct PreparedLists {
  std::vector<UpdateFromList> lists;
  nb::object caller;
};

// An op of the catalogue for inputs of certain shapes and dtypes, which were validated: its constants and results.
struct PreparedOp {
  using Output = std::tuple<std::vector<std::int64_t>, nb::object, int>;  // shape, torch's dtype, its number

  PreparedOp(const std::string& kernel, std::vector<std::int64_t> constants, std::vector<Output> outputs)
      : run(find_op(kernel)), constants(std::move(constants)), outputs(std::move(outputs)) {
    if (!run) throw std::invalid_argument(kernel);
  }

  const RunOp run;
  const std::vector<std::int64_t> constants;
  const std::vector<Output> outputs;
};

class TorchCalls {
 public:
  // `kind` and `index`: where tensors are, as in DLPack. `empty` is torch.empty, `place` its device.
  TorchCalls(Device& device, Ledger& ledger, int kind, int index, nb::object empty, nb::object place, nb::object int32,
             nb::object int64, nb::object uint8)
      : device_(device),
        ledger_(ledger),
        place_{kind, index},
        empty_(std::move(empty)),
        torch_device_(std::move(place)),
        int32_(std::move(int32)),
        int64_(std::move(int64)),
        uint8_(std::move(uint8)),
        dtype_name_(nb::steal(PyUnicode_InternFromString("dtype"))),
        device_name_(nb::steal(PyUnicode_InternFromString("device"))) {}

  // Runs a prepared op on tensors and host numbers; returns its results.
  nb::object run_op(nb::object caller, const PreparedOp& op, nb::list inputs) {
    Stream stream;
    if (!begin(stream)) return nb::none();
    std::vector<TensorView> views(inputs.size());
    std::vector<std::int64_t> numbers(inputs.size());
    std::vector<OpArray> in(inputs.size()), out(op.outputs.size());
    for (std::size_t i = 0; i < in.size(); ++i) {
      PyObject* const input = PyList_GetItem(inputs.ptr(), static_cast<Py_ssize_t>(i));
      if (PyLong_CheckExact(input)) {
        numbers[i] = PyLong_AsLongLong(input);
        if (numbers[i] == -1 && PyErr_Occurred()) {
          PyErr_Clear();
          return nb::none();
        }
        in[i].numbers = {&numbers[i], 1};
        continue;
      }
      const auto view = read(input);
      if (!view || !view->is_contiguous()) return nb::none();
      views[i] = *view;
      in[i] = {reinterpret_cast<Address>(view->data), view->dtype,
               {views[i].shape, static_cast<std::size_t>(views[i].ndim)}, {}};
    }
    nb::list results;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto& [shape, dtype, number] = op.outputs[i];
      const nb::object result = empty(shape, dtype, out[i].data);
      if (!result.is_valid()) return nb::none();
      out[i].dtype = DType(number);
      out[i].shape = shape;
      results.append(result);
    }
    Report report;
    if (!take(std::move(caller), stream, report)) return nb::none();
    std::vector<nb::object> memory;
    const auto allocate = [&](std::int64_t bytes) {
      Address at = 0;
      memory.push_back(empty({bytes}, uint8_, at));
      if (!memory.back().is_valid()) throw std::bad_alloc();
      return at;
    };
    try {
      op.run({{device_, stream, report, Pieces(allocate)}, op.constants, in, out, false});
    } catch (const Rejected&) {  // in these cases the ops raise the error
      return nb::none();
    } catch (const TooLarge&) {
      return nb::none();
    } catch (const std::bad_alloc&) {
      return nb::none();
    }
    return nb::tuple(results);
  }

  // Returns the sums of bags and, if `keeps`, the bag of each id as int32; `bags` counts for segments.
  nb::object sum_bags(nb::object caller, nb::handle data, nb::handle ids, nb::handle bounds, int form,
                      std::int64_t bags, std::int64_t reduce, bool keeps) {
    Stream stream;
    if (!begin(stream)) return nb::none();
    const auto table = read(data), id_view = read(ids), bound_view = read(bounds);
    const auto matrix = rows_of(table);
    if (!matrix || !id_view || !bound_view || !is_list(*id_view) || !is_list(*bound_view)) return nb::none();
    const std::int64_t size = id_view->size();
    const Bounds kind = Bounds(form);
    if (kind == Bounds::segments) {
      if (bound_view->size() != size) return nb::none();
    } else {
      bags = bound_view->size() - (kind == Bounds::offsets_with_end);
      if (bags < 1) return nb::none();
    }
    if (bags < 0 || bags > kMaxBags) return nb::none();
    std::vector<std::int64_t> shape(table->shape, table->shape + table->ndim);
    shape[0] = bags;
    const nb::object dtype = nb::steal(PyObject_GetAttr(data.ptr(), dtype_name_.ptr()));
    Address out_at = 0, kept_at = 0;
    const nb::object out = empty(shape, dtype, out_at);
    nb::object kept = nb::none();
    if (keeps) kept = empty({size}, int32_, kept_at);
    if (!out.is_valid() || !kept.is_valid()) return nb::none();
    Report report;
    if (!take(std::move(caller), stream, report)) return nb::none();
    {
      const WithoutGil unlocked;
      if (kind == Bounds::segments)
        cuda::sum_bags(device_, stream, *matrix, SegmentBags{list_of(*id_view), list_of(*bound_view), size, bags},
                       out_at, reduce, report);
      else
        cuda::sum_bags(
            device_, stream, *matrix,
            OffsetBags{list_of(*id_view), list_of(*bound_view), kind == Bounds::offsets_with_end, size, bags}, out_at,
            reduce, report, kept_at);
    }
    return keeps ? nb::object(nb::make_tuple(out, kept)) : out;
  }

  // Returns the row-sparse gradient of bags of a table with `num_rows` rows: as many values and ids as there may be, of
  // which the first are distinct, and their number, all on the device. The others are zeros for the last distinct row.
  // Ids are a matrix with one row of int64.
  nb::object row_gradient(nb::object caller, nb::handle grad, nb::handle ids, nb::handle segments, std::int64_t num_rows,
                          std::int64_t reduce, int order) {
    Stream stream;
    BagGradient batch;
    if (!begin(stream) || !read_gradient(grad, ids, segments, num_rows, batch)) return nb::none();
    const std::int64_t capacity = batch.shape[0];
    Address values_at = 0, rows_at = 0, count_at = 0, memory = 0;
    const nb::object values = empty(batch.shape, batch.dtype, values_at), count = empty({1}, int64_, count_at),
                     rows = empty({1, capacity}, int64_, rows_at);
    const Gradient gradient(device_, batch.y, values_at, batch.size, num_rows, reduce, Order(order), true);
    const nb::object workspace = empty({gradient.bytes()}, uint8_, memory);
    Report report;
    if (!values.is_valid() || !rows.is_valid() || !count.is_valid() || !workspace.is_valid() ||
        !take(std::move(caller), stream, report))
      return nb::none();
    {
      const WithoutGil unlocked;
      gradient.run_counted(device_, stream, memory, batch.ids, batch.segments, rows_at, capacity, count_at, report);
    }
    return nb::make_tuple(values, rows, count);
  }

  // Returns values and ids of the distinct rows of the same gradient in longer tensors, their number, for which it waits,
  // and the address of the call's fault report. Ids have the dtype of those of the bags. The rows are summed while the
  // caller goes on.
  nb::object unique_rows(nb::object caller, nb::handle grad, nb::handle ids, nb::handle segments, std::int64_t num_rows,
                         std::int64_t reduce, int order) {
    Stream stream;
    BagGradient batch;
    if (!begin(stream) || !read_gradient(grad, ids, segments, num_rows, batch)) return nb::none();
    Address values_at = 0, rows_at = 0, memory = 0;
    const bool wide = batch.ids.wide;
    const nb::object values = empty(batch.shape, batch.dtype, values_at),
                     rows = empty({batch.shape[0]}, wide ? int64_ : int32_, rows_at);
    const Gradient gradient(device_, batch.y, values_at, batch.size, num_rows, reduce, Order(order), true);
    const nb::object workspace = empty({gradient.bytes()}, uint8_, memory);
    Report report;
    if (!values.is_valid() || !rows.is_valid() || !workspace.is_valid() || !take(std::move(caller), stream, report))
      return nb::none();
    std::int64_t count = 0;
    {
      const WithoutGil unlocked;
      const Address host_total = ledger_.count_of(report.fault);
      gradient.run(device_, stream, memory, batch.ids, batch.segments, {rows_at, wide}, report, kAnyRows, host_total);
      count = device_.wait_for_number(stream, host_total);
    }
    return nb::make_tuple(values, rows, count, report.fault);
  }

  // Validates a step with a row-sparse gradient: `ids`, a matrix with one row, and the values for each. `count`: how many
  // of them there are, or None for all. Without ids, `values` are the gradient of all rows.
  nb::object prepare_rows(nb::object caller, int rule, nb::handle table, const std::vector<nb::object>& slots,
                          nb::handle values, nb::handle ids, nb::handle count, std::uintptr_t numbers, bool lazy,
                          bool random, std::int64_t seed, std::int64_t step, const LiveTensors& live) {
    Stream stream;
    if (!begin(stream)) return nb::none();
    const auto table_view = read(table), value_view = read(values);
    const auto rows = rows_of(table_view), grad = rows_of(value_view);
    if (!rows || !grad || grad->dtype != rows->dtype || grad->columns != rows->columns || grad->rows == 0)
      return nb::none();
    std::vector<Range> written, read_only{range_of(*value_view)};
    PreparedRows found{{}, grad->data, {}, grad->rows, 0, std::move(caller)};
    if (ids.is_none()) {
      if (grad->rows != rows->rows) return nb::none();
    } else {
      const auto id_view = read(ids);
      if (!id_view || id_view->ndim != 2 || id_view->shape[0] != 1 || !id_view->is_contiguous() ||
          !is_id(id_view->dtype) || id_view->size() != grad->rows)
        return nb::none();
      found.ids = list_of(*id_view);
      read_only.push_back(range_of(*id_view));
    }
    if (!count.is_none()) {
      const auto count_view = read(count);
      if (!count_view || count_view->dtype != DType::int64 || count_view->size() != 1) return nb::none();
      found.count = reinterpret_cast<Address>(count_view->data);
      read_only.push_back(range_of(*count_view));
    }
    const auto update = read_update(rule, *table_view, *rows, slots, numbers, lazy, random, seed, step, live, written);
    if (!update || conflicts(std::move(written), read_only)) return nb::none();
    found.update = *update;
    return nb::cast(std::move(found));
  }

  // Queues a prepared step with rows; returns whether that was possible.
  bool run_rows(PreparedRows& step) {
    if (!step.ids.data) {
      const UpdateOfAll update(step.update);
      return run(update, step.caller, [&](Stream stream, Address memory, const Report& report) {
        update.run(device_, stream, memory, step.grad, report);
      });
    }
    const UpdateFromRows update(step.update);
    return run(update, step.caller, [&](Stream stream, Address memory, const Report& report) {
      update.run(device_, stream, memory, step.grad, step.ids, step.size, step.count, report);
    });
  }

  // Validates a step fused with the gradient of bags. `numbers` is the address of the step's numbers.
  nb::object prepare_step(nb::object caller, int rule, nb::handle table, const std::vector<nb::object>& slots,
                          nb::handle grad, nb::handle ids, nb::handle segments, std::uintptr_t numbers, bool lazy,
                          bool random, std::int64_t seed, std::int64_t step, const LiveTensors& live,
                          std::int64_t reduce, int order) {
    Stream stream;
    if (!begin(stream)) return nb::none();
    const auto table_view = read(table), grad_view = read(grad), id_view = read(ids), segment_view = read(segments);
    const auto rows = rows_of(table_view), y = rows_of(grad_view);
    if (!rows || !y || !id_view || !segment_view || !is_list(*id_view) || !is_list(*segment_view)) return nb::none();
    PreparedStep found{{Rule(rule), *rows}, *y, list_of(*id_view), list_of(*segment_view), id_view->size(), reduce,
                       Order(order), std::move(caller)};
    if (y->dtype != rows->dtype || y->columns != rows->columns || segment_view->size() != found.size ||
        found.size == 0 || rows->rows == 0)
      return nb::none();
    for (int d = 1; d < table_view->ndim; ++d)
      if (grad_view->ndim != table_view->ndim || grad_view->shape[d] != table_view->shape[d]) return nb::none();
    std::vector<Range> written;
    const auto update = read_update(rule, *table_view, *rows, slots, numbers, lazy, random, seed, step, live, written);
    if (!update || conflicts(written, {range_of(*grad_view), range_of(*id_view), range_of(*segment_view)}))
      return nb::none();
    found.update = *update;
    return nb::cast(std::move(found));
  }

  // Looks up the bags of many features. `owners` has the table of each, in ascending order; `reduce` and `paddings` those
  // of each table. `ids` is a list of (ids, offsets) and matrices of ids with one bag per row, or if there are `offsets` a
  // vector with the ids of all features. Returns the outputs of each group of tables of one dtype and width, one after the
  // other or if `stacked` bag by bag; the features of each group, and its tables; and what a backward pass needs. `rows`:
  // it will need row gradients.
  nb::object look_up_features(nb::object caller, nb::list tables, const std::vector<int>& owners,
                              const std::vector<std::int64_t>& reduce, const std::vector<std::int64_t>& paddings,
                              nb::handle ids, nb::handle offsets, bool has_end, bool stacked, bool keeps, bool rows) {
    Stream stream;
    if (!begin(stream)) return nb::none();
    const std::size_t count = owners.size(), table_count = tables.size();
    const bool joined = !offsets.is_none();
    std::vector<FeatureBags> features(count);
    std::int64_t bags = -1;
    if (joined) {
      const auto id_view = read(ids), offset_view = read(offsets);
      if (!id_view || !offset_view || !is_list(*id_view) || !is_list(*offset_view)) return nb::none();
      const std::int64_t listed = offset_view->size() - 1;
      if (listed < 1 || listed % static_cast<std::int64_t>(count)) return nb::none();
      bags = listed / static_cast<std::int64_t>(count);
      for (auto& feature : features) {
        feature.ids = list_of(*id_view);
        feature.offsets = list_of(*offset_view);
        feature.size = id_view->size();
      }
    } else {
      if (!PyList_CheckExact(ids.ptr()) || static_cast<std::size_t>(PyList_Size(ids.ptr())) != count)
        return nb::none();
      for (std::size_t f = 0; f < count; ++f) {
        const std::int64_t own = read_feature(PyList_GetItem(ids.ptr(), static_cast<Py_ssize_t>(f)), has_end, features[f]);
        if (own < 1 || (bags >= 0 && own != bags)) return nb::none();
        bags = own;
      }
    }
    if (bags > kMaxBags || reduce.size() != table_count || paddings.size() != table_count) return nb::none();
    std::vector<Matrix> matrices;
    for (const nb::handle table : tables) {
      const auto matrix = rows_of(read(table));
      if (!matrix || matrix->columns == 0) return nb::none();
      matrices.push_back(*matrix);
    }
    for (std::size_t f = 0; f < count; ++f) {
      const auto owner = static_cast<std::size_t>(owners[f]);
      if (owner >= table_count || (f && owners[f] < owners[f - 1])) return nb::none();
      features[f].table_number = owners[f];
      features[f].table = matrices[owner];
      features[f].reduce = reduce[owner];
      features[f].padding = paddings[owner];
      if (paddings[owner] >= matrices[owner].rows) return nb::none();
    }
    FeatureLookup lookup(std::move(features), bags, has_end, joined, keeps);
    const auto& groups = lookup.groups();
    if (!lookup.is_supported() || (stacked && groups.size() > 1)) return nb::none();
    if (keeps && rows && joined && !std::all_of(groups.begin(), groups.end(), fits_padded)) return nb::none();
    std::vector<Address> outs;
    nb::list out_list, members, group_tables;
    for (const FeatureGroup& group : groups) {
      const auto own = static_cast<std::int64_t>(group.features.size());
      if (stacked && own * group.columns * itemsize(group.dtype) >= kMaxRowBytes) return nb::none();
      const nb::object dtype = nb::steal(PyObject_GetAttr(tables[static_cast<std::size_t>(group.tables[0])].ptr(), dtype_name_.ptr()));
      Address at = 0;
      const nb::object out = stacked ? empty({bags, own, group.columns}, dtype, at) : empty({own * bags, group.columns}, dtype, at);
      if (!out.is_valid()) return nb::none();
      outs.push_back(at);
      out_list.append(out);
      members.append(group.features);
      group_tables.append(group.tables);
    }
    Address at = 0, scratch_at = 0;
    const nb::object memory = empty({lookup.bytes()}, uint8_, at);
    nb::object scratch = nb::none();
    if (lookup.scratch_bytes()) scratch = empty({lookup.scratch_bytes()}, uint8_, scratch_at);
    Report report;
    if (!memory.is_valid() || !scratch.is_valid() || !take(std::move(caller), stream, report)) return nb::none();
    {
      const WithoutGil unlocked;
      lookup.run(device_, stream, at, scratch_at, outs, stacked, report);
    }
    nb::object recorded = nb::none();
    if (keeps) recorded = nb::cast(RecordedLookup{std::move(lookup), memory, at});
    return nb::make_tuple(out_list, members, group_tables, recorded);
  }

  // Validates a step of the tables of one group of a lookup. `grads`: those of its outputs, or if `stacked` of the one
  // output; if one feature of a table has a gradient, all must. `updates`: for each table None or (table, slots, address of numbers, lazy, random, seed, step, live).
  nb::object prepare_tables(nb::object caller, const RecordedLookup& recorded, int number, int rule, nb::list grads,
                            bool stacked, nb::list updates, int order) {
    Stream stream;
    if (!begin(stream)) return nb::none();
    const FeatureGroup& group = recorded.lookup.groups().at(static_cast<std::size_t>(number));
    if (updates.size() != group.tables.size()) return nb::none();
    std::vector<Range> written, read_only;
    const auto batch = stacked_batch(recorded, group, grads, stacked, read_only);
    if (!batch) return nb::none();
    PreparedTables found{{}, group.row_firsts, *batch, Order(order), std::move(caller)};
    const RowUpdate none{Rule(rule), {0, group.dtype, 0, group.columns}};
    for (std::size_t t = 0; t < updates.size(); ++t) {
      const nb::handle item = updates[t];
      if (item.is_none()) {
        found.updates.push_back(none);
        continue;
      }
      const auto [table, slots, numbers, lazy, random, seed, step, live] =
          nb::cast<std::tuple<nb::object, std::vector<nb::object>, std::uintptr_t, bool, bool, std::int64_t,
                              std::int64_t, LiveTensors>>(item);
      const auto view = read(table);
      const auto rows = rows_of(view);
      if (!rows || rows->dtype != group.dtype || rows->columns != group.columns || rows->rows != group.table_rows[t])
        return nb::none();
      if (rows->rows == 0) {  // nothing to update
        if (!std::get<1>(live).is_none()) return nb::none();  // but to count
        found.updates.push_back(none);
        continue;
      }
      const auto update = read_update(rule, *view, *rows, slots, numbers, lazy, random, seed, step, live, written);
      if (!update) return nb::none();
      found.updates.push_back(*update);
    }
    found.updates.resize(group.row_firsts.size(), none);  // the row of ignored ids
    if (conflicts(std::move(written), read_only)) return nb::none();
    if (!UpdateTables(device_, found.updates, found.row_firsts, *batch, found.order).is_supported()) return nb::none();
    return nb::cast(std::move(found));
  }

  // Queues a prepared step of tables; returns whether that was possible.
  bool run_tables(PreparedTables& step) {
    const UpdateTables update(device_, std::move(step.updates), std::move(step.row_firsts), step.batch, step.order);
    return run(update, step.caller,
               [&](Stream stream, Address memory, const Report& report) { update.run(device_, stream, memory, report); });
  }

  // Returns the row-sparse gradients of the tables of one group of a lookup: values, ids and numbers of rows, those of all
  // tables in one tensor each, and the most rows of each table; if ids may be ignored, of one table more. `grads`: as for
  // `prepare_tables`.
  nb::object row_gradients(nb::object caller, const RecordedLookup& recorded, int number, nb::list grads, bool stacked,
                           int order) {
    Stream stream;
    if (!begin(stream)) return nb::none();
    const FeatureGroup& group = recorded.lookup.groups().at(static_cast<std::size_t>(number));
    std::vector<Range> read_only;
    const auto batch = stacked_batch(recorded, group, grads, stacked, read_only);
    if (!batch) return nb::none();
    const std::vector<std::int64_t> capacities = capacities_of(group);
    const std::int64_t rows = std::accumulate(capacities.begin(), capacities.end(), std::int64_t(0));
    const auto count = static_cast<std::int64_t>(capacities.size());
    const nb::handle like = *std::find_if(grads.begin(), grads.end(), [](nb::handle g) { return !g.is_none(); });
    const nb::object dtype = nb::steal(PyObject_GetAttr(like.ptr(), dtype_name_.ptr()));
    Address values_at = 0, ids_at = 0, counts_at = 0, memory = 0;
    const nb::object values = empty({rows, group.columns}, dtype, values_at), ids = empty({1, rows}, int64_, ids_at);
    const nb::object counts = empty({count}, int64_, counts_at);
    const TableGradients gradients(device_, group.dtype, group.columns, group.row_firsts, capacities, *batch, values_at,
                                   Order(order));
    const nb::object workspace = empty({gradients.bytes()}, uint8_, memory);
    Report report;
    if (!values.is_valid() || !ids.is_valid() || !counts.is_valid() || !workspace.is_valid() ||
        !take(std::move(caller), stream, report))
      return nb::none();
    {
      const WithoutGil unlocked;
      gradients.run(device_, stream, memory, ids_at, counts_at, report);
    }
    return nb::make_tuple(values, ids, counts, capacities);
  }

  // Returns the dense gradients of the tables of one group of a lookup: the rows of their stack. `grads`: as for
  // `prepare_tables`.
  nb::object dense_gradients(nb::object caller, const RecordedLookup& recorded, int number, nb::list grads, bool stacked,
                             int order) {
    Stream stream;
    if (!begin(stream)) return nb::none();
    const FeatureGroup& group = recorded.lookup.groups().at(static_cast<std::size_t>(number));
    std::vector<Range> read_only;
    const auto batch = stacked_batch(recorded, group, grads, stacked, read_only);
    if (!batch) return nb::none();
    const nb::handle like = *std::find_if(grads.begin(), grads.end(), [](nb::handle g) { return !g.is_none(); });
    const nb::object dtype = nb::steal(PyObject_GetAttr(like.ptr(), dtype_name_.ptr()));
    Address values_at = 0, memory = 0;
    const nb::object values = empty({group.rows, group.columns}, dtype, values_at);
    const StackGradient gradient(device_, group.dtype, group.columns, *batch, values_at, Order(order));
    const nb::object workspace = empty({gradient.bytes()}, uint8_, memory);
    Report report;
    if (!values.is_valid() || !workspace.is_valid() || !take(std::move(caller), stream, report)) return nb::none();
    {
      const WithoutGil unlocked;
      gradient.run(device_, stream, memory, report);
    }
    return values;
  }

  // Validates a step of several tables: for each (table, slots, address of numbers, lazy, random, seed, step, live,
  // values, ids, count), whose last three are those of `prepare_rows`.
  nb::object prepare_lists(nb::object caller, int rule, nb::list updates) {
    Stream stream;
    if (!begin(stream)) return nb::none();
    PreparedLists found{{}, std::move(caller)};
    std::vector<Range> written, read_only;
    for (const nb::handle item : updates) {
      const auto [table, slots, numbers, lazy, random, seed, step, live, values, ids, count] =
          nb::cast<std::tuple<nb::object, std::vector<nb::object>, std::uintptr_t, bool, bool, std::int64_t,
                              std::int64_t, LiveTensors, nb::object, nb::object, nb::object>>(item);
      const auto view = read(table), value_view = read(values), id_view = read(ids);
      const auto rows = rows_of(view), grad = rows_of(value_view);
      if (!rows || !grad || !id_view || id_view->ndim != 2 || id_view->shape[0] != 1 || !id_view->is_contiguous() ||
          id_view->dtype != DType::int64 || id_view->size() != grad->rows || grad->dtype != rows->dtype ||
          grad->columns != rows->columns || grad->columns == 0 || rows->rows >= kMaxBags)
        return nb::none();
      read_only.push_back(range_of(*value_view));
      read_only.push_back(range_of(*id_view));
      Address count_at = 0;
      if (!count.is_none()) {
        const auto count_view = read(count);
        if (!count_view || count_view->dtype != DType::int64 || count_view->size() != 1) return nb::none();
        count_at = reinterpret_cast<Address>(count_view->data);
        read_only.push_back(range_of(*count_view));
      }
      const auto update = read_update(rule, *view, *rows, slots, numbers, lazy, random, seed, step, live, written);
      if (!update) return nb::none();
      found.lists.push_back({*update, grad->data, list_of(*id_view).data, count_at, grad->rows});
    }
    if (conflicts(std::move(written), read_only) || !UpdateLists(found.lists).is_supported()) return nb::none();
    return nb::cast(std::move(found));
  }

  // Queues a prepared step of several tables; returns whether that was possible.
  bool run_lists(PreparedLists& step) {
    const UpdateLists update(std::move(step.lists));
    return run(update, step.caller,
               [&](Stream stream, Address memory, const Report& report) { update.run(device_, stream, memory, report); });
  }

  // Queues a prepared step; returns whether that was possible.
  bool run_step(PreparedStep& step) {
    const UpdateFromBags update(device_, step.update, step.grad, step.size, step.ids.wide, step.reduce, step.order);
    return run(update, step.caller, [&](Stream stream, Address memory, const Report& report) {
      update.run(device_, stream, memory, step.ids, step.segments, report);
    });
  }

 private:
  // Allocates the workspace of an update, then calls `queue` without the GIL; false if that is not possible.
  template <class Update, class Queue>
  bool run(const Update& update, const nb::object& caller, const Queue& queue) {
    Stream stream;
    if (!find_stream(stream)) return false;  // what an earlier call reports meanwhile, the next call raises
    Address memory = 0;
    const nb::object workspace = update.bytes() ? empty({update.bytes()}, uint8_, memory) : nb::none();
    Report report;
    if (!workspace.is_valid() || !take(caller, stream, report)) return false;
    const WithoutGil unlocked;
    queue(stream, memory, report);
    return true;
  }

  // Reads a feature's ids: a matrix with one bag per row, or a tuple (ids, offsets). Returns the number of its bags, or -1.
  std::int64_t read_feature(PyObject* value, bool has_end, FeatureBags& feature) const {
    const bool has_offsets = PyTuple_CheckExact(value);
    if (has_offsets && PyTuple_Size(value) != 2) return -1;
    const auto ids = read(has_offsets ? PyTuple_GetItem(value, 0) : value);
    if (!ids || ids->ndim != (has_offsets ? 1 : 2) || !is_id(ids->dtype) || !ids->is_contiguous()) return -1;
    feature.ids = list_of(*ids);
    feature.size = ids->size();
    if (!has_offsets) return ids->shape[0];
    const auto offsets = read(PyTuple_GetItem(value, 1));
    if (!offsets || !is_list(*offsets)) return -1;
    feature.offsets = list_of(*offsets);
    return offsets->size() - has_end;
  }

  // Returns what a lookup has left of a group, with the gradients of its outputs, and adds what will be read.
  std::optional<StackedBatch> stacked_batch(const RecordedLookup& recorded, const FeatureGroup& group, nb::list grads,
                                            bool stacked, std::vector<Range>& read_only) const {
    const FeatureLookup& lookup = recorded.lookup;
    const std::size_t count = group.features.size();
    if (grads.size() != (stacked ? 1 : count) || group.size == 0 || group.rows == 0) return {};
    StackedBatch batch{};
    const auto bytes = static_cast<Address>(group.columns * itemsize(group.dtype));
    batch.grad_stride = stacked ? static_cast<std::int64_t>(count) * group.columns : group.columns;
    Address readable = 0;
    for (std::size_t t = 0; t < (stacked ? 1 : count); ++t) {
      Address at = 0;
      if (!grads[t].is_none()) {
        const auto view = read(grads[t]);
        if (!view || view->dtype != group.dtype || !view->is_contiguous() ||
            view->size() != lookup.bags() * batch.grad_stride || view->shape[0] != lookup.bags())
          return {};
        readable = at = reinterpret_cast<Address>(view->data);
        read_only.push_back(range_of(*view));
      }
      batch.grads.push_back(at);
    }
    for (std::size_t t = 1; stacked && t < count; ++t) batch.grads.push_back(batch.grads[0] + t * bytes);
    if (!readable) return {};
    for (Address& grad : batch.grads)
      if (!grad) grad = readable;  // the sums of this table are not used
    const auto at = [&](std::int64_t offset) { return recorded.at + static_cast<Address>(offset); };
    batch.rows = {at(group.rows_at), false};
    batch.segments = {at(group.segments_at), false};
    batch.size = group.size;
    batch.stack_rows = group.rows;
    batch.segment_shift = lookup.segment_shift();
    batch.ignored_row = group.ignored_row;
    batch.lookup = {at(group.scales_at), at(group.failed_at)};
    return batch;
  }

  // Returns the step of a table, and adds what it writes; nothing if the kernels cannot update it in place.
  std::optional<RowUpdate> read_update(int rule, const TensorView& view, const Matrix& table,
                                       const std::vector<nb::object>& slots, std::uintptr_t numbers, bool lazy,
                                       bool random, std::int64_t seed, std::int64_t step, const LiveTensors& live,
                                       std::vector<Range>& written) {
    RowUpdate update{Rule(rule), table};
    if (slots.size() != static_cast<std::size_t>(slots_of(update.rule))) return {};
    written.push_back(range_of(view));
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto slot = read(slots[i]);
      const std::int64_t elements = is_per_row(update.rule) ? table.rows : table.rows * table.columns;
      if (!slot || slot->dtype != accumulator_of(table.dtype) || !slot->is_contiguous() || slot->size() != elements)
        return {};
      update.slots[i] = reinterpret_cast<Address>(slot->data);
      written.push_back(range_of(*slot));
    }
    const double* const first = reinterpret_cast<const double*>(numbers);
    std::copy(first, first + update.numbers.size(), update.numbers.begin());
    update.lazy = lazy;
    update.random = random;
    update.seed = seed;
    update.step = step;
    const auto& [lr, count] = live;
    if (!lr.is_none()) {
      const auto view = read(lr);
      if (!view || view->size() != 1 || (view->dtype != DType::float32 && view->dtype != DType::float64)) return {};
      update.on_device.lr = reinterpret_cast<Address>(view->data);
      update.on_device.lr_wide = view->dtype == DType::float64;
    }
    if (!count.is_none()) {
      const auto view = read(count);
      if (!view || view->size() != 1 || view->dtype != DType::float64) return {};
      update.on_device.count = reinterpret_cast<Address>(view->data);
      written.push_back(range_of(*view));
    }
    return update;
  }

  // The gradient of bags and their ids, and the shape and dtype of the values that its distinct rows may have.
  struct BagGradient {
    Matrix y;
    IdList ids, segments;
    std::int64_t size;
    std::vector<std::int64_t> shape;
    nb::object dtype;
  };

  // Reads a gradient of bags; false if the kernels cannot sum it.
  bool read_gradient(nb::handle grad, nb::handle ids, nb::handle segments, std::int64_t num_rows,
                     BagGradient& found) const {
    const auto grad_view = read(grad), id_view = read(ids), segment_view = read(segments);
    const auto y = rows_of(grad_view);
    if (!y || !id_view || !segment_view || !is_list(*id_view) || !is_list(*segment_view) || num_rows <= 0 ||
        num_rows > kMaxBags || id_view->size() == 0 || segment_view->size() != id_view->size())
      return false;
    found = {*y, list_of(*id_view), list_of(*segment_view), id_view->size(),
             {grad_view->shape, grad_view->shape + grad_view->ndim},
             nb::steal(PyObject_GetAttr(grad.ptr(), dtype_name_.ptr()))};
    found.shape[0] = std::min(found.size, num_rows);
    return true;
  }

  // Finds the stream; false if this device is not current or a fault is reported.
  bool begin(Stream& stream) { return !ledger_.is_raised() && find_stream(stream); }

  // Finds the stream; false if this device is not current.
  bool find_stream(Stream& stream) {
    if (!device_.is_current()) return false;
    stream = nullptr;
    if (place_.kind != Place::kCuda) return true;
    const auto found = current_stream(place_.index);
    if (found) stream = *found;
    return found.has_value();
  }

  bool take(nb::object caller, Stream stream, Report& report) {
    const Address slot = ledger_.take(std::move(caller), device_.is_capturing(stream));
    if (slot) report = ledger_.report_of_slot(slot);
    return slot != 0;
  }

  std::optional<TensorView> read(nb::handle tensor) const { return read_tensor(tensor.ptr(), place_); }

  // Allocates a tensor and stores its address; invalid if there is not enough memory: the ops raise the error.
  nb::object empty(const std::vector<std::int64_t>& shape, const nb::object& dtype, Address& at) const {
    const nb::object sizes = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
    for (std::size_t d = 0; d < shape.size(); ++d)
      PyTuple_SetItem(sizes.ptr(), static_cast<Py_ssize_t>(d), PyLong_FromLongLong(shape[d]));
    nb::dict options;
    options[dtype_name_] = dtype;
    options[device_name_] = torch_device_;
    PyObject* const made = PyObject_Call(empty_.ptr(), nb::make_tuple(sizes).ptr(), options.ptr());
    if (!made) {
      PyErr_Clear();
      return {};
    }
    at = address_of_tensor(made);
    return nb::steal(made);
  }

  Device& device_;
  Ledger& ledger_;
  const Place place_;
  const nb::object empty_, torch_device_, int32_, int64_, uint8_, dtype_name_, device_name_;
};

}  // namespace
}  // namespace rowgrad::cuda

void bind_cuda_torch(nb::module_& m) {
  using namespace rowgrad::cuda;
  nb::class_<PreparedStep>(m, "CudaPreparedStep");
  nb::class_<PreparedTables>(m, "CudaPreparedTables");
  nb::class_<PreparedOp>(m, "CudaPreparedOp")
      .def(nb::init<const std::string&, std::vector<std::int64_t>, std::vector<PreparedOp::Output>>());
  nb::class_<PreparedRows>(m, "CudaPreparedRows");
  nb::class_<PreparedLists>(m, "CudaPreparedLists");
  nb::class_<RecordedLookup>(m, "CudaRecordedLookup")
      .def_prop_ro("memory", [](const RecordedLookup& r) { return r.memory; })
      .def_prop_ro("bags", [](const RecordedLookup& r) { return r.lookup.bags(); })
      .def_prop_ro("segment_shift", [](const RecordedLookup& r) { return r.lookup.segment_shift(); })
      // Of a group: the offsets of its rows and segments in the memory, their number, the first row of each table, and
      // the number of ids of each table, or in a shared vector of all; if ids may be ignored, of one table more.
      .def("group", [](const RecordedLookup& r, std::size_t number) {
        const FeatureGroup& group = r.lookup.groups().at(number);
        return nb::make_tuple(group.rows_at, group.segments_at, group.size, group.row_firsts, group.table_sizes);
      });
  nb::class_<TorchCalls>(m, "CudaTorchCalls")
      .def(nb::init<Device&, Ledger&, int, int, nb::object, nb::object, nb::object, nb::object, nb::object>(),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("sum_bags", &TorchCalls::sum_bags)
      .def("prepare_step", &TorchCalls::prepare_step)
      .def("run_step", &TorchCalls::run_step)
      .def("look_up_features", &TorchCalls::look_up_features, nb::arg("caller"), nb::arg("tables"), nb::arg("owners"),
           nb::arg("reduce"), nb::arg("paddings"), nb::arg("ids"), nb::arg("offsets").none(), nb::arg("has_end"),
           nb::arg("stacked"), nb::arg("keeps"), nb::arg("rows"))
      .def("prepare_tables", &TorchCalls::prepare_tables)
      .def("run_tables", &TorchCalls::run_tables)
      .def("row_gradients", &TorchCalls::row_gradients)
      .def("dense_gradients", &TorchCalls::dense_gradients)
      .def("prepare_lists", &TorchCalls::prepare_lists)
      .def("run_lists", &TorchCalls::run_lists)
      .def("run_op", &TorchCalls::run_op)
      .def("row_gradient", &TorchCalls::row_gradient)
      .def("unique_rows", &TorchCalls::unique_rows)
      .def("prepare_rows", &TorchCalls::prepare_rows, nb::arg("caller"), nb::arg("rule"), nb::arg("table"),
           nb::arg("slots"), nb::arg("values"), nb::arg("ids").none(), nb::arg("count").none(), nb::arg("numbers"),
           nb::arg("lazy"), nb::arg("random"), nb::arg("seed"), nb::arg("step"), nb::arg("live"))
      .def("run_rows", &TorchCalls::run_rows);
}
