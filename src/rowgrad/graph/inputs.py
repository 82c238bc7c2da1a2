"""Inputs of blocks: bind arguments to pins, convert values to arrays, and validate both by the op's record.

An input is a wire (an `Output`, or a block with one output), a list of wires, a sparse tensor in one piece, or a value:
a NumPy array, or Python numbers that take the dtype of the inputs beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from .._catalog.spec import QUANTIZED, Arg, Aval, Op
from .._hints import did_you_mean
from .._runtime.arrays import NUMPY_DTYPE, Array, admit, as_array, aval_of, fit, is_inexact
from .._runtime.dispatch import describe_value
from .._runtime.validation import infer, output_dtypes, validate_attrs
from ..errors import OpError, make_error
from ..sparse import SparseTensor
from .nodes import Feed, Operation, Output, Placed, Sparse, describe

# -- arguments of a call -----------------------------------------------------------------------------------------------


def bind_call(op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs and attributes of a call by name. A sparse tensor fills indices, values and shape."""
    names = list(op.input_names)
    values: list[Any] = []
    for value in args:
        at = len(values)
        values.append(value)
        if is_sparse(value) and at < len(names) and sparse_triple(op, names[at]):
            values += [None, None]  # a sparse tensor fills three inputs
    order = (*names, *op.attrs)
    if len(values) > len(order):
        raise TypeError(f"{op.name} takes {len(order)} arguments, got {len(values)}")
    arguments = {k: v for k, v in zip(order, values, strict=False) if v is not None}
    for key, value in kwargs.items():
        if key in arguments:
            raise TypeError(f"{op.name} got argument {key!r} twice")
        if key not in order:
            hint = did_you_mean(key, order, f"It takes {', '.join(order)}.")
            raise TypeError(f"{op.name} has no argument {key!r}. {hint}")
        if value is not None:
            arguments[key] = value
    return {k: v for k, v in arguments.items() if k in names}, {k: v for k, v in arguments.items() if k in op.attrs}


def sparse_triple(op: Op, first: str) -> tuple[str, str, str] | None:
    """Return the names of the three inputs that a sparse tensor at input `first` fills, or None if it fills none."""
    names = op.input_names
    if not first.endswith("indices") or op.name == "SparseTensor":
        return None
    three = names[names.index(first) : names.index(first) + 3]
    if len(three) == 3 and three[1].endswith("values") and three[2].endswith("shape"):
        return three[0], three[1], three[2]
    return None


def is_sparse(value: Any) -> bool:
    """Return whether a value is a sparse tensor in one piece."""
    return isinstance(value, Sparse | SparseTensor) or (isinstance(value, Placed) and value.op.name == "SparseTensor")


def as_sparse(value: Any) -> Sparse:
    """Return the parts of a sparse tensor."""
    if isinstance(value, Placed):
        sparse: Sparse = value.pins["tensor"]
        return sparse
    return value if isinstance(value, Sparse) else Sparse(value.indices, value.values, value.dense_shape)


def spread_sparse(op: Op, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each sparse tensor by its three parts if the op takes them as separate inputs."""
    found = dict(inputs)
    for name, value in inputs.items():
        three = sparse_triple(op, name)
        if three is not None and is_sparse(value):
            parts = as_sparse(value)
            for pin, part in zip(three, (parts.indices, parts.values, parts.dense_shape), strict=True):
                if pin != name and pin in inputs:
                    raise make_error(
                        "pin_kind", argument=pin, bound=f"nothing, because {name} is a sparse tensor", value="a value"
                    )
                found[pin] = part
    return found


def one_value(value: Any, argument: str) -> Any:
    """Return the one value of an argument: that of the output, if it is a block with one output."""
    if isinstance(value, Placed):
        value = value.only
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Output):
        return value[0]  # a list of one wire
    if isinstance(value, Operation | Sparse | Feed) or is_list(value):
        raise make_error("pin_kind", argument=argument, bound="one value", value=kind_of(value))
    return list(value) if isinstance(value, tuple) else value  # nodes store lists of inputs as tuples


def many_values(value: Any, argument: str) -> list[Any]:
    """Flatten a list argument: wires, lists of wires, and blocks with one output that is either, in order."""
    items: list[Any] = []
    for item in value if isinstance(value, list | tuple) else [value]:
        found = item.only if isinstance(item, Placed) and len(item.pins) == 1 else item
        items += found if is_list(found) else [list(found) if isinstance(found, tuple) else found]
    for k, item in enumerate(items):
        if isinstance(item, Placed):
            item.only  # noqa: B018  raises an error that names the block's outputs
        if isinstance(item, Sparse):
            raise make_error("pin_kind", argument=f"{argument}[{k}]", bound="one value", value=kind_of(item))
    return items


def is_wire(value: Any) -> bool:
    """Return whether a value is an output of a block."""
    return isinstance(value, Output | Placed | Sparse | Operation | Feed)


def is_list(value: Any) -> bool:
    """Return whether a value is a list of wires."""
    return isinstance(value, list) and any(is_wire(v) for v in value)


def kind_of(value: Any) -> str:
    """Describe the kind of a value for an error message."""
    if isinstance(value, Output):
        return f"{value.name} ({describe(value.dtype, value.shape)})"
    if is_list(value):
        return "a list of wires"
    names = {Operation: "an operation", Feed: "a feed", Sparse: "a sparse tensor"}
    return names.get(type(value)) or describe_value(value)


def describe_inputs(inputs: Mapping[str, Any]) -> str:
    """Describe all arguments of a call for an error message."""
    return ", ".join(f"{k}={_brief(v)}" for k, v in inputs.items()) or "nothing"


def _brief(value: Any) -> str:
    if isinstance(value, Placed) and len(value.pins) == 1:
        value = value.only
    if isinstance(value, list | tuple) and any(is_wire(v) for v in value):
        return f"[{', '.join(map(_brief, value))}]"
    return f"{describe(value.dtype, value.shape)} from {value.name}" if isinstance(value, Output) else kind_of(value)


_LARGEST = int(np.finfo(np.float64).max)  # larger integers have no float; converting them raises the op's own error

# -- validation by the op's record -------------------------------------------------------------------------------------


_SOURCES = {"operation": "an operation", "feed": "a feed", "sparse": "a sparse tensor"}


def missing_input(arg: Arg) -> OpError:
    """Return the error of an input without wires and values. It suggests a value only if Studio can enter one."""
    source = "a Variable" if arg.ref else "an output" if arg.many and arg.type == "any" else _SOURCES.get(arg.type)
    if source is None:
        return make_error("pin_missing", argument=arg.name)
    return make_error("pin_unwired", argument=arg.name, bound=source)


class Admitted:
    """Validated inputs of a node, their dtypes and shapes, and the known values of host inputs."""

    __slots__ = ("avals", "host", "inputs")

    def __init__(self, inputs: dict[str, Any], avals: dict[str, Any], host: dict[str, Any]) -> None:
        self.inputs = inputs
        self.avals = avals
        self.host = host


def admit_inputs(op: Op, arguments: Mapping[str, Any]) -> Admitted:
    """Validate inputs. Wires stay wires; other values become arrays in the dtype of the inputs beside them."""
    inputs: dict[str, Any] = {}
    typed: set[str] = set()
    for arg in op.inputs:
        if arg.name not in arguments:
            raise missing_input(arg)
        value = arguments[arg.name]
        if arg.many:
            inputs[arg.name] = tuple(many_values(value, arg.name))
            loose = any(not isinstance(v, Output) for v in inputs[arg.name])
        else:
            inputs[arg.name] = value if isinstance(value, Output) else one_value(value, arg.name)
            loose = not isinstance(inputs[arg.name], Output)
        if loose:
            typed.add(arg.name)
            inputs[arg.name] = each(inputs[arg.name], lambda v, arg=arg: typed_value(op, arg, v))  # type: ignore[misc]
    if typed:
        typed_arrays = {n: each(v, _empty_like) for n, v in inputs.items()}
        arrays = admit(op, typed_arrays)
        for name in typed:
            inputs[name] = _freeze_values(inputs[name], arrays[name], name)
    avals = {arg.name: each(inputs[arg.name], lambda v, arg=arg: _aval(arg, op, v)) for arg in op.inputs}  # type: ignore[misc]
    host = {arg.name: host_value(inputs[arg.name]) for arg in op.inputs if arg.host}
    return Admitted(inputs, avals, host)


@cache
def _are_floats(dtypes: tuple[str, ...]) -> bool:
    """Return whether the dtypes of a pin are floating point, so that it takes no integers."""
    return bool(dtypes) and all(dtype in NUMPY_DTYPE and is_inexact(NUMPY_DTYPE[dtype]) for dtype in dtypes)


def typed_value(op: Op, arg: Arg, value: Any) -> Any:
    """Return a typed value as its pin takes it: on a pin for floats only, `[[1, 2]]` is `[[1.0, 2.0]]`."""
    if not _are_floats(op.dtypes_of(arg.type)):
        return value
    try:
        return _integers_as_floats(value)
    except RecursionError:  # a list that contains itself, which `admit` rejects
        return value


def _integers_as_floats(value: Any) -> Any:
    if isinstance(value, list | tuple) and not any(is_wire(v) for v in value):
        return [_integers_as_floats(v) for v in value]
    if type(value) is int and abs(value) <= _LARGEST:
        return float(value)
    return value


def each(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to an input, or to each entry of a list input."""
    return tuple(map(function, value)) if isinstance(value, tuple) else function(value)


@cache
def _empty(dtype: str, rank: int) -> Array:
    return np.zeros((0,) * rank, NUMPY_DTYPE[dtype])


def _empty_like(value: Any) -> Any:
    """Return an empty array of a wire's dtype: Python numbers beside it take their dtype from it."""
    if isinstance(value, Output):
        return _empty(value.dtype, 1 if value.shape is None else len(value.shape))
    return value


def _freeze_values(value: Any, array: Any, argument: str) -> Any:
    """Return wires unchanged, and other values as read-only arrays."""
    if isinstance(value, tuple):
        return tuple(
            _freeze_values(v, a, f"{argument}[{k}]") for k, (v, a) in enumerate(zip(value, array, strict=True))
        )
    if isinstance(value, Output):
        return value
    check_overflow(value, array, argument)
    return frozen(array, value)


def frozen(array: Array, original: Any = None) -> Array:
    """Return a read-only array; the caller's own array is copied."""
    array = np.array(array) if array is original or array.base is not None else array
    array.flags.writeable = False
    return array


def _aval(arg: Arg, op: Op, value: Any) -> Aval:
    if not isinstance(value, Output):
        return aval_of(value)
    dtype = value.dtype
    if arg.type not in op.types and dtype != arg.type and is_integer(dtype) and is_integer(arg.type):
        dtype = arg.type  # an input of one integer dtype takes any integers that fit; the run checks them
    return Aval(dtype, value.shape)  # type: ignore[arg-type]


def admitted_aval(arg: Arg, op: Op, value: Any, shape: tuple[int, ...]) -> Aval:
    """Return dtype and shape of an input in a run: the dtype is known before, the shape is that of the array."""
    return Aval(_aval(arg, op, value).dtype, shape)


def is_integer(dtype: str) -> bool:
    """Return whether a dtype is an integer dtype."""
    return dtype.startswith(("int", "uint"))


def known_value(value: Any) -> Array | None:
    """Return the array of an input that never changes, or None if it may change."""
    return value.value if isinstance(value, Output) else value


def host_value(value: Any) -> Any:
    """Return the integer or tuple of integers of a host input, or None if only a run knows it."""
    array = known_value(value)
    if array is None or array.dtype.kind not in "iu":
        return None
    return array.item() if array.ndim == 0 else tuple(array.ravel().tolist())


def infer_outputs(op: Op, known: Admitted, attrs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return dtype and shape of every output. If the rank of an input is unknown, so are all output shapes."""
    flat = [a for v in known.avals.values() for a in (v if isinstance(v, tuple) else (v,))]
    if any(a.shape is None for a in flat):
        return [(dtype, None) for dtype in output_dtypes(op, known.avals, attrs)]
    return [(a.dtype, a.shape) for a in infer(op, known.avals, known.host, attrs)]


def full_attrs(op: Op, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all attributes, defaults included, each converted to the type of its default."""
    for name in attrs:
        if name not in op.attrs:
            raise make_error("attr_unknown", argument=name, bound=", ".join(op.attrs) or "none")
    return validate_attrs(op, {**op.attrs, **attrs})


# -- values in a dtype, without loss -----------------------------------------------------------------------------------


def in_dtype(value: Any, argument: str, dtype: str | None) -> Array:
    """Convert a value to an array of `dtype`, or of its own dtype if that is None.

    Only floats may be rounded; any other loss raises an error that names the element.
    """
    array = as_array(value, argument, dtype)
    check_overflow(value, array, argument)
    if array.dtype == object:
        _check_text(array, argument)
    if dtype is None or aval_of(array).dtype == dtype:
        return array
    target, kind = NUMPY_DTYPE[dtype], array.dtype.kind
    if dtype in QUANTIZED and kind in "iu":
        return fit(array, argument, target[0]).view(target)
    if is_inexact(target) and (kind in "iub" or (is_inexact(array.dtype) and (kind != "c" or target.kind == "c"))):
        with np.errstate(over="ignore"):
            found = array.astype(target)
        _check_finite(array, found, argument)
        return found
    if target.kind in "iub" and kind in "iubf" and array.dtype.names is None:
        whole = _as_integers(array, argument, dtype)
        return _as_bool(whole, argument) if dtype == "bool" else fit(whole, argument, target)
    raise make_error("dtype_expected", argument=argument, value=aval_of(array).dtype, bound=dtype, why="")


def _check_text(array: Array, argument: str) -> None:
    """Raise if a string contains a lone surrogate, which no file could hold."""
    for position, item in enumerate(array.reshape(-1)):
        if isinstance(item, str) and not item.isascii():
            try:
                item.encode()
            except UnicodeEncodeError:
                bound = "text without lone surrogates"
                raise make_error(
                    "value_unfit", argument=argument, position=position, bound=bound, value=ascii(item)
                ) from None


def check_overflow(value: Any, array: Array, argument: str) -> None:
    """Raise if a finite Python number became infinite in the dtype of the array made of it."""
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    if isinstance(value, float | complex | list | tuple) and is_inexact(array.dtype) and array.dtype != wide:
        _check_finite(np.asarray(value, wide), array, argument)


def _check_finite(before: Array, after: Array, argument: str) -> None:
    """Raise if a finite number became infinite."""
    lost = np.flatnonzero(np.isfinite(before).reshape(-1) & ~np.isfinite(after).reshape(-1))
    if len(lost):
        at, dtype = int(lost[0]), aval_of(after).dtype
        value = before.reshape(-1)[at].item()
        raise make_error("number_does_not_fit", argument=argument, position=at, value=value, bound=dtype)


def _as_integers(array: Array, argument: str, dtype: str) -> Array:
    """Return integers; floats must have integer values."""
    if array.dtype.kind != "f":
        return array.astype(np.int64) if array.dtype.kind == "b" else array
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int64)
    uneven = np.flatnonzero(whole.reshape(-1) != array.reshape(-1))
    if len(uneven):
        at = int(uneven[0])
        value = array.reshape(-1)[at].item()
        raise make_error("integer_does_not_fit", argument=argument, position=at, value=value, bound=dtype)
    return whole


def _as_bool(whole: Array, argument: str) -> Array:
    strange = np.flatnonzero((whole != 0).reshape(-1) & (whole != 1).reshape(-1))
    if len(strange):
        at = int(strange[0])
        raise make_error(
            "integer_does_not_fit", argument=argument, position=at, value=whole.reshape(-1)[at].item(), bound="bool"
        )
    return whole.astype(bool)
