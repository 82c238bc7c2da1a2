"""What the other ranks are told when one of them refuses its ids, dies or hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch.distributed as dist

GRACE = 5.0  # seconds in which a rank that lives is expected to report that it failed too
_PREFIX = "rowgrad/failed"
_POLL = 0.05


class RankError(RuntimeError):
    """A call that other ranks take part in has failed.

    `phase` says in which exchange; `ranks` are those at fault where that could be found out, else empty.
    """

    def __init__(self, message: str, phase: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.phase = phase
        self.ranks = tuple(ranks)


class RankRefusedError(RankError, ValueError):
    """Another rank refused what it was given, and raises that error itself; or it does something else than this one.

    Nothing has been sent, and all ranks may go on.
    """


class RankLostError(RankError):
    """A rank died, or did not answer in time."""


def lost(error: BaseException, group: Any, phase: str, timeout: float) -> RankLostError:
    """The error to raise for a collective that failed: with the ranks that do not report a failure of their own.

    Every rank whose collective fails says so in the group's store and waits a moment for the others to do the same.
    Who is silent is dead or hangs. Nothing of this costs anything while all is well.
    """
    missing, note = _silent(group, phase)
    if missing:
        who = "rank " + ", ".join(map(str, missing)) + (" does" if len(missing) == 1 else " do") + " not answer"
    else:
        who = note or "every rank has reported a failure, so none is known to be lost"
    cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
    text = f"exchange of {phase} failed: {who} (timeout {timeout:g} s); {cause[:200]}"
    return RankLostError(text, phase, missing)


def forget(group: Any) -> None:
    """Take back what a process of this rank said before it was started again: some stores outlive their processes."""
    with suppress(RuntimeError):  # not every store can
        dist.distributed_c10d._get_default_store().delete_key(_key(group, dist.get_rank(group)))


def _key(group: Any, rank: int) -> str:
    return f"{_PREFIX}/{group.group_name}/{rank}"


def _silent(group: Any, phase: str) -> tuple[list[int], str]:
    """Ranks that did not report within `GRACE`, and what there is to say where nobody can be asked."""
    found: list[int] | None = None

    def ask() -> None:
        nonlocal found
        with suppress(RuntimeError, ValueError):  # torch's DistStoreError is one
            found = _unreported(dist.distributed_c10d._get_default_store(), group, phase)

    # In a thread of its own: a store whose keeper hangs does not answer for as long as its own timeout says.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(GRACE + 1.0)
    if found is None:
        return [], "the store of the process group does not answer: whoever keeps it, most often rank 0, may be lost"
    return [dist.get_global_rank(group, r) for r in found], ""


def _unreported(store: Any, group: Any, phase: str) -> list[int]:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    store.set(_key(group, rank), phase)
    deadline = time.monotonic() + GRACE
    while True:
        missing = [r for r in range(size) if r != rank and not store.check([_key(group, r)])]
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(_POLL)
