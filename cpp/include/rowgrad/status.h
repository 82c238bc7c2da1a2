// The result of a check: a fault with its numbers. src/rowgrad/_error_messages.py has the messages.
#pragma once
#include <cstdint>

#include "rowgrad/enums.h"

namespace rowgrad {

struct [[nodiscard]] Status {
  Fault fault = Fault::none;
  std::int64_t position = -1;  // index of the bad element in its argument
  std::int64_t value = 0;      // the bad element
  std::int64_t bound = 0;      // exclusive upper bound of `value`

  explicit operator bool() const { return fault != Fault::none; }
};

}  // namespace rowgrad
