#include "rowgrad/parallel.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include "rowgrad/float_mode.h"

namespace rowgrad {
namespace {

// Spin this often (a few hundred microseconds) before parking, so that back-to-back calls, and the steps of one call,
// do not each pay for a wake-up.
constexpr int kSpins = 20000;

// Workers help with the open call. A worker that wakes up late finds it closed and waits again: no call waits for a
// worker that has not started on it.
class Pool {
 public:
  // Starts up to `workers` threads: if the system allows fewer, calls take longer and return the same result.
  explicit Pool(int workers) {
    threads_.reserve(static_cast<std::size_t>(workers));
    try {
      for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
    }
  }

  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto& t : threads_) t.join();
  }

  // One caller at a time; others run their tasks alone instead of waiting.
  std::mutex caller;

  void run(std::int64_t tasks, void (*call)(void*, std::int64_t), void* context) {
    call_ = call;
    context_ = context;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    open_.store(true);
    generation_.fetch_add(1);
    if (parked_.load() > 0) {
      { std::lock_guard lock(mutex_); }  // a worker about to park either reads the new generation or is woken
      wake_.notify_all();
    }
    take();
    open_.store(false);
    for (int i = 0; helping_.load() != 0; ++i) i < kSpins ? relax() : std::this_thread::yield();
  }

 private:
  void take() {
    for (;;) {
      const std::int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks_) return;
      call_(context_, task);
    }
  }

  void work() {
    const FlushSubnormals flush;
    std::uint64_t handled = 0;
    for (;;) {
      std::uint64_t now = generation_.load();
      for (int i = 0; i < kSpins && now == handled; ++i) {
        relax();
        now = generation_.load();
      }
      if (now == handled) {
        std::unique_lock lock(mutex_);
        parked_.fetch_add(1);
        wake_.wait(lock, [&] { return generation_.load() != handled; });
        parked_.fetch_sub(1);
        now = generation_.load();
      }
      handled = now;
      if (stop_.load()) return;
      helping_.fetch_add(1);
      if (open_.load()) take();  // the caller closes first and then waits for helpers, so it waits for this one
      helping_.fetch_sub(1);
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<std::int64_t> next_{0};
  std::atomic<int> helping_{0}, parked_{0};
  std::atomic<bool> open_{false}, stop_{false};
  std::int64_t tasks_ = 0;
  void (*call_)(void*, std::int64_t) = nullptr;
  void* context_ = nullptr;
};

struct Owner {
  std::mutex mutex;  // guards creation and replacement of the pool
  std::shared_ptr<Pool> pool;
  std::atomic<int> threads{std::max(1, int(std::thread::hardware_concurrency()))};

  // Returns null if one thread is enough or the pool cannot be allocated. Must not throw: a kernel may be halfway
  // through updating a table.
  std::shared_ptr<Pool> get() noexcept {
    std::lock_guard lock(mutex);
    const int n = num_threads();
    try {
      if (!pool && n > 1) pool = std::make_shared<Pool>(n - 1);
    } catch (...) {
    }
    return pool;
  }
};

// Never destroyed: threads may still be parked at process exit. A forked child has none of its parent's threads, so it
// abandons the parent's owner with its locks and creates a new one.
Owner* owner = nullptr;

void replace_owner_after_fork() {
  Owner* fresh = new Owner;
  fresh->threads.store(owner->threads.load());
  owner = fresh;
}

Owner& the_owner() {
  static const bool ready = [] {
    owner = new Owner;
#if defined(__unix__) || defined(__APPLE__)
    pthread_atfork(nullptr, nullptr, replace_owner_after_fork);
#endif
    return true;
  }();
  (void)ready;
  return *owner;
}

}  // namespace

int num_threads() { return the_owner().threads.load(std::memory_order_relaxed); }

void set_num_threads(int n) {
  Owner& o = the_owner();
  std::shared_ptr<Pool> old;
  std::lock_guard lock(o.mutex);
  o.threads.store(std::max(1, n));
  old.swap(o.pool);  // joined by its last caller
}

namespace detail {

void run_tasks(std::int64_t tasks, void (*call)(void*, std::int64_t), void* context) {
  if (tasks > 1 && num_threads() > 1) {
    if (const auto pool = the_owner().get()) {
      if (std::unique_lock lock(pool->caller, std::try_to_lock); lock) {
        pool->run(tasks, call, context);
        return;
      }
    }
  }
  for (std::int64_t task = 0; task < tasks; ++task) call(context, task);
}

}  // namespace detail
}  // namespace rowgrad
