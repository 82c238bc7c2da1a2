"""Rows of the accumulator's type, in which no subnormal takes part; integers wrap."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Outputs = tuple[Array, ...]
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # what asks for more is refused
BUDGET = 50 << 20  # what asks for more than this, but for less than the machine has, is not tried


class Refusal(Exception):
    """The call must be refused with an error of this class and this message."""

    def __init__(self, message: str, kind: str = "InvalidArgumentError") -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class Unmodelled(Exception):
    """The call needs more memory than a test should take."""


# -- arithmetic: rows of the accumulator's type, in which no subnormal takes part; integers wrap ---------------------

SHORT = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
LIMITS = {  # the least normal number, and a power of two that lifts its neighbourhood away from it
    "f": (np.float32(2.0**-126), np.float32(2.0**64)),
    "d": (np.float64(2.0**-1022), np.float64(2.0**200)),
}


def matrix(array: Array) -> Array:
    return array.reshape(array.shape[0], math.prod(array.shape[1:])) if array.ndim else array.reshape(1, 1)


def load(array: Array) -> Array:
    """The array's rows in the accumulator's type: 16-bit floats as float32, complex numbers as pairs of reals."""
    rows = matrix(array)
    if rows.dtype in SHORT:
        rows = rows.astype(np.float32)
    elif rows.dtype.kind == "c":
        rows = rows.view(rows.real.dtype)
    return flush(rows)


def store(row: Array, dtype: np.dtype[Any]) -> Array:
    """A row back in its own type: 16-bit floats are rounded to nearest even."""
    return row.view(dtype) if dtype.kind == "c" else row.astype(dtype, copy=False)


def flush(row: Array, lifted: Callable[[Any], Array] | None = None) -> Array:
    """Tiny numbers to zeros of their sign.

    `lifted(up)` gives a rounded result again, times `up`: x86 rounds as if exponents had no end and flushes what is
    tiny then, so rounding among the subnormals must not carry a result up to the least normal number.
    """
    if row.dtype.kind != "f":
        return row
    least, up = LIMITS[row.dtype.char]
    tiny = np.abs(row) <= least
    if not np.count_nonzero(tiny):
        return row
    tiny &= np.abs(row * up if lifted is None else lifted(up)) < least * up
    return np.where(tiny, np.copysign(row.dtype.type(0), row), row)


def add(a: Array, b: Array) -> Array:
    return flush(a + b)  # a sum among subnormals is exact


def mul(a: Array, b: Any) -> Array:
    return flush(a * b, lambda up: (a * up) * b)


def div(a: Array, b: Any) -> Array:
    return flush(a / b, lambda up: (a * up) / b)


def div_no_nan(a: Array, b: Array) -> Array:
    return np.zeros_like(a) if b[0] == 0 else div(a, b)


def add_in_t(a: Array, b: Array) -> Array:
    """The sum of two vectors of type T, rounded to it."""
    return store(add(load(a), load(b)), a.dtype)[:, 0]


def sum_from_zero(rows: Iterable[Array], like: Array, plus: Callable[..., Array] = add) -> Array:
    return reduce(plus, rows, np.zeros_like(like))


def sum_one_by_one(values: Array) -> Array:
    """The sum from zero of a vector of type T, rounded to it at every add."""
    zero = np.zeros(1, values.dtype)
    if values.dtype.char in LIMITS:  # NumPy's running sums are these, unless a tiny number is met, which it keeps
        sums = np.add.accumulate(np.concatenate([zero, values]))
        met = np.abs(np.concatenate([values, sums]))
        if not np.count_nonzero((met <= LIMITS[values.dtype.char][0]) & (met > 0)):
            return sums[-1:].reshape(())
    ones = (values[i : i + 1] for i in range(len(values)))
    return sum_from_zero(ones, zero, add_in_t).reshape(())


def sum_in_order(order: str, rows: list[Array], like: Array, plus: Callable[..., Array] = add) -> Array:
    """A gradient's row: left to right, or by runs of 64, the sums of runs again by runs of 64, and so on up."""
    while order == "blocked" and len(rows) > 64:
        rows = [sum_from_zero(rows[k : k + 64], like, plus) for k in range(0, len(rows), 64)]
    return sum_from_zero(rows, like, plus)


def sum_in_eights(rows: list[Array]) -> Array:
    """SparseSegment*: first n mod 8 rows (0 → 8, 1 → 9), then blocks of eight, each summed on its own."""
    first = len(rows) % 8 + (8 if len(rows) % 8 < 2 else 0)
    blocks = [rows[:first], *(rows[k : k + 8] for k in range(first, len(rows), 8))]
    return reduce(add, (reduce(add, block) for block in blocks))


def sum_in_lanes(rows: list[Array], plus: Callable[..., Array] = add) -> Array:
    """SegmentSum: from zero; of 16 rows or more, whole 32-byte packets of columns go in four interleaved lanes."""
    if len(rows) == 1:
        return rows[0]
    plain = sum_from_zero(rows, rows[0], plus)
    if len(rows) < 16:
        return plain
    packet = 32 // max(plain.itemsize, 4)  # a packet of 16-bit floats is one of float32
    whole, cut = len(rows) // 4 * 4, plain.size // packet * packet
    lanes = [sum_from_zero(rows[k:whole:4], plain, plus) for k in range(4)]
    return np.concatenate([reduce(plus, (*lanes, *rows[whole:]))[:cut], plain[cut:]])


def dot(a: Array, b: Array) -> Any:
    """Eight interleaved lanes, then their tree."""
    product, lanes = mul(a, b), np.zeros(8, a.dtype)
    for c in range(0, product.size, 8):
        part = product[c : c + 8]
        lanes[: part.size] = add(lanes[: part.size], part)
    fours = add(lanes[:4], lanes[4:])
    twos = add(fours[:2], fours[2:])
    return add(twos[:1], twos[1:])[0]


def bag(kind: str, raw: Array, wide: Array, rows: list[int]) -> Array:
    """One segment of SparseSegment{kind}: a single row is copied, up to nine are scaled, more are divided."""
    if len(rows) == 1:
        return raw[rows[0]]
    total = sum_in_eights([wide[r] for r in rows])
    if kind != "Sum":
        divisor = total.dtype.type(len(rows) if kind == "Mean" else math.sqrt(len(rows)))
        total = mul(total, 1 / divisor) if len(rows) < 10 else div(total, divisor)
    return store(total, raw.dtype)
