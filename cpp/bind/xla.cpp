// Translation only: the buffers and attributes of an XLA custom call to views, Status to an XLA error.
//
// One handler serves every kernel. Of its attributes
//   call  says which kernel, with what: an array of int64, read by `Script`;
//   got   and `op` are words for errors.
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
#include "rowgrad/kept_output.h"
#include "rowgrad/parallel.h"

namespace nb = nanobind;

namespace rowgrad {
namespace {

constexpr std::int64_t kLargeResult = std::int64_t{4} << 20;

struct Refusal {
  std::string message;
  XLA_FFI_Error_Code code;
};

[[noreturn]] void fail(std::string message) { throw Refusal{std::move(message), XLA_FFI_Error_Code_INTERNAL}; }

bool holds(XLA_FFI_DataType given, DType dtype) {
  switch (dtype) {
    case DType::float16: return given == XLA_FFI_DataType_F16;
    case DType::bfloat16: return given == XLA_FFI_DataType_BF16;
    case DType::float32: return given == XLA_FFI_DataType_F32;
    case DType::float64: return given == XLA_FFI_DataType_F64;
    case DType::int8: return given == XLA_FFI_DataType_S8;
    case DType::int16: return given == XLA_FFI_DataType_S16;
    case DType::int32: return given == XLA_FFI_DataType_S32;
    case DType::int64: return given == XLA_FFI_DataType_S64;
    case DType::uint8: return given == XLA_FFI_DataType_U8;
    case DType::uint16: return given == XLA_FFI_DataType_U16;
    case DType::uint32: return given == XLA_FFI_DataType_U32;
    case DType::uint64: return given == XLA_FFI_DataType_U64;
    case DType::complex64: return given == XLA_FFI_DataType_C64;
    case DType::complex128: return given == XLA_FFI_DataType_C128;
    case DType::bool_: return given == XLA_FFI_DataType_PRED;
    default: return false;
  }
}

// The attribute `call`, word by word: the kernel's number; how many constants, and those; how many inputs, and for each
// its dtype's code and -1 for the next buffer, or else its rank, its dimensions and its values; each output's dtype's code.
class Script {
 public:
  explicit Script(const XLA_FFI_Array& words)
      : at_(static_cast<const std::int64_t*>(words.data)), end_(at_ + words.size) {
    if (words.dtype != XLA_FFI_DataType_S64) fail("rowgrad: the script of a call is no array of int64");
  }
  std::int64_t next() { return *take(1); }
  std::span<const std::int64_t> all() const { return {at_, end_}; }
  const std::int64_t* take(std::int64_t n) {
    if (n < 0 || n > end_ - at_) fail("rowgrad: the script of a call ends too early");
    const std::int64_t* words = at_;
    at_ += n;
    return words;
  }

 private:
  const std::int64_t *at_, *end_;
};

// The arguments and results of one call as kernels see them. JAX has 32 bits where an op has int64, unless set to
// have 64: those are widened before the call, and narrowed after it.
class Views {
 public:
  // Fills `view` in place: a returned Array is stored in 8-byte parts and loaded whole, which stalls the processor.
  void make(Array& view, const XLA_FFI_Buffer& b, DType dtype, bool is_input) {
    const std::span<const std::int64_t> shape(b.dims, static_cast<std::size_t>(b.rank));
    if (holds(b.dtype, dtype)) {
      view = {b.data, dtype, shape};
      return;
    }
    if (dtype != DType::int64 || b.dtype != XLA_FFI_DataType_S32) fail("rowgrad: a buffer has another dtype than its op");
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

  // A host input: its shape and values are the script's own words, but for those of 32 bits.
  Array host(Script& script, DType dtype, std::int64_t rank) {
    const std::span<const std::int64_t> shape(script.take(rank), static_cast<std::size_t>(rank));
    std::int64_t size = 1;
    for (const std::int64_t d : shape) {
      if (d < 0 || d > (std::int64_t{1} << 31)) fail("rowgrad: a size of a call has an impossible shape");
      size = std::min(size * d, std::int64_t{1} << 31);  // more words than any script has
    }
    const std::int64_t* values = script.take(size);
    if (dtype == DType::int64) return {const_cast<std::int64_t*>(values), dtype, shape};
    if (dtype != DType::int32) fail("rowgrad: a size has neither 32 nor 64 bits");
    std::int32_t* narrow = few_.data() + used_;
    if (size <= std::int64_t(few_.size()) - used_)
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
  std::array<std::int32_t, 16> few_;  // host values are mostly one number
  std::int64_t used_ = 0;
  std::vector<Scratch<std::int64_t>> wide_;
  std::vector<Scratch<std::int32_t>> narrow_;
  std::vector<Narrowed> narrowed_;
};

// Views of a call's arrays. The few that our ops have are stored inline, without an allocation.
class ArrayList {
 public:
  explicit ArrayList(std::int64_t size) {
    if (size < 0 || size > kMost) fail("rowgrad: a call with an impossible number of arrays");
    arrays_ = std::span(few_).first(static_cast<std::size_t>(std::min(size, kFew)));
    if (size <= kFew) return;
    many_.resize(static_cast<std::size_t>(size));
    arrays_ = many_;
  }
  ArrayList(const ArrayList&) = delete;
  ArrayList& operator=(const ArrayList&) = delete;
  operator std::span<Array>() const { return arrays_; }

 private:
  static constexpr std::int64_t kFew = 12, kMost = 1 << 16;
  std::array<Array, kFew> few_;
  std::vector<Array> many_;
  std::span<Array> arrays_;
};

const void* attribute(const XLA_FFI_CallFrame* frame, std::string_view name, XLA_FFI_AttrType type) {
  for (std::int64_t i = 0; i < frame->attrs.size; ++i) {
    const XLA_FFI_ByteSpan& found = *frame->attrs.names[i];
    if (frame->attrs.types[i] == type && std::string_view(found.ptr, found.len) == name) return frame->attrs.attrs[i];
  }
  fail("rowgrad: a call without its attribute " + std::string(name));
}

nb::object& words() {
  static auto* const function = new nb::object();  // never destroyed: Python may be gone by then
  return *function;
}

nb::object& checker() {
  static auto* const function = new nb::object();  // as above
  return *function;
}

// What tells one call from another, as words: its script, and the dtypes and shapes of its buffers, each list with its
// length before it. A call is compared with a key word by word, so that a known call costs no memory.
class CallKey {
 public:
  bool matches(const XLA_FFI_CallFrame* frame, const Script& script) const {
    const std::int64_t* at = words_.data();
    const std::int64_t* const end = at + words_.size();
    return visit(frame, script, [&](const std::int64_t* words, std::int64_t n) {
      if (n > end - at) return false;
      for (std::int64_t i = 0; i < n; ++i)  // a few words: std::equal would call memcmp for each piece
        if (*at++ != words[i]) return false;
      return true;
    }) && at == end;
  }

  static CallKey of(const XLA_FFI_CallFrame* frame, const Script& script) {
    CallKey key;
    visit(frame, script, [&](const std::int64_t* words, std::int64_t n) {
      key.words_.insert(key.words_.end(), words, words + n);
      return true;
    });
    return key;
  }

  bool operator==(const CallKey&) const = default;

  struct Hash {
    std::size_t operator()(const CallKey& key) const {
      const std::string_view bytes(reinterpret_cast<const char*>(key.words_.data()),
                                   key.words_.size() * sizeof(std::int64_t));
      return std::hash<std::string_view>()(bytes);
    }
  };

 private:
  // Calls take(words, n) for one piece after another until it returns false.
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
    const std::span<const std::int64_t> words = script.all();
    const auto size = static_cast<std::int64_t>(words.size());
    return take(&size, 1) && take(words.data(), size) && buffers(frame->args.args, frame->args.size) &&
           buffers(frame->rets.rets, frame->rets.size);
  }

  std::vector<std::int64_t> words_;
};

// A program may come from anywhere, so its request is validated against the op's record: how many buffers, their
// shapes, sizes and constants, and the dtypes that `Views` then holds the buffers to. Python does it, once for calls that
// are alike.
void check_call(const XLA_FFI_CallFrame* frame, const Script& script) {
  static std::shared_mutex mutex;
  static auto* const good = new std::unordered_set<CallKey, CallKey::Hash>();
  constexpr std::size_t kMany = 4096;
  for (std::int64_t i = 0; i < frame->args.size; ++i)
    if (frame->args.types[i] != XLA_FFI_ArgType_BUFFER) fail("rowgrad: an argument of a call is no buffer");
  for (std::int64_t i = 0; i < frame->rets.size; ++i)
    if (frame->rets.types[i] != XLA_FFI_RetType_BUFFER) fail("rowgrad: a result of a call is no buffer");
  // A thread mostly runs one program again and again: its last call is compared without a lock.
  thread_local CallKey last_of_thread;
  CallKey& last = last_of_thread;
  if (last.matches(frame, script)) return;
  CallKey key = CallKey::of(frame, script);
  {
    const std::shared_lock lock(mutex);
    if (good->contains(key)) {
      last = std::move(key);
      return;
    }
  }
  if (!Py_IsInitialized()) fail("rowgrad: the interpreter that checks calls has ended");
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
      const std::span<const std::int64_t> words = script.all();
      fault = nb::cast<std::string>(checker()(std::vector<std::int64_t>(words.begin(), words.end()),
                                              shapes(frame->args.args, frame->args.size),
                                              shapes(frame->rets.rets, frame->rets.size)));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("rowgrad");
      fault = "rowgrad: a call could not be checked";
    }
  }
  if (!fault.empty()) throw Refusal{fault, XLA_FFI_Error_Code_INVALID_ARGUMENT};
  const std::unique_lock lock(mutex);
  if (good->size() >= kMany) good->clear();
  good->insert(key);
  last = std::move(key);
}

std::string text(const XLA_FFI_CallFrame* frame, std::string_view name) {
  const auto& span = *static_cast<const XLA_FFI_ByteSpan*>(attribute(frame, name, XLA_FFI_AttrType_STRING));
  return {span.ptr, span.len};
}

[[noreturn]] void refuse(const XLA_FFI_CallFrame* frame, const Status& status) {
  Refusal refusal{"rowgrad: a kernel refused its input", XLA_FFI_Error_Code_INVALID_ARGUMENT};
  if (status.fault == Fault::out_of_memory) refusal.code = XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
  const std::string op = text(frame, "op"), got = text(frame, "got");
  if (Py_IsInitialized()) {
    const nb::gil_scoped_acquire gil;
    try {
      refusal.message = nb::cast<std::string>(
          words()(op.c_str(), int(status.fault), status.position, status.value, status.bound, got.c_str()));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("rowgrad");
    }
  }
  throw refusal;
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
      if (buffer >= frame->args.size) fail("rowgrad: a call with too few buffers");
      views.make(array, *static_cast<const XLA_FFI_Buffer*>(frame->args.args[buffer++]), dtype, true);
    }
  }
  for (std::int64_t i = 0; i < frame->rets.size; ++i) {
    const auto& buffer_out = *static_cast<const XLA_FFI_Buffer*>(frame->rets.rets[i]);
    Array& array = out[static_cast<std::size_t>(i)];
    views.make(array, buffer_out, static_cast<DType>(script.next()), false);
    // XLA allocates a large result from the system in every call, and small pages cost more than what is written there.
    if (array.bytes() >= kLargeResult) prefer_large_pages(array.data, array.bytes());
  }
  kernel->in = in;
  kernel->fresh_zeros = false;  // XLA's memory holds anything
  const FlushSubnormals flush;
  if (const Status s = kernel->measure()) refuse(frame, s);
  if (const Status s = kernel->check()) refuse(frame, s);
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
  // Called by XLA when the handler is registered, with a frame that holds nothing else.
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
      refuse(frame, {Fault::out_of_memory, -1, e.elements, memory_limit()});
    } catch (const std::bad_alloc&) {
      refuse(frame, {Fault::out_of_memory, -1, 0, memory_limit()});
    }
  } catch (const Refusal& refusal) {
    return error_of(frame, refusal.message, refusal.code);
  } catch (const std::exception& e) {
    return error_of(frame, e.what(), XLA_FFI_Error_Code_INTERNAL);
  }
  return nullptr;
}

}  // namespace

void bind_xla(nb::module_& m) {
  m.def("xla_handler", [] { return nb::capsule(reinterpret_cast<void*>(&handle)); });
  m.def("set_xla_words", [](nb::object function) { words() = std::move(function); });
  m.def("set_xla_checker", [](nb::object function) { checker() = std::move(function); });
}

}  // namespace rowgrad
