"""Summary of a validated page as plain data for JSON: dtype and shape of every pin, errors, and digests of blocks.

An editor shows it; docs/reference/pages.md describes the page itself.
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
from .fixes import fixes_of
from .inputs import typed_value
from .nodes import Feed, Graph, Operation, Output, Sparse, describe
from .page import Block, Page
from .page_builder import Checked, check, is_foreign, pin_of, value_at
from .page_order import ordered
from .variables import variable_of

_LARGE = 1 << 16  # bytes; digests of arrays from this size on are cached between calls


def summary(page: Page) -> dict[str, Any]:
    """Validate a page and summarize it."""
    return summarize(check(page))


def summarize(checked: Checked) -> dict[str, Any]:
    """Summarize a validated page.

    `blocks` has the values at the output and input pins of each block; `errors` the error of each faulty block, with
    its pin and its known fixes; `ghosts` those of them whose op the catalogue does not have; `waiting` the blocks that
    depend on a faulty one; `partial` the fetches that each session runs without, because they need a ghost; `sessions`
    the blocks that can be run; `recipes` a digest of what each block computes, which changes if the block or anything
    upstream computes something else.
    """
    graph = checked.scope.graph
    return {
        "blocks": {b.id: {"outputs": _outputs(b, graph), "inputs": _inputs(b, graph)} for b in checked.page.blocks},
        "errors": {b.id: _error(b, checked) for b in checked.page.blocks if b.id in checked.errors},
        "waiting": list(checked.waiting),
        "ghosts": [b.id for b in checked.page.blocks if is_foreign(b.op)],
        "partial": {block: list(map(str, ends)) for block, ends in checked.partial.items()},
        "sessions": [b.id for b in checked.page.blocks if b.id in graph.sessions],
        "recipes": recipes(checked.page),
    }


# -- values at pins ----------------------------------------------------------------------------------------------------


def value_json(value: Any) -> dict[str, Any]:
    """Describe a value on a wire, or an array, for an editor."""
    if isinstance(value, Output):
        return _description("tensor", value.dtype, value.shape, ref=variable_of(value) is not None)
    if isinstance(value, Sparse):
        return _description("sparse", value.values.dtype, _dense_shape(value.dense_shape), "sparse ")
    if isinstance(value, Feed):
        return _description("feed", aval_of(value.value).dtype, value.value.shape, "feed of ")
    if isinstance(value, Operation):
        return {"text": "operation", "kind": "operation", "dtype": None, "shape": None, "ref": False}
    aval = aval_of(value)
    return _description("tensor", aval.dtype, aval.shape)


def _description(kind: str, dtype: str, shape: Any, before: str = "", ref: bool = False) -> dict[str, Any]:
    sizes = None if shape is None else list(shape)
    return {"text": before + describe(dtype, shape), "kind": kind, "dtype": dtype, "shape": sizes, "ref": ref}


def _dense_shape(wire: Output) -> tuple[int | None, ...] | None:
    """Return the shape of a sparse tensor, as far as it is known before a run."""
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
    """Describe the values at input pins; pins whose value is unknown are omitted."""
    op = find_op(block.op)
    many = {a.name for a in op.inputs if a.many} if op else set()
    found: dict[str, Any] = {}
    for pin, ends in block.wires.items():
        values = [value_at(graph, end) for end in ends]
        if all(v is not None for v in values):
            flat = [v for item in values for v in (item if isinstance(item, list) else (item,))]
            described = list(map(value_json, flat))
            found[pin] = described[0] if len(described) == 1 and pin not in many else described
    for pin, value in block.values.items():
        listed = pin in many and isinstance(value, list | tuple)
        converted = _converted(block, op, pin, graph) if op else None
        typed = [_described_alone(v) for v in value] if converted is None and listed else converted
        typed = [_described_alone(value if op is None else _as_typed(op, pin, value))] if typed is None else typed
        if all(t is not None for t in typed):
            found[pin] = typed if pin in many else typed[0]
    return found


def _converted(block: Block, op: Op, pin: str, graph: Graph) -> list[Any] | None:
    """Describe the array that a node converted a typed value to, in the dtype of the inputs beside it."""
    placed = graph.blocks.get(block.id)
    if placed is None or op.layer == "graph" or not placed.pins or pin not in op.input_names:
        return None
    node = next(iter(placed.pins.values())).node
    value = node.inputs[op.input_names.index(pin)]
    return [value_json(v) for v in (value if isinstance(value, tuple) else (value,))]


def _as_typed(op: Op, pin: str, value: Any) -> Any:
    return next((typed_value(op, arg, value) for arg in op.inputs if arg.name == pin), value)


def _described_alone(value: Any) -> Any:
    """Describe a typed value by itself, or return None if no array can hold it."""
    try:
        return value_json(as_array(value, "value"))
    except (OpError, TypeError, ValueError, OverflowError):
        return None


# -- errors ------------------------------------------------------------------------------------------------------------


def _error(block: Block, checked: Checked) -> dict[str, Any]:
    error = checked.errors[block.id]
    return {
        "kind": type(error).__name__, "message": error.explanation, "text": with_notes(error),
        "pin": pin_of(block, error), "fixes": [fix.json() for fix in fixes_of(checked, block.id, error)],
    }  # fmt: skip


# -- recipes -----------------------------------------------------------------------------------------------------------


# Two blocks of these ops have different values even if they are configured alike.
_OWN_STATE = ("Variable", "Placeholder", "RandomUniform", "RandomNormal")


def recipes(page: Page) -> dict[str, str]:
    """Return a digest per block of what it computes: op, attributes, values, and the same for all blocks upstream."""
    found: dict[str, str] = {}
    digests: dict[int, bytes] = {}
    order = ordered(page).blocks
    done = {b.id for b in order}
    # Blocks in a circle, and those that depend on one, come in the page's order.
    for block in (*order, *(b for b in page.blocks if b.id not in done)):
        found[block.id] = _recipe(block, found, digests)
    return {b.id: found[b.id] for b in page.blocks}


def _recipe(block: Block, upstream: dict[str, str], digests: dict[int, bytes]) -> str:
    op = find_op(block.op)
    attrs = {**(op.attrs if op else {}), **block.attrs}
    hasher = hashlib.blake2b((op.name if op else block.op).encode(), digest_size=8)
    if block.op in _OWN_STATE:
        hasher.update(f"\0id {block.id}".encode(errors="replace"))
    for name in sorted(attrs):
        hasher.update(f"\0attr {name} ".encode() + _digest(attrs[name], digests))
    for pin in sorted(block.values):
        hasher.update(f"\0value {pin} ".encode() + _digest(block.values[pin], digests))
    for pin in sorted(block.wires):
        ends = block.wires[pin]
        hasher.update(
            f"\0wires {pin} {[(upstream.get(e.block, e.block), e.pin, e.index) for e in ends]}".encode(errors="replace")
        )
    return hasher.hexdigest()


def _digest(value: Any, digests: dict[int, bytes]) -> bytes:
    if isinstance(value, np.ndarray):
        known = digests.get(id(value))
        if known is None:
            known = digests[id(value)] = _array_digest(value)
        return known
    if isinstance(value, list | tuple):
        return b"[" + b",".join(_digest(v, digests) for v in value) + b"]"
    return f"{type(value).__name__} {value!r}".encode(errors="replace")


# Digests of large read-only arrays, as long as these live: an editor requests them after every keystroke.
_cached_digests: dict[int, tuple[weakref.ref[Array], bytes]] = {}


def _array_digest(array: Array) -> bytes:
    key = id(array)
    cached = _cached_digests.get(key)
    if cached is not None and cached[0]() is array and not array.flags.writeable:
        return cached[1]
    hasher = hashlib.blake2b(f"{array.dtype} {array.shape} ".encode(), digest_size=16)
    for part in _parts(array):
        hasher.update(part)
    digest = hasher.digest()
    if array.nbytes >= _LARGE and not array.flags.writeable:
        _cached_digests[key] = (weakref.ref(array, lambda _: _cached_digests.pop(key, None)), digest)
    return digest


def _parts(array: Array) -> Iterable[Any]:
    if array.dtype.kind in "OTSU":
        return (f"{item!r}\0".encode(errors="replace") for item in array.reshape(-1).tolist())
    return (np.ascontiguousarray(array).reshape(-1).view(np.uint8).data,)
