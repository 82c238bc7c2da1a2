"""Optimizers for trees with tables, in optax's protocol: `make_optimizer` and `apply_updates`.

A row-sparse gradient changes the state of its rows only and yields a row-sparse update; a dense gradient yields a dense
update. `apply_updates` adds both to parameters.
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

Rate = float | Callable[[Any], Any]  # a learning rate, or a schedule: a function of the number of completed steps


class RowTransformation(NamedTuple):
    """An optimizer: `state = init(params)`, and `updates, state = update(gradients, state, params)`."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


class RowState(NamedTuple):
    """The state of an optimizer: the number of completed steps, and a tree like the parameters for each slot."""

    step: Any
    slots: dict[str, Any]


def apply_updates(params: Any, updates: Any) -> Any:
    """Add row-sparse or dense updates to parameters, in the wider of both dtypes, rounded once to the parameter's.

    Args:
        params: A tree of parameters.
        updates: A tree of updates with the shapes of the parameters. None leaves its parameter unchanged; rows whose
            id is out of range are ignored.

    Returns:
        The new parameters.

    Raises:
        InvalidArgumentError: If an update has another shape than its parameter, or a dtype that does not fit.

    >>> import jax.numpy as jnp, rowgrad as rg
    >>> from rowgrad.jax import Table, optim
    >>> rows = rg.IndexedRows(jnp.array([[1.0], [5.0]]), jnp.array([2, 3]), num_rows=3, is_unique=True)
    >>> optim.apply_updates(Table(jnp.zeros((3, 1))), Table.holding(rows)).array.ravel().tolist()
    [0.0, 0.0, 1.0]
    """
    return jax.tree_util.tree_map(_add, updates, params, is_leaf=_is_update)


# -- Optimizers -------------------------------------------------------------------------------------------------------


def make_optimizer(rule: str, lr: Rate, **options: Any) -> RowTransformation:
    """Return the optimizer of a rule with these hyperparameters and initial values of slots."""
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
            jnp.zeros((), jnp.int32), {s.name: _init_slot(s, params, 0.0 if s.zeros else initial) for s in slots}
        )

    def update(updates: Any, state: RowState, params: Any = None) -> tuple[Any, RowState]:
        if reads_weights and params is None:
            raise make_error("needs_params", value=rule)
        grads, tree = jax.tree_util.tree_flatten(updates, is_leaf=_is_update)
        grads = [None if getattr(g, "dtype", None) == jax.dtypes.float0 else g for g in grads]
        weights = tree.flatten_up_to(params) if reads_weights else [None] * len(grads)
        if params is not None:
            _check_shapes(grads, tree.flatten_up_to(params))
        state_slots = getattr(state, "slots", None)
        if not isinstance(state_slots, dict) or set(state_slots) != {s.name for s in slots}:
            names = ", ".join(s.name for s in slots)
            raise make_error("state_unfit", value=rule, why=f"slots {names}" if names else "no slots")
        before = [_slot_leaves(rule, updates, state_slots[s.name]) for s in slots]
        rate = lr(state.step) if callable(lr) else lr
        if callable(lr):
            _check_scalar("lr", jnp.asarray(rate) if isinstance(rate, np.ndarray) else rate)
        step_numbers = Numbers(rate, state.step + 1, decays, **numbers)
        steps = [_step(rule, step_numbers, *leaf) for leaf in zip(grads, weights, *before, strict=True)]
        after = {
            s.name: jax.tree_util.tree_unflatten(
                jax.tree_util.tree_structure(state.slots[s.name]), [d[1 + k] for d in steps if d[1 + k] is not None]
            )
            for k, s in enumerate(slots)
        }
        return tree.unflatten([d[0] for d in steps]), RowState(state.step + 1, after)

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
    """Raise unless the value is a real number. The value of a JAX array, as optax injects it, is not read."""
    if not isinstance(value, jax.Array):
        check_number(name, value.item() if isinstance(value, np.generic) else value, least=0.0)
    elif value.ndim or (not jnp.issubdtype(value.dtype, jnp.floating) and not jnp.issubdtype(value.dtype, jnp.integer)):
        what = f"{value.dtype}[{','.join(map(str, value.shape))}]"
        raise make_error("number_unfit", argument=name, value=what, bound="a real number")


def _slot_leaves(rule: str, updates: Any, slots: Any) -> list[Any]:
    """Return the array of a slot for each gradient, or None. Flax may have a State in place of a slot's Table."""
    tree = jax.tree_util.tree_structure(updates, is_leaf=lambda x: _is_update(x) or isinstance(x, Table))
    arrays = []
    try:
        subtrees = tree.flatten_up_to(slots)
    except ValueError as error:
        raise make_error("state_unfit", value=rule, why=f"a tree like the gradients ({error})") from None
    for subtree in subtrees:
        leaves = jax.tree_util.tree_leaves(subtree)
        if len(leaves) > 1:
            raise make_error(
                "update_unfit", value=f"state of {len(leaves)} arrays", bound="one array for each parameter"
            )
        arrays.append(leaves[0] if leaves else None)
    return arrays


def _init_slot(slot: Slot, params: Any, initial: float) -> Any:
    """Return the initial values of a slot in a tree like the parameters. A scalar counts as one row."""

    def init_leaf(leaf: Any) -> Any:
        if not _is_floating(leaf):
            return None
        return jnp.full((leaf.shape or (1,))[:1] if slot.per_row else leaf.shape, initial, _arithmetic_dtype(leaf))

    return jax.tree_util.tree_map(init_leaf, params)


def _step(rule: str, numbers: Numbers, grad: Any, weight: Any, *slots: Any) -> tuple[Any, ...]:
    """Return the update of one leaf, and its slots after the step."""
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
        wide = _arithmetic_dtype(grad)
        weight = None if weight is None else jnp.asarray(weight).astype(wide)
        update, *after = STEPS[rule](numbers, grad.astype(wide), weight, *(s.astype(wide) for s in slots))
        return (update, *(new.astype(s.dtype) for new, s in zip(after, slots, strict=True)))
    rows = unique_rows(grad)
    wide = _arithmetic_dtype(rows)
    weight_rows = None if weight is None else _rows_at(jnp.asarray(weight), rows.indices).astype(wide)
    slot_rows = [_rows_at(jnp.asarray(s), rows.indices) for s in slots]
    update, *after = STEPS[rule](numbers, rows.values.astype(wide), weight_rows, *slot_rows)
    written = [_with_rows(x, rows, new) for x, new in zip(slots, after, strict=True)]
    return (IndexedRows(update, rows.indices, rows.num_rows, is_unique=True), *written)


def unique_rows(rows: IndexedRows) -> IndexedRows:
    """Return the same gradient with unique rows; equal rows are added in order.

    Args:
        rows: A row-sparse gradient.

    Returns:
        Unique rows, ascending, then zero padding whose id is `num_rows`. Rows that are unique already are unchanged.

    Raises:
        InvalidArgumentError: If ids are not a vector of integers as long as the values.

    >>> import jax.numpy as jnp, rowgrad as rg
    >>> from rowgrad.jax import optim
    >>> twice = rg.IndexedRows(jnp.array([[1.0], [5.0]]), jnp.array([2, 2]), num_rows=3)
    >>> optim.unique_rows(twice).values.ravel().tolist()
    [6.0, 0.0]
    """
    if not jnp.issubdtype(rows.indices.dtype, jnp.integer):
        raise make_error("rows_changed", value=str(rows.indices.dtype))
    if rows.indices.ndim != 1:
        raise make_error("rows_stacked", value=rows.indices.ndim)
    count, num_rows = rows.indices.shape[0], rows.num_rows
    if rows.values.shape[:1] != (count,):
        raise make_error("lengths_match", argument="indices", value=count, bound=rows.values.shape[0])
    values, ids = jnp.asarray(rows.values), to_jax(rows.indices, "indices")
    if not rows.is_unique:
        ids = jnp.where((ids < 0) | (ids > num_rows), num_rows, ids)
        positions = jnp.arange(count, dtype=jnp.int32)
        # An extra row after the table's last collects the values of ids that are out of range.
        values, ids = OPS["SparseSegmentSumGradV2"](values, ids, positions, num_rows + 1, size=count)
        ids = jnp.minimum(ids, num_rows)
    return IndexedRows(values, ids, num_rows, is_unique=True)


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
    current = _rows_at(param, rows.indices).astype(wide)
    return _with_rows(param, rows, current + rows.values.astype(wide))


# Not `array.at`, for which an id of -1 is the last row, so that the ids would not be sorted.


def _rows_at(array: Any, ids: Any) -> Any:
    """Return rows of a table; zeros for ids out of range."""
    if not array.shape[0]:
        return jnp.zeros((ids.shape[0], *array.shape[1:]), array.dtype)
    inner = tuple(range(1, array.ndim))
    numbers = jax.lax.GatherDimensionNumbers(offset_dims=inner, collapsed_slice_dims=(0,), start_index_map=(0,))
    row = (1, *array.shape[1:])
    return jax.lax.gather(array, ids[:, None], numbers, row, mode="fill", fill_value=0, indices_are_sorted=True)


def _with_rows(array: Any, rows: IndexedRows, values: Any) -> Any:
    """Return the array with these rows replaced; XLA reuses its memory if it was donated."""
    inner = tuple(range(1, array.ndim))
    numbers = jax.lax.ScatterDimensionNumbers(inner, inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
    values = values.astype(array.dtype)
    return jax.lax.scatter(array, rows.indices[:, None], values, numbers, mode="drop", indices_are_sorted=True)


def _check_shape(update: Any, shape: tuple[int, ...]) -> None:
    """Reject a gradient or update of another shape than its parameter, which JAX would broadcast."""
    if tuple(update.shape) != tuple(shape):
        what = "rows of " if isinstance(update, IndexedRows) else ""
        raise make_error("update_unfit", value=f"{what}{tuple(update.shape)}", bound=tuple(shape))


def _check_shapes(grads: list[Any], weights: list[Any]) -> None:
    for grad, weight in zip(grads, weights, strict=True):
        if grad is not None:
            _check_shape(grad, jnp.shape(weight))


def _check_state(rule: str, grad: Any, slots: tuple[Any, ...]) -> None:
    """Reject a gradient whose shape does not fit the slots of its parameter."""
    for slot, state in zip(RULES[rule].slots, slots, strict=True):
        if state is not None and not slot.per_row:
            _check_shape(grad, state.shape)
        elif state is not None and (tuple(grad.shape) or (1,))[0] != state.shape[0]:
            raise make_error("update_unfit", value=tuple(grad.shape), bound=f"({state.shape[0]}, …)")


def _is_update(leaf: Any) -> bool:
    return leaf is None or is_rows(leaf)


def _is_floating(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _arithmetic_dtype(leaf: Any) -> Any:
    """Return the dtype of arithmetic and slots: float64 for float64, else float32."""
    return wider(leaf.dtype, jnp.float32)


def wider(a: Any, b: Any) -> Any:
    """Return the dtype that can represent both, even if JAX is configured not to promote dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(a, b)
