"""Nodes from ops: validated inputs, inferred dtypes and shapes, constants computed at once."""

from __future__ import annotations

import contextlib
import math
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from .._catalog.spec import CATALOG, Op
from .._runtime.arrays import NUMPY_DTYPE
from ..errors import OpError, make_error
from ..raw_ops import OPS
from ..sparse import SparseTensor
from .inputs import (
    admit_inputs,
    as_sparse,
    bind_call,
    describe_given,
    each,
    frozen,
    full_attrs,
    is_integer,
    is_list,
    is_sparse,
    is_wire,
    judge,
    kind_of,
    known_value,
    spread_sparse,
)
from .nodes import Feed, Graph, Node, Operation, Output, Placed, Scope
from .page import Block, End

# -- A block as a page holds it, from what a caller gave --------------------------------------------------------------

# A block as a page holds it, from what a caller gave: this is what lets graphs made in Python be saved.


def refuse_foreign(graph: Graph, op: Op, name: str, given: Mapping[str, Any]) -> None:
    """Whatever comes out of a block comes out of one of this graph."""
    for pin, value in given.items():
        for item in _flat(value):
            node = item.placeholder.node if isinstance(item, Feed) else getattr(item, "node", None)
            if is_wire(item) and node is not None and not graph.owns(node):
                raise make_error("pin_of_other_graph", argument=pin, value=node.name).in_call(
                    op.name, name, kind_of(item)
                )


def write_down(graph: Graph, block: Block, op: Op, given: Mapping[str, Any]) -> None:
    """The block as a page holds it: wires by the ends they come from, the rest as values."""
    for arg in op.inputs:
        if arg.name not in given:
            continue
        value = given[arg.name]
        if is_sparse(value) and not isinstance(value, SparseTensor):
            ends = [graph.ends.get(as_sparse(value))]
        else:
            items = _flat(value) if arg.many else [_first(value)]
            ends = [graph.ends.get(v) if isinstance(v, Output | Operation | Feed) else None for v in items]
        if all(e is not None for e in ends):
            block.wires[arg.name] = [e for e in ends if e is not None]
        else:
            block.values[arg.name] = _own(value)


def _own(value: Any) -> Any:
    """A typed value that nobody else can change."""
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value)
    return [_own(v) for v in value] if isinstance(value, list | tuple) else value


def _flat(value: Any) -> list[Any]:
    """A list pin's wires one by one; whether a block with several outputs may stand there, its expansion says."""
    if is_sparse(value) and not isinstance(value, SparseTensor):
        parts = as_sparse(value)
        return [parts.indices, parts.values, parts.dense_shape]
    inside = list(value.pins.values()) if isinstance(value, Placed) else value
    if isinstance(inside, list | tuple) and (
        isinstance(value, Placed) or any(is_wire(v) or is_list(v) for v in inside)
    ):
        return [v for item in inside for v in _flat(item)]
    return [value]


def _first(value: Any) -> Any:
    value = value.only if isinstance(value, Placed) and len(value.pins) == 1 else value
    return value[0] if isinstance(value, list) and len(value) == 1 and is_wire(value[0]) else value


# -- Values that are known before any run -----------------------------------------------------------------------------

# Values that are known before any run: sizes, and small whole numbers made of constants, which shapes are made of.

_SMALL = 1024  # elements up to which a value is worked out
_BY_SHAPE = ("Shape", "Size", "Rank", "Dimension")  # known as soon as the input's shape is


def work_out(node: Node) -> None:
    """Give the node's output its value where that is known and small."""
    if node.op.layer != "dense" or len(node.outputs) != 1 or not is_integer(node.outputs[0].dtype):
        return
    value = _of_shape(node) if node.op.name in _BY_SHAPE else _of_values(node)
    if value is not None:
        node.outputs[0].value = frozen(np.array(value, NUMPY_DTYPE[node.outputs[0].dtype]))


def _of_shape(node: Node) -> Any:
    """What an op says of its input's shape, as far as that is known."""
    shape = node.inputs[0].shape
    if shape is None:
        return None
    if node.op.name == "Rank":
        return len(shape)
    if node.op.name == "Dimension":
        return shape[node.attrs["axis"]]
    value = shape if node.op.name == "Shape" else math.prod(d or 0 for d in shape)
    limit = np.iinfo(NUMPY_DTYPE[node.outputs[0].dtype]).max
    fits = None not in shape and max((value,) if isinstance(value, int) else value, default=0) <= limit
    return value if fits else None  # a run says what does not fit


def _of_values(node: Node) -> Any:
    """What an op makes of values that are known."""
    made = node.outputs[0].shape
    if made is None or None in made or math.prod(d for d in made if d is not None) > _SMALL:
        return None
    inputs = [each(v, known_value) for v in node.inputs]
    if any(v is None for i in inputs for v in (i if isinstance(i, tuple) else (i,))):
        return None
    with contextlib.suppress(OpError):  # a run that needs it will say what is wrong
        return OPS[node.op.name](*(list(i) if isinstance(i, tuple) else i for i in inputs), **node.attrs)
    return None


# -- One block into a graph -------------------------------------------------------------------------------------------

# One block into a graph: its record judges what it is given, and it becomes nodes.


def add_node(graph: Graph, op: Op, name: str, block: str, given: Mapping[str, Any], attrs: Mapping[str, Any]) -> Node:
    """A node of a kernel or dense op, or a refusal that names it."""
    try:
        full = full_attrs(op, attrs)  # attributes first, as in a call
        known = admit_inputs(op, spread_sparse(op, given))
        avals = judge(op, known, full)
    except OpError as error:
        raise error.in_call(op.name, block, describe_given(given)) from None
    node = graph.add(Node(name, block, op, tuple(known.inputs.values()), full), avals)
    work_out(node)
    return node


@cache
def _tuple_of(op: str) -> Any:
    return namedtuple(op, [o.name for o in CATALOG[op].outputs])


class InnerOps(Mapping[str, Callable[..., Any]]):
    """Functions by op name that put nodes into a block: what adjoints and composites are written with."""

    def __init__(self, graph: Graph, block: str) -> None:
        self.graph = graph
        self.block = block

    def __getitem__(self, name: str) -> Callable[..., Any]:
        op = CATALOG[name]

        def function(*args: Any, **kwargs: Any) -> Any:
            given, attrs = bind_call(op, args, kwargs)
            node = add_node(self.graph, op, self.graph.inner(self.block, op.name), self.block, given, attrs)
            return node.outputs[0] if len(node.outputs) == 1 else _tuple_of(op.name)(*node.outputs)

        return function

    def __iter__(self) -> Iterator[str]:
        return iter(OPS)

    def __len__(self) -> int:
        return len(OPS)


# -- blocks ------------------------------------------------------------------------------------------------------------

Expansion = Callable[["Placing"], dict[str, Any]]
EXPANSIONS: dict[str, Expansion] = {}  # filled by `blocks`, `gradients` and `lookups`


class Placing:
    """A block of the graph layer on its way into the graph."""

    def __init__(self, graph: Graph, op: Op, name: str, given: dict[str, Any], attrs: dict[str, Any]) -> None:
        self.graph = graph
        self.op = op
        self.name = name
        self.given = given
        self.attrs = attrs
        self.ops = InnerOps(graph, name)

    def node(self, inputs: tuple[Any, ...], avals: list[tuple[str, Any]], steady: bool | None = None) -> Node:
        """The block's own node."""
        node = Node(self.name, self.name, self.op, inputs, self.attrs)
        if steady is not None:
            node.steady = steady
        return self.graph.add(node, avals)


def expands(name: str) -> Callable[[Expansion], Expansion]:
    """Say what becomes of a block of the graph layer."""

    def register(function: Expansion) -> Expansion:
        EXPANSIONS[name] = function
        return function

    return register


def place(scope: Scope, op: Op, given: dict[str, Any], attrs: dict[str, Any]) -> Placed:
    """Put a block into the scope's graph, or refuse it whole: the graph is as it was."""
    graph = scope.graph
    mark = graph.mark()
    name = scope.take_name(op.name)
    block = Block(name, op.name, attrs=dict(attrs))
    try:
        refuse_foreign(graph, op, name, given)
        if op.layer == "graph":
            pins = _expand(graph, op, name, given, attrs)
        else:
            node = add_node(graph, op, name, name, given, attrs)
            pins = {o.name: out for o, out in zip(op.outputs, node.outputs, strict=True)}
        write_down(graph, block, op, given)  # only what was judged: a list may hold itself
    except Exception:
        graph.back_to(mark)
        raise
    placed = graph.blocks[name] = Placed(block, op, pins)
    for pin, value in pins.items():
        for index, item in enumerate(value) if isinstance(value, list) else [(None, value)]:
            graph.ends.setdefault(item, End(name, pin, index))
    return placed


def _expand(graph: Graph, op: Op, name: str, given: dict[str, Any], attrs: dict[str, Any]) -> dict[str, Any]:
    try:
        for arg in op.inputs:
            if arg.name not in given and not arg.optional:
                raise make_error("pin_missing", argument=arg.name)
        return EXPANSIONS[op.name](Placing(graph, op, name, given, full_attrs(op, attrs)))
    except OpError as error:
        raise error.in_call(op.name, name, describe_given(given)) from None
