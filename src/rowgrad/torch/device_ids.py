"""Ids of sparse tensors in a GPU's memory, for `rowgrad.lookup` and `rowgrad.sparse`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import devices
from .tensors import check_storage


def id_functions(value: Any) -> DeviceIds | None:
    """Return what lookups do with ids beside an array; None if the array is in host memory.

    Args:
        value: A tensor.
    """
    is_on_gpu = isinstance(value, Tensor) and value.layout is torch.strided and devices.is_on_gpu(value)
    return DeviceIds(value.device) if is_on_gpu else None


class DeviceIds:
    """What lookups do with ids on one device; `lookup.HostIds` is the same for host memory."""

    xp = torch

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def read(self, array: Any, argument: str) -> Tensor:
        """Return an array on the device; one in host memory is copied there."""
        tensor = array if isinstance(array, Tensor) else torch.as_tensor(array)
        check_storage(tensor, argument)
        return tensor.detach() if tensor.device == self.device else tensor.detach().to(self.device)

    def int64(self, array: Any, argument: str) -> Tensor:
        """Return integers on the device as int64."""
        return self.read(array, argument).to(torch.int64)

    def place(self, array: Any, argument: str) -> Tensor:
        """Return an array on the device; its gradient passes through."""
        if not isinstance(array, Tensor):
            return self.read(array, argument)
        check_storage(array, argument)
        return array.to(self.device)

    def flatnonzero(self, mask: Tensor) -> Tensor:
        """Return the positions of true elements; waits for the device."""
        return mask.nonzero(as_tuple=True)[0]

    def unique_in_order(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return distinct ids in order of first appearance, and the position of each id among them; waits."""
        unique, inverse = torch.unique(ids, return_inverse=True)
        numbers = torch.arange(ids.shape[0], device=ids.device)
        first = numbers.new_full(unique.shape, ids.shape[0]).scatter_reduce_(0, inverse, numbers, "amin")
        order = torch.argsort(first)
        place = torch.empty_like(order)
        place[order] = numbers[: order.shape[0]]
        return unique[order], place[inverse]


def in_host_memory(value: Any) -> Any:
    """Return an array that NumPy can read; a copy if it is in another device's memory."""
    return value.detach().cpu() if isinstance(value, Tensor) and not value.is_cpu and not value.is_meta else value
