"""SparseTensor, and the sparse-tensor ops that take and return it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ._catalog.spec import QUANTIZED, Aval
from ._hints import missing_extra
from ._runtime.arrays import as_array, aval_of, canonical, fit, is_inexact, is_masked, plain_array
from ._runtime.dispatch import concrete, describe_value, id_functions, in_host_memory, is_traced
from ._runtime.results import check_size, too_large
from .errors import OpError, make_error, shape_text
from .raw_ops import OPS

__all__ = ("Filled", "SparseTensor", "add", "fill_empty_rows", "segment_mean", "segment_sqrt_n", "segment_sum", "slice")

Array = np.ndarray[Any, Any]
_MAX_RANK = 64  # NumPy's


@dataclass(frozen=True, slots=True, eq=False, init=False)
class SparseTensor:
    """A sparse tensor like TensorFlow's: coordinates, values, and a dense shape.

    Element `indices[k]` has the value `values[k]`; all other elements are zero (or absent). `indices` and `values` may
    be traced by JAX, and tensors on a GPU stay there; `dense_shape` is always a NumPy array.

    Args:
        indices: int64 coordinates, [entries, rank].
        values: A value for each entry.
        dense_shape: The shape of the dense array.

    Raises:
        InvalidArgumentError: If shapes or dtypes do not fit.

    >>> import rowgrad as rg
    >>> st = rg.SparseTensor.from_dense([[0, 5], [7, 0]])
    >>> st.indices.tolist(), st.values.tolist()
    ([[0, 1], [1, 0]], [5, 7])
    """

    indices: Any
    values: Any
    dense_shape: Array

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        if is_traced(dense_shape):
            raise make_error("host_traced", argument="dense_shape")
        try:
            self._set_parts(indices, values, dense_shape)
        except OpError as error:
            parts = {"indices": indices, "values": values, "dense_shape": dense_shape}
            call = ", ".join(f"{name}={describe_value(part)}" for name, part in parts.items())
            raise error.in_call("SparseTensor", None, call) from None

    def _set_parts(self, indices: Any, values: Any, dense_shape: Any) -> None:
        object.__setattr__(self, "indices", _indices(indices))
        object.__setattr__(self, "dense_shape", _integers(dense_shape, "dense_shape"))
        is_array = hasattr(values, "shape") and hasattr(values, "dtype")
        if not is_array or isinstance(values, np.generic) or is_masked(values):
            values = plain_array(values, "values")
        if getattr(values.dtype, "kind", "f") in "SU":
            values = values.astype(object)  # fixed widths would truncate longer strings later
        elif isinstance(values, np.ndarray) and not values.dtype.isnative:
            values = values.astype(values.dtype.newbyteorder("="))
        object.__setattr__(self, "values", values)
        shapes = {"indices": self.indices.shape, "values": self.values.shape, "dense_shape": self.dense_shape.shape}
        for name, rank in (("indices", 2), ("values", 1), ("dense_shape", 1)):
            if len(shapes[name]) != rank:
                bound = "a matrix" if rank == 2 else "a vector"
                raise make_error("same_shape", argument=name, value=shape_text(shapes[name]), bound=bound)
        if shapes["values"][0] != shapes["indices"][0]:
            raise make_error("lengths_match", argument="values", value=shapes["values"][0], bound=shapes["indices"][0])
        if shapes["dense_shape"][0] != shapes["indices"][1]:
            raise make_error("lengths_match", argument="dense_shape", value=shapes["dense_shape"][0],
                             bound=shapes["indices"][1])  # fmt: skip

    @classmethod
    def of(cls, indices: Any, values: Any, shape: tuple[int, ...]) -> SparseTensor:
        """Return a sparse tensor of these parts without validation."""
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
        """The number of stored entries."""
        return int(self.indices.shape[0])

    def __repr__(self) -> str:
        return f"SparseTensor(shape={self.shape}, nnz={self.nnz}, dtype={self.dtype})"

    @classmethod
    def from_dense(cls, array: Any) -> SparseTensor:
        """Return the nonzero entries of a dense array (nonempty, for strings) in row-major order."""
        dense = plain_array(array, "array")
        if dense.dtype.kind in "SU":
            dense = dense.astype(object)
        mask = dense.astype(bool)
        return cls(np.argwhere(mask), dense[mask], np.array(dense.shape, np.int64))

    def to_dense(self, default_value: Any = 0) -> Array:
        """Return a dense array. Entries with equal indices are added, like in SciPy; 16-bit floats in float32."""
        self._check_bounds()
        values = canonical(np.asarray(in_host_memory(self.values)), "values")
        dtype = aval_of(values).dtype
        if dtype in QUANTIZED:
            raise make_error("dtype_not_allowed", argument="values", value=dtype, bound="numbers that can be added")
        for position, size in enumerate(self.shape):
            if size < 0:
                raise make_error("size_negative", argument="dense_shape", position=position, value=size, bound=0)
        if len(self.shape) > _MAX_RANK:
            raise make_error("rank_at_most", argument="dense_shape", value=len(self.shape), bound=_MAX_RANK)
        check_size(Aval(dtype, self.shape))
        default = _default(default_value, values)
        try:
            dense = np.full(self.shape, default, values.dtype)
        except ValueError:  # it has no elements, but NumPy cannot index it
            raise too_large(Aval(dtype, self.shape)) from None
        if not len(values):
            return dense
        strides = np.cumprod([1, *self.shape[:0:-1]], dtype=np.int64)[::-1]
        linear = np.asarray(in_host_memory(self.indices)) @ strides[: len(self.shape)]
        places, first, place_of = np.unique(linear, return_index=True, return_inverse=True)
        if dtype == "string":
            if len(places) < len(values):
                repeated = np.delete(np.arange(len(values)), first)
                raise make_error("string_repeated", argument="indices", position=int(repeated[0]))
            sums = values[first]
        else:
            wide = np.dtype(np.float32) if dtype in ("float16", "bfloat16") else values.dtype
            # Adding to -0.0 changes no number, not even -0.0.
            sums = np.full(len(places), -np.zeros((), wide) if is_inexact(wide) else 0, wide)
            np.add.at(sums, place_of.reshape(-1), values.astype(wide, copy=False))
        with np.errstate(over="ignore"):
            dense.reshape(-1)[places] = sums.astype(values.dtype, copy=False)
        return dense

    def _check_bounds(self) -> None:
        indices = np.asarray(in_host_memory(self.indices))
        bad = np.argwhere((indices < 0) | (indices >= self.dense_shape))
        if len(bad):
            entry, column = (int(v) for v in bad[0])
            raise make_error("entry_outside", argument="indices", position=entry, value=int(indices[entry, column]),
                             bound=int(self.dense_shape[column]), column=column)  # fmt: skip

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseTensor:
        """Return a SciPy sparse matrix or array of any format as a SparseTensor, sorted by row and column."""
        if not hasattr(matrix, "tocoo"):
            bound = "a sparse matrix or array of SciPy"
            raise make_error("value_unfit", argument="matrix", value=type(matrix).__name__, bound=bound)
        coo = matrix.tocoo()
        indices = np.stack(coo.coords, axis=1).astype(np.int64) if coo.nnz else np.zeros((0, coo.ndim), np.int64)
        order = np.lexsort(indices.T[::-1])
        return cls(indices[order], coo.data[order], np.array(coo.shape, np.int64))

    def to_scipy(self) -> Any:
        """Return a `scipy.sparse.coo_array`."""
        try:
            from scipy.sparse import coo_array
        except ImportError as error:
            raise missing_extra("SparseTensor.to_scipy", "SciPy", "scipy") from error
        self._check_bounds()
        if not self.shape:
            raise make_error("rank_at_least", argument="dense_shape", value="[]", bound=1)
        values, indices = (np.asarray(in_host_memory(part)) for part in (self.values, self.indices))
        return coo_array((values, tuple(indices.T)), shape=self.shape)


def _default(value: Any, values: Array) -> Any:
    """Return the value of elements without an entry, in the dtype of the values."""
    dtype = aval_of(values).dtype
    if dtype == "string":
        if isinstance(value, str | bytes):
            return value
        if isinstance(value, int) and value == 0:
            return ""
        raise make_error(
            "dtype_expected", argument="default_value", value=type(value).__name__, bound="a string", why=""
        )
    array = as_array(value, "default_value", dtype)
    if array.ndim:
        raise make_error("same_shape", argument="default_value", value=shape_text(array.shape), bound="[]")
    kinds = array.dtype.kind, values.dtype.kind
    if kinds[0] in "iu" and kinds[1] in "iu":
        return fit(array, "default_value", values.dtype)
    is_number = array.dtype.kind in "iu" or is_inexact(array.dtype)
    if array.dtype == values.dtype or (kinds[1] == "b" and array in (0, 1)):
        return array
    if is_number and is_inexact(values.dtype) and (kinds[0] != "c" or kinds[1] == "c"):
        return array
    raise make_error("dtype_expected", argument="default_value", value=array.dtype, bound=dtype, why=", as the values")


def _indices(value: Any) -> Any:
    """Return indices as int64, in the memory in which they are; traced arrays are unchanged."""
    on_device = id_functions(value)
    if on_device is None or not str(value.dtype).rpartition(".")[2].startswith(("int", "uint8", "uint16", "uint32")):
        return _integers(value, "indices")
    return on_device.int64(value, "indices")


def _integers(value: Any, argument: str) -> Any:
    """Return indices or a shape as an int64 NumPy array; traced arrays are unchanged."""
    traced = is_traced(value)
    array = value if traced else plain_array(concrete(in_host_memory(value), argument), argument)
    if array.dtype.kind not in "iu" and (traced or array.size or array.dtype.kind != "f"):  # [] becomes float64
        raise make_error("dtype_expected", argument=argument, value=array.dtype, bound="int64", why="")
    if traced:
        return array
    return fit(array, argument, np.dtype(np.int64)) if array.dtype == np.uint64 else array.astype(np.int64, copy=False)


# -- Ops that take and return SparseTensor ----------------------------------------------------------------------------


class Filled(NamedTuple):
    """The result of `fill_empty_rows`."""

    tensor: SparseTensor
    empty_row_indicator: Any


def _sparse(value: Any, argument: str) -> SparseTensor:
    if not isinstance(value, SparseTensor):
        raise TypeError(f"{argument} must be SparseTensor, got {type(value)}")
    return value


def slice(sp_input: SparseTensor, start: Any, size: Any, name: str | None = None) -> SparseTensor:
    """Return the entries inside a box, moved to the origin.

    Args:
        sp_input: A sparse tensor.
        start: The coordinates of the box.
        size: The size of the box along each dimension.
        name: A name for errors.

    Returns:
        A sparse tensor of at most this size.

    Raises:
        InvalidArgumentError: If `start` or `size` does not fit the tensor.

    >>> import rowgrad as rg
    >>> part = rg.sparse.slice(rg.SparseTensor.from_dense([[0, 5], [7, 0]]), [1, 0], [1, 2])
    >>> part.to_dense().tolist()
    [[7, 0]]
    """
    x = _sparse(sp_input, "sp_input")
    return SparseTensor(*OPS["SparseSlice"](x.indices, x.values, x.dense_shape, start, size, name=name))


def fill_empty_rows(sp_input: SparseTensor, default_value: Any, name: str | None = None) -> Filled:
    """Add an entry to every empty row: `default_value` in column 0.

    Args:
        sp_input: A sparse tensor.
        default_value: The value of added entries.
        name: A name for errors.

    Returns:
        The filled tensor, and for each row whether it was empty.

    Raises:
        InvalidArgumentError: If an entry is outside of the dense shape.

    >>> import numpy as np, rowgrad as rg
    >>> filled = rg.sparse.fill_empty_rows(rg.SparseTensor([[1, 0]], np.array([5]), [2, 1]), 9)
    >>> filled.tensor.values.tolist(), filled.empty_row_indicator.tolist()
    ([9, 5], [True, False])
    """
    x = _sparse(sp_input, "sp_input")
    filled = OPS["SparseFillEmptyRows"](x.indices, x.values, x.dense_shape, default_value, name=name)
    tensor = SparseTensor(filled.output_indices, filled.output_values, x.dense_shape.copy())
    return Filled(tensor, filled.empty_row_indicator)


def add(a: SparseTensor, b: SparseTensor, threshold: Any = 0, name: str | None = None) -> SparseTensor:
    """Add two sparse tensors. Where both have an entry, sums below `threshold` in magnitude are dropped.

    Args:
        a: A sparse tensor.
        b: A sparse tensor of the same shape.
        threshold: A real number.
        name: A name for errors.

    Returns:
        The sum, sorted by index.

    Raises:
        InvalidArgumentError: If the shapes or dtypes differ.

    >>> import rowgrad as rg
    >>> one = rg.SparseTensor.from_dense([0.0, 5.0])
    >>> rg.sparse.add(one, one).to_dense().tolist()
    [0.0, 10.0]
    """
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
    """Return the sum of the rows `data[indices]` of each segment.

    Args:
        data: A table of rows.
        indices: The rows to look up.
        segment_ids: The segment of each index, ascending.
        num_segments: The number of segments; by default the last segment id plus one.
        name: A name for errors.
        sparse_gradient: Return row-sparse gradients for `data`.

    Returns:
        One row for each segment.

    Raises:
        InvalidArgumentError: If an index is out of range, or segment ids are not sorted.

    >>> import numpy as np, rowgrad as rg
    >>> rg.sparse.segment_sum(np.array([[1.0], [2.0], [4.0]]), [0, 2, 1], [0, 0, 1]).tolist()
    [[5.0], [2.0]]
    """
    return _segment("Sum", data, indices, segment_ids, num_segments, {"name": name, "sparse_gradient": sparse_gradient})


def segment_mean(
    data: Any,
    indices: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    name: str | None = None,
    sparse_gradient: bool = False,
) -> Any:
    """Return the mean of the rows `data[indices]` of each segment. Arguments are those of `segment_sum`.

    >>> import numpy as np, rowgrad as rg
    >>> rg.sparse.segment_mean(np.array([[1.0], [2.0], [4.0]]), [0, 2, 1], [0, 0, 1]).tolist()
    [[2.5], [2.0]]
    """
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
    """Return the sum of the rows `data[indices]` of each segment divided by √n. Arguments are those of `segment_sum`.

    >>> import numpy as np, rowgrad as rg
    >>> rg.sparse.segment_sqrt_n(np.array([[1.0], [2.0]]), [0, 0, 0, 0], [0, 0, 0, 0]).tolist()
    [[2.0]]
    """
    attrs = {"name": name, "sparse_gradient": sparse_gradient}
    return _segment("SqrtN", data, indices, segment_ids, num_segments, attrs)
