"""Positions of imported blocks: enuSpace drew small symbols, Studio shows values on its blocks.

The drawing is scaled so that most blocks have the distance they need, which keeps its shape. Blocks that would still
overlap are moved down, and texts that a block would cover are moved up.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..block_height import block_height
from ..page import Block, Note

# The greatest width of Studio's blocks, and the distance that wires and labels need.
WIDTH = 390.0
_ACROSS, _DOWN = 40.0, 40.0
_MOST_SCALE = 4.0  # a few blocks drawn on top of one another must not blow up the whole page
_NEIGHBOURS = 24  # blocks below each one that the scale is computed from
_CELL = 10.0  # resolution at which columns of blocks are compared
_FARTHEST = 1e7
_LETTER, _LINE, _MARGIN = 7.5, 20.0, 6.0  # of texts

_Place = tuple[float, float]


def spread_out(blocks: list[Block], notes: list[Note]) -> list[Note]:
    """Move blocks until none overlap; return the notes at places that correspond, and that no block covers.

    The upper left corner of the drawing stays.
    """
    placed = [block for block in blocks if block.at is not None]
    corners = [block.at for block in placed if block.at is not None]
    if not placed:
        return notes
    left, top = (min(corner[k] for corner in corners) for k in (0, 1))
    scale = _scale(corners, [block_height(block) for block in placed])

    def scaled(at: _Place) -> _Place:
        return _moved(at[0], left, scale), _moved(at[1], top, scale)

    for block, corner in zip(placed, corners, strict=True):
        block.at = scaled(corner)
    _move_down(placed)
    return _uncovered([replace(note, at=scaled(note.at)) for note in notes], placed)


def _moved(x: float, origin: float, scale: float) -> float:
    far = origin + (x - origin) * scale
    return round(min(max(far, -_FARTHEST), _FARTHEST), 3) if scale != 1.0 else x


def _scale(corners: list[_Place], heights: list[float]) -> float:
    """Return the factor at which nine of ten blocks have the distance they need from those around them."""
    ordered = sorted(zip(corners, heights, strict=True), key=lambda entry: entry[0][1])
    needed = []
    for k, ((x, y), height) in enumerate(ordered):
        factors = [1.0]
        for (u, v), _ in ordered[k + 1 : k + 1 + _NEIGHBOURS]:
            across, down = abs(u - x), v - y
            factors.append(min(_ratio(WIDTH + _ACROSS, across), _ratio(height + _DOWN, down)))
        needed.append(max(factors))
    needed.sort()
    return min(needed[int(0.9 * (len(needed) - 1))], _MOST_SCALE)


def _ratio(wanted: float, distance: float) -> float:
    return wanted / distance if distance > 1e-6 else math.inf


def _move_down(placed: list[Block]) -> None:
    """Move blocks down, in the order of their upper edges, below those whose columns they share."""
    lowest: dict[int, float] = {}  # the lower edge of the last block, by its left edge
    reach = math.ceil(WIDTH / _CELL)
    for block in sorted(placed, key=lambda block: block.at[1] if block.at else 0.0):
        x, y = block.at or (0.0, 0.0)
        cell = math.floor(x / _CELL)
        y = max(y, *(lowest.get(near, y) for near in range(cell - reach, cell + reach + 1)))
        lowest[cell] = y + block_height(block) + _DOWN
        block.at = x, y


def _uncovered(notes: list[Note], placed: list[Block]) -> list[Note]:
    """Move texts up that a block or an earlier text covers."""
    boxes = np.empty((len(placed) + len(notes), 4))  # left, top, right, bottom
    for k, block in enumerate(placed):
        x, y = block.at or (0.0, 0.0)
        boxes[k] = x, y, x + WIDTH, y + block_height(block)
    found = []
    for k, note in enumerate(notes, len(placed)):
        lines = note.text.splitlines() or [""]
        width, height = _LETTER * max(map(len, lines)), _LINE * len(lines)
        x, y = note.at
        while True:
            left, top, right, bottom = boxes[:k].T
            over = (left < x + width) & (x < right) & (top < y + height) & (y < bottom)
            if not over.any():
                break
            y = float(top[over].min()) - height - _MARGIN
        boxes[k] = x, y, x + width, y + height
        found.append(note if y == note.at[1] else replace(note, at=(x, round(y, 3))))
    return found
