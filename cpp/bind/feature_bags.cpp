// The Python binding of feature_bags.h. Arrays arrive as addresses in flat lists of integers: a call with many features
// costs one crossing from Python and a few nanoseconds per number. rowgrad.torch.feature_lookup validates dtypes, shapes
// and memory before it calls, and keeps the arrays alive.
#include "feature_bags.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "rowgrad/feature_bags.h"
#include "rowgrad/float_mode.h"
#include "without_gil.h"

namespace nb = nanobind;
using namespace rowgrad;

namespace {

using Numbers = std::vector<std::int64_t>;

constexpr std::size_t kInputFields = 8;  // per feature; see Batch::forward

#define ROWGRAD_ONE(name) +1
constexpr std::int64_t kRules = ROWGRAD_RULES(ROWGRAD_ONE);
#undef ROWGRAD_ONE

template <class T = void>
T* address(std::int64_t number) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(number));
}

// Runs without the GIL and with subnormals flushed; returns whether all memory was available.
template <class Fn>
bool ran(Fn&& fn) {
  const WithoutGil free;
  const FlushSubnormals flush;
  try {
    fn();
    return true;
  } catch (const OutOfMemory&) {
  } catch (const std::bad_alloc&) {
  }
  return false;
}

// The number of the combiner, the order or the rule is checked here: kernels switch over them without a default.
template <class E>
E checked(std::int64_t number, std::int64_t count, const char* what) {
  if (number < 0 || number >= count) throw std::invalid_argument(what);
  return E(number);
}

std::atomic<int> alive{0};

// Counts an object as long as it exists.
struct Counted {
  Counted() { ++alive; }
  Counted(const Counted&) { ++alive; }
  ~Counted() { --alive; }
};

struct Layout : FeatureLayout {
  using FeatureLayout::FeatureLayout;
  Counted counted;
};

constexpr std::size_t kStepFields = 7 + kMostSlots;

// Reads a step: address of the table, addresses of its slots, rule, lazy, stochastic rounding, seed, step, address of
// the numbers.
TableUpdate step_of(const std::int64_t* s, std::int64_t rows, std::int64_t cols) {
  TableUpdate u{};
  u.data = address(s[0]);
  for (std::size_t k = 0; k < kMostSlots; ++k) u.slots[k] = address(s[1 + k]);
  u.rows = rows;
  u.cols = cols;
  const std::int64_t* rest = s + 1 + kMostSlots;
  u.rule = checked<Rule>(rest[0], kRules, "rule");
  u.lazy = rest[1] != 0;
  u.random = rest[2] != 0;
  u.seed = std::uint64_t(rest[3]);
  u.step = std::uint64_t(rest[4]);
  u.numbers = address<const double>(rest[5]);
  return u;
}

// Memory that a call reads or writes.
class Ranges {
 public:
  void add(const void* memory, std::int64_t bytes, bool written) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    if (memory && bytes > 0) ranges_.push_back({begin, begin + static_cast<std::uintptr_t>(bytes), written});
  }
  void add(const TableUpdate& u, std::int64_t width) {
    add(u.data, u.rows * u.cols * width, true);
    for (int s = 0; s < slots_of(u.rule); ++s)
      add(u.slots[static_cast<std::size_t>(s)], u.rows * slot_size(u.rule, u.cols) * std::max<std::int64_t>(width, 4), true);
  }

  // Returns whether a range that is written overlaps another one.
  bool overlap() {
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    std::uintptr_t written_until = 0, until = 0;
    for (const Range& r : ranges_) {
      if (r.begin < written_until || (r.written && r.begin < until)) return true;
      until = std::max(until, r.end);
      if (r.written) written_until = std::max(written_until, r.end);
    }
    return false;
  }

 private:
  struct Range {
    std::uintptr_t begin, end;
    bool written;
  };
  std::vector<Range> ranges_;
};

// Steps tables with their row-sparse gradients. `steps` has, for each: rows, columns, the step (step_of), address of the
// ids, address of the gradient's rows, their number. Returns "" or why nothing was done. `only_check`: validate only.
std::string apply_rows_of(int dtype, const Numbers& steps, bool only_check) {
  constexpr std::size_t fields = 2 + kStepFields + 3;
  if (steps.size() % fields) throw std::invalid_argument("steps");
  std::vector<TableUpdate> list;
  std::vector<RowsOfTable> gradients;
  Ranges ranges;
  const std::int64_t width = width_of(DType(dtype));
  for (std::size_t i = 0; i < steps.size(); i += fields) {
    const std::int64_t* s = steps.data() + i;
    list.push_back(step_of(s + 2, s[0], s[1]));
    const std::int64_t* own = s + 2 + kStepFields;
    gradients.push_back({address<const std::int64_t>(own[0]), address(own[1]), own[2]});
    ranges.add(list.back(), width);
    ranges.add(gradients.back().ids, own[2] * 8, false);
    ranges.add(gradients.back().rows, own[2] * s[1] * width, false);
  }
  if (ranges.overlap()) return "overlap";
  bool valid = true;
  const bool done = ran([&] {
    valid = first_invalid(list, gradients) < 0;
    if (valid && !only_check)
      visit(Floats{}, DType(dtype), [&]<class T>(std::type_identity<T>) { apply_rows<T>(list, gradients); });
  });
  return !valid ? "ids" : done ? "" : "memory";
}

class Batch {
 public:
  Batch(std::shared_ptr<Layout> layout, std::int64_t bags) : layout_(std::move(layout)), batch_(*layout_, bags) {}

  // Validates and copies the ids, then writes the combined rows of all features. Returns False if the arguments are
  // invalid or too large for this path, or if memory is not available: the caller then uses the ops, which raise.
  bool forward(const Numbers& inputs, bool joined, bool partial, const Numbers& tables, const Numbers& outs) {
    const auto features = static_cast<std::size_t>(layout_->features());
    if (inputs.size() != features * kInputFields || outs.size() != features * 2 ||
        tables.size() != layout_->tables.size())
      throw std::invalid_argument("inputs, tables and outs must fit the layout");
    std::vector<FeatureInput> list(features);
    for (std::size_t f = 0; f < features; ++f) {
      const std::int64_t* in = inputs.data() + f * kInputFields;
      list[f] = {{address(in[0]), in[1], in[2] == 8}, {address(in[3]), in[4], in[5] == 8}, address(in[6]), DType(in[7])};
    }
    bool valid = FeatureBatch::fits(*layout_, batch_.bags(), list);
    if (!valid) return false;
    return ran([&] {
             valid = batch_.read(list, joined, partial);
             if (!valid) return;
             visit(Floats{}, layout_->dtype, [&]<class T>(std::type_identity<T>) {
               std::vector<const T*> data;
               std::vector<StridedRows<T>> rows;
               for (const std::int64_t table : tables) data.push_back(address<const T>(table));
               for (std::size_t f = 0; f < features; ++f) rows.push_back({address<T>(outs[2 * f]), outs[2 * f + 1]});
               batch_.forward<T>(data, rows);
             });
           }) &&
           valid;
  }

  // Sorts the ids of tables by row; returns the number of distinct rows of each, or an empty list if memory is not
  // available.
  Numbers sort(const Numbers& tables) {
    check_tables(tables);
    Numbers counts;
    if (!ran([&] {
          const std::lock_guard lock(mutex_);
          batch_.sort(tables);
          for (const std::int64_t t : tables) counts.push_back(batch_.distinct(t));
        }))
      counts.clear();
    return counts;
  }

  // Returns whether memory that `update` would write overlaps other memory that it would write or read.
  bool overlaps(const Numbers& steps, const Numbers& gradients) const {
    Ranges ranges;
    const std::int64_t width = width_of(layout_->dtype);
    for (const TableUpdate& u : updates(steps).second) ranges.add(u, width);
    for (std::size_t f = 0; 2 * f + 1 < gradients.size() && batch_.bags() > 0; ++f)
      ranges.add(address(gradients[2 * f]),
                 ((batch_.bags() - 1) * gradients[2 * f + 1] + layout_->table(std::int64_t(f)).cols) * width, false);
    return ranges.overlap();
  }

  // Writes the gradient of a table: its distinct rows and their ids, or with no ids all rows. `gradients`: the
  // address and row stride of every feature's gradient.
  bool gradient(std::int64_t table, const Numbers& gradients, int order, int rounding, std::int64_t out, std::int64_t ids) {
    check_tables({table});
    const auto by = checked<Order>(order, 2, "order");
    const auto rounds = checked<Rounding>(rounding, 2, "rounding");
    return ran([&] {
      const std::lock_guard lock(mutex_);
      batch_.sort(std::array{table});
      visit(Floats{}, layout_->dtype, [&]<class T>(std::type_identity<T>) {
        batch_.gradient<T>(table, rows_of<T>(gradients), by, rounds, address<T>(out), address<std::int64_t>(ids));
      });
    });
  }

  // Updates tables in place. `steps` has, for each, its number and the step (step_of).
  bool update(const Numbers& steps, const Numbers& gradients, int order, int rounding) {
    const auto by = checked<Order>(order, 2, "order");
    const auto rounds = checked<Rounding>(rounding, 2, "rounding");
    const auto [tables, list] = updates(steps);
    return ran([&, &numbers = tables, &own = list] {
      const std::lock_guard lock(mutex_);
      visit(Floats{}, layout_->dtype, [&]<class T>(std::type_identity<T>) {
        batch_.update<T>(numbers, own, rows_of<T>(gradients), by, rounds);
      });
    });
  }

 private:
  // The tables of the layout, and their steps; `steps` has the number of the table before each step.
  std::pair<Numbers, std::vector<TableUpdate>> updates(const Numbers& steps) const {
    constexpr std::size_t fields = 1 + kStepFields;
    if (steps.size() % fields) throw std::invalid_argument("steps");
    std::pair<Numbers, std::vector<TableUpdate>> found;
    for (std::size_t i = 0; i < steps.size(); i += fields) {
      check_tables({steps[i]});
      const FeatureTable& table = layout_->tables[static_cast<std::size_t>(steps[i])];
      found.first.push_back(steps[i]);
      found.second.push_back(step_of(steps.data() + i + 1, table.rows, table.cols));
    }
    return found;
  }

  void check_tables(const Numbers& tables) const {
    for (const std::int64_t t : tables)
      if (t < 0 || t >= std::int64_t(layout_->tables.size())) throw std::invalid_argument("table");
  }

  template <class T>
  std::vector<StridedRows<const T>> rows_of(const Numbers& gradients) const {
    std::vector<StridedRows<const T>> rows;
    for (std::size_t i = 0; i + 1 < gradients.size(); i += 2)
      rows.push_back({address<const T>(gradients[i]), gradients[i + 1]});
    rows.resize(static_cast<std::size_t>(layout_->features()));
    return rows;
  }

  Counted counted_;
  std::shared_ptr<Layout> layout_;
  FeatureBatch batch_;
  std::mutex mutex_;  // two threads may run the backward pass of one lookup
};

std::shared_ptr<Layout> make_layout(int dtype, const std::vector<Numbers>& tables, const Numbers& features) {
  std::vector<FeatureTable> list;
  for (const Numbers& t : tables) {
    if (t.size() != 4 || t[0] < 0 || t[1] < 0) throw std::invalid_argument("a table is rows, columns, padding, combiner");
    list.push_back({t[0], t[1], t[2], checked<Reduction>(t[3], 3, "combiner")});
  }
  for (const std::int64_t f : features)
    if (f < 0 || f >= std::int64_t(list.size())) throw std::invalid_argument("table of a feature");
  return std::make_shared<Layout>(DType(dtype), std::move(list), features);
}

}  // namespace

int feature_objects_alive() { return alive.load(); }

void bind_feature_bags(nb::module_& m) {
  nb::class_<Layout>(m, "FeatureLayout");
  m.def("feature_layout", &make_layout, nb::arg("dtype"), nb::arg("tables"), nb::arg("features"));
  m.def("apply_rows", &apply_rows_of, nb::arg("dtype"), nb::arg("steps"), nb::arg("only_check"));
  nb::class_<Batch>(m, "FeatureBatch")
      .def(nb::init<std::shared_ptr<Layout>, std::int64_t>(), nb::arg("layout"), nb::arg("bags"))
      .def("forward", &Batch::forward, nb::arg("inputs"), nb::arg("joined"), nb::arg("partial"),
           nb::arg("tables"), nb::arg("outs"))
      .def("overlaps", &Batch::overlaps, nb::arg("steps"), nb::arg("gradients"))
      .def("sort", &Batch::sort, nb::arg("tables"))
      .def("gradient", &Batch::gradient, nb::arg("table"), nb::arg("gradients"), nb::arg("order"), nb::arg("rounding"),
           nb::arg("out"), nb::arg("ids"))
      .def("update", &Batch::update, nb::arg("steps"), nb::arg("gradients"), nb::arg("order"), nb::arg("rounding"));
}
