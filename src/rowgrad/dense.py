"""The dense layer's functions, over whatever array namespace `xp` the arrays belong to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _div_no_nan(xp: Any, x: Any, y: Any) -> Any:
    zero = y == 0
    return xp.where(zero, xp.zeros_like(x), x / xp.where(zero, xp.ones_like(y), y))


def _scale_rows(xp: Any, rows: Any, scale: Any) -> Any:
    wide = rows.astype(scale.dtype) * scale.reshape((-1,) + (1,) * (rows.ndim - 1))
    return wide.astype(rows.dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda xp, x, y: x + y,
    "Sub": lambda xp, x, y: x - y,
    "Mul": lambda xp, x, y: x * y,
    "DivNoNan": _div_no_nan,
    "Neg": lambda xp, x: -x,
    "Sqrt": lambda xp, x: xp.sqrt(x),
    "CastLike": lambda xp, x, like: x.astype(like.dtype),
    "Positions": lambda xp, ids: xp.arange(ids.shape[0], dtype=xp.int64),
    "ScaleRows": _scale_rows,
}
