"""Lookups in tables whose rows are split over a mesh, with their gradients."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from ..._catalog.spec import CATALOG, Aval
from ...errors import make_error
from ...lookup import combiner_suffix, row_number
from ...raw_ops import OPS
from ...sharding.div_mod import check_strategy
from ...sharding.partition import dense_gradient, plain_scales, weighted_scales
from .. import custom_call, masked_bags
from ..arrays import is_jax
from ..bags import Bags, active_mask, read_bags, read_ignore_id, to_jax
from ..row_step import wider
from ..table import Tap
from ..varying import axes_of, shared_by, together, typed, unchecked_axes, widen
from .table import Layout, ShardedTable, as_axis, locate

# -- Errors for a capacity that is too small --------------------------------------------------------------------------

# Under jit only kernels can raise. So GatherRows is called with an id that is out of range by the missing capacity, and
# the error message is composed from that number and the name of the call.

_CALL = "sharded.embedding_bag"
_WHAT = {"capacity": "distinct rows", "id_capacity": "ids"}  # that a device requests from one owner


def check_capacity(argument: str, capacity: int, needed: Any) -> Any:
    """Return 0 if the capacity suffices; else raise, or return -1 on platforms that cannot raise."""
    excess = jnp.maximum(needed - capacity, 0).astype(jnp.int32).reshape(1)
    (found,) = _PRIMITIVE.bind(*together([jnp.zeros(1, jnp.int32), excess]), argument=argument, capacity=capacity)
    return found[0]


def _lower(context: Any, row: Any, excess: Any, argument: str, capacity: int) -> Any:
    op = replace(CATALOG["GatherRows"], name=f"{_CALL} {argument} {capacity}")
    one = Aval("int32", (1,))
    return custom_call.lower(context, (row, excess), op, {"params": one, "indices": one}, {}, dict(op.attrs), (one,))


def _message(limit: str, excess: int) -> str:
    argument, capacity = limit.split()
    needed = int(capacity) + excess
    bound = f"at least {needed}, the number of {_WHAT[argument]} that a device requests from one owner"
    error = make_error("number_unfit", argument=argument, value=capacity, bound=bound)
    return f"{type(error).__name__}: {error.in_call(_CALL, None, '')}"


_PRIMITIVE = Primitive("rowgrad_check_capacity")
_PRIMITIVE.multiple_results = True
_PRIMITIVE.def_abstract_eval(lambda row, excess, **_: [typed((1,), row.dtype, [row, excess])])
mlir.register_lowering(_PRIMITIVE, mlir.lower_fun(lambda row, excess, **_: [row - (excess > 0)], multiple_results=True))
mlir.register_lowering(_PRIMITIVE, _lower, platform="cpu")
custom_call.register_message(_CALL, _message)


# -- Invalid data: exchanged first, so that all devices raise ---------------------------------------------------------

# A kernel that rejects ids ends the program of its own device, and the others would wait for it in the next collective.
# So devices first exchange the first fault of each. If there is one, every device calls a kernel on data with just
# that fault: on CPUs it raises; on other platforms, where a program cannot raise, outputs are NaN.


def first_faults(bags: Bags, mask: Any, num_rows: int) -> Any:
    """Return [2, 3]: for active ids and for their bags, whether one is out of range, its position and value."""
    ids, segments = bags.indices, bags.segment_ids
    dtype = jnp.promote_types(ids.dtype, segments.dtype)  # so that 64-bit values are not truncated
    bad = (ids < 0) | (ids >= num_rows), (segments < 0) | (segments >= bags.num_bags)
    found = []
    for wrong, values in zip(bad, (ids, segments), strict=True):
        wrong &= mask
        at = jnp.argmax(wrong)
        found.append(jnp.stack([number.astype(dtype) for number in (wrong[at], at, values[at])]))
    return jnp.stack(found)


def agree(faults: Any, most: tuple[Any, Any], count: int, split: Split) -> Any:
    """Return 0 after all devices reported that nothing is wrong; later collectives must depend on it.

    Args:
        faults: The first faults of this device.
        most: The most rows and ids that it requests from an owner.
        count: The number of its ids, without those that fill empty bags.
        split: How the table is split.
    """
    report = jnp.concatenate([faults.reshape(-1), jnp.stack(most).astype(faults.dtype)])
    report = jax.lax.all_gather(report, split.axis)
    faults, most_rows, most_ids = report[:, :6].reshape(-1, 2, 3), report[:, 6].max(), report[:, 7].max()
    fine = (faults[:, :, 0].max() == 0) & (most_rows <= split.capacity) & (most_ids <= split.id_capacity)

    def raise_everywhere(report: Any) -> Any:
        del report
        # Each call depends on the one before, so that always the same one of several faults is raised.
        first = _raise_fault(faults[:, 0], faults[:, 1], count, split)
        second = check_capacity("capacity", split.capacity, most_rows + first)
        third = check_capacity("id_capacity", split.id_capacity, most_ids + second)
        return jnp.stack([first.astype(jnp.int32), second, third]).min()

    return jax.lax.cond(fine, lambda t: widen(jnp.zeros((), jnp.int32), axes_of(t)), raise_everywhere, report)


def _raise_fault(ids: Any, segments: Any, count: int, split: Split) -> Any:
    """Call a kernel on as many ids as all devices have: zeros, except for the first fault of each device."""
    positions = jnp.arange(ids.shape[0] * count, dtype=ids.dtype).reshape(-1, count)

    def placed(found: Any) -> Any:
        is_here = (found[:, :1] > 0) & (positions % count == found[:, 1:2])
        return jnp.where(is_here, found[:, 2:], 0).reshape(-1)

    grad = jnp.zeros((split.num_bags, 1), jnp.float32)
    _, rows = OPS["SparseSegmentSumGradV2"](grad, placed(ids), placed(segments), split.num_rows, size=1)
    return jnp.minimum(rows[0], 0)  # negative on platforms that cannot raise


# -- Routing: a device's ids, sorted by the owners of their rows, in buffers of static size ---------------------------


class Split(NamedTuple):
    """How a table is split: the static facts of a lookup."""

    axis: Any
    devices: int
    num_rows: int  # of the whole table
    each: int  # rows of every part
    strategy: str
    num_bags: int  # of every device
    capacity: int  # distinct rows that a device may request from an owner
    id_capacity: int  # ids that a device may have for the rows of an owner

    @property
    def id_slots(self) -> int:
        """The slots of every buffer of ids; the last one is always unused, so that at least one has no row."""
        return self.id_capacity + 1


class Route(NamedTuple):
    """The rows and ids that this device sends to every owner."""

    requested: Any  # [devices, capacity]: distinct rows, as numbered by their owner; 0 in unused slots
    inverse: Any  # the position of the row of each id among the devices · capacity received rows
    pair_rows: Any  # [devices, id_slots]: rows of the ids in input order, by owner; `each` in unused slots
    pair_ids: Any  # the position of each id in the input; the number of ids in unused slots
    most: tuple[Any, Any]  # the most distinct rows, and ids, requested from one owner


def route(bags: Bags, split: Split) -> Route:
    """Sort bags by owner. Ids are in range; those in segment `num_bags` are masked and not requested."""
    ids, devices, each = bags.indices, split.devices, split.each
    count, is_active = ids.shape[0], bags.segment_ids != bags.num_bags
    owners, rows = locate(ids, split.num_rows, devices, split.strategy)
    owners = jnp.where(is_active, owners, devices)
    places = jnp.where(is_active, owners * each + rows, devices * each)  # sorted by place is sorted by owner
    unique = _unique(places, devices * each + 1)
    number = OPS["RowPositions"](unique, places).astype(ids.dtype)
    every = jnp.arange(devices + 1, dtype=ids.dtype)
    first_rows = jnp.searchsorted(unique, every * each).astype(ids.dtype)
    slots, filled = _slots(first_rows, split.capacity)
    requested = jnp.where(filled, unique[jnp.minimum(slots, count - 1)] - every[:-1, None] * each, 0)
    slot = number - first_rows[owners]
    inverse = jnp.where(is_active, jnp.minimum(owners * split.capacity + slot, devices * split.capacity - 1), 0)

    by_owner = _unique(owners * count + jnp.arange(count, dtype=ids.dtype), (devices + 1) * count)
    order = by_owner % count  # in input order for each owner
    first_ids = jnp.searchsorted(by_owner, every * count).astype(ids.dtype)
    slots, filled = _slots(first_ids, split.id_slots)
    pair_ids = jnp.where(filled, order[jnp.minimum(slots, count - 1)], count)
    pair_rows = jnp.append(rows, jnp.asarray(each, rows.dtype))[pair_ids]
    return Route(requested, inverse, pair_rows, pair_ids, (jnp.diff(first_rows).max(), jnp.diff(first_ids).max()))


def _unique(numbers: Any, bound: int) -> Any:
    """Return the distinct numbers in [0, bound), ascending, padded with the bound. A kernel sorts faster than XLA."""
    grad, first = jnp.zeros((1, 1), jnp.float32), jnp.zeros_like(numbers)
    return OPS["SparseSegmentSumGradV2"](grad, numbers, first, bound, size=numbers.shape[0]).sorted_unique_indices


def _slots(firsts: Any, capacity: int) -> tuple[Any, Any]:
    """Return, as [owners, capacity], positions in a list whose runs begin at `firsts`, and which of them are used."""
    within = jnp.arange(capacity, dtype=firsts.dtype)
    return firsts[:-1, None] + within, within < jnp.diff(firsts)[:, None]


# -- Backward: devices send their bags' gradients to the owners of the rows -------------------------------------------

# Owners add gradients device by device, and within a device in the order of its ids: the order of one device that has
# the whole batch. Only a bag's own device knows its scale, so it divides before it sends, or sends a factor for every
# id (`rowgrad.sharding.partition`, with the kernels' bits).
#
# JAX has no row-sparse gradients, and an owner's gradient has another shape than the lookup's output. So the output
# depends on an anchor: zeros in the shape of the received gradients. The anchor's cotangent, the received gradients,
# becomes a dense gradient of the part, or the rows of `value_and_rows`.


class Outgoing(NamedTuple):
    """The (row, bag) pairs whose gradients this device sends, by owner."""

    pair_rows: Any  # [devices, id_slots], as in Route
    pair_bags: Any  # the bag of each pair; the number of bags in unused slots
    factors: Any  # a factor for the bag's gradient of each pair: a weight or a scale; or None
    divisors: Any  # a divisor for the gradient of each bag; or None
    fault: Any


class Incoming(NamedTuple):
    """The (row, bag) pairs that all devices send for this device's rows, in batch order."""

    rows: Any  # the number of rows of the part in unused slots
    segments: Any  # the row of the received gradients
    factors: Any


def outgoing_pairs(bags: Bags, kind: str, routing: Route, fault: Any, split: Split, dtype: Any) -> Outgoing:
    """Return the pairs by owner with their factors and divisors. Nothing here is differentiated."""
    wide = wider(dtype, jnp.float32)
    segments = bags.segment_ids
    factors = divisors = None
    if bags.weights is not None:
        factors = jax.lax.stop_gradient(bags.weights).astype(wide)
        divisors = weighted_scales(OPS, kind, segments, factors, bags.num_bags + 1)
    else:
        factors = plain_scales(OPS, kind, segments, jnp.ones((bags.num_bags + 1, 1), wide))
        factors = None if factors is None else factors.reshape(-1)
    if factors is not None:
        factors = jnp.append(factors, jnp.ones((), wide))[routing.pair_ids]
    pair_bags = jnp.append(segments, jnp.asarray(bags.num_bags, segments.dtype))[routing.pair_ids]
    if factors is not None:
        factors = jnp.where(fault == 0, factors, jnp.nan)
    return Outgoing(routing.pair_rows + fault, pair_bags + fault, factors, divisors, fault)


def exchange_pairs(pairs: Outgoing, split: Split) -> Incoming:
    """Send the pairs to their owners; return those that all devices sent to this one."""
    rows = _exchange(pairs.pair_rows, split)
    factors = None if pairs.factors is None else _exchange(pairs.factors, split)
    if _sends_per_id(split):
        segments = widen(jnp.arange(split.devices * split.id_slots, dtype=rows.dtype), axes_of(rows))
    else:
        firsts = jnp.arange(split.devices, dtype=rows.dtype) * (split.num_bags + 1)
        segments = (_exchange(pairs.pair_bags, split) + firsts[:, None]).reshape(-1)
    return Incoming(rows.reshape(-1), segments, None if factors is None else factors.reshape(-1))


def attach_gradient(result: Any, part: Any, incoming: Incoming, outgoing: Outgoing, split: Split) -> Any:
    """Return the output of a lookup, made to depend on an anchor that receives the part's gradient."""
    count = split.devices * (split.id_slots if _sends_per_id(split) else split.num_bags + 1)
    shape = (count, *part.shape[1:])
    dtype = part.dtype if outgoing.divisors is None else outgoing.divisors.dtype
    axes = axes_of(result)
    if isinstance(part, Tap):
        names = frozenset(split.axis if isinstance(split.axis, tuple) else (split.axis,))
        _reject_further_axes((axes - axes_of(part.table)) | (unchecked_axes() - names))
        zeros = widen(jnp.zeros(shape, dtype), axes)
        anchor = part.record("Sum", tuple(incoming), zeros, has_masked=True)
    else:
        anchor = _anchor(_AnchorType(shape, dtype, axes, (part.shape[0], part.dtype)), widen(part, axes), incoming)
    return _attach(split, result, anchor, part.table if isinstance(part, Tap) else part, outgoing)


def _reject_further_axes(axes: frozenset[Any]) -> None:
    """Raise if the part is replicated along further axes: row-sparse gradients are not summed over mesh axes."""
    if axes:
        names = ", ".join(sorted(map(str, axes)))
        bound = f"varying over {names} as well (jax.lax.pcast), because row-sparse gradients are not summed over it"
        raise make_error("not_here", argument="part", value=f"bags that may differ over {names}", bound=bound)


# -- Collectives ------------------------------------------------------------------------------------------------------


def _exchange(slots: Any, split: Split) -> Any:
    return jax.lax.all_to_all(slots, split.axis, 0, 0, tiled=True)


def _sends_per_id(split: Split) -> bool:
    """Return whether to send a bag's gradient once per id, if that is less data than all bags to every device."""
    return split.id_slots <= split.num_bags


def _send(split: Split, pairs: Outgoing, y: Any) -> Any:
    """Send gradients of bags to the owners of their rows; return those received, zeros in unused slots."""
    inner = y.shape[1:]
    y = jnp.where(pairs.fault == 0, y, jnp.nan)
    if pairs.divisors is not None:
        y = _divide(y.astype(pairs.divisors.dtype), pairs.divisors[: split.num_bags])
    y = jnp.concatenate([y, jnp.zeros_like(y, shape=(1, *inner))])
    if not _sends_per_id(split):
        return jax.lax.all_gather(y, split.axis, tiled=True)
    return _exchange(y[pairs.pair_bags], split).reshape(split.devices * split.id_slots, *inner)


def _divide(y: Any, divisors: Any) -> Any:
    """Divide with the bits of a kernel. XLA would multiply by 1/d, so a kernel expands the divisors to y's shape."""
    each = widen(jnp.arange(y.shape[0], dtype=jnp.int32), axes_of(y))
    spread = OPS["WeightedSparseSegmentSumGradRows"]
    return OPS["DivNoNan"](spread(y, each, jnp.ones_like(divisors)), spread(jnp.ones_like(y), each, divisors))


# -- The anchor -------------------------------------------------------------------------------------------------------


class _AnchorType(NamedTuple):
    shape: tuple[int, ...]
    dtype: Any
    axes: frozenset[Any]
    part: tuple[int, Any]  # its rows and its dtype


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attach(split: Split, result: Any, anchor: Any, part: Any, pairs: Outgoing) -> Any:
    """Return `result`. The cotangent of `anchor` is what `_send` returns; `part` gets none except by the anchor."""
    return result


def _attach_forward(split: Split, result: Any, anchor: Any, part: Any, pairs: Outgoing) -> tuple[Any, Outgoing]:
    return _reject_second_derivative(result, anchor, part), pairs


def _attach_backward(split: Split, pairs: Outgoing, y: Any) -> tuple[Any, ...]:
    return y, _send(split, pairs, y), None, None


_attach.defvjp(_attach_forward, _attach_backward)


@jax.custom_jvp
def _reject_second_derivative(result: Any, *arguments: Any) -> Any:
    """Return `result`; raise if the gradient is differentiated, which would miss its dependence on the arguments."""
    return result


@_reject_second_derivative.defjvp
def _(primals: Any, tangents: Any) -> Any:
    raise make_error("not_here", argument="part", value="a derivative of its gradient", bound="differentiated once")


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _anchor(kind: _AnchorType, part: Any, pairs: Incoming) -> Any:
    """Return zeros whose cotangent becomes the gradient of the part."""
    return widen(jnp.zeros(kind.shape, kind.dtype), kind.axes)


def _anchor_forward(kind: _AnchorType, part: Any, pairs: Incoming) -> tuple[Any, Incoming]:
    return _anchor(kind, part, pairs), pairs


def _anchor_backward(kind: _AnchorType, pairs: Incoming, received: Any) -> tuple[Any, ...]:
    num_rows, dtype = kind.part
    rows = jnp.where(pairs.rows == num_rows, 0, pairs.rows)  # unused slots have +0, which does not change a sum
    gradient = dense_gradient(OPS, received, rows, pairs.segments, num_rows, weights=pairs.factors)
    return gradient.astype(dtype), None


_anchor.defvjp(_anchor_forward, _anchor_backward)


# -- The lookup -------------------------------------------------------------------------------------------------------


def embedding_bag(
    part: Any,
    ids: Any,
    *,
    axis_name: Any = None,
    num_rows: int | None = None,
    strategy: str | None = None,
    capacity: int | None = None,
    id_capacity: int | None = None,
    segment_ids: Any = None,
    num_bags: int | None = None,
    per_sample_weights: Any = None,
    combiner: str = "mean",
    padding_idx: int | None = None,
    default_id: int | None = None,
    ignore_id: int | None = None,
) -> Any:
    """Look up this device's bags in a table split over mesh axes: for use inside `shard_map`.

    Args:
        part: This device's part of the table, a `ShardedTable` as `shard_table` returns it.
        ids: Ids of the whole table: a matrix, a bag per row; a vector with `segment_ids` and `num_bags`; or a
            SparseTensor.
        axis_name, num_rows, strategy: The layout of the table. `part` has them; if passed, they must be equal.
        capacity: The maximum number of distinct rows that a device requests from one owner.
        id_capacity: The maximum number of ids for these rows. Both are sizes of buffers that are always sent; a batch
            that needs more raises. By default all ids fit.
        segment_ids, num_bags, per_sample_weights, combiner, padding_idx, default_id, ignore_id: As in
            `rowgrad.jax.embedding_bag`. If devices have different numbers of ids, pad them with -1 and pass
            `ignore_id=-1`.

    Returns:
        [bags, …]. On CPUs outputs, and gradients of the part in reverse mode, have the bits of one device on the
        batches of all.

    Raises:
        InvalidArgumentError: If `part` has no layout, or one that differs from the arguments or from the mesh.
    """
    kind = combiner_suffix(combiner)
    layout = _layout_of(part, axis_name, num_rows, strategy)
    part = _array_of(part)
    split = _split(part, layout)
    num_rows, axis_name = layout.num_rows, layout.axis
    padding_idx = row_number("padding_idx", padding_idx, num_rows)
    default_id = row_number("default_id", default_id, num_rows)
    bags = read_bags(ids, None, segment_ids, num_bags, per_sample_weights, False)
    ignore_id = read_ignore_id(ignore_id, num_rows, bags.indices.dtype)
    bags, mask = _read_mask(bags, split, (padding_idx, ignore_id))
    id_count, faults = bags.indices.shape[0], first_faults(bags, mask, num_rows)
    bags = masked_bags.mask_ids(_to_int32(bags), mask)
    if default_id is not None:
        bags = masked_bags.sort_by_bag(masked_bags.add_defaults(bags, default_id))
    count = bags.indices.shape[0]
    if (split.devices + 1) * count > jnp.iinfo(jnp.int32).max:
        raise make_error("bags_unfit", argument="ids", value=f"{count} ids", bound="less than 2**31 on all devices")
    split = split._replace(
        num_bags=bags.num_bags,
        capacity=_read_capacity("capacity", capacity, min(count, split.each)),
        id_capacity=_read_capacity("id_capacity", id_capacity, count),
    )
    bags = bags._replace(
        indices=jnp.clip(bags.indices, 0, num_rows - 1), segment_ids=jnp.clip(bags.segment_ids, 0, bags.num_bags)
    )
    routing = route(bags, split)
    fault = agree(faults, routing.most, id_count, split)

    requested = routing.requested + fault.astype(routing.requested.dtype)
    requested = jax.lax.all_to_all(requested, axis_name, 0, 0, tiled=True)
    table = part.table if isinstance(part, Tap) else part
    rows = OPS["GatherRows"](jax.lax.stop_gradient(table), requested.reshape(-1), gradient="dense")
    rows = rows.reshape(split.devices, split.capacity, *rows.shape[1:])
    compact = jax.lax.all_to_all(rows, axis_name, 0, 0, tiled=True).reshape(requested.size, *rows.shape[2:])
    result = masked_bags.look_up(compact, bags._replace(indices=routing.inverse), kind, None)
    result = jnp.where(fault == 0, result, jnp.nan)
    outgoing = outgoing_pairs(bags, kind, routing, fault, split, part.dtype)
    return attach_gradient(result, part, exchange_pairs(outgoing, split), outgoing, split)


def _layout_of(part: Any, axis: Any, num_rows: Any, strategy: Any) -> Layout:
    """Return the layout of a part; raise if the arguments differ from it."""
    if strategy is not None:
        check_strategy(strategy)
    if not isinstance(part, ShardedTable):
        raise make_error("part_without_layout", argument="part", value=type(part).__name__)
    layout = part.layout
    axis = None if axis is None else as_axis(axis)
    for argument, value, bound in (
        ("num_rows", num_rows, layout.num_rows),
        ("strategy", strategy, layout.strategy),
        ("axis_name", axis, layout.axis),
    ):
        if value is not None and value != bound:
            raise make_error("layout_differs", argument=argument, value=repr(value), bound=repr(bound))
    return layout


def _array_of(part: ShardedTable) -> Any:
    """Return the rows of a part, or its `Tap` inside `value_and_rows`."""
    array = part.held if part.is_tapped else part.array
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise make_error("table_unfit", argument="part", value=str(array.dtype), bound="of floating-point numbers")
    return array if part.is_tapped or is_jax(array) else jnp.asarray(array)


def _split(part: Any, layout: Layout) -> Split:
    num_rows, devices, axis, strategy = layout
    try:
        found = int(jax.lax.psum(1, axis))
    except NameError:
        raise make_error("bags_unfit", argument="axis_name", value=repr(axis),
                         bound="an axis of the mesh, inside shard_map") from None  # fmt: skip
    if found != devices:
        raise make_error("layout_differs", argument="devices", value=found, bound=devices)
    each = layout.part_rows
    if part.shape[:1] != (each,):
        bound = f"({each}, …): {num_rows} rows on {devices} devices"
        raise make_error("bags_unfit", argument="part", value=tuple(part.shape), bound=bound)
    if devices * (each + 1) > jnp.iinfo(jnp.int32).max:
        raise make_error("bags_unfit", argument="num_rows", value=num_rows, bound="less than 2**31 including padding")
    return Split(axis, devices, int(num_rows), each, strategy, 0, 0, 0)


def _read_capacity(argument: str, capacity: int | None, most: int) -> int:
    if capacity is None:
        return most
    if not isinstance(capacity, int | np.integer) or isinstance(capacity, bool) or capacity < 1:
        raise make_error("count_unfit", argument=argument, value=repr(capacity), bound=1)
    return min(int(capacity), most)


def _read_mask(bags: Bags, split: Split, ignored: tuple[int | None, ...]) -> tuple[Bags, Any]:
    """Return the bags and a mask of active ids: at least one id, and arrays that vary over the mesh axes."""
    ids, segments, num_bags, weights = bags
    ids, segments = to_jax(ids, "ids"), to_jax(segments, "segment_ids")
    if weights is not None and tuple(weights.shape) != tuple(ids.shape):
        raise make_error(
            "same_shape", argument="per_sample_weights", value=tuple(weights.shape), bound=tuple(ids.shape)
        )
    mask = active_mask(ids, ignored)
    if not ids.shape[0]:
        ids, segments, mask = jnp.zeros(1, ids.dtype), jnp.zeros(1, segments.dtype), jnp.zeros(1, bool)
        weights = None if weights is None else jnp.ones(1, weights.dtype)
    mask = jnp.ones(ids.shape, bool) if mask is None else mask
    axes = shared_by([ids, segments, *(() if weights is None else (weights,))]) | _names(split.axis)
    weights = None if weights is None else widen(weights, axes)
    return Bags(widen(ids, axes), widen(segments, axes), num_bags, weights), widen(mask, axes)


def _to_int32(bags: Bags) -> Bags:
    """Return ids and segment ids as int32; numbers that do not fit stay out of range."""
    limits = jnp.iinfo(jnp.int32)
    ids, segments = (jnp.clip(x, limits.min, limits.max).astype(jnp.int32) for x in (bags.indices, bags.segment_ids))
    return bags._replace(indices=ids, segment_ids=segments)


def _names(axis: Any) -> frozenset[Any]:
    return frozenset(axis if isinstance(axis, tuple) else (axis,))
