"""String tensors: all lengths, a checksum of them, then all bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import refuse
from .crc32c import check_checksum, crc32c
from .entries import Entry
from .wire import Cursor

Array = np.ndarray[Any, Any]
_SHORT = 1 << 32  # lengths below are checksummed as 4 bytes, others as 8


def decode_strings(data: bytes, entry: Entry, path: Path, big_endian: bool, verify: bool) -> Array:
    """An array of bytes objects, in the shape of the tensor. `path` is the file the data came from."""
    cursor = Cursor(data, f"{path}: {entry.name}")
    if entry.elements > len(data):  # each has a length of a byte at least
        what, bound = f"number of strings in {entry.name}", f"at most {len(data)}"
        raise refuse("checkpoint_value", file=path, what=what, value=entry.elements, bound=bound)
    lengths = [cursor.varint() for _ in range(entry.elements)]
    stored = cursor.take(4)
    begin = cursor.at
    if sum(lengths) != cursor.left:
        what = f"length of all strings in {entry.name}"
        raise refuse("checkpoint_value", file=path, what=what, value=sum(lengths), bound=cursor.left)
    if verify:
        order: Literal["big", "little"] = "big" if big_endian else "little"
        of_lengths = crc32c(b"".join(n.to_bytes(4 if n < _SHORT else 8, order) for n in lengths))
        check_checksum(of_lengths, int.from_bytes(stored, order), path, f"the lengths in {entry.name}")
        check_checksum(crc32c(data[begin:], crc32c(stored, of_lengths)), entry.checksum, path, entry.name)
    strings = np.empty(entry.elements, object)
    for place, length in enumerate(lengths):
        strings[place] = cursor.take(length)
    return strings.reshape(entry.shape)
