"""Where large arrays live: in pages the process already has, or in zeros the system gives when they are touched."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._core import recycled, zeroed

Array = np.ndarray[Any, Any]
_LARGE = 1 << 20  # bytes from which an array's pages cost more than its bookkeeping


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any], zeros: bool) -> Array:
    """An array of zeros, or of anything."""
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE:
        return np.zeros(shape, dtype) if zeros else np.empty(shape, dtype)
    try:
        fresh: Array = zeroed(size) if zeros else recycled(size)
    except MemoryError:
        raise MemoryError(f"no memory for {size} bytes: shape {shape}, dtype {dtype}") from None
    return fresh.view(dtype).reshape(shape)
