"""The `.index` file: a sorted table of keys and values, in blocks that have checksums."""

from __future__ import annotations

from pathlib import Path

from ..errors import refuse
from ..plain_file import open_plain
from .crc32c import check_checksum, crc32c
from .snappy import decompress
from .wire import Cursor

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48  # two handles, padding, the magic number
_TRAILER = 5  # after a block: how it is compressed, and its checksum
_PLAIN, _SNAPPY = 0, 1
_LARGEST_INDEX = 1 << 28  # some millions of names
_KEY_GROWTH = 32  # keys share beginnings, written in full every 16: more is no table but a bomb
_MOST_UNFOLDED = 1 << 30  # bytes of all keys and values in memory
_MOST_FROM_SNAPPY = 1 << 25  # of all compressed blocks; only small indices of early releases have any
_ENTRY = 200  # bytes that Python needs for a key and a value besides their own


def read_index(path: Path) -> dict[bytes, bytes]:
    """Every key and its value, in the order of the keys."""
    data = _contents(path)
    footer = Cursor(data[-_FOOTER:], f"{path}: footer")
    _handle(footer)  # of a block about the table itself, which TensorFlow leaves empty
    start, size = _handle(footer)
    table: dict[bytes, bytes] = {}
    last, free = None, 0
    left = _Left(path)
    for _, handle in _entries(_block(data, start, size, left), f"{path}: block at byte {start}", left):
        begin, size = _handle(Cursor(handle, f"{path}: handle of a block"))
        if begin < free:  # blocks that overlap could make a small file long
            raise refuse("checkpoint_value", file=path, what="start of a block", value=begin, bound=f"at least {free}")
        free = begin + size + _TRAILER
        for key, value in _entries(_block(data, begin, size, left), f"{path}: block at byte {begin}", left):
            if last is not None and key <= last:
                raise refuse("checkpoint_value", file=path, what="key", value=key, bound=f"more than {last!r}")
            table[key] = value
            last = key
    return table


class _Left:
    """What an index may still unfold to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unfolded, self.from_snappy = _MOST_UNFOLDED, _MOST_FROM_SNAPPY

    def take(self, size: int) -> None:
        """Count bytes before they are made."""
        self.unfolded -= size
        if self.unfolded < 0:
            what, value = "size of all keys and values in memory", f"more than {_MOST_UNFOLDED} bytes"
            raise refuse("checkpoint_value", file=self.path, what=what, value=value, bound=f"at most {_MOST_UNFOLDED}")


def _contents(path: Path) -> bytes:
    """The whole file, if it ends as an index does."""
    with open_plain(path) as file:
        size = file.seek(0, 2)
        if size < _FOOTER:
            raise refuse("checkpoint_value", file=path, what="size", value=size, bound=f"at least {_FOOTER} bytes")
        file.seek(size - 8)
        magic = int.from_bytes(file.read(8), "little")
        if magic != _MAGIC:
            raise refuse("checkpoint_value", file=path, what="magic number", value=hex(magic), bound=hex(_MAGIC))
        if size > _LARGEST_INDEX:
            raise refuse("checkpoint_value", file=path, what="size", value=size, bound=f"at most {_LARGEST_INDEX}")
        file.seek(0)
        return file.read(size)


def _handle(cursor: Cursor) -> tuple[int, int]:
    """Where a block begins, and its size without the trailer."""
    return cursor.varint(), cursor.varint()


def _block(data: bytes, begin: int, size: int, left: _Left) -> bytes:
    """The plain bytes of a block, after its checksum was seen to be right."""
    path = left.path
    end, bound = begin + size, len(data) - _FOOTER - _TRAILER
    if end > bound:
        raise refuse("checkpoint_outside", file=path, what="a block", begin=begin, value=end, bound=bound)
    stored = int.from_bytes(data[end + 1 : end + _TRAILER], "little")
    check_checksum(crc32c(memoryview(data)[begin : end + 1]), stored, path, f"the block at byte {begin}")
    compression = data[end]
    if compression == _SNAPPY:
        plain = decompress(data[begin:end], f"{path}: block at byte {begin}", left.from_snappy)
        left.from_snappy -= len(plain)
        return plain
    if compression != _PLAIN:
        what = "compression of a block"
        raise refuse("checkpoint_value", file=path, what=what, value=compression, bound="0 (none) or 1 (Snappy)")
    return data[begin:end]


def _entries(block: bytes, where: str, left: _Left) -> list[tuple[bytes, bytes]]:
    """Keys and values of a block. A key says how many bytes it shares with the one before."""
    if len(block) < 4:
        raise Cursor(block, where).fault("a block has at least 4 bytes")
    restarts = int.from_bytes(block[-4:], "little")  # for searching, which nobody does here
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        raise Cursor(block, where).fault(f"{restarts} restarts do not fit")
    cursor = Cursor(block[:end], where)
    found: list[tuple[bytes, bytes]] = []
    key, unfolded = b"", 0
    while cursor.left:
        shared, fresh, size = cursor.varint(), cursor.varint(), cursor.varint()
        if shared > len(key):
            raise cursor.fault(f"a key shares {shared} bytes with one of {len(key)}")
        left.take(shared + fresh + size + _ENTRY)
        key = key[:shared] + cursor.take(fresh)
        unfolded += len(key)
        if unfolded > _KEY_GROWTH * len(block):
            raise cursor.fault(f"keys unfold to more than {_KEY_GROWTH} times their block")
        found.append((key, cursor.take(size)))
    return found
