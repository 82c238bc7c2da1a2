"""Allocation of large arrays, and GradBuffer, a dense gradient that is reused between steps."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from .._catalog.spec import COMPLEX, REALS
from .._core import recycled, zeroed
from ..errors import ResourceExhaustedError, shape_text
from .arrays import NUMPY_DTYPE

Array = np.ndarray[Any, Any]
_LARGE = 1 << 20  # from this size, page faults cost more than bookkeeping


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any], zeros: bool) -> Array:
    """Allocate an array, of zeros or uninitialized.

    Large arrays reuse pages of the process, or are zero pages that the system maps on first access.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE:
        return np.zeros(shape, dtype) if zeros else np.empty(shape, dtype)
    try:
        fresh: Array = zeroed(size) if zeros else recycled(size)
    except MemoryError:
        raise MemoryError(f"no memory for {size} bytes: shape {shape}, dtype {dtype}") from None
    return fresh.view(dtype).reshape(shape)


_NUMBERS = tuple(NUMPY_DTYPE[name] for name in (*REALS, *COMPLEX))


def _dtype(value: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(value)
    except TypeError:
        dtype = np.dtype(object)
    if dtype not in _NUMBERS:
        raise TypeError(f"GradBuffer: dtype must be one of {', '.join(map(str, _NUMBERS))}; got {value!r}")
    return dtype


class GradBuffer:
    """A dense gradient that is reused between steps: each step clears only the rows that the last one wrote.

    Pass it as `out=` to an op that returns a dense table from ids: `SparseSegment*Grad`, `WeightedSparseSegment*Grad`,
    `ScatterRows`. The cost of a step then depends on its batch, not on the table. `array` is the gradient of the last
    step; it is the same array every time, valid until the next call.

    Args:
        shape: The shape of the table, rows first.
        dtype: The dtype of the gradient.

    Raises:
        TypeError: If the shape or the dtype is invalid.
        ResourceExhaustedError: If there is not enough memory.

    >>> import numpy as np, rowgrad as rg
    >>> buffer = rg.GradBuffer((4, 1), np.float64)
    >>> for row in (1, 2):
    ...     _ = rg.raw_ops.SparseSegmentSumGrad(np.ones((1, 1)), [row], [0], 4, out=buffer)
    ...     print(buffer.array.ravel().tolist())
    [0.0, 1.0, 0.0, 0.0]
    [0.0, 0.0, 1.0, 0.0]
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.float32) -> None:
        sizes = shape if isinstance(shape, tuple | list) else ()
        good = bool(sizes) and all(
            isinstance(d, int | np.integer) and not isinstance(d, bool) and d >= 0 for d in sizes
        )
        if not good or math.prod(max(int(d), 1) for d in sizes) >= 1 << 59:  # more elements than can be addressed
            raise TypeError(f"GradBuffer: shape must be a tuple of sizes, rows first; got {shape!r}")
        array_dtype = _dtype(dtype)
        try:
            self._array: Array = new_array(tuple(map(int, sizes)), array_dtype, zeros=True)
        except MemoryError as error:
            raise ResourceExhaustedError(f"OOM: {error}").in_call("GradBuffer", None, f"shape={shape!r}") from None
        self._written: Array = np.zeros(0, np.int64)

    @property
    def array(self) -> Array:
        """The gradient of the last step."""
        return self._array

    @property
    def written(self) -> Array:
        """The rows that the last step wrote, ascending (all rows of a small table); read-only."""
        return self._written

    def _remember(self, rows: Array) -> None:
        """Record which rows are not zero; called by the runner."""
        rows.flags.writeable = False
        self._written = rows

    def clear(self) -> None:
        """Set the written rows to zero."""
        self._array[self._written] = 0
        self._written = self._written[:0]

    def __copy__(self) -> GradBuffer:
        """Copy the array too: a buffer must know all writes to its array."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        return f"GradBuffer({self.array.dtype}{shape_text(self.array.shape)}, {len(self._written)} rows written)"
