// The XLA binding: buffers and attributes of a custom call become views, a Status becomes an XLA error.
//
// One handler serves every kernel of the catalogue on CPUs.
#include "xla.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "../kernels/kernels.h"
#include "rowgrad/float_mode.h"
#include "rowgrad/reused_output.h"
#include "rowgrad/parallel.h"
#include "xla_call.h"
#include "xla_steps.h"

namespace nb = nanobind;

namespace rowgrad {
namespace {

using namespace xla;

constexpr std::int64_t kLargeResult = std::int64_t{4} << 20;

// Kernel views of a call's arguments and results. Unless jax_enable_x64 is set, JAX has int32 where an op has int64:
// inputs are widened before the call and results narrowed after it.
class Views {
 public:
  // Fills `view` in place: a returned Array would be stored in 8-byte parts and loaded whole, which stalls the CPU.
  void make(Array& view, const XLA_FFI_Buffer& b, DType dtype, bool is_input) {
    const std::span<const std::int64_t> shape(b.dims, static_cast<std::size_t>(b.rank));
    if (holds(b.dtype, dtype)) {
      view = {b.data, dtype, shape};
      return;
    }
    if (dtype != DType::int64 || b.dtype != XLA_FFI_DataType_S32) fail("rowgrad: a buffer has the wrong dtype");
    const Array narrow{b.data, DType::int32, shape};
    Scratch<std::int64_t>& wide = wide_.emplace_back(narrow.size());
    if (is_input) {
      const auto* from = narrow.as<std::int32_t>();
      parallel_ranges(narrow.size(), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
        std::copy(from + begin, from + end, wide.data() + begin);
      });
    } else {
      narrowed_.push_back({narrow, wide.data()});
    }
    view = {wide.data(), DType::int64, shape};
  }

  // Returns a host input. Its shape and int64 values are views of the script; int32 values are copied.
  Array host(Script& script, DType dtype, std::int64_t rank) {
    std::int64_t size = 0;
    const std::span<const std::int64_t> shape = script.take_shape(rank, size);
    const std::int64_t* values = script.take(size);
    if (dtype == DType::int64) return {const_cast<std::int64_t*>(values), dtype, shape};
    if (dtype != DType::int32) fail("rowgrad: a host input must be int32 or int64");
    std::int32_t* narrow = inline_.data() + used_;
    if (size <= std::int64_t(inline_.size()) - used_)
      used_ += size;
    else
      narrow = narrow_.emplace_back(size).data();
    std::copy(values, values + size, narrow);
    return {narrow, dtype, shape};
  }

  void finish() const {
    for (const auto& [to, from] : narrowed_) std::copy(from, from + to.size(), to.as<std::int32_t>());
  }

 private:
  struct Narrowed {
    Array to;
    const std::int64_t* from;
  };
  std::array<std::int32_t, 16> inline_;  // host values are usually one number
  std::int64_t used_ = 0;
  std::vector<Scratch<std::int64_t>> wide_;
  std::vector<Scratch<std::int32_t>> narrow_;
  std::vector<Narrowed> narrowed_;
};

// Views of a call's arrays; stored inline for typical numbers of arrays, to avoid an allocation.
class ArrayList {
 public:
  explicit ArrayList(std::int64_t size) {
    if (size < 0 || size > kMost) fail("rowgrad: a call has at most 65536 arrays, got " + std::to_string(size));
    arrays_ = std::span(inline_).first(static_cast<std::size_t>(std::min(size, kFew)));
    if (size <= kFew) return;
    many_.resize(static_cast<std::size_t>(size));
    arrays_ = many_;
  }
  ArrayList(const ArrayList&) = delete;
  ArrayList& operator=(const ArrayList&) = delete;
  operator std::span<Array>() const { return arrays_; }

 private:
  static constexpr std::int64_t kFew = 12, kMost = 1 << 16;
  std::array<Array, kFew> inline_;
  std::vector<Array> many_;
  std::span<Array> arrays_;
};

void run(const XLA_FFI_CallFrame* frame) {
  Script script(frame);
  check_call(frame, script);
  const KernelEntry& entry = kernels().at(static_cast<std::size_t>(script.next()));
  const auto kernel = entry.make();
  const std::int64_t constants = script.next();
  kernel->attr = {script.take(constants), static_cast<std::size_t>(constants)};
  if (const std::string error = entry.parameter_error(kernel->attr); !error.empty()) fail("rowgrad: " + error);
  Views views;
  const ArrayList inputs(script.next()), outputs(frame->rets.size);
  const std::span<Array> in = inputs, out = outputs;
  std::int64_t buffer = 0;
  for (Array& array : in) {
    const auto dtype = static_cast<DType>(script.next());
    const std::int64_t rank = script.next();
    if (rank >= 0) {
      array = views.host(script, dtype, rank);
    } else {
      if (buffer >= frame->args.size) fail("rowgrad: too few buffers");
      views.make(array, *static_cast<const XLA_FFI_Buffer*>(frame->args.args[buffer++]), dtype, true);
    }
  }
  for (std::int64_t i = 0; i < frame->rets.size; ++i) {
    const auto& buffer_out = *static_cast<const XLA_FFI_Buffer*>(frame->rets.rets[i]);
    Array& array = out[static_cast<std::size_t>(i)];
    views.make(array, buffer_out, static_cast<DType>(script.next()), false);
    // XLA allocates a large result from the system in every call, where small pages cost more than the kernel's writes.
    if (array.bytes() >= kLargeResult) prefer_large_pages(array.data, array.bytes());
  }
  kernel->in = in;
  kernel->fresh_zeros = false;  // XLA's memory is uninitialized
  const FlushSubnormals flush;
  if (const Status s = kernel->measure()) report(frame, s);
  if (const Status s = kernel->check()) report(frame, s);
  kernel->holds_zeros = !kernel->fills();
  if (kernel->holds_zeros)
    for (const Array& array : out) clear(array);
  kernel->compute(out);
  views.finish();
}

XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame) noexcept { return answer(frame, run); }

}  // namespace

void bind_xla(nb::module_& m) {
  m.def("xla_handler", [] { return nb::capsule(reinterpret_cast<void*>(&handle)); });
  m.def("xla_step_handler", [] { return nb::capsule(step_handler()); });
  m.def("set_xla_messages", [](nb::object function) { set_fault_message(std::move(function)); });
  m.def("set_xla_checker", [](nb::object function) { set_checker(std::move(function)); });
}

}  // namespace rowgrad
