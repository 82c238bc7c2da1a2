"""Flip to gradient: what AddSymbolicGradients would put into a graph, as blocks of a page that can be seen and changed.

The gradients are worked out in a graph of the page, by the same walk. Every node on the way to them then becomes a
block of its op, wired as the node is. What is inside another block of the page, such as the rows a lookup has gathered,
has no pin to be wired to; such nodes become blocks too, and give the same bits a second time.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import numpy as np

from ..errors import OpError
from ..spec import find_op
from . import ops
from .build import Checked, check
from .export.layout import positions, within
from .nodes import Node, Output
from .page import Block, End, Page, PageError

# Blocks as an editor draws them, and the room it leaves between them.
_WIDTH, _HEAD, _PIN = 240.0, 48.0, 22.0
_ASIDE, _BELOW = 80.0, 70.0


def gradient_blocks(page: Page, outputs: list[End], inputs: list[End]) -> tuple[list[Block], list[End]]:
    """Blocks that compute the gradients of `outputs` for each of `inputs`, and the ends where these come out.

    The ids are free on the page and the places are to the right of its blocks; the page itself stays as it is. The
    gradient that flows into each output is ones. A node that no block can stand for makes the result one
    AddSymbolicGradients block.
    """
    checked = check(page)
    given, sources = ([_output(checked, end) for end in some] for some in (outputs, inputs))
    scope = checked.scope.with_op_name(_Names(page).take("gradients"))
    try:
        made = ops.AddSymbolicGradients(scope, given, sources)
    except OpError as error:
        if error.message.startswith("no gradient flows"):  # what it says of an attribute helps nobody here
            name = next(e for k, e in enumerate(inputs) if error.argument == f"inputs[{k}]")
            raise PageError(f"{name}", f"no gradient flows to it from {', '.join(map(str, outputs))}") from None
        raise
    found = made.pins["grad_outputs"]
    blocks = _Blocks(checked, made.name, _Names(page))
    blocks.call(_names_of_gradients(found, inputs))
    try:
        ends = [blocks.end(gradient) for gradient in found]
    except _NoBlock:
        whole = Block(made.name, "AddSymbolicGradients", wires={"outputs": list(outputs), "inputs": list(inputs)})
        blocks.made, ends = [whole], [End(made.name, "grad_outputs", k) for k in range(len(inputs))]
    _put_in_place(page, blocks.made)
    return blocks.made, ends


def _output(checked: Checked, end: End) -> Any:
    """What an end of the page stands for in its graph."""
    blocks = checked.scope.graph.blocks
    if end.block in checked.errors:
        raise checked.errors[end.block]
    if end.block in checked.waiting:
        raise PageError(end.block, "it waits for blocks that are wrong or not there, so it has no gradient yet")
    if end.block not in blocks:
        near = get_close_matches(end.block, list(blocks), 1)
        raise PageError(f"{end}", f"there is no block {end.block!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    source = blocks[end.block]
    if end.pin not in source.pins:
        known = ", ".join(source.pins) or "none"
        raise PageError(f"{end}", f"{end.block} ({source.op.name}) has no output {end.pin!r}; it has {known}")
    value = source.pins[end.pin]
    if isinstance(value, list):
        if end.index is None:
            raise PageError(f"{end}", f"it is a list of {len(value)}; name one entry, such as {end}[0]")
        if end.index >= len(value):
            raise PageError(f"{end}", f"it is not there: {end.block}.{end.pin} has {len(value)} entries")
        return value[end.index]
    if end.index is not None:
        raise PageError(f"{end}", f"{end.block}.{end.pin} is no list; write it without [{end.index}]")
    return value


class _Names:
    """Ids that nothing on the page has."""

    def __init__(self, page: Page) -> None:
        self._taken = {b.id for b in page.blocks}
        self._counts: dict[str, int] = {}

    def take(self, name: str) -> str:
        """The name, or the first of name_2, name_3, … that is free."""
        found, count = name, self._counts.get(name, 1)
        while found in self._taken:
            count += 1
            found = f"{name}_{count}"
        self._counts[name] = count
        self._taken.add(found)
        return found


def _names_of_gradients(gradients: list[Output], inputs: list[End]) -> dict[Node, str]:
    """`d_<block>_<pin>` for the nodes that give one gradient; one that gives several has the name of its op."""
    nodes = [g.node for g in gradients]
    return {
        node: f"d_{end.block}_{end.pin}" + ("" if end.index is None else f"_{end.index}")
        for node, end in zip(nodes, inputs, strict=True)
        if nodes.count(node) == 1
    }


class _NoBlock(Exception):  # noqa: N818  it is caught where the other way is
    """A node that is no block by itself."""


class _Blocks:
    """Nodes on their way to be blocks."""

    def __init__(self, checked: Checked, inside: str, free: _Names) -> None:
        self.graph = checked.scope.graph
        self.inside = inside  # the block whose nodes are wanted; its own pins are not there
        self.free = free
        self.made: list[Block] = []
        self._ids: dict[Node, str] = {}
        self._called: dict[Node, str] = {}

    def call(self, names: dict[Node, str]) -> None:
        """Say how some nodes are to be called; they have these names before all others."""
        self._called = {node: self.free.take(name) for node, name in names.items()}

    def end(self, output: Output) -> End:
        """Where a value comes out: of a block of the page, or of one that is made."""
        known = self.graph.ends.get(output)
        if known is not None and known.block != self.inside:
            return known
        # Nodes stand in an order in which each comes after what it needs, so no chain of them is too long to walk.
        for node in sorted(self._missing(output.node), key=lambda n: n.order):
            self._make(node)
        return End(self._ids[output.node], output.node.op.outputs[output.index].name)

    def _missing(self, node: Node) -> set[Node]:
        """The node, and those before it, that are not on the page and not made yet."""
        found: set[Node] = set()
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node not in found and node not in self._ids:
                found.add(node)
                waiting += [o.node for o in node.sources() if self._is_inner(o)]
        return found

    def _is_inner(self, output: Output) -> bool:
        end = self.graph.ends.get(output)
        return end is None or end.block == self.inside

    def _make(self, node: Node) -> None:
        if node.op.layer == "graph" and node.op.name != "Const":
            # What keeps or draws does so once a run, in its own block: a second one would be another.
            raise _NoBlock(node.name)
        name = node.op.snake_name if node.block == self.inside else f"{node.block}_{node.op.snake_name}"
        block = Block(self._called.get(node) or self.free.take(name), node.op.name)
        self._ids[node] = block.id
        block.attrs = {k: _plain(v) for k, v in node.attrs.items() if v != node.op.attrs[k]}
        for arg, value in zip(node.op.inputs, node.inputs, strict=True):
            if isinstance(value, Output):
                block.wires[arg.name] = [self.end(value)]
            elif not isinstance(value, tuple):
                block.values[arg.name] = np.array(value)
            elif any(isinstance(v, Output) for v in value):
                block.wires[arg.name] = [self._entry(block, f"{arg.name}_{k}", v) for k, v in enumerate(value)]
            else:
                block.values[arg.name] = [np.array(v) for v in value]
        self.made.append(block)

    def _entry(self, block: Block, place: str, value: Any) -> End:
        """An entry of a list of wires; an array among them comes from a Const of its own."""
        if isinstance(value, Output):
            return self.end(value)
        source = Block(self.free.take(f"{block.id}_{place}"), "Const", {"val": np.array(value)})
        self.made.append(source)
        return End(source.id, "output")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _put_in_place(page: Page, blocks: list[Block]) -> None:
    """Columns to the right of the page, along the wires; inside a column blocks stand about where their wires begin."""
    there = positions(page, {b.id: _height(b) for b in page.blocks})
    frames = [(note.at[0], size) for note in page.notes if (size := getattr(note, "size", None)) is not None]
    edges = [x + _WIDTH for x, _ in there.values()] + [within(x + size[0]) for x, size in frames]
    right = max(edges, default=-_ASIDE) + _ASIDE
    top = min((y for _, y in there.values()), default=0.0)
    depth: dict[str, int] = {}
    columns: dict[int, list[Block]] = {}
    for block in blocks:  # each comes after those its wires begin at
        before = [depth[e.block] for ends in block.wires.values() for e in ends if e.block in depth]
        depth[block.id] = max(before, default=-1) + 1
        columns.setdefault(depth[block.id], []).append(block)
    for column, members in sorted(columns.items()):
        sources = {b.id: [there[e.block][1] for ends in b.wires.values() for e in ends] for b in members}
        y = top
        for block in sorted(members, key=lambda b: sum(sources[b.id]) / max(len(sources[b.id]), 1)):
            block.at = there[block.id] = (within(right + column * (_WIDTH + _ASIDE)), within(y))
            y += _height(block) + _BELOW


def _height(block: Block) -> float:
    """How tall an editor draws a block: a line for every pin of its longer side."""
    op = find_op(block.op)
    return _HEAD + _PIN * (max(len(op.inputs), len(op.outputs), 1) if op is not None else len(block.wires) + 1)
