"""Snappy blocks, in which some early releases of TensorFlow compressed their index files."""

from __future__ import annotations

from .encoding import Cursor

_MOST_FROM_A_BYTE = 64  # no element gives more for each byte it takes


def decompress(data: bytes, where: str, most: int = 1 << 25) -> bytes:
    """Return the decompressed bytes; raise if they exceed the limit."""
    cursor = Cursor(data, where)
    size = cursor.varint()
    if size > _MOST_FROM_A_BYTE * len(data):
        raise cursor.fault(f"{len(data)} bytes cannot unfold to {size}")
    if size > most:
        raise cursor.fault(f"it unfolds to {size} bytes; compressed blocks of one index may unfold to {most} more")
    if len(data) > size + size // 6 + 32:
        raise cursor.fault(f"{len(data)} bytes are more than Snappy makes of {size}")
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
        raise cursor.fault(f"it unfolds to {len(plain)} bytes, not to {size}")
    return bytes(plain)


def _copy(plain: bytearray, back: int, length: int, cursor: Cursor) -> None:
    if not 0 < back <= len(plain):
        raise cursor.fault(f"a copy from {back} bytes back, where {len(plain)} bytes are")
    begin = len(plain) - back
    run = bytes(plain[begin : begin + length])
    plain += (run * (length // len(run) + 1))[:length]  # a copy longer than its distance repeats itself
