"""Draw a linear op on its example as SVG: which input rows contribute to which output rows.

The drawing is derived from calls of the op: one row of an argument at a time is increased by 1, and every output that
changes gets a line, labelled with the change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from docs_examples import bound_example

from rowgrad._catalog.spec import Op
from rowgrad._runtime.arrays import admit
from rowgrad.raw_ops import OPS

ROW, HEAD, GAP, WIDTH, LEFT, RIGHT, PAD = 24, 22, 10, 640, 210, 430, 12
PLACES = (0.5, 0.3, 0.7, 0.2, 0.8, 0.4, 0.6, 0.15, 0.85)  # of labels on their curves
COLOURS = ("#1f6feb", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#4d6b1f", "#0f7b8a", "#9a6700")


@dataclass(frozen=True)
class Line:
    """One input row that contributes to one output row; without a factor if that is not a single number."""

    source: tuple[str, int]
    target: tuple[str, int]
    factor: float | None


def picture(op: Op) -> str | None:
    """Return the picture, or None for an op that is not linear or whose example has no rows."""
    if not op.linear or not (op.layer == "kernel" or op.category == "Dense rows"):
        return None
    arguments, attrs = bound_example(op)
    inputs = {name: np.asarray(admit(op, dict(arguments))[name]) for name in op.linear}
    before = call_op(op, arguments, attrs)
    lines = [
        line
        for name, array in inputs.items()
        for row in range(rows_of(array))
        for line in lines_from(op, arguments, attrs, before, name, row, array)
    ]
    outputs = {name: before[name] for name in before if any(line.target[0] == name for line in lines)}
    return draw(inputs, outputs, lines)


def call_op(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    result = OPS[op.name](**arguments, **attrs)
    values = result if isinstance(result, tuple) else (result,)
    return {o.name: np.asarray(v) for o, v in zip(op.outputs, values, strict=True)}


def lines_from(
    op: Op,
    arguments: Mapping[str, Any],
    attrs: Mapping[str, Any],
    before: Mapping[str, np.ndarray],
    name: str,
    row: int,
    array: np.ndarray,
) -> list[Line]:
    step, after = with_row_increased(op, arguments, attrs, before, name, row, array)
    found = []
    for target, old in before.items():
        if old.dtype.kind != array.dtype.kind:
            continue  # indices and shapes
        change = np.atleast_1d(after[target].astype(float) - old.astype(float)) / step
        scaled = old.shape[1:] == array.shape[1:]  # a row times a number
        for k in range(len(change)):
            if np.any(change[k]):
                factor = float(np.ravel(change[k])[0]) if scaled else None
                found.append(Line((name, row), (target, k), factor))
    return found


def with_row_increased(
    op: Op,
    arguments: Mapping[str, Any],
    attrs: Mapping[str, Any],
    before: Mapping[str, np.ndarray],
    name: str,
    row: int,
    array: np.ndarray,
) -> tuple[float, dict[str, np.ndarray]]:
    """Return the outputs with one row increased by little enough to keep the number of entries."""
    for step in (1, 2.0**-8):
        larger = np.array(array)
        larger[(row,) if array.ndim else ()] += step
        after = call_op(op, {**arguments, name: larger}, attrs)
        if all(after[target].shape == old.shape for target, old in before.items()):
            return step, after
    raise ValueError(f"{op.name}: with another {name} its example has another output shape")


def rows_of(array: np.ndarray) -> int:
    return len(array) if array.ndim else 1


def number(value: float) -> str:
    """Format a number: 1/3 rather than 0.333, √ where it applies, otherwise three digits."""
    for base, sign in ((value, ""), (math.copysign(value * value, value), "√")):
        near = Fraction(abs(base)).limit_denominator(12)
        if abs(float(near) - abs(base)) < 1e-5 and near:
            text = str(near) if not sign else ("√" + (f"({near})" if near.denominator > 1 else str(near)))
            if sign and near.numerator == 1 and near.denominator > 1:
                text = f"1/√{near.denominator}"
            return ("−" if value < 0 else "") + text
    return f"{value:.3g}".replace("-", "−")


def shown(array: np.ndarray, row: int) -> str:
    values = np.ravel(array[row] if array.ndim else array)
    text = ", ".join(f"{v:.4g}" for v in values[:4].astype(float)).replace("-", "−")
    return text + (", …" if len(values) > 4 else "")


def draw(inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], lines: list[Line]) -> str:
    """Draw inputs on the left, outputs on the right, a curve for every line; rows without a line are grey."""
    heights = [sum(HEAD + ROW * rows_of(a) + GAP for a in side.values()) for side in (inputs, outputs)]
    height = max(heights) + 2 * PAD
    left = placed(inputs, PAD + (max(heights) - heights[0]) // 2)
    right = placed(outputs, PAD + (max(heights) - heights[1]) // 2)
    plain = all(line.factor is None or line.factor == 1 for line in lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="ui-monospace, monospace" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#fff" stroke="#d0d7de"/>',
    ]
    sources = list(dict.fromkeys(line.source for line in lines))
    labels: list[tuple[int, int]] = []
    texts = []
    for line in lines:
        colour = COLOURS[sources.index(line.source) % len(COLOURS)]
        y0, y1 = left[line.source], right[line.target]
        middle = (LEFT + RIGHT) // 2
        parts.append(
            f'<path d="M{LEFT} {y0} C{middle} {y0} {middle} {y1} {RIGHT} {y1}" fill="none" stroke="{colour}" '
            'stroke-width="1.6"/>'
        )
        if not plain and line.factor is not None:
            labels.append(free_place([on_curve(LEFT, y0, RIGHT, y1, t) for t in PLACES], labels))
            texts.append(label(*labels[-1], "×" + number(line.factor), colour))
    parts += texts
    if plain and any(line.factor is not None for line in lines):
        parts.append(label((LEFT + RIGHT) // 2, height - 10, "all ×1", "#8c959f"))
    ends = {line.source for line in lines}, {line.target for line in lines}
    parts += boxes(inputs, left, 12, LEFT, ends[0]) + boxes(outputs, right, RIGHT, WIDTH - 12, ends[1])
    return "\n".join([*parts, "</svg>"]) + "\n"


def placed(side: Mapping[str, np.ndarray], y: int) -> dict[tuple[str, int], int]:
    """Return the vertical centre of every row."""
    places = {}
    for name, array in side.items():
        y += HEAD
        for row in range(rows_of(array)):
            places[name, row] = y + ROW // 2
            y += ROW
        y += GAP
    return places


def free_place(places: list[tuple[int, int]], occupied: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the first place without a label, or the first place if none is free."""
    free = (p for p in places if all(abs(p[0] - x) > 50 or abs(p[1] - y) > 13 for x, y in occupied))
    return next(free, places[0])


def on_curve(x0: int, y0: int, x1: int, y1: int, t: float) -> tuple[int, int]:
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    middle = (x0 + x1) / 2
    xs, ys = (x0, middle, middle, x1), (y0, y0, y1, y1)
    return round(sum(w * x for w, x in zip(weights, xs, strict=True))), round(
        sum(w * y for w, y in zip(weights, ys, strict=True))
    )


def label(x: int, y: int, text: str, colour: str) -> str:
    return (
        f'<text x="{x}" y="{y + 4}" text-anchor="middle" fill="{colour}" stroke="#fff" stroke-width="4" '
        f'paint-order="stroke" font-size="12">{escape(text)}</text>'
    )


def boxes(
    side: Mapping[str, np.ndarray], places: Mapping[tuple[str, int], int], x0: int, x1: int, used: set[tuple[str, int]]
) -> list[str]:
    parts = []
    for name, array in side.items():
        top = places.get((name, 0))
        if top is None:
            continue
        parts.append(f'<text x="{x0 + 2}" y="{top - ROW // 2 - 6}" fill="#1f2328">{escape(name)}</text>')
        for row in range(rows_of(array)):
            y, ink = places[name, row], "#1f2328" if (name, row) in used else "#8c959f"
            parts.append(
                f'<rect x="{x0}" y="{y - ROW // 2 + 1}" width="{x1 - x0}" height="{ROW - 2}" rx="3" fill="#f6f8fa" '
                f'stroke="#d0d7de"/><text x="{x0 + 8}" y="{y + 4}" fill="#8c959f">{row if array.ndim else ""}</text>'
                f'<text x="{x1 - 8}" y="{y + 4}" text-anchor="end" fill="{ink}">{escape(shown(array, row))}</text>'
            )
    return parts
