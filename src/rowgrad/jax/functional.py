"""Lookups as functions of JAX arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..embedding import clip_rows
from ..errors import refuse
from ..lookup_options import kind_of, row_number
from ..plan import Plan
from ..raw_ops import OPS
from . import bag_matrix, masked
from .arrays import as_jax, is_jax, is_traced
from .bags import Bags, filled, ids_kept, read_bags, read_ignore_id, without_padding
from .partition import gathered
from .table import Table, Tap, bags_of


def embedding_bag(
    table: Any,
    ids: Any,
    offsets: Any = None,
    *,
    segment_ids: Any = None,
    num_bags: int | None = None,
    per_sample_weights: Any = None,
    combiner: str = "mean",
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    default_id: int | None = None,
    ignore_id: int | None = None,
    max_norm: float | None = None,
    plan: Plan | None = None,
) -> Any:
    """The rows of `table` named by the ids of every bag, combined: [bags, …] from a table [rows, …].

    Ids come as a vector with `offsets` (where each bag begins) or `segment_ids` (ascending, with `num_bags`), as a
    matrix (a bag per row), or as a rowgrad SparseTensor. `combiner` is "sum", "mean" or "sqrtn"; with
    `per_sample_weights` these are Σwx, Σwx/Σw and Σwx/√Σw². Ids equal to `padding_idx`, a row, do not count, nor do
    ids equal to `ignore_id`, which is not a row: -1, say. An empty bag gives zeros, or the row `default_id`. Sums of
    16-bit rows are held in float32. `max_norm` shortens longer rows for this lookup; gradients pass through. `plan` is
    the Plan of exactly these ids, for a backward pass without a sort.

    `table` may be a `Table`: inside of `value_and_rows` its gradient comes by rows, and neither `max_norm` nor `plan`
    may be given.

    Under `jit` only sizes have to be known: `num_bags` beside `segment_ids`, whatever else is traced.
    """
    kind = kind_of(combiner)
    max_norm = _read_norm(max_norm)
    table = _array_of(table, max_norm, plan)
    padding_idx = row_number("padding_idx", padding_idx, table.shape[0])
    default_id = row_number("default_id", default_id, table.shape[0])
    if plan is not None and not (padding_idx is None and default_id is None):
        raise refuse("plan_of_other_ids", bound="padding_idx or default_id")
    if plan is not None and ignore_id is not None:
        raise refuse("plan_of_other_ids", bound="ignore_id")
    if plan is not None and max_norm is not None:
        raise refuse("plan_of_other_ids", bound="max_norm")
    bags = read_bags(ids, offsets, segment_ids, num_bags, per_sample_weights, include_last_offset)
    ignore_id = read_ignore_id(ignore_id, table.shape[0], bags.indices.dtype)
    kept = ids_kept(bags.indices, (padding_idx, ignore_id))
    weights, whole = bags.weights, kept is None and default_id is None
    if not whole and weights is not None and tuple(weights.shape) != tuple(bags.indices.shape):
        raise refuse("same_shape", argument="per_sample_weights", value=tuple(weights.shape),
                     bound=tuple(bags.indices.shape))  # fmt: skip
    # Inside value_and_rows ids may be traced in one of its two runs alone: both must make the same lookup.
    if (bags.traced or isinstance(table, Tap)) and plan is None:
        if bag_matrix.is_usable(ids):
            call = bag_matrix.Call(kind, (padding_idx, ignore_id), default_id, max_norm)
            return _of_matrix(table, ids, bags, kept, call)
        return bag_matrix.look_up(table, bags, kind, kept, default_id, max_norm)
    if kept is not None:
        bags = without_padding(bags, kept)
    if default_id is not None:
        bags = filled(bags, default_id)
    if max_norm is not None:
        unique, place = np.unique(bags.indices, return_inverse=True)
        table = clip_rows(OPS["GatherRows"](table, unique, gradient="dense"), max_norm)
        bags = bags._replace(indices=place.reshape(-1))
    return _look_up(table, bags, kind, plan)


def _array_of(table: Any, max_norm: float | None, plan: Plan | None) -> Any:
    """The array of a table, or what stands in for it where its lookups are watched."""
    if not isinstance(table, Table):
        array = as_jax(table, "table")
        if not array.ndim:
            raise refuse("bags_unfit", argument="table", value="a scalar", bound="rank 1 or more, rows first")
        return array
    if table.is_split:
        raise refuse("table_in_parts")
    if not table.is_tapped:
        return table.array
    if max_norm is not None or plan is not None:
        raise refuse("lookup_unfit", argument="max_norm" if plan is None else "plan")
    return table.held


def _read_norm(max_norm: Any) -> Any:
    """An option of a compiled call: a number, not an array of one."""
    if is_traced(max_norm) or np.ndim(max_norm):
        raise refuse("number_unfit", argument="max_norm", value=repr(max_norm)[:80], bound="a number")
    return max_norm.item() if is_jax(max_norm) or isinstance(max_norm, np.ndarray) else max_norm


def _of_matrix(table: Any, ids: Any, bags: Bags, kept: Any, call: bag_matrix.Call) -> Any:
    """Bags that are the rows of a matrix of traced ids."""
    weights = None if bags.weights is None else bags.weights.reshape(ids.shape)
    if not isinstance(table, Tap):
        return bag_matrix.bind(call, table, ids, weights)
    output = bag_matrix.bind(call, table.table, ids, weights)
    bags = bags._replace(indices=gathered(bags.indices), weights=None if weights is None else gathered(bags.weights))
    kept = None if kept is None else gathered(kept)
    if kept is None and call.default_id is None:
        return table.bags(call.kind, *bags[:3], bags.weights, True, output)
    indices, segments, count, numbers = masked.left_out(bags, kept, call.default_id)
    return table.bags(call.kind, indices, segments, count + 1, numbers, False, output)


def _look_up(table: Any, bags: Bags, kind: str, plan: Plan | None) -> Any:
    """One op on bags all of whose ids count."""
    if plan is not None and plan.num_segments != bags.num_bags:
        raise refuse("plan_unfit", value=f"{plan.num_segments} bags", bound=bags.num_bags)
    if plan is None:
        return bags_of(table, kind, bags.indices, bags.segment_ids, bags.num_bags, bags.weights)
    weights = () if bags.weights is None else (bags.weights,)
    op = OPS[f"{'Weighted' if weights else ''}SparseSegment{kind}WithNumSegments"]
    return op(table, bags.indices, bags.segment_ids, *weights, bags.num_bags, plan=plan)
