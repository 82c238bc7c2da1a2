"""Lost ranks: heartbeats and failure reports in the process group's store, and which rank to blame."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

INTERVAL = 2.0  # seconds between heartbeats, if no module has a timeout below six of them
GRACE = 5.0  # seconds after a failure in which a live rank reports it, or shows that it is alive
NOTICE = 30.0  # seconds after which a call that waits says so in the log
_POLL = 0.05
_EXIT = 1.0  # seconds that the report of a process that ends may take
_LENGTH = 300  # characters of a report
_LOGGER = logging.getLogger("rowgrad.torch.sharded")
_AGENT_STORE = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun serves the store, not rank 0

# The kinds of reports. A rank that LOST another one is not to blame; a rank that FAILED or ENDED is.
FAILED, ENDED, LOST = "failed", "ended", "lost"


class RankError(RuntimeError):
    """A call in which other ranks take part failed.

    Attributes:
        phase: The exchange that failed.
        ranks: The ranks at fault, if they are known.
    """

    def __init__(self, message: str, phase: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.phase = phase
        self.ranks = tuple(ranks)


class RankRefusedError(RankError, ValueError):
    """Another rank rejected its arguments, which raises on that rank, or it makes a different call.

    Nothing was sent, and all ranks may continue.
    """


class RankLostError(RankError):
    """A rank died, failed in the middle of a call, or did not answer in time.

    The process group cannot be used any more: restart all ranks.
    """


class Report(NamedTuple):
    """What a rank wrote when one of its calls failed or its process ended."""

    rank: int
    process: str
    kind: str
    text: str


class Blame(NamedTuple):
    """The ranks at fault, by their global numbers, and a sentence about them."""

    ranks: tuple[int, ...]
    text: str


class Silence:
    """For how long the heartbeat of each rank did not change.

    Only time in which this process observes counts, so a process that was suspended does not blame the others.

    Args:
        ranks: The ranks.
        longest: The most seconds to count between two observations.
        clock: Returns the time in seconds.
    """

    def __init__(self, ranks: Sequence[int], longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest, self._clock = longest, clock
        self._last = clock()
        self._beats: dict[int, str | None] = {}
        self.seconds = dict.fromkeys(ranks, 0.0)
        self.alive: set[int] = set()  # the ranks whose heartbeat changed since the first observation

    def observe(self, beats: Mapping[int, str]) -> None:
        """Take the current heartbeats, by rank; a rank may have none."""
        now = self._clock()
        passed, self._last = min(now - self._last, self._longest), now
        for rank in self.seconds:
            beat = beats.get(rank)
            changed = rank in self._beats and beat != self._beats[rank]
            if changed:
                self.alive.add(rank)
            silent = beat is not None and not changed  # a rank that has not created its first module has no heartbeat
            self.seconds[rank] = self.seconds[rank] + passed if silent else 0.0
            self._beats[rank] = beat


class _Group:
    """What this process knows about the ranks of a process group."""

    def __init__(self, name: str, rank: int, members: Sequence[int]) -> None:
        self.name, self.rank, self.members = name, rank, tuple(members)
        self.reports: list[Report] = []
        self.first_new: int | None = None  # reports before this one are of processes that ended before this one began
        self.watchers = 0
        self.silence: Silence | None = None
        self.processes: dict[int, str] = {}  # from the heartbeats
        self.waits_in: dict[int, list[str]] = {}  # the groups in which each rank waits, from the heartbeats
        self.noticed = False
        self.broken: Blame | None = None

    @property
    def others(self) -> list[int]:
        return [r for r in self.members if r != self.rank]

    def reported(self) -> dict[int, Report]:
        """Return the first report of every rank's current process."""
        found: dict[int, Report] = {}
        for report in self.reports:
            if report.process == self.processes.get(report.rank):
                found.setdefault(report.rank, report)
        return found

    def causes(self, new: bool) -> list[Report]:
        """Return the reports of other ranks that failed or ended by themselves; `new`: since this process began."""
        known = self.reports[: self.first_new] if new else []
        return [r for r in self.reported().values() if r.kind != LOST and r.rank != self.rank and r not in known]


class Pulse:
    """A thread that writes this rank's heartbeat, and reads the other ranks' while a call waits for them.

    All requests to the store are made by this thread, on a connection of its own: a request blocks if the process that
    serves the store hangs.
    """

    def __init__(self, store: Any, rank: int) -> None:
        self.source, self.process = weakref.ref(store), os.getpid()
        self._store = store.clone() if hasattr(store, "clone") else store  # torch 2.7 has no clones
        self._rank, self._token = rank, uuid.uuid4().hex[:12]
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun has one store for all restarts
        self._prefix = f"rowgrad/{restart}"
        self.interval = INTERVAL
        self._groups: dict[str, _Group] = {}
        self._outbox: list[tuple[str, Report]] = []
        self._answered = time.monotonic()  # when the store last answered
        self._lock, self._wake, self._stopping = threading.Lock(), threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="rowgrad heartbeat", daemon=True)
        self._thread.start()

    def join(self, name: str, members: Sequence[int], timeout: float) -> None:
        """Take part in a group: its members, by their global ranks, read this rank's heartbeats."""
        with self._lock:
            self.interval = min(self.interval, timeout / 6)
            self._groups.setdefault(name, _Group(name, self._rank, members))
        self._wake.set()

    def stop(self, text: str) -> None:
        """Report that this process ends, and end the thread."""
        for name in self._groups:
            self._post(name, ENDED, text)
        self._stopping = True
        self._wake.set()
        self._thread.join(_EXIT)

    # -- calls of the thread that runs the model ----------------------------------------------------------------------

    def wait(self, work: Any, group: str, phase: str, timeout: float) -> None:
        """Wait for a collective as long as all ranks are alive; raise `RankLostError` if one is not, or if it fails."""
        try:
            if _completed(work, min(timeout, self.interval)):
                return
            began = time.monotonic()
            with self._watching(group) as watched:
                while not _completed(work, self.interval):
                    blame = self._lost(watched, timeout)
                    if blame is None:
                        if time.monotonic() - began >= NOTICE:
                            self._log_wait(watched, phase)
                        continue
                    if _completed(work, GRACE):  # that rank had sent its share before it was lost
                        return
                    self._post(group, LOST, phase)
                    raise self._error(group, phase, blame)
        except RankLostError:
            raise
        except RuntimeError as error:
            raise self.lost_error(group, phase, error) from error

    def _log_wait(self, group: _Group, phase: str) -> None:
        """Log once for which ranks of a group a call waits."""
        with self._lock:
            absent = [r for r in group.others if group.name not in group.waits_in.get(r, [])]
            if group.noticed or not absent:
                return
            group.noticed = True
        _LOGGER.warning("rank %d waits in the exchange of %s: %s did not join yet", self._rank, phase, _names(absent))

    def lost_error(self, group: str, phase: str, error: BaseException) -> RankLostError:
        """Report that a collective failed; return the error to raise, which names the ranks at fault."""
        cause = re.sub(r"^\[[^]]*\] ", "", str(error).strip())[:200]  # without the line of gloo's source
        return self._error(group, phase, self._blame(group, phase), f"; {(cause.splitlines() or [''])[0]}")

    def _error(self, group: str, phase: str, blame: Blame, end: str = "") -> RankLostError:
        self._groups[group].broken = blame
        return RankLostError(f"exchange of {phase} failed: {blame.text}{end}", phase, blame.ranks)

    def _blame(self, name: str, phase: str) -> Blame:
        """Report that a collective failed; return which ranks are at fault.

        A rank that reports neither a failure nor its end within `GRACE`, and whose heartbeat stops, is lost. If no
        rank is lost, those that are alive but do not take part are at fault.
        """
        self._post(name, LOST, phase)
        with self._watching(name) as watched:
            deadline = time.monotonic() + max(GRACE, 3 * self.interval)
            asked = time.monotonic()
            while time.monotonic() < deadline and self._thread.is_alive():
                with self._lock:
                    decided = watched.causes(new=False) or not self._missing(watched)
                    if decided and self._answered > asked:
                        break
                time.sleep(_POLL)
            with self._lock:
                return self._verdict(watched) if self._answered > asked else Blame((), _NO_STORE)

    def fail(self, group: str, phase: str, error: BaseException) -> None:
        """Report that this rank failed in the middle of a call; the group cannot be used afterwards."""
        text = f"failed in {phase}: {describe(error)}"
        self._post(group, FAILED, text)
        self._groups[group].broken = Blame((self._rank,), f"rank {self._rank} {text}")

    def broken(self, group: str) -> Blame | None:
        """Return why the group cannot be used any more, if it cannot."""
        return self._groups[group].broken

    def _post(self, name: str, kind: str, text: str) -> None:
        with self._lock:
            line = " ".join(text.split())[:_LENGTH]
            self._outbox.append((name, Report(self._rank, self._token, kind, line)))
        self._wake.set()

    @contextmanager
    def _watching(self, name: str) -> Iterator[_Group]:
        group = self._groups[name]
        with self._lock:
            if not group.watchers:
                group.silence = Silence(group.others, 2 * self.interval)
            group.watchers += 1
        self._wake.set()
        try:
            yield group
        finally:
            with self._lock:
                group.watchers -= 1

    def _lost(self, group: _Group, timeout: float) -> Blame | None:
        """Return which ranks ended, failed or have no heartbeat, while a call waits; None if all are alive."""
        with self._lock:
            causes = group.causes(new=True)
            if causes:
                return _blame_reports(causes)
            if time.monotonic() - self._answered > timeout:
                return Blame((), _NO_STORE)
            assert group.silence is not None
            silent = [r for r, seconds in group.silence.seconds.items() if seconds >= timeout]
        if not silent:
            return None
        return Blame(tuple(silent), f"{_subject(silent, 'does')} not answer: no heartbeat for {timeout:g} s")

    def _missing(self, group: _Group) -> list[int]:
        reported = group.reported()
        return [r for r in group.others if r not in reported]

    def _verdict(self, group: _Group) -> Blame:
        causes, missing = group.causes(new=False), self._missing(group)
        if causes:
            return _blame_reports(causes)
        assert group.silence is not None
        silent = [r for r in missing if r not in group.silence.alive]
        if silent:
            return Blame(tuple(silent), f"{_subject(silent, 'does')} not answer")
        if missing:
            return Blame(tuple(missing), f"{_subject(missing, 'is')} running, but did not join this call")
        return Blame((), "every rank reported a failure, so none is known to be lost")

    # -- calls of the heartbeat's thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        with suppress(dist.DistNetworkError):  # the process that serves the store ended; torch prints a warning
            count = 0
            while True:
                stopping, current = self._stopping, default_store()
                destroyed = current is None or current is not self.source()
                if destroyed:
                    if not _AGENT_STORE:  # the store may have been destroyed too
                        return
                    for name in self._groups:
                        self._post(name, ENDED, "left the process group")
                count += 1
                self._request(count)
                if stopping or destroyed:
                    return
                self._wake.wait(self.interval)
                self._wake.clear()

    def _request(self, count: int) -> None:
        try:
            waits_in = " ".join(g.name for g in list(self._groups.values()) if g.watchers)
            self._store.set(f"{self._prefix}/alive/{self._rank}", f"{self._token} {count} {waits_in}")
            self._send_reports()
            for group in list(self._groups.values()):
                self._read(group)
            self._answered = time.monotonic()
        except dist.DistNetworkError:
            raise
        except (RuntimeError, ValueError):  # the request timed out: try again
            pass

    def _send_reports(self) -> None:
        while self._outbox:
            name, report = self._outbox[0]
            number = self._store.add(f"{self._prefix}/{name}/reports", 1)
            self._store.set(f"{self._prefix}/{name}/report/{number}", "\t".join(map(str, report)))
            with self._lock:
                self._outbox.pop(0)

    def _read(self, group: _Group) -> None:
        """Read new reports, and heartbeats if a call waits."""
        if group.first_new is not None and not group.watchers:
            return
        reports: list[Report] = []
        while True:
            key = f"{self._prefix}/{group.name}/report/{len(group.reports) + len(reports) + 1}"
            if not self._store.check([key]):
                break
            rank, process, kind, text = self._store.get(key).decode(errors="replace").split("\t", 3)
            reports.append(Report(int(rank), process, kind, text))
        beats = {}
        if group.watchers:
            for rank in group.others:
                key = f"{self._prefix}/alive/{rank}"
                if rank in group.processes or self._store.check([key]):
                    beats[rank] = self._store.get(key).decode()
        with self._lock:
            group.reports += reports
            if group.first_new is None:
                group.first_new = len(group.reports)
            for rank, beat in beats.items():
                group.processes[rank], _, *group.waits_in[rank] = beat.split()
            if group.watchers and group.silence is not None:
                group.silence.observe(beats)


_PLURAL = {"does": "do", "is": "are"}
_NO_STORE = "the store of the process group does not answer: its server, usually rank 0, may be lost"


def describe(error: BaseException) -> str:
    """Return the type and the first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _names(ranks: Sequence[int]) -> str:
    """Return "rank 1", or "ranks 1, 2"."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _subject(ranks: Sequence[int], verb: str) -> str:
    """Return "rank 1 does", or "ranks 1, 2 do"."""
    return f"{_names(ranks)} {verb if len(ranks) == 1 else _PLURAL[verb]}"


def _blame_reports(causes: Sequence[Report]) -> Blame:
    text = "; ".join(f"rank {r.rank} {r.text}" for r in causes)
    return Blame(tuple(sorted(r.rank for r in causes)), text)


def _completed(work: Any, seconds: float) -> bool:
    """Return whether a collective is complete after these seconds; raise if it failed."""
    try:
        work.wait(timedelta(seconds=seconds))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # raises the failure, unless the collective completed at the last moment
    return True


_PULSE: Pulse | None = None


def default_store() -> Any:
    """Return the store of the default process group; None without one."""
    with suppress(ValueError, RuntimeError):
        return dist.distributed_c10d._get_default_store()
    return None


def start_pulse(group: Any, timeout: float) -> Pulse:
    """Join a group; start this process's heartbeat in the default process group unless it runs already."""
    global _PULSE
    store = default_store()
    if _PULSE is None or _PULSE.source() is not store or _PULSE.process != os.getpid():
        _PULSE = Pulse(store, dist.get_rank())
    members = [dist.get_global_rank(group, r) for r in range(dist.get_world_size(group))]
    _PULSE.join(group.group_name, members, timeout)
    return _PULSE


@atexit.register
def _report_end() -> None:
    """Tell the other ranks that this process ends, and by which error, before its connections break."""
    if _PULSE is not None and _PULSE.process == os.getpid():
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        _PULSE.stop("ended" if error is None else f"ended with {describe(error)}")
