"""Segment ops and their gradients on the emulated device, bitwise equal to the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cpu_comparison import agree
from emulated_call import emulate, on_cpu, same_bits
from emulated_device import HostDevice

from rowgrad._catalog.spec import CATALOG
from rowgrad._core import CudaIdSort
from rowgrad.cuda.call import Workspaces
from rowgrad.cuda.device import CODE
from rowgrad.cuda.sparse_segment import Gradient
from rowgrad.errors import OpError

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def batch(seed: int, size: int, rows: int, bags: int, columns: int, dtype: torch.dtype, hot: float) -> dict[str, Any]:
    """Return ids of which a share `hot` names one row, with bags."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, rows, (size,), generator=draw, dtype=(torch.int32, torch.int64)[seed % 2])
    ids[torch.rand(size, generator=draw) < hot] = rows // 2
    segments = torch.randint(0, bags, (size,), generator=draw, dtype=(torch.int32, torch.int64)[seed // 2 % 2])
    return {
        "grad": torch.randn(bags, columns, generator=draw).to(dtype),
        "indices": ids,
        "segment_ids": segments.sort().values if seed % 3 else segments,  # gradients accept any order
        "rows": rows,
    }


SHAPES = [  # size, rows, bags, columns, hot
    (1, 1, 1, 1, 0.0),
    (64, 1, 3, 4, 0.0),  # exactly one run
    (65, 1, 3, 4, 0.0),
    (128, 2, 50, 8, 1.0),
    (700, 11, 90, 3, 0.0),  # rows end where runs end
    (5000, 300, 400, 8, 0.3),
    (5000, 70_000, 400, 5, 0.5),
    (9000, 3, 50, 12, 0.0),  # more than 64 runs
    (6000, 2_000_000, 700, 1, 0.2),
    (3000, 40, 100, 132, 0.1),
    (12_000, 1, 9, 2, 1.0),
]


@pytest.mark.parametrize("order", ["blocked", "sequential"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients(shape: tuple[Any, ...], order: str) -> None:
    for number, dtype in enumerate(FLOATS):
        size, rows, bags, columns, hot = shape
        inputs = batch(number + size, size, rows, bags, columns, dtype, hot)
        total = inputs.pop("rows")
        reduce = ("Sum", "Mean", "SqrtN")[(number + size) % 3]
        for name, argument in (("Grad", "output_dim0"), ("GradV2", "dense_output_dim0")):
            arguments = {**inputs, argument: total}
            op = f"SparseSegment{reduce}{name}"
            for ours, theirs in zip(
                emulate(op, arguments, seed=number, order=order), on_cpu(op, arguments, order=order), strict=True
            ):
                assert same_bits(ours, theirs), (op, dtype)


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3], SHAPES[4], SHAPES[5]], ids=str)
def test_padded_gradients(shape: tuple[Any, ...]) -> None:
    """Size equal to the number of unique rows, one more, many more than ids, too few; and empty inputs."""
    for number, dtype in enumerate(FLOATS):
        size, rows, bags, columns, hot = shape
        inputs = batch(number + size, size, rows, bags, columns, dtype, hot)
        total, unique = inputs.pop("rows"), len(inputs["indices"].unique())
        op = f"PaddedSparseSegment{('Sum', 'Mean', 'SqrtN')[number % 3]}GradV2"
        for padded in (unique, unique + 1, size + 900, unique - 1):
            sizes = {"dense_output_dim0": total, "size": padded, "fill_id": total + number}
            agree(op, number, attrs={"order": ("blocked", "sequential")[number % 2]}, **inputs, **sizes)
    nothing = {name: values[:0] for name, values in inputs.items() if name != "grad"}
    agree(op, **nothing, grad=inputs["grad"], dense_output_dim0=total, size=3, fill_id=total)
    agree(op, **inputs, dense_output_dim0=0, size=2, fill_id=0)
    bad = {**inputs, "indices": inputs["indices"].clone()}
    bad["indices"][-1] = total
    agree(op, **bad, dense_output_dim0=total, size=size, fill_id=total)


def test_a_padded_gradient_stays_in_its_memory() -> None:
    """Also if ids name more rows than there is memory for: the call is rejected."""
    device, size = HostDevice(), 3
    grad, ids, segments = torch.ones(1, 4), torch.arange(3000), torch.zeros(3000, dtype=torch.int64)
    rows, listed = torch.full((10, 4), 7.0), torch.full((10,), 7)
    arrays = [
        (x.data_ptr(), CODE[x.dtype], shape, ())
        for x, shape in (
            (grad, (1, 4)),
            (ids, (3000,)),
            (segments, (3000,)),
            (rows, (size, 4)),
            (listed, (size,)),
        )
    ]
    numbers = [(0, 0, (), (n,)) for n in (5000, size, 5000)]
    slot = device.ledger.take(CATALOG["PaddedSparseSegmentSumGradV2"], False)
    report, memory = (slot, device.ledger.alarm, device.ledger.checks_of(slot)), Workspaces(device)
    arguments = "sparse_segment_grad_padded", 0, report, [0, 1, 1], [*arrays[:3], *numbers], arrays[3:], memory.allocate
    assert device.launcher.run_op(*arguments) is None
    assert (rows[size:] == 7).all()
    assert (listed[size:] == 7).all()
    with pytest.raises(OpError, match="3000"):
        device.ledger.raise_reported()


@pytest.mark.parametrize("size", [0, 1, 9, 10, 17, 300, 5000])
@pytest.mark.parametrize("columns", [1, 4, 7, 130])
def test_forward_ops(size: int, columns: int) -> None:
    for number, dtype in enumerate([*FLOATS, torch.int32, torch.uint8]):
        draw = torch.Generator().manual_seed(size + number)
        bags = max(size // (3, 20, 600, 1)[number % 4], 1) + 3
        data = (torch.randn(50, columns, generator=draw) * 9).to(dtype)
        segments = torch.randint(0, bags, (size,), generator=draw).sort().values
        ids = torch.randint(0, 50, (size,), generator=draw, dtype=(torch.int32, torch.int64)[number % 2])
        reduce = "Sum" if not dtype.is_floating_point else ("Sum", "Mean", "SqrtN")[(number + size) % 3]
        arguments = {"data": data, "indices": ids, "segment_ids": segments}
        for name, more in (("", {}), ("WithNumSegments", {"num_segments": bags + 40})):
            op = f"SparseSegment{reduce}{name}"
            (ours,), (theirs,) = emulate(op, arguments | more, seed=number), on_cpu(op, arguments | more)
            assert same_bits(ours, theirs), (op, dtype)
        if dtype.is_floating_point:
            op = f"SparseSegment{reduce}GradGrad"
            shuffled = arguments | {"segment_ids": segments[torch.randperm(size, generator=draw)]}
            more_arguments = shuffled | {"num_segments": bags}
            assert same_bits(emulate(op, more_arguments, seed=number)[0], on_cpu(op, more_arguments)[0]), (op, dtype)


BAD = [
    ("indices", 700, 2**31 - 1), ("indices", 3, -1), ("segment_ids", 999, 40), ("segment_ids", 0, -7),
    ("segment_ids", 500, 2**31 - 1), ("indices", 999, 30),
]  # fmt: skip


@pytest.mark.parametrize("op", ["SparseSegmentMeanGrad", "SparseSegmentSumGrad", "SparseSegmentMeanGradV2",
                                "SparseSegmentMeanWithNumSegments", "SparseSegmentSqrtNGradGrad"])  # fmt: skip
@pytest.mark.parametrize("faults", [1, 3])
def test_bad_ids(op: str, faults: int) -> None:
    """The CPU's error: class, message, position."""
    for first in range(len(BAD)):
        draw = torch.Generator().manual_seed(first)
        ids = torch.randint(0, 30, (1000,), generator=draw, dtype=torch.int32)
        segments = torch.randint(0, 40, (1000,), generator=draw, dtype=torch.int32).sort().values
        lists = {"indices": ids, "segment_ids": segments}
        for argument, position, value in (BAD * 2)[first : first + faults]:
            lists[argument][position] = value
        forward = "Grad" not in op or "GradGrad" in op
        arguments: dict[str, Any] = {("data" if forward else "grad"): torch.ones(30 if forward else 40, 2), **lists}
        arguments["num_segments" if forward else "output_dim0" if "V2" not in op else "dense_output_dim0"] = (
            40 if forward else 30
        )
        with pytest.raises(OpError) as theirs:
            on_cpu(op, arguments)
        with pytest.raises(OpError) as ours:
            emulate(op, arguments)
        assert (type(ours.value), ours.value.message, ours.value.position) == (
            type(theirs.value), theirs.value.message, theirs.value.position
        )  # fmt: skip


def test_repeated_launches_use_the_new_memory() -> None:
    device = HostDevice(5)
    for number in range(3):
        inputs = batch(12, 900, 40, 60, 4, torch.float32, 0.3)
        inputs["grad"] = inputs["grad"] + number
        for unique in (False, True):
            slot = device.ledger.take(_FakeOp(), False)
            report = slot, device.ledger.alarm, device.ledger.checks_of(slot)
            arrays = (inputs[k] for k in ("grad", "indices", "segment_ids"))
            built = Gradient(device, *arrays, 40, reduce=1, unique=unique, report=report)
            built.run()
            built.run()
            op = "SparseSegmentMeanGradV2" if unique else "SparseSegmentMeanGrad"
            arguments = {k: inputs[k] for k in ("grad", "indices", "segment_ids")}
            arguments["dense_output_dim0" if unique else "output_dim0"] = 40
            theirs = on_cpu(op, arguments, order="blocked")
            count = int(built.total())
            assert same_bits(built.out[:count] if unique else built.out, theirs[0])
    device.ledger.raise_reported()


class _FakeOp:
    name = "Named"
    input_names = ("grad",)


@pytest.mark.parametrize(
    ("rows", "digits"), [(0, (1, 1)), (1, (1, 1)), (2, (1, 1)), (1024, (1, 10)), (1025, (2, 6)), (2**31, (4, 8))]
)
def test_radix_sort_passes_and_bits(rows: int, digits: tuple[int, int]) -> None:
    sort = CudaIdSort(HostDevice().launcher, 10, rows, 1, False, 0, 0, 0)
    assert (sort.passes, sort.bits) == digits
    assert 2 ** (sort.passes * sort.bits) >= rows
