// Shadows the real header: divides the size of parts by 256, so that inputs of a few hundred bytes reach code that
// otherwise needs long lists. A part still has 64 entries, which walks along lists require.
#pragma once
#define pieces pieces_of_whole_grains
#define parallel_ranges parallel_ranges_of_whole_grains
#include_next <rowgrad/parallel.h>
#undef pieces
#undef parallel_ranges

namespace rowgrad {

inline std::int64_t pieces(std::int64_t work, std::int64_t grain, std::int64_t per_thread = 1) {
  return pieces_of_whole_grains(work, grain / 256, per_thread);
}

template <class Fn>
void parallel_ranges(std::int64_t n, std::int64_t grain, Fn&& fn) {
  const std::int64_t parts = pieces(n, grain);
  parallel_tasks(parts, [&](std::int64_t t) { fn(n * t / parts, n * (t + 1) / parts); });
}

}  // namespace rowgrad
