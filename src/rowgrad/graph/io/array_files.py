"""Large arrays as files of their own, named after the hash of their bytes: .npy for numbers, .json for strings."""

from __future__ import annotations

import hashlib
import io
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...arrays import NUMPY_DTYPE, Array
from ..page import PageError
from .elements import stored_dtype
from .files import read_regular

NAME = re.compile(r"[0-9a-f]{64}\.(npy|json)")
_LONGEST_HEADER = 1 << 16  # what version 1 of .npy can say
_READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of one file, still in the arrays they come from."""

    name: str
    buffers: tuple[Buffer, ...]

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return sum(len(b) for b in self.buffers)


def _content(ending: str, *buffers: Buffer) -> Content:
    digest = hashlib.sha256()
    for buffer in buffers:
        digest.update(buffer)
    return Content(f"{digest.hexdigest()}.{ending}", buffers)


def json_content(text: str) -> Content:
    """A file of strings."""
    return _content("json", text.encode() + b"\n")


def stored(dtype: str, array: Array) -> Array:
    """The array in the form files have: in C order, of a dtype every reader knows, little-endian."""
    plain = stored_dtype(dtype)
    if dtype == "bool":
        return np.ascontiguousarray(array.view(np.uint8) != 0).reshape(array.shape)  # a truth value's byte is 0 or 1
    return array.view(plain.newbyteorder("=")).astype(plain, order="C", copy=False)


def npy_buffers(plain: Array) -> tuple[bytes, memoryview]:
    """The header of a .npy file and its data, which is not copied."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(plain))
    return head.getvalue(), plain.reshape(-1).view(np.uint8).data


def npy_content(dtype: str, array: Array) -> Content:
    """A file of numbers."""
    return _content("npy", *npy_buffers(stored(dtype, array)))


def npy_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype, of a .npy file from its start; ValueError where it is not one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers that Python 2 wrote
            shape, fortran, dtype = _READ_HEADER[np.lib.format.read_magic(stream)](stream)
    except Exception:  # NumPy's parser of headers lets many kinds through: SyntaxError, TokenError, KeyError…
        raise ValueError("it is no .npy file of version 1 or 2") from None
    if any(type(d) is not int or not 0 <= d < 1 << 63 for d in shape):
        raise ValueError(f"its shape is {shape}; must be integers from 0 to 2**63 - 1")
    return shape, fortran, dtype


def npy_data_start(head: bytes, size: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Where the data begins in a .npy file of `size` bytes; ValueError where the file is not just this array."""
    stream = io.BytesIO(head)
    header_shape, fortran, found = npy_header(stream)
    if found != dtype or header_shape != shape:
        raise ValueError(f"it holds {found} of shape {list(header_shape)}; must be {dtype} of shape {list(shape)}")
    if fortran and len(shape) > 1:
        raise ValueError("it is in Fortran order; must be in C order")
    if stream.tell() + math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"it has {size} bytes; its header tells of {math.prod(shape) * dtype.itemsize} after itself")
    return stream.tell()


def npy_head_size(first: bytes) -> int:
    """How long the header is, of a .npy file's first 12 bytes."""
    return (
        10 + int.from_bytes(first[8:10], "little")
        if first[6:7] == b"\1"
        else 12 + int.from_bytes(first[8:12], "little")
    )


def from_stored(dtype: str, plain: Array) -> Array:
    """An array of the catalogue's dtype from the form files have; ValueError where bytes are no truth values."""
    if dtype == "bool" and plain.size and plain.view(np.uint8).max() > 1:
        raise ValueError("a byte of it is neither true nor false")
    return plain.astype(plain.dtype.newbyteorder("="), copy=False).view(NUMPY_DTYPE[dtype])


class Folder:
    """The files beside one page, each read and verified once."""

    def __init__(self, path: Path, follow_links: bool = True) -> None:
        self.path = path
        self._follow_links = follow_links
        self._read: dict[str, bytes] = {}

    def numbers(self, name: str, dtype: str, shape: tuple[int, ...], place: str) -> Array:
        """The array in a .npy file."""
        plain = stored_dtype(dtype)
        expected = math.prod(shape) * plain.itemsize
        raw = self._bytes(name, place, lambda size: expected < size <= expected + _LONGEST_HEADER, f"about {expected}")
        try:
            start = npy_data_start(raw[:_LONGEST_HEADER], len(raw), plain, shape)
            return from_stored(dtype, np.frombuffer(raw, dtype=plain, offset=start).reshape(shape))
        except ValueError as error:
            raise PageError(place, f"{self.path / name}: {error}") from None

    def strings(self, name: str, count: int, place: str) -> bytes:
        """The text of a .json file of so many strings."""
        return self._bytes(name, place, lambda size: size >= 2 * count, f"at least {2 * count}")

    def _bytes(self, name: str, place: str, fits: Callable[[int], bool], wanted: str) -> bytes:
        raw = self._read.get(name)
        if raw is not None:
            if not fits(len(raw)):
                raise PageError(place, f"{self.path / name}: it has {len(raw)} bytes, must have {wanted}")
            return raw
        try:
            if not self._follow_links and self.path.is_symlink():
                raise PageError(str(self.path), "this is a symbolic link, which is not followed")
            raw = read_regular(self.path / name, fits, self._follow_links)
        except PageError as error:
            raise PageError(place, str(error)) from None
        except OSError as error:
            raise PageError(place, f"{self.path / name}: {error.strerror}") from error
        if raw is None:
            raise PageError(place, f"{self.path / name}: its size does not fit; it must have {wanted} bytes")
        digest = hashlib.sha256(raw).hexdigest()
        if not name.startswith(digest):
            raise PageError(place, f"{self.path / name}: its content is not what its name says; the hash is {digest}")
        self._read[name] = raw
        return raw


def is_there(path: Path, content: Content) -> bool:
    """Whether a file has this content already."""
    try:
        raw = read_regular(path, lambda size: size == content.size)
    except (OSError, PageError):
        return False
    return raw is not None and content.name.startswith(hashlib.sha256(raw).hexdigest())
