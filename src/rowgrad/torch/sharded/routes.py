"""A rank's own bags, sorted by whom their rows belong to: what is to be sent to whom."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...bag_scales import weighted_scales
from ...errors import refuse
from ...raw_ops import OPS
from ..bags import Bags
from .layout import Stack

Counts = list[int]
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Route(NamedTuple):
    """What this rank asks of the others for one lookup. Everything is ordered by owner first."""

    rows: Tensor  # distinct rows, as their owners number them
    inverse: Tensor  # for each id of the bags, in their order, which of `rows` it is
    pair_rows: Tensor  # for each id by owner, then in the bags' order: which of the rows asked of that owner
    pair_bags: Tensor  # and which of the bags that owner is told of
    pair_ids: Tensor  # and where among the ids of the bags it stands
    bags: Tensor  # the bags each owner is told of: those with an id there
    scales: Tensor | None  # of every bag: 1/n, 1/√n; or with weights Σw, √Σw²; None for sums
    num_rows: Counts  # how many of each are for each rank
    num_pairs: Counts
    num_bags: Counts


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type sums of a dtype are held in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_bags(bags: Bags, rows: int, device: torch.device) -> None:
    """Refuse what an owner would have to refuse, before anything is sent."""
    ids, segments = bags.indices, bags.segment_ids
    if ids.device != device:
        raise refuse("not_here", argument="ids", value=f"a tensor on {ids.device}", bound=f"on {device}")
    if ids.shape != segments.shape:
        raise refuse("segments_match_indices")
    if bags.weights is not None:
        _check_weights(bags.weights, ids)
    if ids.numel() == 0:
        return
    bad = (ids < 0) | (ids >= rows)
    loose = segments[1:] < segments[:-1]
    outside = (segments < 0) | (segments >= bags.num_bags)
    found = torch.stack([bad.any(), loose.any(), outside.any()]).tolist()
    if found[0]:
        at = int(torch.nonzero(bad)[0])
        raise refuse("index_not_in_data", argument="ids", position=at, value=int(ids[at]), bound=rows)
    if found[1]:
        raise refuse("segments_not_increasing", argument="segment_ids", position=int(torch.nonzero(loose)[0]) + 1)
    if found[2]:
        at = int(torch.nonzero(outside)[0])
        raise refuse(
            "segment_not_in_output", argument="segment_ids", position=at, value=int(segments[at]), bound=bags.num_bags
        )


def _check_weights(weights: Tensor, ids: Tensor) -> None:
    facts: dict[str, Any] = {"argument": "per_sample_weights"}
    if weights.dtype not in _FLOATS:
        raise refuse("dtype_not_allowed", **facts, value=weights.dtype, bound=", ".join(map(str, _FLOATS)))
    if weights.device != ids.device:
        raise refuse("not_here", **facts, value=f"a tensor on {weights.device}", bound=f"on {ids.device}")
    if weights.shape != ids.shape:
        raise refuse("same_shape", **facts, value=tuple(weights.shape), bound=tuple(ids.shape))


def route(bags: Bags, stack: Stack, kind: str, dtype: torch.dtype) -> Route:
    """Sort bags that are in order: ids in range, bags ascending. Ids of several tables are numbered through."""
    ids, device = bags.indices, bags.indices.device
    places, segments = stack.places(ids), bags.segment_ids.to(torch.int64)
    unique, starts, _, positions, counts = OPS["RowPlan"](places, segments, stack.rows, bags.num_bags)
    inverse = torch.empty_like(positions).scatter_(0, positions, _run_numbers(starts, ids.shape[0]))
    firsts = torch.tensor(stack.firsts, device=device)
    owners = torch.searchsorted(firsts[1:], places, right=True)
    row_counts = torch.searchsorted(unique, firsts).diff()
    num_rows, num_pairs = torch.stack([row_counts, torch.bincount(owners, minlength=stack.ranks)]).tolist()
    _, _, pair_bags, pair_ids, _ = OPS["RowPlan"](owners, segments, stack.ranks, bags.num_bags)
    by_owner = spread(num_pairs, range(stack.ranks), device)
    fresh = torch.ones_like(by_owner, dtype=torch.bool)  # a pair that is the first of its bag with its owner
    fresh[1:] = (pair_bags[1:] != pair_bags[:-1]) | (by_owner[1:] != by_owner[:-1])
    where = torch.nonzero(fresh).squeeze(1)
    begin_bags = torch.searchsorted(where, torch.tensor([*starts_of(num_pairs), ids.shape[0]], device=device)).tolist()
    return Route(
        rows=unique - spread(num_rows, stack.firsts[:-1], device),
        inverse=inverse,
        pair_rows=(inverse.index_select(0, pair_ids) - spread(num_pairs, starts_of(num_rows), device)).to(torch.int32),
        pair_bags=(fresh.cumsum(0) - 1 - spread(num_pairs, begin_bags[:-1], device)).to(torch.int32),
        pair_ids=pair_ids,
        bags=pair_bags.index_select(0, where),
        scales=_scales(bags, counts, kind, wide_dtype(dtype)),
        num_rows=num_rows,
        num_pairs=num_pairs,
        num_bags=[end - begin for begin, end in pairwise(begin_bags)],
    )


def spread(counts: Counts, values: Sequence[int], device: torch.device) -> Tensor:
    """values[0] counts[0] times, then values[1] counts[1] times, …"""
    repeats = torch.tensor(counts, device=device)
    return torch.tensor(values, device=device).repeat_interleave(repeats, output_size=sum(counts))


def starts_of(counts: Counts) -> list[int]:
    """Where each of several runs begins."""
    return [0, *accumulate(counts)][:-1]


def _run_numbers(starts: Tensor, size: int) -> Tensor:
    """0, 0, 1, 1, 1, 2, … for runs that begin at `starts`."""
    marks = torch.zeros(size, dtype=torch.int64, device=starts.device)
    marks[starts] = 1
    return marks.cumsum(0) - 1


def _scales(bags: Bags, counts: Tensor, kind: str, wide: torch.dtype) -> Tensor | None:
    if kind == "Sum":
        return None
    if bags.weights is not None:
        scales: Tensor = weighted_scales(
            OPS, kind, bags.segment_ids, bags.weights.detach().to(wide), int(bags.num_bags)
        )
        return scales
    number = counts.clamp(min=1).to(torch.float64)  # the kernels' rounding: in double, then once
    return (1.0 / (number if kind == "Mean" else number.sqrt())).to(wide)
