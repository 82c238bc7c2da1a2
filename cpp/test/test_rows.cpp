// Row arithmetic of every available level against naive loops, for every type, width and number of rows.
#include "rowgrad/rows.h"

#if !defined(_WIN32)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <functional>

#include "../kernels/cpu_level.h"
#include "../kernels/row_table.h"
#include "call.h"
#include "naive.h"
#include "rowgrad/ids.h"

namespace rowgrad {
void fill_rows_baseline(RowTable&);
#ifdef ROWGRAD_X86_LEVELS
void fill_rows_v3(RowTable&);
void fill_rows_v4(RowTable&);
#endif
}  // namespace rowgrad

using namespace test;

namespace {

constexpr std::int64_t kWidths = 70, kRows = 40, kTable = 24;

struct Level {
  const char* name;
  RowTable table;
};

// The functions that the naive loops implement; the rest of the table is derived from these.
template <class T>
void fill_naive(SumOps<T>& ops) {
  ops.reduce_i32 = naive::reduce<T, std::int32_t>;
  ops.reduce_i64 = naive::reduce<T, std::int64_t>;
}
template <class T>
void fill_naive(SegmentSumOps<T>& ops) {
  ops.segment_sum = naive::segment_sum<T>;
}
template <class T>
void fill_naive(GradOps<T>& ops) {
  ops.accumulate_runs_u32 = naive::accumulate_runs<T, std::uint32_t>;
  ops.accumulate_runs_u64 = naive::accumulate_runs<T, std::uint64_t>;
  ops.accumulate_planned_i32 = naive::accumulate_planned<T, std::int32_t>;
  ops.accumulate_planned_i64 = naive::accumulate_planned<T, std::int64_t>;
  ops.weighted_bags = naive::weighted_bags<T>;
  ops.weighted_row = naive::weighted_row<T>;
  ops.weighted_runs_u32 = naive::weighted_runs<T, std::uint32_t>;
  ops.weighted_runs_u64 = naive::weighted_runs<T, std::uint64_t>;
  ops.weighted_planned = naive::weighted_planned<T>;
  ops.dot = naive::dot<T>;
}

void fill_rows_naive(RowTable& table) {
  auto fill = [](auto&... ops) { (fill_naive(ops), ...); };
  std::apply(fill, table.sum);
  std::apply(fill, table.segment_sum);
  std::apply(fill, table.grad);
}

// The naive loops, then every level that this machine can run.
std::vector<Level> make_levels() {
  std::vector<Level> levels{{"naive", {}}, {"baseline", {}}};
  fill_rows_naive(levels[0].table);
  fill_rows_baseline(levels[1].table);
#ifdef ROWGRAD_X86_LEVELS
  if (has_v3()) fill_rows_v3(levels.emplace_back(Level{"x86-64-v3", {}}).table);
  if (has_v4()) fill_rows_v4(levels.emplace_back(Level{"x86-64-v4", {}}).table);
#endif
  return levels;
}

const std::vector<Level>& levels() {
  static const std::vector<Level> all = make_levels();
  return all;
}

// Expects fn(table of a level, output) to write the same bits on every level. The output has exactly the needed size
// and starts as garbage, so that overruns and gaps are detected.
void check_levels(DType dtype, std::int64_t size, const std::function<void(const RowTable&, void*)>& fn) {
  Tensor expected(dtype, {size});
  fn(levels()[0].table, expected.as<void>());
  for (std::size_t i = 1; i < levels().size(); ++i) {
    const Where where(levels()[i].name);
    Tensor out(dtype, {size});
    std::fill(out.bytes.begin(), out.bytes.end(), std::byte(0xa5));
    fn(levels()[i].table, out.as<void>());
    EXPECT_EQ(first_difference(out, expected), -1);
  }
}

// Inputs of the functions, for one width and number of rows.
struct Case {
  std::int64_t cols, n;
  Tensor data, rows;        // kTable rows to select from; n consecutive rows
  Numbers64 ids, shuffled;  // n rows of data; n positions below n, in any order, with repeats
  Tensor weights, totals;   // one per id; one per row of data

  Case(Rng& rng, DType dtype, DType accumulator, std::int64_t cols_, std::int64_t n_)
      : cols(cols_),
        n(n_),
        data(random_tensor(rng, dtype, {kTable, cols})),
        rows(random_tensor(rng, dtype, {n, cols})),
        ids(random_ids(rng, n, kTable)),
        shuffled(random_ids(rng, n, n)),
        weights(random_tensor(rng, accumulator, {n})),
        totals(random_tensor(rng, accumulator, {kTable})) {
    std::memset(totals.at(0), 0, 5 * static_cast<std::size_t>(width_of(accumulator)));  // a divisor of 0 yields 0
  }

  // Ids of both widths are tested with every width and number of rows, in half the time.
  bool wide() const { return (cols + n) % 2; }
};

template <class T>
void test_sums(DType dtype, const Case& x) {
  const T *data = x.data.as<T>(), *rows = x.rows.as<T>();
  check_levels(dtype, x.cols, [&](const RowTable& table, void* out) {
    std::get<SegmentSumOps<T>>(table.segment_sum).segment_sum(static_cast<T*>(out), rows, x.cols, x.n);
  });
  if constexpr (std::is_arithmetic_v<Accumulator<T>>) {
    const std::vector<std::int32_t> narrow(x.ids.begin(), x.ids.end());
    for (Reduction kind : {Reduction::sum, Reduction::mean, Reduction::sqrtn}) {
      if (kind != Reduction::sum && std::is_integral_v<T>) break;
      const Where where("reduce", {{"kind", std::int64_t(kind)}});
      check_levels(dtype, x.cols, [&](const RowTable& table, void* out) {
        const auto& ops = std::get<SumOps<T>>(table.sum);
        if (x.wide())
          ops.reduce_i64(static_cast<T*>(out), data, x.cols, x.ids.data(), x.n, kind);
        else
          ops.reduce_i32(static_cast<T*>(out), data, x.cols, narrow.data(), x.n, kind);
      });
    }
  }
}

// One row's entries in four representations.
struct Sources {
  std::vector<Entry<std::uint32_t>> narrow;
  std::vector<Entry<std::uint64_t>> wide;
  std::vector<std::int32_t> list32;
  const Numbers64& list64;

  explicit Sources(const Numbers64& from) : list64(from) {
    for (std::int64_t i : from) {
      narrow.push_back({0, std::uint32_t(i)});
      wide.push_back({0, std::uint64_t(i)});
      list32.push_back(std::int32_t(i));
    }
  }
  std::int64_t size() const { return std::int64_t(list64.size()); }
};

constexpr std::int64_t kStart = 0;
constexpr Order kOrders[] = {Order::sequential, Order::blocked};

template <class T, class I>
PlannedRows<T, I> planned(T* out, const Case& x, const I* from, std::int64_t n, const Accumulator<T>* scale,
                          Order order) {
  return {out, x.data.as<T>(), x.cols, {&kStart, 1, true}, 1, &kStart, 1, from, n, scale, false, order, false};
}

template <class T>
void test_accumulate(DType dtype, const Case& x, const Accumulator<T>* scale) {
  const Sources from(x.ids);
  for (Order order : kOrders) {
    const Where where("accumulate", {{"scaled", scale != nullptr}, {"order", std::int64_t(order)}});
    auto sorted = [&](void* out, const auto& entries) {
      using P = decltype(entries[0].from + 0);
      return SortedRows<T, P>{static_cast<T*>(out), x.data.as<T>(), x.cols, entries.data(), x.n, scale, false, order, 0,
                              x.cols};
    };
    check_levels(dtype, x.cols, [&](const RowTable& table, void* out) {
      const auto& ops = std::get<GradOps<T>>(table.grad);
      if (x.wide())
        ops.accumulate_runs(sorted(out, from.wide), 0, x.n, 0);
      else
        ops.accumulate_runs(sorted(out, from.narrow), 0, x.n, 0);
    });
    check_levels(dtype, x.cols, [&](const RowTable& table, void* out) {
      const auto& ops = std::get<GradOps<T>>(table.grad);
      if (x.wide())
        ops.accumulate_planned(planned(static_cast<T*>(out), x, from.list64.data(), x.n, scale, order), 0, 1);
      else
        ops.accumulate_planned(planned(static_cast<T*>(out), x, from.list32.data(), x.n, scale, order), 0, 1);
    });
  }
}

// totals is null, or the divisor of every row of data, of which the first are 0.
template <class T>
void test_weighted(DType dtype, const Case& x, const Accumulator<T>* totals) {
  const Where where("weighted", {{"totals", totals != nullptr}});
  const T* data = x.data.as<T>();
  const auto* weights = x.weights.as<Accumulator<T>>();
  const std::int64_t s = x.ids[0];
  check_levels(dtype, x.cols, [&](const RowTable& table, void* out) {
    const Numbers64 segments(static_cast<std::size_t>(x.n));  // one bag, of segment 0
    const WeightedBags<T> bag{static_cast<T*>(out), 1, data, kTable, x.cols, {x.ids.data(), x.n, true},
                              {segments.data(), x.n, true}, weights, totals ? totals + s : nullptr};
    std::get<GradOps<T>>(table.grad).weighted_bags(bag, 0, x.n);
  });
  check_levels(dtype, x.cols, [&](const RowTable& table, void* out) {
    std::get<GradOps<T>>(table.grad)
        .weighted_row(static_cast<T*>(out), data + s * x.cols, x.cols, weights[0], totals ? totals + s : nullptr);
  });
  const Sources from(x.shuffled);
  const IdList segments{x.ids.data(), x.n, true};
  for (Rounding rounding : {Rounding::each_add, Rounding::at_end}) {
    const Order order = kOrders[(x.cols + x.n) / 2 % 2];
    const Where where_rounding("weighted", {{"rounding", std::int64_t(rounding)}, {"order", std::int64_t(order)}});
    const WeightedIds<T> ids{segments, weights, totals, rounding};
    auto sorted = [&](void* out, const auto& entries) {
      using P = decltype(entries[0].from + 0);
      return SortedRows<T, P>{static_cast<T*>(out), data, x.cols, entries.data(), x.n, nullptr, false, order, 0, x.cols};
    };
    check_levels(dtype, x.cols, [&](const RowTable& table, void* out) {
      const auto& ops = std::get<GradOps<T>>(table.grad);
      if (x.wide())
        ops.weighted_runs(sorted(out, from.wide), ids, 0, x.n, 0);
      else
        ops.weighted_runs(sorted(out, from.narrow), ids, 0, x.n, 0);
    });
    check_levels(dtype, x.cols, [&](const RowTable& table, void* out) {
      const auto one = planned<T>(static_cast<T*>(out), x, from.list64.data(), x.n, nullptr, order);
      std::get<GradOps<T>>(table.grad).weighted_planned(one, ids, 0, 1);
    });
  }
}

template <class T>
void test_gradients(DType dtype, DType accumulator, const Case& x) {
  const auto* totals = x.totals.as<Accumulator<T>>();
  test_accumulate<T>(dtype, x, nullptr);
  test_accumulate<T>(dtype, x, totals);
  test_weighted<T>(dtype, x, nullptr);
  test_weighted<T>(dtype, x, totals);
  check_levels(accumulator, 1, [&](const RowTable& table, void* out) {
    const auto sum = std::get<GradOps<T>>(table.grad).dot(x.rows.as<T>(), x.data.as<T>(), x.cols);
    std::memcpy(out, &sum, sizeof sum);
  });
}

// Bags of one and of many ids, with empty ones between, split anywhere; with a table in the cache and with one declared
// larger, whose rows are prefetched. The address sanitizer checks that no id past the last is read.
struct ManyBags {
  std::int64_t cols, rows;
  Tensor data, ids, segments, weights, totals;  // a weight for every id, a divisor for every row
  naive::Groups groups;

  ManyBags(Rng& rng, DType dtype, DType accumulator, std::int64_t cols_, const Numbers64& bags, std::int64_t bound)
      : cols(cols_),
        rows(bound + 2),  // two empty rows at the end
        data(random_tensor(rng, dtype, {kTable, cols})),
        ids(ids_of(random_ids(rng, std::int64_t(bags.size()), kTable))),
        segments(ids_of(bags, rng.chance(2))),
        weights(random_tensor(rng, accumulator, {ids.size()})),
        totals(random_tensor(rng, accumulator, {rows})),
        groups(bags, rows) {}

  static IdList list(const Tensor& t) { return {t.as<void>(), t.size(), t.dtype == DType::int64}; }
};

// reduce(out, first id, ids) writes the row of one bag; run(table, out, data_rows, begin, end) the bags that begin
// there.
template <class Fn, class Run>
void check_bags(const ManyBags& b, DType dtype, const Fn& reduce, const Run& run) {
  const std::int64_t n = b.ids.size();
  Tensor expected(dtype, {b.rows, b.cols});
  for (std::int64_t s = 0; s < b.rows; ++s)
    if (b.groups.size(s)) reduce(expected.at(s * b.cols), s, b.groups.start[s], b.groups.size(s));
  for (std::size_t i = 1; i < levels().size(); ++i)
    for (const std::int64_t data_rows : {kTable, std::int64_t{1} << 30}) {
      const Where where(levels()[i].name, {{"cols", b.cols}, {"n", n}, {"data rows", data_rows}});
      Tensor out(dtype, {b.rows, b.cols});
      std::fill(out.bytes.begin(), out.bytes.end(), std::byte(0xa5));
      const std::int64_t cuts[] = {0, n / 3, n / 2, n};
      for (int part = 0; part < 3; ++part) run(levels()[i].table, out, data_rows, cuts[part], cuts[part + 1]);
      EXPECT_EQ(first_difference(out, expected), -1);
    }
}

void check_bags(const ManyBags& b, DType dtype) {
  const auto *ids = b.ids.as<const std::int64_t>(), *at = b.groups.at.data();
  EXPECT(std::is_sorted(at, at + b.ids.size()));
  visit(Reals{}, dtype, [&]<class T>(std::type_identity<T>) {
    const auto kind = std::is_integral_v<T> || b.cols % 2 ? Reduction::sum : Reduction::mean;
    check_bags(
        b, dtype,
        [&](void* out, std::int64_t, std::int64_t first, std::int64_t n) {
          naive::reduce(static_cast<T*>(out), b.data.as<T>(), b.cols, ids + first, n, kind);
        },
        [&](const RowTable& table, const Tensor& out, std::int64_t data_rows, std::int64_t begin, std::int64_t end) {
          const Bags<T> bags{out.as<T>(), b.rows,         b.data.as<T>(),   data_rows,
                             b.cols,      b.list(b.ids), b.list(b.segments), kind};
          std::get<SumOps<T>>(table.sum).reduce_runs(bags, begin, end);
        });
  });
  visit(Floats{}, dtype, [&]<class T>(std::type_identity<T>) {
    const auto *weights = b.weights.as<Accumulator<T>>(), *totals = b.totals.as<Accumulator<T>>();
    check_bags(
        b, dtype,
        [&](void* out, std::int64_t s, std::int64_t first, std::int64_t n) {
          naive::weighted_reduce(static_cast<T*>(out), b.data.as<T>(), b.cols, ids + first, weights + first, n,
                                 totals + s);
        },
        [&](const RowTable& table, const Tensor& out, std::int64_t data_rows, std::int64_t begin, std::int64_t end) {
          const WeightedBags<T> bags{out.as<T>(),  b.rows,         b.data.as<T>(),     data_rows, b.cols,
                                     b.list(b.ids), b.list(b.segments), weights,           totals};
          std::get<GradOps<T>>(table.grad).weighted_bags(bags, begin, end);
        });
  });
}

void test_bags(Rng& rng, DType dtype, DType accumulator) {
  for (std::int64_t cols : {0, 1, 6, 67})
    for (std::int64_t n : {1, 30, 120})
      for (std::int64_t bags : {std::int64_t{1}, n / 2 + 1, 2 * n})
        check_bags(ManyBags(rng, dtype, accumulator, cols, sorted_ids(rng, n, bags), bags), dtype);
}

void test_dtype(DType dtype) {
  Rng rng(3);
  const DType accumulator = width_of(dtype) == 2 ? DType::float32 : dtype;
  for (std::int64_t cols = 1; cols <= kWidths; ++cols)
    for (std::int64_t n = 1; n <= kRows; ++n) {
      if (kSanitized && !rng.chance(6)) continue;
      const Where where("rows", {{"dtype", int(dtype)}, {"cols", cols}, {"n", n}});
      const Case x(rng, dtype, accumulator, cols, n);
      visit(Numbers{}, dtype, [&]<class T>(std::type_identity<T>) { test_sums<T>(dtype, x); });
      visit(Floats{}, dtype, [&]<class T>(std::type_identity<T>) { test_gradients<T>(dtype, accumulator, x); });
    }
  if (dtype <= DType::uint64) test_bags(rng, dtype, accumulator);
  // Limits of runs of 64, runs of runs, and a third level.
  for (std::int64_t n : {64, 65, 128, 129, 4095, 4096, 4097, 8200, 64 * 64 * 64 + 1}) {
    if (kSanitized && n > 4097) break;
    const std::int64_t cols = 1 + rng.below(n > 10000 ? 3 : 70);
    const Where where("runs", {{"dtype", int(dtype)}, {"cols", cols}, {"n", n}});
    const Case x(rng, dtype, accumulator, cols, n);
    visit(Floats{}, dtype, [&]<class T>(std::type_identity<T>) { test_gradients<T>(dtype, accumulator, x); });
  }
}

// Two lists in one pass: whether one is out of range, and whether the second decreases.
void check_scan(const Tensor& ids, std::int64_t bound, const Tensor& segments, std::int64_t segment_bound) {
  const std::int64_t n = ids.size();
  unsigned expected = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t id = Ids(ids.view())[i], s = Ids(segments.view())[i];
    if (id < 0 || id >= bound || s < 0 || s >= segment_bound) expected |= kOutOfRange;
    if (i > 0 && s < Ids(segments.view())[i - 1]) expected |= kDecreases;
  }
  for (std::size_t i = 1; i < levels().size(); ++i) {
    const Where where(levels()[i].name, {{"bound", bound}, {"segment bound", segment_bound}});
    EXPECT_EQ(levels()[i].table.scan.scan(ManyBags::list(ids), bound, ManyBags::list(segments), segment_bound, 0, n),
              expected);
  }
}

// One number of a list, or all from some position on, at the limits of the bound and of the type. A bound may exceed
// every number of the type.
void test_scan() {
  constexpr std::int64_t n = 1030, beyond = std::int64_t{INT32_MAX} + 1;  // more than one chunk
  const Tensor zeros = ids_of(Numbers64(n, 0));
  for (std::int64_t bound : {std::int64_t{0}, std::int64_t{1}, std::int64_t{50}, beyond - 1, beyond, 2 * beyond,
                             4 * beyond + 5, INT64_MAX + std::int64_t{0}})
    for (std::int64_t at : {std::int64_t{0}, std::int64_t{1023}, std::int64_t{1024}, n - 1})
      for (std::int64_t id : {std::int64_t{-1}, bound - 1, bound, -beyond, beyond - 1, INT64_MIN + bound})
        for (bool wide : {false, true}) {
          if (!wide && id != std::int32_t(id)) continue;
          Numbers64 list(n, 0);
          list[at] = id;
          check_scan(ids_of(list, wide), bound, zeros, 1);
          check_scan(zeros, 1, ids_of(list, wide), bound);
          std::fill(list.begin() + at, list.end(), id);
          check_scan(zeros, 1, ids_of(list, wide), bound);
        }
}

// A part counts runs that begin in it to their end, also past the part, and none that began before it.
void test_count_runs(Rng& rng) {
  constexpr std::int64_t n = 4000;
  for (std::int64_t bound : {1, 3, 2000}) {
    const Numbers64 bags = sorted_ids(rng, n, bound);
    const naive::Groups groups(bags, bound);
    const Tensor segments = ids_of(bags, rng.chance(2));
    for (std::size_t i = 1; i < levels().size(); ++i) {
      const Where where(levels()[i].name, {{"bound", bound}});
      Numbers64 count(static_cast<std::size_t>(bound));
      for (std::int64_t begin = 0; begin < n; begin += n / 5)
        levels()[i].table.scan.count_runs(ManyBags::list(segments), bound, begin, begin + n / 5, count.data());
      for (std::int64_t s = 0; s < bound; ++s) EXPECT_EQ(count[s], groups.size(s));
    }
  }
}

// ROWGRAD_LEVEL is the highest level to run. It is read once per process, so each value gets a child process.
void test_level_override() {
#if defined(_WIN32)
  std::printf("level override: skipped, there is no fork\n");
#else
  const std::size_t last = levels().size() - 1;
  const std::pair<const char*, std::size_t> overrides[] = {
      {"baseline", 1}, {"x86-64-v3", 2}, {"x86-64-v4", 3}, {"another", 2}, {nullptr, 3}};
  for (const auto& [name, level] : overrides) {
    const Where where(name ? name : "none");
    const pid_t child = fork();
    if (child == 0) {
      name ? setenv("ROWGRAD_LEVEL", name, 1) : unsetenv("ROWGRAD_LEVEL");
      std::exit(std::string(row_level()) == levels()[std::min(level, last)].name ? 0 : 1);
    }
    int state = -1;
    EXPECT_EQ(waitpid(child, &state, 0), child);
    EXPECT_EQ(state, 0);
  }
#endif
}

}  // namespace

int main() {
  test_level_override();
  const FlushSubnormals flush;
  for (const Level& level : levels()) std::printf("level %s\n", level.name);
  EXPECT(std::string(row_level()) == levels().back().name);
  EXPECT(sum_ops<float>().reduce_i32 == std::get<SumOps<float>>(levels().back().table.sum).reduce_i32);
  Rng rng(30);
  test_scan();
  test_count_runs(rng);
  for (DType dtype : Numbers::list()) test_dtype(dtype);
  return test::finish();
}
