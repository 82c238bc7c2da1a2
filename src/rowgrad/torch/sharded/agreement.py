"""What ranks tell each other before anything travels: how much is to come, whether all do the same, or one refuses."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .failures import RankRefusedError
from .parcels import Parcel, Section
from .ranks import Ranks
from .routes import Counts, Route

WEIGHTED, PLAIN, EITHER = 1, 0, 2  # EITHER: a rank without ids
_FINE, _BAD_ID, _OTHER = 0, 1, 2
_HEAD = 5  # call, status, position, value, bound
_EACH = 6  # trains, weighted, wants the gradient of weights, rows, pairs, bags
_LINE = _HEAD + _EACH
# The first exchange of whatever a rank is about to do has one line of this length for every other. Ranks that disagree
# about what it is then find that out: from a rank that sends more than is expected gloo does not recover, it ends the
# process.


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


def call_number(*facts: object) -> int:
    """What tells a call from every other: the same on all ranks that are in it."""
    return zlib.crc32(repr(facts).encode())


def agree(ranks: Ranks, call: int, asked: Sequence[Asked], refusal: Exception | None) -> list[Told]:
    """Exchange sizes. Where one rank refuses, all raise and nothing else has been sent."""
    lines = []
    for r in range(ranks.size):
        line = [call, *_status(refusal)]
        for a in asked:
            sizes = (0, 0, 0) if a.route is None else (a.route.num_rows[r], a.route.num_pairs[r], a.route.num_bags[r])
            line += [int(a.trains), a.weighted, int(a.weights_gradient), *sizes]
        lines.append(line)
    said = _exchanged(ranks, "sizes", [line[:_LINE] for line in lines])
    _judge(ranks, "exchange of sizes", said, refusal)
    if len(asked) > 1:
        rest = _exchanged(ranks, "sizes", [line[_LINE:] for line in lines])
        said = [first + more for first, more in zip(said, rest, strict=True)]
    _check_alike(said, ranks)
    return [_told(said, _HEAD + k * _EACH) for k in range(len(asked))]


def meet(ranks: Ranks, what: str, call: int, refusal: Exception | None = None, value: int = 0) -> list[int]:
    """Make sure that all ranks are about to do the same; gives every rank's `value`."""
    line = [call, *_status(refusal), value]
    said = _exchanged(ranks, "calls", [line + [0] * (_LINE - len(line))] * ranks.size)
    _judge(ranks, what, said, refusal)
    return [line[_HEAD] for line in said]


def _exchanged(ranks: Ranks, phase: str, lines: list[list[int]]) -> list[list[int]]:
    each = [1] * ranks.size
    sent = torch.tensor(lines, dtype=torch.int64).to(ranks.device)
    (found,) = Parcel(ranks, phase, [Section(sent, each, each)]).arrived()
    said: list[list[int]] = found.tolist()
    return said


def _status(refusal: Exception | None) -> tuple[int, int, int, int]:
    if refusal is None:
        return _FINE, 0, 0, 0
    facts = [getattr(refusal, name, None) for name in ("position", "value", "bound")]
    if getattr(refusal, "argument", None) in ("ids", "indices") and all(isinstance(f, int) for f in facts):
        return _BAD_ID, *(int(f) for f in facts if isinstance(f, int))  # type: ignore[return-value]
    return _OTHER, 0, 0, 0


def _judge(ranks: Ranks, what: str, said: list[list[int]], refusal: Exception | None) -> None:
    """Raise where a rank refuses, or is in another call of this module or of another."""
    if refusal is not None:
        raise refusal
    bad = [r for r, line in enumerate(said) if line[1] != _FINE]
    if bad:
        _, status, position, value, bound = said[bad[0]][:_HEAD]
        fact = f": ids[{position}] = {value} is not in [0, {bound})" if status == _BAD_ID else ""
        raise _refused(ranks, bad, what, f"refused what it was given{fact}; nothing was done")
    others = [r for r, line in enumerate(said) if line[0] != said[ranks.rank][0]]
    if others:
        raise _refused(ranks, others, what, "is in another call than this one, or of a module made otherwise")


def _refused(ranks: Ranks, bad: list[int], what: str, why: str) -> RankRefusedError:
    names = ranks.names(bad)
    phase = "sizes" if what == "exchange of sizes" else "calls"
    return RankRefusedError(f"{what}: rank {', '.join(map(str, names))} {why}", phase, names)


def _check_alike(said: list[list[int]], ranks: Ranks) -> None:
    """All ranks look up with gradients or all without, and so for weights."""
    own, what = said[ranks.rank], "exchange of sizes"
    for k in range(_HEAD, len(own), _EACH):
        odd = [r for r, line in enumerate(said) if line[k] != own[k]]
        if odd:
            ways = ("without", "with")
            raise _refused(ranks, odd, what, f"looks up {ways[1 - own[k]]} gradients, this one {ways[own[k]]} them")
        if {line[k + 1] for line in said} >= {WEIGHTED, PLAIN}:
            plain = [r for r, line in enumerate(said) if line[k + 1] == PLAIN]
            raise _refused(ranks, plain, what, "has no per_sample_weights, others have")


def _told(said: list[list[int]], first: int) -> Told:
    trains, weighted, weights_gradient, *sizes = list(zip(*said, strict=True))[first : first + _EACH]
    rows, pairs, bags = (list(s) for s in sizes)
    return Told(rows, pairs, bags, bool(trains[0]), WEIGHTED in weighted, any(weights_gradient))
