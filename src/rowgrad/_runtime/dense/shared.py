"""What the functions of the dense layer share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def wide(xp: Any, x: Any) -> Any:
    """16-bit floats as float32, everything else as it is."""
    return xp.astype(x, xp.float32) if x.dtype in xp.short_floats else x


def narrow(xp: Any, x: Any, dtype: Any) -> Any:
    """x in the dtype that `wide` left."""
    return x if x.dtype == dtype else xp.astype(x, dtype)


def product(sizes: Iterable[Any]) -> Any:
    """Sizes multiplied; a compiler that traces this may have symbols among them."""
    total = 1
    for size in sizes:
        total = total * size
    return total


def place(flat: int, shape: Any) -> int | str:
    """A position in an array of this shape: a number for a vector, else its coordinates."""
    if len(shape) == 1:
        return flat
    found: list[str] = []
    for size in reversed(tuple(shape)):
        flat, at = divmod(flat, int(size))
        found.append(str(at))
    return ",".join(reversed(found))


def column(xp: Any, numbers: Any, rows: Any) -> Any:
    """One number per row, of the rank of the rows."""
    return xp.reshape(numbers, (-1,) + (1,) * (rows.ndim - 1))
