"""Production situations: default devices, freed memory, pickles, DDP, invalid data."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

import rowgrad as rg
import rowgrad.torch as rgt

T = torch.tensor
OpError = rg.errors.OpError


def fused(rows: int = 5, **options: Any) -> tuple[Any, Any]:
    module = rgt.nn.EmbeddingBag(rows, 2, combiner="sum", fused=True, **options)
    return module, rgt.optim.SGD(module.parameters(), lr=1.0)


def test_a_default_device_changes_nothing() -> None:
    table, ids = torch.randn(5, 4), T([0, 1])
    module = rgt.nn.Embeddings([rgt.nn.Table("a", 5, 4)])
    optimizer = rgt.optim.Adam(module.parameters())
    expected = rgt.functional.embedding_bag(ids, table, ids)
    offsets = T([0, 1, 2])
    with torch.device("meta"):
        assert torch.equal(rgt.functional.embedding_bag(ids, table, ids), expected)
        assert rg.raw_ops.SparseSegmentSum(table, ids, ids).device.type == "cpu"
        module(ids, offsets)["a"].sum().backward()
        optimizer.step()


def test_mixed_devices_raise() -> None:
    with pytest.raises(OpError, match="indices is on meta"):
        rg.raw_ops.SparseSegmentSumWithNumSegments(torch.randn(5, 4), T([0, 1]).to("meta"), T([0, 1]), 2)
    with torch.device("meta"):
        module = rgt.nn.Embeddings([rgt.nn.Table("a", 5, 4)])
    assert module.to_empty(device="cpu")(T([4]), T([0, 1]))["a"].shape == (1, 4)
    meta = rgt.nn.Embeddings([rgt.nn.Table("a", 5, 4)], device="meta")
    meta.load_state_dict(module.state_dict(), assign=True)
    assert meta(T([4]), T([0, 1]))["a"].shape == (1, 4)


def test_freed_memory_is_rejected() -> None:
    table = torch.randn(5, 4)
    table.untyped_storage().resize_(0)
    with pytest.raises(OpError, match="data has no memory"):
        rgt.functional.embedding_bag(T([0, 1]), table, T([0, 1]))
    zeros = torch._efficientzerotensor(5, 4)
    assert rgt.functional.embedding_bag(T([0]), zeros, T([0])).tolist() == [[0.0] * 4]


def test_fused_tables_may_be_evaluated_before_training() -> None:
    module, optimizer = fused()
    with torch.no_grad():
        module(T([1, 2]), T([0]))
    module(T([1, 2]), T([0])).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("options", [{"padding_idx": 0}, {"default_id": 4}], ids=str)
def test_fused_tables_reject_a_plan_of_other_ids(options: dict[str, Any]) -> None:
    ids, segments = T([0, 1, 0]), T([0, 0, 1])
    plan = rg.Plan(ids, segments, 5, 2)
    module, _ = fused(**options)
    with pytest.raises(OpError, match="cannot be combined with padding_idx or default_id"):
        module(ids, segment_ids=segments, num_bags=2, plan=plan)
    module, _ = fused()
    for wrong in (rg.Plan(ids[:2], segments[:2], 5, 2), rg.Plan(ids, segments, 5, 3), rg.Plan(ids, segments, 6, 2)):
        with pytest.raises(OpError, match="the plan has"):
            module(ids, segment_ids=segments, num_bags=2, plan=wrong)
    plain = rgt.nn.EmbeddingBag(5, 2)
    with pytest.raises(OpError, match="plan"):
        plain(ids, segment_ids=segments, num_bags=2, plan=rg.Plan(ids, segments, 5, 3))


def test_fused_tables_allow_several_lookups_per_step() -> None:
    module, optimizer = fused()
    before = module.weight.detach().clone()
    module(T([1]), T([0]))  # a lookup that is never differentiated
    (module(T([0]), T([0])) + module(T([1]), T([0]))).sum().backward()
    optimizer.zero_grad()  # a skipped step
    optimizer.step()
    assert torch.equal(before, module.weight)
    (module(T([0]), T([0])) + module(T([1]), T([0]))).sum().backward()
    optimizer.step()
    assert (before - module.weight).abs().sum(1).count_nonzero() == 2


def test_fused_tables_can_be_pickled() -> None:
    module, _ = fused()
    module(T([0]), T([0])).sum().backward()
    twin = pickle.loads(pickle.dumps(module))
    assert torch.equal(twin.weight, module.weight)
    optimizer = rgt.optim.SGD(twin.parameters(), lr=1.0)
    twin(T([0]), T([0])).sum().backward()
    optimizer.step()


def test_modules_with_sparse_gradients_can_be_pickled() -> None:
    module = rgt.nn.EmbeddingBag(5, 2, grad="rows")
    module(T([0]), T([0])).sum().backward()
    twin = pickle.loads(pickle.dumps(module))
    twin.weight.grad = None
    twin(T([0]), T([0])).sum().backward()
    assert twin.weight.grad.is_coalesced()


def test_weight_gradient_after_the_fused_table_changed_raises() -> None:
    module, _ = fused()
    weights = torch.ones(2, requires_grad=True)
    out = module(T([0, 1]), T([0]), weights)
    with torch.no_grad():
        module.weight.mul_(10)
    with pytest.raises(OpError, match="changed between forward and backward"):
        out.sum().backward()


def test_features_do_not_leak_into_each_other() -> None:
    tables = [rgt.nn.Table("a", 5, 1, "sum"), rgt.nn.Table("b", 5, 1, "sum")]
    module = rgt.nn.Embeddings(tables, include_last_offset=False)
    good = (T([1, 2]), T([0, 1]))
    wrong: list[tuple[Any, Any, str]] = [
        ({"a": good, "b": (T([3, 4]), T([1, 2]))}, None, r"feature b: offsets\[0\] must be 0"),
        ({"a": good, "b": (T([3, 4]), T([0, 3]))}, None, "feature b: offsets must end with the number of ids"),
        ({"a": good, "b": good}, {"a": torch.ones(3), "b": torch.ones(1)}, "feature a"),
        ({"a": good, "b": good}, {"a": torch.ones(2)}, "per_sample_weights"),
        ({"a": good, "b": (T([1.0]), T([0]))}, None, "feature b"),
        ({"a": good, "b": (T([1]), T([0]))}, None, "1 bags, but other features have 2"),
    ]
    for ids, weights, message in wrong:
        with pytest.raises(OpError, match=message):
            module(ids, per_sample_weights=weights)
    with pytest.raises(OpError, match="per_sample_weights"):
        module(T([1, 2]), T([0, 1, 1, 1]), torch.ones(5))
    embeddings = rgt.nn.Embeddings([*tables, rgt.nn.Table("c", 5, 2)], include_last_offset=True)
    with pytest.raises(OpError, match="offsets must end with the number of ids, 3, got 2"):
        embeddings(T([1, 2, 3]), T([0, 1, 1, 2]))


def test_embeddings_subclasses_may_have_more_parameters() -> None:
    class Model(rgt.nn.Embeddings):
        def __init__(self) -> None:
            super().__init__([rgt.nn.Table("a", 5, 2)])
            self.bias = torch.nn.Parameter(torch.ones(2))
            self.linear = torch.nn.Linear(2, 1)

    module, twin = Model(), Model()
    assert sorted(module.state_dict()) == ["a.weight", "bias", "linear.bias", "linear.weight"]
    twin.load_state_dict(module.state_dict())
    assert torch.equal(twin.linear.weight, module.linear.weight)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        twin.load_state_dict({**module.state_dict(), "b.weight": torch.ones(1)})


def test_embeddings_compile_to_a_full_graph() -> None:
    torch._dynamo.reset()
    module = rgt.nn.Embeddings([rgt.nn.Table("a", 5, 4), rgt.nn.Table("b", 6, 4)], output="stacked")
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for bags in (3, 4, 7):
        ids = {"a": torch.randint(0, 5, (bags, 2)), "b": torch.randint(0, 6, (bags, 3))}
        assert torch.equal(module(ids), compiled(ids))


def test_collate_rejects_fractional_and_out_of_range_ids() -> None:
    with pytest.raises(OpError, match="sample 0: x contains 4294967297"):
        rgt.data.Collate({"x": 10}, dtype=torch.int32)([{"x": T([2**32 + 1])}])
    with pytest.raises(OpError, match="must contain integers"):
        rgt.data.Collate({"x": 10})([{"x": T([1.7])}])
    assert rgt.data.Collate({"x": 10}, dtype=torch.int32)([{"x": [3]}])["x"].indices.dtype == torch.int32


def test_negative_padding_and_default_ids_count_from_the_end() -> None:
    table, ids, offsets = torch.randn(5, 3), T([1, 4, 2]), T([0, 3])
    theirs = torch.nn.functional.embedding_bag(ids, table, offsets, mode="sum", padding_idx=-1)
    ours = rgt.functional.embedding_bag(ids, table, offsets, combiner="sum", padding_idx=-1)
    assert torch.equal(theirs, ours)
    filled = rgt.functional.embedding_bag(ids, table, offsets, combiner="sum", default_id=-1)
    assert torch.equal(filled[1], table[4])
    with pytest.raises(OpError, match="per_sample_weights"):
        rgt.functional.embedding_bag(ids, table, offsets, padding_idx=4, per_sample_weights=torch.ones(2))
    with pytest.raises(OpError, match="num_bags"):
        rgt.functional.embedding_bag(ids.reshape(1, 3), table, num_bags=7)


def test_loaded_optimizer_state_is_validated() -> None:
    parameter = torch.nn.Parameter(torch.ones(4, 3))
    ours = rgt.optim.Adagrad([parameter], lr=0.1)
    ours.register_load_state_dict_pre_hook(lambda _, state: {**state, "state": {}})
    parameter.grad = torch.ones(4, 3)
    ours.step()
    ours.load_state_dict(ours.state_dict())
    assert not ours.state.get(parameter)
    theirs = torch.optim.SGD([parameter], lr=0.1)
    plain = rgt.optim.SGD([parameter], lr=0.1)
    plain.load_state_dict(theirs.state_dict())
    plain.step()
    saved = rgt.optim.Adagrad([parameter])
    saved.step()
    state = saved.state_dict()
    state["state"][0]["sum"] = torch.ones(2)
    name = next(k for k in state["state"][0] if k != "step")
    state["state"][0][name] = torch.ones(2)
    with pytest.raises(ValueError, match="shape"):
        rgt.optim.Adagrad([parameter]).load_state_dict(state)
    with pytest.raises(OpError):
        plain.add_param_group({"params": [torch.nn.Parameter(torch.ones(2, device="meta"))]})
    assert len(plain.param_groups) == 1


def test_negated_gradients_step_in_the_right_direction() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4, 3))
    parameter.grad = torch._neg_view(torch.ones(4, 3))
    rgt.optim.SGD([parameter], lr=1.0).step()
    assert parameter.detach().unique().tolist() == [1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_are_shrunk_by_their_largest_element_as_torch_does(dtype: torch.dtype) -> None:
    """GPUs use this function: torch's kernel for them computes other norms."""
    table = torch.randn(40, 33, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
    ids = torch.tensor([3, 5, 3, 39, 0, 7])
    expected = torch.embedding_renorm_(table.clone(), ids, 1.0, float("inf"))
    rgt.functional._shrink_largest(table, ids, 1.0)
    torch.testing.assert_close(table, expected, rtol=1e-6 if dtype != torch.bfloat16 else 1e-2, atol=0)
    assert torch.equal(table[1], expected[1])
    assert float(table[3].abs().max()) <= 1.0
    empty = torch.ones(3, 0, dtype=dtype)
    rgt.functional._shrink_largest(empty, ids[:0], 1.0)
