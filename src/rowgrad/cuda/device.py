"""One CUDA device: memory allocation, kernel launches and fault reports."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from . import driver
from .driver import cubin_of
from .faults import Ledger
from .kernel import Kernel


class Device(Protocol):
    """The device interface that kernel families use. The tests implement one that runs on the host."""

    processors: int
    memory: int  # bytes
    ledger: Ledger

    def launch(
        self, kernel: Kernel, variant: tuple[str, ...], blocks: tuple[int, int], shared: int, packed: bytes
    ) -> None:
        """Queue a kernel on the current stream."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate uninitialized memory."""

    def zero(self, tensor: Tensor) -> None:
        """Queue filling with zeros."""

    def wait(self) -> None:
        """Wait until all queued work is done."""

    def zero_on_side_stream(self, tensor: Tensor) -> None:
        """Fill with zeros on a side stream that first waits for the current stream; `join` waits for it."""

    def join(self) -> None:
        """Make the current stream wait for the side stream."""


class CudaDevice:
    """A CUDA device; work is queued on torch's current stream."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.torch_device = torch.device("cuda", index)
        facts = torch.cuda.get_device_properties(index)
        self.architecture = f"sm_{facts.major}{facts.minor}"
        self.processors: int = facts.multi_processor_count
        self.memory: int = facts.total_memory
        self.ledger = Ledger(pinned=True)
        self.ledger.checks_of(self.ledger.alarm, self.empty)  # allocated here, so that no CUDA graph capture owns it
        self._functions: dict[tuple[str, tuple[str, ...]], driver.Function] = {}
        self._side = torch.cuda.Stream(index)
        self._threads = threading.local()

    def launch(
        self, kernel: Kernel, variant: tuple[str, ...], blocks: tuple[int, int], shared: int, packed: bytes
    ) -> None:
        """Queue a kernel; compile and load it on first use."""
        self._enter()
        self._function(kernel, variant).launch(blocks, kernel.threads, shared, self._stream(), packed)

    def _enter(self) -> None:
        """On a thread's first call, make the context current and create events; threads do not share events."""
        if not getattr(self._threads, "events", None):
            driver.enter(self.index)
            self._threads.events = (driver.new_event(), driver.new_event())

    def _function(self, kernel: Kernel, variant: tuple[str, ...]) -> driver.Function:
        function = self._functions.get((kernel.name, variant))
        if function is None:
            function = driver.Function(cubin_of(kernel, variant, self.architecture), kernel.entry)
            self._functions[kernel.name, variant] = function
        return function

    def replay(self, chain: Any) -> None:
        """Queue a chain whose arguments have been computed."""
        self._enter()
        if chain.prepared is None:
            chain.prepared = [self._prepared(launch, chain.arguments) for launch in chain.launches]
        driver.queue(chain.prepared, self._stream())

    def _prepared(self, launch: Any, arguments: Any) -> tuple[Any, ...]:
        at = arguments.ctypes.data + 8 * launch.first
        if launch.kernel is None:
            return None, launch.blocks[0], 0, 0, 0, ctypes.c_uint64.from_address(at)
        function = self._function(launch.kernel, launch.variant)
        function.allow(launch.shared)
        extra = driver.extra_at(at, 8 * launch.size)
        return function.handle, *launch.blocks, launch.kernel.threads, launch.shared, extra

    def _stream(self) -> int:
        return int(torch._C._cuda_getCurrentRawStream(self.index))

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate with torch."""
        return torch.empty(shape, dtype=dtype, device=self.torch_device)

    def zero(self, tensor: Tensor) -> None:
        """Queue zeros on the current stream."""
        size = tensor.numel() * tensor.element_size()
        if size % 4 or not tensor.is_contiguous():
            tensor.zero_()
        elif size:
            self._enter()
            driver.set_zero(tensor.data_ptr(), size, self._stream())

    def wait(self) -> None:
        """Synchronize the current stream."""
        torch.cuda.current_stream(self.index).synchronize()

    def zero_on_side_stream(self, tensor: Tensor) -> None:
        """Queue zeros on the side stream. The current stream may use the memory after `join`."""
        size = tensor.numel() * tensor.element_size()
        if size % 4 or not tensor.is_contiguous():
            tensor.zero_()
            return
        self._enter()
        side, (begun, _) = self._side.cuda_stream, self._threads.events
        driver.record_event(begun, self._stream())
        driver.wait_event(side, begun)
        driver.set_zero(tensor.data_ptr(), size, side)

    def join(self) -> None:
        """Make the current stream wait for the side stream."""
        self._enter()
        done = self._threads.events[1]
        driver.record_event(done, self._side.cuda_stream)
        driver.wait_event(self._stream(), done)


@cache
def device_of(index: int) -> CudaDevice:
    """Return the device with this index."""
    return CudaDevice(index)
