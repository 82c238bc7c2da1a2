// Row arithmetic against naive loops, for every type, width and number of rows; and every level against the first.
#include "rowgrad/rows.h"

#include <cstring>
#include <vector>

#include "../kernels/row_table.h"
#include "expect.h"
#include "naive.h"
#include "random.h"
#include "rowgrad/float_mode.h"

namespace rowgrad {
void fill_rows_baseline(RowTable&);
#if defined(__x86_64__) || defined(_M_X64)
void fill_rows_v3(RowTable&);
void fill_rows_v4(RowTable&);
#endif
}  // namespace rowgrad

using namespace rowgrad;
using namespace test;

namespace {

constexpr std::int64_t kWidths = 70, kRows = 40, kTable = 24;

struct Level {
  const char* name;
  RowTable table;
};

// Every copy this machine can run, baseline first.
std::vector<Level> present_levels() {
  std::vector<Level> levels(1);
  levels[0].name = "baseline";
  fill_rows_baseline(levels[0].table);
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v3")) fill_rows_v3(levels.emplace_back(Level{"x86-64-v3", {}}).table);
  if (__builtin_cpu_supports("x86-64-v4")) fill_rows_v4(levels.emplace_back(Level{"x86-64-v4", {}}).table);
#endif
  return levels;
}

// One width and number of rows, with what the functions read. Buffers are no longer than needed: one element too far
// is seen by the address sanitizer.
template <class T>
struct Case {
  using A = Accumulator<T>;
  std::int64_t cols, n;
  std::vector<T> data, rows;           // kTable rows to choose from; n consecutive rows
  std::vector<std::int64_t> ids;       // n rows of data
  std::vector<std::int64_t> shuffled;  // positions below n in any order, with repeats
  std::vector<A> weights, totals;      // one per id; one per row of data

  Case(Rng& rng, std::int64_t cols_, std::int64_t n_)
      : cols(cols_),
        n(n_),
        data(random_values<T>(rng, kTable * cols)),
        rows(random_values<T>(rng, n * cols)),
        ids(random_ids(rng, n, kTable)),
        shuffled(random_ids(rng, n, n)),
        weights(random_values<A>(rng, n)),
        totals(random_values<A>(rng, kTable)) {
    totals[0] = totals[5] = A(0);  // a divisor of 0 gives 0
  }
};

// fn(level's table, where to write) must give `expected` on every level.
template <class T, class Fn>
void check_levels(const std::vector<Level>& levels, const std::vector<T>& expected, Fn fn) {
  for (const Level& level : levels) {
    const Where where(level.name);
    std::vector<T> out(expected.size());
    fn(level.table, out.data());
    EXPECT(std::memcmp(out.data(), expected.data(), expected.size() * sizeof(T)) == 0);
  }
}

template <class T, class A>
std::vector<T> stored(const std::vector<A>& sums) {
  std::vector<T> out;
  for (A s : sums) out.push_back(store<T>(s));
  return out;
}

template <class T>
void test_reduce(const std::vector<Level>& levels, const Case<T>& x) {
  const std::vector<std::int32_t> narrow(x.ids.begin(), x.ids.end());
  for (Reduce kind : {Reduce::sum, Reduce::mean, Reduce::sqrtn}) {
    if (kind != Reduce::sum && !std::is_floating_point_v<Accumulator<T>>) break;
    const Where where("reduce", {{"kind", std::int64_t(kind)}, {"cols", x.cols}, {"n", x.n}, {"bytes", sizeof(T)}});
    check_levels(levels, naive_reduce(x.data.data(), x.cols, x.ids, kind), [&](const RowTable& table, T* out) {
      const auto& ops = std::get<SumOps<T>>(table.sum);
      if ((x.cols + x.n) % 2)  // both kinds of ids see every width and every n, at half the time
        ops.reduce_i32(out, x.data.data(), x.cols, narrow.data(), x.n, kind);
      else
        ops.reduce_i64(out, x.data.data(), x.cols, x.ids.data(), x.n, kind);
    });
  }
}

template <class T>
void test_segment_sum(const std::vector<Level>& levels, const Case<T>& x) {
  const Where where("segment_sum", {{"cols", x.cols}, {"n", x.n}, {"bytes", sizeof(T)}});
  check_levels(levels, naive_segment_sum(x.rows.data(), x.cols, x.n), [&](const RowTable& table, T* out) {
    std::get<SegmentSumOps<T>>(table.segment_sum).segment_sum(out, x.rows.data(), x.cols, x.n);
  });
}

template <class T>
void test_accumulate(const std::vector<Level>& levels, const Case<T>& x) {
  using A = Accumulator<T>;
  std::vector<Entry<std::uint32_t>> narrow;
  std::vector<Entry<std::uint64_t>> wide;
  for (std::int64_t id : x.ids) {
    narrow.push_back({7, std::uint32_t(id)});
    wide.push_back({7, std::uint64_t(id)});
  }
  for (const A* scale : {static_cast<const A*>(nullptr), x.totals.data()}) {
    const Where where("accumulate", {{"scaled", scale != nullptr}, {"cols", x.cols}, {"n", x.n}, {"bytes", sizeof(T)}});
    const auto sums = sum_from_zero<A>(x.cols, x.n, [&](std::int64_t j, std::int64_t c) {
      const A g = load(x.data[x.ids[j] * x.cols + c]);
      return scale ? g * scale[x.ids[j]] : g;
    });
    check_levels(levels, stored<T>(sums), [&](const RowTable& table, T* out) {
      const auto& ops = std::get<GradOps<T>>(table.grad);
      if ((x.cols + x.n) % 2)
        ops.accumulate_u32(out, x.data.data(), x.cols, narrow.data(), x.n, scale);
      else
        ops.accumulate_u64(out, x.data.data(), x.cols, wide.data(), x.n, scale);
    });
  }
}

template <class T>
void test_weighted_reduce(const std::vector<Level>& levels, const Case<T>& x) {
  using A = Accumulator<T>;
  auto sums = sum_like_segment_sum<A>(x.cols, x.n, [&](std::int64_t j, std::int64_t c) {
    return load(x.data[x.ids[j] * x.cols + c]) * x.weights[j];
  });
  const A zero(0), other = x.totals[1];
  for (const A* total : {static_cast<const A*>(nullptr), &zero, &other}) {
    const Where where("weighted_reduce", {{"cols", x.cols}, {"n", x.n}, {"bytes", sizeof(T)}});
    auto divided = sums;
    if (total)
      for (A& s : divided) s = *total == 0 ? A(0) : s / *total;
    check_levels(levels, stored<T>(divided), [&](const RowTable& table, T* out) {
      std::get<GradOps<T>>(table.grad)
          .weighted_reduce(out, x.data.data(), x.cols, x.ids.data(), x.weights.data(), x.n, total);
    });
  }
}

template <class T>
void test_weighted_gradient(const std::vector<Level>& levels, const Case<T>& x) {
  using A = Accumulator<T>;
  for (const A* totals : {static_cast<const A*>(nullptr), x.totals.data()}) {
    // What id i adds to column c: its segment's row, over the segment's total, times its weight.
    auto term = [&](std::int64_t i, std::int64_t c) {
      A g = load(x.data[x.ids[i] * x.cols + c]);
      if (totals) g = totals[x.ids[i]] == 0 ? A(0) : g / totals[x.ids[i]];
      return g * x.weights[i];
    };
    const Where where("weighted", {{"totals", totals != nullptr}, {"cols", x.cols}, {"n", x.n}, {"bytes", sizeof(T)}});
    std::vector<T> row;
    for (std::int64_t c = 0; c < x.cols; ++c) row.push_back(store<T>(term(0, c)));
    check_levels(levels, row, [&](const RowTable& table, T* out) {
      std::get<GradOps<T>>(table.grad)
          .weighted_row(out, x.data.data() + x.ids[0] * x.cols, x.cols, x.weights[0],
                        totals ? totals + x.ids[0] : nullptr);
    });
    for (Rounding rounding : {Rounding::each_add, Rounding::at_end}) {
      const Where where_rounding("accumulate", {{"rounding", std::int64_t(rounding)}});
      std::vector<T> expected;
      for (std::int64_t c = 0; c < x.cols; ++c) {
        A sum(0);
        for (std::int64_t i : x.shuffled) {
          if (rounding == Rounding::each_add)
            sum = load(store<T>(sum + load(store<T>(term(i, c)))));
          else
            sum += term(i, c);
        }
        expected.push_back(store<T>(sum));
      }
      check_levels(levels, expected, [&](const RowTable& table, T* out) {
        std::get<GradOps<T>>(table.grad)
            .weighted_accumulate(out, x.data.data(), x.cols, x.shuffled.data(), x.n, x.ids.data(), x.weights.data(),
                                 totals, rounding);
      });
    }
  }
}

// Column c goes to partial sum c mod 8; they meet as a tree.
template <class T>
void test_dot(const std::vector<Level>& levels, const Case<T>& x) {
  using A = Accumulator<T>;
  const Where where("dot", {{"cols", x.cols}, {"bytes", sizeof(T)}});
  const T *a = x.rows.data(), *b = x.data.data();
  A p[8] = {};
  for (std::int64_t c = 0; c < x.cols; ++c) p[c % 8] += load(a[c]) * load(b[c]);
  const A sum = ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
  check_levels(levels, std::vector<A>{sum}, [&](const RowTable& table, A* out) {
    *out = std::get<GradOps<T>>(table.grad).dot(a, b, x.cols);
  });
}

template <class T>
void test_type(const std::vector<Level>& levels) {
  Rng rng(3);
  for (std::int64_t cols = 1; cols <= kWidths; ++cols)
    for (std::int64_t n = 1; n <= kRows; ++n) {
      const Case<T> x(rng, cols, n);
      test_segment_sum(levels, x);
      if constexpr (std::is_arithmetic_v<Accumulator<T>>) test_reduce(levels, x);
      if constexpr (std::is_floating_point_v<Accumulator<T>>) {
        test_accumulate(levels, x);
        test_weighted_reduce(levels, x);
        test_weighted_gradient(levels, x);
        test_dot(levels, x);
      }
    }
}

template <class... Ts>
void test_types(const std::vector<Level>& levels, std::type_identity<std::tuple<SegmentSumOps<Ts>...>>) {
  (test_type<Ts>(levels), ...);
}

}  // namespace

int main() {
  const FlushSubnormals flush;
  const auto levels = present_levels();
  for (const Level& level : levels) std::printf("level %s\n", level.name);
  EXPECT_EQ(std::string(row_level()), std::string(levels.back().name));
  EXPECT(sum_ops<float>().reduce_i32 == std::get<SumOps<float>>(levels.back().table.sum).reduce_i32);
  test_types(levels, std::type_identity<NumberTable<SegmentSumOps>>{});
  return test::finish();
}
