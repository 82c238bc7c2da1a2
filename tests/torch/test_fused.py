"""Updates inside backward: the bits of the unfused step, and what is refused there."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch
from test_nn import ROWS, bags

import rowgrad as rg
import rowgrad.torch as rgt

OPTIMIZERS = [
    rgt.optim.SGD,
    rgt.optim.Adagrad,
    rgt.optim.RowWiseAdagrad,
    rgt.optim.Adam,
    rgt.optim.AdamW,
]


def pair(make: Any, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[Any, Any, Any, Any]:
    plain = rgt.nn.EmbeddingBag(ROWS, 9, grad="rows", dtype=dtype, **options)
    fused = rgt.nn.EmbeddingBag(ROWS, 9, fused=True, dtype=dtype, **options)
    fused.load_state_dict(plain.state_dict())
    return plain, make(plain.parameters(), lr=0.1), fused, make(fused.parameters(), lr=0.1)


@pytest.mark.parametrize("way", ["ids", "plan", "weighted", "default_id"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_the_bits_of_the_unfused_step(make: Any, dtype: torch.dtype, way: str) -> None:
    options = {"default_id": 3} if way == "default_id" else {}
    plain, first, fused, second = pair(make, dtype, combiner="sqrtn", **options)
    for seed in range(3):
        ids, offsets = bags(seed)
        weights = torch.rand(len(ids)) if way == "weighted" else None
        given: dict[str, Any] = {}
        if way == "plan":
            closed = torch.cat([offsets, torch.tensor([len(ids)])])
            segments = torch.arange(len(offsets)).repeat_interleave(closed.diff())
            given["plan"] = rg.Plan(ids, segments, ROWS, len(offsets))
        twin = None
        if weights is not None:
            weights.requires_grad_()
            twin = weights.detach().clone().requires_grad_()
        outs = plain(ids, offsets, weights, **given), fused(ids, offsets, twin, **given)
        assert torch.equal(*outs)
        y = torch.rand_like(outs[0])
        for out in outs:
            out.backward(y)
        if weights is not None:
            assert torch.equal(weights.grad, twin.grad)
        assert not torch.equal(plain.weight, fused.weight), "the fused table has changed already"
        first.step()
        second.step()
        first.zero_grad()
        second.zero_grad()
        assert torch.equal(plain.weight, fused.weight)
    states = [list(o.state_dict()["state"][0].items()) for o in (first, second)]
    for (name, a), (other, b) in zip(*states, strict=True):
        assert name == other
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_embeddings_fused() -> None:
    tables = [rgt.nn.Table("user", 30, 8), rgt.nn.Table("item", 20, 8, features=("seen", "bought"))]
    plain, fused = rgt.nn.Embeddings(tables), rgt.nn.Embeddings(tables, fused=True)
    fused.load_state_dict(plain.state_dict())
    optimizers = [rgt.optim.RowWiseAdagrad(m.parameters(), lr=0.1) for m in (plain, fused)]
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        ids = {f: torch.randint(0, 20, (6, 3), generator=g) for f in plain.features}
        for module, optimizer in zip((plain, fused), optimizers, strict=True):
            out = module(ids)
            sum((o * o).sum() for o in out.values()).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(plain.weight("user"), fused.weight("user"))
    assert torch.equal(plain.weight("item"), fused.weight("item"))


def fresh() -> tuple[Any, Any, torch.Tensor, torch.Tensor]:
    module = rgt.nn.EmbeddingBag(ROWS, 9, fused=True)
    return module, rgt.optim.SGD(module.parameters(), lr=0.1), *bags()


def test_accumulation_is_refused() -> None:
    module, optimizer, ids, offsets = fresh()
    module(ids, offsets).sum().backward()
    before = module.weight.detach().clone()
    with pytest.raises(rg.errors.OpError, match="gradients cannot accumulate"):
        module(ids, offsets).sum().backward()
    assert torch.equal(before, module.weight)
    optimizer.step()
    module(ids, offsets).sum().backward()


def test_clipping_is_refused() -> None:
    module, optimizer, ids, offsets = fresh()
    module(ids, offsets).sum().backward()
    for clip in (torch.nn.utils.clip_grad_norm_, rgt.clip.clip_grad_norm_, rgt.clip.clip_grad_value_):
        with pytest.raises(rg.errors.OpError, match="no gradient to read, clip or set"):
            clip(module.parameters(), 1.0)
    optimizer.step()
    assert module.weight.grad is None
    with pytest.raises(rg.errors.OpError, match="no gradient to read, clip or set"):
        module.weight.grad = torch.zeros(ROWS, 9)


def test_create_graph_is_refused() -> None:
    module, _, ids, offsets = fresh()
    with pytest.raises(rg.errors.OpError, match="create_graph=True"):
        module(ids, offsets).sum().backward(create_graph=True)


def test_no_optimizer_is_refused() -> None:
    module = rgt.nn.EmbeddingBag(ROWS, 9, fused=True)
    with pytest.raises(rg.errors.OpError, match="no rowgrad optimizer holds it"):
        module(*bags()).sum().backward()
    torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(rg.errors.OpError, match="no rowgrad optimizer holds it"):
        module(*bags()).sum().backward()
    with pytest.raises(rg.errors.OpError, match="max_norm"):
        rgt.nn.EmbeddingBag(ROWS, 9, 1.0, fused=True)


def test_evaluation_needs_no_optimizer() -> None:
    module, _, ids, offsets = fresh()
    with torch.no_grad():
        assert not module(ids, offsets).requires_grad
    module.weight.requires_grad = False
    assert not module(ids, offsets).requires_grad


def test_a_copy_trains_on_its_own() -> None:
    module, _, ids, offsets = fresh()
    twin = copy.deepcopy(module)
    with pytest.raises(rg.errors.OpError, match="no rowgrad optimizer holds it"):
        twin(ids, offsets).sum().backward()
    optimizer = rgt.optim.SGD(twin.parameters(), lr=0.1)
    before = module.weight.detach().clone()
    twin(ids, offsets).sum().backward()
    optimizer.step()
    assert torch.equal(before, module.weight)
    assert not torch.equal(before, twin.weight)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
@pytest.mark.filterwarnings("ignore")
def test_ddp(tmp_path: Any) -> None:
    """Fused tables are refused there; dense gradients are averaged like any other."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        module, _, ids, offsets = fresh()
        wrapped = torch.nn.parallel.DistributedDataParallel(module)
        with pytest.raises(rg.errors.OpError, match="DistributedDataParallel"):
            wrapped(ids, offsets)
        plain = rgt.nn.EmbeddingBag(ROWS, 9)
        torch.nn.parallel.DistributedDataParallel(plain)(ids, offsets).sum().backward()
        alone = torch.autograd.grad(plain(ids, offsets).sum(), plain.weight)[0]
        assert torch.equal(plain.weight.grad, alone)
    finally:
        torch.distributed.destroy_process_group()
        assert os.path.exists(tmp_path)
