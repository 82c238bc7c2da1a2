"""Decode varints and Protocol Buffers messages, as far as the index file of a checkpoint needs them."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import OpError, make_error

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_MAX_FIELDS = 1 << 20  # of one message: a tensor in slices has a few for each slice


class Cursor:
    """A cursor over bytes that raises instead of reading past the end. `where` names the bytes in errors."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where, self.at = data, where, 0

    @property
    def left(self) -> int:
        """Return the number of bytes left."""
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if count > self.left:
            raise self.fault(f"{count} bytes are needed, but only {self.left} are left")
        self.at += count
        return self.data[self.at - count : self.at]

    def fixed(self, width: int) -> int:
        """Return a little-endian integer of `width` bytes."""
        return int.from_bytes(self.take(width), "little")

    def varint(self) -> int:
        """Return an unsigned varint below 2**64."""
        value = 0
        for place in range(_MAX_VARINT_BYTES):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80 and not value >> 64:
                return value
        raise self.fault("a number has more than 64 bits")

    def sized(self) -> bytes:
        """Return length-prefixed bytes."""
        return self.take(self.varint())

    def fault(self, why: str) -> OpError:
        """Return the error for malformed bytes, with their position."""
        return make_error("checkpoint_malformed", file=self.where, position=self.at, why=why)


class Message:
    """The fields of a message by number: the last integer of each, and all length-delimited values."""

    def __init__(self, data: bytes, where: str) -> None:
        self._where = where
        self._integers: dict[int, int] = {}
        self._parts: dict[int, list[bytes]] = {}
        cursor = Cursor(data, where)
        fields = 0
        while cursor.left:
            fields += 1
            if fields > _MAX_FIELDS:
                raise cursor.fault(f"a message has more than {_MAX_FIELDS} fields")
            number, kind = divmod(cursor.varint(), 8)
            if kind == _BYTES:
                self._parts.setdefault(number, []).append(cursor.sized())
            elif kind == _VARINT:
                value = cursor.varint()
                self._integers[number] = value - (value >> 63 << 64)  # negative numbers are stored as 64 bits
            elif kind in (_FIXED32, _FIXED64):
                self._integers[number] = cursor.fixed(4 if kind == _FIXED32 else 8)
            else:
                raise cursor.fault(f"the wire type {kind} of a field is unknown")

    def __contains__(self, number: int) -> bool:
        return number in self._integers or number in self._parts

    def integer(self, number: int) -> int:
        """Return an integer; 0, the format's default, if it is absent."""
        return self._integers.get(number, 0)

    def messages(self, number: int) -> Iterator[Message]:
        """Yield every message of a field number."""
        return (Message(part, self._where) for part in self._parts.get(number, []))
