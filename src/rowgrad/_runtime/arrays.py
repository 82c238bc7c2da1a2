"""Convert arguments to C-contiguous NumPy arrays of dtypes that the catalogue names."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from .._catalog.spec import QUANTIZED, Aval, Derived, Op, regroup, spread
from ..errors import OpError, make_error

Array = np.ndarray[Any, Any]

_PLAIN = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "complex64", "complex128", "bool")  # fmt: skip
NUMPY_DTYPE: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in _PLAIN}
NUMPY_DTYPE["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
# TensorFlow's NumPy dtype of a quantized number is a structure with one field named after the type.
NUMPY_DTYPE |= {q: np.dtype([(q, NUMPY_DTYPE[q.removeprefix("q").replace("quint", "uint")])]) for q in QUANTIZED}
NUMPY_DTYPE["string"] = np.dtype(object)

_NAME = {dtype: name for name, dtype in NUMPY_DTYPE.items() if name != "string"}
_INT32 = np.iinfo(np.int32)
# Types whose conversion runs no user code.
_INERT = frozenset((np.ndarray, bool, int, float, complex, str, bytes, *np.sctypeDict.values()))
_PYTHON = (bool, int, float, complex, str, bytes, list, tuple)


def aval_of(array: Array) -> Aval:
    """Return the aval of a converted array."""
    return Aval(_NAME.get(array.dtype, "string"), array.shape)


def avals_of(op: Op, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the avals of converted arguments; a tuple for a list."""
    if not op.has_lists:
        return {name: aval_of(a) for name, a in arrays.items()}
    return {k: tuple(map(aval_of, a)) if isinstance(a, tuple) else aval_of(a) for k, a in arrays.items()}


def host_value(array: Array) -> Any:
    """Return the value of a host input: a number, or a tuple of numbers."""
    return array.item() if array.ndim == 0 else tuple(array.ravel().tolist())


def copy_host_inputs(op: Op, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with private copies of host inputs.

    Host inputs are read several times: for validation, by the kernel, and for the cache key. All reads must agree.
    """
    copies = dict(arguments)
    for arg in op.inputs:
        value = copies[arg.name]
        if arg.host:
            if is_ndarray(value) and not is_masked(value):
                copies[arg.name] = _copied(np.asarray(value), arg.name)
            elif isinstance(value, list):
                copies[arg.name] = list(value)
        elif arg.many and isinstance(value, list):
            copies[arg.name] = tuple(value)
    return copies


def is_ndarray(value: Any) -> bool:
    """Return whether the type of a value is a NumPy array, whatever its `__class__` claims."""
    return issubclass(type(value), np.ndarray)


def base_view(array: Array) -> Array:
    """Return a plain ndarray view; attributes that a subclass overrides are not read."""
    return np.ndarray.view(array, np.ndarray)


def admit(op: Op, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the arguments of a call: arrays keep their dtype, Python numbers and lists take the dtype of the others.

    An argument that is a list of arrays becomes a tuple.
    """
    inputs, values = spread(op, arguments) if op.has_lists else (op.inputs, arguments)
    arrays: dict[str, Array] = {}
    bound: dict[str, str] = {}
    weak: list[str] = []
    for arg in inputs:
        value = values[arg.name]
        # NumPy scalars have their own dtype, although some are also Python floats or strings.
        if isinstance(value, _PYTHON) and not isinstance(value, np.generic):
            weak.append(arg.name)
            continue
        arrays[arg.name] = array = _strong(value, arg.name)
        bound.setdefault(arg.type, aval_of(array).dtype)
    for arg in inputs:
        if arg.name in weak:
            listed = op.types.get(arg.type)
            target_name = arg.type if listed is None else bound.get(arg.type)
            if target_name is None and isinstance(listed, Derived) and listed.of in bound:
                target_name = listed[bound[listed.of]]
            empty = "float32" if target_name is not None or "float32" in op.dtypes_of(arg.type) else "int32"
            arrays[arg.name] = array = _weak(values[arg.name], arg.name, target_name, empty)
            bound.setdefault(arg.type, aval_of(array).dtype)
        if arg.type not in op.types:
            arrays[arg.name] = _as_fixed(arrays[arg.name], arg.name, arg.type)
    if not all(type(value) in _INERT for value in values.values()):
        _reread_arrays(arrays, values)
        for arg in inputs:
            if arg.type not in op.types:
                arrays[arg.name] = _as_fixed(arrays[arg.name], arg.name, arg.type)
    ordered = {arg.name: arrays[arg.name] for arg in inputs}  # kernels read them by position
    return regroup(op, ordered) if op.has_lists else ordered


def _reread_arrays(arrays: dict[str, Array], values: Mapping[str, Any]) -> None:
    """Convert the caller's arrays again: code of other arguments (`__array__`, list items) may have changed them."""
    for name, value in values.items():
        if is_ndarray(value) and (arrays[name] is value or arrays[name].base is not None):
            arrays[name] = canonical(np.asarray(value), name)


def _strong(value: Any, argument: str) -> Array:
    """Convert an array; only byte order and strings change."""
    if value is None or not (isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__")):
        raise make_error("not_an_array", argument=argument, value=type(value).__name__)
    return canonical(plain_array(value, argument), argument)


def is_masked(value: Any) -> bool:
    """Return whether a value is a masked array; does not import `numpy.ma`, which is slow."""
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    return masked is not None and isinstance(value, masked)


def plain_array(value: Any, argument: str) -> Array:
    """Convert a value with NumPy; raise if it is not an array."""
    if is_masked(value):
        raise make_error("not_an_array", argument=argument, value="a masked array, whose mask would be lost")
    try:
        array = np.asarray(value)
        if not isinstance(value, np.ndarray) and hasattr(value, "untyped_storage"):
            _check_storage(array, value.untyped_storage(), argument)
        return array
    except OpError:
        raise
    except Exception as error:  # user code may raise anything
        if isinstance(value, list | tuple) and "inhomogeneous" in str(error):
            raise make_error("list_uneven", argument=argument) from error
        raise make_error("not_an_array", argument=argument, value=f"{type(value).__name__}: {error}") from error


def _check_storage(array: Array, storage: Any, argument: str) -> None:
    """Raise if a torch tensor's elements are not all inside its storage, which may have been resized since."""
    if array.size:
        end = (
            array.ctypes.data
            - storage.data_ptr()
            + sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))
        )
        extent = end + array.itemsize
        if extent > storage.nbytes():
            raise make_error("storage_too_small", argument=argument, value=extent, bound=storage.nbytes())


def is_aligned(array: Array) -> bool:
    """Return whether kernels may read an array in place. NumPy does not check structures, so check their address."""
    return array.flags.aligned and (array.dtype.names is None or array.ctypes.data % (array.itemsize or 1) == 0)


def canonical(array: Array, argument: str) -> Array:
    """Return the array contiguous, aligned and in native byte order; raise for a dtype outside the catalogue."""
    # Not ascontiguousarray, which adds a dimension to scalars.
    if not array.flags.c_contiguous or not is_aligned(array):
        array = _copied(array, argument)
    if array.dtype in _NAME:
        return array
    if array.dtype.kind == "T":
        return array
    if array.dtype.kind in "SU":
        return array.astype(object)
    if array.dtype.kind == "O":
        for position, item in enumerate(array.reshape(-1)):
            if not isinstance(item, str | bytes):
                what = f"an object array with an item of type {type(item).__name__}"
                raise make_error("not_an_array", argument=argument, position=position, value=what)
        return array
    native = array.dtype.newbyteorder("=")
    if native in _NAME:
        return array.astype(native)
    raise make_error("dtype_not_allowed", argument=argument, value=array.dtype, bound=", ".join(NUMPY_DTYPE))


def _copied(array: Array, argument: str) -> Array:
    """Copy an array; a broadcast view may be larger than memory."""
    try:
        return array.copy(order="C")
    except MemoryError:
        raise make_error("argument_memory", argument=argument, value=array.nbytes) from None


def _weak(value: Any, argument: str, target_name: str | None, empty: str) -> Array:
    """Convert Python numbers to the dtype `target_name`, or to float32 and int32 as TensorFlow does.

    `empty` is the dtype of an empty list if `target_name` is None.
    """
    try:
        try:
            array = np.asarray(value)
        except UnicodeDecodeError:  # strings mixed with bytes that are not ASCII
            array = np.array(value, dtype=object)
        if array.dtype.kind in "SUfO" and not _holds_arrays(value):
            array = _exact(np.array(value, dtype=object), array, argument, target_name)
    except OpError:
        raise
    except Exception as error:  # list items may be anything
        if "inhomogeneous" in str(error):  # NumPy has no class for it
            raise make_error("list_uneven", argument=argument) from None
        raise make_error("not_an_array", argument=argument, value=f"{type(value).__name__}: {error}") from None
    if array.size == 0 and not _holds_arrays(value):
        return np.zeros(array.shape, NUMPY_DTYPE.get(target_name or empty, NUMPY_DTYPE[empty]))
    kind = array.dtype.kind
    if _holds_arrays(value) or kind in "OSUb":
        return canonical(array, argument)
    target = NUMPY_DTYPE.get(target_name) if target_name is not None else None
    if kind in "iu":
        if target is None or target.kind in "SUOb":
            fits = array.size == 0 or (array.min() >= _INT32.min and array.max() <= _INT32.max)
            target = np.dtype(np.int32) if fits else array.dtype
        elif target.kind in "iu":
            return fit(array, argument, target)
        elif target_name in QUANTIZED:
            return fit(array, argument, target[0]).view(target)
    elif kind == "f":
        target = target if target is not None and is_inexact(target) else np.dtype(np.float32)
    elif kind == "c":
        target = target if target is not None and target.kind == "c" else np.dtype(np.complex128)
    with np.errstate(over="ignore"):
        return canonical(array.astype(target), argument)


def as_array(value: Any, argument: str, target_name: str | None = None, empty: str = "float32") -> Array:
    """Convert one value: arrays keep their dtype, Python numbers take `target_name` if possible."""
    is_weak = isinstance(value, _PYTHON) and not isinstance(value, np.generic)
    return _weak(value, argument, target_name, empty) if is_weak else _strong(value, argument)


def _exact(items: Array, guess: Array, argument: str, target_name: str | None) -> Array:
    """Keep strings with trailing NULs, and integers that NumPy would convert to floats."""
    if guess.dtype.kind in "SU":
        return items
    if items.size and all(isinstance(i, int) and not isinstance(i, bool) for i in items.reshape(-1)):
        for position, i in enumerate(items.reshape(-1)):
            if i.bit_length() > 64:
                raise make_error("integer_does_not_fit", argument=argument, position=position, value=integer_text(i),
                                 bound=target_name or "int64")  # fmt: skip
        return items.astype(np.uint64 if max(items.reshape(-1)) > np.iinfo(np.int64).max else np.int64)
    return guess


def integer_text(value: int) -> str:
    """Return an integer in digits, or its bit length if it is long."""
    return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"


def is_inexact(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is real or complex floating point."""
    return dtype.kind in "fc" or dtype == NUMPY_DTYPE["bfloat16"]


def _holds_arrays(value: Any) -> bool:
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, np.ndarray | np.generic)


def _as_fixed(array: Array, argument: str, target_name: str) -> Array:
    """Convert integers for an argument with a fixed integer dtype; raise if one does not fit."""
    target = NUMPY_DTYPE[target_name]
    if array.dtype == target or array.dtype.kind not in "iu" or target.kind not in "iu":
        return array
    return fit(array, argument, target)


def fit(array: Array, argument: str, target: np.dtype[Any]) -> Array:
    """Convert integers to another dtype; raise if one does not fit."""
    info = np.iinfo(target)
    if array.size and (int(array.min()) < info.min or int(array.max()) > info.max):
        flat = array.ravel().tolist()
        position = next(i for i, v in enumerate(flat) if not info.min <= v <= info.max)
        raise make_error(
            "integer_does_not_fit", argument=argument, position=position, value=flat[position], bound=target
        )
    return array.astype(target)
