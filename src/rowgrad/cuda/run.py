"""Run one kernel op on CUDA tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._catalog.spec import Op
from ..errors import make_error

# Importing a family registers its kernels in RUNNERS.
from . import bag_ids as bag_ids
from . import features as features
from . import fill_rows as fill_rows
from . import row_plan as row_plan
from . import rows as rows
from . import sparse_coo as sparse_coo
from . import sparse_segment as sparse_segment
from . import updates as updates
from . import weighted_segment as weighted_segment
from .call import RUNNERS, Call
from .device import Device
from .faults import mode


def run(
    op: Op,
    inputs: Sequence[Any],
    attrs: Sequence[int],
    outputs: Sequence[tuple[tuple[int | None, ...], torch.dtype]],
    device: Device,
    captured: bool = False,
) -> tuple[Tensor, ...]:
    """Raise faults of earlier calls, then queue an op. `captured`: a CUDA graph is captured, so do not synchronize."""
    runner = RUNNERS.get(str(op.kernel))
    if runner is None:
        raise make_error("no_kernel_for_device", argument=op.inputs[0].name, value="cuda", bound="cpu")
    ledger = device.ledger
    ledger.raise_reported()
    slot = ledger.take(op, captured)
    try:
        results = runner(Call(op, inputs, attrs, outputs, device, slot, captured))
    except torch.OutOfMemoryError as error:
        most = max(value.numel() for value in inputs if isinstance(value, Tensor))
        raise make_error("out_of_memory", value=most, bound=device.memory) from error
    if mode() == "sync" and not captured:
        device.wait()
        ledger.raise_reported(slot)
    return results
