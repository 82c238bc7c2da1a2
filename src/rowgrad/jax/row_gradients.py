"""`value_and_rows`: row-sparse gradients of tables.

JAX has no row-sparse cotangents. So the function is traced once to record its lookups, then differentiated with respect
to zeros ("taps") that are added to the output of each lookup, while the tables are constant. The cotangents of the taps
and the ids of the lookups, returned as auxiliary outputs, determine the rows.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from .._catalog.rows import IndexedRows
from ..errors import make_error
from ..raw_ops import OPS
from .row_step import Bags
from .table import LookupLog, RecordedLookup, Table, Tap, is_label
from .varying import widen


class Lookup(NamedTuple):
    """A differentiated lookup: its combiner, its ids, and the gradient of its result."""

    kind: str
    ids: Any
    segment_ids: Any
    weights: Any
    grad: Any
    has_masked: bool  # whether masked ids name the row after the table's last


def value_and_rows(f: Callable[..., Any], *, size: int | None = None, has_aux: bool = False) -> Callable[..., Any]:
    """Work like `jax.value_and_grad(f)`, except that every `Table` in the first argument gets a row-sparse gradient.

    In the tree of gradients each Table holds `rowgrad.IndexedRows` of `size` rows: looked-up rows come first, ascending
    and unique, followed by zero padding whose id is the table's number of rows. Leaves that are not floating-point
    arrays have the gradient None.

    Inside `f` tables can be read only by `table.bags` or `embedding_bag`, outside of jit, vmap, grad, scan, cond and
    checkpoint; other reads raise, because their gradient would be lost. `f` itself may be `jax.jit(g)`, which is the
    same as `g` (compile the whole step instead), or `jax.checkpoint(g)`, which recomputes everything but the lookups.

    Args:
        f: A function whose first argument is a tree of parameters, and whose result is a scalar.
        size: The maximum number of distinct rows of each table, by default the smaller of the number of ids and the
            number of rows. A batch with more rows raises when it runs.
        has_aux: Whether `f` returns a pair of the scalar and auxiliary data.

    Returns:
        A function of the same arguments that returns the value of `f` and the gradients.

    Raises:
        InvalidArgumentError: If `size` is neither None nor an int of at least 0.

    >>> import jax.numpy as jnp
    >>> from rowgrad.jax import Table, value_and_rows
    >>> params = {"items": Table(jnp.ones((9, 1))), "scale": jnp.array(3.0)}
    >>> def loss(params, ids, bags):
    ...     return params["scale"] * params["items"].bags(ids, bags, num_bags=2, combiner="sum").sum()
    >>> value, grads = value_and_rows(loss)(params, jnp.array([7, 2, 7]), jnp.array([0, 0, 1]))
    >>> rows = grads["items"].rows
    >>> rows.indices.tolist(), rows.values.ravel().tolist(), grads["scale"].tolist()
    ([2, 7, 9], [3.0, 6.0, 0.0], 3.0)
    """
    if size is not None and (isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0):
        raise make_error("number_unfit", argument="size", value=repr(size), bound="None or an int of at least 0")

    size = None if size is None else int(size)
    f, recompute = _unwrap(f)

    def value_and_grads(params: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        modules = Modules.of(params)
        parts = Parts(params if modules is None else modules.state)

        def run(trained: list[Any], arrays: list[Any], log: LookupLog) -> tuple[Any, Any]:
            tree = parts.joined(trained, [Tap(a, log, i) for i, a in enumerate(arrays)])
            if modules is None:
                return f(tree, *args, **kwargs), []
            before = [_leaves(x) for x in tree]
            merged = modules.merged(tree)
            return f(merged, *args, **kwargs), modules.assigned(merged, before)

        recorded = _record_lookups(run, parts)
        taps = [widen(jnp.zeros(r.output.shape, r.output.dtype), r.axes) for r in recorded]

        def tapped(trained: list[Any], taps: list[Any]) -> Any:
            log = LookupLog(taps)
            result, assigned = run(trained, parts.arrays, log)
            if [r._replace(axes=None) for r in log.lookups] != [r._replace(axes=None) for r in recorded]:
                raise make_error("lookups_differ")
            if any(isinstance(leaf, Tap) for leaf in jax.tree_util.tree_leaves(result)):
                raise make_error("table_tapped")
            value, aux = result if has_aux else (result, None)
            return value, (aux, log.ids, assigned)

        differentiated = jax.value_and_grad(recompute(tapped), argnums=(0, 1), has_aux=True)
        (value, (aux, ids, assigned)), (trained, grads) = differentiated(parts.trained, taps)
        lookups = [
            Lookup(r.kind, i, b, w, g, r.has_masked) for r, (i, b, w), g in zip(recorded, ids, grads, strict=True)
        ]
        with jax.numpy_dtype_promotion("standard"):  # lookups of one table may have ids of different dtypes
            rows = [
                rows_of([k for r, k in zip(recorded, lookups, strict=True) if r.table == t], a.shape, a.dtype, size)
                for t, a in enumerate(parts.arrays)
            ]
        tree = parts.joined(trained, rows, other=lambda _: None)
        if modules is not None:
            modules.assign(assigned)
            tree = modules.merged(tree)
        return ((value, aux) if has_aux else value), tree

    return value_and_grads


def _unwrap(f: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the function inside `jax.jit` and `jax.checkpoint`, and a `jax.checkpoint` with the same options.

    Neither accepts a `Tap`, and the ids of lookups could not leave them.
    """
    recompute: Callable[..., Any] = _same
    while True:
        wrappers = _wrappers(f)
        if isinstance(f, _JITTED):
            f = f.__wrapped__  # type: ignore[attr-defined]
        elif [g.__code__ for g in wrappers] == _CHECKPOINT:
            options = inspect.getclosurevars(wrappers[-1]).nonlocals
            recompute = partial(jax.checkpoint, **{k: options[k] for k in ("policy", "prevent_cse") if k in options})
            f = f.__wrapped__  # type: ignore[attr-defined]
        else:
            return f, recompute


def _same(f: Callable[..., Any]) -> Callable[..., Any]:
    return f


def _wrappers(f: Any) -> list[Any]:
    """Return JAX's functions around the wrapped function, which identify the transformation."""
    inner, found = getattr(f, "__wrapped__", None), []
    while inner is not None and inspect.isfunction(f) and f is not inner:
        found.append(f)
        f = inspect.getclosurevars(f).nonlocals.get("fun")
    return found


_JITTED = type(jax.jit(_same))
_CHECKPOINT: list[Any] = [g.__code__ for g in _wrappers(jax.checkpoint(_same))]
if [g.__code__ for g in _wrappers(jax.vmap(_same))] == _CHECKPOINT:
    _CHECKPOINT = [None]  # this JAX does not distinguish them: neither is unwrapped, and both raise an error


class Parts:
    """The leaves of a tree of parameters: tables, other trained arrays, and the rest."""

    def __init__(self, params: Any) -> None:
        self.leaves, self.tree = jax.tree_util.tree_flatten(params, is_leaf=lambda x: isinstance(x, Table))
        self.arrays = [x.held for x in self.leaves if _is_table(x)]
        if any(isinstance(a, Tap) for a in self.arrays):
            raise make_error("rows_of_rows")
        if any(isinstance(a, IndexedRows) for a in self.arrays):
            raise make_error("parameter_is_gradient")
        self.trained = [x for x in self.leaves if _is_trained(x)]

    def joined(self, trained: Sequence[Any], held: Sequence[Any], other: Callable[[Any], Any] = lambda x: x) -> Any:
        """Return the tree with other trained arrays and other contents of tables."""
        each, table = iter(trained), iter(held)
        leaves = [
            x.with_held(next(table)) if _is_table(x) else next(each) if _is_trained(x) else other(x)
            for x in self.leaves
        ]
        return self.tree.unflatten(leaves)


def _is_table(leaf: Any) -> bool:
    return isinstance(leaf, Table) and leaf.held is not None


def _is_trained(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


class Modules:
    """flax.nnx modules among the parameters: their Variables may be shared, and functions may assign to them.

    Flattened as a pytree, a module would contain each shared Variable several times, with a part of its gradient each.
    Assignments of the function (batch statistics, random counters) would be lost with its copy of the module.
    """

    def __init__(self, nnx: Any, params: Any) -> None:
        self._nnx, self._params = nnx, params
        self._graph, state = nnx.split(params)
        flat = list(nnx.to_flat_state(state))
        self._paths = [path for path, _ in flat]
        places = [_at(params, path) for path in self._paths]
        self._is_bare = [isinstance(x, Table) for x in places]  # not in a Variable, so nnx flattens it
        self.state = [x if isinstance(x, Table) else value for (_, value), x in zip(flat, places, strict=True)]
        self._written: list[tuple[Any, Any]] = []  # paths and tree structures of assigned Variables

    @classmethod
    def of(cls, params: Any) -> Modules | None:
        """Return the modules in a tree of parameters, or None."""
        nnx = sys.modules.get("flax.nnx")
        if nnx is None or not hasattr(nnx, "to_flat_state"):
            return None
        leaves = jax.tree_util.tree_leaves(params, is_leaf=lambda x: isinstance(x, Table | nnx.Module))
        return cls(nnx, params) if any(isinstance(x, nnx.Module) for x in leaves) else None

    def merged(self, state: Sequence[Any]) -> Any:
        """Return the parameters with other values in place of `self.state`."""
        values = [x.held if is_bare else x for x, is_bare in zip(state, self._is_bare, strict=True)]
        return self._nnx.merge(self._graph, self._state_of(zip(self._paths, values, strict=True)))

    def assigned(self, merged: Any, leaves_before: Sequence[list[Any]]) -> list[list[Any]]:
        """Return the leaves of all Variables that are new or changed."""
        before = dict(zip(self._paths, leaves_before, strict=True))
        bare = [path for path, is_bare in zip(self._paths, self._is_bare, strict=True) if is_bare]
        taps = [(_at(merged, path), *before.pop(path)) for path in bare]
        if any(not isinstance(x, Table) or x.held is not table.held for x, table in taps):
            raise make_error("table_tapped")
        for x, _ in taps:
            x._held = None  # nnx would ask a Tap whether it is an array
        flat = list(self._nnx.to_flat_state(self._nnx.split(merged)[1]))
        for x, table in taps:
            x._held = table.held
        self._written, found = [], []
        for path, value in flat:
            leaves, tree = jax.tree_util.tree_flatten(value, is_leaf=_is_a_table)
            old = before.pop(path, [])
            if len(leaves) == len(old) and all(x is y for x, y in zip(leaves, old, strict=True)):
                continue
            if any(isinstance(x, Table) for x in (*leaves, *old)):
                raise make_error("table_tapped")
            self._written.append((path, tree))
            found.append(leaves)
        if before:
            raise make_error("module_changed", value=".".join(map(str, next(iter(before)))))
        return found

    def assign(self, assigned: list[list[Any]]) -> None:
        """Copy the function's assignments from its copy of the modules to the original."""
        known = []
        for (path, tree), leaves in zip(self._written, assigned, strict=True):
            value = tree.unflatten(leaves)
            if path in self._paths:
                known.append((path, value))
            else:
                setattr(_at(self._params, path[:-1]), path[-1], value)
        if known:
            self._nnx.update(self._params, self._state_of(known))

    def _state_of(self, items: Any) -> Any:
        return self._nnx.from_flat_state(list(items))


def _at(params: Any, path: Sequence[Any]) -> Any:
    """Return the value at a path of nnx, or the Table that contains it."""
    for key in path:
        if isinstance(params, Table):
            break
        params = getattr(params, key) if isinstance(key, str) and hasattr(params, key) else params[key]
    return params


def _is_a_table(x: Any) -> bool:
    return isinstance(x, Table)


def _leaves(tree: Any) -> list[Any]:
    return jax.tree_util.tree_leaves(tree, is_leaf=_is_a_table)


def _record_lookups(run: Callable[..., Any], parts: Parts) -> list[RecordedLookup]:
    """Trace a function and return its lookups."""
    lookups: list[RecordedLookup] = []

    def ids_of(trained: list[Any], arrays: list[Any]) -> Any:
        log = LookupLog()
        run(trained, arrays, log)
        lookups.extend(log.lookups)
        return log.ids

    program = jax.make_jaxpr(ids_of)(parts.trained, parts.arrays).jaxpr
    trained = len(parts.trained)
    _check_tables(program, [i < trained for i in range(len(program.invars))])
    return lookups


# Operations that return their operand, up to its dtype or placement.
_UNCHANGED = {
    *("convert_element_type", "copy", "device_put", "optimization_barrier", "pcast", "pvary", "reduce_precision"),
    *("reshard", "sharding_constraint"),
}


def _check_tables(program: Any, is_trained: Sequence[bool]) -> list[bool]:
    """Reject Tables around a trained array, which is a leaf by itself, so that its gradient would be dense.

    Returns which outputs are trained arrays. Also searches functions inside jit, checkpoint, cond, scan and others.
    """
    trained = {v for v, is_one in zip(program.invars, is_trained, strict=True) if is_one}
    for equation in program.eqns:
        inputs = [isinstance(v, _VARIABLE) and v in trained for v in equation.invars]
        if not any(inputs):
            continue
        if is_label(equation):
            raise make_error("table_lost")
        results = [inputs] if equation.primitive.name in _UNCHANGED else []
        for inner in _programs_in(equation.params):
            count = len(inner.invars)  # operands come last: after the index of cond, after other constants of while
            results.append(_check_tables(inner, inputs[-count:] if 0 < count <= len(inputs) else [True] * count))
        for result in results:
            if len(result) == len(equation.outvars):
                trained.update(v for v, is_one in zip(equation.outvars, result, strict=True) if is_one)
    return [isinstance(v, _VARIABLE) and v in trained for v in program.outvars]


_VARIABLE = jax.extend.core.Var


def _programs_in(params: Any) -> list[Any]:
    """Return the traced functions among the parameters of an equation."""
    values = [x for p in params.values() for x in (p if isinstance(p, tuple | list) else (p,))]
    found = (getattr(x, "jaxpr", x) for x in values)
    return [x for x in found if hasattr(x, "eqns") and hasattr(x, "invars")]


# -- From lookups to rows ---------------------------------------------------------------------------------------------


def rows_of(lookups: Sequence[Lookup], shape: Sequence[int], dtype: Any, size: int | None) -> IndexedRows:
    """Return the row-sparse gradient of a table of this shape, from all its lookups.

    The gradient of a row is one sum, rounded once: lookup after lookup, and within a lookup in the order of its ids.
    """
    num_rows = int(shape[0])
    count = sum(k.ids.shape[0] - k.has_masked for k in lookups)
    bags = None
    if size is None:
        size = min(count, num_rows)
        if len(lookups) == 1 and lookups[0].weights is None and not lookups[0].has_masked:
            bags = Bags(lookups[0].kind, lookups[0].grad, lookups[0].ids, lookups[0].segment_ids)
    if not count:
        ids = jnp.full(size, num_rows, lookups[0].ids.dtype if lookups else jnp.int32)
        return IndexedRows(jnp.zeros((size, *shape[1:]), dtype), ids, num_rows, is_unique=True)
    # Masked ids name an extra row after the table's last, which is cut off below. In other lookups its id is an error.
    extra = int(any(k.has_masked for k in lookups))
    if extra:
        lookups = [k if k.has_masked else k._replace(ids=jnp.where(k.ids < num_rows, k.ids, -1)) for k in lookups]
    kinds = {k.kind for k in lookups}
    kind = kinds.pop()
    if kinds or any(k.weights is not None for k in lookups):
        wide = jnp.promote_types(dtype, jnp.float32)
        kind, lookups = "Sum", [_as_sum(k, wide) for k in lookups]
    grad, ids, segment_ids = _concatenate(lookups)
    values, rows = OPS[f"SparseSegment{kind}GradV2"](grad, ids, segment_ids, num_rows + extra, size=size + extra)
    values, rows = values[:size].astype(dtype), jnp.minimum(rows[:size], num_rows)
    found = IndexedRows(values, rows, num_rows, is_unique=True)
    object.__setattr__(found, "_bags", bags)
    return found


def _as_sum(lookup: Lookup, wide: Any) -> Lookup:
    """Return a lookup with the combiner "sum" and the same gradient; if rows are scaled, with a bag for each id."""
    kind, ids, segment_ids, weights, grad, has_masked = lookup
    grad = grad.astype(wide)
    if weights is None and kind == "Sum":
        return lookup._replace(grad=grad)
    count = ids.shape[0]
    positions = jnp.arange(count, dtype=jnp.int32)
    if weights is None:
        each = OPS[f"SparseSegment{kind}Grad"](grad, positions, segment_ids, count)
    else:
        each = OPS[f"WeightedSparseSegment{kind}GradRows"](grad, segment_ids, weights)
    return Lookup("Sum", ids, positions, None, each, has_masked)


def _concatenate(lookups: Sequence[Lookup]) -> tuple[Any, Any, Any]:
    """Merge several lookups into one with consecutive bags; return its gradient, ids and segment ids."""
    if len(lookups) == 1:
        return lookups[0].grad, lookups[0].ids, lookups[0].segment_ids
    firsts = np.cumsum([0, *(k.grad.shape[0] for k in lookups)]).tolist()
    segments = [k.segment_ids + first for k, first in zip(lookups, firsts, strict=False)]
    return (
        jnp.concatenate([k.grad for k in lookups]),
        jnp.concatenate([k.ids for k in lookups]),
        jnp.concatenate(segments),
    )
