"""SparseTensor, and the sparse-tensor ops that take and return it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ._catalog.spec import QUANTIZED, Aval
from ._runtime.arrays import as_array, aval_of, canonical, fit, is_inexact, is_masked, plain_array
from ._runtime.dispatch import describe_value, is_traced
from ._runtime.results import check_size, too_large
from .errors import OpError, make_error, shape_text
from .raw_ops import OPS

# -- SparseTensor -----------------------------------------------------------------------------------------------------

# SparseTensor: indices, values and a dense shape, as TensorFlow has it.

Array = np.ndarray[Any, Any]
_MOST_AXES = 64  # NumPy's


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
            raise make_error("host_traced", argument="dense_shape")
        try:
            self._take(indices, values, dense_shape)
        except OpError as error:
            given = {"indices": indices, "values": values, "dense_shape": dense_shape}
            got = ", ".join(f"{name}={describe_value(part)}" for name, part in given.items())
            raise error.in_call("SparseTensor", None, got) from None

    def _take(self, indices: Any, values: Any, dense_shape: Any) -> None:
        object.__setattr__(self, "indices", _integers(indices, "indices"))
        object.__setattr__(self, "dense_shape", _integers(dense_shape, "dense_shape"))
        is_array = hasattr(values, "shape") and hasattr(values, "dtype")
        if not is_array or isinstance(values, np.generic) or is_masked(values):
            values = plain_array(values, "values")
        if getattr(values.dtype, "kind", "f") in "SU":
            values = values.astype(object)  # fixed widths would cut what is put beside them
        elif isinstance(values, np.ndarray) and not values.dtype.isnative:
            values = values.astype(values.dtype.newbyteorder("="))
        object.__setattr__(self, "values", values)
        shapes = {"indices": self.indices.shape, "values": self.values.shape, "dense_shape": self.dense_shape.shape}
        for name, rank in (("indices", 2), ("values", 1), ("dense_shape", 1)):
            if len(shapes[name]) != rank:
                wanted = "a matrix" if rank == 2 else "a vector"
                raise make_error("same_shape", argument=name, value=shape_text(shapes[name]), bound=wanted)
        if shapes["values"][0] != shapes["indices"][0]:
            raise make_error("lengths_match", argument="values", value=shapes["values"][0], bound=shapes["indices"][0])
        if shapes["dense_shape"][0] != shapes["indices"][1]:
            raise make_error("lengths_match", argument="dense_shape", value=shapes["dense_shape"][0],
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
        dense = plain_array(array, "array")
        if dense.dtype.kind in "SU":
            dense = dense.astype(object)
        mask = dense.astype(bool)
        return cls(np.argwhere(mask), dense[mask], np.array(dense.shape, np.int64))

    def to_dense(self, default_value: Any = 0) -> Array:
        """A dense array; entries at the same place add up, as they do in SciPy, those of 16 bits in float32."""
        self._check_bounds()
        values = canonical(np.asarray(self.values), "values")
        dtype = aval_of(values).dtype
        if dtype in QUANTIZED:
            raise make_error("dtype_not_allowed", argument="values", value=dtype, bound="numbers that can be added")
        for position, size in enumerate(self.shape):
            if size < 0:
                raise make_error("size_negative", argument="dense_shape", position=position, value=size, bound=0)
        if len(self.shape) > _MOST_AXES:
            raise make_error("rank_at_most", argument="dense_shape", value=len(self.shape), bound=_MOST_AXES)
        check_size(Aval(dtype, self.shape))
        default = _default(default_value, values)
        try:
            dense = np.full(self.shape, default, values.dtype)
        except ValueError:  # without elements, but NumPy cannot index it
            raise too_large(Aval(dtype, self.shape)) from None
        if not len(values):
            return dense
        strides = np.cumprod([1, *self.shape[:0:-1]], dtype=np.int64)[::-1]
        places, first, which = np.unique(
            np.asarray(self.indices) @ strides[: len(self.shape)], return_index=True, return_inverse=True
        )
        if dtype == "string":
            if len(places) < len(values):
                repeated = np.delete(np.arange(len(values)), first)
                raise make_error("string_repeated", argument="indices", position=int(repeated[0]))
            sums = values[first]
        else:
            wide = np.dtype(np.float32) if dtype in ("float16", "bfloat16") else values.dtype
            # -0.0 is what every number, -0.0 too, can be added to and stay the same.
            sums = np.full(len(places), -np.zeros((), wide) if is_inexact(wide) else 0, wide)
            np.add.at(sums, which.reshape(-1), values.astype(wide, copy=False))
        with np.errstate(over="ignore"):
            dense.reshape(-1)[places] = sums.astype(values.dtype, copy=False)
        return dense

    def _check_bounds(self) -> None:
        indices = np.asarray(self.indices)
        bad = np.argwhere((indices < 0) | (indices >= self.dense_shape))
        if len(bad):
            entry, column = (int(v) for v in bad[0])
            raise make_error("entry_outside", argument="indices", position=entry, value=int(indices[entry, column]),
                             bound=int(self.dense_shape[column]), column=column)  # fmt: skip

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseTensor:
        """A SciPy sparse matrix or array of any format, sorted by row and column."""
        if not hasattr(matrix, "tocoo"):
            bound = "a sparse matrix or array of SciPy"
            raise make_error("value_unfit", argument="matrix", value=type(matrix).__name__, bound=bound)
        coo = matrix.tocoo()
        indices = np.stack(coo.coords, axis=1).astype(np.int64) if coo.nnz else np.zeros((0, coo.ndim), np.int64)
        order = np.lexsort(indices.T[::-1])
        return cls(indices[order], coo.data[order], np.array(coo.shape, np.int64))

    def to_scipy(self) -> Any:
        """A `scipy.sparse.coo_array`."""
        from scipy.sparse import coo_array  # SciPy is the caller's choice

        self._check_bounds()
        if not self.shape:
            raise make_error("rank_at_least", argument="dense_shape", value="[]", bound=1)
        return coo_array((np.asarray(self.values), tuple(np.asarray(self.indices).T)), shape=self.shape)


def _default(value: Any, values: Array) -> Any:
    """What `to_dense` puts where there is no entry, in the dtype of the values."""
    dtype = aval_of(values).dtype
    if dtype == "string":
        if isinstance(value, str | bytes):
            return value
        if isinstance(value, int) and value == 0:
            return ""
        raise make_error(
            "dtype_expected", argument="default_value", value=type(value).__name__, bound="a string", why=""
        )
    given = as_array(value, "default_value", dtype)
    if given.ndim:
        raise make_error("same_shape", argument="default_value", value=shape_text(given.shape), bound="[]")
    kinds = given.dtype.kind, values.dtype.kind
    if kinds[0] in "iu" and kinds[1] in "iu":
        return fit(given, "default_value", values.dtype)
    is_number = given.dtype.kind in "iu" or is_inexact(given.dtype)
    if given.dtype == values.dtype or (kinds[1] == "b" and given in (0, 1)):
        return given
    if is_number and is_inexact(values.dtype) and (kinds[0] != "c" or kinds[1] == "c"):
        return given
    raise make_error("dtype_expected", argument="default_value", value=given.dtype, bound=dtype, why=", as the values")


def _integers(given: Any, argument: str) -> Any:
    """Indices and shapes are int64 arrays of NumPy; what is traced stays as it is."""
    traced = is_traced(given)
    array = given if traced else plain_array(given, argument)
    if array.dtype.kind not in "iu" and (traced or array.size or array.dtype.kind != "f"):  # [] is no array of floats
        raise make_error("dtype_expected", argument=argument, value=array.dtype, bound="int64", why="")
    if traced:
        return array
    return fit(array, argument, np.dtype(np.int64)) if array.dtype == np.uint64 else array.astype(np.int64, copy=False)


# -- The sparse-tensor ops for people ---------------------------------------------------------------------------------

# The sparse-tensor ops for people: they take and give `SparseTensor`.


class Filled(NamedTuple):
    """What `fill_empty_rows` gives."""

    tensor: SparseTensor
    empty_row_indicator: Any


def _sparse(value: Any, argument: str) -> SparseTensor:
    if not isinstance(value, SparseTensor):
        raise TypeError(f"{argument} must be SparseTensor, got {type(value)}")
    return value


def slice(sp_input: SparseTensor, start: Any, size: Any, name: str | None = None) -> SparseTensor:
    """The entries inside the box that begins at `start` and is `size` long, moved to the origin."""
    x = _sparse(sp_input, "sp_input")
    return SparseTensor(*OPS["SparseSlice"](x.indices, x.values, x.dense_shape, start, size, name=name))


def fill_empty_rows(sp_input: SparseTensor, default_value: Any, name: str | None = None) -> Filled:
    """Every row without an entry gets one: `default_value` in column 0."""
    x = _sparse(sp_input, "sp_input")
    filled = OPS["SparseFillEmptyRows"](x.indices, x.values, x.dense_shape, default_value, name=name)
    tensor = SparseTensor(filled.output_indices, filled.output_values, x.dense_shape.copy())
    return Filled(tensor, filled.empty_row_indicator)


def add(a: SparseTensor, b: SparseTensor, threshold: Any = 0, name: str | None = None) -> SparseTensor:
    """The sum of two sparse tensors; where both have an entry, sums below `threshold` in magnitude are dropped."""
    a, b = _sparse(a, "a"), _sparse(b, "b")
    args = (a.indices, a.values, a.dense_shape, b.indices, b.values, b.dense_shape)
    return SparseTensor(*OPS["SparseAdd"](*args, threshold, name=name))


def _segment(kind: str, data: Any, indices: Any, segment_ids: Any, num_segments: Any, attrs: dict[str, Any]) -> Any:
    if num_segments is None:
        return OPS[f"SparseSegment{kind}"](data, indices, segment_ids, **attrs)
    return OPS[f"SparseSegment{kind}WithNumSegments"](data, indices, segment_ids, num_segments, **attrs)


def segment_sum(
    data: Any,
    indices: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    name: str | None = None,
    sparse_gradient: bool = False,
) -> Any:
    """The sum of the rows of `data` named by `indices`, per segment."""
    return _segment("Sum", data, indices, segment_ids, num_segments, {"name": name, "sparse_gradient": sparse_gradient})


def segment_mean(
    data: Any,
    indices: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    name: str | None = None,
    sparse_gradient: bool = False,
) -> Any:
    """The mean of the rows of `data` named by `indices`, per segment."""
    return _segment(
        "Mean", data, indices, segment_ids, num_segments, {"name": name, "sparse_gradient": sparse_gradient}
    )


def segment_sqrt_n(
    data: Any,
    indices: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    name: str | None = None,
    sparse_gradient: bool = False,
) -> Any:
    """The sum of the rows of `data` named by `indices`, divided by the root of their number, per segment."""
    attrs = {"name": name, "sparse_gradient": sparse_gradient}
    return _segment("SqrtN", data, indices, segment_ids, num_segments, attrs)
