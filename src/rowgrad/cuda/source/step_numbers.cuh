// Numbers of a step that the host does not know: a learning rate in a tensor on the device, and a count of steps there.
#pragma once
#include "update_rules.cuh"

namespace rowgrad {

// Where the numbers of a table's step are. The address is null if the host knows the number.
struct NumbersEntry {
  const void* lr;
  int64_t lr_wide;  // whether it is a double
  double known_lr;
  double beta1;
  double beta2;
  double* count;  // of completed steps; counted up
  const int32_t* number;  // of this step
  int64_t known_step;
};

struct ReadNumbers {
  const NumbersEntry* entries;
  int64_t size;
  int64_t has_rate;
  int64_t is_positive;
  double most;
  int64_t rule;
  LiveNumbers* out;
  Checks* checks;
  Fault* fault;
  int64_t* alarm;
  int64_t only[8];
};

// 128 bits after the point, of a number in [0, 1).
struct Fraction {
  uint64_t high, low;

  explicit DEVICE Fraction(double x) : high(0), low(0) {
    const uint64_t bits = bits_of(x);
    const int exponent = int(bits >> 52);  // x is not negative
    if (exponent == 0) return;  // 0, and numbers that are flushed
    const uint64_t mantissa = (bits & 0xfffffffffffffull) | 0x10000000000000ull;
    const int shift = exponent - 1023 - 52 + 128;  // of the mantissa's last bit: at most 75
    if (shift >= 64) {
      high = mantissa << (shift - 64);
    } else if (shift >= 0) {
      high = shift == 0 ? 0 : mantissa >> (64 - shift);
      low = mantissa << shift;
    } else if (shift > -53) {
      low = mantissa >> -shift;
    }
  }

  // The product, rounded down.
  DEVICE void multiply(const Fraction& by) {
    const uint64_t a[4] = {low & 0xffffffffull, low >> 32, high & 0xffffffffull, high >> 32};
    const uint64_t b[4] = {by.low & 0xffffffffull, by.low >> 32, by.high & 0xffffffffull, by.high >> 32};
    uint64_t product[8] = {};
    for (int i = 0; i < 4; ++i) {
      uint64_t carry = 0;
      for (int j = 0; j < 4; ++j) {
        const uint64_t sum = a[i] * b[j] + product[i + j] + carry;
        product[i + j] = sum & 0xffffffffull;
        carry = sum >> 32;
      }
      product[i + 4] = carry;
    }
    low = product[5] << 32 | product[4];
    high = product[7] << 32 | product[6];
  }

  // The nearest double, of two the even one.
  DEVICE double rounded() const {
    uint64_t top = high, rest = low;
    double unit = 0x1p-64;
    if (top == 0) {
      top = low;
      rest = 0;
      unit = 0x1p-128;
    }
    if (top == 0) return 0.0;
    while (!(top >> 63)) {
      top = top << 1 | rest >> 63;
      rest <<= 1;
      unit *= 0.5;
    }
    const uint64_t cut = top & 0x7ff, half = 0x400;
    uint64_t kept = top >> 11;
    if (cut > half || (cut == half && (rest || (kept & 1)))) ++kept;
    return double(kept) * 2048.0 * unit;
  }
};

// Returns base^exponent for a base in [0, 1) and an exponent of at least 1, with the bits of `power` in
// _catalog/rules.py.
DEVICE double fraction_power(double base, int64_t exponent) {
  const Fraction factor(base);
  Fraction found = factor;
  int bit = 62;
  while (bit > 0 && !(exponent >> bit & 1)) --bit;
  while (--bit >= 0) {
    found.multiply(found);
    if (exponent >> bit & 1) found.multiply(factor);
  }
  return found.rounded();
}

DEVICE LiveNumbers numbers_of(const NumbersEntry& entry, bool has_rate) {
  LiveNumbers found;
  found.lr = !entry.lr         ? entry.known_lr
             : entry.lr_wide ? *static_cast<const double*>(entry.lr)
                             : double(*static_cast<const float*>(entry.lr));
  found.step = entry.count ? int64_t(*entry.count) + 1 : entry.number ? *entry.number : entry.known_step;
  found.rate = 0.0;
  if (has_rate) {
    const double second = sqrt(1.0 - fraction_power(entry.beta2, found.step));
    found.rate = found.lr * second / (1.0 - fraction_power(entry.beta1, found.step));
  }
  return found;
}

enum NumberFault { not_finite, does_not_fit, not_positive, is_valid };

DEVICE NumberFault number_fault(double x, bool is_positive, double most) {
  if (!(fabs(x) <= 1.7976931348623157e308)) return not_finite;
  if (is_positive && !(x > 0.0)) return not_positive;
  return fabs(x) < most ? is_valid : does_not_fit;
}

// Reads and validates the numbers of the steps of some tables, and counts the steps; one block. Later kernels of the call
// do nothing if a number is bad.
DEVICE void read_numbers(const ReadNumbers& p) {
  if (is_raised(p.checks)) return;
  const NumbersEntry* entries = p.entries ? p.entries : reinterpret_cast<const NumbersEntry*>(p.only);
  bool bad = false;
  for (int64_t i = threadIdx.x; i < p.size; i += blockDim.x) {
    const LiveNumbers found = numbers_of(entries[i], p.has_rate);
    bad |= number_fault(found.lr, p.is_positive, p.most) != is_valid || number_fault(found.rate, false, p.most) != is_valid;
    p.out[i] = found;
  }
  if (!any_thread(bad)) {
    for (int64_t i = threadIdx.x; i < p.size; i += blockDim.x)
      if (entries[i].count) *entries[i].count = double(p.out[i].step);
  } else if (threadIdx.x == 0) {
    p.checks->raised = 1;
    for (int64_t i = 0; i < p.size; ++i)
      for (int which = 0; which < 2; ++which) {
        const double x = which == 0 ? p.out[i].lr : p.out[i].rate;
        const NumberFault fault = number_fault(x, which == 0 && p.is_positive, p.most);
        if (fault != is_valid)
          return report(p.fault, p.alarm, fault_number_unfit, which, int64_t(bits_of(x)), p.rule * 4 + fault);
      }
  }
}

}  // namespace rowgrad
