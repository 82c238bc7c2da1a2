"""Names and positions for blocks that an editor adds to a page: gradients, fixes, examples."""

from __future__ import annotations

from .block_height import block_height
from .export.picture import positions, within
from .page import Block, Page

# The usual width of blocks in an editor, and the space between them. Long names make a block up to 150 wider.
WIDTH = 240.0
ASIDE, _BELOW = 190.0, 48.0


class UnusedNames:
    """Unused ids of a page."""

    def __init__(self, page: Page) -> None:
        self._used = {b.id for b in page.blocks}
        self._counts: dict[str, int] = {}

    def take(self, name: str) -> str:
        """Return the name, or the first of name_2, name_3, … that is unused."""
        found, count = name, self._counts.get(name, 1)
        while found in self._used:
            count += 1
            found = f"{name}_{count}"
        self._counts[name] = count
        self._used.add(found)
        return found


def arrange(page: Page, blocks: list[Block]) -> None:
    """Place blocks in columns to the right of the page; in a column, blocks are ordered by where their wires begin."""
    there = positions(page, {b.id: block_height(b) for b in page.blocks})
    frames = [(note.at[0], size) for note in page.notes if (size := getattr(note, "size", None)) is not None]
    edges = [x + WIDTH for x, _ in there.values()] + [within(x + size[0]) for x, size in frames]
    right = max(edges, default=-ASIDE) + ASIDE
    top = min((y for _, y in there.values()), default=0.0)
    depth: dict[str, int] = {}
    columns: dict[int, list[Block]] = {}
    for block in blocks:  # each comes after the blocks its wires begin at
        before = [depth[e.block] for ends in block.wires.values() for e in ends if e.block in depth]
        depth[block.id] = max(before, default=-1) + 1
        columns.setdefault(depth[block.id], []).append(block)
    for column, members in sorted(columns.items()):
        sources = {b.id: [there[e.block][1] for ends in b.wires.values() for e in ends] for b in members}
        y = top
        for block in sorted(members, key=lambda b: sum(sources[b.id]) / max(len(sources[b.id]), 1)):
            block.at = there[block.id] = (within(right + column * (WIDTH + ASIDE)), within(y))
            y += block_height(block) + _BELOW


def place_left(page: Page, blocks: list[tuple[Block, str]]) -> None:
    """Place each block to the left of a block of the page, whose id is given, as far down as nothing is in the way."""
    heights = {b.id: block_height(b) for b in page.blocks}
    there = positions(page, heights)
    boxes = [(*there[b.id], heights[b.id]) for b in page.blocks]
    for block, right in blocks:
        x, y = there[right][0] - WIDTH - ASIDE, there[right][1]
        height = block_height(block)
        while below := [
            top + high
            for left, top, high in boxes
            if abs(left - x) < WIDTH and y < top + high + _BELOW and top < y + height + _BELOW
        ]:
            y = max(below) + _BELOW
        block.at = (within(x), within(y))
        boxes.append((x, y, height))
