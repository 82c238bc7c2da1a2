"""Mesh axes over which gradients are split inside `shard_map`, and sums over devices in a fixed order.

Inside `shard_map` a function sees one device's arrays. Arithmetic on single elements is right there. A norm needs to
know which arrays are shards, whose squares are summed over the mesh, and which are the same on all devices and count
once. A `ShardedTable` records its axes. For other arrays JAX knows whether they differ between devices, but not whether
they are shards or terms of a sum, so the caller has to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import make_error
from .sharded.table import ShardedTable
from .trees import is_rows
from .varying import manual_axes, shared_by, unchecked_axes


class Gradient(NamedTuple):
    """A gradient in a tree: an array or IndexedRows."""

    path: str  # its place in the tree
    held: Any
    table: ShardedTable | None  # the table that holds it
    spec: Any  # the PartitionSpec that the caller passed, or None

    @property
    def values(self) -> Any:
        """The elements that are not zero."""
        return self.held.values if is_rows(self.held) else self.held

    @property
    def shard_axes(self) -> tuple[Any, ...]:
        """The axes over which the table is sharded, if this is the gradient of one shard."""
        return () if self.table is None else shard_axes(self.table, self.held)


def shard_axes(table: ShardedTable, held: Any) -> tuple[Any, ...]:
    """Return the axes over which a table is sharded; none for a gradient with the rows of all shards."""
    layout = table.layout
    is_whole = layout.devices > 1 and held.shape[:1] == (layout.part_rows * layout.devices,)
    return () if is_whole else axis_names(layout.axis)


def axis_names(axis: Any) -> tuple[Any, ...]:
    """Return the names of a mesh axis or of several."""
    return tuple(axis) if isinstance(axis, tuple | list) else (axis,)


def varying_axes(held: Any) -> frozenset[Any]:
    """Return the axes over which JAX knows that a gradient differs."""
    return shared_by([held.values, held.indices] if is_rows(held) else [held])


def gradients(tree: Any, specs: Any = None) -> list[Gradient]:
    """Return the gradients of a tree, in the order of its leaves.

    Args:
        tree: A tree of gradients.
        specs: None, or a tree of PartitionSpecs that the tree begins with, as for `in_specs` of `shard_map`.
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_whole)[0]
    all_specs = [None] * len(leaves) if specs is None else _spread(specs, tree)
    found = []
    for (path, leaf), spec in zip(leaves, all_specs, strict=True):
        table = leaf if isinstance(leaf, ShardedTable) else None
        for held in [leaf] if table is None else jax.tree_util.tree_leaves(table.held, is_leaf=is_rows):
            found.append(Gradient(jax.tree_util.keystr(path), held, table, spec))
    return found


def _is_whole(x: Any) -> bool:
    return isinstance(x, ShardedTable) or is_rows(x)


def _spread(specs: Any, tree: Any) -> list[Any]:
    """Return a PartitionSpec for each gradient of a tree."""
    found: list[Any] = []

    def spread(spec: Any, subtree: Any) -> None:
        if not isinstance(spec, jax.sharding.PartitionSpec):
            bound = "a tree of PartitionSpecs like the gradients"
            raise make_error("number_unfit", argument="specs", value=type(spec).__name__, bound=bound)
        found.extend([spec] * len(jax.tree_util.tree_leaves(subtree, is_leaf=_is_whole)))

    jax.tree_util.tree_map(spread, specs, tree, is_leaf=lambda x: isinstance(x, jax.sharding.PartitionSpec))
    return found


def split_axes(gradient: Gradient) -> tuple[Any, ...]:
    """Return the mesh axes whose devices have different parts of a gradient; raise where that is unknown."""
    manual, split = manual_axes(), gradient.shard_axes
    if gradient.table is not None and gradient.table.layout.devices > 1 and not set(split) <= set(manual):
        raise make_error("shard_outside", value=_list(split))
    if gradient.spec is not None:
        split += tuple(name for name in _names_in(gradient.spec) if name not in split)
    if not manual:
        return ()
    path = gradient.path or "the root"
    if gradient.spec is None and (hidden := unchecked_axes() - set(split)):
        raise make_error("axes_unknown", value=path, bound=_list(hidden))
    if differing := varying_axes(gradient.held) - set(split):
        raise make_error("gradient_differs", value=path, bound=_list(differing))
    return tuple(name for name in split if name in manual)


def _names_in(spec: Any) -> Iterator[Any]:
    for entry in spec:
        if entry is not None:
            yield from axis_names(entry)


def _list(names: Iterable[Any]) -> str:
    return ", ".join(sorted(map(str, names)))


def differs(gradient: Gradient) -> bool:
    """Return whether a gradient is a shard, or may differ between devices for another reason."""
    manual = manual_axes()
    return bool(manual) and (bool(gradient.shard_axes) or bool(varying_axes(gradient.held)) or bool(unchecked_axes()))


def of_all_devices(x: Any, axis_name: Any) -> Any:
    """Return [devices, …] by a sum, because JAX assumes that the result of all_gather varies over devices."""
    whole = jnp.zeros((int(jax.lax.psum(1, axis_name)), *x.shape), x.dtype)
    return jax.lax.psum(whole.at[jax.lax.axis_index(axis_name)].set(x), axis_name)


def sum_in_order(x: Any, axis_name: Any) -> Any:
    """Add the arrays of all devices in the order of the devices, so that all get the same bits."""
    each = of_all_devices(x, axis_name)
    return jax.lax.scan(lambda total, own: (total + own, None), jnp.zeros_like(each[0]), each)[0]
