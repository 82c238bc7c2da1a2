"""What a session has computed and what it took, ready for JSON: for hundreds of blocks, many times a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import OpError
from ..graph.nodes import Output
from ..graph.session import ClientSession
from .short_texts import preview
from .verbs import error_json
from .windows import info_of

Json = dict[str, Any]


def results_json(session: ClientSession, step_of: Callable[[int], int]) -> dict[str, Json]:
    """Every pin that some run has computed, by block; `step_of` numbers a session's run as the page counts."""
    with np.errstate(all="ignore"):  # a NaN of any kind may be looked at
        return _results(session, step_of)


def _results(session: ClientSession, step_of: Callable[[int], int]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name, placed in session.graph.blocks.items():
        told: Json = {}
        for pin, value in placed.pins.items():
            if not isinstance(value, Output | list):
                continue
            result = session.result(name, pin)
            number = None if result is None else session.run_of(name, pin)
            if result is None or number is None:
                continue
            run, steady = step_of(number), is_steady(session, name, pin)
            told[pin] = (
                [_one(r, run, steady) for r in result] if isinstance(result, list) else _one(result, run, steady)
            )
        if told:
            found[name] = told
    return found


def is_steady(session: ClientSession, block: str, pin: str) -> bool:
    """Whether every run gives a pin the same value, so that one of an earlier run is as good as new."""
    value = session.graph.blocks[block].pins[pin]
    outputs = value if isinstance(value, list) else [value]
    return all(isinstance(output, Output) and output.node.steady for output in outputs)


def costs_json(session: ClientSession) -> dict[str, Json]:
    """What each block took."""
    return {block: {"seconds": cost.seconds, "bytes": cost.bytes} for block, cost in session.costs.items()}


def failure_json(error: BaseException, block: str) -> Json:
    """An error of a run: it belongs to the block it names, or else to the session that was run."""
    told = error_json(error)
    if not isinstance(error, OpError):
        told["message"] = str(error) or type(error).__name__
    return told | {"block": told["block"] or block}


def _one(array: Array, run: int, steady: bool) -> Json:
    return {"info": info_of(array), "run": run, "steady": steady, "preview": preview(array)}
