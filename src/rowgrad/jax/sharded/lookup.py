"""The lookup: ids go to their owners, rows come back, bags are combined; gradients of bags go the other way."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import refuse
from ...lookup_options import kind_of, row_number
from ...parts import check_strategy
from ...raw_ops import OPS
from .. import masked
from ..arrays import is_jax
from ..bags import Bags, ids_kept, read_bags, read_ignore_id, to_jax
from ..table import Tap
from ..varying import shared_by, widen
from . import guard
from .gradient import anchored, owned, way_of
from .layout import Layout, ShardedTable, as_axis
from .routes import Split, route


def embedding_bag(
    part: Any,
    ids: Any,
    *,
    axis_name: Any = None,
    num_rows: int | None = None,
    strategy: str | None = None,
    capacity: int | None = None,
    id_capacity: int | None = None,
    segment_ids: Any = None,
    num_bags: int | None = None,
    per_sample_weights: Any = None,
    combiner: str = "mean",
    padding_idx: int | None = None,
    default_id: int | None = None,
    ignore_id: int | None = None,
) -> Any:
    """Look up this device's bags in a table split over mesh axes: for use inside `shard_map`.

    Args:
        part: This device's part of the table, a `ShardedTable` as `shard_table` returns it.
        ids: Ids of the whole table: a matrix, a bag per row; a vector with `segment_ids` and `num_bags`; or a
            SparseTensor.
        axis_name, num_rows, strategy: The layout of the table. They travel with `part`; if given, they are checked.
        capacity: How many distinct rows a device may request from one owner.
        id_capacity: How many ids may name them. Both are sizes of buffers that are always sent; more is an error. By
            default all ids fit.
        segment_ids, num_bags, per_sample_weights, combiner, padding_idx, default_id, ignore_id: As in
            `rowgrad.jax.embedding_bag`. Pad ids with `ignore_id=-1` where devices have different numbers of them.

    Returns:
        [bags, …]. On CPUs outputs, and gradients for the part in reverse mode, have the bits of one device on the
        batches of all.

    Raises:
        InvalidArgumentError: `part` has no layout, or one that differs from the arguments or from the mesh.
    """
    kind = kind_of(combiner)
    layout = _layout_of(part, axis_name, num_rows, strategy)
    part = _array_of(part)
    split = _split(part, layout)
    num_rows, axis_name = layout.num_rows, layout.axis
    padding_idx = row_number("padding_idx", padding_idx, num_rows)
    default_id = row_number("default_id", default_id, num_rows)
    bags = read_bags(ids, None, segment_ids, num_bags, per_sample_weights, False)
    ignore_id = read_ignore_id(ignore_id, num_rows, bags.indices.dtype)
    bags, kept = _counted(bags, split, (padding_idx, ignore_id))
    given, faults = bags.indices.shape[0], guard.first_faults(bags, kept, num_rows)
    bags = masked.leave_out(_narrowed(bags), kept)
    if default_id is not None:
        bags = masked.in_order(masked.fill(bags, default_id))
    count = bags.indices.shape[0]
    if (split.devices + 1) * count > jnp.iinfo(jnp.int32).max:
        raise refuse("bags_unfit", argument="ids", value=f"{count} ids", bound="less than 2**31 on all devices")
    split = split._replace(
        num_bags=bags.num_bags,
        capacity=_room("capacity", capacity, min(count, split.each)),
        id_capacity=_room("id_capacity", id_capacity, count),
    )
    bags = bags._replace(
        indices=jnp.clip(bags.indices, 0, num_rows - 1), segment_ids=jnp.clip(bags.segment_ids, 0, bags.num_bags)
    )
    way = route(bags, split)
    fault = guard.agree(faults, way.most, given, split)

    asked = jax.lax.all_to_all(way.asked + fault.astype(way.asked.dtype), axis_name, 0, 0, tiled=True)
    table = part.table if isinstance(part, Tap) else part
    rows = OPS["GatherRows"](jax.lax.stop_gradient(table), asked.reshape(-1), gradient="dense")
    rows = rows.reshape(split.devices, split.capacity, *rows.shape[1:])
    compact = jax.lax.all_to_all(rows, axis_name, 0, 0, tiled=True).reshape(asked.size, *rows.shape[2:])
    result = masked.look_up(compact, bags._replace(indices=way.inverse), kind, None)
    result = jnp.where(fault == 0, result, jnp.nan)
    sent = way_of(bags, kind, way, fault, split, part.dtype)
    return anchored(result, part, owned(sent, split), sent, split)


def _layout_of(part: Any, axis: Any, num_rows: Any, strategy: Any) -> Layout:
    """The layout of a part, once it is what the caller says."""
    if strategy is not None:
        check_strategy(strategy)
    if not isinstance(part, ShardedTable):
        raise refuse("part_without_layout", argument="part", value=type(part).__name__)
    layout = part.layout
    axis = None if axis is None else as_axis(axis)
    for argument, value, bound in (
        ("num_rows", num_rows, layout.num_rows),
        ("strategy", strategy, layout.strategy),
        ("axis_name", axis, layout.axis),
    ):
        if value is not None and value != bound:
            raise refuse("layout_differs", argument=argument, value=repr(value), bound=repr(bound))
    return layout


def _array_of(part: ShardedTable) -> Any:
    """The rows of a part, or what stands in for them where lookups are watched."""
    array = part.held if part.is_tapped else part.array
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise refuse("table_unfit", argument="part", value=str(array.dtype), bound="of floating-point numbers")
    return array if part.is_tapped or is_jax(array) else jnp.asarray(array)


def _split(part: Any, layout: Layout) -> Split:
    num_rows, devices, axis, strategy = layout
    try:
        found = int(jax.lax.psum(1, axis))
    except NameError:
        raise refuse("bags_unfit", argument="axis_name", value=repr(axis),
                     bound="an axis of the mesh, inside of shard_map") from None  # fmt: skip
    if found != devices:
        raise refuse("layout_differs", argument="devices", value=found, bound=devices)
    each = layout.part_rows
    if part.shape[:1] != (each,):
        wanted = f"({each}, …): {num_rows} rows on {devices} devices"
        raise refuse("bags_unfit", argument="part", value=tuple(part.shape), bound=wanted)
    if devices * (each + 1) > jnp.iinfo(jnp.int32).max:
        raise refuse("bags_unfit", argument="num_rows", value=num_rows, bound="less than 2**31 with what fills up")
    return Split(axis, devices, int(num_rows), each, strategy, 0, 0, 0)


def _room(argument: str, given: int | None, most: int) -> int:
    if given is None:
        return most
    if not isinstance(given, int | np.integer) or isinstance(given, bool) or given < 1:
        raise refuse("count_unfit", argument=argument, value=repr(given), bound=1)
    return min(int(given), most)


def _counted(bags: Bags, split: Split, ignored: tuple[int | None, ...]) -> tuple[Bags, Any]:
    """The bags, of at least one id, all of them different by device; and which ids count."""
    ids, segments, num_bags, weights = bags
    ids, segments = to_jax(ids, "ids"), to_jax(segments, "segment_ids")
    if weights is not None and tuple(weights.shape) != tuple(ids.shape):
        raise refuse("same_shape", argument="per_sample_weights", value=tuple(weights.shape), bound=tuple(ids.shape))
    kept = ids_kept(ids, ignored)
    if not ids.shape[0]:
        ids, segments, kept = jnp.zeros(1, ids.dtype), jnp.zeros(1, segments.dtype), jnp.zeros(1, bool)
        weights = None if weights is None else jnp.ones(1, weights.dtype)
    kept = jnp.ones(ids.shape, bool) if kept is None else kept
    axes = shared_by([ids, segments, *(() if weights is None else (weights,))]) | _names(split.axis)
    weights = None if weights is None else widen(weights, axes)
    return Bags(widen(ids, axes), widen(segments, axes), num_bags, weights), widen(kept, axes)


def _narrowed(bags: Bags) -> Bags:
    """Ids and bags in 32 bits; what these do not hold stays out of range."""
    least, most = jnp.iinfo(jnp.int32).min, jnp.iinfo(jnp.int32).max
    ids, segments = (jnp.clip(x, least, most).astype(jnp.int32) for x in (bags.indices, bags.segment_ids))
    return bags._replace(indices=ids, segment_ids=segments)


def _names(axis: Any) -> frozenset[Any]:
    return frozenset(axis if isinstance(axis, tuple) else (axis,))
