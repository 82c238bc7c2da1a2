"""vmap for ops that move the values of a list: each value goes to a place that does not depend on it."""

from __future__ import annotations

import torch
from torch import Tensor

from .vmap_batch import Batch, Outputs
from .vmap_rows import batch_rows


def batch_moved(batch: Batch) -> Outputs:
    """Ops that only move values: the kernel moves their positions, then every item's values are picked by these."""
    columns: list[Tensor] = []
    positions: dict[str, Tensor] = {}
    first = 0
    for name in (a.name for a in batch.op.inputs if a.type == "T"):
        each = batch.each(name)
        scalar = each.ndim == 1  # a default value: a list of one
        column = each.unsqueeze(1) if scalar else each
        numbers = torch.arange(first, first + column.shape[1], device=each.device)
        positions[name] = numbers.squeeze(0) if scalar else numbers
        columns.append(column)
        first += column.shape[1]
    outputs = batch.call({**batch.arguments, **positions})
    pool = torch.cat(columns, dim=1)
    is_moved = [o.type == "T" for o in batch.op.outputs]
    picked = (_pick(batch, pool, o) if m else o for o, m in zip(outputs, is_moved, strict=True))
    return tuple(picked), tuple(0 if m else None for m in is_moved)


def batch_fill_grad(batch: Batch) -> Outputs:
    """FillEmptyRowsGrad: the map picks values; those it does not name are added up, each item's by itself."""
    grad = batch.each("grad_values")
    grad = torch.cat([grad, grad.new_zeros(batch.size, 1)], dim=1)
    map_, named, is_good = _read_map(batch)
    # The zero at the end has the item's number only if the map is good: else the kernel refuses it.
    item = batch.numbers(grad).unsqueeze(1)
    items = torch.cat([item.expand(-1, grad.shape[1] - 1), torch.where(is_good, item, -1)], dim=1)
    unnamed = torch.where(named, 0, grad)
    return (_pick(batch, grad, map_), _add_up(batch, unnamed.flatten(), items.flatten())), (0, 0)


def batch_fill_grad_grad(batch: Batch) -> Outputs:
    """FillEmptyRowsGradGrad: rows like any other; a default that differs is picked where the map names nothing."""
    if "dd_default_value" not in batch.batched:
        return batch_rows(batch)
    default: Tensor = batch.arguments["dd_default_value"]
    (values,), _ = batch_rows(batch.with_shared(dd_default_value=default.new_zeros(())))
    _, named, _ = _read_map(batch)
    size = values.shape[1]
    index = torch.where(named[:, :size], torch.arange(size, device=values.device), size)
    return (_pick(batch, torch.cat([values, default.unsqueeze(1)], dim=1), index),), (0,)


def _read_map(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The map with bad positions at the end, which positions it names, whether all were good; one row where shared."""
    size = batch.rows_of("grad_values")
    map_: Tensor = batch.arguments["reverse_index_map"]
    map_ = map_ if "reverse_index_map" in batch.batched else map_.unsqueeze(0)
    good = (map_ >= 0) & (map_ < size)
    map_ = torch.where(good, map_, size)
    named = torch.zeros(map_.shape[0], size + 1, dtype=torch.bool, device=map_.device).scatter(1, map_, True)
    return map_, named, good.all(dim=1, keepdim=True)


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _pick(batch: Batch, pool: Tensor, index: Tensor) -> Tensor:
    """pool[b, index[b, i]] or, of an index that all share, pool[b, index[i]]."""
    signed = _SIGNED.get(pool.dtype)
    if signed is not None:  # torch selects no unsigned integers; a view of a dtype has no gradient, nor have they
        return _pick(batch, pool.view(signed), index).view(pool.dtype)
    first = batch.numbers(pool).unsqueeze(1) * pool.shape[1]
    picked = pool.flatten().index_select(0, (index + first).flatten())
    return picked.reshape(batch.size, index.shape[-1])


def _add_up(batch: Batch, values: Tensor, items: Tensor) -> Tensor:
    """Every item's sum in T itself, in order: for 16-bit floats only the weighted gradient rounds at every add."""
    if values.dtype not in (torch.float16, torch.bfloat16):
        return batch.call_other("ScatterRows", values, items, batch.size)
    ids = torch.arange(values.shape[0], device=values.device)
    ones = torch.ones(values.shape, dtype=torch.float32, device=values.device)
    name = "WeightedSparseSegmentSumGrad"
    return batch.call_other(name, values, items, ids, ones, batch.size, accumulate="T")
