// Batches sorted by row: sorting, row starts, and the split of groups over threads.
#include <atomic>
#include <utility>

#include "expect.h"
#include "random.h"
#include "rowgrad/radix_sort.h"
#include "rowgrad/sorted_batch.h"

using namespace rowgrad;
using test::Rng;
using test::Where;

namespace {

template <class P>
std::vector<Entry<P>> random_entries(Rng& rng, std::int64_t n, std::int64_t num_rows) {
  std::vector<Entry<P>> entries;
  // `from` is the input position: a stable sort keeps it ascending within a row.
  for (std::int64_t i = 0; i < n; ++i) entries.push_back({P(rng.below(num_rows)), P(i)});
  return entries;
}

template <class P>
Entries<P> sorted(const std::vector<Entry<P>>& entries, std::int64_t num_rows) {
  return sorted_by_row<P>(
      std::int64_t(entries.size()), num_rows, [&](std::int64_t i) { return entries[i].row; },
      [&](std::int64_t i) { return entries[i].from; });
}

template <class P>
void check_sort(std::vector<Entry<P>> entries, std::int64_t num_rows) {
  auto expected = entries;
  std::stable_sort(expected.begin(), expected.end(), [](auto& a, auto& b) { return a.row < b.row; });
  for (int threads : {1, 2, 3, 8}) {
    const Where where("sort", {{"n", std::int64_t(entries.size())}, {"rows", num_rows}, {"threads", threads}});
    set_num_threads(threads);
    const auto got = sorted(entries, num_rows);
    EXPECT(std::equal(got.data(), got.data() + got.size(), expected.begin(), expected.end(),
                      [](auto& a, auto& b) { return a.row == b.row && a.from == b.from; }));
  }
}

// Row counts at the limits of one, two and more digits, and the largest possible.
template <class P>
void test_sort(Rng& rng) {
  const std::int64_t most = sizeof(P) == 4 ? 1LL << 32 : INT64_MAX;
  for (std::int64_t rows : {1LL, 2LL, 3LL, 2047LL, 2048LL, 2049LL, 1LL << 16, (1LL << 22) + 1, 1LL << 31, 1LL << 32,
                            (1LL << 32) + 1, 1LL << 44, INT64_MAX + 0LL})
    for (std::int64_t n : {0, 1, 2, 3, 100, 1000})
      if (rows <= most) check_sort(random_entries<P>(rng, n, rows), rows);
  // Enough for eight threads, so more than one part at any number of threads.
  for (std::int64_t rows : {5000LL, 7LL, 1LL << 32}) {
    check_sort(random_entries<P>(rng, 132000 + rng.below(1000), rows), rows);
    if (test::kSanitized) break;
  }
  std::vector<Entry<P>> entries;
  for (std::int64_t i = 0; i < 40000; ++i) entries.push_back({P(40000 - i / 3), P(i)});
  check_sort(entries, 40001);
  std::reverse(entries.begin(), entries.end());
  check_sort(entries, 40001);
  check_sort(std::vector<Entry<P>>(40000, Entry<P>{4, 2}), 5);
}

// Numbers that do not fit into 32 bits, as row or as source of an entry.
void test_wide_batches() {
  constexpr std::int64_t limit = std::int64_t{1} << 32;
  for (auto [rows, sources] : {std::pair{limit, limit}, std::pair{limit + 1, limit}, std::pair{limit, limit + 1}}) {
    const Where where("batch", {{"rows", rows}, {"sources", sources}});
    const std::int64_t indices[] = {rows - 1, 0, rows - 1}, segments[] = {sources - 1, sources - 2, 0};
    const auto batch = SortedBatch::by_segment(Ids(indices, 3, true), Ids(segments, 3, true), rows, sources);
    batch.visit([&, rows = rows, sources = sources](const auto& entries) {
      EXPECT_EQ(sizeof entries[0], rows > limit || sources > limit ? 16 : 8);
      const std::int64_t row[] = {0, rows - 1, rows - 1}, from[] = {sources - 2, sources - 1, 0};
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(entries[i].row, row[i]);
        EXPECT_EQ(entries[i].from, from[i]);
      }
    });
  }
}

void test_row_starts(Rng& rng) {
  EXPECT(row_starts(Entries<std::uint32_t>{}) == std::vector<std::int64_t>{0});
  for (std::int64_t n : {1, 2, 10, 1000})
    for (std::int64_t rows : {1, 2, 10, 5000}) {
      const Where where("starts", {{"n", n}, {"rows", rows}});
      const auto entries = sorted(random_entries<std::uint64_t>(rng, n, rows), rows);
      const auto starts = row_starts(entries);
      EXPECT_EQ(starts.front(), 0);
      EXPECT_EQ(starts.back(), n);
      for (std::size_t g = 0; g + 1 < starts.size(); ++g) {
        EXPECT(starts[g] < starts[g + 1]);
        EXPECT_EQ(entries[starts[g]].row, entries[starts[g + 1] - 1].row);
        EXPECT(g == 0 || entries[starts[g] - 1].row < entries[starts[g]].row);
      }
    }
}

// Distinct rows, in total and counted per part, match the row starts.
void test_distinct_rows(Rng& rng) {
  for (std::int64_t n : {1, 10, 1000, 200000})
    for (std::int64_t rows : {1, 10, 50000})
      for (int threads : {1, 2, 8}) {
        const Where where("distinct", {{"n", n}, {"rows", rows}, {"threads", threads}});
        set_num_threads(threads);
        const auto entries = sorted(random_entries<std::uint32_t>(rng, n, rows), rows);
        const auto starts = row_starts(entries);
        const auto found = std::get<std::vector<std::int32_t>>(distinct_rows(entries, rows));
        EXPECT(std::holds_alternative<std::vector<std::int64_t>>(distinct_rows(entries, (1LL << 31) + 1)));
        EXPECT_EQ(found.size(), starts.size() - 1);
        for (std::size_t g = 0; g < found.size(); ++g) EXPECT_EQ(std::int64_t(found[g]), std::int64_t(entries[starts[g]].row));
        for (std::int64_t parts : {1, 3, 7}) {
          const auto before = runs_before(entries, parts);
          EXPECT_EQ(before.front(), 0);
          EXPECT_EQ(before.back(), std::int64_t(found.size()));
          EXPECT(std::is_sorted(before.begin(), before.end()));
        }
      }
}

void check_groups(const std::vector<std::int64_t>& starts, std::int64_t work) {
  const auto groups = std::int64_t(starts.size()) - 1;
  for (int threads : {1, 2, 3, 8}) {
    const Where where("groups", {{"groups", groups}, {"entries", starts.back()}, {"work", work}, {"threads", threads}});
    set_num_threads(threads);
    // Not atomic: two calls for one group are a race that the thread sanitizer reports.
    std::vector<int> visits(static_cast<std::size_t>(groups));
    std::atomic<bool> ordered{true};
    std::atomic<int> calls{0};
    parallel_groups(starts, work, [&](std::int64_t first, std::int64_t last) {
      if (first > last || first < 0 || last > groups) ordered = false;
      for (std::int64_t g = first; g < last; ++g) ++visits[g];
      ++calls;
    });
    EXPECT(ordered.load());
    EXPECT(std::all_of(visits.begin(), visits.end(), [](int n) { return n == 1; }));
    EXPECT(calls.load() <= 4 * threads);
    if (starts.back() * work >= 1 << 20) EXPECT_EQ(calls.load(), 4 * threads);
  }
}

void test_parallel_groups(Rng& rng) {
  for (std::int64_t work : {0, 1, 3, 1000}) {
    check_groups({0}, work);
    check_groups({0, 1}, work);
    check_groups({0, 2000000}, work);  // one group that cannot be split
    for (std::int64_t longest : {1, 2, 50, 40000}) {
      std::vector<std::int64_t> starts{0};
      for (int g = 0; g < 3000; ++g) starts.push_back(starts.back() + 1 + rng.below(rng.chance(100) ? longest : 1));
      check_groups(starts, work);
    }
  }
}

}  // namespace

int main() {
  Rng rng(2);
  test_sort<std::uint32_t>(rng);
  test_sort<std::uint64_t>(rng);
  test_wide_batches();
  test_row_starts(rng);
  test_distinct_rows(rng);
  test_parallel_groups(rng);
  set_num_threads(1);
  return test::finish();
}
