"""IndexedRows: a gradient that names only the rows it touches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class IndexedRows:
    """Rows of a table of `num_rows`: `values[k]` belongs to row `indices[k]`; equal indices add up.

    `is_unique` says that the indices are known to be distinct and ascending. The arrays are of whatever library the
    call used.
    """

    values: Any
    indices: Any
    num_rows: int
    is_unique: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the dense table."""
        return (self.num_rows, *self.values.shape[1:])

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return self.values.dtype
