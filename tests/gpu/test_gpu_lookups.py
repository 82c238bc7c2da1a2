"""Lookups by a `SparseTensor` on the device, compared with the CPU in the device's order of addition."""

from __future__ import annotations

from typing import Any

import torch
from gpu_calls import DEVICE, need_device
from torch import Tensor

import rowgrad as rg

need_device()

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"combiner": "sum", "default_id": 2},
    {"allow_fast_lookup": True, "combiner": "sqrtn"},
)


def trained(device: str, indices: Tensor, ids: Tensor, weights: Tensor | None, shape: Any, **options: Any) -> list[Any]:
    draw = torch.Generator().manual_seed(2)
    table = torch.randn(50, 16, generator=draw).to(device).requires_grad_()
    own = None if weights is None else weights.to(device).requires_grad_()
    placed = indices.to(device)
    sparse_weights = None if own is None else rg.SparseTensor(placed, own, shape)
    y = rg.safe_embedding_lookup_sparse(
        table, rg.SparseTensor(placed, ids.to(device), shape), sparse_weights, **options
    )
    y.backward(torch.randn(y.shape, generator=draw).to(device))
    assert y.device.type == torch.device(device).type
    found = [y, *(t.grad.to_dense() for t in (table, own) if t is not None)]
    return [t.detach().cpu() for t in found]


def test_lookups_have_the_results_of_a_cpu() -> None:
    draw = torch.Generator().manual_seed(1)
    for shape in ((300, 8), (30, 10, 8)):
        places = torch.randperm(2400, generator=draw)[:1500]
        strides = torch.tensor([8, 1] if len(shape) == 2 else [80, 8, 1])
        indices = places.unsqueeze(1) // strides % torch.tensor(shape)
        ids = torch.randint(-3, 50, (1500,), generator=draw)
        weights = torch.randint(0, 5, (1500,), generator=draw) / 2
        for options in OPTIONS:
            for chosen in (None, weights):
                expected = trained("cpu", indices, ids, chosen, shape, **options)
                found = trained(DEVICE, indices, ids, chosen, shape, **options)
                assert torch.equal(expected[0].view(torch.int32), found[0].view(torch.int32)), options
                for a, b in zip(expected[1:], found[1:], strict=True):  # the order differs beyond 64 ids
                    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_sparse_tensors_stay_on_the_device() -> None:
    indices = torch.tensor([[0, 1], [1, 0], [2, 3]], device=DEVICE)
    sparse = rg.SparseTensor(indices, torch.tensor([5.0, 7.0, 9.0], device=DEVICE), [4, 4])
    part = rg.sparse.slice(sparse, [1, 0], [2, 4])
    assert torch.as_tensor(part.indices).device == indices.device
    assert part.to_dense().tolist() == [[7.0, 0, 0, 0], [0, 0, 0, 9.0]]
