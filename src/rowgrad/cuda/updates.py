"""Optimizer steps on CUDA tables: by rows, and fused with the gradient of bags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from .._catalog.enums import Fault
from .._catalog.rules import NUMBERS, RULES, RuleSpec, Step
from .._catalog.spec import PLAN, Op
from ..errors import make_error
from .call import TYPE, Call, blocks_for, is_wide, row_size
from .faults import mode
from .kernel import FLOATS, Kernel
from .row_plan import PlanArrays, plan_entries
from .sorting import SortedIds
from .sparse_segment import (
    BLOCK,
    HAS_DIVISOR,
    SCALE,
    SEVERAL,
    WIDE,
    Entries,
    Joins,
    Shape,
    accumulator,
    run_shift_of,
    sum_sorted,
)
from .weighted_segment import Weighting, weighted_entries

if TYPE_CHECKING:
    from ..optim import Memory, UpdateCall

_WIDEST = {"half": 8, "bfloat16": 8, "float": 4, "double": 2}  # columns in sixteen bytes
_HOST = ("num_rows",)  # inputs that are host numbers
THREADS = 256
_LANES_OF_SUM = 8  # a sum over columns has eight lanes


def rule_variants(rules: Iterable[RuleSpec]) -> list[tuple[str, ...]]:
    """Return the kernel variants of these rules: each dtype, with one column or sixteen bytes of columns at a time."""
    return [(t, rule.class_name, str(width)) for rule in rules for t in FLOATS for width in (1, _WIDEST[t])]


_CHECK = Kernel("updates.cuh", "check_row_ids", THREADS)
_UPDATE = Kernel("updates.cuh", "update_rows", THREADS, rule_variants(r for r in RULES.values() if r.per_row))
_RESIDENT = 4  # blocks per multiprocessor; each loops over rows and prefetches
_STEP = Kernel(
    "row_steps.cuh", "step_rows", BLOCK,
    [(t, r.class_name, w) for t, wide in zip(FLOATS, WIDE, strict=True) for r in RULES.values() for w in ("1", wide)],
    _RESIDENT,
)  # fmt: skip
_MARK = Kernel("updates.cuh", "mark_rows", THREADS)
_FADE = Kernel("updates.cuh", "fade_rows", THREADS, rule_variants(r for r in RULES.values() if r.fades))


@dataclass(frozen=True, slots=True)
class UpdateName:
    """The name and arguments of an update, for errors."""

    name: str
    input_names: tuple[str, ...]


@dataclass(slots=True)
class Update:
    """One step of one table: validated arguments on one device, and the assignment of rows to lanes."""

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

    @property
    def cols(self) -> int:
        """The number of elements of a row."""
        return row_size(self.table)

    @property
    def is_row_wise(self) -> bool:
        """Whether the step of a weight depends on its whole row."""
        return RULES[self.rule].per_row

    @property
    def skips_other_rows(self) -> bool:
        """Whether rows without a gradient stay unchanged."""
        return self.step.lazy or not RULES[self.rule].fades

    def shape(self, *read: Tensor) -> Shape:
        """Return the assignment of columns to lanes of a kernel that also reads these tensors."""
        return Shape(self.table, *self.slots, *read)

    def is_too_wide(self, shape: Shape) -> bool:
        """Return whether the rule is row-wise and a row is wider than a group of lanes."""
        return self.is_row_wise and shape.tiles > 1

    def width(self, *others: Tensor) -> int:
        """Return the number of columns read at once: sixteen bytes if all tensors are aligned, else one."""
        widest = _WIDEST[TYPE[self.table.dtype]]
        aligned = all(t.data_ptr() % 16 == 0 for t in (self.table, *self.slots, *others))
        return widest if aligned and self.cols % widest == 0 else 1

    def variant(self, width: int) -> tuple[str, ...]:
        """Return the template arguments."""
        return TYPE[self.table.dtype], RULES[self.rule].class_name, str(width)

    def lanes(self, width: int) -> int:
        """Return the number of lanes per row: the most of which at least three quarters have work."""
        units = self.cols // width
        fitting = (n for n in (32, 16, 8, 4, 2) if units >= 0.75 * n * blocks_for(units, n))
        lanes = next(fitting, 1)
        return max(lanes, _LANES_OF_SUM) if self.is_row_wise else lanes

    def blocks(self, rows: int, lanes: int) -> int:
        """Return the number of blocks for this many rows."""
        return min(blocks_for(rows, THREADS // lanes), self.call.device.processors * 32)

    def shared(self, width: int) -> int:
        """Return the bytes of shared memory for the squares of a row."""
        return THREADS * width * (8 if self.table.dtype == torch.float64 else 4) * self.is_row_wise

    def step_fields(self, lanes: int) -> dict[str, Any]:
        """Return the struct fields that every kernel that updates rows has."""
        step = self.step
        slots = [slot.data_ptr() for slot in self.slots] + [0, 0]
        numbers = dict(zip(NUMBERS, step.numbers(), strict=True))
        return {
            "table": self.table.data_ptr(), "slot0": slots[0], "slot1": slots[1], "cols": self.cols, "lanes": lanes,
            "random": int(step.stochastic_rounding), "seed": step.seed, "step": step.step, **numbers,
        }  # fmt: skip

    def fade_other_rows(self, named: Tensor, checks: int, count: int = 0) -> None:
        """Queue the decay of moments for the rows that `named` does not list, if the checks have passed.

        `count` is the address of the length of `named` on the device; 0: its full length.
        """
        if self.skips_other_rows or self.table.numel() == 0:
            return
        device = self.call.device
        marks = self.call.empty(blocks_for(self.rows, 32), dtype=torch.int32)
        device.zero(marks)
        fields = {"marks": marks.data_ptr(), "checks": checks}
        size = named.shape[0]
        blocks = min(blocks_for(size, THREADS), device.processors * 8)
        _MARK.launch(device, blocks, ids=named.data_ptr(), wide=is_wide(named), size=size, count=count, **fields)
        width = self.width()
        lanes = self.lanes(width)
        variant, blocks = self.variant(width), self.blocks(self.rows, lanes)
        _FADE.launch(device, blocks, variant, rows=self.rows, **fields, **self.step_fields(lanes))


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
    grad, ids = update.inputs["grad"], update.inputs["row_ids"]
    call, size = update.call, ids.shape[0]
    checks = call.checks()
    _CHECK.launch(
        call.device, min(blocks_for(size, THREADS), call.device.processors * 8), ids=ids.data_ptr(), wide=is_wide(ids),
        size=size, bound=update.rows, code=Fault.row_ids, checks=checks.data_ptr(), **call.report_fields(),
    )  # fmt: skip
    launch_steps(update, grad, ids, size, checks.data_ptr())
    update.fade_other_rows(ids, checks.data_ptr())


@updates("apply_all")
def apply_all(update: Update) -> None:
    """Update all rows."""
    launch_steps(update, update.inputs["grad"], None, update.rows, 0)


@dataclass(frozen=True, slots=True)
class Singles:
    """Sorted entries from which rows with a single entry read their gradient; other rows read a stored sum."""

    starts: Tensor
    entries: int
    bags: Tensor
    segments: int
    scales: int

    def fields(self) -> dict[str, int]:
        """Return them as struct fields of a kernel."""
        return {
            "starts": self.starts.data_ptr(), "entries": self.entries, "bags": self.bags.data_ptr(),
            "segments": self.segments, "scales": self.scales,
        }  # fmt: skip


_NO_SINGLES = {"starts": 0, "entries": 0, "bags": 0, "segments": 0, "scales": 0}
_ROWS = 8  # rows per group of lanes and iteration


def launch_steps(
    update: Update, grad: Tensor, ids: Tensor | None, size: int, checks: int, count: int = 0,
    singles: Singles | None = None,
) -> None:  # fmt: skip
    """Queue the steps of the rows in `ids`, or of all rows if None; row k of `grad` is the gradient of the k-th row.

    `count` is the address of the number of rows on the device, at most `size`; 0: `size` rows.
    """
    if update.cols == 0:
        return  # no weights
    device, read = update.call.device, (singles.bags,) if singles else ()
    shape = update.shape(grad, *read)
    listed = {
        "grad": grad.data_ptr(), "ids": 0 if ids is None else ids.data_ptr(), "size": size, "count": count,
        "wide": 0 if ids is None else is_wide(ids), "checks": checks,
    }  # fmt: skip
    if update.is_too_wide(shape):
        assert singles is None, "the other kernel reads rows of single entries"
        width = update.width(grad)
        lanes = update.lanes(width)
        _UPDATE.launch(
            device, update.blocks(size, lanes), update.variant(width), update.shared(width), **listed,
            **update.step_fields(lanes),
        )  # fmt: skip
        return
    itemsize = int(accumulator(update.table.dtype).itemsize)
    stride = (shape.lanes + (1 if shape.lanes < 8 else 8 // shape.width)) * shape.width
    shared = BLOCK // shape.lanes * _ROWS * (stride * itemsize + itemsize + 16)  # the layout in row_steps.cuh
    blocks = min(blocks_for(size, BLOCK // shape.lanes * _ROWS), device.processors * _RESIDENT)
    _STEP.launch(
        device, (blocks, shape.tiles), update.variant(shape.width), shared, **listed,
        **(singles.fields() if singles else _NO_SINGLES), **update.step_fields(shape.lanes),
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
    if size == 0 or update.rows == 0:  # as for a gradient: nothing else is validated
        checks = call.checks()
        update.fade_other_rows(indices[:0], checks.data_ptr())
        return
    how = Weighting(reduce, rounding, order)
    joins = Joins(size, Shape(grad), accumulator(grad.dtype), run_shift_of(order))
    rows, starts = call.empty(size, dtype=indices.dtype), call.empty(size, dtype=torch.int64)
    if weights is None:
        entries = SortedIds(
            call.device, size, update.rows, grad.shape[0], counted=HAS_DIVISOR[reduce],
            scales=accumulator(grad.dtype) if HAS_DIVISOR[reduce] else None, zeroed=joins.zeroed,
            workspace=joins.workspace,
        )  # fmt: skip
        entries.run(indices, segment_ids, call.report_fields(), reduce=reduce, rows_out=rows, starts_out=starts)
        _step(update, entries, SCALE if HAS_DIVISOR[reduce] else 0, order, rows, starts, entries.at["total"])
    else:
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
    how = Weighting(reduce, rounding, order)
    joins = Joins(plan.size, Shape(grad), accumulator(grad.dtype), run_shift_of(order))
    entries, mode = plan_entries(call, plan, grad, update.inputs.get("weights"), how, joins, unique=True)
    _step(update, entries, mode, order, plan.rows, plan.starts, 0)


def _step(
    update: Update, entries: Entries, mode: int, order: int, rows: Tensor, starts: Tensor, count: int
) -> None:  # fmt: skip
    """Step the rows of the entries, and decay the moments of the other rows if the rule does.

    Sums are stored in consecutive rows; rows with a single entry need no sum. `count` is the address of the number of
    rows on the device; 0: all of `rows`.
    """
    grad, call, at = update.inputs["grad"], update.call, entries.at
    shape = Shape(grad)
    if shape.columns and entries.size:
        listed = min(rows.shape[0], update.rows)
        sums = call.empty(listed, shape.columns, dtype=grad.dtype)
        is_plain = mode in (0, SCALE) and not update.is_too_wide(update.shape(sums, grad))
        singles = Singles(starts, entries.size, grad, at["values"], at["scales"]) if is_plain else None
        sum_mode = mode | SEVERAL if singles else mode
        sum_sorted(call.device, entries, grad, sums, shape, sum_mode, run_shift_of(order), unique=True)
        launch_steps(update, sums, rows, listed, at["checks"], count, singles)
    update.fade_other_rows(rows, at["checks"], count)
