"""vmap for ops on rows: all items in one call, their rows beside each other or one after the other.

*Beside each other* (`_wide`): rows get the items as another dimension, ids stay as they are. It serves where only rows
differ, and every column is worked on by itself.

*One after the other* (`_stacked`): the tables of all items become one table and the batches of ids one batch, in which
the ids of item b are moved up by b times the size of what they are numbers of. An id that is outside of its own item
becomes -1, which every kernel refuses, so none reaches the rows of another item. Items keep their order and so does
everything inside them: additions are the same, bit for bit.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from .batch import Batch, Outputs


class _Form(NamedTuple):
    """How an argument or output is stacked; letters are kinds of rows, such as V for those of a table."""

    rows: str  # what its first dimension counts, or for a size: what it is the number of
    into: str  # what its values are numbers of; "#": they are coordinates, and the item's number comes before them
    shared: bool  # looked up only, so one that all items share need not be repeated


class _Layout(NamedTuple):
    arguments: dict[str, _Form]
    outputs: tuple[_Form, ...]


_FORM = re.compile(r"([\w.]+)(\??)(?:>([\w#]+))?")


def _form(text: str) -> _Form:
    match = _FORM.fullmatch(text.strip())
    assert match is not None, text
    return _Form(match[1], match[3] or "", bool(match[2]))


def _layout(text: str) -> _Layout:
    arguments, outputs = text.split("->")
    pairs = (part.split(":") for part in arguments.split(","))
    return _Layout({name.strip(): _form(form) for name, form in pairs}, tuple(map(_form, outputs.split(","))))


_BAGS = "data: V?, indices: n>V, segment_ids: n>S, weights: n, num_segments: S -> S"
_GRADIENT = "grad: S, indices: n>V, segment_ids: n>S, weights: n, output_dim0: V -> V"
_SLICED = "input_indices: n>#, input_start: .>#, output_indices: k>#"
_ADDED = "a_indices: a>#, b_indices: b>#, sum_indices: k>#"
# By kernel; an op has those of the arguments it has. "." stays as it is.
_LAYOUTS = {
    kernel: _layout(text)
    for kernel, text in {
        "sparse_segment": _BAGS,
        "sparse_segment_grad_grad": _BAGS,
        "weighted_segment": _BAGS,
        "sparse_segment_grad": _GRADIENT,
        "weighted_segment_grad": _GRADIENT,
        "weighted_segment_grad_rows": "grad: S, segment_ids: n>S, weights: n -> n",
        # counts come first: a gradient may have rows beyond the plan's segments, which nobody reads
        "planned_weighted_grad": "counts: S, grad: S, weights: n, rows: R>V, starts: R>n, segments: n>S,"
        " positions: n>n, num_rows: V -> V",
        "segment_sum": "data: n, segment_ids: n>S -> S",
        "gather_rows": "params: V?, indices: n>V -> n",
        "scatter_rows": "grad: n, indices: n>V, num_rows: V -> V",
        "row_positions": "sorted_ids: V?, ids: n -> n",
        "sparse_segment_dot": "grad: S?, data: V?, indices: n>V, segment_ids: n>S -> n",
        "row_dot": "x: n, y: n -> n",
        "fill_empty_rows_grad_grad": "reverse_index_map: n>M, dd_values: n, dd_default_value: ., grad_values: M -> M",
        "sparse_slice_grad": f"backprop_val_grad: k, {_SLICED} -> n",
        "sparse_slice_grad_grad": f"grad: n, {_SLICED} -> k",
        "sparse_add_grad": f"backprop_val_grad: k, {_ADDED} -> a, b",
        "sparse_add_grad_grad": f"da: a, db: b, {_ADDED} -> k",
    }.items()
}
# Kernels whose columns do not know of each other. Weighted bags and SegmentSum add up columns of a whole packet in
# another order than those after the last one (docs/orders.md), so more columns would change bits.
_COLUMNWISE = frozenset(
    (
        "sparse_segment",
        "sparse_segment_grad",
        "sparse_segment_grad_grad",
        "weighted_segment_grad",
        "weighted_segment_grad_rows",
        "planned_segment_grad",
        "planned_weighted_grad",
        "sparse_segment_grad_padded",
        "gather_rows",
        "scatter_rows",
    )
)

ROW_KERNELS = _COLUMNWISE | _LAYOUTS.keys()


def batch_rows(batch: Batch) -> Outputs:
    """An op on rows for all items in one call."""
    return _wide(batch) if _is_wide(batch) else _stacked(batch)


def _is_wide(batch: Batch) -> bool:
    """Whether to put items beside each other: where that is right, and turns round no more rows than ids name."""
    if batch.op.kernel not in _COLUMNWISE or batch.batched != set(batch.op.linear):
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
    layout = _LAYOUTS[str(batch.op.kernel)]
    forms = {name: form for name, form in layout.arguments.items() if name in batch.arguments}
    sizes = _sizes(batch, forms)
    alone = {f.rows for name, f in forms.items() if f.shared and name not in batch.batched}
    stacked = {name: _stack(batch, name, form, sizes, alone) for name, form in forms.items()}
    outputs = batch.call({name: stacked[name] for name in batch.op.input_names})
    parted = (_part(batch, o, sizes[form.rows]) for o, form in zip(outputs, layout.outputs, strict=True))
    return tuple(parted), (0,) * len(outputs)


def _sizes(batch: Batch, forms: dict[str, _Form]) -> dict[str, Any]:
    """How many rows of each kind an item has."""
    sizes: dict[str, Any] = {}
    for name, form in forms.items():
        if form.rows != ".":
            value = batch.arguments[name]
            sizes.setdefault(form.rows, batch.rows_of(name) if batch.xp.is_array(value) else value)
    if "segment_ids" in forms and "S" not in sizes:  # as many as the last id says, which no tracer may be asked for
        sizes["S"] = batch.xp.count(batch.arguments["segment_ids"])
    return sizes


def _stack(batch: Batch, name: str, form: _Form, sizes: dict[str, Any], alone: set[str]) -> Any:
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
