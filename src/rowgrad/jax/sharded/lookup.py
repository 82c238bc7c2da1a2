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
from ..row_optimizer import wider
from ..table import Tap
from ..varying import axes_of, shared_by, together, typed, unchecked_axes, widen
from .table import Layout, ShardedTable, as_axis, locate

# -- Errors for a capacity that is too small --------------------------------------------------------------------------

# Under jit only kernels can raise, and only with numbers. So a kernel is called with a row out of range whose numbers
# carry the capacity, and the message is composed here from the name of that call.

_CALL = "sharded.embedding_bag"
_WHAT = {"capacity": "distinct rows", "id_capacity": "ids"}  # that a device requests from one owner


def refuse_more(argument: str, capacity: int, most: Any) -> Any:
    """Return 0 if `most` does not exceed the capacity; else raise, or return -1 on platforms that cannot raise."""
    excess = jnp.maximum(most - capacity, 0).astype(jnp.int32).reshape(1)
    (found,) = _PRIMITIVE.bind(*together([jnp.zeros(1, jnp.int32), excess]), argument=argument, capacity=capacity)
    return found[0]


def _lower(context: Any, row: Any, excess: Any, argument: str, capacity: int) -> Any:
    op = replace(CATALOG["GatherRows"], name=f"{_CALL} {argument} {capacity}")
    one = Aval("int32", (1,))
    return custom_call.lower(context, (row, excess), op, {"params": one, "indices": one}, {}, dict(op.attrs), (one,))


def _words(limit: str, excess: int) -> str:
    argument, capacity = limit.split()
    needed = int(capacity) + excess
    bound = f"at least {needed}, the number of {_WHAT[argument]} that a device requests from one owner"
    error = make_error("number_unfit", argument=argument, value=capacity, bound=bound)
    return f"{type(error).__name__}: {error.in_call(_CALL, None, '')}"


_PRIMITIVE = Primitive("rowgrad_refuse_more")
_PRIMITIVE.multiple_results = True
_PRIMITIVE.def_abstract_eval(lambda row, excess, **_: [typed((1,), row.dtype, [row, excess])])
mlir.register_lowering(_PRIMITIVE, mlir.lower_fun(lambda row, excess, **_: [row - (excess > 0)], multiple_results=True))
mlir.register_lowering(_PRIMITIVE, _lower, platform="cpu")
custom_call.speak_for(_CALL, _words)


# -- Faults in the data, exchanged before anything else so that all devices raise -------------------------------------

# A kernel that rejects ids ends the program of its own device, and the others would wait for it in the next exchange.
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


def agree(faults: Any, most: tuple[Any, Any], given: int, split: Split) -> Any:
    """Return 0 after all devices reported that nothing is wrong; later exchanges must depend on it.

    Args:
        faults: The first faults of this device.
        most: The most rows and ids that it requests from an owner.
        given: The number of its ids, without those that fill empty bags.
        split: How the table is split.
    """
    report = jnp.concatenate([faults.reshape(-1), jnp.stack(most).astype(faults.dtype)])
    report = jax.lax.all_gather(report, split.axis)
    faults, most_rows, most_ids = report[:, :6].reshape(-1, 2, 3), report[:, 6].max(), report[:, 7].max()
    fine = (faults[:, :, 0].max() == 0) & (most_rows <= split.capacity) & (most_ids <= split.id_capacity)

    def refused(report: Any) -> Any:
        del report
        # One after the other, so that of several faults always the same one is raised.
        first = _at_fault(faults[:, 0], faults[:, 1], given, split)
        second = refuse_more("capacity", split.capacity, most_rows + first)
        third = refuse_more("id_capacity", split.id_capacity, most_ids + second)
        return jnp.stack([first.astype(jnp.int32), second, third]).min()

    return jax.lax.cond(fine, lambda t: widen(jnp.zeros((), jnp.int32), axes_of(t)), refused, report)


def _at_fault(ids: Any, segments: Any, count: int, split: Split) -> Any:
    """Call a kernel on the ids of all devices, of which only the faults are not zero."""
    positions = jnp.arange(ids.shape[0] * count, dtype=ids.dtype).reshape(-1, count)

    def placed(found: Any) -> Any:
        is_here = (found[:, :1] > 0) & (positions % count == found[:, 1:2])
        return jnp.where(is_here, found[:, 2:], 0).reshape(-1)

    grad = jnp.zeros((split.num_bags, 1), jnp.float32)
    _, named = OPS["SparseSegmentSumGradV2"](grad, placed(ids), placed(segments), split.num_rows, size=1)
    return jnp.minimum(named[0], 0)  # negative where a platform cannot raise


# -- Routing: a device's own bags, sorted by the owners of their rows, in buffers of static size ----------------------


class Split(NamedTuple):
    """How a table is split: the static facts of a lookup."""

    axis: Any
    devices: int
    num_rows: int  # of the whole table
    each: int  # rows of every part
    strategy: str
    num_bags: int  # of every device
    capacity: int  # distinct rows a device may request from an owner
    id_capacity: int  # and ids that name them

    @property
    def id_slots(self) -> int:
        """The slots of every buffer of ids; the last one is never filled, so that one names no row."""
        return self.id_capacity + 1


class Route(NamedTuple):
    """What this device requests of every owner. An unused slot has row 0 in `requested`, and a pair out of range."""

    requested: Any  # [devices, capacity]: distinct rows, as their owner numbers them
    inverse: Any  # for each id which of devices · capacity rows it is
    pair_rows: Any  # [devices, id_slots]: ids as they come, as rows of their owner; `each` where there is none
    pair_ids: Any  # which of the ids it is; their number where there is none
    most: tuple[Any, Any]  # the most distinct rows, and ids, requested from one owner


def route(bags: Bags, split: Split) -> Route:
    """Sort bags by owner. Ids are in range; those in segment `num_bags` are masked and not requested."""
    ids, devices, each = bags.indices, split.devices, split.each
    count, counted = ids.shape[0], bags.segment_ids != bags.num_bags
    owners, rows = locate(ids, split.num_rows, devices, split.strategy)
    owners = jnp.where(counted, owners, devices)
    places = jnp.where(counted, owners * each + rows, devices * each)  # sorted by place is sorted by owner
    unique = _sorted(places, devices * each + 1)
    number = OPS["RowPositions"](unique, places).astype(ids.dtype)
    every = jnp.arange(devices + 1, dtype=ids.dtype)
    first_rows = jnp.searchsorted(unique, every * each).astype(ids.dtype)
    slots, filled = _slots(first_rows, split.capacity)
    requested = jnp.where(filled, unique[jnp.minimum(slots, count - 1)] - every[:-1, None] * each, 0)
    slot = number - first_rows[owners]
    inverse = jnp.where(counted, jnp.minimum(owners * split.capacity + slot, devices * split.capacity - 1), 0)

    by_owner = _sorted(owners * count + jnp.arange(count, dtype=ids.dtype), (devices + 1) * count)
    order = by_owner % count  # those of one owner as they come
    first_ids = jnp.searchsorted(by_owner, every * count).astype(ids.dtype)
    slots, filled = _slots(first_ids, split.id_slots)
    pair_ids = jnp.where(filled, order[jnp.minimum(slots, count - 1)], count)
    pair_rows = jnp.append(rows, jnp.asarray(each, rows.dtype))[pair_ids]
    return Route(requested, inverse, pair_rows, pair_ids, (jnp.diff(first_rows).max(), jnp.diff(first_ids).max()))


def _sorted(numbers: Any, bound: int) -> Any:
    """The distinct ones of numbers in [0, bound), ascending, and then the bound: by a kernel, whose sort is faster."""
    grad, first = jnp.zeros((1, 1), jnp.float32), jnp.zeros_like(numbers)
    return OPS["SparseSegmentSumGradV2"](grad, numbers, first, bound, size=numbers.shape[0]).sorted_unique_indices


def _slots(firsts: Any, capacity: int) -> tuple[Any, Any]:
    """[owners, capacity]: positions in a list sorted by owner, of which each owner's begin at `firsts`; which exist."""
    within = jnp.arange(capacity, dtype=firsts.dtype)
    return firsts[:-1, None] + within, within < jnp.diff(firsts)[:, None]


# -- Backward: devices send their bags' gradients to the owners of the rows -------------------------------------------

# Owners add gradients up device by device, and within a device in the order of its ids: the order in which one device
# would see the whole batch. Only a bag's own device knows its scale, so it divides before it sends, or sends a factor
# for every id (`rowgrad.sharding.partition`, with the kernels' bits).
#
# JAX has no row-sparse gradients, and an owner's gradient has another shape than the lookup's output. So the output
# depends on an anchor: zeros of the shape in which gradients arrive. The anchor's cotangent is what arrived; it becomes
# a dense gradient of the part, or the rows of `value_and_rows`.


class Way(NamedTuple):
    """What a device needs to send the gradients of its bags."""

    pair_rows: Any  # [devices, id_slots], as in Route
    pair_bags: Any  # the bag of each; one more than there are where there is none
    numbers: Any  # what each multiplies its bag's gradient by: a weight, or a factor of the bag; None: nothing
    divisors: Any  # of each bag, where bags are divided; or None
    fault: Any


class Owned(NamedTuple):
    """The (row, bag) pairs of all devices that concern this device's rows, in batch order."""

    rows: Any  # as many as the part has: none
    segments: Any  # which row of what arrives
    numbers: Any


def way_of(bags: Bags, kind: str, way: Route, fault: Any, split: Split, dtype: Any) -> Way:
    """Return the pairs by owner with their factors and divisors. Nothing here is differentiated."""
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
    """Return the pairs that all devices sent to this one."""
    rows, numbers = _exchange(way.pair_rows, split), None if way.numbers is None else _exchange(way.numbers, split)
    if _by_ids(split):
        segments = widen(jnp.arange(split.devices * split.id_slots, dtype=rows.dtype), axes_of(rows))
    else:
        firsts = jnp.arange(split.devices, dtype=rows.dtype) * (split.num_bags + 1)
        segments = (_exchange(way.pair_bags, split) + firsts[:, None]).reshape(-1)
    return Owned(rows.reshape(-1), segments, None if numbers is None else numbers.reshape(-1))


def anchored(result: Any, part: Any, pairs: Owned, way: Way, split: Split) -> Any:
    """Return the output of a lookup, tied to the anchor that receives the part's gradient."""
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
    """Raise if the part is replicated along further axes: row-sparse gradients are not summed over mesh axes."""
    if axes:
        names = ", ".join(sorted(map(str, axes)))
        bound = f"varying over {names} as well (jax.lax.pcast), because row-sparse gradients are not summed over it"
        raise make_error("not_here", argument="part", value=f"bags that may differ over {names}", bound=bound)


# -- exchanges --------------------------------------------------------------------------------------------------------


def _exchange(slots: Any, split: Split) -> Any:
    return jax.lax.all_to_all(slots, split.axis, 0, 0, tiled=True)


def _by_ids(split: Split) -> bool:
    """Return whether to send a bag's gradient with every id: less data than sending all bags to every device."""
    return split.id_slots <= split.num_bags


def _send(split: Split, way: Way, y: Any) -> Any:
    """Return the gradients of all devices' bags whose ids name rows of this device; zeros in unused slots."""
    inner = y.shape[1:]
    y = jnp.where(way.fault == 0, y, jnp.nan)
    if way.divisors is not None:
        y = _divided(y.astype(way.divisors.dtype), way.divisors[: split.num_bags])
    y = jnp.concatenate([y, jnp.zeros_like(y, shape=(1, *inner))])
    if not _by_ids(split):
        return jax.lax.all_gather(y, split.axis, tiled=True)
    return _exchange(y[way.pair_bags], split).reshape(split.devices * split.id_slots, *inner)


def _divided(y: Any, divisors: Any) -> Any:
    """Divide like `scaled_rows`. XLA would multiply by 1/d, which has other bits, so a kernel returns the divisors."""
    each = widen(jnp.arange(y.shape[0], dtype=jnp.int32), axes_of(y))
    spread = OPS["WeightedSparseSegmentSumGradRows"]
    return OPS["DivNoNan"](spread(y, each, jnp.ones_like(divisors)), spread(jnp.ones_like(y), each, divisors))


# -- the anchor -------------------------------------------------------------------------------------------------------


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
    raise make_error("not_here", argument="part", value="a derivative of its gradient", bound="differentiated once")


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
        axis_name, num_rows, strategy: The layout of the table. They travel with `part`; if given, they are checked.
        capacity: How many distinct rows a device may request from one owner.
        id_capacity: How many ids may name them. Both are sizes of buffers that are always sent; more is an error. By
            default all ids fit.
        segment_ids, num_bags, per_sample_weights, combiner, padding_idx, default_id, ignore_id: As in
            `rowgrad.jax.embedding_bag`. Pad ids with `ignore_id=-1` where devices have different numbers of them.

    Returns:
        [bags, …]. On CPUs outputs, and gradients for the part in reverse mode, have the bits of one device on the
        batches of all.

    Raises:
        InvalidArgumentError: `part` has no layout, or one that differs from the arguments or from the mesh.
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
    bags, mask = _counted(bags, split, (padding_idx, ignore_id))
    given, faults = bags.indices.shape[0], first_faults(bags, mask, num_rows)
    bags = masked_bags.mask_ids(_narrowed(bags), mask)
    if default_id is not None:
        bags = masked_bags.sort_by_bag(masked_bags.add_defaults(bags, default_id))
    count = bags.indices.shape[0]
    if (split.devices + 1) * count > jnp.iinfo(jnp.int32).max:
        raise make_error("bags_unfit", argument="ids", value=f"{count} ids", bound="less than 2**31 on all devices")
    split = split._replace(
        num_bags=bags.num_bags,
        capacity=_room("capacity", capacity, min(count, split.each)),
        id_capacity=_room("id_capacity", id_capacity, count),
    )
    bags = bags._replace(
        indices=jnp.clip(bags.indices, 0, num_rows - 1), segment_ids=jnp.clip(bags.segment_ids, 0, bags.num_bags)
    )
    way = route(bags, split)
    fault = agree(faults, way.most, given, split)

    requested = jax.lax.all_to_all(way.requested + fault.astype(way.requested.dtype), axis_name, 0, 0, tiled=True)
    table = part.table if isinstance(part, Tap) else part
    rows = OPS["GatherRows"](jax.lax.stop_gradient(table), requested.reshape(-1), gradient="dense")
    rows = rows.reshape(split.devices, split.capacity, *rows.shape[1:])
    compact = jax.lax.all_to_all(rows, axis_name, 0, 0, tiled=True).reshape(requested.size, *rows.shape[2:])
    result = masked_bags.look_up(compact, bags._replace(indices=way.inverse), kind, None)
    result = jnp.where(fault == 0, result, jnp.nan)
    sent = way_of(bags, kind, way, fault, split, part.dtype)
    return anchored(result, part, owned(sent, split), sent, split)


def _layout_of(part: Any, axis: Any, num_rows: Any, strategy: Any) -> Layout:
    """The layout of a part, once it is what the caller says."""
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
    """The rows of a part, or what stands in for them where lookups are watched."""
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
        wanted = f"({each}, …): {num_rows} rows on {devices} devices"
        raise make_error("bags_unfit", argument="part", value=tuple(part.shape), bound=wanted)
    if devices * (each + 1) > jnp.iinfo(jnp.int32).max:
        raise make_error("bags_unfit", argument="num_rows", value=num_rows, bound="less than 2**31 including padding")
    return Split(axis, devices, int(num_rows), each, strategy, 0, 0, 0)


def _room(argument: str, given: int | None, most: int) -> int:
    if given is None:
        return most
    if not isinstance(given, int | np.integer) or isinstance(given, bool) or given < 1:
        raise make_error("count_unfit", argument=argument, value=repr(given), bound=1)
    return min(int(given), most)


def _counted(bags: Bags, split: Split, ignored: tuple[int | None, ...]) -> tuple[Bags, Any]:
    """The bags, of at least one id, all of them different by device; and which ids count."""
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


def _narrowed(bags: Bags) -> Bags:
    """Ids and bags in 32 bits; what these do not hold stays out of range."""
    least, most = jnp.iinfo(jnp.int32).min, jnp.iinfo(jnp.int32).max
    ids, segments = (jnp.clip(x, least, most).astype(jnp.int32) for x in (bags.indices, bags.segment_ids))
    return bags._replace(indices=ids, segment_ids=segments)


def _names(axis: Any) -> frozenset[Any]:
    return frozenset(axis if isinstance(axis, tuple) else (axis,))
