"""vmap for ops that move the values of a list: each value goes to a place that does not depend on it."""

from __future__ import annotations

from typing import Any

from .batch import Batch, Outputs
from .rows import batch_rows


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
