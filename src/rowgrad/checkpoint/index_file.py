"""The index file of a checkpoint: a sorted table of keys, and one entry per tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from .._runtime.plain_file import open_plain
from ..errors import make_error, shape_text
from .crc32c import check_checksum, crc32c
from .encoding import Cursor, Message
from .snappy import decompress

# -- The header and the entries ---------------------------------------------------------------------------------------

_VERSION = 1  # of the format that this reader implements
_MAX_DIMENSIONS = 64  # NumPy's
_MAX_BYTES = 1 << 63

_SUPPORTED = {1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64",
         9: "int64", 10: "bool", 14: "bfloat16", 17: "uint16", 18: "complex128", 19: "float16", 22: "uint32",
         23: "uint64"}  # fmt: skip
_UNSUPPORTED = {11: "qint8", 12: "quint8", 13: "qint32", 15: "qint16", 16: "quint16", 20: "resource", 21: "variant",
            24: "float8_e5m2", 25: "float8_e4m3fn", 26: "float8_e4m3fnuz", 27: "float8_e4m3b11fnuz",
            28: "float8_e5m2fnuz", 29: "int4", 30: "uint4", 31: "int2", 32: "uint2",
            33: "float4_e2m1fn"}  # fmt: skip
_NUMPY: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "string": object}

# Start and length along every dimension; None means all of it.
Extents = tuple[tuple[int, int | None], ...]


@dataclass(frozen=True, slots=True)
class Header:
    """The header of the index: facts about the whole checkpoint."""

    data_files: int
    big_endian: bool

    @classmethod
    def read(cls, data: bytes, where: str) -> Header:
        """Parse a BundleHeaderProto."""
        message = Message(data, where)
        data_files, order = message.integer(1), message.integer(2)
        if data_files < 1:
            what = "number of data files"
            raise make_error("checkpoint_value", file=where, what=what, value=data_files, bound="positive")
        if order not in (0, 1):
            raise make_error("checkpoint_value", file=where, what="byte order", value=order, bound="0 or 1")
        for version in message.messages(3):
            if version.integer(2) > _VERSION:
                raise make_error("checkpoint_version", file=where, value=version.integer(2), bound=_VERSION)
        return cls(data_files, order == 1)


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry of a tensor: dtype, shape, and the place of its bytes, or the slices in which it was saved."""

    file: str
    name: str  # for errors
    dtype_code: int
    shape: tuple[int, ...]
    data_file: int
    offset: int
    size: int
    checksum: int
    slices: tuple[Extents, ...]

    @classmethod
    def read(cls, data: bytes, file: str, name: str) -> Entry:
        """Parse a BundleEntryProto."""
        where = f"{file}: {name}"
        message = Message(data, where)
        shape: tuple[int, ...] = ()
        for part in message.messages(2):
            for dimension in part.messages(2):
                shape += (dimension.integer(1),)
                _check_rank(shape, where)
            if part.integer(3):
                raise make_error("checkpoint_value", file=where, what="rank", value="unknown", bound="known")
        entry = cls(file, name, message.integer(1), shape, message.integer(3), message.integer(4), message.integer(5),
                    message.integer(6), tuple(_extents(part) for part in message.messages(7)))  # fmt: skip
        _check_shape(entry)
        return entry

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's dtype, object for strings."""
        name = _SUPPORTED.get(self.dtype_code)
        if name is None:
            dtype_name = _UNSUPPORTED.get(self.dtype_code, f"number {self.dtype_code}")
            raise make_error("checkpoint_dtype", file=self.where, value=dtype_name)
        dtype: np.dtype[Any] = np.dtype(_NUMPY.get(name, name))
        return dtype

    @property
    def where(self) -> str:
        """File and name, for errors."""
        return f"{self.file}: {self.name}"

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def _extents(message: Message) -> Extents:
    return tuple((e.integer(1), e.integer(2) if 2 in e else None) for e in message.messages(1))


def _check_rank(shape: tuple[int, ...], where: str) -> None:
    """Raise if there are too many dimensions; called for each one, because the file may claim millions."""
    if len(shape) > _MAX_DIMENSIONS:
        bound = f"at most {_MAX_DIMENSIONS}"
        raise make_error("checkpoint_value", file=where, what="rank", value=f"{len(shape)} or more", bound=bound)


def _check_shape(entry: Entry) -> None:
    """Raise unless NumPy supports the shape, even where another dimension is 0."""
    where, shape = entry.where, entry.shape
    if min(shape, default=0) < 0:
        raise make_error("checkpoint_value", file=where, what="shape", value=shape_text(shape), bound="fully known")
    if math.prod(max(d, 1) for d in shape) * np.dtype(np.complex128).itemsize >= _MAX_BYTES:
        what = "shape"
        raise make_error("checkpoint_value", file=where, what=what, value=shape_text(shape), bound="below 2**63 bytes")


# -- The `.index` file: a sorted table of keys and values, in blocks with checksums -----------------------------------

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48  # two handles, padding, the magic number
_TRAILER = 5  # after a block: its compression and checksum
_PLAIN, _SNAPPY = 0, 1
_MAX_FILE_BYTES = 1 << 28  # some millions of names
_KEY_GROWTH = 32  # keys share prefixes, but every 16th is stored in full; a larger ratio is a decompression bomb
_MAX_TABLE_BYTES = 1 << 30  # bytes of all keys and values in memory
_MAX_DECOMPRESSED_BYTES = 1 << 25  # of all compressed blocks; only small indices of early releases have any
_ENTRY = 200  # bytes of Python's overhead for a key and a value


def read_index(path: Path) -> dict[bytes, bytes]:
    """Return every key and its value, in the order of the keys."""
    data = _contents(path)
    footer = Cursor(data[-_FOOTER:], f"{path}: footer")
    _handle(footer)  # the metaindex block, which TensorFlow leaves empty
    start, size = _handle(footer)
    table: dict[bytes, bytes] = {}
    last, free = None, 0
    budget = _Budget(path)
    for _, handle in _entries(_block(data, start, size, budget), f"{path}: block at byte {start}", budget):
        begin, size = _handle(Cursor(handle, f"{path}: handle of a block"))
        if begin < free:  # overlapping blocks would inflate a small file
            raise make_error(
                "checkpoint_value", file=path, what="start of a block", value=begin, bound=f"at least {free}"
            )
        free = begin + size + _TRAILER
        for key, value in _entries(_block(data, begin, size, budget), f"{path}: block at byte {begin}", budget):
            if last is not None and key <= last:
                raise make_error("checkpoint_value", file=path, what="key", value=key, bound=f"more than {last!r}")
            table[key] = value
            last = key
    return table


class _Budget:
    """The number of bytes that keys and values, and decompressed blocks, may still use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table_bytes, self.decompressed_bytes = _MAX_TABLE_BYTES, _MAX_DECOMPRESSED_BYTES

    def take(self, size: int) -> None:
        """Count bytes before they are decompressed; raise if they are too many."""
        self.table_bytes -= size
        if self.table_bytes < 0:
            what, value = "size of all keys and values in memory", f"more than {_MAX_TABLE_BYTES} bytes"
            raise make_error(
                "checkpoint_value", file=self.path, what=what, value=value, bound=f"at most {_MAX_TABLE_BYTES}"
            )


def _contents(path: Path) -> bytes:
    """Return the bytes of the file; raise unless its footer is that of an index."""
    with open_plain(path) as file:
        size = file.seek(0, 2)
        if size < _FOOTER:
            raise make_error("checkpoint_value", file=path, what="size", value=size, bound=f"at least {_FOOTER} bytes")
        file.seek(size - 8)
        magic = int.from_bytes(file.read(8), "little")
        if magic != _MAGIC:
            raise make_error("checkpoint_value", file=path, what="magic number", value=hex(magic), bound=hex(_MAGIC))
        if size > _MAX_FILE_BYTES:
            raise make_error("checkpoint_value", file=path, what="size", value=size, bound=f"at most {_MAX_FILE_BYTES}")
        file.seek(0)
        return file.read(size)


def _handle(cursor: Cursor) -> tuple[int, int]:
    """Return the offset of a block, and its size without the trailer."""
    return cursor.varint(), cursor.varint()


def _block(data: bytes, begin: int, size: int, budget: _Budget) -> bytes:
    """Return the decompressed bytes of a block; raise if its checksum is wrong."""
    path = budget.path
    end, bound = begin + size, len(data) - _FOOTER - _TRAILER
    if end > bound:
        raise make_error("checkpoint_outside", file=path, what="a block", begin=begin, value=end, bound=bound)
    stored = int.from_bytes(data[end + 1 : end + _TRAILER], "little")
    check_checksum(crc32c(memoryview(data)[begin : end + 1]), stored, path, f"the block at byte {begin}")
    compression = data[end]
    if compression == _SNAPPY:
        plain = decompress(data[begin:end], f"{path}: block at byte {begin}", budget.decompressed_bytes)
        budget.decompressed_bytes -= len(plain)
        return plain
    if compression != _PLAIN:
        what = "compression of a block"
        raise make_error("checkpoint_value", file=path, what=what, value=compression, bound="0 (none) or 1 (Snappy)")
    return data[begin:end]


def _entries(block: bytes, where: str, budget: _Budget) -> list[tuple[bytes, bytes]]:
    """Return the keys and values of a block. A key shares a prefix with the one before."""
    if len(block) < 4:
        raise Cursor(block, where).fault(f"a block must have at least 4 bytes, got {len(block)}")
    restarts = int.from_bytes(block[-4:], "little")  # for binary search, not used here
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        raise Cursor(block, where).fault(f"{restarts} restart points do not fit into {len(block)} bytes")
    cursor = Cursor(block[:end], where)
    found: list[tuple[bytes, bytes]] = []
    key, key_bytes = b"", 0
    while cursor.left:
        shared, fresh, size = cursor.varint(), cursor.varint(), cursor.varint()
        if shared > len(key):
            raise cursor.fault(f"a key shares {shared} bytes with the key before it, which has {len(key)}")
        budget.take(shared + fresh + size + _ENTRY)
        key = key[:shared] + cursor.take(fresh)
        key_bytes += len(key)
        if key_bytes > _KEY_GROWTH * len(block):
            raise cursor.fault(f"the keys have more than {_KEY_GROWTH} times the bytes of their block")
        found.append((key, cursor.take(size)))
    return found
