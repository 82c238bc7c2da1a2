"""Optimizers for trees with tables: sgd, adagrad, row_wise_adagrad, adam, adamw. docs/optimizers.md has the rules.

Each is a pair of functions, `init` and `update`, as optax has them, and may stand in `optax.chain` and
`optax.multi_transform`. A gradient by rows changes the state of the rows it names and gives an update by rows; a dense
gradient, of a table or anything else, gives a dense one. `apply_updates` adds both to parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import refuse
from ..raw_ops import OPS
from ..rows import IndexedRows
from ..update_rules import RULES, Slot, check_betas, check_number
from .row_steps import STEPS, Numbers
from .rows_tree import is_rows

Rate = float | Callable[[Any], Any]  # a learning rate, or what gives it for the number of steps done


class RowTransformation(NamedTuple):
    """An optimizer: `state = init(params)`, and `updates, state = update(gradients, state, params)`."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


class RowState(NamedTuple):
    """What an optimizer remembers: how many steps were done, and a tree like the parameters' for each of its slots."""

    step: Any
    slots: dict[str, Any]


def sgd(lr: Rate = 1e-3, *, weight_decay: float = 0.0) -> RowTransformation:
    """w ← w − lr·g, with g ← g + weight_decay·w first."""
    return _optimizer("sgd", lr, weight_decay=weight_decay)


def adagrad(
    lr: Rate = 1e-2, *, eps: float = 1e-10, weight_decay: float = 0.0, initial_accumulator_value: float = 0.0
) -> RowTransformation:
    """a ← a + g²; w ← w − lr·g / (√a + eps). TensorFlow's rule."""
    return _optimizer("adagrad", lr, initial_accumulator_value, eps=eps, weight_decay=weight_decay)


def row_wise_adagrad(
    lr: Rate = 1e-2, *, eps: float = 1e-8, weight_decay: float = 0.0, initial_accumulator_value: float = 0.0
) -> RowTransformation:
    """a ← a + mean(g²), one number for every row; w ← w − (lr / (√a + eps))·g."""
    return _optimizer("row_wise_adagrad", lr, initial_accumulator_value, eps=eps, weight_decay=weight_decay)


def adam(
    lr: Rate = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
) -> RowTransformation:
    """TensorFlow's rule of Adam; rows without a gradient stay as they are, and so do their moments."""
    return _optimizer("adam", lr, betas=betas, eps=eps, weight_decay=weight_decay)


def adamw(
    lr: Rate = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2
) -> RowTransformation:
    """Adam after w ← w − lr·weight_decay·w: the decay is no part of the gradient."""
    return _optimizer("adamw", lr, betas=betas, eps=eps, weight_decay=weight_decay)


def apply_updates(params: Any, updates: Any) -> Any:
    """Parameters with updates added, by rows or dense; where an update is None, the parameter as it is.

    The sum is taken in the update's type and rounded once to the parameter's. Rows whose id is no row are left out.

    >>> import jax.numpy as jnp, rowgrad as rg
    >>> from rowgrad.jax import Table, optim
    >>> rows = rg.IndexedRows(jnp.array([[1.0], [5.0]]), jnp.array([2, 3]), num_rows=3, is_unique=True)
    >>> optim.apply_updates(Table(jnp.zeros((3, 1))), Table.holding(rows)).array.ravel().tolist()
    [0.0, 0.0, 1.0]
    """
    return jax.tree_util.tree_map(_add, updates, params, is_leaf=_is_update)


# -- one optimizer ----------------------------------------------------------------------------------------------------


def _optimizer(rule: str, lr: Rate, initial: float = 0.0, **numbers: Any) -> RowTransformation:
    for name, value in {"lr": lr, "initial_accumulator_value": initial, **numbers}.items():
        if name == "betas":
            check_betas(value)
        elif isinstance(value, int | float):  # not what optax injects or schedules
            check_number(name, value, least=0.0)
    slots, weight_decay = RULES[rule].slots, numbers["weight_decay"]
    decays = not isinstance(weight_decay, int | float) or weight_decay != 0

    def init(params: Any) -> RowState:
        return RowState(jnp.zeros((), jnp.int32), {s.name: _slot(s, params, initial) for s in slots})

    def update(updates: Any, state: RowState, params: Any = None) -> tuple[Any, RowState]:
        if decays and params is None:
            raise refuse("needs_params", value=rule)
        grads, tree = jax.tree_util.tree_flatten(updates, is_leaf=_is_update)
        weights = tree.flatten_up_to(params) if decays else [None] * len(grads)
        kept = [tree.flatten_up_to(state.slots[s.name]) for s in slots]
        now = Numbers(lr(state.step) if callable(lr) else lr, state.step + 1, decays, **numbers)
        done = [_step(rule, now, *leaf) for leaf in zip(grads, weights, *kept, strict=True)]
        found = {s.name: tree.unflatten([d[1 + k] for d in done]) for k, s in enumerate(slots)}
        return tree.unflatten([d[0] for d in done]), RowState(state.step + 1, found)

    return RowTransformation(init, update)


def _slot(slot: Slot, params: Any, initial: float) -> Any:
    """A slot's state at the start, in a tree like the parameters'. A scalar is one row."""

    def of(leaf: Any) -> Any:
        if not _is_floating(leaf):
            return None
        return jnp.full((leaf.shape or (1,))[:1] if slot.per_row else leaf.shape, initial, _arithmetic(leaf))

    return jax.tree_util.tree_map(of, params)


def _step(rule: str, numbers: Numbers, grad: Any, weight: Any, *slots: Any) -> tuple[Any, ...]:
    """The update of one leaf, and its slots after the step."""
    if grad is None:
        return (None, *slots)
    if not isinstance(grad, IndexedRows):
        wide = _arithmetic(grad)
        whole = None if weight is None else weight.astype(wide)
        return STEPS[rule](numbers, grad.astype(wide), whole, *slots)
    rows = unique_rows(grad)
    wide = _arithmetic(rows)
    taken = [None if x is None else _rows_at(x, rows.indices) for x in (weight, *slots)]
    own = None if taken[0] is None else taken[0].astype(wide)
    update, *after = STEPS[rule](numbers, rows.values.astype(wide), own, *taken[1:])
    written = [_with_rows(x, rows, new) for x, new in zip(slots, after, strict=True)]
    return (IndexedRows(update, rows.indices, rows.num_rows, is_unique=True), *written)


def unique_rows(rows: IndexedRows) -> IndexedRows:
    """The same gradient with each row once. Equal rows add up in their order."""
    if not jnp.issubdtype(rows.indices.dtype, jnp.integer):
        raise refuse("rows_changed", value=str(rows.indices.dtype))
    if rows.is_unique:
        return rows
    count = rows.indices.shape[0]
    positions = jnp.arange(count, dtype=jnp.int32)
    values, ids = OPS["SparseSegmentSumGradV2"](rows.values, rows.indices, positions, rows.num_rows, size=count)
    return IndexedRows(values, ids, rows.num_rows, is_unique=True)


def _add(update: Any, param: Any) -> Any:
    if update is None:
        return param
    if not isinstance(update, IndexedRows):
        return (param + update).astype(param.dtype)
    rows = unique_rows(update)
    return _with_rows(param, rows, (_rows_at(param, rows.indices) + rows.values).astype(param.dtype))


def _rows_at(array: Any, ids: Any) -> Any:
    """Rows of a table; zeros for ids that are none."""
    return array.at[ids].get(mode="fill", fill_value=0, indices_are_sorted=True)


def _with_rows(array: Any, rows: IndexedRows, values: Any) -> Any:
    """The array with these rows in it, in its own memory where that was given away to XLA."""
    return array.at[rows.indices].set(values, mode="drop", indices_are_sorted=True)


def _is_update(leaf: Any) -> bool:
    return leaf is None or is_rows(leaf)


def _is_floating(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _arithmetic(leaf: Any) -> Any:
    """The type of arithmetic and of slots: float32, or float64 for float64."""
    return jnp.promote_types(leaf.dtype, jnp.float32)
