"""What is known of a wire and its pin before a block has all its inputs: kinds, dtypes, and where gradients flow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from ..check import bind_types
from ..errors import refuse, shape_text
from ..shape import differ
from ..spec import ALL_DTYPES, CATALOG, Arg, Derived, Op
from .admission import admit_inputs
from .given import kind_of, sparse_triple, spread_sparse
from .nodes import Feed, Graph, Node, Operation, Output, Sparse
from .ordering import circle_error
from .page import Page
from .updates import variable_of

_LONGEST = 12  # blocks of a circle that are named


def feeding(outputs: list[Output]) -> set[Output]:
    """The values a gradient of these flows to."""
    found = set(outputs)
    waiting = list(outputs)
    while waiting:
        new = [v for v in _differentiable(waiting.pop().node) if v not in found]
        found.update(new)
        waiting += new
    return found


def leading(graph: Graph, start: Output) -> set[Output]:
    """The values a gradient flows from to this one."""
    found = {start}
    for node in graph.nodes[start.node.order :]:
        if any(v in found for v in _differentiable(node)):
            found.update(node.outputs)
    return found


def check_seeds(seeds: list[Any], outputs: list[Output]) -> None:
    """The newest of the gradients that flow in fits its output; outputs without one may still get theirs."""
    k = len(seeds) - 1
    if not outputs:
        return
    if k >= len(outputs):
        raise refuse("lengths_match", argument="grad_inputs", value=len(seeds), bound=len(outputs))
    seed, output, argument = seeds[k], outputs[k], f"grad_inputs[{k}]"
    if seed.dtype != output.dtype:
        raise refuse("dtype_expected", argument=argument, value=seed.dtype, bound=output.dtype, why=", as its output")
    if seed.shape is None or output.shape is None:
        return
    if len(seed.shape) != len(output.shape) or any(map(differ, seed.shape, output.shape)):
        raise refuse("same_shape", argument=argument, value=shape_text(seed.shape), bound=shape_text(output.shape))


def _differentiable(node: Node) -> Iterator[Output]:
    """The inputs of a node that its gradient flows to."""
    if node.op.adjoint is None:
        return
    for name in node.op.differentiable:
        value = node.inputs[node.op.input_names.index(name)]
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Output):
                yield item


class Unknown:
    """What a block would give that does not hold yet."""

    __slots__ = ("dtype", "kind", "op")

    def __init__(self, kind: str, dtype: str | None = None, op: Op | None = None) -> None:
        self.kind = kind
        self.dtype = dtype
        self.op = op

    @property
    def is_ref(self) -> bool:
        """Whether it would be a Variable."""
        return self.op is not None and (self.op.name == "Variable" or any(a.ref for a in self.op.inputs))

    def output(self) -> Output:
        """A wire of its dtype and of any shape."""
        assert self.op is not None
        assert self.dtype is not None
        return Output(Node("", "", self.op, (), {}), 0, self.dtype, None)


def _kind(value: Any) -> str:
    if isinstance(value, Unknown):
        return value.kind
    return {Sparse: "sparse", Feed: "feed", Operation: "operation", list: "list"}.get(type(value), "tensor")


def check_kind(op: Op, arg: Arg, argument: str, value: Any) -> None:
    """Feeds, operations, sparse tensors and lists come to pins that take them."""
    if isinstance(value, list) and (arg.many or len(value) == 1):
        for item in value:
            check_kind(op, arg, argument, item)
        return
    kind = _kind(value)
    takes, words = {"tensor"}, "one value"
    if arg.type == "feed":
        takes, words = {"feed"}, "a feed, such as a FeedType gives"
    elif arg.type == "operation":
        takes, words = {"operation", "tensor"}, "an operation"
    elif arg.type == "sparse":
        takes, words = {"sparse"}, "a sparse tensor"
    elif op.runs:
        takes, words = {"tensor", "operation", "sparse"}, "a wire"
    elif sparse_triple(op, arg.name) or (arg.type == "any" and arg.optional and not arg.many):
        takes = {"tensor", "sparse"}
    if kind not in takes:
        told = {"feed": "a feed", "operation": "an operation", "sparse": "a sparse tensor", "tensor": "one value"}
        named = told[value.kind] if isinstance(value, Unknown) else kind_of(value)
        raise refuse("pin_kind", argument=argument, bound=words, value=named)
    if arg.ref and not (value.is_ref if isinstance(value, Unknown) else variable_of(value) is not None):
        named = "one value" if isinstance(value, Unknown) else kind_of(value)
        raise refuse("not_a_variable", argument=argument, value=named)


def check_dtypes(op: Op, pin: str, given: dict[str, Any]) -> None:
    """The dtype of a wire, by the record and by what else is there already of the same type variable."""
    whole = spread_sparse(op, given)
    mine = {pin, *(p for p in whole if p not in given)}
    types = {a.type for a in op.inputs if a.name in mine}
    for variable, listed in op.types.items():
        if isinstance(listed, Derived) and types & {variable, listed.of}:
            types |= {variable, listed.of}
    related = tuple(
        a
        for a in op.inputs
        if (a.name in mine or (a.type in types and a.type in op.types))
        and (a.type in op.types or a.type in ALL_DTYPES)
        and not (a.many and isinstance(whole.get(a.name), list) and not whole[a.name])
        and a.name in whole
    )
    if related:
        part = _part_of(op, related)
        bind_types(part, admit_inputs(part, whole).avals)


@cache
def _part(name: str, pins: tuple[str, ...]) -> Op:
    op = CATALOG[name]
    inputs = tuple(a for a in op.inputs if a.name in pins)
    bound = {a.type for a in inputs}
    # What follows a type that is not known yet is one of all it could be.
    types = {
        v: op.dtypes_of(v) if isinstance(listed, Derived) and listed.of not in bound else listed
        for v, listed in op.types.items()
    }
    return replace(op, inputs=inputs, types=types)


def _part_of(op: Op, related: tuple[Arg, ...]) -> Op:
    return _part(op.name, tuple(a.name for a in related))


def circles(page: Page, start: str, steps: dict[str, set[str]], forwards: bool) -> dict[str, str]:
    """For every block that the steps lead to from one, the words for the circle a wire between the two would close."""
    order = {b.id: k for k, b in enumerate(page.blocks)}
    back: dict[str, str] = {}  # from a block, the next on the shortest way to the start
    waiting = [start]
    for name in waiting:
        for other in sorted(steps.get(name, ()), key=lambda n: order.get(n, -1)):
            if other in order and other != start and other not in back:
                back[other] = name
                waiting.append(other)
    return {name: _around(name, start, back, order, forwards) for name in back}


def _around(name: str, start: str, back: dict[str, str], order: dict[str, int], forwards: bool) -> str:
    """The words for the circle that a wire between two blocks would close."""
    path = [name]
    while path[-1] != start:
        path.append(back[path[-1]])
    circle = path if forwards else path[::-1]
    first = min(range(len(circle)), key=lambda k: order[circle[k]])
    circle = [*circle[first:], *circle[:first]]
    if len(circle) > _LONGEST:
        circle = [*circle[: _LONGEST // 2], "…", *circle[-_LONGEST // 2 :]]
    return circle_error(circle).message
