"""Fused optimizer steps with bag gradients on the emulated device: the same bits as on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated_call import same_bits
from test_emulated_updates import CPU, DTYPES, PLAIN, STEPS, Emulated, State, drawn
from torch import Tensor

import rowgrad as rg
from rowgrad._catalog.spec import PLAN
from rowgrad.errors import OpError, UnimplementedError
from rowgrad.optim import COMBINERS, RULES, Step, apply_bags, apply_planned
from rowgrad.plan import Plan
from rowgrad.torch import optim
from rowgrad.torch.row_state import memory_of

WIDTHS = (torch.int32, torch.int64)
FACTS = ("message", "argument", "position", "value", "bound", "op")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    return Emulated(monkeypatch)


class Batch:
    """A batch: a third of its ids name one row, with bags, optional weights, and the bags' gradient."""

    def __init__(self, size: int, rows: int, bags: int, shape: Any, dtype: torch.dtype, n: int = 0) -> None:
        draw = torch.Generator().manual_seed(size + n)
        ids = torch.randint(0, max(rows, 1), (size,), generator=draw)
        ids[torch.randperm(size, generator=draw)[: size // 3]] = rows // 2
        self.indices = ids.to(WIDTHS[n % 2])
        self.segment_ids = torch.randint(0, bags, (size,), generator=draw).to(WIDTHS[n // 2 % 2])
        self.weights = drawn((size,), DTYPES[n % 4], n)
        self.grad = drawn((bags, *shape), dtype, n)
        self.num_rows = rows

    def plan(self) -> Plan:
        """Return the plan with tensors for arrays."""
        plan = rg.Plan(self.indices, self.segment_ids, self.num_rows, len(self.grad))
        return Plan.of(*(torch.as_tensor(getattr(plan, name)) for name in PLAN[:-1]), self.num_rows)


def array_argument(tensor: Tensor, name: str = "input") -> Any:
    return memory_of(tensor, name, CPU)


def run_update(
    rule: str, state: list[Tensor], batch: Batch, step: Step, plan: Any = None, **options: Any
) -> list[Tensor]:
    """Return table and slots after an update in place."""
    table, *slots = (array_argument(t) for t in state)
    if options.pop("weighted", False):
        options["weights"] = array_argument(batch.weights)
    if plan is None:
        ids = array_argument(batch.indices), array_argument(batch.segment_ids)
        apply_bags(rule, table, slots, array_argument(batch.grad), *ids, step, **options)
    else:
        of = Plan.of(*(array_argument(getattr(plan, name)) for name in PLAN[:-1]), plan.num_rows)
        apply_planned(rule, table, slots, array_argument(batch.grad), of, step, **options)
    return state


def check(device: Emulated, state: State, batch: Batch, step: Step, **options: Any) -> None:
    """Check with ids and with a plan: every bit as on the CPU."""
    expected = run_update(state.rule, [t.clone() for t in (state.table, *state.slots)], batch, step, **options)
    for plan in (None, batch.plan()):
        with device:
            got = run_update(state.rule, [t.clone() for t in (state.table, *state.slots)], batch, step, plan, **options)
        for name, a, b in zip(("table", "slot 0", "slot 1"), got, expected, strict=False):
            assert same_bits(a, b), f"{state.rule} {state.table.dtype} {options} {plan}: {name}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_rules(device: Emulated, rule: str, dtype: torch.dtype) -> None:
    for n, (size, rows, cols) in enumerate([(1, 1, 1), (40, 61, 3), (900, 100, 8), (700, 30, 20), (300, 5000, 40)]):
        state = State(rule, drawn((rows, cols), dtype))
        options = {
            "combiner": COMBINERS[n % 3], "order": ("sequential", "blocked")[n % 2], "weighted": n in (0, 2, 4),
            "accumulate": ("T", "float32")[n // 2 % 2],
        }  # fmt: skip
        check(device, state, Batch(size, rows, 30, (cols,), dtype, n), STEPS[n % 4], **options)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_every_combiner_order_and_accumulate(device: Emulated, combiner: str, weighted: bool) -> None:
    """All combinations; 16-bit sums are rounded where the CPU rounds them."""
    for n, dtype in enumerate((torch.bfloat16, torch.float16, torch.float32)):
        state, batch = State("adam", drawn((90, 8), dtype)), Batch(1300, 90, 70, (8,), dtype, n)
        for accumulate in ("T", "float32"):
            for order in ("sequential", "blocked"):
                options = {"combiner": combiner, "weighted": weighted, "accumulate": accumulate, "order": order}
                check(device, state, batch, STEPS[2], **options)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_rows_with_many_ids(device: Emulated, rule: str, weighted: bool) -> None:
    """In blocked order, several threads sum such a row, on two levels."""
    for n, (dtype, cols, size) in enumerate(
        [(torch.float32, 1, 13000), (torch.bfloat16, 8, 9000), (torch.float64, 67, 700), (torch.float16, 272, 400)]
    ):
        batch = Batch(size, 6, 30, (cols,), dtype, n)
        for at, row in enumerate((0, 3, 5)):
            batch.indices[at * 64 : at * 64 + 63 + at] = row  # runs that end with a row, and one off
        state, accumulate = State(rule, drawn((6, cols), dtype)), ("T", "float32")[n // 2]
        options = {"combiner": COMBINERS[n % 3], "weighted": weighted, "accumulate": accumulate}
        check(device, state, batch, STEPS[n], order="blocked", **options)


@pytest.mark.parametrize("shape", [(5,), (5, 2, 3), (0, 3), (4, 0)])
@pytest.mark.parametrize("rule", RULES)
def test_shapes(device: Emulated, rule: str, shape: tuple[int, ...]) -> None:
    state = State(rule, drawn(shape, torch.float32))
    for size in (0, 20) if shape[0] else (0,):
        for step in STEPS[:3]:
            for weighted in (False, True):
                check(device, state, Batch(size, shape[0], 7, shape[1:], torch.float32), step, weighted=weighted)


def test_unaligned_table(device: Emulated) -> None:
    """The table's rows take more lanes than a group has, those of the gradient do not."""
    state, batch = State("row_wise_adagrad", drawn((300, 64), torch.float32)), Batch(200, 300, 30, (64,), torch.float32)
    expected = run_update(state.rule, [t.clone() for t in (state.table, *state.slots)], batch, PLAIN)
    table = torch.empty(300 * 64 + 1)[1:].view(300, 64).copy_(state.table)
    with device:
        got = run_update(state.rule, [table, *(t.clone() for t in state.slots)], batch, PLAIN)
    assert all(map(same_bits, got, expected))


def check_same_error(device: Emulated, state: State, batch: Batch, plan: Any = None, **options: Any) -> None:
    """Check that the CPU's error is raised and nothing is written."""
    before = [state.table, *state.slots]
    with pytest.raises(OpError) as expected:
        run_update(state.rule, [t.clone() for t in before], batch, STEPS[2], plan, **options)
    now = [t.clone() for t in before]
    with device, pytest.raises(OpError) as raised:
        run_update(state.rule, now, batch, STEPS[2], plan, **options)
    assert type(raised.value) is type(expected.value)
    for fact in FACTS:
        assert getattr(raised.value, fact) == getattr(expected.value, fact), fact
    assert all(map(same_bits, now, before))


@pytest.mark.parametrize("weighted", [False, True])
def test_bad_ids(device: Emulated, weighted: bool) -> None:
    state = State("adam", drawn((50, 2), torch.float32))
    for n, (name, at, value) in enumerate(
        [("indices", 0, -1), ("indices", 2000, 50), ("segment_ids", 7, 40), ("segment_ids", -1, 99)]
    ):
        batch = Batch(2100, 50, 40, (2,), torch.float32, n)
        getattr(batch, name)[at] = value
        check_same_error(device, state, batch, weighted=weighted, combiner="mean")
        batch.indices[3] = 50
        check_same_error(device, state, batch, weighted=weighted)


@pytest.mark.parametrize("weighted", [False, True])
def test_bad_plans(device: Emulated, weighted: bool) -> None:
    state, batch = State("adagrad", drawn((50, 2), torch.float32)), Batch(2100, 50, 40, (2,), torch.float32)
    changes = [("rows", 3, 50), ("starts", 0, 1), ("starts", 9, 2), ("segments", 2000, -1)]
    for name, at, value in changes + [("positions", 1500, 2100)] * weighted:
        plan = batch.plan()
        changed = {name: getattr(plan, name).clone() for name in PLAN[:-1]}
        changed[name][at] = value
        check_same_error(device, state, batch, Plan.of(*changed.values(), 50), weighted=weighted)
    check_same_error(device, State("sgd", drawn((49, 2), torch.float32)), batch, batch.plan(), weighted=weighted)
    plan = batch.plan()
    batch.grad = batch.grad[:39].clone()
    check_same_error(device, state, batch, plan, weighted=weighted)


def test_a_host_plan_is_rejected(device: Emulated) -> None:
    batch, table = Batch(20, 9, 4, (2,), torch.float32), torch.nn.Parameter(drawn((9, 2), torch.float32))
    plan = rg.Plan(batch.indices.numpy(), batch.segment_ids.numpy(), 9, 4)
    with device, pytest.raises(UnimplementedError, match="rows must be on the table's device"):
        optim.SGD([table]).update_from_bags(table, batch.grad, None, None, "sum", plan=plan)


@pytest.mark.parametrize("make", [optim.SGD, optim.RowWiseAdagrad, optim.Adam])
def test_optimizers(device: Emulated, make: Any) -> None:
    """The real optimizers, with ids, with a plan, and with a gradient with duplicate rows."""
    batch = Batch(200, 30, 12, (16,), torch.float32)
    plan, repeated = batch.plan(), drawn((200, 16), torch.float32, 3)

    def trained() -> list[Tensor]:
        table = torch.nn.Parameter(drawn((30, 16), torch.float32))
        optimizer = make([table], lr=0.05)
        optimizer.update_from_bags(table, batch.grad, batch.indices, batch.segment_ids, "mean")
        optimizer.update_from_bags(table, batch.grad, None, None, "sqrtn", weights=batch.weights, plan=plan)
        table.grad = torch.sparse_coo_tensor(batch.indices[None], repeated, (30, 16), check_invariants=False)
        optimizer.step()
        return [table.detach(), *(v for v in optimizer.state[table].values() if isinstance(v, Tensor))]

    expected = trained()
    with device as there:
        got = trained()
    assert sum(name.startswith("step_rows") for name in there.launched) == 3
    assert all(map(same_bits, got, expected))


def test_a_step_does_not_wait(device: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of rows is not read back from the device."""
    state, batch = State("sgd", drawn((50, 4), torch.float32)), Batch(300, 50, 40, (4,), torch.float32)
    monkeypatch.setattr("rowgrad.cuda.call.Call.number", lambda *_: pytest.fail("it waits"))
    check(device, state, batch, PLAIN, combiner="mean")
