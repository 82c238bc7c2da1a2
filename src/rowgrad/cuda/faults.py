"""Faults that kernels report without a stall.

A checking kernel that meets a bad id writes what it found into host memory, and everything queued after it for the same
call does nothing. The host looks at one word at the beginning of each call: so an error is raised by the next call, or
by `synchronize`; `validate("sync")` waits for every call instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .._catalog.enums import Fault
from ..errors import OpError, make_error

_SLOTS = 1 << 14  # more than a queue holds: when one comes round again, its call is long over
_FIELDS = 4

_mode = "async"


def validate(mode: str) -> str:
    """When faults of CUDA calls are raised; gives the mode before.

    "sync": by the call itself, which waits for its kernels. "async": by the next call, or by `synchronize`. "off":
    never. Bad ids lead to no access outside of memory in any mode.
    """
    global _mode
    if mode not in ("sync", "async", "off"):
        raise ValueError(f"mode must be 'sync', 'async' or 'off'; got {mode!r}")
    before, _mode = _mode, mode
    return before


def mode() -> str:
    """The mode of now."""
    return _mode


class Caller(Protocol):
    """Who is named in an error: an op of the catalogue, or an update."""

    @property
    def name(self) -> str:
        """As users call it."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Which arguments a fault may be about."""


class Ledger:
    """Host memory that a device's kernels write to: a slot for each call, and one word that says that any is used."""

    def __init__(self, pinned: bool) -> None:
        memory = torch.zeros((_SLOTS + 1) * _FIELDS, dtype=torch.int64)
        self._memory = memory.pin_memory() if pinned else memory
        self._words = memoryview(self._memory.numpy())
        self.alarm: int = self._memory.data_ptr()
        self._ops: list[Caller | None] = [None] * _SLOTS
        self._order: list[int] = [0] * _SLOTS
        self._kept: set[int] = set()  # slots that graphs of kernels write to whenever they are replayed
        self._checks: Tensor | None = None
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, op: Caller, keep: bool) -> int:
        """The address of a slot for a call of an op; `keep`: it is captured in a graph, which may run at any time."""
        with self._lock:
            if keep and len(self._kept) >= _SLOTS // 2:
                raise OpError(f"more than {_SLOTS // 2} calls were captured in CUDA graphs")
            slot = self._taken % _SLOTS
            while slot in self._kept:
                self._taken += 1
                slot = self._taken % _SLOTS
            self._order[slot] = self._taken
            self._taken += 1
            if keep:
                self._kept.add(slot)
            self._ops[slot] = op
            self._words[(slot + 1) * _FIELDS] = 0
            return self._address(slot)

    def _address(self, slot: int) -> int:
        return self.alarm + (slot + 1) * _FIELDS * 8

    def checks_of(self, slot: int, empty: Callable[[Sequence[int], torch.dtype], Tensor]) -> int:
        """The address of a slot's own state of checks on the device: zeros, which kernels leave as zeros."""
        if self._checks is None:
            self._checks = empty((_SLOTS + 1,), torch.int64)
            self._checks.zero_()
        return int(self._checks.data_ptr()) + (slot - self.alarm) // (_FIELDS * 8) * 8

    def raise_reported(self, own: int = 0) -> None:
        """Raise the oldest reported fault and drop the others.

        `own` is the slot of the current call. A fault reported there does not come from an earlier call, so the error
        does not name one.
        """
        if self._words[0] == 0:
            return
        with self._lock:
            self._words[0] = 0
            reports = self._memory.numpy().reshape(-1, _FIELDS)[1:]
            slots = sorted((i for i in reports[:, 0].nonzero()[0].tolist()), key=self._order.__getitem__)
            facts: list[Any] = [(i, self._ops[i], reports[i].tolist()) for i in slots]
            reports[:, 0] = 0
        if not facts or _mode == "off":
            return
        slot, op, (code, position, value, bound) = facts[0]
        error = make_error(Fault(code).name, has=op.input_names, position=position, value=value, bound=bound)
        if self._address(slot) == own:
            raise error
        raise error.in_call(op.name, None, "", context="in an earlier call on a CUDA device")
