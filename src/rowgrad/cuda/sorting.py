"""Prefix sums and stable radix sorts on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._catalog.enums import Fault
from ..errors import ResourceExhaustedError
from .call import Call, blocks_for, is_wide
from .device import Device
from .kernel import Kernel

# -- Prefix sums and sorts of lists of entries ------------------------------------------------------------------------

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

CHUNK = 32
_TILE_THREADS, _ROWS_TILE, _PAST = 512, 2048, 96
_CHECK_BLOCKS = 2  # per processor, of the kernel that validates ids
_MAX_IDS, _MAX_ROWS = 1 << 30, 1 << 31
_ITEMS = (4, 8, 16)
_SCAN_IDS = Kernel("sorting.cuh", "scan_ids", 512)
_VARIANTS = [(4, 1), (8, 1), (16, 1), (16, 2)]  # items per thread, blocks per multiprocessor
_PASS = Kernel(
    "sorting.cuh", "sort_pass", _TILE_THREADS,
    [(str(n), a, str(b)) for n, b in _VARIANTS for a in ("float", "double")],
    {(str(n), a, str(b)): b for n, b in _VARIANTS for a in ("float", "double")},
)  # fmt: skip
_FIND = Kernel("sorting.cuh", "find_rows", 256, [("float",), ("double",)], 4)


def padded(size: int) -> int:
    """Return the allocated length of a list of `size` entries: kernels read past the end."""
    return blocks_for(size + _PAST, _ROWS_TILE) * _ROWS_TILE


def check_limits(size: int, rows: int, sources: int) -> None:
    """Raise if row ids or source ids do not fit the 32 bits that entries have for each."""
    if size >= _MAX_IDS or rows > _MAX_ROWS or sources > _MAX_ROWS:
        raise ResourceExhaustedError(f"a CUDA call supports at most {_MAX_IDS - 1} ids of {_MAX_ROWS} rows")


class MemoryLayout:
    """Named parts of one allocation, each aligned to 256 bytes."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, int]] = {}
        self.size = 0

    def add(self, name: str, size: int) -> None:
        """Add a part of `size` bytes."""
        self._sizes[name] = (self.size, size)
        self.size += -(-size // 256) * 256

    def addresses(self, base: int) -> dict[str, int]:
        """Return the address of each part; 0 for empty parts."""
        return {name: base + at if size else 0 for name, (at, size) in self._sizes.items()}


@dataclass(frozen=True, slots=True)
class Digits:
    """The digits of a radix sort: as few passes as digits of at most ten bits allow."""

    passes: int
    bits: int

    @classmethod
    def of(cls, rows: int) -> Digits:
        """Return the digits for row ids below `rows`."""
        total = max((rows - 1).bit_length(), 1)
        passes = -(-total // 10)
        return cls(passes, -(-total // passes))


class SortedIds:
    """The memory and the launches of one sort by row.

    Entries are pairs (row, value); a value is a segment id or a position. After `run`, `at` has the addresses that
    later kernels read: `ids`, `values`, `heads`, `firsts`, `begins`, `scales`, `checks`, `total`.
    """

    def __init__(
        self,
        device: Device,
        size: int,
        rows: int,
        sources: int,
        *,
        counted: bool = False,
        scales: torch.dtype | None = None,
        zeroed: int = 0,
        workspace: int = 0,
    ) -> None:
        check_limits(size, rows, sources)
        self.device, self.size, self.rows, self.sources = device, size, rows, sources
        self.digits = digits = Digits.of(rows)
        self._items = next((n for n in _ITEMS if blocks_for(size, _TILE_THREADS * n) <= device.processors), _ITEMS[-1])
        self.tiles = blocks_for(size, _TILE_THREADS * self._items)
        self._blocks = "2" if self.tiles > 2 * device.processors else "1"
        self.row_tiles = blocks_for(size + _PAST, _ROWS_TILE)
        bins = 1 << digits.bits
        capacity = padded(size)
        zeros, rest = MemoryLayout(), MemoryLayout()
        zeros.add("checks", 8)
        zeros.add("total", 8)
        zeros.add("histograms", digits.passes * bins * 4)
        zeros.add("states", digits.passes * self.tiles * bins * 4)
        zeros.add("row_states", self.row_tiles * 8)
        zeros.add("counts", sources * 4 if counted else 0)
        zeros.add("zeroed", zeroed)
        for name in ("ids", "values"):
            rest.add(name, capacity * 4)
        for name in ("pairs", "pairs2"):
            rest.add(name, capacity * 8 if digits.passes > 1 else 0)
        rest.add("heads", capacity // 8)
        rest.add("firsts", capacity // CHUNK * 4)
        rest.add("begins", capacity // CHUNK * 4)
        self.scale_type = scales
        rest.add("scales", capacity * scales.itemsize if scales else 0)
        rest.add("segment_scales", sources * scales.itemsize if scales else 0)
        rest.add("workspace", workspace)
        self.memory = device.empty((zeros.size + rest.size,), torch.uint8)
        self._zeros = self.memory[: zeros.size]
        base = self.memory.data_ptr()
        self.at = zeros.addresses(base) | rest.addresses(base + zeros.size)

    def run(
        self,
        ids: Tensor,
        segments: Tensor | None,
        report: dict[str, int],
        *,
        by_segment: bool = True,
        order: int = 1,
        reduce: int = 0,
        codes: tuple[str, str] = ("index_not_in_output", "segment_not_in_grad"),
        rows_out: Tensor | None = None,
        starts_out: Tensor | None = None,
    ) -> None:
        """Queue validation and sort. `by_segment`: values are segment ids, else positions."""
        at, digits, device = self.at, self.digits, self.device
        device.zero(self._zeros)
        bins = 1 << digits.bits
        id_fields: dict[str, Any] = {"ids": ids.data_ptr(), "ids_wide": is_wide(ids)}
        segment_list = 0 if segments is None else segments.data_ptr()
        segments_wide = 0 if segments is None else is_wide(segments)
        _SCAN_IDS.launch(
            device, min(blocks_for(self.size, 2048), device.processors * _CHECK_BLOCKS), (), digits.passes * bins * 16,
            **id_fields, segments=segment_list, segments_wide=segments_wide, size=self.size, rows=self.rows,
            sources=self.sources, passes=digits.passes, bits=digits.bits, histograms=at["histograms"],
            counts=at["counts"], order=order, id_code=Fault[codes[0]], segment_code=Fault[codes[1]],
            checks=at["checks"], **report,
        )  # fmt: skip
        shared = 34 * 8 + _TILE_THREADS * self._items * 8 + bins * 8 + _TILE_THREADS // 32 * bins * 2
        source, target = 0, at["pairs"]
        kind = "double" if self.scale_type == torch.float64 else "float"
        for number in range(digits.passes):
            is_last = number == digits.passes - 1
            _PASS.launch(
                device, self.tiles, (str(self._items), kind, self._blocks), shared,
                **id_fields, values=segment_list if by_segment else 0, values_wide=segments_wide, pairs=source,
                sorted=0 if is_last else target, sorted_ids=at["ids"], sorted_values=at["values"], size=self.size,
                shift=number * digits.bits, bits=digits.bits, histogram=at["histograms"] + number * bins * 4,
                states=at["states"] + number * self.tiles * bins * 4, counts=at["counts"],
                segment_scales=0 if number else at["segment_scales"], sources=self.sources, reduce=reduce,
                checks=at["checks"],
            )  # fmt: skip
            source, target = target, at["pairs2"] if target == at["pairs"] else at["pairs"]
        _FIND.launch(
            device, self.row_tiles, (kind,), 9 * 8,
            ids=at["ids"], size=self.size, heads=at["heads"], firsts=at["firsts"], begins=at["begins"],
            states=at["row_states"], total=at["total"], rows=0 if rows_out is None else rows_out.data_ptr(),
            rows_wide=0 if rows_out is None else is_wide(rows_out),
            starts=0 if starts_out is None else starts_out.data_ptr(), segments=at["values"],
            segment_scales=at["segment_scales"], scales=at["scales"], checks=at["checks"],
        )  # fmt: skip

    def part(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        """Return a part of the memory as a tensor."""
        begin = self.at[name] - self.memory.data_ptr()
        return self.memory[begin : begin + count * dtype.itemsize].view(dtype)
