"""Repeated calls take a cached fast path; their results must be ordinary tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import rowgrad.torch as rgt
from rowgrad import raw_ops
from rowgrad._catalog.spec import CATALOG
from rowgrad.torch import launch
from rowgrad.torch.fused import FusedWeight

# These ops take num_segments, so their output size is known before data is read: the fast path's condition.
IDS = torch.tensor([2, 0, 2, 1])
SEGMENTS = torch.tensor([0, 0, 1, 3])


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 1, 5), (3, 0), (3, 4, 2)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_results_are_contiguous_and_own_their_memory(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    table = torch.randn(shape).to(dtype)
    results = [raw_ops.SparseSegmentSumWithNumSegments(table, IDS, SEGMENTS, 4) for _ in range(4)]
    assert len({r.data_ptr() for r in results}) == (4 if results[0].numel() else 1)
    for result in results:
        assert result.is_contiguous()
        assert result.untyped_storage().nbytes() == result.nbytes
        assert torch.equal(result, results[0])
    before = results[0].clone()
    results[1].fill_(7)
    assert torch.equal(results[0], before)
    assert torch.equal(raw_ops.SparseSegmentSumWithNumSegments(table, IDS, SEGMENTS, 4), before)


def test_a_first_call_in_inference_mode_leaves_later_ones_trainable() -> None:
    table = torch.nn.Parameter(torch.randn(3, 11))
    with torch.inference_mode():
        assert raw_ops.SparseSegmentMeanWithNumSegments(table, IDS, SEGMENTS, 4).is_inference()
    result = raw_ops.SparseSegmentMeanWithNumSegments(table, IDS, SEGMENTS, 4)
    assert not result.is_inference()
    result.square().sum().backward()
    assert table.grad is not None
    with torch.inference_mode():
        assert raw_ops.SparseSegmentMeanWithNumSegments(table, IDS, SEGMENTS, 4).is_inference()


def test_default_device_does_not_change_the_result_device() -> None:
    table = torch.randn(3, 13)
    with torch.device("meta"):
        first, second = (raw_ops.SparseSegmentSumWithNumSegments(table, IDS, SEGMENTS, 4) for _ in range(2))
    assert first.device.type == second.device.type == "cpu"
    assert torch.equal(first, second)


def test_repeated_calls_with_scalar_and_multiple_outputs() -> None:
    values = torch.randn(4)
    rows = torch.tensor([0, 2, 3])  # row 1 is empty
    expected = (values[rows], values[1])
    for _ in range(3):
        d_values, d_default = raw_ops.SparseFillEmptyRowsGrad(rows, values)
        assert torch.equal(d_values, expected[0])
        assert d_default.shape == ()
        assert torch.equal(d_default, expected[1])


def test_repeated_module_call_after_its_table_was_replaced() -> None:
    bag = rgt.nn.EmbeddingBag(3, 2, combiner="sum")
    offsets = torch.tensor([0, 2])
    for _ in range(2):
        assert torch.equal(bag(IDS, offsets)[1], bag.weight[2] + bag.weight[1])
    bag.weight = torch.nn.Parameter(torch.ones(3, 2))
    assert torch.equal(bag(IDS, offsets), torch.full((2, 2), 2.0))


def test_temporarily_patched_tensor_constructors(monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.ones(3, 17)
    expected = torch.tensor([2.0, 1.0, 0.0, 1.0])
    original = torch.empty
    with monkeypatch.context() as changed:
        changed.setattr(torch, "empty", lambda *args, **options: original(*args, **options).to(torch.float64))
        raw_ops.SparseSegmentSumWithNumSegments(table, IDS, SEGMENTS, 4)
    for _ in range(2):
        result = raw_ops.SparseSegmentSumWithNumSegments(table, IDS, SEGMENTS, 4)
        assert result.dtype is torch.float32
        assert torch.equal(result[:, 0], expected)


class _Tagged(Tensor):
    pass


class _Tagging(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.as_subclass(_Tagged) if func in (torch.empty, torch.zeros) else result


def test_function_modes_apply_only_inside_their_context() -> None:
    table = torch.ones(3, 19)
    with _Tagging():
        raw_ops.SparseSegmentSumWithNumSegments(table, IDS, SEGMENTS, 4)
    assert type(raw_ops.SparseSegmentSumWithNumSegments(table, IDS, SEGMENTS, 4)) is Tensor


def test_a_device_error_is_raised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def fails(*_: Any) -> Any:
        runs.append("device")
        raise RuntimeError("CUDA error: launch failed")

    monkeypatch.setattr(launch.devices, "device_for", lambda tensor: "gpu" if tensor.is_meta else None)
    monkeypatch.setattr(launch, "_launch_on_device", fails)
    monkeypatch.setattr(launch, "_launch_uncached", lambda *_: runs.append("again"))
    arguments = {"data": torch.ones(3, 2, device="meta"), "indices": IDS, "segment_ids": SEGMENTS}
    with pytest.raises(RuntimeError, match="launch failed"):
        launch.launch(CATALOG["SparseSegmentSum"], arguments, CATALOG["SparseSegmentSum"].attrs)
    assert runs == ["device"]


@pytest.mark.parametrize("make", [torch.nn.Parameter, FusedWeight])
def test_calls_with_parameters_are_validated_once(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table, op = make(torch.ones(3, 21)), CATALOG["SparseSegmentSumWithNumSegments"]
    arguments = {"data": table, "indices": IDS, "segment_ids": SEGMENTS, "num_segments": 4}
    (first,) = launch.launch(op, arguments, op.attrs)
    monkeypatch.setattr(launch, "_launch_uncached", None)  # it validates
    (second,) = launch.launch(op, arguments, op.attrs)
    assert torch.equal(first, second)
