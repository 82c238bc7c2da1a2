"""Split ids among the shards of a table, and put results back in order."""

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
from ..errors import OpError, ResourceExhaustedError, refuse
from .rule import Array, check_strategy, first_id, group_by_shard, id_step, inverse_permutation, locate, shard_size

# -- Ids by the part of a table that holds them, and back -------------------------------------------------------------

# Ids by the part of a table that holds them, and back: for tables whose parts lie in different places.

_IDS = (np.dtype(np.int32), np.dtype(np.int64))
_PART_BYTES = 256  # what a part without ids takes: two arrays


@dataclass(frozen=True, slots=True, eq=False)  # arrays compare by element
class Partitioned:
    """Where the ids of a batch are.

    `part` and `row` say of every id which part holds it, and at which of its rows. `rows[k]` are the rows that are
    wanted of part k, in input order, and `positions[k]` is where in the batch they were. Arrays are of the ids' own
    library; rows have the ids' dtype.
    """

    rows: list[Any]
    positions: list[Any]
    part: Any
    row: Any


def partition(ids: Any, num_parts: int, strategy: str = "div", *, num_rows: int | None = None) -> Partitioned:
    """Sort ids by the part of the table that holds them, by TensorFlow's rules.

    By "div" parts are runs of rows, the first (num_rows mod num_parts) of them one row longer; by "mod" row i is row
    i // num_parts of part i mod num_parts. Ids are int32 or int64, of NumPy, torch or JAX, and taken as if flat.
    "div" needs `num_rows`; "mod" does not, but then nothing is known to be too large.
    """
    with _named("partition", ids=ids, num_parts=num_parts, strategy=strategy, num_rows=num_rows):
        num_parts, rows = _checked(num_parts, strategy, num_rows)
        if num_parts > memory_limit() // _PART_BYTES:
            raise refuse("out_of_memory", argument="num_parts", value=num_parts, bound=memory_limit())
        flat = _integers(ids, "ids").reshape(-1)
        bad = np.flatnonzero((flat < 0) | (flat >= rows) if rows is not None else flat < 0)
        if len(bad):
            key, bound = ("id_negative", 0) if rows is None else ("id_outside", rows)
            raise refuse(key, argument="ids", position=int(bad[0]), value=int(flat[bad[0]]), bound=bound)
        if strategy == "div" and len(flat) and rows is not None and rows < num_parts:
            raise refuse("fewer_rows_than_parts", argument="num_rows", value=rows, bound=num_parts)
        part, row = locate(flat, rows or 0, num_parts, strategy)
        row = row.astype(flat.dtype)
        _, positions = group_by_shard(part, num_parts)
        results = [_like(ids, array) for array in ([row[p] for p in positions], positions, [part, row])]
        return Partitioned(results[0], results[1], *results[2])


def stitch(values: Sequence[Any], partitioned: Partitioned) -> Any:
    """The inverse: what every part gave for its `rows`, put back in the order of the ids.

    `values[k]` has as many rows as `partitioned.rows[k]`, of any shape that is the same in all parts. It may be of
    NumPy, torch or JAX, and gradients of the latter two go through.
    """
    with _named("stitch", values=values):
        if not isinstance(partitioned, Partitioned):
            bound = "what partition returns"
            raise refuse("value_unfit", argument="partitioned", value=type(partitioned).__name__, bound=bound)
        if not isinstance(values, Sequence):
            raise refuse("value_unfit", argument="values", value=type(values).__name__, bound="a list of arrays")
        counts = [p.shape[0] for p in partitioned.positions]
        if len(values) != len(counts):
            raise refuse("stitch_parts", argument="values", value=len(values), bound=len(counts))
        arrays = [
            v if hasattr(v, "dtype") and not is_masked(v) else plain_array(v, f"values[{k}]")
            for k, v in enumerate(values)
        ]
        for k, (array, count) in enumerate(zip(arrays, counts, strict=True)):
            wanted = (count, *arrays[0].shape[1:])
            if tuple(array.shape) != wanted or array.dtype != arrays[0].dtype:
                expected, found = (f"{d}{list(s)}" for d, s in ((arrays[0].dtype, wanted), (array.dtype, array.shape)))
                raise refuse("value_unfit", argument=f"values[{k}]", value=found, bound=expected)
        order = np.concatenate([_host(p) for p in partitioned.positions])
        together = _library(arrays[0]).concat(arrays)
        return together[_like(together, [inverse_permutation(order)])[0]]


def global_ids(part: Any, rows: Any, num_parts: int, strategy: str = "div", *, num_rows: int | None = None) -> Any:
    """Which ids rows of a part have: what `partition` took apart.

    `part` is a number, or an array with a part for every row. "div" needs `num_rows`. Rows that the part does not
    have are refused; by "mod" without `num_rows`, those whose id would not fit the rows' dtype.
    """
    with _named("global_ids", part=part, rows=rows, num_parts=num_parts, strategy=strategy, num_rows=num_rows):
        num_parts, total = _checked(num_parts, strategy, num_rows)
        local = _integers(rows, "rows")
        given = _integers(part, "part")
        try:
            parts = np.broadcast_to(given, local.shape).astype(np.int64)
        except ValueError:
            raise refuse("same_shape", argument="part", value=given.shape, bound=local.shape) from None
        bad = np.flatnonzero((parts < 0) | (parts >= num_parts))
        if len(bad):
            value = int(parts.reshape(-1)[bad[0]])
            raise refuse("part_outside", argument="part", position=int(bad[0]), value=value, bound=num_parts)
        if total is None:  # under "mod" then only the dtype limits the ids
            last = (int(np.iinfo(local.dtype).max) - parts) // num_parts
        else:
            last = shard_size(parts, total, num_parts) - 1
        bad = np.flatnonzero((local < 0) | (local > last))
        if len(bad):
            value, bound = (int(a.reshape(-1)[bad[0]]) for a in (local, last))
            raise refuse("row_not_in_part", argument="rows", position=int(bad[0]), value=value, bound=bound + 1)
        first = first_id(parts, total or 0, num_parts, strategy)
        ids = fit(local.astype(np.int64) * id_step(num_parts, strategy) + first, "rows", local.dtype)
        return _like(rows, [ids])[0]


def _checked(num_parts: int, strategy: str, num_rows: int | None) -> tuple[int, int | None]:
    """Both counts as Python's integers: NumPy's would overflow in sums with each other."""
    check_strategy(strategy)
    for argument, value, least in (("num_parts", num_parts, 1), ("num_rows", num_rows, 0)):
        is_number = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if value is None and argument == "num_rows":
            if strategy == "div":
                raise refuse("div_needs_rows", argument="num_rows")
        elif not is_number or not least <= int(value) < 2**63:  # type: ignore[arg-type]
            raise refuse("count_unfit", argument=argument, value=repr(value), bound=least)
    return int(num_parts), None if num_rows is None else int(num_rows)


def _integers(value: Any, argument: str) -> Array:
    """An argument as an array of NumPy, of one of the two dtypes that ids have."""
    if is_traced(value):
        raise refuse("size_traced", argument=argument, bound=f"{argument} must be an array that has its values")
    array = as_array(_host(value), argument, empty="int32")
    if array.dtype not in _IDS:
        raise refuse("dtype_not_allowed", argument=argument, value=array.dtype, bound="int32, int64")
    return array


def _host(value: Any) -> Any:
    """What NumPy can read: tensors of torch are brought to the CPU."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _like(value: Any, arrays: list[Array]) -> list[Any]:
    """Arrays in the library, and on the device, of a value that the caller gave."""
    if hasattr(value, "detach"):
        return [_library(value).from_numpy(np.ascontiguousarray(a)).to(value.device) for a in arrays]
    library = _library(value)
    return arrays if library is np else [library.asarray(a) for a in arrays]


def _library(value: Any) -> Any:
    """The module of functions for an array: it is loaded, since the array is there."""
    if hasattr(value, "detach"):
        return sys.modules["torch"]
    return value.__array_namespace__() if hasattr(value, "__array_namespace__") else np


@contextmanager
def _named(op: str, **given: Any) -> Iterator[None]:
    """Errors name the function and what it was given."""
    try:
        yield
    except OpError as error:
        error.in_call(op, None, ", ".join(f"{k}={_describe(v)}" for k, v in given.items()))
        raise
    except MemoryError as error:
        exhausted = ResourceExhaustedError(f"OOM: {error}")
        raise exhausted.in_call(op, None, ", ".join(f"{k}={_describe(v)}" for k, v in given.items())) from error


def _describe(value: Any) -> str:
    return repr(value) if isinstance(value, str) else describe_value(value)


# -- Gradients of bags where whoever adds them up sees only some of a bag's ids ---------------------------------------

# Gradients of bags where whoever adds them up sees only some of a bag's ids: its scale is given, not counted.
#
# A table that is split among processes has its gradients added up by the owner of each row, who knows of a bag only
# the ids that name its own rows. What else it needs is one number per bag. These functions are compositions of ops,
# over a table of them, so every array library has them; the bits are those of
# `[Weighted]SparseSegment{Sum,Mean,SqrtN}Grad` and of their gradients by unique rows on all ids at once
# (docs/orders.md).


def weighted_scales(ops: Any, kind: str, segment_ids: Any, weights: Any, num_bags: int) -> Any:
    """What weighted bags are divided by: Σw or √Σw² of every bag, in the dtype of `weights`; None for sums.

    `weights` are those of all ids of each bag, already in the type sums are held in (float32, or float64 for float64).
    """
    if kind == "Sum":
        return None
    if kind == "Mean":
        return ops["ScatterRows"](weights, segment_ids, num_bags)
    return ops["Sqrt"](ops["ScatterRows"](ops["Mul"](weights, weights), segment_ids, num_bags))


def plain_scales(ops: Any, kind: str, segment_ids: Any, ones: Any) -> Any:
    """What rows of bags without weights are multiplied by: 1/n or 1/√n, for every id, in the dtype of `ones`.

    `ones` is a column [bags, 1] of the type sums are held in. The numbers are the kernel's own: an id that is alone in
    its row gets exactly its scale. None for sums.
    """
    if kind == "Sum":
        return None
    each = ops["Positions"](segment_ids)
    return ops[f"SparseSegment{kind}Grad"](ones, each, segment_ids, segment_ids.shape[0])


def scaled_rows(ops: Any, grad: Any, divisors: Any) -> Any:
    """Each bag's gradient divided by the bag's divisor, in the divisors' dtype; x/0 is 0."""
    wide = ops["CastLike"](grad, divisors)
    # The gradient kernels take subnormal numbers for zero before they divide; a product with 1 there does the same.
    each = ops["Positions"](ops["Cast"](ops["ZerosLike"](divisors), DstT="int64"))
    flushed = ops["WeightedSparseSegmentSumGradRows"](wide, each, ops["OnesLike"](divisors))
    return ops["DivNoNan"](flushed, ops["Reshape"](divisors, (-1, 1)))


def dense_gradient(
    ops: Any, grad: Any, indices: Any, segment_ids: Any, num_rows: int, *, factors: Any = None, divisors: Any = None,
    weights: Any = None, plan: tuple[Any, ...] | None = None, **order: Any,
) -> Any:  # fmt: skip
    """The gradient for a table of `num_rows` rows, as a dense table.

    `grad` has a row for every bag, `indices` and `segment_ids` are the (row, bag) pairs in their order. Without weights
    `factors`, one per bag, multiply; with `weights`, one per pair, `divisors` divide first. `plan` is what RowPlan says
    of these pairs, where that is known already. `order=` as in the ops.
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
    """The same by unique rows: their values, and their numbers, ascending."""
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
    """Rows to add up, one per bag, and what each pair multiplies them by, if anything."""
    if factors is not None:
        return grad, ops["GatherRows"](factors, segment_ids, gradient="dense")
    return grad if divisors is None else scaled_rows(ops, grad, divisors), weights
