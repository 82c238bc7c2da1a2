"""Build a graph from a page, with an error per faulty block, and make a page from a graph that Python code built."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .._catalog.spec import CATALOG, Op, find_op
from .._runtime.arrays import as_array
from ..errors import InvalidArgumentError, OpError, ResourceExhaustedError
from ..sparse import SparseTensor
from .inputs import is_wire, many_values, sparse_triple
from .io.fields import nearest
from .node_builder import place
from .nodes import Graph, Node, Operation, Output, Placed, Scope, Sparse
from .ops import function_of as _ops  # noqa: F401  importing it registers the expansions of blocks
from .page import Block, End, Page, PageError
from .page_order import circle_error, ends_of, in_order, ordered

# -- a page as a graph -------------------------------------------------------------------------------------------------

_MOST_NODES, _NODES_PER_BLOCK = 1 << 17, 4  # bound on a page's graph, so that it builds within seconds
_SUGGESTED = 20  # faulty blocks whose errors suggest the names of others


class Fault(NamedTuple):
    """An error of a page: the block it belongs to, the input pin or attribute if there is one, and the error."""

    block: str
    pin: str | None
    error: OpError


@dataclass(slots=True)
class Checked:
    """A validated page: the scope with all valid blocks, and the errors of the others.

    `errors` has one entry per faulty block. `waiting` lists blocks that cannot be validated because they depend on a
    faulty one. `partial` has the ClientSession blocks that run without some of their fetches, which depend on a block
    that the catalogue does not have, and the ends of these wires. `foreign` are such blocks, and those that wait for
    nothing else.
    """

    page: Page
    scope: Scope
    errors: dict[str, OpError] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    partial: dict[str, list[End]] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)

    @property
    def ok(self) -> bool:
        """Return whether every block is valid."""
        return not self.errors and not self.waiting

    def fault_of(self, block: str) -> Fault:
        """Return the fault of a block in `errors`; its error names the block."""
        error = self.errors[block]
        error.name = error.name or block
        return Fault(block, pin_of(self.page[block], error), error)

    def first_fault(self, blocks: Iterable[str]) -> Fault | None:
        """Return the fault that prevents these blocks from running, or None if they can run.

        Blocks are searched in the given order, each with everything upstream of it, the nearest block first.
        """
        by_id = {b.id: b for b in self.page.blocks}
        blocked = {*self.errors, *self.waiting}
        visited: set[str] = set()
        for start in blocks:
            queue = deque([start] if start in blocked else ())  # all blocks upstream of a valid one are valid
            while queue:
                block = queue.popleft()
                if block in self.errors:
                    return self.fault_of(block)
                if block in by_id and block not in visited:
                    visited.add(block)
                    queue.extend(end.block for end in ends_of(by_id[block]))
        return None


def pin_of(block: Block, error: OpError) -> str | None:
    """Return the input pin or attribute that an error of a block belongs to, or None if it names neither."""
    if isinstance(error, PageError):
        pin = error.place.removeprefix(f"{block.id}.")
        return pin if pin != error.place else None
    op = find_op(block.op)
    # The arguments of an op inside the block are not pins of the block.
    if op is None or error.argument is None or error.op not in (None, op.name):
        return None
    pin = error.argument.partition("[")[0]
    return pin if pin in op.input_names or pin in op.attrs else None


def build(page: Page) -> Scope:
    """Build the graph of a page.

    Args:
        page: The page.

    Returns:
        A scope with the page's blocks.

    Raises:
        OpError: The error of the first faulty block, in the page's order.

    >>> from rowgrad.graph import Block, ClientSession, Page
    >>> scope = build(Page("net", [Block("a", "Const", values={"val": [1.0, 2.0]})]))
    >>> ClientSession(scope).run("a.output").tolist()
    [1.0, 2.0]
    """
    checked = check(page)
    for error in checked.errors.values():
        raise error
    return checked.scope


def check(page: Page) -> Checked:
    """Validate every block of a page.

    Args:
        page: The page.

    Returns:
        The scope with all valid blocks, the error of each faulty block, and the blocks that wait for those.

    Raises:
        PageError: Two blocks have the same id.

    >>> from rowgrad.graph import Block, End, Page
    >>> checked = check(Page("net", [Block("sum", "Add", wires={"x": [End("a", "output")]})]))
    >>> checked.ok, list(checked.errors)
    (False, ['sum'])
    """
    return check_in(empty_graph(page), page)


def empty_graph(page: Page) -> Graph:
    """Return a graph for the blocks of a page, with its limit of nodes."""
    return Graph(page.name, _MOST_NODES + _NODES_PER_BLOCK * len(page.blocks))


def check_in(graph: Graph, page: Page) -> Checked:
    """Validate every block of a page in an empty graph, as `check` does."""
    found = Checked(page, Scope(graph))
    blocks = {b.id: b for b in page.blocks}
    if len(blocks) < len(page.blocks):
        ids: set[str] = set()
        for block in page.blocks:
            if block.id in ids:
                raise PageError(block.id, "two blocks have this id")
            ids.add(block.id)
    order = ordered(page)
    found.errors = {circle[0]: circle_error(circle) for circle in order.circles}
    found.waiting = [*order.waiting, *(name for circle in order.circles for name in circle[1:])]
    failed: set[str] = set()
    for block in order.blocks:
        lost = {e.block for e in ends_of(block) if e.block in failed}
        placed = _without(block, lost) if lost and lost <= found.foreign else block
        if lost and placed is block:
            failed.add(block.id)
            if lost <= found.foreign:
                found.foreign.add(block.id)
            found.waiting.append(block.id)
            continue
        try:
            _place(found.scope, placed, len(found.errors) < _SUGGESTED)
        except OpError as error:
            failed.add(block.id)
            if find_op(block.op) is None:
                found.foreign.add(block.id)
            found.errors[block.id] = error
        else:
            if lost:
                found.partial[block.id] = [e for e in ends_of(block) if e.block in lost]
    found.errors = {b.id: found.errors[b.id] for b in page.blocks if b.id in found.errors}
    return found


_FETCHES = ("fetch_outputs", "run_outputs")


def _without(block: Block, lost: set[str]) -> Block:
    """Return a session without the fetches of lost blocks; any other block, or one that would fetch nothing, itself."""
    op = find_op(block.op)
    if op is None or not op.runs:
        return block
    wires = {pin: [e for e in ends if pin not in _FETCHES or e.block not in lost] for pin, ends in block.wires.items()}
    remain = any(wires.get(pin) for pin in _FETCHES)
    if not remain or any(e.block in lost for ends in wires.values() for e in ends):
        return block
    return replace(block, wires={pin: ends for pin, ends in wires.items() if ends})


def without_unknown_ops(page: Page) -> tuple[list[Block], list[Block]]:
    """Return the blocks that do not depend on an op that the catalogue lacks, and the others, both in order.

    Sessions are among the former, without the fetches of the latter, if that leaves them any.
    """
    kept: list[Block] = []
    lost: dict[str, Block] = {}
    for block in in_order(page):
        missing = {e.block for e in ends_of(block) if e.block in lost}
        placed = _without(block, missing) if missing else block
        if find_op(block.op) is None or (missing and placed is block):
            lost[block.id] = block
        else:
            kept.append(placed)
    return kept, list(lost.values())


@lru_cache(1000)
def _meant_op(name: str) -> str:
    return nearest(name, CATALOG, 0.75)  # many names are alike, and the op may be one of another program


def is_foreign(op: str) -> bool:
    """Return whether the catalogue has neither the op nor one with a similar name."""
    return find_op(op) is None and not _meant_op(op)


def _place(scope: Scope, block: Block, suggest: bool) -> None:
    """Put a block into the scope. With `suggests`, errors name similar blocks, which takes time."""
    op = find_op(block.op)
    if op is None:
        meant = _meant_op(block.op) or ": rowgrad does not have this op, so what depends on it does not run either"
        raise PageError(block.id, f"there is no block {block.op!r}{meant}")
    for pin in (*block.wires, *block.values):
        if pin not in op.input_names:
            raise PageError(
                f"{block.id}.{pin}", f"{op.name} has no input {pin!r}; it has {', '.join(op.input_names) or 'none'}"
            )
        if pin in block.wires and pin in block.values:
            raise PageError(f"{block.id}.{pin}", "it is both wired and typed in")
    inputs: dict[str, Any] = {}
    for arg in op.inputs:
        if arg.name in block.wires:
            found = [_value(scope, block, op, arg.name, end, suggest) for end in block.wires[arg.name]]
            if not arg.many and len(found) != 1:
                raise PageError(f"{block.id}.{arg.name}", f"it takes one wire, got {len(found)}")
            inputs[arg.name] = found if arg.many else found[0]
        elif arg.name in block.values:
            inputs[arg.name] = block.values[arg.name]
    try:
        placed = place(scope.with_op_name(block.id), op, inputs, block.attrs)
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
    """Name each fetch after the pin its wire begins at, even if that pin passes on another block's value."""
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


def _value(scope: Scope, block: Block, op: Op, pin: str, end: End, suggest: bool) -> Any:
    """Return the value at the beginning of a wire; raise PageError if it is missing."""
    place_ = f"{block.id}.{pin}"
    source = scope.graph.blocks.get(end.block)
    if source is None:
        meant = nearest(end.block, scope.graph.blocks) if suggest else ""
        raise PageError(place_, f"there is no block {end.block!r}{meant}")
    if end.pin not in source.pins:
        known = ", ".join(source.pins) or "none"
        raise PageError(place_, f"{end.block} ({source.op.name}) has no output {end.pin!r}; it has {known}")
    value = source.pins[end.pin]
    if end.index is None:
        return value
    if not isinstance(value, list):
        raise PageError(place_, f"{end.block}.{end.pin} is not a list; write it without [{end.index}]")
    if end.index >= len(value):
        raise PageError(place_, f"{end} is not there: {end.block}.{end.pin} has {len(value)} entries")
    return value[end.index]


def value_at(graph: Graph, end: End) -> Any:
    """Return the value at the beginning of a wire, or None if its block is faulty or has no such pin."""
    source = graph.blocks.get(end.block)
    value = None if source is None else source.pins.get(end.pin)
    if end.index is None or value is None:
        return value
    return value[end.index] if isinstance(value, list) and end.index < len(value) else None


# -- a graph as a page -------------------------------------------------------------------------------------------------


def page_of(scope: Scope) -> Page:
    """Make a page of a graph that Python code built, to save it or open it in an editor.

    Args:
        scope: A scope of the graph.

    Returns:
        A page with every block of the graph. A plain value in a list of wires becomes a Const block.

    >>> from rowgrad.graph import Const, Scope
    >>> root = Scope.new_root_scope("net")
    >>> block = Const(root.with_op_name("a"), [1.0, 2.0])
    >>> [block.id for block in page_of(root)]
    ['a']
    """
    graph = scope.graph
    nodes = {n.name: n for n in graph.nodes}
    page = Page(graph.name)
    for placed in graph.blocks.values():
        block = _without_values(placed.block)
        for pin, value in placed.block.values.items():
            _add_value(graph, page, block, placed, pin, value, nodes.get(placed.name))
        page.blocks.append(block)
    return page


def _without_values(block: Block) -> Block:
    attrs = {k: list(v) if isinstance(v, tuple) else v for k, v in block.attrs.items()}
    wires = {pin: list(ends) for pin, ends in block.wires.items()}
    return Block(block.id, block.op, {}, wires, attrs, block.at, block.hidden)


def _add_value(graph: Graph, page: Page, block: Block, placed: Placed, pin: str, value: Any, node: Node | None) -> None:
    arg = placed.op.inputs[placed.op.input_names.index(pin)]
    if isinstance(value, SparseTensor):
        three = sparse_triple(placed.op, pin)
        parts = (value.indices, value.values, value.dense_shape)
        if three is not None:
            block.values |= {p: np.array(part) for p, part in zip(three, parts, strict=True)}
            return
        source = Block(_unused_name(graph, f"{block.id}_{pin}"), "SparseTensor")
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
    if placed.op.name == "AddSymbolicGradients":
        typed_items = seed_arrays(graph, placed.block, items)
    else:
        typed_items = node.inputs[placed.op.input_names.index(pin)] if node and node.op is placed.op else items
    ends = []
    for k, (item, typed) in enumerate(zip(items, typed_items, strict=True)):
        if isinstance(item, Output):
            ends.append(graph.ends[item])
        else:
            source = Block(_unused_name(graph, f"{block.id}_{pin}_{k}"), "Const", {"val": typed})
            page.blocks.append(source)
            ends.append(End(source.id, "output"))
    block.wires[pin] = ends


def seed_arrays(graph: Graph, block: Block, values: Any) -> list[Any]:
    """Return typed gradients of an AddSymbolicGradients block's outputs in the dtypes of these; wires are unchanged."""
    outputs = many_values([value_at(graph, end) for end in block.wires["outputs"]], "outputs")
    items = many_values(values, "grad_inputs")
    return [
        item if is_wire(item) else as_array(item, "grad_inputs", output.dtype)
        for item, output in zip(items, outputs, strict=True)
    ]


def _unused_name(graph: Graph, name: str) -> str:
    """Return a name that no block or node of the graph has."""
    while graph.has(name):
        name += "_"
    return name
