// Optimizers' rules for one row, a column at a time, as docs/optimizers.md has them. Rounding by chance is not here: it is
// held by comparing the kernels that do it with one another.
#pragma once
#include "input.h"
#include "rowgrad/row_update.h"

namespace fuzz {

// What a step is told: lr, eps, weight_decay, beta1, beta2, rate.
struct Step {
  Rule rule = Rule::sgd;
  bool lazy = true, random = false;
  double numbers[6] = {0.05, 1e-6, 0, 0.8, 0.95, 0.03};
  std::int64_t seed = 7, number = 3;

  explicit Step(Input& in) : rule(Rule(in.below(5))), lazy(in.flag()), random(in.flag()) {
    if (in.flag()) numbers[2] = 0.1;
    if (in.flag()) seed = std::int64_t(in.bits());
  }
  Numbers64 attrs(std::int64_t rows, const Numbers64& own = {}) const {
    Numbers64 all = {std::int64_t(rule), rows, lazy, random, seed, number};
    all.insert(all.end(), own.begin(), own.end());
    return all;
  }
  Tensor tensor() const {
    Tensor t(DType::float64, {6});
    std::copy_n(numbers, 6, t.as<double>());
    return t;
  }
};

// One row with its gradient, or without one (null), in which case moments fade.
template <class T>
void naive_row(const Step& step, std::int64_t cols, T* w, Accumulator<T>* slot0, Accumulator<T>* slot1, const T* grad) {
  using A = Accumulator<T>;
  A number[6];
  for (int i = 0; i < 6; ++i) number[i] = A(step.numbers[i]);
  const auto [lr, eps, decay, beta1, beta2, rate] = number;
  const bool coupled = step.rule != Rule::adamw && decay != A(0);
  std::vector<A> g(static_cast<std::size_t>(cols));
  for (std::int64_t c = 0; grad && c < cols; ++c) {
    g[c] = load(grad[c]);
    if (coupled) g[c] = g[c] + load(w[c]) * decay;
  }
  A factor = 0;
  if (step.rule == Rule::row_wise_adagrad) {
    A lane[8] = {};
    for (std::int64_t c = 0; c < cols; ++c) lane[c % 8] += g[c] * g[c];
    slot0[0] += (((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]))) / A(cols);
    factor = lr / (std::sqrt(slot0[0]) + eps);
  }
  for (std::int64_t c = 0; c < cols; ++c) {
    A to = load(w[c]);
    switch (step.rule) {
      case Rule::sgd:
        to -= lr * g[c];
        break;
      case Rule::row_wise_adagrad:
        to -= factor * g[c];
        break;
      case Rule::adagrad:
        slot0[c] += g[c] * g[c];
        to -= lr * g[c] / (std::sqrt(slot0[c]) + eps);
        break;
      default:
        slot0[c] *= beta1;
        slot1[c] *= beta2;
        if (grad) {
          slot0[c] += g[c] * (A(1) - beta1);
          slot1[c] += g[c] * g[c] * (A(1) - beta2);
        }
        if (step.rule == Rule::adamw && decay != A(0)) to -= lr * decay * to;
        to -= rate * slot0[c] / (std::sqrt(slot1[c]) + eps);
    }
    w[c] = store<T>(to);
  }
}

// The state after a step with these gradients of the rows `ids`, ascending.
inline std::vector<Tensor> naive_step(const Step& step, std::vector<Tensor> state, const Tensor& grad,
                                      const Numbers64& ids) {
  const std::int64_t rows = state[0].rows(), cols = state[0].cols(), size = slot_size(step.rule, cols);
  visit(Floats{}, state[0].dtype, [&]<class T>(std::type_identity<T>) {
    std::size_t k = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const bool named = k < ids.size() && ids[k] == row;
      if (!named && (step.lazy || !fades(step.rule))) continue;
      auto slot = [&](std::size_t s) {
        return s < state.size() ? state[s].as<Accumulator<T>>() + row * size : nullptr;
      };
      const T* g = named ? grad.as<T>() + std::int64_t(k++) * cols : nullptr;
      naive_row(step, cols, state[0].as<T>() + row * cols, slot(1), slot(2), g);
    }
  });
  return state;
}

}  // namespace fuzz
