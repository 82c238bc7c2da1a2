"""Bags as offsets: turned into segment ids, and bags of many features stacked for one table."""

from __future__ import annotations

import jax.numpy as jnp

from .call import Array, Call, Kernel, Ok, Results
from .ids import never_falls, rows_at, run_of_each


def _are_offsets(offsets: Array, ids: int, has_end: bool) -> Ok:
    """They begin at 0, never fall and end at the number of ids: every id is in one bag."""
    if offsets.shape[0] == 0:
        return ids == 0 and not has_end
    ends = offsets[-1] == ids if has_end else offsets[-1] <= ids
    return (offsets[0] == 0) & never_falls(offsets) & ends


def segment_ids_from_offsets(call: Call) -> Results:
    """The bag of every id. With `include_last_offset` the last offset is the end and begins no bag."""
    offsets, ids, has_end = call["offsets"], call.size("num_ids"), call.attrs["include_last_offset"]
    bags = offsets[:-1] if has_end else offsets
    return _are_offsets(offsets, ids, has_end), (run_of_each(bags, ids),)


def stack_bags(call: Call) -> Results:
    """Ids of many features as ids of one table. Bag b of feature f, of F, becomes segment b·F + f."""
    ids, offsets, feature_rows, first = (call[k] for k in ("indices", "offsets", "feature_rows", "feature_first"))
    n, features = ids.shape[0], feature_rows.shape[0]
    examples = max((offsets.shape[0] - 1) // features, 1)
    bag = run_of_each(offsets[:-1], n)
    feature, example = bag // examples, bag % examples
    limit = min(jnp.iinfo(ids.dtype).max, jnp.iinfo(first.dtype).max)
    there = jnp.all((first >= 0) & (feature_rows >= 0) & (feature_rows <= limit - jnp.maximum(first, 0)))
    inside = jnp.all((ids >= 0) & (ids < rows_at(feature_rows, feature)))
    segments = example * features + feature
    order = jnp.argsort(segments, stable=True)
    stacked = (ids + rows_at(first, feature))[order]
    positions = order if call.attrs["positions"] else order[:0]
    return _are_offsets(offsets, n, has_end=True) & there & inside, (stacked, segments[order], positions)


KERNELS: dict[str, Kernel] = {
    "segment_ids_from_offsets": segment_ids_from_offsets,
    "stack_bags": stack_bags,
}
