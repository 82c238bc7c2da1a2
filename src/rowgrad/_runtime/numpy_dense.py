"""The dense ops on NumPy arrays: the functions of `rowgrad._runtime.dense` with NumPy as array namespace.

Calls with equal dtypes, shapes, host values and attributes are validated once, as in `numpy_runner`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import finfo

from .._catalog.spec import COMPLEX, FLOATS, REALS, Op, spread
from .arrays import NUMPY_DTYPE, Array, admit, avals_of, copy_host_inputs, host_value
from .dense import FUNCTIONS, host_dtypes
from .results import check_size, copy_to_out
from .validation import infer

Axes = tuple[int, ...]


class Namespace:
    """NumPy under the names of the array API standard, and a few more that `rowgrad._runtime.dense` uses."""

    dtype = staticmethod(NUMPY_DTYPE.__getitem__)
    bool, int64, float32 = (NUMPY_DTYPE[n] for n in ("bool", "int64", "float32"))
    short_floats = frozenset(NUMPY_DTYPE[n] for n in ("float16", "bfloat16"))
    integers = frozenset(NUMPY_DTYPE[n] for n in REALS if n not in FLOATS)
    complexes = frozenset(NUMPY_DTYPE[n] for n in COMPLEX)

    where = np.where
    zeros_like = np.zeros_like
    ones_like = np.ones_like
    full_like = np.full_like
    full = np.full
    asarray = np.asarray
    reshape = np.reshape
    broadcast_to = np.broadcast_to
    permute_dims = np.permute_dims
    concat = np.concat
    pad = np.pad
    arange = np.arange
    argwhere = np.argwhere
    argmax = np.argmax
    argmin = np.argmin
    matmul = np.matmul
    real = np.real
    abs = np.abs
    sign = np.sign
    sqrt = np.sqrt
    exp = np.exp
    expm1 = np.expm1
    log = np.log
    log1p = np.log1p
    logaddexp = np.logaddexp
    sin = np.sin
    cos = np.cos
    tanh = np.tanh
    floor = np.floor
    ceil = np.ceil
    round = np.rint
    pow = np.power
    fmod = np.fmod
    remainder = np.remainder
    floor_divide = np.floor_divide

    @staticmethod
    def device(x: Any) -> Any:
        """Return the device of x."""
        return x.device

    @staticmethod
    def astype(x: Any, dtype: Any) -> Any:
        """Convert x to another dtype."""
        return x.astype(dtype)

    @staticmethod
    def copy(x: Any) -> Any:
        """Return a contiguous copy."""
        return np.array(x, order="C")

    @staticmethod
    def stop_gradient(x: Any) -> Any:
        """Return x: NumPy does not differentiate."""
        return x

    @staticmethod
    def sigmoid(x: Any) -> Any:
        """Return 1 / (1 + exp(−x))."""
        one = np.ones_like(x)
        return one / (one + np.exp(-x))

    @staticmethod
    def sum(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Sum in the dtype of x."""
        return np.sum(x, axis=axis, dtype=x.dtype, keepdims=keepdims)

    @staticmethod
    def long_sum(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Sum integers in 64 bits."""
        return np.sum(x, axis=axis, dtype=np.uint64 if x.dtype.kind == "u" else np.int64, keepdims=keepdims)

    @staticmethod
    def prod(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Multiply in the dtype of x."""
        return np.prod(x, axis=axis, dtype=x.dtype, keepdims=keepdims)

    @staticmethod
    def max(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Return the maximum."""
        return np.max(x, axis=axis, keepdims=keepdims)

    @staticmethod
    def min(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Return the minimum."""
        return np.min(x, axis=axis, keepdims=keepdims)

    @staticmethod
    def all(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Return whether all elements are true."""
        return np.all(x, axis=axis, keepdims=keepdims)

    @staticmethod
    def any(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Return whether any element is true."""
        return np.any(x, axis=axis, keepdims=keepdims)

    @staticmethod
    def lowest(dtype: Any) -> Any:
        """Return the lowest value of a dtype."""
        return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf

    @staticmethod
    def highest(dtype: Any) -> Any:
        """Return the highest value of a dtype."""
        return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf

    @staticmethod
    def lowest_finite(dtype: Any) -> Any:
        """Return the lowest finite value of a dtype."""
        return np.iinfo(dtype).min if dtype.kind in "iu" else finfo(dtype).min  # type: ignore[no-untyped-call]

    @staticmethod
    def last_positions(indices: Any, size: int) -> Any:
        """Return for each of `size` slots the last position that names it, or -1. Indices from `size` on name none."""
        last = np.full(size + 1, -1, np.int64)
        np.maximum.at(last, np.minimum(indices, size), np.arange(len(indices)))
        return last[:size]

    @staticmethod
    def take(x: Any, indices: Any) -> Any:
        """Return rows by index."""
        return x[indices]

    @staticmethod
    def first_true(mask: Any) -> int:
        """Return the first true position in flat order, or -1."""
        return int(np.argmax(mask)) if np.any(mask) else -1


class _Prepared(NamedTuple):
    function: Callable[..., Any]
    host: tuple[tuple[int, Any], ...]  # host inputs by position; the key contains their values
    types: Mapping[str, Any]


_PREPARED: dict[Any, _Prepared] = {}
_MAX_PREPARED = 4096


def call(op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any], out: Any) -> tuple[Array, ...]:
    """Run a dense op on NumPy arrays."""
    key = _key(op, arguments, attrs) if out is None else None
    prepared = _PREPARED.get(key)
    if prepared is not None:
        values = list(arguments.values())
        for i, value in prepared.host:
            values[i] = value
        return _run(prepared, values, attrs)
    arguments = copy_host_inputs(op, arguments)
    key = None if key is None else _key(op, arguments, attrs)
    arrays = admit(op, arguments)
    avals = avals_of(op, arrays)
    host = {a.name: host_value(arrays[a.name]) for a in op.inputs if a.host}
    outputs = infer(op, avals, host, attrs)
    for aval in outputs:
        check_size(aval)
    host_places = tuple((i, host[a.name]) for i, a in enumerate(op.inputs) if a.host)
    prepared = _Prepared(FUNCTIONS[op.name], host_places, host_dtypes(op.name, outputs))
    results = _run(prepared, list({**arrays, **host}.values()), attrs)
    if key is not None and all(d in _PLAIN for d in key if isinstance(d, np.dtype)):
        if len(_PREPARED) >= _MAX_PREPARED:
            _PREPARED.clear()
        _PREPARED[key] = prepared
    return (
        copy_to_out(op, results, out, spread(op, arrays)[1] if op.has_lists else arrays) if out is not None else results
    )


_PLAIN = frozenset(
    dtype for name, dtype in NUMPY_DTYPE.items() if name != "string"
)  # strings are validated in every call


def _run(prepared: _Prepared, values: list[Any], attrs: Mapping[str, Any]) -> tuple[Array, ...]:
    """Run a prepared call with the attributes of this call: 0.0 and -0.0 have equal keys."""
    with np.errstate(all="ignore"):
        result = prepared.function(Namespace, *values, **attrs, **prepared.types)
    if type(result) is tuple:
        return tuple([np.asarray(r, order="C") for r in result])
    return (np.asarray(result, order="C"),)


def _is_plain(value: Any) -> bool:
    """Return whether `admit` would return the array itself. NumPy sums in memory order, so it must be C-contiguous."""
    return type(value) is np.ndarray and value.flags.c_contiguous


def _key(op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any]) -> Any:
    """Return all that determines a call except its data; None if an argument is not a plain array or number."""
    key: list[Any] = [op.name]
    for arg, value in zip(op.inputs, arguments.values(), strict=True):
        if _is_plain(value):
            key.append(value.dtype)
            key.append(value.shape)
            if arg.host:
                key.append(value.tobytes())
        elif arg.host and type(value) is int:
            key.append(value)
        elif arg.host and type(value) in (list, tuple) and all(type(v) is int for v in value):
            key.append(tuple(value))
        elif (
            arg.many
            and type(value) in (list, tuple)
            and all(type(v) is np.ndarray and v.flags.c_contiguous for v in value)
        ):
            key.append(len(value))
            for v in value:
                key.append(v.dtype)
                key.append(v.shape)
        else:
            return None
    if attrs is not op.attrs:
        key += attrs.values()
    return tuple(key)
