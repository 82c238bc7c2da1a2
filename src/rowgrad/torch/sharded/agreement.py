"""What ranks tell each other before rows travel: how much is to come, whether all do the same, whether one refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...errors import OpError
from .failures import RankRefusedError
from .parcels import Parcel, Section
from .ranks import Ranks
from .routes import Counts, Route

WEIGHTED, PLAIN, EITHER = 1, 0, 2  # EITHER: a rank without ids
_FINE, _BAD_VALUE, _OTHER = 0, 1, 2
_HEAD = 5  # call, status, position, value, bound
_EACH = 6  # trains, weighted, wants the gradient of weights, rows, pairs, bags


class Asked(NamedTuple):
    """What this rank wants of one lookup: its route, or None where it has refused its ids; and how."""

    route: Route | None
    trains: bool
    weighted: int
    weights_gradient: bool


class Told(NamedTuple):
    """What the others have said about one lookup: how much comes from each rank, and what holds for all."""

    num_rows: Counts
    num_pairs: Counts
    num_bags: Counts
    trains: bool
    weighted: bool
    weights_gradient: bool


def agree(ranks: Ranks, call: int, asked: Sequence[Asked], refusal: Exception | None) -> list[Told]:
    """Exchange sizes. Where one rank refuses, all raise and nothing else has been sent."""
    head = [call, *_status(refusal)]
    lines = []
    for r in range(ranks.size):
        line = list(head)
        for a in asked:
            sizes = (0, 0, 0) if a.route is None else (a.route.num_rows[r], a.route.num_pairs[r], a.route.num_bags[r])
            line += [int(a.trains), a.weighted, int(a.weights_gradient), *sizes]
        lines.append(line)
    sent = torch.tensor(lines, dtype=torch.int64).to(ranks.device)
    each = [1] * ranks.size
    (found,) = Parcel(ranks, "sizes", [Section(sent, each, each)]).arrived()
    said = found.tolist()
    if refusal is not None:
        raise refusal
    _raise_refusals(said, ranks)
    _check_calls(said, ranks)
    return [_told(said, _HEAD + k * _EACH) for k in range(len(asked))]


def _status(refusal: Exception | None) -> tuple[int, int, int, int]:
    if refusal is None:
        return _FINE, 0, 0, 0
    facts = [getattr(refusal, name, None) for name in ("position", "value", "bound")]
    if isinstance(refusal, OpError) and all(isinstance(f, int) for f in facts):
        return _BAD_VALUE, *(int(f) for f in facts if isinstance(f, int))  # type: ignore[return-value]
    return _OTHER, 0, 0, 0


def _raise_refusals(said: list[list[int]], ranks: Ranks) -> None:
    bad = [r for r, line in enumerate(said) if line[1] != _FINE]
    if not bad:
        return
    _, status, position, value, bound = said[bad[0]][:_HEAD]
    fact = f": ids[{position}] = {value} is not in [0, {bound})" if status == _BAD_VALUE else ""
    raise _refused(ranks, bad, f"refused what it was given{fact}; nothing was looked up")


def _refused(ranks: Ranks, bad: list[int], what: str) -> RankRefusedError:
    names = ranks.names(bad)
    return RankRefusedError(f"exchange of sizes: rank {', '.join(map(str, names))} {what}", "sizes", names)


def _check_calls(said: list[list[int]], ranks: Ranks) -> None:
    """All ranks must be in the same call of the same module, and all with or all without gradients."""
    own = said[ranks.rank]
    others = [r for r, line in enumerate(said) if line[0] != own[0]]
    if others:
        raise _refused(ranks, others, "is in another call than this one, or of another module")
    for k in range(_HEAD, len(own), _EACH):
        odd = [r for r, line in enumerate(said) if line[k] != own[k]]
        if odd:
            ways = ("without", "with")
            raise _refused(ranks, odd, f"looks up {ways[1 - own[k]]} gradients, this one {ways[own[k]]} them")
        if {line[k + 1] for line in said} >= {WEIGHTED, PLAIN}:
            plain = [r for r, line in enumerate(said) if line[k + 1] == PLAIN]
            raise _refused(ranks, plain, "has no per_sample_weights, others have")


def _told(said: list[list[int]], first: int) -> Told:
    trains, weighted, weights_gradient, *sizes = list(zip(*said, strict=True))[first : first + _EACH]
    rows, pairs, bags = (list(s) for s in sizes)
    return Told(rows, pairs, bags, bool(trains[0]), WEIGHTED in weighted, any(weights_gradient))
