"""Bags of traced ids some of which do not count. A compiled program cannot drop them: its shapes are known before.

Such ids go to one segment more than there are bags, which is cut off again, so its gradient is zero. They name row 0
and have weight 1, so that whatever they were can spoil nothing. Bits are those of a lookup without them: a sum of
gradients starts from +0, which +0 added to it does not change."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..errors import make_error
from ..lookup import clip_rows
from ..raw_ops import OPS
from .bags import Bags, to_jax
from .table import bags_of


def leave_out(bags: Bags, kept: Any) -> Bags:
    """The bags with all ids but the kept ones in segment `num_bags`."""
    ids, segments, extra, weights = bags
    segments = to_jax(segments, "segment_ids")
    if extra >= jnp.iinfo(segments.dtype).max:
        raise make_error("integer_does_not_fit", argument="num_bags", value=extra, bound=segments.dtype)
    outside = jnp.maximum(segments, extra + 1)  # a segment id that is too large must not be taken for the one more
    segments = jnp.where(kept, jnp.where(segments < extra, segments, outside), extra)
    ids = jnp.where(kept, to_jax(ids, "ids"), 0)
    return Bags(ids, segments, extra, None if weights is None else jnp.where(kept, weights, 1))


def left_out(bags: Bags, kept: Any, default_id: int | None) -> Bags:
    """The bags without ids that do not count (None: all count), and with `default_id` in those that are empty."""
    bags = leave_out(bags, jnp.asarray(True) if kept is None else kept)
    return bags if default_id is None else in_order(fill(bags, default_id))


def fill(bags: Bags, default_id: int) -> Bags:
    """One more id for every bag: `default_id` with weight 1 where the bag is empty, else one that is left out."""
    ids, segments, extra, weights = bags
    empty = jnp.ones(extra + 1, bool).at[segments].set(False, mode="drop")[:extra]
    ids = jnp.concatenate([ids, jnp.where(empty, default_id, 0).astype(ids.dtype)])
    numbers = jnp.arange(extra, dtype=segments.dtype)
    segments = jnp.concatenate([segments, jnp.where(empty, numbers, extra)])
    if weights is not None:
        weights = jnp.concatenate([weights, jnp.ones(extra, weights.dtype)])
    return Bags(ids, segments, extra, weights)


def in_order(bags: Bags) -> Bags:
    """Ids by their bags, as they stand inside of one: the order in which gradients of a row add up."""
    ids, segments, extra, weights = bags
    given = jnp.arange(segments.shape[0])
    is_sorted = jnp.all(segments[1:] >= segments[:-1])
    order = jax.lax.cond(is_sorted, lambda: given, lambda: jnp.argsort(segments, stable=True).astype(given.dtype))
    return Bags(ids[order], segments[order], extra, None if weights is None else weights[order])


def look_up(table: Any, bags: Bags, kind: str, max_norm: float | None, accumulate: str = "float32") -> Any:
    """The rows of every bag combined, without the segment of what was left out."""
    if max_norm is not None:
        table, bags = shortened(table, bags, max_norm)
    ids, segments, extra, weights = bags
    if weights is not None and accumulate != "float32":
        op = OPS[f"WeightedSparseSegment{kind}WithNumSegments"]
        return op(table, ids, segments, weights, extra + 1, accumulate=accumulate)[:extra]
    is_ordered = not jnp.issubdtype(table.dtype, jnp.floating)  # no op for these takes segments in any order
    if is_ordered:
        ids, segments, _, _ = in_order(bags)
    return bags_of(table, kind, ids, segments, extra + 1, weights, is_ordered)[:extra]


def shortened(table: Any, bags: Bags, max_norm: float) -> tuple[Any, Bags]:
    """A table of the distinct rows the bags name, none longer than `max_norm`, and the bags with ids of that table."""
    ids = bags.indices
    if ids.shape[0] == 0:
        return table, bags
    unique, place = jnp.unique(ids, return_inverse=True, size=ids.shape[0], fill_value=0)
    place = place.reshape(-1).astype(ids.dtype)
    counted = (bags.segment_ids != bags.num_bags).astype(jnp.int32)
    is_used = jnp.zeros(ids.shape[0], jnp.int32).at[place].add(counted) > 0
    rows = OPS["GatherRows"](table, unique, gradient="dense")
    # Rows nobody asked for may hold NaN, which must not come back as their gradient.
    short = clip_rows(OPS["MaskRows"](rows, ~is_used), max_norm)
    return short, bags._replace(indices=place)
