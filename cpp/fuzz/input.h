// Decodes fuzzer bytes into the arguments of a call. All bytes are valid: past the end, they are zero.
#pragma once
#include <algorithm>
#include <initializer_list>

#include "../test/call.h"
#include "machine.h"

namespace fuzz {

using namespace rowgrad;
using test::Numbers64;
using test::Result;
using test::Rng;
using test::Shape;
using test::Tensor;

// Thrown if a valid call's result is too large to compare: skip this input.
struct TooLarge {};

// Limits the size of the result, not of any input.
inline void bound_result(std::int64_t rows, std::int64_t cols = 1) {
  if (rows > 20000 || cols > 20000 || rows * std::max<std::int64_t>(cols, 1) > 200000) throw TooLarge{};
}

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  std::uint8_t byte() { return at_ < end_ ? *at_++ : std::uint8_t{0}; }
  bool flag() { return byte() & 1; }
  // In [0, n); consumes one byte if that is enough.
  std::int64_t below(std::int64_t n) { return std::int64_t((n <= 256 ? byte() : bits()) % std::uint64_t(n)); }
  template <class T>
  T pick(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>(below(std::int64_t(choices.size())))];
  }
  std::uint64_t bits() {
    std::uint64_t x = 0;
    for (int i = 0; i < 8; ++i) x = x << 8 | byte();
    return x;
  }

  // Any int64: near `bound`, near the limits of int32 or int64, or random bits.
  std::int64_t number(std::int64_t bound) {
    const std::uint8_t kind = byte();
    const std::int64_t near = std::int64_t(kind >> 3) - 16;
    switch (kind & 7) {
      case 0: return plus(bound, near);
      case 1: return near;
      case 2: return plus(std::int64_t{INT32_MAX}, near);
      case 3: return plus(std::int64_t{INT32_MIN}, near);
      case 4: return plus(INT64_MAX, near);
      case 5: return plus(INT64_MIN, near);
      case 6: return plus(std::int64_t{1} << 32, near);
      default: return std::int64_t(bits());
    }
  }

  // The length of a list: usually short, sometimes long enough to be split into parts.
  std::int64_t length() {
    const std::uint8_t x = byte();
    return x < 192 ? x % 24 : (x - 192) * 10;
  }
  std::int64_t columns() {
    const std::uint8_t x = byte();
    return x < 128 ? x % 6 : x % 70;
  }

  // n ids in [0, bound), a few of them out of range if the bytes say so. `bound` must be positive.
  Numbers64 ids(std::int64_t n, std::int64_t bound, bool narrow, bool sorted = false) {
    if (narrow) bound = std::min<std::int64_t>(bound, INT32_MAX);
    Numbers64 list(static_cast<std::size_t>(n));
    const std::uint8_t how = byte();
    if (how & 1) {
      for (std::int64_t& id : list) id = below(bound);
    } else {
      Rng rng(byte());
      const std::int64_t few = how & 2 ? std::max<std::int64_t>(bound / 8, 1) : bound;  // skewed towards popular ids
      for (std::int64_t& id : list) id = rng.below(rng.chance(8) ? bound : few);
    }
    if (sorted || how & 4) std::sort(list.begin(), list.end());
    for (int faults = (how >> 4) % 4 == 3 ? 1 + (how >> 6) % 2 : 0; faults > 0 && n > 0; --faults) {
      std::int64_t& id = list[static_cast<std::size_t>(below(n))];
      id = number(bound);
      if (narrow) id = std::int32_t(std::uint32_t(std::uint64_t(id)));
    }
    return list;
  }

  // Values: random bits, or numbers whose sums round. Booleans are 0 or 1.
  Tensor values(DType dtype, Shape shape) {
    const std::uint8_t how = byte();
    if (how & 3) {
      Rng rng(how);
      return test::random_tensor(rng, dtype, std::move(shape));
    }
    Tensor t(dtype, std::move(shape));
    for (std::byte& b : t.bytes) b = std::byte(dtype == DType::bool_ ? byte() & 1 : byte());
    return t;
  }

  void choose_machine() {
    const std::uint8_t x = byte();
    set_num_threads(1 + (x & 7));
    set_task_order(TaskOrder((x >> 3) % 3));
  }

 private:
  const std::uint8_t *at_, *end_;
};

inline bool all_in(const Numbers64& ids, std::int64_t bound) {
  return std::all_of(ids.begin(), ids.end(), [&](std::int64_t id) { return id >= 0 && id < bound; });
}
inline bool is_non_decreasing(const Numbers64& ids) { return std::is_sorted(ids.begin(), ids.end()); }

// The bits of a NaN from arithmetic are unspecified; everything else is compared by bits.
template <class R>
bool same_part(R a, R b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
}

template <class T>
bool same_number(T a, T b) {
  if constexpr (is_16bit_float<T>)
    return a.bits == b.bits || (widen(a) != widen(a) && widen(b) != widen(b));
  else if constexpr (std::is_arithmetic_v<T>)
    return same_part(a, b);
  else
    return same_part(a.real(), b.real()) && same_part(a.imag(), b.imag());
}

inline bool same_numbers(const Tensor& a, const Tensor& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  if (test::first_difference(a, b) == -1) return true;
  bool same = false;
  visit(Numbers{}, a.dtype, [&]<class T>(std::type_identity<T>) {
    same = true;
    for (std::int64_t i = 0; i < a.size(); ++i) same &= same_number(a.as<T>()[i], b.as<T>()[i]);
  });
  return same;
}

inline bool same_bits(const Tensor& a, const Tensor& b) { return test::first_difference(a, b) == -1; }

// Whether a call was accepted. Disagreement with `valid` is a finding, except for lack of memory.
inline bool accepted(const Status& status, bool valid) {
  if (status.fault == Fault::out_of_memory) return false;
  EXPECT_EQ(!status, valid);
  return !status && valid;
}
inline bool accepted(const Result& result, bool valid) { return accepted(result.status, valid); }

// Runs one input. Findings abort the process, as those of the sanitizers do.
inline int run(const std::uint8_t* data, std::size_t size, void (*one)(Input&)) {
  const FlushSubnormals flush;
  Input input(data, size);
  input.choose_machine();
  try {
    one(input);
  } catch (const TooLarge&) {
  }
  if (test::failed) __builtin_trap();
  return 0;
}

}  // namespace fuzz

#define FUZZ_TARGET(one) \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) { return fuzz::run(data, size, one); }
