"""What the index says: of the whole checkpoint, and of every tensor in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import refuse, shape_text
from .wire import Message

_VERSION = 1  # of the format, as readers count it
_MOST_DIMENSIONS = 64  # NumPy's
_MOST_BYTES = 1 << 63

_READ = {1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64",
         9: "int64", 10: "bool", 14: "bfloat16", 17: "uint16", 18: "complex128", 19: "float16", 22: "uint32",
         23: "uint64"}  # fmt: skip
_REFUSED = {11: "qint8", 12: "quint8", 13: "qint32", 15: "qint16", 16: "quint16", 20: "resource", 21: "variant",
            24: "float8_e5m2", 25: "float8_e4m3fn", 26: "float8_e4m3fnuz", 27: "float8_e4m3b11fnuz",
            28: "float8_e5m2fnuz", 29: "int4", 30: "uint4", 31: "int2", 32: "uint2",
            33: "float4_e2m1fn"}  # fmt: skip
_NUMPY: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "string": object}

# Start and length along every dimension; None means all of it.
Extents = tuple[tuple[int, int | None], ...]


@dataclass(frozen=True, slots=True)
class Header:
    """Of the whole checkpoint."""

    data_files: int
    big_endian: bool

    @classmethod
    def read(cls, data: bytes, where: str) -> Header:
        """Parse a BundleHeaderProto."""
        message = Message(data, where)
        data_files, order = message.integer(1), message.integer(2)
        if data_files < 1:
            what = "number of data files"
            raise refuse("checkpoint_value", file=where, what=what, value=data_files, bound="positive")
        if order not in (0, 1):
            raise refuse("checkpoint_value", file=where, what="byte order", value=order, bound="0 or 1")
        for version in message.messages(3):
            if version.integer(2) > _VERSION:
                raise refuse("checkpoint_version", file=where, value=version.integer(2), bound=_VERSION)
        return cls(data_files, order == 1)


@dataclass(frozen=True, slots=True)
class Entry:
    """Of one tensor: what it is, and where its bytes are, or the slices it was saved as."""

    file: str
    name: str  # as errors have it
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
                raise refuse("checkpoint_value", file=where, what="rank", value="unknown", bound="known")
        entry = cls(file, name, message.integer(1), shape, message.integer(3), message.integer(4), message.integer(5),
                    message.integer(6), tuple(_extents(part) for part in message.messages(7)))  # fmt: skip
        _check_shape(entry)
        return entry

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's dtype, object for strings."""
        name = _READ.get(self.dtype_code)
        if name is None:
            given = _REFUSED.get(self.dtype_code, f"number {self.dtype_code}")
            raise refuse("checkpoint_dtype", file=self.where, value=given)
        dtype: np.dtype[Any] = np.dtype(_NUMPY.get(name, name))
        return dtype

    @property
    def where(self) -> str:
        """File and name, for errors about what the index says."""
        return f"{self.file}: {self.name}"

    @property
    def elements(self) -> int:
        """How many numbers or strings the tensor has."""
        return math.prod(self.shape)


def _extents(message: Message) -> Extents:
    return tuple((e.integer(1), e.integer(2) if 2 in e else None) for e in message.messages(1))


def _check_rank(shape: tuple[int, ...], where: str) -> None:
    """Called for every dimension that is read: the file may claim millions."""
    if len(shape) > _MOST_DIMENSIONS:
        bound = f"at most {_MOST_DIMENSIONS}"
        raise refuse("checkpoint_value", file=where, what="rank", value=f"{len(shape)} or more", bound=bound)


def _check_shape(entry: Entry) -> None:
    """The shape is one that NumPy can have, even where another dimension is 0."""
    where, shape = entry.where, entry.shape
    if min(shape, default=0) < 0:
        raise refuse("checkpoint_value", file=where, what="shape", value=shape_text(shape), bound="known throughout")
    if math.prod(max(d, 1) for d in shape) * np.dtype(np.complex128).itemsize >= _MOST_BYTES:
        what = "shape"
        raise refuse("checkpoint_value", file=where, what=what, value=shape_text(shape), bound="below 2**63 bytes")
