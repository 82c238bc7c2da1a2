// Coordinate lists: entries of any int64, sorted or not, with repeats.
#pragma once
#include "input.h"

namespace fuzz {

struct CoordinateList {
  std::int64_t rank = 1;
  std::vector<Numbers64> entries;

  std::int64_t size() const { return std::int64_t(entries.size()); }
  Tensor tensor() const {
    Tensor t(DType::int64, {size(), rank});
    for (std::int64_t i = 0; i < size(); ++i) std::copy(entries[i].begin(), entries[i].end(), t.as<std::int64_t>() + i * rank);
    return t;
  }
};

// Most lists are sorted, as those of ops are; some have coordinates at the limits of int64.
inline CoordinateList list_of(Input& in, std::int64_t rank) {
  CoordinateList list{rank, {}};
  const std::int64_t n = in.length(), bound = 1 + in.below(40);
  const std::uint8_t how = in.byte();
  const Numbers64 flat = in.ids(n * rank, bound, false);
  for (std::int64_t i = 0; i < n; ++i) list.entries.emplace_back(flat.begin() + i * rank, flat.begin() + (i + 1) * rank);
  if (how & 3) std::sort(list.entries.begin(), list.entries.end());
  if (how & 4) list.entries.erase(std::unique(list.entries.begin(), list.entries.end()), list.entries.end());
  if (how & 8 && !list.entries.empty()) {
    const std::int64_t m = list.size();
    std::swap(list.entries[in.below(m)], list.entries[in.below(m)]);
  }
  return list;
}

// Returns a random subset of a list's entries, in order.
inline CoordinateList some_of(Input& in, const CoordinateList& list) {
  CoordinateList some{list.rank, {}};
  Rng rng(in.byte());
  for (const Numbers64& entry : list.entries)
    if (!rng.chance(3)) some.entries.push_back(entry);
  return some;
}

inline std::int64_t wrapping(std::int64_t a, std::int64_t b, int sign) {
  return std::int64_t(std::uint64_t(a) + std::uint64_t(sign) * std::uint64_t(b));
}

// Adds `by` to every coordinate, or subtracts it.
inline Numbers64 moved(const Numbers64& entry, const Numbers64& by, int sign) {
  Numbers64 to;
  for (std::size_t d = 0; d < entry.size(); ++d) to.push_back(wrapping(entry[d], by[d], sign));
  return to;
}

// Returns elements `from` of a vector, bit for bit; zero for position -1.
inline Tensor picked(const Tensor& values, const Numbers64& from) {
  Tensor out(values.dtype, {std::int64_t(from.size())});
  for (std::size_t i = 0; i < from.size(); ++i)
    if (from[i] >= 0) out.copy(std::int64_t(i), values, from[i]);
  return out;
}

}  // namespace fuzz
