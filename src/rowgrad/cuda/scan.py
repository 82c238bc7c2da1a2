"""Prefix sums over the parts of a list, a stable sort, and what else kernels on lists of entries share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .call import Call, blocks_for
from .kernel import Kernel

THREADS = 256
UNITS = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t", 16: "Block16"}
BY_WIDTH = [(unit,) for unit in UNITS.values()]
_BITS = 8
_SCAN = Kernel("scan.cuh", "scan_parts", 256)
_SORT_COUNT = Kernel("scan.cuh", "sort_count", 256)
_SORT_MOVE = Kernel("scan.cuh", "sort_move", 256)
_PUT = Kernel("coordinates.cuh", "put_numbers", 32)
_PUT_AT_ONCE = 8


def unit_of(tensor: Tensor) -> tuple[str]:
    """The form of a kernel that moves this tensor's elements."""
    return (UNITS[tensor.element_size()],)


def parts_of(call: Call, size: int) -> int:
    """Into how many parts a list is cut: at least one, so that lists without entries have sums too."""
    return max(1, min(blocks_for(size, THREADS), call.device.processors * 8))


def grid_of(call: Call, size: int) -> int:
    """Blocks for a loop over so many items."""
    return min(blocks_for(size, THREADS), call.device.processors * 32)


def counts_of(call: Call, parts: int, lists: int = 1) -> Tensor:
    """Room for the counts of each part and their total."""
    return call.empty(lists, parts + 1, dtype=torch.int64)


def scan(call: Call, counts: Tensor, unless: Tensor | None = None) -> None:
    """Turn counts into sums of the counts before; the last is the total, or -1 where `unless` is raised."""
    _SCAN.launch(
        call.device, counts.shape[0], counts=counts.data_ptr(), parts=counts.shape[1] - 1,
        unless=0 if unless is None else unless.data_ptr(),
    )  # fmt: skip


def sort(call: Call, keys: Tensor, step: int, size: int, bound: int) -> tuple[Tensor, Tensor]:
    """Every `step`-th of `keys`, which are in [0, bound), in a stable order, and where each stood."""
    parts = parts_of(call, size)
    counts = call.empty(1, (1 << _BITS) * parts + 1, dtype=torch.int64)
    order, sorted_keys = 0, keys  # the first pass reads what it was given
    pair: tuple[Tensor, Tensor] | None = None
    for shift in range(0, max(1, (bound - 1).bit_length()), _BITS):
        to = call.empty(size, dtype=torch.int64), call.empty(size, dtype=torch.int64)
        told = {"keys": sorted_keys.data_ptr(), "step": step, "size": size, "shift": shift, "counts": counts.data_ptr()}
        _SORT_COUNT.launch(call.device, parts, **told)
        scan(call, counts)
        _SORT_MOVE.launch(
            call.device, parts, order=order, to_keys=to[0].data_ptr(), to_order=to[1].data_ptr(), **told
        )  # fmt: skip
        pair, sorted_keys, order, step = to, to[0], to[1].data_ptr(), 1
    assert pair is not None
    return pair


def put(call: Call, to: Tensor, numbers: Sequence[int]) -> None:
    """Write numbers the host knows, as arguments of a kernel: nothing is copied from memory that may change."""
    for first in range(0, len(numbers), _PUT_AT_ONCE):
        some = [*numbers[first : first + _PUT_AT_ONCE]]
        told = {f"n{i}": some[i] if i < len(some) else 0 for i in range(_PUT_AT_ONCE)}
        _PUT.launch(call.device, 1, to=to[first:].data_ptr(), count=len(some), **told)
