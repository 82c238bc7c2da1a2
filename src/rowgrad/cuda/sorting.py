"""Prefix sums and stable radix sort of row numbers on the device."""

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

# -- Prefix sums over the parts of a list, a stable sort, and what else kernels on lists of entries share -------------

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
    """Write numbers the host knows, as arguments of a kernel: nothing is copied from memory that may change."""
    for first in range(0, len(numbers), _PUT_AT_ONCE):
        some = [*numbers[first : first + _PUT_AT_ONCE]]
        fields = {f"n{i}": some[i] if i < len(some) else 0 for i in range(_PUT_AT_ONCE)}
        _PUT.launch(call.device, 1, to=to[first:].data_ptr(), count=len(some), **fields)


# -- A batch of ids sorted by row on a device -------------------------------------------------------------------------

CHUNK = 32
_TILE_THREADS, _ROWS_TILE, _PAST = 512, 2048, 96
_LOOKERS = 2  # blocks of a processor that look at ids
_MOST_IDS, _MOST_ROWS = 1 << 30, 1 << 31
_ITEMS = (4, 8, 16)
_LOOK = Kernel("sorting.cuh", "look_at_ids", 512)
_FORMS = [(4, 1), (8, 1), (16, 1), (16, 2)]  # items of a thread, blocks of a multiprocessor
_PASS = Kernel(
    "sorting.cuh", "sort_pass", _TILE_THREADS,
    [(str(n), a, str(b)) for n, b in _FORMS for a in ("float", "double")],
    {(str(n), a, str(b)): b for n, b in _FORMS for a in ("float", "double")},
)  # fmt: skip
_FIND = Kernel("sorting.cuh", "find_rows", 256, [("float",), ("double",)], 4)


def padded(size: int) -> int:
    """How many entries lists of them have memory for: kernels read some past the end."""
    return blocks_for(size + _PAST, _ROWS_TILE) * _ROWS_TILE


def check_limits(size: int, rows: int, sources: int) -> None:
    """Entries have 32 bits for a row of the table, and as many for what is added to it."""
    if size >= _MOST_IDS or rows > _MOST_ROWS or sources > _MOST_ROWS:
        raise ResourceExhaustedError(f"a CUDA call takes up to {_MOST_IDS - 1} ids of {_MOST_ROWS} rows")


class Carving:
    """One piece of memory, handed out in parts that begin at multiples of 256 bytes."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, int]] = {}
        self.size = 0

    def add(self, name: str, size: int) -> None:
        """A part of so many bytes."""
        self._sizes[name] = (self.size, size)
        self.size += -(-size // 256) * 256

    def addresses(self, base: int) -> dict[str, int]:
        """Where every part begins; 0 for parts of no bytes."""
        return {name: base + at if size else 0 for name, (at, size) in self._sizes.items()}


@dataclass(frozen=True, slots=True)
class Digits:
    """How the bits of row numbers are cut: as few passes as digits of at most ten bits allow."""

    passes: int
    bits: int

    @classmethod
    def of(cls, rows: int) -> Digits:
        """For a table of so many rows."""
        total = max((rows - 1).bit_length(), 1)
        passes = -(-total // 10)
        return cls(passes, -(-total // passes))


class SortedIds:
    """The memory and the launches of one sort.

    Entries are (row, value): `values` are what goes with the ids, or their positions where there are none. After `run`,
    `at` has the addresses of what kernels that follow need: `ids`, `values`, `heads`, `firsts`, `begins`, `scales`,
    `checks`, `total`.
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
        kept: int = 0,
    ) -> None:
        check_limits(size, rows, sources)
        self.device, self.size, self.rows, self.sources = device, size, rows, sources
        self.digits = digits = Digits.of(rows)
        self._items = next((n for n in _ITEMS if blocks_for(size, _TILE_THREADS * n) <= device.processors), _ITEMS[-1])
        self.tiles = blocks_for(size, _TILE_THREADS * self._items)
        self._blocks = "2" if self.tiles > 2 * device.processors else "1"
        self.row_tiles = blocks_for(size + _PAST, _ROWS_TILE)
        bins = 1 << digits.bits
        room = padded(size)
        zeros, rest = Carving(), Carving()
        zeros.add("checks", 8)
        zeros.add("total", 8)
        zeros.add("histograms", digits.passes * bins * 4)
        zeros.add("states", digits.passes * self.tiles * bins * 4)
        zeros.add("row_states", self.row_tiles * 8)
        zeros.add("counts", sources * 4 if counted else 0)
        zeros.add("zeroed", zeroed)
        for name in ("ids", "values"):
            rest.add(name, room * 4)
        for name in ("pairs", "pairs2"):
            rest.add(name, room * 8 if digits.passes > 1 else 0)
        rest.add("heads", room // 8)
        rest.add("firsts", room // CHUNK * 4)
        rest.add("begins", room // CHUNK * 4)
        self.scale_type = scales
        rest.add("scales", room * scales.itemsize if scales else 0)
        rest.add("segment_scales", sources * scales.itemsize if scales else 0)
        rest.add("kept", kept)
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
        """Queue the sort. `by_segment`: entries carry their segment, else their position."""
        at, digits, device = self.at, self.digits, self.device
        device.zero(self._zeros)
        bins = 1 << digits.bits
        given: dict[str, Any] = {"ids": ids.data_ptr(), "ids_wide": is_wide(ids)}
        segment_list = 0 if segments is None else segments.data_ptr()
        segments_wide = 0 if segments is None else is_wide(segments)
        _LOOK.launch(
            device, min(blocks_for(self.size, 2048), device.processors * _LOOKERS), (), digits.passes * bins * 16,
            **given, segments=segment_list, segments_wide=segments_wide, size=self.size, rows=self.rows,
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
                **given, values=segment_list if by_segment else 0, values_wide=segments_wide, pairs=source,
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
        """A part of the memory as a tensor."""
        begin = self.at[name] - self.memory.data_ptr()
        return self.memory[begin : begin + count * dtype.itemsize].view(dtype)
