"""Helpers of the dense functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def wide(xp: Any, x: Any) -> Any:
    """Convert 16-bit floats to float32; return other arrays unchanged."""
    return xp.astype(x, xp.float32) if x.dtype in xp.short_floats else x


def narrow(xp: Any, x: Any, dtype: Any) -> Any:
    """Convert x back to the dtype before `wide`."""
    return x if x.dtype == dtype else xp.astype(x, dtype)


def product(sizes: Iterable[Any]) -> Any:
    """Multiply sizes, which may be symbolic in a tracing compiler."""
    total = 1
    for size in sizes:
        total = total * size
    return total


def place(flat: int, shape: Any) -> int | str:
    """Return a flat position as a number for a vector, else as coordinates."""
    if len(shape) == 1:
        return flat
    found: list[str] = []
    for size in reversed(tuple(shape)):
        flat, at = divmod(flat, int(size))
        found.append(str(at))
    return ",".join(reversed(found))


def column(xp: Any, numbers: Any, rows: Any) -> Any:
    """Reshape one number per row to the rank of the rows."""
    return xp.reshape(numbers, (-1,) + (1,) * (rows.ndim - 1))
