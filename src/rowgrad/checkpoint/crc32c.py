"""CRC32C checksums, vectorized with NumPy: every block and tensor of a checkpoint has one.

A CRC without its initial and final complement is linear over bits. So the words of a buffer may be combined in any
order, if each is shifted past the bytes that follow it: `crc(a + b) = shift(crc(a), len(b)) ^ crc(b)`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..errors import make_error

Array = np.ndarray[Any, Any]

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, lowest bit first
_ALL_ONES = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8
_SHORT = 1 << 10  # bytes for which a Python loop is faster than NumPy
_LANES = 1 << 14  # words per vector: a row and its lookup tables fit into a core's cache
_PIECE = 1 << 22  # bytes per padded copy


def crc32c(data: Any, before: int = 0) -> int:
    """Return the checksum of a buffer; with `before`, of earlier bytes with that checksum followed by the buffer."""
    octets = np.frombuffer(data, np.uint8)
    state = before ^ _ALL_ONES
    if len(octets) <= _SHORT:
        table = _byte_table()
        for octet in octets.tolist():
            state = table[(state ^ octet) & 0xFF] ^ state >> 8
        return state ^ _ALL_ONES
    for begin in range(0, len(octets), _PIECE):
        piece = octets[begin : begin + _PIECE]
        state = _shift(state, len(piece)) ^ _linear_crc(piece)
    return state ^ _ALL_ONES


def masked(checksum: int) -> int:
    """Return a checksum as files store it: rotated and offset, because the CRC of data with its own CRC is weak."""
    return ((checksum << 17 | checksum >> 15) + _MASK_DELTA) & _ALL_ONES


def check_checksum(checksum: int, stored: int, file: object, what: str) -> None:
    """Raise unless bytes have the checksum that is stored with them."""
    found = masked(checksum)
    if found != stored:
        raise make_error("checkpoint_checksum", file=file, what=what, value=hex(found), bound=hex(stored))


def _linear_crc(octets: Array) -> int:
    """Return the checksum from state 0. Leading zeros do not change it, so the front is padded."""
    count = -(-len(octets) // 4)
    lanes = min(_LANES, 1 << (count - 1).bit_length())
    words = np.zeros(-(-count // lanes) * lanes, "<u4")
    words.view(np.uint8)[words.nbytes - len(octets) :] = octets
    rows = words.astype(np.uint32, copy=False).reshape(-1, lanes)
    folded = rows[0]
    if len(rows) > 1:
        low, high = _half_tables(4 * lanes)
        for row in rows[1:]:
            folded = low[folded & 0xFFFF] ^ high[folded >> 16] ^ row
    distance = 4
    while len(folded) > 1:
        folded = _apply(_columns(distance), folded[0::2]) ^ folded[1::2]
        distance *= 2
    return _shift(int(folded[0]), 4)


def _shift(state: int, distance: int) -> int:
    """Return a state after `distance` zero bytes."""
    step = 1
    while distance:
        if distance & 1:
            columns = _columns(step)
            state = _xor_all(int(columns[bit]) for bit in range(32) if state >> bit & 1)
        distance >>= 1
        step *= 2
    return state


def _xor_all(values: Any) -> int:
    total = 0
    for value in values:
        total ^= value
    return total


@cache
def _columns(distance: int) -> Array:
    """Return the effect of `distance` zero bytes, a power of two, on each bit of a state."""
    if distance == 1:
        states = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32))
        for _ in range(8):
            states = states >> np.uint32(1) ^ np.where(states & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
        return states
    half = _columns(distance // 2)
    return _apply(half, half)


def _apply(columns: Array, states: Array) -> Array:
    """Apply a bit matrix to every state."""
    moved = np.zeros_like(states)
    for bit, column in enumerate(columns):
        moved ^= (states >> np.uint32(bit) & np.uint32(1)) * column
    return moved


@cache
def _byte_table() -> list[int]:
    """Return the effect of one zero byte on each value of a state's lowest byte."""
    table: list[int] = _apply(_columns(1)[:8], np.arange(256, dtype=np.uint32)).tolist()
    return table


@cache
def _half_tables(distance: int) -> tuple[Array, Array]:
    """Return lookup tables for the lower and upper half of a state, so that two lookups advance a word."""
    halves = np.arange(1 << 16, dtype=np.uint32)
    columns = _columns(distance)
    return _apply(columns[:16], halves), _apply(columns[16:], halves)
