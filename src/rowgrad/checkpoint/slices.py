"""Tensors saved in slices, as partitioned variables are: under which key each lies, and whether they fit together."""

from __future__ import annotations

import math
import re

import numpy as np

from ..errors import refuse, shape_text
from .entries import Entry, Extents

SLICE_KEYS = b"\0"  # what keys of slices begin with, and names do not
_MOST_CELLS = 1 << 20  # of the grid below; one axis cut into k parts makes k of them
_SPECIAL = re.compile(rb"[\0\xff]")

Box = tuple[slice, ...]


def slice_key(name: bytes, extents: Extents) -> bytes:
    """The key of a slice: name and extents, in a code that sorts as they do."""
    escaped = _SPECIAL.sub(lambda found: found[0] + bytes([255 - found[0][0]]), name)
    rank = bytes([1, len(extents)]) if extents else b"\0"
    numbers = b"".join(_sortable(start) + _sortable(-1 if length is None else length) for start, length in extents)
    return SLICE_KEYS + escaped + b"\0\1" + rank + numbers


def _sortable(value: int) -> bytes:
    """Two's complement behind as many ones as there are bytes, turned over for negative numbers."""
    width = (~value if value < 0 else value).bit_length() // 7 + 1
    ones = ((1 << width) - 1) << 7 * width
    return (value % (1 << 8 * width) ^ ones).to_bytes(width, "big")


def boxes(entry: Entry) -> list[Box]:
    """Where in the whole tensor each slice belongs. Together they cover it, each element once."""
    found = [_box(entry, extents) for extents in entry.slices]
    _check_cover(entry, found)
    return found


def _box(entry: Entry, extents: Extents) -> Box:
    if not extents or len(extents) != len(entry.shape):
        raise refuse("checkpoint_slice", file=entry.where, value=extents, bound=shape_text(entry.shape))
    box: list[slice] = []
    for (start, length), bound in zip(extents, entry.shape, strict=True):
        stop = bound if length is None else start + length
        if not 0 <= start <= stop <= bound:
            raise refuse("checkpoint_slice", file=entry.where, value=extents, bound=shape_text(entry.shape))
        box.append(slice(start, stop))
    return tuple(box)


def _check_cover(entry: Entry, found: list[Box]) -> None:
    """Mark the cells of the grid that all edges make together: small, however large the tensor."""
    edges = [
        sorted({0, bound} | {edge for box in found for edge in (box[axis].start, box[axis].stop)})
        for axis, bound in enumerate(entry.shape)
    ]
    cells = [len(along) - 1 for along in edges]
    if math.prod(cells) > _MOST_CELLS:
        what = "number of cells between slices"
        raise refuse("checkpoint_value", file=entry.where, what=what, value=cells, bound=f"at most {_MOST_CELLS}")
    places = [{edge: place for place, edge in enumerate(along)} for along in edges]
    covered = np.zeros(cells, bool)
    for box in found:
        region = tuple(slice(at[part.start], at[part.stop]) for at, part in zip(places, box, strict=True))
        if covered[region].any():  # stops at the first overlap, so the grid is walked once at most
            raise refuse(
                "checkpoint_cover", file=entry.where, why="overlap in", value=box, bound=shape_text(entry.shape)
            )
        covered[region] = True
    if not covered.all():
        why, missing = "leave out parts of", int((~covered).sum())
        raise refuse("checkpoint_cover", file=entry.where, why=why, value=missing, bound=shape_text(entry.shape))
