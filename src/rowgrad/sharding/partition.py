"""Split ids by the part of a table that stores them, join results, and sum gradients per part."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._core import memory_limit
from .._runtime.arrays import as_array, fit, is_masked, plain_array
from .._runtime.dispatch import describe_value, is_traced
from ..errors import OpError, ResourceExhaustedError, make_error
from .div_mod import Array, check_strategy, first_id, group_by_shard, id_step, inverse_permutation, locate, shard_size

# -- Split and join ids -----------------------------------------------------------------------------------------------

_ID_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))
_PART_BYTES = 256  # the memory of a part without ids: two empty arrays


@dataclass(frozen=True, slots=True, eq=False)  # arrays compare by element
class Partitioned:
    """The result of `partition`. Arrays are of the ids' library; rows have the ids' dtype.

    Attributes:
        rows: For each part, the rows to look up there, in input order.
        positions: For each part, the positions of these ids in the batch.
        part: The part of each id.
        row: The row of each id in its part.
    """

    rows: list[Any]
    positions: list[Any]
    part: Any
    row: Any


def partition(ids: Any, num_parts: int, strategy: str = "div", *, num_rows: int | None = None) -> Partitioned:
    """Split ids by the part of the table that stores them, by TensorFlow's partition rules.

    Args:
        ids: int32 or int64 ids of any shape, read as a vector: an array of NumPy, torch or JAX, or a list.
        num_parts: The number of parts.
        strategy: "div" stores a run of rows in each part, one row longer in the first (num_rows mod num_parts) parts.
            "mod" stores row i as row i // num_parts of part i mod num_parts.
        num_rows: The number of rows of the table. "div" requires it; "mod" without it cannot reject ids that are too
            large.

    Returns:
        The part and the row of each id, and for each part its rows and their positions.

    Raises:
        InvalidArgumentError: If an id is out of range, or an option is invalid.

    >>> import rowgrad as rg
    >>> split = rg.partition([4, 0, 3, 1], num_parts=2, strategy="div", num_rows=5)
    >>> [rows.tolist() for rows in split.rows], [positions.tolist() for positions in split.positions]
    ([[0, 1], [1, 0]], [[1, 3], [0, 2]])
    """
    with _error_context("partition", ids=ids, num_parts=num_parts, strategy=strategy, num_rows=num_rows):
        num_parts, rows = _read_counts(num_parts, strategy, num_rows)
        if num_parts > memory_limit() // _PART_BYTES:
            raise make_error("out_of_memory", argument="num_parts", value=num_parts, bound=memory_limit())
        flat = _integers(ids, "ids").reshape(-1)
        bad = np.flatnonzero((flat < 0) | (flat >= rows) if rows is not None else flat < 0)
        if len(bad):
            key, bound = ("id_negative", 0) if rows is None else ("id_outside", rows)
            raise make_error(key, argument="ids", position=int(bad[0]), value=int(flat[bad[0]]), bound=bound)
        if strategy == "div" and len(flat) and rows is not None and rows < num_parts:
            raise make_error("fewer_rows_than_parts", argument="num_rows", value=rows, bound=num_parts)
        part, row = locate(flat, rows or 0, num_parts, strategy)
        row = row.astype(flat.dtype)
        _, positions = group_by_shard(part, num_parts)
        results = [_like(ids, array) for array in ([row[p] for p in positions], positions, [part, row])]
        return Partitioned(results[0], results[1], *results[2])


def stitch(values: Sequence[Any], partitioned: Partitioned) -> Any:
    """Join the results of all parts in the order of the ids: the inverse of `partition`.

    Args:
        values: For each part an array with as many rows as `partitioned.rows[k]`; dtype and columns are the same in all
            parts. Arrays of NumPy, torch or JAX; gradients of torch and JAX pass through.
        partitioned: The result of `partition`.

    Returns:
        One array with a row for each id.

    Raises:
        InvalidArgumentError: If an array does not fit its part.

    >>> import numpy as np, rowgrad as rg
    >>> split = rg.partition([4, 0, 3, 1], num_parts=2, num_rows=5)
    >>> parts = [np.array([10, 11, 12]), np.array([13, 14])]
    >>> rg.stitch([part[rows] for part, rows in zip(parts, split.rows)], split).tolist()
    [14, 10, 13, 11]
    """
    with _error_context("stitch", values=values):
        if not isinstance(partitioned, Partitioned):
            bound = "what partition returns"
            raise make_error("value_unfit", argument="partitioned", value=type(partitioned).__name__, bound=bound)
        if not isinstance(values, Sequence):
            raise make_error("value_unfit", argument="values", value=type(values).__name__, bound="a list of arrays")
        counts = [p.shape[0] for p in partitioned.positions]
        if len(values) != len(counts):
            raise make_error("stitch_parts", argument="values", value=len(values), bound=len(counts))
        arrays = [
            v if hasattr(v, "dtype") and not is_masked(v) else plain_array(v, f"values[{k}]")
            for k, v in enumerate(values)
        ]
        for k, (array, count) in enumerate(zip(arrays, counts, strict=True)):
            shape = (count, *arrays[0].shape[1:])
            if tuple(array.shape) != shape or array.dtype != arrays[0].dtype:
                bound, value = (f"{d}{list(s)}" for d, s in ((arrays[0].dtype, shape), (array.dtype, array.shape)))
                raise make_error("value_unfit", argument=f"values[{k}]", value=value, bound=bound)
        order = np.concatenate([_host(p) for p in partitioned.positions])
        concatenated = _library(arrays[0]).concat(arrays)
        return concatenated[_like(concatenated, [inverse_permutation(order)])[0]]


def global_ids(part: Any, rows: Any, num_parts: int, strategy: str = "div", *, num_rows: int | None = None) -> Any:
    """Return the ids of rows of a part: the inverse of `partition` for part and row numbers.

    Args:
        part: A part, or an array with a part for each row.
        rows: int32 or int64 rows: an array of NumPy, torch or JAX, or a list.
        num_parts: The number of parts.
        strategy: "div" or "mod".
        num_rows: The number of rows of the table. "div" requires it; "mod" without it rejects only rows whose id does
            not fit the rows' dtype.

    Returns:
        Ids of the shape, dtype and library of `rows`.

    Raises:
        InvalidArgumentError: If a part or a row does not exist, or an option is invalid.

    >>> import numpy as np, rowgrad as rg
    >>> rg.global_ids(1, np.array([0, 1]), num_parts=2, strategy="mod", num_rows=5).tolist()
    [1, 3]
    """
    with _error_context("global_ids", part=part, rows=rows, num_parts=num_parts, strategy=strategy, num_rows=num_rows):
        num_parts, total = _read_counts(num_parts, strategy, num_rows)
        local = _integers(rows, "rows")
        parts = _integers(part, "part")
        try:
            parts = np.broadcast_to(parts, local.shape).astype(np.int64)
        except ValueError:
            raise make_error("same_shape", argument="part", value=parts.shape, bound=local.shape) from None
        bad = np.flatnonzero((parts < 0) | (parts >= num_parts))
        if len(bad):
            value = int(parts.reshape(-1)[bad[0]])
            raise make_error("part_outside", argument="part", position=int(bad[0]), value=value, bound=num_parts)
        if total is None:  # under "mod" then only the dtype limits the ids
            last = (int(np.iinfo(local.dtype).max) - parts) // num_parts
        else:
            last = shard_size(parts, total, num_parts) - 1
        bad = np.flatnonzero((local < 0) | (local > last))
        if len(bad):
            value, bound = (int(a.reshape(-1)[bad[0]]) for a in (local, last))
            raise make_error("row_not_in_part", argument="rows", position=int(bad[0]), value=value, bound=bound + 1)
        first = first_id(parts, total or 0, num_parts, strategy)
        ids = fit(local.astype(np.int64) * id_step(num_parts, strategy) + first, "rows", local.dtype)
        return _like(rows, [ids])[0]


def _read_counts(num_parts: int, strategy: str, num_rows: int | None) -> tuple[int, int | None]:
    """Return both counts as Python integers, whose sums cannot overflow."""
    check_strategy(strategy)
    for argument, value, least in (("num_parts", num_parts, 1), ("num_rows", num_rows, 0)):
        is_number = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if value is None and argument == "num_rows":
            if strategy == "div":
                raise make_error("div_needs_rows", argument="num_rows")
        elif not is_number or not least <= int(value) < 2**63:  # type: ignore[arg-type]
            raise make_error("count_unfit", argument=argument, value=repr(value), bound=least)
    return int(num_parts), None if num_rows is None else int(num_rows)


def _integers(value: Any, argument: str) -> Array:
    """Return an argument as a NumPy array of int32 or int64."""
    if is_traced(value):
        raise make_error("size_traced", argument=argument, bound=f"{argument} must be a concrete array")
    array = as_array(_host(value), argument, empty="int32")
    if array.dtype not in _ID_DTYPES:
        raise make_error("dtype_not_allowed", argument=argument, value=array.dtype, bound="int32, int64")
    return array


def _host(value: Any) -> Any:
    """Return something NumPy can read: torch tensors are copied to the CPU."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _like(value: Any, arrays: list[Array]) -> list[Any]:
    """Convert NumPy arrays to the library and device of a value."""
    if hasattr(value, "detach"):
        return [_library(value).from_numpy(np.ascontiguousarray(a)).to(value.device) for a in arrays]
    library = _library(value)
    return arrays if library is np else [library.asarray(a) for a in arrays]


def _library(value: Any) -> Any:
    """Return the array namespace of an array. Since the array exists, its library is imported."""
    if hasattr(value, "detach"):
        return sys.modules["torch"]
    return value.__array_namespace__() if hasattr(value, "__array_namespace__") else np


@contextmanager
def _error_context(op: str, **arguments: Any) -> Iterator[None]:
    """Add the function's name and arguments to errors."""
    try:
        yield
    except OpError as error:
        error.in_call(op, None, ", ".join(f"{k}={_describe(v)}" for k, v in arguments.items()))
        raise
    except MemoryError as error:
        exhausted = ResourceExhaustedError(f"OOM: {error}")
        raise exhausted.in_call(op, None, ", ".join(f"{k}={_describe(v)}" for k, v in arguments.items())) from error


def _describe(value: Any) -> str:
    return repr(value) if isinstance(value, str) else describe_value(value)


# -- Gradients of bags whose ids are spread over several owners -------------------------------------------------------

# The owner of a row sums its gradients. It has only the ids of a bag that name its own rows, so it also needs a scale
# per bag, which the caller passes. These functions are compositions of ops, so they work for every array library; their
# bits are those of `[Weighted]SparseSegment{Sum,Mean,SqrtN}Grad`, and of the row-sparse gradients, on all ids at once
# (docs/reference/orders.md).


def weighted_scales(ops: Any, kind: str, segment_ids: Any, weights: Any, num_bags: int) -> Any:
    """Return the divisor of each weighted bag, Σw or √Σw², in the dtype of `weights`; None for sums.

    `weights` are those of all ids of each bag, already in the accumulation type (float32, or float64 for float64).
    """
    if kind == "Sum":
        return None
    if kind == "Mean":
        return ops["ScatterRows"](weights, segment_ids, num_bags)
    return ops["Sqrt"](ops["ScatterRows"](ops["Mul"](weights, weights), segment_ids, num_bags))


def plain_scales(ops: Any, kind: str, segment_ids: Any, ones: Any) -> Any:
    """Return the scale of each id of unweighted bags, 1/n or 1/√n, in the dtype of `ones`; None for sums.

    `ones` is a column [bags, 1] of the accumulation type. The scales are computed by the gradient kernel itself, so
    they have its bits.
    """
    if kind == "Sum":
        return None
    each = ops["Positions"](segment_ids)
    return ops[f"SparseSegment{kind}Grad"](ones, each, segment_ids, segment_ids.shape[0])


def scaled_rows(ops: Any, grad: Any, divisors: Any) -> Any:
    """Divide each bag's gradient by the bag's divisor, in the divisors' dtype; x/0 is 0."""
    wide = ops["CastLike"](grad, divisors)
    # The gradient kernels flush subnormal numbers to zero before they divide; their product with 1 does the same.
    each = ops["Positions"](ops["Cast"](ops["ZerosLike"](divisors), DstT="int64"))
    flushed = ops["WeightedSparseSegmentSumGradRows"](wide, each, ops["OnesLike"](divisors))
    return ops["DivNoNan"](flushed, ops["Reshape"](divisors, (-1, 1)))


def dense_gradient(
    ops: Any, grad: Any, indices: Any, segment_ids: Any, num_rows: int, *, factors: Any = None, divisors: Any = None,
    weights: Any = None, plan: tuple[Any, ...] | None = None, **order: Any,
) -> Any:  # fmt: skip
    """Return the gradient for a table of `num_rows` rows as a dense table.

    Args:
        ops: The raw ops.
        grad: The gradient of each bag.
        indices: The row of each (row, bag) pair, in the order of the ids.
        segment_ids: The bag of each pair.
        num_rows: The number of rows of the table.
        factors: For bags without weights, a factor per bag.
        divisors: For weighted bags, a divisor per bag, applied before the weights.
        weights: A weight per pair.
        plan: The result of `RowPlan` for these pairs, if it is known already.
        order: The order of additions, as in the ops.
    """
    rows, numbers = terms(ops, grad, segment_ids, factors, divisors, weights)
    ids = (indices, segment_ids) if plan is None else plan
    prefix = "" if plan is None else "Planned"
    if numbers is None:
        return ops[f"{prefix}SparseSegmentSumGrad"](rows, *ids, num_rows, **order)
    if plan is None:
        found = ops["WeightedSparseSegmentSumGrad"](rows, *ids, numbers, num_rows, **order)
    else:
        found = ops["PlannedWeightedSparseSegmentSumGrad"](rows, numbers, *ids, num_rows, **order)
    return ops["CastLike"](found, grad)


def unique_gradient(
    ops: Any, grad: Any, indices: Any, segment_ids: Any, num_rows: int, *, factors: Any = None, divisors: Any = None,
    weights: Any = None, plan: tuple[Any, ...] | None = None, **order: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Return the same gradient as unique rows: their values, and their ascending row numbers."""
    rows, numbers = terms(ops, grad, segment_ids, factors, divisors, weights)
    if plan is None:
        plan = ops["RowPlan"](indices, segment_ids, num_rows, grad.shape[0])
    if numbers is None:
        values, ids = ops["PlannedSparseSegmentSumGradV2"](rows, *plan, num_rows, **order)
        return values, ids
    ids, *rest = plan
    planned = ops["PlannedWeightedSparseSegmentSumGrad"]
    values = planned(rows, numbers, ops["Positions"](ids), *rest, ids.shape[0], **order)
    return ops["CastLike"](values, grad), ids


def terms(ops: Any, grad: Any, segment_ids: Any, factors: Any, divisors: Any, weights: Any) -> tuple[Any, Any]:
    """Return the rows to add, one per bag, and the factor of each pair, if any."""
    if factors is not None:
        return grad, ops["GatherRows"](factors, segment_ids, gradient="dense")
    return grad if divisors is None else scaled_rows(ops, grad, divisors), weights
