"""IndexedRows: a row-sparse gradient."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from typing import Any, ClassVar, Never

from ..errors import make_error


class _RowsType(type):
    """The class of IndexedRows, whose repr gives advice.

    It is in JAX's own error where a tree of gradients has IndexedRows and another tree, such as optax's state, arrays.
    """

    def __repr__(cls) -> str:
        return (
            "<class 'rowgrad.IndexedRows'>, a row-sparse gradient. Train tables with an optimizer of rowgrad.jax.optim,"
            " or make the gradient dense with rowgrad.jax.rows.to_dense"
        )


@dataclass(frozen=True, slots=True, eq=False)  # arrays compare by element
class IndexedRows(metaclass=_RowsType):
    """A row-sparse gradient of a table: `values[k]` belongs to row `indices[k]`; equal indices are summed.

    A JAX array plus an IndexedRows adds the rows, like `rowgrad.jax.optim.apply_updates`. Other arithmetic raises: use
    `rowgrad.jax.rows`, or make the gradient dense with `rowgrad.densify`.

    Args:
        values: The gradient rows, arrays of any library.
        indices: The row of each of them.
        num_rows: The number of rows of the table.
        is_unique: Whether the indices are known to be distinct and ascending.
    """

    __array_ufunc__: ClassVar[None] = None  # NumPy leaves operators to this class

    values: Any
    indices: Any
    num_rows: int
    is_unique: bool = False
    # The ids as a leaf of JAX's pytree (jax/trees.py): flattening twice must return the same object.
    _leaf: Any = field(default=None, init=False, repr=False, compare=False)
    # The lookup that these rows are the gradient of (jax/row_step.py), for an optimizer that sums and steps at once.
    _bags: Any = field(default=None, init=False, repr=False, compare=False)

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
