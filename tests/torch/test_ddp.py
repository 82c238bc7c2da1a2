"""Row gradients under DistributedDataParallel, and the checks that four processes run (ddp_ranks.py)."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ddp_ranks
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rowgrad as rg
import rowgrad.torch as rgt

IDS = torch.tensor([[1, 2], [2, 2]])


def test_checks_of_four_processes_pass(tmp_path: Path) -> None:
    script = str(Path(ddp_ranks.__file__))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script, str(tmp_path)], env=environment, capture_output=True, timeout=150)
    for rank in range(ddp_ranks.WORLD):
        fields = (tmp_path / f"results_{rank}").read_text().split("\0")
        found = dict(zip((name.strip() for name in fields[:-1:2]), fields[1::2], strict=True))
        failures = [f"rank {rank}, {name}:\n{text}" for name, text in found.items() if text != "fine"]
        assert not failures, "\n".join(failures)
        worlds = (2, ddp_ranks.WORLD) if rank < 2 else (ddp_ranks.WORLD,)
        expected = {f"{c.__name__} {n}" for c in ddp_ranks.CHECKS for n in worlds}
        expected |= {"training_steps 3"} if rank < 3 else set()
        expected |= {"absent_rank 2"} if rank < 2 else set()
        assert set(found) == expected, done.stderr.decode()


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A process group that contains only this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model_of(**options: Any) -> torch.nn.Sequential:
    return torch.nn.Sequential(rgt.nn.EmbeddingBag(5, 3, **options), torch.nn.Linear(3, 1))


def test_missing_process_group_raises() -> None:
    with pytest.raises(RuntimeError, match="init_process_group before replicate_rows"):
        rgt.replicate_rows(model_of(grad="rows"))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("options", [{"grad": "rows"}, {"fused": True}])
def test_tables_that_are_not_replicated_raise(options: dict[str, Any]) -> None:
    ddp = DistributedDataParallel(model_of(**options))
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"replicate_rows\(model\) before you wrap"):
        ddp(IDS)
    with torch.no_grad():
        assert ddp(IDS).shape == (2, 1)


@pytest.mark.usefixtures("alone")
def test_other_gradients_stay_as_they_are() -> None:
    """Dense tables are reduced by DistributedDataParallel, and tables that the user ignores are not reduced."""
    dense = model_of()
    assert rgt.replicate_rows(dense) == []
    DistributedDataParallel(dense)(IDS).sum().backward()
    assert torch.equal(dense[0].weight.grad, torch.autograd.grad(dense(IDS).sum(), dense[0].weight)[0])
    own = model_of(grad="rows")
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(own, ["0.weight"])
    DistributedDataParallel(own)(IDS).sum().backward()
    assert own[0].weight.grad.is_coalesced()


@pytest.mark.usefixtures("alone")
def test_all_names_of_a_table_are_ignored() -> None:
    """Also those of a parameter of the model itself, which DistributedDataParallel spells in two ways."""

    class Own(rgt.nn.EmbeddingBag):
        def __init__(self) -> None:
            super().__init__(5, 3, grad="rows")
            self.head = torch.nn.Linear(3, 1)
            self.again = rgt.nn.EmbeddingBag(5, 3, grad="rows")
            self.again.weight = self.weight
            self.frozen = rgt.nn.EmbeddingBag.from_pretrained(torch.ones(5, 3), grad="rows")
            self._ddp_params_and_buffers_to_ignore = ["head.bias"]

        def forward(self, ids: Any) -> Any:  # type: ignore[override]
            return self.head(super().forward(ids) + self.again(ids) + self.frozen(ids))

    model = Own()
    assert rgt.replicate_rows(model) == ["weight"]
    ddp = DistributedDataParallel(model)
    reduced = ddp._build_params_for_reducer()[0]
    assert [p is model.head.weight for p in reduced] == [True]
    ddp(IDS).sum().backward()
    table = model.weight.detach().clone().requires_grad_()
    out = sum(rgt.functional.embedding_bag(IDS, table, grad="rows") for _ in range(2))
    out.backward(model.head.weight.detach().expand(2, 3))
    assert torch.equal(model.weight.grad.to_dense(), table.grad.to_dense())


@pytest.mark.usefixtures("alone")
def test_own_parameters() -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.ones(5, 3))
            self.head = torch.nn.Linear(3, 1)

        def forward(self, ids: Any) -> Any:
            return self.head(rgt.functional.embedding_bag(ids, self.table, grad="rows"))

    model = Own()
    assert rgt.replicate_rows(model) == []
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"replicate_rows\(model\)"):
        DistributedDataParallel(model)(IDS)
    with pytest.raises(rg.errors.InvalidArgumentError, match="expected parameters of the model"):
        rgt.replicate_rows(model, tables=[torch.nn.Parameter(torch.ones(5, 3))])
    assert rgt.replicate_rows(model, tables=[model.table]) == ["table"]
    DistributedDataParallel(model)(IDS).sum().backward()
    assert model.table.grad.indices().tolist() == [[1, 2]]


@pytest.mark.usefixtures("alone")
def test_models_that_do_not_fit_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="before it is wrapped"):
        rgt.replicate_rows(DistributedDataParallel(model_of()))
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module"):
        rgt.replicate_rows([model_of()])
    with pytest.raises(rg.errors.InvalidArgumentError, match="does not support max_norm"):
        rgt.replicate_rows(model_of(grad="rows", max_norm=1.0))
    inner = model_of(grad="rows")
    rgt.replicate_rows(inner)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"0\.weight is a table .* reduces it too"):
        DistributedDataParallel(torch.nn.Sequential(inner))(IDS)
    model = model_of(grad="rows")
    rgt.replicate_rows(model, dist.new_group([0]))
    with pytest.raises(rg.errors.InvalidArgumentError, match="Pass the same process_group"):
        DistributedDataParallel(model)(IDS)
    model = model_of(grad="rows")
    rgt.replicate_rows(model)
    ddp = DistributedDataParallel(model)
    with (
        pytest.raises(rg.errors.InvalidArgumentError, match=r"does not support DistributedDataParallel\.join"),
        ddp.join(),
    ):
        ddp(IDS)


@pytest.mark.usefixtures("alone")
def test_gradients_that_are_not_exchanged_raise() -> None:
    model = model_of(grad="rows")
    rgt.replicate_rows(model)
    table, weights = model[0].weight, torch.ones(2, 2, requires_grad=True)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"0\.weight got a gradient from an operation other"):
        (model(IDS).sum() + table.square().sum()).backward()
    with pytest.raises(rg.errors.InvalidArgumentError, match="does not support max_norm"):
        rgt.functional.embedding_bag(IDS, table, max_norm=1.0, grad="rows")
    with pytest.raises(rg.errors.InvalidArgumentError, match="does not support lookup_max_norm"):
        rgt.functional.embedding_bag(IDS, table, lookup_max_norm=1.0, grad="rows")
    with pytest.raises(rg.errors.InvalidArgumentError, match="create_graph=True"):
        torch.autograd.grad(model[0](IDS, per_sample_weights=weights).sum(), weights, create_graph=True)
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad(model(IDS).sum(), table)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"torch\.func"):
        torch.func.vmap(lambda ids: model[0](ids))(IDS[None])
    assert table.grad is None
    model(IDS).sum().backward()  # without DistributedDataParallel
    assert table.grad.indices().tolist() == [[1, 2]]


@pytest.mark.usefixtures("alone")
def test_tables_are_exchanged_after_other_parameters() -> None:
    """Collectives of both would otherwise mix in an order that may differ between ranks."""

    def double(bucket: Any) -> Any:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(bucket.buffer() * 2)
        return future

    model, plain = model_of(grad="rows"), model_of(grad="rows")
    plain.load_state_dict(model.state_dict())
    rgt.replicate_rows(model)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, lambda _, bucket: double(bucket))  # torch reads annotations
    seen: list[Any] = []
    model[0].weight.register_hook(lambda _: seen.append(model[1].weight.grad.clone()))
    ddp(IDS).sum().backward()
    plain(IDS).sum().backward()
    assert torch.equal(seen[0], 2 * plain[1].weight.grad)


@pytest.mark.usefixtures("alone")
def test_nested_backward_passes_of_one_lookup() -> None:
    bag = rgt.nn.EmbeddingBag(5, 3, combiner="sum", grad="rows")
    rgt.replicate_rows(bag)
    rows = bag(IDS)
    inner, outer = [rows.sum()], (2 * rows).sum()
    rows.register_hook(lambda _: inner.pop().backward(retain_graph=True) if inner else None)
    outer.backward()
    assert bag.weight.grad.to_dense()[:, 0].tolist() == [0.0, 3.0, 9.0, 0.0, 0.0]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_independent(duplicate: Any) -> None:
    model = model_of(grad="rows")
    rgt.replicate_rows(model)
    other = duplicate(model)
    other(IDS).sum().backward()
    assert other[0].weight.grad.is_coalesced()
    with pytest.raises(rg.errors.InvalidArgumentError, match="replicate_rows"):
        DistributedDataParallel(other)(IDS)
    other.zero_grad()
    for _ in range(2):  # a second call replaces the first
        rgt.replicate_rows(other)
    assert len(other._forward_hooks) == 1
    DistributedDataParallel(other)(IDS).sum().backward()
    assert other[0].weight.grad.is_coalesced()
    assert model[0].weight.grad is None


@pytest.mark.usefixtures("alone")
def test_a_replicated_model_is_freed() -> None:
    model = model_of(grad="rows")
    rgt.replicate_rows(model)
    DistributedDataParallel(model)(IDS).sum().backward()
    before = len(rgt.bag_lookup.REPLICAS)
    del model
    assert len(rgt.bag_lookup.REPLICAS) == before - 1
