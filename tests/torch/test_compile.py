"""torch.compile and torch.export: full graphs, symbolic sizes, and the bits of eager mode."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import rowgrad as rg
import rowgrad.torch
from rowgrad._catalog.spec import CATALOG, Op
from rowgrad.raw_ops import OPS
from torch_arrays import floats, split

KERNEL_OPS = [op for op in CATALOG.values() if op.kernel is not None]
PER_GRAPH = 6  # a graph has a fixed cost, about that of the ops in it


@pytest.fixture(autouse=True)
def _reset_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    old = tuple(map(int, torch.__version__.split(".")[:2])) < (
        2,
        9,
    )  # it asks before it traces sizes only data can tell
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True) if old else nullcontext():
        yield
    torch._dynamo.reset()


def sampled_call(op: Op) -> tuple[Op, dict[str, Any], dict[str, Any]]:
    inputs, attrs = split(op)
    if op.name == "GatherRows":
        attrs["gradient"] = "dense"
    for name in op.differentiable:
        inputs[name].requires_grad_()
    return op, inputs, attrs


@pytest.mark.parametrize("first", range(0, len(KERNEL_OPS), PER_GRAPH), ids=lambda k: KERNEL_OPS[k].name)
def test_every_op_compiles_to_one_full_graph(first: int) -> None:
    """One graph with symbolic sizes; outputs and gradients are bitwise those of eager mode."""
    calls = [sampled_call(op) for op in KERNEL_OPS[first : first + PER_GRAPH]]

    def run(inputs: list[dict[str, Any]]) -> list[Any]:
        return [OPS[op.name](**x, **attrs) for (op, _, attrs), x in zip(calls, inputs, strict=True)]

    inputs = [x for _, x, _ in calls]
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    results = run(inputs), compiled(inputs)
    for (op, _, _), *both in zip(calls, *results, strict=True):
        for e, g in zip(*(x if isinstance(x, tuple) else (x,) for x in both), strict=True):
            assert torch.equal(e, g), op.name
    leaves = {(op.name, name): inputs[name] for op, inputs, _ in calls for name in op.differentiable}
    if not leaves:
        return
    smooth = [op.differentiable for op, _, _ in calls]
    expected, got = ([o for r, some in zip(each, smooth, strict=True) if some for o in floats(r)] for each in results)
    ys = [torch.rand_like(o) for o in expected]
    gradients = (torch.autograd.grad(outputs, leaves.values(), ys) for outputs in (expected, got))
    for name, e, g in zip(leaves, *gradients, strict=True):
        assert torch.equal(e, g), name


def batch(n: int, rows: int = 50) -> dict[str, Any]:
    g = torch.Generator().manual_seed(n)
    ids = torch.randint(0, rows, (3 * n,), generator=g)
    segments = torch.sort(torch.randint(0, n, (3 * n,), generator=g)).values
    segments[-1] = n - 1
    return {"ids": ids, "segments": segments, "weights": torch.rand(3 * n, generator=g), "bags": n}


FUNCTIONS = {
    "forward": lambda t, b: OPS["SparseSegmentMean"](t, b["ids"], b["segments"]),
    "with_num_segments": lambda t, b: OPS["SparseSegmentSqrtNWithNumSegments"](t, b["ids"], b["segments"], b["bags"]),
    "weighted": lambda t, b: OPS["WeightedSparseSegmentMean"](t, b["ids"], b["segments"], b["weights"]),
    "rows": lambda t, b: OPS["SparseSegmentMeanGradV2"](t[: b["bags"]] * 2, b["ids"], b["segments"], 50).output,
    "planned": lambda t, b: OPS["SparseSegmentMeanGrad"](t[: b["bags"]] * 2, plan=b["plan"]),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_ten_batch_sizes_share_one_graph(name: str, backend: str) -> None:
    if backend == "inductor" and name not in ("with_num_segments", "weighted"):
        return  # generating C++ is slow
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(FUNCTIONS[name], fullgraph=True, dynamic=True, backend=counter)
    table = torch.rand(50, 8, requires_grad=True)
    for n in range(5, 45, 4):
        inputs = batch(n)
        inputs["plan"] = rg.Plan(inputs["ids"], inputs["segments"], 50, n)
        expected, got = FUNCTIONS[name](table, inputs), compiled(table, inputs)
        assert torch.equal(expected, got)
        y = torch.rand(expected.shape, generator=torch.Generator().manual_seed(n))
        assert torch.equal(*(torch.autograd.grad(o, table, y)[0] for o in (expected, got)))
    assert counter.frame_count == 1


def test_plan_is_a_pytree_of_tensors() -> None:
    b = batch(6)
    plan = rg.Plan(b["ids"], b["segments"], 50)
    leaves, spec = torch.utils._pytree.tree_flatten(plan)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    assert torch.utils._pytree.tree_unflatten(leaves, spec) == plan


def test_export() -> None:
    class Bag(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.rand(50, 8))

        def forward(self, ids: torch.Tensor, segments: torch.Tensor, plan: rg.Plan) -> Any:
            bags = OPS["SparseSegmentMean"](self.table, ids, segments)
            return bags, OPS["SparseSegmentSumGrad"](bags, plan=plan)

    module, b = Bag(), batch(7)
    n = torch.export.Dim("n", min=2)
    plan = rg.Plan(b["ids"], b["segments"], 50)
    sizes = ({0: n}, {0: n}, [{0: torch.export.Dim.AUTO} for _ in range(5)])
    program = torch.export.export(module, (b["ids"], b["segments"], plan), dynamic_shapes=sizes)
    names = [str(node.target) for node in program.graph.nodes if "rowgrad" in str(node.target)]
    assert names == ["rowgrad.SparseSegmentMean.default", "rowgrad.PlannedSparseSegmentSumGrad.default"]
    other = batch(20)
    args = (other["ids"], other["segments"], rg.Plan(other["ids"], other["segments"], 50))
    for e, g in zip(module(*args), program.module()(*args), strict=True):
        assert torch.equal(e, g)


def test_tracing_rejects_wrong_shapes() -> None:
    compiled = torch.compile(lambda t, i, s: OPS["SparseSegmentMean"](t, i, s), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="segment_ids and indices should have same size"):
        compiled(torch.rand(4, 2), torch.zeros(3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))


@pytest.mark.filterwarnings("ignore")
def test_jit_trace_is_rejected() -> None:
    """torch.jit.trace records output buffers but not the kernel, so its graph would return uninitialized memory."""
    ids, segments = torch.tensor([1, 2]), torch.tensor([0, 1])
    bag = rowgrad.torch.nn.EmbeddingBag(4, 2)
    frozen = rowgrad.torch.nn.EmbeddingBag.from_pretrained(torch.rand(4, 2))
    for traced, inputs in (
        (rg.raw_ops.SparseSegmentSum, (torch.rand(4, 2), ids, segments)),
        (bag, (ids.view(1, 2),)),
        (frozen, (ids.view(1, 2),)),
        (lambda x: rg.dense_ops.Add(x, x), (ids.to(torch.uint16),)),
    ):
        with pytest.raises(rg.errors.UnimplementedError, match=r"torch\.jit\.trace is not supported"):
            torch.jit.trace(traced, inputs)


@pytest.mark.filterwarnings("ignore")
def test_jit_trace_records_operators() -> None:
    table, ids = torch.arange(20.0).view(10, 2), torch.tensor([1, 2])
    traced = torch.jit.trace(torch.ops.rowgrad.SparseSegmentSum, (table, ids, torch.tensor([0, 1])))
    found = traced(table, torch.tensor([3, 4, 5]), torch.tensor([0, 1, 1]))
    assert torch.equal(found, torch.stack([table[3], table[4] + table[5]]))


def test_functionalize_is_rejected() -> None:
    def loss(table: Any) -> Any:
        return rg.raw_ops.SparseSegmentSum(table, [1, 2], [0, 1]).sum()

    for transformed in (torch.func.functionalize(loss), torch.func.functionalize(torch.func.grad(loss))):
        with pytest.raises(rg.errors.UnimplementedError, match="functionalize is not supported"):
            transformed(torch.rand(4, 2))
    with pytest.raises(rg.errors.UnimplementedError, match="functionalize is not supported"):
        torch.func.functionalize(rowgrad.torch.nn.EmbeddingBag(4, 2, padding_idx=0))(torch.tensor([[1, 2]]))


def compiled_backward(loss: torch.Tensor) -> None:
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        loss.backward()


@pytest.mark.filterwarnings("ignore")
def test_compiled_autograd() -> None:
    """All ops share one autograd Function: a compiled backward pass must not be reused for a different op."""
    table = torch.rand(10, 2, requires_grad=True)
    ids, segments = torch.tensor([1, 2, 2]), torch.tensor([0, 0, 1])
    for op in ("Sum", "Mean", "SqrtN"):
        for sparse in (False, True):
            gradients = []
            for backward in (torch.Tensor.backward, compiled_backward):
                bags = OPS[f"SparseSegment{op}WithNumSegments"](table, ids, segments, 3, sparse_gradient=sparse)
                table.grad = None
                backward(bags.square().sum())
                gradients.append(table.grad.to_dense())  # type: ignore[attr-defined]
            assert torch.equal(*gradients)
    table.grad = None
    compiled_backward(torch.ops.rowgrad.SparseSegmentSum(table, ids, segments).sum())
    assert table.grad is not None
    assert table.grad.sum(1).tolist() == [0, 2, 4, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.filterwarnings("ignore")
def test_compiled_autograd_of_fused_tables_is_rejected() -> None:
    bag = rowgrad.torch.nn.EmbeddingBag(4, 2, fused=True)
    optimizer = rowgrad.torch.optim.SGD(bag.parameters())
    with pytest.raises(rg.errors.OpError, match="does not support compiled autograd"):
        compiled_backward(bag(torch.tensor([[1, 2]])).sum())
    bag(torch.tensor([[1, 2]])).sum().backward()
    optimizer.step()


COMPILED_FIRST = """
import torch
import rowgrad.torch as rgt
from rowgrad import raw_ops

ids, offsets, segments = torch.tensor([2, 0, 2, 1]), torch.tensor([0, 2]), torch.tensor([0, 0, 1, 3])
table = torch.arange(6.0).reshape(3, 2)
first = torch.compile(lambda t: raw_ops.SparseSegmentSum(t, ids, segments), backend="eager", fullgraph=True)(table)
assert torch.equal(first, raw_ops.SparseSegmentSum(table, ids, segments))
bag = rgt.nn.EmbeddingBag(3, 2, combiner="sum")
assert torch.equal(torch.compile(bag, backend="eager")(ids, offsets), bag(ids, offsets))
"""


def test_compiling_before_any_eager_call() -> None:
    subprocess.run([sys.executable, "-c", COMPILED_FIRST], check=True)


def test_new_tensor_subclasses_do_not_recompile() -> None:
    counter = CompileCounterWithBackend("eager")
    table, ids, segments = torch.ones(3, 2), torch.tensor([2, 0]), torch.tensor([0, 1])
    compiled = torch.compile(lambda t: OPS["SparseSegmentSum"](t, ids, segments), backend=counter, fullgraph=True)
    compiled(table)
    for kind in (
        type("First", (Tensor,), {}),
        type("Second", (Tensor,), {}),
    ):  # new subclasses
        OPS["SparseSegmentSum"](table.as_subclass(kind), ids, segments)
        compiled(table)
    assert counter.frame_count == 1


def test_first_import_works_under_fake_tensors() -> None:
    code = """
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    import rowgrad.torch
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
