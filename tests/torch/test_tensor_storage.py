"""Tensors with resized storage or overlapping elements raise an error before anything is read or written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rowgrad as rg
import rowgrad.torch as rgt
from rowgrad.errors import OpError
from rowgrad.raw_ops import OPS

SMALL = "bytes, but its storage holds"


def shrunk(tensor: Tensor, keep: int = 8) -> Tensor:
    """Return the tensor after its storage was shrunk to `keep` bytes."""
    tensor.untyped_storage().resize_(keep)
    return tensor


def table() -> Tensor:
    return torch.arange(40.0).view(10, 4)


IDS, SEGMENTS = torch.tensor([1, 2, 9]), torch.tensor([0, 0, 1])
CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "one known size": lambda t, i, s: OPS["GatherRows"](t, i),
    "bags": lambda t, i, s: OPS["SparseSegmentSumWithNumSegments"](t, i, s, 2),
    "a size of the data": lambda t, i, s: OPS["SparseSegmentSumGradV2"](t[:2], i, s, 10),
    "an op of the dense layer": lambda t, i, s: OPS["AddV2"](t, t),
    "a plan": lambda t, i, s: rg.Plan(i, s, 10),
    "padding": lambda t, i, s: rgt.functional.embedding_bag(i, t, segment_ids=s, padding_idx=3),
    "no number of bags": lambda t, i, s: rgt.functional.embedding_bag(i, t, segment_ids=s),
    "a limited norm": lambda t, i, s: rgt.functional.embedding_bag(i, t, segment_ids=s, lookup_max_norm=1.0),
    "a matrix of ids": lambda t, i, s: rgt.functional.embedding_bag(i.view(1, 3), t),
}
READS = {
    "a plan": (1, 2), "one known size": (0, 1), "a matrix of ids": (0, 1), "a size of the data": (1, 2),
    "an op of the dense layer": (0,),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_errors_name_the_tensor_whose_storage_is_too_small(name: str) -> None:
    for position in READS.get(name, (0, 1, 2)):
        for _ in range(2):
            CALLS[name](table(), IDS.clone(), SEGMENTS.clone())  # the next call takes the cached fast path
        inputs = [table(), IDS.clone(), SEGMENTS.clone()]
        shrunk(inputs[position])
        with pytest.raises(OpError, match=SMALL):
            CALLS[name](*inputs)


def test_views_are_checked_against_the_whole_storage() -> None:
    whole = table()
    view = whole[8:]
    inside = whole[:2]
    whole.untyped_storage().resize_(2 * 16)
    for _ in range(2):
        with pytest.raises(OpError, match=f"params spans 160 {SMALL} 32"):
            OPS["GatherRows"](view, torch.tensor([1]))
        assert OPS["GatherRows"](inside, torch.tensor([1])).tolist() == [[4.0, 5.0, 6.0, 7.0]]
    columns = table().t()
    columns.untyped_storage().resize_(32)
    with pytest.raises(OpError, match=f"params spans 160 {SMALL} 32"):
        OPS["GatherRows"](columns, torch.tensor([1]))


def test_views_of_a_freed_storage_raise() -> None:
    whole = table()
    view = whole[8:]  # its address is not 0, although that of the storage is
    whole.untyped_storage().resize_(0)
    with pytest.raises(OpError, match="params has no memory"):
        OPS["GatherRows"](view, torch.tensor([1]))


def test_tensors_without_elements_need_no_storage() -> None:
    empty = shrunk(table(), 0)[10:]
    assert OPS["GatherRows"](empty, torch.zeros(0, dtype=torch.int64)).shape == (0, 4)
    huge = torch.empty(0).as_strided((0, 4), (2**40, 2**20), 2**30)
    assert OPS["GatherRows"](huge, torch.zeros(0, dtype=torch.int64)).shape == (0, 4)


def test_tensor_subclasses_are_checked_too() -> None:
    class Subclass(Tensor):
        pass

    subclass = table().as_subclass(Subclass)
    assert OPS["GatherRows"](subclass, IDS)[0, 0] == 4
    shrunk(subclass)
    with pytest.raises(OpError, match=SMALL):
        OPS["GatherRows"](subclass, IDS)


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("which", ["indices", "weights"])
def test_storage_shrunk_between_forward_and_backward_raises(rows: bool, which: str) -> None:
    weight = table().requires_grad_()
    inputs = {"indices": IDS.clone(), "weights": torch.ones(3).requires_grad_()}
    out = OPS["WeightedSparseSegmentMeanWithNumSegments"](
        weight, inputs["indices"], SEGMENTS, inputs["weights"], 2, sparse_gradient=rows
    )
    shrunk(inputs[which].detach())
    with pytest.raises(OpError, match=SMALL):
        out.sum().backward()
    assert weight.grad is None


def test_shrunk_indices_of_a_sparse_gradient_raise() -> None:
    weight, ids = table().requires_grad_(), IDS.clone()
    out = OPS["GatherRows"](weight, ids, gradient="rows")
    shrunk(ids)
    with pytest.raises(OpError, match=SMALL):
        out.sum().backward()


def test_batched_calls_check_storage() -> None:
    batch = torch.stack([IDS, IDS])
    assert torch.func.vmap(lambda i: OPS["GatherRows"](table(), i))(batch).shape == (2, 3, 4)
    shrunk(batch)
    with pytest.raises(OpError, match=SMALL):
        torch.func.vmap(lambda i: OPS["GatherRows"](table(), i))(batch)


def test_registered_torch_ops_check_storage() -> None:
    """torch.compile calls these ops."""
    assert torch.ops.rowgrad.GatherRows(table(), IDS).shape == (3, 4)
    with pytest.raises(OpError, match=SMALL):
        torch.ops.rowgrad.GatherRows(shrunk(table()), IDS)


# -- optimizers -------------------------------------------------------------------------------------------------------


def stepped(optimizer: type[Any], param: Tensor, grad: Tensor) -> Any:
    stepper = optimizer([param], lr=0.1)
    param.grad = torch.ones_like(param)
    stepper.step()
    param.grad = grad
    return stepper


@pytest.mark.parametrize("optimizer", [rgt.optim.SGD, rgt.optim.Adagrad, rgt.optim.RowWiseAdagrad, rgt.optim.Adam])
@pytest.mark.parametrize("layout", ["dense", "rows", "uncoalesced"])
def test_steps_on_a_table_with_too_small_storage_raise(optimizer: type[Any], layout: str) -> None:
    param = torch.nn.Parameter(table())
    ids = torch.tensor([[1, 9]]) if layout == "rows" else torch.tensor([[9, 9]])
    sparse = torch.sparse_coo_tensor(
        ids, torch.ones(2, 4), (10, 4), is_coalesced=layout == "rows", check_invariants=False
    )
    made = stepped(optimizer, param, torch.ones(10, 4) if layout == "dense" else sparse)
    state = {k: v.clone() if isinstance(v, Tensor) else v for k, v in made.state[param].items()}
    shrunk(param.data)
    with pytest.raises(OpError, match=f"param spans 160 {SMALL} 8"):
        made.step()
    for name, value in state.items():
        assert torch.equal(torch.as_tensor(made.state[param][name]), torch.as_tensor(value))


@pytest.mark.parametrize("layout", ["dense", "indices", "values"])
def test_steps_check_the_storage_of_gradients(layout: str) -> None:
    param = torch.nn.Parameter(table())
    ids, values = torch.tensor([[1, 9]]), torch.ones(2, 4)
    sparse = torch.sparse_coo_tensor(ids, values, (10, 4), is_coalesced=True, check_invariants=False)
    dense = torch.ones(10, 4)
    made = stepped(rgt.optim.Adagrad, param, dense if layout == "dense" else sparse)
    before = param.detach().clone()
    shrunk({"dense": dense, "indices": ids, "values": values}[layout])
    with pytest.raises(OpError, match=f"grad spans .* {SMALL} 8"):
        made.step()
    assert torch.equal(param, before)
    with pytest.raises(OpError, match=f"grad spans .* {SMALL} 8"):
        rgt.clip.clip_grad_value_([param], 0.5)
    with pytest.raises(OpError, match=f"grad spans .* {SMALL} 8"):
        rgt.clip.clip_grad_norm_([param], 0.5)


def test_steps_check_the_storage_of_their_state() -> None:
    param = torch.nn.Parameter(table())
    made = stepped(rgt.optim.Adam, param, torch.ones(10, 4))
    before = param.detach().clone()
    for name in ("exp_avg_sq", "exp_avg"):
        shrunk(made.state[param][name])
        with pytest.raises(OpError, match=f"{name} spans 160 {SMALL} 8"):
            made.step()
    assert torch.equal(param, before)


def test_fused_updates_check_every_storage() -> None:
    bag = rgt.nn.EmbeddingBag(10, 4, fused=True, combiner="sum")
    made = rgt.optim.Adagrad(bag.parameters(), lr=0.1)
    ids = IDS.clone()
    bag(ids, segment_ids=SEGMENTS, num_bags=2).sum().backward()
    before = bag.weight.detach().clone()
    shrunk(ids)
    with pytest.raises(OpError, match=SMALL):
        made.step()
    with pytest.raises(OpError, match=SMALL):
        _ = bag.weight.grad
    assert torch.equal(bag.weight, before)
    assert made.state[bag.weight].get("step", 0) == 0


@pytest.mark.parametrize("name", ["rows", "starts", "segments", "positions", "counts"])
def test_plans_check_the_storage_of_their_arrays(name: str) -> None:
    param = torch.nn.Parameter(table())
    made = rgt.optim.SGD([param], lr=0.1)
    plan = rg.Plan(IDS, SEGMENTS, 10, 2)
    arrays = [a.clone() if isinstance(a, Tensor) else a for a in plan.parts()]
    broken = rg.Plan.of(*arrays)
    before = param.detach().clone()
    shrunk(getattr(broken, name), 1)
    with pytest.raises(OpError, match=f"{name} spans .* {SMALL} 1"):
        made.update_from_bags(param, torch.ones(2, 4), None, None, "sum", plan=broken)
    assert torch.equal(param, before)
    with pytest.raises(OpError, match=SMALL):
        OPS["PlannedSparseSegmentSumGrad"](torch.ones(2, 4), *broken.parts())


def test_numpy_runner_checks_the_storage_of_tensors() -> None:
    grad = shrunk(torch.ones(10, 4))
    numbers = np.ones((10, 4), np.float32)
    with pytest.raises(OpError, match=f"grad spans 160 {SMALL} 8"):
        rg.optim.apply_all("sgd", numbers, (), grad, rg.optim.Step(lr=0.1))
    with pytest.raises(OpError, match=f"indices spans 48 {SMALL} 8"):
        rg.SparseTensor(shrunk(torch.zeros(3, 2, dtype=torch.int64)), [1, 2, 3], [2, 2])


# -- overlapping elements ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        torch.ones(4).expand(10, 4),
        torch.ones(20).as_strided((10, 4), (1, 1)),
        torch.ones(99).as_strided((9, 4), (3, 1)),
    ],
)
def test_optimizers_reject_tables_with_overlapping_elements(view: Tensor) -> None:
    with pytest.raises(OpError, match="share memory"):
        rgt.optim.SGD([torch.nn.Parameter(view)], lr=0.1)
    param = torch.nn.Parameter(torch.ones(view.shape))
    made = stepped(rgt.optim.Adagrad, param, torch.ones(view.shape))
    state = made.state[param]["sum"].clone()
    param.data = view
    before = view.clone()
    with pytest.raises(OpError, match="share memory"):
        made.step()
    assert torch.equal(param, before)
    assert torch.equal(made.state[param]["sum"], state)


def test_optimizers_update_strided_tables() -> None:
    for view in (torch.ones(4, 10).t(), torch.ones(10, 8)[:, ::2], torch.ones(1, 4).expand(1, 4), torch.ones(10, 1)):
        param = torch.nn.Parameter(view)
        stepped(rgt.optim.SGD, param, torch.ones(view.shape))
        assert torch.allclose(param, torch.full(view.shape, 0.9))


def test_optimizers_update_negated_views() -> None:
    param = torch.nn.Parameter(torch._neg_view(torch.ones(10, 4)))
    stepped(rgt.optim.SGD, param, torch.ones(10, 4))
    assert torch.allclose(param, torch.full((10, 4), -1.1))


def test_noncontiguous_state_raises() -> None:
    param = torch.nn.Parameter(table())
    made = stepped(rgt.optim.Adagrad, param, torch.ones(10, 4))
    before = param.detach().clone()
    for other in (torch.ones(4, 10).t(), torch.ones(4).expand(10, 4), torch._neg_view(torch.ones(10, 4))):
        made.state[param]["sum"] = other
        with pytest.raises(OpError, match="sum must be contiguous"):
            made.step()
    assert torch.equal(param, before)


# -- batches ----------------------------------------------------------------------------------------------------------


def test_collate_checks_the_storage_of_samples() -> None:
    collate = rgt.data.Collate({"ids": 10}, weights={"ids": "w"}, plan=False)
    good = {"ids": torch.tensor([1, 2]), "w": torch.ones(2)}
    assert collate([good])["ids"].num_bags == 1
    with pytest.raises(OpError, match=f"ids spans 16 {SMALL} 8"):
        collate([good, {**good, "ids": shrunk(torch.tensor([1, 2]))}])
    with pytest.raises(OpError, match=f"w spans 8 {SMALL} 4"):
        collate([good, {**good, "w": shrunk(torch.ones(2), 4)}])


def test_embeddings_check_the_storage_of_every_feature() -> None:
    embeddings = rgt.nn.Embeddings([rgt.nn.Table("a", 10, 4), rgt.nn.Table("b", 10, 4)], include_last_offset=False)
    starts = torch.tensor([0, 2])
    for inputs in ((shrunk(IDS.clone()), starts), (IDS, shrunk(starts.clone()))):
        with pytest.raises(OpError, match=SMALL):
            embeddings({"a": (IDS, starts), "b": inputs})
    weights = {"a": torch.ones(3), "b": shrunk(torch.ones(3))}
    with pytest.raises(OpError, match=SMALL):
        embeddings({"a": (IDS, starts), "b": (IDS, starts)}, per_sample_weights=weights)
