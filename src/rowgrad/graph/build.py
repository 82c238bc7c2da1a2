"""A page into a graph: blocks are placed in the order their wires ask for, and each is judged on its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ..errors import InvalidArgumentError, OpError, ResourceExhaustedError
from ..spec import CATALOG, Op, find_op
from . import ops as _ops  # noqa: F401  importing it says what blocks become
from .nodes import Scope
from .page import Block, End, Page, PageError
from .placing import place


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
    found = Checked(page, Scope.new_root_scope(page.name))
    blocks = {b.id: b for b in page.blocks}
    if len(blocks) < len(page.blocks):
        twice = next(b.id for k, b in enumerate(page.blocks) if any(o.id == b.id for o in page.blocks[:k]))
        raise PageError(twice, "two blocks have this id")
    failed: set[str] = set()
    for block in in_order(page, found):
        if block.id in found.errors or any(e.block in failed for e in _ends(block)):
            failed.add(block.id)
            if block.id not in found.errors:
                found.waiting.append(block.id)
            continue
        try:
            _place(found.scope, block)
        except OpError as error:
            failed.add(block.id)
            found.errors[block.id] = error
    found.errors = {b.id: found.errors[b.id] for b in page.blocks if b.id in found.errors}
    return found


def _ends(block: Block) -> Iterator[End]:
    for ends in block.wires.values():
        yield from ends


def in_order(page: Page, found: Checked | None = None) -> list[Block]:
    """Blocks, each after those its wires come from, else in the page's order. A circle is an error of its blocks."""
    blocks = {b.id: b for b in page.blocks}
    open_wires = {}
    readers: dict[str, list[str]] = {}
    for block in page.blocks:
        sources = {e.block for e in _ends(block) if e.block in blocks}
        open_wires[block.id] = len(sources)
        for source in sources:
            readers.setdefault(source, []).append(block.id)
    order: list[Block] = []
    ready = [b.id for b in page.blocks if open_wires[b.id] == 0]
    while ready:
        after = []
        for name in ready:
            order.append(blocks[name])
            for reader in readers.get(name, ()):
                open_wires[reader] -= 1
                if open_wires[reader] == 0:
                    after.append(reader)
        ready = after
    stuck = [b for b in page.blocks if open_wires[b.id] > 0]
    if stuck:
        circle = _circle(stuck)
        error = PageError(circle[0], f"its wires lead back to itself: {' → '.join([*circle, circle[0]])}")
        if found is None:
            raise error
        found.errors[circle[0]] = error
        order += stuck
    return order


def _circle(stuck: list[Block]) -> list[str]:
    """One circle among blocks that all wait for one another."""
    names = {b.id: b for b in stuck}
    path = [stuck[0].id]
    while True:
        before = next(e.block for e in _ends(names[path[-1]]) if e.block in names)
        if before in path:
            return path[path.index(before) :][::-1]
        path.append(before)


def _place(scope: Scope, block: Block) -> None:
    op = find_op(block.op)
    if op is None:
        near = get_close_matches(block.op, list(CATALOG), 1)
        raise PageError(block.id, f"there is no block {block.op!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
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
            found = [_value(scope, block, op, arg.name, end) for end in block.wires[arg.name]]
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
        raise InvalidArgumentError(f"{error}").in_call(op.name, block.id, "what is typed in") from error
    except MemoryError as error:
        raise ResourceExhaustedError(f"{error}").in_call(op.name, block.id, "what is typed in") from error
    placed.block.op, placed.block.at, placed.block.hidden = block.op, block.at, block.hidden
    if placed.name != block.id:
        raise PageError(block.id, "a part of another block has this name")


def _value(scope: Scope, block: Block, op: Op, pin: str, end: End) -> Any:
    """What comes along a wire."""
    place_ = f"{block.id}.{pin}"
    source = scope.graph.blocks.get(end.block)
    if source is None:
        near = get_close_matches(end.block, list(scope.graph.blocks), 1)
        raise PageError(place_, f"there is no block {end.block!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
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
