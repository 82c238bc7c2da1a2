"""A device's own bags, sorted by whom their rows belong to, in buffers whose sizes are known before."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from ...raw_ops import OPS
from ..bags import Bags
from .layout import locate


class Split(NamedTuple):
    """How a table is split: what everybody knows before there are any ids."""

    axis: Any
    devices: int
    num_rows: int  # of the whole table
    each: int  # rows of every part
    strategy: str
    num_bags: int  # of every device
    capacity: int  # distinct rows a device may ask of an owner
    id_capacity: int  # and ids that name them

    @property
    def id_slots(self) -> int:
        """Of every buffer of ids the last slot is never filled: so there is one that names no row."""
        return self.id_capacity + 1


class Route(NamedTuple):
    """What this device asks of every owner. A slot nobody fills has row 0 in `asked`; its pair names what is none."""

    asked: Any  # [devices, capacity]: distinct rows, as their owner numbers them
    inverse: Any  # for each id which of devices · capacity rows it is
    pair_rows: Any  # [devices, id_slots]: ids as they come, as rows of their owner; `each` where there is none
    pair_ids: Any  # which of the ids it is; their number where there is none
    most: tuple[Any, Any]  # how many distinct rows, and how many ids, are asked of one owner at most


def route(bags: Bags, split: Split) -> Route:
    """Sort bags whose ids are in range. Those in segment `num_bags` do not count, and nobody is asked for them."""
    ids, devices, each = bags.indices, split.devices, split.each
    count, counted = ids.shape[0], bags.segment_ids != bags.num_bags
    owners, rows = locate(ids, split.num_rows, devices, split.strategy)
    owners = jnp.where(counted, owners, devices)
    places = jnp.where(counted, owners * each + rows, devices * each)  # sorted by place is sorted by owner
    unique = _sorted(places, devices * each + 1)
    number = OPS["RowPositions"](unique, places).astype(ids.dtype)
    every = jnp.arange(devices + 1, dtype=ids.dtype)
    first_rows = jnp.searchsorted(unique, every * each).astype(ids.dtype)
    slots, filled = _slots(first_rows, split.capacity)
    asked = jnp.where(filled, unique[jnp.minimum(slots, count - 1)] - every[:-1, None] * each, 0)
    slot = number - first_rows[owners]
    inverse = jnp.where(counted, jnp.minimum(owners * split.capacity + slot, devices * split.capacity - 1), 0)

    by_owner = _sorted(owners * count + jnp.arange(count, dtype=ids.dtype), (devices + 1) * count)
    order = by_owner % count  # those of one owner as they come
    first_ids = jnp.searchsorted(by_owner, every * count).astype(ids.dtype)
    slots, filled = _slots(first_ids, split.id_slots)
    pair_ids = jnp.where(filled, order[jnp.minimum(slots, count - 1)], count)
    pair_rows = jnp.append(rows, jnp.asarray(each, rows.dtype))[pair_ids]
    return Route(asked, inverse, pair_rows, pair_ids, (jnp.diff(first_rows).max(), jnp.diff(first_ids).max()))


def _sorted(numbers: Any, bound: int) -> Any:
    """The distinct ones of numbers in [0, bound), ascending, and then the bound: by a kernel, whose sort is faster."""
    grad, first = jnp.zeros((1, 1), jnp.float32), jnp.zeros_like(numbers)
    return OPS["SparseSegmentSumGradV2"](grad, numbers, first, bound, size=numbers.shape[0]).sorted_unique_indices


def _slots(firsts: Any, capacity: int) -> tuple[Any, Any]:
    """[owners, capacity]: positions in a list sorted by owner, of which each owner's begin at `firsts`; which exist."""
    within = jnp.arange(capacity, dtype=firsts.dtype)
    return firsts[:-1, None] + within, within < jnp.diff(firsts)[:, None]
