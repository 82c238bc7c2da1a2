"""vmap rules of the kernels: one call per batch, over an array namespace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._catalog.kernels import KERNELS, Stacking
from .._catalog.spec import CATALOG, PLAN, Aval, Op
from ..errors import OpError, ResourceExhaustedError, UnimplementedError, make_error
from .validation import infer

# -- A call whose arguments have a batch dimension, as the rules of vmap see it ---------------------------------------

Run = Callable[[Op, dict[str, Any], Mapping[str, Any]], tuple[Any, ...]]
Outputs = tuple[tuple[Any, ...], tuple[int | None, ...]]  # and where each has the batch; None: it has none

_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True)
class Batch:
    """One op for all items of a batch."""

    xp: Any  # the namespace of its arrays
    op: Op
    attrs: Mapping[str, Any]
    size: int  # how many items
    arguments: Mapping[str, Any]  # arrays, those of `batched` with the items first; host values as they are
    batched: frozenset[str]
    in_dims: Mapping[str, int | None]  # where the batch stood when the call came
    outputs: tuple[Aval, ...]  # of one item; None where data decides
    run: Run  # calls an op one level of vmap further down

    def with_shared(self, **arguments: Any) -> Batch:
        """The same call with arguments that are one for all items."""
        changed = {**self.arguments, **arguments}
        return replace(self, arguments=changed, batched=self.batched - arguments.keys())

    def rows_of(self, name: str) -> Any:
        """The first dimension of an item's argument."""
        return self.arguments[name].shape[1 if name in self.batched else 0]

    def each(self, name: str) -> Any:
        """An argument with the items first, whether they share it or not."""
        value = self.arguments[name]
        return value if name in self.batched else self.xp.broadcast_to(value, (self.size, *value.shape))

    def joined(self, rows: Any) -> Any:
        """The rows of all items one after the other."""
        return self.xp.reshape(rows, (rows.shape[0] * rows.shape[1], *rows.shape[2:]))

    def numbers(self, like: Any, dtype: Any = None) -> Any:
        """0, 1, 2, … for the items, in a column on the device of another array; int64 by default."""
        return self.xp.numbers(self.size, like, dtype or self.xp.int64)[:, None]

    def dtype_for(self, name: str, count: Any) -> Any:
        """The dtype of ids among `count` rows of every item: that of the argument where it holds them."""
        if isinstance(count, int):  # no symbol, and known without data
            total = count * self.size
            if count <= _INT32_MAX and total <= _INT32_MAX:
                return self.arguments[name].dtype
            self.check_count(name, count)
            self.check_count(name, total)
        return self.xp.int64

    def check_count(self, name: str, total: Any) -> None:
        """Refuse more rows in one call than the longest integers count: JAX may have those of 32 bits only."""
        longest = self.xp.highest(self.xp.int64)
        if isinstance(total, int) and total > longest:
            raise make_error("batch_too_large", argument=name, value=total, bound=longest)

    def call(self, arguments: dict[str, Any]) -> tuple[Any, ...]:
        """The op itself, one level down."""
        return self.run(self.op, arguments, self.attrs)

    def call_other(self, name: str, *arguments: Any, **attrs: Any) -> Any:
        """Another op of one output, one level down."""
        op = CATALOG[name]
        return self.run(op, dict(zip(op.input_names, arguments, strict=True)), {**op.attrs, **attrs})[0]

    def item(self, number: int) -> dict[str, Any]:
        """The arguments of one item."""
        return {k: v[number] if k in self.batched else v for k, v in self.arguments.items()}


# -- vmap for ops on rows ---------------------------------------------------------------------------------------------

# vmap for ops on rows: all items in one call, their rows beside each other or one after the other.
#
# *Beside each other* (`_wide`): rows get the items as another dimension, ids stay as they are. It serves where only
# rows differ, and every column is worked on by itself.
#
# *One after the other* (`_stacked`): the tables of all items become one table and the batches of ids one batch, in
# which the ids of item b are moved up by b times the size of what they are numbers of. An id that is outside of its
# own item becomes -1, which every kernel refuses, so none reaches the rows of another item. Items keep their order
# and so does everything inside them: additions are the same, bit for bit.


def batch_rows(batch: Batch) -> Outputs:
    """An op on rows for all items in one call."""
    return _wide(batch) if _is_wide(batch) else _stacked(batch)


def _is_wide(batch: Batch) -> bool:
    """Whether to put items beside each other: where that is right, and turns round no more rows than ids name."""
    if not KERNELS[str(batch.op.kernel)].columnwise or batch.batched != set(batch.op.linear):
        return False
    (name,) = batch.batched
    if name == "grad" or batch.in_dims[name] == 1:
        return True
    rows, ids = batch.rows_of(name), batch.rows_of("indices")
    return not isinstance(rows, int) or not isinstance(ids, int) or rows <= ids


def _wide(batch: Batch) -> Outputs:
    (name,) = batch.batched
    rows_type = next(a.type for a in batch.op.inputs if a.name == name)
    outputs = batch.call({**batch.arguments, name: batch.xp.moveaxis(batch.arguments[name], 0, 1)})
    return outputs, tuple(1 if o.type == rows_type else None for o in batch.op.outputs)


def _stacked(batch: Batch) -> Outputs:
    layout = KERNELS[str(batch.op.kernel)].layout
    assert layout is not None, batch.op.kernel
    forms = {name: form for name, form in layout.arguments.items() if name in batch.arguments}
    sizes = _sizes(batch, forms)
    alone = {f.rows for name, f in forms.items() if f.shared and name not in batch.batched}
    stacked = {name: _stack(batch, name, form, sizes, alone) for name, form in forms.items()}
    outputs = batch.call({name: stacked[name] for name in batch.op.input_names})
    parted = (_part(batch, o, sizes[form.rows]) for o, form in zip(outputs, layout.outputs, strict=True))
    return tuple(parted), (0,) * len(outputs)


def _sizes(batch: Batch, forms: dict[str, Stacking]) -> dict[str, Any]:
    """How many rows of each kind an item has."""
    sizes: dict[str, Any] = {}
    for name, form in forms.items():
        if form.rows != ".":
            value = batch.arguments[name]
            sizes.setdefault(form.rows, batch.rows_of(name) if batch.xp.is_array(value) else value)
    if "segment_ids" in forms and "S" not in sizes:  # as many as the last id says, which no tracer may be asked for
        sizes["S"] = batch.xp.count(batch.arguments["segment_ids"])
    return sizes


def _stack(batch: Batch, name: str, form: Stacking, sizes: dict[str, Any], alone: set[str]) -> Any:
    xp, value = batch.xp, batch.arguments[name]
    if not xp.is_array(value):
        return value * batch.size
    if form.rows == ".":
        return xp.concat([xp.zeros((1,), value), value], 0) if form.into == "#" else value
    if form.rows in alone:
        return value
    if form.into == "#":
        rows = batch.each(name)
        numbers = xp.broadcast_to(batch.numbers(value, value.dtype)[:, :, None], (*rows.shape[:2], 1))
        return batch.joined(xp.concat([numbers, rows], 2))
    if form.into and form.into not in alone:
        return batch.joined(_shifted(batch, name, sizes[form.into]))
    return batch.joined(batch.each(name)[:, : sizes[form.rows]])


def _shifted(batch: Batch, name: str, size: Any) -> Any:
    """Ids among the rows of all items; -1 for those that are no rows of their own item."""
    xp, dtype = batch.xp, batch.dtype_for(name, size)
    ids = xp.astype(batch.arguments[name], dtype)
    return xp.where((ids >= 0) & (ids < size), ids + batch.numbers(ids, dtype) * size, -1)


def batch_elements(batch: Batch) -> Outputs:
    """Ops that work on every element by itself."""
    return batch.call(dict(batch.arguments)), (0,)


def batch_offsets(batch: Batch) -> Outputs:
    """SegmentIdsFromOffsets: the bags of all items one after the other. An end is one more bag, which has no ids."""
    xp, given, ids = batch.xp, batch.arguments["offsets"], batch.arguments["num_ids"]
    bags = given.shape[1]
    for count in (ids, ids * batch.size, bags * batch.size):
        batch.check_count("offsets", count)
    offsets = xp.astype(given, xp.int64)
    column = xp.numbers(bags, offsets, xp.int64)
    good = (offsets >= 0) & (offsets <= ids) & ((offsets == 0) | (column > 0))
    if batch.attrs["include_last_offset"]:
        good = good & ((offsets == ids) | (column < bags - 1))
    number = batch.numbers(offsets)
    stacked = xp.where(good, offsets + number * ids, -1)  # -1 falls, or does not begin at 0
    (segments,) = batch.call({"offsets": batch.joined(stacked), "num_ids": ids * batch.size})
    return (xp.astype(xp.reshape(segments, (batch.size, ids)) - number * bags, given.dtype),), (0,)


def _part(batch: Batch, rows: Any, size: Any) -> Any:
    """The rows of each item."""
    if batch.xp.is_array(size):
        size = rows.shape[0] // batch.size if batch.size else int(size)
    return batch.xp.reshape(rows, (batch.size, size, *rows.shape[1:]))


# -- vmap for ops that move the values of a list ----------------------------------------------------------------------

# vmap for ops that move the values of a list: each value goes to a place that does not depend on it.


def batch_moved(batch: Batch) -> Outputs:
    """Ops that only move values: the kernel moves their positions, then every item's values are picked by these."""
    xp = batch.xp
    columns: list[Any] = []
    positions: dict[str, Any] = {}
    first = 0
    for name in (a.name for a in batch.op.inputs if a.type == "T"):
        each = batch.each(name)
        scalar = each.ndim == 1  # a default value: a list of one
        column = each[:, None] if scalar else each
        batch.check_count(name, first + column.shape[1])
        numbers = xp.numbers(column.shape[1], each, xp.int64) + first
        positions[name] = numbers[0] if scalar else numbers
        columns.append(column)
        first += column.shape[1]
    outputs = batch.call({**batch.arguments, **positions})
    pool = xp.concat(columns, 1)
    is_moved = [o.type == "T" for o in batch.op.outputs]
    picked = (xp.pick(pool, o) if m else o for o, m in zip(outputs, is_moved, strict=True))
    return tuple(picked), tuple(0 if m else None for m in is_moved)


def batch_fill_grad(batch: Batch) -> Outputs:
    """FillEmptyRowsGrad: the map picks values; those it does not name are added up, each item's by itself."""
    xp, grad = batch.xp, batch.each("grad_values")
    batch.check_count("grad_values", batch.size * (grad.shape[1] + 1))
    grad = xp.concat([grad, xp.zeros((batch.size, 1), grad)], 1)
    map_, named, is_good = _read_map(batch)
    # The zero at the end has the item's number only if the map is good: else the kernel refuses it.
    item = batch.numbers(grad)
    every = xp.broadcast_to(item, (batch.size, grad.shape[1] - 1))
    items = xp.concat([every, xp.where(is_good, item, -1)], 1)
    unnamed = xp.where(named, 0, grad)
    return (xp.pick(grad, map_), _add_up(batch, xp.reshape(unnamed, (-1,)), xp.reshape(items, (-1,)))), (0, 0)


def batch_fill_grad_grad(batch: Batch) -> Outputs:
    """FillEmptyRowsGradGrad: rows like any other; a default that differs is picked where the map names nothing."""
    if "dd_default_value" not in batch.batched:
        return batch_rows(batch)
    xp, default = batch.xp, batch.arguments["dd_default_value"]
    (values,), _ = batch_rows(batch.with_shared(dd_default_value=xp.zeros((), default)))
    _, named, _ = _read_map(batch)
    size = values.shape[1]
    index = xp.where(named[:, :size], xp.numbers(size, values, xp.int64), size)
    return (xp.pick(xp.concat([values, default[:, None]], 1), index),), (0,)


def _read_map(batch: Batch) -> tuple[Any, Any, Any]:
    """The map with bad positions at the end, which positions it names, whether all were good; one row where shared."""
    xp, size = batch.xp, batch.rows_of("grad_values")
    map_ = batch.arguments["reverse_index_map"]
    map_ = map_ if "reverse_index_map" in batch.batched else map_[None]
    good = (map_ >= 0) & (map_ < size)
    map_ = xp.where(good, map_, size)
    return map_, xp.named(map_, size + 1), xp.all(good, 1, True)


def _add_up(batch: Batch, values: Any, items: Any) -> Any:
    """Every item's sum in T itself, in order: for 16-bit floats only the weighted gradient rounds at every add."""
    xp = batch.xp
    if values.dtype not in xp.short_floats:
        return batch.call_other("ScatterRows", values, items, batch.size)
    ids = xp.numbers(values.shape[0], values, xp.int64)
    ones = xp.astype(xp.ones_like(values), xp.float32)
    name = "WeightedSparseSegmentSumGrad"
    return batch.call_other(name, values, items, ids, ones, batch.size, accumulate="T")


# -- A batch of calls as one call -------------------------------------------------------------------------------------

# A batch of calls as one call: what vmap does, by a rule per kernel, over whatever arrays `xp` stands for.
#
# What the rules promise: each item's result has the bits of the call on that item alone, and whatever that call
# refuses is refused, in its words. A rule may meet arrays of an outer transform or of a tracer, so none looks at data
# to decide.
#
# `xp` has names of the array standard (`where`, `concat`, `stack`, `reshape`, `broadcast_to`, `moveaxis`, `astype`,
# `all`, `ones_like`), the dtypes `int64` (the longest integers there are) and `float32`, the set `short_floats`, and
#
# - `admit(op, arguments)`: by name the value as rules handle it, and its aval;
# - `sizes(value)`: sizes as shape rules see them; `is_array(value)`: whether it is no size; `highest(dtype)`;
# - `numbers(stop, like, dtype)`: 0, 1, 2, … on the device of `like`; `zeros(shape, like)`: of its dtype too;
# - `count(ids)`: the last id plus one, as an int or an array;
# - `pick(pool, index)`: pool[b, index[b, i]];
# - `named(index, size)`: which of `size` positions each row of `index` names.


def batched(
    xp: Any,
    op: Op,
    attrs: Mapping[str, Any],
    batch_size: int,
    values: Sequence[Any],
    in_dims: Sequence[Any],
    run: Run,
) -> Outputs:
    """A kernel op for every item of a batch: outputs, and where each has the batch (None: it is one for all)."""
    dims = {n: d if isinstance(d, int) else None for n, d in zip(op.input_names, in_dims, strict=True)}
    _refuse_fixed(op, dims)
    if op.without_plan:  # the plan of one item's ids is not that of all items'
        without = CATALOG[op.without_plan]
        values = [v for n, v in zip(op.input_names, values, strict=True) if n in without.input_names]
        return batched(xp, without, attrs, batch_size, values, [dims[n] for n in without.input_names], run)
    rule = RULES[KERNELS[str(op.kernel)].vmap]
    admitted = xp.admit(op, dict(zip(op.input_names, values, strict=True)))
    batch = _batch(xp, op, attrs, batch_size, admitted, dims, run)
    _refuse_deciding(batch)
    try:
        return rule(batch)
    except (ResourceExhaustedError, UnimplementedError):
        raise
    except OpError as error:
        return _one_by_one(batch, error)


def _batch(
    xp: Any,
    op: Op,
    attrs: Mapping[str, Any],
    size: int,
    admitted: Mapping[str, tuple[Any, Aval]],
    dims: Mapping[str, int | None],
    run: Run,
) -> Batch:
    arguments: dict[str, Any] = {}
    avals: dict[str, Aval] = {}
    for name, dim in dims.items():  # in the op's order, which admission does not keep
        value, aval = admitted[name]
        if dim is not None:
            value = xp.moveaxis(value, dim, 0)
            aval = Aval(aval.dtype, tuple(value.shape)[1:])
        arguments[name], avals[name] = value, Aval(aval.dtype, xp.sizes(aval.shape))
    host = {arg.name: xp.sizes(arguments[arg.name]) for arg in op.inputs if arg.host}
    outputs = infer(op, avals, host, attrs)  # refuses what no item could be
    named = frozenset(name for name, dim in dims.items() if dim is not None)
    return Batch(xp, op, attrs, size, arguments, named, dims, outputs, run)


def _one_by_one(batch: Batch, refusal: OpError) -> Outputs:
    """The call was refused. Whose fault was it? If no item's, only their number was too much for one call."""
    results = []
    for number in range(batch.size):
        try:
            results.append(batch.call(batch.item(number)))
        except OpError as error:
            error.add_note(f"in item {number} of the batch")
            raise error from None
    if not results:
        raise refusal
    return tuple(batch.xp.stack(outputs) for outputs in zip(*results, strict=True)), (0,) * len(batch.op.outputs)


# -- what cannot be batched --------------------------------------------------------------------------------------------

_FIXED = {
    **dict.fromkeys(PLAN, "use the op that takes ids in place of a plan"),
    "sorted_ids": "it is the list all items share",
    "input_start": "subtract it from input_indices, and pass zeros",
}


def _refuse_fixed(op: Op, dims: Mapping[str, int | None]) -> None:
    """Arguments that are one for all items whatever the rest, and ops that have no rule at all."""
    kernel = KERNELS[str(op.kernel)]
    general = None if kernel.vmap else kernel.no_vmap
    for arg in op.inputs:
        reason = "it determines a shape" if arg.host else _FIXED.get(arg.name, general)
        if arg.role == "ids":
            reason = reason or kernel.shared_ids or None
        if dims[arg.name] is not None and reason is not None:
            raise make_error("batch_unfit", argument=arg.name, bound=reason)


def _refuse_deciding(batch: Batch) -> None:
    """Ids that decide how many rows come out are one list for all items."""
    if any(d is None for aval in batch.outputs for d in aval.shape):
        for arg in batch.op.inputs:
            if arg.name in batch.batched and arg.role == "ids":
                raise make_error("batch_unfit", argument=arg.name, bound=_advice(batch.op))


def _advice(op: Op) -> str:
    if op.sized:
        return f"use {op.sized}, whose number of output rows is given"
    if op.dense:
        return f"use {op.dense}, which returns all rows"
    return "it decides how many rows come out"


# By the name a KernelSpec has for it.
RULES: dict[str, Callable[[Batch], Outputs]] = {
    "rows": batch_rows,
    "elements": batch_elements,
    "offsets": batch_offsets,
    "moved": batch_moved,
    "fill_grad": batch_fill_grad,
    "fill_grad_grad": batch_fill_grad_grad,
}
