"""Choose CPU or GPU kernels for a tensor, and when faults of GPU kernels are raised.

`rowgrad.cuda` is imported when the first GPU tensor arrives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..errors import make_error

_FAULTS = "rowgrad.cuda.faults"
_MODES = ("sync", "async", "off")
_DEVICES: dict[int, Any] = {}  # GPUs that were used, by index
_first_mode: str | None = "async"  # the mode that `validate` set before rowgrad.cuda was imported


def device_for(tensor: Tensor) -> Any:
    """Return the `rowgrad.cuda` device of a tensor on a GPU; None for all others."""
    if not tensor.is_cuda:
        return None
    index = tensor.get_device()
    device = _DEVICES.get(index)
    return _add_device(index) if device is None else device


def _add_device(index: int) -> Any:
    from ..cuda.device import device_of

    _faults()
    return _DEVICES.setdefault(index, device_of(index))


def _faults() -> Any:
    """Return `rowgrad.cuda.faults` if it is imported, and set the mode that was chosen before; else None."""
    global _first_mode
    module, mode = sys.modules.get(_FAULTS), _first_mode
    if module is not None and mode is not None:
        module.validate(mode)
        _first_mode = None
    return module


def is_on_gpu(tensor: Tensor) -> bool:
    """Return whether a tensor, real or traced, is on a GPU; this decides defaults."""
    return tensor.is_cuda


def default_order(tensor: Tensor) -> str:
    """Return the default order of additions in gradients: a tree on GPUs, TensorFlow's on CPUs."""
    return "blocked" if is_on_gpu(tensor) else "sequential"


def with_order(attrs: Mapping[str, Any], values: Iterable[Any]) -> Mapping[str, Any]:
    """Return an op's attributes with the default order of its tensors' device."""
    for value in values:
        if type(value) is Tensor or isinstance(value, Tensor):  # isinstance is slower: it calls a metaclass
            return {**attrs, "order": default_order(value)} if is_on_gpu(value) else attrs
    return attrs


def check_devices(tensors: Mapping[str, Any]) -> torch.device | None:
    """Raise unless all tensors among these arguments are on one device; return it, or None without tensors."""
    other, device = "", None
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            continue
        if device is not None and value.device != device:
            raise make_error("mixed_devices", argument=name, value=value.device, other=other, bound=device)
        other, device = other or name, value.device
    return device


StreamKey = tuple[int, int, int]  # a stream's number, device and kind of device


def current_stream(tensor: Tensor) -> StreamKey | None:
    """Return torch's current stream on a tensor's GPU, faster than `torch.cuda.current_stream`; None on a CPU."""
    return torch._C._cuda_getCurrentStream(tensor.get_device()) if tensor.is_cuda else None


def stream_of(key: StreamKey) -> torch.cuda.Stream:
    """Return the stream of a key."""
    number, device, kind = key
    return torch.cuda.Stream(stream_id=number, device_index=device, device_type=kind)


def is_captured() -> bool:
    """Return whether a CUDA graph is being captured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def is_current(tensor: Tensor) -> bool:
    """Return whether a tensor is on the CPU or on torch's current GPU."""
    index = tensor.get_device()
    return index < 0 or not tensor.is_cuda or index == torch.cuda.current_device()


def current_device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which a tensor's GPU is torch's current one, on which kernels are queued."""
    return nullcontext() if is_current(tensor) else torch.cuda.device(tensor.get_device())


def validate(mode: str) -> str:
    """Set when bad ids in CUDA tensors raise. They never cause out-of-bounds memory access, in any mode.

    Args:
        mode: "sync": the call waits for its kernels and raises. "async", the default: the next call on that device or
            `synchronize` raises. "off": never.

    Returns:
        The previous mode.

    Raises:
        ValueError: If the mode is unknown.

    >>> import rowgrad.torch as rgt
    >>> previous = rgt.validate("sync")
    >>> rgt.validate(previous)
    'sync'
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
    """Wait for every GPU that rowgrad used, and raise the first fault that its kernels reported.

    Raises:
        InvalidArgumentError: If a kernel found a bad id.
    """
    for index, device in list(_DEVICES.items()):
        _wait(index)
        device.ledger.raise_reported()


def _wait(index: int) -> None:
    torch.cuda.synchronize(index)
