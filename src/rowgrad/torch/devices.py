"""Whose kernels a tensor is for."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def device_for(tensor: Tensor) -> Any:
    """`rowgrad.cuda`'s device for a tensor on a GPU; None for all others, which are the CPU kernels' or nobody's."""
    if not tensor.is_cuda:
        return None
    from ..cuda.device import device_of

    return device_of(tensor.device.index)
