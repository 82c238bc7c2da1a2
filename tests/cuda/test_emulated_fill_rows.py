"""FillEmptyRows on the emulated device compared with the CPU kernel: bits, error classes, messages, positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated_call import emulate, on_cpu, same_bits

from rowgrad.errors import OpError
from rowgrad.torch.tensors import DTYPE

NUMBERS = [dtype for name, dtype in DTYPE.items() if name != "bool"]
INT64 = torch.int64


def numbers(dtype: torch.dtype, size: int, seed: int) -> torch.Tensor:
    """Return numbers of very different sizes, so that sums depend on their order."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(2, (size,), generator=generator).bool()
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(-(2**62), 2**62, (size,), generator=generator).to(dtype)
    x = torch.randn(size, dtype=torch.float64, generator=generator)
    x = x * 2.0 ** torch.randint(-9, 9, (size,), generator=generator)
    return torch.complex(x, x.flip(0)).to(dtype) if dtype.is_complex else x.to(dtype)


def compare(op: str, arguments: dict[str, Any], seed: int) -> None:
    for got, expected in zip(emulate(op, arguments, seed), on_cpu(op, arguments), strict=True):
        assert same_bits(got, expected), f"{op}\n{got}\n{expected}"


def facts_of(run: Any, op: str, arguments: dict[str, Any]) -> tuple[type, str, int | None]:
    with pytest.raises(OpError) as error:
        run(op, arguments)
    return type(error.value), error.value.message, error.value.position


def filling(columns: int, rows: int, size: int, order: str, dtype: torch.dtype, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(rows, (size, columns), generator=generator)
    if order == "sorted":
        indices[:, 0] = indices[:, 0].sort().values
    if order == "few":  # long runs of empty rows
        indices[:, 0] = (indices[:, 0] % 3 * (rows // 3)).sort().values
    default = numbers(dtype, 1, seed + 1)[0]
    return {"indices": indices, "values": numbers(dtype, size, seed), "dense_shape": [rows] + [9] * (columns - 1),
            "default_value": default}  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("order", ["sorted", "few", "any"])
@pytest.mark.parametrize(
    ("columns", "rows", "size"), [(2, 1, 1), (1, 7, 0), (3, 70_001, 40), (2, 1000, 3001), (1, 300, 7003), (2, 3, 900)]
)
def test_fill(columns: int, rows: int, size: int, order: str, seed: int) -> None:
    compare("SparseFillEmptyRows", filling(columns, rows, size, order, torch.float32, seed), seed)


@pytest.mark.parametrize("order", ["sorted", "any"])
@pytest.mark.parametrize("dtype", DTYPE.values())
def test_fill_dtypes(dtype: torch.dtype, order: str) -> None:
    arguments = filling(1, 300, 400, order, dtype, 5)
    compare("SparseFillEmptyRows", arguments, 5)
    indices, values, _, default = arguments.values()
    rowids = indices[:, 0].contiguous()
    compare(
        "RaggedFillEmptyRows", {"value_rowids": rowids, "values": values, "nrows": 300, "default_value": default}, 6
    )


def test_fill_empty_inputs() -> None:
    compare("SparseFillEmptyRows", filling(2, 5, 0, "any", torch.int8, 1) | {"dense_shape": [0, 4]}, 1)


@pytest.mark.parametrize("bad", [-1, 1000, 2**62, -(2**63)])
@pytest.mark.parametrize("order", ["sorted", "any"])
def test_fill_errors(bad: int, order: str) -> None:
    arguments = filling(2, 1000, 3001, order, torch.float32, 4)
    arguments["indices"][[1234, 2999], 0] = bad
    assert facts_of(emulate, "SparseFillEmptyRows", arguments) == facts_of(on_cpu, "SparseFillEmptyRows", arguments)


def index_map(kind: str, positions: int, size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if kind == "repeats":
        return torch.randint(positions, (size,), generator=generator)
    chosen = torch.randperm(positions, generator=generator)[:size]
    return chosen.sort().values if kind == "ascending" else chosen


@pytest.mark.parametrize("kind", ["ascending", "any", "repeats"])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_grad(dtype: torch.dtype, kind: str) -> None:
    for seed, (positions, size) in enumerate([(1, 1), (1, 0), (5000, 1200), (3001, 2990), (700, 700)]):
        found = index_map(kind, positions, size, seed)
        grad = numbers(dtype, positions, seed)
        compare("SparseFillEmptyRowsGrad", {"reverse_index_map": found, "grad_values": grad}, seed)
        compare(
            "SparseFillEmptyRowsGradGrad",
            {"reverse_index_map": found, "dd_values": numbers(dtype, size, seed + 9),
             "dd_default_value": numbers(dtype, 1, seed)[0], "grad_values": grad},
            seed,
        )  # fmt: skip


def test_grad_of_empty_inputs() -> None:
    nothing = torch.empty(0)
    compare("RaggedFillEmptyRowsGrad", {"reverse_index_map": torch.empty(0, dtype=INT64), "grad_values": nothing}, 1)
    compare("RaggedFillEmptyRowsGradGrad", {"reverse_index_map": torch.empty(0, dtype=INT64), "dd_values": nothing,
            "dd_default_value": torch.tensor(1.0), "grad_values": nothing}, 1)  # fmt: skip


@pytest.mark.parametrize("value", [-0.0, 1e-310, 1e-45, float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_special_values(value: float, dtype: torch.dtype) -> None:
    grad = torch.tensor([value, 1e-41, value, -0.0], dtype=dtype)
    found = torch.tensor([2])
    compare("SparseFillEmptyRowsGrad", {"reverse_index_map": found, "grad_values": grad}, 1)
    for index_map_ in ([0, 2, 1], [0, 2, 2]):
        compare("SparseFillEmptyRowsGradGrad", {"reverse_index_map": torch.tensor(index_map_), "dd_values": grad[:3],
                "dd_default_value": grad[0], "grad_values": grad}, 1)  # fmt: skip


@pytest.mark.parametrize("bad", [-1, 5000, 2**62])
def test_grad_errors(bad: int) -> None:
    found = index_map("ascending", 5000, 3000, 1)
    found[[700, 2000]] = bad
    grad = torch.ones(5000)
    first = {"reverse_index_map": found, "grad_values": grad}
    second = {"reverse_index_map": found, "dd_values": grad[:3000], "dd_default_value": grad[0], "grad_values": grad}
    for op, arguments in (("SparseFillEmptyRowsGrad", first), ("SparseFillEmptyRowsGradGrad", second)):
        assert facts_of(emulate, op, arguments) == facts_of(on_cpu, op, arguments)
