"""The `.dat` file beside a page: elements of large arrays, little-endian, one array after the other."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from ...arrays import Array
from ..page import PageError

_KINDS = {"int": "<i4", "float": "<f4", "double": "<f8"}


class DataFile:
    """A file that is opened when the first pin asks for elements; many pages have none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, kind: str, shape: list[int], offset: int) -> Array:
        """The array of a pin of the host type `kind`, as a vector."""
        if kind not in _KINDS:
            raise PageError("", f"elements of type {kind!r} are in no .dat file; int, float and double are")
        count = math.prod(shape)
        dtype = np.dtype(_KINDS[kind])
        need = f"needs {count * dtype.itemsize} bytes from byte {offset} on of {self._path.name}"
        try:
            with self._path.open("rb") as file:
                size = self._path.stat().st_size
                if offset + count * dtype.itemsize > size:
                    raise PageError("", f"{need}, which has {size}")
                file.seek(offset)
                raw = file.read(count * dtype.itemsize)
        except OSError as error:
            raise PageError("", f"{need}, which cannot be read: {error.strerror or error}") from None
        if len(raw) != count * dtype.itemsize:
            raise PageError("", f"{need}, which ended before")
        return np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="))
