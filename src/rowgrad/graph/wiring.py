"""Edit a page's wires: find the pins that can take a new wire, and add the blocks of a gradient.

An editor calls `candidates_from` and `candidates_to` while a wire is drawn, and `gradient_blocks` for "flip to
gradient".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from .._catalog.shapes import differ
from .._catalog.spec import ALL_DTYPES, CATALOG, COMPLEX, FLOATS, Arg, Derived, Op, find_op
from .._hints import nearest
from .._runtime.arrays import aval_of
from .._runtime.validation import bind_types
from ..errors import OpError, make_error, shape_text
from ..sparse import SparseTensor
from .inputs import (
    admit_inputs,
    full_attrs,
    infer_outputs,
    kind_of,
    many_values,
    sparse_triple,
    spread_sparse,
    typed_value,
)
from .new_blocks import UnusedNames, arrange, place_left
from .node_builder import place
from .nodes import Feed, Graph, Node, Operation, Output, Sparse
from .ops import function_of
from .page import Block, End, Page, PageError
from .page_builder import Checked, check, check_in, empty_graph, pin_of, seed_arrays, value_at
from .page_order import circle_error, ends_of, upstream
from .variables import variable_of

# -- checks of a wire whose block still lacks inputs: kinds, dtypes, flow of gradients, circles ------------------------

_LONGEST = 12  # blocks of a circle that its error message names


def nodes_feeding(outputs: list[Output]) -> set[Output]:
    """Return the values that a gradient of these outputs flows to."""
    found = set(outputs)
    waiting = list(outputs)
    while waiting:
        new = [v for v in _differentiable(waiting.pop().node) if v not in found]
        found.update(new)
        waiting += new
    return found


def nodes_leading_to(graph: Graph, start: Output) -> set[Output]:
    """Return the values whose gradient flows to this one."""
    found = {start}
    for node in graph.nodes[start.node.order :]:
        if any(v in found for v in _differentiable(node)):
            found.update(node.outputs)
    return found


def check_seeds(seeds: list[Any], outputs: list[Output]) -> None:
    """Validate the last incoming gradient against its output. Outputs without one may still get theirs."""
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
    """Yield the inputs of a node that its gradient flows to."""
    if node.op.adjoint is None:
        return
    for name in node.op.differentiable:
        value = node.inputs[node.op.input_names.index(name)]
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Output):
                yield item


class Unknown:
    """An output of a faulty block: its kind, and its dtype if that is known."""

    __slots__ = ("dtype", "kind", "op")

    def __init__(self, kind: str, dtype: str | None = None, op: Op | None = None) -> None:
        self.kind = kind
        self.dtype = dtype
        self.op = op

    @property
    def is_ref(self) -> bool:
        """Return whether the output will be a Variable."""
        return self.op is not None and (self.op.name == "Variable" or any(a.ref for a in self.op.inputs))

    def output(self) -> Output:
        """Return a wire of this dtype and of unknown shape."""
        assert self.op is not None
        assert self.dtype is not None
        return Output(Node("", "", self.op, (), {}), 0, self.dtype, None)


def _kind(value: Any) -> str:
    if isinstance(value, Unknown):
        return value.kind
    return {Sparse: "sparse", Feed: "feed", Operation: "operation", list: "list"}.get(type(value), "tensor")


def check_kind(op: Op, arg: Arg, argument: str, value: Any) -> None:
    """Raise if a pin does not take this kind of value: feed, operation, sparse tensor, list or tensor."""
    if isinstance(value, list) and (arg.many or len(value) == 1):
        for item in value:
            check_kind(op, arg, argument, item)
        return
    kind = _kind(value)
    accepted, expected = {"tensor"}, "one value"
    if arg.type == "feed":
        accepted, expected = {"feed"}, "a feed, such as the output of FeedType"
    elif arg.type == "operation":
        accepted, expected = {"operation", "tensor"}, "an operation"
    elif arg.type == "sparse":
        accepted, expected = {"sparse"}, "a sparse tensor"
    elif op.runs:
        accepted, expected = {"tensor", "operation", "sparse"}, "a wire"
    elif sparse_triple(op, arg.name) or (arg.type == "any" and arg.optional and not arg.many):
        accepted = {"tensor", "sparse"}
    if kind not in accepted:
        names = {"feed": "a feed", "operation": "an operation", "sparse": "a sparse tensor", "tensor": "one value"}
        found_kind = names[value.kind] if isinstance(value, Unknown) else kind_of(value)
        raise make_error("pin_kind", argument=argument, bound=expected, value=found_kind)
    if arg.ref and not (value.is_ref if isinstance(value, Unknown) else variable_of(value) is not None):
        found_kind = "one value" if isinstance(value, Unknown) else kind_of(value)
        raise make_error("not_a_variable", argument=argument, value=found_kind)


def check_dtypes(op: Op, pin: str, inputs: dict[str, Any]) -> None:
    """Validate the dtype of a wire by the record, and against inputs that share its type variable."""
    whole = spread_sparse(op, inputs)
    mine = {pin, *(p for p in whole if p not in inputs)}
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
    # A type derived from an unknown type may be any of its dtypes.
    types = {
        v: op.dtypes_of(v) if isinstance(listed, Derived) and listed.of not in bound else listed
        for v, listed in op.types.items()
    }
    return replace(op, inputs=inputs, types=types)


def _part_of(op: Op, related: tuple[Arg, ...]) -> Op:
    return _part(op.name, tuple(a.name for a in related))


def circle_messages(page: Page, start: str, steps: dict[str, set[str]], forwards: bool) -> dict[str, str]:
    """For every block reached from `start`, return the message for the circle that a wire between both would close."""
    order = {b.id: k for k, b in enumerate(page.blocks)}
    back: dict[str, str] = {}  # the next block on the shortest path back to the start
    waiting = [start]
    for name in waiting:
        for other in sorted(steps.get(name, ()), key=lambda n: order.get(n, -1)):
            if other in order and other != start and other not in back:
                back[other] = name
                waiting.append(other)
    return {name: _circle_message(name, start, back, order, forwards) for name in back}


def _circle_message(name: str, start: str, back: dict[str, str], order: dict[str, int], forwards: bool) -> str:
    """Return the error message for the circle that a wire between two blocks would close."""
    path = [name]
    while path[-1] != start:
        path.append(back[path[-1]])
    circle = path if forwards else path[::-1]
    first = min(range(len(circle)), key=lambda k: order[circle[k]])
    circle = [*circle[first:], *circle[:first]]
    if len(circle) > _LONGEST:
        circle = [*circle[: _LONGEST // 2], "…", *circle[-_LONGEST // 2 :]]
    return circle_error(circle).message


# -- candidates for a new wire -----------------------------------------------------------------------------------------

# The page is validated once. Then each block that could be wired is validated alone, with the wire in place: a new wire
# is appended to a list pin, and replaces the wire or value of any other pin. A block that still lacks inputs is
# validated as far as possible: kinds of values and dtypes, but no shapes. An error that the block has without the wire,
# at unrelated pins, does not rule the wire out.

_LARGE = 4096  # bytes; larger arrays are not copied for every candidate
_CONVERSION_ERRORS = (TypeError, ValueError, OverflowError, ArithmeticError, MemoryError)


def candidates_from(page: Page, end: End | str) -> dict[str, str | None]:
    """For a wire that begins at `end`, map every input pin of other blocks to None, or to why it rejects the wire."""
    end = End.parse(end) if isinstance(end, str) else end
    checker = _WireChecker(page)
    values = checker.values_at(end)
    circles = checker.upstream_of(end.block)
    found: dict[str, str | None] = {}
    for block in page.blocks:
        op = find_op(block.op)
        if op is None or block.id == end.block:
            continue
        for pin in op.input_names:
            why = circles.get(block.id)
            found[f"{block.id}.{pin}"] = checker.rejection(block, op, pin, values) if why is None else why
    return found


def candidates_to(page: Page, block: str, pin: str) -> dict[str, str | None]:
    """For a wire that ends at an input pin, map every output pin of other blocks to None, or to why it is rejected.

    Entries of list pins are candidates too.
    """
    checker = _WireChecker(page)
    target = page[block]
    op = find_op(target.op)
    if op is None or pin not in op.input_names:
        known = ", ".join(op.input_names) if op else ""
        raise PageError(f"{block}.{pin}", f"{target.op} has no input {pin!r}; it has {known or 'none'}")
    circles = checker.downstream_of(block)
    found: dict[str, str | None] = {}
    for source in page.blocks:
        if source.id == block:
            continue
        for end in checker.outputs_of(source):
            why = circles.get(source.id)
            found[str(end)] = checker.rejection(target, op, pin, checker.values_at(end)) if why is None else why
    return found


def rejected_wire(page: Page, end: End, block: str, pin: str) -> tuple[Checked, Exception | None]:
    """Return the validated page, and the error with which a pin rejects a wire from `end`, if it does."""
    checker = _WireChecker(page)
    target = page[block]
    op = find_op(target.op)
    if op is None or pin not in op.input_names:
        raise PageError(f"{block}.{pin}", f"{target.op} has no such input")
    errors = [checker.error_of(target, op, pin, value) for value in checker.values_at(end)]
    return checker.checked, None if None in errors else next(iter(errors), None)


class _WireChecker:
    """Validates candidate wires on a page that is validated once."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.checked = check(page)
        self.graph = self.checked.scope.graph
        self.blocks = {b.id: b for b in page.blocks}
        self._inputs: dict[str, tuple[dict[str, Any], set[str]]] = {}
        self._placeholders: dict[tuple[str, str], Any] = {}
        self._gradients: dict[Any, set[Output]] = {}

    # -- output pins ---------------------------------------------------------------------------------------------------

    def outputs_of(self, block: Block) -> Iterator[End]:
        """Yield the output pins of a block, and the entries of list pins if they are known."""
        op = find_op(block.op)
        for pin in op.outputs if op else ():
            yield End(block.id, pin.name)
            value = value_at(self.graph, End(block.id, pin.name))
            for k in range(len(value) if isinstance(value, list) else 0):
                yield End(block.id, pin.name, k)

    def values_at(self, end: End) -> list[Any]:
        """Return the value of an output pin, or the values it may have once its block is valid."""
        block = self.blocks.get(end.block)
        if block is None:
            raise PageError(str(end), f"there is no block {end.block!r}")
        op = find_op(block.op)
        out = next((o for o in op.outputs if o.name == end.pin), None) if op else None
        if op is None or out is None:
            known = ", ".join(o.name for o in op.outputs) if op else ""
            raise PageError(str(end), f"{end.block} ({block.op}) has no output {end.pin!r}; it has {known or 'none'}")
        value = value_at(self.graph, end)
        if value is not None:
            return [value]
        if block.id in self.graph.blocks:
            raise PageError(str(end), "there is no such entry")
        if out.type in ("feed", "operation", "sparse"):
            return [Unknown(out.type)]
        bound = self._bound_types(block, op)
        dtypes = [bound[out.type]] if out.type in bound else op.dtypes_of(out.type)
        if out.type in op.attrs:
            dtypes = [block.attrs.get(out.type, op.attrs[out.type])]
        return [Unknown("tensor", d, op) for d in dtypes if d in ALL_DTYPES] or [Unknown("tensor", None, op)]

    def _bound_types(self, block: Block, op: Op) -> dict[str, str]:
        """Return the type variables that the inputs of a faulty block already determine."""
        inputs, _ = self.inputs_of(block, op)
        bound: dict[str, str] = {}
        for arg in op.inputs:
            for value in inputs.get(arg.name, ()) if arg.many else [inputs.get(arg.name)]:
                if isinstance(value, Output) and value.dtype in op.dtypes_of(arg.type):
                    bound.setdefault(arg.type, value.dtype)
        return bound

    # -- circles -------------------------------------------------------------------------------------------------------

    def upstream_of(self, block: str) -> dict[str, str]:
        """For each block upstream, return why no wire may lead to it from this block."""
        return circle_messages(
            self.page, block, {b.id: {e.block for e in ends_of(b)} for b in self.page.blocks}, forwards=True
        )

    def downstream_of(self, block: str) -> dict[str, str]:
        """For each block downstream, return why no wire may lead from it to this block."""
        readers: dict[str, set[str]] = {}
        for reader in self.page.blocks:
            for end in ends_of(reader):
                readers.setdefault(end.block, set()).add(reader.id)
        return circle_messages(self.page, block, readers, forwards=False)

    # -- validation ----------------------------------------------------------------------------------------------------

    def inputs_of(self, block: Block, op: Op) -> tuple[dict[str, Any], set[str]]:
        """Return the inputs of a block by pin, and the pins whose inputs are unknown."""
        if block.id not in self._inputs:
            found: dict[str, Any] = {}
            unknown: set[str] = set()
            for arg in op.inputs:
                if arg.name in block.wires:
                    values = [value_at(self.graph, e) for e in block.wires[arg.name]]
                    known = [v for v in values if v is not None]
                    if len(known) < len(values) or not values:
                        unknown.add(arg.name)
                    if arg.many:
                        found[arg.name] = known
                    elif len(values) == len(known) == 1:
                        found[arg.name] = known[0]
                elif arg.name in block.values:
                    found[arg.name] = self._as_constant(block, arg.name, block.values[arg.name])
            self._inputs[block.id] = found, unknown
        return self._inputs[block.id]

    def _as_constant(self, block: Block, pin: str, value: Any) -> Any:
        """Return a large array as the output of a constant, so that no candidate copies it."""
        if not isinstance(value, np.ndarray) or value.nbytes <= _LARGE or value.dtype.kind in "OTSU":
            return value
        aval = aval_of(value)
        node = self.graph.add(
            Node(f"{block.id}.{pin}", block.id, CATALOG["Const"], (value,), {}), [(aval.dtype, aval.shape)]
        )
        node.outputs[0].value = value
        return node.outputs[0]

    def rejection(self, block: Block, op: Op, pin: str, values: list[Any]) -> str | None:
        """Return why a pin rejects all of these values, or None if it takes one of them."""
        first: str | None = None
        for value in values:
            why = self._rejection_of(block, op, pin, value)
            if why is None:
                return None
            first = first or why
        return first

    def _rejection_of(self, block: Block, op: Op, pin: str, value: Any) -> str | None:
        error = self.error_of(block, op, pin, value)
        return error.message if isinstance(error, OpError) else None if error is None else str(error)

    def error_of(self, block: Block, op: Op, pin: str, value: Any) -> Exception | None:
        """Return the error with which a pin rejects a value, or None if it takes it."""
        inputs, unknown = self.inputs_of(block, op)
        arg = next(a for a in op.inputs if a.name == pin)
        unknown = unknown if arg.many else unknown - {pin}
        inputs = {**inputs, pin: [*(inputs.get(pin, ()) if pin in block.wires else ()), value] if arg.many else value}
        try:
            if isinstance(value, Unknown):
                self._check_partial(op, block, pin, inputs)
            else:
                self._check(op, block, pin, inputs, unknown)
        except (OpError, *_CONVERSION_ERRORS) as error:
            return error
        return None

    def _check(self, op: Op, block: Block, pin: str, inputs: dict[str, Any], unknown: set[str]) -> None:
        whole = spread_sparse(op, inputs)
        missing = [a.name for a in op.inputs if a.name not in whole and not a.optional]
        if missing or unknown:
            self._check_partial(op, block, pin, inputs)
            return
        try:
            if op.name == "AddSymbolicGradients":
                self._check_gradients(op, block, pin, inputs)
            elif op.layer == "graph":
                self._expand(op, block, inputs)
            else:
                known = admit_inputs(op, whole)
                infer_outputs(op, known, full_attrs(op, block.attrs))
        except OpError as error:
            before = self.checked.errors.get(block.id)
            if before is None or before.message != error.message or pin_of(block, error) == pin:
                raise
            self._check_partial(op, block, pin, inputs)

    def _expand(self, op: Op, block: Block, inputs: dict[str, Any]) -> None:
        """Validate a block of the graph layer: put it into the graph and remove it again."""
        graph = self.graph
        mark = graph.mark()
        placed = place(self.checked.scope.with_op_name(block.id), op, inputs, block.attrs)
        for value in placed.pins.values():
            for item in value if isinstance(value, list) else (value,):
                if item in graph.ends and graph.ends[item].block == placed.name:
                    del graph.ends[item]
        del graph.blocks[placed.name]
        graph.sessions.pop(placed.name, None)
        graph.back_to(mark)

    def _check_partial(self, op: Op, block: Block, pin: str, inputs: dict[str, Any]) -> None:
        """Validate a wire by its kind, its dtype, and the errors its block raises with placeholders at empty pins."""
        arg = next(a for a in op.inputs if a.name == pin)
        value = inputs[pin][-1] if arg.many else inputs[pin]
        check_kind(op, arg, f"{pin}[{len(inputs[pin]) - 1}]" if arg.many else pin, value)
        if isinstance(value, Unknown):
            if value.dtype is None:
                return
            output = value.output()
            inputs = {**inputs, pin: [*inputs[pin][:-1], output] if arg.many else output}
        check_dtypes(op, pin, inputs)
        if op.layer != "graph" or isinstance(value, Unknown):
            return
        if op.name == "AddSymbolicGradients":
            self._check_gradients(op, block, pin, inputs)
            return
        missing = [a for a in op.inputs if not a.optional and a.name not in inputs]
        filled = inputs | {a.name: self._placeholder(a, value) for a in missing}
        try:
            self._expand(op, block, filled)
        except OpError as error:
            if pin_of(block, error) == pin:  # other errors belong to the placeholders
                raise

    def _placeholder(self, arg: Arg, value: Any) -> Any:
        """Return a placeholder for an empty pin, of the kind and dtype that best match the new wire."""
        if arg.many:
            return [value] if arg.type == "any" and isinstance(value, Output) else []
        dtype = arg.type if arg.type in ALL_DTYPES else value.dtype if isinstance(value, Output) else "int64"
        if arg.type == "sparse":
            return Sparse(*(self._placeholder(Arg("", "int64"), None) for _ in range(3)))
        key = ("Variable" if arg.ref else "Placeholder", dtype)
        if key not in self._placeholders:
            node = Node(f"a {key[0]}", "", CATALOG[key[0]], (None,) if arg.ref else (), {})
            node.steady = False
            self._placeholders[key] = self.graph.add(node, [(dtype, None)]).outputs[0]
        return self._placeholders[key]

    # -- gradients, validated without their nodes, which take long to build --------------------------------------------

    def _check_gradients(self, op: Op, block: Block, pin: str, inputs: dict[str, Any]) -> None:
        wires = {a.name: many_values(inputs.get(a.name, ()), a.name) for a in op.inputs}
        for k, value in enumerate(wires[pin]):
            if not isinstance(value, Output):
                bound = "one value" if pin == "grad_inputs" else "a wire"
                raise make_error("pin_kind", argument=f"{pin}[{k}]", bound=bound, value=kind_of(value))
            if pin != "grad_inputs" and value.dtype not in (*FLOATS, *COMPLEX):
                raise make_error("gradient_of_nothing", argument=f"{pin}[{k}]", value=value.name, bound=value.dtype)
        outputs, targets, seeds = (wires[a.name] for a in op.inputs)
        if not all(isinstance(v, Output) for v in (*outputs, *targets)):
            return
        if pin == "grad_inputs":
            check_seeds(seeds, outputs)
        elif outputs and targets and block.attrs.get("unconnected_gradients") != "zero":
            self._check_flow(pin, outputs, targets)

    def _check_flow(self, pin: str, outputs: list[Output], targets: list[Output]) -> None:
        """Raise if no gradient flows to a target. With a new target, the others were validated before."""
        known = outputs[:-1] if pin == "outputs" else outputs
        feeding = self._cached(("feeding", *known), partial(nodes_feeding, known))
        for k, target in enumerate(targets):
            if target in feeding or (pin == "inputs" and k < len(targets) - 1):
                continue
            leading = partial(nodes_leading_to, self.graph, target)
            if pin == "outputs" and outputs[-1] in self._cached(target, leading):
                continue
            raise make_error("unconnected", argument=f"inputs[{k}]", value=target.name)

    def _cached(self, key: Any, work: Callable[[], set[Output]]) -> set[Output]:
        if key not in self._gradients:
            self._gradients[key] = work()
        return self._gradients[key]


# -- flip to gradient: the nodes of AddSymbolicGradients as blocks that a user can see and change ----------------------

# The gradients are built in the page's graph. Every node on the path to them becomes a block of its op, wired as the
# node is. Nodes inside another block of the page, such as the rows that a lookup gathered, have no pin to wire to:
# they become blocks too, and compute the same bits a second time.


def gradient_blocks(page: Page, outputs: list[End], inputs: list[End]) -> tuple[list[Block], list[End]]:
    """Return blocks that compute the gradients of `outputs` with respect to each of `inputs`, and their output pins.

    The page itself is unchanged. A typed value that the gradient reads too, such as the ids of a lookup, or that it is
    taken with respect to, moves to a new Const which both are wired to, so that they cannot differ later: the result
    has the changed blocks too. The ids of new blocks are unused on the page, and their positions are beside its blocks.
    The gradient of each output is ones. If a node cannot become a block, the result is one AddSymbolicGradients block.
    """
    before = check(page)
    before_outputs = upstream(page, {end.block for end in outputs})
    outs = {b.id: {o.name for o in op.outputs} for b in page.blocks if (op := find_op(b.op)) is not None}
    wanted = {(end.block, end.pin) for end in inputs if end.pin not in outs.get(end.block, ())}
    pins = [(b, pin) for b in page.blocks for pin in b.values if (b.id, pin) in wanted or b.id in before_outputs]
    moved = _move_to_constants(before, pins)
    blocks, ends = _blocks_of_gradients(moved, outputs, inputs)
    # Values that no gradient reads stay where they were typed.
    read = {end.block for block in blocks for end in ends_of(block)}
    needed = [(b, pin) for b, pin in pins if (b.id, pin) in wanted or read & {e.block for e in moved.ends(b, pin)}]
    if len(needed) < len(pins):
        moved = _move_to_constants(before, needed)
        blocks, ends = _blocks_of_gradients(moved, outputs, inputs)
    arrange(moved.page, blocks)
    return [*moved.changed.values(), *moved.constants, *blocks], ends


def _blocks_of_gradients(moved: _Moved, outputs: list[End], inputs: list[End]) -> tuple[list[Block], list[End]]:
    """Return the blocks of the gradients without positions, and their output pins."""
    page = moved.page
    inputs = [next(iter(moved.ends(moved.changed.get(end.block), end.pin)), end) for end in inputs]
    graph = empty_graph(page)
    graph.wires_sizes = True
    checked = check_in(graph, page)
    values, sources = ([_output(checked, end) for end in ends] for ends in (outputs, inputs))
    scope = checked.scope.with_op_name(UnusedNames(page).take("gradients"))
    try:
        block = function_of("AddSymbolicGradients")(scope, values, sources)
    except OpError as error:
        if error.message.startswith("no gradient flows"):  # its hint about an attribute does not apply here
            name = next(e for k, e in enumerate(inputs) if error.argument == f"inputs[{k}]")
            raise PageError(f"{name}", f"no gradient flows to it from {', '.join(map(str, outputs))}") from None
        raise
    gradients = block.pins["grad_outputs"]
    builder = _Blocks(checked, block.name, UnusedNames(page))
    builder.reserve_names(_names_of_gradients(gradients, inputs))
    try:
        ends = [builder.end(gradient) for gradient in gradients]
    except _NoBlock:
        whole = Block(block.name, "AddSymbolicGradients", wires={"outputs": list(outputs), "inputs": list(inputs)})
        builder.blocks, ends = [whole], [End(block.name, "grad_outputs", k) for k in range(len(inputs))]
    return builder.blocks, ends


@dataclass(slots=True)
class _Moved:
    """A page whose typed values were moved to Const blocks, with the blocks that changed and the new ones."""

    page: Page
    changed: dict[str, Block]
    constants: list[Block]

    def ends(self, block: Block | None, pin: str) -> list[End]:
        """Return the pins of the Const blocks that a typed value was moved to."""
        changed = None if block is None else self.changed.get(block.id)
        names = {c.id for c in self.constants}
        return [end for end in (changed.wires.get(pin, ()) if changed else ()) if end.block in names]


def _move_to_constants(checked: Checked, pins: list[tuple[Block, str]]) -> _Moved:
    """Move typed values of these pins to Const blocks to the left of their block, where nothing is yet."""
    page, names = checked.page, UnusedNames(checked.page)
    computing = {node.block for node in checked.scope.graph.nodes if node.op.layer != "graph"}
    moved = _Moved(page, {}, [])
    beside: list[tuple[Block, str]] = []
    for original, pin in pins:
        arrays = _typed_arrays(checked, original, pin) if original.id in computing else []
        if not arrays:
            continue
        block = moved.changed.get(original.id, original)
        entries = [""] if len(arrays) == 1 else [f"_{k}" for k in range(len(arrays))]
        made = [
            Block(names.take(f"{block.id}_{pin}{entry}"), "Const", {"val": array})
            for entry, array in zip(entries, arrays, strict=True)
        ]
        moved.constants += made
        beside += [(constant, block.id) for constant in made]
        values = {name: value for name, value in block.values.items() if name != pin}
        wires = {**block.wires, pin: [End(constant.id, "output") for constant in made]}
        moved.changed[block.id] = replace(block, values=values, wires=wires)
    place_left(page, beside)
    blocks = [moved.changed.get(b.id, b) for b in page.blocks]
    moved.page = Page(page.name, [*blocks, *moved.constants], page.notes)
    return moved


def _typed_arrays(checked: Checked, block: Block, pin: str) -> list[Any]:
    """Return the typed values of a pin in the dtypes that its block gave them; none if they cannot be wired to it."""
    graph, value = checked.scope.graph, block.values[pin]
    placed = graph.blocks[block.id]
    op = placed.op
    if isinstance(value, SparseTensor):
        return []
    if op.name == "AddSymbolicGradients":
        return seed_arrays(graph, block, value)
    if op.layer == "graph":
        return [typed_value(op, op.inputs[op.input_names.index(pin)], value)]
    node = next(v.node for v in placed.pins.values() if isinstance(v, Output))
    arrays = node.inputs[op.input_names.index(pin)]
    return [np.array(array) for array in (arrays if isinstance(arrays, tuple) else (arrays,))]


def fetch_with_session(page: Page, ends: list[End], near: list[End]) -> Block | None:
    """Return the page's ClientSession block fetching these pins too: one that runs `near`; None without a session."""
    sessions = [b for b in page.blocks if (op := find_op(b.op)) is not None and op.runs]
    if not sessions:
        return None
    wanted = {e.block for e in near}
    session = next((s for s in sessions if upstream(page, {s.id}) & wanted), sessions[0])
    before = session.wires.get("fetch_outputs", [])
    new = [end for end in ends if end not in before]
    return replace(session, wires={**session.wires, "fetch_outputs": [*before, *new]})


def _output(checked: Checked, end: End) -> Any:
    """Return the value of an output pin in the page's graph."""
    blocks = checked.scope.graph.blocks
    if end.block in checked.errors:
        raise checked.errors[end.block]
    if end.block in checked.waiting:
        raise PageError(end.block, "it depends on blocks that are invalid or missing, so it has no gradient yet")
    if end.block not in blocks:
        near = nearest(end.block, blocks)
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
            raise PageError(f"{end}", f"out of range: {end.block}.{end.pin} has {len(value)} entries")
        return value[end.index]
    if end.index is not None:
        raise PageError(f"{end}", f"{end.block}.{end.pin} is not a list; write it without [{end.index}]")
    return value


def _names_of_gradients(gradients: list[Output], inputs: list[End]) -> dict[Node, str]:
    """Name nodes that compute one gradient `d_<block>_<pin>`; a node that computes several is named after its op."""
    nodes = [g.node for g in gradients]
    return {
        node: f"d_{end.block}_{end.pin}" + ("" if end.index is None else f"_{end.index}")
        for node, end in zip(nodes, inputs, strict=True)
        if nodes.count(node) == 1
    }


class _NoBlock(Exception):  # noqa: N818  control flow: the caller falls back to one AddSymbolicGradients block
    """A node that cannot become a block."""


class _Blocks:
    """Makes blocks of nodes."""

    def __init__(self, checked: Checked, inside: str, names: UnusedNames) -> None:
        self.graph = checked.scope.graph
        self.inside = inside  # the block whose nodes become blocks, which replace its pins
        self.names = names
        self.blocks: list[Block] = []
        self._ids: dict[Node, str] = {}
        self._reserved: dict[Node, str] = {}

    def reserve_names(self, names: dict[Node, str]) -> None:
        """Reserve names for some nodes before other nodes take them."""
        self._reserved = {node: self.names.take(name) for node, name in names.items()}

    def end(self, output: Output) -> End:
        """Return the pin of a value: of a block of the page, or of a new block."""
        known = self.graph.ends.get(output)
        if known is not None and known.block != self.inside:
            return known
        # Every node comes after its inputs in this order, so no recursion is needed, however long the chain.
        for node in sorted(self._missing(output.node), key=lambda n: n.order):
            self._make(node)
        return End(self._ids[output.node], output.node.op.outputs[output.index].name)

    def _missing(self, node: Node) -> set[Node]:
        """Return the node and all nodes upstream of it that have no block yet."""
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
            # Variables, placeholders and random nodes are unique: a copy would have another value.
            raise _NoBlock(node.name)
        name = node.op.snake_name if node.block == self.inside else f"{node.block}_{node.op.snake_name}"
        block = Block(self._reserved.get(node) or self.names.take(name), node.op.name)
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
        self.blocks.append(block)

    def _entry(self, block: Block, place: str, value: Any) -> End:
        """Return the pin of an entry in a list of wires; an array gets a new Const block."""
        if isinstance(value, Output):
            return self.end(value)
        source = Block(self.names.take(f"{block.id}_{place}"), "Const", {"val": np.array(value)})
        self.blocks.append(source)
        return End(source.id, "output")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
