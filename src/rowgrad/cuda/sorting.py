"""A batch of ids sorted by row on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import ResourceExhaustedError
from .call import blocks_for, is_wide
from .device import Device
from .kernel import FAULTS, Kernel

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
        if size >= _MOST_IDS or rows > _MOST_ROWS or sources > _MOST_ROWS:
            raise ResourceExhaustedError(f"a CUDA call takes up to {_MOST_IDS - 1} ids of {_MOST_ROWS} rows")
        self.device, self.size, self.rows, self.sources = device, size, rows, sources
        self.digits = digits = Digits.of(rows)
        self._items = next((n for n in _ITEMS if blocks_for(size, _TILE_THREADS * n) <= device.processors), _ITEMS[-1])
        self.tiles = blocks_for(size, _TILE_THREADS * self._items)
        self._blocks = "2" if self.tiles > 2 * device.processors else "1"
        self.row_tiles = blocks_for(size + _PAST, _ROWS_TILE)
        bins = 1 << digits.bits
        padded = self.row_tiles * _ROWS_TILE
        zeros, rest = Carving(), Carving()
        zeros.add("checks", 8)
        zeros.add("total", 8)
        zeros.add("histograms", digits.passes * bins * 4)
        zeros.add("states", digits.passes * self.tiles * bins * 4)
        zeros.add("row_states", self.row_tiles * 8)
        zeros.add("counts", sources * 4 if counted else 0)
        zeros.add("zeroed", zeroed)
        for name in ("ids", "values"):
            rest.add(name, padded * 4)
        for name in ("pairs", "pairs2"):
            rest.add(name, padded * 8 if digits.passes > 1 else 0)
        rest.add("heads", padded // 8)
        rest.add("firsts", padded // CHUNK * 4)
        rest.add("begins", padded // CHUNK * 4)
        self.scale_type = scales
        rest.add("scales", padded * scales.itemsize if scales else 0)
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
        told: dict[str, int],
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
            counts=at["counts"], order=order, id_code=FAULTS.index(codes[0]), segment_code=FAULTS.index(codes[1]),
            checks=at["checks"], **told,
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
