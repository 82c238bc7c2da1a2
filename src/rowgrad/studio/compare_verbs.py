"""The verb that runs one step of a page in two ways, and returns where the bits of their results differ."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._catalog.spec import find_op
from .._runtime.arrays import Array, aval_of
from ..graph import ClientSession, Page
from ..graph.nodes import Output
from ..graph.page_builder import build
from .row_verbs import same_bits
from .value_text import texts_of
from .value_verbs import run_session
from .verbs import Arguments, Json, verb

if TYPE_CHECKING:
    from .studio import Studio

MOST_CELLS = 200  # differing elements that are listed, of each result


@verb("compare")
def compare(studio: Studio, args: Arguments) -> Json:
    """Run one step under two engines or orders of addition, each on a copy of the Variables; compare all results."""
    last = run_session(studio, args)
    page, _ = studio.folder.open(args.text("name"))
    most = args.whole("most", 1, MOST_CELLS, 20)
    ways = (
        (args.text("a_engine", "numpy", 100), args.text("a_order", "", 40)),
        (args.text("b_engine", "numpy", 100), args.text("b_order", "", 40)),
    )
    sessions = [_step(_with_order(page, order, args), engine, last) for engine, order in ways]
    results = []
    for name, placed in sessions[0].graph.blocks.items():
        for pin, value in placed.pins.items():
            if pin not in sessions[1].graph.blocks[name].pins:
                continue
            a, b = (session.result(name, pin) for session in sessions)
            if a is None or b is None:
                continue
            pairs = zip(_entries(a), _entries(b), strict=True)
            results += [
                {"block": name, "pin": pin, "entry": k if isinstance(value, list) else None, **_difference(x, y, most)}
                for k, (x, y) in enumerate(pairs)
            ]
    return {"results": results, "differing": sum(1 for r in results if r["differing"])}


def _with_order(page: Page, order: str, args: Arguments) -> Page:
    """Return the page with an order of addition in every block that has the choice."""
    if not order:
        return page
    blocks = []
    for block in page.blocks:
        op = find_op(block.op)
        choices = op.choices.get("order", ()) if op is not None else ()
        blocks.append(replace(block, attrs={**block.attrs, "order": order}) if order in choices else block)
    if all(a is b for a, b in zip(blocks, page.blocks, strict=True)):
        raise args.error("order", "one that a block of the page has", order)
    return replace(page, blocks=blocks)


def _step(page: Page, engine: str, last: ClientSession) -> ClientSession:
    """Run one step in a session of its own, with the Variables and random numbers of the page's session."""
    session = ClientSession(build(page), engine)
    session.adopt(last)
    for name in session.graph.sessions:
        session.run_block(name)
    if not session.graph.sessions:  # what the last run computed
        computed = [
            output
            for name, placed in last.graph.blocks.items()
            for pin, value in placed.pins.items()
            if last.result(name, pin) is not None and name in session.graph.blocks
            for output in _outputs(session.graph.blocks[name].pins.get(pin))
        ]
        session.run(computed)
    return session


def _entries(value: Array | list[Array]) -> list[Array]:
    return value if isinstance(value, list) else [value]


def _outputs(value: Any) -> list[Output]:
    return [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, Output)]


def _difference(a: Array, b: Array, most: int) -> dict[str, Any]:
    facts = {"dtype": aval_of(a).dtype, "shape": list(a.shape), "elements": int(a.size)}
    if a.shape != b.shape or a.dtype != b.dtype:
        other = f"{aval_of(b).dtype}{list(b.shape)}"
        return {**facts, "differing": max(a.size, b.size, 1), "greatest": None, "cells": [], "other": other}
    flat = [np.ascontiguousarray(x).reshape(-1) for x in (a, b)]
    where = np.flatnonzero(~same_bits(flat[0], flat[1]))
    texts = [texts_of(x[where[:most]]) for x in flat]
    index = np.stack(np.unravel_index(where[:most], a.shape), axis=-1).tolist() if a.ndim and len(where) else []
    cells = [{"at": at, "a": x, "b": y} for at, x, y in zip(index or [[]], *texts, strict=False)]
    return {
        **facts,
        "differing": len(where),
        "greatest": _greatest(flat[0], flat[1], where),
        "cells": cells,
        "other": None,
    }


def _greatest(a: Array, b: Array, where: Array) -> float | None:
    """Return the greatest absolute difference, or None where it is not a finite number."""
    if a.dtype.kind not in "iufcV" or a.dtype.names is not None or not len(where):
        return None
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        found = float(np.abs(a[where].astype(wide) - b[where].astype(wide)).max())
    return found if np.isfinite(found) else None
