// Coordinate lists: the order of their entries, and walks along them that several threads share.
//
// Coordinates are never checked against a shape and may be any int64: all arithmetic on them wraps.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "rowgrad/parallel.h"
#include "rowgrad/view.h"

namespace rowgrad {

constexpr std::int64_t kEntryGrain = 1 << 14;

// One coordinate list: a row of indices per entry.
using Coordinates = Mat<const std::int64_t>;

inline Coordinates coordinates(const Array& indices) { return mat<const std::int64_t>(indices); }

inline std::int64_t wrapping_minus(std::int64_t a, std::int64_t b) {
  return std::int64_t(std::uint64_t(a) - std::uint64_t(b));
}

// One sum, rounded to T.
template <class T>
T sum_of(T a, T b) {
  return store<T>(plus(load(a), load(b)));
}

// Calls fn with the rank as a constant where the compiler gains by knowing it, else with 0: vectors and matrices are
// what most people have.
template <class Fn>
void visit_rank(std::int64_t rank, Fn&& fn) {
  if (rank == 1)
    fn(std::integral_constant<int, 1>{});
  else if (rank == 2)
    fn(std::integral_constant<int, 2>{});
  else
    fn(std::integral_constant<int, 0>{});
}

// The order of two entries is lexicographic. R: the rank where the compiler knows it, else 0. Known ranks do without
// branches, because in a walk along several lists each of them would be a toss-up.
template <int R>
bool before(const std::int64_t* a, const std::int64_t* b, std::int64_t rank) {
  if constexpr (R == 1) {
    return a[0] < b[0];
  } else if constexpr (R == 2) {
    // As one number of 128 bits, the lower half of which counts from INT64_MIN.
    auto number = [](const std::int64_t* x) {
      return __int128(x[0]) << 64 | __int128(std::uint64_t(x[1]) ^ std::uint64_t(INT64_MIN));
    };
    return number(a) < number(b);
  } else {
    return std::lexicographical_compare(a, a + rank, b, b + rank);
  }
}

// Which of two entries comes first; neither, where they are the same. At an unknown rank one look tells both. Each
// coordinate is read once: if another thread could change it between two looks, both might come first, and a walk that
// takes neither would never end.
template <int R>
void relate(const std::int64_t* a, const std::int64_t* b, std::int64_t rank, bool& a_first, bool& b_first) {
  if constexpr (R > 0) {
    std::int64_t x[R], y[R];
    for (int d = 0; d < R; ++d) {
      x[d] = read_once(a + d);
      y[d] = read_once(b + d);
    }
    a_first = before<R>(x, y, rank);
    b_first = before<R>(y, x, rank);
  } else {
    std::int64_t x = 0, y = 0;
    for (std::int64_t d = 0; d < rank && x == y; ++d) {
      x = read_once(a + d);
      y = read_once(b + d);
    }
    a_first = x < y;
    b_first = x > y;
  }
}

// How many entries of a sorted list come before x, and how many come before it or equal it. In a list that is not
// sorted the answer is some position: the caller has to check whether it is right.
template <int R>
std::int64_t count_before(Coordinates list, const std::int64_t* x) {
  std::int64_t low = 0, high = list.rows;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (before<R>(list.row(middle), x, list.cols))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

template <int R>
std::int64_t count_until(Coordinates list, const std::int64_t* x) {
  std::int64_t low = 0, high = list.rows;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (before<R>(x, list.row(middle), list.cols))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// Into how many parts a walk past n entries is cut: several for each thread, as some have more to do than others.
// A single thread would only be checking its own guesses.
inline std::int64_t walk_parts(std::int64_t n) { return num_threads() > 1 ? pieces(n, kEntryGrain, 4) : 1; }

// A walk along lists that pairs equal entries has passed the first `passed` of one list, some entries, the last of
// which reads `x` in the other: how far has it come there? Right for sorted lists, also with repeats; for others a
// guess.
template <int R>
std::int64_t guess_passed(Coordinates list, std::int64_t passed, Coordinates other, const std::int64_t* x) {
  const std::int64_t repeats = passed - count_before<R>(list, list.row(passed - 1));
  return std::min(count_before<R>(other, x) + std::max<std::int64_t>(repeats, 0), count_until<R>(other, x));
}

// A walk is a chain of states, each following from the one before, and is cut where one of its numbers takes given
// values. state[p] holds the others where part p begins: the first is known, the rest are guesses, made monotone.
// walk(p, alone) goes from state[p] to the end of part p and returns the state there. All parts go at once, and one
// that would touch what belongs to the next returns nothing. Then each part whose guess was not what the part before
// arrived at goes again, alone. So the chain is unbroken, whatever the guesses were. state.back() becomes the end.
template <class State, class Walk>
void walk_in_parts(std::vector<State>& state, Walk&& walk) {
  const std::size_t parts = state.size() - 1;
  std::vector<std::optional<State>> after(parts);
  parallel_tasks(std::int64_t(parts), [&](std::int64_t part) { after[part] = walk(part, false); });
  for (std::size_t part = 0; part < parts; ++part) {
    if (part > 0 && state[part] != *after[part - 1]) {
      state[part] = *after[part - 1];
      after[part].reset();
    }
    if (!after[part]) after[part] = walk(std::int64_t(part), true);
  }
  state.back() = *after.back();
}

}  // namespace rowgrad
