"""Elements by index, indices as rows, and where something is so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import refuse
from .words import place


def _gather(xp: Any, params: Any, indices: Any) -> Any:
    rows = params.shape[0]
    at = xp.first_true((indices < 0) | (indices >= rows))
    if at >= 0:
        value = int(xp.reshape(indices, (-1,))[at])
        where = place(at, indices.shape)
        raise refuse("index_not_in_params", argument="indices", position=where, value=value, bound=rows)
    flat = xp.take(params, xp.reshape(indices, (-1,)))
    return xp.reshape(flat, (*indices.shape, *params.shape[1:]))


def _one_hot(xp: Any, indices: Any, depth: int, on_value: Any, off_value: Any, axis: int) -> Any:
    shape = tuple(indices.shape)
    at = axis % (len(shape) + 1)
    ids = xp.reshape(xp.astype(indices, xp.int64), (*shape[:at], 1, *shape[at:]))
    if 0 in shape:  # nothing to compare the numbers below depth with, however many they are
        none = xp.where(ids == 0, on_value, off_value)
        return xp.copy(xp.broadcast_to(none, (*shape[:at], depth, *shape[at:])))
    numbers = xp.arange(0, depth, 1, dtype=xp.int64, device=xp.device(indices))
    return xp.where(ids == xp.reshape(numbers, (depth,) + (1,) * (len(shape) - at)), on_value, off_value)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Gather": _gather,
    "OneHot": _one_hot,
    "Where": lambda xp, condition: xp.copy(xp.argwhere(condition)),
    "Flatnonzero": lambda xp, mask: xp.reshape(xp.argwhere(mask), (-1,)),
}
