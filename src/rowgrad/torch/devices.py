"""Which kernels a tensor uses, CPU or GPU, and when faults of GPU kernels are raised.

Nothing of `rowgrad.cuda` is loaded before the first tensor on a GPU comes in.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

_FAULTS = "rowgrad.cuda.faults"
_MODES = ("sync", "async", "off")
_MET: dict[int, Any] = {}  # the devices tensors have been met on, by number
_first_mode: str | None = "async"  # the mode that `validate` set before rowgrad.cuda was imported


def device_for(tensor: Tensor) -> Any:
    """Return `rowgrad.cuda`'s device for a tensor on a GPU; None for all others."""
    if not tensor.is_cuda:
        return None
    index = tensor.get_device()
    found = _MET.get(index)
    return _meet(index) if found is None else found


def _meet(index: int) -> Any:
    from ..cuda.device import device_of

    _faults()
    return _MET.setdefault(index, device_of(index))


def _faults() -> Any:
    """Return `rowgrad.cuda.faults`, in the mode that was set before it was imported; None if it is not imported."""
    global _first_mode
    module, mode = sys.modules.get(_FAULTS), _first_mode
    if module is not None and mode is not None:
        module.validate(mode)
        _first_mode = None
    return module


def is_on_gpu(tensor: Tensor) -> bool:
    """Return whether GPU kernels will read a tensor, also while torch traces, when defaults are chosen."""
    return tensor.is_cuda


def default_order(tensor: Tensor) -> str:
    """Return the default order of additions in gradients: a tree on GPUs, TensorFlow's on CPUs."""
    return "blocked" if is_on_gpu(tensor) else "sequential"


def with_order(attrs: Mapping[str, Any], values: Iterable[Any]) -> Mapping[str, Any]:
    """Return an op's attributes with the default order of its tensors' device."""
    for value in values:
        if type(value) is Tensor or isinstance(value, Tensor):  # the latter asks a metaclass
            return {**attrs, "order": default_order(value)} if is_on_gpu(value) else attrs
    return attrs


def is_captured() -> bool:
    """Return whether a CUDA graph is being captured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def is_current(tensor: Tensor) -> bool:
    """Return whether a tensor is on the CPU or on torch's current GPU."""
    index = tensor.get_device()
    return index < 0 or not tensor.is_cuda or index == torch.cuda.current_device()


def made_current(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which a tensor's GPU is torch's current one, where kernels are queued."""
    return nullcontext() if is_current(tensor) else torch.cuda.device(tensor.get_device())


def validate(mode: str) -> str:
    """Set when bad ids in CUDA tensors raise, and return the previous mode.

    "sync": by the call itself, which waits for its kernels. "async", the default: by the next call on that device, or
    by `synchronize`. "off": never. Bad ids lead to no access outside of memory in any mode.
    """
    global _first_mode
    faults = _faults()
    if faults is not None:
        return str(faults.validate(mode))
    if mode not in _MODES:
        raise ValueError(f"mode must be 'sync', 'async' or 'off'; got {mode!r}")
    before, _first_mode = str(_first_mode), mode
    return before


def synchronize() -> None:
    """Wait for every GPU that rowgrad used, and raise the faults that its kernels found."""
    for index, device in list(_MET.items()):
        _wait(index)
        device.ledger.raise_reported()


def _wait(index: int) -> None:
    torch.cuda.synchronize(index)
