"""Shapes as numbers, and arrays made of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .words import product


def _numbers(xp: Any, values: Any, dtype: Any, like: Any) -> Any:
    return xp.asarray(values, dtype=dtype, device=xp.device(like))


def _fill(xp: Any, dims: int | tuple[int, ...], value: Any) -> Any:
    return xp.copy(xp.broadcast_to(value, dims if isinstance(dims, tuple | list) else (dims,)))


def _range(xp: Any, start: Any, limit: Any, delta: Any, Tidx: str) -> Any:
    return xp.arange(start, limit, delta, dtype=xp.dtype(Tidx), device=None)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Shape": lambda xp, input, out_type: _numbers(xp, tuple(input.shape), xp.dtype(out_type), input),
    "Size": lambda xp, input, out_type: _numbers(xp, product(input.shape), xp.dtype(out_type), input),
    "Rank": lambda xp, input: _numbers(xp, input.ndim, xp.dtype("int32"), input),
    "Dimension": lambda xp, x, axis: _numbers(xp, x.shape[axis], xp.int64, x),
    "Fill": _fill,
    "Range": _range,
}
