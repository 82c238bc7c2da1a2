"""Bags of traced ids with a mask: a compiled program cannot drop ids, because its shapes are static.

Masked ids go to an extra segment after the last bag, which is cut off the result, so its gradient is zero. They become
row 0 with weight 1, so that they are always valid. The bits are those of a lookup without them: a sum of gradients
starts from +0, and adding +0 does not change it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..errors import make_error
from ..lookup import clip_rows
from ..raw_ops import OPS
from .bags import Bags, to_jax
from .table import bags_of


def mask_ids(bags: Bags, mask: Any) -> Bags:
    """Return the bags with all ids where the mask is false in segment `num_bags`."""
    ids, segments, extra, weights = bags
    segments = to_jax(segments, "segment_ids")
    if extra >= jnp.iinfo(segments.dtype).max:
        raise make_error("integer_does_not_fit", argument="num_bags", value=extra, bound=segments.dtype)
    outside = jnp.maximum(segments, extra + 1)  # a segment id that is too large must not become the extra segment
    segments = jnp.where(mask, jnp.where(segments < extra, segments, outside), extra)
    ids = jnp.where(mask, to_jax(ids, "ids"), 0)
    return Bags(ids, segments, extra, None if weights is None else jnp.where(mask, weights, 1))


def mask_and_fill(bags: Bags, mask: Any, default_id: int | None) -> Bags:
    """Return the bags with masked ids in the extra segment (mask None: no ids) and `default_id` in empty bags."""
    bags = mask_ids(bags, jnp.asarray(True) if mask is None else mask)
    return bags if default_id is None else sort_by_bag(add_defaults(bags, default_id))


def add_defaults(bags: Bags, default_id: int) -> Bags:
    """Append one id per bag: `default_id` with weight 1 where the bag is empty, else one in the extra segment."""
    ids, segments, extra, weights = bags
    empty = jnp.ones(extra + 1, bool).at[segments].set(False, mode="drop")[:extra]
    ids = jnp.concatenate([ids, jnp.where(empty, default_id, 0).astype(ids.dtype)])
    numbers = jnp.arange(extra, dtype=segments.dtype)
    segments = jnp.concatenate([segments, jnp.where(empty, numbers, extra)])
    if weights is not None:
        weights = jnp.concatenate([weights, jnp.ones(extra, weights.dtype)])
    return Bags(ids, segments, extra, weights)


def sort_by_bag(bags: Bags) -> Bags:
    """Sort ids by bag, stable within a bag: the order in which the gradients of a row are added."""
    ids, segments, extra, weights = bags
    unchanged = jnp.arange(segments.shape[0])
    is_sorted = jnp.all(segments[1:] >= segments[:-1])
    order = jax.lax.cond(
        is_sorted, lambda: unchanged, lambda: jnp.argsort(segments, stable=True).astype(unchanged.dtype)
    )
    return Bags(ids[order], segments[order], extra, None if weights is None else weights[order])


def look_up(table: Any, bags: Bags, kind: str, max_norm: float | None, accumulate: str = "float32") -> Any:
    """Return the combined rows of every bag, without the extra segment."""
    if max_norm is not None:
        table, bags = clip_to_norm(table, bags, max_norm)
    ids, segments, extra, weights = bags
    if weights is not None and accumulate != "float32":
        op = OPS[f"WeightedSparseSegment{kind}WithNumSegments"]
        return op(table, ids, segments, weights, extra + 1, accumulate=accumulate)[:extra]
    is_ordered = not jnp.issubdtype(table.dtype, jnp.floating)  # no op for these takes segments in any order
    if is_ordered:
        ids, segments, _, _ = sort_by_bag(bags)
    return bags_of(table, kind, ids, segments, extra + 1, weights, is_ordered)[:extra]


def clip_to_norm(table: Any, bags: Bags, max_norm: float) -> tuple[Any, Bags]:
    """Return a table of the looked-up rows, clipped to `max_norm`, and bags whose ids are rows of that table."""
    ids = bags.indices
    if ids.shape[0] == 0:
        return table, bags
    unique, place = jnp.unique(ids, return_inverse=True, size=ids.shape[0], fill_value=0)
    place = place.reshape(-1).astype(ids.dtype)
    is_active = (bags.segment_ids != bags.num_bags).astype(jnp.int32)
    is_used = jnp.zeros(ids.shape[0], jnp.int32).at[place].add(is_active) > 0
    rows = OPS["GatherRows"](table, unique, gradient="dense")
    # Rows without an active id may contain NaN, which must not become their gradient.
    clipped = clip_rows(OPS["MaskRows"](rows, ~is_used), max_norm)
    return clipped, bags._replace(indices=place)
