"""Tables split over the devices of a mesh by TensorFlow's rules, in parts of equal size, as JAX requires.

If the number of devices does not divide the number of rows, shorter parts are padded with a row of zeros.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import make_error
from ...lookup import row_number
from ...sharding.div_mod import check_strategy, locate_valid, shard_slice
from ..arrays import register_for_export
from ..bags import active_mask, as_integers, read_ignore_id
from ..table import Table

Array = np.ndarray[Any, Any]
Axis = str | tuple[str, ...]


class Layout(NamedTuple):
    """How the rows of a table are split over a mesh.

    Attributes:
        num_rows: The number of rows of the whole table.
        devices: The number of parts.
        axis: The mesh axis, or several, in the order in which `PartitionSpec` and collectives count devices.
        strategy: "div" or "mod".
    """

    num_rows: int
    devices: int
    axis: Axis
    strategy: str = "div"

    @property
    def part_rows(self) -> int:
        """The number of rows of every part."""
        return part_rows(self.num_rows, self.devices)

    @property
    def spec(self) -> jax.sharding.PartitionSpec:
        """The `PartitionSpec` of the parts, for `in_specs` and `out_specs` of `shard_map`."""
        return jax.sharding.PartitionSpec(self.axis)


class ShardedTable(Table):
    """A sharded table with its `Layout`: all parts or, inside `shard_map`, this device's part.

    A pytree with the array as its only leaf. The layout is static, so it survives `jit`, `shard_map`, `grad` and
    `tree.map`, and `sharded.embedding_bag` checks it. `shard_table` returns one; construct it yourself for parts from
    another source.

    Args:
        array: One part, or all parts concatenated.
        layout: How the rows are split.

    Raises:
        InvalidArgumentError: If the array does not have the rows of one part or of all.

    >>> import jax.numpy as jnp
    >>> from rowgrad.jax import sharded
    >>> table = sharded.ShardedTable(jnp.zeros((4, 2)), sharded.Layout(3, 2, "x", "mod"))
    >>> table.layout.part_rows
    2
    """

    __slots__ = ("_layout",)

    def __init__(self, array: Any, layout: Layout) -> None:
        check_strategy(layout.strategy)
        self._held = array if hasattr(array, "shape") and hasattr(array, "dtype") else jnp.asarray(array)
        self._layout = layout = layout._replace(axis=as_axis(layout.axis))
        each = layout.part_rows
        if self.shape[:1] not in ((each,), (each * layout.devices,)):
            bound = f"({each}, …) for one shard or ({each * layout.devices}, …) for all {layout.num_rows} rows"
            raise make_error("bags_unfit", argument="array", value=self.shape, bound=bound)

    @property
    def layout(self) -> Layout:
        """How the rows are split."""
        return self._layout

    @property
    def spec(self) -> jax.sharding.PartitionSpec:
        """The `PartitionSpec` of the parts, for `in_specs` and `out_specs` of `shard_map`."""
        return self._layout.spec

    @property
    def is_split(self) -> bool:
        """True: this is a sharded table."""
        return True

    def with_held(self, held: Any) -> ShardedTable:
        """Return a table of the same layout around another array or a row-sparse gradient."""
        return _unflatten(self._layout, held)

    def bags(self, *args: Any, **kwargs: Any) -> Any:
        """Raise: ids of the whole table are not rows of a part; see `rowgrad.jax.sharded.embedding_bag`."""
        raise make_error("table_in_parts")

    def __repr__(self) -> str:
        parts = f"{self._layout.devices} parts over {self._layout.axis!r} by {self._layout.strategy!r}"
        return f"Sharded{super().__repr__()[:-1]}, {self._layout.num_rows} rows in {parts})"


jax.tree_util.register_pytree_with_keys(
    ShardedTable,
    lambda table: ([(jax.tree_util.GetAttrKey("array"), table.held)], table.layout),
    lambda layout, held: _unflatten(layout, held[0]),
)
register_for_export(ShardedTable, from_json=lambda fields: Layout(*fields)._replace(axis=as_axis(fields[2])))


def _unflatten(layout: Layout, held: Any) -> ShardedTable:
    table = object.__new__(ShardedTable)
    table._held, table._layout = held, layout
    return table


def as_axis(axis: Any) -> Axis:
    """Normalize a mesh axis to a name, or a tuple of two or more names."""
    names = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    if not names or len(set(names)) != len(names):
        raise make_error(
            "bags_unfit", argument="axis", value=repr(axis), bound="one mesh axis, or several distinct ones"
        )
    return names[0] if len(names) == 1 else names


class Capacity(NamedTuple):
    """The most distinct rows, and the most ids, that one device requests from one owner."""

    rows: int
    ids: int


def part_rows(num_rows: int, devices: int) -> int:
    """Return the number of rows of every part of a table of `num_rows` rows, padding included."""
    for argument, value in (("num_rows", num_rows), ("devices", devices)):
        if not isinstance(value, int | np.integer) or value < 1:
            raise make_error("count_unfit", argument=argument, value=repr(value), bound=1)
    return -(-int(num_rows) // int(devices))


def locate(ids: Any, num_rows: int, devices: int, strategy: str) -> tuple[Any, Any]:
    """Return the owner of each id and its row there. Ids must be in range; NumPy or JAX arrays, traced or not."""
    check_strategy(strategy)
    return locate_valid(ids, num_rows, devices, strategy, np if isinstance(ids, np.ndarray) else jnp)


def places_of(num_rows: int, devices: int, strategy: str) -> Array:
    """Return the position of each row of the table in the concatenated parts."""
    owners, rows = locate(np.arange(num_rows), num_rows, devices, strategy)
    places: Array = owners * part_rows(num_rows, devices) + rows
    return places


def shard_table(table: Any, mesh: jax.sharding.Mesh, axis: Any, strategy: str = "div") -> ShardedTable:
    """Split a table, or an optimizer slot with a row for each of its rows, over an axis of a mesh, or over several.

    The array of the result has `part_rows` rows for each device along `axis`, one part after the other, sharded
    `P(axis)`: inside `shard_map` with that spec, the result's `spec`, every device has its part. "div" puts contiguous
    rows on each device, one more on the first (rows mod devices) of them; "mod" puts row i on device i mod devices.
    Parts that are a row short are padded with a row of zeros.

    Args:
        table: An array of rank 1 or more, rows first.
        mesh: The mesh.
        axis: The name of a mesh axis, or a tuple of names.
        strategy: "div" or "mod".

    Returns:
        The sharded table.

    Raises:
        InvalidArgumentError: If the table is a scalar, or the mesh has no such axis.

    >>> import jax, numpy as np
    >>> from rowgrad.jax import sharded
    >>> mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
    >>> sharded.gather_table(sharded.shard_table(np.arange(3.0), mesh, "x")).tolist()
    [0.0, 1.0, 2.0]
    """
    check_strategy(strategy)
    axis = as_axis(axis)
    devices = _devices(mesh, axis)
    if isinstance(table, Table):
        raise make_error(
            "table_unfit", argument="table", value=type(table).__name__, bound="an array; pass table.array"
        )
    whole = np.asarray(table)
    if not whole.ndim:
        raise make_error("table_unfit", argument="table", value="a scalar", bound="of rank 1 or more, rows first")
    rows = whole.shape[0]
    layout = Layout(rows, devices, axis, strategy)
    each = layout.part_rows

    def part(index: tuple[slice, ...]) -> Array:
        device = (index[0].start or 0) // each
        own = whole[shard_slice(device, rows, devices, strategy)]
        return np.concatenate([own, np.zeros((each - len(own), *own.shape[1:]), own.dtype)])

    sharding = jax.sharding.NamedSharding(mesh, layout.spec)
    parts = jax.make_array_from_callback((devices * each, *whole.shape[1:]), sharding, part)
    return ShardedTable(parts, layout)


def gather_table(table: ShardedTable) -> Array:
    """Return a sharded table, gradient or slot as one NumPy array in the order of ids.

    Args:
        table: What `shard_table` returned, or a table of the same layout; all parts, not one device's.

    Returns:
        The rows without padding.

    Raises:
        InvalidArgumentError: If it is not a sharded table with all of its parts.
    """
    if not isinstance(table, ShardedTable):
        raise make_error("part_without_layout", argument="table", value=type(table).__name__)
    num_rows, devices, _, strategy = layout = table.layout
    expected = devices * layout.part_rows
    parts = table.array
    if parts.shape[:1] != (expected,):
        raise make_error("lengths_match", argument="table", value=tuple(parts.shape), bound=expected)
    found: Array = np.asarray(parts)[places_of(num_rows, devices, strategy)]
    return found


def partition_specs(tree: Any) -> Any:
    """Return a tree of PartitionSpecs for `in_specs` and `out_specs` of `shard_map`.

    Args:
        tree: A tree of parameters, or the state of an optimizer, nested as `optax.multi_transform` nests it.

    Returns:
        The same tree with `table.spec` in place of each `ShardedTable`, and `PartitionSpec()`, the same on all devices,
        in place of each other array.

    >>> import jax, jax.numpy as jnp, numpy as np
    >>> from rowgrad.jax import sharded
    >>> mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
    >>> params = {"items": sharded.shard_table(np.ones((3, 2)), mesh, "x"), "scale": jnp.array(3.0)}
    >>> specs = sharded.partition_specs(params)
    >>> tuple(specs["items"]), tuple(specs["scale"])
    (('x',), ())
    """
    return jax.tree_util.tree_map(
        lambda leaf: leaf.spec if isinstance(leaf, ShardedTable) else jax.sharding.PartitionSpec(),
        tree,
        is_leaf=lambda leaf: isinstance(leaf, ShardedTable),
    )


def needed_capacity(
    ids: Any,
    num_rows: int,
    devices: int,
    strategy: str = "div",
    padding_idx: int | None = None,
    default_id: int | None = None,
    segment_ids: Any = None,
    num_bags: int | None = None,
    ignore_id: int | None = None,
) -> Capacity:
    """Return the `capacity` and `id_capacity` that a batch needs: the most that a device requests from an owner.

    Args:
        ids: The ids of all devices, which `P(axis)` splits evenly along the first dimension.
        num_rows: The number of rows of the table.
        devices: The number of devices.
        strategy: "div" or "mod".
        padding_idx: A row whose ids are ignored.
        default_id: The row to look up for empty bags; for a vector of ids this needs `segment_ids` and `num_bags`.
        segment_ids: The bag of each id; every device counts its bags from 0.
        num_bags: The number of bags of each device.
        ignore_id: An id to ignore that is not a row.

    Returns:
        The number of distinct rows and of ids, each at least 1.

    Raises:
        InvalidArgumentError: If ids are out of range or cannot be split evenly.

    >>> from rowgrad.jax import sharded
    >>> sharded.needed_capacity([0, 0, 1, 3], num_rows=4, devices=2)
    Capacity(rows=1, ids=2)
    """
    ids = as_integers(ids, "ids")
    part_rows(num_rows, devices)
    if not ids.ndim or ids.shape[0] % devices:
        raise make_error(
            "bags_unfit", argument="ids", value=ids.shape, bound=f"a first dimension that is a multiple of {devices}"
        )
    padding_idx = row_number("padding_idx", padding_idx, num_rows)
    default_id = row_number("default_id", default_id, num_rows)
    mask = active_mask(ids, (padding_idx, read_ignore_id(ignore_id, num_rows, ids.dtype)))
    mask = np.ones(ids.shape, bool) if mask is None else mask
    bad = np.flatnonzero(mask & ((ids < 0) | (ids >= num_rows)))
    if len(bad):
        at = int(bad[0])
        raise make_error("id_outside", argument="ids", position=at, value=ids.reshape(-1)[at], bound=num_rows)
    empty = [0] * devices if default_id is None else _empty_bags(mask, devices, segment_ids, num_bags)
    most = Capacity(1, 1)
    for own, own_mask, defaults in zip(np.split(ids, devices), np.split(mask, devices), empty, strict=True):
        looked_up = np.concatenate([own[own_mask], np.full(defaults, default_id or 0, own.dtype)])
        owners = [locate(each, num_rows, devices, strategy)[0] for each in (np.unique(looked_up), looked_up)]
        needed = [int(np.bincount(o, minlength=1).max()) for o in owners]
        most = Capacity(max(most.rows, needed[0]), max(most.ids, needed[1]))
    return most


def _empty_bags(mask: Array, devices: int, segment_ids: Any, num_bags: int | None) -> list[int]:
    """Return the number of bags of each device without active ids."""
    if mask.ndim > 1:
        return [int((~own.any(1)).sum()) for own in np.split(mask, devices)]
    if segment_ids is None or num_bags is None or np.shape(segment_ids) != mask.shape:
        bound = "segment_ids and num_bags for ids of one dimension with default_id"
        raise make_error("bags_unfit", argument="segment_ids", value=np.shape(segment_ids), bound=bound)
    segments = np.split(as_integers(segment_ids, "segment_ids"), devices)
    return [num_bags - len(np.unique(s[k])) for s, k in zip(segments, np.split(mask, devices), strict=True)]


def _devices(mesh: jax.sharding.Mesh, axis: Axis) -> int:
    names = axis if isinstance(axis, tuple) else (axis,)
    for name in names:
        if name not in mesh.shape:
            raise make_error("bags_unfit", argument="axis", value=repr(name), bound=f"one of {tuple(mesh.shape)}")
    return math.prod(int(mesh.shape[name]) for name in names)
