"""`Checkpoint`: the tensors of a TensorFlow checkpoint by name, joined from slices if they were saved in slices."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .._hints import nearest
from ..errors import OpError, make_error, shape_text
from .bundle import Array, Bundle, Span, check_memory, find_prefix, size_of
from .index_file import Entry, Extents

# -- Slices of partitioned variables: their keys, and whether they fit together ---------------------------------------

SLICE_KEYS = b"\0"  # the first byte of the keys of slices; names do not start with it
_MAX_CELLS = 1 << 20  # of the grid below; an axis split into k parts makes k of them
_SPECIAL = re.compile(rb"[\0\xff]")

Box = tuple[slice, ...]


def slice_key(name: bytes, extents: Extents) -> bytes:
    """Return the key of a slice: name and extents in TensorFlow's order-preserving encoding."""
    escaped = _SPECIAL.sub(lambda found: found[0] + bytes([255 - found[0][0]]), name)
    rank = bytes([1, len(extents)]) if extents else b"\0"
    numbers = b"".join(_sortable(start) + _sortable(-1 if length is None else length) for start, length in extents)
    return SLICE_KEYS + escaped + b"\0\1" + rank + numbers


def _sortable(value: int) -> bytes:
    """Encode as two's complement after as many one bits as there are bytes; inverted for negative numbers."""
    width = (~value if value < 0 else value).bit_length() // 7 + 1
    ones = ((1 << width) - 1) << 7 * width
    return (value % (1 << 8 * width) ^ ones).to_bytes(width, "big")


def boxes(entry: Entry) -> list[Box]:
    """Return where in the tensor each slice belongs; raise unless the slices cover each element once."""
    found = [_box(entry, extents) for extents in entry.slices]
    _check_cover(entry, found)
    return found


def _box(entry: Entry, extents: Extents) -> Box:
    if not extents or len(extents) != len(entry.shape):
        raise make_error("checkpoint_slice", file=entry.where, value=extents, bound=shape_text(entry.shape))
    box: list[slice] = []
    for (start, length), bound in zip(extents, entry.shape, strict=True):
        stop = bound if length is None else start + length
        if not 0 <= start <= stop <= bound:
            raise make_error("checkpoint_slice", file=entry.where, value=extents, bound=shape_text(entry.shape))
        box.append(slice(start, stop))
    return tuple(box)


def _check_cover(entry: Entry, found: list[Box]) -> None:
    """Raise unless the slices cover the tensor: count cells of the grid of their edges, which is always small."""
    edges = [
        sorted({0, bound} | {edge for box in found for edge in (box[axis].start, box[axis].stop)})
        for axis, bound in enumerate(entry.shape)
    ]
    cells = [len(along) - 1 for along in edges]
    if math.prod(cells) > _MAX_CELLS:
        what = "number of cells between slices"
        raise make_error("checkpoint_value", file=entry.where, what=what, value=cells, bound=f"at most {_MAX_CELLS}")
    places = [{edge: place for place, edge in enumerate(along)} for along in edges]
    covered = np.zeros(cells, bool)
    for box in found:
        region = tuple(slice(at[part.start], at[part.stop]) for at, part in zip(places, box, strict=True))
        if covered[region].any():  # the first overlap raises, so each cell is visited once
            why = f"overlap at [{', '.join(f'{part.start}:{part.stop}' for part in box)}] in"
            raise make_error("checkpoint_cover", file=entry.where, why=why, value=box, bound=shape_text(entry.shape))
        covered[region] = True
    if not covered.all():
        missing = int((~covered).sum())
        why = f"leave out {missing} {'part' if missing == 1 else 'parts'} of"
        raise make_error("checkpoint_cover", file=entry.where, why=why, value=missing, bound=shape_text(entry.shape))


def read_slices(bundle: Bundle, key: bytes, entry: Entry, span: Span | None) -> Array:
    """Read a tensor, or some of its rows, from its slices."""
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
            rows = None if span is None else (first - box[0].start, last - box[0].start)
            whole[first - begin : last - begin, *box[1:]] = bundle.read(part, slice_entry, rows)
    return whole


def _slice_entry(bundle: Bundle, key: bytes, box: Box, whole: Entry) -> Entry:
    shape = tuple(along.stop - along.start for along in box)
    name = f"slice [{', '.join(f'{along.start}:{along.stop}' for along in box)}] of {whole.name}"
    if key not in bundle.values:
        raise make_error("checkpoint_value", file=bundle.file, what=name, value="missing", bound="present")
    entry = bundle.entry(key, name)
    if entry.slices or entry.shape != shape:
        found = "sliced again" if entry.slices else shape_text(entry.shape)
        raise make_error("checkpoint_value", file=entry.where, what="shape", value=found, bound=shape_text(shape))
    if entry.dtype != whole.dtype:
        raise make_error("checkpoint_value", file=entry.where, what="dtype", value=entry.dtype, bound=whole.dtype)
    return entry


def _check_bytes(bundle: Bundle, whole: Entry, entries: list[Entry]) -> None:
    """Raise if the slices have more bytes than the files: overlapping slices would inflate a small file."""
    paths = {bundle.data_path(entry) for entry in entries}
    needed, available = sum(entry.size for entry in entries), sum(size_of(path) for path in paths)
    if needed > available:
        what = "number of bytes in all slices"
        raise make_error("checkpoint_value", file=whole.where, what=what, value=needed, bound=f"at most {available}")


# -- Checkpoint -------------------------------------------------------------------------------------------------------

OBJECT_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"  # what `tf.train.Checkpoint` appends to the path of a variable
_MAX_SUGGESTIONS, _MAX_NAME = 2000, 200  # names searched for suggestions, and their length


class Checkpoint(Mapping[str, Array]):
    """The tensors of a TensorFlow checkpoint, as a mapping from names to arrays.

    `checkpoint[name]` reads a tensor, like `read(name)`. A name is one of `names()`; in checkpoints of
    `tf.train.Checkpoint` the suffix `/.ATTRIBUTES/VARIABLE_VALUE` may be omitted.

    Args:
        path: A prefix such as `model/model.ckpt-5`, its `.index` file, or a directory with one checkpoint, or whose
            file `checkpoint` names the latest.
        verify: Verify the checksums of the tensors that are read; those of the index are always verified.
        follow_links: Let the file `checkpoint` name files outside of its directory.

    Raises:
        CheckpointNotFoundError: If there is no checkpoint at this path.
        InvalidArgumentError: If the index is damaged.

    >>> from rowgrad.checkpoint import Checkpoint
    >>> Checkpoint("missing.ckpt")
    Traceback (most recent call last):
    ...
    rowgrad.errors.CheckpointNotFoundError: missing.ckpt.index: no such file
    """

    def __init__(self, path: str | os.PathLike[str], *, verify: bool = True, follow_links: bool = False) -> None:
        self._bundle = Bundle(find_prefix(path, follow_links), verify)
        self._keys = {_text(key): key for key in self._bundle.values if not key.startswith(SLICE_KEYS)}

    @property
    def prefix(self) -> Path:
        """The common prefix of the checkpoint's files."""
        return self._bundle.prefix

    def names(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return list(self._keys)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of a tensor; object for strings."""
        return self._entry(self._key(name)).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; of the whole tensor if it was saved in slices."""
        return self._entry(self._key(name)).shape

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Read a tensor, or a contiguous range of its rows, as a new array; strings as bytes objects.

        With `rows` only these rows are in memory, so a large table can be read in parts. The whole tensor is read once
        to verify its checksum before the first part, and again if the file changed since.

        Args:
            name: The name of the tensor.
            rows: A slice with step 1; by default all rows.

        Returns:
            The tensor or its rows.

        Raises:
            TensorNotFoundError: If there is no tensor of this name.
            CheckpointError: If the files are damaged.
        """
        key = self._key(name)
        entry = self._entry(key)
        span = None if rows is None else _span(rows, entry)
        return read_slices(self._bundle, key, entry, span) if entry.slices else self._bundle.read(key, entry, span)

    def __getitem__(self, name: str) -> Array:
        return self.read(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._keys or name + OBJECT_SUFFIX in self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    __eq__, __hash__ = object.__eq__, object.__hash__  # Mapping would compare two checkpoints by reading both

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.prefix)!r}, tensors={len(self)}, data_files={self._bundle.header.data_files})"

    def _key(self, name: str) -> bytes:
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {type(name)}")
        key = self._keys.get(name, self._keys.get(name + OBJECT_SUFFIX))
        if key is None:
            raise self.no_tensor(name)
        return key

    def _entry(self, key: bytes) -> Entry:
        return self._bundle.entry(key, repr(_text(key)))

    def no_tensor(self, name: str) -> OpError:
        """Return the error for an unknown name, which suggests similar names."""
        short = [other.removesuffix(OBJECT_SUFFIX) for other in self._keys if len(other) <= _MAX_NAME][
            :_MAX_SUGGESTIONS
        ]
        similar = [other for other in short if name in other][:3] or nearest(name, short, 3)
        why = f"; similar names: {', '.join(map(repr, similar))}" if similar else ""
        return make_error("checkpoint_no_tensor", file=self._bundle.file, value=repr(name), bound=len(self), why=why)


def row_ranges(checkpoint: Checkpoint, name: str) -> list[slice]:
    """Return the rows of each shard of a partitioned variable that was saved under one name, or all rows."""
    entry = checkpoint._entry(checkpoint._key(name))
    edges = sorted({edge for box in boxes(entry) for edge in (box[0].start, box[0].stop)} if entry.slices else ())
    return [slice(first, stop) for first, stop in pairwise(edges)] or [slice(None)]


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def _span(rows: slice, entry: Entry) -> Span:
    possible = isinstance(rows, slice) and entry.shape
    begin, end, step = rows.indices(entry.shape[0]) if possible else (0, 0, 0)
    if step != 1:
        raise make_error("checkpoint_rows", file=entry.where, value=rows, bound=shape_text(entry.shape))
    return begin, max(begin, end)
