"""Fused tables under torch.compile: full graphs, whose backward pass defers the bits of eager mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import rowgrad as rg
import rowgrad.torch as rgt
from rowgrad.torch import fused, fused_ops

pytestmark = pytest.mark.skipif(not fused_ops.COMPILES, reason="torch.compile of fused tables needs torch 2.13")
ROWS, COLUMNS = 20, 4
IDS = torch.tensor([[1, 2], [2, 3]])


@pytest.fixture(autouse=True)
def _reset_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Head(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(COLUMNS, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.linear(rows).relu()


class Model(torch.nn.Module):
    """Two tables, one of them looked up twice. Without layers, whose gradients inductor adds in another order."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = rgt.nn.EmbeddingBag(ROWS, COLUMNS, combiner="mean", fused=True, **options)
        self.b = rgt.nn.EmbeddingBag(ROWS, COLUMNS, combiner="sqrtn", fused=True, default_id=3)
        self.scale = torch.linspace(-1, 1, COLUMNS)

    def forward(self, ids: Tensor, offsets: Tensor, weights: Tensor | None) -> Any:
        return self.a(ids, offsets, weights) * self.b(ids, offsets) * self.scale + self.a(ids.flip(0), offsets)


def batch(size: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(size)
    lengths = torch.randint(0, 6, (size,), generator=g)
    total = int(lengths.sum())
    offsets = torch.cumsum(lengths, 0) - lengths
    return torch.randint(0, ROWS, (total,), generator=g), offsets, torch.rand(total, generator=g)


def same_state(a: Any, b: Any) -> None:
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize(
    ("backend", "make"),
    [("aot_eager", rgt.optim.RowWiseAdagrad), ("aot_eager", rgt.optim.Adam), ("inductor", rgt.optim.RowWiseAdagrad)],
)
def test_training_has_the_bits_of_eager_mode(backend: str, make: Any) -> None:
    model, eager = Model(), Model()
    both = make(model.parameters(), lr=0.1), make(eager.parameters(), lr=0.1)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for size in (5, 9, 16):
        ids, offsets, weights = batch(size)
        used = [weights.clone().requires_grad_() for _ in range(2)]
        outs = compiled(ids, offsets, used[0]), eager(ids, offsets, used[1])
        assert torch.equal(*outs)
        for out in outs:
            out.square().sum().backward()
        assert torch.equal(*(w.grad for w in used))
        assert [len(t.rowgrad_pending) for t in (model.a.weight, model.b.weight)] == [2, 1]
        for optimizer in both:
            optimizer.step()
            optimizer.zero_grad()
        same_state(model, eager)
    assert counter.frame_count == 1


def compiled_bag(**options: Any) -> tuple[Any, Any, Any]:
    """Return a table, its compiled module and its optimizer."""
    bag = rgt.nn.EmbeddingBag(ROWS, COLUMNS, _weight=torch.ones(ROWS, COLUMNS), fused=True, **options)
    return bag, torch.compile(bag, fullgraph=True, backend="aot_eager"), rgt.optim.SGD(bag.parameters(), lr=1.0)


def test_many_tables() -> None:
    tables = [rgt.nn.Table("a", 9, 3), rgt.nn.Table("b", 7, 3, features=("x", "y")), rgt.nn.Table("c", 5, 2)]
    modules = []
    for _ in range(2):
        torch.manual_seed(0)
        modules.append(rgt.nn.Embeddings(tables, fused=True))
    model, eager = modules
    both = [rgt.optim.RowWiseAdagrad(m.parameters(), lr=0.1) for m in modules]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for size in (3, 4, 6):
        ids = dict.fromkeys(("a", "x", "y", "c"), batch(size)[0][:4].view(2, 2) % 5)
        for module in (compiled, eager):
            sum(rows.square().sum() for rows in module(ids).values()).backward()
        for optimizer in both:
            optimizer.step()
            optimizer.zero_grad()
        same_state(model, eager)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_accumulate(dtype: torch.dtype) -> None:
    """Also if the graph is compiled again while gradients are pending."""
    options: dict[str, Any] = {"combiner": "sum", "fused": True, "dtype": dtype}
    bag, eager = (rgt.nn.EmbeddingBag(ROWS, COLUMNS, **options) for _ in range(2))
    eager.load_state_dict(bag.state_dict())
    both = [rgt.optim.Adagrad(m.parameters(), lr=0.1) for m in (bag, eager)]
    compiled = torch.compile(bag, fullgraph=True, dynamic=False, backend="aot_eager")
    for sizes in ((3, 4), (5,), (5, 3, 5)):
        for size in sizes:
            ids, offsets, _ = batch(size)
            for module in (compiled, eager):
                module(ids, offsets).square().sum().backward()
        for optimizer in both:
            optimizer.step()
            optimizer.zero_grad()
        same_state(bag, eager)


def test_reading_grad_returns_the_rows() -> None:
    bag, compiled, optimizer = compiled_bag(combiner="sum")
    compiled(IDS).sum().backward()
    norm = rgt.clip.clip_grad_norm_(bag.parameters(), 1.0)
    assert bag.weight.grad.indices().tolist() == [[1, 2, 3]]
    assert norm.item() == pytest.approx((6 * COLUMNS) ** 0.5)
    compiled(IDS).sum().backward()
    optimizer.zero_grad()
    assert bag.weight.grad is None
    optimizer.step()
    assert torch.equal(bag.weight, torch.ones(ROWS, COLUMNS))


def test_retain_graph() -> None:
    bag, compiled, optimizer = compiled_bag(combiner="sum")
    loss = compiled(IDS).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()
    optimizer.step()
    assert bag.weight[:4, 0].tolist() == [1.0, -1.0, -3.0, -1.0]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # inductor's own
def test_memory_that_the_graph_uses_again() -> None:
    """Inductor writes other gradients to the memory of the bags' gradient."""
    ids, scale = torch.arange(8).view(COLUMNS, 2), torch.linspace(-1, 1, COLUMNS)  # all gradients have the same size
    tables = []
    for compiles in (False, True):
        g = torch.Generator().manual_seed(0)
        bag, _, optimizer = compiled_bag(combiner="sum")
        layers = [torch.randn(COLUMNS, COLUMNS, generator=g).requires_grad_() for _ in range(4)]
        inputs = torch.randn(COLUMNS, COLUMNS, generator=g).requires_grad_()

        def run(hidden: Tensor, *layers: Tensor, bag: Any = bag) -> Tensor:
            for layer in layers:
                hidden = (hidden @ layer).sin()
            return (bag(ids) + hidden).exp()

        out = (torch.compile(run, fullgraph=True) if compiles else run)(inputs, *layers)
        (out * scale).sum().backward()
        optimizer.step()
        tables.append(bag.weight.detach())
    torch.testing.assert_close(*tables)  # inductor's exp differs in the last bits


def test_equal_lookups_are_not_merged() -> None:
    bag, _, optimizer = compiled_bag(combiner="sum")
    compiled = torch.compile(lambda ids: bag(ids) + bag(ids) + bag(ids), fullgraph=True, backend="aot_eager")
    compiled(IDS).sum().backward()
    optimizer.step()
    assert bag.weight[:4, 0].tolist() == [1.0, -2.0, -5.0, -2.0]


@pytest.mark.parametrize(("inside", "reentrant"), [(False, False), (False, True), (True, False)])
def test_activation_checkpointing(inside: bool, reentrant: bool) -> None:
    bag, _, optimizer = compiled_bag(combiner="sum")
    scale = torch.full((COLUMNS,), 2.0, requires_grad=True)

    def rows(ids: Tensor, scale: Tensor) -> Tensor:
        return (bag(ids) * scale).square()

    if inside:
        run = torch.compile(
            lambda i, s: checkpoint(rows, i, s, use_reentrant=False), fullgraph=True, backend="aot_eager"
        )
        out = run(IDS, scale)
    else:
        out = checkpoint(torch.compile(rows, fullgraph=True, backend="aot_eager"), IDS, scale, use_reentrant=reentrant)
    out.sum().backward()
    assert len(bag.weight.rowgrad_pending) == 1
    optimizer.step()
    other = torch.ones(ROWS, COLUMNS, requires_grad=True)
    (rgt.functional.embedding_bag(IDS, other, combiner="sum") * 2).square().sum().backward()
    assert torch.equal(bag.weight, 1 - other.grad)


def test_only_backward_passes_for_the_table_update_it() -> None:
    bag, _, optimizer = compiled_bag(combiner="sum")
    scale = torch.ones(COLUMNS, requires_grad=True)
    compiled = torch.compile(lambda s: bag(IDS) * s, fullgraph=True, backend="aot_eager")
    torch.autograd.grad(compiled(scale).sum(), scale)
    compiled(scale).sum().backward(inputs=[scale])
    out = compiled(scale).sum()
    bag.weight.requires_grad_(False)
    out.backward()
    bag.weight.requires_grad_(True)
    assert bag.weight.rowgrad_pending == ()
    with torch.no_grad():
        compiled(scale)
    with pytest.raises(rg.errors.OpError, match=r"torch\.autograd\.grad together with torch\.compile"):
        torch.autograd.grad(compiled(scale).sum(), bag.weight)
    compiled(scale).sum().backward()
    optimizer.step()
    assert bag.weight[:4, 0].tolist() == [1.0, 0.0, -1.0, 0.0]


def test_modules_that_share_a_graph_update_their_own_tables() -> None:
    modules = [compiled_bag(combiner="sum") for _ in range(3)]
    for number, (_, compiled, _) in enumerate(modules):
        compiled(torch.tensor([[number]])).sum().backward()
    for number, (bag, _, optimizer) in enumerate(modules):
        optimizer.step()
        assert bag.weight[:3, 0].tolist() == [0.0 if n == number else 1.0 for n in range(3)]


def test_tables_without_an_optimizer_raise() -> None:
    bag = rgt.nn.EmbeddingBag(ROWS, COLUMNS, fused=True)
    compiled = torch.compile(bag, fullgraph=True, backend="aot_eager")
    with pytest.raises(rg.errors.OpError, match="needs a rowgrad optimizer"):
        compiled(IDS).sum().backward()
    optimizer = rgt.optim.SGD(bag.parameters(), lr=1.0)
    before = bag.weight.detach().clone()
    compiled(IDS).sum().backward()
    optimizer.step()
    assert not torch.equal(before, bag.weight)
    del optimizer
    with pytest.raises(rg.errors.OpError, match="needs a rowgrad optimizer"):
        compiled(IDS).sum().backward()


def test_bad_and_overwritten_ids() -> None:
    bag, compiled, optimizer = compiled_bag(combiner="sum")
    with pytest.raises(rg.errors.OpError, match="out of range"):
        compiled(IDS + ROWS)
    ids = IDS.clone()
    out = compiled(ids).sum()
    out.backward()
    ids.zero_()  # the step does not read them
    optimizer.step()
    assert bag.weight[:4, 0].tolist() == [1.0, 0.0, -1.0, 0.0]


def test_unsupported_uses_raise() -> None:
    bag, compiled, optimizer = compiled_bag(combiner="sum")
    handle = bag.weight.register_hook(lambda grad: grad)
    with pytest.raises(rg.errors.OpError, match=r"hooks of its parameter together with torch\.compile"):
        compiled(IDS).sum().backward()
    handle.remove()
    with (
        pytest.raises(rg.errors.OpError, match="compiled autograd"),
        torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")),
    ):
        compiled(IDS).sum().backward()
    with pytest.raises(Exception, match=r"does not support torch\.func"):
        torch.compile(torch.func.grad(lambda s: (bag(IDS) * s).sum()), backend="aot_eager")(torch.ones(COLUMNS))
    assert bag.weight.rowgrad_pending == ()
    optimizer.step()
    assert torch.equal(bag.weight, torch.ones(ROWS, COLUMNS))


def test_older_versions_of_torch_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_ops, "COMPILES", False)
    bag, _, _ = compiled_bag(combiner="sum")
    with pytest.raises(rg.errors.OpError, match=r"does not support torch\.compile of torch 2"):
        torch.compile(bag, backend="eager")(IDS)


def test_older_versions_of_torch_that_trace_a_table_as_a_plain_tensor_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not know the class of the parameter; its gradient was dense there, in silence."""
    monkeypatch.setattr(fused_ops, "COMPILES", False)
    monkeypatch.setattr(fused, "FusedWeight", Head)
    bag, _, _ = compiled_bag(combiner="sum")
    tables = rgt.nn.Embeddings([rgt.nn.Table("a", ROWS, COLUMNS)], fused=True, include_last_offset=True)
    with pytest.raises(rg.errors.OpError, match=r"does not support torch\.compile of torch 2"):
        torch.compile(bag, backend="eager")(IDS)
    with pytest.raises(rg.errors.OpError, match=r"does not support torch\.compile of torch 2"):
        torch.compile(tables, backend="eager")({"a": IDS})


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # dynamo reads it
@pytest.mark.parametrize("make", [rgt.optim.Adam, rgt.optim.RowWiseAdagrad])
def test_older_versions_of_torch_look_up_between_graphs(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    monkeypatch.setattr(fused_ops, "COMPILES", False)
    monkeypatch.setattr(fused, "IS_OLD", True)
    for kind in (rgt.nn.EmbeddingBag, rgt.nn.Embedding, rgt.nn.Embeddings):
        monkeypatch.setattr(kind, "forward", fused.between_graphs(kind.forward, is_old=True))
    counter = CompileCounterWithBackend("aot_eager")
    found, expected = Model(), Model()
    optimizers = [make(m.parameters(), lr=0.1) for m in (found, expected)]
    compiled = torch.compile(found, backend=counter)
    for size in (4, 7, 4):
        ids, offsets, weights = batch(size)
        for model, optimizer in zip((compiled, expected), optimizers, strict=True):
            model(ids, offsets, weights).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    same_state(found, expected)
    assert counter.frame_count > 0
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(found, backend="eager", fullgraph=True)(*batch(5))


def test_export() -> None:
    """Exported programs contain ordinary operators."""
    bag, _, _ = compiled_bag(combiner="sum")
    program = torch.export.export(bag, (IDS,))
    names = [str(node.target) for node in program.graph.nodes if "rowgrad" in str(node.target)]
    assert names == ["rowgrad.SparseSegmentSumWithNumSegments.default"]
    assert torch.equal(program.module()(IDS), bag(IDS))


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A process group that contains only this process. It outlives all that uses it, or gloo's threads may block."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # dynamo's own
@pytest.mark.usefixtures("alone")
def test_distributed_data_parallel() -> None:
    """No compiled table keeps the gradient of its own rank; ddp_ranks.py trains fused ones."""
    for options in ({"fused": True}, {"grad": "rows"}):
        model = torch.nn.Sequential(rgt.nn.EmbeddingBag(ROWS, COLUMNS, **options), Head())
        optimizer = rgt.optim.SGD(model.parameters(), lr=0.1)
        if "fused" in options:
            ddp = torch.nn.parallel.DistributedDataParallel(model)
            with pytest.raises(rg.errors.OpError, match="before you wrap the model"):
                torch.compile(ddp, backend="aot_eager")(IDS)
            torch._dynamo.reset()
        rgt.replicate_rows(model)
        compiled = torch.compile(torch.nn.parallel.DistributedDataParallel(model), backend="aot_eager")
        if "fused" in options:
            compiled(IDS).sum().backward()
            assert model[0].weight.grad.indices().tolist() == [[1, 2, 3]]
        else:
            with pytest.raises(rg.errors.OpError, match="other than a rowgrad lookup"):
                compiled(IDS).sum().backward()
        with torch.no_grad():
            assert compiled(IDS).shape == (2, 1)
        model[1].compile(fullgraph=True, backend="aot_eager")  # the part after the tables
        model.zero_grad()
        torch.nn.parallel.DistributedDataParallel(model)(IDS).sum().backward()
        assert model[0].weight.grad.indices().tolist() == [[1, 2, 3]]
        optimizer.step()
