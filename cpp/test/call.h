// Tensors, and calls of one kernel as the Python binding makes them, checking the contract of kernel.h.
#pragma once
#include <cstring>
#include <functional>
#include <vector>

#include "../kernels/kernels.h"
#include "expect.h"
#include "random.h"
#include "rowgrad/dispatch.h"
#include "rowgrad/float_mode.h"
#include "rowgrad/parallel.h"

namespace test {

using namespace rowgrad;
using Shape = std::vector<std::int64_t>;
using Numbers64 = std::vector<std::int64_t>;

inline std::vector<DType> all_dtypes() {
  std::vector<DType> all;
  for (int code = 0; code <= int(DType::qint32); ++code) all.push_back(DType(code));
  return all;
}

struct Tensor {
  DType dtype;
  Shape shape;
  std::vector<std::byte> bytes;  // exactly as many as the shape needs, so that the address sanitizer detects overruns

  Tensor(DType dtype_, Shape shape_) : dtype(dtype_), shape(std::move(shape_)) {
    bytes.resize(static_cast<std::size_t>(view().bytes()));
  }
  Array view() const { return {const_cast<std::byte*>(bytes.data()), dtype, shape}; }
  std::int64_t rows() const { return view().rows(); }
  std::int64_t cols() const { return view().row_size(); }
  std::int64_t size() const { return view().size(); }
  template <class T>
  T* as() const {
    return view().as<T>();
  }
  std::byte* at(std::int64_t i) const { return view().as<std::byte>() + i * width_of(dtype); }
  void copy(std::int64_t to, const Tensor& from, std::int64_t i, std::int64_t n = 1) {
    if (n > 0) std::memcpy(at(to), from.at(i), static_cast<std::size_t>(n * width_of(dtype)));
  }
};

inline Tensor random_tensor(Rng& rng, DType dtype, Shape shape) {
  Tensor t(dtype, std::move(shape));
  const bool is_complex = dtype == DType::complex64 || dtype == DType::complex128;
  const std::size_t width = static_cast<std::size_t>(width_of(dtype)) / (is_complex ? 2 : 1);
  for (std::size_t i = 0; i < t.bytes.size(); i += width) {
    const std::uint64_t bits = random_bits(rng, dtype);
    std::memcpy(t.bytes.data() + i, &bits, width);
  }
  return t;
}

inline Tensor ids_of(const Numbers64& ids, bool wide = true) {
  const auto n = std::int64_t(ids.size());
  Tensor t(wide ? DType::int64 : DType::int32, {n});
  for (std::int64_t i = 0; i < n; ++i)
    if (wide)
      t.as<std::int64_t>()[i] = ids[i];
    else
      t.as<std::int32_t>()[i] = std::int32_t(ids[i]);
  return t;
}

inline Tensor matrix_of(const Numbers64& values, std::int64_t rows, std::int64_t cols) {
  Tensor t = ids_of(values);
  t.shape = {rows, cols};
  EXPECT_EQ(t.size(), values.size());
  return t;
}

inline Tensor scalar_of(std::int64_t value, bool wide = true) {
  Tensor t = ids_of({value}, wide);
  t.shape = {};
  return t;
}

// Returns the position of the first element whose bits differ, or -1; -2 if dtypes or shapes differ.
inline std::int64_t first_difference(const Tensor& a, const Tensor& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return -2;
  if (a.bytes.empty() || std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0) return -1;
  return (std::mismatch(a.bytes.begin(), a.bytes.end(), b.bytes.begin()).first - a.bytes.begin()) / width_of(a.dtype);
}

struct Result {
  Status status;
  std::int64_t rows = -1;
  std::vector<Tensor> out;
};

// Allocates outputs, given the number of rows from measure().
using Outputs = std::function<std::vector<Tensor>(std::int64_t rows)>;

// One table of `rows` rows, or of the measured number if `rows` < 0.
inline Outputs table_of(DType dtype, std::int64_t rows, std::int64_t cols) {
  return [=](std::int64_t measured) { return std::vector<Tensor>{Tensor(dtype, {rows < 0 ? measured : rows, cols})}; };
}

template <class Fn>
Status guarded(Fn&& fn) {
  const FlushSubnormals flush;
  try {
    return fn();
  } catch (const OutOfMemory& e) {
    return {Fault::out_of_memory, -1, e.elements, memory_limit()};
  }
}

// After a fault `out` is empty: compute() was not called.
inline Result run(const std::string& name, const Numbers64& attrs, const std::vector<Tensor>& in,
                  const Outputs& outputs) {
  const std::vector<Tensor> before = in;
  std::vector<Array> views, out_views;
  for (const Tensor& t : in) views.push_back(t.view());
  std::unique_ptr<Kernel> kernel;
  for (const KernelEntry& e : kernels())
    if (name == e.name) kernel = e.make();
  kernel->in = views;
  kernel->attr = attrs;

  Result result;
  result.status = guarded([&] { return kernel->measure(); });
  result.rows = kernel->rows;
  if (!result.status) result.status = guarded([&] { return kernel->check(); });
  if (!result.status) {
    result.out = outputs(kernel->rows);
    // At every other number of threads, fill outputs that may hold anything with garbage.
    kernel->holds_zeros = !kernel->fills() || num_threads() % 2;
    for (Tensor& t : result.out) {
      if (!kernel->holds_zeros) std::fill(t.bytes.begin(), t.bytes.end(), std::byte(0xa5));
      out_views.push_back(t.view());
    }
    result.status = guarded([&]() -> Status {
      kernel->compute(out_views);
      return {};
    });
  }
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_EQ(first_difference(in[i], before[i]), -1);
  return result;
}

// Runs a call with several numbers of threads: the same fault, or the same bits.
inline Result run_same(const char* name, const Numbers64& attrs, const std::vector<Tensor>& in,
                       const Outputs& outputs) {
  const Where where(name);
  set_num_threads(1);
  Result first = run(name, attrs, in, outputs);
  for (int threads : {2, 3, 8}) {
    if (kSanitized && threads != 2) continue;
    const Where where_threads("run", {{"threads", threads}});
    set_num_threads(threads);
    const Result other = run(name, attrs, in, outputs);
    EXPECT_EQ(other.status.fault, first.status.fault);
    EXPECT_EQ(other.status.position, first.status.position);
    EXPECT_EQ(other.status.value, first.status.value);
    EXPECT_EQ(other.status.bound, first.status.bound);
    EXPECT_EQ(other.rows, first.rows);
    if (!EXPECT_EQ(other.out.size(), first.out.size())) continue;
    for (std::size_t i = 0; i < first.out.size(); ++i) EXPECT_EQ(first_difference(other.out[i], first.out[i]), -1);
  }
  return first;
}

// Expects output `i` of a call without a fault to have exactly these bits.
inline void check_output(const Result& r, std::size_t i, const Tensor& expected, const char* file, int line) {
  if (!check_equal(std::int64_t(r.status.fault), 0, file, line, "fault") || i >= r.out.size()) return;
  check_equal(first_difference(r.out[i], expected), -1, file, line, "first element that differs");
}

inline void check_fault(const Result& r, const Status& expected, const char* file, int line) {
  check_equal(std::int64_t(r.status.fault), std::int64_t(expected.fault), file, line, "fault");
  check_equal(r.status.position, expected.position, file, line, "position");
  check_equal(r.status.value, expected.value, file, line, "value");
  check_equal(r.status.bound, expected.bound, file, line, "bound");
}

}  // namespace test

#define EXPECT_OUTPUT(result, i, expected) test::check_output((result), (i), (expected), __FILE__, __LINE__)
// EXPECT_FAULT(result, fault, position, value, bound)
#define EXPECT_FAULT(result, ...) test::check_fault((result), rowgrad::Status{__VA_ARGS__}, __FILE__, __LINE__)
