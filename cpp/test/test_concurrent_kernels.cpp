// Many threads call every kernel at once while the pool is resized: same bits as a single call. The thread sanitizer
// detects races that do not change bits.
#include <atomic>
#include <chrono>
#include <thread>

#include "every_kernel.h"

using namespace test;

namespace {

void test_mixed_callers() {
  constexpr int callers = kSanitized ? 4 : 16, rounds = kSanitized ? 1 : 3;
  const EveryKernel every(kSanitized ? 34000 : 40000, 21);
  EXPECT(every.is_complete());
  std::vector<Prepared> before;
  std::vector<std::vector<Tensor>> expected;
  set_num_threads(1);
  for (const Case& c : every.cases) {
    before.push_back(prepared(c, true));
    expected.push_back(before.back().before);
    EXPECT(run_on(c, expected.back(), before.back().rows, [] {}, [] {}, true).computed);
  }

  std::atomic<int> working{callers};
  std::vector<std::thread> threads;
  for (int t = 0; t < callers; ++t)
    threads.emplace_back([&, t] {
      const std::size_t n = every.cases.size();
      for (std::size_t k = 0; k < n * rounds; ++k) {
        const std::size_t i = (k + static_cast<std::size_t>(t) * 5) % n;  // each starts at another case
        const Where where(every.cases[i].kernel.c_str(), {{"caller", t}});
        std::vector<Tensor> out = before[i].before;
        EXPECT(run_on(every.cases[i], out, before[i].rows, [] {}, [] {}, true).computed);
        EXPECT(same(out, expected[i]));
      }
      --working;
    });
  for (int i = 0; working.load() > 0; ++i) {
    set_num_threads(1 + i % 4);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (auto& t : threads) t.join();
}

}  // namespace

int main() {
  test_mixed_callers();
  set_num_threads(1);
  return test::finish();
}
