"""Faults in data that all devices learn of before anything is sent, so that all refuse, and none waits for another.

A kernel that refuses ids ends the program of its own device; the others would wait for it in the next exchange. So
devices first tell each other of the first fault they have. Where there is one, each calls a kernel on data that have
just that fault, and on CPUs that is the error; on other platforms, where a program cannot raise, outputs are NaN.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ...raw_ops import OPS
from ..bags import Bags
from ..varying import axes_of, widen
from .room import refuse_more
from .routes import Split


def first_faults(bags: Bags, kept: Any, num_rows: int) -> Any:
    """[2, 3]: whether an id that counts, and whether its bag, is out of range, where, and what it is."""
    ids, segments = bags.indices, bags.segment_ids
    dtype = jnp.promote_types(ids.dtype, segments.dtype)  # so that a value of 64 bits is told as it is
    bad = (ids < 0) | (ids >= num_rows), (segments < 0) | (segments >= bags.num_bags)
    found = []
    for wrong, values in zip(bad, (ids, segments), strict=True):
        wrong &= kept
        at = jnp.argmax(wrong)
        found.append(jnp.stack([number.astype(dtype) for number in (wrong[at], at, values[at])]))
    return jnp.stack(found)


def agree(faults: Any, most: tuple[Any, Any], given: int, split: Split) -> Any:
    """0, once all devices have said that nothing is wrong; what is sent afterwards has to depend on it.

    `faults` are the first ones of this device, `most` how many rows and ids it asks of an owner, `given` how many ids
    it was given, without those that fill empty bags.
    """
    told = jnp.concatenate([faults.reshape(-1), jnp.stack(most).astype(faults.dtype)])
    told = jax.lax.all_gather(told, split.axis)
    faults, most_rows, most_ids = told[:, :6].reshape(-1, 2, 3), told[:, 6].max(), told[:, 7].max()
    fine = (faults[:, :, 0].max() == 0) & (most_rows <= split.capacity) & (most_ids <= split.id_capacity)

    def refused(told: Any) -> Any:
        del told
        # One after the other: where there are several, it is always the same one that is refused.
        first = _at_fault(faults[:, 0], faults[:, 1], given, split)
        second = refuse_more("capacity", split.capacity, most_rows + first)
        third = refuse_more("id_capacity", split.id_capacity, most_ids + second)
        return jnp.stack([first.astype(jnp.int32), second, third]).min()

    return jax.lax.cond(fine, lambda t: widen(jnp.zeros((), jnp.int32), axes_of(t)), refused, told)


def _at_fault(ids: Any, segments: Any, count: int, split: Split) -> Any:
    """What a kernel says of ids, those of all devices one after the other, of which some are the faults."""
    positions = jnp.arange(ids.shape[0] * count, dtype=ids.dtype).reshape(-1, count)

    def placed(found: Any) -> Any:
        is_here = (found[:, :1] > 0) & (positions % count == found[:, 1:2])
        return jnp.where(is_here, found[:, 2:], 0).reshape(-1)

    grad = jnp.zeros((split.num_bags, 1), jnp.float32)
    _, named = OPS["SparseSegmentSumGradV2"](grad, placed(ids), placed(segments), split.num_rows, size=1)
    return jnp.minimum(named[0], 0)  # below 0 where a platform poisons what it cannot refuse
