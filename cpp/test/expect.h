// Checks that count, say where they failed, and go on.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>

namespace test {

inline std::atomic<long> passed{0}, failed{0};

// Names the case a loop is in. Costs two pointer writes and some integers, so the innermost loop can afford one;
// words are made only for a failure.
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

  static std::string words() {
    std::string text;
    for (const Where* w = innermost; w; w = w->outer_) {
      text += std::string("\n    in ") + w->what_;
      for (std::size_t i = 0; i < w->count_; ++i)
        text += std::string(" ") + w->facts_[i].first + "=" + std::to_string(w->facts_[i].second);
    }
    return text;
  }

 private:
  inline static thread_local const Where* innermost = nullptr;
  const char* what_;
  const Where* outer_;
  std::array<Fact, 6> facts_;
  std::size_t count_ = 0;
};

inline bool check(bool good, const char* file, int line, const char* what) {
  if (good) {
    ++passed;
  } else if (++failed <= 20) {  // a broken inner loop fails thousands of times; the count tells that
    std::printf("%s:%d: %s%s\n", file, line, what, Where::words().c_str());
    std::fflush(stdout);
  }
  return good;
}

template <class V>
std::string show(const V& v) {
  if constexpr (std::is_enum_v<V>)
    return std::to_string(std::int64_t(v));
  else if constexpr (std::is_arithmetic_v<V>)
    return std::to_string(v);
  else
    return v;
}

template <class A, class B>
bool check_equal(const A& a, const B& b, const char* file, int line, const char* what) {
  if (a == b) return check(true, file, line, what);
  return check(false, file, line, (std::string(what) + ": " + show(a) + " is not " + show(b)).c_str());
}

// The last line of a test program, and its exit code.
inline int finish() {
  std::printf("%ld passed, %ld failed\n", passed.load(), failed.load());
  return failed.load() == 0 && passed.load() > 0 ? 0 : 1;
}

}  // namespace test

#define EXPECT(condition) test::check(bool(condition), __FILE__, __LINE__, #condition)
#define EXPECT_EQ(a, b) test::check_equal((a), (b), __FILE__, __LINE__, #a " == " #b)
