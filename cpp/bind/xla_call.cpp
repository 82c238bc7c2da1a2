#include "xla_call.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <unordered_set>
#include <vector>

namespace nb = nanobind;

namespace rowgrad::xla {
namespace {

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

}  // namespace

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

Script::Script(const XLA_FFI_CallFrame* frame) {
  const auto& numbers = *static_cast<const XLA_FFI_Array*>(attribute(frame, "call", XLA_FFI_AttrType_ARRAY));
  if (numbers.dtype != XLA_FFI_DataType_S64) fail("rowgrad: the attribute call must be an array of int64");
  at_ = static_cast<const std::int64_t*>(numbers.data);
  end_ = at_ + numbers.size;
}

std::span<const std::int64_t> Script::take_shape(std::int64_t rank, std::int64_t& size) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;  // more than any script has
  const std::span<const std::int64_t> shape(take(rank), static_cast<std::size_t>(rank));
  size = 1;
  for (const std::int64_t d : shape) {
    if (d < 0 || d > kMost) fail("rowgrad: a host input has a dimension outside [0, 2^31]");
    size = std::min(size * d, kMost);
  }
  return shape;
}

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

void report(const std::string& op, const std::string& got, const Status& status, bool is_earlier) {
  CallError failure{"rowgrad: a kernel rejected its input", XLA_FFI_Error_Code_INVALID_ARGUMENT};
  if (status.fault == Fault::out_of_memory) failure.code = XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
  if (Py_IsInitialized()) {
    const nb::gil_scoped_acquire gil;
    try {
      failure.message = nb::cast<std::string>(fault_message()(op.c_str(), int(status.fault), status.position,
                                                              status.value, status.bound, got.c_str(), is_earlier));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("rowgrad");
    }
  }
  throw failure;
}

void report(const XLA_FFI_CallFrame* frame, const Status& status) {
  report(text(frame, "op"), text(frame, "got"), status);
}

XLA_FFI_Error* error_of(const XLA_FFI_CallFrame* frame, const std::string& message, XLA_FFI_Error_Code code) {
  XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message.c_str(), code};
  return frame->api->XLA_FFI_Error_Create(&args);
}

bool answers_metadata(const XLA_FFI_CallFrame* frame) {
  for (XLA_FFI_Extension_Base* e = frame->extension_start; e; e = e->next) {
    if (e->type != XLA_FFI_Extension_Metadata) continue;
    XLA_FFI_Metadata* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(e)->metadata;
    metadata->api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
    metadata->traits = 0;  // not compatible with command buffers
    return true;
  }
  return false;
}

void set_fault_message(nb::object function) { fault_message() = std::move(function); }
void set_checker(nb::object function) { checker() = std::move(function); }

}  // namespace rowgrad::xla
