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

// Spinning this long before parking keeps back-to-back calls from paying a wake-up each.
constexpr int kSpins = 20000;

class Pool {
 public:
  explicit Pool(int workers) {
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
  }

  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (auto& t : threads_) t.join();
  }

  // One caller at a time: `busy` callers do their work alone instead of waiting.
  std::mutex caller;

  void run(std::int64_t tasks, void (*call)(void*, std::int64_t), void* context) {
    call_ = call;
    context_ = context;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    pending_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
    {
      std::lock_guard lock(mutex_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    take();
    while (pending_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
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
    std::uint64_t seen = 0;
    for (;;) {
      std::uint64_t now = generation_.load(std::memory_order_acquire);
      for (int i = 0; i < kSpins && now == seen; ++i) now = generation_.load(std::memory_order_acquire);
      if (now == seen) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
        now = generation_.load(std::memory_order_acquire);
      }
      seen = now;
      {
        std::lock_guard lock(mutex_);
        if (stop_) return;
      }
      take();
      pending_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<std::int64_t> next_{0};
  std::atomic<int> pending_{0};
  std::int64_t tasks_ = 0;
  void (*call_)(void*, std::int64_t) = nullptr;
  void* context_ = nullptr;
  bool stop_ = false;
};

struct Owner {
  std::mutex mutex;  // guards the making and replacing of the pool
  std::shared_ptr<Pool> pool;
  std::atomic<int> wanted{std::max(1, int(std::thread::hardware_concurrency()))};

  std::shared_ptr<Pool> get() {
    std::lock_guard lock(mutex);
    const int n = num_threads();
    if (!pool && n > 1) pool = std::make_shared<Pool>(n - 1);
    return pool;
  }
};

// Never destroyed: threads may still be parked when the process ends. A forked child has none of its
// parent's threads, so it leaves the parent's owner behind, locks and all, and starts a new one.
Owner* owner = nullptr;

void forget_after_fork() {
  Owner* fresh = new Owner;
  fresh->wanted.store(owner->wanted.load());
  owner = fresh;
}

Owner& the_owner() {
  static const bool ready = [] {
    owner = new Owner;
#if defined(__unix__) || defined(__APPLE__)
    pthread_atfork(nullptr, nullptr, forget_after_fork);
#endif
    return true;
  }();
  (void)ready;
  return *owner;
}

}  // namespace

int num_threads() { return the_owner().wanted.load(std::memory_order_relaxed); }

void set_num_threads(int n) {
  Owner& o = the_owner();
  std::shared_ptr<Pool> old;
  std::lock_guard lock(o.mutex);
  o.wanted.store(std::max(1, n));
  old.swap(o.pool);  // joined when its last caller is done
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
