"""Other dtypes, and arrays as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def convert(xp: Any, x: Any, dtype: Any) -> Any:
    """x in another dtype: floats lose their fraction towards zero, complex numbers their imaginary part."""
    if x.dtype in xp.complexes and dtype not in xp.complexes:
        x = xp.real(x)
    return xp.astype(x, dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Cast": lambda xp, x, DstT: convert(xp, x, xp.dtype(DstT)),
    "CastLike": lambda xp, x, like: convert(xp, x, like.dtype),
    "Identity": lambda xp, input: xp.copy(input),
    "StopGradient": lambda xp, input: xp.copy(xp.stop_gradient(input)),
    "ZerosLike": lambda xp, x: xp.zeros_like(x),
    "OnesLike": lambda xp, x: xp.ones_like(x),
}
