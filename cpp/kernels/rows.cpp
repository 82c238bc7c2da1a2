// Row arithmetic, compiled once per instruction-set level; ROWGRAD_LEVEL names the table that this copy defines.
// Nothing here may instantiate a function that another level could also define: no containers, no streams.
#include <algorithm>
#include <cstdint>

#include "gradient_rows.h"
#include "narrow_rows.h"
#include "packs.h"
#include "row_table.h"

namespace rowgrad {
namespace {

constexpr std::int64_t kBlock = 64;  // columns kept in registers and L1 while the rows of a bag are added

// Calls fn with std::integral_constant<kBlock> for whole blocks, so that their loops have a constant length.
template <class Fn>
void for_column_blocks(std::int64_t cols, Fn&& fn) {
  std::int64_t c = 0;
  for (; c + kBlock <= cols; c += kBlock) fn(c, std::integral_constant<std::int64_t, kBlock>{});
  if (c < cols) fn(c, cols - c);
}

template <class A, class Row>
inline void add(A* acc, std::int64_t width, Row row) {
  for (std::int64_t c = 0; c < width; ++c) acc[c] = plus<A>(acc[c], row(c));
}

// Sums one bag of at least two ids. Up to `beyond` ids past its end may be prefetched; a table that is `near`, in the
// cache, has code of its own without the test for it, which would cost a sixth of the time of one column. The order of SparseSegment*: a
// first block of n mod 8 rows (0 → 8, 1 → 9), left to right; then blocks of eight, each summed separately and added to
// the total. Means of fewer than ten rows multiply by the reciprocal.
template <bool near, class T, class I>
[[gnu::noinline]] void reduce_bag(T* out, const T* data, std::int64_t cols, const I* ids, std::int64_t n,
                                  std::int64_t beyond, Reduction kind) {
  using A = Accumulator<T>;
  const std::int64_t ahead = prefetch_distance(cols * std::int64_t(sizeof(T))), limit = n + beyond - ahead;
  for_blocks<T>(cols, [&]<int N, int K>(std::int64_t c0) {
    using Rows = Block<T, N, K>;
    auto row = [&](std::int64_t j) {
      if (!near && j < limit)
        prefetch<Rows::columns * std::int64_t(sizeof(T))>(data + std::int64_t(ids[j + ahead]) * cols + c0);
      return data + std::int64_t(ids[j]) * cols + c0;
    };
    Rows total, block;
    std::int64_t j = n & 7;
    if (j < 2) j += 8;
    total.set(row(0));
    for (std::int64_t k = 1; k < j; ++k) total.add(row(k));
    for (; j < n; j += 8) {
      block.set(row(j));
      for (std::int64_t k = j + 1; k < j + 8; ++k) block.add(row(k));
      total.add(block);
    }
    if constexpr (std::is_floating_point_v<A>) {
      if (has_divisor(kind)) {
        const A d = divisor<A>(kind, n), s = A(1) / d;
        for (int k = 0; k < K; ++k) total.lane[k] = n < 10 ? total.lane[k] * s : total.lane[k] / d;
      }
    }
    total.store(out + c0);
  });
}

template <class T, class I>
inline void reduce_or_copy(T* out, const T* data, std::int64_t cols, const I* ids, std::int64_t n, std::int64_t beyond,
                           Reduction kind) {
  if (n > 1)
    return beyond < 0 ? reduce_bag<true>(out, data, cols, ids, n, 0, kind)
                      : reduce_bag<false>(out, data, cols, ids, n, beyond, kind);
  // One id: copy the bits, so that nothing is rounded or flushed.
  const std::int64_t ahead = prefetch_distance(cols * std::int64_t(sizeof(T)));
  if (beyond > ahead) prefetch<256>(data + std::int64_t(ids[ahead]) * cols);
  if (cols > 0) __builtin_memcpy(out, data + std::int64_t(ids[0]) * cols, std::size_t(cols) * sizeof(T));
}

template <class T, class I>
void reduce(T* out, const T* data, std::int64_t cols, const I* ids, std::int64_t n, Reduction kind) {
  reduce_or_copy(out, data, cols, ids, n, 0, kind);
}

// Calls reduce(out row, first id, number of ids, ids beyond them, segment) for the bags that begin in [begin, end), and
// clears the rows between them. Segments may be the caller's array: see bounded_id.
template <class B, class S, class Fn>
inline void each_bag(const B& b, const S* segments, std::int64_t begin, std::int64_t end, Fn reduce) {
  const std::int64_t size = b.ids.size;
  const bool near = b.data_rows * b.cols * std::int64_t(sizeof(*b.data)) <= kNear;
  const auto last = last_id<S>(b.rows);
  while (begin > 0 && begin < end && segments[begin] == segments[begin - 1]) ++begin;  // belongs to the previous part
  std::int64_t previous = begin > 0 ? bounded_id(segments + begin - 1, last) : -1;
  for (std::int64_t i = begin, next; i < end; i = next) {
    const std::int64_t segment = bounded_id(segments + i, last);
    for (next = i + 1; next < size && segments[next] == S(segment);) ++next;
    clear_rows(b.out, b.cols, previous + 1, segment);
    if (next == size) clear_rows(b.out, b.cols, segment + 1, b.rows);
    reduce(b.out + segment * b.cols, i, next - i, near ? -size : size - next, segment);
    previous = segment;
  }
}

template <class T>
void reduce_runs(const Bags<T>& b, std::int64_t begin, std::int64_t end) {
  with_type(b.ids, [&](auto* ids) {
    with_type(b.segments, [&](auto* segments) {
      each_bag(b, segments, begin, end, [&](T* out, std::int64_t i, std::int64_t n, std::int64_t beyond, std::int64_t) {
        reduce_or_copy(out, b.data, b.cols, ids + i, n, beyond, b.kind);
      });
    });
  });
}

// Returns how many columns TensorFlow's SegmentSum handles in vectors of 32 bytes; the rest it sums one by one.
template <class A>
constexpr std::int64_t kPacket = 32 / sizeof(A);

// A 16-bit float that is rounded after every addition, as in SegmentSum.
template <class T>
struct Rounded {
  float value;
  Rounded() = default;
  explicit Rounded(float v) : value(v) {}
  Rounded operator+(Rounded other) const { return Rounded(load(store<T>(value + other.value))); }
};
template <class T>
constexpr std::int64_t kPacket<Rounded<T>> = kPacket<float>;

// The order of SegmentSum: left to right from zero; in whole packets of columns, 16 or more rows are summed as four
// interleaved partial sums, ((s0+s1)+s2)+s3, followed by the last n mod 4 rows.
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

// Calls finish(first column, width, sums) block by block. `row(j, c0)` returns an accessor to row j.
template <class A, class Rows, class Finish>
inline void segment_sums(std::int64_t cols, std::int64_t n, Rows row, Finish finish) {
  const std::int64_t packed = n >= 16 ? cols / kPacket<A> * kPacket<A> : 0;
  auto part = [&](std::int64_t c0, auto width, auto sum) {
    A acc[kBlock];
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

// Sums one weighted bag in the order of SegmentSum (sum_in_four_lanes). `beyond` as in reduce_bag.
template <class T, class I>
[[gnu::noinline]] void reduce_weighted_bag(T* out, const T* data, std::int64_t cols, const I* ids,
                                           const Accumulator<T>* weights, std::int64_t n, std::int64_t beyond,
                                           const Accumulator<T>* total) {
  const std::int64_t ahead = prefetch_distance(cols * std::int64_t(sizeof(T)));
  const std::int64_t limit = n + beyond - ahead, packet = kPacket<Accumulator<T>>;
  const std::int64_t packed = n >= 16 ? cols / packet * packet : 0;
  auto columns = [&](std::int64_t from, std::int64_t width, std::int64_t lanes) {
    for_blocks<T>(width, [&]<int N, int K>(std::int64_t c) {
      using Rows = Block<T, N, K>;
      const T* base = data + from + c;
      auto add = [&](Rows& sum, std::int64_t j) {
        if (j < limit) prefetch<Rows::columns * std::int64_t(sizeof(T))>(base + std::int64_t(ids[j + ahead]) * cols);
        sum.add_scaled(base + std::int64_t(ids[j]) * cols, weights[j]);
      };
      Rows sum;
      if (n == 1) {  // a single product is not added to zero
        sum.set(base + std::int64_t(ids[0]) * cols);
        sum.multiply(weights[0]);
      } else {
        const std::int64_t whole = n / lanes * lanes;
        sum.clear();
        for (std::int64_t j = 0; j < whole; j += lanes) add(sum, j);
        for (std::int64_t k = 1; k < lanes; ++k) {
          Rows lane;
          lane.clear();
          for (std::int64_t j = k; j < whole; j += lanes) add(lane, j);
          sum.add(lane);
        }
        for (std::int64_t j = whole; j < n; ++j) add(sum, j);
      }
      if (total) sum.divide_no_nan(*total);
      sum.store(out + from + c);
    });
  };
  columns(0, packed, 4);
  columns(packed, cols - packed, 1);
}

template <class T>
void weighted_bags(const WeightedBags<T>& b, std::int64_t begin, std::int64_t end) {
  with_type(b.ids, [&](auto* ids) {
    with_type(b.segments, [&](auto* segments) {
      each_bag(b, segments, begin, end, [&](T* out, std::int64_t i, std::int64_t n, std::int64_t beyond, std::int64_t s) {
        const auto* total = b.totals ? b.totals + s : nullptr;
        reduce_weighted_bag(out, b.data, b.cols, ids + i, b.weights + i, n, beyond, total);
      });
    });
  });
}

template <class T>
void reduce_offsets(const OffsetBags<T>& b, std::int64_t begin, std::int64_t end) {
  const bool near = b.data_rows * b.cols * std::int64_t(sizeof(T)) <= kNear;
  const std::int64_t last = b.starts[b.bags];
  for (std::int64_t bag = begin; bag < end; ++bag) {
    const std::int64_t i = b.starts[bag], next = b.starts[bag + 1];
    const std::int64_t beyond = near ? -last : last - next;
    T* out = b.out + bag * b.stride;
    if (next == i)
      clear_rows(out, b.cols, 0, 1);
    else if (b.weights)
      reduce_weighted_bag(out, b.data, b.cols, b.ids + i, b.weights + i, next - i, beyond, b.totals ? b.totals + bag : nullptr);
    else
      reduce_or_copy(out, b.data, b.cols, b.ids + i, next - i, beyond, b.kind);
  }
}

template <class I>
inline std::make_unsigned_t<I> unsigned_bound(std::int64_t bound) {
  using U = std::make_unsigned_t<I>;
  constexpr std::int64_t most = std::int64_t(U(~U(0)) >> 1);  // the largest I
  return bound > most ? U(U(most) + 1) : U(bound);
}

template <class I, class S>
unsigned scan_typed(const I* ids, std::int64_t bound, const S* segments, std::int64_t segment_bound,
                    std::int64_t begin, std::int64_t end) {
  using U = std::make_unsigned_t<I>;
  using V = std::make_unsigned_t<S>;
  const U u = unsigned_bound<I>(bound);
  const V v = unsigned_bound<S>(segment_bound);
  U most = 0;
  V decreases = 0, segments_bad = 0;
  for (std::int64_t i = begin; i < end; ++i) most = U(ids[i]) > most ? U(ids[i]) : most;
  for (std::int64_t i = begin > 0 ? begin : 1; i < end; ++i) decreases |= V(segments[i] < segments[i - 1]);
  if (decreases)
    for (std::int64_t i = begin; i < end; ++i) segments_bad |= V(V(segments[i]) >= v);
  else
    segments_bad = V(segments[begin]) >= v || V(segments[end - 1]) >= v;  // sorted: all others are in between
  return (most >= u || segments_bad ? kOutOfRange : 0u) | (decreases ? kDecreases : 0u);
}

unsigned scan(const IdList& ids, std::int64_t bound, const IdList& segments, std::int64_t segment_bound,
              std::int64_t begin, std::int64_t end) {
  // In chunks that stay in the L1 cache between the loops.
  unsigned found = 0;
  for (std::int64_t i = begin; i < end; i += 1024) {
    const std::int64_t stop = i + 1024 < end ? i + 1024 : end;
    found |= with_type(ids, [&](auto* p) {
      return with_type(segments, [&](auto* s) { return scan_typed(p, bound, s, segment_bound, i, stop); });
    });
  }
  return found;
}

bool narrow(const IdList& ids, std::int64_t begin, std::int64_t end, std::int64_t bound, std::uint32_t* out) {
  constexpr std::int64_t chunk = 2048;  // stays in the L1 cache
  return with_type(ids, [&]<class I>(const I* id) {
    using U = std::make_unsigned_t<I>;
    U high = 0;
    std::uint32_t most = 0;
    for (std::int64_t i = begin; i < end; i += chunk, out += chunk) {
      const std::int64_t n = end - i < chunk ? end - i : chunk;
      for (std::int64_t k = 0; k < n; ++k) {
        const U value = U(id[i + k]);
        if constexpr (sizeof(U) == 8) high |= value >> 32;
        out[k] = std::uint32_t(value);
      }
      for (std::int64_t k = 0; k < n; ++k) most = out[k] > most ? out[k] : most;
    }
    return begin == end || (high == 0 && std::int64_t(most) < bound);
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
  ops = {reduce<T, std::int32_t>, reduce<T, std::int64_t>, reduce_runs<T>};
}
template <class T>
void fill(SegmentSumOps<T>& ops) {
  ops = {segment_sum<T>};
}
template <class T>
void fill(GradOps<T>& ops) {
  ops = {accumulate_runs<T, std::uint32_t>,
         accumulate_runs<T, std::uint64_t>,
         accumulate_listed<T, std::uint32_t>,
         accumulate_listed<T, std::uint64_t>,
         accumulate_planned<T, std::int32_t>,
         accumulate_planned<T, std::int64_t>,
         scale_terms<T>,
         accumulate_narrow<Accumulator<T>>,
         weighted_bags<T>,
         reduce_offsets<T>,
         weighted_row<T>,
         weighted_runs<T, std::uint32_t>,
         weighted_runs<T, std::uint64_t>,
         weighted_listed<T, std::uint32_t>,
         weighted_listed<T, std::uint64_t>,
         weighted_planned<T>,
         dot<T>};
}

}  // namespace

#define ROWGRAD_JOIN_(a, b) a##b
#define ROWGRAD_JOIN(a, b) ROWGRAD_JOIN_(a, b)

void ROWGRAD_JOIN(fill_rows_, ROWGRAD_LEVEL)(RowTable& table) {
  table.scan = {narrow, scan, count_runs};
  std::apply([](auto&... ops) { (fill(ops), ...); }, table.sum);
  std::apply([](auto&... ops) { (fill(ops), ...); }, table.segment_sum);
  std::apply([](auto&... ops) { (fill(ops), ...); }, table.grad);
}

}  // namespace rowgrad
