"""RowPlan in Python, and the validation and gradients of ops that take a plan."""

from __future__ import annotations

from types import SimpleNamespace as Inputs
from typing import Any

import numpy as np

from .arithmetic import ExpectedError, Outputs
from .ids import NOT_IN_GRAD, NOT_IN_OUTPUT, below, grouped, workspace, zeros
from .kernels import add_gradient, add_weighted, weighted_terms

RISE = "a plan's {name} must {how} in [0, {bound}), got {name}[{i}] = {v}"
ONCE = (
    "a plan's positions must contain each number in [0, {bound}) once, increasing within a row, got"
    " positions[{i}] = {v}"
)
COUNTS = "a plan's segments must be in [0, {bound}), the length of counts, got segments[{i}] = {v}"


def plan_of(indices: list[int], segment_ids: list[int], num_segments: int) -> dict[str, list[int]]:
    """Return RowPlan's outputs as lists."""
    groups = grouped(indices)
    rows = sorted(groups)
    positions = [i for row in rows for i in groups[row]]
    return {
        "rows": rows,
        "starts": [sum(len(groups[r]) for r in rows[:k]) for k in range(len(rows))],
        "segments": [segment_ids[i] for i in positions],
        "positions": positions,
        "counts": [segment_ids.count(s) for s in range(num_segments)],
    }


def row_plan(x: Inputs) -> Outputs:
    ids, segments = x.indices.tolist(), x.segment_ids.tolist()
    for row, segment in zip(ids, segments, strict=True):
        below(int(x.num_rows), NOT_IN_OUTPUT, row)
        below(int(x.num_segments), NOT_IN_GRAD, segment)
    zeros((int(x.num_segments),), np.int64)
    plan = plan_of(ids, segments, int(x.num_segments))
    types = {"rows": x.indices.dtype, "segments": x.segment_ids.dtype}
    return tuple(np.array(v, types.get(k, np.int64)) for k, v in plan.items())


def check_increasing(name: str, values: list[int], bound: int, how: str) -> None:
    for i, v in enumerate(values):
        if not 0 <= v < bound or (i and v <= values[i - 1]):
            raise ExpectedError(RISE.format(name=name, i=i, v=v, how=how, bound=bound))


def entries(x: Inputs, grad_rows: int, uses_positions: bool) -> dict[int, list[int]]:
    """Return the entries of every row of the plan; raise if one would be out of range."""
    rows, starts, segments = x.rows.tolist(), x.starts.tolist(), x.segments.tolist()
    n, counts = len(segments), len(x.counts)
    if counts > grad_rows:
        raise ExpectedError(f"the plan has {counts} segments, but grad has only {grad_rows} rows")
    check_increasing("rows", rows, int(x.num_rows), "be increasing and")
    if n and starts[:1] != [0]:
        first = starts[0] if starts else -1
        raise ExpectedError(RISE.format(name="starts", i=0, v=first, how="increase from 0 and be", bound=n))
    check_increasing("starts", starts, n, "increase from 0 and be")
    for i, s in enumerate(segments):
        below(counts, COUNTS, s, i)
    if uses_positions:
        for i, p in enumerate(x.positions.tolist()):
            below(n, ONCE, p, i)
    ends = [*starts[1:], n][: len(starts)]
    return {k: list(range(a, b)) for k, (a, b) in enumerate(zip(starts, ends, strict=True))}


def planned_ids(x: Inputs) -> Outputs:
    groups, positions, segments = entries(x, len(x.counts), True), x.positions.tolist(), x.segments.tolist()
    begins = {group[0] for group in groups.values()}
    for i, p in enumerate(positions):
        if p in positions[:i] or (i not in begins and p < positions[i - 1]):
            raise ExpectedError(ONCE.format(i=i, v=p, bound=len(positions)))
    for s, count in enumerate(x.counts.tolist()):
        if count != segments.count(s):
            raise ExpectedError(f"counts[{s}] = {count}, but segment {s} has {segments.count(s)} ids")
    indices, segment_ids = np.zeros(len(positions), x.rows.dtype), np.zeros(len(positions), x.segments.dtype)
    for k, group in groups.items():
        for i in group:
            indices[positions[i]], segment_ids[positions[i]] = x.rows[k], segments[i]
    return indices, segment_ids


def planned_grad(kind: str, unique: bool, x: Inputs) -> Outputs:
    inner = x.grad.shape[1:]
    output = zeros((len(x.rows) if unique else int(x.num_rows), *inner), x.grad.dtype)
    groups, segments = entries(x, len(x.grad), False), x.segments.tolist()
    workspace(len(x.counts), 8)
    sizes = {s: max(count, 1) for s, count in enumerate(x.counts.tolist())}
    segments_of_row = {k if unique else int(x.rows[k]): [segments[i] for i in group] for k, group in groups.items()}
    add_gradient(kind, x, segments_of_row, sizes, output)
    return (output, x.rows.copy()) if unique else (output,)


def planned_weighted_grad(kind: str, x: Inputs) -> Outputs:
    output = zeros((int(x.num_rows), *x.grad.shape[1:]), x.grad.dtype)
    groups, positions = entries(x, len(x.grad), True), x.positions.tolist()
    if not positions:
        return (output,)
    segment_of: list[Any] = [0] * len(positions)
    for p, s in zip(positions, x.segments.tolist(), strict=True):
        segment_of[p] = s
    named = {int(x.rows[k]): [positions[i] for i in group] for k, group in groups.items()}
    add_weighted(x, named, weighted_terms(kind, x, segment_of), output)
    return (output,)
