"""Prefix sums and stable radix sorts on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._catalog.enums import Fault
from .._core import CudaIdSort
from .call import Call, blocks_for
from .device import Device, id_list
from .kernel import Kernel
from .launcher_kernels import UNITS

# -- Prefix sums and sorts of lists of entries ------------------------------------------------------------------------

THREADS = 256
BY_WIDTH = [(unit,) for unit in UNITS.values()]
_BITS = 8
_SCAN = Kernel("scan.cuh", "scan_parts", 256)
_SORT_COUNT = Kernel("scan.cuh", "sort_count", 256)
_SORT_MOVE = Kernel("scan.cuh", "sort_move", 256)
_PUT = Kernel("coordinates.cuh", "put_numbers", 32)
_PUT_AT_ONCE = 8


def unit_of(tensor: Tensor) -> tuple[str]:
    """Return the variant of a kernel that copies elements of this tensor's size."""
    return (UNITS[tensor.element_size()],)


def parts_of(call: Call, size: int) -> int:
    """Return the number of parts of a list: at least one, so that an empty list has a total too."""
    return max(1, min(blocks_for(size, THREADS), call.device.processors * 8))


def grid_of(call: Call, size: int) -> int:
    """Return the number of blocks for a loop over `size` items."""
    return min(blocks_for(size, THREADS), call.device.processors * 32)


def counts_of(call: Call, parts: int, lists: int = 1) -> Tensor:
    """Allocate the counts of each part and their total."""
    return call.empty(lists, parts + 1, dtype=torch.int64)


def scan(call: Call, counts: Tensor, unless: Tensor | None = None) -> None:
    """Replace counts by exclusive prefix sums; the last is the total, or -1 if the flag `unless` is set."""
    _SCAN.launch(
        call.device, counts.shape[0], counts=counts.data_ptr(), parts=counts.shape[1] - 1,
        unless=0 if unless is None else unless.data_ptr(),
    )  # fmt: skip


def sort(call: Call, keys: Tensor, step: int, size: int, bound: int) -> tuple[Tensor, Tensor]:
    """Sort every `step`-th of `keys`, all in [0, bound), stably; return the sorted keys and their positions."""
    parts = parts_of(call, size)
    counts = call.empty(1, (1 << _BITS) * parts + 1, dtype=torch.int64)
    order, sorted_keys = 0, keys  # the first pass reads the input
    pair: tuple[Tensor, Tensor] | None = None
    for shift in range(0, max(1, (bound - 1).bit_length()), _BITS):
        to = call.empty(size, dtype=torch.int64), call.empty(size, dtype=torch.int64)
        fields = {
            "keys": sorted_keys.data_ptr(),
            "step": step,
            "size": size,
            "shift": shift,
            "counts": counts.data_ptr(),
        }
        _SORT_COUNT.launch(call.device, parts, **fields)
        scan(call, counts)
        _SORT_MOVE.launch(
            call.device, parts, order=order, to_keys=to[0].data_ptr(), to_order=to[1].data_ptr(), **fields
        )  # fmt: skip
        pair, sorted_keys, order, step = to, to[0], to[1].data_ptr(), 1
    assert pair is not None
    return pair


def put(call: Call, to: Tensor, numbers: Sequence[int]) -> None:
    """Write numbers of the host, passed as kernel arguments because an asynchronous copy would need stable memory."""
    for first in range(0, len(numbers), _PUT_AT_ONCE):
        some = [*numbers[first : first + _PUT_AT_ONCE]]
        fields = {f"n{i}": some[i] if i < len(some) else 0 for i in range(_PUT_AT_ONCE)}
        _PUT.launch(call.device, 1, to=to[first:].data_ptr(), count=len(some), **fields)


# -- Ids sorted by row ------------------------------------------------------------------------------------------------


class SortedIds:
    """The memory and the launches of one sort by row.

    Entries are pairs (row, value); a value is a segment id or a position. `at` has the addresses that later kernels
    read: `ids`, `values`, `heads`, `firsts`, `begins`, `scales`, `checks`, `total`.
    """

    def __init__(
        self, device: Device, size: int, rows: int, sources: int, *, counted: bool = False, zeroed: int = 0,
        workspace: int = 0,
    ) -> None:  # fmt: skip
        self.device, self.size = device, size
        self._sort = CudaIdSort(device.launcher, size, rows, sources, counted, 0, zeroed, workspace)
        self.memory = device.workspace(self._sort.bytes)
        self.at = self._sort.entries(self.memory.data_ptr())

    def run(
        self,
        ids: Tensor,
        segments: Tensor | None,
        report: tuple[int, int, int],
        *,
        by_segment: bool = True,
        order: int = 1,
        codes: tuple[str, str] = ("index_not_in_output", "segment_not_in_grad"),
        rows_out: Tensor | None = None,
        starts_out: Tensor | None = None,
    ) -> None:
        """Queue validation and sort. `by_segment`: values are segment ids, else positions."""
        device = self.device
        self._sort.run(
            device.launcher, device.stream(), self.memory.data_ptr(), id_list(ids), id_list(segments), by_segment,
            order, Fault[codes[0]], Fault[codes[1]], 0, report, id_list(rows_out),
            0 if starts_out is None else starts_out.data_ptr(),
        )  # fmt: skip

    def part(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        """Return a part of the memory as a tensor."""
        begin = self.at[name] - self.memory.data_ptr()
        return self.memory[begin : begin + count * dtype.itemsize].view(dtype)
