// What went wrong, as facts. Python has the messages (src/rowgrad/errors.py).
#pragma once
#include <cstdint>

#include "rowgrad/enums.h"

namespace rowgrad {

struct [[nodiscard]] Status {
  Fault fault = Fault::none;
  std::int64_t position = -1;  // where in the argument the fault stands
  std::int64_t value = 0;      // what stood there
  std::int64_t bound = 0;      // the exclusive upper bound of the value

  explicit operator bool() const { return fault != Fault::none; }
};

}  // namespace rowgrad
