// Failing allocations: every allocation of every kernel fails once, alone and with all that follow it. The call either
// reports out_of_memory and has written nothing, or succeeds without the memory; nothing leaks, and the next call is
// correct. If threads cannot be started, calls work without them.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <set>

#include "every_kernel.h"

namespace {

// While `armed`, allocations count down `until`; then the next `failures` of them fail.
std::atomic<bool> armed{false};
std::atomic<std::int64_t> until{0}, failures{0}, live_objects{0}, scratch_allocations{0}, failed_so_far{0};
std::atomic<std::int64_t> threads_left{1 << 20};

bool fails() {
  if (!armed.load() || until.fetch_sub(1) > 0) return false;
  if (failed_so_far.fetch_add(1) >= failures.load()) return false;
  return true;
}

// Sizes of scratch memory ever requested, so that the cache can be emptied.
std::array<std::atomic<std::int64_t>, 256> sizes;
void remember_size(std::int64_t bytes) {
  for (auto& s : sizes) {
    std::int64_t empty = 0;
    if (s.load() == bytes || s.compare_exchange_strong(empty, bytes) || empty == bytes) return;
  }
  std::abort();
}

}  // namespace

void* operator new(std::size_t bytes) {
  if (fails()) throw std::bad_alloc();
  void* memory = std::malloc(bytes ? bytes : 1);
  if (!memory) throw std::bad_alloc();
  ++live_objects;
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory) --live_objects;
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  void* memory = nullptr;
  if (fails() || posix_memalign(&memory, alignment, bytes)) return nullptr;
  ++scratch_allocations;
  remember_size(std::int64_t(bytes));
  return memory;
}

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers have their own
extern "C" void* mmap(void* at, std::size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  if (fails()) return MAP_FAILED;
  const long got = syscall(SYS_mmap, at, bytes, protection, flags, file, offset);
  if (got == -1) return MAP_FAILED;
  ++scratch_allocations;
  remember_size(std::int64_t(bytes));
  return reinterpret_cast<void*>(got);
}

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attr, void* (*body)(void*), void* arg) noexcept {
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left.fetch_sub(1) <= 0) return EAGAIN;
  return real(thread, attr, body, arg);
}
constexpr bool kInterposes = true;
#else
constexpr bool kInterposes = false;
#endif

using namespace test;

namespace {

// Empties the scratch cache; returns how many blocks it held.
std::int64_t empty_cache() {
  std::int64_t found = 0;
  for (auto& size : sizes) {
    const std::int64_t bytes = size.load();
    if (bytes == 0) break;
    for (bool fresh = false; !fresh;) {
      const std::int64_t before = scratch_allocations.load();
      void* memory = allocate_scratch(bytes);
      fresh = scratch_allocations.load() != before;
      found += !fresh;
      if (bytes >= std::int64_t{4} << 20)
        munmap(memory, static_cast<std::size_t>(bytes));
      else
        std::free(memory);
    }
  }
  return found;
}

void arm(std::int64_t nth, std::int64_t how_many) {
  until = nth - 1;
  failures = how_many;
  failed_so_far = 0;
  armed = true;
}

// Runs one call whose allocations fail from the nth on; returns whether there was such an allocation.
bool survives(const Case& c, const Prepared& p, const std::vector<Tensor>& expected, std::int64_t nth,
              std::int64_t how_many) {
  const Where where(c.kernel.c_str(), {{"allocation", nth}, {"failures", how_many}});
  std::vector<Tensor> out = p.before;
  set_num_threads(3);  // so that the pool must be created again, too
  empty_cache();
  const std::int64_t new_before = live_objects.load(), scratch_before = scratch_allocations.load();
  const Run result = run_on(c, out, p.rows, [&] { arm(nth, how_many); }, [&] { armed = false; }, false);
  const std::int64_t allocated = scratch_allocations.load() - scratch_before;
  set_num_threads(3);
  const bool failed_once = failed_so_far.load() > 0;
  EXPECT_EQ(live_objects.load(), new_before);
  EXPECT_EQ(empty_cache(), allocated);
  if (result.status) {
    EXPECT(failed_once);
    EXPECT_EQ(result.status.fault, Fault::out_of_memory);
    EXPECT(same(out, p.before));
  } else {
    EXPECT(result.computed);
    EXPECT(same(out, expected));
  }
  return failed_once;
}

void test_every_allocation_fails() {
  std::int64_t calls = 0;
  const EveryKernel every(kSanitized ? 20000 : 40000, 11);
  EXPECT(every.is_complete());
  for (const Case& c : every.cases) {
    const Prepared p = prepared(c, false);
    std::vector<Tensor> expected = p.before;
    EXPECT(run_on(c, expected, p.rows, [] {}, [] {}, false).computed);
    for (std::int64_t how_many : {std::int64_t{1}, std::int64_t{1} << 30}) {
      if (kSanitized && how_many > 1) continue;
      for (std::int64_t nth = 1; survives(c, p, expected, nth, how_many); ++nth) ++calls;
    }
  }
  std::printf("%lld calls with an allocation that failed\n", static_cast<long long>(calls));
}

// Large workspaces are allocated with mmap.
void test_large_workspace_fails() {
  if (!kInterposes) return;
  const EveryKernel every(1200000, 12);
  for (const Case& c : every.cases) {
    if (c.kernel != "sparse_segment_grad" && c.kernel != "apply_bags") continue;
    const Prepared p = prepared(c, false);
    std::vector<Tensor> expected = p.before;
    EXPECT(run_on(c, expected, p.rows, [] {}, [] {}, false).computed);
    for (std::int64_t nth = 1; survives(c, p, expected, nth, 1); ++nth) {
    }
    if (c.updates) break;
  }
}

void test_threads_that_cannot_start() {
  if (!kInterposes) return;
  const EveryKernel every(40000, 13);
  const Case& c = *std::find_if(every.cases.begin(), every.cases.end(),
                                [](const Case& x) { return x.kernel == "sparse_segment_grad"; });
  const Prepared p = prepared(c, false);
  set_num_threads(1);
  std::vector<Tensor> expected = p.before;
  EXPECT(run_on(c, expected, p.rows, [] {}, [] {}, false).computed);
  for (int started = 0; started < 8; ++started) {
    const Where where("threads", {{"started", started}});
    set_num_threads(8);
    threads_left = started;
    std::vector<Tensor> out = p.before;
    EXPECT(run_on(c, out, p.rows, [] {}, [] {}, false).computed);
    EXPECT(same(out, expected));
    EXPECT_EQ(num_threads(), 8);
  }
  threads_left = 1 << 20;
  set_num_threads(8);
  std::vector<Tensor> out = p.before;
  EXPECT(run_on(c, out, p.rows, [] {}, [] {}, false).computed);
  EXPECT(same(out, expected));
}

}  // namespace

int main() {
  test_every_allocation_fails();
  test_large_workspace_fails();
  test_threads_that_cannot_start();
  set_num_threads(1);
  return test::finish();
}
