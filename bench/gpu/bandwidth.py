"""The measured memory bandwidth of a device, and the number of bytes that each kind of work must move."""

from __future__ import annotations

from collections.abc import Callable

import torch
from cases import Batch
from timing import Timing, Work

_BUFFER = 1 << 30  # bytes: far beyond any cache
Clock = Callable[[Work, int], Timing]


def bandwidths(device: torch.device, clock: Clock, runs: int, buffer: int = _BUFFER) -> dict[str, float]:
    """Return GB/s of a copy (bytes read and written) and of a fill (bytes written)."""
    a = torch.empty(buffer // 4, dtype=torch.float32, device=device).normal_()
    b = torch.empty_like(a)
    copied, filled = clock(lambda: b.copy_(a), runs), clock(lambda: b.zero_(), runs)
    return {"copy": 2 * buffer / copied.median / 1e6, "fill": buffer / filled.median / 1e6}


def gather(batch: Batch, clock: Clock, runs: int) -> dict[str, float]:
    """Gather rows of the table by the case's ids: ms, and GB/s of the bytes read and written."""
    out = torch.empty(batch.N, batch.case.D, dtype=batch.table.dtype, device=batch.table.device)
    took = clock(lambda: torch.index_select(batch.table, 0, batch.indices, out=out), runs)
    row = batch.case.D * batch.table.element_size()
    moved = batch.N * (2 * row + batch.indices.element_size())
    return {"ms": took.median, "GB/s": moved / took.median / 1e6}


def least_bytes(batch: Batch) -> dict[str, dict[str, int]]:
    """Return by kind: `once`, every needed byte counted once; `named`, rows counted once per id.

    A cache can save up to the difference. Sorting and other work of an implementation counts as time.
    """
    row = batch.case.D * batch.table.element_size()
    ids = 2 * batch.N * batch.indices.element_size()  # indices and segment ids
    bags, dense = batch.case.bags * row, batch.case.V * row
    unique = batch.unique * (row + batch.indices.element_size())
    state = batch.unique * (2 * row + 2 * 4)  # a row of the table and its one number, read and written
    return {
        "forward": {"once": ids + batch.unique * row + bags, "named": ids + batch.N * row + bags},
        "dense": {"once": ids + bags + dense, "named": ids + batch.N * row + dense},
        "rows": {"once": ids + bags + unique, "named": ids + batch.N * row + unique},
        "fused": {"once": ids + bags + state, "named": ids + batch.N * row + state},
    }
