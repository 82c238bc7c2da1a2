// Bytes as the numbers of a call. Whatever the bytes are, they are some call: where they end, zeros follow.
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

// Thrown where a call would be right but its results too large to look at: the next input, please.
struct TooLarge {};

// As long as no element of any array is in question.
inline void bound_result(std::int64_t rows, std::int64_t cols = 1) {
  if (rows > 20000 || cols > 20000 || rows * std::max<std::int64_t>(cols, 1) > 200000) throw TooLarge{};
}

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  std::uint8_t byte() { return at_ < end_ ? *at_++ : std::uint8_t{0}; }
  bool flag() { return byte() & 1; }
  // In [0, n): of one byte where that is enough.
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

  // Any int64: one near `bound`, one near an end of its types, or any bits.
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

  // How long a list is: mostly short, sometimes long enough to be cut.
  std::int64_t length() {
    const std::uint8_t x = byte();
    return x < 192 ? x % 24 : (x - 192) * 10;
  }
  std::int64_t columns() {
    const std::uint8_t x = byte();
    return x < 128 ? x % 6 : x % 70;
  }

  // n ids below `bound`, which is positive, or not all below it where the bytes say so. `sorted`: that never fall.
  Numbers64 ids(std::int64_t n, std::int64_t bound, bool narrow, bool sorted = false) {
    if (narrow) bound = std::min<std::int64_t>(bound, INT32_MAX);
    Numbers64 list(static_cast<std::size_t>(n));
    const std::uint8_t how = byte();
    if (how & 1) {
      for (std::int64_t& id : list) id = below(bound);
    } else {
      Rng rng(byte());
      const std::int64_t few = how & 2 ? std::max<std::int64_t>(bound / 8, 1) : bound;  // as popular ids are
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

  // Values: any bits, or such as sums are made of. A bool is one of two.
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
    take_turns(Turns((x >> 3) % 3));
  }

 private:
  const std::uint8_t *at_, *end_;
};

inline bool all_in(const Numbers64& ids, std::int64_t bound) {
  return std::all_of(ids.begin(), ids.end(), [&](std::int64_t id) { return id >= 0 && id < bound; });
}
inline bool never_falls(const Numbers64& ids) { return std::is_sorted(ids.begin(), ids.end()); }

// The bits of a NaN that results from arithmetic are unspecified; everything else is compared by bits.
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

// Whether a call was accepted; what does not agree with `valid` is a finding, but for want of memory.
inline bool accepted(const Status& status, bool valid) {
  if (status.fault == Fault::out_of_memory) return false;
  EXPECT_EQ(!status, valid);
  return !status && valid;
}
inline bool accepted(const Result& result, bool valid) { return accepted(result.status, valid); }

// One input: a call, or none. Findings end the process, as those of the sanitizers do.
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
