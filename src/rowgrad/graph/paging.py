"""A graph that Python code built, as a page: what `save` takes and an editor opens."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..sparse_tensor import SparseTensor
from .given import is_wire, many_values, sparse_triple
from .nodes import Graph, Node, Output, Placed, Scope
from .page import Block, End, Page


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
