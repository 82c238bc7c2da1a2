"""Batches and their plans, made in worker processes that are forked or spawned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import rowgrad as rg
import rowgrad.torch as rgt

ROWS = {"seen": 50, "tags": 9}


class Samples(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, i: int) -> dict[str, Any]:
        g = torch.Generator().manual_seed(i)
        seen = torch.randint(0, 50, (i % 4,), generator=g).tolist()
        return {"seen": seen, "tags": [i % 9] * (i % 3), "share": [0.5] * (i % 4), "label": i % 2}


def collate() -> rgt.data.Collate:
    return rgt.data.Collate(ROWS, weights={"seen": "share"})


@pytest.mark.parametrize(("start", "processes"), [(None, 0), ("fork", 2), ("spawn", 1)])  # which imports torch anew
def test_loader(start: str | None, processes: int) -> None:
    workers: dict[str, Any] = {"num_workers": processes, "multiprocessing_context": start}
    module = rgt.nn.EmbeddingBag(50, 4, grad="rows")
    seen = 0
    for batch in DataLoader(Samples(), batch_size=8, collate_fn=collate(), **workers):
        bags = batch["seen"]
        assert isinstance(bags, rgt.data.BagBatch)
        assert isinstance(bags.plan, rg.Plan)
        assert bags.plan == rg.Plan(bags.indices, bags.segment_ids, 50, bags.num_bags)
        assert batch["label"].shape == (bags.num_bags,)
        out = module(**bags.arguments())
        plain = module(bags.indices, bags.offsets, bags.weights)
        assert torch.equal(out, plain)
        y = torch.rand_like(out)
        gradients = [torch.autograd.grad(o, module.weight, y)[0].to_dense() for o in (out, plain)]
        assert torch.equal(*gradients)
        seen += bags.num_bags
    assert seen == 23


def test_kernels_run_in_forked_workers_after_the_parent_has_used_them() -> None:
    rg.Plan(torch.arange(100_000) % 50, torch.arange(100_000) // 10, 50)  # starts the pool
    for batch in DataLoader(Samples(), 8, collate_fn=collate(), num_workers=1, multiprocessing_context="fork"):
        assert batch["tags"].plan.num_rows == 9


def test_wrong_samples_are_named() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"sample 1: seen holds 50, which is not in \[0, 50\)"):
        rgt.data.Collate({"seen": 50})([{"seen": [1]}, {"seen": [2, 50]}])
    with pytest.raises(rg.errors.InvalidArgumentError, match="w"):
        rgt.data.Collate({"seen": 50}, weights={"seen": "w"})([{"seen": [1], "w": []}])
    assert rgt.data.Collate({"seen": 50}, plan=False)([{"seen": []}])["seen"].plan is None
