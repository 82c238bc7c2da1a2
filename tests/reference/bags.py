"""Bags by offsets, and stacked bags of many features."""

from __future__ import annotations

from types import SimpleNamespace as Inputs

import numpy as np

from .arithmetic import INT32_MAX, INT64_MAX, ExpectedError, Outputs
from .ids import zeros


def bags(offsets: list[int], ids: int, has_end: bool) -> list[range]:
    """Return the positions of every bag's ids."""
    if not offsets:
        if ids or has_end:
            raise ExpectedError(f"offsets must end with the number of ids, {ids}, got 0")
        return []
    if offsets[0] != 0:
        raise ExpectedError(f"offsets[0] must be 0, got {offsets[0]}")
    for i in range(1, len(offsets)):
        if offsets[i] < offsets[i - 1]:
            raise ExpectedError(f"offsets must not decrease, but offsets[{i}] = {offsets[i]} follows {offsets[i - 1]}")
    if offsets[-1] > ids or (has_end and offsets[-1] != ids):
        raise ExpectedError(f"offsets must end with the number of ids, {ids}, got {offsets[-1]}")
    ends = [*offsets[1:], *([] if has_end else [ids])]
    return [range(a, b) for a, b in zip(offsets, ends, strict=False)]


def segment_ids_from_offsets(x: Inputs) -> Outputs:
    found = bags(x.offsets.tolist(), int(x.num_ids), x.include_last_offset)
    output = zeros((int(x.num_ids),), x.offsets.dtype)
    for b, where in enumerate(found):
        output[where.start : where.stop] = b
    return (output,)


def stack_bags(x: Inputs) -> Outputs:
    ids, rows, first = x.indices.tolist(), x.feature_rows.tolist(), x.feature_first.tolist()
    found = bags(x.offsets.tolist(), len(ids), True)
    limit = INT32_MAX if x.indices.dtype == np.int32 else INT64_MAX
    for f, (n, start) in enumerate(zip(rows, first, strict=True)):
        if min(n, start) < 0:
            raise ExpectedError(f"feature_first and feature_rows of feature {f} must be >= 0, got {min(n, start)}")
        if n > limit - start:
            allowed = f"must be at most {limit - n} for this dtype of indices"
            raise ExpectedError(f"feature_first[{f}] {allowed}, got {start}")
    examples = len(found) // len(rows)
    for s, where in enumerate(found):
        bound = rows[s // examples]
        for i in where:
            if not 0 <= ids[i] < bound:
                raise ExpectedError(f"indices[{i}] = {ids[i]} is not in [0, {bound}), the rows of its feature's table")
    stacked, segments, positions = [], [], []
    for b in range(examples):
        for f in range(len(rows)):
            for i in found[f * examples + b]:
                stacked.append(ids[i] + first[f])
                segments.append(b * len(rows) + f)
                positions.append(i)
    lists = (stacked, x.indices.dtype), (segments, x.offsets.dtype), (positions if x.positions else [], np.int64)
    return tuple(np.array(*pair) for pair in lists)
