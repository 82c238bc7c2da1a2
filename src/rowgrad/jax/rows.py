"""Arithmetic on trees with row-sparse gradients: scale, add, clip, psum, norms, optax.

Functions of arrays (`jax.tree.map(jnp.add, …)`, `jax.lax.psum`, optax's transformations) would change row ids together
with values, so they raise an error. These functions treat an `IndexedRows` as the dense gradient that it represents,
and other arrays as usual. None means "no gradient" and is unchanged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._catalog.rows import IndexedRows
from ..errors import OpError, make_error
from .arrays import as_jax
from .gradient_axes import (
    Gradient,
    axis_names,
    differs,
    gradients,
    of_all_devices,
    shard_axes,
    split_axes,
    sum_in_order,
    varying_axes,
)
from .row_optimizer import Transformation, apply_updates, unique_rows
from .row_step import wider
from .sharded.table import ShardedTable
from .trees import is_rows
from .varying import manual_axes, unchecked_axes


def scale(tree: Any, factor: Any) -> Any:
    """Multiply every gradient by a number.

    Args:
        tree: A tree of gradients.
        factor: The number; a JAX scalar may be traced.

    Returns:
        The scaled gradients.

    Raises:
        InvalidArgumentError: If `factor` is not a scalar.

    >>> import jax.numpy as jnp, rowgrad as rg
    >>> from rowgrad.jax import rows
    >>> grad = rg.IndexedRows(jnp.array([[1.0], [5.0]]), jnp.array([2, 7]), num_rows=9, is_unique=True)
    >>> half = rows.scale(grad, 0.5)
    >>> half.indices.tolist(), half.values.ravel().tolist()
    ([2, 7], [0.5, 2.5])
    """
    factor = _scalar(factor, "factor")
    return _map(lambda x: x * factor.astype(x.dtype), tree)


def add(*trees: Any) -> Any:
    """Add gradients; row-sparse ones are merged to unique rows, in the order of the arguments.

    Args:
        trees: Trees of gradients of the same structure.

    Returns:
        The sums: row-sparse, or dense if one of the gradients of a parameter is dense.

    Raises:
        InvalidArgumentError: If gradients of one parameter have different shapes.

    >>> import jax.numpy as jnp, rowgrad as rg
    >>> from rowgrad.jax import rows
    >>> a = rg.IndexedRows(jnp.array([[1.0], [5.0]]), jnp.array([2, 7]), num_rows=9, is_unique=True)
    >>> b = rg.IndexedRows(jnp.array([[3.0]]), jnp.array([7]), num_rows=9, is_unique=True)
    >>> total = rows.add(a, b)
    >>> total.indices.tolist(), total.values.ravel().tolist()
    ([2, 7, 9], [1.0, 8.0, 0.0])
    """
    return jax.tree_util.tree_map(_sum, *trees, is_leaf=_is_gradient)


def accumulate(stacked: Any, *, mean: bool = False) -> Any:
    """Sum gradients along a leading axis, such as those of microbatches that `jax.lax.scan` returned.

    Args:
        stacked: A tree of stacked gradients.
        mean: Return the mean instead of the sum.

    Returns:
        A tree of gradients with unique rows.

    Raises:
        InvalidArgumentError: If a row-sparse gradient is not stacked.

    >>> import jax, jax.numpy as jnp
    >>> from rowgrad.jax import Table, rows, value_and_rows
    >>> params = Table(jnp.ones((9, 1)))
    >>> def gradient(carry, ids):
    ...     return carry, value_and_rows(lambda table: table.bags(ids, jnp.array([0, 1]), 2).sum())(params)[1]
    >>> _, stacked = jax.lax.scan(gradient, None, jnp.array([[7, 2], [7, 7]]))
    >>> total = rows.accumulate(stacked).rows
    >>> total.indices.tolist(), total.values.ravel().tolist()
    ([2, 7, 9, 9], [1.0, 3.0, 0.0, 0.0])
    """

    def of_rows(rows: IndexedRows) -> IndexedRows:
        if rows.indices.ndim != 2:
            raise make_error("rows_not_stacked", value=rows.indices.ndim)
        count = rows.values.shape[0]
        if not count:
            values = jnp.zeros((0, *rows.values.shape[2:]), rows.dtype)
            return IndexedRows(values, jnp.zeros(0, rows.indices.dtype), rows.num_rows, is_unique=True)
        found = _merge([IndexedRows(rows.values[k], rows.indices[k], rows.num_rows) for k in range(count)])
        return _with_values(found, found.values / count) if mean else found

    return _map(lambda x: x.mean(0) if mean else x.sum(0), tree=stacked, of_rows=of_rows)


def psum(tree: Any, axis_name: Any) -> Any:
    """Sum gradients over mesh axes inside `shard_map`: every device gets the rows of all devices.

    Gradients that do not vary over an axis are not summed over it: JAX has already summed the gradients of shared
    parameters. The same holds for a `ShardedTable` and the axes over which it is sharded: its gradient is the sum over
    their devices already.

    Args:
        tree: A tree of gradients.
        axis_name: The name of a mesh axis, or a tuple of names.

    Returns:
        The sums: the same on all devices, except those of shards.
    """
    names = axis_names(axis_name)
    tracked = frozenset(manual_axes()) - unchecked_axes()

    def summed(x: Any, summed_already: Sequence[Any] = ()) -> Any:
        if isinstance(x, ShardedTable):
            return x.with_held(_map_leaves(lambda held: summed(held, shard_axes(x, held)), x.held))
        x = x if is_rows(x) else jnp.asarray(x)
        known = tracked.difference(varying_axes(x)).union(summed_already)
        over = tuple(name for name in names if name not in known)
        if not over:
            return x
        if not is_rows(x):
            return jax.lax.psum(x, over)
        values, ids = of_all_devices(x.values, over), of_all_devices(x.indices, over)
        return _merge([IndexedRows(v, i, x.num_rows) for v, i in zip(values, ids, strict=True)])

    return jax.tree_util.tree_map(summed, tree, is_leaf=lambda x: isinstance(x, ShardedTable) or is_rows(x))


def global_norm(tree: Any, *, specs: Any = None) -> Any:
    """Return √Σg² over all gradients of a tree; row-sparse ones count like dense ones.

    Inside `shard_map` every device gets the same norm, that of the gradients of all devices: squares of a
    `ShardedTable` are summed over its shards, arrays that all devices share count once. A device adds the squares of
    an array in XLA's order; then the sums of devices are added in the order of the mesh axes, and those of arrays in
    the order of the tree. So the norm agrees with that of unsharded tables up to rounding.

    Args:
        tree: A tree of gradients.
        specs: Inside `shard_map`, how arrays that are not in a `ShardedTable` are split: a PartitionSpec, or a tree of
            them that the tree begins with, such as the `in_specs` of the parameters. Needed for arrays that differ
            between devices, and where JAX does not track which do: `check_vma=False` and older versions.

    Returns:
        The norm.

    Raises:
        InvalidArgumentError: If a gradient differs over mesh axes that its spec does not name: the terms of a sum, or
            a shard.
        UnimplementedError: If JAX does not track which gradients differ, and `specs` is missing.
    """
    total = jnp.zeros(())
    for squares in _sums_of_squares(gradients(_distinct(tree), specs)):
        wide = wider(total.dtype, squares.dtype)
        total = total.astype(wide) + squares.astype(wide)
    return jnp.sqrt(total)


def clip(tree: Any, max_delta: Any) -> Any:
    """Clip every element into [-max_delta, max_delta]; equal rows are summed first.

    Args:
        tree: A tree of gradients.
        max_delta: A number of at least 0.

    Returns:
        The clipped gradients.

    Raises:
        InvalidArgumentError: If `max_delta` is not a number of at least 0.
    """
    bound = _bound(max_delta, "max_delta")

    def clipped(x: Any) -> Any:
        limit = bound.astype(x.dtype)
        return jnp.clip(x, -limit, limit)

    return _map(clipped, _distinct(tree))


def clip_by_global_norm(tree: Any, max_norm: Any, *, specs: Any = None) -> Any:
    """Scale all gradients so that their global norm is at most `max_norm`, like `optax.clip_by_global_norm`.

    Args:
        tree: A tree of gradients.
        max_norm: A number of at least 0.
        specs: Inside `shard_map`, how arrays are split, as for `global_norm`.

    Returns:
        The scaled gradients.

    Raises:
        InvalidArgumentError: If `max_norm` is not a number of at least 0, or `global_norm` raises.

    >>> import optax
    >>> from rowgrad.jax import optim, rows
    >>> clip = optax.stateless(lambda grads, _: rows.clip_by_global_norm(grads, 1.0))
    >>> optimizer = optax.chain(clip, optim.adagrad(0.1))  # also inside shard_map
    """
    tree = _distinct(tree)
    norm, bound = global_norm(tree, specs=specs), _bound(max_norm, "max_norm")

    def clipped(x: Any) -> Any:
        limit = bound.astype(x.dtype)
        return jnp.where(norm < bound.astype(norm.dtype), x, x / norm.astype(x.dtype) * limit)

    return _map(clipped, tree)


def zeros_like(tree: Any) -> Any:
    """Return zeros in place of every gradient; row-sparse ones have the same capacity and contain padding only."""

    def of_rows(rows: IndexedRows) -> IndexedRows:
        ids = jnp.full_like(rows.indices, rows.num_rows)
        return IndexedRows(jnp.zeros_like(rows.values), ids, rows.num_rows, is_unique=True)

    return _map(jnp.zeros_like, tree, of_rows=of_rows)


def to_dense(tree: Any) -> Any:
    """Convert row-sparse gradients of a tree to dense ones; ids out of range are ignored."""
    return _map(lambda x: x, tree, of_rows=lambda rows: apply_updates(jnp.zeros(rows.shape, rows.dtype), rows))


def on_rows(transformation: Any) -> Transformation:
    """Apply an optax transformation to the values of row-sparse gradients.

    The transformation must map zeros to zeros, and must not depend on the number of zeros, on parameters, or on state
    for every element. Then its result equals that for dense gradients. `on_rows` checks this on small arrays.
    Transformations that select leaves (`optax.masked`, `optax.multi_transform`) are checked in `update`, once for each
    tree structure. Inside `shard_map`, where a device has only its shard of a table, `update` also rejects those whose
    result for a row depends on other rows, such as `optax.clip_by_global_norm`; `clip_by_global_norm` of this module
    sums over the mesh.

    Args:
        transformation: An optax transformation.

    Returns:
        A transformation of trees with row-sparse gradients.

    Raises:
        InvalidArgumentError: If the transformation is unsupported, such as `optax.add_noise`,
            `optax.add_decayed_weights`, `optax.trace`, `optax.scale_by_adam` and `optax.clip_by_block_rms`.

    >>> import optax
    >>> from rowgrad.jax import optim, rows
    >>> optimizer = optax.chain(rows.on_rows(optax.clip_by_global_norm(1.0)), optim.adagrad(0.1))
    """
    if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
        raise make_error("number_unfit", argument="transformation", value=repr(transformation)[:80],
                         bound="an optax transformation, with init and update")  # fmt: skip
    small = {"table": IndexedRows(np.zeros((3, 3)), np.zeros(3, int), _ROWS), "layer": np.zeros(4)}
    selects_leaves = _selects_leaves(transformation, small)
    if not selects_leaves:
        _check(transformation, small)
    checked: set[Any] = set()

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        updates = _distinct(updates)
        leaves, tree = jax.tree_util.tree_flatten(updates, is_leaf=is_rows)
        if selects_leaves and (structure := (tree, *map(is_rows, leaves))) not in checked:
            _check(transformation, updates)
            checked.add(structure)
        _check_mesh(transformation, updates, checked)
        arrays = tree.unflatten([x.values if is_rows(x) else x for x in leaves])
        arrays, state = transformation.update(arrays, state, None, **extra)
        found = zip(leaves, tree.flatten_up_to(arrays), strict=True)
        return tree.unflatten([_with_values(x, new) if is_rows(x) else new for x, new in found]), state

    return Transformation(transformation.init, update)


# -- Trees ------------------------------------------------------------------------------------------------------------


def _is_gradient(x: Any) -> bool:
    return x is None or is_rows(x)


def _map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Map a function over every array and every row-sparse gradient."""
    return jax.tree_util.tree_map(function, tree, is_leaf=is_rows)


def _map(dense: Callable[[Any], Any], tree: Any, of_rows: Callable[[IndexedRows], Any] | None = None) -> Any:
    """Map a function over every array and, without `of_rows`, over the values of every row-sparse gradient."""

    def each(x: Any) -> Any:
        if not is_rows(x):
            return dense(jnp.asarray(x))
        return _with_values(x, dense(jnp.asarray(x.values))) if of_rows is None else of_rows(x)

    return _map_leaves(each, tree)


def _scalar(number: Any, argument: str) -> Any:
    """Return a scalar; an array would broadcast over columns."""
    found = as_jax(number, argument)
    if found.ndim:
        raise make_error("number_unfit", argument=argument, value=f"shape {tuple(found.shape)}", bound="a number")
    return found


def _bound(number: Any, argument: str) -> Any:
    """Return a number of at least 0. The value of a JAX array is not read: it may be traced or not ready."""
    found = _scalar(number, argument)
    if not isinstance(number, jax.Array) and not number >= 0:
        raise make_error("number_unfit", argument=argument, value=repr(number), bound="a number of at least 0")
    return found


def _with_values(rows: IndexedRows, values: Any) -> IndexedRows:
    return IndexedRows(values, rows.indices, rows.num_rows, rows.is_unique)


def _distinct(tree: Any) -> Any:
    """Return the tree with unique rows, and zeros where an id is out of range."""

    def of_rows(rows: IndexedRows) -> IndexedRows:
        rows = unique_rows(rows)
        is_row = (rows.indices >= 0) & (rows.indices < rows.num_rows)
        is_row = is_row.reshape(-1, *(1 for _ in rows.values.shape[1:]))
        return _with_values(rows, jnp.where(is_row, rows.values, 0))

    return _map(lambda x: x, tree, of_rows=of_rows)


def _sums_of_squares(found: Sequence[Gradient]) -> list[Any]:
    """Return Σg² of every gradient. Those that are split over the same axes are summed by one exchange."""
    sums: list[Any] = []
    together: dict[tuple[Any, ...], list[int]] = {}
    for k, gradient in enumerate(found):
        values = jnp.asarray(gradient.values)
        sums.append(jnp.sum(jnp.square(jnp.abs(values.astype(wider(values.dtype, jnp.float32))))))
        if axes := split_axes(gradient):
            together.setdefault((axes, sums[k].dtype), []).append(k)
    for (axes, _), places in together.items():
        for k, total in zip(places, sum_in_order(jnp.stack([sums[k] for k in places]), axes), strict=True):
            sums[k] = total
    return sums


def _sum(*gradients: Any) -> Any:
    """Add gradients of one parameter; None is skipped."""
    present = [g for g in gradients if g is not None]
    if len(present) < 2:
        return present[0] if present else None
    shapes = [tuple(g.shape) if is_rows(g) else jnp.shape(g) for g in present]
    for shape in shapes[1:]:
        if shape != shapes[0]:
            raise make_error("rows_shapes", value=shapes[0], bound=shape)
    sparse = [g for g in present if is_rows(g)]
    total = None
    for g in present:
        if not is_rows(g):
            total = jnp.asarray(g) if total is None else total + g
    if not sparse:
        return total
    merged = _merge(sparse)
    return merged if total is None else apply_updates(total, merged)


def _merge(parts: Sequence[IndexedRows]) -> IndexedRows:
    """Merge row-sparse gradients of a table into one of unique rows; equal rows are added in order."""
    num_rows = parts[0].num_rows
    with jax.numpy_dtype_promotion("standard"):
        values = jnp.concatenate([jnp.asarray(p.values) for p in parts])
        ids = jnp.concatenate([jnp.asarray(p.indices) for p in parts])
    found = unique_rows(IndexedRows(values, ids, num_rows))
    size = min(ids.shape[0], num_rows)  # distinct rows come first
    return IndexedRows(found.values[:size], found.indices[:size], num_rows, is_unique=True)


# -- Which transformations row-sparse gradients support ---------------------------------------------------------------

_ROWS, _NAMED = 7, [1, 4]  # of the example table: its size, and the rows that have a gradient


def _selects_leaves(transformation: Any, gradients: Any) -> bool:
    """Return whether a transformation distinguishes leaves by their names or by a tree of masks."""
    with jax.core.eval_context():
        try:
            state = jax.eval_shape(transformation.init, _examples(gradients)[0])
        except Exception:  # a tree of masks that is not like the gradients
            return True
    return "MaskedState" in str(jax.tree_util.tree_structure(state))  # the state of optax.masked


def _check(transformation: Any, gradients: Any) -> None:
    """Raise unless the transformation treats rows as it treats them in a dense gradient."""
    why = _why_unsupported(transformation, gradients)
    if why is None:
        return
    for member in _members(transformation):  # name the unsupported member of a chain
        _check(member, gradients)
    raise make_error("transformation_unfit", value=_name(transformation), why=why)


def _name(transformation: Any) -> str:
    return str(getattr(transformation.update, "__qualname__", repr(transformation))).split(".")[0]


def _examples(gradients: Any) -> tuple[Any, Any]:
    """Return two small trees like the gradients: dense arrays, and values of rows of which the last is padding."""
    random = np.random.default_rng(0)
    leaves, tree = jax.tree_util.tree_flatten(gradients, is_leaf=is_rows)
    dense, by_rows = [], []
    for x in leaves:
        shape = (3, *(min(d, 3) for d in x.shape[1:])) if is_rows(x) else tuple(min(d, 4) for d in x.shape)
        values = random.standard_normal(shape).astype(np.float32)
        by_rows.append(values)
        if is_rows(x):
            values[-1] = 0
            table = np.zeros((_ROWS, *shape[1:]), np.float32)
            table[_NAMED] = values[:-1]
            values = table
        dense.append(values)
    return tree.unflatten(dense), tree.unflatten(by_rows)


def _why_unsupported(transformation: Any, gradients: Any) -> str | None:
    """Return why a transformation is unsupported, found by running it on small arrays; None if it is supported."""
    rowwise = [is_rows(x) for x in jax.tree_util.tree_leaves(gradients, is_leaf=is_rows)]
    with jax.core.eval_context():
        trees = _examples(gradients)
        try:
            states = [jax.tree_util.tree_flatten(jax.eval_shape(transformation.init, tree)) for tree in trees]
        except Exception as error:
            why = f"its init raised {type(error).__name__} for a tree like the gradients"
            raise make_error("transformation_unfit", value=_name(transformation), why=why) from error
        if states[0] != states[1]:
            return "it has state for every element of a parameter"
        try:
            found, compact = (_run_steps(transformation, tree)[0] for tree in trees)
        except OpError:
            raise
        except Exception as error:
            return f"without parameters it raised {type(error).__name__}"
    if any(len(update) != len(rowwise) for update in (*found, *compact)):
        return "its result has another structure"
    unnamed = np.setdiff1d(np.arange(_ROWS), _NAMED)
    if any(x[unnamed].any() for update in found for x, by_row in zip(update, rowwise, strict=True) if by_row):
        return "it changes rows that have no gradient"
    for a, b in zip(found, compact, strict=True):
        pairs = [(x[_NAMED], y[:-1]) if by_row else (x, y) for x, y, by_row in zip(a, b, rowwise, strict=True)]
        if not all(np.allclose(x, y, rtol=1e-4, atol=0) for x, y in pairs):
            return "its result depends on how many rows have no gradient"
    return None


def _run_steps(transformation: Any, *trees: Any, factors: Sequence[float] = (1e-3, 1.0, 1e3)) -> list[Any]:
    """Return the leaves of the results of a few steps with increasing gradients, for each of the trees."""

    def run(tree: Any) -> list[Any]:
        state, updates = transformation.init(tree), []
        for factor in factors:
            gradients = jax.tree_util.tree_map(lambda x: x * factor, tree)  # noqa: B023
            update, state = transformation.update(gradients, state, None)
            updates.append(update)
        return updates

    compiled = jax.jit(run)
    return [[[np.asarray(x) for x in jax.tree_util.tree_leaves(update)] for update in compiled(tree)] for tree in trees]


def _check_mesh(transformation: Any, updates: Any, checked: set[Any]) -> None:
    """Raise if the transformation mixes elements of a gradient of which this device has only a part."""
    found = gradients(updates)
    partial = tuple((differs(g), bool(g.shard_axes)) for g in found)
    structure = (jax.tree_util.tree_structure(updates, is_leaf=is_rows), partial)
    if not any(is_partial for is_partial, _ in partial) or structure in checked:
        return
    if not _mixes(transformation, updates, partial):
        checked.add(structure)
        return
    while inner := next((m for m in _members(transformation) if _mixes(m, updates, partial)), None):
        transformation = inner  # name the member of a chain
    raise make_error("transformation_mixes", value=_name(transformation))


def _mixes(transformation: Any, gradients: Any, partial: Sequence[tuple[bool, bool]]) -> bool:
    """Return whether a change of a row of a shard, or of an element of another array, changes other results."""
    leaves, tree = jax.tree_util.tree_flatten(_examples(gradients)[1])
    changed = [x.copy() for x in leaves]
    rest = [np.ones(x.shape, bool) for x in leaves]
    for x, is_rest, (is_partial, is_shard) in zip(changed, rest, partial, strict=True):
        if is_partial and x.size:
            place = 0 if is_shard else (0,) * x.ndim
            x[place] *= 3
            is_rest[place] = False
    factors = (1e-9, 1e-3, 1.0, 1e3, 1e9, 1e15)  # a norm may be clipped at any size
    with jax.core.eval_context():
        pairs = zip(
            *_run_steps(transformation, tree.unflatten(leaves), tree.unflatten(changed), factors=factors), strict=True
        )
    return not all(
        np.array_equal(x[is_rest], y[is_rest], equal_nan=True)
        for before, after in pairs
        for x, y, is_rest in zip(before, after, rest, strict=True)
    )


def _members(transformation: Any) -> Iterator[Any]:
    """Yield the transformations that another one is composed of, as far as its closures refer to them."""
    closures = [_closure_values(getattr(transformation, name)) for name in ("init", "update")]
    for value in [x for v in closures[1] for x in (v.values() if isinstance(v, dict) else [v])]:
        if hasattr(value, "init") and hasattr(value, "update"):
            yield value
    lists = [[v for v in values if isinstance(v, tuple | list) and v and all(map(callable, v))] for values in closures]
    for inits, updates in zip(*lists, strict=False):
        if len(inits) == len(updates):
            yield from map(Transformation, inits, updates)


def _closure_values(function: Any) -> list[Any]:
    return list(inspect.getclosurevars(function).nonlocals.values()) if inspect.isfunction(function) else []
