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

// Bytes the process may keep: 256 MiB, or a thirty-second of the machine's memory where that is more.
std::int64_t most_kept() { return std::max(std::int64_t{256} << 20, memory_limit() / 32); }

struct Piece {
  void* memory;
  std::int64_t bytes;
};

struct Shelf {
  std::mutex mutex;  // only ever tried: who finds it taken (or left taken by a fork) goes to the system instead
  std::vector<Piece> pieces;
  std::int64_t bytes = 0;
};

// Never destroyed: arrays may outlive everything static.
Shelf& shelf() {
  static Shelf* const it = new Shelf;
  return *it;
}

// From this size on, memory comes from the system and on large pages: small ones cost a fault for every 4 KiB.
constexpr std::int64_t kLarge = std::int64_t{4} << 20;

#if defined(_WIN32)
void* aligned(std::size_t bytes) { return _aligned_malloc(bytes, 64); }
void free_aligned(void* memory) noexcept { _aligned_free(memory); }
#else
void* aligned(std::size_t bytes) { return std::aligned_alloc(64, bytes); }
void free_aligned(void* memory) noexcept { std::free(memory); }
#endif

void* allocate(std::int64_t bytes) {
  if (bytes >= kLarge) return take_zeros(bytes);
  void* memory = aligned(static_cast<std::size_t>(bytes));
  if (!memory) throw std::bad_alloc();
  return memory;
}

void release(void* memory, std::int64_t bytes) noexcept {
  if (bytes >= kLarge)
    give_zeros(memory, bytes);
  else
    free_aligned(memory);
}

// Sizes are rounded up to an eighth of their power of two, so that batches of about one size share pieces.
std::int64_t rounded(std::int64_t bytes) {
  std::int64_t step = 4096;
  while (step * 16 < bytes) step *= 2;
  return std::max<std::int64_t>((bytes + step - 1) / step * step, step);
}

}  // namespace

void* take_scratch(std::int64_t bytes) {
  const std::int64_t wanted = rounded(bytes);
  Shelf& s = shelf();
  if (std::unique_lock lock(s.mutex, std::try_to_lock); lock) {
    for (auto piece = s.pieces.begin(); piece != s.pieces.end(); ++piece) {
      if (piece->bytes != wanted) continue;
      void* memory = piece->memory;
      s.pieces.erase(piece);
      s.bytes -= wanted;
      return memory;
    }
  }
  return allocate(wanted);
}

void give_scratch(void* memory, std::int64_t bytes) noexcept {
  const std::int64_t kept = rounded(bytes);
  Shelf& s = shelf();
  if (std::unique_lock lock(s.mutex, std::try_to_lock); lock && kept <= most_kept()) {
    while (s.bytes + kept > most_kept()) {  // the oldest goes first
      s.bytes -= s.pieces.front().bytes;
      release(s.pieces.front().memory, s.pieces.front().bytes);
      s.pieces.erase(s.pieces.begin());
    }
    try {
      s.pieces.push_back({memory, kept});
      s.bytes += kept;
      return;
    } catch (...) {
    }
  }
  release(memory, kept);
}

void prefer_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::int64_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t page = 4096;  // what madvise wants its range to begin with
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(memory) + static_cast<std::uintptr_t>(bytes)) / page * page;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

#if defined(__unix__) || defined(__APPLE__)
void* take_zeros(std::int64_t bytes) {
  void* memory =
      mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  prefer_large_pages(memory, bytes);
  return memory;
}

void give_zeros(void* memory, std::int64_t bytes) noexcept { munmap(memory, static_cast<std::size_t>(bytes)); }
#else
void* take_zeros(std::int64_t bytes) {
  void* memory = std::calloc(static_cast<std::size_t>(bytes), 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}

void give_zeros(void* memory, std::int64_t) noexcept { std::free(memory); }
#endif

}  // namespace rowgrad
