"""Launches that were put together once and are queued again with other memory.

Putting a kernel's arguments together costs the host more than queueing it. Calls of one kind differ in addresses only:
so their launches are recorded the first time, with a note of which argument is an address in which tensor, and later
calls add their tensors' addresses to that, all at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from .device import Device
from .kernel import Kernel


class Launch(NamedTuple):
    """A kernel, or where `kernel` is None zeros: of `blocks[0]` bytes."""

    kernel: Kernel | None
    form: tuple[str, ...]
    blocks: tuple[int, int]
    shared: int
    first: int  # where its arguments begin in the list of all
    size: int


class Chain:
    """What was recorded: launches, and all their arguments as an offset and the number of a tensor."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.offsets = np.zeros(0, np.int64)
        self.tensors = np.zeros(0, np.intp)
        self.arguments = np.zeros(0, np.int64)  # of the call that is being queued
        self.prepared: Any = None  # a device's own
        self.lock = threading.Lock()

    def place(self, addresses: Sequence[int]) -> None:
        """Put the addresses of a call's tensors in."""
        np.take(np.array((0, *addresses), np.int64), self.tensors, out=self.arguments)
        self.arguments += self.offsets


class _Recorder:
    """A device that forwards launches to another device and records them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.processors = device.processors
        self.ledger = device.ledger
        self.launches: list[Launch] = []
        self.words: list[int] = []
        self.is_address: list[bool] = []

    def launch(
        self, kernel: Kernel, form: tuple[str, ...], blocks: tuple[int, int], shared: int, packed: bytes
    ) -> None:
        words = np.frombuffer(packed, np.int64).tolist()
        self.launches.append(Launch(kernel, form, blocks, shared, len(self.words), len(words)))
        self.words += words
        self.is_address += kernel.is_address
        self._device.launch(kernel, form, blocks, shared, packed)

    def zero(self, tensor: Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        assert size % 4 == 0, "zeros are set by words of four bytes"
        self.launches.append(Launch(None, (), (size, 1), 0, len(self.words), 1))
        self.words.append(tensor.data_ptr())
        self.is_address.append(True)
        self._device.zero(tensor)

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"a chain cannot hold {name}")


def record(device: Device, tensors: Sequence[Tensor], fault: int, queue: Callable[[Device], None]) -> Chain:
    """Queue for the first time. `tensors` are all the memory there is, but for the slot of faults."""
    recorder = _Recorder(device)
    queue(recorder)
    spans = [(t.data_ptr(), t.data_ptr() + max(t.numel() * t.element_size(), 1)) for t in tensors]
    spans.append((fault, fault + 1))
    chain = Chain()
    chain.launches = recorder.launches
    owners = np.zeros(len(recorder.words), np.intp)
    offsets = np.array(recorder.words, np.int64)
    # Tensors may overlap: an address where one begins is that one's. Null is nobody's.
    first = {begin: number for number, (begin, _) in reversed(list(enumerate(spans, 1)))}
    for i, (word, is_address) in enumerate(zip(recorder.words, recorder.is_address, strict=True)):
        if not is_address or word in (0, device.ledger.alarm):
            continue
        inside = (number for number, (begin, end) in enumerate(spans, 1) if begin <= word < end)
        owner = first.get(word) or next(inside, 0)
        assert owner, "an address of memory that nobody knows"
        owners[i], offsets[i] = owner, word - spans[owner - 1][0]
    chain.tensors, chain.offsets, chain.arguments = owners, offsets, np.zeros_like(offsets)
    return chain


def as_words(launch: Launch, arguments: np.ndarray[Any, Any]) -> bytes:
    """The struct of a launch."""
    return arguments[launch.first : launch.first + launch.size].tobytes()


def queue_again(device: Any, chain: Chain, tensors: Sequence[Tensor], fault: int) -> None:
    """The same launches with other tensors."""
    with chain.lock:
        chain.place([*(t.data_ptr() for t in tensors), fault])
        device.replay(chain)


def key_of(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """What of tensors launches may depend on: sizes, dtypes, how their memory is aligned, and which begin as one."""
    addresses = [t.data_ptr() for t in tensors]
    same = None if len(set(addresses)) == len(addresses) else tuple(map(addresses.index, addresses))
    return same, *((t.shape, t.dtype, at % 16) for t, at in zip(tensors, addresses, strict=True))
