// Counts the ids of each segment, and scales gradients by them.
#pragma once
#include <algorithm>

#include "rowgrad/ids.h"
#include "rowgrad/radix_sort.h"
#include "rowgrad/reduction.h"

namespace rowgrad {

// count[s] += the number of ids of segment s. Counts by runs, since ids are usually sorted; with sorted ids, parts that
// begin at a run share no segment, so they run in parallel.
inline void count_ids(const Ids& segments, bool sorted, std::int64_t num_segments, std::int64_t* count) {
  parallel_parts(segments.size, sorted ? pieces(segments.size, kScanGrain) : 1,
                 [&](std::int64_t begin, std::int64_t end, std::int64_t) {
                   scan_ops().count_runs(segments, num_segments, begin, end, count);
                 });
}

inline Scratch<std::int64_t> segment_counts(const Ids& segments, bool sorted, std::int64_t num_segments) {
  Scratch<std::int64_t> count(num_segments);
  count.clear();
  count_ids(segments, sorted, num_segments, count.data());
  return count;
}

// Returns 1/n or 1/√n for every segment; empty for sums.
template <class A>
Scratch<A> gradient_scales(const std::int64_t* count, std::int64_t segments, Reduction kind) {
  if (!has_divisor(kind)) return {};
  Scratch<A> scale(segments);
  parallel_ranges(segments, kScanGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t s = begin; s < end; ++s)
      scale[s] = gradient_scale<A>(kind, std::max<std::int64_t>(count[s], 1));
  });
  return scale;
}

template <class A>
Scratch<A> gradient_scales(const Ids& segments, bool sorted, std::int64_t grad_rows, Reduction kind) {
  if (!has_divisor(kind)) return {};
  return gradient_scales<A>(segment_counts(segments, sorted, grad_rows).data(), grad_rows, kind);
}

}  // namespace rowgrad
