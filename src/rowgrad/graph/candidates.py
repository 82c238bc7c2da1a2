"""Where a wire may lead, and where one may begin: what an editor shows while somebody draws one.

The page is judged once. Then each block that could be wired is judged alone, with the wire in place: a new wire joins
those of a list pin, and takes the place of what is wired or typed at any other. Where a block still lacks inputs it is
judged as far as it can be: kinds of values and dtypes, no shapes. A fault that the block has anyway, on pins that have
nothing to do with the wire, is not held against the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ..arrays import aval_of
from ..errors import OpError, refuse
from ..spec import ALL_DTYPES, CATALOG, COMPLEX, FLOATS, Arg, Op, find_op
from . import candidate_rules as rules
from .admission import admit_inputs, full_attrs, judge
from .build import arriving, check
from .candidate_rules import Unknown
from .given import kind_of, many_values, spread_sparse
from .nodes import Node, Output, Sparse
from .ordering import ends_of
from .page import Block, End, Page, PageError
from .placing import place
from .summary import pin_of

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
        return rules.circles(
            self.page, block, {b.id: {e.block for e in ends_of(b)} for b in self.page.blocks}, forwards=True
        )

    def downstream_of(self, block: str) -> dict[str, str]:
        """For each block that needs this one, why no wire may lead from it to this one."""
        readers: dict[str, set[str]] = {}
        for reader in self.page.blocks:
            for end in ends_of(reader):
                readers.setdefault(end.block, set()).add(reader.id)
        return rules.circles(self.page, block, readers, forwards=False)

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
        rules.check_kind(op, arg, f"{pin}[{len(given[pin]) - 1}]" if arg.many else pin, value)
        if isinstance(value, Unknown):
            if value.dtype is None:
                return
            made = value.output()
            given = {**given, pin: [*given[pin][:-1], made] if arg.many else made}
        rules.check_dtypes(op, pin, given)
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
                raise refuse("pin_kind", argument=f"{pin}[{k}]", bound=bound, value=kind_of(value))
            if pin != "grad_inputs" and value.dtype not in (*FLOATS, *COMPLEX):
                raise refuse("gradient_of_nothing", argument=f"{pin}[{k}]", value=value.name, bound=value.dtype)
        outputs, inputs, seeds = (wires[a.name] for a in op.inputs)
        if not all(isinstance(v, Output) for v in (*outputs, *inputs)):
            return
        if pin == "grad_inputs":
            rules.check_seeds(seeds, outputs)
        elif outputs and inputs and block.attrs.get("unconnected_gradients") != "zero":
            self._check_flow(pin, outputs, inputs)

    def _check_flow(self, pin: str, outputs: list[Output], inputs: list[Output]) -> None:
        """A gradient flows from some output to each input; of the inputs before a new one others have judged."""
        known = outputs[:-1] if pin == "outputs" else outputs
        feeding = self._remembered(("feeding", *known), partial(rules.feeding, known))
        for k, target in enumerate(inputs):
            if target in feeding or (pin == "inputs" and k < len(inputs) - 1):
                continue
            leading = partial(rules.leading, self.graph, target)
            if pin == "outputs" and outputs[-1] in self._remembered(target, leading):
                continue
            raise refuse("unconnected", argument=f"inputs[{k}]", value=target.name)

    def _remembered(self, key: Any, work: Callable[[], set[Output]]) -> set[Output]:
        if key not in self._gradients:
            self._gradients[key] = work()
        return self._gradients[key]
