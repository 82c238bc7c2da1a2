"""Products of matrices and orders of dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .words import narrow, wide


def _matmul(xp: Any, a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
    left = xp.permute_dims(a, (1, 0)) if transpose_a else a
    right = xp.permute_dims(b, (1, 0)) if transpose_b else b
    return narrow(xp, xp.matmul(wide(xp, left), wide(xp, right)), a.dtype)


def _transpose_back(xp: Any, x: Any, perm: tuple[int, ...]) -> Any:
    back = sorted(range(len(perm)), key=[p % len(perm) for p in perm].__getitem__)
    return xp.copy(xp.permute_dims(x, tuple(back)))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "MatMul": _matmul,
    "Transpose": lambda xp, x, perm: xp.copy(xp.permute_dims(x, perm)),
    "TransposeBack": _transpose_back,
}
