#include "torch_tensors.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>

namespace nb = nanobind;

namespace rowgrad {
namespace {

// The table of functions, as the DLPack specification lays it out.
struct ExchangeTable {
  std::uint32_t major, minor;
  const ExchangeTable* previous;
  void *allocate, *managed_from_object, *managed_to_object;
  int (*read)(void* object, nb::dlpack::dltensor* out);  // -1 with a Python error if it fails
  int (*current_stream)(std::int32_t kind, std::int32_t index, void** out);  // -1 with a Python error if it fails
};

constexpr std::uint32_t kVersion = 1;
constexpr std::int64_t kLarge = 1 << 20;  // bytes; as in rowgrad.torch.tensors

// Set once, while rowgrad.torch is imported; objects are never released, since tensors may be read until the end.
struct Torch {
  const ExchangeTable* table = nullptr;
  std::array<PyTypeObject*, 4> classes{};
  PyObject *is_neg = nullptr, *untyped_storage = nullptr, *data_ptr = nullptr, *dtype = nullptr;
  PyObject *new_empty = nullptr, *new_zeros = nullptr;
  PyObject* new_tensor = nullptr;  // rowgrad.torch.tensors.new_tensor
};
Torch torch;

// A number that a method without arguments returns; nothing if it raises.
std::optional<std::uintptr_t> number_from(PyObject* object, PyObject* method) {
  PyObject* const found = PyObject_CallMethodObjArgs(object, method, nullptr);
  if (!found) {
    PyErr_Clear();
    return {};
  }
  const std::size_t number = PyLong_AsSize_t(found);
  Py_DECREF(found);
  if (number == static_cast<std::size_t>(-1) && PyErr_Occurred()) {
    PyErr_Clear();
    return {};
  }
  return number;
}

std::optional<DType> dtype_from(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  if (dtype.lanes != 1) return {};
  const int bits = dtype.bits;
  switch (Code(dtype.code)) {
    case Code::Float:
      if (bits == 16) return DType::float16;
      if (bits == 32) return DType::float32;
      if (bits == 64) return DType::float64;
      return {};
    case Code::Bfloat:
      if (bits == 16) return DType::bfloat16;
      return {};
    case Code::Int:
      if (bits == 32) return DType::int32;
      if (bits == 64) return DType::int64;
      return {};
    default:
      return {};
  }
}

// Whether the last byte of a tensor is within its storage, which may have been resized or freed.
bool is_stored(PyObject* tensor, const TensorView& view) {
  std::int64_t last = 0;
  for (int d = 0; d < view.ndim; ++d) {
    if (view.shape[d] == 0) return true;
    last += (view.shape[d] - 1) * view.strides[d];
  }
  PyObject* const storage = PyObject_CallMethodObjArgs(tensor, torch.untyped_storage, nullptr);
  if (!storage) {
    PyErr_Clear();
    return false;
  }
  const auto begin = number_from(storage, torch.data_ptr);
  const Py_ssize_t bytes = PyObject_Size(storage);
  if (bytes < 0) PyErr_Clear();
  Py_DECREF(storage);
  const auto end = reinterpret_cast<std::uintptr_t>(view.data) + std::uintptr_t(last + 1) * std::uintptr_t(width_of(view.dtype));
  return begin && *begin != 0 && bytes > 0 && view.data && end <= *begin + std::uintptr_t(bytes);
}

void set_classes(nb::object table, nb::list classes, nb::object new_tensor) {
  const auto* found = static_cast<const ExchangeTable*>(PyCapsule_GetPointer(table.ptr(), "dlpack_exchange_api"));
  if (!found) throw nb::python_error();
  while (found && found->major > kVersion) found = found->previous;
  if (classes.size() > torch.classes.size()) throw std::invalid_argument("classes");
  if (!found || !found->read) return;
  for (std::size_t i = 0; i < classes.size(); ++i)
    torch.classes[i] = reinterpret_cast<PyTypeObject*>(nb::object(classes[i]).release().ptr());
  torch.is_neg = PyUnicode_InternFromString("is_neg");
  torch.untyped_storage = PyUnicode_InternFromString("untyped_storage");
  torch.data_ptr = PyUnicode_InternFromString("data_ptr");
  torch.dtype = PyUnicode_InternFromString("dtype");
  torch.new_empty = PyUnicode_InternFromString("new_empty");
  torch.new_zeros = PyUnicode_InternFromString("new_zeros");
  torch.new_tensor = new_tensor.release().ptr();
  torch.table = found;
}

}  // namespace

std::optional<TensorView> read_tensor(PyObject* tensor, Place place) {
  PyTypeObject* const type = Py_TYPE(tensor);
  if (!torch.table || std::find(torch.classes.begin(), torch.classes.end(), type) == torch.classes.end()) return {};
  nb::dlpack::dltensor found;
  if (torch.table->read(tensor, &found) != 0) {  // sparse, nested, without memory
    PyErr_Clear();
    return {};
  }
  const auto dtype = dtype_from(found.dtype);
  if (found.device.device_type != place.kind || (place.kind != Place{}.kind && found.device.device_id != place.index))
    return {};
  if (!dtype || (found.ndim > 0 && (!found.shape || !found.strides))) return {};
  const TensorView view{static_cast<char*>(found.data) + found.byte_offset, *dtype, found.ndim, found.shape,
                        found.strides};
  if (reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(width_of(*dtype))) return {};
  PyObject* const negated = PyObject_CallMethodObjArgs(tensor, torch.is_neg, nullptr);
  if (!negated) PyErr_Clear();
  Py_XDECREF(negated);
  if (negated != Py_False || !is_stored(tensor, view)) return {};
  return view;
}

std::uintptr_t address_of_tensor(PyObject* tensor) {
  nb::dlpack::dltensor found;
  if (!torch.table || torch.table->read(tensor, &found) != 0) {
    PyErr_Clear();
    return 0;
  }
  return reinterpret_cast<std::uintptr_t>(found.data) + found.byte_offset;
}

nb::object new_matrix(nb::handle like, DType dtype, std::int64_t rows, std::int64_t columns, bool zeros) {
  const nb::tuple shape = nb::make_tuple(rows, columns);
  PyObject* made = nullptr;
  if (columns == 0 || rows < kLarge / width_of(dtype) / columns) {
    made = PyObject_CallMethodObjArgs(like.ptr(), zeros ? torch.new_zeros : torch.new_empty, shape.ptr(), nullptr);
  } else {
    const nb::object type = nb::steal(PyObject_GetAttr(like.ptr(), torch.dtype));
    made = PyObject_CallFunctionObjArgs(torch.new_tensor, shape.ptr(), type.ptr(), zeros ? Py_True : Py_False, nullptr);
  }
  if (!made) throw nb::python_error();
  return nb::steal(made);
}

std::optional<void*> current_stream(std::int32_t device) {
  void* stream = nullptr;
  if (!torch.table || !torch.table->current_stream) return {};
  if (torch.table->current_stream(Place::kCuda, device, &stream) != 0) {
    PyErr_Clear();
    return {};
  }
  return stream;
}

void bind_torch_tensors(nb::module_& m) {
  m.def("set_torch_classes", &set_classes, nb::arg("table"), nb::arg("classes"), nb::arg("new_tensor"));
}

}  // namespace rowgrad
