#include <cstdlib>
#include <new>

#include "rowgrad/kernel.h"

namespace rowgrad {
namespace {

constexpr std::int64_t kKept = std::int64_t{256} << 20;  // bytes a thread may keep

struct Piece {
  void* memory;
  std::int64_t bytes;
};

struct Shelf {
  std::vector<Piece> pieces;
  std::int64_t bytes = 0;
  ~Shelf() {
    for (const Piece& p : pieces) std::free(p.memory);
  }
};

thread_local Shelf shelf;

// Sizes are rounded up to an eighth of their power of two, so that batches of about one size share pieces.
std::int64_t rounded(std::int64_t bytes) {
  std::int64_t step = 4096;
  while (step * 16 < bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

}  // namespace

void* take_scratch(std::int64_t bytes) {
  const std::int64_t wanted = rounded(bytes);
  for (std::size_t i = 0; i < shelf.pieces.size(); ++i) {
    if (shelf.pieces[i].bytes != wanted) continue;
    void* memory = shelf.pieces[i].memory;
    shelf.pieces[i] = shelf.pieces.back();
    shelf.pieces.pop_back();
    shelf.bytes -= wanted;
    return memory;
  }
  void* memory = std::aligned_alloc(64, static_cast<std::size_t>(wanted > 0 ? wanted : 4096));
  if (!memory) throw std::bad_alloc();
  return memory;
}

void give_scratch(void* memory, std::int64_t bytes) noexcept {
  const std::int64_t kept = rounded(bytes);
  if (kept <= kKept) {
    while (shelf.bytes + kept > kKept && !shelf.pieces.empty()) {  // the oldest size goes first
      shelf.bytes -= shelf.pieces.front().bytes;
      std::free(shelf.pieces.front().memory);
      shelf.pieces.erase(shelf.pieces.begin());
    }
    try {
      shelf.pieces.push_back({memory, kept});
      shelf.bytes += kept;
      return;
    } catch (...) {
    }
  }
  std::free(memory);
}

}  // namespace rowgrad
