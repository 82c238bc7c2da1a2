"""The dense layer on NumPy arrays: its functions with NumPy as their array namespace.

What dtypes, shapes, host values and attributes decide is judged once for calls that are alike, as in `native`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .._catalog.spec import COMPLEX, FLOATS, REALS, Op, spread
from .arrays import NUMPY_DTYPE, Array, admit, avals_of, host_value, own_sizes
from .dense import FUNCTIONS, handed_types
from .results import check_size, into
from .validation import infer

Axes = tuple[int, ...]


class Namespace:
    """NumPy under the names `rowgrad._runtime.dense` knows: those of the array standard, and a few it lacks."""

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
        """Where x lies."""
        return x.device

    @staticmethod
    def astype(x: Any, dtype: Any) -> Any:
        """x in another dtype."""
        return x.astype(dtype)

    @staticmethod
    def copy(x: Any) -> Any:
        """The same elements in memory of their own, contiguous."""
        return np.array(x, order="C")

    @staticmethod
    def stop_gradient(x: Any) -> Any:
        """x: NumPy differentiates nothing."""
        return x

    @staticmethod
    def sigmoid(x: Any) -> Any:
        """1 / (1 + exp(−x))."""
        one = np.ones_like(x)
        return one / (one + np.exp(-x))

    @staticmethod
    def sum(x: Any, axis: Axes, keepdims: Any) -> Any:
        """The sum in the dtype of x."""
        return np.sum(x, axis=axis, dtype=x.dtype, keepdims=keepdims)

    @staticmethod
    def long_sum(x: Any, axis: Axes, keepdims: Any) -> Any:
        """The sum of integers in 64 bits."""
        return np.sum(x, axis=axis, dtype=np.uint64 if x.dtype.kind == "u" else np.int64, keepdims=keepdims)

    @staticmethod
    def prod(x: Any, axis: Axes, keepdims: Any) -> Any:
        """The product in the dtype of x."""
        return np.prod(x, axis=axis, dtype=x.dtype, keepdims=keepdims)

    @staticmethod
    def max(x: Any, axis: Axes, keepdims: Any) -> Any:
        """The largest."""
        return np.max(x, axis=axis, keepdims=keepdims)

    @staticmethod
    def min(x: Any, axis: Axes, keepdims: Any) -> Any:
        """The smallest."""
        return np.min(x, axis=axis, keepdims=keepdims)

    @staticmethod
    def all(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Whether all are true."""
        return np.all(x, axis=axis, keepdims=keepdims)

    @staticmethod
    def any(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Whether one is true."""
        return np.any(x, axis=axis, keepdims=keepdims)

    @staticmethod
    def lowest(dtype: Any) -> Any:
        """What every value of a dtype is at least."""
        return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf

    @staticmethod
    def highest(dtype: Any) -> Any:
        """What every value of a dtype is at most."""
        return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf

    @staticmethod
    def take(x: Any, indices: Any) -> Any:
        """Rows by index."""
        return x[indices]

    @staticmethod
    def first_true(mask: Any) -> int:
        """The first position that holds, counted in a row; -1 where none does."""
        return int(np.argmax(mask)) if np.any(mask) else -1


class _Prepared(NamedTuple):
    function: Callable[..., Any]
    host: tuple[tuple[int, Any], ...]  # inputs whose values the key holds, by position
    types: Mapping[str, Any]


_PREPARED: dict[Any, _Prepared] = {}
_MANY = 4096


def call(op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any], out: Any) -> tuple[Array, ...]:
    """Run a dense op on NumPy arrays."""
    key = _key(op, arguments, attrs) if out is None else None
    prepared = _PREPARED.get(key)
    if prepared is not None:
        given = list(arguments.values())
        for i, value in prepared.host:
            given[i] = value
        return _run(prepared, given, attrs)
    arguments = own_sizes(op, arguments)
    key = None if key is None else _key(op, arguments, attrs)
    arrays = admit(op, arguments)
    avals = avals_of(op, arrays)
    host = {a.name: host_value(arrays[a.name]) for a in op.inputs if a.host}
    outputs = infer(op, avals, host, attrs)
    for aval in outputs:
        check_size(aval)
    values = {**arrays, **host}
    places = tuple((i, host[a.name]) for i, a in enumerate(op.inputs) if a.host)
    prepared = _Prepared(FUNCTIONS[op.name], places, handed_types(op.name, outputs))
    results = _run(prepared, list(values.values()), attrs)
    if key is not None and all(d in _PLAIN for d in key if isinstance(d, np.dtype)):
        if len(_PREPARED) >= _MANY:
            _PREPARED.clear()
        _PREPARED[key] = prepared
    return into(op, results, out, spread(op, arrays)[1] if op.has_lists else arrays) if out is not None else results


_PLAIN = frozenset(dtype for name, dtype in NUMPY_DTYPE.items() if name != "string")  # a list of strings is looked at


def _run(prepared: _Prepared, values: list[Any], attrs: Mapping[str, Any]) -> tuple[Array, ...]:
    """Attributes are the call's own: 0.0 and -0.0 are judged alike, and are one key."""
    with np.errstate(all="ignore"):
        result = prepared.function(Namespace, *values, **attrs, **prepared.types)
    if type(result) is tuple:
        return tuple([np.asarray(r, order="C") for r in result])
    return (np.asarray(result, order="C"),)


def _is_plain(value: Any) -> bool:
    """Whether `admit` would give an array back as it is. NumPy's sums follow the order of memory: there is one."""
    return type(value) is np.ndarray and value.flags.c_contiguous


def _key(op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any]) -> Any:
    """What decides a call apart from its data, or None where an argument is no plain array or number."""
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
