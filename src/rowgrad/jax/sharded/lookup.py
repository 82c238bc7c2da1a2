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
from ..bags import Bags, read_bags, to_jax
from ..table import Table, Tap
from ..varying import shared_by, widen
from . import guard
from .gradient import anchored, owned, way_of
from .layout import part_rows
from .routes import Split, route


def embedding_bag(
    part: Any,
    ids: Any,
    *,
    axis_name: Any,
    num_rows: int,
    strategy: str = "div",
    capacity: int | None = None,
    id_capacity: int | None = None,
    segment_ids: Any = None,
    num_bags: int | None = None,
    per_sample_weights: Any = None,
    combiner: str = "mean",
    padding_idx: int | None = None,
    default_id: int | None = None,
) -> Any:
    """This device's bags of a table that is split over the axis `axis_name`: for use inside of `shard_map`.

    `part` are this device's rows of a table of `num_rows`, as `shard_table` lays them out, or a `Table` of them. Ids
    are those of the whole table, and -1 where there is none: a matrix, a bag per row; a vector with `segment_ids` and
    `num_bags`; or a SparseTensor. The rest is as in `rowgrad.jax.embedding_bag`.

    `capacity` is how many distinct rows a device may ask of one owner, `id_capacity` how many ids may name them. Both
    are sizes of buffers that are always sent; more than that is an error. By default there is room for everything.

    On CPUs outputs, and gradients for the part in reverse mode, have the bits of one device on the batches of all.
    """
    kind = kind_of(combiner)
    part = _array_of(part)
    split = _split(part, axis_name, num_rows, strategy)
    padding_idx = row_number("padding_idx", padding_idx, num_rows)
    default_id = row_number("default_id", default_id, num_rows)
    bags = read_bags(ids, None, segment_ids, num_bags, per_sample_weights, False)
    bags, kept = _counted(bags, split, padding_idx)
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


def _array_of(part: Any) -> Any:
    """The rows of a part, or what stands in for them where lookups are watched."""
    if isinstance(part, Table):
        return part.held if part.is_tapped else part.array
    part = part if is_jax(part) else jnp.asarray(part)
    if not jnp.issubdtype(part.dtype, jnp.floating):
        raise refuse("table_unfit", argument="part", value=str(part.dtype), bound="of floating-point numbers")
    return part


def _split(part: Any, axis: Any, num_rows: int, strategy: str) -> Split:
    check_strategy(strategy)
    try:
        devices = int(jax.lax.psum(1, axis))
    except NameError:
        raise refuse("bags_unfit", argument="axis_name", value=repr(axis),
                     bound="an axis of the mesh, inside of shard_map") from None  # fmt: skip
    each = part_rows(num_rows, devices)
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


def _counted(bags: Bags, split: Split, padding_idx: int | None) -> tuple[Bags, Any]:
    """The bags, of at least one id, all of them different by device; and which ids count."""
    ids, segments, num_bags, weights = bags
    ids, segments = to_jax(ids, "ids"), to_jax(segments, "segment_ids")
    if weights is not None and tuple(weights.shape) != tuple(ids.shape):
        raise refuse("same_shape", argument="per_sample_weights", value=tuple(weights.shape), bound=tuple(ids.shape))
    if not ids.shape[0]:
        ids, segments = jnp.full(1, -1, ids.dtype), jnp.zeros(1, segments.dtype)
        weights = None if weights is None else jnp.ones(1, weights.dtype)
    kept = ids != -1
    if padding_idx is not None:
        kept &= ids != padding_idx
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
