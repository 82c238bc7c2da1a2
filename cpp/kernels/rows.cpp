// Compiled once per instruction-set level, with ROWGRAD_LEVEL naming the table this copy defines.
// Nothing here may instantiate a function that another level could also define: no containers, no streams.
#include <algorithm>
#include <cstdint>

#include "row_table.h"

namespace rowgrad {
namespace {

constexpr std::int64_t kBlock = 64;  // columns kept in registers and L1 while a bag's rows go by

// Calls fn with std::integral_constant<kBlock> for whole blocks, so that their loops have a fixed length.
template <class Fn>
void for_column_blocks(std::int64_t cols, Fn&& fn) {
  std::int64_t c = 0;
  for (; c + kBlock <= cols; c += kBlock) fn(c, std::integral_constant<std::int64_t, kBlock>{});
  if (c < cols) fn(c, cols - c);
}

template <class A, class Row>
inline void set(A* acc, std::int64_t width, Row row) {
  for (std::int64_t c = 0; c < width; ++c) acc[c] = row(c);
}

template <class A, class Row>
inline void add(A* acc, std::int64_t width, Row row) {
  for (std::int64_t c = 0; c < width; ++c) acc[c] = plus<A>(acc[c], row(c));
}

// The order of SparseSegment*: a first block of n mod 8 rows (0 → 8, 1 → 9), then blocks of eight, each
// summed on its own and added to the total. `row(j)` gives an accessor of row j's columns.
template <class A, class Width, class Rows>
inline void sum_in_eights(A* acc, Width width, std::int64_t n, Rows row) {
  A block[kBlock];
  std::int64_t j = n & 7;
  if (j < 2) j += 8;
  j = std::min(j, n);
  set(acc, width, row(0));
  for (std::int64_t k = 1; k < j; ++k) add(acc, width, row(k));
  for (; j < n; j += 8) {
    set(block, width, row(j));
    for (std::int64_t k = j + 1; k < j + 8; ++k) add(block, width, row(k));
    add(acc, width, [&](std::int64_t c) { return block[c]; });
  }
}

template <class T, class I>
void reduce(T* out, const T* data, std::int64_t cols, const I* ids, std::int64_t n, Reduce kind) {
  using A = Accumulator<T>;
  if (n == 1) {  // a copy of the bits: nothing is rounded or flushed
    std::copy_n(data + ids[0] * cols, cols, out);
    return;
  }
  for_column_blocks(cols, [&](std::int64_t c0, auto width) {
    A acc[kBlock];
    sum_in_eights(acc, width, n, [&](std::int64_t j) {
      const T* row = data + std::int64_t(ids[j]) * cols + c0;
      return [row](std::int64_t c) { return load(row[c]); };
    });
    if constexpr (std::is_floating_point_v<A>) {
      if (kind != Reduce::sum) {
        const A d = divisor<A>(kind, n);
        if (n < 10) {
          const A s = A(1) / d;
          for (std::int64_t c = 0; c < width; ++c) acc[c] *= s;
        } else {
          for (std::int64_t c = 0; c < width; ++c) acc[c] /= d;
        }
      }
    }
    for (std::int64_t c = 0; c < width; ++c) out[c0 + c] = store<T>(acc[c]);
  });
}

// Columns TensorFlow's SegmentSum handles in vectors of 32 bytes; the rest it sums plainly.
template <class A>
constexpr std::int64_t kPacket = 32 / sizeof(A);

// A 16-bit float whose every sum is rounded: how SegmentSum itself adds them.
template <class T>
struct Rounded {
  float value;
  Rounded() = default;
  explicit Rounded(float v) : value(v) {}
  Rounded operator+(Rounded other) const { return Rounded(load(store<T>(value + other.value))); }
};
template <class T>
constexpr std::int64_t kPacket<Rounded<T>> = kPacket<float>;

// The order of SegmentSum: left to right from zero; in whole packets of columns, 16 rows or more are
// summed as four interleaved partial sums, ((s0+s1)+s2)+s3, and the last n mod 4 rows follow.
template <class A, class Width, class Rows>
inline void sum_in_four_lanes(A* acc, Width width, std::int64_t n, Rows row) {
  const std::int64_t whole = n / 4 * 4;
  A lane[kBlock];
  for (std::int64_t k = 0; k < 4; ++k) {
    A* target = k == 0 ? acc : lane;
    for (std::int64_t c = 0; c < width; ++c) target[c] = A(0);
    for (std::int64_t j = k; j < whole; j += 4) add(target, width, row(j));
    if (k > 0) add(acc, width, [&](std::int64_t c) { return lane[c]; });
  }
  for (std::int64_t j = whole; j < n; ++j) add(acc, width, row(j));
}

template <class A, class Width, class Rows>
inline void sum_from_zero(A* acc, Width width, std::int64_t n, Rows row) {
  for (std::int64_t c = 0; c < width; ++c) acc[c] = A(0);
  for (std::int64_t j = 0; j < n; ++j) add(acc, width, row(j));
}

// Calls finish(first column, width, sums) block by block. `row(j, c0)` gives an accessor.
template <class A, class Rows, class Finish>
inline void segment_sums(std::int64_t cols, std::int64_t n, Rows row, Finish finish) {
  const std::int64_t packed = n >= 16 ? cols / kPacket<A> * kPacket<A> : 0;
  auto part = [&](std::int64_t c0, auto width, auto sum) {
    A acc[kBlock];
    if (n == 1)
      set(acc, width, row(0, c0));
    else
      sum(acc, width, n, [&](std::int64_t j) { return row(j, c0); });
    finish(c0, width, acc);
  };
  for_column_blocks(packed, [&](std::int64_t c0, auto width) {
    part(c0, width, [](A* acc, auto w, std::int64_t m, auto rows) { sum_in_four_lanes(acc, w, m, rows); });
  });
  for_column_blocks(cols - packed, [&](std::int64_t c0, auto width) {
    part(packed + c0, width, [](A* acc, auto w, std::int64_t m, auto rows) { sum_from_zero(acc, w, m, rows); });
  });
}

template <class T>
void segment_sum(T* out, const T* data, std::int64_t cols, std::int64_t n) {
  using A = std::conditional_t<is_16bit_float<T>, Rounded<T>, T>;
  if (n == 1) {
    std::copy_n(data, cols, out);
    return;
  }
  segment_sums<A>(
      cols, n,
      [&](std::int64_t j, std::int64_t c0) {
        const T* row = data + j * cols + c0;
        return [row](std::int64_t c) { return A(load(row[c])); };
      },
      [&](std::int64_t c0, std::int64_t width, const A* acc) {
        for (std::int64_t c = 0; c < width; ++c) {
          if constexpr (is_16bit_float<T>)
            out[c0 + c] = store<T>(acc[c].value);
          else
            out[c0 + c] = acc[c];
        }
      });
}

template <class A>
inline A divide_no_nan(A a, A b) {
  return b == A(0) ? A(0) : a / b;
}

template <class T>
void weighted_reduce(T* out, const T* data, std::int64_t cols, const std::int64_t* ids, const Accumulator<T>* weights,
                     std::int64_t n, const Accumulator<T>* total) {
  using A = Accumulator<T>;
  segment_sums<A>(
      cols, n,
      [&](std::int64_t j, std::int64_t c0) {
        const T* row = data + ids[j] * cols + c0;
        const A w = weights[j];
        return [row, w](std::int64_t c) { return load(row[c]) * w; };
      },
      [&](std::int64_t c0, std::int64_t width, const A* acc) {
        for (std::int64_t c = 0; c < width; ++c)
          out[c0 + c] = store<T>(total ? divide_no_nan(acc[c], *total) : acc[c]);
      });
}

template <class T, class P>
void accumulate(T* out, const T* grad, std::int64_t cols, const Entry<P>* e, std::int64_t n,
                const Accumulator<T>* scale) {
  using A = Accumulator<T>;
  for_column_blocks(cols, [&](std::int64_t c0, auto width) {
    A acc[kBlock];
    for (std::int64_t c = 0; c < width; ++c) acc[c] = A(0);
    for (std::int64_t j = 0; j < n; ++j) {
      const T* row = grad + std::int64_t(e[j].from) * cols + c0;
      if (scale) {
        const A s = scale[e[j].from];
        add(acc, width, [row, s](std::int64_t c) { return load(row[c]) * s; });
      } else {
        add(acc, width, [row](std::int64_t c) { return load(row[c]); });
      }
    }
    for (std::int64_t c = 0; c < width; ++c) out[c0 + c] = store<T>(acc[c]);
  });
}

template <class A>
inline A weighted_term(A g, A weight, const A* total) {
  return (total ? divide_no_nan(g, *total) : g) * weight;
}

template <class T>
void weighted_row(T* out, const T* grad_row, std::int64_t cols, Accumulator<T> weight, const Accumulator<T>* total) {
  for (std::int64_t c = 0; c < cols; ++c) out[c] = store<T>(weighted_term(load(grad_row[c]), weight, total));
}

template <class T>
void weighted_accumulate(T* out, const T* grad, std::int64_t cols, const std::int64_t* from, std::int64_t n,
                         const std::int64_t* segments, const Accumulator<T>* weights, const Accumulator<T>* totals,
                         Rounding rounding) {
  using A = Accumulator<T>;
  // For 32 and 64 bits the two ways are one: nothing is narrower than the accumulator.
  const bool each_add = is_16bit_float<T> && rounding == Rounding::each_add;
  for_column_blocks(cols, [&](std::int64_t c0, auto width) {
    A acc[kBlock];
    for (std::int64_t c = 0; c < width; ++c) acc[c] = A(0);
    for (std::int64_t j = 0; j < n; ++j) {
      const std::int64_t i = from[j], s = segments[i];
      const T* row = grad + s * cols + c0;
      const A w = weights[i];
      const A* total = totals ? totals + s : nullptr;
      if (each_add) {
        for (std::int64_t c = 0; c < width; ++c)
          acc[c] = load(store<T>(acc[c] + load(store<T>(weighted_term(load(row[c]), w, total)))));
      } else {
        for (std::int64_t c = 0; c < width; ++c) acc[c] += weighted_term(load(row[c]), w, total);
      }
    }
    for (std::int64_t c = 0; c < width; ++c) out[c0 + c] = store<T>(acc[c]);
  });
}

template <class T>
Accumulator<T> dot(const T* a, const T* b, std::int64_t cols) {
  using A = Accumulator<T>;
  A lane[8] = {};
  std::int64_t c = 0;
  for (; c + 8 <= cols; c += 8)
    for (int k = 0; k < 8; ++k) lane[k] += load(a[c + k]) * load(b[c + k]);
  for (int k = 0; c < cols; ++c, ++k) lane[k] += load(a[c]) * load(b[c]);
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

template <class T>
void fill(SumOps<T>& ops) {
  ops = {reduce<T, std::int32_t>, reduce<T, std::int64_t>};
}
template <class T>
void fill(SegmentSumOps<T>& ops) {
  ops = {segment_sum<T>};
}
template <class T>
void fill(GradOps<T>& ops) {
  ops = {accumulate<T, std::uint32_t>, accumulate<T, std::uint64_t>, weighted_reduce<T>,
         weighted_row<T>,              weighted_accumulate<T>,       dot<T>};
}

}  // namespace

#define ROWGRAD_JOIN_(a, b) a##b
#define ROWGRAD_JOIN(a, b) ROWGRAD_JOIN_(a, b)

void ROWGRAD_JOIN(fill_rows_, ROWGRAD_LEVEL)(RowTable& table) {
  std::apply([](auto&... ops) { (fill(ops), ...); }, table.sum);
  std::apply([](auto&... ops) { (fill(ops), ...); }, table.segment_sum);
  std::apply([](auto&... ops) { (fill(ops), ...); }, table.grad);
}

}  // namespace rowgrad
