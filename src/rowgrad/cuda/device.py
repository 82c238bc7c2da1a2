"""One CUDA device: memory allocation, kernel launches and fault reports.

The launcher is C++ (`cpp/cuda`): it puts calls together and queues them. Here are what it needs from Python, compiled
kernels and torch's memory and streams, and the methods by which kernel families call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from .._core import CudaDevice as Launcher
from .._core import CudaPreparedOp, CudaTorchCalls, cuda_device, cuda_ops
from . import faults
from .compile import cubin_of
from .faults import SLOTS, Ledger
from .kernel import KERNELS, Kernel

_DLPACK_CUDA = 2
_LAUNCHER_OPS = frozenset(cuda_ops())


class Device:
    """The device interface that kernel families use; work is queued on torch's current stream.

    Args:
        launcher: The device in C++.
        memory: Its bytes of memory.
        pinned: Whether host memory that kernels write has to be pinned.
        place: Where its tensors are: DLPack's numbers of the kind and of the device, and a function like torch.empty
            with the device to pass to it.
    """

    def __init__(self, launcher: Launcher, memory: int, pinned: bool, place: tuple[int, int, Any, Any]) -> None:
        self.launcher = launcher
        self.processors = launcher.processors
        self.memory = memory
        # The check states are allocated here, so that no CUDA graph capture owns them.
        checks = self.empty((SLOTS + 1,), torch.int64)
        checks.zero_()
        self.wait()  # once: calls on other streams use the zeros too
        self.ledger = Ledger(checks, pinned)
        self.calls = CudaTorchCalls(launcher, self.ledger.slots, *place, torch.int32, torch.int64, torch.uint8)

    def stream(self) -> int:
        """Return the address of the current stream."""
        raise NotImplementedError

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate uninitialized memory."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until all queued work is done."""
        raise NotImplementedError

    def launch(
        self, kernel: Kernel, variant: tuple[str, ...], blocks: tuple[int, int], shared: int, packed: bytes
    ) -> None:
        """Queue a kernel; compile and load it on first use."""
        self.launcher.launch(kernel.name, ", ".join(variant), *blocks, shared, self.stream(), packed)

    def zero(self, tensor: Tensor) -> None:
        """Queue zeros on the current stream."""
        if tensor.is_contiguous():
            self.launcher.zero(self.stream(), tensor.data_ptr(), tensor.numel() * tensor.element_size())
        else:
            tensor.zero_()

    def zero_on_side_stream(self, tensor: Tensor) -> None:
        """Queue zeros on a side stream, after the current stream's work. `join` waits for it on the current stream."""
        size = tensor.numel() * tensor.element_size()
        self.launcher.zero_on_side_stream(self.stream(), tensor.data_ptr(), size)

    def join(self) -> None:
        """Make the current stream wait for the side stream."""
        self.launcher.join(self.stream())

    def waits(self) -> bool:
        """Return whether calls wait for their kernels, to raise their own faults."""
        return faults.mode() == "sync"

    def prepare_op(
        self, kernel: str, constants: Sequence[int], outputs: Sequence[tuple[tuple[Any, ...], torch.dtype]]
    ) -> CudaPreparedOp | None:
        """Return an op for `calls.run_op`; None if the launcher has no such op, or data decide a size."""
        if kernel not in _LAUNCHER_OPS or any(None in shape for shape, _ in outputs):
            return None
        return CudaPreparedOp(kernel, list(constants), [(list(shape), dtype, CODE[dtype]) for shape, dtype in outputs])

    def workspace(self, size: int) -> Tensor:
        """Allocate bytes."""
        return self.empty((max(size, 1),), torch.uint8)


class CudaDevice(Device):
    """A CUDA device with torch's memory and streams."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.torch_device = torch.device("cuda", index)
        facts = torch.cuda.get_device_properties(index)
        self.architecture = f"sm_{facts.major}{facts.minor}"
        super().__init__(
            cuda_device(index, facts.multi_processor_count, self._load, None), facts.total_memory, True,
            (_DLPACK_CUDA, index, torch.empty, self.torch_device),
        )  # fmt: skip

    def _load(self, name: str, variant: str) -> tuple[bytes, str, int]:
        """Return a kernel's machine code, the name of its entry and its block size."""
        kernel = kernel_named(name)
        return cubin_of(kernel, kernel.variant_named(variant), self.architecture), kernel.entry, kernel.threads

    def stream(self) -> int:
        """Return the address of torch's current stream."""
        return int(torch._C._cuda_getCurrentRawStream(self.index))

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate with torch."""
        return torch.empty(shape, dtype=dtype, device=self.torch_device)

    def wait(self) -> None:
        """Synchronize the current stream."""
        torch.cuda.current_stream(self.index).synchronize()


def kernel_named(name: str) -> Kernel:
    """Return a kernel of any family; the launcher's calls do not import the families."""
    if name not in KERNELS:
        from . import run  # noqa: F401  (registers every kernel)
    return KERNELS[name]


@cache
def device_of(index: int) -> CudaDevice:
    """Return the device with this index."""
    return CudaDevice(index)


# -- Arguments of the launcher ----------------------------------------------------------------------------------------

Matrix = tuple[int, int, int, int]  # address, dtype code, rows, columns
Ids = tuple[int, bool]  # address, whether they have 64 bits
NO_IDS: Ids = (0, False)


def matrix(tensor: Tensor) -> Matrix:
    """Describe rows of a tensor."""
    return tensor.data_ptr(), CODE[tensor.dtype], tensor.shape[0], prod(tensor.shape[1:])


def id_list(ids: Tensor | None) -> Ids:
    """Describe a list of ids."""
    return NO_IDS if ids is None else (ids.data_ptr(), ids.dtype == torch.int64)


def _codes() -> dict[Any, int]:
    from .._core import dtypes

    return {getattr(torch, name.rstrip("_"), None): code for code, name in enumerate(dtypes()) if name[0] != "q"}


CODE = _codes()
