"""Optimizer steps on CUDA tables: by rows, and fused with the gradient of bags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from .._catalog.rules import RULES, Step
from .._catalog.spec import PLAN, Op
from .._core import CudaUpdateFromBags, CudaUpdateFromEntries, CudaUpdateFromRows, CudaUpdateOfAll
from ..errors import make_error
from .call import Call
from .device import id_list, matrix
from .faults import mode
from .row_plan import PlanArrays, plan_entries
from .sparse_segment import Entries, Joins
from .weighted_segment import Weighting, weighted_entries

if TYPE_CHECKING:
    from ..optim import Memory, UpdateCall

_HOST = ("num_rows",)  # inputs that are host numbers


@dataclass(frozen=True, slots=True)
class UpdateName:
    """The name and arguments of an update, for errors."""

    name: str
    input_names: tuple[str, ...]


@dataclass(slots=True)
class Update:
    """One step of one table: validated arguments on one device."""

    rule: str
    step: Step
    table: Tensor
    slots: Sequence[Tensor]
    inputs: Mapping[str, Any]  # tensors and host numbers
    constants: Sequence[int]  # the kernel's own parameters
    call: Call

    @property
    def rows(self) -> int:
        """The number of rows of the table."""
        return int(self.table.shape[0])

    def argument(self) -> tuple[Any, ...]:
        """Return the step as the launcher takes it."""
        step = self.step
        slots, numbers = [slot.data_ptr() for slot in self.slots], list(step.numbers())
        flags = bool(step.lazy), bool(step.stochastic_rounding)
        return (
            RULES[self.rule].number,
            matrix(self.table),
            slots,
            numbers,
            *flags,
            step.seed,
            step.step,
            step._on_device,
        )


UPDATES: dict[str, Callable[[Update], None]] = {}


def updates(kernel: str) -> Callable[[Callable[[Update], None]], Callable[[Update], None]]:
    """Register a function as the one that runs an update kernel."""

    def enter(runner: Callable[[Update], None]) -> Callable[[Update], None]:
        assert kernel not in UPDATES, kernel
        UPDATES[kernel] = runner
        return runner

    return enter


@updates("apply_rows")
def apply_rows(update: Update) -> None:
    """Validate ids, update their rows, then decay the moments of the other rows if the rule does."""
    grad, ids, device = update.inputs["grad"], update.inputs["row_ids"], update.call.device
    count = update.inputs.get("count")
    native = CudaUpdateFromRows(update.argument())
    memory = device.workspace(native.bytes)
    native.run(
        device.launcher, device.stream(), memory.data_ptr(), grad.data_ptr(), id_list(ids), ids.shape[0],
        0 if count is None else count.data_ptr(), update.call.report(),
    )  # fmt: skip


@updates("apply_all")
def apply_all(update: Update) -> None:
    """Update all rows."""
    device, native = update.call.device, CudaUpdateOfAll(update.argument())
    memory = device.workspace(native.bytes)
    native.run(
        device.launcher, device.stream(), memory.data_ptr(), update.inputs["grad"].data_ptr(), update.call.report()
    )  # fmt: skip


def run_update(
    update_call: UpdateCall, state: Sequence[tuple[str, Any, Memory]], rule: str, step: Step, constants: Sequence[int]
) -> None:
    """Queue a validated update on the device of its table. `state` is the table, then the slots."""
    from . import run as families  # noqa: F401  (registers every update)

    device = update_call.table.device
    runner = UPDATES.get(update_call.kernel)
    if runner is None:
        raise make_error("no_kernel_for_device", argument="table", value="cuda", bound="cpu")
    inputs = {name: int(value) if name in _HOST else memory.tensor for name, value, memory in update_call.inputs}
    for name, _, memory in (*state, *update_call.inputs):
        if memory.device is not device and name not in _HOST:
            raise make_error("not_here", argument=name, value="memory on another device", bound="on the table's device")
    named = UpdateName(update_call.kernel, update_call.names)
    captured = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    device.ledger.raise_reported()
    # Updates have no op record; their runners read only the names of the op.
    call = Call(cast(Op, named), (), (), (), device, device.ledger.take(named, captured), captured)
    table, *slots = (memory.tensor for _, _, memory in state)
    runner(Update(rule, step, table, slots, inputs, constants, call))
    if mode() == "sync" and not captured:
        device.wait()
        device.ledger.raise_reported(call.fault)


# -- Steps fused with the gradient of bags ----------------------------------------------------------------------------


@updates("apply_bags")
def apply_bags(update: Update) -> None:
    """Sort ids, then step. The number of distinct rows stays on the device; kernels are launched for the maximum."""
    reduce, _, rounding, order = update.constants
    grad, indices, segment_ids = (update.inputs[name] for name in ("grad", "indices", "segment_ids"))
    weights, size, call = update.inputs.get("weights"), indices.shape[0], update.call
    device = call.device
    if size == 0 or update.rows == 0:  # as for a gradient: nothing else is validated
        checks = call.checks()
        _step(update, NoEntries({"checks": checks.data_ptr()}), 0, order, indices[:0], None, 0)
    elif weights is None:
        native = CudaUpdateFromBags(
            device.launcher, update.argument(), matrix(grad), size, indices.dtype == torch.int64, reduce, order
        )  # fmt: skip
        memory = device.workspace(native.bytes)
        native.run(
            device.launcher, device.stream(), memory.data_ptr(), id_list(indices), id_list(segment_ids), call.report()
        )  # fmt: skip
    else:
        how, joins = Weighting(reduce, rounding, order), Joins(size, grad, None, order)
        rows, starts = call.empty(size, dtype=indices.dtype), call.empty(size, dtype=torch.int64)
        weighted = weighted_entries(
            call, grad, indices, segment_ids, weights, update.rows, how, joins, rows, starts
        )  # fmt: skip
        _step(update, weighted, how.mode(grad.dtype), order, rows, starts, weighted.at["total"])


@updates("apply_planned")
def apply_planned(update: Update) -> None:
    """Expand the plan, then step; the plan has the number of rows."""
    reduce, _, rounding, order = update.constants
    plan, grad, call = PlanArrays(*(update.inputs[name] for name in PLAN)), update.inputs["grad"], update.call
    if plan.num_rows != update.rows:
        raise make_error("plan_num_rows", has=call.op.input_names, position=-1, value=plan.num_rows, bound=update.rows)
    how, joins = Weighting(reduce, rounding, order), Joins(plan.size, grad, None, order)
    entries, mode = plan_entries(call, plan, grad, update.inputs.get("weights"), how, joins, unique=True)
    _step(update, entries, mode, order, plan.rows, plan.starts, 0)


@dataclass(frozen=True, slots=True)
class NoEntries:
    """The check state of a batch without entries."""

    at: dict[str, int]
    size: int = 0


def _step(
    update: Update, entries: Entries, mode: int, order: int, rows: Tensor, starts: Tensor | None, count: int
) -> None:  # fmt: skip
    """Step the rows of the entries, and decay the moments of the other rows if the rule does.

    `count` is the address of the number of rows on the device; 0: all of `rows`.
    """
    grad, device = update.inputs["grad"], update.call.device
    native = CudaUpdateFromEntries(update.argument(), matrix(grad), entries.size, rows.shape[0], mode, order)
    memory = device.workspace(native.bytes)
    native.run(
        device.launcher, device.stream(), memory.data_ptr(), entries.at, entries.size, id_list(rows),
        0 if starts is None else starts.data_ptr(), count, update.call.report(),
    )  # fmt: skip
