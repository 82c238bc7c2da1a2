#include "xla_steps.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "rowgrad/float_mode.h"

namespace rowgrad::xla {
namespace {

constexpr DType kDtypes[] = {DType::float16, DType::bfloat16, DType::float32, DType::float64, DType::int32, DType::int64};

const KernelEntry& kernel_of(std::int64_t index) {
  const auto& list = update_kernels();
  if (index < 0 || index >= std::int64_t(list.size())) fail("rowgrad: a step names an unknown kernel");
  const KernelEntry& entry = list[static_cast<std::size_t>(index)];
  if (std::string_view(entry.name) != "apply_rows" && std::string_view(entry.name) != "apply_bags")
    fail(std::string("rowgrad: XLA has no calls of ") + entry.name);
  return entry;
}

void require(bool good, const char* what) {
  if (!good) fail(std::string("rowgrad: the buffers of a step do not fit: ") + what);
}

Array array_of(const XLA_FFI_Buffer& b) {
  for (const DType dtype : kDtypes)
    if (holds(b.dtype, dtype)) return {b.data, dtype, {b.dims, static_cast<std::size_t>(b.rank)}};
  fail("rowgrad: a step has a buffer of an unknown dtype");
}

bool is_float(DType dtype) {
  return dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32 || dtype == DType::float64;
}

DType arithmetic_of(DType dtype) { return dtype == DType::float64 ? dtype : DType::float32; }

bool is_id_list(const Array& a) {
  return a.shape.size() == 1 && (a.dtype == DType::int32 || a.dtype == DType::int64);
}

// Reads the buffers of a call in order.
class Buffers {
 public:
  explicit Buffers(const XLA_FFI_CallFrame* frame) : frame_(frame) {
    for (std::int64_t i = 0; i < frame->args.size; ++i)
      require(frame->args.types[i] == XLA_FFI_ArgType_BUFFER, "an operand is not a buffer");
    for (std::int64_t i = 0; i < frame->rets.size; ++i)
      require(frame->rets.types[i] == XLA_FFI_RetType_BUFFER, "a result is not a buffer");
  }
  Array next() {
    require(at_ < frame_->args.size, "an operand is missing");
    return array_of(*static_cast<const XLA_FFI_Buffer*>(frame_->args.args[at_++]));
  }
  bool is_end() const { return at_ == frame_->args.size; }
  Array result(std::size_t i) const { return array_of(*static_cast<const XLA_FFI_Buffer*>(frame_->rets.rets[i])); }
  std::int64_t results() const { return frame_->rets.size; }

 private:
  const XLA_FFI_CallFrame* const frame_;
  std::int64_t at_ = 0;
};

}  // namespace

StepCall::StepCall(const XLA_FFI_CallFrame* frame) : StepCall(frame, Script(frame)) {}

StepCall::StepCall(const XLA_FFI_CallFrame* frame, Script script) : kernel(kernel_of(script.next())) {
  const std::int64_t count = script.next();
  const std::int64_t* const given = script.take(count);
  common_.assign(given, given + count);
  const bool from_bags = std::string_view(kernel.name) == "apply_bags";
  const std::int64_t size = script.next();
  if (size < 1) fail("rowgrad: a step has no table");
  const std::int64_t* const seeds = script.take(size);
  tables.resize(static_cast<std::size_t>(size));
  for (std::size_t t = 0; t < tables.size(); ++t) tables[t].seed = seeds[t];
  const bool has_lr = script.next() != 0;
  for (double& number : numbers) number = std::bit_cast<double>(script.next());
  if (!script.all().empty()) fail("rowgrad: the attribute call is too long");
  if (const std::string error = kernel.parameter_error(common_); !error.empty()) fail("rowgrad: " + error);
  if (common_[2] != 1 || (from_bags && common_[7] != 0)) fail("rowgrad: XLA's steps are lazy and have no weights");

  Buffers buffers(frame);
  const auto slots = static_cast<std::size_t>(slots_of(rule()));
  require(buffers.results() == std::int64_t(tables.size() * (slots + 1)), "the number of results");
  std::size_t number = 0;
  for (TableStep& own : tables)
    for (std::size_t i = 0; i <= slots; ++i) {
      const Array array = buffers.next(), result = buffers.result(number++);
      require(array.dtype == result.dtype && std::ranges::equal(array.shape, result.shape), "a result is not its operand");
      require(array.data == result.data || array.size() == 0, "a result is not in the memory of its operand");
      own.state.push_back(array);
    }
  for (TableStep& own : tables) {
    const Array& table = own.table();
    require(is_float(table.dtype) && table.dtype == dtype() && !table.shape.empty() &&
                table.row_size() == tables[0].table().row_size(),
            "the table");
    for (std::size_t i = 1; i < own.state.size(); ++i) {
      const auto shape = is_per_row(rule()) ? table.shape.first(1) : table.shape;
      require(own.state[i].dtype == arithmetic_of(table.dtype) && std::ranges::equal(own.state[i].shape, shape), "a slot");
    }
    own.grad = buffers.next();
    require(own.grad.dtype == table.dtype && own.grad.shape.size() == table.shape.size() &&
                std::ranges::equal(own.grad.shape.subspan(1), table.shape.subspan(1)),
            "the gradient");
    own.ids = buffers.next();
    require(is_id_list(own.ids), "the ids");
    if (from_bags) {
      own.segments = buffers.next();
      require(is_id_list(own.segments) && own.segments.rows() == own.ids.rows(), "the segment ids");
    } else {
      require(own.grad.rows() == own.ids.rows(), "a gradient row for each id");
    }
  }
  step = buffers.next();
  require(step.dtype == DType::int32 && step.shape.empty(), "the number of the step");
  if (has_lr) {
    lr = buffers.next();
    require((lr.dtype == DType::float32 || lr.dtype == DType::float64) && lr.shape.empty(), "the learning rate");
  }
  require(buffers.is_end(), "an operand too many");
}

std::vector<std::int64_t> StepCall::attributes(const TableStep& table, std::int64_t number) const {
  std::vector<std::int64_t> found = common_;
  found[1] = table.table().rows();
  found[4] = table.seed;
  found[5] = number;
  return found;
}

namespace {

__extension__ using Fraction = unsigned __int128;  // bits after the point, of a number in [0, 1)

Fraction fraction_of(double x) {
  int exponent = 0;
  const auto mantissa = static_cast<Fraction>(std::ldexp(std::frexp(x, &exponent), 53));
  const int shift = exponent - 53 + 128;
  return shift >= 0 ? mantissa << shift : shift > -53 ? mantissa >> -shift : 0;
}

Fraction product(Fraction a, Fraction b) {
  constexpr auto kLow = static_cast<Fraction>(~std::uint64_t(0));
  const Fraction mixed[] = {(a >> 64) * (b & kLow), (a & kLow) * (b >> 64)};
  const Fraction middle = (mixed[0] & kLow) + (mixed[1] & kLow) + ((a & kLow) * (b & kLow) >> 64);
  return (a >> 64) * (b >> 64) + (mixed[0] >> 64) + (mixed[1] >> 64) + (middle >> 64);
}

// base^exponent for a base in [0, 1), with the bits of `power` in _catalog/rules.py.
double power(double base, std::uint32_t exponent) {
  const Fraction factor = fraction_of(base);
  Fraction found = factor;
  for (int bit = std::bit_width(exponent) - 2; bit >= 0; --bit) {
    found = product(found, found);
    if (exponent >> bit & 1) found = product(found, factor);
  }
  return std::ldexp(static_cast<double>(found), -128);
}

// Throws the error of a number that the rule does not support, as source/step_numbers.cuh reports it.
void check_number(const XLA_FFI_CallFrame* frame, const StepCall& call, std::int64_t which, double x) {
  const bool is_wide = call.dtype() == DType::float64;
  const double most = is_wide ? std::numeric_limits<double>::infinity() : 0x1p128 - 0x1p103;
  std::int64_t kind = 0;  // not finite
  if (std::isfinite(x)) {
    if (which == 0 && needs_positive_lr(call.rule()) && !(x > 0))
      kind = 2;
    else if (std::abs(x) < most)
      return;
    else
      kind = 1;
  }
  report(frame, {Fault::number_unfit, which, std::bit_cast<std::int64_t>(x), static_cast<std::int64_t>(call.rule()) * 4 + kind});
}

// Replaces the numbers that are operands, and computes Adam's rate. Returns the number of the step.
std::int32_t read_numbers(const XLA_FFI_CallFrame* frame, StepCall& call) {
  if (call.lr.data)
    call.numbers[0] =
        call.lr.dtype == DType::float64 ? *call.lr.as<const double>() : double(*call.lr.as<const float>());
  const std::int32_t step = *call.step.as<const std::int32_t>();
  if (step < 1) throw CallError{"rowgrad: the number of a step must be at least 1", XLA_FFI_Error_Code_INVALID_ARGUMENT};
  const double lr = call.numbers[0], b1 = call.numbers[3], b2 = call.numbers[4];
  const auto t = static_cast<std::uint32_t>(step);
  if (fades(call.rule())) call.numbers[5] = lr * std::sqrt(1.0 - power(b2, t)) / (1.0 - power(b1, t));
  check_number(frame, call, 0, lr);
  check_number(frame, call, 1, call.numbers[5]);
  return step;
}

// The number of ids before the padding, which is the number of rows of the table.
std::int64_t without_padding(const Array& ids, std::int64_t rows) {
  std::int64_t n = ids.rows();
  const auto id = [&](std::int64_t i) -> std::int64_t {
    return ids.dtype == DType::int64 ? ids.as<const std::int64_t>()[i] : ids.as<const std::int32_t>()[i];
  };
  while (n > 0 && id(n - 1) == rows) --n;
  return n;
}

void run(const XLA_FFI_CallFrame* frame) {
  StepCall call(frame);
  if (call.tables.size() > 1) fail("rowgrad: a step on CPUs has one table");
  const TableStep& own = call.tables[0];
  const std::int32_t number = read_numbers(frame, call);
  const auto kernel = call.kernel.make();
  const std::vector<std::int64_t> attr = call.attributes(own, number);
  kernel->attr = attr;
  const std::int64_t count = static_cast<std::int64_t>(call.numbers.size());
  std::vector<std::int64_t> grad_shape(own.grad.shape.begin(), own.grad.shape.end()), ids_shape(1, own.ids.rows());
  std::vector<Array> in{own.grad, own.ids};
  if (call.is_from_bags()) {
    in.push_back(own.segments);
  } else {
    grad_shape[0] = ids_shape[0] = without_padding(own.ids, own.table().rows());
    in[0].shape = grad_shape;
    in[1].shape = ids_shape;
  }
  in.push_back({call.numbers.data(), DType::float64, {&count, 1}});
  kernel->in = in;
  const FlushSubnormals flush;
  if (const Status s = kernel->measure()) report(frame, s);
  if (const Status s = kernel->check()) report(frame, s);
  kernel->compute(own.state);
}

XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame) noexcept { return answer(frame, run); }

}  // namespace

void* step_handler() { return reinterpret_cast<void*>(&handle); }

}  // namespace rowgrad::xla
