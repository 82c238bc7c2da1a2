// Non-owning array views: a pointer and sizes.
#pragma once
#include <cstdint>
#include <span>

#include "rowgrad/dtype.h"

namespace rowgrad {

// Reads one value that another thread may be changing exactly once; the compiler may split a plain read in two.
template <class T>
T read_once(const T* p) {
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}

// A C-contiguous array of any dtype, as passed by the caller.
struct Array {
  void* data = nullptr;
  DType dtype = DType::float32;
  std::span<const std::int64_t> shape;

  std::int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  // Elements of one row: the product of all dimensions but the first.
  std::int64_t row_size() const {
    std::int64_t n = 1;
    for (std::size_t d = 1; d < shape.size(); ++d) n *= shape[d];
    return n;
  }
  std::int64_t size() const { return rows() * row_size(); }
  std::int64_t bytes() const { return size() * width_of(dtype); }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

template <class T>
struct Vec {
  T* data;
  std::int64_t size;
  T& operator[](std::int64_t i) const { return data[i]; }
};

template <class T>
struct Mat {
  T* data;
  std::int64_t rows, cols;
  T* row(std::int64_t i) const { return data + i * cols; }
};

template <class T>
Vec<T> vec(const Array& a) {
  return {a.as<T>(), a.size()};
}

template <class T>
Mat<T> mat(const Array& a) {
  return {a.as<T>(), a.rows(), a.row_size()};
}

}  // namespace rowgrad
