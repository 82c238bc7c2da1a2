// Optimizer rules: the update of one row of a table and its slots. docs/reference/optimizers.md has the formulas.
//
// A group of neighbouring lanes of a warp updates a row. Each lane takes W columns, the next lane the next W, and then
// the group continues with the columns after those.
//
// Gradients are in the accumulator's type, but rounded to the table's T: so stored and fused gradients have the same
// bits.
#pragma once
#include "packs.cuh"

namespace rowgrad {

// -- one step of one table ---------------------------------------------------------------------------------------------

// Numbers of a step that kernels read from device memory, where read_numbers wrote them.
struct LiveNumbers {
  double lr, rate;
  int64_t step;
};

// Hyperparameters, slots and all arithmetic are in the accumulator's type.
template <class T>
struct RowUpdate {
  typedef Accumulator<T> A;
  T* table;
  A* slot0;
  A* slot1;
  int64_t cols;
#define NUMBER(name) A name;
  EACH_STEP_NUMBER(NUMBER)
#undef NUMBER
  bool decays;   // weight_decay is not zero; 0·w must not be added, since w may be infinite
  bool random;   // stochastic rounding of 16-bit weights
  uint64_t key;  // of the random numbers

  // Replaces the numbers that are in device memory.
  DEVICE void read(const LiveNumbers& live) {
    lr = flushed(A(live.lr));
    rate = flushed(A(live.rate));
  }
};

DEVICE uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

DEVICE uint64_t random_key(uint64_t seed, uint64_t step) { return splitmix64(splitmix64(seed) ^ step); }

// Reads a kernel's struct; all kernels that update rows have these fields.
template <class T, class P>
DEVICE RowUpdate<T> row_update_of(const P& p) {
  typedef Accumulator<T> A;
  RowUpdate<T> u;
  u.table = static_cast<T*>(p.table);
  u.slot0 = static_cast<A*>(p.slot0);
  u.slot1 = static_cast<A*>(p.slot1);
  u.cols = p.cols;
#define NUMBER(name) u.name = flushed(A(p.name));
  EACH_STEP_NUMBER(NUMBER)
#undef NUMBER
  u.decays = u.weight_decay != A(0);
  u.random = p.random != 0;
  if (p.live) u.read(*p.live);
  u.key = random_key(uint64_t(p.seed), uint64_t(p.live ? p.live->step : p.step));
  return u;
}

// -- rules: step() returns the new weight, given the weight `w`, its gradient `g` and its slots
// -------------------------

// The record's facts about a rule are in its Facts (enums.cuh). per_row: its slot has one number per row, from which
// the `factor` of the row's step is computed. fades: rows without a gradient change too, by their decaying moments.

struct SGD : SGDFacts {
  template <bool graded, class U, class A>
  static DEVICE A step(const U& u, A w, A g, A&, A&, A) {
    return minus(w, times(g, u.lr));
  }
};

struct Adagrad : AdagradFacts {
  template <bool graded, class U, class A>
  static DEVICE A step(const U& u, A w, A g, A& sum, A&, A) {
    sum = plus(sum, times(g, g));
    return minus(w, over(times(g, u.lr), plus(root(sum), u.eps)));
  }
};

struct RowWiseAdagrad : RowWiseAdagradFacts {
  template <bool graded, class U, class A>
  static DEVICE A step(const U&, A w, A g, A&, A&, A factor) {
    return minus(w, times(g, factor));
  }
};

struct Adam : AdamFacts {
  template <bool graded, class U, class A>
  static DEVICE A step(const U& u, A w, A g, A& m, A& v, A) {
    m = times(m, u.beta1);
    v = times(v, u.beta2);
    if constexpr (graded) {
      m = plus(m, times(g, minus(A(1), u.beta1)));
      v = plus(v, times(times(g, g), minus(A(1), u.beta2)));
    }
    return minus(w, over(times(m, u.rate), plus(root(v), u.eps)));
  }
};

struct AdamW : AdamWFacts {
  template <bool graded, class U, class A>
  static DEVICE A step(const U& u, A w, A g, A& m, A& v, A factor) {
    if (u.decays) w = minus(w, times(w, times(u.lr, u.weight_decay)));
    return Adam::step<graded>(u, w, g, m, v, factor);
  }
};

struct Momentum : MomentumFacts {
  template <bool graded, class U, class A>
  static DEVICE A step(const U& u, A w, A g, A& a, A&, A) {
    a = plus(times(a, u.momentum), g);
    if (u.nesterov == A(0)) return minus(w, times(a, u.lr));
    return minus(w, plus(times(g, u.lr), times(a, times(u.momentum, u.lr))));
  }
};

struct Lion : LionFacts {
  template <bool graded, class U, class A>
  static DEVICE A step(const U& u, A w, A g, A& m, A&, A) {
    const A c = plus(times(m, u.beta1), times(g, minus(A(1), u.beta1)));
    const A towards = c > A(0) ? A(1) : c < A(0) ? A(-1) : c;  // NaN for NaN
    m = plus(times(m, u.beta2), times(g, minus(A(1), u.beta2)));
    if (u.decays) w = minus(w, times(w, times(u.lr, u.weight_decay)));
    return minus(w, times(towards, u.lr));
  }
};

DEVICE float power(float x, float exponent) { return powf(x, exponent); }
DEVICE double power(double x, double exponent) { return pow(x, exponent); }

// TensorFlow's order of operations, which differs for tables of one column; √x is always correctly rounded here.
struct Ftrl : FtrlFacts {
  template <bool graded, class U, class A>
  static DEVICE A step(const U& u, A w, A g, A& sum, A& linear, A) {
    const bool by_root = u.lr_power == A(-0.5);
    const A before = by_root ? root(sum) : power(sum, -u.lr_power);
    sum = plus(sum, times(g, g));
    const A after = by_root ? root(sum) : power(sum, -u.lr_power);
    const A s = u.l2_shrinkage == A(0) ? g : plus(g, times(w, times(A(2), u.l2_shrinkage)));
    const A moved = times(over(minus(after, before), u.lr), w);
    linear = u.cols == 1 ? minus(plus(linear, s), moved) : plus(linear, minus(s, moved));
    const A bounded = linear > u.l1 ? u.l1 : linear < -u.l1 ? -u.l1 : linear;
    return over(minus(bounded, linear), plus(over(after, u.lr), times(A(2), u.l2)));
  }
};

// Adds weight decay to the gradient, for rules that decay in the gradient.
template <class Rule, class T, class A>
DEVICE A decayed(const RowUpdate<T>& u, A g, A w) {
  return !Rule::decays_in_gradient || !u.decays ? g : plus(g, times(w, u.weight_decay));
}

// -- stochastic rounding
// -----------------------------------------------------------------------------------------------

// Random bits of one row: 32 per column, a hash of (seed, step, row, column) only.
struct RowRandomBits {
  uint32_t low, high;

  DEVICE RowRandomBits(uint64_t key, int64_t row) {
    const uint64_t bits = splitmix64(key ^ uint64_t(row));
    low = uint32_t(bits);
    high = uint32_t(bits >> 32);
  }

  DEVICE uint32_t at(int64_t column) const {
    uint32_t h = uint32_t(column) * 0x9e3779b9u + low;
    h = (h ^ (h >> 16)) * 0x7feb352du;
    h = h ^ high;
    h = (h ^ (h >> 15)) * 0x846ca68bu;
    return h ^ (h >> 16);
  }
};

// As many random bits are added to the 16 (bfloat16) or 13 (float16) bits that are cut off; a carry rounds up.
// Infinities and NaNs do not change.
DEVICE bfloat16 round_stochastically(bfloat16, float x, uint32_t random_bits) {
  const uint32_t u = bits_of(x), magnitude = u & 0x7fffffffu;
  bfloat16 narrow;
  if (magnitude >= 0x7f800000u)
    narrow.bits = uint16_t((u >> 16) | (magnitude > 0x7f800000u ? 0x40u : 0u));
  else
    narrow.bits = uint16_t((u + (random_bits >> 16)) >> 16);
  return narrow;
}

DEVICE half round_stochastically(half, float x, uint32_t random_bits) {
  const uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu, few = random_bits >> 19;
  uint32_t bits;
  if (magnitude > 0x7f800000u)
    bits = 0x7e00u;
  else if (magnitude >= 0x47800000u)  // 65536 or more
    bits = 0x7c00u;
  else if (magnitude >= 0x38800000u)
    bits = (magnitude - 0x38000000u + few) >> 13;
  else  // below 2⁻¹⁴, float16 is a multiple of 2⁻²⁴; 13 bits below that is 2⁻³⁷
    bits = (uint32_t(int32_t(float_of(magnitude) * 0x1p37f)) + few) >> 13;
  half narrow;
  narrow.bits = uint16_t(sign | bits);
  return narrow;
}

// -- columns -----------------------------------------------------------------------------------------------------------

// W neighbouring columns of a row: weights and slots.
template <class Rule, int W, class T>
struct Columns {
  Pack<T, W> weight;
  Pack<Accumulator<T>, W> slot0, slot1;
};

template <class Rule, int W, class T>
DEVICE Columns<Rule, W, T> load_columns(const RowUpdate<T>& u, int64_t row, int64_t c) {
  const int64_t at = row * u.cols + c;
  Columns<Rule, W, T> columns;
  columns.weight = load_pack<W>(u.table + at);
  if constexpr (Rule::slots > 0) columns.slot0 = load_pack<W>(u.slot0 + at);
  if constexpr (Rule::slots > 1) columns.slot1 = load_pack<W>(u.slot1 + at);
  return columns;
}

// Steps columns [c, c + W) of a row, already loaded. `graded`: whether the row has a gradient, which is `g` with decay;
// `factor` is returned by row_factor.
template <class Rule, bool graded, int W, class T>
DEVICE void step_columns(const RowUpdate<T>& u, int64_t row, int64_t c, Columns<Rule, W, T>& columns,
                         const Accumulator<T> (&g)[W], Accumulator<T> factor) {
  typedef Accumulator<T> A;
  const int64_t at = row * u.cols + c;
  A to[W];
#pragma unroll
  for (int j = 0; j < W; ++j) {
    const A w = load(columns.weight.at[j]);
    to[j] = Rule::template step<graded>(u, w, g[j], columns.slot0.at[j], columns.slot1.at[j], factor);
  }
  if constexpr (Rule::slots > 0) put_pack<W, true>(u.slot0 + at, columns.slot0);
  if constexpr (Rule::slots > 1) put_pack<W, true>(u.slot1 + at, columns.slot1);
  Pack<T, W> weight = packed<T, W>(to);
  if constexpr (sizeof(T) == 2) {
    if (u.random) {
      const RowRandomBits random_bits(u.key, row);
      for (int j = 0; j < W; ++j) weight.at[j] = round_stochastically(T(), to[j], random_bits.at(c + j));
    }
  }
  put_pack<W, true>(u.table + at, weight);
}

// Steps columns in memory, with a gradient without decay.
template <class Rule, bool graded, int W, class T>
DEVICE void update_columns(const RowUpdate<T>& u, int64_t row, int64_t c, const Accumulator<T> (&g)[W],
                           Accumulator<T> factor) {
  Columns<Rule, W, T> columns = load_columns<Rule, W>(u, row, c);
  Accumulator<T> with_decay[W];
#pragma unroll
  for (int j = 0; j < W; ++j)
    with_decay[j] = graded ? decayed<Rule>(u, g[j], load(columns.weight.at[j])) : Accumulator<T>(0);
  step_columns<Rule, graded, W>(u, row, c, columns, with_decay, factor);
}

// -- rows --------------------------------------------------------------------------------------------------------------

// A group of lanes of a warp that update one row; a power of two.
struct LaneGroup {
  int lanes, lane;
  unsigned mask;

  explicit DEVICE LaneGroup(int64_t size)
      : lanes(int(size)),
        lane(int(threadIdx.x) & (lanes - 1)),
        mask(lanes == 32 ? 0xffffffffu : ((1u << lanes) - 1u) << ((threadIdx.x & 31u) - unsigned(lane))) {}
};

// Σg² of a row in the order of inner products: column c adds to sum c mod 8, then a tree over the eight. The group has
// at least eight lanes; every eighth lane holds the same sum. `staged` is shared memory for W numbers per lane.
template <class A, int W>
struct RowSquares {
  const LaneGroup& group;
  A* staged;
  A sum;

  DEVICE RowSquares(const LaneGroup& of, A* memory) : group(of), staged(memory), sum(zero_of<A>()) {}

  // Adds the next columns, W per lane, of which the row still has `left`; called by all lanes of the group together.
  DEVICE void add(const A (&g)[W], int64_t left) {
    Pack<A, W> squares;
    for (int j = 0; j < W; ++j) squares.at[j] = times(g[j], g[j]);
    store_pack<W>(staged + group.lane * W, squares);
    __syncwarp(group.mask);
    const int end = left < group.lanes * W ? int(left) : group.lanes * W;
    for (int i = group.lane & 7; i < end; i += 8) sum = plus(sum, staged[i]);
    __syncwarp(group.mask);
  }

  // Returns the sum in all lanes; call it once.
  DEVICE A total() {
    sum = plus(sum, __shfl_xor_sync(group.mask, sum, 4));
    sum = plus(sum, __shfl_xor_sync(group.mask, sum, 2));
    return plus(sum, __shfl_xor_sync(group.mask, sum, 1));
  }
};

// Adds the mean square to the row's slot; returns the factor of the row's step.
template <class T>
DEVICE Accumulator<T> factor_of(const RowUpdate<T>& u, int64_t row, Accumulator<T> slot, Accumulator<T> squares) {
  typedef Accumulator<T> A;
  const A sum = plus(slot, over(squares, A(u.cols)));
  u.slot0[row] = sum;
  return over(u.lr, plus(root(sum), u.eps));
}

// Does this in one lane and returns the factor in all lanes.
template <class T>
DEVICE Accumulator<T> row_factor(const RowUpdate<T>& u, const LaneGroup& group, int64_t row, Accumulator<T> squares) {
  typedef Accumulator<T> A;
  A factor = zero_of<A>();
  if (group.lane == 0) factor = factor_of(u, row, u.slot0[row], squares);
  return __shfl_sync(group.mask, factor, 0, group.lanes);
}

// Updates a whole row with all lanes of a group. `grad(c, g)` writes the gradients of columns [c, c + W) to g; `staged`
// is for RowSquares, or null if the rule has no slot per row.
template <class Rule, int W, class T, class Grad>
DEVICE void update_row(const RowUpdate<T>& u, const LaneGroup& group, int64_t row, const Grad& grad,
                       Accumulator<T>* staged) {
  typedef Accumulator<T> A;
  const int64_t round = int64_t(group.lanes) * W, first = int64_t(group.lane) * W;
  A factor = zero_of<A>(), g[W];
  if constexpr (Rule::per_row) {
    RowSquares<A, W> squares(group, staged);
    for (int64_t begin = 0; begin < u.cols; begin += round) {
      const int64_t c = begin + first;
      if (c < u.cols) {
        grad(c, g);
        if (u.decays) {
          const Pack<T, W> weight = load_pack<W>(u.table + row * u.cols + c);
          for (int j = 0; j < W; ++j) g[j] = decayed<Rule>(u, g[j], load(weight.at[j]));
        }
      } else {
        for (int j = 0; j < W; ++j) g[j] = zero_of<A>();
      }
      squares.add(g, u.cols - begin);
    }
    factor = row_factor(u, group, row, squares.total());
  }
  for (int64_t c = first; c < u.cols; c += round) {
    grad(c, g);
    update_columns<Rule, true, W>(u, row, c, g, factor);
  }
}

}  // namespace rowgrad
