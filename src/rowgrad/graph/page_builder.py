"""A page's blocks and wires as a graph of nodes, and a graph of nodes as a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from .._catalog.spec import CATALOG, Op, find_op
from ..errors import InvalidArgumentError, OpError, ResourceExhaustedError
from ..sparse import SparseTensor
from . import ops as _ops  # noqa: F401  importing it says what blocks become
from .inputs import is_wire, many_values, sparse_triple
from .io.fields import nearest
from .node_builder import place
from .nodes import Graph, Node, Operation, Output, Placed, Scope, Sparse
from .ordering import circle_error, ends_of, ordered
from .page import Block, End, Page, PageError

# -- A page into a graph ----------------------------------------------------------------------------------------------

# A page into a graph: blocks are placed in the order their wires ask for, and each is judged on its own.

_MOST_NODES, _NODES_PER_BLOCK = 1 << 17, 4  # of a page's graph: some seconds to build, whatever the page asks for
_SUGGESTED = 20  # faulty blocks whose errors suggest the names of others


@dataclass(slots=True)
class Checked:
    """A page that was judged: the scope with all blocks that hold, and what is wrong with the others.

    `errors` has one entry per faulty block; `waiting` are blocks that cannot be judged because they need one of those.
    """

    page: Page
    scope: Scope
    errors: dict[str, OpError] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every block holds."""
        return not self.errors and not self.waiting


def build(page: Page) -> Scope:
    """The page as a scope, or the first error."""
    checked = check(page)
    for error in checked.errors.values():
        raise error
    return checked.scope


def check(page: Page) -> Checked:
    """Judge every block; one fault does not hide another."""
    found = Checked(page, Scope(Graph(page.name, _MOST_NODES + _NODES_PER_BLOCK * len(page.blocks))))
    blocks = {b.id: b for b in page.blocks}
    if len(blocks) < len(page.blocks):
        seen: set[str] = set()
        for block in page.blocks:
            if block.id in seen:
                raise PageError(block.id, "two blocks have this id")
            seen.add(block.id)
    order = ordered(page)
    found.errors = {circle[0]: circle_error(circle) for circle in order.circles}
    found.waiting = [*order.waiting, *(name for circle in order.circles for name in circle[1:])]
    failed: set[str] = set()
    for block in order.blocks:
        if any(e.block in failed for e in ends_of(block)):
            failed.add(block.id)
            found.waiting.append(block.id)
            continue
        try:
            _place(found.scope, block, len(found.errors) < _SUGGESTED)
        except OpError as error:
            failed.add(block.id)
            found.errors[block.id] = error
    found.errors = {b.id: found.errors[b.id] for b in page.blocks if b.id in found.errors}
    return found


@lru_cache(1000)
def _meant_op(name: str) -> str:
    return nearest(name, CATALOG)


def _place(scope: Scope, block: Block, suggests: bool) -> None:
    """Put a block into the scope; `suggests`: errors name blocks that may have been meant, which takes time."""
    op = find_op(block.op)
    if op is None:
        raise PageError(block.id, f"there is no block {block.op!r}{_meant_op(block.op)}")
    for pin in (*block.wires, *block.values):
        if pin not in op.input_names:
            raise PageError(
                f"{block.id}.{pin}", f"{op.name} has no input {pin!r}; it has {', '.join(op.input_names) or 'none'}"
            )
        if pin in block.wires and pin in block.values:
            raise PageError(f"{block.id}.{pin}", "it is both wired and typed in")
    given: dict[str, Any] = {}
    for arg in op.inputs:
        if arg.name in block.wires:
            found = [_value(scope, block, op, arg.name, end, suggests) for end in block.wires[arg.name]]
            if not arg.many and len(found) != 1:
                raise PageError(f"{block.id}.{arg.name}", f"it takes one wire, got {len(found)}")
            given[arg.name] = found if arg.many else found[0]
        elif arg.name in block.values:
            given[arg.name] = block.values[arg.name]
    try:
        placed = place(scope.with_op_name(block.id), op, given, block.attrs)
    except OpError:
        raise
    except (TypeError, ValueError, OverflowError, ArithmeticError) as error:
        raise InvalidArgumentError(f"{error}").in_call(op.name, block.id, "the entered value") from error
    except MemoryError as error:
        raise ResourceExhaustedError(f"{error}").in_call(op.name, block.id, "the entered value") from error
    placed.block.op, placed.block.at, placed.block.hidden = block.op, block.at, block.hidden
    if op.runs:
        scope.graph.sessions[block.id].names = _fetch_names(scope, block)


def _fetch_names(scope: Scope, block: Block) -> list[str]:
    """What the page calls each fetch: the pin its wire begins at, though another block's value may come along it."""
    names: list[str] = []
    for end in block.wires.get("fetch_outputs", ()):
        value = scope.graph.blocks[end.block].pins[end.pin]
        items = value if isinstance(value, list) and end.index is None else [value]
        if isinstance(value, Sparse):
            names += [f"{end.block}.{part}" for part in ("indices", "values", "dense_shape")]
        elif value is not items:
            names += [] if isinstance(value, Operation) else [str(end)]
        else:
            names += [f"{end}[{k}]" for k in range(len(items))]
    return names


def _value(scope: Scope, block: Block, op: Op, pin: str, end: End, suggests: bool) -> Any:
    """What comes along a wire."""
    place_ = f"{block.id}.{pin}"
    source = scope.graph.blocks.get(end.block)
    if source is None:
        meant = nearest(end.block, scope.graph.blocks) if suggests else ""
        raise PageError(place_, f"there is no block {end.block!r}{meant}")
    if end.pin not in source.pins:
        known = ", ".join(source.pins) or "none"
        raise PageError(place_, f"{end.block} ({source.op.name}) has no output {end.pin!r}; it has {known}")
    value = source.pins[end.pin]
    if end.index is None:
        return value
    if not isinstance(value, list):
        raise PageError(place_, f"{end.block}.{end.pin} is no list; write it without [{end.index}]")
    if end.index >= len(value):
        raise PageError(place_, f"{end} is not there: {end.block}.{end.pin} has {len(value)} entries")
    return value[end.index]


def arriving(graph: Graph, end: End) -> Any:
    """What comes along a wire, or None where nobody can tell: its block does not hold, or has no such pin."""
    source = graph.blocks.get(end.block)
    value = None if source is None else source.pins.get(end.pin)
    if end.index is None or value is None:
        return value
    return value[end.index] if isinstance(value, list) and end.index < len(value) else None


# -- A graph that Python code built, as a page ------------------------------------------------------------------------

# A graph that Python code built, as a page: what `save` takes and an editor opens.


def page_of(scope: Scope) -> Page:
    """Every block of the scope's graph. What was typed into a list of wires becomes a Const of its own."""
    graph = scope.graph
    nodes = {n.name: n for n in graph.nodes}
    page = Page(graph.name)
    for placed in graph.blocks.values():
        block = _without_values(placed.block)
        for pin, value in placed.block.values.items():
            _put(graph, page, block, placed, pin, value, nodes.get(placed.name))
        page.blocks.append(block)
    return page


def _without_values(block: Block) -> Block:
    attrs = {k: list(v) if isinstance(v, tuple) else v for k, v in block.attrs.items()}
    wires = {pin: list(ends) for pin, ends in block.wires.items()}
    return Block(block.id, block.op, {}, wires, attrs, block.at, block.hidden)


def _put(graph: Graph, page: Page, block: Block, placed: Placed, pin: str, value: Any, node: Node | None) -> None:
    arg = placed.op.inputs[placed.op.input_names.index(pin)]
    if isinstance(value, SparseTensor):
        three = sparse_triple(placed.op, pin)
        parts = (value.indices, value.values, value.dense_shape)
        if three is not None:
            block.values |= {p: np.array(part) for p, part in zip(three, parts, strict=True)}
            return
        source = Block(_free(graph, f"{block.id}_{pin}"), "SparseTensor")
        source.values = {n: np.array(p) for n, p in zip(("indices", "values", "dense_shape"), parts, strict=True)}
        page.blocks.append(source)
        block.wires[pin] = [End(source.id, "tensor")]
        return
    if not arg.many:
        block.values[pin] = value
        return
    items = many_values(value, pin)
    if not any(is_wire(v) for v in items) and all(isinstance(v, np.ndarray) for v in items):
        block.values[pin] = items
        return
    kept = node.inputs[placed.op.input_names.index(pin)] if node is not None and node.op is placed.op else items
    ends = []
    for k, (item, typed) in enumerate(zip(items, kept, strict=True)):
        if isinstance(item, Output):
            ends.append(graph.ends[item])
        else:
            source = Block(_free(graph, f"{block.id}_{pin}_{k}"), "Const", {"val": typed})
            page.blocks.append(source)
            ends.append(End(source.id, "output"))
    block.wires[pin] = ends


def _free(graph: Graph, name: str) -> str:
    """A name for a block that the graph does not have."""
    while graph.has(name):
        name += "_"
    return name
