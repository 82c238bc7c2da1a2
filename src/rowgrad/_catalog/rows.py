"""IndexedRows: a gradient that names only the rows it touches."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from typing import Any, ClassVar, Never

from ..errors import make_error


@dataclass(frozen=True, slots=True, eq=False)  # arrays compare by element
class IndexedRows:
    """Rows of a table of `num_rows`: `values[k]` belongs to row `indices[k]`; equal indices add up.

    `is_unique` says that the indices are known to be distinct and ascending. The arrays are of whatever library the
    call used.

    A JAX array plus rows is that array with the rows added, as `rowgrad.jax.optim.apply_updates` does it. There is no
    other arithmetic: see `rowgrad.jax.rows`, or make the gradient dense with `rowgrad.densify`.
    """

    __array_ufunc__: ClassVar[None] = None  # NumPy leaves operators to this class

    values: Any
    indices: Any
    num_rows: int
    is_unique: bool = False
    # The ids as JAX's pytree holds them (jax/trees.py): flattening twice must give the same object.
    _leaf: Any = field(default=None, init=False, repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the dense table."""
        return (self.num_rows, *self.values.shape[1:])

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return self.values.dtype

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexedRows, (self.values, self.indices, self.num_rows, self.is_unique)

    def __radd__(self, other: Any) -> Any:
        jax = sys.modules.get("jax")
        if jax is None or not any(isinstance(x, jax.Array) for x in (other, self.values)):
            self._reject_arithmetic()
        return importlib.import_module("rowgrad.jax.optim").apply_updates(other, self)

    def _reject_arithmetic(self, *_: Any) -> Never:
        raise make_error("rows_arithmetic")

    __add__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _reject_arithmetic
    __matmul__ = __rmatmul__ = __pow__ = __neg__ = __abs__ = __getitem__ = _reject_arithmetic
