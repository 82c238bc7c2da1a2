"""Optimizers of tables with row-sparse gradients, by optax's protocol."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._catalog.rows import IndexedRows
from .._catalog.rules import RULES, Slot, check_betas, check_number
from ..errors import make_error
from ..raw_ops import OPS
from .bags import to_jax
from .table import Table
from .trees import is_rows

# -- The rules of optimizers in JAX's arithmetic, for rows or for a whole array alike ---------------------------------


class Numbers(NamedTuple):
    """The numbers of one step; `decays` says whether there is a weight_decay, `step` counts from 1."""

    lr: Any
    step: Any
    decays: bool
    weight_decay: Any
    eps: Any = 0.0
    betas: tuple[float, float] = (0.9, 0.999)

    def rate(self) -> Any:
        """lr·(√(1 − β₂ᵗ) / (1 − β₁ᵗ)), of sums and products alone: see `_one_less_power`."""
        b1, b2 = (_one_less_power(b, self.step) for b in self.betas)
        return jnp.asarray(self.lr).astype(_widest()) * (jnp.sqrt(b2) / b1)


def _widest() -> Any:
    """float64, where JAX has it."""
    return jnp.result_type(float)


def _one_less_power(beta: float, step: Any) -> Any:
    """1 − βᵗ, which loses nothing where β is near 1: t is a sum of powers of two, and 1 − ab is (1 − a) + (1 − b)·a.

    The compiler evaluates JAX's own expm1 differently where it knows the step number than where it does not.
    """
    if beta == 0.0:
        return jnp.ones((), _widest())
    places = np.arange(32)  # a step number has 31 bits
    parts = jnp.asarray(-np.expm1(2.0**places * math.log(beta)), _widest())
    parts = jnp.where((step >> jnp.asarray(places, step.dtype)) & 1 == 1, parts, 0)
    while parts.shape[0] > 1:
        a, b = jnp.split(parts, 2)
        parts = a + _rounded(b * (1 - a))
    return parts[0]


def _decayed(n: Numbers, g: Any, w: Any) -> Any:
    return g + _rounded(w * as_type(n.weight_decay, g)) if n.decays else g


def as_type(number: Any, like: Any) -> Any:
    """A hyperparameter rounded once to the type of arithmetic."""
    return jnp.asarray(number).astype(like.dtype)


@jax.custom_jvp
def _rounded(x: Any) -> Any:
    """A product, rounded before something is added to it. Its derivative is that of the identity.

    XLA would contract both into one multiply-add that rounds once, or not, depending on how many rows there are: a part
    of a table would have other bits than the whole. The bits of one NaN are replaced by those of another, which no
    compiler may leave out.
    """
    bits = jax.lax.bitcast_convert_type(x, f"int{x.dtype.itemsize * 8}")
    nan = jnp.asarray(jnp.nan, x.dtype)
    quiet = jax.lax.bitcast_convert_type(nan, bits.dtype)
    return jax.lax.bitcast_convert_type(jnp.where(bits == quiet + 1, quiet, bits), x.dtype)


@_rounded.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return _rounded(*primals), tangents[0]


@jax.custom_jvp
def _root(x: Any) -> Any:
    """√x, whose derivative at 0 is 0: there the gradient is 0 too, and the step does not depend on the root."""
    return jnp.sqrt(x)


@_root.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (tangent,) = primals, tangents
    slope = 0.5 / _root(jnp.where(x == 0, 1, x))
    return _root(x), jnp.where(x == 0, 0, slope * tangent)


def _total(rows: Any) -> Any:
    """The sum of each row, halves added to halves: the order of XLA's own depends on how many rows there are."""
    columns = rows.shape[1]
    while columns > 1:
        half = columns // 2
        added = rows[:, :half] + rows[:, half : 2 * half]
        rows = added if columns % 2 == 0 else jnp.concatenate([added, rows[:, -1:]], axis=1)
        columns = rows.shape[1]
    return rows.sum(axis=1)


def _sgd(n: Numbers, g: Any, w: Any) -> tuple[Any, ...]:
    return (_rounded(-(_decayed(n, g, w) * as_type(n.lr, g))),)


def _adagrad(n: Numbers, g: Any, w: Any, a: Any) -> tuple[Any, ...]:
    g = _decayed(n, g, w)
    a = a + _rounded(g * g)
    return -(g * as_type(n.lr, g) / (_root(a) + as_type(n.eps, g))), a


def _row_wise_adagrad(n: Numbers, g: Any, w: Any, a: Any) -> tuple[Any, ...]:
    g = _decayed(n, g, w)
    columns = math.prod(g.shape[1:])
    rows = g.reshape(a.shape[0], columns)
    a = a + _rounded(_total(_rounded(rows * rows)) / max(columns, 1))
    factor = as_type(n.lr, g) / (_root(a) + as_type(n.eps, g))
    return _rounded(-(rows * factor[:, None])).reshape(g.shape), a


def _adam(n: Numbers, g: Any, w: Any, m: Any, v: Any) -> tuple[Any, ...]:
    return _moments(n, _decayed(n, g, w), m, v)


def _adamw(n: Numbers, g: Any, w: Any, m: Any, v: Any) -> tuple[Any, ...]:
    update, m, v = _moments(n, g, m, v)
    if n.decays:
        update = update - _rounded(w * (as_type(n.lr, g) * as_type(n.weight_decay, g)))
    return update, m, v


def _moments(n: Numbers, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    b1, b2 = (as_type(b, g) for b in n.betas)
    one = as_type(1.0, g)
    m = _rounded(m * b1) + _rounded(g * (one - b1))
    v = _rounded(v * b2) + _rounded((g * g) * (one - b2))
    return -(m * as_type(n.rate(), g) / (_root(v) + as_type(n.eps, g))), m, v


STEPS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "row_wise_adagrad": _row_wise_adagrad,
    "adam": _adam,
    "adamw": _adamw,
}


# -- Optimizers for trees with tables ---------------------------------------------------------------------------------

# Optimizers for trees with tables: sgd, adagrad, row_wise_adagrad, adam, adamw. docs/optimizers.md has the rules.
#
# Each is a pair of functions, `init` and `update`, as optax has them, and may stand in `optax.chain` and
# `optax.multi_transform`. A gradient by rows changes the state of the rows it names and gives an update by rows; a
# dense gradient, of a table or anything else, gives a dense one. `apply_updates` adds both to parameters.

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


def _optimizer(rule: str, lr: Rate, initial: float = 0.0, **numbers: Any) -> RowTransformation:
    for name, value in {"lr": lr, "initial_accumulator_value": initial, **numbers}.items():
        if name == "betas":
            check_betas(value)
        elif name != "lr" or not callable(value):
            _check_scalar(name, value)
    slots, weight_decay = RULES[rule].slots, numbers["weight_decay"]
    decays = not isinstance(weight_decay, int | float) or weight_decay != 0

    def init(params: Any) -> RowState:
        return RowState(jnp.zeros((), jnp.int32), {s.name: _slot(s, params, initial) for s in slots})

    def update(updates: Any, state: RowState, params: Any = None) -> tuple[Any, RowState]:
        if decays and params is None:
            raise make_error("needs_params", value=rule)
        grads, tree = jax.tree_util.tree_flatten(updates, is_leaf=_is_update)
        grads = [None if getattr(g, "dtype", None) == jax.dtypes.float0 else g for g in grads]
        weights = tree.flatten_up_to(params) if decays else [None] * len(grads)
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


def _check_scalar(name: str, value: Any) -> None:
    """A real number. Of an array of JAX, as optax injects it, nobody looks at the value."""
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
    """The type that holds both, also where JAX was told to find none by itself."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(a, b)
