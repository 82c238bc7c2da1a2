"""Fault reports of GPU kernels, which do not stall the host.

A checking kernel that finds a bad id writes a report to host memory, and later kernels of the same call do nothing. The
host reads one word at the start of each call, so the next call or `synchronize` raises the error. With
`validate("sync")`, every call waits for its kernels and raises its own errors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .._catalog.enums import Fault
from ..errors import OpError, make_error

_SLOTS = 1 << 14  # more than a stream queues: when a slot is reused, its call has finished
_FIELDS = 4

_mode = "async"


def validate(mode: str) -> str:
    """Set when faults of CUDA calls are raised; return the previous mode.

    Bad ids never cause out-of-bounds memory access, in any mode.

    Args:
        mode: "sync": the call waits for its kernels and raises its own faults. "async": the next call or `synchronize`
            raises them. "off": never.

    Returns:
        The previous mode.

    Raises:
        ValueError: If the mode is unknown.
    """
    global _mode
    if mode not in ("sync", "async", "off"):
        raise ValueError(f"mode must be 'sync', 'async' or 'off'; got {mode!r}")
    before, _mode = _mode, mode
    return before


def mode() -> str:
    """Return the current mode."""
    return _mode


class Caller(Protocol):
    """What an error names: an op of the catalogue, or an update."""

    @property
    def name(self) -> str:
        """The name that users call."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """The arguments that a fault can name."""


class Ledger:
    """Host memory for the fault reports of a device: one slot per call, and one word that is set if any slot is."""

    def __init__(self, pinned: bool) -> None:
        memory = torch.zeros((_SLOTS + 1) * _FIELDS, dtype=torch.int64)
        self._memory = memory.pin_memory() if pinned else memory
        self._words = memoryview(self._memory.numpy())
        self.alarm: int = self._memory.data_ptr()
        self._ops: list[Caller | None] = [None] * _SLOTS
        self._order: list[int] = [0] * _SLOTS
        self._captured: set[int] = set()  # slots of calls in CUDA graphs, which write to them at each replay
        self._checks: Tensor | None = None
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, op: Caller, captured: bool) -> int:
        """Return the address of a slot for a call; a captured call keeps it, because its graph may run at any time."""
        with self._lock:
            if captured and len(self._captured) >= _SLOTS // 2:
                raise OpError(f"CUDA graphs may capture at most {_SLOTS // 2} calls")
            slot = self._taken % _SLOTS
            while slot in self._captured:
                self._taken += 1
                slot = self._taken % _SLOTS
            self._order[slot] = self._taken
            self._taken += 1
            if captured:
                self._captured.add(slot)
            self._ops[slot] = op
            self._words[(slot + 1) * _FIELDS] = 0
            return self._address(slot)

    def _address(self, slot: int) -> int:
        return self.alarm + (slot + 1) * _FIELDS * 8

    def checks_of(self, slot: int, empty: Callable[[Sequence[int], torch.dtype], Tensor]) -> int:
        """Return the address of a slot's check state on the device: zero, and reset to zero by its kernels."""
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
