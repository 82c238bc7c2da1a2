// Calls with torch tensors: one crossing from Python reads them, allocates the results and queues all launches.
//
// A function returns None, and has done nothing, where the ops have to do the job: for tensors that are not plain,
// contiguous and on this device, for invalid arguments, for which the ops raise, and while a fault is reported.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "../cuda/bags.h"
#include "../cuda/row_updates.h"
#include "cuda.h"
#include "cuda_ledger.h"
#include "torch_tensors.h"
#include "without_gil.h"

namespace nb = nanobind;

namespace rowgrad::cuda {
namespace {

constexpr std::int64_t kMaxBags = 0x7fffffff;

// How bags are described: by the bag of each id, or by where each begins.
enum class Bounds { segments, offsets, offsets_with_end };

bool is_list(const TensorView& view) {
  return view.ndim == 1 && (view.dtype == DType::int32 || view.dtype == DType::int64) && view.is_contiguous();
}

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

// One validated step of a table. The caller keeps the tensors alive and unchanged until `run`.
struct PreparedStep {
  RowUpdate update;
  Matrix grad;
  IdList ids, segments;
  std::int64_t size, reduce;
  Order order;
  nb::object caller;
};

class TorchCalls {
 public:
  // `kind` and `index`: where tensors are, as in DLPack. `empty` is torch.empty, `place` its device.
  TorchCalls(Device& device, Ledger& ledger, int kind, int index, nb::object empty, nb::object place, nb::object int32,
             nb::object uint8)
      : device_(device),
        ledger_(ledger),
        place_{kind, index},
        empty_(std::move(empty)),
        torch_device_(std::move(place)),
        int32_(std::move(int32)),
        uint8_(std::move(uint8)),
        dtype_name_(nb::steal(PyUnicode_InternFromString("dtype"))),
        device_name_(nb::steal(PyUnicode_InternFromString("device"))) {}

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

  // Validates a step fused with the gradient of bags. `numbers` is the address of the step's numbers.
  nb::object prepare_step(nb::object caller, int rule, nb::handle table, const std::vector<nb::object>& slots,
                          nb::handle grad, nb::handle ids, nb::handle segments, std::uintptr_t numbers, bool lazy,
                          bool random, std::int64_t seed, std::int64_t step, std::int64_t reduce, int order) {
    Stream stream;
    if (!begin(stream)) return nb::none();
    const auto table_view = read(table), grad_view = read(grad), id_view = read(ids), segment_view = read(segments);
    const auto rows = rows_of(table_view), y = rows_of(grad_view);
    if (!rows || !y || !id_view || !segment_view || !is_list(*id_view) || !is_list(*segment_view)) return nb::none();
    PreparedStep found{{Rule(rule), *rows}, *y, list_of(*id_view), list_of(*segment_view), id_view->size(), reduce,
                       Order(order), std::move(caller)};
    if (y->dtype != rows->dtype || y->columns != rows->columns || segment_view->size() != found.size ||
        found.size == 0 || rows->rows == 0 || slots.size() != static_cast<std::size_t>(slots_of(Rule(rule))))
      return nb::none();
    for (int d = 1; d < table_view->ndim; ++d)
      if (grad_view->ndim != table_view->ndim || grad_view->shape[d] != table_view->shape[d]) return nb::none();
    std::vector<Range> written{range_of(*table_view)};
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto slot = read(slots[i]);
      const std::int64_t elements = is_per_row(Rule(rule)) ? rows->rows : rows->rows * rows->columns;
      if (!slot || slot->dtype != accumulator_of(rows->dtype) || !slot->is_contiguous() || slot->size() != elements)
        return nb::none();
      found.update.slots[i] = reinterpret_cast<Address>(slot->data);
      written.push_back(range_of(*slot));
    }
    for (std::size_t i = 0; i < written.size(); ++i) {
      for (const auto& input : {range_of(*grad_view), range_of(*id_view), range_of(*segment_view)})
        if (written[i].overlaps(input)) return nb::none();
      for (std::size_t j = 0; j < i; ++j)
        if (written[i].overlaps(written[j])) return nb::none();
    }
    const double* const first = reinterpret_cast<const double*>(numbers);
    std::copy(first, first + found.update.numbers.size(), found.update.numbers.begin());
    found.update.lazy = lazy;
    found.update.random = random;
    found.update.seed = seed;
    found.update.step = step;
    return nb::cast(std::move(found));
  }

  // Queues a prepared step; returns whether that was possible.
  bool run_step(PreparedStep& step) {
    Stream stream;
    if (!begin(stream)) return false;
    const UpdateFromBags update(device_, step.update, step.grad, step.size, step.ids.wide, step.reduce, step.order);
    Address memory = 0;
    const nb::object workspace = empty({update.bytes()}, uint8_, memory);
    Report report;
    if (!workspace.is_valid() || !take(step.caller, stream, report)) return false;
    const WithoutGil unlocked;
    update.run(device_, stream, memory, step.ids, step.segments, report);
    return true;
  }

 private:
  // Finds the stream; false if this device is not current or a fault is reported.
  bool begin(Stream& stream) {
    if (ledger_.is_raised() || !device_.is_current()) return false;
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
  const nb::object empty_, torch_device_, int32_, uint8_, dtype_name_, device_name_;
};

}  // namespace
}  // namespace rowgrad::cuda

void bind_cuda_torch(nb::module_& m) {
  using namespace rowgrad::cuda;
  nb::class_<PreparedStep>(m, "CudaPreparedStep");
  nb::class_<TorchCalls>(m, "CudaTorchCalls")
      .def(nb::init<Device&, Ledger&, int, int, nb::object, nb::object, nb::object, nb::object>(),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("sum_bags", &TorchCalls::sum_bags)
      .def("prepare_step", &TorchCalls::prepare_step)
      .def("run_step", &TorchCalls::run_step);
}
