"""Trace rows of a result back to rows of its inputs, by the op's record and the values of the last run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from .._catalog.spec import CATALOG, PLAN, Derived, Op
from .._hints import nearest
from ..raw_ops import OPS
from .nodes import Node, Output
from .page import PageError
from .session import ClientSession

Pairs = Iterable[tuple[int, int]]

# For ops whose set of rows only a run determines, the outputs are a better source than the inputs: the transpose of the
# gradient takes these outputs as inputs under the same names, and its record has the same pairs.
_BY_OUTPUTS = {
    "SparseAdd": "SparseAddGradGrad",
    "SparseFillEmptyRows": "SparseFillEmptyRowsGradGrad",
    "RaggedFillEmptyRows": "RaggedFillEmptyRowsGradGrad",
}
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
    placed = session.graph.blocks.get(block)
    if placed is None:
        near = nearest(block, session.graph.blocks)
        raise PageError(block, "there is no such block" + (f"; did you mean {near[0]!r}?" if near else ""))
    op = placed.op
    if op.rows is not None and op.linear:
        (node,) = (n for n in session.graph.nodes if n.name == block)
        inputs, outputs = _call(session, node, node)
        return _cut(*_pins(op, op.linear, inputs, outputs), _pairs(op, inputs, outputs), most)
    found = [pin for pin in placed.pins.values() if isinstance(pin, Output)]
    if op.layer == "graph" and len(found) == 1 and _begins_with_rows(found[0].node, block):
        tables = [a.name for a in op.inputs if a.type == op.outputs[0].type]
        return _cut([op.outputs[0].name], tables[:1], _through(session, found[0].node, block), most)
    raise PageError(block, f"{op.name} has no record of which rows its results are made of")


def _call(session: ClientSession, node: Node, result: Node) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs and outputs of a node in the last run that computed the result."""
    found = session.last_call(node, result)
    if found is None:
        raise PageError(node.block, "no run has computed it yet, so there is nothing to trace")
    return found


def _pairs(op: Op, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Pairs:
    """Return the record's pairs. Ids are passed as lists, over which Python iterates faster than over arrays."""
    record = CATALOG[_BY_OUTPUTS.get(op.name, op.name)]
    arguments = inputs if record is op else {**outputs, **inputs}
    if "starts" in inputs and "indices" not in inputs:  # a plan instead of ids: pairs are faster from the ids
        record = next(other for other in CATALOG.values() if other.planned == op.name)
        arguments = dict(
            zip(("indices", "segment_ids"), OPS["PlannedIds"](*(inputs[name] for name in PLAN)), strict=True)
        )
    assert record.rows is not None  # by trace
    return record.rows({k: v.tolist() if np.asarray(v).dtype.kind in "iu" else v for k, v in arguments.items()})


def _pins(
    op: Op, linear: Iterable[str], inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Return the output and input pins of the pairs.

    A record does not name them. But every op with pairs is linear in the inputs whose rows it moves or adds, in the
    order in which their rows are numbered, and returns results of their type. A scalar, such as a default, has no rows.
    """
    sources = [name for name in linear if np.ndim(inputs[name])]
    types = {arg.type for arg in op.inputs if arg.name in sources}
    types |= {name for name, listed in op.types.items() if isinstance(listed, Derived) and listed.of in types}
    return [arg.name for arg in op.outputs if arg.type in types and np.ndim(outputs[arg.name])], sources


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
        inputs, outputs = _call(session, node, result)
        if node.op.rows is not None:
            composed = _compose(composed, _pairs(node.op, inputs, outputs))
        elif "mask" in inputs:  # masked rows are cleared
            empty |= set(np.flatnonzero(inputs["mask"]).tolist())
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
