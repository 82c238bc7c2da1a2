"""The sparse-tensor ops for people: they take and give `SparseTensor`."""

from __future__ import annotations

from typing import Any, NamedTuple

from .raw_ops import OPS
from .sparse_tensor import SparseTensor


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
