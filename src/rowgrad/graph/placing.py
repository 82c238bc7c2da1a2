"""One block into a graph: its record judges what it is given, and it becomes nodes."""

from __future__ import annotations

import contextlib
import math
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from ..arrays import NUMPY_DTYPE
from ..errors import OpError, refuse
from ..raw_ops import OPS
from ..sparse_tensor import SparseTensor
from ..spec import CATALOG, Op
from .admission import (
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
    known_value,
    spread_sparse,
)
from .nodes import Graph, Node, Output, Placed, Scope
from .page import Block, End

_SMALL = 1024  # elements up to which a value is worked out while building
_BY_SHAPE = ("Shape", "Size", "Rank", "Dimension")  # known as soon as the input's shape is


def add_node(graph: Graph, op: Op, name: str, block: str, given: Mapping[str, Any], attrs: Mapping[str, Any]) -> Node:
    """A node of a kernel or dense op, or a refusal that names it."""
    try:
        known = admit_inputs(graph, op, spread_sparse(op, given))
        full = full_attrs(op, attrs)
        avals = judge(op, known, full)
    except OpError as error:
        raise error.in_call(op.name, block, describe_given(given)) from None
    node = graph.add(Node(name, block, op, tuple(known.inputs.values()), full), avals)
    _work_out(node)
    return node


def _work_out(node: Node) -> None:
    """Small whole numbers that are known already: sizes and shapes that other nodes' shapes are made of."""
    op = node.op
    if op.layer != "dense" or len(node.outputs) != 1 or not is_integer(node.outputs[0].dtype):
        return
    if op.name in _BY_SHAPE:
        given = node.inputs[0]
        if given.shape is None or any(given.shape[k] is None for k in _sizes_seen(node, len(given.shape))):
            return
        dtype = NUMPY_DTYPE[given.dtype] if isinstance(given, Output) else given.dtype
        inputs: list[Any] = [np.broadcast_to(np.zeros((), dtype), [d or 0 for d in given.shape])]
    else:
        shape = node.outputs[0].shape
        if shape is None or None in shape or math.prod(d for d in shape if d is not None) > _SMALL:
            return
        inputs = [each(v, known_value) for v in node.inputs]
    if any(v is None for i in inputs for v in (i if isinstance(i, tuple) else (i,))):
        return
    with contextlib.suppress(OpError):  # a run that needs it will say what is wrong
        node.outputs[0].value = frozen(np.asarray(OPS[op.name](*map(_listed, inputs), **node.attrs)))


def _sizes_seen(node: Node, rank: int) -> Iterable[int]:
    """The dimensions whose sizes the node's value is made of."""
    if node.op.name == "Dimension":
        return (range(rank)[node.attrs["axis"]],)
    return () if node.op.name == "Rank" else range(rank)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


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
            inner = self.graph.unique(f"{self.block}/{op.name}")
            node = add_node(self.graph, op, inner, self.block, given, attrs)
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
    name = scope.take_name(op.name)
    count = len(graph.nodes)
    block = Block(name, op.name, attrs=dict(attrs))
    _write_down(graph, block, op, given)
    try:
        if op.layer == "graph":
            pins = _expand(graph, op, name, given, attrs)
        else:
            node = add_node(graph, op, name, name, given, attrs)
            pins = {o.name: out for o, out in zip(op.outputs, node.outputs, strict=True)}
    except Exception:
        del graph.nodes[count:]
        graph.release(name)
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
                raise refuse("pin_missing", argument=arg.name)
        return EXPANSIONS[op.name](Placing(graph, op, name, given, full_attrs(op, attrs)))
    except OpError as error:
        raise error.in_call(op.name, name, describe_given(given)) from None


def _write_down(graph: Graph, block: Block, op: Op, given: Mapping[str, Any]) -> None:
    """The block as a page holds it: wires by the ends they come from, the rest as values."""
    for arg in op.inputs:
        if arg.name not in given:
            continue
        value = given[arg.name]
        if is_sparse(value) and not isinstance(value, SparseTensor):
            ends = [graph.ends.get(as_sparse(value))]
        else:
            items = _flat(value) if arg.many else [_first(value)]
            ends = [graph.ends.get(v) if _hashable(v) else None for v in items]
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


def _hashable(value: Any) -> bool:
    return type(value).__hash__ is not None and not isinstance(value, str | bytes | int | float | complex)
