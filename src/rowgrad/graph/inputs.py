"""Inputs of nodes: constants and outputs, validated when they arrive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from .._catalog.spec import Arg, Aval, Op
from .._runtime.arrays import NUMPY_DTYPE, Array, admit, aval_of
from .._runtime.dispatch import describe_value
from .._runtime.validation import infer, output_dtypes, settle_attrs
from ..errors import make_error
from ..sparse import SparseTensor
from .nodes import Feed, Operation, Output, Placed, Sparse, describe
from .values import check_reach

# -- What a block is given --------------------------------------------------------------------------------------------

# What a block is given: wires, lists of wires, sparse tensors in one piece, and values that were typed in.


def bind_call(op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and attributes of a call by name; a sparse tensor fills its indices, values and shape."""
    names = list(op.input_names)
    values: list[Any] = []
    for value in args:
        at = len(values)
        values.append(value)
        if is_sparse(value) and at < len(names) and sparse_triple(op, names[at]):
            values += [None, None]  # it stands for three inputs
    order = (*names, *op.attrs)
    if len(values) > len(order):
        raise TypeError(f"{op.name} takes {len(order)} arguments, got {len(values)}")
    given = {k: v for k, v in zip(order, values, strict=False) if v is not None}
    for key, value in kwargs.items():
        if key in given:
            raise TypeError(f"{op.name} got argument {key!r} twice")
        if key not in order:
            raise TypeError(f"{op.name} has no argument {key!r}; it takes {', '.join(order)}")
        if value is not None:
            given[key] = value
    return {k: v for k, v in given.items() if k in names}, {k: v for k, v in given.items() if k in op.attrs}


def sparse_triple(op: Op, first: str) -> tuple[str, str, str] | None:
    """The inputs a sparse tensor on input `first` fills: indices, values and shape."""
    names = op.input_names
    if not first.endswith("indices") or op.name == "SparseTensor":
        return None
    three = names[names.index(first) : names.index(first) + 3]
    if len(three) == 3 and three[1].endswith("values") and three[2].endswith("shape"):
        return three[0], three[1], three[2]
    return None


def is_sparse(value: Any) -> bool:
    """Whether a value is a sparse tensor in one piece."""
    return isinstance(value, Sparse | SparseTensor) or (isinstance(value, Placed) and value.op.name == "SparseTensor")


def as_sparse(value: Any) -> Sparse:
    """The parts of a sparse tensor."""
    if isinstance(value, Placed):
        sparse: Sparse = value.pins["tensor"]
        return sparse
    return value if isinstance(value, Sparse) else Sparse(value.indices, value.values, value.dense_shape)


def spread_sparse(op: Op, given: Mapping[str, Any]) -> dict[str, Any]:
    """Sparse tensors taken apart, where an op wants them in three."""
    spread = dict(given)
    for name, value in given.items():
        three = sparse_triple(op, name)
        if three is not None and is_sparse(value):
            parts = as_sparse(value)
            for pin, part in zip(three, (parts.indices, parts.values, parts.dense_shape), strict=True):
                if pin != name and pin in given:
                    raise make_error(
                        "pin_kind", argument=pin, bound=f"nothing, because {name} is a sparse tensor", value="a value"
                    )
                spread[pin] = part
    return spread


def one_value(value: Any, argument: str) -> Any:
    """A block with one output stands for it."""
    if isinstance(value, Placed):
        value = value.only
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Output):
        return value[0]  # a list of one wire
    if isinstance(value, Operation | Sparse | Feed) or is_list(value):
        raise make_error("pin_kind", argument=argument, bound="one value", value=kind_of(value))
    return list(value) if isinstance(value, tuple) else value  # inside, tuples are lists of inputs


def many_values(value: Any, argument: str) -> list[Any]:
    """A list pin takes wires, lists of wires, and blocks that stand for either, in order."""
    items: list[Any] = []
    for item in value if isinstance(value, list | tuple) else [value]:
        found = item.only if isinstance(item, Placed) and len(item.pins) == 1 else item
        items += found if is_list(found) else [list(found) if isinstance(found, tuple) else found]
    for k, item in enumerate(items):
        if isinstance(item, Placed):
            item.only  # noqa: B018  refuses, naming its outputs
        if isinstance(item, Sparse):
            raise make_error("pin_kind", argument=f"{argument}[{k}]", bound="one value", value=kind_of(item))
    return items


def is_wire(value: Any) -> bool:
    """Whether a value comes out of a block."""
    return isinstance(value, Output | Placed | Sparse | Operation | Feed)


def is_list(value: Any) -> bool:
    """Whether a value is a list of wires."""
    return isinstance(value, list) and any(is_wire(v) for v in value)


def kind_of(value: Any) -> str:
    """What a value is, in words."""
    if isinstance(value, Output):
        return f"{value.name} ({describe(value.dtype, value.shape)})"
    if is_list(value):
        return "a list of wires"
    words = {Operation: "an operation", Feed: "a feed", Sparse: "a sparse tensor"}
    return words.get(type(value)) or describe_value(value)


def describe_given(given: Mapping[str, Any]) -> str:
    """Every input that was given, as errors show it."""
    return ", ".join(f"{k}={_brief(v)}" for k, v in given.items()) or "nothing"


def _brief(value: Any) -> str:
    if isinstance(value, Placed) and len(value.pins) == 1:
        value = value.only
    if isinstance(value, list | tuple) and any(is_wire(v) for v in value):
        return f"[{', '.join(map(_brief, value))}]"
    return f"{describe(value.dtype, value.shape)} from {value.name}" if isinstance(value, Output) else kind_of(value)


# -- What a block is given, judged by its record ----------------------------------------------------------------------

# What a block is given, judged by its record: wires as they are, typed values as arrays of a dtype that fits.


class Admitted:
    """Inputs as a node keeps them, and what is known of them."""

    __slots__ = ("avals", "host", "inputs")

    def __init__(self, inputs: dict[str, Any], avals: dict[str, Any], host: dict[str, Any]) -> None:
        self.inputs = inputs
        self.avals = avals
        self.host = host


def admit_inputs(op: Op, given: Mapping[str, Any]) -> Admitted:
    """Wires as they are; what is typed in, in the dtype its neighbours give it."""
    inputs: dict[str, Any] = {}
    typed: set[str] = set()
    for arg in op.inputs:
        if arg.name not in given:
            raise make_error("pin_missing", argument=arg.name)
        value = given[arg.name]
        if arg.many:
            inputs[arg.name] = tuple(many_values(value, arg.name))
            loose = any(not isinstance(v, Output) for v in inputs[arg.name])
        else:
            inputs[arg.name] = value if isinstance(value, Output) else one_value(value, arg.name)
            loose = not isinstance(inputs[arg.name], Output)
        if loose:
            typed.add(arg.name)
    if typed:
        stand_ins = {n: each(v, _stand_in) for n, v in inputs.items()}
        arrays = admit(op, stand_ins)
        for name in typed:
            inputs[name] = _pick(inputs[name], arrays[name], name)
    avals = {arg.name: each(inputs[arg.name], lambda v, arg=arg: _aval(arg, op, v)) for arg in op.inputs}  # type: ignore[misc]
    host = {arg.name: host_value(inputs[arg.name]) for arg in op.inputs if arg.host}
    return Admitted(inputs, avals, host)


def each(value: Any, function: Callable[[Any], Any]) -> Any:
    """The function of an input, or of each entry where the input is a list."""
    return tuple(map(function, value)) if isinstance(value, tuple) else function(value)


@cache
def _empty(dtype: str, rank: int) -> Array:
    return np.zeros((0,) * rank, NUMPY_DTYPE[dtype])


def _stand_in(value: Any) -> Any:
    """An empty array of the wire's dtype: what numbers beside it take theirs from."""
    if isinstance(value, Output):
        return _empty(value.dtype, 1 if value.shape is None else len(value.shape))
    return value


def _pick(value: Any, array: Any, argument: str) -> Any:
    """Wires stay wires; what was typed becomes an array nobody else can change."""
    if isinstance(value, tuple):
        return tuple(_pick(v, a, f"{argument}[{k}]") for k, (v, a) in enumerate(zip(value, array, strict=True)))
    if isinstance(value, Output):
        return value
    check_reach(value, array, argument)
    return frozen(array, value)


def frozen(array: Array, given: Any = None) -> Array:
    """A read-only array; the caller's own is copied."""
    array = np.array(array) if array is given or array.base is not None else array
    array.flags.writeable = False
    return array


def _aval(arg: Arg, op: Op, value: Any) -> Aval:
    if not isinstance(value, Output):
        return aval_of(value)
    dtype = value.dtype
    if arg.type not in op.types and dtype != arg.type and is_integer(dtype) and is_integer(arg.type):
        dtype = arg.type  # an input of one integer dtype takes any integers that fit it; the run looks at them
    return Aval(dtype, value.shape)  # type: ignore[arg-type]


def admitted_aval(arg: Arg, op: Op, value: Any, shape: tuple[int, ...]) -> Aval:
    """What an op is given in a run: the dtype is known before, the shape is that of the array."""
    return Aval(_aval(arg, op, value).dtype, shape)


def is_integer(dtype: str) -> bool:
    """Whether a dtype is of whole numbers."""
    return dtype.startswith(("int", "uint"))


def known_value(value: Any) -> Array | None:
    """The array behind an input, where it never changes."""
    return value.value if isinstance(value, Output) else value


def host_value(value: Any) -> Any:
    """The number or the tuple of numbers behind a host input, or None where only a run can tell."""
    array = known_value(value)
    if array is None or array.dtype.kind not in "iu":
        return None
    return array.item() if array.ndim == 0 else tuple(array.ravel().tolist())


def judge(op: Op, known: Admitted, attrs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Dtype and shape of every output. Where an input's rank is not known, nor are those of the outputs."""
    flat = [a for v in known.avals.values() for a in (v if isinstance(v, tuple) else (v,))]
    if any(a.shape is None for a in flat):
        return [(dtype, None) for dtype in output_dtypes(op, known.avals, attrs)]
    return [(a.dtype, a.shape) for a in infer(op, known.avals, known.host, attrs)]


def full_attrs(op: Op, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes with their defaults, each of the kind its default is of."""
    for name in attrs:
        if name not in op.attrs:
            raise make_error("attr_unknown", argument=name, bound=", ".join(op.attrs) or "none")
    return settle_attrs(op, {**op.attrs, **attrs})
