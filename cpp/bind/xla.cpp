// The XLA binding: buffers and attributes of a custom call become views, a Status becomes an XLA error.
//
// One handler serves every kernel. Its attributes:
//   call     the kernel and its arguments: an array of int64, parsed by `Script`;
//   got, op  text for error messages.
#include "xla.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "../kernels/kernels.h"
#include "../third_party/xla/ffi/api/c_api.h"
#include "rowgrad/float_mode.h"
#include "rowgrad/reused_output.h"
#include "rowgrad/parallel.h"

namespace nb = nanobind;

namespace rowgrad {
namespace {

constexpr std::int64_t kLargeResult = std::int64_t{4} << 20;

struct CallError {
  std::string message;
  XLA_FFI_Error_Code code;
};

[[noreturn]] void fail(std::string message) { throw CallError{std::move(message), XLA_FFI_Error_Code_INTERNAL}; }

bool holds(XLA_FFI_DataType actual, DType dtype) {
  switch (dtype) {
    case DType::float16: return actual == XLA_FFI_DataType_F16;
    case DType::bfloat16: return actual == XLA_FFI_DataType_BF16;
    case DType::float32: return actual == XLA_FFI_DataType_F32;
    case DType::float64: return actual == XLA_FFI_DataType_F64;
    case DType::int8: return actual == XLA_FFI_DataType_S8;
    case DType::int16: return actual == XLA_FFI_DataType_S16;
    case DType::int32: return actual == XLA_FFI_DataType_S32;
    case DType::int64: return actual == XLA_FFI_DataType_S64;
    case DType::uint8: return actual == XLA_FFI_DataType_U8;
    case DType::uint16: return actual == XLA_FFI_DataType_U16;
    case DType::uint32: return actual == XLA_FFI_DataType_U32;
    case DType::uint64: return actual == XLA_FFI_DataType_U64;
    case DType::complex64: return actual == XLA_FFI_DataType_C64;
    case DType::complex128: return actual == XLA_FFI_DataType_C128;
    case DType::bool_: return actual == XLA_FFI_DataType_PRED;
    default: return false;
  }
}

// Reads the attribute `call`: the kernel's index; the number of constants, and the constants; the number of inputs, and
// for each its dtype code and either -1 for the next buffer, or its rank, dimensions and values; the dtype code of each
// output.
class Script {
 public:
  explicit Script(const XLA_FFI_Array& numbers)
      : at_(static_cast<const std::int64_t*>(numbers.data)), end_(at_ + numbers.size) {
    if (numbers.dtype != XLA_FFI_DataType_S64) fail("rowgrad: the attribute call must be an array of int64");
  }
  std::int64_t next() { return *take(1); }
  std::span<const std::int64_t> all() const { return {at_, end_}; }
  const std::int64_t* take(std::int64_t n) {
    if (n < 0 || n > end_ - at_) fail("rowgrad: the attribute call is too short");
    const std::int64_t* numbers = at_;
    at_ += n;
    return numbers;
  }

 private:
  const std::int64_t *at_, *end_;
};

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
    const std::span<const std::int64_t> shape(script.take(rank), static_cast<std::size_t>(rank));
    std::int64_t size = 1;
    for (const std::int64_t d : shape) {
      if (d < 0 || d > (std::int64_t{1} << 31)) fail("rowgrad: a host input has a dimension outside [0, 2^31]");
      size = std::min(size * d, std::int64_t{1} << 31);  // more than any script has
    }
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

const void* attribute(const XLA_FFI_CallFrame* frame, std::string_view name, XLA_FFI_AttrType type) {
  for (std::int64_t i = 0; i < frame->attrs.size; ++i) {
    const XLA_FFI_ByteSpan& found = *frame->attrs.names[i];
    if (frame->attrs.types[i] == type && std::string_view(found.ptr, found.len) == name) return frame->attrs.attrs[i];
  }
  fail("rowgrad: missing attribute " + std::string(name));
}

nb::object& fault_message() {
  static auto* const function = new nb::object();  // never destroyed: Python may have ended by then
  return *function;
}

nb::object& checker() {
  static auto* const function = new nb::object();  // as above
  return *function;
}

// Identifies a call by its script and the dtypes and shapes of its buffers, each list preceded by its length. matches()
// compares number by number, so that a known call allocates nothing.
class CallKey {
 public:
  bool matches(const XLA_FFI_CallFrame* frame, const Script& script) const {
    const std::int64_t* at = numbers_.data();
    const std::int64_t* const end = at + numbers_.size();
    return visit(frame, script, [&](const std::int64_t* numbers, std::int64_t n) {
      if (n > end - at) return false;
      for (std::int64_t i = 0; i < n; ++i)  // short pieces: std::equal would call memcmp for each
        if (*at++ != numbers[i]) return false;
      return true;
    }) && at == end;
  }

  static CallKey of(const XLA_FFI_CallFrame* frame, const Script& script) {
    CallKey key;
    visit(frame, script, [&](const std::int64_t* numbers, std::int64_t n) {
      key.numbers_.insert(key.numbers_.end(), numbers, numbers + n);
      return true;
    });
    return key;
  }

  bool operator==(const CallKey&) const = default;

  struct Hash {
    std::size_t operator()(const CallKey& key) const {
      const std::string_view bytes(reinterpret_cast<const char*>(key.numbers_.data()),
                                   key.numbers_.size() * sizeof(std::int64_t));
      return std::hash<std::string_view>()(bytes);
    }
  };

 private:
  // Calls take(numbers, n) for one piece after another until it returns false.
  template <class Take>
  static bool visit(const XLA_FFI_CallFrame* frame, const Script& script, Take&& take) {
    const auto buffers = [&](void* const* list, std::int64_t count) {
      if (!take(&count, 1)) return false;
      for (std::int64_t i = 0; i < count; ++i) {
        const auto& b = *static_cast<const XLA_FFI_Buffer*>(list[i]);
        const std::int64_t head[] = {std::int64_t(b.dtype), b.rank};
        if (!take(head, 2) || !take(b.dims, b.rank)) return false;
      }
      return true;
    };
    const std::span<const std::int64_t> numbers = script.all();
    const auto size = static_cast<std::int64_t>(numbers.size());
    return take(&size, 1) && take(numbers.data(), size) && buffers(frame->args.args, frame->args.size) &&
           buffers(frame->rets.rets, frame->rets.size);
  }

  std::vector<std::int64_t> numbers_;
};

// Validates a call against the op's record, since a program may come from anywhere: the number of buffers, their
// shapes, sizes and constants, and the dtypes that `Views` then requires. Python does it, once for equal calls.
void check_call(const XLA_FFI_CallFrame* frame, const Script& script) {
  static std::shared_mutex mutex;
  static auto* const validated = new std::unordered_set<CallKey, CallKey::Hash>();
  constexpr std::size_t kMany = 4096;
  for (std::int64_t i = 0; i < frame->args.size; ++i)
    if (frame->args.types[i] != XLA_FFI_ArgType_BUFFER) fail("rowgrad: an argument is not a buffer");
  for (std::int64_t i = 0; i < frame->rets.size; ++i)
    if (frame->rets.types[i] != XLA_FFI_RetType_BUFFER) fail("rowgrad: a result is not a buffer");
  // A thread usually repeats one call: compare with its last call without a lock.
  thread_local CallKey last_of_thread;
  CallKey& last = last_of_thread;
  if (last.matches(frame, script)) return;
  CallKey key = CallKey::of(frame, script);
  {
    const std::shared_lock lock(mutex);
    if (validated->contains(key)) {
      last = std::move(key);
      return;
    }
  }
  if (!Py_IsInitialized()) fail("rowgrad: cannot validate the call: the Python interpreter has ended");
  const auto shapes = [](void* const* buffers, std::int64_t count) {
    std::vector<std::vector<std::int64_t>> list;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto& b = *static_cast<const XLA_FFI_Buffer*>(buffers[i]);
      list.emplace_back(b.dims, b.dims + b.rank);
    }
    return list;
  };
  std::string fault;
  {
    const nb::gil_scoped_acquire gil;
    try {
      const std::span<const std::int64_t> numbers = script.all();
      fault = nb::cast<std::string>(checker()(std::vector<std::int64_t>(numbers.begin(), numbers.end()),
                                              shapes(frame->args.args, frame->args.size),
                                              shapes(frame->rets.rets, frame->rets.size)));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("rowgrad");
      fault = "rowgrad: the validation of the call failed";
    }
  }
  if (!fault.empty()) throw CallError{fault, XLA_FFI_Error_Code_INVALID_ARGUMENT};
  const std::unique_lock lock(mutex);
  if (validated->size() >= kMany) validated->clear();
  validated->insert(key);
  last = std::move(key);
}

std::string text(const XLA_FFI_CallFrame* frame, std::string_view name) {
  const auto& span = *static_cast<const XLA_FFI_ByteSpan*>(attribute(frame, name, XLA_FFI_AttrType_STRING));
  return {span.ptr, span.len};
}

[[noreturn]] void report(const XLA_FFI_CallFrame* frame, const Status& status) {
  CallError failure{"rowgrad: a kernel rejected its input", XLA_FFI_Error_Code_INVALID_ARGUMENT};
  if (status.fault == Fault::out_of_memory) failure.code = XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
  const std::string op = text(frame, "op"), got = text(frame, "got");
  if (Py_IsInitialized()) {
    const nb::gil_scoped_acquire gil;
    try {
      failure.message = nb::cast<std::string>(
          fault_message()(op.c_str(), int(status.fault), status.position, status.value, status.bound, got.c_str()));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("rowgrad");
    }
  }
  throw failure;
}

void run(const XLA_FFI_CallFrame* frame) {
  Script script(*static_cast<const XLA_FFI_Array*>(attribute(frame, "call", XLA_FFI_AttrType_ARRAY)));
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

XLA_FFI_Error* error_of(const XLA_FFI_CallFrame* frame, const std::string& message, XLA_FFI_Error_Code code) {
  XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message.c_str(), code};
  return frame->api->XLA_FFI_Error_Create(&args);
}

XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame) noexcept {
  // XLA calls this at registration, with a frame that holds only this extension.
  for (XLA_FFI_Extension_Base* e = frame->extension_start; e; e = e->next) {
    if (e->type != XLA_FFI_Extension_Metadata) continue;
    XLA_FFI_Metadata* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(e)->metadata;
    metadata->api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
    metadata->traits = 0;
    return nullptr;
  }
  try {
    try {
      run(frame);
    } catch (const OutOfMemory& e) {
      report(frame, {Fault::out_of_memory, -1, e.elements, memory_limit()});
    } catch (const std::bad_alloc&) {
      report(frame, {Fault::out_of_memory, -1, 0, memory_limit()});
    }
  } catch (const CallError& error) {
    return error_of(frame, error.message, error.code);
  } catch (const std::exception& e) {
    return error_of(frame, e.what(), XLA_FFI_Error_Code_INTERNAL);
  }
  return nullptr;
}

}  // namespace

void bind_xla(nb::module_& m) {
  m.def("xla_handler", [] { return nb::capsule(reinterpret_cast<void*>(&handle)); });
  m.def("set_xla_messages", [](nb::object function) { fault_message() = std::move(function); });
  m.def("set_xla_checker", [](nb::object function) { checker() = std::move(function); });
}

}  // namespace rowgrad
