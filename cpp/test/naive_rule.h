// Optimizer rules for one row, a column at a time, as in docs/reference/optimizers.md: the reference for kernels.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "call.h"
#include "rowgrad/row_update.h"

namespace test {

// Hyperparameters of a step; every value changes the result of some rule.
struct StepNumbers {
#define ROWGRAD_NUMBER(name) double name = 0;
  ROWGRAD_STEP_NUMBERS(ROWGRAD_NUMBER)
#undef ROWGRAD_NUMBER

  StepNumbers() {
    lr = 0.05;
    eps = 1e-6;
    beta1 = 0.8;
    beta2 = 0.95;
    rate = 0.03;
    momentum = 0.9;
    lr_power = -0.5;
    l1 = 0.01;
    l2 = 0.02;
  }

  Tensor tensor() const {
    const std::vector<double> all = {
#define ROWGRAD_NUMBER(name) name,
        ROWGRAD_STEP_NUMBERS(ROWGRAD_NUMBER)
#undef ROWGRAD_NUMBER
    };
    Tensor t(DType::float64, {std::int64_t(all.size())});
    std::copy(all.begin(), all.end(), t.as<double>());
    return t;
  }
};

constexpr Rule kRules[] = {
#define ROWGRAD_RULE(name) Rule::name,
    ROWGRAD_RULES(ROWGRAD_RULE)
#undef ROWGRAD_RULE
};

inline float naive_power(float x, float exponent) { return std::pow(x, exponent); }
inline double naive_power(double x, double exponent) { return std::pow(x, exponent); }

// Updates one row with its gradient, or with none (null): then moments fade. `put(c, w)` stores a new weight.
template <class T, class Put>
void naive_row(Rule rule, const StepNumbers& numbers, std::int64_t cols, const T* weights, Accumulator<T>* slot0,
               Accumulator<T>* slot1, const T* grad, Put put) {
  using A = Accumulator<T>;
  const A lr = A(numbers.lr), eps = A(numbers.eps), decay = A(numbers.weight_decay), rate = A(numbers.rate);
  const A beta1 = A(numbers.beta1), beta2 = A(numbers.beta2), momentum = A(numbers.momentum);
  const A p = A(-numbers.lr_power), l1 = A(numbers.l1), l2 = A(numbers.l2), shrinkage = A(numbers.l2_shrinkage);
  std::vector<A> g(static_cast<std::size_t>(cols));
  for (std::int64_t c = 0; grad && c < cols; ++c) {
    g[c] = load(grad[c]);
    if (decays_in_gradient(rule) && decay != A(0)) g[c] = g[c] + load(weights[c]) * decay;
  }
  A factor = 0;
  if (rule == Rule::row_wise_adagrad) {
    A lane[8] = {};
    for (std::int64_t c = 0; c < cols; ++c) lane[c % 8] += g[c] * g[c];
    slot0[0] += (((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]))) / A(cols);
    factor = lr / (std::sqrt(slot0[0]) + eps);
  }
  for (std::int64_t c = 0; c < cols; ++c) {
    A w = load(weights[c]);
    switch (rule) {
      case Rule::sgd:
        w -= lr * g[c];
        break;
      case Rule::row_wise_adagrad:
        w -= factor * g[c];
        break;
      case Rule::adagrad:
        slot0[c] += g[c] * g[c];
        w -= lr * g[c] / (std::sqrt(slot0[c]) + eps);
        break;
      case Rule::adam:
      case Rule::adamw:
        slot0[c] *= beta1;
        slot1[c] *= beta2;
        if (grad) {
          slot0[c] += g[c] * (A(1) - beta1);
          slot1[c] += g[c] * g[c] * (A(1) - beta2);
        }
        if (rule == Rule::adamw && decay != A(0)) w -= lr * decay * w;
        w -= rate * slot0[c] / (std::sqrt(slot1[c]) + eps);
        break;
      case Rule::momentum:
        slot0[c] = slot0[c] * momentum + g[c];
        w -= numbers.nesterov == 0 ? lr * slot0[c] : lr * g[c] + momentum * lr * slot0[c];
        break;
      case Rule::lion: {
        const A towards = slot0[c] * beta1 + g[c] * (A(1) - beta1);
        slot0[c] = slot0[c] * beta2 + g[c] * (A(1) - beta2);
        if (decay != A(0)) w -= lr * decay * w;
        w -= lr * (towards > 0 ? A(1) : towards < 0 ? A(-1) : towards);
        break;
      }
      case Rule::ftrl: {
        const bool by_root = p == A(0.5);
        auto powered = [&](A x) { return by_root ? A(std::sqrt(x)) : naive_power(x, p); };
        const A before = slot0[c], sum = before + g[c] * g[c];
        const A grown = cols == 1 ? naive_power(sum, p) - naive_power(before, p) : powered(sum) - powered(before);
        const A s = shrinkage == A(0) ? g[c] : g[c] + w * (A(2) * shrinkage), moved = grown / lr * w;
        slot0[c] = sum;
        slot1[c] = cols == 1 ? (slot1[c] + s) - moved : slot1[c] + (s - moved);
        const A linear = slot1[c], inside = linear > l1 ? l1 : linear < -l1 ? -l1 : linear;
        w = (inside - linear) / (powered(sum) / lr + A(2) * l2);
        break;
      }
    }
    put(c, w);
  }
}

// Returns the state after a step with these gradients of rows `ids`, ascending. `put(row, c, pointer, w)` stores a
// weight.
template <class Put>
std::vector<Tensor> naive_step(Rule rule, const StepNumbers& numbers, bool lazy, std::vector<Tensor> state,
                               const Tensor& grad, const Numbers64& ids, Put put) {
  const std::int64_t rows = state[0].rows(), cols = state[0].cols(), size = slot_size(rule, cols);
  visit(Floats{}, state[0].dtype, [&]<class T>(std::type_identity<T>) {
    std::size_t k = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const bool has_gradient = k < ids.size() && ids[k] == row;
      if (!has_gradient && (lazy || !fades(rule))) continue;
      auto slot = [&](std::size_t s) -> Accumulator<T>* {
        return s < state.size() ? state[s].as<Accumulator<T>>() + row * size : nullptr;
      };
      const T* g = has_gradient ? grad.as<T>() + std::int64_t(k++) * cols : nullptr;
      T* w = state[0].as<T>() + row * cols;
      naive_row(rule, numbers, cols, w, slot(1), slot(2), g,
                [&](std::int64_t c, Accumulator<T> to) { put(row, c, w + c, to); });
    }
  });
  return state;
}

}  // namespace test
