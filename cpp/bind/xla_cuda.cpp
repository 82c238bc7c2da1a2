// XLA's custom calls on CUDA devices: buffers become arguments of the launcher's ops (cpp/cuda/ops.h).
//
// One handler serves every kernel of the catalogue, another one optimizer steps. They queue work on XLA's stream, with scratch
// memory of XLA's allocator, and never wait for it. A bad id marks the results; the next call on the device, or `synchronize` of Python, raises the error.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "../cuda/ops.h"
#include "../cuda/row_updates.h"
#include "../kernels/kernels.h"
#include "cuda.h"
#include "cuda_ledger.h"
#include "xla_call.h"
#include "xla_steps.h"

namespace nb = nanobind;

namespace rowgrad::xla {
namespace {

using namespace cuda;

// What the error of a fault names.
struct CallName {
  std::string op, got;
};
using CallLedger = LedgerOf<CallName>;

// A device that has run a call.
struct DeviceState {
  Device device;
  CallLedger ledger;
};

// The devices of this process, by context.
class Devices {
 public:
  static Devices& all() {
    static auto* const devices = new Devices();  // never destroyed: XLA's threads may outlive Python
    return *devices;
  }

  // `load(architecture, kernel, variant)` compiles kernels. Without a driver, the first call opens the installed one.
  void open(const Driver* driver, nb::object load) {
    const std::unique_lock lock(mutex_);
    driver_ = driver;
    load_ = std::move(load);
    states_.clear();
  }

  // Returns the device of a stream.
  DeviceState& of(Stream stream) {
    if (!load_.is_valid()) fail("rowgrad: import rowgrad.jax before running a program that calls its kernels");
    const Driver& driver = driver_ ? *driver_ : Driver::installed();
    void* context = nullptr;
    driver.check(driver.cuStreamGetCtx(stream, &context));
    if (DeviceState* const known = find(context)) return *known;
    const std::unique_lock lock(opening_);
    if (DeviceState* const known = find(context)) return *known;  // another thread made it
    std::unique_ptr<DeviceState> made = make(driver, context, stream);
    const std::unique_lock writing(mutex_);  // only now: `make` waits for the GIL, whose holder may call `states`
    return *states_.emplace(context, std::move(made)).first->second;
  }

  std::vector<DeviceState*> states() const {
    const std::shared_lock lock(mutex_);
    std::vector<DeviceState*> found;
    for (const auto& [_, state] : states_) found.push_back(state.get());
    return found;
  }

 private:
  DeviceState* find(void* context) const {
    const std::shared_lock lock(mutex_);
    const auto found = states_.find(context);
    return found == states_.end() ? nullptr : found->second.get();
  }

  std::unique_ptr<DeviceState> make(const Driver& driver, void* context, Stream stream) const {
    constexpr int kSlots = 1 << 14;  // more than a stream queues: when a slot is reused, its call has finished
    constexpr int kProcessors = 16, kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_…
    constexpr unsigned kPortable = 1, kMapped = 2;             // CU_MEMHOSTALLOC_…
    driver.check(driver.cuCtxSetCurrent(context));
    int handle = 0, count = 0, index = 0, processors = 0, major = 0, minor = 0;
    driver.check(driver.cuCtxGetDevice(&handle));
    driver.check(driver.cuDeviceGetCount(&count));
    for (int other = -1; index < count; ++index) {
      driver.check(driver.cuDeviceGet(&other, index));
      if (other == handle) break;
    }
    driver.check(driver.cuDeviceGetAttribute(&processors, kProcessors, handle));
    driver.check(driver.cuDeviceGetAttribute(&major, kMajor, handle));
    driver.check(driver.cuDeviceGetAttribute(&minor, kMinor, handle));
    void* reports = nullptr;
    constexpr std::size_t kReportBytes = (kSlots + 1) * 32, kCheckBytes = (kSlots + 1) * 8;
    driver.check(driver.cuMemHostAlloc(&reports, kReportBytes, kPortable | kMapped));
    std::fill_n(static_cast<char*>(reports), kReportBytes, char(0));
    Address checks = 0;
    driver.check(driver.cuMemAlloc_v2(&checks, kCheckBytes));
    driver.check(driver.cuMemsetD8Async(checks, 0, kCheckBytes, stream));
    driver.check(driver.cuStreamSynchronize(stream));  // once: calls on other streams use the zeros too
    const nb::gil_scoped_acquire gil;
    const nb::object load = nb::module_::import_("functools").attr("partial")(
        load_, "sm_" + std::to_string(major) + std::to_string(minor));
    return std::unique_ptr<DeviceState>(new DeviceState{
        {driver, index, processors, python_loader(load)},
        {reinterpret_cast<Address>(reports), kSlots, checks},
    });
  }

  mutable std::shared_mutex mutex_;
  std::mutex opening_;
  const Driver* driver_ = nullptr;
  nb::object load_;
  std::unordered_map<void*, std::unique_ptr<DeviceState>> states_;
};

// Throws the error that an interface of XLA returned.
void check(const XLA_FFI_CallFrame* frame, XLA_FFI_Error* error, const char* action, XLA_FFI_Error_Code code) {
  if (!error) return;
  XLA_FFI_Error_GetMessage_Args got{XLA_FFI_Error_GetMessage_Args_STRUCT_SIZE, nullptr, error, nullptr};
  frame->api->XLA_FFI_Error_GetMessage(&got);
  CallError failure{std::string("rowgrad: ") + action + ": " + (got.message ? got.message : "unknown error"),
                    code};
  XLA_FFI_Error_Destroy_Args destroy{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  frame->api->XLA_FFI_Error_Destroy(&destroy);
  throw failure;
}

Stream stream_of(const XLA_FFI_CallFrame* frame) {
  XLA_FFI_Stream_Get_Args args{XLA_FFI_Stream_Get_Args_STRUCT_SIZE, nullptr, frame->ctx, nullptr};
  check(frame, frame->api->XLA_FFI_Stream_Get(&args), "XLA has no stream for this call",
        XLA_FFI_Error_Code_INTERNAL);
  return args.stream;
}

// Scratch memory of one call. XLA reuses it in the order of its stream, so it can be freed once the work is queued.
class ScratchMemory {
 public:
  explicit ScratchMemory(const XLA_FFI_CallFrame* frame) : frame_(frame) {}
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;
  ~ScratchMemory() {
    for (const auto& [data, size] : blocks_) {
      XLA_FFI_DeviceMemory_Free_Args args{XLA_FFI_DeviceMemory_Free_Args_STRUCT_SIZE, nullptr, frame_->ctx, size, data};
      XLA_FFI_Error* const error = frame_->api->XLA_FFI_DeviceMemory_Free(&args);
      if (!error) continue;
      XLA_FFI_Error_Destroy_Args destroy{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
      frame_->api->XLA_FFI_Error_Destroy(&destroy);
    }
  }

  Address allocate(std::int64_t bytes) {
    constexpr std::size_t kAlignment = 16;  // XLA rejects larger numbers; its blocks are aligned to 256 and more
    const auto size = static_cast<std::size_t>(bytes);
    XLA_FFI_DeviceMemory_Allocate_Args args{
        XLA_FFI_DeviceMemory_Allocate_Args_STRUCT_SIZE, nullptr, frame_->ctx, size, kAlignment, nullptr};
    check(frame_, frame_->api->XLA_FFI_DeviceMemory_Allocate(&args), "scratch memory is not available",
          XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
    blocks_.emplace_back(args.data, size);
    return reinterpret_cast<Address>(args.data);
  }

 private:
  const XLA_FFI_CallFrame* const frame_;
  std::vector<std::pair<void*, std::size_t>> blocks_;
};

// Calls `put(queue)`, which queues the work of a call, unless an earlier call on the device has reported a fault: then
// the program ends with its error.
template <class Put>
void queue_on_device(const XLA_FFI_CallFrame* frame, const Put& put) {
  const Stream stream = stream_of(frame);
  DeviceState& state = Devices::all().of(stream);
  if (state.ledger.is_raised())
    if (const auto faults = state.ledger.reported(); !faults.empty()) {
      const CallLedger::Reported& oldest = faults.front();
      const Status status{Fault(oldest.code), oldest.position, oldest.value, oldest.bound};
      report(oldest.caller.op, oldest.caller.got, status, true);
    }
  const Address slot = state.ledger.take({text(frame, "op"), text(frame, "got")}, false);
  ScratchMemory scratch(frame);
  try {
    put(Queue{state.device, stream, state.ledger.report_of_slot(slot),
              Pieces([&](std::int64_t bytes) { return scratch.allocate(bytes); })});
  } catch (const Rejected& rejected) {
    report(frame, rejected.status);
  } catch (const TooLarge& error) {
    throw CallError{error.what(), XLA_FFI_Error_Code_RESOURCE_EXHAUSTED};
  }
}

// Without jax_enable_x64, JAX has int32 where an op has int64; kernels read and write both.
OpArray array_of(const XLA_FFI_Buffer& b, DType dtype) {
  const std::span<const std::int64_t> shape(b.dims, static_cast<std::size_t>(b.rank));
  if (!holds(b.dtype, dtype)) {
    if (dtype != DType::int64 || b.dtype != XLA_FFI_DataType_S32) fail("rowgrad: a buffer has the wrong dtype");
    dtype = DType::int32;
  }
  return {reinterpret_cast<Address>(b.data), dtype, shape, {}};
}

void run(const XLA_FFI_CallFrame* frame) {
  Script script(frame);
  check_call(frame, script);
  const KernelEntry& entry = kernels().at(static_cast<std::size_t>(script.next()));
  const RunOp run_op = find_op(entry.name);
  if (!run_op) fail(std::string("rowgrad: the kernel ") + entry.name + " has no CUDA call for XLA");
  const std::int64_t count = script.next();
  const std::span<const std::int64_t> constants(script.take(count), static_cast<std::size_t>(count));
  if (const std::string error = entry.parameter_error(constants); !error.empty()) fail("rowgrad: " + error);
  std::vector<OpArray> in(static_cast<std::size_t>(script.next())), out(static_cast<std::size_t>(frame->rets.size));
  std::int64_t buffer = 0;
  for (OpArray& array : in) {
    const auto dtype = static_cast<DType>(script.next());
    const std::int64_t rank = script.next();
    if (rank < 0) {
      if (buffer >= frame->args.size) fail("rowgrad: too few buffers");
      array = array_of(*static_cast<const XLA_FFI_Buffer*>(frame->args.args[buffer++]), dtype);
      continue;
    }
    std::int64_t size = 0;
    const std::span<const std::int64_t> shape = script.take_shape(rank, size);
    array = {0, dtype, shape, {script.take(size), static_cast<std::size_t>(size)}};
  }
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = array_of(*static_cast<const XLA_FFI_Buffer*>(frame->rets.rets[i]), static_cast<DType>(script.next()));

  queue_on_device(frame, [&](const Queue& queue) { run_op({queue, constants, in, out, true}); });
}

XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame) noexcept { return answer(frame, run); }

IdList list_of(const Array& ids) { return {reinterpret_cast<Address>(ids.data), ids.dtype == DType::int64}; }

Matrix matrix_of(const Array& a) { return {reinterpret_cast<Address>(a.data), a.dtype, a.rows(), a.row_size()}; }

RowUpdate update_of(const StepCall& call, const TableStep& own) {
  RowUpdate update;
  update.rule = call.rule();
  update.table = matrix_of(own.table());
  for (std::size_t i = 1; i < own.state.size(); ++i) update.slots[i - 1] = reinterpret_cast<Address>(own.state[i].data);
  update.numbers = call.numbers;
  update.lazy = true;
  update.random = call.is_random();
  update.seed = own.seed;
  if (call.lr.data) {
    update.on_device.lr = reinterpret_cast<Address>(call.lr.data);
    update.on_device.lr_wide = call.lr.dtype == DType::float64;
  }
  if (update.on_device.lr || update.random || fades(update.rule))
    update.on_device.number = reinterpret_cast<Address>(call.step.data);
  return update;
}

void queue_bags(const Queue& queue, const StepCall& call) {
  std::vector<UpdateFromSegments> tables;
  for (const TableStep& own : call.tables)
    tables.push_back({update_of(call, own), matrix_of(own.grad), list_of(own.ids), list_of(own.segments), own.ids.rows()});
  if (tables.size() > 1) return update_from_segments(queue, tables, call.reduction(), Order(call.order()));
  const UpdateFromSegments& own = tables[0];
  if (own.size == 0 || own.update.table.rows == 0) return;  // as for a gradient: nothing is validated
  const UpdateFromBags step(queue.device, own.update, own.grad, own.size, own.ids.wide, call.reduction(),
                            Order(call.order()));
  step.run(queue.device, queue.stream, queue.allocate(step.bytes()), own.ids, own.segments, queue.report);
}

void queue_rows(const Queue& queue, const StepCall& call) {
  std::vector<UpdateFromList> lists;
  for (const TableStep& own : call.tables) {
    const IdList ids = list_of(own.ids);
    lists.push_back({update_of(call, own), matrix_of(own.grad).data, ids.data, 0, own.ids.rows(), ids.wide, true});
  }
  if (lists.size() > 1) {
    const UpdateLists step(std::move(lists));
    return step.run(queue.device, queue.stream, queue.allocate(step.bytes()), queue.report);
  }
  const UpdateFromList& own = lists[0];
  const UpdateFromRows step(own.update, true);
  step.run(queue.device, queue.stream, queue.allocate(step.bytes()), own.grad, {own.ids, own.wide}, own.size, 0,
           queue.report);
}

// A step of tables. If the ids of one are bad, none is updated.
void run_step(const XLA_FFI_CallFrame* frame) {
  const StepCall call(frame);
  queue_on_device(frame, [&](const Queue& queue) { call.is_from_bags() ? queue_bags(queue, call) : queue_rows(queue, call); });
}

XLA_FFI_Error* handle_step(XLA_FFI_CallFrame* frame) noexcept { return answer(frame, run_step); }

}  // namespace
}  // namespace rowgrad::xla

void bind_xla_cuda(nb::module_& m) {
  using namespace rowgrad;
  using namespace rowgrad::xla;
  m.def("xla_cuda_handler", [] { return nb::capsule(reinterpret_cast<void*>(&handle)); });
  m.def("xla_cuda_step_handler", [] { return nb::capsule(reinterpret_cast<void*>(&handle_step)); });
  m.def("xla_cuda_open", [](nb::object load, nb::object functions) {
    const bool is_own = !functions.is_none();  // of tests; never destroyed: a thread may be using it
    Devices::all().open(is_own ? new cuda::Driver(cuda::python_driver(std::move(functions))) : nullptr, std::move(load));
  }, nb::arg("load"), nb::arg("functions").none());
  m.def("xla_cuda_synchronize", [] {
    const nb::gil_scoped_release unlocked;
    for (DeviceState* const state : Devices::all().states()) state->device.synchronize();
  });
  m.def("xla_cuda_reported", [] {
    nb::list found;
    for (DeviceState* const state : Devices::all().states())
      for (const CallLedger::Reported& r : state->ledger.reported())
        found.append(nb::make_tuple(r.caller.op, r.caller.got, r.code, r.position, r.value, r.bound));
    return found;
  });
}
