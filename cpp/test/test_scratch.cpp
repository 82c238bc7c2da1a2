// Cached workspace: what is cached, what is evicted first, and what is rejected.
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "expect.h"
#include "rowgrad/kernel.h"

using namespace rowgrad;

namespace {

constexpr std::int64_t kLarge = std::int64_t{4} << 20;  // allocated with mmap from here on
const std::int64_t cache_limit = std::max(std::int64_t{256} << 20, memory_limit() / 32);

// Whether the pages are still mapped; none is ever touched.
bool is_mapped(void* memory) { return msync(memory, 4096, MS_ASYNC) == 0; }

template <class T>
std::int64_t rejected_size(std::int64_t n) {
  try {
    Scratch<T> it(n);
  } catch (const OutOfMemory& e) {
    return e.elements;
  }
  return 0;
}

void test_rejected_sizes() {
  EXPECT_EQ(rejected_size<std::int64_t>(-1), -1);
  const std::int64_t too_many = memory_limit() / 2 / 8 + 1;
  EXPECT_EQ(rejected_size<std::int64_t>(too_many), too_many);
  EXPECT_EQ(rejected_size<std::int64_t>(1000), 0);
}

// A released block is reused by the next request of its size, small or large, and by no other size.
void test_reuse() {
  for (std::int64_t bytes : {std::int64_t{1}, std::int64_t{100000}, 2 * kLarge}) {
    const test::Where where("reuse", {{"bytes", bytes}});
    void* const first = allocate_scratch(bytes);
    release_scratch(first, bytes);
    void* const other = allocate_scratch(3 * bytes + 8192);
    void* const reused = allocate_scratch(bytes);
    EXPECT(other != first);
    EXPECT(reused == first);
    release_scratch(other, 3 * bytes + 8192);
    release_scratch(reused, bytes);
  }
}

// If more is released than may be cached, the oldest is evicted; a block above the limit is freed at once.
void test_eviction() {
  const std::int64_t third = cache_limit / 3 + 1;  // two fit, three do not
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocate_scratch(third));
  for (void* memory : blocks) {
    EXPECT(is_mapped(memory));
    release_scratch(memory, third);
  }
  EXPECT(!is_mapped(blocks[0]));
  EXPECT(!is_mapped(blocks[1]));
  EXPECT(is_mapped(blocks[2]));
  EXPECT(is_mapped(blocks[3]));

  void* const huge = allocate_scratch(cache_limit + 1);
  EXPECT(is_mapped(huge));
  release_scratch(huge, cache_limit + 1);
  EXPECT(!is_mapped(huge));
  EXPECT(is_mapped(blocks[2]));  // the others are still cached
  EXPECT(allocate_scratch(third) == blocks[2]);
  EXPECT(allocate_scratch(third) == blocks[3]);
  for (void* memory : {blocks[2], blocks[3]}) release_scratch(memory, third);
}

}  // namespace

int main() {
  test_rejected_sizes();
  test_reuse();
  test_eviction();
  return test::finish();
}
