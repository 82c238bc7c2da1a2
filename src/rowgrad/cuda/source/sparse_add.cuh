// SparseAdd, its gradient, and the transpose of the gradient.
//
// All three walk along lists and pair equal entries. For sorted lists, a search finds the place of an entry in the
// walk, for all entries at once. Unsorted lists must match TensorFlow's walk step by step: one thread does it, which is
// slow.
#pragma once
#include "coordinates.cuh"

namespace rowgrad {

struct CheckOrder {
  const int64_t* a;
  int64_t a_rows;
  const int64_t* b;
  int64_t b_rows;
  const int64_t* sum;
  int64_t sum_rows;
  int64_t rank;
  int64_t repeats;
  Checks* order;
};

DEVICE bool has_fall(const Coordinates& list, int64_t repeats) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  bool falls = false;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x + 1; i < list.rows; i += stride) {
    const int relation = relate(list[i - 1], list[i], list.rank);
    falls |= repeats ? relation > 0 : relation >= 0;
  }
  return falls;
}

// Raises `order` where a list decreases or, unless allowed, repeats an entry.
DEVICE void check_order(const CheckOrder& p) {
  bool falls = has_fall({p.a, p.a_rows, p.rank}, p.repeats);
  falls |= has_fall({p.b, p.b_rows, p.rank}, p.repeats);
  falls |= has_fall({p.sum, p.sum_rows, p.rank}, p.repeats);
  if (falls) atomicOr(&p.order->raised, 1u);
}

template <class T>
struct RealOf {
  typedef T type;
};
template <class P>
struct RealOf<complex<P>> {
  typedef P type;
};

DEVICE float magnitude(float x) { return x < 0 ? -x : x; }
DEVICE double magnitude(double x) { return x < 0 ? -x : x; }

DEVICE bool is_infinite(double x) { return (bits_of(x) << 1) == 0xffe0000000000000ull; }

// Squares of float32 are exact in double.
DEVICE float magnitude(complex<float> z) {
  const double x = z.re, y = z.im;
  if (is_infinite(x) || is_infinite(y)) return float_of(0x7f800000u);
  return float(sqrt(x * x + y * y));
}

// Squares and their sum are computed as pairs of doubles, so that only the root is rounded.
DEVICE double magnitude(complex<double> z) {
  const double x = magnitude(z.re), y = magnitude(z.im);
  if (is_infinite(x)) return x;
  if (is_infinite(y)) return y;
  const double larger = x < y ? y : x, smaller = x < y ? x : y;
  if (!(larger > 0)) return x + y;  // zeros, or NaN
  constexpr double kFar = 0x1p600;
  const double scale = larger > 0x1p500 ? 1 / kFar : larger < 0x1p-400 ? kFar : 1;
  const double a = larger * scale, b = smaller * scale;
  const double aa = a * a, bb = b * b, sum = aa + bb;
  const double rest = ((aa - sum) + bb) + (fma(a, a, -aa) + fma(b, b, -bb));
  const double root = sqrt(sum);
  return (root + (fma(-root, root, sum) + rest) / (2 * root)) / scale;
}

// Whether thresh <= |sum|; false for NaN. As in TensorFlow, 8- and 16-bit integers are promoted, while the smallest
// int32 or int64 has no absolute value and stays negative.
template <class T>
DEVICE bool reaches(T sum, T thresh) {
  return flushed(load(thresh)) <= magnitude(load(sum));
}
template <class P>
DEVICE bool reaches(complex<P> sum, P thresh) {
  return flushed(thresh) <= magnitude(sum);
}
DEVICE bool reaches(int8_t sum, int8_t thresh) { return thresh <= (sum < 0 ? -sum : sum); }
DEVICE bool reaches(int16_t sum, int16_t thresh) { return thresh <= (sum < 0 ? -sum : sum); }
DEVICE bool reaches(int32_t sum, int32_t thresh) { return thresh <= (sum < 0 ? int32_t(0u - uint32_t(sum)) : sum); }
DEVICE bool reaches(int64_t sum, int64_t thresh) { return thresh <= (sum < 0 ? wrapping_minus(0, sum) : sum); }
DEVICE bool reaches(uint8_t sum, uint8_t thresh) { return thresh <= sum; }
DEVICE bool reaches(uint16_t sum, uint16_t thresh) { return thresh <= sum; }
DEVICE bool reaches(uint32_t sum, uint32_t thresh) { return thresh <= sum; }
DEVICE bool reaches(uint64_t sum, uint64_t thresh) { return thresh <= sum; }

// The entries that a step of the merge takes, and whether the result keeps them.
constexpr uint8_t kTakesA = 1, kTakesB = 2, kKeeps = 4;

struct AddSteps {
  const int64_t* a;
  const uint8_t* a_values;
  int64_t a_rows;
  const int64_t* b;
  const uint8_t* b_values;
  int64_t b_rows;
  int64_t rank;
  const uint8_t* thresh;
  uint8_t* steps;
  const Checks* order;
};

template <class T>
DEVICE uint8_t step_of_both(const AddSteps& p, int64_t i, int64_t j) {
  const T sum = sum_of(reinterpret_cast<const T*>(p.a_values)[i], reinterpret_cast<const T*>(p.b_values)[j]);
  const auto thresh = *reinterpret_cast<const typename RealOf<T>::type*>(p.thresh);
  return uint8_t(kTakesA | kTakesB | (reaches(sum, thresh) ? kKeeps : 0));
}

// TensorFlow's merge, for unsorted lists.
template <class T>
DEVICE void walk_steps(const AddSteps& p, const Coordinates& a, const Coordinates& b) {
  int64_t i = 0, j = 0, t = 0;
  for (; i < a.rows && j < b.rows; ++t) {
    const int relation = relate(a[i], b[j], a.rank);
    p.steps[t] = relation < 0 ? kTakesA | kKeeps : relation > 0 ? kTakesB | kKeeps : step_of_both<T>(p, i, j);
    i += relation <= 0;
    j += relation >= 0;
  }
  for (; i < a.rows; ++i) p.steps[t++] = kTakesA | kKeeps;
  for (; j < b.rows; ++j) p.steps[t++] = kTakesB | kKeeps;
  while (t < a.rows + b.rows) p.steps[t++] = 0;
}

// Returns how many of the first `count` entries of both lists merged are a's, which come before equal entries of b. The
// result is known to be in [low, high].
DEVICE int64_t merged_of_a(const Coordinates& a, const Coordinates& b, int64_t count, int64_t low, int64_t high) {
  if (low < count - b.rows) low = count - b.rows;
  if (high > a.rows) high = a.rows;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (relate(a[middle], b[count - 1 - middle], a.rank) <= 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Returns how many entries right before this one are equal to it.
DEVICE int64_t repeats_before(const Coordinates& list, int64_t i) {
  if (i == 0 || relate(list[i - 1], list[i], list.rank) != 0) return 0;
  return i - count_before(list, list[i], 0, i);
}

// Writes one step per entry of both lists merged. Equal entries are paired first with first, second with second: a's
// entry takes the step for both, and b's takes none. Remaining entries of b come after all of a's, as in the walk.
template <class T>
DEVICE void add_steps(const AddSteps& p) {
  const Coordinates a{p.a, p.a_rows, p.rank}, b{p.b, p.b_rows, p.rank};
  if (is_raised(p.order)) {
    if (blockIdx.x == 0 && threadIdx.x == 0) walk_steps<T>(p, a, b);
    return;
  }
  __shared__ int64_t next;  // entries of a before the tile
  const Part part = part_of(a.rows + b.rows);
  if (threadIdx.x == 0) next = merged_of_a(a, b, part.begin, 0, part.begin);
  for (int64_t base = part.begin; base < part.end; base += blockDim.x) {
    __syncthreads();
    const int64_t first = next, t = base + threadIdx.x;
    __syncthreads();
    if (t >= part.end) continue;
    const int64_t i = merged_of_a(a, b, t, first, first + threadIdx.x), j = t - i;
    const bool is_a = i < a.rows && (j >= b.rows || relate(a[i], b[j], a.rank) <= 0);
    if (threadIdx.x == blockDim.x - 1) next = i + is_a;
    const int64_t repeats = is_a ? repeats_before(a, i) : repeats_before(b, j);
    const int64_t other = is_a ? j + repeats : i - 1 - repeats;
    const bool is_paired = is_a ? other < b.rows && relate(a[i], b[other], a.rank) == 0
                                : other >= 0 && relate(a[other], b[j], a.rank) == 0;
    if (is_a)
      p.steps[t] = is_paired ? step_of_both<T>(p, i, other) : kTakesA | kKeeps;
    else
      p.steps[t] = is_paired ? 0 : kTakesB | kKeeps;
  }
}

struct AddCount {
  const uint8_t* steps;
  int64_t size;
  int64_t* counts;
};

// Counts per part how many entries of a and of b the steps take, and how many the result keeps: three lists of counts.
DEVICE void add_count(const AddCount& p) {
  const Part part = part_of(p.size);
  int64_t counts[3] = {0, 0, 0};
  for (int64_t t = part.begin + threadIdx.x; t < part.end; t += blockDim.x)
    for (int which = 0; which < 3; ++which) counts[which] += p.steps[t] >> which & 1;
  for (int which = 0; which < 3; ++which) {
    const int64_t count = sum_of_block(counts[which]);
    if (threadIdx.x == 0) p.counts[which * (int64_t(gridDim.x) + 1) + blockIdx.x] = count;
  }
}

struct AddMove {
  const int64_t* a;
  const uint8_t* a_values;
  const int64_t* b;
  const uint8_t* b_values;
  int64_t rank;
  const uint8_t* steps;
  int64_t size;
  const int64_t* counts;
  int64_t* to_indices;
  uint8_t* to_values;
};

// Uses the grid of `add_count`: writes the entries and values of the steps. A tile's three counts fit into one number.
template <class T>
DEVICE void add_move(const AddMove& p) {
  constexpr uint32_t kBits = 10, kMask = (1u << kBits) - 1u;
  const T *a_values = reinterpret_cast<const T*>(p.a_values), *b_values = reinterpret_cast<const T*>(p.b_values);
  T* to_values = reinterpret_cast<T*>(p.to_values);
  const int64_t* counts = p.counts + blockIdx.x;
  const int64_t next_list = int64_t(gridDim.x) + 1;
  int64_t passed_a = counts[0], passed_b = counts[next_list], kept = counts[2 * next_list];
  const Part part = part_of(p.size);
  for (int64_t base = part.begin; base < part.end; base += blockDim.x) {
    const int64_t t = base + threadIdx.x;
    const uint32_t step = t < part.end ? p.steps[t] : 0;
    const uint32_t packed = (step & 1u) | (step >> 1 & 1u) << kBits | (step >> 2 & 1u) << 2 * kBits;
    uint32_t total;
    const uint32_t before = scan_block(packed, total);
    const int64_t i = passed_a + (before & kMask), j = passed_b + (before >> kBits & kMask);
    const int64_t to = kept + (before >> 2 * kBits);
    passed_a += total & kMask;
    passed_b += total >> kBits & kMask;
    kept += total >> 2 * kBits;
    if (!(step & kKeeps)) continue;
    const int64_t* row = step & kTakesA ? p.a + i * p.rank : p.b + j * p.rank;
    for (int64_t d = 0; d < p.rank; ++d) p.to_indices[to * p.rank + d] = row[d];
    to_values[to] = !(step & kTakesA)   ? b_values[j]
                    : !(step & kTakesB) ? a_values[i]
                                        : sum_of(a_values[i], b_values[j]);
  }
}

// TensorFlow's walk along both operands and the sum. Calls `on` with matching entries of an operand and the sum.
// Unsorted lists lose matches, as in TensorFlow.
template <class On>
DEVICE void walk_sum(const Coordinates& a, const Coordinates& b, const Coordinates& sum, On& on) {
  int64_t i = 0, j = 0, k = 0;
  while (k < sum.rows && (i < a.rows || j < b.rows)) {
    bool waits = false;
    const int relation_a = i < a.rows ? relate(a[i], sum[k], sum.rank) : 1;
    if (relation_a == 0) on.match_a(i, k);
    i += relation_a <= 0;
    waits |= relation_a < 0;
    const int relation_b = j < b.rows ? relate(b[j], sum[k], sum.rank) : 1;
    if (relation_b == 0) on.match_b(j, k);
    j += relation_b <= 0;
    waits |= relation_b < 0;
    k += !waits;
  }
}

// Searches a block's neighbouring entries in another list, both sorted: two threads find the positions of the first and
// the last entry, the others search between them.
struct Bracket {
  int64_t* ends;

  // Called by all threads of the block, followed by a barrier. Threads with `lane` 0 and 1 search.
  DEVICE void find(const Coordinates& of, int64_t first, const Coordinates& in, unsigned lane) const {
    if (lane > 1) return;
    const int64_t after = first + blockDim.x < of.rows ? first + blockDim.x : of.rows;
    ends[lane] = count_before(in, of[lane == 0 ? first : after - 1], 0, in.rows);
  }
  // Returns the position of x, or -1.
  DEVICE int64_t place(const int64_t* x, const Coordinates& in) const {
    const int64_t k = count_before(in, x, ends[0], ends[1]);
    return k < in.rows && relate(in[k], x, in.rank) == 0 ? k : -1;
  }
};

struct AddGrad {
  const uint8_t* grad;
  const int64_t* a;
  int64_t a_rows;
  const int64_t* b;
  int64_t b_rows;
  const int64_t* sum;
  int64_t sum_rows;
  int64_t rank;
  uint8_t* to_a;
  uint8_t* to_b;
  const Checks* order;
};

template <class U>
struct PickMatched {
  const U* grad;
  U* a;
  U* b;
  DEVICE void match_a(int64_t i, int64_t k) { a[i] = grad[k]; }
  DEVICE void match_b(int64_t j, int64_t k) { b[j] = grad[k]; }
};

template <class U>
DEVICE void pick_found(const Coordinates& list, const Coordinates& sum, const U* grad, U* to, int64_t* ends) {
  const Bracket bracket{ends};
  for (int64_t first = int64_t(blockIdx.x) * blockDim.x; first < list.rows; first += int64_t(gridDim.x) * blockDim.x) {
    bracket.find(list, first, sum, threadIdx.x);
    __syncthreads();
    const int64_t i = first + threadIdx.x;
    if (i < list.rows) {
      const int64_t k = bracket.place(list[i], sum);
      to[i] = k < 0 ? U() : grad[k];
    }
    __syncthreads();
  }
}

// Writes for every entry of a and b the value of the matching entry of the sum, or 0.
template <class U>
DEVICE void add_grad(const AddGrad& p) {
  __shared__ int64_t ends[2];
  const Coordinates a{p.a, p.a_rows, p.rank}, b{p.b, p.b_rows, p.rank}, sum{p.sum, p.sum_rows, p.rank};
  const U* grad = reinterpret_cast<const U*>(p.grad);
  U *to_a = reinterpret_cast<U*>(p.to_a), *to_b = reinterpret_cast<U*>(p.to_b);
  if (!is_raised(p.order)) {
    pick_found(a, sum, grad, to_a, ends);
    pick_found(b, sum, grad, to_b, ends);
    return;
  }
  if (blockIdx.x != 0) return;
  for (int64_t i = threadIdx.x; i < a.rows; i += blockDim.x) to_a[i] = U();
  for (int64_t j = threadIdx.x; j < b.rows; j += blockDim.x) to_b[j] = U();
  __syncthreads();
  if (threadIdx.x != 0) return;
  PickMatched<U> pick{grad, to_a, to_b};
  walk_sum(a, b, sum, pick);
}

struct AddGradGrad {
  const uint8_t* da;
  const uint8_t* db;
  const int64_t* a;
  int64_t a_rows;
  const int64_t* b;
  int64_t b_rows;
  const int64_t* sum;
  int64_t sum_rows;
  int64_t rank;
  uint8_t* to;
  const Checks* order;
};

// Matches of one k are consecutive; `last` tells the first of them, which is copied.
template <class T>
struct AddMatched {
  const T* da;
  const T* db;
  T* to;
  int64_t last;
  DEVICE void add(T value, int64_t k) {
    to[k] = k == last ? sum_of(to[k], value) : value;
    last = k;
  }
  DEVICE void match_a(int64_t i, int64_t k) { add(da[i], k); }
  DEVICE void match_b(int64_t j, int64_t k) { add(db[j], k); }
};

// Every entry of the sum collects its matches.
template <class T>
DEVICE void add_grad_grad(const AddGradGrad& p) {
  __shared__ int64_t ends[4];
  const Coordinates a{p.a, p.a_rows, p.rank}, b{p.b, p.b_rows, p.rank}, sum{p.sum, p.sum_rows, p.rank};
  const T *da = reinterpret_cast<const T*>(p.da), *db = reinterpret_cast<const T*>(p.db);
  T* to = reinterpret_cast<T*>(p.to);
  if (is_raised(p.order)) {
    if (blockIdx.x != 0) return;
    for (int64_t k = threadIdx.x; k < sum.rows; k += blockDim.x) to[k] = T();
    __syncthreads();
    if (threadIdx.x != 0) return;
    AddMatched<T> add{da, db, to, -1};
    walk_sum(a, b, sum, add);
    return;
  }
  const Bracket in_a{ends}, in_b{ends + 2};
  for (int64_t first = int64_t(blockIdx.x) * blockDim.x; first < sum.rows; first += int64_t(gridDim.x) * blockDim.x) {
    in_a.find(sum, first, a, threadIdx.x);
    in_b.find(sum, first, b, threadIdx.x - 2u);
    __syncthreads();
    const int64_t k = first + threadIdx.x;
    if (k < sum.rows) {
      const int64_t i = in_a.place(sum[k], a), j = in_b.place(sum[k], b);
      to[k] = i >= 0 && j >= 0 ? sum_of(da[i], db[j]) : i >= 0 ? da[i] : j >= 0 ? db[j] : T();
    }
    __syncthreads();
  }
}

}  // namespace rowgrad
