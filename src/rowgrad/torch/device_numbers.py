"""Numbers of a step that stay on a GPU: a learning rate in a tensor, and the count of steps with `capturable=True`.

Kernels read them when they run, so the replays of a CUDA graph follow a schedule and count their steps. The host reads
neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .._catalog.rules import Step
from ..errors import make_error
from . import devices
from .row_state import is_dtensor

Tensor = Any  # torch's annotations lack the attributes used here


class OnDevice(NamedTuple):
    """Tensors from which kernels read numbers; None: the host has the number."""

    lr: Tensor | None = None
    steps: Tensor | None = None  # how many are completed, which the kernel increases


ON_HOST = OnDevice()


@dataclass(frozen=True, slots=True)
class DeviceStep(Step):
    """A step some of whose numbers are on a device; `lr`, `rate` and `step` have no meaning if they are read there."""

    tensors: OnDevice = ON_HOST

    @property
    def _on_device(self) -> tuple[int, bool, int]:  # type: ignore[override]
        """The addresses that kernels read."""
        lr, steps = self.tensors
        return (
            0 if lr is None else lr.data_ptr(),
            lr is not None and lr.dtype == torch.float64,
            0 if steps is None else steps.data_ptr(),
        )


def numbers_on_device(group: Mapping[str, Any], state: dict[str, Any], param: Tensor) -> OnDevice:
    """Return the numbers of a parameter's next step that kernels read on its device; `state` has a step count."""
    lr = group["lr"]
    is_tensor = isinstance(lr, torch.Tensor)
    if (not is_tensor and not group["capturable"]) or not devices.is_on_gpu(param):
        return ON_HOST
    local = param.to_local() if is_dtensor(param) else param
    return OnDevice(
        _learning_rate(lr, local.device) if is_tensor and devices.is_on_gpu(lr) else None,
        _count(state, local.device) if group["capturable"] else None,
    )


def _learning_rate(lr: Tensor, device: torch.device) -> Tensor | None:
    """Return a learning rate as kernels read it; None if it is not a number, which raises elsewhere."""
    if lr.numel() != 1 or lr.is_complex():
        return None
    if lr.device == device and lr.dtype in (torch.float32, torch.float64) and not lr.is_neg():
        return lr
    return lr.detach().to(device=device, dtype=torch.float64, copy=True)


def _count(state: dict[str, Any], device: torch.device) -> Tensor:
    """Return the count of steps, a tensor on the device; make it one if it is not."""
    count = state["step"]
    if isinstance(count, torch.Tensor) and count.dtype == torch.float64 and count.device == device:
        return count
    if devices.is_captured():  # every replay would start from this count
        raise make_error("step_first_captured")
    state["step"] = count = count_tensor(count, device)
    return count


def count_tensor(count: Any, device: torch.device) -> Tensor:
    """Return a new tensor with a count of steps. It is a float64: float32, torch's choice, stops at 2²⁴."""
    if isinstance(count, torch.Tensor):
        return count.detach().to(device=device, dtype=torch.float64, copy=True).reshape(())
    return torch.full((), float(count), dtype=torch.float64, device=device)
