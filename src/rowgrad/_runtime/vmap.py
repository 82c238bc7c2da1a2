"""vmap rules of the kernels: a batch of calls as one call, over an array namespace `xp`.

Each item's result has the same bits as the call on that item alone, and the batch raises what that call raises. A rule
may get arrays of an outer transform or tracers, so no rule reads data to decide.

`xp` has names of the array API standard (`where`, `concat`, `stack`, `reshape`, `broadcast_to`, `moveaxis`, `astype`,
`all`, `ones_like`), the dtypes `int64` (the widest integers available) and `float32`, the set `short_floats`, and

- `admit(op, arguments)`: the converted value of each argument and its aval, by name;
- `sizes(value)`: sizes as shape rules read them; `is_array(value)`: whether it is not a size; `highest(dtype)`;
- `numbers(stop, like, dtype)`: 0, 1, 2, … on the device of `like`; `zeros(shape, like)`: with the dtype of `like` too;
- `count(ids)`: the last id plus one, as an int or an array;
- `pick(pool, index)`: pool[b, index[b, i]];
- `named(index, size)`: which of `size` positions each row of `index` names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._catalog.kernels import KERNELS, Stacking
from .._catalog.spec import CATALOG, PLAN, Aval, Op
from ..errors import OpError, ResourceExhaustedError, UnimplementedError, make_error
from .validation import infer

Run = Callable[[Op, dict[str, Any], Mapping[str, Any]], tuple[Any, ...]]
Outputs = tuple[tuple[Any, ...], tuple[int | None, ...]]  # and the batch dimension of each; None: not batched

_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True)
class Batch:
    """One op with the arguments of all items of a batch."""

    xp: Any  # the namespace of its arrays
    op: Op
    attrs: Mapping[str, Any]
    size: int  # the number of items
    arguments: Mapping[str, Any]  # arrays, those of `batched` with the batch dimension first; host values
    batched: frozenset[str]
    in_dims: Mapping[str, int | None]  # the batch dimension in the original call
    outputs: tuple[Aval, ...]  # of one item; data-dependent dimensions are None
    run: Run  # calls an op one vmap level below

    def with_shared(self, **arguments: Any) -> Batch:
        """Return the batch with arguments that all items share."""
        changed = {**self.arguments, **arguments}
        return replace(self, arguments=changed, batched=self.batched - arguments.keys())

    def rows_of(self, name: str) -> Any:
        """Return the first dimension of an argument of one item."""
        return self.arguments[name].shape[1 if name in self.batched else 0]

    def each(self, name: str) -> Any:
        """Return an argument with the batch dimension first; a shared one is broadcast."""
        value = self.arguments[name]
        return value if name in self.batched else self.xp.broadcast_to(value, (self.size, *value.shape))

    def joined(self, rows: Any) -> Any:
        """Concatenate the rows of all items."""
        return self.xp.reshape(rows, (rows.shape[0] * rows.shape[1], *rows.shape[2:]))

    def numbers(self, like: Any, dtype: Any = None) -> Any:
        """Return the item numbers as a column on the device of `like`; int64 by default."""
        return self.xp.numbers(self.size, like, dtype or self.xp.int64)[:, None]

    def dtype_for(self, name: str, count: Any) -> Any:
        """Return a dtype for ids among `count` rows per item: that of the argument if it is wide enough."""
        if isinstance(count, int):  # not symbolic, and known without data
            total = count * self.size
            if count <= _INT32_MAX and total <= _INT32_MAX:
                return self.arguments[name].dtype
            self.check_count(name, count)
            self.check_count(name, total)
        return self.xp.int64

    def check_count(self, name: str, total: Any) -> None:
        """Raise if the widest integers cannot count the rows: JAX may have only 32 bits."""
        longest = self.xp.highest(self.xp.int64)
        if isinstance(total, int) and total > longest:
            raise make_error("batch_too_large", argument=name, value=total, bound=longest)

    def call(self, arguments: dict[str, Any]) -> tuple[Any, ...]:
        """Call this op one vmap level below."""
        return self.run(self.op, arguments, self.attrs)

    def call_other(self, name: str, *arguments: Any, **attrs: Any) -> Any:
        """Call another op with one output one vmap level below."""
        op = CATALOG[name]
        return self.run(op, dict(zip(op.input_names, arguments, strict=True)), {**op.attrs, **attrs})[0]

    def item(self, number: int) -> dict[str, Any]:
        """Return the arguments of one item."""
        return {k: v[number] if k in self.batched else v for k, v in self.arguments.items()}


# -- Ops on rows ------------------------------------------------------------------------------------------------------
#
# Wide (`_wide`): the batch becomes another dimension of the rows, and ids stay unchanged. Used if only rows differ
# between items and columns are independent.
#
# Stacked (`_stacked`): the tables of all items become one table, and their ids one list in which the ids of item b are
# shifted by b times the number of rows per item. An id out of range for its item becomes -1, which every kernel
# rejects, so it never reaches the rows of another item. The order of entries is preserved, so sums have the same bits.


def batch_rows(batch: Batch) -> Outputs:
    """Run an op on rows for all items in one call."""
    return _wide(batch) if _is_wide(batch) else _stacked(batch)


def _is_wide(batch: Batch) -> bool:
    """Return whether to use the wide layout: it must be valid, and transpose no more rows than there are ids."""
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
    stackings = {name: stacking for name, stacking in layout.arguments.items() if name in batch.arguments}
    sizes = _sizes(batch, stackings)
    alone = {f.rows for name, f in stackings.items() if f.shared and name not in batch.batched}
    stacked = {name: _stack(batch, name, stacking, sizes, alone) for name, stacking in stackings.items()}
    outputs = batch.call({name: stacked[name] for name in batch.op.input_names})
    parted = (_part(batch, o, sizes[stacking.rows]) for o, stacking in zip(outputs, layout.outputs, strict=True))
    return tuple(parted), (0,) * len(outputs)


def _sizes(batch: Batch, stackings: dict[str, Stacking]) -> dict[str, Any]:
    """Return the number of rows of each kind per item."""
    sizes: dict[str, Any] = {}
    for name, stacking in stackings.items():
        if stacking.rows != ".":
            value = batch.arguments[name]
            sizes.setdefault(stacking.rows, batch.rows_of(name) if batch.xp.is_array(value) else value)
    if "segment_ids" in stackings and "S" not in sizes:  # from the last id, which may be traced
        sizes["S"] = batch.xp.count(batch.arguments["segment_ids"])
    return sizes


def _stack(batch: Batch, name: str, stacking: Stacking, sizes: dict[str, Any], alone: set[str]) -> Any:
    xp, value = batch.xp, batch.arguments[name]
    if not xp.is_array(value):
        return value * batch.size
    if stacking.rows == ".":
        return xp.concat([xp.zeros((1,), value), value], 0) if stacking.into == "#" else value
    if stacking.rows in alone:
        return value
    if stacking.into == "#":
        rows = batch.each(name)
        numbers = xp.broadcast_to(batch.numbers(value, value.dtype)[:, :, None], (*rows.shape[:2], 1))
        return batch.joined(xp.concat([numbers, rows], 2))
    if stacking.into and stacking.into not in alone:
        return batch.joined(_shifted(batch, name, sizes[stacking.into]))
    return batch.joined(batch.each(name)[:, : sizes[stacking.rows]])


def _shifted(batch: Batch, name: str, size: Any) -> Any:
    """Return ids among the rows of all items; -1 for ids out of range for their item."""
    xp, dtype = batch.xp, batch.dtype_for(name, size)
    ids = xp.astype(batch.arguments[name], dtype)
    return xp.where((ids >= 0) & (ids < size), ids + batch.numbers(ids, dtype) * size, -1)


def batch_elements(batch: Batch) -> Outputs:
    """Run an elementwise op."""
    return batch.call(dict(batch.arguments)), (0,)


def batch_offsets(batch: Batch) -> Outputs:
    """SegmentIdsFromOffsets: concatenate the bags of all items. A last offset counts as one more, empty bag."""
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
    stacked = xp.where(good, offsets + number * ids, -1)  # -1 is an error: offsets decrease or do not begin at 0
    (segments,) = batch.call({"offsets": batch.joined(stacked), "num_ids": ids * batch.size})
    return (xp.astype(xp.reshape(segments, (batch.size, ids)) - number * bags, given.dtype),), (0,)


def _part(batch: Batch, rows: Any, size: Any) -> Any:
    """Split rows by item."""
    if batch.xp.is_array(size):
        size = rows.shape[0] // batch.size if batch.size else int(size)
    return batch.xp.reshape(rows, (batch.size, size, *rows.shape[1:]))


# -- Ops that move values to places that do not depend on the values --------------------------------------------------


def batch_moved(batch: Batch) -> Outputs:
    """Run the kernel once on positions, then pick the values of each item by the moved positions."""
    xp = batch.xp
    columns: list[Any] = []
    positions: dict[str, Any] = {}
    first = 0
    for name in (a.name for a in batch.op.inputs if a.type == "T"):
        each = batch.each(name)
        scalar = each.ndim == 1  # a default value, treated as a list of one
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
    """FillEmptyRowsGrad: pick the values that the map names, and sum the others per item."""
    xp, grad = batch.xp, batch.each("grad_values")
    batch.check_count("grad_values", batch.size * (grad.shape[1] + 1))
    grad = xp.concat([grad, xp.zeros((batch.size, 1), grad)], 1)
    map_, named, is_good = _read_map(batch)
    # The zero at the end has the item's number only if the map is valid; otherwise -1, which the kernel rejects.
    item = batch.numbers(grad)
    every = xp.broadcast_to(item, (batch.size, grad.shape[1] - 1))
    items = xp.concat([every, xp.where(is_good, item, -1)], 1)
    unnamed = xp.where(named, 0, grad)
    return (xp.pick(grad, map_), _add_up(batch, xp.reshape(unnamed, (-1,)), xp.reshape(items, (-1,)))), (0, 0)


def batch_fill_grad_grad(batch: Batch) -> Outputs:
    """FillEmptyRowsGradGrad: as an op on rows; a batched default value is picked where the map names no row."""
    if "dd_default_value" not in batch.batched:
        return batch_rows(batch)
    xp, default = batch.xp, batch.arguments["dd_default_value"]
    (values,), _ = batch_rows(batch.with_shared(dd_default_value=xp.zeros((), default)))
    _, named, _ = _read_map(batch)
    size = values.shape[1]
    index = xp.where(named[:, :size], xp.numbers(size, values, xp.int64), size)
    return (xp.pick(xp.concat([values, default[:, None]], 1), index),), (0,)


def _read_map(batch: Batch) -> tuple[Any, Any, Any]:
    """Return the map with invalid positions set to the end, the named positions, and whether all are valid."""
    xp, size = batch.xp, batch.rows_of("grad_values")
    map_ = batch.arguments["reverse_index_map"]
    map_ = map_ if "reverse_index_map" in batch.batched else map_[None]
    good = (map_ >= 0) & (map_ < size)
    map_ = xp.where(good, map_, size)
    return map_, xp.named(map_, size + 1), xp.all(good, 1, True)


def _add_up(batch: Batch, values: Any, items: Any) -> Any:
    """Sum per item in T, in order: only the weighted gradient rounds 16-bit floats after each addition."""
    xp = batch.xp
    if values.dtype not in xp.short_floats:
        return batch.call_other("ScatterRows", values, items, batch.size)
    ids = xp.numbers(values.shape[0], values, xp.int64)
    ones = xp.astype(xp.ones_like(values), xp.float32)
    name = "WeightedSparseSegmentSumGrad"
    return batch.call_other(name, values, items, ids, ones, batch.size, accumulate="T")


# -- Entry point ------------------------------------------------------------------------------------------------------


def batched(
    xp: Any,
    op: Op,
    attrs: Mapping[str, Any],
    batch_size: int,
    values: Sequence[Any],
    in_dims: Sequence[Any],
    run: Run,
) -> Outputs:
    """Run a kernel op for each item; return the outputs and their batch dimensions (None: shared)."""
    dims = {n: d if isinstance(d, int) else None for n, d in zip(op.input_names, in_dims, strict=True)}
    _reject_fixed_arguments(op, dims)
    if op.without_plan:  # a plan of one item's ids is not valid for the batch
        without = CATALOG[op.without_plan]
        values = [v for n, v in zip(op.input_names, values, strict=True) if n in without.input_names]
        return batched(xp, without, attrs, batch_size, values, [dims[n] for n in without.input_names], run)
    rule = RULES[KERNELS[str(op.kernel)].vmap]
    admitted = xp.admit(op, dict(zip(op.input_names, values, strict=True)))
    batch = _batch(xp, op, attrs, batch_size, admitted, dims, run)
    _reject_data_dependent_sizes(batch)
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
    for name, dim in dims.items():  # in the op's order, which `admit` does not preserve
        value, aval = admitted[name]
        if dim is not None:
            value = xp.moveaxis(value, dim, 0)
            aval = Aval(aval.dtype, tuple(value.shape)[1:])
        arguments[name], avals[name] = value, Aval(aval.dtype, xp.sizes(aval.shape))
    host = {arg.name: xp.sizes(arguments[arg.name]) for arg in op.inputs if arg.host}
    outputs = infer(op, avals, host, attrs)  # raises for arguments that are invalid for every item
    named = frozenset(name for name, dim in dims.items() if dim is not None)
    return Batch(xp, op, attrs, size, arguments, named, dims, outputs, run)


def _one_by_one(batch: Batch, first_error: OpError) -> Outputs:
    """Run items separately after an error, to raise that of the first bad item; if all succeed, return the results."""
    results = []
    for number in range(batch.size):
        try:
            results.append(batch.call(batch.item(number)))
        except OpError as error:
            error.add_note(f"in item {number} of the batch")
            raise error from None
    if not results:
        raise first_error
    return tuple(batch.xp.stack(outputs) for outputs in zip(*results, strict=True)), (0,) * len(batch.op.outputs)


# -- Unsupported batches ----------------------------------------------------------------------------------------------

_FIXED = {
    **dict.fromkeys(PLAN, "use the op that takes ids in place of a plan"),
    "sorted_ids": "it is the list that all items share",
    "input_start": "subtract it from input_indices, and pass zeros",
}


def _reject_fixed_arguments(op: Op, dims: Mapping[str, int | None]) -> None:
    """Raise if an argument that all items must share is batched, or the op has no rule."""
    kernel = KERNELS[str(op.kernel)]
    general = None if kernel.vmap else kernel.no_vmap
    for arg in op.inputs:
        reason = "it determines a shape" if arg.host else _FIXED.get(arg.name, general)
        if arg.role == "ids":
            reason = reason or kernel.shared_ids or None
        if dims[arg.name] is not None and reason is not None:
            raise make_error("batch_unfit", argument=arg.name, bound=reason)


def _reject_data_dependent_sizes(batch: Batch) -> None:
    """Raise if batched ids determine the number of output rows."""
    if any(d is None for aval in batch.outputs for d in aval.shape):
        for arg in batch.op.inputs:
            if arg.name in batch.batched and arg.role == "ids":
                raise make_error("batch_unfit", argument=arg.name, bound=_advice(batch.op))


def _advice(op: Op) -> str:
    if op.sized:
        return f"use {op.sized}, which takes the number of output rows"
    if op.dense:
        return f"use {op.dense}, which returns all rows"
    return "it determines the number of output rows"


# By the name in KernelSpec.vmap.
RULES: dict[str, Callable[[Batch], Outputs]] = {
    "rows": batch_rows,
    "elements": batch_elements,
    "offsets": batch_offsets,
    "moved": batch_moved,
    "fill_grad": batch_fill_grad,
    "fill_grad_grad": batch_fill_grad_grad,
}
