// Replaces kernels/parallel.cpp and kernels/scratch.cpp. One thread runs all tasks, so an input always reproduces the
// same run; changing the order of tasks finds results that depend on it. The real pool is tested under the thread
// sanitizer.
#include "machine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "rowgrad/kernel.h"
#include "rowgrad/parallel.h"

namespace {

int threads = 1;
fuzz::TaskOrder order = fuzz::TaskOrder::forwards;

}  // namespace

extern "C" {
long __real_sysconf(int name);
// The linker redirects sysconf here (--wrap), so that absurd sizes are rejected long before this machine runs out of
// memory.
long __wrap_sysconf(int name) {
  return name == _SC_PHYS_PAGES ? long(fuzz::kMemory / __real_sysconf(_SC_PAGESIZE)) : __real_sysconf(name);
}
}

namespace fuzz {

void set_task_order(TaskOrder t) { order = t; }

}  // namespace fuzz

namespace rowgrad {

int num_threads() { return threads; }
void set_num_threads(int n) { threads = std::max(1, n); }

namespace detail {

void run_tasks(std::int64_t tasks, void (*call)(void*, std::int64_t), void* context) {
  if (order == fuzz::TaskOrder::odd_tasks_first)
    for (std::int64_t task = 1; task < tasks; task += 2) call(context, task);
  const std::int64_t step = order == fuzz::TaskOrder::odd_tasks_first ? 2 : 1;
  for (std::int64_t i = 0; i < tasks; i += step) call(context, order == fuzz::TaskOrder::backwards ? tasks - 1 - i : i);
}

}  // namespace detail

void* allocate_scratch(std::int64_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, static_cast<std::size_t>(bytes)) != 0) throw std::bad_alloc();
  std::memset(memory, 0xa5, static_cast<std::size_t>(bytes));
  return memory;
}

void release_scratch(void* memory, std::int64_t) noexcept { std::free(memory); }

void* allocate_zeros(std::int64_t bytes) {
  void* memory = std::calloc(static_cast<std::size_t>(bytes), 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}

void release_zeros(void* memory, std::int64_t) noexcept { std::free(memory); }
void prefer_large_pages(void*, std::int64_t) noexcept {}

}  // namespace rowgrad
