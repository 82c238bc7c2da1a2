"""One block into a graph: its record judges what it is given, and it becomes nodes."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from ..errors import OpError, refuse
from ..raw_ops import OPS
from ..spec import CATALOG, Op
from .admission import admit_inputs, full_attrs, judge
from .given import bind_call, describe_given, spread_sparse
from .nodes import Graph, Node, Placed, Scope
from .page import Block, End
from .recording import refuse_foreign, write_down
from .working_out import work_out


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
                raise refuse("pin_missing", argument=arg.name)
        return EXPANSIONS[op.name](Placing(graph, op, name, given, full_attrs(op, attrs)))
    except OpError as error:
        raise error.in_call(op.name, name, describe_given(given)) from None
