"""Sums, means, products, minima, maxima and their positions, over an array namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .shared import narrow, product, wide

Axis = int | tuple[int, ...]


def _axes(x: Any, axis: Axis) -> tuple[int, ...]:
    return tuple(a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis))


def _count(x: Any, axes: tuple[int, ...]) -> Any:
    return product([x.shape[a] for a in axes])


def _sum(xp: Any, input: Any, axis: Axis, keep_dims: bool) -> Any:
    axes = _axes(input, axis)
    if not axes:
        return xp.copy(input)
    return narrow(xp, xp.sum(wide(xp, input), axes, keep_dims), input.dtype)


def _mean(xp: Any, input: Any, axis: Axis, keep_dims: bool) -> Any:
    axes = _axes(input, axis)
    if not axes:
        return xp.copy(input)
    count = _count(input, axes)
    if input.dtype in xp.integers:
        return xp.astype(_divide(xp, xp.long_sum(input, axes, keep_dims), count), input.dtype)
    total = xp.sum(wide(xp, input), axes, keep_dims)
    return narrow(xp, total / xp.full_like(total, count), input.dtype)


def _divide(xp: Any, total: Any, count: int) -> Any:
    """Divide integers towards zero, as C does; 0 for an empty mean."""
    by = xp.full_like(total, max(count, 1))
    return xp.floor_divide(total - xp.fmod(total, by), by)


def _prod(xp: Any, input: Any, axis: Axis, keep_dims: bool) -> Any:
    axes = _axes(input, axis)
    if not axes:
        return xp.copy(input)
    return narrow(xp, xp.prod(wide(xp, input), axes, keep_dims), input.dtype)


def _prod_others(xp: Any, inputs: Any, axis: Axis) -> Any:
    """Return, for each element, the product of the elements before and after it; see the op `ProdOthers`.

    Nothing is divided: a factor may be 0, and the whole product out of range. The key of an entry of `Sums` is a set of
    weights, as bits. Its value is the sum of products over all ways to replace as many factors by these weights.
    """
    first = inputs[0]
    axes = _axes(first, axis)
    order = [*(i for i in range(first.ndim) if i not in axes), *axes]
    moved = [xp.permute_dims(wide(xp, x), order) for x in inputs]
    shape = tuple(moved[0].shape)
    count = _count(first, axes)
    rows = product(shape) // count if count else 0
    flat = [xp.reshape(x, (rows, count)) for x in moved]
    all_weights = (1 << len(inputs) - 1) - 1
    if count < 2:
        parts = [xp.full_like(flat[0], 0 if all_weights else 1)]
    else:
        before = _scan(xp, flat, False)
        after = _scan(xp, flat, True)
        left = {s: x[:, :-2] for s, x in before.items()}
        right = {s: x[:, 2:] for s, x in after.items()}
        zeros = xp.full_like(flat[0][:, :1], 0)
        ends = [after.get(all_weights), before.get(all_weights)]
        head, tail = (zeros if e is None else e[:, a : a + 1] for e, a in zip(ends, (1, count - 2), strict=True))
        middle = _combine(left, right).get(all_weights)
        inner = xp.full_like(flat[0][:, 2:], 0) if middle is None else middle
        parts = [head, inner, tail]
    # The empty slices make the result a function of all inputs, also where it is constant, as torch requires.
    found = xp.concat([*(x[:, :0] for x in flat), *parts], 1)
    back = [order.index(i) for i in range(first.ndim)]
    return narrow(xp, xp.permute_dims(xp.reshape(found, shape), back), first.dtype)


Sums = dict[int, Any]


def _scan(xp: Any, flat: list[Any], backward: bool) -> Sums:
    """Return, for every place, the sums of all places up to it, or from it on; computed by doubling."""
    found: Sums = {0 if k == 0 else 1 << k - 1: x for k, x in enumerate(flat)}
    count, step = flat[0].shape[1], 1
    while step < count:
        low = {s: x[:, :-step] for s, x in found.items()}
        high = {s: x[:, step:] for s, x in found.items()}
        whole: Sums = {}
        for s, x in _combine(low, high).items():
            rest = found.get(s)
            edge = (
                xp.full_like(flat[0][:, :step], 0) if rest is None else rest[:, -step:] if backward else rest[:, :step]
            )
            whole[s] = xp.concat([x, edge] if backward else [edge, x], 1)
        found, step = whole, 2 * step
    return found


def _combine(low: Sums, high: Sums) -> Sums:
    """Return the sums of two adjacent ranges of places, taken as one range."""
    found: Sums = {}
    for s, x in low.items():
        for t, y in high.items():
            if not s & t:
                found[s | t] = found[s | t] + x * y if s | t in found else x * y
    return found


def _extreme(name: str, empty_value: str) -> Callable[..., Any]:
    def function(xp: Any, input: Any, axis: Axis, keep_dims: bool) -> Any:
        axes = _axes(input, axis)
        if not axes:
            return xp.copy(input)
        if _count(input, axes) == 0:
            shape = _reduced(input.shape, axes, keep_dims)
            value = getattr(xp, empty_value)(input.dtype)
            return xp.full(shape, value, dtype=input.dtype, device=xp.device(input))
        return getattr(xp, name)(input, axes, keep_dims)

    return function


def _reduced(shape: Any, axes: tuple[int, ...], keep_dims: bool) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape) if keep_dims or i not in axes)


def _logical(name: str) -> Callable[..., Any]:
    def function(xp: Any, input: Any, axis: Axis, keep_dims: bool) -> Any:
        axes = _axes(input, axis)
        return getattr(xp, name)(input, axes, keep_dims) if axes else xp.copy(input)

    return function


def _position(name: str) -> Callable[..., Any]:
    def function(xp: Any, input: Any, dimension: int, output_type: str) -> Any:
        if input.dtype not in xp.integers and input.dtype != xp.bool:  # NaN is never the extreme
            last = -xp.highest(input.dtype) if name == "argmax" else xp.highest(input.dtype)
            input = xp.where(input != input, xp.full_like(input, last), input)
        return xp.astype(getattr(xp, name)(input, dimension), xp.dtype(output_type))

    return function


def _spread_like(xp: Any, x: Any, axis: Axis, like: Any, keep_dims: bool, mean: bool) -> Any:
    axes = _axes(like, axis)
    values = wide(xp, xp.reshape(x, _reduced(like.shape, axes, True)))
    if mean and x.dtype in xp.integers:
        values = xp.astype(_divide(xp, xp.long_sum(values, (), False), _count(like, axes)), x.dtype)
    elif mean:
        values = values / xp.full_like(values, _count(like, axes))
    return xp.copy(xp.broadcast_to(narrow(xp, values, x.dtype), tuple(like.shape)))


def _l2_loss(xp: Any, t: Any) -> Any:
    x = wide(xp, t)
    total = xp.sum(x * x, tuple(range(x.ndim)), False) if x.ndim else x * x
    return narrow(xp, total / xp.full_like(total, 2), t.dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Sum": _sum,
    "Mean": _mean,
    "Prod": _prod,
    "ProdOthers": _prod_others,
    "Max": _extreme("max", "lowest"),
    "Min": _extreme("min", "highest"),
    "All": _logical("all"),
    "Any": _logical("any"),
    "ArgMax": _position("argmax"),
    "ArgMin": _position("argmin"),
    "SpreadLike": _spread_like,
    "L2Loss": _l2_loss,
}
