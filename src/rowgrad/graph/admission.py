"""What a block is given, judged by its record: wires as they are, typed values as arrays of a dtype that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from ..arrays import NUMPY_DTYPE, Array, admit, aval_of
from ..check import infer, output_dtypes, settle_attrs
from ..errors import refuse
from ..spec import Arg, Aval, Op
from .given import many_values, one_value
from .nodes import Output
from .values import check_reach


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
            raise refuse("pin_missing", argument=arg.name)
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
            raise refuse("attr_unknown", argument=name, bound=", ".join(op.attrs) or "none")
    return settle_attrs(op, {**op.attrs, **attrs})
