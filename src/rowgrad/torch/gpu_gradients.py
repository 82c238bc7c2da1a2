"""Row-sparse gradients on a GPU whose number of rows stays there, so that the host does not wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass

from .._catalog.enums import Order, Reduction
from .._catalog.spec import CATALOG, Op
from . import devices
from .row_gradient import new_padded_rows
from .tensors import is_eager

# By forward op whose only differentiable argument is the table: the reduction, and the op that its errors name.
_GRADIENTS = {
    f"SparseSegment{r.op_suffix}{suffix}": (int(r), CATALOG[f"SparseSegment{r.op_suffix}GradV2"])
    for r in Reduction
    for suffix in ("", "WithNumSegments")
}


def row_gradient(op: Op, arguments: Mapping[str, Any], y: Any) -> Tensor | None:
    """Return the row-sparse gradient of a forward op's table, perhaps with padding; None if the ops have to compute it.

    Args:
        op: The forward op.
        arguments: Its arguments; of the table, only the shape is read.
        y: The gradient of its output.
    """
    found = _GRADIENTS.get(op.name)
    if found is None or type(y) is not Tensor or torch.is_grad_enabled() or not is_eager():
        return None
    device = devices.device_for(y)
    if device is None or device.waits() or y.layout is not torch.strided:
        return None
    reduce, gradient = found
    order, num_rows = int(Order[devices.default_order(y)]), arguments["data"].shape[0]
    with DisableTorchFunctionSubclass():
        made = device.calls.row_gradient(
            gradient, y.contiguous(), arguments["indices"], arguments["segment_ids"], num_rows, reduce, order
        )  # fmt: skip
    if made is None:
        return None
    values, rows, count = made
    return new_padded_rows(values, rows, count, num_rows)
