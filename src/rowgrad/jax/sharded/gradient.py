"""Backwards: every device sends its bags' gradients to the owners of their rows, who add up in the batch's order.

Device by device, and inside of one as its ids come: the order in which one device would see the whole batch. What a bag
is scaled by only its own device can count, so it divides before it sends, or sends a factor for every id
(`rowgrad.bag_scales`, whose bits are the kernels').

JAX has no gradients by rows, and an owner's gradient has another form than the lookup's output. So the output hangs on
an anchor: zeros of the form in which gradients arrive, of which it is said that they are in the output. Their cotangent
is what arrived; from there it goes on to a dense gradient of the part, or is what `value_and_rows` makes rows of.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ...bag_scales import dense_gradient, plain_scales, weighted_scales
from ...errors import refuse
from ...raw_ops import OPS
from ..bags import Bags
from ..optim import wider
from ..table import Tap
from ..varying import axes_of, unchecked_axes, widen
from .routes import Route, Split


class Way(NamedTuple):
    """What a device has to know to send the gradients of its bags."""

    pair_rows: Any  # [devices, id_slots], as in Route
    pair_bags: Any  # the bag of each; one more than there are where there is none
    numbers: Any  # what each multiplies its bag's gradient by: a weight, or a factor of the bag; None: nothing
    divisors: Any  # of each bag, where bags are divided; or None
    fault: Any


class Owned(NamedTuple):
    """(row, bag) pairs of all devices that concern this one's rows, in their order."""

    rows: Any  # as many as the part has: none
    segments: Any  # which row of what arrives
    numbers: Any


def way_of(bags: Bags, kind: str, way: Route, fault: Any, split: Split, dtype: Any) -> Way:
    """Pairs by owner, with the numbers that kind of bag has. Nothing here is differentiated."""
    wide = wider(dtype, jnp.float32)
    segments = bags.segment_ids
    numbers = divisors = None
    if bags.weights is not None:
        numbers = jax.lax.stop_gradient(bags.weights).astype(wide)
        divisors = weighted_scales(OPS, kind, segments, numbers, bags.num_bags + 1)
    else:
        numbers = plain_scales(OPS, kind, segments, jnp.ones((bags.num_bags + 1, 1), wide))
        numbers = None if numbers is None else numbers.reshape(-1)
    if numbers is not None:
        numbers = jnp.append(numbers, jnp.ones((), wide))[way.pair_ids]
    pair_bags = jnp.append(segments, jnp.asarray(bags.num_bags, segments.dtype))[way.pair_ids]
    if numbers is not None:
        numbers = jnp.where(fault == 0, numbers, jnp.nan)
    return Way(way.pair_rows + fault, pair_bags + fault, numbers, divisors, fault)


def owned(way: Way, split: Split) -> Owned:
    """The pairs others have sent to this device."""
    rows, numbers = _exchange(way.pair_rows, split), None if way.numbers is None else _exchange(way.numbers, split)
    if _by_ids(split):
        segments = widen(jnp.arange(split.devices * split.id_slots, dtype=rows.dtype), axes_of(rows))
    else:
        firsts = jnp.arange(split.devices, dtype=rows.dtype) * (split.num_bags + 1)
        segments = (_exchange(way.pair_bags, split) + firsts[:, None]).reshape(-1)
    return Owned(rows.reshape(-1), segments, None if numbers is None else numbers.reshape(-1))


def anchored(result: Any, part: Any, pairs: Owned, way: Way, split: Split) -> Any:
    """The output of a lookup, with the part's gradient hanging on it."""
    count = split.devices * (split.id_slots if _by_ids(split) else split.num_bags + 1)
    shape = (count, *part.shape[1:])
    dtype = part.dtype if way.divisors is None else way.divisors.dtype
    axes = axes_of(result)
    if isinstance(part, Tap):
        names = frozenset(split.axis if isinstance(split.axis, tuple) else (split.axis,))
        _refuse_further_axes((axes - axes_of(part.table)) | (unchecked_axes() - names))
        zeros = widen(jnp.zeros(shape, dtype), axes)
        anchor = part.enter("Sum", tuple(pairs), zeros, spared=True)
    else:
        anchor = _anchor(_Form(shape, dtype, axes, (part.shape[0], part.dtype)), widen(part, axes), pairs)
    return _hang(split, result, anchor, part.table if isinstance(part, Tap) else part, way)


def _refuse_further_axes(axes: frozenset[Any]) -> None:
    """A gradient by rows is no sum over axes of a mesh; that of a part with copies along them would have to be."""
    if axes:
        names = ", ".join(sorted(map(str, axes)))
        bound = f"different over {names} as well (jax.lax.pcast), because gradients by rows are not added up there"
        raise refuse("not_here", argument="part", value=f"bags that may differ over {names}", bound=bound)


# -- what travels -----------------------------------------------------------------------------------------------------


def _exchange(slots: Any, split: Split) -> Any:
    return jax.lax.all_to_all(slots, split.axis, 0, 0, tiled=True)


def _by_ids(split: Split) -> bool:
    """Whether a bag's gradient goes along with every id, which is less than all bags to everybody."""
    return split.id_slots <= split.num_bags


def _send(split: Split, way: Way, y: Any) -> Any:
    """The gradients of all devices' bags, as far as their ids name rows of this one; zeros where there is no id."""
    inner = y.shape[1:]
    y = jnp.where(way.fault == 0, y, jnp.nan)
    if way.divisors is not None:
        y = _divided(y.astype(way.divisors.dtype), way.divisors[: split.num_bags])
    y = jnp.concatenate([y, jnp.zeros_like(y, shape=(1, *inner))])
    if not _by_ids(split):
        return jax.lax.all_gather(y, split.axis, tiled=True)
    return _exchange(y[way.pair_bags], split).reshape(split.devices * split.id_slots, *inner)


def _divided(y: Any, divisors: Any) -> Any:
    """`rowgrad.bag_scales.scaled_rows` that XLA does not see through: it would multiply by 1/d, which has other bits.

    So the divisors come as a table out of a kernel.
    """
    each = widen(jnp.arange(y.shape[0], dtype=jnp.int32), axes_of(y))
    spread = OPS["WeightedSparseSegmentSumGradRows"]
    return OPS["DivNoNan"](spread(y, each, jnp.ones_like(divisors)), spread(jnp.ones_like(y), each, divisors))


# -- what hangs on what -----------------------------------------------------------------------------------------------


class _Form(NamedTuple):
    shape: tuple[int, ...]
    dtype: Any
    axes: frozenset[Any]
    part: tuple[int, Any]  # its rows and its dtype


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _hang(split: Split, result: Any, anchor: Any, part: Any, way: Way) -> Any:
    """`result`, which depends on `anchor` by what `_send` brings. On `part` it depends by its anchor alone."""
    return result


def _hang_forward(split: Split, result: Any, anchor: Any, part: Any, way: Way) -> tuple[Any, Way]:
    return _once(result, anchor, part), way


def _hang_backward(split: Split, way: Way, y: Any) -> tuple[Any, ...]:
    return y, _send(split, way, y), None, None


_hang.defvjp(_hang_forward, _hang_backward)


@jax.custom_jvp
def _once(result: Any, *made_of: Any) -> Any:
    """`result`, of which a gradient is being taken already: one more would not see what it was made of."""
    return result


@_once.defjvp
def _(primals: Any, tangents: Any) -> Any:
    raise refuse("not_here", argument="part", value="a derivative of its gradient", bound="differentiated once")


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _anchor(form: _Form, part: Any, pairs: Owned) -> Any:
    """Zeros whose gradient is that of the part."""
    return widen(jnp.zeros(form.shape, form.dtype), form.axes)


def _anchor_forward(form: _Form, part: Any, pairs: Owned) -> tuple[Any, Owned]:
    return _anchor(form, part, pairs), pairs


def _anchor_backward(form: _Form, pairs: Owned, arrived: Any) -> tuple[Any, ...]:
    num_rows, dtype = form.part
    rows = jnp.where(pairs.rows == num_rows, 0, pairs.rows)  # zeros come there: a sum that starts from +0 is the same
    gradient = dense_gradient(OPS, arrived, rows, pairs.segments, num_rows, weights=pairs.numbers)
    return gradient.astype(dtype), None


_anchor.defvjp(_anchor_forward, _anchor_backward)
