"""The dense layer's functions, over whatever array namespace `xp` the arrays belong to.

Where a derivative has a choice (a quotient by 0, a maximum) the function is written so that a library which
differentiates it by itself makes the choice of the op's record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _div_no_nan(xp: Any, x: Any, y: Any) -> Any:
    zero = y == 0
    return xp.where(zero, xp.zeros_like(x), x / xp.where(zero, xp.ones_like(y), y))


def _column(xp: Any, numbers: Any, rows: Any) -> Any:
    """One number per row, of the rank of the rows."""
    return xp.reshape(numbers, (-1,) + (1,) * (rows.ndim - 1))


def _scale_rows(xp: Any, rows: Any, scale: Any) -> Any:
    return xp.astype(xp.astype(rows, scale.dtype) * _column(xp, scale, rows), rows.dtype)


def _div_rows(xp: Any, rows: Any, by: Any) -> Any:
    wide = xp.astype(rows, by.dtype)
    column = xp.broadcast_to(_column(xp, by, rows), wide.shape)
    return xp.astype(_div_no_nan(xp, wide, column), rows.dtype)


def _maximum(xp: Any, x: Any, bound: float) -> Any:
    bounds = xp.full_like(x, bound)
    return xp.where(x < bounds, bounds, x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda xp, x, y: x + y,
    "Sub": lambda xp, x, y: x - y,
    "Mul": lambda xp, x, y: x * y,
    "DivNoNan": _div_no_nan,
    "Neg": lambda xp, x: -x,
    "CastLike": lambda xp, x, like: xp.astype(x, like.dtype),
    "Positions": lambda xp, ids: xp.arange(ids.shape[0], dtype=xp.int64, device=ids.device),
    "ScaleRows": _scale_rows,
    "DivRows": _div_rows,
    "MaskRows": lambda xp, rows, mask: xp.where(_column(xp, mask, rows), xp.zeros_like(rows), rows),
    "MaskBelow": lambda xp, x, bound: xp.astype(x >= xp.full_like(x, bound), x.dtype),
    "Maximum": _maximum,
    "FullLike": lambda xp, x, value: xp.full_like(x, value),
    "ConcatRows": lambda xp, x, y: xp.concat([x, y]),
    "SplitRows": lambda xp, rows, x, y: (xp.copy(rows[: x.shape[0]]), xp.copy(rows[x.shape[0] :])),
    "Reshape": lambda xp, x, shape: xp.copy(xp.reshape(x, shape)),
}
