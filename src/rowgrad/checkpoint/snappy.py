"""Decompress Snappy blocks, which some early releases of TensorFlow wrote into index files."""

from __future__ import annotations

from .encoding import Cursor

_MAX_RATIO = 64  # decompressed bytes per compressed byte


def decompress(data: bytes, where: str, limit: int = 1 << 25) -> bytes:
    """Return the decompressed bytes; raise before decompressing if there are more than `limit`."""
    cursor = Cursor(data, where)
    size = cursor.varint()
    if size > _MAX_RATIO * len(data):
        raise cursor.fault(f"{len(data)} compressed bytes cannot contain {size} bytes")
    if size > limit:
        raise cursor.fault(f"the decompressed size is {size} bytes, but {limit} are left for all blocks of the index")
    if len(data) > size + size // 6 + 32:
        raise cursor.fault(f"{len(data)} compressed bytes are more than Snappy produces for {size} bytes")
    plain = bytearray()
    while cursor.left:
        tag = cursor.take(1)[0]
        kind, rest = tag & 3, tag >> 2
        if kind == 0:
            length = rest + 1 if rest < 60 else cursor.fixed(rest - 59) + 1
            plain += cursor.take(length)
        elif kind == 1:
            _copy(plain, (tag >> 5) << 8 | cursor.fixed(1), (rest & 7) + 4, cursor)
        else:
            _copy(plain, cursor.fixed(2 if kind == 2 else 4), rest + 1, cursor)
        if len(plain) > size:
            break
    if len(plain) != size:
        raise cursor.fault(f"the decompressed size must be {size} bytes, got {len(plain)}")
    return bytes(plain)


def _copy(plain: bytearray, back: int, length: int, cursor: Cursor) -> None:
    if not 0 < back <= len(plain):
        raise cursor.fault(f"a copy starts {back} bytes back, but there are {len(plain)} bytes before it")
    begin = len(plain) - back
    run = bytes(plain[begin : begin + length])
    plain += (run * (length // len(run) + 1))[:length]  # a copy longer than its distance repeats itself
