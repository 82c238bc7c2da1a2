"""Bytes out of a data file, read and never mapped: a file that shrinks under a map would end the process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import refuse
from ..plain_file import open_plain
from .crc32c import crc32c
from .entries import Entry

Array = np.ndarray[Any, Any]
Stamp = tuple[int, int, int]
_PIECE = 1 << 22  # bytes that are checksummed at a time where no more are kept


def size_of(path: Path) -> int:
    """Bytes in a data file, which has to be there."""
    with _opened(path) as file:
        return os.fstat(file.fileno()).st_size


def stamp_of(path: Path) -> Stamp:
    """What changes when a program writes or replaces a data file."""
    with _opened(path) as file:
        status = os.fstat(file.fileno())
    return status.st_ino, status.st_size, status.st_mtime_ns


def _opened(path: Path) -> BinaryIO:
    try:
        return open_plain(path)
    except OSError:
        if os.path.isfile(path):
            raise
        raise refuse("checkpoint_not_there", file=path) from None


def check_place(path: Path, entry: Entry) -> None:
    """All bytes of a tensor lie in the file."""
    end, bound = entry.offset + entry.size, size_of(path)
    if entry.offset < 0 or entry.size < 0 or end > bound:
        raise refuse("checkpoint_outside", file=path, what=entry.name, begin=entry.offset, value=end, bound=bound)


def read_bytes(path: Path, begin: int, size: int) -> Array:
    """Bytes as an array of their own."""
    check_memory(size, path)
    octets = np.empty(size, np.uint8)
    with _opened(path) as file:
        file.seek(begin)
        _fill(file, octets, path)
    return octets


def checksum(path: Path, begin: int, size: int) -> int:
    """The checksum of bytes that are not kept."""
    octets = np.empty(min(size, _PIECE), np.uint8)
    found = 0
    with _opened(path) as file:
        file.seek(begin)
        for done in range(0, size, _PIECE):
            piece = octets[: size - done]
            _fill(file, piece, path)
            found = crc32c(piece, found)
    return found


def check_memory(size: int, file: object) -> None:
    """Sizes come from files: what no machine like this can hold is refused before it is touched."""
    bound = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > bound:
        raise refuse("checkpoint_memory", file=file, value=size, bound=bound)


def _fill(file: BinaryIO, octets: Array, path: Path) -> None:
    view, done = octets.data, 0
    while done < len(octets):
        count = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise refuse("checkpoint_value", file=path, what="end of the file", value=file.tell(), bound="later")
        done += count
