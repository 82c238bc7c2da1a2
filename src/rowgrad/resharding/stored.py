"""One tensor of one part, wherever it lies: what it is, and a way to its rows."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..arrays import NUMPY_DTYPE
from ..errors import refuse
from ..plain_file import open_plain
from ..spec import QUANTIZED

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint

Array = np.ndarray[Any, Any]
DTYPES = {name: dtype for name, dtype in NUMPY_DTYPE.items() if name != "string" and name not in QUANTIZED}
Stamp = tuple[int, int, int]
_MOST_AXES = 64  # NumPy's
SHAPE = f"at most {_MOST_AXES} whole numbers in [0, 2**63)"


class Stored(Protocol):
    """A tensor that can be read by rows."""

    @property
    def where(self) -> str:
        """The file, for errors."""

    @property
    def dtype(self) -> str:
        """The catalogue's name of its dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in this part."""

    def fill(self, begin: int, rows: Array) -> None:
        """Put the rows from `begin` on into an array of rows as bytes, one element each."""

    def check_unchanged(self) -> None:
        """Refuse a file that somebody wrote since it was opened."""


def is_shape(shape: Iterable[object]) -> bool:
    """Whether sizes that a file claims can be those of an array. Others might be longer than can be multiplied."""
    sizes = list(shape)
    return len(sizes) <= _MOST_AXES and all(type(n) is int and 0 <= n < 2**63 for n in sizes)


def rows_of(shape: tuple[int, ...]) -> int:
    """Rows; a scalar is one."""
    return shape[0] if shape else 1


def row_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a row."""
    return math.prod(shape[1:]) * DTYPES[dtype].itemsize


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * DTYPES[dtype].itemsize


def stamp_of(path: Path) -> Stamp:
    """What changes when somebody writes a file."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class InFile:
    """A tensor whose bytes lie in a row, in a file. Every read opens and closes it, so there may be many."""

    path: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]
    stamp: Stamp

    @property
    def where(self) -> str:
        """The file."""
        return str(self.path)

    def fill(self, begin: int, rows: Array) -> None:
        """Read, not mapped: a file that shrinks under a map would end the process."""
        view, done = rows.view(np.uint8).data, 0
        with open_plain(self.path) as file:
            file.seek(self.offset + begin * rows.itemsize)
            while done < len(view):
                count = file.readinto(view[done:])
                if not count:
                    raise refuse(
                        "parts_value", file=self.path, what="end of the file", value=file.tell(), bound="later"
                    )
                done += count

    def check_unchanged(self) -> None:
        """Compare with what was there at first."""
        if stamp_of(self.path) != self.stamp:
            raise refuse("parts_malformed", file=self.path, why="somebody changed it while it was read")


@dataclass(frozen=True, slots=True)
class InCheckpoint:
    """A tensor of one of TensorFlow's checkpoints."""

    checkpoint: Checkpoint
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def where(self) -> str:
        """The checkpoint and the name."""
        return f"{self.checkpoint.prefix}: {self.name}"

    def fill(self, begin: int, rows: Array) -> None:
        """By the checkpoint's own reader, which compares checksums first."""
        span = slice(begin, begin + len(rows)) if self.shape else None
        rows.view(np.uint8)[:] = self.checkpoint.read(self.name, span).reshape(-1).view(np.uint8)

    def check_unchanged(self) -> None:
        """Its checksum has been compared."""
