#include "layout.h"

namespace rowgrad::cuda {

const char* type_name(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return "half";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float32:
      return "float";
    case DType::float64:
      return "double";
    case DType::int8:
    case DType::qint8:
      return "int8_t";
    case DType::int16:
      return "int16_t";
    case DType::int32:
    case DType::qint32:
      return "int32_t";
    case DType::int64:
      return "int64_t";
    case DType::uint8:
    case DType::quint8:
    case DType::bool_:
      return "uint8_t";
    case DType::uint16:
      return "uint16_t";
    case DType::uint32:
      return "uint32_t";
    case DType::uint64:
      return "uint64_t";
    case DType::complex64:
      return "complex<float>";
    case DType::complex128:
      return "complex<double>";
  }
  throw std::invalid_argument("dtype");
}

ColumnShape::ColumnShape(DType dtype, std::int64_t columns, std::initializer_list<Memory> memory) : columns(columns) {
  constexpr int kMaxWidth = 4, kMaxLanes = 32;
  constexpr std::int64_t kRowBytes = std::int64_t(1) << 32;
  if (columns * itemsize(dtype) >= kRowBytes)
    throw TooLarge("a CUDA call supports rows of fewer than " + std::to_string(kRowBytes) + " bytes");
  const int wide = std::min(16 / itemsize(dtype), kMaxWidth);
  bool is_wide = is_float(dtype) && columns > 0 && columns % wide == 0;
  for (const Memory& m : memory) is_wide = is_wide && m.data % static_cast<Address>(wide * m.itemsize) == 0;
  width = is_wide ? wide : 1;
  const auto units = static_cast<std::uint64_t>(ceil_div(columns, width));
  lanes = static_cast<int>(std::min<std::uint64_t>(std::bit_ceil(std::max<std::uint64_t>(units, 1)), kMaxLanes));
  tiles = ceil_div(static_cast<std::int64_t>(units), lanes);
}

void put_words(Device& device, Stream stream, Address to, const std::vector<std::int64_t>& words) {
  constexpr std::size_t kMost = sizeof(PutWords::words) / 8;
  for (std::size_t first = 0; first < words.size(); first += kMost) {
    PutWords put;
    const std::size_t count = std::min(kMost, words.size() - first);
    put.to = to + first * 8;
    put.count = static_cast<std::int64_t>(count);
    std::copy_n(words.begin() + static_cast<std::ptrdiff_t>(first), count, put.words);
    device.launch(stream, "", {1}, 0, put);
  }
}

}  // namespace rowgrad::cuda
