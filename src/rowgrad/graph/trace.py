"""Trace rows of a result back to rows of its inputs, by the op's record and the values of the last run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from .._hints import nearest
from .nodes import Node, Output, Placed
from .page import PageError
from .row_sums import Call, Pairs, has_row_sums, row_pairs, row_pins, summed_pins
from .session import ClientSession

# Categories of ops whose row of the result is computed from the same row of every operand.
_BY_ROW_CATEGORIES = ("Arithmetic", "Elementwise", "Comparison", "Conversion")
_ROW_BY_ROW = ("MaskRows", "ScaleRows", "DivRows")  # ops inside a lookup that do not move rows


@dataclass(slots=True)
class Trace:
    """Pairs (row of the output, row of the input that contributes to it).

    `outputs` and `inputs` name the pins. Rows of several pins are numbered consecutively: with inputs a_values of 3
    entries and b_values, row 3 is the first of b_values. `pairs` are the first of `total`; `cut` says whether there are
    more.
    """

    outputs: list[str]
    inputs: list[str]
    pairs: list[tuple[int, int]]
    total: int
    cut: bool


def trace(session: ClientSession, block: str, most: int = 20_000) -> Trace:
    """Return which input rows contributed to a block's results in the last run, at most `most` pairs."""
    placed = _placed(session, block)
    op = placed.op
    if op.rows is not None and op.linear:
        (node,) = (n for n in session.graph.nodes if n.name == block)
        call = call_of(session, node, node)
        return _cut(*row_pins(call), row_pairs(call), most)
    found = [pin for pin in placed.pins.values() if isinstance(pin, Output)]
    if op.layer == "graph" and len(found) == 1 and _begins_with_rows(found[0].node, block):
        tables = [a.name for a in op.inputs if a.type == op.outputs[0].type]
        return _cut([op.outputs[0].name], tables[:1], _through(session, found[0].node, block), most)
    raise PageError(block, f"{op.name} has no record of which rows its results are made of")


def _placed(session: ClientSession, block: str) -> Placed:
    placed = session.graph.blocks.get(block)
    if placed is None:
        near = nearest(block, session.graph.blocks)
        raise PageError(block, "there is no such block" + (f"; did you mean {near[0]!r}?" if near else ""))
    return placed


def call_of(session: ClientSession, node: Node, result: Node) -> Call:
    """Return the call of a node in the last run that computed the result; raise PageError if there is none."""
    found = session.last_call(node, result)
    if found is None:
        raise PageError(node.block, "no run has computed it yet, so there is nothing to trace")
    return Call(node.op, *found, node.attrs)


def _cut(outputs: list[str], inputs: list[str], pairs: Pairs, most: int) -> Trace:
    rest = iter(pairs)
    first = list(islice(rest, most))
    total = len(first) + sum(1 for _ in rest)
    return Trace(outputs, inputs, first, total, total > len(first))


# -- lookup blocks, which consist of several nodes ---------------------------------------------------------------------


def _begins_with_rows(node: Node, block: str) -> bool:
    """Return whether all nodes inside the block, from its result backwards, have row pairs or do not move rows."""
    known = False
    while _is_inside(node, block):
        if not node.op.linear or (node.op.rows is None and node.op.name not in _ROW_BY_ROW):
            return False
        known = known or node.op.rows is not None
        before = _before(node)
        if not isinstance(before, Output):
            return known
        node = before.node
    return known


def _is_inside(node: Node, block: str) -> bool:
    return node.block == block and node.op.name != "Const"  # a Const is a table typed into the block


def _before(node: Node) -> Any:
    """Return the input that the rows of a node's result come from."""
    return node.inputs[node.op.input_names.index(node.op.linear[0])]


def _through(session: ClientSession, node: Node, block: str) -> Pairs:
    """Compose the pairs of the nodes inside a block."""
    composed: list[tuple[int, int]] | None = None
    empty: set[int] = set()
    result = node
    while _is_inside(node, block):
        call = call_of(session, node, result)
        if node.op.rows is not None:
            composed = _compose(composed, row_pairs(call))
        elif "mask" in call.inputs:  # masked rows are cleared
            empty |= set(np.flatnonzero(call.inputs["mask"]).tolist())
        node = _before(node).node
    assert composed is not None  # by _begins_with_rows
    return [(row, source) for row, source in composed if row not in empty]


def _compose(composed: list[tuple[int, int]] | None, pairs: Pairs) -> list[tuple[int, int]]:
    """Compose pairs: (a, b) and (b, c) become (a, c)."""
    if composed is None:
        return list(pairs)
    sources: dict[int, list[int]] = {}
    for middle, source in pairs:
        sources.setdefault(middle, []).append(source)
    return [(row, source) for row, middle in composed for source in sources.get(middle, ())]


# -- one row of a result -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the rows of an input come from.

    `block` and `pin`, with `entry` for a list pin, name a result of the page; they are empty for a typed value. `inner`
    names an op inside the same block, whose results can be explained in turn.
    """

    block: str = ""
    pin: str = ""
    entry: int | None = None
    inner: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """The op that computes a result in the last run, and where its inputs come from.

    If `sums` is true, `row_sums.RowSums(call)` explains the rows of `pin`; otherwise `operands` names the inputs whose
    same row a row of the result is computed from.
    """

    call: Call
    pin: str
    sums: bool
    operands: tuple[str, ...]
    origins: Mapping[str, Origin]


def stage_of(session: ClientSession, block: str, pin: str, entry: int | None = None, inner: str = "") -> Stage:
    """Return the op that computes a result of a block, for explaining its rows.

    Args:
        session: The session whose last run is meant.
        block: The block.
        pin: The output pin.
        entry: The entry of a list pin.
        inner: An op inside the block that the result depends on, as an `Origin` names it.

    Returns:
        The op with its inputs and outputs in that run.

    Raises:
        PageError: No run has computed the result, there is no such op inside the block, or the rows of its results are
            made of all rows of its inputs.
    """
    value = _result(session, block, pin, entry)
    result = value.node
    if inner:
        found = next((one for one in _upstream(value, block) if one.name == inner), None)
        if found is None:
            raise PageError(block, f"{block}.{pin} depends on no {inner!r} inside the block")
        value = found
    node = value.node
    call = call_of(session, node, result)
    name = node.op.outputs[value.index].name
    if has_row_sums(node.op):
        return Stage(call, name, True, (), _origins(session, node))
    operands = tuple(_same_rows(call, name))
    if not operands:
        raise PageError(block, f"{node.op.name} has no record of which rows its results are made of")
    return Stage(call, name, False, operands, _origins(session, node))


def _result(session: ClientSession, block: str, pin: str, entry: int | None) -> Output:
    """Return the output that a pin, or an entry of a list pin, stands for."""
    placed = _placed(session, block)
    value = placed.pins.get(pin)
    if isinstance(value, list):
        value = value[entry or 0] if (entry or 0) < len(value) else None
    if not isinstance(value, Output):
        raise PageError(block, f"{pin} is not an array that rows are made of")
    if value.node.block != block:
        raise PageError(block, f"{placed.op.name} passes on {value.node.name} and has no rows of its own")
    return value


@dataclass(frozen=True, slots=True)
class Explained:
    """A result whose rows `stage_of` explains, the op that computes it, and whether its rows are sums."""

    block: str
    pin: str
    entry: int | None
    op: str
    sums: bool


def explained_results(session: ClientSession) -> list[Explained]:
    """Return the results of the last runs whose rows are sums, or begin a chain of such inside a block."""
    found = []
    for name, placed in session.graph.blocks.items():
        for pin, value in placed.pins.items():
            outputs = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
            for entry, output in outputs:
                if not isinstance(output, Output) or output.node.block != name:
                    continue
                if session.result(name, pin) is None or not _is_explained(session, output, placed):
                    continue
                op = output.node.op
                found.append(Explained(name, pin, entry, op.name, has_row_sums(op)))
    return found


def _is_explained(session: ClientSession, output: Output, placed: Placed) -> bool:
    pin = output.node.op.outputs[output.index].name
    if has_row_sums(output.node.op):
        return pin in summed_pins(call_of(session, output.node, output.node))
    if placed.op.layer != "graph" or not any(has_row_sums(one.node.op) for one in _upstream(output, placed.name)):
        return False
    return bool(_same_rows(call_of(session, output.node, output.node), pin))


def _upstream(output: Output, block: str) -> Iterator[Output]:
    """Yield the outputs of ops inside a block that an output depends on."""
    seen, rest = set[Output](), [output]
    while rest:
        found = rest.pop()
        if found in seen or found.node.block != block:
            continue
        seen.add(found)
        yield found
        rest.extend(found.node.sources())


def _origins(session: ClientSession, node: Node) -> dict[str, Origin]:
    names = {
        output: Origin(name, pin, None if entry < 0 else entry)
        for name, placed in session.graph.blocks.items()
        for pin, value in placed.pins.items()
        for entry, output in (enumerate(value) if isinstance(value, list) else ((-1, value),))
        if isinstance(output, Output)
    }

    def origin(value: Any) -> Origin:
        if not isinstance(value, Output):
            return Origin()
        return Origin(inner=value.name) if _is_inside(value.node, node.block) else names.get(value, Origin())

    found: dict[str, Origin] = {}
    for name, value in zip(node.op.input_names, node.inputs, strict=True):
        found |= {key: origin(one) for key, one in _entries(name, value).items()}
    return found


def _entries(name: str, value: Any) -> dict[str, Any]:
    """Return the entries of a list input by name; of any other, itself."""
    return {f"{name}[{k}]": v for k, v in enumerate(value)} if isinstance(value, list | tuple) else {name: value}


def _same_rows(call: Call, pin: str) -> list[str]:
    """Return the operands with the same rows as a result, for an op that works row by row."""
    if call.op.category not in _BY_ROW_CATEGORIES and call.op.name not in _ROW_BY_ROW:
        return []
    result = np.shape(call.outputs[pin])
    values: dict[str, Any] = {}
    for name, value in call.inputs.items():
        values |= _entries(name, value)
    ndim = (len(result), 1) if call.op.name in _ROW_BY_ROW else (len(result),)
    return [name for name, value in values.items() if result and np.ndim(value) in ndim and len(value) == result[0]]
