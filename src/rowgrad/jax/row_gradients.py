"""Row-sparse gradients. JAX has no such cotangents, so a function's lookups are tapped.

The function is traced once to see its lookups. Then it is differentiated for zeros that are added to what each lookup
gave, with the tables held constant; the ids of the lookups come out beside its value. From both follow the rows.
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
from .table import Looked, LookupLog, Table, Tap, is_label
from .varying import widen


class Lookup(NamedTuple):
    """A differentiated lookup: its combiner, its ids, and the gradient of its result."""

    kind: str
    ids: Any
    segment_ids: Any
    weights: Any
    grad: Any
    spared: bool  # whether ids that were left out name the row beyond the table


def value_and_rows(f: Callable[..., Any], *, size: int | None = None, has_aux: bool = False) -> Callable[..., Any]:
    """Work like `jax.value_and_grad(f)`, except that every `Table` in the first argument gets a row-sparse gradient.

    In the tree of gradients each Table holds `rowgrad.IndexedRows` of `size` rows: those that were looked up, ascending
    and each once, then rows of zeros whose id is the table's number of rows. Without `size` there is room for as many
    rows as ids are looked up, or as the table has. More than `size` rows are refused when the function runs. Leaves
    that are no floating-point arrays have the gradient None.

    Tables are read by `table.bags` alone, and not within jit, vmap, grad, scan, cond or checkpoint inside of `f`;
    anything else is refused, as its gradient would be lost. `f` itself may be `jax.jit(g)` or `jax.checkpoint(g)`: the
    former is as good as `g` (compile the whole step), the latter recomputes what is between the lookups and the value.

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
    f, recompute = _peel(f)

    def value_and_grads(params: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        modules = Modules.of(params)
        parts = Parts(params if modules is None else modules.state)

        def run(trained: list[Any], arrays: list[Any], log: LookupLog) -> tuple[Any, Any]:
            tree = parts.joined(trained, [Tap(a, log, i) for i, a in enumerate(arrays)])
            if modules is None:
                return f(tree, *args, **kwargs), []
            given = [_leaves(x) for x in tree]
            merged = modules.merged(tree)
            return f(merged, *args, **kwargs), modules.assigned(merged, given)

        seen = _lookups_of(run, parts)
        taps = [widen(jnp.zeros(s.output.shape, s.output.dtype), s.axes) for s in seen]

        def tapped(trained: list[Any], taps: list[Any]) -> Any:
            log = LookupLog(taps)
            result, assigned = run(trained, parts.arrays, log)
            if [s._replace(axes=None) for s in log.lookups] != [s._replace(axes=None) for s in seen]:
                raise make_error("lookups_differ")
            if any(isinstance(leaf, Tap) for leaf in jax.tree_util.tree_leaves(result)):
                raise make_error("table_tapped")
            value, aux = result if has_aux else (result, None)
            return value, (aux, log.ids, assigned)

        differentiated = jax.value_and_grad(recompute(tapped), argnums=(0, 1), has_aux=True)
        (value, (aux, ids, assigned)), (trained, grads) = differentiated(parts.trained, taps)
        lookups = [Lookup(s.kind, i, b, w, g, s.spared) for s, (i, b, w), g in zip(seen, ids, grads, strict=True)]
        with jax.numpy_dtype_promotion("standard"):  # lookups of one table may have ids of different types
            rows = [
                rows_of([k for s, k in zip(seen, lookups, strict=True) if s.table == t], a.shape, a.dtype, size)
                for t, a in enumerate(parts.arrays)
            ]
        tree = parts.joined(trained, rows, other=lambda _: None)
        if modules is not None:
            modules.assign(assigned)
            tree = modules.merged(tree)
        return ((value, aux) if has_aux else value), tree

    return value_and_grads


def _peel(f: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the function inside `jax.jit` and `jax.checkpoint`, and the latter with its options.

    Neither takes what stands in for a table, and ids of lookups could not come out of them.
    """
    recompute: Callable[..., Any] = _same
    while True:
        held = _held_by(f)
        if isinstance(f, _JITTED):
            f = f.__wrapped__  # type: ignore[attr-defined]
        elif [g.__code__ for g in held] == _CHECKPOINT:
            options = inspect.getclosurevars(held[-1]).nonlocals
            recompute = partial(jax.checkpoint, **{k: options[k] for k in ("policy", "prevent_cse") if k in options})
            f = f.__wrapped__  # type: ignore[attr-defined]
        else:
            return f, recompute


def _same(f: Callable[..., Any]) -> Callable[..., Any]:
    return f


def _held_by(f: Any) -> list[Any]:
    """Return the wrapped function, and JAX's functions in between, which identify the transformation."""
    inner, found = getattr(f, "__wrapped__", None), []
    while inner is not None and inspect.isfunction(f) and f is not inner:
        found.append(f)
        f = inspect.getclosurevars(f).nonlocals.get("fun")
    return found


_JITTED = type(jax.jit(_same))
_CHECKPOINT: list[Any] = [g.__code__ for g in _held_by(jax.checkpoint(_same))]
if [g.__code__ for g in _held_by(jax.vmap(_same))] == _CHECKPOINT:
    _CHECKPOINT = [None]  # a version of JAX that does not tell them apart: neither is peeled, and both raise an error


class Parts:
    """The leaves of a tree of parameters: tables, other trained arrays, and the rest."""

    def __init__(self, params: Any) -> None:
        self.leaves, self.tree = jax.tree_util.tree_flatten(params, is_leaf=lambda x: isinstance(x, Table))
        self.arrays = [x.held for x in self.leaves if _is_table(x)]
        if any(isinstance(a, Tap | IndexedRows) for a in self.arrays):
            raise make_error("table_tapped")
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

    As a tree, a module would have each shared Variable several times, with a part of the gradient each, and what a
    function assigns (batch statistics, random counters) would be lost with the copy it is given.
    """

    def __init__(self, nnx: Any, params: Any) -> None:
        self._nnx, self._params = nnx, params
        self._graph, state = nnx.split(params)
        flat = list(nnx.to_flat_state(state))
        self._paths = [path for path, _ in flat]
        places = [_at(params, path) for path in self._paths]
        self._is_bare = [isinstance(x, Table) for x in places]  # not in a Variable: nnx takes it apart
        self.state = [x if isinstance(x, Table) else value for (_, value), x in zip(flat, places, strict=True)]
        self._written: list[tuple[Any, Any]] = []  # paths and trees of what a function assigned

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

    def assigned(self, merged: Any, given: Sequence[list[Any]]) -> list[list[Any]]:
        """Return the leaves of all Variables that are new or changed."""
        before = dict(zip(self._paths, given, strict=True))
        bare = [path for path, is_bare in zip(self._paths, self._is_bare, strict=True) if is_bare]
        taps = [(_at(merged, path), *before.pop(path)) for path in bare]
        if any(not isinstance(x, Table) or x.held is not table.held for x, table in taps):
            raise make_error("table_tapped")
        for x, _ in taps:
            x._held = None  # of which nnx does not ask whether it is an array
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
        """Copy what a function assigned to its copy back to the modules."""
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


def _lookups_of(run: Callable[..., Any], parts: Parts) -> list[Looked]:
    """Return the lookups of a function, found by tracing it."""
    found: list[Looked] = []

    def ids_of(trained: list[Any], arrays: list[Any]) -> Any:
        log = LookupLog()
        run(trained, arrays, log)
        found.extend(log.lookups)
        return log.ids

    program = jax.make_jaxpr(ids_of)(parts.trained, parts.arrays).jaxpr
    trained = len(parts.trained)
    _check_tables(program, [i < trained for i in range(len(program.invars))])
    return found


# Operations whose results are still the array that they are given.
_UNCHANGED = {
    *("convert_element_type", "copy", "device_put", "optimization_barrier", "pcast", "pvary", "reduce_precision"),
    *("reshard", "sharding_constraint"),
}


def _check_tables(program: Any, is_trained: Sequence[bool]) -> list[bool]:
    """Reject Tables that hold a trained array, which is a leaf of its own: its gradient would be dense.

    Returns which outputs are trained arrays. Functions under jit, checkpoint, cond, scan and the like are searched too.
    """
    trained = {v for v, is_one in zip(program.invars, is_trained, strict=True) if is_one}
    for equation in program.eqns:
        given = [isinstance(v, _VARIABLE) and v in trained for v in equation.invars]
        if not any(given):
            continue
        if is_label(equation):
            raise make_error("table_lost")
        results = [given] if equation.primitive.name in _UNCHANGED else []
        for inner in _programs_in(equation.params):
            count = len(inner.invars)  # operands come last: cond has its index before them, while its other constants
            results.append(_check_tables(inner, given[-count:] if 0 < count <= len(given) else [True] * count))
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


# -- from lookups to rows ---------------------------------------------------------------------------------------------


def rows_of(lookups: Sequence[Lookup], shape: Sequence[int], dtype: Any, size: int | None) -> IndexedRows:
    """Return the row-sparse gradient of a table of this shape, from all its lookups.

    A row adds up lookup after lookup, and inside of each in the order of its ids: one sum, rounded once.
    """
    num_rows = int(shape[0])
    count = sum(k.ids.shape[0] - k.spared for k in lookups)
    size = min(count, num_rows) if size is None else size
    if not count:
        ids = jnp.full(size, num_rows, lookups[0].ids.dtype if lookups else jnp.int32)
        return IndexedRows(jnp.zeros((size, *shape[1:]), dtype), ids, num_rows, is_unique=True)
    # The row beyond the table is cut off again: its id is what comes after the last. Nobody else may name it.
    beyond = int(any(k.spared for k in lookups))
    if beyond:
        lookups = [k if k.spared else k._replace(ids=jnp.where(k.ids < num_rows, k.ids, -1)) for k in lookups]
    kinds = {k.kind for k in lookups}
    kind = kinds.pop()
    if kinds or any(k.weights is not None for k in lookups):
        wide = jnp.promote_types(dtype, jnp.float32)
        kind, lookups = "Sum", [_as_sum(k, wide) for k in lookups]
    grad, ids, segment_ids = _one_after_the_other(lookups)
    values, rows = OPS[f"SparseSegment{kind}GradV2"](grad, ids, segment_ids, num_rows + beyond, size=size + beyond)
    values, rows = values[:size].astype(dtype), jnp.minimum(rows[:size], num_rows)
    return IndexedRows(values, rows, num_rows, is_unique=True)


def _as_sum(lookup: Lookup, wide: Any) -> Lookup:
    """Return a lookup that sums and has the same gradient for its table; if it scales rows, with a factor per id."""
    kind, ids, segment_ids, weights, grad, spared = lookup
    grad = grad.astype(wide)
    if weights is None and kind == "Sum":
        return lookup._replace(grad=grad)
    count = ids.shape[0]
    positions = jnp.arange(count, dtype=jnp.int32)
    if weights is None:
        each = OPS[f"SparseSegment{kind}Grad"](grad, positions, segment_ids, count)
    else:
        each = OPS[f"WeightedSparseSegment{kind}GradRows"](grad, segment_ids, weights)
    return Lookup("Sum", ids, positions, None, each, spared)


def _one_after_the_other(lookups: Sequence[Lookup]) -> tuple[Any, Any, Any]:
    """Merge several lookups into one; their bags are numbered consecutively."""
    if len(lookups) == 1:
        return lookups[0].grad, lookups[0].ids, lookups[0].segment_ids
    firsts = np.cumsum([0, *(k.grad.shape[0] for k in lookups)]).tolist()
    segments = [k.segment_ids + first for k, first in zip(lookups, firsts, strict=False)]
    return (
        jnp.concatenate([k.grad for k in lookups]),
        jnp.concatenate([k.ids for k in lookups]),
        jnp.concatenate(segments),
    )
