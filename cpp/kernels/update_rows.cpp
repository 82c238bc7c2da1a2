// Vectorized optimizer rules, compiled once per instruction-set level. As in rows.cpp, nothing here may instantiate a
// function that another level could also define.
#include <math.h>

#include <cstdint>

#include "gradient_rows.h"
#include "packs.h"
#include "random_rounding.h"
#include "row_table.h"
#include "rowgrad/row_update.h"
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace rowgrad {
namespace {

// Correctly rounded, as IEEE requires, so every implementation returns the same bits.
template <class A, int N>
inline Vector<A, N> root(Vector<A, N> v) {
  constexpr bool single = sizeof(A) == 4;
  if constexpr (N == 1) {
    if constexpr (single) return __builtin_sqrtf(v);
    return __builtin_sqrt(v);
  } else {
    using V = Vector<A, N>;
#if defined(__x86_64__) || defined(_M_X64)
    if constexpr (sizeof(V) == 16 && single) return reinterpret_cast<V>(_mm_sqrt_ps(reinterpret_cast<__m128>(v)));
    if constexpr (sizeof(V) == 16 && !single) return reinterpret_cast<V>(_mm_sqrt_pd(reinterpret_cast<__m128d>(v)));
#if defined(__AVX__)
    if constexpr (sizeof(V) == 32 && single) return reinterpret_cast<V>(_mm256_sqrt_ps(reinterpret_cast<__m256>(v)));
    if constexpr (sizeof(V) == 32 && !single) return reinterpret_cast<V>(_mm256_sqrt_pd(reinterpret_cast<__m256d>(v)));
#endif
#if defined(__AVX512F__)
    if constexpr (sizeof(V) == 64 && single)
      return reinterpret_cast<V>(_mm512_maskz_sqrt_ps(0xffff, reinterpret_cast<__m512>(v)));
    if constexpr (sizeof(V) == 64 && !single)
      return reinterpret_cast<V>(_mm512_maskz_sqrt_pd(0xff, reinterpret_cast<__m512d>(v)));
#endif
#else
    for (int i = 0; i < N; ++i) v[i] = root<A, 1>(v[i]);
    return v;
#endif
  }
}

// Adds weight decay to the gradient, for rules that decay in the gradient.
template <class T, Rule rule, int N>
inline Lane<T, N> gradient(const RowUpdate<T>& u, const T* grad, Lane<T, N> w) {
  const Lane<T, N> g = load_lane<T, N>(grad);
  if (!decays_in_gradient(rule) || u.weight_decay == 0) return g;  // w may be infinite: 0·w would be NaN
  return g + w * u.weight_decay;
}

// Returns Σg² over the columns in the order of inner products: column c adds to sum c mod 8, then a tree over the
// eight.
template <class T, Rule rule>
inline Accumulator<T> squares(const RowUpdate<T>& u, const T* grad, const T* w) {
  using A = Accumulator<T>;
  constexpr int whole = kVectorBytes / int(sizeof(A)), N = whole < 8 ? whole : 8, K = 8 / N;
  Lane<T, N> sum[K] = {};
  std::int64_t c = 0;
  for (; c + 8 <= u.cols; c += 8)
    for (int k = 0; k < K; ++k) {
      const std::int64_t at = c + k * N;
      const Lane<T, N> g = gradient<T, rule, N>(u, grad + at, load_lane<T, N>(w + at));
      sum[k] += g * g;
    }
  A lane[8];
  for (int k = 0; k < K; ++k) store_lane<A, N>(lane + k * N, sum[k]);
  for (int k = 0; c < u.cols; ++c, ++k) {
    const A g = gradient<T, rule, 1>(u, grad + c, load_lane<T, 1>(w + c));
    lane[k] += g * g;
  }
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

template <Rule>
constexpr bool has_no_arithmetic = false;

// Raises x to a power with the system's math library in the accumulator's type, as TensorFlow does for single columns.
// The functions are not compiler builtins here (CMakeLists.txt): Clang replaces a power of 0.5 by a square root, which has
// other bits for 1 in 1,600 numbers.
template <class A, int N>
inline Vector<A, N> power(Vector<A, N> x, A exponent) {
  if constexpr (N == 1) {
    if constexpr (sizeof(A) == 4) return ::powf(x, exponent);
    return ::pow(x, exponent);
  } else {
    for (int i = 0; i < N; ++i) x[i] = power<A, 1>(x[i], exponent);
    return x;
  }
}

// Returns -1, 0 or 1; NaN for NaN.
template <class A, int N>
inline Vector<A, N> sign(Vector<A, N> x) {
  if constexpr (N == 1) {
    return x > 0 ? A(1) : x < 0 ? A(-1) : x;
  } else {
    for (int i = 0; i < N; ++i) x[i] = sign<A, 1>(x[i]);
    return x;
  }
}

template <class A, int N>
inline Vector<A, N> bounded(Vector<A, N> x, A bound) {
  if constexpr (N == 1) {
    return x > bound ? bound : x < -bound ? -bound : x;
  } else {
    for (int i = 0; i < N; ++i) x[i] = bounded<A, 1>(x[i], bound);
    return x;
  }
}

// Updates some columns of a row. `graded`: whether the row has a gradient; `factor`: RowWiseAdagrad's step for the row.
template <class T, Rule rule, bool graded, int N>
inline Lane<T, N> updated(const RowUpdate<T>& u, const T* weight, Accumulator<T>* slot0, Accumulator<T>* slot1,
                          const T* grad, Accumulator<T> factor) {
  using A = Accumulator<T>;
  Lane<T, N> w = load_lane<T, N>(weight);
  if constexpr (rule == Rule::sgd) {
    return w - gradient<T, rule, N>(u, grad, w) * u.lr;
  } else if constexpr (rule == Rule::row_wise_adagrad) {
    return w - gradient<T, rule, N>(u, grad, w) * factor;
  } else if constexpr (rule == Rule::adagrad) {
    const Lane<T, N> g = gradient<T, rule, N>(u, grad, w), a = load_lane<A, N>(slot0) + g * g;
    store_lane<A, N>(slot0, a);
    return w - g * u.lr / (root<A, N>(a) + u.eps);
  } else if constexpr (rule == Rule::adam || rule == Rule::adamw) {
    Lane<T, N> m = load_lane<A, N>(slot0) * u.beta1, v = load_lane<A, N>(slot1) * u.beta2;
    if constexpr (graded) {
      const Lane<T, N> g = gradient<T, rule, N>(u, grad, w);
      m += g * (A(1) - u.beta1);
      v += g * g * (A(1) - u.beta2);
    }
    store_lane<A, N>(slot0, m);
    store_lane<A, N>(slot1, v);
    if (rule == Rule::adamw && u.weight_decay != 0) w -= w * (u.lr * u.weight_decay);
    return w - m * u.rate / (root<A, N>(v) + u.eps);
  } else if constexpr (rule == Rule::momentum) {
    const Lane<T, N> g = gradient<T, rule, N>(u, grad, w), a = load_lane<A, N>(slot0) * u.momentum + g;
    store_lane<A, N>(slot0, a);
    if (u.nesterov == 0) return w - a * u.lr;
    return w - (g * u.lr + a * (u.momentum * u.lr));
  } else if constexpr (rule == Rule::lion) {
    const Lane<T, N> g = gradient<T, rule, N>(u, grad, w), m = load_lane<A, N>(slot0);
    const Lane<T, N> towards = sign<A, N>(m * u.beta1 + g * (A(1) - u.beta1));
    store_lane<A, N>(slot0, m * u.beta2 + g * (A(1) - u.beta2));
    if (u.weight_decay != 0) w -= w * (u.lr * u.weight_decay);
    return w - towards * u.lr;
  } else if constexpr (rule == Rule::ftrl) {
    // TensorFlow's order of operations, which differs for tables of one column: those use pow(x, 0.5).
    const bool one_column = u.cols == 1, by_root = u.lr_power == A(-0.5);
    auto powered = [&](Lane<T, N> x) { return by_root ? root<A, N>(x) : power<A, N>(x, -u.lr_power); };
    const Lane<T, N> g = load_lane<T, N>(grad), before = load_lane<A, N>(slot0), sum = before + g * g;
    const Lane<T, N> s = u.l2_shrinkage == 0 ? g : g + w * (A(2) * u.l2_shrinkage);
    const Lane<T, N> of_sum = powered(sum);
    Lane<T, N> grown = of_sum - powered(before);
    if (one_column && by_root) grown = power<A, N>(sum, A(0.5)) - power<A, N>(before, A(0.5));
    const Lane<T, N> sigma = grown / u.lr, l = load_lane<A, N>(slot1);
    const Lane<T, N> linear = one_column ? (l + s) - sigma * w : l + (s - sigma * w);
    store_lane<A, N>(slot0, sum);
    store_lane<A, N>(slot1, linear);
    return (bounded<A, N>(linear, u.l1) - linear) / (of_sum / u.lr + A(2) * u.l2);
  } else {
    static_assert(has_no_arithmetic<rule>, "cpp/kernels/update_rows.cpp: write this rule's step here");
  }
}

template <class T, Rule rule, bool graded, bool random>
inline void update_row(const RowUpdate<T>& u, std::int64_t row, const T* grad) {
  using A = Accumulator<T>;
  T* w = u.table + row * u.cols;
  A factor{};
  if constexpr (is_per_row(rule)) {
    A& sum = u.slots[0][row];
    sum += squares<T, rule>(u, grad, w) / A(u.cols);
    factor = u.lr / (root<A, 1>(sum) + u.eps);
  }
  auto slot = [&]([[maybe_unused]] std::int64_t c, int s) -> A* {
    return !is_per_row(rule) && s < slots_of(rule) ? u.slots[s] + row * u.cols + c : nullptr;
  };
  const RowRandomBits random_bits(random ? u.key : 0, row);
  for_blocks<T>(u.cols, [&, w, factor, grad]<int N, int K>(std::int64_t c0) {
    for (int k = 0; k < K; ++k) {
      const std::int64_t c = c0 + k * N;
      const Lane<T, N> to = updated<T, rule, graded, N>(u, w + c, slot(c, 0), slot(c, 1), graded ? grad + c : nullptr, factor);
      if constexpr (random)
        store_stochastic<T, N>(w + c, to, random_bits.at<N>(c));
      else
        store_lane<T, N>(w + c, to);
    }
  });
}

// Calls fn with the run-time fields of `u` as template constants.
template <class T, class Fn>
inline void by_rule(const RowUpdate<T>& u, Fn&& fn) {
  if (u.cols == 0) return;  // nothing to update; a mean over no columns is undefined
  auto with = [&]<Rule rule>() {
    if constexpr (is_16bit_float<T>)
      if (u.random) return fn.template operator()<rule, true>();
    fn.template operator()<rule, false>();
  };
  switch (u.rule) {
#define ROWGRAD_RULE(name) \
  case Rule::name:         \
    return with.template operator()<Rule::name>();
    ROWGRAD_RULES(ROWGRAD_RULE)
#undef ROWGRAD_RULE
  }
}

template <class T>
void update_named(const RowUpdate<T>& update, const T* grad, const IdList& ids, std::int64_t begin, std::int64_t end,
                  std::int64_t ahead) {
  const RowUpdate<T> u = update;  // a copy, so that stores to the table cannot alias it
  by_rule(u, [&]<Rule rule, bool random>() {
    with_type(ids, [&]<class I>(const I* id) {
      const auto last = last_id<I>(u.rows);
      const std::int64_t limit = ids.size - ahead;
      for (std::int64_t i = begin; i < end; ++i, grad += u.cols) {
        if (i < limit) prefetch_row(u, bounded_id(id + i + ahead, last));
        update_row<T, rule, true, random>(u, bounded_id(id + i, last), grad);
      }
    });
  });
}

template <class T>
void update_all(const RowUpdate<T>& update, const T* grad, std::int64_t first, std::int64_t last) {
  const RowUpdate<T> u = update;
  by_rule(u, [&]<Rule rule, bool random>() {
    for (std::int64_t row = first; row < last; ++row)
      update_row<T, rule, true, random>(u, row, grad + row * u.cols);
  });
}

template <class T>
void fade_rows(const RowUpdate<T>& update, std::int64_t first, std::int64_t last) {
  const RowUpdate<T> u = update;
  by_rule(u, [&]<Rule rule, bool random>() {
    if constexpr (fades(rule))
      for (std::int64_t row = first; row < last; ++row) update_row<T, rule, false, random>(u, row, nullptr);
  });
}

template <class T>
void fill(UpdateOps<T>& ops) {
  ops = {update_named<T>, update_all<T>, fade_rows<T>};
}

}  // namespace

#define ROWGRAD_JOIN_(a, b) a##b
#define ROWGRAD_JOIN(a, b) ROWGRAD_JOIN_(a, b)

void ROWGRAD_JOIN(fill_updates_, ROWGRAD_LEVEL)(RowTable& table) {
  std::apply([](auto&... ops) { (fill(ops), ...); }, table.update);
}

}  // namespace rowgrad
