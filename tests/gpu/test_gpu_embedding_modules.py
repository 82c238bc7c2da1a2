"""`Embedding` and `EmbeddingBag` with torch's options on the device, compared with torch's modules on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from gpu_calls import DEVICE, FLOATS, need_device, result_or_error, validating
from torch import Tensor

import rowgrad.torch as rgt

need_device()

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
BAGS: tuple[dict[str, Any], ...] = (
    {"mode": "sum"},
    {"mode": "max"},
    {"mode": "max", "padding_idx": 3},
    {"mode": "mean", "padding_idx": -1},
    {"mode": "mean", "max_norm": 1.5},
    {"mode": "sum", "max_norm": 1.0, "norm_type": 1.0},
)
ROWS: tuple[dict[str, Any], ...] = (
    {},
    {"padding_idx": 3},
    {"max_norm": 1.0, "norm_type": float("inf")},
    {"scale_grad_by_freq": True, "padding_idx": 0},
)


def trained(module: Any, *args: Tensor) -> list[Tensor]:
    """Return the output, the table and its gradient for fixed upstream gradients, on the host."""
    out = module(*args)
    upstream = torch.rand(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    out.backward(upstream.to(out))
    return [t.detach().to_dense().cpu() for t in (out, module.weight, module.weight.grad)]


def close(expected: list[Tensor], found: list[Tensor], dtype: torch.dtype) -> bool:
    tolerance = TOLERANCE[dtype]
    return all(
        torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance)
        for a, b in zip(expected, found, strict=True)
    )


def test_modules_equal_torchs() -> None:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 40, (300,), generator=draw)
    starts = torch.sort(torch.randint(0, 301, (29,), generator=draw)).values
    starts = torch.cat([torch.tensor([0]), starts])
    cases = [("EmbeddingBag", options, (ids, starts)) for options in BAGS]
    cases += [("Embedding", options, (ids.view(20, 15),)) for options in ROWS]
    with validating("sync"):
        for kind, options, args in cases:
            for dtype in FLOATS:
                table = torch.randn(40, 33, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
                expected = trained(getattr(torch.nn, kind)(40, 33, _weight=table.clone(), **options), *args)
                for grad in ("dense",) if "scale_grad_by_freq" in options else ("dense", "rows"):
                    module = getattr(rgt.nn, kind)(40, 33, _weight=table.clone().to(DEVICE), grad=grad, **options)
                    found = trained(module, *(a.to(DEVICE) for a in args))
                    assert module.weight.grad.is_sparse == (grad == "rows")
                    assert close(expected, found, dtype), (kind, options, dtype, grad)


def test_frequencies_equal_those_of_an_embedding() -> None:
    ids = torch.randint(0, 40, (20, 15), generator=torch.Generator().manual_seed(1))
    table = torch.randn(40, 33, dtype=torch.float64)
    rows = torch.nn.Embedding(40, 33, scale_grad_by_freq=True, _weight=table.clone())
    bag = rgt.nn.EmbeddingBag(40, 33, scale_grad_by_freq=True, mode="sum", _weight=table.clone().to(DEVICE))
    rows(ids).sum(1).square().sum().backward()
    bag(ids.to(DEVICE)).square().sum().backward()
    assert rows.weight.grad is not None
    assert bag.weight.grad is not None
    assert torch.allclose(rows.weight.grad, bag.weight.grad.cpu(), rtol=1e-12, atol=1e-12)


def test_bad_ids_do_not_change_the_table() -> None:
    ids = torch.tensor([[1, 700], [-4, 2]], device=DEVICE)
    for mode in ("sync", "async"):
        for kind, options in (("Embedding", {}), ("EmbeddingBag", {}), ("EmbeddingBag", {"mode": "max"})):
            table = torch.full((7, 5), 9.0, device=DEVICE)
            module = getattr(rgt.nn, kind)(7, 5, max_norm=1.0, _weight=table, **options)
            with validating(mode):
                _, error = result_or_error(module, ids)
            assert error is not None
            assert error.value == 700
            assert bool((table == 9.0).all())


def test_bad_ids_of_maxima_raise() -> None:
    bag = rgt.nn.EmbeddingBag(7, 5, mode="max", device=DEVICE)
    with validating("sync"):
        _, error = result_or_error(bag, torch.tensor([[1, 700], [-4, 2]], device=DEVICE))
    assert error is not None
    assert (error.value, error.position) == (700, 1)


def test_converted_models_equal_the_originals() -> None:
    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        layers = torch.nn.EmbeddingBag(50, 8, mode="max", padding_idx=0), torch.nn.Linear(8, 1)
        return torch.nn.Sequential(*layers).double().to(DEVICE)

    model, converted = make(), make()
    assert len(rgt.convert(converted).replaced) == 1
    ids = torch.randint(0, 50, (16, 6), generator=torch.Generator().manual_seed(4)).to(DEVICE)
    for m in (model, converted):
        m(ids).square().sum().backward()
    for expected, found in zip(model.parameters(), converted.parameters(), strict=True):
        assert expected.grad is not None
        assert found.grad is not None
        assert torch.allclose(expected.grad, found.grad, rtol=1e-12, atol=1e-12)
