// Owns arrays and drives one kernel as the Python binding does, holding it to the contract of kernel.h on the way.
#pragma once
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

#include "../kernels/kernels.h"
#include "expect.h"
#include "rowgrad/dispatch.h"
#include "rowgrad/float_mode.h"
#include "rowgrad/parallel.h"

namespace test {

using namespace rowgrad;
using Shape = std::vector<std::int64_t>;

template <class T>
constexpr DType code_of() {
#define ROWGRAD_IS(name, type) \
  if (std::is_same_v<T, type>) return DType::name;
  ROWGRAD_DTYPES(ROWGRAD_IS)
#undef ROWGRAD_IS
}

// Calls fn(std::type_identity<T>{}) for every type of a list.
template <DType... codes, class Fn>
void each_type(DTypes<codes...>, Fn&& fn) {
  (fn(std::type_identity<typename TypeOf<codes>::type>{}), ...);
}

struct Tensor {
  DType dtype;
  Shape shape;
  std::vector<std::byte> bytes;  // no more than the shape needs, so that the address sanitizer sees one too far

  Tensor(DType dtype_, Shape shape_) : dtype(dtype_), shape(std::move(shape_)) {
    bytes.resize(static_cast<std::size_t>(view().bytes()));
  }
  Array view() const { return {const_cast<std::byte*>(bytes.data()), dtype, shape}; }
  std::int64_t size() const { return view().size(); }
  template <class T>
  T* as() const {
    return view().as<T>();
  }
};

template <class T>
Tensor tensor(const std::vector<T>& values, Shape shape) {
  Tensor t(code_of<T>(), std::move(shape));
  EXPECT_EQ(t.size(), std::int64_t(values.size()));
  std::copy(values.begin(), values.end(), t.as<T>());
  return t;
}

template <class T>
Tensor vector_of(const std::vector<T>& values) {
  return tensor(values, {std::int64_t(values.size())});
}

inline Tensor ids_of(const std::vector<std::int64_t>& ids, bool wide = true) {
  if (wide) return vector_of(ids);
  return vector_of(std::vector<std::int32_t>(ids.begin(), ids.end()));
}

template <class T>
Tensor scalar(T value) {
  return tensor(std::vector<T>{value}, {});
}

// The position of the first element with other bits; -1 where there is none.
inline std::int64_t first_difference(const Tensor& a, const Tensor& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return -2;
  const auto at = std::mismatch(a.bytes.begin(), a.bytes.end(), b.bytes.begin()).first;
  return at == a.bytes.end() ? -1 : (at - a.bytes.begin()) / width_of(a.dtype);
}

struct Result {
  Status status;
  std::int64_t rows = -1;
  std::vector<Tensor> out;
};

// Outputs of the right sizes, given what measure() said.
using Outputs = std::function<std::vector<Tensor>(std::int64_t rows)>;

template <class Fn>
Status guarded(Fn&& fn) {
  const FlushSubnormals flush;
  try {
    return fn();
  } catch (const OutOfMemory& e) {
    return {Fault::out_of_memory, -1, e.elements, memory_limit()};
  }
}

inline Result run(std::string_view name, const std::vector<std::int64_t>& attrs, const std::vector<Tensor>& in,
                  const Outputs& outputs) {
  constexpr std::byte untouched{0xa5};
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
  if (!result.status) {
    result.rows = kernel->rows;
    result.out = outputs(kernel->rows);
    for (Tensor& t : result.out) {
      std::fill(t.bytes.begin(), t.bytes.end(), untouched);
      out_views.push_back(t.view());
    }
    result.status = guarded([&] { return kernel->check(); });
    for (Tensor& t : result.out) {
      EXPECT(std::all_of(t.bytes.begin(), t.bytes.end(), [](std::byte b) { return b == untouched; }));
      std::fill(t.bytes.begin(), t.bytes.end(), std::byte{0});
    }
    if (!result.status)
      result.status = guarded([&]() -> Status {
        kernel->compute(out_views);
        return {};
      });
  }
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_EQ(first_difference(in[i], before[i]), -1);
  return result;
}

// The same call at several numbers of threads: the same fault, or the same bits.
inline Result run_same(const char* name, const std::vector<std::int64_t>& attrs, const std::vector<Tensor>& in,
                       const Outputs& outputs) {
  const Where where(name);
  set_num_threads(1);
  Result first = run(name, attrs, in, outputs);
  for (int threads : {2, 3, 8}) {
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

inline void check_fault(const Result& r, const Status& wanted, const char* file, int line) {
  const Status& s = r.status;
  check_equal(s.fault, wanted.fault, file, line, "fault");
  check_equal(s.position, wanted.position, file, line, "position");
  check_equal(s.value, wanted.value, file, line, "value");
  check_equal(s.bound, wanted.bound, file, line, "bound");
}

}  // namespace test

// EXPECT_FAULT(result, fault, position, value, bound)
#define EXPECT_FAULT(result, ...) test::check_fault((result), rowgrad::Status{__VA_ARGS__}, __FILE__, __LINE__)
#define EXPECT_SAME(tensor, expected) EXPECT_EQ(test::first_difference((tensor), (expected)), -1)
