"""Record kernel launches, and queue them again with other memory.

Packing a kernel's arguments costs the host more than queueing it. Calls with the same shapes and dtypes differ only in
addresses: the first call records its launches and which arguments are addresses in which tensor; later calls compute
all arguments at once from the addresses of their tensors.
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
    """A kernel launch; if `kernel` is None, zeroing of `blocks[0]` bytes."""

    kernel: Kernel | None
    variant: tuple[str, ...]
    blocks: tuple[int, int]
    shared: int
    first: int  # index of its first argument among all arguments
    size: int


class Chain:
    """Recorded launches; each argument is an offset and the number of a tensor (0: a plain number)."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.offsets = np.zeros(0, np.int64)
        self.tensors = np.zeros(0, np.intp)
        self.arguments = np.zeros(0, np.int64)  # of the current call
        self.prepared: Any = None  # the device's prepared launches
        self.lock = threading.Lock()

    def place(self, addresses: Sequence[int]) -> None:
        """Compute the arguments for the addresses of a call's tensors."""
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
        self, kernel: Kernel, variant: tuple[str, ...], blocks: tuple[int, int], shared: int, packed: bytes
    ) -> None:
        words = np.frombuffer(packed, np.int64).tolist()
        self.launches.append(Launch(kernel, variant, blocks, shared, len(self.words), len(words)))
        self.words += words
        self.is_address += kernel.is_address
        self._device.launch(kernel, variant, blocks, shared, packed)

    def zero(self, tensor: Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        assert size % 4 == 0, "memory is zeroed in units of four bytes"
        self.launches.append(Launch(None, (), (size, 1), 0, len(self.words), 1))
        self.words.append(tensor.data_ptr())
        self.is_address.append(True)
        self._device.zero(tensor)

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"a chain cannot record {name}")


def record(device: Device, tensors: Sequence[Tensor], fault: int, queue: Callable[[Device], None]) -> Chain:
    """Queue launches and record them. `tensors` are all memory that they use, except for the fault slot."""
    recorder = _Recorder(device)
    queue(recorder)
    spans = [(t.data_ptr(), t.data_ptr() + max(t.numel() * t.element_size(), 1)) for t in tensors]
    spans.append((fault, fault + 1))
    chain = Chain()
    chain.launches = recorder.launches
    owners = np.zeros(len(recorder.words), np.intp)
    offsets = np.array(recorder.words, np.int64)
    # Tensors may overlap: an address belongs to the tensor that begins there, if there is one.
    first = {begin: number for number, (begin, _) in reversed(list(enumerate(spans, 1)))}
    for i, (word, is_address) in enumerate(zip(recorder.words, recorder.is_address, strict=True)):
        if not is_address or word in (0, device.ledger.alarm):
            continue
        inside = (number for number, (begin, end) in enumerate(spans, 1) if begin <= word < end)
        owner = first.get(word) or next(inside, 0)
        assert owner, "an address outside of `tensors`"
        owners[i], offsets[i] = owner, word - spans[owner - 1][0]
    chain.tensors, chain.offsets, chain.arguments = owners, offsets, np.zeros_like(offsets)
    return chain


def struct_bytes(launch: Launch, arguments: np.ndarray[Any, Any]) -> bytes:
    """Return the packed struct of a launch."""
    return arguments[launch.first : launch.first + launch.size].tobytes()


def queue_again(device: Any, chain: Chain, tensors: Sequence[Tensor], fault: int) -> None:
    """Queue recorded launches with other tensors."""
    with chain.lock:
        chain.place([*(t.data_ptr() for t in tensors), fault])
        device.replay(chain)


def key_of(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return what launches may depend on: shapes, dtypes, alignment, and which tensors begin at the same address."""
    addresses = [t.data_ptr() for t in tensors]
    same = None if len(set(addresses)) == len(addresses) else tuple(map(addresses.index, addresses))
    return same, *((t.shape, t.dtype, at % 16) for t, at in zip(tensors, addresses, strict=True))
