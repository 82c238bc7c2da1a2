"""Which device holds which row: TensorFlow's rules, in parts of equal size, because JAX splits arrays evenly.

Where the devices do not divide the rows, the parts that are a row short end with a row of zeros that no id names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import refuse
from ...lookup_options import row_number
from ...parts import check_strategy, shard_sizes
from ..bags import integers

Array = np.ndarray[Any, Any]


class Capacity(NamedTuple):
    """How much one device asks of one owner at most: distinct rows, and ids."""

    rows: int
    ids: int


def part_rows(num_rows: int, devices: int) -> int:
    """How many rows every device holds: those of a table of `num_rows` rows, and where they do not go even, zeros."""
    for argument, value in (("num_rows", num_rows), ("devices", devices)):
        if not isinstance(value, int | np.integer) or value < 1:
            raise refuse("count_unfit", argument=argument, value=repr(value), bound=1)
    return -(-int(num_rows) // int(devices))


def locate(ids: Any, num_rows: int, devices: int, strategy: str) -> tuple[Any, Any]:
    """The owner of every id, and its row there. Ids are in range; NumPy's arrays or JAX's."""
    check_strategy(strategy)
    if strategy == "mod":
        return ids % devices, ids // devices
    xp: Any = np if isinstance(ids, np.ndarray) else jnp
    quotient, longer = divmod(num_rows, devices)
    owners = xp.maximum(ids // (quotient + 1), (ids - longer) // max(quotient, 1))
    return owners, ids - owners * quotient - xp.minimum(owners, longer)


def places_of(num_rows: int, devices: int, strategy: str) -> Array:
    """Where each row of the table lies among the rows of all parts, one part after the other."""
    owners, rows = locate(np.arange(num_rows), num_rows, devices, strategy)
    places: Array = owners * part_rows(num_rows, devices) + rows
    return places


def shard_table(table: Any, mesh: jax.sharding.Mesh, axis: str, strategy: str = "div") -> Any:
    """A table, or anything with a row for each of its rows, split over an axis of a mesh.

    The result has `part_rows` rows for each device along `axis`, one part after the other, sharded `P(axis)`: inside of
    `shard_map` with that spec every device has its part. By "div" a device has a run of rows, the first (rows mod
    devices) of them one row more; by "mod" row i is on device i mod devices. Rows that only fill up are zeros.
    """
    check_strategy(strategy)
    devices = _devices(mesh, axis)
    whole = np.asarray(table)
    if not whole.ndim:
        raise refuse("table_unfit", argument="table", value="a scalar", bound="of rank 1 or more, rows first")
    rows, each = whole.shape[0], part_rows(whole.shape[0], devices)
    firsts = np.cumsum([0, *shard_sizes(rows, devices)])

    def part(index: tuple[slice, ...]) -> Array:
        device = (index[0].start or 0) // each
        own = whole[device::devices] if strategy == "mod" else whole[firsts[device] : firsts[device + 1]]
        return np.concatenate([own, np.zeros((each - len(own), *own.shape[1:]), own.dtype)])

    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(axis))
    return jax.make_array_from_callback((devices * each, *whole.shape[1:]), sharding, part)


def gather_table(parts: Any, mesh: jax.sharding.Mesh, axis: str, num_rows: int, strategy: str = "div") -> Array:
    """What `shard_table` split, as one NumPy array in the order of ids: a table, or a slot of an optimizer."""
    devices = _devices(mesh, axis)
    wanted = devices * part_rows(num_rows, devices)
    if parts.shape[:1] != (wanted,):
        raise refuse("lengths_match", argument="parts", value=tuple(parts.shape), bound=wanted)
    found: Array = np.asarray(parts)[places_of(num_rows, devices, strategy)]
    return found


def needed_capacity(
    ids: Any,
    num_rows: int,
    devices: int,
    strategy: str = "div",
    padding_idx: int | None = None,
    default_id: int | None = None,
    segment_ids: Any = None,
    num_bags: int | None = None,
) -> Capacity:
    """The `capacity` and `id_capacity` that a batch needs: the most any of its devices asks of any owner; at least 1.

    `ids` are those of all devices, as `P(axis)` splits them: along the first dimension, evenly. `default_id` counts in
    empty bags; those of a vector of ids are known by `segment_ids` and `num_bags`, each device's own.
    """
    given = integers(ids, "ids")
    part_rows(num_rows, devices)
    if not given.ndim or given.shape[0] % devices:
        raise refuse("bags_unfit", argument="ids", value=given.shape, bound=f"a multiple of {devices} in front")
    padding_idx = row_number("padding_idx", padding_idx, num_rows)
    default_id = row_number("default_id", default_id, num_rows)
    kept = (given != -1) & (given != (-1 if padding_idx is None else padding_idx))
    bad = np.flatnonzero(kept & ((given < 0) | (given >= num_rows)))
    if len(bad):
        at = int(bad[0])
        raise refuse("id_outside", argument="ids", position=at, value=given.reshape(-1)[at], bound=num_rows)
    empty = [0] * devices if default_id is None else _empty_bags(kept, devices, segment_ids, num_bags)
    most = Capacity(1, 1)
    for own, own_kept, more in zip(np.split(given, devices), np.split(kept, devices), empty, strict=True):
        named = np.concatenate([own[own_kept], np.full(more, default_id or 0, own.dtype)])
        owners = [locate(ids, num_rows, devices, strategy)[0] for ids in (np.unique(named), named)]
        asked = [int(np.bincount(o, minlength=1).max()) for o in owners]
        most = Capacity(max(most.rows, asked[0]), max(most.ids, asked[1]))
    return most


def _empty_bags(kept: Array, devices: int, segment_ids: Any, num_bags: int | None) -> list[int]:
    """How many bags of each device have no id that counts."""
    if kept.ndim > 1:
        return [int((~own.any(1)).sum()) for own in np.split(kept, devices)]
    if segment_ids is None or num_bags is None or np.shape(segment_ids) != kept.shape:
        bound = "segment_ids and num_bags beside ids of one dimension and default_id"
        raise refuse("bags_unfit", argument="segment_ids", value=np.shape(segment_ids), bound=bound)
    segments = np.split(integers(segment_ids, "segment_ids"), devices)
    return [num_bags - len(np.unique(s[k])) for s, k in zip(segments, np.split(kept, devices), strict=True)]


def _devices(mesh: jax.sharding.Mesh, axis: str) -> int:
    if axis not in mesh.shape:
        raise refuse("bags_unfit", argument="axis", value=repr(axis), bound=f"one of {tuple(mesh.shape)}")
    return int(mesh.shape[axis])
