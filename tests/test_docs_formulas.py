"""The reference's formulas, evaluated as Python, equal the results of the examples."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rowgrad._catalog.spec import CATALOG, Op
from rowgrad._runtime.arrays import admit
from rowgrad.raw_ops import OPS

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from docs_examples import bound_example
from docs_formulas import formula

FAMILIES = ("Sparse segment", "Weighted segment", "Plan", "Rows")
SYMBOLS = {"·": "*", "²": "**2", "√n(": "sqrt_n(", "√Σ": "√ Σ"}
SUMS = (
    (r"Σ ([^\n]+?) over i with ([^ )]+) = ([^ )]+)", r"total(lambda i: \1, range(len(\2_all)), lambda i: \2 == \3)"),
    (r"Σ ([^\n]+?) over columns c", r"total(lambda c: \1, range(columns))"),
    (r"Σ ([^\n]+)$", r"total(lambda e: \1, range(starts[k], ends[k]))"),
)


def as_python(text: str) -> str:
    """Return one side of a formula as a Python expression."""
    for symbol, word in SYMBOLS.items():
        text = text.replace(symbol, word)
    for pattern, call in SUMS:
        text = re.sub(pattern, call, text, flags=re.MULTILINE)
    text = re.sub(r"(\w+)\[i\]_all", r"\1", text)  # the list that the sum runs over
    return re.sub(r"√ (total\(.*\))$", r"sqrt(\1)", text)


def total(term: Callable[[int], Any], over: Iterable[int], counts: Callable[[int], bool] = lambda i: True) -> Any:
    return sum((term(i) for i in over if counts(i)), start=0.0)


def names_of(op: Op, outputs: dict[str, Any], divisor: str) -> dict[str, Any]:
    """Return the names a formula may use: arguments, outputs, and what its page defines."""
    arguments, _ = bound_example(op)
    names: dict[str, Any] = {k: np.asarray(v) for k, v in admit(op, arguments).items()}
    names |= {k: v for k, v in outputs.items() if k != "output"}
    segments = names["counts"] if "counts" in names else np.bincount(names.get("segment_ids", np.zeros(0, int)))
    names |= {"n": lambda s: segments[s], "sqrt_n": lambda s: math.sqrt(segments[s]), "sqrt": math.sqrt, "total": total}
    if "starts" in names:
        names["ends"] = np.append(names["starts"], len(names["segments"]))[1:]
        order = np.argsort(names["positions"])
        names.setdefault("segment_ids", names["segments"][order])
    names["columns"] = names["data"].shape[1] if "data" in names else names["x"].shape[1] if "x" in names else 0
    names["W"] = lambda s: eval(as_python(divisor), {**names, "s": s}) or math.inf
    return names


def parsed_formula(op: Op) -> tuple[str, str, str]:
    """Return the index and the value that a formula assigns to `output`, and the divisor it defines."""
    first, *definitions = formula(op.name).splitlines()
    place, _, value = first.partition(" = ")
    found = re.search(r"W\(s\) = ([^;]+)", "\n".join(definitions))
    divisor = found[1] if found else "1"
    return place, value, divisor.replace("over the ids of segment s", "over i with segment_ids[i] = s")


SPOKEN = [
    pytest.param(op, id=op.name)
    for op in CATALOG.values()
    if op.category in FAMILIES and formula(op.name).startswith("output[")
]


@pytest.mark.parametrize("op", SPOKEN)
def test_formulas_equal_the_results_of_the_examples(op: Op) -> None:
    arguments, attrs = bound_example(op)
    result = OPS[op.name](**arguments, **attrs)
    outputs = dict(zip([o.name for o in op.outputs], result if isinstance(result, tuple) else (result,), strict=True))
    got = np.asarray(outputs["output"])
    place, value, divisor = parsed_formula(op)
    names = names_of(op, outputs, divisor)
    expected = np.zeros_like(got)
    variable = re.findall(r"\[(?:rows\[)?(\w)\]", place)[0]
    for number in range(len(names["rows"]) if variable == "k" and "rows" in names else len(got)):
        scope = {**names, variable: number, "output": expected}
        row = eval(as_python(value), scope) if segment_has_ids(names, variable, number) else 0
        exec(f"{place} = row", scope, {"row": row})
    np.testing.assert_allclose(expected, got, rtol=1e-6)


def segment_has_ids(names: dict[str, Any], variable: str, number: int) -> bool:
    """Return whether a segment has ids; others are zero and have no n to divide by, as the page says."""
    return variable != "s" or bool(np.any(names["segment_ids"] == number))


def test_most_formulas_are_evaluated() -> None:
    assert len(SPOKEN) >= 45
