"""The order of a page's blocks: each after those its wires come from, else as the page has them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from .page import Block, End, Page, PageError


@dataclass(slots=True)
class Ordered:
    """Blocks in order; circles of wires, each as a list of ids; and the blocks that need one of those."""

    blocks: list[Block] = field(default_factory=list)
    circles: list[list[str]] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)


def ends_of(block: Block) -> Iterator[End]:
    """Where the block's wires begin."""
    for ends in block.wires.values():
        yield from ends


def in_order(page: Page) -> list[Block]:
    """The blocks in order; a circle is refused."""
    found = ordered(page)
    for circle in found.circles:
        raise circle_error(circle)
    return found.blocks


def circle_error(circle: list[str]) -> PageError:
    """What is wrong with wires that lead back to where they began."""
    return PageError(circle[0], f"its wires lead back to itself: {' → '.join([*circle, circle[0]])}")


def ordered(page: Page) -> Ordered:
    """Put blocks in order as far as that goes."""
    blocks = {b.id: b for b in page.blocks}
    sources = {b.id: {e.block for e in ends_of(b) if e.block in blocks} for b in page.blocks}
    readers: dict[str, list[str]] = {}
    for name, before in sources.items():
        for source in before:
            readers.setdefault(source, []).append(name)
    missing = {name: len(before) for name, before in sources.items()}
    found = Ordered()
    place = {b.id: k for k, b in enumerate(page.blocks)}
    ready = [place[name] for name, count in missing.items() if count == 0]  # ascending, so a heap
    while ready:
        block = page.blocks[heapq.heappop(ready)]
        found.blocks.append(block)
        for reader in readers.get(block.id, ()):
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, place[reader])
    _find_circles(found, sources, {name for name, count in missing.items() if count > 0})
    return found


def _find_circles(found: Ordered, sources: dict[str, set[str]], stuck: set[str]) -> None:
    """Circle after circle is taken out; what is left then only waits."""
    stuck_in_order = [name for name in sources if name in stuck]
    while stuck_in_order:
        left = set(stuck_in_order)
        free = [name for name in stuck_in_order if not sources[name] & left]
        if free:
            found.waiting += free
        else:
            free = _circle(stuck_in_order[0], sources, left)
            first = min(range(len(free)), key=lambda k: stuck_in_order.index(free[k]))
            found.circles.append([*free[first:], *free[:first]])
        stuck_in_order = [name for name in stuck_in_order if name not in free]


def _circle(start: str, sources: dict[str, set[str]], left: set[str]) -> list[str]:
    """Walk against the wires until a block comes up again."""
    path = [start]
    while True:
        before = min(sources[path[-1]] & left)
        if before in path:
            return path[path.index(before) :][::-1]
        path.append(before)
