#include "poison.h"

namespace rowgrad::cuda {
namespace {

bool is_complex(DType dtype) { return dtype == DType::complex64 || dtype == DType::complex128; }

bool is_unsigned(DType dtype) {
  return dtype == DType::uint8 || dtype == DType::uint16 || dtype == DType::uint32 || dtype == DType::uint64;
}

}  // namespace

std::uint64_t poison_of(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return 0x7e00;
    case DType::bfloat16:
      return 0x7fc0;
    case DType::float32:
    case DType::complex64:
      return 0x7fc00000;
    case DType::float64:
    case DType::complex128:
      return 0x7ff8000000000000;
    default:
      return is_unsigned(dtype) ? ~std::uint64_t(0) : std::uint64_t(1) << (8 * itemsize(dtype) - 1);
  }
}

void poison(Device& device, Stream stream, Address memory, DType dtype, std::int64_t elements, Address checks) {
  constexpr std::int64_t kThreads = 256;
  if (dtype == DType::bool_) return;
  const int parts = is_complex(dtype) ? 2 : 1;
  PoisonResults params;
  params.out = memory;
  params.size = elements * parts;
  params.poison = poison_of(dtype);
  params.checks = checks;
  device.launch(stream, unit_name(itemsize(dtype) / parts),
                {std::min<std::int64_t>(ceil_div(params.size, kThreads), 2 * device.processors)}, 0, params);
}

const char* unit_name(std::int64_t bytes) {
  switch (bytes) {
    case 1:
      return "uint8_t";
    case 2:
      return "uint16_t";
    case 4:
      return "uint32_t";
    case 8:
      return "uint64_t";
    case 16:
      return "Block16";
  }
  throw std::invalid_argument("unit_name");
}

}  // namespace rowgrad::cuda
