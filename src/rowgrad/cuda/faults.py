"""Fault reports of GPU kernels, which do not stall the host.

A checking kernel that finds a bad id writes a report to host memory, and later kernels of the same call do nothing. The
host reads one word at the start of each call, so the next call or `synchronize` raises the error. With
`validate("sync")`, every call waits for its kernels and raises its own errors.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .._catalog.enums import Fault
from .._catalog.rules import number_error
from .._core import CudaLedger
from ..errors import OpError, make_error

SLOTS = 1 << 14  # more than a stream queues: when a slot is reused, its call has finished
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
    """What an error names: an op of the catalogue, or an update.

    A function `error_of(key, position, value, bound)`, if it has one, returns the error of a fault.
    """

    @property
    def name(self) -> str:
        """The name that users call."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """The arguments that a fault can name."""


class Ledger:
    """Host memory for the fault reports of a device: one slot per call, and one word that is set if any slot is.

    Args:
        checks: `SLOTS` + 1 zeros on the device: the check states of kernels that reset them.
        pinned: Whether the host memory has to be pinned.
    """

    def __init__(self, checks: Tensor, pinned: bool) -> None:
        memory = torch.zeros((SLOTS + 1) * _FIELDS + SLOTS, dtype=torch.int64)  # and a number for each slot
        self._memory = memory.pin_memory() if pinned else memory
        self._checks = checks
        self.slots = CudaLedger(self._memory.data_ptr(), SLOTS, checks.data_ptr())
        self.alarm = self.slots.alarm

    def take(self, op: Caller, captured: bool) -> int:
        """Return the address of a slot for a call; a captured call keeps it, because its graph may run at any time."""
        slot = self.slots.take(op, captured)
        if slot == 0:
            raise OpError(f"CUDA graphs may capture at most {SLOTS // 2} calls")
        return slot

    def checks_of(self, slot: int) -> int:
        """Return the address of a slot's check state on the device: zero, and reset to zero by its kernels."""
        return self.slots.checks_of(slot)

    def raise_reported(self, own: int = 0) -> None:
        """Raise the oldest reported fault and drop the others.

        `own` is the slot of the current call. A fault reported there does not come from an earlier call, so the error
        does not name one.
        """
        if not self.slots.is_raised:
            return
        reports = self.slots.reported()
        if not reports or _mode == "off":
            return
        slot, op, code, position, value, bound = reports[0]
        key, error_of = Fault(code).name, getattr(op, "error_of", None)
        if code == Fault.number_unfit:
            error = number_error(position, value, bound)
        elif error_of is None:
            error = make_error(key, has=op.input_names, position=position, value=value, bound=bound)
        else:
            error = error_of(key, position, value, bound)
        if slot == own:
            raise error
        raise error.in_call(op.name, None, "", context="in an earlier call on a CUDA device")
