// Checks that count failures, print where they happened, and continue. No templates: they would slow down compilation
// under three sanitizers.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <utility>

namespace test {

// Sanitizers slow everything down: loops over sizes take fewer steps there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Enough ids for every scan, sort and sum to be split over threads.
constexpr std::int64_t kLarge = kSanitized ? 140000 : 200000;

inline std::atomic<long> passed{0}, failed{0};

// Describes the case that a loop is in. Costs a few stores, cheap enough for inner loops; text is built only for a
// failure.
class Where {
 public:
  using Fact = std::pair<const char*, std::int64_t>;

  explicit Where(const char* what, std::initializer_list<Fact> facts = {}) : what_(what), outer_(innermost) {
    for (const Fact& f : facts)
      if (count_ < facts_.size()) facts_[count_++] = f;
    innermost = this;
  }
  ~Where() { innermost = outer_; }
  Where(const Where&) = delete;
  Where& operator=(const Where&) = delete;

  static void print() {
    for (const Where* w = innermost; w; w = w->outer_) {
      std::printf("    in %s", w->what_);
      for (std::size_t i = 0; i < w->count_; ++i)
        std::printf(" %s=%lld", w->facts_[i].first, static_cast<long long>(w->facts_[i].second));
      std::printf("\n");
    }
  }

 private:
  inline static thread_local const Where* innermost = nullptr;
  const char* what_;
  const Where* outer_;
  std::array<Fact, 6> facts_;
  std::size_t count_ = 0;
};

// A broken inner loop fails thousands of times: print the first failures, count all.
inline bool fail(const char* file, int line, const char* what, const char* more = "") {
  if (++failed <= 20) {
    std::printf("%s:%d: %s%s\n", file, line, what, more);
    Where::print();
    std::fflush(stdout);
  }
  return false;
}

inline bool check(bool good, const char* file, int line, const char* what) {
  if (!good) return fail(file, line, what);
  ++passed;
  return true;
}

inline bool check_equal(std::int64_t a, std::int64_t b, const char* file, int line, const char* what) {
  if (a == b) return check(true, file, line, what);
  return fail(file, line, what, (": " + std::to_string(a) + " is not " + std::to_string(b)).c_str());
}

// Prints the summary of a test program and returns its exit code.
inline int finish() {
  std::printf("%ld passed, %ld failed\n", passed.load(), failed.load());
  return failed.load() == 0 && passed.load() > 0 ? 0 : 1;
}

}  // namespace test

#define EXPECT(condition) test::check(bool(condition), __FILE__, __LINE__, #condition)
// For integers and enums.
#define EXPECT_EQ(a, b) test::check_equal(std::int64_t(a), std::int64_t(b), __FILE__, __LINE__, #a " == " #b)
