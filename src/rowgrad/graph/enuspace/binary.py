"""The `.dat` file beside a page: elements of large arrays, little-endian, one array after the other."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from ...arrays import Array
from ...plain_file import open_plain
from ..page import PageError

_KINDS = {"int": "<i4", "float": "<f4", "double": "<f8"}


class DataFile:
    """A file that is opened when the first pin asks for elements; many pages have none."""

    def __init__(self, path: Path, follow_links: bool = False) -> None:
        self._path = path
        self._follow_links = follow_links

    def read(self, kind: str, shape: list[int], offset: int) -> Array:
        """The array of a pin of the host type `kind`, as a vector."""
        if kind not in _KINDS:
            raise PageError("", f"elements of type {kind!r} are in no .dat file; int, float and double are")
        count = math.prod(shape)
        dtype = np.dtype(_KINDS[kind])
        need = f"needs {count * dtype.itemsize} bytes from byte {offset} on of {self._path.name}"
        try:
            with open_plain(self._path, follow_links=self._follow_links) as file:
                size = os.fstat(file.fileno()).st_size
                if offset + count * dtype.itemsize > size:
                    raise PageError("", f"{need}, which has {size}")
                file.seek(offset)
                raw = file.read(count * dtype.itemsize)
        except OSError as error:
            raise PageError("", f"{need}, which cannot be read: {error.strerror or error}") from None
        if len(raw) != count * dtype.itemsize:
            raise PageError("", f"{need}, which ended before")
        return np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="))
