"""Arithmetic on rows in the accumulator's type: subnormals are flushed to zero, integers wrap."""

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
MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # calls that need more raise
BUDGET = 50 << 20  # calls that need more than this, but less than the machine has, are skipped


class ExpectedError(Exception):
    """The call must raise an error of this class with this message."""

    def __init__(self, message: str, kind: str = "InvalidArgumentError") -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class NotModelled(Exception):
    """The call needs more memory than a test should use."""


# -- elementary operations -------------------------------------------------------------------------------------------

SHORT = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
LIMITS = {  # the smallest normal number, and a power of two that scales its neighbourhood away from it
    "f": (np.float32(2.0**-126), np.float32(2.0**64)),
    "d": (np.float64(2.0**-1022), np.float64(2.0**200)),
}


def matrix(array: Array) -> Array:
    return array.reshape(array.shape[0], math.prod(array.shape[1:])) if array.ndim else array.reshape(1, 1)


def load(array: Array) -> Array:
    """Return the rows in the accumulator's type: 16-bit floats as float32, complex numbers as pairs of reals."""
    rows = matrix(array)
    if rows.dtype in SHORT:
        rows = rows.astype(np.float32)
    elif rows.dtype.kind == "c":
        rows = rows.view(rows.real.dtype)
    return flush(rows)


def store(row: Array, dtype: np.dtype[Any]) -> Array:
    """Return a row in its own type: 16-bit floats are rounded to nearest even."""
    return row.view(dtype) if dtype.kind == "c" else row.astype(dtype, copy=False)


def flush(row: Array, lifted: Callable[[Any], Array] | None = None) -> Array:
    """Replace tiny numbers by zeros of their sign.

    `lifted(up)` returns a rounded result again, times `up`: x86 rounds with an unbounded exponent and flushes what is
    tiny then, so rounding among the subnormals must not carry a result up to the smallest normal number.
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
    return flush(a + b)  # sums of subnormals are exact


def mul(a: Array, b: Any) -> Array:
    return flush(a * b, lambda up: (a * up) * b)


def div(a: Array, b: Any) -> Array:
    return flush(a / b, lambda up: (a * up) / b)


def div_no_nan(a: Array, b: Array) -> Array:
    return np.zeros_like(a) if b[0] == 0 else div(a, b)


def add_in_t(a: Array, b: Array) -> Array:
    """Return the sum of two vectors of type T, rounded to it."""
    return store(add(load(a), load(b)), a.dtype)[:, 0]


def sum_from_zero(rows: Iterable[Array], like: Array, plus: Callable[..., Array] = add) -> Array:
    return reduce(plus, rows, np.zeros_like(like))


def sum_one_by_one(values: Array) -> Array:
    """Return the sum from zero of a vector of type T, rounded to it at every addition."""
    zero = np.zeros(1, values.dtype)
    if values.dtype.char in LIMITS:  # NumPy's cumulative sums are equal, unless a tiny number occurs, which it keeps
        sums = np.add.accumulate(np.concatenate([zero, values]))
        terms_and_sums = np.abs(np.concatenate([values, sums]))
        if not np.count_nonzero((terms_and_sums <= LIMITS[values.dtype.char][0]) & (terms_and_sums > 0)):
            return sums[-1:].reshape(())
    ones = (values[i : i + 1] for i in range(len(values)))
    return sum_from_zero(ones, zero, add_in_t).reshape(())


def sum_in_order(order: str, rows: list[Array], like: Array, plus: Callable[..., Array] = add) -> Array:
    """Return a gradient's row: left to right, or by runs of 64, whose sums are summed by runs of 64, and so on."""
    while order == "blocked" and len(rows) > 64:
        rows = [sum_from_zero(rows[k : k + 64], like, plus) for k in range(0, len(rows), 64)]
    return sum_from_zero(rows, like, plus)


def sum_in_eights(rows: list[Array]) -> Array:
    """Sum as SparseSegment*: first n mod 8 rows (0 → 8, 1 → 9), then blocks of eight, each summed separately."""
    first = len(rows) % 8 + (8 if len(rows) % 8 < 2 else 0)
    blocks = [rows[:first], *(rows[k : k + 8] for k in range(first, len(rows), 8))]
    return reduce(add, (reduce(add, block) for block in blocks))


def sum_in_lanes(rows: list[Array], plus: Callable[..., Array] = add) -> Array:
    """Sum as SegmentSum: from zero; with 16 rows or more, 32-byte packets of columns use four interleaved lanes."""
    if len(rows) == 1:
        return rows[0]
    plain = sum_from_zero(rows, rows[0], plus)
    if len(rows) < 16:
        return plain
    packet = 32 // max(plain.itemsize, 4)  # a packet of 16-bit floats has the columns of a float32 one
    full_rows, full_columns = len(rows) // 4 * 4, plain.size // packet * packet
    lanes = [sum_from_zero(rows[k:full_rows:4], plain, plus) for k in range(4)]
    return np.concatenate([reduce(plus, (*lanes, *rows[full_rows:]))[:full_columns], plain[full_columns:]])


def dot(a: Array, b: Array) -> Any:
    """Return the inner product in eight interleaved lanes, then their tree."""
    product, lanes = mul(a, b), np.zeros(8, a.dtype)
    for c in range(0, product.size, 8):
        part = product[c : c + 8]
        lanes[: part.size] = add(lanes[: part.size], part)
    fours = add(lanes[:4], lanes[4:])
    twos = add(fours[:2], fours[2:])
    return add(twos[:1], twos[1:])[0]


def bag(kind: str, raw: Array, wide: Array, rows: list[int]) -> Array:
    """Return one segment of SparseSegment{kind}: a single row is copied, up to nine are scaled, more are divided."""
    if len(rows) == 1:
        return raw[rows[0]]
    total = sum_in_eights([wide[r] for r in rows])
    if kind != "Sum":
        divisor = total.dtype.type(len(rows) if kind == "Mean" else math.sqrt(len(rows)))
        total = mul(total, 1 / divisor) if len(rows) < 10 else div(total, divisor)
    return store(total, raw.dtype)
