"""A small model with a row-sparse table, its data, and the training loop that frameworks are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import rowgrad.torch as rgt

ROWS, SAMPLES, BATCH, RATE = 40, 48, 8, 0.5


class ClickModel(torch.nn.Module):
    """Map bags of three ids to the log odds of a click."""

    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.bag = rgt.nn.EmbeddingBag(ROWS, 4, combiner="mean", grad="rows", fused=fused)
        self.head = torch.nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        odds: Tensor = self.head(self.bag(ids)).squeeze(1)
        return odds


def samples() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    ids = torch.randint(0, ROWS - 5, (SAMPLES, 3), generator=g)  # the last rows are never read
    return ids, (ids.sum(1) % 3 == 0).float()


def new_optimizer(model: torch.nn.Module) -> Any:
    return rgt.optim.Adagrad(model.parameters(), lr=RATE)


def train(epochs: int, clip: Callable[[Any], Any] = lambda parameters: None, fused: bool = False) -> dict[str, Tensor]:
    """Train with a plain loop; return the weights."""
    model = ClickModel(fused)
    optimizer = new_optimizer(model)
    for _ in range(epochs):
        for ids, clicks in zip(*(x.split(BATCH) for x in samples()), strict=True):
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(model(ids), clicks).backward()
            clip(model.parameters())
            optimizer.step()
    return model.state_dict()


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
