"""Draw the pictures that explain rowgrad: a lookup, its gradient, unique rows, a plan, and shards.

Every number in them is computed by rowgrad when they are drawn. They have no background, and all their colours are
readable on white and on black, so that they fit both themes of a site.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

import numpy as np

import rowgrad as rg

FOLDER = "docs/images/explained"
INK = "#737b85"  # the same contrast on white and on black
IDLE = "#8b949e"
COLOURS = ("#1f6feb", "#bc4c00", "#1a7f37", "#8250df")
CELL, ROW = 34, 30

TABLE = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)
IDS = np.array([3, 1, 3, 0])
BAGS = np.array([0, 0, 1, 1])


@dataclass
class Drawing:
    """The elements of one picture."""

    width: int
    height: int
    title: str
    elements: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, text: str, *, fill: str = INK, anchor: str = "start", bold: bool = False
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.elements.append(
            f'<text x="{x:g}" y="{y:g}" fill="{fill}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def box(self, x: float, y: float, text: str, colour: str | None, width: float = 2 * CELL) -> None:
        """Draw a row: filled if it takes part, otherwise an outline."""
        fill, edge, ink = (colour, colour, "#ffffff") if colour else ("none", IDLE, INK)
        self.elements.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{ROW - 4}" rx="4" fill="{fill}" stroke="{edge}"/>'
        )
        self.text(x + width / 2, y + 18, text, fill=ink, anchor="middle")

    def curve(self, x0: float, y0: float, x1: float, y1: float, colour: str) -> None:
        middle = (x0 + x1) / 2
        self.elements.append(
            f'<path d="M{x0:g} {y0:g} C{middle:g} {y0:g} {middle:g} {y1:g} {x1:g} {y1:g}" fill="none" '
            f'stroke="{colour}" stroke-width="2"/>'
        )

    def label(self, x: float, y: float, text: str, colour: str) -> None:
        """Draw text on a chip of its colour, which covers the curve below it."""
        width = 9 * len(text) + 8
        self.elements.append(
            f'<rect x="{x - width / 2:g}" y="{y - 10:g}" width="{width}" height="20" rx="10" fill="{colour}"/>'
        )
        self.text(x, y + 5, text, fill="#ffffff", anchor="middle")

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" font-family="system-ui, sans-serif" font-size="14">'
        )
        return "\n".join([head, f"<title>{escape(self.title)}</title>", *self.elements, "</svg>"]) + "\n"


def number(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def row_text(row: Sequence[float]) -> str:
    return ", ".join(number(float(v)) for v in row)


def centre(y: float, row: int) -> float:
    return y + row * ROW + (ROW - 4) / 2


def lookup() -> str:
    """Two bags of ids, and the means of their rows."""
    bags = rg.raw_ops.SparseSegmentMean(TABLE, IDS, BAGS)
    d = bags_of_rows("Lookup: the mean of the rows of each bag", ("table", "bags"), TABLE, np.asarray(bags))
    for bag, colour in enumerate(COLOURS[:2]):
        ids = ", ".join(str(i) for i in IDS[bag == BAGS])
        d.text(338, 92 + 2 * bag * ROW + 42, f"ids {ids}", fill=colour, anchor="end")
    d.text(8, 214, "Row 2 is in no bag: it is not read.")
    return d.svg()


def gradient() -> str:
    """The gradient of the table for that lookup, which has rows only for ids that occurred."""
    upstream = np.array([[2, 0], [0, 4]], np.float32)
    dense = rg.densify(rg.vjp(rg.raw_ops.SparseSegmentMean, (TABLE, IDS, BAGS), upstream)[0])
    names = "gradient of the table", "gradient of bags"
    d = bags_of_rows("Its gradient: only rows that were read", names, dense, upstream, "no row")
    d.text(8, 214, "Row 2 has no gradient: it is not stored.")
    return d.svg()


def bags_of_rows(
    title: str, names: tuple[str, str], table: np.ndarray, results: np.ndarray, unused: str = ""
) -> Drawing:
    """Draw the rows of a table, the bags, and a curve with its factor for each id; narrow enough for a telephone."""
    d, top, low, left, right = Drawing(350, 228, title), 62, 92, 32, 270
    d.text(8, 24, title, bold=True)
    d.text(left, top - 14, names[0])
    d.text(right + 2 * CELL, low - 14, names[1], anchor="end")
    ends = [
        (left + 2 * CELL, centre(top, row), right, centre(low, 2 * bag)) for row, bag in zip(IDS, BAGS, strict=True)
    ]
    for (x0, y0, x1, y1), bag in zip(ends, BAGS, strict=True):
        d.curve(x0, y0, x1, y1, COLOURS[bag])
    for line, bag, t in zip(ends, BAGS, (0.7, 0.2, 0.2, 0.7), strict=True):
        d.label(*bezier(*line, t), "×½", COLOURS[bag])
    for k, row in enumerate(table):
        used = k in IDS
        d.text(left - 8, top + k * ROW + 18, str(k), anchor="end")
        d.box(left, top + k * ROW, row_text(row) if used or not unused else unused, INK if used else None)
    for k, row in enumerate(results):
        d.box(right, low + 2 * k * ROW, row_text(row), COLOURS[k])
    return d


def bezier(x0: float, y0: float, x1: float, y1: float, t: float) -> tuple[float, float]:
    middle = (x0 + x1) / 2
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    x = sum(w * v for w, v in zip(weights, (x0, middle, middle, x1), strict=True))
    y = sum(w * v for w, v in zip(weights, (y0, y0, y1, y1), strict=True))
    return x, y


def unique_rows() -> str:
    """The contributions of a batch, one per id, and the row-sparse gradient in which each row occurs once."""
    ids, upstream = np.array([7, 2, 7, 5, 7]), np.array([[1.0], [2.0], [3.0], [4.0], [5.0]], np.float32)
    values, found = rg.raw_ops.SparseSegmentSumGradV2(upstream, ids, np.arange(5), 9)
    d = Drawing(390, 246, "Contributions of a batch, and its unique rows")
    d.text(20, 24, "One contribution per id", bold=True)
    d.text(240, 24, "Unique rows", bold=True)
    d.text(20, 48, "id")
    d.text(70, 48, "gradient")
    d.text(240, 48, "row")
    d.text(290, 48, "sum")
    d.text(20, 236, "Each sum adds its terms in the order of the ids.")
    colours = dict(zip(found.tolist(), COLOURS, strict=False))
    for k, row in enumerate(ids.tolist()):
        target = found.tolist().index(row)
        d.curve(70 + 2 * CELL, centre(58, k), 232, centre(88, target), colours[row])
    for k, (row, value) in enumerate(zip(ids.tolist(), upstream[:, 0], strict=True)):
        d.text(20, 58 + k * ROW + 18, str(row), fill=colours[row], bold=True)
        d.box(70, 58 + k * ROW, number(value), colours[row])
    for k, (row, value) in enumerate(zip(found.tolist(), values[:, 0], strict=True)):
        d.text(240, 88 + k * ROW + 18, str(row), fill=colours[row], bold=True)
        d.box(290, 88 + k * ROW, number(value), colours[row])
    return d.svg()


def plan() -> str:
    """What a plan stores: positions of the batch sorted by row, once for all gradients of the batch."""
    ids = np.array([7, 2, 7, 5, 7])
    order = np.argsort(ids, kind="stable")
    d = Drawing(540, 190, "A plan: the positions of a batch, grouped by row, used by several gradients")
    d.text(20, 24, "ids of a batch", bold=True)
    d.text(160, 24, "Plan: positions by row", bold=True)
    d.text(404, 24, "used by", bold=True)
    colours = dict(zip(np.unique(ids).tolist(), COLOURS, strict=False))
    for position, row in enumerate(ids.tolist()):
        target = order.tolist().index(position)
        d.curve(20 + 2 * CELL, centre(38, position), 172, centre(38, target), colours[row])
    for position, row in enumerate(ids.tolist()):
        d.box(20, 38 + position * ROW, str(row), colours[row])
    for k, position in enumerate(order.tolist()):
        row = int(ids[position])
        d.text(216, 38 + k * ROW + 18, f"row {row}", anchor="end")
        d.box(224, 38 + k * ROW, f"position {position}", colours[row], 110)
    for k, text in enumerate(("gradient of table A", "gradient of table B", "optimizer step")):
        d.curve(334, centre(38, 2), 398, centre(50, 1.4 * k), INK)
        d.text(404, 50 + 1.4 * k * ROW + 18, text)
    return d.svg()


def shards() -> str:
    """Which shard stores which row of a table of 8 rows, by "div" and by "mod"."""
    left = 12
    d = Drawing(320, 324, "Rows of a table on three shards, by div and by mod")
    for block, strategy in enumerate(("div", "mod")):
        top = 162 * block
        d.text(left, top + 24, f'strategy="{strategy}"', bold=True)
        split = rg.partition(np.arange(8), 3, strategy, num_rows=8)
        for shard, local in enumerate(split.rows):
            d.text(left + 62, top + 44 + shard * 38 + 18, f"shard {shard}", anchor="end")
            for k, row in enumerate(rg.global_ids(shard, local, 3, strategy, num_rows=8).tolist()):
                d.box(left + 72 + k * 72, top + 44 + shard * 38, f"row {row}", COLOURS[shard], 66)
    return d.svg()


PICTURES = {
    "lookup": lookup,
    "gradient": gradient,
    "unique_rows": unique_rows,
    "plan": plan,
    "shards": shards,
}


def drawings() -> dict[str, str]:
    """Return path and text of every picture."""
    return {f"{FOLDER}/{name}.svg": draw() for name, draw in PICTURES.items()}
