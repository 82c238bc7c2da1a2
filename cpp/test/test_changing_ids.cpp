// Ids that another thread changes during a call: results may be wrong, but no access may be out of bounds.
//
// A kernel's passes over its ids are separated by its steps (measure, check, compute) and by the parallel tasks inside
// them. The first test runs every call once per such place and changes the ids exactly there, so that one pass
// validates or counts other ids than the next one reads. The second test changes ids from another thread all the time.
// The address sanitizer reports out-of-bounds accesses; without it, far ones still crash the process.
#include <atomic>
#include <thread>

#include "every_kernel.h"

// Replaces the thread pool: tasks run one after the other, and `before_task` is called before each.
namespace {
int threads = 1;
std::function<void()>* before_task = nullptr;
}  // namespace

namespace rowgrad {
int num_threads() { return threads; }
void set_num_threads(int n) { threads = n; }
namespace detail {
void run_tasks(std::int64_t tasks, void (*call)(void*, std::int64_t), void* context) {
  for (std::int64_t task = 0; task < tasks; ++task) {
    if (before_task) (*before_task)();
    call(context, task);
  }
}
}  // namespace detail
}  // namespace rowgrad

using namespace test;

namespace {

// Inputs whose elements a caller can change during a call. Sizes are copied before a kernel reads them. SECURITY.md
// names two exceptions, where a changed number can cause a bad read but never a bad write: the indices of a lookup, and
// the sources of a plan's entries (its segments, or with weights its positions).
std::vector<std::size_t> id_inputs(const Case& c) {
  const bool is_lookup = c.kernel == "sparse_segment" || c.kernel == "weighted_segment";
  std::size_t source = c.in.size();
  if (is_lookup) source = 1;
  if (c.kernel == "planned_segment_grad") source = 3;
  if (c.kernel == "planned_weighted_grad") source = 5;
  if (c.kernel == "apply_planned") source = c.attrs[7] != 0 ? 5 : 3;
  std::vector<std::size_t> list;
  for (std::size_t i = 0; i < c.in.size(); ++i) {
    const bool is_size = c.in[i].shape.empty() || (c.kernel == "fill_empty_rows" && i == 2);
    if (!is_size && i != source && (c.in[i].dtype == DType::int32 || c.in[i].dtype == DType::int64)) list.push_back(i);
  }
  return list;
}

enum class Change { huge, negative, next, largest, reversed, count };

template <class I>
void change(I* ids, std::int64_t n, Change how) {
  I largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, ids[i]);
  if (how == Change::reversed) return std::reverse(ids, ids + n);
  for (std::int64_t i = 0; i < n; ++i) switch (how) {
      case Change::huge:
        if (i % 2) ids[i] = std::numeric_limits<I>::max() - I(i % 5);
        break;
      case Change::negative:
        ids[i] = I(-1 - i % 3);
        break;
      case Change::next:
        ids[i] = plus<I>(ids[i], I(1 + i % 7));
        break;
      default:
        ids[i] = largest;  // valid, but with other counts
    }
}

void change(const Case& c, Change how) {
  for (const std::size_t i : id_inputs(c)) {
    const Array a = c.in[i].view();
    if (a.dtype == DType::int64)
      change(a.as<std::int64_t>(), a.size(), how);
    else
      change(a.as<std::int32_t>(), a.size(), how);
  }
}

void restore(const Case& c, const std::vector<Tensor>& in) {
  for (const std::size_t i : id_inputs(c)) std::copy(in[i].bytes.begin(), in[i].bytes.end(), c.in[i].at(0));
}

// Runs one call; `at_step` is called between its steps. Stops at outputs of absurd sizes, which the binding would
// reject.
void call(const Case& c, bool fresh_zeros, const std::function<void()>& at_step) {
  constexpr std::int64_t kMostRows = 1 << 20;
  std::vector<Array> views, out_views;
  for (const Tensor& t : c.in) views.push_back(t.view());
  const std::unique_ptr<Kernel> kernel = make_kernel(c);
  kernel->in = views;
  kernel->attr = c.attrs;
  kernel->fresh_zeros = fresh_zeros;
  try {
    const FlushSubnormals flush;
    if (kernel->measure() || kernel->rows > kMostRows) return;
    at_step();
    std::vector<Tensor> out = c.outputs(kernel->rows);
    if (kernel->check()) return;
    at_step();
    kernel->holds_zeros = !kernel->fills();
    for (Tensor& t : out) out_views.push_back(t.view());
    kernel->compute(out_views);
    at_step();
    kernel->written();
  } catch (const OutOfMemory&) {
  }
}

// Changes the ids at place `where`, and back at the next place unless `stays`; returns the number of places.
std::int64_t call_changed_at(const Case& c, const std::vector<Tensor>& original, std::int64_t where, Change how,
                             bool stays) {
  std::int64_t place = 0;
  std::function<void()> here = [&] {
    if (place == where) change(c, how);
    if (place == where + 1 && !stays) restore(c, original);
    ++place;
  };
  before_task = &here;
  call(c, where % 2 == 0, here);
  before_task = nullptr;
  restore(c, original);
  return place;
}

void test_every_place(std::int64_t ids, int num_threads_reported, std::initializer_list<Change> changes) {
  set_num_threads(1);
  const EveryKernel every(ids, 31);
  EXPECT(every.is_complete());
  set_num_threads(num_threads_reported);
  std::int64_t calls = 0;
  for (const Case& c : every.cases) {
    if (id_inputs(c).empty()) continue;
    const std::vector<Tensor> original = c.in;
    for (const Change how : changes)
      for (const bool stays : {true, false})
        for (std::int64_t where = 0;; ++where, ++calls) {
          const Where in(c.kernel.c_str(), {{"place", where}, {"change", int(how)}, {"stays", stays}});
          if (call_changed_at(c, original, where, how, stays) <= where) break;
        }
  }
  EXPECT(calls > 0);
  std::printf("%lld calls with ids changed at one place\n", static_cast<long long>(calls));
}

// Stores ids as another process would: whole, one at a time.
template <class I>
void flip(I* ids, const I* original, std::int64_t n, bool bad) {
  for (std::int64_t i = 0; i < n; ++i)
    __atomic_store_n(ids + i, bad && i % 3 == 0 ? std::numeric_limits<I>::max() - I(i % 2) : original[i],
                     __ATOMIC_RELAXED);
}

void test_other_thread() {
  set_num_threads(1);
  const EveryKernel every(3000, 32);
  set_num_threads(3);
  for (const Case& c : every.cases) {
    const Where in(c.kernel.c_str());
    const std::vector<Tensor> original = c.in;
    const auto list = id_inputs(c);
    std::atomic<bool> stop{false};
    std::thread other([&] {
      for (bool bad = true; !stop.load(); bad = !bad)
        for (const std::size_t i : list)
          if (c.in[i].dtype == DType::int64)
            flip(c.in[i].as<std::int64_t>(), original[i].as<std::int64_t>(), original[i].size(), bad);
          else
            flip(c.in[i].as<std::int32_t>(), original[i].as<std::int32_t>(), original[i].size(), bad);
    });
    for (int i = 0; i < (kSanitized ? 4 : 20); ++i) call(c, i % 2 == 0, [] {});
    stop = true;
    other.join();
    restore(c, original);
  }
  EXPECT(every.is_complete());
}

}  // namespace

int main() {
  using enum Change;
  test_every_place(2000, 1, {huge, negative, next, largest, reversed});
  test_every_place(kSanitized ? 34000 : 140000, 2, {huge, largest});  // split over threads
  test_other_thread();
  return test::finish();
}
