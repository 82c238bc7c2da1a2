// Lists of positions, made without branches; runs of ids counted by them; and narrow tables added up by them.
//
// Included only where the code is compiled once per level; everything here has internal linkage.
#pragma once
#include <cstdint>

#include "gradient_rows.h"

namespace rowgrad {
namespace {

constexpr std::int64_t kListed = 1024;  // ids looked at at a time: their list stays in the nearest cache
constexpr std::int64_t kVectorIds = 16;  // lists are stored by whole vectors, so they have room for one more

// Which of the ids are in [first, first + rows).
template <class I>
struct InRows {
  const I* ids;
  std::int64_t first, rows;

  bool one(std::int64_t i) const { return std::uint64_t(std::int64_t(ids[i]) - first) < std::uint64_t(rows); }
#if defined(__AVX512F__) && defined(__AVX512VL__)
  unsigned many(std::int64_t i) const {
    const __m512i id = _mm512_loadu_si512(ids + i);
    if constexpr (sizeof(I) == 4)
      return _mm512_cmplt_epu32_mask(_mm512_sub_epi32(id, _mm512_set1_epi32(int(first))), _mm512_set1_epi32(int(rows)));
    else
      return _mm512_cmplt_epu64_mask(_mm512_sub_epi64(id, _mm512_set1_epi64(first)), _mm512_set1_epi64(rows));
  }
#endif
};

// Which of the ids differ from the one before; there is one before the first.
template <class I>
struct Begins {
  const I* ids;

  bool one(std::int64_t i) const { return ids[i] != ids[i - 1]; }
#if defined(__AVX512F__) && defined(__AVX512VL__)
  unsigned many(std::int64_t i) const {
    const __m512i id = _mm512_loadu_si512(ids + i), before = _mm512_loadu_si512(ids + i - 1);
    return sizeof(I) == 4 ? _mm512_cmpneq_epi32_mask(id, before) : _mm512_cmpneq_epi64_mask(id, before);
  }
#endif
};

// Of positions [0, size) those of which `wanted` is true, ascending, to `list`; returns how many. No branches: each
// would be a toss-up.
template <template <class> class Wanted, class I>
inline std::int64_t list_where(const Wanted<I> wanted, std::int64_t size, std::uint32_t* list) {
  std::int64_t i = 0, k = 0;
#if defined(__AVX512F__) && defined(__AVX512VL__)
  constexpr int lanes = 64 / sizeof(I);
  __m512i at = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (; i + lanes <= size; i += lanes, at = _mm512_add_epi32(at, _mm512_set1_epi32(lanes))) {
    const unsigned in = wanted.many(i);
    _mm512_storeu_si512(list + k, _mm512_maskz_compress_epi32(__mmask16(in), at));  // not compressstore: slow on some
    k += __builtin_popcount(in);
  }
#endif
  for (; i < size; ++i) {
    list[k] = std::uint32_t(i);
    k += wanted.one(i);
  }
  return k;
}

// count[s] += the length of every run of segment s that begins in [begin, end).
template <class S>
void count_typed(const S* segments, std::int64_t size, std::int64_t bound, std::int64_t begin, std::int64_t end,
                 std::int64_t* count) {
  const auto last = last_id<S>(bound);
  while (begin > 0 && begin < end && segments[begin] == segments[begin - 1]) ++begin;  // began before
  if (begin == end) return;
  std::uint32_t starts[kListed + kVectorIds];
  std::int64_t open = begin;  // where the run that is not yet counted begins
  for (std::int64_t base = begin + 1; base < end; base += kListed) {
    const std::int64_t n = base + kListed < end ? kListed : end - base;
    const std::int64_t k = list_where(Begins<S>{segments + base}, n, starts);
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
  if (cols == 1) {  // for the compiler to see: neighbours are then one vector
    for (std::int64_t s = begin; s < end; ++s) terms[s] = load(grad[s]) * scale(s);
    return;
  }
  for (std::int64_t s = begin; s < end; ++s) {
    const Accumulator<T> w = scale(s);
    for (std::int64_t c = 0; c < cols; ++c) terms[s * cols + c] = load(grad[s * cols + c]) * w;
  }
}

template <class T>
void scale_terms(Accumulator<T>* terms, const T* grad, std::int64_t cols, const std::int64_t* count, Reduce kind,
                 std::int64_t begin, std::int64_t end) {
  using A = Accumulator<T>;
  auto scaled = [=](Reduce constant) {
    scaled_rows(terms, grad, cols, begin, end, [=](std::int64_t s) {
      return gradient_scale<A>(constant, count[s] > 1 ? count[s] : 1);
    });
  };
  if (kind == Reduce::mean)
    scaled(Reduce::mean);
  else if (kind == Reduce::sqrtn)
    scaled(Reduce::sqrtn);
  else
    for (std::int64_t i = begin * cols; i < end * cols; ++i) terms[i] = load(grad[i]);
}

// Copies ids, each at most `last`: see bounded_id. By whole vectors, which costs less than a bound where each is used.
template <class I>
inline void copy_bounded(const I* ids, std::int64_t n, std::int64_t bound, I* copy) {
  const auto last = last_id<I>(bound);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto id = std::make_unsigned_t<I>(ids[i]);
    copy[i] = I(id < last ? id : last);
  }
}

// Adds the ids at(0), at(1), … up to at(n).
template <int cols, class A, class I, class S, class At>
inline void add_ids(const NarrowTable<A>& t, const I* ids, const S* segments, std::int64_t n, At at) {
  A* sums = t.sums;
  const A* terms = t.terms;
  for (std::int64_t j = 0; j < n; ++j) {
    const std::int64_t i = at(j), r = std::int64_t(ids[i]) * cols, s = std::int64_t(segments[i]) * cols;
    for (int c = 0; c < cols; ++c) sums[r + c] += terms[s + c];
  }
}

// Some ids at a time, those of these rows are listed, then added.
template <int cols, class A>
void add_columns(const NarrowTable<A>& t) {
  with_type(t.ids, [&]<class I>(const I* ids) {
    with_type(t.segments, [&]<class S>(const S* segments) {
      I id[kListed];
      S segment[kListed];
      std::uint32_t own[kListed + kVectorIds];
      for (std::int64_t base = 0; base < t.ids.size; base += kListed) {
        const std::int64_t n = base + kListed < t.ids.size ? kListed : t.ids.size - base;
        copy_bounded(ids + base, n, t.table_rows, id);
        copy_bounded(segments + base, n, t.num_segments, segment);
        if (t.rows == t.table_rows) {
          add_ids<cols>(t, id, segment, n, [](std::int64_t j) { return j; });
          continue;
        }
        const std::int64_t k = list_where(InRows<I>{id, t.first, t.rows}, n, own);
        add_ids<cols>(t, id, segment, k, [&](std::int64_t j) { return std::int64_t(own[j]); });
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
