"""Lookups and fused steps of one crossing, through the stand-in driver: the bits of a CPU with the order of a GPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_call import same_bits
from emulated_device import HostDevice
from test_emulated_torch import arguments, on_cpu_as_gpu, on_gpu, through_raw_ops
from torch import Tensor

import rowgrad as rg
import rowgrad.torch as rgt
from conformance.test_golden import by_op
from golden_cases import Case
from rowgrad._catalog.spec import CATALOG
from rowgrad._core import cuda_ops
from rowgrad.errors import InternalError, InvalidArgumentError, OpError
from rowgrad.raw_ops import OPS
from rowgrad.torch import gpu_calls, launch, row_state
from rowgrad.torch.nn import Table

ROWS = 40
LENGTHS = ((3, 0, 17, 39, 1), (600, 0, 2), (0, 0, 0, 5), (1,) * 30)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def batch(lengths: tuple[int, ...], wide: bool, has_end: bool, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return ids and offsets."""
    draw = torch.Generator().manual_seed(seed)
    kind = torch.int64 if wide else torch.int32
    ids = torch.randint(0, ROWS, (sum(lengths),), generator=draw).to(kind)
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]).to(kind)
    return ids, offsets if has_end else offsets[:-1].contiguous()


def train(options: dict[str, Any], rule: str, ids: Tensor, offsets: Tensor, **module_options: Any) -> list[Tensor]:
    """Return the outputs and the tables of three steps."""
    torch.manual_seed(1)
    module = rgt.nn.EmbeddingBag(ROWS, 8, **options, **module_options)
    optimizer = getattr(rgt.optim, rule)(module.parameters(), lr=0.1)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        out = module(ids, offsets)
        out.backward(torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype))
        optimizer.step()
        found += [out.detach(), module.weight.detach().clone()]
    return found


def launches_of_forward(device: HostDevice) -> list[str]:
    return [name.split("<")[0] for name in device.launched if "bags" in name or "offsets" in name]


@pytest.mark.parametrize("options", [{"fused": True}, {"grad": "rows"}, {"grad": "dense"}], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "sqrtn"])
def test_training_steps_have_the_bits_of_a_cpu(options: dict[str, Any], mode: str) -> None:
    for turn, lengths in enumerate(LENGTHS):
        has_end, dtype = turn % 2 == 0, DTYPES[turn % 4]
        ids, offsets = batch(lengths, wide=turn < 2, has_end=has_end)
        chosen = {"mode": mode, "include_last_offset": has_end, "dtype": dtype}
        for rule in ("SGD", "Adam"):
            with on_cpu_as_gpu():
                expected = _on_the_cpu(options, rule, ids, offsets, chosen)
            with on_gpu() as device:
                got = train(options, rule, ids, offsets, **chosen)
            assert all(map(same_bits, got, expected)), (rule, lengths)
            assert "sum_offset_bags" in launches_of_forward(device)
            assert "segment_ids_of_offsets" not in device.launched


def _on_the_cpu(options: dict[str, Any], rule: str, ids: Tensor, offsets: Tensor, chosen: dict[str, Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_calls, "look_up", lambda *args: None)
        patch.setattr(gpu_calls, "fused_step", lambda *args: None)
        return train(options, rule, ids, offsets, **chosen)


def test_a_fused_step_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, offsets = batch((3, 0, 17), True, True)
    with on_gpu() as device:
        module = rgt.nn.EmbeddingBag(ROWS, 8, mode="mean", include_last_offset=True, fused=True)
        optimizer = rgt.optim.RowWiseAdagrad(module.parameters(), lr=0.1)
        for turn in range(2):
            module(ids, offsets).sum().backward()
            if turn:
                monkeypatch.setattr(row_state, "prepare_bags", None)  # what other steps call
                device.launched.clear()
                device.driver.log.clear()
            optimizer.step()
        assert [name.split("<")[0] for name in device.launched] == [
            "scan_ids", "sort_pass", "find_rows", "sum_rows", "step_rows",
        ]  # fmt: skip
        assert device.driver.log == ["memset", *["launch"] * 5]
        assert optimizer.state[module.weight]["step"] == 2


def test_a_lookup_without_gradient_is_one_launch() -> None:
    ids, offsets = batch((3, 0, 17), True, True)
    module = rgt.nn.EmbeddingBag(ROWS, 8, mode="mean", include_last_offset=True)
    segments = torch.repeat_interleave(torch.arange(3), torch.tensor([3, 0, 17]))
    with on_gpu() as device, torch.no_grad():
        module(ids, offsets)
        device.driver.log.clear()
        module(ids, offsets)
        assert device.driver.log == ["launch"]
        rg.raw_ops.SparseSegmentMeanWithNumSegments(module.weight, ids, segments, 3)
        assert device.driver.log == ["launch"] * 2
        assert [name.split("<")[0] for name in device.launched[-2:]] == ["sum_offset_bags", "sum_bags"]


BAD = [
    (lambda ids, offsets: offsets.__setitem__(0, 1), "offsets"),
    (lambda ids, offsets: offsets.__setitem__(1, 19), "offsets"),
    (lambda ids, offsets: offsets.__setitem__(1, -1), "offsets"),
    (lambda ids, offsets: offsets.__setitem__(1, 2**40), "offsets"),
    (lambda ids, offsets: offsets.__setitem__(3, 21), "offsets"),
    (lambda ids, offsets: offsets.__setitem__(3, 19), "offsets"),
    (lambda ids, offsets: ids.__setitem__(7, ROWS), "indices"),
    (lambda ids, offsets: ids.__setitem__(7, -1), "indices"),
    (lambda ids, offsets: ids.__setitem__(7, -(2**40)), "indices"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_ids_and_offsets_raise_the_messages_of_a_cpu(number: int) -> None:
    change, argument = BAD[number]
    ids, offsets = batch((3, 0, 17), True, True)
    module = rgt.nn.EmbeddingBag(ROWS, 8, mode="mean", include_last_offset=True)
    before = module.weight.detach().clone()
    change(ids, offsets)
    with pytest.raises(InvalidArgumentError) as expected:
        module(ids, offsets)
    with on_gpu() as device:
        module(*batch((3, 0, 17), True, True))
        module(ids, offsets)
        assert "sum_offset_bags" in device.launched[-1]
        with pytest.raises(InvalidArgumentError) as raised:
            rgt.synchronize()
        assert raised.value.message == expected.value.message
        assert raised.value.argument == argument
        assert (raised.value.position, raised.value.value) == (expected.value.position, expected.value.value)
        with torch.no_grad():  # the check state was reset
            good = batch((3, 0, 17), True, True)
            got = module(*good)
    assert same_bits(got, module(*good).detach())
    assert same_bits(module.weight.detach(), before)


def test_sync_mode_raises_at_once() -> None:
    ids, offsets = batch((3, 0, 17), True, True)
    ids[4] = ROWS
    module = rgt.nn.EmbeddingBag(ROWS, 8, include_last_offset=True)
    with on_gpu(mode="sync"), pytest.raises(InvalidArgumentError):
        module(ids, offsets)


def test_calls_leave_errors_to_the_ops() -> None:
    """Features with other numbers of bags, and missing ends."""
    tables = [Table(f"t{i}", ROWS, 8) for i in range(2)]
    uneven = {"t0": batch((3, 1), True, True), "t1": batch((3, 1, 2), True, True)}
    for options in ({"include_last_offset": True}, {}):
        module = rgt.nn.Embeddings(tables, **options)
        with pytest.raises(InvalidArgumentError) as expected:
            module(uneven)
        with on_gpu(), pytest.raises(InvalidArgumentError) as raised:
            module(uneven)
        assert raised.value.message == expected.value.message


def test_a_driver_that_fails_is_an_internal_error() -> None:
    ids, offsets = batch((3, 0, 17), True, True)
    module = rgt.nn.EmbeddingBag(ROWS, 8, include_last_offset=True)
    with on_gpu() as device:
        module(ids, offsets)
        device.driver.failing["cuLaunchKernel"] = 700
        with pytest.raises(InternalError, match=r"CUDA: a message of the driver \(700\)"):
            module(ids, offsets)
        device.driver.failing.clear()
        module(ids, offsets)


def test_the_first_call_of_a_process_finds_its_kernels() -> None:
    """Calls of one crossing do not import the families of kernels, which register them."""
    program = (
        "from emulated_device import HostDevice\nimport torch\nfrom rowgrad.torch import gpu_calls\n"
        "ids, offsets = torch.tensor([1, 0]), torch.tensor([0, 2])\n"
        "calls = HostDevice().calls\n"
        "print(calls.sum_bags(gpu_calls.LOOKUP, torch.eye(2), ids, offsets, 1, 0, 0, False) is not None)\n"
        "print(calls.sum_bags(gpu_calls.LOOKUP, torch.eye(2), ids, torch.tensor([0]), 1, 0, 0, False).tolist())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == ["True", "[[1.0, 1.0]]"], done.stderr


def test_captured_calls_keep_their_slots() -> None:
    ids, offsets = batch((3, 0, 17), True, True)
    module = rgt.nn.EmbeddingBag(ROWS, 8, include_last_offset=True)
    with on_gpu() as device, torch.no_grad():
        module(ids, offsets)
        device.driver.capturing = True
        module(ids, offsets)
        assert device.ledger.slots.captured == 1


_READABLE = {*DTYPES, torch.int32, torch.int64}


def _repeatable(case: Case) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the arguments of a case that the launcher runs if it is repeated; None for others."""
    op, call = CATALOG[case.op], arguments(case)
    if call is None or op.kernel not in cuda_ops():
        return None
    host = {a.name for a in op.inputs if a.host}
    inputs = {k: v.tolist() if k in host else v for k, v in call[0].items()}
    if not all(type(v) is int if k in host else v.dtype in _READABLE for k, v in inputs.items()):
        return None
    outputs = launch._prepare(op, launch._admit(op, inputs)[0], {**op.attrs, **call[1]}).outputs
    return None if any(None in shape for shape, _ in outputs) else (inputs, call[1])


_REPEATABLE = [
    pytest.param(cases, id=p.id)
    for p in by_op("valid")
    if (cases := [case for case in p.values[0][::3] if _repeatable(case) is not None])
]


@pytest.mark.parametrize("cases", _REPEATABLE)
def test_repeated_ops_are_one_call(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call with the same shapes is not put together in Python, and has the bits of the first."""
    for case in cases:
        call = _repeatable(case)
        assert call is not None
        with on_gpu(), monkeypatch.context() as patch:
            first = through_raw_ops(case, *call)
            patch.setattr(launch, "_cuda_run", None)
            second = through_raw_ops(case, *call)
        results = [x if isinstance(x, tuple) else (x,) for x in (first, second)]
        assert all(map(same_bits, *results)), case


def _calls_of_every_kernel() -> dict[str, tuple[Any, ...]]:
    """Return arguments of an op of each kernel that the launcher puts together."""
    draw = torch.Generator().manual_seed(4)
    table, y = torch.randn(9, 5, generator=draw), torch.randn(4, 5, generator=draw)
    ids, segments = torch.tensor([8, 0, 3, 3, 5, 0, 3]), torch.tensor([0, 0, 1, 1, 1, 3, 3])
    weights = torch.rand(7, generator=draw)
    return {
        "SparseSegmentMeanWithNumSegments": (table[:, 1:].contiguous(), ids, segments, 4),
        "SparseSegmentMeanGrad": (y, ids, segments, 9),
        "PaddedSparseSegmentMeanGradV2": (y, ids, segments, 9, 6, 9),
        "SparseSegmentMeanGradGrad": (table, ids, segments, 4),
        "SegmentIdsFromOffsets": (torch.tensor([0, 2, 2, 5]), 7),
        "GatherRows": (table, ids),
        "ScatterRows": (torch.randn(7, 5, generator=draw), ids, 9),
        "RowPositions": (torch.tensor([0, 3, 5, 8]), ids),
        "RowDot": (table, table.flip(0)),
        "SparseSegmentDot": (y, table, ids, segments),
        "Sqrt": (table.abs(),),
        "WeightedSparseSegmentMeanWithNumSegments": (table, ids, segments, weights, 4),
        "WeightedSparseSegmentMeanGrad": (y, ids, segments, weights, 9),
        "WeightedSparseSegmentMeanGradRows": (y, segments, weights),
    }


def test_repeated_ops_of_every_kernel_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _calls_of_every_kernel()
    assert {CATALOG[name].kernel for name in calls} == set(cuda_ops())
    for name, inputs in calls.items():
        options = {"order": "blocked"} if "order" in CATALOG[name].attrs else {}
        expected = OPS[name](*inputs, **options)
        with on_gpu(), monkeypatch.context() as patch:
            OPS[name](*inputs, **options)
            patch.setattr(launch, "_cuda_run", None)
            found = OPS[name](*inputs, **options)
        results = [x if isinstance(x, tuple) else (x,) for x in (found, expected)]
        assert all(map(same_bits, *results)), name


def test_a_rejected_repeated_op_raises_the_error_of_the_op() -> None:
    table, bad = torch.ones(4, 3), torch.tensor([1, 4])
    with on_gpu():
        rg.raw_ops.GatherRows(table, torch.tensor([0, 1]))
        rg.raw_ops.GatherRows(table, bad)
        with pytest.raises(InvalidArgumentError, match="GatherRows") as raised:
            rgt.synchronize()
        assert (raised.value.position, raised.value.value, raised.value.bound) == (1, 4, 4)
        rg.raw_ops.SegmentIdsFromOffsets(torch.tensor([0, 1]), 2)
        assert rg.raw_ops.SegmentIdsFromOffsets(torch.tensor([0, 1]), 2).tolist() == [0, 1]


def test_a_dense_step_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_gpu() as device:
        module = rgt.nn.EmbeddingBag(ROWS, 8, mode="mean", include_last_offset=True)
        optimizer = rgt.optim.RowWiseAdagrad(module.parameters(), lr=0.1)
        for turn in range(2):
            module.weight.grad = torch.ones_like(module.weight)
            if turn:
                monkeypatch.setattr(row_state, "prepare_all", None)  # what other steps call
                device.launched.clear()
            optimizer.step()
        assert [name.split("<")[0] for name in device.launched] in (["step_rows"], ["update_rows"])
        assert optimizer.state[module.weight]["step"] == 2


@pytest.mark.parametrize("options", [{"fused": True}, {"grad": "rows"}, {"grad": "dense"}], ids=str)
def test_bad_options_of_a_step_name_the_optimizer(options: dict[str, Any]) -> None:
    ids, offsets = batch((3, 0, 17), True, True)
    for lr in (float("nan"), "fast", 1e300):
        with on_gpu():
            module = rgt.nn.EmbeddingBag(ROWS, 8, mode="mean", include_last_offset=True, **options)
            optimizer = rgt.optim.RowWiseAdagrad(module.parameters(), lr=0.1)
            module(ids, offsets).sum().backward()
            optimizer.param_groups[0]["lr"] = lr
            before = module.weight.detach().clone()
            with pytest.raises(OpError, match=r"^RowWiseAdagrad\.step: lr must be a .*number"):
                optimizer.step()
            assert same_bits(module.weight.detach(), before)


@pytest.mark.parametrize("options", [{"fused": True}, {"grad": "rows"}], ids=str)
def test_a_fault_that_is_reported_during_a_step_does_not_stop_it(options: dict[str, Any]) -> None:
    """Kernels of earlier calls report at any time; the step was validated, and other tables may have been updated."""

    class Calls:
        """The calls of a device, where an earlier call reports a fault after a step was prepared."""

        def __init__(self, calls: Any, alarm: int) -> None:
            self.calls, self.alarm, self.steps = calls, alarm, 0

        def __getattr__(self, name: str) -> Any:
            if name in ("run_step", "run_rows"):
                ctypes.c_int64.from_address(self.alarm).value = 1
                self.steps += 1
            return getattr(self.calls, name)

    ids, offsets = batch((3, 0, 17), True, True)
    with on_gpu() as device:
        expected = train(options, "SGD", ids, offsets, include_last_offset=True)
    with on_gpu(mode="off") as device:
        device.calls = calls = Calls(device.calls, device.ledger.alarm)
        got = train(options, "SGD", ids, offsets, include_last_offset=True)
        assert calls.steps == 3
    assert all(map(same_bits, got, expected))
