// Bags by offsets: conversion to segment ids, and bags of many features stacked for one table.
#pragma once
#include <algorithm>
#include <limits>

#include "rowgrad/dispatch.h"
#include "rowgrad/ids.h"

namespace rowgrad {

// A private copy (see IdSnapshot) of where bags begin in a list of `ids` ids. `has_end`: the last offset is the end of
// the last bag and begins none.
class Offsets {
 public:
  Offsets() = default;
  Offsets(const Array& offsets, std::int64_t ids, bool has_end)
      : list_(Ids(offsets)), ids_(ids), bags_(std::max<std::int64_t>(list_.size - has_end, 0)), has_end_(has_end) {}

  std::int64_t bags() const { return bags_; }
  std::int64_t begin(std::int64_t bag) const { return list_[bag]; }
  std::int64_t end(std::int64_t bag) const { return bag + 1 < list_.size ? list_[bag + 1] : ids_; }
  // Returns the bag of id i: the last one that begins at or before i.
  std::int64_t bag_of(std::int64_t i) const {
    std::int64_t low = 0, high = bags_;
    while (high - low > 1) {
      const std::int64_t mid = low + (high - low) / 2;
      (list_[mid] <= i ? low : high) = mid;
    }
    return low;
  }

  // Validates that offsets begin at 0, never decrease and end at the number of ids.
  Status check() const {
    if (list_.size == 0) return ids_ == 0 && !has_end_ ? Status{} : Status{Fault::offsets_end, -1, 0, ids_};
    if (list_[0] != 0) return {Fault::offsets_begin, 0, list_[0], 0};
    if (!non_decreasing(list_))
      for (std::int64_t i = 1; i < list_.size; ++i)  // may find nothing: as in check_ids
        if (list_[i] < list_[i - 1]) return {Fault::offsets_fall, i, list_[i], list_[i - 1]};
    const std::int64_t last = list_[list_.size - 1];
    if (last > ids_ || (has_end_ && last != ids_)) return {Fault::offsets_end, list_.size - 1, last, ids_};
    return {};
  }

 private:
  IdSnapshot list_;
  std::int64_t ids_ = 0, bags_ = 0;
  bool has_end_ = false;
};

// Inputs offsets, num_ids → the bag of each id; attr: whether the last offset is the end.
class SegmentIdsFromOffsets : public Kernel {
 public:
  Status measure() override {
    offsets_ = Offsets(in[0], Ids(in[1])[0], attr[0] != 0);
    return offsets_.check();
  }

  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    visit(Indices{}, out[0].dtype, [&]<class I>(std::type_identity<I>) {
      auto* segments = out[0].as<I>();
      parallel_ranges(out[0].size(), kScanGrain, [&](std::int64_t begin, std::int64_t end) {
        if (begin == end) return;
        for (std::int64_t bag = offsets_.bag_of(begin); begin < end; ++bag) {
          const std::int64_t stop = std::min(end, offsets_.end(bag));
          if (stop > begin) std::fill(segments + begin, segments + stop, I(bag));
          begin = std::max(begin, stop);
        }
      });
    });
  }

 private:
  Offsets offsets_;
};

// Inputs indices, offsets (with their end), feature_rows, feature_first → ids of the stacked table ordered by example,
// their bags, and their input positions. Input bags are ordered by feature, output bags by example: bag b of feature f
// becomes bag b·F + f, so that the bags of one example are adjacent. attr: whether to return the positions.
class StackBags : public Kernel {
 public:
  Status measure() override {
    const Ids ids(in[0]), table_rows(in[2]), first(in[3]);
    features_ = table_rows.size;
    offsets_ = Offsets(in[1], ids.size, true);
    if (const Status s = offsets_.check()) return s;
    constexpr std::int64_t narrow = std::numeric_limits<std::int32_t>::max();
    const std::int64_t limit = ids.wide ? std::numeric_limits<std::int64_t>::max() : narrow;
    for (std::int64_t f = 0; f < features_; ++f) {
      const std::int64_t first_row = first[f], rows_of = table_rows[f];
      if (first_row < 0 || rows_of < 0) return {Fault::feature_negative, f, std::min(first_row, rows_of), 0};
      if (rows_of > limit - first_row) return {Fault::feature_too_far, f, first_row, limit - rows_of};
    }
    examples_ = features_ ? offsets_.bags() / features_ : 0;
    for (std::int64_t f = 0; f < features_; ++f) {
      const std::int64_t begin = start_of(f), n = start_of(f + 1) - begin, bound = table_rows[f];
      const std::int64_t at = first_where(n, [&](std::int64_t i) { return !is_below(ids[begin + i], bound); });
      if (at < n) return {Fault::id_not_in_feature, begin + at, ids[begin + at], bound};
    }
    return {};
  }

  bool fills() const override { return true; }

  void compute(std::span<const Array> out) override {
    const Ids first(in[3]);
    const std::int64_t bags = offsets_.bags();
    Scratch<std::int64_t> starts(bags + 1);  // of the output bags
    starts[0] = 0;
    for (std::int64_t b = 0, s = 0; b < examples_; ++b)
      for (std::int64_t f = 0; f < features_; ++f, ++s)
        starts[s + 1] = starts[s] + offsets_.end(f * examples_ + b) - offsets_.begin(f * examples_ + b);
    auto* positions = out[2].size() ? out[2].as<std::int64_t>() : nullptr;
    visit(Indices{}, in[0].dtype, [&]<class I>(std::type_identity<I>) {
      const auto* ids = in[0].as<const I>();
      auto* stacked = out[0].as<I>();
      visit(Indices{}, out[1].dtype, [&]<class S>(std::type_identity<S>) {
        auto* segments = out[1].as<S>();
        parallel_ranges(examples_, 1 + kScanGrain * examples_ / std::max<std::int64_t>(in[0].size(), 1),
                        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t s = begin * features_; s < end * features_; ++s) {
            const std::int64_t f = s % features_, from = offsets_.begin(f * examples_ + s / features_);
            const std::int64_t to = starts[s], n = starts[s + 1] - to;
            // Ids and first rows of features are values here, never addresses: no copy is needed.
            const std::int64_t first_row = first[f];
            for (std::int64_t i = 0; i < n; ++i) stacked[to + i] = I(plus<std::int64_t>(ids[from + i], first_row));
            std::fill_n(segments + to, n, S(s));
            if (positions)
              for (std::int64_t i = 0; i < n; ++i) positions[to + i] = from + i;
          }
        });
      });
    });
  }

 private:
  std::int64_t start_of(std::int64_t feature) const {
    return feature < features_ && examples_ ? offsets_.begin(feature * examples_) : in[0].size();
  }

  Offsets offsets_;
  std::int64_t features_ = 0, examples_ = 0;
};

}  // namespace rowgrad
