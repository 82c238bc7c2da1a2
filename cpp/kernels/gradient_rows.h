// Row arithmetic of gradients: contributions to one output row, added in sequential or blocked order.
//
// Include only in code that is compiled once per level; everything here has internal linkage.
#pragma once
#include <cstdint>

#include "packs.h"
#include "rowgrad/rows.h"

namespace rowgrad {
namespace {

// Prefetch distance in ids: tables are larger than caches. Short rows need more of them in flight to hide the latency of
// memory; 8 KiB fit any L1 cache.
constexpr std::int64_t prefetch_distance(std::int64_t row_bytes) {
  return row_bytes <= 128 ? 64 : row_bytes <= 256 ? 32 : 16;
}
constexpr std::int64_t kNear = 1 << 20;  // bytes of a table that is in the cache anyway: do not prefetch

template <std::int64_t bytes>
inline void prefetch(const void* p) {
  for (std::int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<const char*>(p) + b);
}

// Calls fn with a typed pointer to the ids.
template <class Fn>
inline auto with_type(const IdList& ids, Fn&& fn) {
  return ids.wide ? fn(static_cast<const std::int64_t*>(ids.data)) : fn(static_cast<const std::int32_t*>(ids.data));
}

inline std::int64_t id_at(const IdList& ids, std::int64_t i) {
  return ids.wide ? static_cast<const std::int64_t*>(ids.data)[i] : static_cast<const std::int32_t*>(ids.data)[i];
}

inline std::int64_t bounded_id_at(const IdList& ids, std::int64_t i, std::int64_t bound) {
  return with_type(ids, [&]<class I>(const I* id) { return bounded_id(id + i, last_id<I>(bound)); });
}

// -- the source of entry j of a row: sorted entries, or a plan's list -------------------------------------------------

template <class P>
struct EntryAt {
  const Entry<P>* e;
  std::int64_t operator()(std::int64_t j) const { return std::int64_t(e[j].from); }
};

// Not bounded: another operation between an entry and its row would cost a third of the time (SECURITY.md).
template <class I>
struct ListAt {
  const I* from;
  std::int64_t operator()(std::int64_t j) const { return std::int64_t(from[j]); }
};

// -- how an entry is added: `row` returns its gradient row, `add` adds entries [begin, end) left to right -------------

// grad[at(j)], times the scale of its segment if any.
template <class T, class At>
struct ScaledTerms {
  At at;
  const Accumulator<T>* scale;

  std::int64_t row(std::int64_t j) const { return at(j); }
  template <class Rows, class Row>
  void add(Rows& total, std::int64_t begin, std::int64_t end, Row row_of) const {
    if (scale)
      for (std::int64_t j = begin; j < end; ++j) total.add_scaled(row_of(j), scale[at(j)]);
    else
      for (std::int64_t j = begin; j < end; ++j) total.add(row_of(j));
  }
  template <class Rows>
  void join(Rows& total, const Rows& part) const {
    total.add(part);
  }
};

// For id i = at(j): grad[segments[i]] / totals[segments[i]] · weights[i].
template <class T, class At>
struct WeightedTerms {
  At at;
  WeightedIds<T> ids;

  std::int64_t row(std::int64_t j) const { return id_at(ids.segments, at(j)); }
  // 32- and 64-bit floats are never narrower than the accumulator, so both roundings are the same.
  bool rounds() const { return is_16bit_float<T> && rounds_each_add(ids.rounding); }
  template <class Rows, class Row>
  void add(Rows& total, std::int64_t begin, std::int64_t end, Row row_of) const {
    for (std::int64_t j = begin; j < end; ++j) {
      Rows term;
      term.set(row_of(j));
      if (ids.totals) term.divide_no_nan(ids.totals[row(j)]);
      term.multiply(ids.weights[at(j)]);
      if (rounds()) term.round();
      join(total, term);
    }
  }
  template <class Rows>
  void join(Rows& total, const Rows& part) const {
    total.add(part);
    if (rounds()) total.round();
  }
};

// -- one output row ---------------------------------------------------------------------------------------------------

// Sums runs of 64 entries as a tree: level[0] adds up sums of runs, level[l + 1] sums of 64 sums of level l.
template <class Rows>
struct RunTree {
  static constexpr int kMost = 11;  // 64^11 exceeds an int64 count
  Rows level[kMost];
  int levels = 1;

  explicit RunTree(std::int64_t runs) {
    for (; runs > kRun; runs = (runs + kRun - 1) / kRun) ++levels;
    for (int l = 0; l < levels; ++l) level[l].clear();
  }

  // Adds the sum of run number `done`, counted from 1.
  template <class Terms>
  void add(const Rows& sum, std::int64_t done, const Terms& terms) {
    terms.join(level[0], sum);
    for (int l = 0; l + 1 < levels && done % kRun == 0; ++l, done /= kRun) {
      terms.join(level[l + 1], level[l]);
      level[l].clear();
    }
  }

  // Adding the zero of an empty level changes no bit: a sum that began at +0 is never -0.
  template <class Terms>
  const Rows& total(const Terms& terms) {
    for (int l = 0; l + 1 < levels; ++l) terms.join(level[l + 1], level[l]);
    return level[levels - 1];
  }
};

// Sums one row's entries in the blocked order.
template <class Rows, class Terms, class Row>
[[gnu::noinline]] Rows sum_in_runs(std::int64_t n, const Terms& terms, Row row_of) {
  const std::int64_t runs = (n + kRun - 1) / kRun;
  RunTree<Rows> tree(runs);
  for (std::int64_t r = 0; r < runs; ++r) {
    Rows sum;
    sum.clear();
    terms.add(sum, r * kRun, r + 1 < runs ? (r + 1) * kRun : n, row_of);
    tree.add(sum, r + 1, terms);
  }
  return tree.total(terms);
}

// Sums n entries from zero. Up to `beyond` entries past the end may be prefetched.
template <class T, class Terms>
[[gnu::noinline]] void accumulate_row(T* out, const T* grad, std::int64_t cols, std::int64_t stride, const Terms terms,
                                      std::int64_t n, std::int64_t beyond, Order order) {
  const std::int64_t ahead = prefetch_distance(cols * std::int64_t(sizeof(T))), limit = n + beyond - ahead;
  for_blocks<T>(cols, [&]<int N, int K>(std::int64_t c0) {
    using Rows = Block<T, N, K>;
    auto row_of = [&](std::int64_t j) {
      if (j < limit)
        prefetch<Rows::columns * std::int64_t(sizeof(T))>(grad + terms.row(j + ahead) * stride + c0);
      return grad + terms.row(j) * stride + c0;
    };
    if (is_blocked(order) && n > kRun) return sum_in_runs<Rows>(n, terms, row_of).store(out + c0);
    Rows total;
    total.clear();
    terms.add(total, 0, n, row_of);
    total.store(out + c0);
  });
}

// -- a batch ----------------------------------------------------------------------------------------------------------

// Clears output rows [first, last), which have no ids.
template <class T>
inline void clear_rows(T* out, std::int64_t cols, std::int64_t first, std::int64_t last) {
  if (first < last && cols > 0)
    __builtin_memset(out + first * cols, 0, std::size_t((last - first) * cols) * sizeof(T));
}

// Sums every run of equal rows that begins in [begin, end); the first of them is run number `first` of the batch.
// `terms_at(i)` returns the terms of the entries from i on.
template <class T, class P, class TermsAt>
inline void each_run(const SortedRows<T, P>& r, std::int64_t begin, std::int64_t end, std::int64_t first,
                     TermsAt terms_at) {
  const Entry<P>* e = r.entries;
  while (begin > 0 && begin < end && e[begin].row == e[begin - 1].row) ++begin;  // belongs to the previous part
  for (std::int64_t i = begin, next; i < end; i = next, ++first) {
    const P row = e[i].row;
    for (next = i + 1; next < r.size && e[next].row == row;) ++next;
    T* out = r.out + (r.unique ? first : std::int64_t(row)) * r.cols;
    if (r.table_rows > 0) {
      clear_rows(r.out, r.cols, i > 0 ? std::int64_t(e[i - 1].row) + 1 : 0, std::int64_t(row));
      if (next == r.size) clear_rows(r.out, r.cols, std::int64_t(row) + 1, r.table_rows);
    }
    accumulate_row(out, r.grad, r.cols, r.stride, terms_at(i), next - i, r.size - next, r.order);
  }
}

template <class T, class P, class TermsAt>
inline void each_listed(const SortedRows<T, P>& r, const std::int64_t* starts, std::int64_t runs, TermsAt terms_at) {
  for (std::int64_t k = 0; k < runs; ++k)
    accumulate_row(r.out + k * r.cols, r.grad, r.cols, r.stride, terms_at(starts[k]), starts[k + 1] - starts[k],
                   r.size - starts[k + 1], r.order);
}

template <class T, class P>
void accumulate_runs(const SortedRows<T, P>& r, std::int64_t begin, std::int64_t end, std::int64_t first) {
  using At = EntryAt<P>;
  each_run(r, begin, end, first, [&](std::int64_t i) { return ScaledTerms<T, At>{At{r.entries + i}, r.scale}; });
}

template <class T, class P>
void accumulate_listed(const SortedRows<T, P>& r, const std::int64_t* starts, std::int64_t runs) {
  using At = EntryAt<P>;
  each_listed(r, starts, runs, [&](std::int64_t i) { return ScaledTerms<T, At>{At{r.entries + i}, r.scale}; });
}

template <class T, class P>
void weighted_listed(const SortedRows<T, P>& r, const WeightedIds<T>& ids, const std::int64_t* starts,
                     std::int64_t runs) {
  using At = EntryAt<P>;
  each_listed(r, starts, runs, [&](std::int64_t i) { return WeightedTerms<T, At>{At{r.entries + i}, ids}; });
}

template <class T, class P>
void weighted_runs(const SortedRows<T, P>& r, const WeightedIds<T>& ids, std::int64_t begin, std::int64_t end,
                   std::int64_t first) {
  using At = EntryAt<P>;
  each_run(r, begin, end, first, [&](std::int64_t i) { return WeightedTerms<T, At>{At{r.entries + i}, ids}; });
}

// Sums rows [first, last) of a plan.
template <class T, class I, class TermsAt>
inline void each_planned(const PlannedRows<T, I>& r, std::int64_t first, std::int64_t last, TermsAt terms_at) {
  const auto last_start = last_id<std::int64_t>(r.size + 1);
  std::int64_t begin = first < last ? bounded_id(r.starts + first, last_start) : 0;
  for (std::int64_t k = first, end; k < last; ++k, begin = end) {
    end = k + 1 < r.rows ? bounded_id(r.starts + k + 1, last_start) : r.size;
    if (end < begin) end = begin;  // another thread may change starts: never sum more than `size` entries in all
    const std::int64_t row = r.unique ? k : bounded_id_at(r.ids, k, r.num_rows);
    if (r.clears) {
      clear_rows(r.out, r.cols, k > 0 ? bounded_id_at(r.ids, k - 1, r.num_rows) + 1 : 0, row);
      if (k + 1 == r.rows) clear_rows(r.out, r.cols, row + 1, r.num_rows);
    }
    T* out = r.out + row * r.cols;
    accumulate_row(out, r.grad, r.cols, r.cols, terms_at(begin), end - begin, r.size - end, r.order);
  }
}

template <class T, class I>
void accumulate_planned(const PlannedRows<T, I>& r, std::int64_t first, std::int64_t last) {
  using At = ListAt<I>;
  each_planned(r, first, last, [&](std::int64_t i) { return ScaledTerms<T, At>{At{r.from + i}, r.scale}; });
}

template <class T>
void weighted_planned(const PlannedRows<T, std::int64_t>& r, const WeightedIds<T>& ids, std::int64_t first,
                      std::int64_t last) {
  using At = ListAt<std::int64_t>;
  each_planned(r, first, last, [&](std::int64_t i) { return WeightedTerms<T, At>{At{r.from + i}, ids}; });
}

// Writes the contribution of one id.
template <class T>
void weighted_row(T* out, const T* grad_row, std::int64_t cols, Accumulator<T> weight, const Accumulator<T>* total) {
  for_blocks<T>(cols, [&]<int N, int K>(std::int64_t c0) {
    Block<T, N, K> term;
    term.set(grad_row + c0);
    if (total) term.divide_no_nan(*total);
    term.multiply(weight);
    term.store(out + c0);
  });
}

}  // namespace
}  // namespace rowgrad
