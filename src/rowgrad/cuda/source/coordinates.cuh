// Coordinate lists of sparse tensors: the order of their entries, and searches in them.
//
// Coordinates are never checked against a shape and may be any int64: all arithmetic on them wraps.
#pragma once
#include "scan.cuh"

namespace rowgrad {

// Adds in the accumulator's type, rounded once to T.
template <class T>
DEVICE T sum_of(T a, T b) {
  return store<T>(plus(load(a), load(b)));
}

DEVICE int64_t wrapping_minus(int64_t a, int64_t b) { return int64_t(uint64_t(a) - uint64_t(b)); }

// A row of indices per entry.
struct Coordinates {
  const int64_t* data;
  int64_t rows;
  int64_t rank;
  DEVICE const int64_t* operator[](int64_t i) const { return data + i * rank; }
};

// Lexicographic order: negative if a comes first, positive if b does, 0 if they are equal.
DEVICE int relate(const int64_t* a, const int64_t* b, int64_t rank) {
  for (int64_t d = 0; d < rank; ++d)
    if (a[d] != b[d]) return a[d] < b[d] ? -1 : 1;
  return 0;
}

// Returns how many entries of a sorted list come before x, known to be in [low, high].
DEVICE int64_t count_before(const Coordinates& list, const int64_t* x, int64_t low, int64_t high) {
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (relate(list[middle], x, list.rank) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

struct PutNumbers {
  int64_t* to;
  int64_t count;
  int64_t n0;
  int64_t n1;
  int64_t n2;
  int64_t n3;
  int64_t n4;
  int64_t n5;
  int64_t n6;
  int64_t n7;
};

// Writes numbers that the host knows.
DEVICE void put_numbers(const PutNumbers& p) {
  const int64_t numbers[8] = {p.n0, p.n1, p.n2, p.n3, p.n4, p.n5, p.n6, p.n7};
  if (threadIdx.x == 0)
    for (int i = 0; i < 8; ++i)
      if (i < p.count) p.to[i] = numbers[i];
}

}  // namespace rowgrad
