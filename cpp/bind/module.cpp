// The Python binding: Python buffers and dtype codes become views, a Status becomes a tuple.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "../kernels/kernels.h"
#include "rowgrad/float_mode.h"
#include "rowgrad/reused_output.h"
#include "rowgrad/parallel.h"
#include "rowgrad/rows.h"
#include "rowgrad/sparse_segment.h"
#include "cuda.h"
#include "feature_bags.h"
#include "torch_tensors.h"
#include "without_gil.h"
#include "xla.h"

namespace nb = nanobind;
using namespace rowgrad;

namespace {

const char* const kFaultNames[] = {
#define ROWGRAD_NAME(name) #name,
    ROWGRAD_FAULTS(ROWGRAD_NAME)
#undef ROWGRAD_NAME
};

std::string dtype_name(DType dtype) {
  static const char* const names[] = {
#define ROWGRAD_NAME(name, type) #name,
      ROWGRAD_DTYPES(ROWGRAD_NAME)
#undef ROWGRAD_NAME
  };
  const std::string name = names[int(dtype)];
  return name == "bool_" ? "bool" : name;
}

// Borrowed memory of the caller's arrays. NumPy arrays come through the buffer protocol and are released when the call
// ends; arrays of other libraries are tuples (address, *shape), C-contiguous, which the caller keeps alive.
class Buffers {
 public:
  Buffers() = default;
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() {
    for (Py_buffer& b : buffers_) PyBuffer_Release(&b);
  }

  // `shapes`, if not None, has the shapes that Python validated: fail if an array was reshaped since then.
  void take(nb::tuple arrays, nb::bytes codes, bool writable, nb::handle shapes = nb::none()) {
    const std::size_t n = arrays.size();
    if (codes.size() != n) throw std::invalid_argument("codes must have one dtype code per array");
    buffers_.reserve(n);
    views.reserve(n);
    shapes_.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
      const auto code = static_cast<DType>(static_cast<unsigned char>(codes.c_str()[i]));
      if (PyTuple_CheckExact(arrays[i].ptr())) {
        take_address(nb::borrow<nb::tuple>(arrays[i]), code);
        continue;
      }
      Py_buffer b;
      const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
      if (PyObject_GetBuffer(arrays[i].ptr(), &b, flags) != 0) throw nb::python_error();
      buffers_.push_back(b);
      if (b.itemsize != width_of(code)) throw std::invalid_argument("the item size does not match the dtype code");
      check_aligned(b.buf, code);
      static_assert(sizeof(Py_ssize_t) == sizeof(std::int64_t));
      const auto* shape = reinterpret_cast<const std::int64_t*>(buffers_.back().shape);
      views.push_back({b.buf, code, {shape, static_cast<std::size_t>(b.ndim)}});
    }
    if (!shapes.is_none()) check_shapes(nb::cast<nb::tuple>(shapes));
  }

  std::vector<Array> views;

 private:
  void take_address(nb::tuple array, DType dtype) {
    auto* memory = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(array[0]));
    std::vector<std::int64_t>& shape = shapes_.emplace_back();
    shape.reserve(array.size() - 1);
    for (std::size_t d = 1; d < array.size(); ++d) shape.push_back(nb::cast<std::int64_t>(array[d]));
    check_aligned(memory, dtype);
    const Array view{memory, dtype, shape};
    if (!memory && view.size() > 0) throw nb::buffer_error("the address of an array with elements is null");
    views.push_back(view);
  }

  void check_shapes(nb::tuple shapes) const {
    if (shapes.size() != views.size()) throw nb::buffer_error("shapes must have one shape per array");
    for (std::size_t i = 0; i < views.size(); ++i) {
      PyObject* const checked = shapes[i].ptr();
      const auto rank = static_cast<Py_ssize_t>(views[i].shape.size());
      bool same = PyTuple_CheckExact(checked) && PyTuple_Size(checked) == rank;
      for (Py_ssize_t d = 0; same && d < rank; ++d)
        same = PyLong_AsLongLong(PyTuple_GetItem(checked, d)) == views[i].shape[static_cast<std::size_t>(d)];
      if (PyErr_Occurred()) throw nb::python_error();
      if (!same) throw nb::buffer_error("the shape of an array changed after validation");
    }
  }

  static void check_aligned(const void* memory, DType dtype) {
    // As NumPy does, align complex numbers like their parts.
    const auto width = static_cast<std::size_t>(width_of(dtype));
    const auto part = dtype == DType::complex64 || dtype == DType::complex128 ? width / 2 : width;
    if (reinterpret_cast<std::uintptr_t>(memory) % part) throw nb::buffer_error("an array is not aligned to its dtype");
  }

  std::vector<Py_buffer> buffers_;
  std::vector<std::vector<std::int64_t>> shapes_;
};

nb::object as_python(const Status& s) {
  if (!s) return nb::none();
  return nb::make_tuple(kFaultNames[int(s.fault)], s.position, s.value, s.bound);
}

nb::list as_python(const std::vector<KernelEntry>& list) {
  nb::list out;
  for (const KernelEntry& k : list) {
    nb::list dtypes;
    for (DType d : k.dtypes) dtypes.append(dtype_name(d));
    out.append(nb::make_tuple(k.name, dtypes));
  }
  return out;
}

// Runs one phase without the GIL and with subnormals flushed; an allocation failure becomes a Status.
template <class Fn>
Status guarded(Fn&& fn) {
  const WithoutGil free;
  const FlushSubnormals flush;
  try {
    return fn();
  } catch (const OutOfMemory& e) {
    return {Fault::out_of_memory, -1, e.elements, memory_limit()};
  } catch (const std::bad_alloc&) {
    return {Fault::out_of_memory, -1, 0, memory_limit()};
  }
}

// One call of one kernel, given by its index in kernels() followed by update_kernels(). The constructor runs measure();
// `fault` and `rows` have its result. One thread creates and runs a Job, so it has no lock.
class Job {
 public:
  Job(int kernel, std::vector<std::int64_t> attrs, nb::tuple arrays, nb::bytes codes, nb::object shapes)
      : attrs_(std::move(attrs)) {
    const auto number = static_cast<std::size_t>(kernel), ops = kernels().size();
    const KernelEntry& entry = number < ops ? kernels()[number] : update_kernels().at(number - ops);
    if (const std::string error = entry.parameter_error(attrs_); !error.empty()) throw std::runtime_error(error);
    kernel_ = entry.make();
    inputs_.take(arrays, codes, false, shapes);
    kernel_->in = inputs_.views;
    kernel_->attr = attrs_;
    status_ = guarded([&] { return kernel_->measure(); });
    ++alive;
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() { --alive; }

  inline static std::atomic<int> alive{0};

  nb::object written() const {
    return std::visit(
        []<class I>(std::vector<I> list) {
          auto* rows = new std::vector<I>(std::move(list));
          nb::capsule owner(rows, [](void* p) noexcept { delete static_cast<std::vector<I>*>(p); });
          return nb::cast(nb::ndarray<nb::numpy, I, nb::ndim<1>>(rows->data(), {rows->size()}, owner));
        },
        kernel_->written());
  }

  bool failed() const { return bool(status_); }
  // Returns fault, rows and fills in one call from Python instead of three.
  nb::tuple measured() const { return nb::make_tuple(as_python(status_), kernel_->rows, kernel_->fills()); }
  nb::object fault() const { return as_python(status_); }
  std::int64_t rows() const { return kernel_->rows; }
  bool fills() const { return kernel_->fills(); }
  bool wrote_all() const { return kernel_->wrote_all(); }

  // `zeros`: the outputs hold zeros, except for the rows of the only output that `stale` lists.
  nb::object run(nb::tuple arrays, nb::bytes codes, bool zeros, nb::tuple stale, nb::bytes stale_code) {
    Buffers outputs, dirty;
    outputs.take(arrays, codes, true);
    dirty.take(stale, stale_code, false);
    return as_python(guarded([&]() -> Status {
      // The kernel clears the outputs itself, after its workspace allocation succeeded.
      if (!zeros) kernel_->fresh_zeros = false;
      if (const Status s = kernel_->check()) return s;
      const bool fills = kernel_->fills();
      kernel_->holds_zeros = !fills || (zeros && !covers_most_rows(dirty.views, outputs.views[0]));
      if (!zeros && !fills)
        for (const Array& a : outputs.views) clear(a);
      if (kernel_->holds_zeros)
        for (const Array& rows : dirty.views) clear_rows(outputs.views[0], rows);
      kernel_->compute(outputs.views);
      return {};
    }));
  }

 private:
  std::unique_ptr<Kernel> kernel_;
  std::vector<std::int64_t> attrs_;
  Buffers inputs_;
  Status status_;
};

// Runs a whole call whose output sizes are known: all steps of a Job. Returns the fault, or None.
nb::object run_kernel(int kernel, std::vector<std::int64_t> attrs, nb::tuple arrays, nb::bytes codes, nb::tuple outputs,
                      nb::bytes out_codes, bool zeros) {
  Job job(kernel, std::move(attrs), arrays, codes, nb::none());
  if (job.failed()) return job.fault();
  return job.run(outputs, out_codes, zeros, nb::make_tuple(), nb::bytes("", 0));
}

// Returns an array of bytes whose memory is released with its last view.
template <void* (*take)(std::int64_t), void (*give)(void*, std::int64_t) noexcept>
auto bytes_from(std::int64_t bytes) {
  struct Owned {
    void* memory;
    std::int64_t bytes;
  };
  std::unique_ptr<Owned> block(new Owned{nullptr, bytes});  // make_unique needs Clang 16 here
  block->memory = take(bytes);
  Owned* const owned = block.release();
  nb::capsule owner(owned, [](void* p) noexcept {
    auto* o = static_cast<Owned*>(p);
    give(o->memory, o->bytes);
    delete o;
  });
  return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(owned->memory, {static_cast<std::size_t>(bytes)}, owner);
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Compiled kernels of rowgrad. rowgrad._runtime validates arguments before it calls them.";
  nb::class_<Job>(m, "Job")
      .def(nb::init<int, std::vector<std::int64_t>, nb::tuple, nb::bytes, nb::object>(), nb::arg("kernel"),
           nb::arg("attrs"), nb::arg("arrays"), nb::arg("codes"), nb::arg("shapes") = nb::none())
      .def_prop_ro("measured", &Job::measured)
      .def_prop_ro("fault", &Job::fault)
      .def_prop_ro("rows", &Job::rows)
      .def_prop_ro("fills", &Job::fills)
      .def("run", &Job::run)
      .def_prop_ro("wrote_all", &Job::wrote_all)
      .def("written", &Job::written);
  m.def("run_kernel", &run_kernel);
  m.def("kernels", [] { return as_python(kernels()); });
  m.def("update_kernels", [] { return as_python(update_kernels()); });
  m.def("dtypes", [] {
    std::vector<std::string> names;
#define ROWGRAD_NAME(name, type) names.push_back(dtype_name(DType::name));
    ROWGRAD_DTYPES(ROWGRAD_NAME)
#undef ROWGRAD_NAME
    return names;
  });
  m.def("faults", [] { return std::vector<std::string>(std::begin(kFaultNames), std::end(kFaultNames)); });
  // Memory for a large output: from the cache of released outputs, whose pages are already mapped; or zeros.
  m.def("recycled", &bytes_from<allocate_scratch, release_scratch>);
  m.def("zeroed", &bytes_from<allocate_zeros, release_zeros>);
  // Returns the algorithm that a dense or row-sparse gradient uses.
  m.def("gradient_algorithm", [](std::int64_t ids, std::int64_t rows, std::int64_t cols, std::int64_t bytes_per_sum) {
    const auto algorithm = choose_algorithm(Order::sequential, ids, rows, 1, cols, bytes_per_sum);
    return algorithm == GradientAlgorithm::sorted ? "sorted" : "narrow";
  });
  m.def("level", [] { return std::string(row_level()); });
  bind_xla(m);
  bind_torch_tensors(m);
  bind_feature_bags(m);
  bind_cuda(m);
  m.def("memory_limit", &memory_limit);
  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads, nb::call_guard<WithoutGil>());
  // A daemon thread inside a call at interpreter exit never releases its Job, modules that are still alive keep their
  // layouts, and devices live until the end: do not report that as a leak.
  Py_AtExit([] {
    if (Job::alive.load() > 0 || feature_objects_alive() > 0 || cuda_objects_alive() > 0) nb::set_leak_warnings(false);
  });
  // Initialize lazily created state now: a fork while another thread initializes it would leave the child waiting.
  num_threads();
  memory_limit();
  row_level();
  release_scratch(allocate_scratch(1), 1);
}
