"""Put one block into a graph: validate its inputs, infer dtypes and shapes, add its nodes, record it for the page.

`place` is the entry. Kernel and dense ops become one node each. A block of the graph layer is expanded by the function
that `@expands(name)` registered for it.
"""

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
    describe_inputs,
    each,
    frozen,
    full_attrs,
    infer_outputs,
    is_integer,
    is_list,
    is_sparse,
    is_wire,
    kind_of,
    known_value,
    missing_input,
    spread_sparse,
    typed_value,
)
from .nodes import Feed, Graph, Node, Operation, Output, Placed, Scope
from .page import Block, End

# -- the block as page data, so that a graph built in Python can be saved ----------------------------------------------


def _check_same_graph(graph: Graph, op: Op, name: str, inputs: Mapping[str, Any]) -> None:
    """Raise if an input is an output of another graph."""
    for pin, value in inputs.items():
        for item in _flat(value):
            node = item.placeholder.node if isinstance(item, Feed) else getattr(item, "node", None)
            if is_wire(item) and node is not None and not graph.owns(node):
                raise make_error("pin_of_other_graph", argument=pin, value=node.name).in_call(
                    op.name, name, kind_of(item)
                )


def _record_inputs(graph: Graph, block: Block, op: Op, inputs: Mapping[str, Any]) -> None:
    """Write the inputs into the block: wires as the pins they begin at, everything else as values."""
    for arg in op.inputs:
        if arg.name not in inputs:
            continue
        value = inputs[arg.name]
        if is_sparse(value) and not isinstance(value, SparseTensor):
            ends = [graph.ends.get(as_sparse(value))]
        else:
            items = _flat(value) if arg.many else [_first(value)]
            ends = [graph.ends.get(v) if isinstance(v, Output | Operation | Feed) else None for v in items]
        if all(e is not None for e in ends):
            block.wires[arg.name] = [e for e in ends if e is not None]
        else:
            block.values[arg.name] = _copied(value)


def _copied(value: Any) -> Any:
    """Copy the arrays of a value, so that the caller cannot change the page's."""
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value)
    return [_copied(v) for v in value] if isinstance(value, list | tuple) else value


def _flat(value: Any) -> list[Any]:
    """Flatten the wires of a list pin. The expansion decides whether a block with several outputs is allowed."""
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


# -- constant folding: sizes, and small integers computed from constants, which shapes depend on -----------------------

_SMALL = 1024  # elements; larger values are not folded
_BY_SHAPE = ("Shape", "Size", "Rank", "Dimension")  # known as soon as the input's shape is


def _fold_constant(node: Node) -> None:
    """Set the value of the node's output if it is known before a run and small."""
    if node.op.layer != "dense" or len(node.outputs) != 1 or not is_integer(node.outputs[0].dtype):
        return
    value = _of_shape(node) if node.op.name in _BY_SHAPE else _of_values(node)
    if value is not None:
        node.outputs[0].value = frozen(np.array(value, NUMPY_DTYPE[node.outputs[0].dtype]))


def _of_shape(node: Node) -> Any:
    """Return the result of an op that reads only its input's shape, or None if that is not known."""
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
    return value if fits else None  # a run raises the error for a value that does not fit


def _of_values(node: Node) -> Any:
    """Compute an op whose inputs are all known; None if one is not, or the result is large."""
    shape = node.outputs[0].shape
    if shape is None or None in shape or math.prod(d for d in shape if d is not None) > _SMALL:
        return None
    inputs = [each(v, known_value) for v in node.inputs]
    if any(v is None for i in inputs for v in (i if isinstance(i, tuple) else (i,))):
        return None
    with contextlib.suppress(OpError):  # a run that needs the value raises the error
        return OPS[node.op.name](*(list(i) if isinstance(i, tuple) else i for i in inputs), **node.attrs)
    return None


# -- nodes of ops ------------------------------------------------------------------------------------------------------


def add_node(graph: Graph, op: Op, name: str, block: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> Node:
    """Add a node of a kernel or dense op; an error names the op and its block."""
    try:
        full = full_attrs(op, attrs)  # attributes first: errors have the order they have in a plain call
        known = admit_inputs(op, spread_sparse(op, inputs))
        avals = infer_outputs(op, known, full)
    except OpError as error:
        raise error.in_call(op.name, block, describe_inputs(inputs)) from None
    node = graph.add(Node(name, block, op, tuple(known.inputs.values()), full), avals)
    _fold_constant(node)
    return node


@cache
def _tuple_of(op: str) -> Any:
    return namedtuple(op, [o.name for o in CATALOG[op].outputs])


class InnerOps(Mapping[str, Callable[..., Any]]):
    """Functions by op name that add nodes inside a block. Adjoints and composite blocks are written with them."""

    def __init__(self, graph: Graph, block: str) -> None:
        self.graph = graph
        self.block = block

    def __getitem__(self, name: str) -> Callable[..., Any]:
        op = CATALOG[name]

        def function(*args: Any, **kwargs: Any) -> Any:
            inputs, attrs = bind_call(op, args, kwargs)
            node = add_node(self.graph, op, self.graph.inner(self.block, op.name), self.block, inputs, attrs)
            return node.outputs[0] if len(node.outputs) == 1 else _tuple_of(op.name)(*node.outputs)

        return function

    def __iter__(self) -> Iterator[str]:
        return iter(OPS)

    def __len__(self) -> int:
        return len(OPS)


# -- blocks of the graph layer, and the entry --------------------------------------------------------------------------

Expansion = Callable[["BlockExpansion"], dict[str, Any]]
EXPANSIONS: dict[str, Expansion] = {}  # filled by `blocks`, `gradients` and `variables`


class BlockExpansion:
    """A block of the graph layer while it is expanded: its inputs and attributes, and ops that add nodes inside it."""

    def __init__(self, graph: Graph, op: Op, name: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> None:
        self.graph = graph
        self.op = op
        self.name = name
        self.inputs = inputs
        self.attrs = attrs
        self.ops = InnerOps(graph, name)

    def node(self, inputs: tuple[Any, ...], avals: list[tuple[str, Any]], steady: bool | None = None) -> Node:
        """Add the block's own node. `avals` are (dtype, shape) of its outputs."""
        node = Node(self.name, self.name, self.op, inputs, self.attrs)
        if steady is not None:
            node.steady = steady
        return self.graph.add(node, avals)


def expands(name: str) -> Callable[[Expansion], Expansion]:
    """Register the function that expands a block of the graph layer into nodes."""

    def register(function: Expansion) -> Expansion:
        EXPANSIONS[name] = function
        return function

    return register


def place(scope: Scope, op: Op, inputs: dict[str, Any], attrs: dict[str, Any]) -> Placed:
    """Put a block into the scope's graph. After an error the graph is unchanged."""
    graph = scope.graph
    mark = graph.mark()
    name = scope.take_name(op.name)
    block = Block(name, op.name, attrs=dict(attrs))
    try:
        _check_same_graph(graph, op, name, inputs)
        if op.layer == "graph":
            pins = _expand(graph, op, name, inputs, attrs)
        else:
            node = add_node(graph, op, name, name, inputs, attrs)
            pins = {o.name: out for o, out in zip(op.outputs, node.outputs, strict=True)}
        _record_inputs(graph, block, op, inputs)  # after validation: a list may contain itself
    except Exception:
        graph.back_to(mark)
        raise
    placed = graph.blocks[name] = Placed(block, op, pins)
    for pin, value in pins.items():
        for index, item in enumerate(value) if isinstance(value, list) else [(None, value)]:
            graph.ends.setdefault(item, End(name, pin, index))
    return placed


def _expand(graph: Graph, op: Op, name: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> dict[str, Any]:
    try:
        for arg in op.inputs:
            if arg.name not in inputs and not arg.optional:
                raise missing_input(arg)
        typed = {a.name: typed_value(op, a, inputs[a.name]) for a in op.inputs if a.name in inputs}
        return EXPANSIONS[op.name](BlockExpansion(graph, op, name, typed, full_attrs(op, attrs)))
    except OpError as error:
        raise error.in_call(op.name, name, describe_inputs(inputs)) from None
