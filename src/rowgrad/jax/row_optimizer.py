"""Optimizers for trees with tables, in optax's protocol: `make_optimizer` and `apply_updates`.

A row-sparse gradient changes the state of its rows only and yields a row-sparse update; a dense gradient yields a dense
update. `apply_updates` adds both to parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._catalog.rows import IndexedRows
from .._catalog.rules import RULES, RuleSpec, Slot, check_count, check_hyperparameter, check_number
from ..errors import make_error
from ..raw_ops import OPS
from .bags import to_jax
from .row_step import (
    StepOptions,
    TableStep,
    arithmetic_dtype,
    numbers_of,
    rows_at,
    step_rows,
    step_tables,
    wider,
    with_rows,
)
from .table import Table
from .trees import is_rows
from .update_rules import STEPS, Numbers

INITIAL = "initial_accumulator_value"
Rate = float | Callable[[Any], Any]  # a learning rate, or a schedule: a function of the number of completed steps


class Transformation(NamedTuple):
    """The two functions of optax's protocol."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


class RowTransformation(Transformation):
    """An optimizer: `state = init(params)`, and either of two ways of a step, described in docs/reference/jax.md.

    - `updates, state = update(gradients, state, params)`, then `apply_updates(params, updates)`: optax's protocol.
    - `params, state = step(params, state, gradients)`: tables and their state change in place, in one pass.
    """

    step: Callable[..., tuple[Any, Any]]

    def __new__(cls, init: Any, update: Any, step: Any) -> RowTransformation:
        """Create the optimizer from its functions."""
        made = super().__new__(cls, init, update)
        made.step = step
        return made


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
    options = {name: value for name, value in options.items() if name in spec.defaults or name == INITIAL}
    initial = options.pop(INITIAL, 0.0)
    slots = spec.slots
    reads_weights = numbers_of({"lr": 0.0, **options}, 1).decays or spec.needs_weights

    def init(params: Any) -> RowState:
        return RowState(
            jnp.zeros((), jnp.int32), {s.name: _init_slot(s, params, 0.0 if s.zeros else initial) for s in slots}
        )

    def read(gradients: Any, state: RowState, params: Any) -> tuple[Any, list[Any], list[list[Any]], Any]:
        """Return the structure of the gradients, these, the arrays of each slot, and the learning rate."""
        grads, tree = jax.tree_util.tree_flatten(gradients, is_leaf=_is_update)
        grads = [None if getattr(g, "dtype", None) == jax.dtypes.float0 else g for g in grads]
        if params is not None:
            _check_shapes(grads, tree.flatten_up_to(params))
        state_slots = getattr(state, "slots", None)
        if not isinstance(state_slots, dict) or set(state_slots) != {s.name for s in slots}:
            names = ", ".join(s.name for s in slots)
            raise make_error("state_unfit", value=rule, why=f"slots {names}" if names else "no slots")
        before = [_slot_leaves(rule, gradients, state_slots[s.name]) for s in slots]
        rate = lr(state.step) if callable(lr) else lr
        if callable(lr):
            _check_scalar("lr", jnp.asarray(rate) if isinstance(rate, np.ndarray) else rate)
        return tree, grads, before, rate

    def next_state(state: RowState, steps: list[Any]) -> RowState:
        """Return the state with the slots of `steps`, each a table or update and its slots."""
        after = {
            s.name: jax.tree_util.tree_unflatten(
                jax.tree_util.tree_structure(state.slots[s.name]), [d[1 + k] for d in steps if d[1 + k] is not None]
            )
            for k, s in enumerate(slots)
        }
        return RowState(state.step + 1, after)

    def update(updates: Any, state: RowState, params: Any = None) -> tuple[Any, RowState]:
        if reads_weights and params is None:
            raise make_error("needs_params", value=rule)
        tree, grads, before, rate = read(updates, state, params)
        weights = tree.flatten_up_to(params) if reads_weights else [None] * len(grads)
        numbers = numbers_of({"lr": rate, **options}, state.step + 1)
        steps = [_step(rule, numbers, *leaf) for leaf in zip(grads, weights, *before, strict=True)]
        return tree.unflatten([d[0] for d in steps]), next_state(state, steps)

    def step(
        params: Any, state: RowState, gradients: Any, *, stochastic_rounding: bool = False, seed: int = 0
    ) -> tuple[Any, RowState]:
        check_hyperparameter("stochastic_rounding", stochastic_rounding)
        check_count("seed", seed)
        tree, grads, before, rate = read(gradients, state, params)
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(gradients, is_leaf=_is_update)[0]]
        given = {"lr": rate, **options}
        numbers = numbers_of(given, state.step + 1)
        traced = {name: x for name, x in given.items() if isinstance(x, jax.Array)}
        known = tuple((name, _plain(x)) for name, x in given.items() if name not in traced)

        options_of_step = StepOptions(known, tuple(traced), stochastic_rounding)
        steps: list[Any] = []  # None for those of tables, which follow
        tables: list[TableStep] = []
        for place, (grad, param, *slots) in enumerate(zip(grads, tree.flatten_up_to(params), *before, strict=True)):
            if is_rows(grad):
                steps.append(None)
                tables.append(_table_step(rule, grad, param, slots, (seed + place) % (1 << 63), _name_of(paths[place])))
            else:
                found, *after = _step(rule, numbers, grad, param, *slots)
                steps.append((_add(found, param), *after))
        number = jnp.asarray(state.step + 1, jnp.int32)
        stepped = iter(step_tables(rule, options_of_step, list(traced.values()), number, tables))
        steps = [next(stepped) if found is None else found for found in steps]
        return tree.unflatten([d[0] for d in steps]), next_state(state, steps)

    return RowTransformation(init, update, step)


def _plain(number: Any) -> Any:
    """Return a number of NumPy as Python's."""
    return number.item() if isinstance(number, np.generic | np.ndarray) else number


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
        return jnp.full((leaf.shape or (1,))[:1] if slot.per_row else leaf.shape, initial, arithmetic_dtype(leaf))

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
        wide = arithmetic_dtype(grad)
        weight = None if weight is None else jnp.asarray(weight).astype(wide)
        update, *after = STEPS[rule](numbers, grad.astype(wide), weight, *(s.astype(wide) for s in slots))
        return (update, *(new.astype(s.dtype) for new, s in zip(after, slots, strict=True)))
    rows = unique_rows(grad)
    update, *written = step_rows(rule, numbers, rows.values, rows.indices, weight, slots)
    return (IndexedRows(update, rows.indices, rows.num_rows, is_unique=True), *written)


def _name_of(path: Sequence[Any]) -> str:
    """Return the path of a parameter as text; that of a Table is not the path of its array."""
    if path and path[-1] == _ARRAY:
        path = path[:-1]
    return str(jax.tree_util.keystr(tuple(path)))


_ARRAY = jax.tree_util.GetAttrKey("array")


def _table_step(rule: str, grad: IndexedRows, param: Any, slots: Sequence[Any], seed: int, path: str) -> TableStep:
    """Return the step of one leaf with the rows of its gradient."""
    table = jnp.asarray(param)
    if not jnp.issubdtype(table.dtype, jnp.floating) or not jnp.issubdtype(grad.dtype, jnp.floating):
        raise make_error("update_dtype", value=grad.dtype, bound=table.dtype)
    if any(s is None for s in slots):
        raise make_error("parameter_unfit", value=table.dtype)
    _check_state(rule, grad, tuple(slots))
    slots = [jnp.asarray(s) for s in slots]
    wide = arithmetic_dtype(table)
    for slot, state in zip(RULES[rule].slots, slots, strict=True):
        if state.dtype != wide:
            raise make_error("state_unfit", value=rule, why=f"{slot.name} of {wide}, not {state.dtype}")
    rows = unique_rows(grad)
    ids = rows.indices if rows.indices.dtype in (np.int32, np.int64) else rows.indices.astype(jnp.result_type(int))
    bags = grad._bags if grad.dtype == table.dtype else None
    return TableStep(table, slots, rows.values, ids, bags, seed, path)


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
    current = rows_at(param, rows.indices).astype(wide)
    return with_rows(param, rows.indices, current + rows.values.astype(wide))


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
