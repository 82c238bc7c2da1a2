"""A tensor saved in slices, read as one."""

from __future__ import annotations

import math

import numpy as np

from ..errors import refuse, shape_text
from .bundle import Array, Bundle, Span
from .data_file import check_memory, size_of
from .entries import Entry
from .slices import Box, boxes, slice_key


def read_slices(bundle: Bundle, key: bytes, entry: Entry, span: Span | None) -> Array:
    """The whole tensor, or rows of it: each slice is read, as far as it is wanted, and put where it belongs."""
    parts = [(slice_key(key, extents), box) for extents, box in zip(entry.slices, boxes(entry), strict=True)]
    entries = [_slice_entry(bundle, part, box, entry) for part, box in parts]
    _check_bytes(bundle, entry, entries)
    begin, end = span or (0, entry.shape[0])
    shape = (end - begin, *entry.shape[1:])
    check_memory(math.prod(shape) * entry.dtype.itemsize, entry.where)
    whole = np.empty(shape, entry.dtype)
    for (part, box), slice_entry in zip(parts, entries, strict=True):
        first, last = max(box[0].start, begin), min(box[0].stop, end)
        if first < last:
            wanted = None if span is None else (first - box[0].start, last - box[0].start)
            whole[first - begin : last - begin, *box[1:]] = bundle.read(part, slice_entry, wanted)
    return whole


def _slice_entry(bundle: Bundle, key: bytes, box: Box, whole: Entry) -> Entry:
    shape = tuple(along.stop - along.start for along in box)
    name = f"slice [{', '.join(f'{along.start}:{along.stop}' for along in box)}] of {whole.name}"
    if key not in bundle.values:
        raise refuse("checkpoint_value", file=bundle.file, what=name, value="missing", bound="there")
    entry = bundle.entry(key, name)
    if entry.slices or entry.shape != shape:
        found = "sliced again" if entry.slices else shape_text(entry.shape)
        raise refuse("checkpoint_value", file=entry.where, what="shape", value=found, bound=shape_text(shape))
    if entry.dtype != whole.dtype:
        raise refuse("checkpoint_value", file=entry.where, what="dtype", value=entry.dtype, bound=whole.dtype)
    return entry


def _check_bytes(bundle: Bundle, whole: Entry, entries: list[Entry]) -> None:
    """Slices that share bytes could make a small file large: together they have no more than the data files do."""
    paths = {bundle.data_path(entry) for entry in entries}
    wanted, there = sum(entry.size for entry in entries), sum(size_of(path) for path in paths)
    if wanted > there:
        what = "number of bytes in all slices"
        raise refuse("checkpoint_value", file=whole.where, what=what, value=wanted, bound=f"at most {there}")
