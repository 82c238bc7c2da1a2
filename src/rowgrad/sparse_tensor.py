"""SparseTensor: indices, values and a dense shape, as TensorFlow has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import aval_of, canonical, plain_array
from .dispatch import describe_value, is_traced
from .errors import OpError, refuse, shape_text
from .results import check_size
from .spec import QUANTIZED, Aval

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False, init=False)
class SparseTensor:
    """`values[k]` stands at `indices[k]` of an array of shape `dense_shape`; all else is zero (or absent).

    >>> st = SparseTensor.from_dense([[0, 5], [7, 0]])
    >>> st.indices.tolist(), st.values.tolist()
    ([[0, 1], [1, 0]], [5, 7])

    `indices` and `values` may be arrays that JAX traces; `dense_shape` is known always.
    """

    indices: Any
    values: Any
    dense_shape: Array

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        if is_traced(dense_shape):
            raise refuse("host_traced", argument="dense_shape")
        try:
            self._take(indices, values, dense_shape)
        except OpError as error:
            given = {"indices": indices, "values": values, "dense_shape": dense_shape}
            got = ", ".join(f"{name}={describe_value(part)}" for name, part in given.items())
            raise error.in_call("SparseTensor", None, got) from None

    def _take(self, indices: Any, values: Any, dense_shape: Any) -> None:
        object.__setattr__(self, "indices", _integers(indices, "indices"))
        object.__setattr__(self, "dense_shape", _integers(dense_shape, "dense_shape"))
        if not (hasattr(values, "shape") and hasattr(values, "dtype")) or isinstance(values, np.generic):
            values = plain_array(values, "values")
        if getattr(values.dtype, "kind", "f") in "SU":
            values = values.astype(object)  # fixed widths would cut what is put beside them
        object.__setattr__(self, "values", values)
        shapes = {"indices": self.indices.shape, "values": self.values.shape, "dense_shape": self.dense_shape.shape}
        for name, rank in (("indices", 2), ("values", 1), ("dense_shape", 1)):
            if len(shapes[name]) != rank:
                wanted = "a matrix" if rank == 2 else "a vector"
                raise refuse("same_shape", argument=name, value=shape_text(shapes[name]), bound=wanted)
        if shapes["values"][0] != shapes["indices"][0]:
            raise refuse("lengths_match", argument="values", value=shapes["values"][0], bound=shapes["indices"][0])
        if shapes["dense_shape"][0] != shapes["indices"][1]:
            raise refuse("lengths_match", argument="dense_shape", value=shapes["dense_shape"][0],
                         bound=shapes["indices"][1])  # fmt: skip

    @classmethod
    def of(cls, indices: Any, values: Any, shape: tuple[int, ...]) -> SparseTensor:
        """A sparse tensor out of the parts of one, taken at their word."""
        sparse = object.__new__(cls)
        for name, part in (("indices", indices), ("values", values), ("dense_shape", np.array(shape, np.int64))):
            object.__setattr__(sparse, name, part)
        return sparse

    @property
    def shape(self) -> tuple[int, ...]:
        """The dense shape as a tuple."""
        return tuple(self.dense_shape.tolist())

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def nnz(self) -> int:
        """How many entries are stored."""
        return int(self.indices.shape[0])

    def __repr__(self) -> str:
        return f"SparseTensor(shape={self.shape}, nnz={self.nnz}, dtype={self.dtype})"

    @classmethod
    def from_dense(cls, array: Any) -> SparseTensor:
        """The entries of a dense array that are not zero (not empty, for strings), in row-major order."""
        dense = np.asarray(array)
        if dense.dtype.kind in "SU":
            dense = dense.astype(object)
        indices = np.argwhere(dense.astype(bool)).reshape(-1, dense.ndim).astype(np.int64)
        return cls(indices, dense[tuple(indices.T)].reshape(-1), np.array(dense.shape, np.int64))

    def to_dense(self, default_value: Any = 0) -> Array:
        """A dense array; entries at the same place add up, as they do in SciPy."""
        self._check_bounds()
        values, places = canonical(np.asarray(self.values), "values"), tuple(np.asarray(self.indices).T)
        dtype = aval_of(values).dtype
        if dtype in QUANTIZED:
            raise refuse("dtype_not_allowed", argument="values", value=dtype, bound="numbers that can be added")
        for position, size in enumerate(self.shape):
            if size < 0:
                raise refuse("size_negative", argument="dense_shape", position=position, value=size, bound=0)
        check_size(Aval(dtype, self.shape))
        if values.dtype.kind in "OT":
            dense = np.full(self.shape, default_value if default_value != 0 else "", values.dtype)
            dense[places] = values
            return dense
        dense = np.full(self.shape, default_value, values.dtype)
        dense[places] = 0
        np.add.at(dense, places, values)
        return dense

    def _check_bounds(self) -> None:
        indices = np.asarray(self.indices)
        bad = np.argwhere((indices < 0) | (indices >= self.dense_shape))
        if len(bad):
            entry, column = (int(v) for v in bad[0])
            raise refuse("entry_outside", argument="indices", position=entry, value=int(indices[entry, column]),
                         bound=int(self.dense_shape[column]), column=column)  # fmt: skip

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseTensor:
        """A SciPy sparse matrix or array of any format, sorted by row and column."""
        coo = matrix.tocoo()
        indices = np.stack(coo.coords, axis=1).astype(np.int64) if coo.nnz else np.zeros((0, coo.ndim), np.int64)
        order = np.lexsort(indices.T[::-1])
        return cls(indices[order], coo.data[order], np.array(coo.shape, np.int64))

    def to_scipy(self) -> Any:
        """A `scipy.sparse.coo_array`."""
        from scipy.sparse import coo_array  # SciPy is the caller's choice

        self._check_bounds()
        return coo_array((np.asarray(self.values), tuple(np.asarray(self.indices).T)), shape=self.shape)


def _integers(given: Any, argument: str) -> Any:
    """Indices and shapes are int64 arrays of NumPy; what is traced stays as it is."""
    traced = is_traced(given)
    array = given if traced else plain_array(given, argument)
    if array.dtype.kind not in "iu" and (traced or array.size or array.dtype.kind != "f"):  # [] is no array of floats
        raise refuse("dtype_expected", argument=argument, value=array.dtype, bound="int64", why="")
    return array if traced else array.astype(np.int64, copy=False)
