"""A judged page as plain data, ready for JSON: what every pin carries, what is wrong, what each block computes.

An editor shows this; docs/pages.md has the page itself.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from .._catalog.spec import Op, find_op
from .._runtime.arrays import Array, as_array, aval_of
from ..errors import OpError, with_notes
from .nodes import Feed, Graph, Operation, Output, Sparse, describe
from .ordering import ordered
from .page import Block, Page, PageError
from .page_builder import Checked, arriving, check
from .variables import variable_of

_LARGE = 1 << 16  # bytes of an array from which on its digest is remembered between calls


def summary(page: Page) -> dict[str, Any]:
    """Judge a page and say all there is to say of it."""
    return summarize(check(page))


def summarize(checked: Checked) -> dict[str, Any]:
    """What was found of a page.

    `blocks` has what leaves and what arrives at the pins of each block; `errors` what is wrong, and with which pin;
    `waiting` are blocks that cannot be judged; `sessions` those a run can be asked for; `recipes` digests of what each
    block computes, which change when it, or anything upstream, computes something else.
    """
    graph = checked.scope.graph
    return {
        "blocks": {b.id: {"outputs": _outputs(b, graph), "inputs": _inputs(b, graph)} for b in checked.page.blocks},
        "errors": {b.id: _error(b, checked.errors[b.id]) for b in checked.page.blocks if b.id in checked.errors},
        "waiting": list(checked.waiting),
        "sessions": [b.id for b in checked.page.blocks if b.id in graph.sessions],
        "recipes": recipes(checked.page),
    }


# -- what pins carry ---------------------------------------------------------------------------------------------------


def value_json(value: Any) -> dict[str, Any]:
    """One value on a wire, or an array, as an editor shows it."""
    if isinstance(value, Output):
        return _told("tensor", value.dtype, value.shape, ref=variable_of(value) is not None)
    if isinstance(value, Sparse):
        return _told("sparse", value.values.dtype, _dense_shape(value.dense_shape), "sparse ")
    if isinstance(value, Feed):
        return _told("feed", aval_of(value.value).dtype, value.value.shape, "feed of ")
    if isinstance(value, Operation):
        return {"text": "operation", "kind": "operation", "dtype": None, "shape": None, "ref": False}
    aval = aval_of(value)
    return _told("tensor", aval.dtype, aval.shape)


def _told(kind: str, dtype: str, shape: Any, before: str = "", ref: bool = False) -> dict[str, Any]:
    sizes = None if shape is None else list(shape)
    return {"text": before + describe(dtype, shape), "kind": kind, "dtype": dtype, "shape": sizes, "ref": ref}


def _dense_shape(wire: Output) -> tuple[int | None, ...] | None:
    """The shape of a sparse tensor, as far as it is known before a run."""
    if wire.value is not None:
        return tuple(wire.value.reshape(-1).tolist())
    rank = wire.shape[0] if wire.shape else None
    return None if rank is None else (None,) * rank


def _outputs(block: Block, graph: Graph) -> dict[str, Any]:
    placed = graph.blocks.get(block.id)
    if placed is None:
        return {}
    return {pin: list(map(value_json, v)) if isinstance(v, list) else value_json(v) for pin, v in placed.pins.items()}


def _inputs(block: Block, graph: Graph) -> dict[str, Any]:
    """What arrives at wired and typed pins; pins where that is not known are left out."""
    op = find_op(block.op)
    many = {a.name for a in op.inputs if a.many} if op else set()
    found: dict[str, Any] = {}
    for pin, ends in block.wires.items():
        values = [arriving(graph, end) for end in ends]
        if all(v is not None for v in values):
            flat = [v for item in values for v in (item if isinstance(item, list) else (item,))]
            told = list(map(value_json, flat))
            found[pin] = told[0] if len(told) == 1 and pin not in many else told
    for pin, value in block.values.items():
        listed = pin in many and isinstance(value, list | tuple)
        taken = _taken(block, op, pin, graph) if op else None
        typed = [_typed(v) for v in value] if taken is None and listed else taken
        typed = [_typed(value)] if typed is None else typed
        if all(t is not None for t in typed):
            found[pin] = typed if pin in many else typed[0]
    return found


def _taken(block: Block, op: Op, pin: str, graph: Graph) -> list[Any] | None:
    """What a typed value became at its operator, which gives a number without a dtype its neighbours'."""
    placed = graph.blocks.get(block.id)
    if placed is None or op.layer == "graph" or not placed.pins or pin not in op.input_names:
        return None
    node = next(iter(placed.pins.values())).node
    value = node.inputs[op.input_names.index(pin)]
    return [value_json(v) for v in (value if isinstance(value, tuple) else (value,))]


def _typed(value: Any) -> Any:
    """A typed value by itself; None where it is no array at all."""
    try:
        return value_json(as_array(value, "value"))
    except (OpError, TypeError, ValueError, OverflowError):
        return None


# -- errors ------------------------------------------------------------------------------------------------------------


def _error(block: Block, error: OpError) -> dict[str, Any]:
    return {
        "kind": type(error).__name__, "message": error.message, "text": with_notes(error), "pin": pin_of(block, error),
    }  # fmt: skip


def pin_of(block: Block, error: OpError) -> str | None:
    """The input pin, or the attribute, that an error of a block belongs to."""
    if isinstance(error, PageError):
        pin = error.place.removeprefix(f"{block.id}.")
        return pin if pin != error.place else None
    op = find_op(block.op)
    # What an operator inside the block calls its arguments are not the block's pins.
    if op is None or error.argument is None or error.op not in (None, op.name):
        return None
    pin = error.argument.partition("[")[0]
    return pin if pin in op.input_names or pin in op.attrs else None


# -- recipes -----------------------------------------------------------------------------------------------------------


# Two blocks of these that are made alike are still not the same value.
_OWN_STATE = ("Variable", "Placeholder", "RandomUniform", "RandomNormal")


def recipes(page: Page) -> dict[str, str]:
    """A digest for each block of what it computes: op, attributes, values, and all of that upstream."""
    found: dict[str, str] = {}
    digests: dict[int, bytes] = {}
    order = ordered(page).blocks
    done = {b.id for b in order}
    # Blocks in a circle, and those that need one, have no order: theirs is the page's.
    for block in (*order, *(b for b in page.blocks if b.id not in done)):
        found[block.id] = _recipe(block, found, digests)
    return {b.id: found[b.id] for b in page.blocks}


def _recipe(block: Block, upstream: dict[str, str], digests: dict[int, bytes]) -> str:
    op = find_op(block.op)
    attrs = {**(op.attrs if op else {}), **block.attrs}
    made = hashlib.blake2b((op.name if op else block.op).encode(), digest_size=8)
    if block.op in _OWN_STATE:
        made.update(f"\0id {block.id}".encode(errors="replace"))
    for name in sorted(attrs):
        made.update(f"\0attr {name} ".encode() + _digest(attrs[name], digests))
    for pin in sorted(block.values):
        made.update(f"\0value {pin} ".encode() + _digest(block.values[pin], digests))
    for pin in sorted(block.wires):
        ends = block.wires[pin]
        made.update(
            f"\0wires {pin} {[(upstream.get(e.block, e.block), e.pin, e.index) for e in ends]}".encode(errors="replace")
        )
    return made.hexdigest()


def _digest(value: Any, digests: dict[int, bytes]) -> bytes:
    if isinstance(value, np.ndarray):
        known = digests.get(id(value))
        if known is None:
            known = digests[id(value)] = _array_digest(value)
        return known
    if isinstance(value, list | tuple):
        return b"[" + b",".join(_digest(v, digests) for v in value) + b"]"
    return f"{type(value).__name__} {value!r}".encode(errors="replace")


# Digests of large arrays that nobody may change, as long as these live: an editor asks after every keystroke.
_kept: dict[int, tuple[weakref.ref[Array], bytes]] = {}


def _array_digest(array: Array) -> bytes:
    key = id(array)
    kept = _kept.get(key)
    if kept is not None and kept[0]() is array and not array.flags.writeable:
        return kept[1]
    made = hashlib.blake2b(f"{array.dtype} {array.shape} ".encode(), digest_size=16)
    for part in _parts(array):
        made.update(part)
    digest = made.digest()
    if array.nbytes >= _LARGE and not array.flags.writeable:
        _kept[key] = (weakref.ref(array, lambda _: _kept.pop(key, None)), digest)
    return digest


def _parts(array: Array) -> Iterable[Any]:
    if array.dtype.kind in "OTSU":
        return (f"{item!r}\0".encode(errors="replace") for item in array.reshape(-1).tolist())
    return (np.ascontiguousarray(array).reshape(-1).view(np.uint8).data,)
