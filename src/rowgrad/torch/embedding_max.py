"""The lookup of mode "max": the largest element of every column, bag by bag.

torch finds the row of each maximum, so ties and NaN are resolved as by `torch.nn.EmbeddingBag`. A gather of these
elements, whose gradient is deterministic, computes the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._runtime.bags import check_lengths
from ..errors import make_error
from ..raw_ops import OPS
from . import devices
from .bag_lookup import check_bags, gather_unique, lookup
from .bags import Bags, check_storages, reject_batched
from .tensors import NAME, check_storage

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def lookup_max(weight: Tensor, bags: Bags, rows: bool, sparse_in_ddp: bool) -> Tensor:
    """Return the largest element of each column of every bag's rows; zeros for empty bags.

    The gradient of an element goes to the row that had it, the first one in case of a tie.
    """
    if weight.dtype not in _FLOATS:
        bound = ", ".join(NAME[dtype] for dtype in _FLOATS)
        raise make_error("dtype_not_allowed", argument="weight", value=weight.dtype, bound=bound)
    check_lengths(bags)
    check_storages(bags)
    check_storage(weight, "weight")  # torch does not check it
    reject_batched("ids", bags.indices, "mode='max' compares rows")
    reject_batched("weight", weight, "mode='max' compares rows")
    check_bags(bags, weight.shape[0])
    if weight.shape[0] == 0 or (rows and bags.indices.shape[0] == 0):  # there is no element to gather
        return lookup(weight, bags, "Sum", rows, None, sparse_in_ddp)
    table, ids = weight, bags.indices
    if rows:
        unique, ids = torch.unique(ids, return_inverse=True)
        table = gather_unique(weight, unique, True, sparse_in_ddp)
    elif devices.is_on_gpu(ids):  # on a GPU, check_bags may raise later, and torch does not check ids
        ids = ids.clamp(0, weight.shape[0] - 1)
    table = table.flatten(1) if table.ndim > 1 else table.unsqueeze(1)
    columns = table.shape[1]
    starts, is_empty = _find_bags(bags)
    with torch.no_grad():
        largest = torch._embedding_bag(table.detach(), ids, starts.to(ids.dtype), False, 2)[3]
        largest = torch.where(is_empty, 0, largest.to(torch.int64))
        elements = largest * columns + torch.arange(columns, device=ids.device)
    found: Tensor = OPS["GatherRows"](table.reshape(-1), elements.reshape(-1), gradient="dense")
    found = torch.where(is_empty, 0.0, found.reshape(elements.shape))
    return found.reshape(found.shape[0], *weight.shape[1:])


def _find_bags(bags: Bags) -> tuple[Tensor, Tensor]:
    """Return where each bag begins, and a column that is true for empty bags."""
    segments = bags.segment_ids.contiguous()
    numbers = torch.arange(bags.num_bags, dtype=segments.dtype, device=segments.device)
    starts = torch.searchsorted(segments, numbers)
    ends = torch.searchsorted(segments, numbers, right=True)
    return starts, (starts == ends).unsqueeze(1)
