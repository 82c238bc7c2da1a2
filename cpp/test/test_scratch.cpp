// Cached workspace: what is cached, what is evicted first, and what is rejected.
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "expect.h"
#include "rowgrad/kernel.h"

using namespace rowgrad;

namespace {

constexpr std::int64_t kLargePiece = std::int64_t{4} << 20;  // from here on memory comes from the system
const std::int64_t most_kept = std::max(std::int64_t{256} << 20, memory_limit() / 32);

// Whether the system still has the pages; none of these is ever touched.
bool is_there(void* memory) { return msync(memory, 4096, MS_ASYNC) == 0; }

template <class T>
std::int64_t refused(std::int64_t n) {
  try {
    Scratch<T> it(n);
  } catch (const OutOfMemory& e) {
    return e.elements;
  }
  return 0;
}

void test_refused() {
  EXPECT_EQ(refused<std::int64_t>(-1), -1);
  const std::int64_t too_many = memory_limit() / 2 / 8 + 1;
  EXPECT_EQ(refused<std::int64_t>(too_many), too_many);
  EXPECT_EQ(refused<std::int64_t>(1000), 0);
}

// A piece that is given back is the next of its size, small or large, and of no other size.
void test_again() {
  for (std::int64_t bytes : {std::int64_t{1}, std::int64_t{100000}, 2 * kLargePiece}) {
    const test::Where where("again", {{"bytes", bytes}});
    void* const first = allocate_scratch(bytes);
    release_scratch(first, bytes);
    void* const other = allocate_scratch(3 * bytes + 8192);
    void* const again = allocate_scratch(bytes);
    EXPECT(other != first);
    EXPECT(again == first);
    release_scratch(other, 3 * bytes + 8192);
    release_scratch(again, bytes);
  }
}

// If more is released than may be cached, the oldest is evicted; a block above the limit is freed at once.
void test_kept() {
  const std::int64_t third = most_kept / 3 + 1;  // two fit, three do not
  std::vector<void*> pieces;
  for (int i = 0; i < 4; ++i) pieces.push_back(allocate_scratch(third));
  for (void* memory : pieces) {
    EXPECT(is_there(memory));
    release_scratch(memory, third);
  }
  EXPECT(!is_there(pieces[0]));
  EXPECT(!is_there(pieces[1]));
  EXPECT(is_there(pieces[2]));
  EXPECT(is_there(pieces[3]));

  void* const huge = allocate_scratch(most_kept + 1);
  EXPECT(is_there(huge));
  release_scratch(huge, most_kept + 1);
  EXPECT(!is_there(huge));
  EXPECT(is_there(pieces[2]));  // and takes none of the others with it
  EXPECT(allocate_scratch(third) == pieces[2]);
  EXPECT(allocate_scratch(third) == pieces[3]);
  for (void* memory : {pieces[2], pieces[3]}) release_scratch(memory, third);
}

}  // namespace

int main() {
  test_refused();
  test_again();
  test_kept();
  return test::finish();
}
