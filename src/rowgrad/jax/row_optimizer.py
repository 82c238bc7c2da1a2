"""Optimizers for trees with tables: state, updates by rows or dense, and `apply_updates`, by optax's protocol.

A gradient by rows changes the state of the rows it names and gives an update by rows; a dense gradient, of a table or
anything else, gives a dense one. `apply_updates` adds both to parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._catalog.rows import IndexedRows
from .._catalog.rules import RULES, RuleSpec, Slot, check_hyperparameter, check_number
from ..errors import make_error
from ..raw_ops import OPS
from .bags import to_jax
from .table import Table
from .trees import is_rows
from .update_rules import STEPS, Numbers

Rate = float | Callable[[Any], Any]  # a learning rate, or what gives it for the number of steps done


class RowTransformation(NamedTuple):
    """An optimizer: `state = init(params)`, and `updates, state = update(gradients, state, params)`."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


class RowState(NamedTuple):
    """What an optimizer remembers: how many steps were done, and a tree like the parameters' for each of its slots."""

    step: Any
    slots: dict[str, Any]


def apply_updates(params: Any, updates: Any) -> Any:
    """Parameters with updates added, by rows or dense; where an update is None, the parameter as it is.

    The sum is taken in the wider of both types and rounded once to the parameter's. Rows whose id is no row are left
    out. An update, by rows or dense, has the shape of its parameter.

    >>> import jax.numpy as jnp, rowgrad as rg
    >>> from rowgrad.jax import Table, optim
    >>> rows = rg.IndexedRows(jnp.array([[1.0], [5.0]]), jnp.array([2, 3]), num_rows=3, is_unique=True)
    >>> optim.apply_updates(Table(jnp.zeros((3, 1))), Table.holding(rows)).array.ravel().tolist()
    [0.0, 0.0, 1.0]
    """
    return jax.tree_util.tree_map(_add, updates, params, is_leaf=_is_update)


# -- one optimizer ----------------------------------------------------------------------------------------------------


def make_optimizer(rule: str, lr: Rate, **options: Any) -> RowTransformation:
    """The optimizer of a rule with these hyperparameters and options of its state."""
    spec = RULES[rule]
    for name, value in {"lr": lr, **options}.items():
        if name != "lr" or not callable(value):
            _check_option(spec, name, value)
    numbers = {name: value for name, value in options.items() if name in spec.defaults}
    initial = options.get("initial_accumulator_value", 0.0)
    slots, weight_decay = spec.slots, numbers.get("weight_decay", 0.0)
    decays = not isinstance(weight_decay, int | float) or weight_decay != 0
    reads_weights = decays or spec.needs_weights

    def init(params: Any) -> RowState:
        return RowState(
            jnp.zeros((), jnp.int32), {s.name: _slot(s, params, 0.0 if s.zeros else initial) for s in slots}
        )

    def update(updates: Any, state: RowState, params: Any = None) -> tuple[Any, RowState]:
        if reads_weights and params is None:
            raise make_error("needs_params", value=rule)
        grads, tree = jax.tree_util.tree_flatten(updates, is_leaf=_is_update)
        grads = [None if getattr(g, "dtype", None) == jax.dtypes.float0 else g for g in grads]
        weights = tree.flatten_up_to(params) if reads_weights else [None] * len(grads)
        if params is not None:
            _check_shapes(grads, tree.flatten_up_to(params))
        kept = getattr(state, "slots", None)
        if not isinstance(kept, dict) or set(kept) != {s.name for s in slots}:
            raise make_error("state_unfit", value=rule, why=f"slots {', '.join(s.name for s in slots) or 'none'}")
        before = [_slot_leaves(rule, updates, kept[s.name]) for s in slots]
        rate = lr(state.step) if callable(lr) else lr
        if callable(lr):
            _check_scalar("lr", jnp.asarray(rate) if isinstance(rate, np.ndarray) else rate)
        now = Numbers(rate, state.step + 1, decays, **numbers)
        done = [_step(rule, now, *leaf) for leaf in zip(grads, weights, *before, strict=True)]
        found = {
            s.name: jax.tree_util.tree_unflatten(
                jax.tree_util.tree_structure(state.slots[s.name]), [d[1 + k] for d in done if d[1 + k] is not None]
            )
            for k, s in enumerate(slots)
        }
        return tree.unflatten([d[0] for d in done]), RowState(state.step + 1, found)

    return RowTransformation(init, update)


def _check_option(spec: RuleSpec, name: str, value: Any) -> None:
    if isinstance(value, jax.Array):
        _check_scalar(name, value)
        return
    plain = value.item() if isinstance(value, np.generic) else value
    check_hyperparameter(name, plain)
    if name in spec.positive and not plain > 0:
        raise make_error("number_unfit", argument=name, value=repr(plain), bound=f"above 0 for {spec.name}")


def _check_scalar(name: str, value: Any) -> None:
    """A real number. The value of a JAX array, as optax injects it, is not read."""
    if not isinstance(value, jax.Array):
        check_number(name, value.item() if isinstance(value, np.generic) else value, least=0.0)
    elif value.ndim or (not jnp.issubdtype(value.dtype, jnp.floating) and not jnp.issubdtype(value.dtype, jnp.integer)):
        what = f"{value.dtype}[{','.join(map(str, value.shape))}]"
        raise make_error("number_unfit", argument=name, value=what, bound="a real number")


def _slot_leaves(rule: str, updates: Any, slots: Any) -> list[Any]:
    """The array of a slot for every gradient, or None. Flax puts a State where a slot has a Table."""
    tree = jax.tree_util.tree_structure(updates, is_leaf=lambda x: _is_update(x) or isinstance(x, Table))
    found = []
    try:
        places = tree.flatten_up_to(slots)
    except ValueError as error:
        raise make_error("state_unfit", value=rule, why=f"a tree like the gradients ({error})") from None
    for held in places:
        leaves = jax.tree_util.tree_leaves(held)
        if len(leaves) > 1:
            raise make_error(
                "update_unfit", value=f"state of {len(leaves)} arrays", bound="one array for each parameter"
            )
        found.append(leaves[0] if leaves else None)
    return found


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
    dtype = grad.dtype if is_rows(grad) else jnp.asarray(grad).dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise make_error("gradient_complex", value=dtype)
    if any(s is None for s in slots):
        raise make_error("parameter_unfit", value=dtype)
    _check_state(rule, grad, slots)
    if not isinstance(grad, IndexedRows):
        grad = jnp.asarray(grad)
        wide = _arithmetic(grad)
        whole = None if weight is None else jnp.asarray(weight).astype(wide)
        update, *after = STEPS[rule](numbers, grad.astype(wide), whole, *(s.astype(wide) for s in slots))
        return (update, *(new.astype(s.dtype) for new, s in zip(after, slots, strict=True)))
    rows = unique_rows(grad)
    wide = _arithmetic(rows)
    taken = [None if x is None else _rows_at(jnp.asarray(x), rows.indices) for x in (weight, *slots)]
    own = None if taken[0] is None else taken[0].astype(wide)
    update, *after = STEPS[rule](numbers, rows.values.astype(wide), own, *taken[1:])
    written = [_with_rows(x, rows, new) for x, new in zip(slots, after, strict=True)]
    return (IndexedRows(update, rows.indices, rows.num_rows, is_unique=True), *written)


def unique_rows(rows: IndexedRows) -> IndexedRows:
    """The same gradient with each row once. Equal rows add up in their order; the id `num_rows` is no row."""
    if not jnp.issubdtype(rows.indices.dtype, jnp.integer):
        raise make_error("rows_changed", value=str(rows.indices.dtype))
    if rows.indices.ndim != 1:
        raise make_error("rows_stacked", value=rows.indices.ndim)
    count, none = rows.indices.shape[0], rows.num_rows
    if rows.values.shape[:1] != (count,):
        raise make_error("lengths_match", argument="indices", value=count, bound=rows.values.shape[0])
    values, ids = jnp.asarray(rows.values), to_jax(rows.indices, "indices")
    if not rows.is_unique:
        ids = jnp.where((ids < 0) | (ids > none), none, ids)
        positions = jnp.arange(count, dtype=jnp.int32)
        # One row more than the table has: there is added up what names none of it.
        values, ids = OPS["SparseSegmentSumGradV2"](values, ids, positions, none + 1, size=count)
        ids = jnp.minimum(ids, none)
    return IndexedRows(values, ids, none, is_unique=True)


def _add(update: Any, param: Any) -> Any:
    if update is None:
        return param
    param = jnp.asarray(param)
    rows = unique_rows(update) if isinstance(update, IndexedRows) else None
    update = jnp.asarray(update) if rows is None else rows
    _check_shape(update, param.shape)
    wide = wider(param.dtype, update.dtype)
    for kind in (jnp.complexfloating, jnp.inexact):
        if jnp.issubdtype(update.dtype, kind) and not jnp.issubdtype(param.dtype, kind):
            raise make_error("update_dtype", value=update.dtype, bound=param.dtype)
    if rows is None:
        return (param.astype(wide) + update.astype(wide)).astype(param.dtype)
    own = _rows_at(param, rows.indices).astype(wide)
    return _with_rows(param, rows, own + rows.values.astype(wide))


# JAX's own `array.at` takes an id of -1 for the last row, which is no row here; and then the ids would not ascend.


def _rows_at(array: Any, ids: Any) -> Any:
    """Rows of a table; zeros for ids that are none."""
    if not array.shape[0]:
        return jnp.zeros((ids.shape[0], *array.shape[1:]), array.dtype)
    inner = tuple(range(1, array.ndim))
    places = jax.lax.GatherDimensionNumbers(offset_dims=inner, collapsed_slice_dims=(0,), start_index_map=(0,))
    row = (1, *array.shape[1:])
    return jax.lax.gather(array, ids[:, None], places, row, mode="fill", fill_value=0, indices_are_sorted=True)


def _with_rows(array: Any, rows: IndexedRows, values: Any) -> Any:
    """The array with these rows in it, in its own memory where that was given away to XLA."""
    inner = tuple(range(1, array.ndim))
    places = jax.lax.ScatterDimensionNumbers(inner, inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
    values = values.astype(array.dtype)
    return jax.lax.scatter(array, rows.indices[:, None], values, places, mode="drop", indices_are_sorted=True)


def _check_shape(update: Any, shape: tuple[int, ...]) -> None:
    """Refuse a gradient or an update that is not of its parameter's shape: it would be added to other elements."""
    if tuple(update.shape) != tuple(shape):
        what = "rows of " if isinstance(update, IndexedRows) else ""
        raise make_error("update_unfit", value=f"{what}{tuple(update.shape)}", bound=tuple(shape))


def _check_shapes(grads: list[Any], weights: list[Any]) -> None:
    for grad, weight in zip(grads, weights, strict=True):
        if grad is not None:
            _check_shape(grad, jnp.shape(weight))


def _check_state(rule: str, grad: Any, slots: tuple[Any, ...]) -> None:
    """The same where only the slots tell the parameter's shape."""
    for slot, state in zip(RULES[rule].slots, slots, strict=True):
        if state is not None and not slot.per_row:
            _check_shape(grad, state.shape)
        elif state is not None and (tuple(grad.shape) or (1,))[0] != state.shape[0]:
            raise make_error("update_unfit", value=tuple(grad.shape), bound=f"({state.shape[0]}, …)")


def _is_update(leaf: Any) -> bool:
    return leaf is None or is_rows(leaf)


def _is_floating(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _arithmetic(leaf: Any) -> Any:
    """The type of arithmetic and of slots: float32, or float64 for float64."""
    return wider(leaf.dtype, jnp.float32)


def wider(a: Any, b: Any) -> Any:
    """The type that holds both, also where JAX is configured not to promote dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(a, b)
