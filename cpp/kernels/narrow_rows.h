// Branch-free lists of positions, used to count runs of ids and to sum narrow tables.
//
// Include only in code that is compiled once per level; everything here has internal linkage.
#pragma once
#include <cstdint>

#include "gradient_rows.h"

namespace rowgrad {
namespace {

constexpr std::int64_t kListed = 1024;  // ids per pass: their list stays in the L1 cache
constexpr std::int64_t kVectorIds = 16;  // lists are written by whole vectors, so they need capacity for one more

// Whether an id differs from the previous one; ids[-1] must exist.
template <class I>
struct BeginsRun {
  const I* ids;

  bool one(std::int64_t i) const { return ids[i] != ids[i - 1]; }
#if defined(__AVX512F__) && defined(__AVX512VL__)
  unsigned many(std::int64_t i) const {
    const __m512i id = _mm512_loadu_si512(ids + i), before = _mm512_loadu_si512(ids + i - 1);
    return sizeof(I) == 4 ? _mm512_cmpneq_epi32_mask(id, before) : _mm512_cmpneq_epi64_mask(id, before);
  }
#endif
};

// Writes the positions in [0, size) for which `condition` holds to `list`, ascending; returns how many. Branch-free:
// branches would be mispredicted.
template <template <class> class Condition, class I>
inline std::int64_t list_where(const Condition<I> condition, std::int64_t size, std::uint32_t* list) {
  std::int64_t i = 0, k = 0;
#if defined(__AVX512F__) && defined(__AVX512VL__)
  constexpr int lanes = 64 / sizeof(I);
  __m512i at = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (; i + lanes <= size; i += lanes, at = _mm512_add_epi32(at, _mm512_set1_epi32(lanes))) {
    const unsigned in = condition.many(i);
    _mm512_storeu_si512(list + k, _mm512_maskz_compress_epi32(__mmask16(in), at));  // compressstore is slow on some
    k += __builtin_popcount(in);
  }
#endif
  for (; i < size; ++i) {
    list[k] = std::uint32_t(i);
    k += condition.one(i);
  }
  return k;
}

// count[s] += the length of every run of segment s that begins in [begin, end).
template <class S>
void count_typed(const S* segments, std::int64_t size, std::int64_t bound, std::int64_t begin, std::int64_t end,
                 std::int64_t* count) {
  const auto last = last_id<S>(bound);
  while (begin > 0 && begin < end && segments[begin] == segments[begin - 1]) ++begin;  // belongs to the previous part
  if (begin == end) return;
  std::uint32_t starts[kListed + kVectorIds];
  std::int64_t open = begin;  // start of the run that is not yet counted
  for (std::int64_t base = begin + 1; base < end; base += kListed) {
    const std::int64_t n = base + kListed < end ? kListed : end - base;
    const std::int64_t k = list_where(BeginsRun<S>{segments + base}, n, starts);
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int64_t next = base + starts[j];
      count[bounded_id(segments + open, last)] += next - open;
      open = next;
    }
  }
  std::int64_t next = end;
  while (next < size && segments[next] == segments[open]) ++next;
  count[bounded_id(segments + open, last)] += next - open;
}

void count_runs(const IdList& segments, std::int64_t bound, std::int64_t begin, std::int64_t end, std::int64_t* count) {
  with_type(segments, [&](auto* p) { count_typed(p, segments.size, bound, begin, end, count); });
}

template <class T, class Scale>
inline void scaled_rows(Accumulator<T>* terms, const T* grad, std::int64_t cols, std::int64_t begin, std::int64_t end,
                        Scale scale) {
  if (cols == 1) {  // special case so that the compiler vectorizes across rows
    for (std::int64_t s = begin; s < end; ++s) terms[s] = load(grad[s]) * scale(s);
    return;
  }
  for (std::int64_t s = begin; s < end; ++s) {
    const Accumulator<T> w = scale(s);
    for (std::int64_t c = 0; c < cols; ++c) terms[s * cols + c] = load(grad[s * cols + c]) * w;
  }
}

template <class T>
void scale_terms(Accumulator<T>* terms, const T* grad, std::int64_t cols, const std::int64_t* count, Reduction kind,
                 std::int64_t begin, std::int64_t end) {
  using A = Accumulator<T>;
  auto scaled = [=](Reduction constant) {
    scaled_rows(terms, grad, cols, begin, end, [=](std::int64_t s) {
      return gradient_scale<A>(constant, count[s] > 1 ? count[s] : 1);
    });
  };
  switch (kind) {
    case Reduction::sum:
      for (std::int64_t i = begin * cols; i < end * cols; ++i) terms[i] = load(grad[i]);
      return;
    case Reduction::mean:
      return scaled(Reduction::mean);
    case Reduction::sqrtn:
      return scaled(Reduction::sqrtn);
  }
}

// Ids of a thread's own rows, with their segments; choose_algorithm limits both to 2^31.
struct OwnIds {
  std::uint32_t row[kListed + kVectorIds], segment[kListed + kVectorIds];
};

#if defined(__AVX512F__) && defined(__AVX512VL__)
// Loads sixteen ids, each clamped to `last`: see bounded_id.
template <class I>
inline __m512i bounded_vector(const I* ids, std::int64_t last) {
  if constexpr (sizeof(I) == 4) return _mm512_min_epu32(_mm512_loadu_si512(ids), _mm512_set1_epi32(int(last)));
  const auto half = [&](const I* p) {
    return _mm512_cvtepi64_epi32(_mm512_min_epu64(_mm512_loadu_si512(p), _mm512_set1_epi64(last)));
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(half(ids)), half(ids + 8), 1);
}
#endif

// Lists those of `n` ids that are in rows [t.first, t.first + t.rows), in input order; returns how many. Each id is
// read once and bounded. Branch-free: branches would be mispredicted.
template <class A, class I, class S>
inline std::int64_t list_own(const NarrowTable<A>& t, const I* ids, const S* segments, std::int64_t n, OwnIds& own) {
  const std::int64_t last_row = t.table_rows - 1, last_segment = t.num_segments - 1;
  std::int64_t i = 0, k = 0;
#if defined(__AVX512F__) && defined(__AVX512VL__)
  const __m512i first = _mm512_set1_epi32(int(t.first)), rows = _mm512_set1_epi32(int(t.rows));
  for (; i + kVectorIds <= n; i += kVectorIds) {
    const __m512i row = bounded_vector(ids + i, last_row), segment = bounded_vector(segments + i, last_segment);
    const __mmask16 in = _mm512_cmplt_epu32_mask(_mm512_sub_epi32(row, first), rows);
    _mm512_storeu_si512(own.row + k, _mm512_maskz_compress_epi32(in, row));  // compressstore is slow on some CPUs
    _mm512_storeu_si512(own.segment + k, _mm512_maskz_compress_epi32(in, segment));
    k += __builtin_popcount(in);
  }
#endif
  for (; i < n; ++i) {
    own.row[k] = std::uint32_t(bounded_id(ids + i, std::make_unsigned_t<I>(last_row)));
    own.segment[k] = std::uint32_t(bounded_id(segments + i, std::make_unsigned_t<S>(last_segment)));
    k += own.row[k] - std::uint32_t(t.first) < std::uint32_t(t.rows);
  }
  return k;
}

// Lists the ids of this thread's rows, kListed ids at a time, then adds them.
template <int cols, class A>
void add_columns(const NarrowTable<A>& t) {
  with_type(t.ids, [&](const auto* ids) {
    with_type(t.segments, [&](const auto* segments) {
      OwnIds own;
      A* const sums = t.sums;
      const A* const terms = t.terms;
      for (std::int64_t base = 0; base < t.ids.size; base += kListed) {
        const std::int64_t n = base + kListed < t.ids.size ? kListed : t.ids.size - base;
        const std::int64_t k = list_own(t, ids + base, segments + base, n, own);
        for (std::int64_t j = 0; j < k; ++j) {
          const std::int64_t r = std::int64_t(own.row[j]) * cols, s = std::int64_t(own.segment[j]) * cols;
          for (int c = 0; c < cols; ++c) sums[r + c] += terms[s + c];
        }
      }
    });
  });
}

template <class A>
void accumulate_narrow(const NarrowTable<A>& t) {
  static_assert(kNarrow == 4);
  constexpr void (*add[])(const NarrowTable<A>&) = {add_columns<1, A>, add_columns<2, A>, add_columns<3, A>,
                                                    add_columns<4, A>};
  add[t.cols - 1](t);
}

}  // namespace
}  // namespace rowgrad
