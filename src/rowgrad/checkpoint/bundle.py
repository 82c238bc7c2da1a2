"""The files of a checkpoint: keys with what the index says of them, and the bytes they stand for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import refuse
from .crc32c import check_checksum, crc32c
from .data_file import Stamp, check_place, checksum, read_bytes, stamp_of
from .entries import Entry, Header
from .index_file import read_index
from .location import data_path, index_path
from .strings import decode_strings

Array = np.ndarray[Any, Any]
Span = tuple[int, int]  # the first row, and the one after the last


class Bundle:
    """One checkpoint's files. Every read opens and closes them."""

    def __init__(self, prefix: Path, verify: bool) -> None:
        self.prefix, self.verify = prefix, verify
        self.file = str(index_path(prefix))
        self.values = read_index(index_path(prefix))
        header = self.values.pop(b"", None)
        if header is None:
            raise refuse("checkpoint_value", file=self.file, what="first key", value="a name", bound="empty")
        self.header = Header.read(header, f"{self.file}: header")
        self._verified: dict[bytes, Stamp] = {}  # tensors read by rows, and their data files when they were compared

    def entry(self, key: bytes, name: str) -> Entry:
        """What the index says of a key, which has to be there; `name` is for errors."""
        return Entry.read(self.values[key], self.file, name)

    def data_path(self, entry: Entry) -> Path:
        """The data file of an entry, all of whose bytes are in it."""
        files = self.header.data_files
        if not 0 <= entry.data_file < files:
            what, bound = "number of the data file", f"in [0, {files})"
            raise refuse("checkpoint_value", file=entry.where, what=what, value=entry.data_file, bound=bound)
        path = data_path(self.prefix, entry.data_file, files)
        check_place(path, entry)
        return path

    def read(self, key: bytes, entry: Entry, span: Span | None) -> Array:
        """A tensor whose bytes lie in one place, or rows of it."""
        if entry.dtype.hasobject:
            return self._strings(entry, span)
        size = entry.elements * entry.dtype.itemsize
        if entry.size != size:
            raise refuse("checkpoint_value", file=entry.where, what="number of bytes", value=entry.size, bound=size)
        path = self.data_path(entry)
        if span is None:
            octets = read_bytes(path, entry.offset, size)
            if self.verify:
                check_checksum(crc32c(octets), entry.checksum, path, entry.name)
            return self._numbers(octets, entry).reshape(entry.shape)
        stamp = stamp_of(path)
        if self.verify and self._verified.get(key) != stamp:
            check_checksum(checksum(path, entry.offset, size), entry.checksum, path, entry.name)
            self._verified[key] = stamp
        begin, end = span
        row = size // max(entry.shape[0], 1)
        octets = read_bytes(path, entry.offset + begin * row, (end - begin) * row)
        if self.verify and stamp_of(path) != stamp:
            raise refuse("checkpoint_changed", file=path)
        return self._numbers(octets, entry).reshape(end - begin, *entry.shape[1:])

    def _strings(self, entry: Entry, span: Span | None) -> Array:
        """All strings are read: where one begins is known from the lengths of all before it."""
        path = self.data_path(entry)
        data = read_bytes(path, entry.offset, entry.size).tobytes()
        strings = decode_strings(data, entry, path, self.header.big_endian, self.verify)
        return strings if span is None else strings[slice(*span)]

    def _numbers(self, octets: Array, entry: Entry) -> Array:
        """Bytes as numbers of this machine."""
        dtype = entry.dtype
        if dtype == np.bool_:
            return np.not_equal(octets, 0)  # NumPy counts on 0 and 1, a file may hold any byte
        if self.header.big_endian != (sys.byteorder == "big"):
            width = dtype.itemsize // (2 if dtype.kind == "c" else 1)
            octets = octets.view(f"u{width}").byteswap()
        return octets.view(dtype)
