#include "cuda.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "../cuda/bags.h"
#include "../cuda/ops.h"
#include "../cuda/row_sums.h"
#include "../cuda/row_updates.h"
#include "../cuda/weighted.h"
#include "cuda_ledger.h"
#include "without_gil.h"

namespace nb = nanobind;

namespace rowgrad {
namespace {

using namespace cuda;

// Arguments as Python passes them: (address, dtype, rows, columns) and (address, whether ids have 64 bits).
using MatrixArgument = std::tuple<Address, int, std::int64_t, std::int64_t>;
using IdsArgument = std::tuple<Address, bool>;
using ReportArgument = std::tuple<Address, Address, Address>;

Matrix matrix_of(const MatrixArgument& m) {
  return {std::get<0>(m), DType(std::get<1>(m)), std::get<2>(m), std::get<3>(m)};
}
IdList ids_of(const IdsArgument& ids) { return {std::get<0>(ids), std::get<1>(ids)}; }
Report report_of(const ReportArgument& r) { return {std::get<0>(r), std::get<1>(r), std::get<2>(r)}; }
Stream stream_of(std::uintptr_t stream) { return reinterpret_cast<Stream>(stream); }

// -- The device -------------------------------------------------------------------------------------------------------

}  // namespace

Loader cuda::python_loader(nb::object load) {
  // Shared, so that copies of the loader need no GIL; released with it.
  const std::shared_ptr<nb::object> function(new nb::object(std::move(load)), [](nb::object* held) {
    if (!nb::is_alive()) return;  // the interpreter is gone, and so is the object
    const nb::gil_scoped_acquire gil;
    delete held;
  });
  return [function](std::string_view kernel, std::string_view variant) -> Code {
    const nb::gil_scoped_acquire gil;
    const auto found = nb::cast<nb::tuple>(
        (*function)(nb::str(kernel.data(), kernel.size()), nb::str(variant.data(), variant.size())));
    const auto code = nb::cast<nb::bytes>(found[0]);
    return {std::string(code.c_str(), code.size()), nb::cast<std::string>(found[1]), nb::cast<int>(found[2])};
  };
}

Driver cuda::python_driver(nb::object functions) {
  return functions.is_none() ? Driver::installed()
                             : Driver::of(nb::cast<std::map<std::string, std::uintptr_t>>(functions));
}

namespace {

std::unique_ptr<Device> new_device(int index, int processors, nb::object load, nb::object functions) {
  return std::make_unique<Device>(python_driver(std::move(functions)), index, processors,
                                  python_loader(std::move(load)));
}

void launch(Device& device, const std::string& kernel, const std::string& variant, std::int64_t x, std::int64_t y,
            std::int64_t shared, std::uintptr_t stream, nb::bytes packed) {
  const WithoutGil unlocked;
  device.launch(stream_of(stream), device.function(kernel, variant), {x, y}, shared, packed.c_str(), packed.size());
}

// -- Families ---------------------------------------------------------------------------------------------------------

void sum_segments(Device& device, std::uintptr_t stream, const MatrixArgument& data, const IdsArgument& ids,
                  const IdsArgument& segments, std::int64_t size, std::int64_t bags, Address out, std::int64_t reduce,
                  const ReportArgument& report, Address earlier) {
  const WithoutGil unlocked;
  const SegmentBags found{ids_of(ids), ids_of(segments), size, bags};
  sum_bags(device, stream_of(stream), matrix_of(data), found, out, reduce, report_of(report), earlier);
}

nb::dict as_dict(const SortedEntries& entries) {
  nb::dict found;
#define ROWGRAD_ITEM(name) found[#name] = entries.name;
  ROWGRAD_ITEM(checks)
  ROWGRAD_ITEM(total)
  ROWGRAD_ITEM(counts)
  ROWGRAD_ITEM(zeroed)
  ROWGRAD_ITEM(workspace)
  ROWGRAD_ITEM(ids)
  ROWGRAD_ITEM(values)
  ROWGRAD_ITEM(heads)
  ROWGRAD_ITEM(firsts)
  ROWGRAD_ITEM(begins)
  ROWGRAD_ITEM(scales)
#undef ROWGRAD_ITEM
  return found;
}

// The addresses of entries by name; names that are missing are 0.
SortedEntries entries_of(const std::map<std::string, Address>& at, std::int64_t size) {
  const auto of = [&](const char* name) {
    const auto found = at.find(name);
    return found == at.end() ? Address(0) : found->second;
  };
  SortedEntries entries;
  entries.size = size;
#define ROWGRAD_TAKE(name) entries.name = of(#name);
  ROWGRAD_TAKE(checks)
  ROWGRAD_TAKE(total)
  ROWGRAD_TAKE(zeroed)
  ROWGRAD_TAKE(workspace)
  ROWGRAD_TAKE(ids)
  ROWGRAD_TAKE(values)
  ROWGRAD_TAKE(heads)
  ROWGRAD_TAKE(firsts)
  ROWGRAD_TAKE(begins)
  ROWGRAD_TAKE(scales)
  ROWGRAD_TAKE(divisors)
#undef ROWGRAD_TAKE
  return entries;
}

void sum_entries(Device& device, std::uintptr_t stream, const std::map<std::string, Address>& at, std::int64_t size,
                 const MatrixArgument& grad, Address out, int mode, int order, bool unique) {
  const WithoutGil unlocked;
  const Matrix rows = matrix_of(grad);
  const int bytes = itemsize(rows.dtype);
  // Consecutive rows of a workspace are aligned.
  const ColumnShape shape(rows.dtype, rows.columns, {{rows.data, bytes}, {out, bytes}});
  sum_sorted(device, stream_of(stream), entries_of(at, size), rows.data, rows.dtype, out, shape, mode,
             run_shift_of(Order(order)), unique);
}

// The workspace of partial sums, in bytes: (that start as zeros, others).
std::tuple<std::int64_t, std::int64_t> join_bytes(std::int64_t size, const MatrixArgument& grad, Address out, int order) {
  const Matrix rows = matrix_of(grad);
  const int bytes = itemsize(rows.dtype);
  const ColumnShape shape(rows.dtype, rows.columns, {{rows.data, bytes}, {out, bytes}});
  const Joins joins(size, shape, rows.dtype, run_shift_of(Order(order)));
  return {joins.zeroed, joins.workspace};
}

// Memory that Python allocates: `allocate(bytes)` returns an address.
Pieces python_memory(nb::object allocate) {
  return Pieces([allocate = std::move(allocate)](std::int64_t bytes) { return nb::cast<Address>(allocate(bytes)); });
}

// (address, dtype, shape, numbers); the numbers of a host input, whose address is 0.
using ArrayArgument = std::tuple<Address, int, std::vector<std::int64_t>, std::vector<std::int64_t>>;

std::vector<OpArray> arrays_of(const std::vector<ArrayArgument>& arguments) {
  std::vector<OpArray> found;
  for (const auto& [address, dtype, shape, numbers] : arguments) found.push_back({address, DType(dtype), shape, numbers});
  return found;
}

// Queues an op. Returns the fault that the host found as (code, position, value, bound), or None. The GIL is held: the
// memory is Python's.
nb::object run_op(Device& device, const std::string& kernel, std::uintptr_t stream, const ReportArgument& report,
                  const std::vector<std::int64_t>& constants, const std::vector<ArrayArgument>& in,
                  const std::vector<ArrayArgument>& out, nb::object allocate) {
  const RunOp run = find_op(kernel);
  if (!run) throw std::invalid_argument(kernel);
  const std::vector<OpArray> inputs = arrays_of(in), outputs = arrays_of(out);
  try {
    run({{device, stream_of(stream), report_of(report), python_memory(std::move(allocate))},
         constants, inputs, outputs, false});
  } catch (const Rejected& rejected) {
    const Status& s = rejected.status;
    return nb::make_tuple(int(s.fault), s.position, s.value, s.bound);
  }
  return nb::none();
}

nb::dict weigh(Device& device, std::uintptr_t stream, const std::map<std::string, Address>& at, std::int64_t size,
               const MatrixArgument& grad, const IdsArgument& segments, Address weights, int weight_dtype,
               std::int64_t reduce, nb::object allocate) {
  const Queue queue{device, stream_of(stream), {}, python_memory(std::move(allocate))};
  const WeightedIds batch{{}, ids_of(segments), {weights, DType(weight_dtype)}, size};
  SortedEntries entries = weigh_entries(queue, entries_of(at, size), matrix_of(grad), batch, reduce);
  nb::dict found = as_dict(entries);
  found["divisors"] = entries.divisors;
  return found;
}

// (rule, table, slots, numbers, lazy, random, seed, step, (address of the learning rate, whether it is a double, address
// of the count of steps))
using UpdateArgument = std::tuple<int, MatrixArgument, std::vector<Address>, std::array<double, 12>, bool, bool,
                                  std::int64_t, std::int64_t, std::tuple<Address, bool, Address>>;

RowUpdate update_of(const UpdateArgument& u) {
  RowUpdate update{Rule(std::get<0>(u)), matrix_of(std::get<1>(u))};
  const auto& slots = std::get<2>(u);
  if (slots.size() != static_cast<std::size_t>(slots_of(update.rule))) throw std::invalid_argument("slots");
  std::copy(slots.begin(), slots.end(), update.slots.begin());
  update.numbers = std::get<3>(u);
  update.lazy = std::get<4>(u);
  update.random = std::get<5>(u);
  update.seed = std::get<6>(u);
  update.step = std::get<7>(u);
  std::tie(update.on_device.lr, update.on_device.lr_wide, update.on_device.count) = std::get<8>(u);
  return update;
}

}  // namespace
}  // namespace rowgrad

int cuda_objects_alive() { return rowgrad::cuda::Ledger::alive.load(); }

void bind_cuda(nb::module_& m) {
  using namespace rowgrad;
  using namespace rowgrad::cuda;
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    const auto raise = [](const char* name, const char* text) {
      PyErr_SetString(nb::module_::import_("rowgrad.errors").attr(name).ptr(), text);
    };
    try {
      std::rethrow_exception(error);
    } catch (const DriverError& e) {
      raise("InternalError", e.what());
    } catch (const TooLarge& e) {
      raise("ResourceExhaustedError", e.what());
    }
  });
  nb::class_<Ledger>(m, "CudaLedger")
      .def(nb::init<Address, int, Address>(), nb::arg("memory"), nb::arg("slots"), nb::arg("checks"))
      .def_prop_ro("alarm", &Ledger::alarm)
      .def_prop_ro("is_raised", &Ledger::is_raised)
      .def_prop_ro("captured", &Ledger::captured)
      .def("take", &Ledger::take)
      .def("checks_of", &Ledger::checks_of)
      .def("reported", [](Ledger& ledger) {
        nb::list found;
        for (const Ledger::Reported& r : ledger.reported())
          found.append(nb::make_tuple(r.slot, r.caller, r.code, r.position, r.value, r.bound));
        return found;
      });
  nb::class_<Device>(m, "CudaDevice")
      .def_prop_ro("processors", [](const Device& d) { return d.processors; })
      .def("launch", &launch)
      .def("zero", [](Device& d, std::uintptr_t stream, Address memory, std::int64_t bytes) {
        const WithoutGil unlocked;
        d.zero(stream_of(stream), memory, bytes);
      })
      .def("zero_on_side_stream", [](Device& d, std::uintptr_t stream, Address memory, std::int64_t bytes) {
        const WithoutGil unlocked;
        d.zero_on_side_stream(stream_of(stream), memory, bytes);
      })
      .def("join", [](Device& d, std::uintptr_t stream) {
        const WithoutGil unlocked;
        d.join(stream_of(stream));
      })
      .def("sum_segments", &sum_segments)
      .def("sum_entries", &sum_entries)
      .def("run_op", &run_op)
      .def("weigh", &weigh);
  m.def("cuda_ops", [] {
    std::vector<std::string> names;
    for (const std::string_view name : op_names()) names.emplace_back(name);
    return names;
  });
  m.def("cuda_device", &new_device, nb::arg("index"), nb::arg("processors"), nb::arg("load"),
        nb::arg("functions").none());
  bind_cuda_torch(m);
  bind_xla_cuda(m);
  m.def("cuda_join_bytes", &join_bytes);
  m.def("cuda_padded", &padded);
  m.def("cuda_check_limits", &check_limits);
  // A sort by row: its workspace in bytes, and its launches in memory of that size.
  nb::class_<IdSort>(m, "CudaIdSort")
      .def("__init__", [](IdSort* self, const Device& device, std::int64_t size, std::int64_t rows, std::int64_t sources,
                          bool counted, int scale_bytes, std::int64_t zeroed, std::int64_t workspace) {
        new (self) IdSort(device, size, rows, sources, {counted, scale_bytes, zeroed, workspace});
      })
      .def_prop_ro("bytes", &IdSort::bytes)
      .def_prop_ro("passes", &IdSort::passes)
      .def_prop_ro("bits", &IdSort::bits)
      .def("entries", [](const IdSort& sort, Address memory) { return as_dict(sort.entries(memory)); })
      .def("run", [](const IdSort& sort, Device& device, std::uintptr_t stream, Address memory, const IdsArgument& ids,
                     const IdsArgument& segments, bool by_segment, std::int64_t order, int id_fault, int segment_fault,
                     std::int64_t reduce, const ReportArgument& report, const IdsArgument& rows, Address starts) {
        const WithoutGil unlocked;
        sort.run(device, stream_of(stream), memory,
                 {.ids = ids_of(ids),
                  .segments = ids_of(segments),
                  .by_segment = by_segment,
                  .faults = {order, Fault(id_fault), Fault(segment_fault)},
                  .reduce = reduce,
                  .rows_out = ids_of(rows),
                  .starts_out = starts},
                 report_of(report));
      });
  // A gradient: its workspace in bytes, and its launches.
  nb::class_<Gradient>(m, "CudaGradient")
      .def("__init__", [](Gradient* self, const Device& device, const MatrixArgument& grad, Address out,
                          std::int64_t size, std::int64_t num_rows, std::int64_t reduce, int order, bool unique) {
        new (self) Gradient(device, matrix_of(grad), out, size, num_rows, reduce, Order(order), unique);
      })
      .def_prop_ro("bytes", &Gradient::bytes)
      .def("run", [](const Gradient& gradient, Device& device, std::uintptr_t stream, Address memory,
                     const IdsArgument& ids, const IdsArgument& segments, const IdsArgument& rows,
                     const ReportArgument& report) {
        const WithoutGil unlocked;
        return gradient.run(device, stream_of(stream), memory, ids_of(ids), ids_of(segments), ids_of(rows),
                            report_of(report)).total;
      });
  // Steps of tables: the workspace in bytes, and the launches.
  nb::class_<UpdateFromRows>(m, "CudaUpdateFromRows")
      .def("__init__", [](UpdateFromRows* self, const UpdateArgument& update) {
        new (self) UpdateFromRows(update_of(update));
      })
      .def_prop_ro("bytes", &UpdateFromRows::bytes)
      .def("run", [](const UpdateFromRows& update, Device& device, std::uintptr_t stream, Address memory, Address grad,
                     const IdsArgument& ids, std::int64_t size, Address count, const ReportArgument& report) {
        const WithoutGil unlocked;
        update.run(device, stream_of(stream), memory, grad, ids_of(ids), size, count, report_of(report));
      });
  nb::class_<UpdateFromEntries>(m, "CudaUpdateFromEntries")
      .def("__init__", [](UpdateFromEntries* self, const UpdateArgument& update, const MatrixArgument& grad,
                          std::int64_t entries, std::int64_t listed, int mode, int order) {
        new (self) UpdateFromEntries(update_of(update), matrix_of(grad), entries, listed, mode, Order(order));
      })
      .def_prop_ro("bytes", &UpdateFromEntries::bytes)
      .def("run", [](const UpdateFromEntries& update, Device& device, std::uintptr_t stream, Address memory,
                     const std::map<std::string, Address>& at, std::int64_t size, const IdsArgument& rows,
                     Address starts, Address count, const ReportArgument& report) {
        const WithoutGil unlocked;
        update.run(device, stream_of(stream), memory, entries_of(at, size), ids_of(rows), starts, count,
                   report_of(report));
      });
  nb::class_<UpdateFromBags>(m, "CudaUpdateFromBags")
      .def("__init__", [](UpdateFromBags* self, const Device& device, const UpdateArgument& update,
                          const MatrixArgument& grad, std::int64_t size, bool wide_ids, std::int64_t reduce, int order) {
        new (self) UpdateFromBags(device, update_of(update), matrix_of(grad), size, wide_ids, reduce, Order(order));
      })
      .def_prop_ro("bytes", &UpdateFromBags::bytes)
      .def("run", [](const UpdateFromBags& update, Device& device, std::uintptr_t stream, Address memory,
                     const IdsArgument& ids, const IdsArgument& segments, const ReportArgument& report) {
        const WithoutGil unlocked;
        update.run(device, stream_of(stream), memory, ids_of(ids), ids_of(segments), report_of(report));
      });
  nb::class_<UpdateOfAll>(m, "CudaUpdateOfAll")
      .def("__init__", [](UpdateOfAll* self, const UpdateArgument& update) { new (self) UpdateOfAll(update_of(update)); })
      .def_prop_ro("bytes", &UpdateOfAll::bytes)
      .def("run", [](const UpdateOfAll& update, Device& device, std::uintptr_t stream, Address memory, Address grad,
                     const ReportArgument& report) {
        const WithoutGil unlocked;
        update.run(device, stream_of(stream), memory, grad, report_of(report));
      });
}
