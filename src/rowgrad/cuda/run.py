"""A kernel op on a device: the call is put together, faults of earlier calls are raised, its kernels are queued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import refuse
from ..spec import Op
from . import families  # noqa: F401  (it enters every family into the table)
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
    """Queue an op. `captured`: a CUDA graph is being recorded, so nothing may wait."""
    runner = RUNNERS.get(str(op.kernel))
    if runner is None:
        raise refuse("no_kernel_for_device", argument=op.inputs[0].name, value="cuda", bound="cpu")
    ledger = device.ledger
    ledger.raise_told()
    slot = ledger.take(op, captured)
    try:
        results = runner(Call(op, inputs, attrs, outputs, device, slot, captured))
    except torch.OutOfMemoryError as error:
        most = max(value.numel() for value in inputs if isinstance(value, Tensor))
        raise refuse("out_of_memory", value=most, bound=device.memory) from error
    if mode() == "sync" and not captured:
        device.wait()
        ledger.raise_told(slot)
    return results
