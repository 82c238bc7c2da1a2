// Parallel loops; the only header with threads. The number of threads never changes a result.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace rowgrad {

int num_threads();
void set_num_threads(int n);

// Tells the processor that this thread reads a word again and again until another one writes it.
inline void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

namespace detail {
void run_tasks(std::int64_t tasks, void (*call)(void*, std::int64_t), void* context);
}

// Calls fn(task) for task in [0, tasks) on this thread and the pool's threads. fn must not throw and must not call this
// again.
template <class Fn>
void parallel_tasks(std::int64_t tasks, Fn&& fn) {
  using Body = std::remove_reference_t<Fn>;
  detail::run_tasks(
      tasks, [](void* context, std::int64_t task) { (*static_cast<Body*>(context))(task); },
      const_cast<void*>(static_cast<const void*>(&fn)));
}

// Returns the number of pieces to cut `work` units into so that no piece is smaller than `grain`.
inline std::int64_t pieces(std::int64_t work, std::int64_t grain, std::int64_t per_thread = 1) {
  return std::clamp<std::int64_t>(work / std::max<std::int64_t>(grain, 1), 1, num_threads() * per_thread);
}

// Calls fn(begin, end) on consecutive ranges that cover [0, n).
template <class Fn>
void parallel_ranges(std::int64_t n, std::int64_t grain, Fn&& fn) {
  const std::int64_t parts = pieces(n, grain);
  parallel_tasks(parts, [&](std::int64_t t) { fn(n * t / parts, n * (t + 1) / parts); });
}

}  // namespace rowgrad
