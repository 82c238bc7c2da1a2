"""Embedding, mode "max" and torch's options in rowgrad's own settings: rows, fused, compiled, torch.func and DDP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, vmap

import rowgrad as rg
import rowgrad.torch as rgt

T = torch.tensor
IDS = T([[3, 1, 1], [1, 4, 0]])
MODULES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "rows": (rgt.nn.Embedding, {}),
    "rows with padding": (rgt.nn.Embedding, {"padding_idx": 1}),
    "rows, renormalized": (rgt.nn.Embedding, {"max_norm": 0.5, "norm_type": 1.0}),
    "bags": (rgt.nn.EmbeddingBag, {"mode": "sum"}),
    "bags with padding": (rgt.nn.EmbeddingBag, {"padding_idx": 1}),
    "bags, renormalized": (rgt.nn.EmbeddingBag, {"max_norm": 0.5}),
    "max": (rgt.nn.EmbeddingBag, {"mode": "max"}),
    "max with padding": (rgt.nn.EmbeddingBag, {"mode": "max", "padding_idx": 1}),
    "frequency": (rgt.nn.Embedding, {"scale_grad_by_freq": True}),
    "bags, frequency": (rgt.nn.EmbeddingBag, {"scale_grad_by_freq": True, "padding_idx": 4}),
    "bags, clipped": (rgt.nn.EmbeddingBag, {"lookup_max_norm": 0.5}),
}
DENSE_ONLY = ("frequency", "bags, frequency")
UNFUSED = (*DENSE_ONLY, "max", "max with padding", "bags, clipped")


def make(name: str, **options: Any) -> Any:
    kind, own = MODULES[name]
    torch.manual_seed(5)
    return kind(6, 3, **own, **options)


@pytest.fixture
def data_dependent_sizes() -> Iterator[None]:
    """Let torch before 2.9 trace sizes that depend on data; later versions always do in full graphs."""
    is_old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True) if is_old else nullcontext():
        yield


@pytest.mark.parametrize("name", [name for name in MODULES if name not in DENSE_ONLY])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_row_sparse_gradients_have_the_bits_of_dense_ones(name: str, dtype: torch.dtype) -> None:
    dense, rows = make(name, dtype=dtype), make(name, dtype=dtype, grad="rows")
    outputs = [module(IDS) for module in (dense, rows)]
    assert torch.equal(*outputs)
    y = torch.rand_like(outputs[0])
    for out in outputs:
        out.backward(y)
    assert rows.weight.grad.is_coalesced()
    assert not dense.weight.grad.is_sparse
    assert torch.equal(dense.weight.grad, rows.weight.grad.to_dense())
    assert torch.equal(dense.weight, rows.weight)


@pytest.mark.parametrize("name", [name for name in MODULES if name not in UNFUSED])
@pytest.mark.parametrize("rule", ["SGD", "Adam"])
def test_fused_tables_train_with_the_bits_of_row_sparse_ones(name: str, rule: str) -> None:
    tables = []
    for fused in (False, True):
        module = make(name, grad="rows", fused=fused)
        optimizer = getattr(rgt.optim, rule)(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(IDS).square().sum().backward()
            optimizer.step()
        tables.append(module.weight.detach().clone())
    assert torch.equal(*tables)


@pytest.mark.parametrize(("kind", "options", "what"), [
    (rgt.nn.EmbeddingBag, {"mode": "max"}, "mode='max'"),
    (rgt.nn.EmbeddingBag, {"scale_grad_by_freq": True}, "scale_grad_by_freq"),
    (rgt.nn.EmbeddingBag, {"lookup_max_norm": 1.0}, "lookup_max_norm"),
    (rgt.nn.Embedding, {"scale_grad_by_freq": True}, "scale_grad_by_freq"),
    (rgt.nn.Embedding, {"grad": "dense"}, "grad='dense'"),
])  # fmt: skip
def test_fused_tables_reject_options(kind: Any, options: dict[str, Any], what: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=f"a fused table does not support {what}"):
        kind(6, 3, fused=True, **options)


def test_fused_tables_reject_options_that_are_set_later() -> None:
    bag = rgt.nn.EmbeddingBag(6, 3, fused=True)
    bag.mode = "max"
    with pytest.raises(rg.errors.InvalidArgumentError, match="mode 'max' does not support fused=True"):
        bag(IDS)
    table = rgt.nn.Embedding(6, 3, fused=True)
    table.scale_grad_by_freq = True
    with pytest.raises(RuntimeError, match="does not support row-sparse gradients"):
        table(IDS)


@pytest.mark.usefixtures("data_dependent_sizes")
@pytest.mark.filterwarnings("ignore:.* should not be instantiated")  # torch's own, for autograd functions in graphs
@pytest.mark.parametrize("name", MODULES)
def test_modules_compile_to_a_full_graph(name: str) -> None:
    torch._dynamo.reset()
    module, twin = make(name), make(name)
    compiled = torch.compile(twin, fullgraph=True, dynamic=True, backend="aot_eager")
    for ids in (IDS, T([[5, 2], [2, 2], [1, 0]])):
        outputs = [module(ids), compiled(ids)]
        assert torch.equal(*outputs)
        y = torch.rand_like(outputs[0])
        gradients = [torch.autograd.grad(out, m.weight, y)[0] for out, m in zip(outputs, (module, twin), strict=True)]
        assert torch.equal(*gradients)
        assert torch.equal(module.weight, twin.weight)


@pytest.mark.parametrize("name", ["rows, renormalized", "max"])
def test_compiled_modules_reject_bad_ids(name: str) -> None:
    torch._dynamo.reset()
    module = make(name)
    before = module.weight.detach().clone()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    compiled(IDS)
    module.weight.data.copy_(before)
    with pytest.raises((RuntimeError, IndexError)):
        compiled(IDS + 3)
    assert torch.equal(module.weight, before)


@pytest.mark.parametrize("name", [name for name in MODULES if "renormalized" not in name])
def test_torch_func(name: str) -> None:
    module = make(name)
    weight = module.weight.detach()

    def loss(weight: torch.Tensor, ids: torch.Tensor = IDS) -> torch.Tensor:
        return functional_call(module, {"weight": weight}, (ids,)).square().sum()

    module(IDS).square().sum().backward()
    assert torch.allclose(grad(loss)(weight), module.weight.grad)
    if name in ("rows", "rows with padding"):
        batches = torch.stack([IDS, IDS.flip(1), IDS * 0 + 5])
        found = vmap(grad(loss), in_dims=(None, 0))(weight, batches)
        assert torch.allclose(found, torch.stack([grad(loss)(weight, ids) for ids in batches]))
        tables = torch.rand(4, 6, 3)
        found = vmap(grad(loss))(tables, IDS.expand(4, 2, 3))
        assert torch.allclose(found, torch.stack([grad(loss)(table) for table in tables]))


def test_max_rejects_batched_tables() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="weight must be the same for all items"):
        vmap(lambda weight: rgt.functional.embedding_bag(IDS, weight, mode="max"))(torch.rand(2, 6, 3))


@pytest.mark.parametrize("name", MODULES)
def test_meta_tensors_and_devices(name: str) -> None:
    if "renormalized" in name or "frequency" in name or "clipped" in name or "padding" in name:
        with torch.device("meta"):  # the default device does not matter to tensors on the CPU
            assert make(name, device="cpu")(IDS).device.type == "cpu"
        return
    meta = make(name, device="meta")(IDS.to("meta"))
    assert (meta.device.type, meta.shape) == ("meta", make(name)(IDS).shape)


@pytest.mark.parametrize("plan", [rg.Plan(IDS.reshape(-1), T([0, 0, 0, 1, 1, 1]), 6, 2)])
@pytest.mark.parametrize("name", ["max", "bags, frequency", "bags, clipped"])
def test_plans_are_rejected_with_options_that_change_ids(name: str, plan: rg.Plan) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="a plan describes the ids as they are looked up"):
        make(name)(IDS, plan=plan)


def test_a_plan_can_be_used_with_renormalization() -> None:
    plan = rg.Plan(IDS.reshape(-1), T([0, 0, 0, 1, 1, 1]), 6, 2)
    assert torch.equal(make("bags, renormalized")(IDS, plan=plan), make("bags, renormalized")(IDS))


@pytest.mark.parametrize("name", MODULES)
def test_freed_tables_and_ids_are_rejected(name: str) -> None:
    module, ids = make(name), IDS.clone()
    ids.untyped_storage().resize_(0)
    with pytest.raises(rg.errors.InvalidArgumentError, match="has no memory"):
        module(ids)
    module.weight.untyped_storage().resize_(0)
    with pytest.raises(rg.errors.InvalidArgumentError, match="has no memory"):
        module(IDS)


def test_tables_of_any_rank() -> None:
    table = torch.rand(6, 2, 3, requires_grad=True)
    found = rgt.functional.embedding_bag(IDS, table, mode="max")
    flat = torch.nn.functional.embedding_bag(IDS, table.flatten(1), mode="max").reshape(2, 2, 3)
    assert torch.equal(found, flat)
    y = torch.rand(2, 2, 3)
    assert torch.equal(*(torch.autograd.grad(out, table, y)[0] for out in (found, flat)))
    column = rgt.functional.embedding_bag(IDS, table.detach()[:, 0, 0], mode="max")
    assert torch.equal(column, found[:, 0, 0])


def test_combiner_and_grad_are_other_names_of_attributes() -> None:
    bag = rgt.nn.EmbeddingBag(6, 3, combiner="sqrtn", grad="rows")
    assert (bag.mode, bag.combiner, bag.grad, bag.sparse) == ("sqrtn", "sqrtn", "rows", False)
    assert repr(bag) == "EmbeddingBag(6, 3, mode='sqrtn', grad='rows')"
    bag.combiner, bag.grad = "sum", "dense"
    assert repr(bag) == "EmbeddingBag(6, 3, mode='sum')"
    bag.sparse = True
    assert bag.grad == "rows"
    bag.grad = "rows"
    assert bag.sparse
    bag.grad = "dense"
    assert not bag.sparse
    with pytest.raises(rg.errors.InvalidArgumentError, match="combiner must be one of"):
        bag.combiner = "median"
    with pytest.raises(rg.errors.InvalidArgumentError, match="grad must be one of"):
        bag.grad = "sparse"
    everything = rgt.nn.EmbeddingBag(6, 3, mode="sum", default_id=0, fused=True)
    assert repr(everything) == "EmbeddingBag(6, 3, mode='sum', grad='rows', default_id=0, fused=True)"
    assert repr(rgt.nn.Embedding(6, 3, 1, fused=True)) == "Embedding(6, 3, padding_idx=1, grad='rows', fused=True)"


@pytest.mark.filterwarnings("ignore")
def test_sparse_gradients_under_ddp(tmp_path: Any) -> None:
    """`sparse=True` announces sparse gradients to DDP, as in torch; `grad="rows"` does not, and is an error."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for kind, options in (
            (rgt.nn.Embedding, {"padding_idx": 1}),
            (rgt.nn.EmbeddingBag, {"mode": "sum"}),
            (rgt.nn.EmbeddingBag, {"padding_idx": 1}),
        ):
            alone = kind(6, 3, **options)
            alone(IDS).sum().backward()
            sparse = kind(6, 3, sparse=True, **options)
            torch.nn.parallel.DistributedDataParallel(sparse)(IDS).sum().backward()
            assert sparse.weight.grad.is_sparse
            assert torch.equal(sparse.weight.grad.to_dense(), alone.weight.grad)
            rows = kind(6, 3, grad="rows", **options)
            with pytest.raises(rg.errors.InvalidArgumentError, match="replicate_rows"):
                torch.nn.parallel.DistributedDataParallel(rows)(IDS)
        largest = rgt.nn.EmbeddingBag(6, 3, mode="max", grad="rows")
        with pytest.raises(rg.errors.InvalidArgumentError, match="replicate_rows"):
            torch.nn.parallel.DistributedDataParallel(largest)(IDS)
    finally:
        torch.distributed.destroy_process_group()


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    torch.manual_seed(0)
    ids, table = torch.randint(0, 50, (400, 30)), torch.randn(50, 16)
    before, kernel_threads, found = torch.get_num_threads(), rg.num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            rg.set_num_threads(threads)
            for options in ({"mode": "max"}, {"mode": "mean", "scale_grad_by_freq": True}):
                weight = table.clone().requires_grad_()
                out = rgt.functional.embedding_bag(ids, weight, **options)
                out.square().sum().backward()
                found.append((out.detach(), weight.grad))
    finally:
        torch.set_num_threads(before)
        rg.set_num_threads(kernel_threads)
    for one, three in zip(found[:2], found[2:], strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, three, strict=True))
