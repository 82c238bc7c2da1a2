// Elementwise functions whose bits must not depend on the math library.
#pragma once
#include <cmath>

#include "rowgrad/dispatch.h"
#include "rowgrad/kernel.h"
#include "rowgrad/parallel.h"

namespace rowgrad {

// Input x → √x, correctly rounded; 16-bit floats are computed in float32 and rounded to 16 bits.
class Sqrt : public Kernel {
 public:
  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    visit(Floats{}, in[0].dtype, [&]<class T>(std::type_identity<T>) {
      const auto* x = in[0].as<const T>();
      auto* roots = out[0].as<T>();
      parallel_ranges(in[0].size(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) roots[i] = store<T>(std::sqrt(load(x[i])));
      });
    });
  }
};

}  // namespace rowgrad
