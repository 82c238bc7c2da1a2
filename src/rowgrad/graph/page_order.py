"""Topological order of a page's blocks: each after those its wires begin at, otherwise in the page's order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from .page import Block, End, Page, PageError

_SHOWN = 20  # blocks of a circle that its error message names


@dataclass(slots=True)
class Ordered:
    """Blocks in order, circles of wires as lists of ids, and the ids of blocks that depend on a circle."""

    blocks: list[Block] = field(default_factory=list)
    circles: list[list[str]] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)


def ends_of(block: Block) -> Iterator[End]:
    """Yield the output pins at which the block's wires begin."""
    for ends in block.wires.values():
        yield from ends


def upstream(page: Page, starts: Iterable[str]) -> set[str]:
    """Return these blocks and all that they depend on."""
    sources = {b.id: {e.block for e in ends_of(b)} for b in page.blocks}
    found, waiting = set[str](), list(starts)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += sources.get(name, ())
    return found


def in_order(page: Page) -> list[Block]:
    """Return the blocks in order; raise PageError if wires form a circle."""
    found = ordered(page)
    for circle in found.circles:
        raise circle_error(circle)
    return found.blocks


def circle_error(circle: list[str]) -> PageError:
    """Return the error for wires that form a circle."""
    shown = circle if len(circle) <= _SHOWN else [*circle[: _SHOWN - 1], f"({len(circle) - _SHOWN} more)", circle[-1]]
    return PageError(circle[0], f"its wires lead back to itself: {' → '.join([*shown, circle[0]])}")


def ordered(page: Page) -> Ordered:
    """Order the blocks that depend on no circle, and find the circles."""
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
    _find_circles(found, sources, readers, [name for name in sources if missing[name] > 0])
    return found


def _find_circles(
    found: Ordered, sources: dict[str, set[str]], readers: dict[str, list[str]], stuck: list[str]
) -> None:
    """Remove one circle after the other; blocks that only depended on it are waiting. Each wire is followed once."""
    place = {name: k for k, name in enumerate(stuck)}
    missing = {name: sum(source in place for source in sources[name]) for name in stuck}
    left = set(stuck)
    ahead = {name: sorted((s for s in sources[name] if s in left), reverse=True) for name in stuck}
    path: dict[str, None] = {}  # the walk against the direction of wires
    for start in stuck:
        while start in left:
            while path and next(reversed(path)) not in left:
                path.popitem()
            path = path or {start: None}
            free = _walk(path, ahead, left)
            first = min(range(len(free)), key=lambda k: place[free[k]])
            found.circles.append([*free[first:], *free[:first]])
            while free:
                left.difference_update(free)
                freed = []
                for name in free:
                    for reader in readers.get(name, ()):
                        if reader in left:
                            missing[reader] -= 1
                            if missing[reader] == 0:
                                freed.append(reader)
                free = sorted(freed, key=place.__getitem__)
                found.waiting += free


def _walk(path: dict[str, None], ahead: dict[str, list[str]], left: set[str]) -> list[str]:
    """Walk against the direction of wires until a block repeats; return the circle in the direction of its wires."""
    last = next(reversed(path))
    while True:
        while ahead[last][-1] not in left:
            ahead[last].pop()
        before = ahead[last][-1]
        if before in path:
            return [*takewhile(before.__ne__, reversed(path)), before]
        path[before] = None
        last = before
