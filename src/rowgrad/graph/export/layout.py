"""Where blocks of a page stand, for those that nobody has placed."""

from __future__ import annotations

from ..ordering import in_order
from ..page import Block, Page, PageError

# Wide and tall enough for the studio, which shows values and results on its blocks.
WIDTH, GAP, ROW, PIN, ROOM = 240.0, 80.0, 34.0, 22.0, 70.0


def height_of(pins: int) -> float:
    """How tall a block with so many pins on its longer side is."""
    return ROW + PIN * max(pins, 1) + 8.0


def within(x: float) -> float:
    """A coordinate a drawing can have."""
    return min(max(x, -1e7), 1e7)


def positions(page: Page, heights: dict[str, float]) -> dict[str, tuple[float, float]]:
    """The upper left corner of every block: as the page says, else in columns from left to right along the wires."""
    # Beyond this no drawing can be looked at, and sums of such numbers are none.
    placed = {b.id: (within(b.at[0]), within(b.at[1])) for b in page.blocks if b.at is not None}
    if len(placed) == len(page.blocks):
        return placed
    right = max((x for x, _ in placed.values()), default=-WIDTH - GAP) + WIDTH + GAP
    columns: dict[int, list[Block]] = {}
    depth: dict[str, int] = {}
    try:
        order = in_order(page)
    except PageError:  # a circle has no left and right
        order = page.blocks
    for block in order:
        before = [depth.get(e.block, -1) for ends in block.wires.values() for e in ends]
        depth[block.id] = max(before, default=-1) + 1
        if block.id not in placed:
            columns.setdefault(depth[block.id], []).append(block)
    for column, blocks in columns.items():
        y = 20.0
        for block in blocks:
            placed[block.id] = (right + 20.0 + column * (WIDTH + GAP), y)
            y += heights[block.id] + ROOM
    return placed
