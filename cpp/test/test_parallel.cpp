// The thread pool: every task runs once, from any caller, after resizing and after a fork.
#include "rowgrad/parallel.h"

#if !defined(_WIN32)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "call.h"
#include "expect.h"

using namespace test;

namespace {

// Whether a parallel call runs each task once. Plain ints: for the thread sanitizer, a task that runs twice at once or
// work that is not synchronized with the caller is a race.
bool each_task_once(std::int64_t tasks) {
  std::vector<int> done(static_cast<std::size_t>(tasks));
  parallel_tasks(tasks, [&](std::int64_t t) { ++done[t]; });
  return std::all_of(done.begin(), done.end(), [](int n) { return n == 1; });
}

void test_every_task_once() {
  for (int threads : {1, 2, 3, 8, 2, 1}) {
    set_num_threads(threads);
    EXPECT_EQ(num_threads(), threads);
    for (std::int64_t tasks : {0, 1, 2, 3, 7, 8, 9, 100, 10000}) {
      const Where where("tasks", {{"threads", threads}, {"tasks", tasks}});
      EXPECT(each_task_once(tasks));
    }
    for (int again = 0; again < 200; ++again) EXPECT(each_task_once(threads));  // back to back
  }
  set_num_threads(0);
  EXPECT_EQ(num_threads(), 1);
  set_num_threads(-5);
  EXPECT_EQ(num_threads(), 1);
}

void test_ranges_cover() {
  for (int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    for (std::int64_t n : {0, 1, 2, 5, 63, 64, 65, 1000, 99999})
      for (std::int64_t grain : {-1, 0, 1, 2, 7, 64, 1000, 1 << 20}) {
        const Where where("ranges", {{"threads", threads}, {"n", n}, {"grain", grain}});
        std::vector<int> visits(static_cast<std::size_t>(n));
        std::atomic<std::int64_t> calls{0}, smallest{n};
        parallel_ranges(n, grain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) ++visits[i];
          std::int64_t least = smallest.load();
          while (end - begin < least && !smallest.compare_exchange_weak(least, end - begin)) {
          }
          ++calls;
        });
        EXPECT(std::all_of(visits.begin(), visits.end(), [](int k) { return k == 1; }));
        EXPECT(calls >= 1 && calls <= threads);
        EXPECT(calls == 1 || smallest >= std::max<std::int64_t>(grain, 1));
        EXPECT_EQ(pieces(n, grain), calls.load());
        EXPECT(pieces(n, grain, 4) <= 4 * threads);
      }
  }
}

// The pool's threads flush subnormals whatever the mode of the thread that created them.
void test_flushing_on_every_thread() {
  for (int threads : {2, 8}) {
    set_num_threads(threads);
    EXPECT(each_task_once(50));  // creates the pool, on a thread that does not flush
    const FlushSubnormals flush;
    std::vector<int> flushed(300);
    parallel_tasks(300, [&](std::int64_t t) {
      volatile float smallest_normal = 0x1p-126f;
      flushed[t] = smallest_normal * 0.5f == 0.0f;
      std::this_thread::sleep_for(std::chrono::microseconds(20));  // long enough for every thread to get a share
    });
    EXPECT(std::all_of(flushed.begin(), flushed.end(), [](int f) { return f == 1; }));
  }
}

void call_often(int calls, std::int64_t tasks) {
  for (int i = 0; i < calls; ++i) EXPECT(each_task_once(tasks + i % 3));
}

void test_concurrent_callers() {
  for (int threads : {2, 8}) {
    set_num_threads(threads);
    std::vector<std::thread> callers;
    for (int c = 0; c < 4; ++c) callers.emplace_back([] { call_often(100, 20); });
    for (auto& t : callers) t.join();
  }
}

// Calls in flight keep their pool; the next call uses the new one.
void test_resizing_under_callers() {
  set_num_threads(3);
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) callers.emplace_back([] { call_often(150, 10); });
  callers.emplace_back([] {
    for (int i = 0; i < 60; ++i) {
      set_num_threads(1 + i % 5);
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 60; ++i) set_num_threads(1 + (i * 7) % 4);
  for (auto& t : callers) t.join();
}

#if !defined(_WIN32)
// In a forked child: uses the pool at the inherited size, runs a kernel large enough to use it, then resizes.
bool child_works() {
  if (!each_task_once(50)) return false;
  const std::int64_t n = 100000;
  Tensor data(DType::float32, {4, 2}), ids(DType::int32, {n}), segments(DType::int32, {n});
  for (int i = 0; i < 8; ++i) data.as<float>()[i] = float(i);
  for (std::int64_t i = 0; i < n; ++i) ids.as<std::int32_t>()[i] = std::int32_t(i % 4);
  for (std::int64_t i = 0; i < n; ++i) segments.as<std::int32_t>()[i] = std::int32_t(i / 4);
  const Result r = run("sparse_segment", {0, 0}, {data, ids, segments}, [&](std::int64_t rows) {
    return std::vector<Tensor>{Tensor(DType::float32, {rows, 2})};
  });
  if (r.status || r.rows != n / 4) return false;
  for (std::int64_t s = 0; s < r.rows; ++s)
    if (r.out[0].as<float>()[2 * s] != 12 || r.out[0].as<float>()[2 * s + 1] != 16) return false;
  for (int threads : {1, 4, 2}) {
    set_num_threads(threads);
    if (!each_task_once(50)) return false;
  }
  return true;
}

[[maybe_unused]] void fork_once(int expected_threads) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // kill a child that waits for threads it does not have
    // _exit: the child must not touch the parent's threads and buffers.
    _exit(num_threads() == expected_threads && child_works() ? 0 : 1);
  }
  int state = -1;
  EXPECT_EQ(waitpid(child, &state, 0), child);
  EXPECT(WIFEXITED(state));
  EXPECT_EQ(state, 0);
}

// Whether every thread of the pool is past its start. A starting thread holds locks of the sanitizers, on which a child
// forked meanwhile would wait; this test is about the pool's locks.
[[maybe_unused]] bool all_have_begun(int threads) {
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::atomic<int> here{0};
  parallel_tasks(threads, [&](std::int64_t) {
    ++here;
    while (here < threads && std::chrono::steady_clock::now() < late) std::this_thread::yield();
  });
  return std::chrono::steady_clock::now() < late;
}
#endif

void test_fork() {
#if defined(_WIN32)
  std::printf("fork: skipped, Windows has none\n");
#elif defined(__SANITIZE_THREAD__)
  std::printf("fork: skipped, the thread sanitizer does not follow a child that starts threads\n");
#else
  for (int threads : {1, 2, 8}) {
    set_num_threads(threads);
    EXPECT(all_have_begun(threads));  // the child loses these
    fork_once(threads);
    EXPECT(each_task_once(50));
  }
  // Fork while another thread is inside the pool and holds its locks. It allocates nothing, so only the pool's locks
  // matter.
  set_num_threads(3);
  EXPECT(all_have_begun(3));
  std::atomic<bool> begun{false}, stop{false};
  std::thread other([&] {
    std::atomic<std::int64_t> sum{0};
    while (!stop) {
      parallel_tasks(50, [&](std::int64_t t) { sum += t; });
      begun = true;
    }
  });
  while (!begun) std::this_thread::yield();
  for (int i = 0; i < 10; ++i) fork_once(3);
  stop = true;
  other.join();
#endif
}

}  // namespace

int main() {
  test_every_task_once();
  test_ranges_cover();
  test_flushing_on_every_thread();
  test_concurrent_callers();
  test_resizing_under_callers();
  test_fork();
  set_num_threads(1);
  return test::finish();
}
