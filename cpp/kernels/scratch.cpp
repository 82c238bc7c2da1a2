#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>

#include "rowgrad/kernel.h"
#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#elif defined(_WIN32)
#include <malloc.h>
#endif

namespace rowgrad {
namespace {

// The most bytes to cache: 256 MiB, or 1/32 of physical memory if that is more.
std::int64_t cache_limit() { return std::max(std::int64_t{256} << 20, memory_limit() / 32); }

struct Block {
  void* memory;
  std::int64_t bytes;
};

struct ScratchCache {
  std::mutex mutex;  // only try_lock: if it fails, or is left locked by a fork, use the system allocator
  std::vector<Block> blocks;
  std::int64_t bytes = 0;
};

// Never destroyed: arrays may outlive static objects.
ScratchCache& scratch_cache() {
  static ScratchCache* const it = new ScratchCache;
  return *it;
}

// From this size on, memory comes from the system on large pages: small pages cost a fault per 4 KiB.
constexpr std::int64_t kLarge = std::int64_t{4} << 20;

#if defined(_WIN32)
void* aligned(std::size_t bytes) { return _aligned_malloc(bytes, 64); }
void free_aligned(void* memory) noexcept { _aligned_free(memory); }
#else
void* aligned(std::size_t bytes) { return std::aligned_alloc(64, bytes); }
void free_aligned(void* memory) noexcept { std::free(memory); }
#endif

void* allocate(std::int64_t bytes) {
  if (bytes >= kLarge) return allocate_zeros(bytes);
  void* memory = aligned(static_cast<std::size_t>(bytes));
  if (!memory) throw std::bad_alloc();
  return memory;
}

void release(void* memory, std::int64_t bytes) noexcept {
  if (bytes >= kLarge)
    release_zeros(memory, bytes);
  else
    free_aligned(memory);
}

// Rounds up to an eighth of a power of two, so that batches of similar size share blocks.
std::int64_t rounded(std::int64_t bytes) {
  std::int64_t step = 4096;
  while (step * 16 < bytes) step *= 2;
  return std::max<std::int64_t>((bytes + step - 1) / step * step, step);
}

}  // namespace

void* allocate_scratch(std::int64_t bytes) {
  const std::int64_t size = rounded(bytes);
  ScratchCache& s = scratch_cache();
  if (std::unique_lock lock(s.mutex, std::try_to_lock); lock) {
    for (auto block = s.blocks.begin(); block != s.blocks.end(); ++block) {
      if (block->bytes != size) continue;
      void* memory = block->memory;
      s.blocks.erase(block);
      s.bytes -= size;
      return memory;
    }
  }
  return allocate(size);
}

void release_scratch(void* memory, std::int64_t bytes) noexcept {
  const std::int64_t size = rounded(bytes);
  ScratchCache& s = scratch_cache();
  if (std::unique_lock lock(s.mutex, std::try_to_lock); lock && size <= cache_limit()) {
    while (s.bytes + size > cache_limit()) {  // evict the oldest first
      s.bytes -= s.blocks.front().bytes;
      release(s.blocks.front().memory, s.blocks.front().bytes);
      s.blocks.erase(s.blocks.begin());
    }
    try {
      s.blocks.push_back({memory, size});
      s.bytes += size;
      return;
    } catch (...) {
    }
  }
  release(memory, size);
}

void prefer_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::int64_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t page = 4096;  // madvise needs a page-aligned address
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(memory) + static_cast<std::uintptr_t>(bytes)) / page * page;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

#if defined(__unix__) || defined(__APPLE__)
void* allocate_zeros(std::int64_t bytes) {
  void* memory =
      mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  prefer_large_pages(memory, bytes);
  return memory;
}

void release_zeros(void* memory, std::int64_t bytes) noexcept { munmap(memory, static_cast<std::size_t>(bytes)); }
#else
void* allocate_zeros(std::int64_t bytes) {
  void* memory = std::calloc(static_cast<std::size_t>(bytes), 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}

void release_zeros(void* memory, std::int64_t) noexcept { std::free(memory); }
#endif

}  // namespace rowgrad
