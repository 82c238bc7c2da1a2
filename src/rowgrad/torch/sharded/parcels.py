"""Several tensors in one exchange: bytes, rank by rank, and inside a rank's share tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .ranks import Ranks, Sent


class Section(NamedTuple):
    """A tensor whose rows are for rank 0 first, then for rank 1, …, and how many come back, of the same kind."""

    rows: Tensor
    out: Sequence[int]
    back: Sequence[int]


class Parcel:
    """Sections on their way; `arrived` gives one tensor for each, rank by rank."""

    def __init__(self, ranks: Ranks, phase: str, sections: Sequence[Section]) -> None:
        self._kinds = [(s.rows.dtype, (sum(s.back), *s.rows.shape[1:])) for s in sections]
        self._backs = [[n * _row_bytes(s.rows) for n in s.back] for s in sections]
        flat = [_bytes(s.rows) for s in sections]
        outs = [[n * _row_bytes(s.rows) for n in s.out] for s in sections]
        out = [sum(o[r] for o in outs) for r in range(ranks.size)]
        back = [sum(b[r] for b in self._backs) for r in range(ranks.size)]
        setattr(ranks.traffic, phase, getattr(ranks.traffic, phase) + sum(out) - out[ranks.rank])
        if len(flat) == 1:
            data = flat[0]
        else:
            shares = [f.split(o) for f, o in zip(flat, outs, strict=True)]
            data = torch.cat([share[r] for r in range(ranks.size) for share in shares])
        self._sent: Sent = ranks.send(phase, data, out, back)

    def arrived(self) -> list[Tensor]:
        """Wait, and unpack."""
        data = self._sent.arrived()
        if len(self._kinds) == 1:
            found = [data]
        else:
            ends = list(accumulate(b[r] for r in range(len(self._backs[0])) for b in self._backs))
            pieces = [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
            found = [torch.cat(pieces[k :: len(self._kinds)]) for k in range(len(self._kinds))]
        return [_typed(f, *kind) for f, kind in zip(found, self._kinds, strict=True)]


def _row_bytes(rows: Tensor) -> int:
    return rows.element_size() * math.prod(rows.shape[1:])


def _bytes(rows: Tensor) -> Tensor:
    return rows.contiguous().view(-1).view(torch.uint8)


def _typed(data: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    result: Any = data.view(dtype).view(shape)
    return result
