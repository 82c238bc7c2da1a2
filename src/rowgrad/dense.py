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


def _div_rows(xp: Any, rows: Any, by: Any) -> Any:
    wide = rows.astype(by.dtype)
    column = xp.broadcast_to(by.reshape((-1,) + (1,) * (rows.ndim - 1)), wide.shape)
    return _div_no_nan(xp, wide, column).astype(rows.dtype)


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
    "DivRows": _div_rows,
    "MaskRows": lambda xp, rows, mask: xp.where(
        mask.reshape((-1,) + (1,) * (rows.ndim - 1)), xp.zeros_like(rows), rows
    ),
    "MaskBelow": lambda xp, x, bound: (x >= bound).astype(x.dtype),
    "Maximum": lambda xp, x, bound: xp.maximum(x, xp.asarray(bound, dtype=x.dtype)),
    "ConcatRows": lambda xp, x, y: xp.concatenate([x, y]),
    "SplitRows": lambda xp, rows, x, y: (rows[: x.shape[0]].copy(), rows[x.shape[0] :].copy()),
    "Reshape": lambda xp, x, shape: x.reshape(shape).copy(),
}
