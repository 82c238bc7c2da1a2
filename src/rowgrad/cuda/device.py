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
    """What a family of kernels asks for. The tests have one that runs on the host."""

    processors: int
    memory: int  # bytes it has
    ledger: Ledger

    def launch(
        self, kernel: Kernel, form: tuple[str, ...], blocks: tuple[int, int], shared: int, packed: bytes
    ) -> None:
        """Queue a kernel after everything that was queued before."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory that holds anything."""

    def zero(self, tensor: Tensor) -> None:
        """Fill with zeros, in the queue."""

    def wait(self) -> None:
        """Until everything queued is done."""

    def zero_aside(self, tensor: Tensor) -> None:
        """Fill with zeros in a second queue, which starts where the first one stands; `join` waits for it."""

    def join(self) -> None:
        """Let the first queue wait for the second."""


class CudaDevice:
    """A CUDA device; the queue is torch's current stream."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.torch_device = torch.device("cuda", index)
        facts = torch.cuda.get_device_properties(index)
        self.architecture = f"sm_{facts.major}{facts.minor}"
        self.processors: int = facts.multi_processor_count
        self.memory: int = facts.total_memory
        self.ledger = Ledger(pinned=True)
        self.ledger.checks_of(self.ledger.alarm, self.empty)  # now: a graph that is recorded must not own it
        self._functions: dict[tuple[str, tuple[str, ...]], driver.Function] = {}
        self._side = torch.cuda.Stream(index)
        self._threads = threading.local()

    def launch(
        self, kernel: Kernel, form: tuple[str, ...], blocks: tuple[int, int], shared: int, packed: bytes
    ) -> None:
        """Compile and load it if this is its first time, and queue it."""
        self._enter()
        self._function(kernel, form).launch(blocks, kernel.threads, shared, self._stream(), packed)

    def _enter(self) -> None:
        """Once a thread: the device's context is made its own; events are a thread's, so that none marks another's."""
        if not getattr(self._threads, "events", None):
            driver.enter(self.index)
            self._threads.events = (driver.new_event(), driver.new_event())

    def _function(self, kernel: Kernel, form: tuple[str, ...]) -> driver.Function:
        function = self._functions.get((kernel.name, form))
        if function is None:
            function = driver.Function(cubin_of(kernel, form, self.architecture), kernel.entry)
            self._functions[kernel.name, form] = function
        return function

    def replay(self, chain: Any) -> None:
        """Queue a chain whose arguments are in place."""
        self._enter()
        if chain.prepared is None:
            chain.prepared = [self._prepared(launch, chain.arguments) for launch in chain.launches]
        driver.queue(chain.prepared, self._stream())

    def _prepared(self, launch: Any, arguments: Any) -> tuple[Any, ...]:
        at = arguments.ctypes.data + 8 * launch.first
        if launch.kernel is None:
            return None, launch.blocks[0], 0, 0, 0, ctypes.c_uint64.from_address(at)
        function = self._function(launch.kernel, launch.form)
        function.allow(launch.shared)
        extra = driver.extra_at(at, 8 * launch.size)
        return function.handle, *launch.blocks, launch.kernel.threads, launch.shared, extra

    def _stream(self) -> int:
        return int(torch._C._cuda_getCurrentRawStream(self.index))

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """torch's memory."""
        return torch.empty(shape, dtype=dtype, device=self.torch_device)

    def zero(self, tensor: Tensor) -> None:
        """In the current stream."""
        size = tensor.numel() * tensor.element_size()
        if size % 4 or not tensor.is_contiguous():
            tensor.zero_()
        elif size:
            self._enter()
            driver.set_zero(tensor.data_ptr(), size, self._stream())

    def wait(self) -> None:
        """Until the current stream is through."""
        torch.cuda.current_stream(self.index).synchronize()

    def zero_aside(self, tensor: Tensor) -> None:
        """In the side stream. Its memory is the current stream's again after `join`."""
        size = tensor.numel() * tensor.element_size()
        if size % 4 or not tensor.is_contiguous():
            tensor.zero_()
            return
        self._enter()
        side, (begun, _) = self._side.cuda_stream, self._threads.events
        driver.mark(begun, self._stream())
        driver.follow(side, begun)
        driver.set_zero(tensor.data_ptr(), size, side)

    def join(self) -> None:
        """The current stream waits for the side stream."""
        self._enter()
        done = self._threads.events[1]
        driver.mark(done, self._side.cuda_stream)
        driver.follow(self._stream(), done)


@cache
def device_of(index: int) -> CudaDevice:
    """The device of this number."""
    return CudaDevice(index)
