"""Candidates for a new wire, type-checked before it is drawn, and blocks flipped into their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, partial
from typing import Any

import numpy as np

from .._catalog.shapes import differ
from .._catalog.spec import ALL_DTYPES, CATALOG, COMPLEX, FLOATS, Arg, Derived, Op, find_op
from .._runtime.arrays import aval_of
from .._runtime.validation import bind_types
from ..errors import OpError, make_error, shape_text
from . import ops
from .export.picture import positions, within
from .inputs import admit_inputs, full_attrs, judge, kind_of, many_values, sparse_triple, spread_sparse
from .node_builder import place
from .nodes import Feed, Graph, Node, Operation, Output, Sparse
from .ordering import circle_error, ends_of
from .page import Block, End, Page, PageError
from .page_builder import Checked, arriving, check
from .summary import pin_of
from .variables import variable_of

# -- What is known of a wire and its pin before a block has all its inputs --------------------------------------------

# What is known of a wire and its pin before a block has all its inputs: kinds, dtypes, and where gradients flow.

_LONGEST = 12  # blocks of a circle that are named


def nodes_feeding(outputs: list[Output]) -> set[Output]:
    """The values a gradient of these flows to."""
    found = set(outputs)
    waiting = list(outputs)
    while waiting:
        new = [v for v in _differentiable(waiting.pop().node) if v not in found]
        found.update(new)
        waiting += new
    return found


def nodes_leading_to(graph: Graph, start: Output) -> set[Output]:
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
        raise make_error("lengths_match", argument="grad_inputs", value=len(seeds), bound=len(outputs))
    seed, output, argument = seeds[k], outputs[k], f"grad_inputs[{k}]"
    if seed.dtype != output.dtype:
        raise make_error(
            "dtype_expected", argument=argument, value=seed.dtype, bound=output.dtype, why=", as its output"
        )
    if seed.shape is None or output.shape is None:
        return
    if len(seed.shape) != len(output.shape) or any(map(differ, seed.shape, output.shape)):
        raise make_error("same_shape", argument=argument, value=shape_text(seed.shape), bound=shape_text(output.shape))


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
        takes, words = {"feed"}, "a feed, such as the output of FeedType"
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
        raise make_error("pin_kind", argument=argument, bound=words, value=named)
    if arg.ref and not (value.is_ref if isinstance(value, Unknown) else variable_of(value) is not None):
        named = "one value" if isinstance(value, Unknown) else kind_of(value)
        raise make_error("not_a_variable", argument=argument, value=named)


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


# -- Where a wire may lead, and where one may begin -------------------------------------------------------------------

# Where a wire may lead, and where one may begin: what an editor shows while somebody draws one.
#
# The page is judged once. Then each block that could be wired is judged alone, with the wire in place: a new wire
# joins those of a list pin, and takes the place of what is wired or typed at any other. Where a block still lacks
# inputs it is judged as far as it can be: kinds of values and dtypes, no shapes. A fault that the block has anyway,
# on pins that have nothing to do with the wire, is not held against the wire.

_LARGE = 4096  # bytes of a typed array that is not copied for every candidate
_UNFIT = (TypeError, ValueError, OverflowError, ArithmeticError, MemoryError)


def candidates_from(page: Page, end: End | str) -> dict[str, str | None]:
    """For a wire that begins at `end`: every input pin of every other block, with None or why it does not take it."""
    end = End.parse(end) if isinstance(end, str) else end
    drawing = _Drawing(page)
    values = drawing.at_end(end)
    circles = drawing.upstream_of(end.block)
    found: dict[str, str | None] = {}
    for block in page.blocks:
        op = find_op(block.op)
        if op is None or block.id == end.block:
            continue
        for pin in op.input_names:
            why = circles.get(block.id)
            found[f"{block.id}.{pin}"] = drawing.why_not(block, op, pin, values) if why is None else why
    return found


def candidates_to(page: Page, block: str, pin: str) -> dict[str, str | None]:
    """For a wire that ends at an input pin: every output pin of every other block, and each entry of list pins."""
    drawing = _Drawing(page)
    target = page[block]
    op = find_op(target.op)
    if op is None or pin not in op.input_names:
        known = ", ".join(op.input_names) if op else ""
        raise PageError(f"{block}.{pin}", f"{target.op} has no input {pin!r}; it has {known or 'none'}")
    circles = drawing.downstream_of(block)
    found: dict[str, str | None] = {}
    for source in page.blocks:
        if source.id == block:
            continue
        for end in drawing.ends_at(source):
            why = circles.get(source.id)
            found[str(end)] = drawing.why_not(target, op, pin, drawing.at_end(end)) if why is None else why
    return found


class _Drawing:
    """A page that was judged, on which wires are tried."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.checked = check(page)
        self.graph = self.checked.scope.graph
        self.blocks = {b.id: b for b in page.blocks}
        self._given: dict[str, tuple[dict[str, Any], set[str]]] = {}
        self._stand_ins: dict[tuple[str, str], Any] = {}
        self._gradients: dict[Any, set[Output]] = {}

    # -- where wires begin ---------------------------------------------------------------------------------------------

    def ends_at(self, block: Block) -> Iterator[End]:
        """The ends a block has: its output pins, and the entries of lists as far as these are known."""
        op = find_op(block.op)
        for pin in op.outputs if op else ():
            yield End(block.id, pin.name)
            value = arriving(self.graph, End(block.id, pin.name))
            for k in range(len(value) if isinstance(value, list) else 0):
                yield End(block.id, pin.name, k)

    def at_end(self, end: End) -> list[Any]:
        """What begins there: one value, or what it could be once its block holds."""
        block = self.blocks.get(end.block)
        if block is None:
            raise PageError(str(end), f"there is no block {end.block!r}")
        op = find_op(block.op)
        out = next((o for o in op.outputs if o.name == end.pin), None) if op else None
        if op is None or out is None:
            known = ", ".join(o.name for o in op.outputs) if op else ""
            raise PageError(str(end), f"{end.block} ({block.op}) has no output {end.pin!r}; it has {known or 'none'}")
        value = arriving(self.graph, end)
        if value is not None:
            return [value]
        if block.id in self.graph.blocks:
            raise PageError(str(end), "there is no such entry")
        if out.type in ("feed", "operation", "sparse"):
            return [Unknown(out.type)]
        bound = self._bound(block, op)
        dtypes = [bound[out.type]] if out.type in bound else op.dtypes_of(out.type)
        if out.type in op.attrs:
            dtypes = [block.attrs.get(out.type, op.attrs[out.type])]
        return [Unknown("tensor", d, op) for d in dtypes if d in ALL_DTYPES] or [Unknown("tensor", None, op)]

    def _bound(self, block: Block, op: Op) -> dict[str, str]:
        """The type variables that what arrives at a faulty block says already."""
        given, _ = self.given(block, op)
        bound: dict[str, str] = {}
        for arg in op.inputs:
            for value in given.get(arg.name, ()) if arg.many else [given.get(arg.name)]:
                if isinstance(value, Output) and value.dtype in op.dtypes_of(arg.type):
                    bound.setdefault(arg.type, value.dtype)
        return bound

    # -- circles -------------------------------------------------------------------------------------------------------

    def upstream_of(self, block: str) -> dict[str, str]:
        """For each block that this one needs, why no wire may lead from this one to it."""
        return circles(self.page, block, {b.id: {e.block for e in ends_of(b)} for b in self.page.blocks}, forwards=True)

    def downstream_of(self, block: str) -> dict[str, str]:
        """For each block that needs this one, why no wire may lead from it to this one."""
        readers: dict[str, set[str]] = {}
        for reader in self.page.blocks:
            for end in ends_of(reader):
                readers.setdefault(end.block, set()).add(reader.id)
        return circles(self.page, block, readers, forwards=False)

    # -- judgement -----------------------------------------------------------------------------------------------------

    def given(self, block: Block, op: Op) -> tuple[dict[str, Any], set[str]]:
        """What arrives at a block's pins, and the pins where something arrives that nobody can tell."""
        if block.id not in self._given:
            found: dict[str, Any] = {}
            unknown: set[str] = set()
            for arg in op.inputs:
                if arg.name in block.wires:
                    values = [arriving(self.graph, e) for e in block.wires[arg.name]]
                    known = [v for v in values if v is not None]
                    if len(known) < len(values) or not values:
                        unknown.add(arg.name)
                    if arg.many:
                        found[arg.name] = known
                    elif len(values) == len(known) == 1:
                        found[arg.name] = known[0]
                elif arg.name in block.values:
                    found[arg.name] = self._light(block, arg.name, block.values[arg.name])
            self._given[block.id] = found, unknown
        return self._given[block.id]

    def _light(self, block: Block, pin: str, value: Any) -> Any:
        """A large typed array as the wire of a constant, which nobody copies."""
        if not isinstance(value, np.ndarray) or value.nbytes <= _LARGE or value.dtype.kind in "OTSU":
            return value
        aval = aval_of(value)
        node = self.graph.add(
            Node(f"{block.id}.{pin}", block.id, CATALOG["Const"], (value,), {}), [(aval.dtype, aval.shape)]
        )
        node.outputs[0].value = value
        return node.outputs[0]

    def why_not(self, block: Block, op: Op, pin: str, values: list[Any]) -> str | None:
        """Why a pin does not take a wire that carries one of these; None where it takes one of them."""
        first: str | None = None
        for value in values:
            why = self._why_not(block, op, pin, value)
            if why is None:
                return None
            first = first or why
        return first

    def _why_not(self, block: Block, op: Op, pin: str, value: Any) -> str | None:
        given, unknown = self.given(block, op)
        arg = next(a for a in op.inputs if a.name == pin)
        unknown = unknown if arg.many else unknown - {pin}
        given = {**given, pin: [*(given.get(pin, ()) if pin in block.wires else ()), value] if arg.many else value}
        try:
            if isinstance(value, Unknown):
                self._judge_part(op, block, pin, given)
            else:
                self._judge(op, block, pin, given, unknown)
        except OpError as error:
            return error.message
        except _UNFIT as error:
            return str(error)
        return None

    def _judge(self, op: Op, block: Block, pin: str, given: dict[str, Any], unknown: set[str]) -> None:
        whole = spread_sparse(op, given)
        missing = [a.name for a in op.inputs if a.name not in whole and not a.optional]
        if missing or unknown:
            self._judge_part(op, block, pin, given)
            return
        try:
            if op.name == "AddSymbolicGradients":
                self._judge_gradients(op, block, pin, given)
            elif op.layer == "graph":
                self._expand(op, block, given)
            else:
                known = admit_inputs(op, whole)
                judge(op, known, full_attrs(op, block.attrs))
        except OpError as error:
            before = self.checked.errors.get(block.id)
            if before is None or before.message != error.message or pin_of(block, error) == pin:
                raise
            self._judge_part(op, block, pin, given)

    def _expand(self, op: Op, block: Block, given: dict[str, Any]) -> None:
        """Put a block of the graph layer into the graph and take it out again."""
        graph = self.graph
        mark = graph.mark()
        placed = place(self.checked.scope.with_op_name(block.id), op, given, block.attrs)
        for value in placed.pins.values():
            for item in value if isinstance(value, list) else (value,):
                if item in graph.ends and graph.ends[item].block == placed.name:
                    del graph.ends[item]
        del graph.blocks[placed.name]
        graph.sessions.pop(placed.name, None)
        graph.back_to(mark)

    def _judge_part(self, op: Op, block: Block, pin: str, given: dict[str, Any]) -> None:
        """Judge a wire by its kind, by its dtype, and by what its block says as soon as it has this wire."""
        arg = next(a for a in op.inputs if a.name == pin)
        value = given[pin][-1] if arg.many else given[pin]
        check_kind(op, arg, f"{pin}[{len(given[pin]) - 1}]" if arg.many else pin, value)
        if isinstance(value, Unknown):
            if value.dtype is None:
                return
            made = value.output()
            given = {**given, pin: [*given[pin][:-1], made] if arg.many else made}
        check_dtypes(op, pin, given)
        if op.layer != "graph" or isinstance(value, Unknown):
            return
        if op.name == "AddSymbolicGradients":
            self._judge_gradients(op, block, pin, given)
            return
        missing = [a for a in op.inputs if not a.optional and a.name not in given]
        filled = given | {a.name: self._stand_in(a, value) for a in missing}
        try:
            self._expand(op, block, filled)
        except OpError as error:
            if pin_of(block, error) == pin:  # else something is wrong that is not there yet
                raise

    def _stand_in(self, arg: Arg, value: Any) -> Any:
        """Something for a pin that has nothing yet: whatever goes best with the wire that is tried."""
        if arg.many:
            return [value] if arg.type == "any" and isinstance(value, Output) else []
        dtype = arg.type if arg.type in ALL_DTYPES else value.dtype if isinstance(value, Output) else "int64"
        if arg.type == "sparse":
            return Sparse(*(self._stand_in(Arg("", "int64"), None) for _ in range(3)))
        key = ("Variable" if arg.ref else "Placeholder", dtype)
        if key not in self._stand_ins:
            node = Node(f"a {key[0]}", "", CATALOG[key[0]], (None,) if arg.ref else (), {})
            node.steady = False
            self._stand_ins[key] = self.graph.add(node, [(dtype, None)]).outputs[0]
        return self._stand_ins[key]

    # -- gradients, whose nodes would take long to make for every candidate --------------------------------------------

    def _judge_gradients(self, op: Op, block: Block, pin: str, given: dict[str, Any]) -> None:
        wires = {a.name: many_values(given.get(a.name, ()), a.name) for a in op.inputs}
        for k, value in enumerate(wires[pin]):
            if not isinstance(value, Output):
                bound = "one value" if pin == "grad_inputs" else "a wire"
                raise make_error("pin_kind", argument=f"{pin}[{k}]", bound=bound, value=kind_of(value))
            if pin != "grad_inputs" and value.dtype not in (*FLOATS, *COMPLEX):
                raise make_error("gradient_of_nothing", argument=f"{pin}[{k}]", value=value.name, bound=value.dtype)
        outputs, inputs, seeds = (wires[a.name] for a in op.inputs)
        if not all(isinstance(v, Output) for v in (*outputs, *inputs)):
            return
        if pin == "grad_inputs":
            check_seeds(seeds, outputs)
        elif outputs and inputs and block.attrs.get("unconnected_gradients") != "zero":
            self._check_flow(pin, outputs, inputs)

    def _check_flow(self, pin: str, outputs: list[Output], inputs: list[Output]) -> None:
        """A gradient flows from some output to each input; of the inputs before a new one others have judged."""
        known = outputs[:-1] if pin == "outputs" else outputs
        feeding = self._remembered(("feeding", *known), partial(nodes_feeding, known))
        for k, target in enumerate(inputs):
            if target in feeding or (pin == "inputs" and k < len(inputs) - 1):
                continue
            leading = partial(nodes_leading_to, self.graph, target)
            if pin == "outputs" and outputs[-1] in self._remembered(target, leading):
                continue
            raise make_error("unconnected", argument=f"inputs[{k}]", value=target.name)

    def _remembered(self, key: Any, work: Callable[[], set[Output]]) -> set[Output]:
        if key not in self._gradients:
            self._gradients[key] = work()
        return self._gradients[key]


# -- Flip to gradient -------------------------------------------------------------------------------------------------

# Flip to gradient: what AddSymbolicGradients would put into a graph, as blocks of a page that can be seen and
# changed.
#
# The gradients are worked out in a graph of the page, by the same walk. Every node on the way to them then becomes a
# block of its op, wired as the node is. What is inside another block of the page, such as the rows a lookup has
# gathered, has no pin to be wired to; such nodes become blocks too, and give the same bits a second time.

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
