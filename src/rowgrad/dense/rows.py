"""Rows with a number each, and bounds: what the gradients of weights and of max_norm are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .arithmetic import div_no_nan
from .words import column

_LONG = 1 << 64


def _scale_rows(xp: Any, rows: Any, scale: Any) -> Any:
    return xp.astype(xp.astype(rows, scale.dtype) * column(xp, scale, rows), rows.dtype)


def _div_rows(xp: Any, rows: Any, by: Any) -> Any:
    wide = xp.astype(rows, by.dtype)
    divisors = xp.broadcast_to(column(xp, by, rows), wide.shape)
    return xp.astype(div_no_nan(xp, wide, divisors), rows.dtype)


def _full(xp: Any, x: Any, value: Any) -> Any:
    """An attribute's number, as often as x has elements. Integers beyond 64 bits are floats: x is of such then."""
    is_long = isinstance(value, int) and not -_LONG < value < _LONG
    return xp.full_like(x, float(value) if is_long else value)


def _at_least(xp: Any, x: Any, bound: float) -> Any:
    bounds = _full(xp, x, bound)
    return xp.where(x < bounds, bounds, x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Positions": lambda xp, ids: xp.arange(0, ids.shape[0], 1, dtype=xp.int64, device=xp.device(ids)),
    "ScaleRows": _scale_rows,
    "DivRows": _div_rows,
    "MaskRows": lambda xp, rows, mask: xp.where(column(xp, mask, rows), xp.zeros_like(rows), rows),
    "MaskBelow": lambda xp, x, bound: xp.astype(x >= _full(xp, x, bound), x.dtype),
    "AtLeast": _at_least,
    "FullLike": _full,
    "ConcatRows": lambda xp, x, y: xp.concat([x, y]),
    "SplitRows": lambda xp, rows, x, y: (xp.copy(rows[: x.shape[0]]), xp.copy(rows[x.shape[0] :])),
}
