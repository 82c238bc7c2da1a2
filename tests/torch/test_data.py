"""Collate batches and their plans, in the process and in forked or spawned workers."""

from __future__ import annotations

from typing import Any

import numpy as np
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


@pytest.mark.parametrize(("start", "processes"), [(None, 0), ("fork", 2), ("spawn", 1)])  # spawn imports torch again
def test_data_loader_batches(start: str | None, processes: int) -> None:
    workers: dict[str, Any] = {"num_workers": processes, "multiprocessing_context": start}
    module = rgt.nn.EmbeddingBag(50, 4, grad="rows")
    total = 0
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
        total += bags.num_bags
    assert total == 23


def test_forked_workers_run_kernels_after_the_parent_did() -> None:
    rg.Plan(torch.arange(100_000) % 50, torch.arange(100_000) // 10, 50)  # starts the pool
    for batch in DataLoader(Samples(), 8, collate_fn=collate(), num_workers=1, multiprocessing_context="fork"):
        assert batch["tags"].plan.num_rows == 9


def test_bad_samples_are_named_in_the_error() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"sample 1: seen contains 50, which is not in \[0, 50\)"):
        rgt.data.Collate({"seen": 50})([{"seen": [1]}, {"seen": [2, 50]}])
    with pytest.raises(rg.errors.InvalidArgumentError, match="w"):
        rgt.data.Collate({"seen": 50}, weights={"seen": "w"})([{"seen": [1], "w": []}])
    assert rgt.data.Collate({"seen": 50}, plan=False)([{"seen": []}])["seen"].plan is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["a"], r"sample 1: seen must be integers that fit int64; got \['a'\]"),
        ([2**70], "sample 1: seen must be integers"),
        ([[1, 2], [3]], "sample 1: seen must be integers"),
        (None, "sample 1: seen must be integers"),
        (torch.tensor([2**63 + 5], dtype=torch.uint64), "got 9223372036854775813"),
    ],
)
def test_values_that_are_not_integers_raise(value: Any, message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        rgt.data.Collate({"seen": 50})([{"seen": [1]}, {"seen": value}])


@pytest.mark.parametrize(
    "ids", [np.array([3, 2, 1])[::-1], np.array([1, 2, 3], ">i8"), np.array([[1], [2], [3]], "u2")]
)
def test_ids_of_any_array_layout(ids: Any) -> None:
    assert rgt.data.Collate({"seen": np.int64(5)})([{"seen": ids}])["seen"].indices.tolist() == [1, 2, 3]


def test_weights_keep_their_precision() -> None:
    collate = rgt.data.Collate({"seen": 5}, weights={"seen": "w"})
    wide = np.array([0.1, 1e300])
    batch = collate([{"seen": [1, 2], "w": wide}, {"seen": [], "w": []}])["seen"]
    assert batch.weights.dtype == torch.float64
    assert batch.weights.tolist() == wide.tolist()
    assert collate([{"seen": [1], "w": [0.1]}])["seen"].weights.dtype == torch.float32
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"sample 0: w must be real numbers; got torch\.complex64"):
        collate([{"seen": [1], "w": torch.tensor([1j])}])


def test_samples_and_num_rows_must_be_mappings() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="sample 1: a sample must be a mapping; got list"):
        rgt.data.Collate({"seen": 5})([{"seen": [1]}, [1]])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="num_rows must be a mapping"):
        rgt.data.Collate(["seen"])  # type: ignore[arg-type]


def test_missing_keys_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="sample 0: seen must be present in every sample"):
        rgt.data.Collate({"seen": 50})([{}])
    with pytest.raises(rg.errors.InvalidArgumentError, match="sample 0: w must be present in every sample"):
        rgt.data.Collate({"seen": 50}, weights={"seen": "w"})([{"seen": [1]}])
    with pytest.raises(rg.errors.InvalidArgumentError, match="sample 0: w must be numbers; got 'x'"):
        rgt.data.Collate({"seen": 50}, weights={"seen": "w"})([{"seen": [1], "w": "x"}])


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (2**33, {"dtype": torch.int32}, "dtype must be int64 for the 8589934592 rows of 'seen'"),
        (5, {"dtype": torch.int16}, "dtype must be one of int32, int64; got torch.int16"),
        (5, {"weights": {"other": "w"}}, "weights must be keys of num_rows: 'seen'; got 'other'"),
        (-1, {}, "must be an int from 0"),
    ],
)
def test_options_that_would_lose_precision_raise(rows: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        rgt.data.Collate({"seen": rows}, **options)


def test_batches_are_on_the_cpu_under_a_default_device() -> None:
    with torch.device("meta"):
        batch = rgt.data.Collate({"seen": 5}, weights={"seen": "w"})([{"seen": [1, 2], "w": [1.0, 2.0]}])["seen"]
    assert {t.device.type for t in (batch.indices, batch.offsets, batch.segment_ids, batch.weights)} == {"cpu"}
