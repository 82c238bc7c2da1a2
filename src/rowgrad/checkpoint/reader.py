"""Checkpoint: the tensors of a checkpoint, by name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import OpError, refuse, shape_text
from .bundle import Array, Bundle, Span
from .entries import Entry
from .joining import read_slices
from .location import find_prefix
from .slices import SLICE_KEYS

OBJECT_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"  # what `tf.train.Checkpoint` puts after the path to a variable
_COMPARED, _LONGEST = 2000, 200  # how many names, and how long, are compared with one that is not there


class Checkpoint(Mapping[str, Array]):
    """The tensors of a TensorFlow checkpoint, by name.

    `path` is a prefix such as `model/model.ckpt-5`, its `.index` file, or a directory with a file `checkpoint`, which
    names the latest. A name is one of `names()`; in checkpoints of `tf.train.Checkpoint` it may be written without
    `/.ATTRIBUTES/VARIABLE_VALUE`. `checkpoint[name]` reads the tensor, as `read(name)` does.

    A file `checkpoint` may name files in its own directory only; with `follow_links`, anywhere.
    Checksums of the index are always compared; with `verify`, so are those of the tensors that are read.
    """

    def __init__(self, path: str | os.PathLike[str], *, verify: bool = True, follow_links: bool = False) -> None:
        self._bundle = Bundle(find_prefix(path, follow_links), verify)
        self._keys = {_text(key): key for key in self._bundle.values if not key.startswith(SLICE_KEYS)}

    @property
    def prefix(self) -> Path:
        """What the paths of the checkpoint's files begin with."""
        return self._bundle.prefix

    def names(self) -> list[str]:
        """The names of all tensors, sorted."""
        return list(self._keys)

    def dtype(self, name: str) -> np.dtype[Any]:
        """The dtype of a tensor; object for strings."""
        return self._entry(self._key(name)).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, the whole one if it was saved in slices."""
        return self._entry(self._key(name)).shape

    def read(self, name: str, rows: slice | None = None) -> Array:
        """A tensor, or neighbouring rows of it, as a new array; strings as bytes objects.

        With `rows` only these rows are kept in memory, so a large table can be had in parts. Its checksum is compared
        before the first part, and again when the file was written since, by reading it from end to end.
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

    __eq__, __hash__ = object.__eq__, object.__hash__  # two mappings would be compared by reading both

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
        """The error for a name that is not there, with names that may have been meant."""
        short = [other.removesuffix(OBJECT_SUFFIX) for other in self._keys if len(other) <= _LONGEST][:_COMPARED]
        meant = [other for other in short if name in other][:3] or difflib.get_close_matches(name[:_LONGEST], short)
        close = f"; near it: {', '.join(map(repr, meant))}" if meant else ""
        return refuse("checkpoint_no_tensor", file=self._bundle.file, value=repr(name), bound=len(self), why=close)


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def _span(rows: slice, entry: Entry) -> Span:
    possible = isinstance(rows, slice) and entry.shape
    begin, end, step = rows.indices(entry.shape[0]) if possible else (0, 0, 0)
    if step != 1:
        raise refuse("checkpoint_rows", file=entry.where, value=rows, bound=shape_text(entry.shape))
    return begin, max(begin, end)
