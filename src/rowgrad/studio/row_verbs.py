"""Verbs about the rows that results are made of: pairs of rows, sums with their terms, scatter views and spy plots."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._runtime.arrays import Array, aval_of
from ..graph.row_sums import Addition, RowSum, RowSums, Scale, Sum, Term, row_pairs, row_pins
from ..graph.trace import Stage, Trace, explained_results, stage_of
from ..graph.trace import trace as trace_rows
from .value_text import texts_of
from .value_verbs import check_block, interval, run_session
from .verbs import Arguments, Json, verb

if TYPE_CHECKING:
    from .studio import Studio

MOST_WRITTEN = 20_000  # terms of a row that is written out
MOST_TERMS = 2000  # of these, in one response
MOST_COLUMNS = 256
MOST_PAIRS = 20_000
MOST_SCATTERED = 5000  # ids
MOST_MAPPED = 1024
_HOT = 12  # rows that are named
_FAR = 2**62 - 1


@verb("trace")
def trace(studio: Studio, args: Arguments) -> Json:
    """Return which rows of a block's inputs contributed to its results."""
    session, block = run_session(studio, args), args.text("block")
    check_block(session.graph, args, block)
    pin = args.text("pin", "")
    found = trace_rows(session, block) if not pin else _pairs_of(_summed(_stage(studio, args), args))
    pairs = [[row, source] for row, source in found.pairs]
    traced = {"outputs": found.outputs, "inputs": found.inputs, "pairs": pairs}
    return traced | {"total": found.total, "cut": found.cut}


def _pairs_of(stage: Stage) -> Trace:
    """Return the pairs of the op behind one result."""
    pairs = [*row_pairs(stage.call)]
    outputs, inputs = row_pins(stage.call)
    return Trace(outputs, inputs, pairs[:MOST_PAIRS], len(pairs), len(pairs) > MOST_PAIRS)


@verb("explained")
def explained(studio: Studio, args: Arguments) -> Json:
    """Return the results of a page whose rows can be explained."""
    found = explained_results(run_session(studio, args))
    return {"results": [asdict(result) for result in found]}


def _stage(studio: Studio, args: Arguments) -> Stage:
    """Return the op behind a result, with the order of addition that is requested."""
    session, block = run_session(studio, args), args.text("block")
    check_block(session.graph, args, block)
    pins = session.graph.blocks[block].pins
    pin = args.text("pin", next(iter(pins), ""))
    if pin not in pins:
        raise args.error("pin", f"an output of {block}, which has {', '.join(pins) or 'none'}", pin)
    entry = args.whole("entry", 0, _FAR) if "entry" in args else None
    stage = stage_of(session, block, pin, entry, args.text("inner", ""))
    orders = stage.call.op.choices.get("order", ())
    order = args.text("order", "")
    if not order:
        return stage
    if order not in orders:
        raise args.error("order", f"one of {', '.join(orders)}" if orders else "left out", order)
    call = replace(stage.call, attrs={**stage.call.attrs, "order": order})
    return replace(stage, call=call)


# -- one row as a sum --------------------------------------------------------------------------------------------------


@verb("explain")
def explain(studio: Studio, args: Arguments) -> Json:
    """Return one row of a result as a sum: its terms, their factors, and the order in which they are added."""
    stage = _stage(studio, args)
    row, most = args.whole("row", 0, _FAR), args.whole("most", 1, MOST_TERMS, 200)
    first, beyond = interval(args, "columns") if "columns" in args else [0, 8]
    beyond = min(beyond, first + MOST_COLUMNS)
    if stage.sums:
        found = RowSums(stage.call)(stage.pin, row)
        if len(found.terms) > MOST_WRITTEN:
            raise args.error("row", f"the sum of at most {MOST_WRITTEN} terms", f"row {row}, of {len(found.terms)}")
        written = _sum_json(found, stage.call.result(stage.pin, row), first, beyond, most)
    else:
        written = _operands_json(stage, args, row, first, beyond)
    result = np.asarray(stage.call.outputs[stage.pin])
    facts = {
        "op": stage.call.op.name,
        "pin": stage.pin,
        "row": row,
        "rows": len(result) if result.ndim else 1,
        "dtype": aval_of(result).dtype,
        "order": stage.call.attrs.get("order"),
        "orders": list(stage.call.op.choices.get("order", ())),
        "origins": {
            name: {"block": o.block, "pin": o.pin, "entry": o.entry, "inner": o.inner}
            for name, o in stage.origins.items()
        },
    }
    return facts | written


def _sum_json(found: RowSum, result: Array, first: int, beyond: int, most: int) -> dict[str, Any]:
    shown = slice(first, max(first, min(beyond, found.columns)))
    total, products = found.total(), found.products
    kind = "sum" if found.parts else "copy" if found.terms else "zero"
    same = same_bits(total, result)
    return {
        "kind": kind,
        "sum_dtype": aval_of(np.empty(0, found.sum_dtype)).dtype,
        "columns": [shown.start, shown.stop],
        "of_columns": found.columns,
        "total_terms": len(found.terms),
        "terms": [_term_json(k, term, products[k], shown) for k, term in enumerate(found.terms[:most])],
        "parts": [
            _part_json(found, part, shown, most)
            for part in found.parts
            if part[0] < shown.stop and shown.start < part[1]
        ],
        "then": [_scale_json(scale) for scale in found.then],
        "result": texts_of(np.ascontiguousarray(result[shown])),
        "sum": texts_of(np.ascontiguousarray(total[shown])),
        "differing": int(np.count_nonzero(~same)),
    }


def same_bits(a: Array, b: Array) -> Array:
    """Return where two rows have the same bits; which NaN comes out is not promised."""
    if a.dtype != b.dtype:
        return np.zeros(a.shape, bool)
    if a.dtype.kind not in "fcV" or a.dtype.names is not None:
        same: Array = np.asarray(a == b)
        return same
    size = a.dtype.itemsize
    bits = [np.ascontiguousarray(x).view(np.uint8).reshape(-1, size) for x in (a, b)]
    equal: Array = (bits[0] == bits[1]).all(axis=1) | ((a != a) & (b != b))
    return equal


def _term_json(k: int, term: Term, product: Array, shown: slice) -> Json:
    # A term of an inner product is one column, whatever the columns of the result are.
    part = slice(None) if term.column is not None else shown
    return {
        "term": k,
        "pin": term.pin,
        "row": term.row,
        "place": term.place,
        "column": term.column,
        "factor": term.factor,
        "weight": _finite(term.weight),
        "id": term.id,
        "reason": term.reason,
        "scales": [_scale_json(scale) for scale in term.scales],
        "values": texts_of(np.ascontiguousarray(term.values[part])),
        "product": texts_of(np.ascontiguousarray(product[part])),
    }


def _finite(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _scale_json(scale: Scale) -> Json:
    return {"divides": scale.divides, "by": texts_of(np.atleast_1d(scale.by))[0], "text": scale.text}


def _part_json(found: RowSum, part: tuple[int, int, Sum], shown: slice, most: int) -> Json:
    first, beyond = max(part[0], shown.start), min(part[1], shown.stop)
    additions = list(found.additions(part[2], first, beyond))
    totals = {(*step.path, step.item): step for step in additions}
    last = {step.path: step for step in additions}
    leaves = [step for step in additions if not isinstance(_item(part[2], step), Sum)]
    steps = leaves if len(additions) > most else additions
    return {
        "columns": [first, beyond],
        "tree": _tree_json(part[2], (), last, most),
        "additions": [_addition_json(step) for step in steps[:most]],
        "total_additions": len(totals),
    }


def _item(order: Sum, step: Addition) -> int | Sum:
    for k in step.path:
        inner = order.of[k]
        assert isinstance(inner, Sum)  # a path leads through sums
        order = inner
    return order.of[step.item]


def _addition_json(step: Addition) -> Json:
    return {"path": list(step.path), "item": step.item, "total": texts_of(step.total)}


def _tree_json(order: Sum, path: tuple[int, ...], last: Mapping[tuple[int, ...], Addition], most: int) -> Json:
    """Return a sum with its total; of long lists of terms, the first `most`."""
    of = [
        _tree_json(part, (*path, k), last, most) if isinstance(part, Sum) else part
        for k, part in enumerate(order.of[:most])
    ]
    total = texts_of(last[path].total) if path in last else None
    return {"from_zero": order.from_zero, "of": of, "count": len(order.of), "size": _size(order), "total": total}


def _size(order: Sum) -> int:
    return sum(_size(part) if isinstance(part, Sum) else 1 for part in order.of)


def _operands_json(stage: Stage, args: Arguments, row: int, first: int, beyond: int) -> dict[str, Any]:
    """Return one row of an op that works row by row, with the same row of its operands."""
    result = _matrix(stage.call.outputs[stage.pin])
    if row >= len(result):
        raise args.error("row", f"in [0, {len(result)}), the rows of {stage.pin}", row)
    shown = slice(first, min(beyond, result.shape[1]))
    terms = []
    for k, name in enumerate(stage.operands):
        base, _, index = name.partition("[")
        value = stage.call.inputs[base]
        values = _matrix(value[int(index[:-1])] if index else value)[row]
        terms.append(_term_json(k, Term(name, row, values), values, shown))
    texts = texts_of(np.ascontiguousarray(result[row][shown]))
    return {
        "kind": "by row",
        "sum_dtype": aval_of(result).dtype,
        "columns": [shown.start, shown.stop],
        "of_columns": result.shape[1],
        "total_terms": len(terms),
        "terms": terms,
        "parts": [],
        "then": [],
        "result": texts,
        "sum": texts,
        "differing": 0,
    }


def _matrix(value: Any) -> Array:
    array: Array = np.asarray(value)
    return array.reshape(len(array), math.prod(array.shape[1:])) if array.ndim else array.reshape(1, 1)


# -- all rows: the scatter view ----------------------------------------------------------------------------------------


@verb("scatter")
def scatter(studio: Studio, args: Arguments) -> Json:
    """Return every id in the order of addition: the row it takes, the row it is added to, and the total after it."""
    stage = _summed(_stage(studio, args), args)
    most = args.whole("most", 1, MOST_SCATTERED, 1000)
    wide = args.whole("columns", 1, 16, 4)
    find = RowSums(stage.call)
    (pin, *_), sources = row_pins(stage.call)
    result = np.asarray(stage.call.outputs[pin])
    counts = Counter(row for row, _ in row_pairs(stage.call) if row < len(result))
    steps: list[dict[str, Any]] = []
    ends: list[Json] = []
    for row, count in sorted(counts.items()):
        if len(steps) + count > most:
            break
        found = find(pin, row)
        steps += _scattered(found, wide)
        ends.append({"row": row, "terms": len(found.terms), "sum": texts_of(found.total()[:wide])})
    steps.sort(key=lambda step: (step["place"], step["to"]))
    return {
        "op": stage.call.op.name,
        "pin": pin,
        "sources": [{"pin": name, "rows": len(stage.call.inputs[name])} for name in sources],
        "rows": len(result),
        "columns": min(wide, _matrix(result).shape[1]),
        "of_columns": _matrix(result).shape[1],
        "named": len(counts),
        "ends": ends,
        "steps": steps,
        "total": counts.total(),
        "order": stage.call.attrs.get("order"),
        "orders": list(stage.call.op.choices.get("order", ())),
    }


def _summed(stage: Stage, args: Arguments) -> Stage:
    if not stage.sums:
        raise args.error("inner", "an op whose rows are sums", stage.call.op.name)
    return stage


def _scattered(found: RowSum, wide: int) -> Iterable[dict[str, Any]]:
    """Yield the terms of a row with the total of their run after each; in lanes, that of the first columns."""
    after: dict[int, Addition] = {}
    for first, beyond, order in found.parts[:1]:
        for step in found.additions(order, first, min(beyond, wide)):
            item = _item(order, step)
            if not isinstance(item, Sum):
                after[item] = step
    products = found.products
    for k, term in enumerate(found.terms):
        if term.column is None or term.column == 0:
            yield {
                "place": term.row if term.place is None else term.place,
                "id": term.id,
                "reason": term.reason,
                "to": found.row,
                "pin": term.pin,
                "from": term.row,
                "factor": term.factor,
                "weight": _finite(term.weight),
                "product": texts_of(np.ascontiguousarray(products[k][:wide])),
                "total": texts_of(after[k].total) if k in after else texts_of(products[k][:wide]),
                "path": list(after[k].path) if k in after else [],
            }


# -- large batches: the spy plot ---------------------------------------------------------------------------------------


@verb("spy")
def spy(studio: Studio, args: Arguments) -> Json:
    """Return the pairs of rows of a large batch as counts on a grid, with the degrees of rows and the hottest ones."""
    stage = _summed(_stage(studio, args), args)
    cells = args.whole("cells", 8, MOST_MAPPED, 256)
    outputs, inputs = row_pins(stage.call)
    pairs = np.array([*row_pairs(stage.call)], np.int64).reshape(-1, 2)
    sizes = [sum(len(values[name]) for name in names)
             for values, names in ((stage.call.outputs, outputs), (stage.call.inputs, inputs))]  # fmt: skip
    # The table is what ids name: the result of a gradient, and the data of a lookup.
    table = 0 if "grad" in inputs else 1
    axes = [
        _axis(names, size, pairs[:, k], cells)
        for k, (names, size) in enumerate(((outputs, sizes[0]), (inputs, sizes[1])))
    ]
    across, down = axes[table], axes[1 - table]
    place = [pairs[:, k] * axes[k]["cells"] // max(sizes[k], 1) for k in (1 - table, table)]
    flat = place[0] * across["cells"] + place[1]
    counts = np.bincount(flat, minlength=across["cells"] * down["cells"]) if len(flat) else np.zeros(0, np.int64)
    filled = np.flatnonzero(counts)
    return {
        "op": stage.call.op.name,
        "total": len(pairs),
        "table": "outputs" if table == 0 else "inputs",
        "across": across,
        "down": down,
        "cells": np.stack([filled // across["cells"], filled % across["cells"], counts[filled]], axis=1).tolist(),
        "most": int(counts.max(initial=0)),
    }


def _axis(names: Sequence[str], size: int, rows: Array, cells: int) -> dict[str, Any]:
    """Describe one side of a spy plot: its pins, the number of rows with each degree, and the rows with most pairs."""
    degrees = np.bincount(rows, minlength=size) if size else np.zeros(0, np.int64)
    bins = Counter(np.ceil(np.log2(np.maximum(degrees, 1))).astype(int)[degrees > 0].tolist())
    hot = np.argsort(-degrees, kind="stable")[:_HOT]
    return {
        "pins": list(names),
        "rows": size,
        "cells": max(1, min(size, cells)),
        "named": int(np.count_nonzero(degrees)),
        # The bin at k has degrees in (2^(k-1), 2^k].
        "degrees": [bins.get(k, 0) for k in range(max(bins, default=-1) + 1)],
        "hot": [[int(row), int(degrees[row])] for row in hot if degrees[row] > 1],
    }


# -- the rows that steps change: rows over time ------------------------------------------------------------------------


@verb("row_changes")
def row_changes(studio: Studio, args: Arguments) -> Json:
    """Return the rows of a Variable that each step changed, and how far; `record` records a large one from now on."""
    name = args.text("name")
    if studio.runs.session_of(name) is None:
        studio.folder.open(name)  # raises if there is no such page
    found = studio.runs.of(name).row_changes
    variables = found.variables()
    known = [one["variable"] for one in variables]
    # Without a name, the table with most rows that is recorded.
    largest = max(variables, key=lambda one: (one["recorded"], one["shape"][0]), default=None)
    variable = args.text("variable", largest["variable"] if largest else "")
    if variable and variable not in known:
        raise args.error(
            "variable", f"one that a step updated ({', '.join(known) or 'no step has updated any'})", variable
        )
    if args.truth("record", False):
        found.request(variable)
        variables = found.variables()
    picture = found.picture(variable, args.whole("cells", 8, MOST_MAPPED, 320)) if variable else None
    return {"variables": variables, "variable": variable, "picture": picture}
