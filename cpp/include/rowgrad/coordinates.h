// Coordinate lists of sparse tensors: the order of their entries, and walks along lists that threads share.
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

// A row of indices per entry.
using Coordinates = Mat<const std::int64_t>;

inline Coordinates coordinates(const Array& indices) { return mat<const std::int64_t>(indices); }

inline std::int64_t wrapping_minus(std::int64_t a, std::int64_t b) {
  return std::int64_t(std::uint64_t(a) - std::uint64_t(b));
}

// Adds in the accumulator's type, rounded once to T.
template <class T>
T sum_of(T a, T b) {
  return store<T>(plus(load(a), load(b)));
}

// Calls fn with the rank as a compile-time constant for vectors and matrices, the common cases; else with 0.
template <class Fn>
void visit_rank(std::int64_t rank, Fn&& fn) {
  if (rank == 1)
    fn(std::integral_constant<int, 1>{});
  else if (rank == 2)
    fn(std::integral_constant<int, 2>{});
  else
    fn(std::integral_constant<int, 0>{});
}

// Whether entry a comes before b in lexicographic order. R: the rank if known at compile time, else 0. The code for
// known ranks is free of branches, because in a walk along several lists they would be mispredicted half of the time.
template <int R>
bool before(const std::int64_t* a, const std::int64_t* b, std::int64_t rank) {
  if constexpr (R == 1) {
    return a[0] < b[0];
  } else if constexpr (R == 2) {
    // Compare as one 128-bit number; the lower half is offset by INT64_MIN.
    auto number = [](const std::int64_t* x) {
      return __int128(x[0]) << 64 | __int128(std::uint64_t(x[1]) ^ std::uint64_t(INT64_MIN));
    };
    return number(a) < number(b);
  } else {
    return std::lexicographical_compare(a, a + rank, b, b + rank);
  }
}

// Sets whether a or b comes first; neither, if they are equal. Each coordinate is read once: if another thread changed
// it between two reads, both could come first, and a walk that takes neither would never end.
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

// Returns how many entries of a sorted list come before x (count_before), or before or equal to it (count_until). For
// an unsorted list the result is any position; the caller must verify it.
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

// Returns the number of parts for a walk past n entries: several per thread for load balance; one if there is one
// thread, which would gain nothing from guessing.
inline std::int64_t walk_parts(std::int64_t n) { return num_threads() > 1 ? pieces(n, kEntryGrain, 4) : 1; }

// For a walk that pairs equal entries of two lists and has passed the first `passed` entries of one, the last of which
// equals `x` in the other's coordinates: returns how far it has come in the other list. Exact for sorted lists, also
// with repeats; otherwise a guess.
template <int R>
std::int64_t guess_passed(Coordinates list, std::int64_t passed, Coordinates other, const std::int64_t* x) {
  const std::int64_t repeats = passed - count_before<R>(list, list.row(passed - 1));
  return std::min(count_before<R>(other, x) + std::max<std::int64_t>(repeats, 0), count_until<R>(other, x));
}

// Runs a sequential walk in parallel parts. A walk is a chain of states, cut where one of its counters reaches given
// values; state[p] holds the other counters at the start of part p. The first is known, the rest are guesses, made
// monotone. walk(p, alone) goes from state[p] to the end of part p and returns the state there, or nothing if it would
// touch data of the next part. All parts run at once; then each part whose guess differs from the end of the previous
// part runs again, alone. So the result does not depend on the guesses. state.back() becomes the end.
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
