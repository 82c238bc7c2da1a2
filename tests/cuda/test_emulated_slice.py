"""SparseSlice on the emulated device compared with the CPU kernel: bits, error classes, messages, positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated_call import emulate, on_cpu, same_bits

from rowgrad.errors import OpError
from rowgrad.torch.tensors import DTYPE

INT64 = torch.int64
LEAST, MOST = -(2**63), 2**63 - 1


def numbers(dtype: torch.dtype, size: int, seed: int) -> torch.Tensor:
    integers = torch.randint(-120, 120, (size,), generator=torch.Generator().manual_seed(seed))
    return (integers % 2 == 0) if dtype == torch.bool else integers.to(dtype)


def entries(size: int, rank: int, extent: int, seed: int, is_sorted: bool) -> torch.Tensor:
    """Return coordinates, some of them equal."""
    found = torch.randint(extent, (size, rank), generator=torch.Generator().manual_seed(seed))
    return torch.tensor(sorted(found.tolist()), dtype=INT64).reshape(size, rank) if is_sorted else found


def compare(op: str, arguments: dict[str, Any], seed: int) -> tuple[torch.Tensor, ...]:
    results = on_cpu(op, arguments)
    for got, expected in zip(emulate(op, arguments, seed), results, strict=True):
        assert same_bits(got, expected), f"{op}\n{got}\n{expected}"
    return results


def facts_of(run: Any, op: str, arguments: dict[str, Any]) -> tuple[type, str, int | None]:
    with pytest.raises(OpError) as error:
        run(op, arguments)
    return type(error.value), error.value.message, error.value.position


def walk(values: torch.Tensor, inputs: torch.Tensor, start: Any, outputs: torch.Tensor) -> dict[str, Any]:
    return {"backprop_val_grad": values, "input_indices": inputs, "input_start": torch.tensor(start, dtype=INT64),
            "output_indices": outputs}  # fmt: skip


def transposed(values: torch.Tensor, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"grad": values, **{name: x for name, x in arguments.items() if name != "backprop_val_grad"}}


def compare_walks(inputs: torch.Tensor, start: Any, outputs: torch.Tensor, seed: int, dtype: torch.dtype) -> None:
    arguments = walk(numbers(dtype, len(outputs), seed), inputs, start, outputs)
    compare("SparseSliceGrad", arguments, seed)
    compare("SparseSliceGradGrad", transposed(numbers(dtype, len(inputs), seed), arguments), seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(
    ("size", "rank", "extent"), [(0, 2, 5), (1, 2, 5), (3001, 1, 900), (3001, 2, 40), (1500, 4, 7), (3, 9, 2)]
)
def test_slices_and_their_gradients(size: int, rank: int, extent: int, is_sorted: bool, seed: int) -> None:
    inputs = entries(size, rank, extent, seed, is_sorted)
    for begin, length in ((0, extent), (extent // 4, extent // 2), (-1, extent), (extent + 2, 1), (1, 0)):
        start = [begin] + [0] * (rank - 1)
        arguments = {"indices": inputs, "values": numbers(torch.float32, size, seed), "shape": [extent] * rank,
                     "start": start, "size": [length] + [extent] * (rank - 1)}  # fmt: skip
        outputs = compare("SparseSlice", arguments, seed)[0]
        compare_walks(inputs, start, outputs, seed, torch.float32)


@pytest.mark.parametrize("dtype", DTYPE.values())
def test_dtypes(dtype: torch.dtype) -> None:
    inputs = entries(700, 2, 30, 1, True)
    arguments = {
        "indices": inputs,
        "values": numbers(dtype, 700, 1),
        "shape": [30, 30],
        "start": [3, 4],
        "size": [20, 9],
    }
    outputs = compare("SparseSlice", arguments, 1)[0]
    if dtype != torch.bool:
        compare_walks(inputs, [3, 4], outputs, 2, dtype)


def test_no_dimensions() -> None:
    inputs = torch.empty((5, 0), dtype=INT64)
    compare("SparseSlice", {"indices": inputs, "values": torch.arange(5), "shape": [], "start": [], "size": []}, 1)
    for size in (0, 1, 5):
        compare_walks(inputs, [], torch.empty((size, 0), dtype=INT64), 1, torch.int32)


@pytest.mark.parametrize("start", [LEAST, -5, 0, MOST - 3])
@pytest.mark.parametrize("size", [1, 4, MOST])
def test_coordinates_near_the_int64_limits(start: int, size: int) -> None:
    inputs = torch.tensor([LEAST, LEAST + 3, -7, -5, -1, 0, 4, MOST - 3, MOST - 1, MOST]).reshape(-1, 1)
    arguments = {"indices": inputs, "values": torch.arange(10), "shape": [MOST], "start": [start], "size": [size]}
    try:
        on_cpu("SparseSlice", arguments)
    except OpError:
        return
    outputs = compare("SparseSlice", arguments, 1)[0]
    compare_walks(inputs, [start], outputs, 1, torch.int16)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("is_sorted", [True, False])
def test_outputs_that_no_slice_produces(is_sorted: bool, seed: int) -> None:
    """Gradients accept any subsequence of the input."""
    inputs = entries(2500, 2, 30, seed, is_sorted)
    chosen = torch.rand(2500, generator=torch.Generator().manual_seed(seed)) < (0.02, 0.5, 0.97)[seed - 1]
    compare_walks(inputs, [2, -3], inputs[chosen] - torch.tensor([2, -3]), seed, torch.float64)


@pytest.mark.parametrize("is_sorted", [True, False])
def test_unmatched_outputs_raise(is_sorted: bool) -> None:
    inputs = entries(2500, 2, 30, 1, is_sorted)
    outputs = inputs[(inputs[:, 0] > 4) & (inputs[:, 0] < 20)].clone()
    bad_outputs = []
    for at in (0, 700, len(outputs) - 1):
        bad_outputs.append(outputs.clone())
        bad_outputs[-1][at] += 1000
    for bad in (*bad_outputs, outputs.flip(0), outputs + 1, torch.cat([outputs, outputs[-1:], outputs[-1:]])):
        arguments = walk(torch.ones(len(bad)), inputs, [0, 0], bad)
        assert facts_of(emulate, "SparseSliceGrad", arguments) == facts_of(on_cpu, "SparseSliceGrad", arguments)
        arguments = transposed(torch.ones(len(inputs)), arguments)
        assert facts_of(emulate, "SparseSliceGradGrad", arguments) == facts_of(on_cpu, "SparseSliceGradGrad", arguments)
