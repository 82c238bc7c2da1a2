"""What a block is given: wires, lists of wires, sparse tensors in one piece, and values that were typed in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..dispatch import describe_value
from ..errors import refuse
from ..sparse_tensor import SparseTensor
from ..spec import Op
from .nodes import Feed, Operation, Output, Placed, Sparse, describe


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
                    raise refuse("pin_kind", argument=pin, bound=f"nothing, as {name} is a sparse tensor", value="more")
                spread[pin] = part
    return spread


def one_value(value: Any, argument: str) -> Any:
    """A block with one output stands for it."""
    if isinstance(value, Placed):
        value = value.only
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Output):
        return value[0]  # a list of one wire
    if isinstance(value, Operation | Sparse | Feed) or is_list(value):
        raise refuse("pin_kind", argument=argument, bound="one value", value=kind_of(value))
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
            raise refuse("pin_kind", argument=f"{argument}[{k}]", bound="one value", value=kind_of(item))
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
