// The Python binding of feature_bags.h and table_updates.h, for rowgrad.torch.feature_lookup. Calls take lists of torch
// tensors and read them here (torch_tensors.h), so a call with many features costs one crossing from Python. Objects keep
// addresses, not tensors: Python keeps the tensors alive as long as it uses the object.
#include "feature_bags.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "rowgrad/feature_bags.h"
#include "rowgrad/float_mode.h"
#include "torch_tensors.h"
#include "without_gil.h"

namespace nb = nanobind;
using namespace rowgrad;

namespace {

using IntList = std::vector<std::int64_t>;
using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;

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

PyObject* item(nb::handle list, std::size_t i) { return PyList_GetItem(list.ptr(), Py_ssize_t(i)); }

// A contiguous tensor of a number of dimensions; nothing if it is another one.
std::optional<TensorView> read_contiguous(PyObject* tensor, int ndim) {
  const auto view = read_tensor(tensor);
  return view && view->ndim == ndim && view->is_contiguous() ? view : std::nullopt;
}

std::optional<IdList> read_ids(PyObject* tensor, int ndim = 1) {
  const auto view = read_contiguous(tensor, ndim);
  if (!view || (view->dtype != DType::int32 && view->dtype != DType::int64)) return {};
  return IdList{view->data, view->size(), view->dtype == DType::int64};
}

bool is_float(DType dtype) {
  return dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32 || dtype == DType::float64;
}

// The address of an empty array may be null, which stands for a missing one.
const void* present(const void* data) {
  static const std::int64_t empty = 0;
  return data ? data : &empty;
}

// The gradient of every feature's output: addresses and row strides.
struct GradientRows {
  Counted counted;
  IntList at;  // address and stride of each feature; 0 and 0 if it has no gradient
};

// One lookup: its ids in memory of its own, from the forward pass to the optimizer's step.
class Lookup {
 public:
  Lookup(std::shared_ptr<const FeatureLayout> layout, std::vector<void*> tables, std::int64_t bags)
      : layout_(std::move(layout)), tables_(std::move(tables)), batch_(*layout_, bags) {}

  // Validates and copies the ids; returns whether they are valid and memory was available.
  bool read(const std::vector<FeatureInput>& inputs, bool joined) {
    weighted_ = !inputs.empty() && inputs[0].weights;
    bool valid = FeatureBatch::fits(*layout_, batch_.bags(), inputs);
    return valid && ran([&] { valid = batch_.read(inputs, joined); }) && valid;
  }

  std::int64_t bags() const { return batch_.bags(); }
  bool weighted() const { return weighted_; }
  // The number of columns of each feature.
  IntList widths() const {
    IntList found;
    for (std::int64_t f = 0; f < layout_->features(); ++f) found.push_back(layout_->table(f).cols);
    return found;
  }
  // The number of columns if it is the same for all features, otherwise -1.
  std::int64_t width() const {
    const std::int64_t first = layout_->features() ? layout_->table(0).cols : -1;
    for (std::int64_t f = 1; f < layout_->features(); ++f)
      if (layout_->table(f).cols != first) return -1;
    return first;
  }

  nb::tuple shape(std::int64_t table) const {
    check_tables({table});
    const FeatureTable& facts = layout_->tables[static_cast<std::size_t>(table)];
    return nb::make_tuple(facts.rows, facts.cols);
  }

  // The number of ids of a feature, without padding.
  std::int64_t count(std::int64_t feature) const {
    check_feature(feature);
    return batch_.ids_of(feature);
  }
  // Writes the ids of a feature, without padding, and the offsets of its bags with their end; both are int64.
  void copy_ids(std::int64_t feature, nb::handle ids, nb::handle offsets) const {
    check_feature(feature);
    const auto to = read_ids(ids.ptr()), bounds = read_ids(offsets.ptr());
    if (!to || !bounds || !to->wide || !bounds->wide || to->size != count(feature) || bounds->size != bags() + 1)
      throw std::invalid_argument("ids and offsets must fit the feature");
    batch_.copy_ids(feature, static_cast<std::int64_t*>(const_cast<void*>(to->data)),
                    static_cast<std::int64_t*>(const_cast<void*>(bounds->data)));
  }

  // Writes the combined rows of all features: to a tensor [bags, features, columns], to a tensor [features · bags,
  // columns], or to a list of tensors [bags, columns]. Returns False if memory is not available.
  bool forward(nb::handle out) {
    const std::int64_t features = layout_->features();
    std::vector<std::pair<char*, std::int64_t>> rows;
    if (PyList_Check(out.ptr())) {
      if (PyList_Size(out.ptr()) != features) throw std::invalid_argument("out must have one tensor per feature");
      for (std::int64_t f = 0; f < features; ++f) {
        const auto view = read_contiguous(item(out, std::size_t(f)), 2);
        if (!view || view->dtype != layout_->dtype || view->shape[0] != bags() || view->shape[1] != layout_->table(f).cols)
          throw std::invalid_argument("out must fit the lookup");
        rows.push_back({static_cast<char*>(view->data), view->shape[1]});
      }
    } else {
      const auto view = read_tensor(out.ptr());
      const std::int64_t columns = width();
      const bool stacked = view && view->ndim == 3;
      if (!view || !view->is_contiguous() || view->dtype != layout_->dtype || (view->ndim != 2 && !stacked) ||
          view->shape[view->ndim - 1] != columns || view->size() != bags() * features * columns ||
          (stacked && view->shape[1] != features))
        throw std::invalid_argument("out must fit the lookup");
      const std::int64_t step = (stacked ? columns : bags() * columns) * width_of(layout_->dtype);
      for (std::int64_t f = 0; f < features; ++f)
        rows.push_back({static_cast<char*>(view->data) + f * step, stacked ? features * columns : columns});
    }
    return write(rows);
  }

  // Returns the combined rows of the only feature, a new tensor; None if memory is not available.
  nb::object forward_one(nb::handle table) const {
    const std::int64_t columns = layout_->table(0).cols;
    nb::object out = new_matrix(table, layout_->dtype, bags(), columns, false);
    return write({{address<char>(std::int64_t(address_of_tensor(out.ptr()))), columns}}) ? out : nb::none();
  }

  // Returns the dense gradient of the only table, a new tensor, for the gradient of its output. Returns None if the
  // kernel cannot read that, or if memory is not available.
  nb::object dense_gradient(nb::handle y, int order, int rounding) {
    if (layout_->features() != 1) throw std::invalid_argument("features");
    const FeatureTable& facts = layout_->tables[0];
    const auto by = checked<Order>(order, 2, "order");
    const auto rounds = checked<Rounding>(rounding, 2, "rounding");
    const auto view = read_tensor(y.ptr());
    if (!view || view->ndim != 2 || view->dtype != layout_->dtype || view->shape[0] != bags() ||
        view->shape[1] != facts.cols || (facts.cols > 1 && view->strides[1] != 1))
      return nb::none();
    GradientRows from;
    from.at = {std::int64_t(reinterpret_cast<std::uintptr_t>(view->data)), view->strides[0]};
    nb::object out = new_matrix(y, layout_->dtype, facts.rows, facts.cols, !batch_.writes_whole(0));
    const std::uintptr_t at = address_of_tensor(out.ptr());
    return write_gradient(0, from, by, rounds, reinterpret_cast<void*>(at), nullptr, -1) ? out : nb::none();
  }

  // Reads the gradient of the output of `forward`: a tensor [bags, features, columns], or a list with a tensor
  // [bags, columns] or None for each feature. Columns must be contiguous, rows may have any stride. Returns None if the
  // kernel cannot read them.
  std::unique_ptr<GradientRows> gradients(nb::handle ys) const {
    auto found = std::make_unique<GradientRows>();
    const std::int64_t features = layout_->features();
    auto add = [&](const TensorView& y, std::int64_t offset, std::int64_t columns) {
      found->at.push_back(std::int64_t(reinterpret_cast<std::uintptr_t>(y.data)) + offset * width_of(y.dtype));
      found->at.push_back(y.strides[0]);
      return y.dtype == layout_->dtype && y.shape[0] == bags() && y.shape[y.ndim - 1] == columns &&
             (columns < 2 || y.strides[y.ndim - 1] == 1);
    };
    if (!PyList_Check(ys.ptr())) {
      const auto y = read_tensor(ys.ptr());
      if (!y || y->ndim != 3 || y->shape[1] != features) return {};
      for (std::int64_t f = 0; f < features; ++f)
        if (!add(*y, f * y->strides[1], layout_->table(f).cols)) return {};
      return found;
    }
    if (PyList_Size(ys.ptr()) != features) return {};
    for (std::int64_t f = 0; f < features; ++f) {
      PyObject* const own = item(ys, std::size_t(f));
      if (own == Py_None) {
        found->at.insert(found->at.end(), {0, 0});
        continue;
      }
      const auto y = read_tensor(own);
      if (!y || y->ndim != 2 || !add(*y, 0, layout_->table(f).cols)) return {};
    }
    return found;
  }

  // Sorts the ids of tables by row; returns the number of distinct rows of each, or an empty list if memory is not
  // available.
  IntList sort(const IntList& tables) {
    check_tables(tables);
    IntList counts;
    if (!ran([&] {
          const std::lock_guard lock(mutex_);
          batch_.sort(tables);
          for (const std::int64_t t : tables) counts.push_back(batch_.distinct(t));
        }))
      counts.clear();
    return counts;
  }

  // Whether the dense gradient of a table needs no tensor of zeros.
  bool writes_whole(std::int64_t table) const {
    check_tables({table});
    return batch_.writes_whole(table);
  }

  // Writes the gradient of a table: its distinct rows, and their ids to a matrix with one row; or without ids all rows,
  // to a tensor of zeros unless `writes_whole`.
  // Returns False if memory is not available.
  bool gradient(std::int64_t table, const GradientRows& gradients, int order, int rounding, nb::handle out, nb::handle ids) {
    check_tables({table});
    const auto by = checked<Order>(order, 2, "order");
    const auto rounds = checked<Rounding>(rounding, 2, "rounding");
    const FeatureTable& facts = layout_->tables[static_cast<std::size_t>(table)];
    const auto rows = read_contiguous(out.ptr(), 2);
    const auto list = ids.is_none() ? std::optional(IdList{nullptr, facts.rows, true}) : read_ids(ids.ptr(), 2);
    if (!rows || rows->dtype != layout_->dtype || rows->shape[1] != facts.cols || !list || !list->wide ||
        list->size != rows->shape[0])
      throw std::invalid_argument("out and ids must fit the table");
    auto* to = ids.is_none() ? nullptr : static_cast<std::int64_t*>(const_cast<void*>(present(list->data)));
    return write_gradient(table, gradients, by, rounds, rows->data, to, ids.is_none() ? -1 : list->size);
  }

 private:
  friend class TableSteps;

  // Writes the combined rows of each feature to memory with a row stride.
  bool write(const std::vector<std::pair<char*, std::int64_t>>& rows) const {
    return ran([&] {
      visit(Floats{}, layout_->dtype, [&]<class T>(std::type_identity<T>) {
        std::vector<const T*> data;
        std::vector<StridedRows<T>> to;
        for (void* table : tables_) data.push_back(static_cast<const T*>(table));
        for (const auto& [memory, stride] : rows) to.push_back({reinterpret_cast<T*>(memory), stride});
        batch_.forward<T>(data, to);
      });
    });
  }

  // See `gradient`. Writes nothing and returns False if the table has another number of distinct rows than `distinct`,
  // unless that is negative.
  bool write_gradient(std::int64_t table, const GradientRows& gradients, Order order, Rounding rounding, void* out,
                      std::int64_t* ids, std::int64_t distinct) {
    bool fits = true;
    return ran([&] {
             const std::lock_guard lock(mutex_);
             batch_.sort(std::array{table});
             fits = distinct < 0 || batch_.distinct(table) == distinct;
             if (!fits) return;
             visit(Floats{}, layout_->dtype, [&]<class T>(std::type_identity<T>) {
               batch_.gradient<T>(table, rows_of<T>(gradients), order, rounding, static_cast<T*>(out), ids);
             });
           }) &&
           fits;
  }

  void check_tables(const IntList& tables) const {
    for (const std::int64_t t : tables)
      if (t < 0 || t >= std::int64_t(tables_.size())) throw std::invalid_argument("table");
  }

  void check_feature(std::int64_t feature) const {
    if (feature < 0 || feature >= layout_->features()) throw std::invalid_argument("feature");
  }

  template <class T>
  std::vector<StridedRows<const T>> rows_of(const GradientRows& gradients) const {
    std::vector<StridedRows<const T>> rows;
    for (std::size_t i = 0; i + 1 < gradients.at.size(); i += 2)
      rows.push_back({address<const T>(gradients.at[i]), gradients.at[i + 1]});
    rows.resize(static_cast<std::size_t>(layout_->features()));
    return rows;
  }

  Counted counted_;
  std::shared_ptr<const FeatureLayout> layout_;
  std::vector<void*> tables_;
  FeatureBatch batch_;
  bool weighted_ = false;
  std::mutex mutex_;  // two threads may run the backward pass of one lookup
};

// Tables that are looked up together, and the table of each feature.
class TableSet {
 public:
  // `tables`: combiner and padding (-1: none) of each.
  TableSet(const Pairs& tables, IntList features)
      : features_(std::move(features)) {
    for (const auto& [kind, padding] : tables) facts_.push_back({0, 0, padding, checked<Reduction>(kind, 3, "combiner")});
    if (features_.empty()) throw std::invalid_argument("features");
    for (const std::int64_t f : features_)
      if (f < 0 || f >= std::int64_t(facts_.size())) throw std::invalid_argument("table of a feature");
  }

  // Reads one vector of all features' ids, and the offsets of all bags with their end. Returns None if the arguments are
  // invalid or too large for this path, or if memory is not available: the caller then uses the ops, which raise.
  std::unique_ptr<Lookup> read_vector(nb::list tables, nb::handle ids, nb::handle offsets, nb::handle weights) {
    const auto list = read_ids(ids.ptr()), bounds = read_ids(offsets.ptr());
    const auto count = std::int64_t(features_.size());
    if (!list || !bounds || bounds->size < 1 || (bounds->size - 1) % count) return {};
    const std::int64_t bags = (bounds->size - 1) / count;
    FeatureInput input{*list, {nullptr, bags + 1, bounds->wide}, nullptr, DType::float32};
    if (!read_weights(weights.ptr(), *list, 1, input)) return {};
    const auto* begin = static_cast<const char*>(present(bounds->data));
    std::vector<FeatureInput> inputs;
    for (std::int64_t f = 0; f < count; ++f) {
      input.offsets.data = begin + f * bags * (bounds->wide ? 8 : 4);
      inputs.push_back(input);
    }
    return read(tables, bags, inputs, true);
  }

  // Reads the ids of each feature: a matrix with one bag per row, or a tuple of ids and offsets, and weights if it has
  // any. `weights`: None, or a list with those of each feature. `ends`: whether offsets end with the number of ids; None
  // rejects offsets.
  std::unique_ptr<Lookup> read_features(nb::list tables, nb::list values, nb::object weights, nb::object ends) {
    if (values.size() != features_.size() || values.size() == 0) return {};
    const bool has_list = !weights.is_none();
    if (has_list && (!PyList_Check(weights.ptr()) || PyList_Size(weights.ptr()) != PyList_Size(values.ptr()))) return {};
    std::vector<FeatureInput> inputs(features_.size());
    std::int64_t bags = -1;
    for (std::size_t f = 0; f < features_.size(); ++f) {
      PyObject *ids = item(values, f), *offsets = Py_None;
      PyObject* own = has_list ? item(weights, f) : Py_None;
      if (PyTuple_CheckExact(ids)) {
        PyObject* const parts = ids;
        const Py_ssize_t count = PyTuple_Size(parts);
        if (count < 2 || count > 3 || ends.is_none()) return {};
        ids = PyTuple_GetItem(parts, 0);
        offsets = PyTuple_GetItem(parts, 1);
        if (offsets == Py_None) return {};
        if (count == 3 && PyTuple_GetItem(parts, 2) != Py_None) {
          if (own != Py_None) return {};
          own = PyTuple_GetItem(parts, 2);
        }
      }
      const std::int64_t own_bags = read_feature(ids, offsets, own, ends.ptr() == Py_True, inputs[f]);
      if (own_bags < 0 || (f > 0 && own_bags != bags)) return {};
      bags = own_bags;
    }
    return read(tables, bags, inputs, false);
  }

  // Looks up the bags of the only feature, which are a matrix of ids with one bag per row, or a vector with `offsets`.
  // Returns the combined rows, a new tensor; if `keeps`, with the lookup for the backward pass. Returns None where
  // `read_features` does.
  nb::object look_up(nb::handle table, nb::handle ids, nb::handle offsets, nb::handle weights, bool ends, bool keeps) {
    if (features_.size() != 1) throw std::invalid_argument("features");
    std::vector<FeatureInput> inputs(1);
    const std::int64_t bags = read_feature(ids.ptr(), offsets.ptr(), weights.ptr(), ends, inputs[0]);
    if (bags < 0) return nb::none();
    nb::list tables;
    tables.append(table);
    auto lookup = read(tables, bags, inputs, false);
    if (!lookup) return nb::none();
    nb::object out = lookup->forward_one(table);
    if (!keeps || out.is_none()) return out;
    return nb::make_tuple(out, nb::cast(std::move(lookup)));
  }

 private:
  // Reads the arrays of one feature; returns the number of bags, -1 if the kernel cannot read them.
  static std::int64_t read_feature(PyObject* ids, PyObject* offsets, PyObject* weights, bool ends, FeatureInput& input) {
    input = {{}, {nullptr, 0, true}, nullptr, DType::float32};
    if (offsets != Py_None) {
      const auto list = read_ids(ids), bounds = read_ids(offsets);
      if (!list || !bounds) return -1;
      input.ids = *list;
      input.offsets = {present(bounds->data), bounds->size, bounds->wide};
      return read_weights(weights, input.ids, 1, input) ? bounds->size - ends : -1;
    }
    const auto view = read_contiguous(ids, 2);
    if (!view || (view->dtype != DType::int32 && view->dtype != DType::int64)) return -1;
    input.ids = {view->data, view->size(), view->dtype == DType::int64};
    input.offsets.size = view->shape[1];
    return read_weights(weights, input.ids, 2, input) ? view->shape[0] : -1;
  }

  static bool read_weights(PyObject* weights, const IdList& ids, int ndim, FeatureInput& input) {
    if (weights == Py_None) return true;
    const auto view = read_contiguous(weights, ndim);
    if (!view || !is_float(view->dtype) || view->size() != ids.size) return false;
    input.weights = present(view->data);
    input.weights_dtype = view->dtype;
    return ndim == 1 || input.offsets.size == view->shape[1];
  }

  std::unique_ptr<Lookup> read(nb::list tables, std::int64_t bags, const std::vector<FeatureInput>& inputs, bool joined) {
    if (tables.size() != facts_.size()) throw std::invalid_argument("tables");
    std::vector<void*> data(facts_.size());
    std::vector<FeatureTable> list = facts_;
    DType dtype = DType::float32;
    for (std::size_t t = 0; t < list.size(); ++t) {
      const auto view = read_contiguous(item(tables, t), 2);
      if (!view || !is_float(view->dtype) || (t > 0 && view->dtype != dtype)) return {};
      data[t] = view->data;
      dtype = view->dtype;
      list[t].rows = view->shape[0];
      list[t].cols = view->shape[1];
    }
    auto found = std::make_unique<Lookup>(layout_of(dtype, std::move(list)), std::move(data), bags);
    return found->read(inputs, joined) ? std::move(found) : nullptr;
  }

  // The layout of the last call, unless tables have changed.
  std::shared_ptr<const FeatureLayout> layout_of(DType dtype, std::vector<FeatureTable> tables) {
    const std::lock_guard lock(mutex_);
    const auto same = [](const FeatureTable& a, const FeatureTable& b) { return a.rows == b.rows && a.cols == b.cols; };
    if (!layout_ || layout_->dtype != dtype || !std::equal(tables.begin(), tables.end(), layout_->tables.begin(), same))
      layout_ = std::make_shared<const FeatureLayout>(dtype, std::move(tables), features_);
    return layout_;
  }

  Counted counted_;
  std::vector<FeatureTable> facts_;  // without sizes
  IntList features_;
  std::shared_ptr<const FeatureLayout> layout_;
  std::mutex mutex_;
};

// Steps of several tables of one dtype by one rule: with the gradients of a lookup, or with row-sparse gradients.
class TableSteps {
 public:
  TableSteps(std::int64_t rule, nb::tuple slots) : rule_(checked<Rule>(rule, kRules, "rule")), slots_(slots) {
    if (int(slots.size()) != slots_of(rule_)) throw std::invalid_argument("slots");
  }

  // Adds tables. `states`: a dict for each, with its slots by name and its "step". `numbers`: a tuple for each, of the
  // array with the hyperparameters, lazy, stochastic rounding, the seed, and the address of the array's memory.
  // Returns False if one cannot be updated in place.
  bool add(nb::list params, nb::list states, nb::list numbers) {
    static PyObject* const step = PyUnicode_InternFromString("step");
    if (states.size() != params.size() || numbers.size() != params.size()) throw std::invalid_argument("states");
    PyObject* last = nullptr;
    TableUpdate u{};
    u.rule = rule_;
    for (std::size_t i = 0; i < params.size(); ++i) {
      const auto table = read_contiguous(item(params, i), 2);
      if (!table || !is_float(table->dtype) || (!updates_.empty() && table->dtype != dtype_)) return false;
      dtype_ = table->dtype;
      u.data = table->data;
      u.rows = table->shape[0];
      u.cols = table->shape[1];
      PyObject* const state = item(states, i);
      if (!PyDict_Check(state) || !read_slots(state, u)) return false;
      if (PyObject* const own = item(numbers, i); own != last) {
        const auto fields = nb::borrow<nb::tuple>(own);
        u.lazy = nb::cast<std::int64_t>(fields[1]) != 0;
        u.random = nb::cast<std::int64_t>(fields[2]) != 0;
        u.seed = nb::cast<std::uint64_t>(fields[3]);
        u.numbers = address<const double>(nb::cast<std::int64_t>(fields[4]));
        last = own;
      }
      PyObject* const count = PyDict_GetItem(state, step);
      if (!count || !PyLong_CheckExact(count)) return false;
      u.step = nb::cast<std::uint64_t>(nb::handle(count)) + 1;
      updates_.push_back(u);
      ranges_.add(u, width_of(dtype_));
    }
    return true;
  }

  // Returns whether these are tables of a lookup, `tables` by number, and no memory to write overlaps other memory.
  bool fit(const Lookup& lookup, const GradientRows& gradients, const IntList& tables) const {
    lookup.check_tables(tables);
    if (tables.size() != updates_.size() || dtype_ != lookup.layout_->dtype) return false;
    for (std::size_t i = 0; i < tables.size(); ++i) {
      const auto t = static_cast<std::size_t>(tables[i]);
      const FeatureTable& facts = lookup.layout_->tables[t];
      if (updates_[i].data != lookup.tables_[t] || updates_[i].rows != facts.rows || updates_[i].cols != facts.cols)
        return false;
    }
    Ranges ranges = ranges_;
    const std::int64_t width = width_of(dtype_), bags = lookup.bags();
    for (std::size_t f = 0; 2 * f + 1 < gradients.at.size() && bags > 0; ++f)
      ranges.add(address(gradients.at[2 * f]),
                 ((bags - 1) * gradients.at[2 * f + 1] + lookup.layout_->table(std::int64_t(f)).cols) * width, false);
    return !ranges.overlap();
  }

  // Steps the tables with the gradients of a lookup; `fit` has returned True. Returns False if memory is not available.
  bool run(Lookup& lookup, const GradientRows& gradients, const IntList& tables, int order, int rounding) {
    const auto by = checked<Order>(order, 2, "order");
    const auto rounds = checked<Rounding>(rounding, 2, "rounding");
    lookup.check_tables(tables);
    if (tables.size() != updates_.size()) throw std::invalid_argument("tables");
    return ran([&] {
      const std::lock_guard lock(lookup.mutex_);
      visit(Floats{}, dtype_, [&]<class T>(std::type_identity<T>) {
        lookup.batch_.update<T>(tables, updates_, lookup.rows_of<T>(gradients), by, rounds);
      });
    });
  }

  // Adds the row-sparse gradient of each table: int64 ids as a matrix with one row, and the rows. Returns False if ids do
  // not ascend or are out of range, if shapes do not fit, or if memory to write overlaps other memory.
  bool add_rows(nb::list ids, nb::list rows) {
    if (ids.size() != updates_.size() || rows.size() != updates_.size()) throw std::invalid_argument("ids");
    Ranges ranges = ranges_;
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      const auto list = read_ids(item(ids, i), 2);
      const auto own = read_contiguous(item(rows, i), 2);
      if (!list || !list->wide || !own || own->dtype != dtype_ || own->shape[0] != list->size ||
          own->shape[1] != updates_[i].cols)
        return false;
      gradients_.push_back({static_cast<const std::int64_t*>(list->data), own->data, list->size});
      ranges.add(list->data, list->size * 8, false);
      ranges.add(own->data, own->size() * width_of(dtype_), false);
    }
    bool valid = !ranges.overlap();
    return valid && ran([&] { valid = first_invalid(updates_, gradients_) < 0; }) && valid;
  }

  // Steps the tables with the gradients of `add_rows`. Returns False if memory is not available.
  bool run_rows() {
    if (gradients_.size() != updates_.size()) throw std::invalid_argument("gradients");
    return ran([&] {
      visit(Floats{}, dtype_, [&]<class T>(std::type_identity<T>) { apply_rows<T>(updates_, gradients_); });
    });
  }

 private:
  bool read_slots(PyObject* state, TableUpdate& u) const {
    const DType wide = dtype_ == DType::float64 ? DType::float64 : DType::float32;
    const bool per_row = is_per_row(rule_);
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      PyObject* const slot = PyDict_GetItem(state, slots_[s].ptr());
      if (!slot) return false;
      const auto view = read_contiguous(slot, per_row ? 1 : 2);
      if (!view || view->dtype != wide || view->shape[0] != u.rows || (!per_row && view->shape[1] != u.cols)) return false;
      u.slots[s] = view->data;
    }
    return true;
  }

  Counted counted_;
  Rule rule_;
  nb::tuple slots_;
  DType dtype_ = DType::float32;
  std::vector<TableUpdate> updates_;
  std::vector<RowsOfTable> gradients_;
  Ranges ranges_;
};

}  // namespace

int feature_objects_alive() { return alive.load(); }

void bind_feature_bags(nb::module_& m) {
  nb::class_<GradientRows>(m, "GradientRows");
  nb::class_<Lookup>(m, "Lookup")
      .def_prop_ro("bags", &Lookup::bags)
      .def_prop_ro("weighted", &Lookup::weighted)
      .def_prop_ro("width", &Lookup::width)
      .def_prop_ro("widths", &Lookup::widths)
      .def("shape", &Lookup::shape, nb::arg("table"))
      .def("count", &Lookup::count, nb::arg("feature"))
      .def("copy_ids", &Lookup::copy_ids, nb::arg("feature"), nb::arg("ids"), nb::arg("offsets"))
      .def("forward", &Lookup::forward, nb::arg("out"))
      .def("gradients", &Lookup::gradients, nb::arg("ys"))
      .def("sort", &Lookup::sort, nb::arg("tables"))
      .def("dense_gradient", &Lookup::dense_gradient, nb::arg("y"), nb::arg("order"), nb::arg("rounding"))
      .def("writes_whole", &Lookup::writes_whole, nb::arg("table"))
      .def("gradient", &Lookup::gradient, nb::arg("table"), nb::arg("gradients"), nb::arg("order"), nb::arg("rounding"),
           nb::arg("out"), nb::arg("ids").none());
  nb::class_<TableSet>(m, "TableSet")
      .def(nb::init<const Pairs&, IntList>(), nb::arg("tables"),
           nb::arg("features"))
      .def("read_vector", &TableSet::read_vector, nb::arg("tables"), nb::arg("ids"), nb::arg("offsets"),
           nb::arg("weights").none())
      .def("read_features", &TableSet::read_features, nb::arg("tables"), nb::arg("values"), nb::arg("weights").none(),
           nb::arg("ends").none())
      .def("look_up", &TableSet::look_up, nb::arg("table"), nb::arg("ids"), nb::arg("offsets").none(),
           nb::arg("weights").none(), nb::arg("ends"), nb::arg("keeps"));
  nb::class_<TableSteps>(m, "TableSteps")
      .def(nb::init<std::int64_t, nb::tuple>(), nb::arg("rule"), nb::arg("slots"))
      .def("add", &TableSteps::add, nb::arg("params"), nb::arg("states"), nb::arg("numbers"))
      .def("fit", &TableSteps::fit, nb::arg("lookup"), nb::arg("gradients"), nb::arg("tables"))
      .def("run", &TableSteps::run, nb::arg("lookup"), nb::arg("gradients"), nb::arg("tables"), nb::arg("order"),
           nb::arg("rounding"))
      .def("add_rows", &TableSteps::add_rows, nb::arg("ids"), nb::arg("rows"))
      .def("run_rows", &TableSteps::run_rows);
}
