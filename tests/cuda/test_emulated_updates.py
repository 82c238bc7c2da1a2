"""Optimizer steps on the emulated device: the same bits as on the CPU, for every rule and every dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated_call import same_bits
from emulated_device import HostDevice
from torch import Tensor

from conformance.test_golden_updates import CASES
from conformance.test_golden_updates import test_step_by_step as step_by_step
from rowgrad import optim as updates
from rowgrad.cuda import updates as cuda_updates
from rowgrad.cuda.faults import validate
from rowgrad.cuda.kernel import KERNELS
from rowgrad.errors import InvalidArgumentError, OpError, UnimplementedError
from rowgrad.optim import RULES, Step, apply_all, apply_bags, apply_rows, slot_shapes
from rowgrad.torch import devices, optim
from rowgrad.torch.row_state import memory_of

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CPU = torch.device("cpu")
CLASSES = [optim.SGD, optim.Adagrad, optim.RowWiseAdagrad, optim.Adam, optim.AdamW]
PLAIN = Step(lr=0.05, eps=1e-6, betas=(0.8, 0.95), step=3)
STEPS = [
    PLAIN,
    Step(lr=0.05, eps=1e-6, weight_decay=0.1, betas=(0.8, 0.95), step=3),
    Step(lr=0.05, eps=1e-6, weight_decay=0.1, lazy=False, step=7),
    Step(lr=0.01, lazy=False, stochastic_rounding=True, seed=2**63 - 1, step=2**40 + 11),
]


class Emulated:
    """A context in which the CUDA kernels run on the host, and faults are raised at once."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch, self.device = patch, HostDevice()

    def __enter__(self) -> HostDevice:
        self.device.seed += 1  # shuffle threads differently every time
        self.device.launched = []
        self.patch.setattr(devices, "device_for", lambda tensor: self.device)
        self.before = validate("sync")
        return self.device

    def __exit__(self, *_: Any) -> None:
        self.patch.undo()
        validate(self.before)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    return Emulated(monkeypatch)


def drawn(shape: Any, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class State:
    """A table and its slots; every use takes a copy."""

    def __init__(self, rule: str, table: Tensor) -> None:
        self.rule, self.table = rule, table
        dtype = torch.float64 if table.dtype == torch.float64 else torch.float32
        self.slots = [drawn(shape, dtype, 9 + i).abs() for i, shape in enumerate(slot_shapes(rule, table.shape))]

    def after(self, function: Any, *inputs: Tensor, step: Step) -> list[Tensor]:
        """Return table and slots after an update."""
        state = [t.clone() for t in (self.table, *self.slots)]
        self.update(function, state, *inputs, step=step)
        return state

    def update(self, function: Any, state: list[Tensor], *inputs: Tensor, step: Step) -> None:
        table, *slots = (memory_of(t, "state", CPU) for t in state)
        function(self.rule, table, slots, *(memory_of(t, "input", CPU) for t in inputs), step)


def some_ids(rows: int, size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    return order[:size].sort().values.to(dtype)


def check(emulated: Emulated, state: State, function: Any, *inputs: Tensor, step: Step) -> None:
    expected = state.after(function, *inputs, step=step)
    with emulated as device:
        got = state.after(function, *inputs, step=step)
        assert device.launched or not inputs[0].numel()
    for name, a, b in zip(("table", "slot 0", "slot 1"), got, expected, strict=False):
        assert same_bits(a, b), f"{state.rule} {state.table.dtype} {tuple(state.table.shape)}: {name}"


# -- bits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS, ids=["plain", "decay", "all rows", "by chance"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_rules(emulated: Emulated, rule: str, dtype: torch.dtype, step: Step) -> None:
    for cols in (1, 3, 8, 20, 40, 67, 272):
        rows, size = 61, 37
        state = State(rule, drawn((rows, cols), dtype))
        ids = some_ids(rows, size, (torch.int32, torch.int64)[cols % 2], cols)
        check(emulated, state, apply_rows, drawn((size, cols), dtype, 1), ids, step=step)
        check(emulated, state, apply_all, drawn((rows, cols), dtype, 2), step=step)


@pytest.mark.parametrize("shape", [(5,), (5, 2, 3), (0, 3), (4, 0), (4, 3, 0)])
@pytest.mark.parametrize("rule", RULES)
def test_shapes(emulated: Emulated, rule: str, shape: tuple[int, ...]) -> None:
    state = State(rule, drawn(shape, torch.float32))
    ids = torch.arange(0, shape[0], 2)
    for step in STEPS[:3]:
        check(emulated, state, apply_rows, drawn((len(ids), *shape[1:]), torch.float32, 1), ids, step=step)
        check(emulated, state, apply_rows, drawn((0, *shape[1:]), torch.float32), ids[:0], step=step)
        check(emulated, state, apply_all, drawn(shape, torch.float32, 1), step=step)


@pytest.mark.parametrize(("case", "arrays"), CASES)
def test_recorded_tensorflow_steps(
    case: dict[str, Any], arrays: dict[str, Any], emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:

    def apply_emulated(rule: str, table: Any, slots: list[Any], grad: Any, ids: Any, step: Step) -> None:
        memories = [memory_of(torch.from_numpy(array), "array", CPU) for array in (table, *slots, grad, ids)]
        apply_rows(rule, memories[0], memories[1:-2], *memories[-2:], step)

    with emulated as device:
        monkeypatch.setattr(updates, "apply_rows", apply_emulated)
        step_by_step(case, arrays)
    assert "check_row_ids" in device.launched


@pytest.mark.parametrize("rule", ["row_wise_adagrad", "adamw"])
def test_more_rows_than_threads(emulated: Emulated, rule: str) -> None:
    """So many that every thread has several."""
    rows = 40_000
    state = State(rule, drawn((rows, 1), torch.float32))
    ids = some_ids(rows, 30_001, torch.int32)
    check(emulated, state, apply_rows, drawn((len(ids), 1), torch.float32, 1), ids, step=STEPS[2])


@pytest.mark.parametrize("off", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
@pytest.mark.parametrize("rule", RULES)
def test_unaligned_memory(emulated: Emulated, rule: str, off: tuple[int, int, int]) -> None:
    """Rows of a multiple of 16 bytes that do not start at one: of the table, the slots or the gradient."""
    state = State(rule, drawn((6, 8), torch.float32))
    grad = moved(drawn((6, 8), torch.float32, 1), off[2])
    here, there = ([moved(state.table, off[0]), *(moved(s, off[1]) for s in state.slots)] for _ in range(2))
    state.update(apply_all, here, grad, step=PLAIN)
    with emulated as device:
        state.update(apply_all, there, grad, step=PLAIN)
        wide = off == (0, 1, 0) and not state.slots
        assert device.launched == [f"step_rows<float, {RULES[rule].class_name}, {4 if wide else 1}>"]
    assert all(map(same_bits, there, here))


def moved(tensor: Tensor, by: int) -> Tensor:
    """Return a copy that starts this many elements after an aligned address."""
    return torch.empty(tensor.numel() + by, dtype=tensor.dtype)[by:].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_extremes(emulated: Emulated, rule: str, dtype: torch.dtype) -> None:
    """Subnormals, zeros of both signs, infinities, NaN, the largest numbers: as weights, gradients and state."""
    facts = torch.finfo(dtype)
    values = [0.0, -0.0, facts.tiny, facts.tiny / 4, -facts.tiny / 2, facts.max, -facts.max, 1.0, -1e-3]
    values += [float("inf"), float("-inf"), float("nan"), facts.smallest_normal * 3, 65519.0, 2.0**-15, 2.0**-25]
    table = torch.tensor(values, dtype=torch.float64).to(dtype).repeat_interleave(len(values)).view(-1, 16)
    grad = torch.tensor(values, dtype=torch.float64).to(dtype).repeat(len(values)).view(-1, 16)
    for flip in (False, True):
        state = State(rule, table)
        if flip and state.slots and not RULES[rule].slots[0].per_row:
            state.slots = [grad.to(s.dtype).flip(1).contiguous() for s in state.slots]
        for step in (*STEPS, Step(lr=1e-300, eps=0.0), Step(lr=0.1, eps=0.0, weight_decay=1e-310, lazy=False)):
            check(emulated, state, apply_all, grad, step=step)
            check(emulated, state, apply_rows, grad[:5], torch.arange(3, 8), step=step)


def test_stochastic_rounding_rounds_both_ways(emulated: Emulated) -> None:
    """The bitwise tests would also pass if neither side rounded randomly."""
    for dtype in DTYPES[:2]:
        state = State("sgd", torch.ones((64, 16), dtype=dtype))
        grad = torch.full((64, 16), 1.5 * 2.0**-3, dtype=dtype)
        with emulated:
            step = Step(lr=2.0**-9, stochastic_rounding=True)
            table = state.after(apply_all, grad, step=step)[0]
        assert len(table.unique()) == 2


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "bad", [{0: -1}, {2999: 5000}, {100: 99}, {7: 7, 8: 7}, {2000: -(2**31)}, {500: 2**31 - 1, 20: 5}, {0: 4999}]
)
def test_bad_row_ids(emulated: Emulated, bad: dict[int, int], dtype: torch.dtype) -> None:
    """The error names the first bad id as on the CPU, and nothing is written."""
    ids = torch.arange(3000, dtype=dtype)
    for at, value in bad.items():
        ids[at] = value
    state = State("adam", drawn((5000, 2), torch.float32))
    grad = drawn((3000, 2), torch.float32, 1)
    with pytest.raises(InvalidArgumentError) as expected:
        state.after(apply_rows, grad, ids, step=STEPS[2])
    now = [t.clone() for t in (state.table, *state.slots)]
    with emulated, pytest.raises(OpError) as raised:
        state.update(apply_rows, now, grad, ids, step=STEPS[2])
    assert type(raised.value) is type(expected.value)
    for fact in ("message", "argument", "position", "value", "bound", "op"):
        assert getattr(raised.value, fact) == getattr(expected.value, fact), fact
    assert all(map(same_bits, now, (state.table, *state.slots)))


def test_a_fault_is_raised_by_the_next_update(emulated: Emulated) -> None:
    state = State("sgd", drawn((4, 2), torch.float32))
    good, bad, grad = torch.tensor([0, 3]), torch.tensor([3, 0]), drawn((2, 2), torch.float32)
    with emulated:
        validate("async")
        state.after(apply_rows, grad, bad, step=PLAIN)
        with pytest.raises(
            InvalidArgumentError, match=r"apply_rows: row_ids must .* got row_ids\[1\] = 0 .*an earlier call"
        ):
            state.after(apply_rows, grad, good, step=PLAIN)
        state.after(apply_rows, grad, good, step=PLAIN)


def test_errors_before_any_kernel_runs(emulated: Emulated) -> None:
    """The same errors as on the CPU."""
    state = State("adagrad", drawn((4, 2), torch.float32))
    ids, grad = torch.tensor([0, 3]), drawn((2, 2), torch.float32)
    invalid_calls = [
        (apply_rows, grad[:1], ids),
        (apply_rows, grad.double(), ids),
        (apply_rows, drawn((2, 3), torch.float32), ids),
        (apply_all, grad),
    ]
    for function, *inputs in invalid_calls:
        with pytest.raises(OpError) as expected:
            state.after(function, *inputs, step=PLAIN)
        with emulated as device, pytest.raises(OpError) as raised:
            state.after(function, *inputs, step=PLAIN)
        assert str(raised.value).partition(";")[0] == str(expected.value).partition(";")[0]
        assert not device.launched
    with emulated, pytest.raises(InvalidArgumentError, match="table"):
        state.update(apply_all, [state.table, *state.slots], state.table, step=PLAIN)


def test_memory_on_another_device_is_rejected(emulated: Emulated) -> None:
    state = State("sgd", drawn((4, 2), torch.float32))
    grad = memory_of(drawn((4, 2), torch.float32), "grad", CPU)
    with emulated, pytest.raises(UnimplementedError, match="grad must be on the table's device"):
        apply_all("sgd", memory_of(state.table, "table", CPU), (), grad, PLAIN)


def test_an_update_without_a_kernel_is_rejected(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    state = State("sgd", drawn((4, 2), torch.float32))
    monkeypatch.delitem(cuda_updates.UPDATES, "apply_bags")
    with emulated, pytest.raises(UnimplementedError, match="table is on cuda"):
        state.after(apply_bags, drawn((2, 2), torch.float32), torch.tensor([0, 1]), torch.tensor([0, 1]), step=PLAIN)


# -- optimizers -------------------------------------------------------------------------------------------------------


def trained(make: Any, dtype: torch.dtype, **options: Any) -> list[Tensor]:
    """Return a table, a noncontiguous matrix, a vector and a scalar after some steps; then their state."""
    table = torch.nn.Parameter(drawn((30, 16), dtype))
    dense_params = [
        torch.nn.Parameter(drawn((7, 5), dtype, 1).T),
        *(torch.nn.Parameter(drawn(s, dtype, 2)) for s in ((9,), ())),
    ]
    optimizer = make([table, *dense_params], lr=0.05, **options)
    for t in range(3):
        ids = some_ids(30, 11, torch.int64, t)
        values = drawn((11, 16), dtype, t)
        table.grad = torch.sparse_coo_tensor(ids[None], values, (30, 16), is_coalesced=True, check_invariants=False)
        for param in dense_params:
            param.grad = drawn(param.shape, dtype, t + 5)
        optimizer.step()
    slots = (v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor))
    return [*(p.detach() for p in (table, *dense_params)), *slots]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make", CLASSES)
def test_optimizers(emulated: Emulated, make: Any, dtype: torch.dtype) -> None:
    """The real optimizers: every parameter and slot as with the CPU kernels."""
    options = {"weight_decay": 0.01, "stochastic_rounding": True, "seed": 5}
    if make in (optim.Adam, optim.AdamW):
        options["lazy"] = dtype != torch.bfloat16
    expected = trained(make, dtype, **options)
    with emulated as device:
        got = trained(make, dtype, **options)
    assert any(name.startswith("step_rows") for name in device.launched)
    assert len(got) == 4 * (1 + len(RULES[make.rule].slots))
    assert all(same_bits(a, b) for a, b in zip(got, expected, strict=True))


def test_host_tensors_have_no_device() -> None:
    assert devices.device_for(torch.ones(1)) is None


def test_every_rule_has_every_variant() -> None:
    assert len(KERNELS["step_rows"].variants) == len(RULES) * len(DTYPES) * 2
