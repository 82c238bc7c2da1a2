// Custom calls of XLA, as the handlers of all platforms read them: attributes, validation and errors.
//
// The attributes of a call of a kernel of the catalogue (xla_steps.h has those of an optimizer's step):
//   call     the kernel and its arguments: an array of int64, parsed by `Script`;
//   got, op  text for error messages.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "../third_party/xla/ffi/api/c_api.h"
#include "rowgrad/dtype.h"
#include "rowgrad/kernel.h"
#include "rowgrad/status.h"

namespace rowgrad::xla {

struct CallError {
  std::string message;
  XLA_FFI_Error_Code code;
};

[[noreturn]] inline void fail(std::string message) {
  throw CallError{std::move(message), XLA_FFI_Error_Code_INTERNAL};
}

bool holds(XLA_FFI_DataType actual, DType dtype);

// Reads the attribute `call`: the kernel's index; the number of constants, and the constants; the number of inputs, and
// for each its dtype code and either -1 for the next buffer, or its rank, dimensions and values; the dtype code of each
// output.
class Script {
 public:
  explicit Script(const XLA_FFI_CallFrame* frame);
  std::int64_t next() { return *take(1); }
  std::span<const std::int64_t> all() const { return {at_, end_}; }
  const std::int64_t* take(std::int64_t n) {
    if (n < 0 || n > end_ - at_) fail("rowgrad: the attribute call is too short");
    const std::int64_t* numbers = at_;
    at_ += n;
    return numbers;
  }
  // Takes the dimensions of a host input of this rank; stores the number of its values, at most 2^31.
  std::span<const std::int64_t> take_shape(std::int64_t rank, std::int64_t& size);

 private:
  const std::int64_t *at_ = nullptr, *end_ = nullptr;
};

// Returns a string attribute.
std::string text(const XLA_FFI_CallFrame* frame, std::string_view name);

// Validates a call against the op's record, since a program may come from anywhere: the number of buffers, their
// shapes, sizes and constants, and the dtypes that handlers then require. Python does it, once for equal calls.
void check_call(const XLA_FFI_CallFrame* frame, const Script& script);

// Throws the error of a fault. `is_earlier`: an earlier call on the device reported it.
[[noreturn]] void report(const std::string& op, const std::string& got, const Status& status, bool is_earlier = false);
[[noreturn]] void report(const XLA_FFI_CallFrame* frame, const Status& status);

XLA_FFI_Error* error_of(const XLA_FFI_CallFrame* frame, const std::string& message, XLA_FFI_Error_Code code);

// Answers a frame that asks for metadata only, as XLA's do at registration; returns whether it was one.
bool answers_metadata(const XLA_FFI_CallFrame* frame);

// The body of a handler: runs a call and returns its error.
template <class Run>
XLA_FFI_Error* answer(const XLA_FFI_CallFrame* frame, Run&& run) noexcept {
  if (answers_metadata(frame)) return nullptr;
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
  } catch (const std::exception& error) {  // also of Python, when a kernel is compiled
    return error_of(frame, error.what(), XLA_FFI_Error_Code_INTERNAL);
  }
  return nullptr;
}

// Functions of Python: the message of a fault, and what is wrong with a call.
void set_fault_message(nanobind::object function);
void set_checker(nanobind::object function);

}  // namespace rowgrad::xla
