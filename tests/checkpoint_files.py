"""Write checkpoint files byte by byte, so that tests can also write invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rowgrad.checkpoint.crc32c import crc32c, masked
from rowgrad.checkpoint.reader import slice_key

MAGIC = 0xDB4775248B80FB57
CODES = {"float32": 1, "float64": 2, "int32": 3, "object": 7, "complex64": 8, "int64": 9, "bool": 10, "bfloat16": 14}


def varint(value: int) -> bytes:
    value %= 1 << 64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def part(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def fixed32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def header(files: int = 1, order: int = 0, version: int = 0) -> bytes:
    return integer(1, files) + integer(2, order) + part(3, integer(1, 1) + integer(2, version))


def entry(
    dtype: int = 1,
    shape: tuple[int, ...] = (),
    *,
    file: int = 0,
    offset: int = 0,
    size: int = 0,
    checksum: int = 0,
    slices: Any = (),
) -> bytes:
    dimensions = b"".join(part(2, integer(1, dimension)) for dimension in shape)
    fields = integer(1, dtype) + part(2, dimensions) + integer(3, file) + integer(4, offset) + integer(5, size)
    slices_ = b"".join(part(7, b"".join(part(1, extent(*along)) for along in cut)) for cut in slices)
    return fields + varint(6 << 3 | 5) + fixed32(checksum) + slices_


def extent(start: int, length: int | None) -> bytes:
    return integer(1, start) + (b"" if length is None else integer(2, length))


def block(items: list[tuple[bytes, bytes]], shared: bool = True) -> bytes:
    """Return a block of keys with shared prefixes omitted and one restart."""
    out, last = b"", b""
    for key, value in items:
        common = 0
        while shared and common < min(len(key), len(last)) and key[common] == last[common]:
            common += 1
        out += varint(common) + varint(len(key) - common) + varint(len(value)) + key[common:] + value
        last = key
    return out + fixed32(0) + fixed32(1)


def sealed(data: bytes, compression: int = 0) -> bytes:
    data += bytes([compression])
    return data + fixed32(masked(crc32c(data)))


def index_of(blocks: list[tuple[bytes, int]], handles: list[tuple[int, int]] | None = None) -> bytes:
    """Return an index of blocks, each with its compression; `handles` replace the true ones."""
    out, found = b"", []
    for data, compression in blocks:
        found.append((len(out), len(data)))
        out += sealed(data, compression)
    entries_ = [(b"%08d" % n, varint(at) + varint(size)) for n, (at, size) in enumerate(handles or found)]
    directory = block(entries_)
    footer = (
        varint(len(out)) + varint(len(block([]))) + varint(len(out) + len(sealed(block([])))) + varint(len(directory))
    )
    return out + sealed(block([])) + sealed(directory) + footer.ljust(40, b"\0") + MAGIC.to_bytes(8, "little")


def write_index(prefix: Path, table: dict[bytes, bytes]) -> None:
    """Write an index of one block, and a data file of a thousand zeros if there is none."""
    prefix.with_name(prefix.name + ".index").write_bytes(index_of([(block(sorted(table.items())), 0)]))
    data = prefix.with_name(prefix.name + ".data-00000-of-00001")
    if not data.exists():
        data.write_bytes(bytes(1000))


def write_tensors(prefix: Path, tensors: dict[str, np.ndarray[Any, Any]], big_endian: bool = False) -> None:
    """Write a complete checkpoint. "name@3,2" is the slice of `name` with two rows from row 3 on."""
    data, table = b"", {b"": header(order=int(big_endian))}
    cut: dict[str, list[tuple[tuple[int, int | None], ...]]] = {}
    for name, array in tensors.items():
        stored, checksum = strings(array, big_endian) if array.dtype == object else plain(array, big_endian)
        key = name.encode()
        if "@" in name:
            whole, _, place = name.partition("@")
            start, length = map(int, place.split(","))
            extents = ((start, length), *(((0, None),) * (array.ndim - 1)))
            key = slice_key(whole.encode(), extents)
            slices_ = cut.setdefault(whole, [])
            slices_.append(extents)
            rows = sum(extents[0][1] or 0 for extents in slices_)
            table[whole.encode()] = entry(CODES[array.dtype.name], (rows, *array.shape[1:]), slices=slices_)
        place_of = {"offset": len(data), "size": len(stored), "checksum": checksum}
        table[key] = entry(CODES[array.dtype.name], array.shape, **place_of)
        data += stored
    prefix.with_name(prefix.name + ".data-00000-of-00001").write_bytes(data)
    write_index(prefix, table)


def plain(array: np.ndarray[Any, Any], big_endian: bool) -> tuple[bytes, int]:
    if array.dtype.name == "bfloat16":
        array = array.view(np.uint16)
    data = array.astype(array.dtype.newbyteorder(">" if big_endian else "<")).tobytes()
    return data, masked(crc32c(data))


def strings(array: np.ndarray[Any, Any], big_endian: bool) -> tuple[bytes, int]:
    texts, order = array.reshape(-1).tolist(), "big" if big_endian else "little"
    checksum = crc32c(b"".join(len(text).to_bytes(4, order) for text in texts))
    stored = masked(checksum).to_bytes(4, order)
    checksum = crc32c(b"".join(texts), crc32c(stored, checksum))
    return b"".join(varint(len(text)) for text in texts) + stored + b"".join(texts), masked(checksum)
