"""torch.func.vmap of every kernel op: the bits of a loop over the items, from one kernel call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.func import grad, jacrev, vjp, vmap

import rowgrad as rg
import rowgrad.torch
import rowgrad.torch.launch as launching
from rowgrad._catalog.spec import CATALOG, PLAN, Op
from rowgrad.errors import InternalError, InvalidArgumentError, OpError
from rowgrad.raw_ops import OPS
from samples import sample
from torch_arrays import to_torch

ITEMS = 3
KERNEL_OPS = [
    op for op in CATALOG.values() if op.kernel is not None and op.category != "Bags"
]  # Bags ops take only ids
DIFFERENTIABLE = [op for op in KERNEL_OPS if op.adjoint is not None and op.kernel != "sparse_add"]
WAYS: dict[str, Callable[[str], Callable[..., Any]]] = {
    "raw_ops": OPS.__getitem__,
    "torch.ops": lambda name: getattr(torch.ops.rowgrad, name),
}
raw = rg.raw_ops


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets one entry per kernel call."""
    kernels: list[int] = []

    def count(function: Any) -> Any:
        def call(*args: Any) -> Any:
            kernels.append(args[0])
            return function(*args)

        return call

    for name in ("Job", "run_kernel"):
        monkeypatch.setattr(launching, name, count(getattr(launching, name)))
    return kernels


@cache
def samples_of_one_shape(name: str, dtype: Any) -> list[dict[str, Any]]:
    """Return samples with equal shapes and sizes: the items of a batch."""
    op, found = CATALOG[name], list[dict[str, Any]]()
    for seed in range(400):
        sampled = sample(name, np.random.default_rng(seed), dtype)
        shapes = [np.shape(sampled[a.name]) for a in op.inputs]
        if not found or shapes == [np.shape(found[0][a.name]) for a in op.inputs]:
            found.append(sampled)
        if len(found) == ITEMS:
            return found
    raise AssertionError(f"{name}: no samples of one shape")


def tensors(op: Op, batched: tuple[str, ...], dtype: Any = np.float64) -> dict[str, Any]:
    """Return the arguments of a call, stacked over all items for those in `batched`."""
    items = samples_of_one_shape(op.name, dtype)
    inputs: dict[str, Any] = {}
    for arg in op.inputs:
        value = items[0][arg.name]
        if arg.host:
            inputs[arg.name] = value.tolist() if isinstance(value, np.ndarray) else value
        else:
            stacked = np.stack([np.asarray(i[arg.name]) for i in items]) if arg.name in batched else np.asarray(value)
            inputs[arg.name] = to_torch(np.array(stacked))
    return inputs


def apply(function: Callable[..., Any], inputs: Mapping[str, Any], batched: tuple[str, ...]) -> Callable[..., Any]:
    """Return the op as a function of its batched arguments."""

    def call(*values: Any) -> Any:
        return function(**{**inputs, **dict(zip(batched, values, strict=True))})

    return call


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def loop(function: Callable[..., Any], *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    results = [as_tuple(function(*(v[i] for v in values))) for i in range(len(values[0]))]
    return tuple(torch.stack([o.to_dense() for o in outputs]) for outputs in zip(*results, strict=True))


def same(got: Any, expected: Any) -> None:
    for one, other in zip(as_tuple(got), as_tuple(expected), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.to_dense(), other)


def subsets(op: Op) -> Iterator[tuple[str, ...]]:
    names = [a.name for a in op.inputs if not a.host]
    for count in range(1, len(names) + 1):
        yield from combinations(names, count)


def unbatchable(op: Op) -> set[str]:
    """Return the arguments that must be the same for all items."""
    if op.name in ("SparseAdd", "RowPlan", "PlannedIds"):
        return set(op.input_names)
    fixed = {*PLAN, "sorted_ids", "input_start"}
    sized_by_data = op.name.endswith("V2") or op.name in ("SegmentSum", "SparseSlice")
    sized_by_data |= op.name.endswith(("FillEmptyRows", "SegmentSum", "SegmentMean", "SegmentSqrtN"))
    if sized_by_data:
        fixed |= {"indices", "segment_ids", "value_rowids"}
    return fixed


def floats(op: Op) -> tuple[str, ...]:
    return tuple(a.name for a in op.inputs if not a.host and a.role == "values" and a.name not in unbatchable(op))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("op", KERNEL_OPS, ids=lambda op: op.name)
def test_every_choice_of_batched_arguments(op: Op, way: str, calls: list[int]) -> None:
    for batched in subsets(op):
        inputs = tensors(op, batched)
        call = apply(WAYS[way](op.name), inputs, batched)
        values = [inputs[name] for name in batched]
        if unbatchable(op) & set(batched):
            with pytest.raises(InvalidArgumentError, match="must be the same for all items of the batch"):
                vmap(call)(*values)
            continue
        try:
            expected = loop(call, *values)
        except InternalError as error:  # the slice of one item applied to the entries of another
            with pytest.raises(InternalError, match=error.message):
                vmap(call)(*values)
            continue
        calls.clear()
        same(vmap(call)(*values), expected)
        assert len(calls) == 1, batched


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32], ids=lambda d: d.__name__)
@pytest.mark.parametrize("op", [op for op in KERNEL_OPS if floats(op)], ids=lambda op: op.name)
def test_dtypes(op: Op, dtype: Any) -> None:
    batched = floats(op)
    inputs = tensors(op, batched, dtype)
    if op.name == "RowPositions":  # its T is a dtype of ids
        return
    call = apply(OPS[op.name], inputs, batched)
    values = [inputs[name] for name in batched]
    same(vmap(call)(*values), loop(call, *values))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("SparseFillEmptyRows", "bool"),
        ("SparseFillEmptyRowsGrad", "uint32"),
        ("SparseFillEmptyRowsGrad", "complex64"),
        ("SparseSegmentSumWithNumSegments", "int16"),
        ("GatherRows", "uint64"),
        ("ScatterRows", "complex128"),
        ("SparseSlice", "uint16"),
        ("SparseAddGradGrad", "uint8"),
        ("SegmentSum", "int64"),
    ],
)
def test_dtypes_without_gradient(name: str, dtype: str) -> None:
    if dtype == "uint32" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
        pytest.skip("this torch cannot choose between numbers of that type")
    op = CATALOG[name]
    batched = floats(op)
    inputs = tensors(op, batched)
    inputs |= {n: (inputs[n] * 10).abs().to(getattr(torch, dtype)) for n in batched}
    call = apply(OPS[name], inputs, batched)
    values = [inputs[n] for n in batched]
    same(vmap(call)(*values), loop(call, *values))


def weighted_sum(outputs: Any) -> Any:
    """Return a scalar whose gradient differs for every entry and does not depend on the order of summation."""
    total = torch.zeros((), dtype=torch.float64)
    for o in as_tuple(outputs):
        if o.is_floating_point():
            total = (
                total
                + (o * torch.linspace(0.5, 2.0, max(o.numel(), 1), dtype=o.dtype)[: o.numel()].reshape(o.shape)).sum()
            )
    return total


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
def test_gradients(op: Op, way: str, calls: list[int]) -> None:
    batched = op.differentiable
    inputs = tensors(op, batched)
    if "gradient" in op.attrs:
        inputs["gradient"] = "dense"
    call = apply(WAYS[way](op.name), inputs, batched)
    values = [inputs[name] for name in batched]
    numbers = tuple(range(len(values)))

    def value(*arguments: Any) -> Any:
        return weighted_sum(call(*arguments))

    calls.clear()
    grad(value, numbers)(*(v[0] for v in values))
    for_one = len(calls)
    expected = loop(grad(value, numbers), *values)
    calls.clear()
    same(vmap(grad(value, numbers))(*values), expected)
    assert len(calls) == for_one
    calls.clear()
    same(grad(lambda *a: vmap(value)(*a).sum(), numbers)(*values), expected)
    assert len(calls) <= for_one
    leaves = [v.clone().requires_grad_() for v in values]
    vmap(value)(*leaves).sum().backward()
    same(tuple(leaf.grad for leaf in leaves), expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("op", [op for op in DIFFERENTIABLE if "weights" in op.differentiable], ids=lambda op: op.name)
def test_second_order(op: Op, way: str) -> None:
    inputs = tensors(op, ("weights",))
    call = apply(WAYS[way](op.name), inputs, ("weights",))

    def value(weights: Any) -> Any:
        return weighted_sum(call(weights) ** 2)

    expected = torch.stack([torch.autograd.functional.hessian(value, w) for w in inputs["weights"]])
    curved = vmap(jacrev(jacrev(value)))(inputs["weights"])
    torch.testing.assert_close(curved, expected, rtol=1e-12, atol=1e-12)
    one = vmap(grad(lambda w: grad(value)(w)[0]))(inputs["weights"])
    torch.testing.assert_close(one, expected[:, 0], rtol=1e-12, atol=1e-12)


TABLES = torch.arange(30.0, dtype=torch.float64).reshape(ITEMS, 5, 2)
IDS = torch.tensor([[0, 1, 4], [2, 2, 2], [1, 0, 3]])
SEGMENTS = torch.tensor([0, 0, 2])


def mean(table: Any, ids: Any, segments: Any = SEGMENTS) -> Any:
    return raw.SparseSegmentMeanWithNumSegments(table, ids, segments, 4)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_batch_dimension_may_be_anywhere(dim: int) -> None:
    (expected,) = loop(mean, TABLES, IDS)
    moved = TABLES.movedim(0, dim)
    same(vmap(mean, in_dims=(dim, 1), out_dims=dim)(moved, IDS.T), expected.movedim(0, dim))
    (expected,) = loop(lambda t: mean(t, IDS[0]), TABLES)
    same(vmap(mean, in_dims=(dim, None), out_dims=-1)(moved, IDS[0]), expected.movedim(0, -1))


@pytest.mark.parametrize("rows", [3, 40])
def test_tables_smaller_and_larger_than_the_ids(rows: int, calls: list[int]) -> None:
    tables = torch.randn(ITEMS, rows, 2)
    ids, segments = torch.tensor([2, 0, 1, 2, 2]), torch.tensor([0, 1, 1, 1, 3])
    (expected,) = loop(lambda t: raw.SparseSegmentSqrtN(t, ids, segments), tables)
    calls.clear()
    same(vmap(lambda t: raw.SparseSegmentSqrtN(t, ids, segments))(tables), expected)
    assert len(calls) == 1


@pytest.mark.parametrize("way", WAYS)
def test_nested_vmap(way: str, calls: list[int]) -> None:
    gather = WAYS[way]("GatherRows")
    expected = torch.stack([torch.stack([gather(t, i) for t in TABLES]) for i in IDS])
    calls.clear()
    same(vmap(vmap(gather, (0, None)), (None, 0))(TABLES, IDS), expected)
    assert len(calls) == 1
    weights = torch.rand(2, ITEMS, 3)
    bag = WAYS[way]("WeightedSparseSegmentMeanGradGrad")
    expected = torch.stack(
        [
            torch.stack([bag(t, i, SEGMENTS, w, 4) for t, i, w in zip(TABLES, IDS, each, strict=True)])
            for each in weights
        ]
    )
    calls.clear()
    same(vmap(vmap(lambda t, i, w: bag(t, i, SEGMENTS, w, 4)), (None, None, 0))(TABLES, IDS, weights), expected)
    assert len(calls) == 1


def test_a_shared_table_has_one_gradient(calls: list[int]) -> None:
    table = TABLES[0]
    expected = sum(grad(lambda t: weighted_sum(mean(t, i)))(table) for i in IDS)  # noqa: B023
    calls.clear()
    got = grad(lambda t: vmap(lambda i: weighted_sum(mean(t, i)))(IDS).sum())(table)
    torch.testing.assert_close(got, expected)
    assert len(calls) == 2


@pytest.mark.parametrize("way", WAYS)
def test_jacobian(way: str, calls: list[int]) -> None:
    bags = WAYS[way]("SparseSegmentSqrtN")

    def function(table: Any) -> Any:
        return bags(table, IDS[0], SEGMENTS)

    same(jacrev(function)(TABLES[0]), torch.autograd.functional.jacobian(function, TABLES[0]))
    calls.clear()
    jacrev(function)(TABLES[0])
    assert len(calls) == 2
    assert torch.count_nonzero(jacrev(jacrev(function))(TABLES[0])) == 0


@pytest.mark.parametrize("way", WAYS)
def test_vjp_of_many_cotangents(way: str) -> None:
    bags = WAYS[way]("SparseSegmentSqrtN")
    output, pull = vjp(lambda t: bags(t, IDS[0], SEGMENTS), TABLES[0])
    cotangents = torch.randn(6, *output.shape, dtype=torch.float64)
    same(vmap(pull)(cotangents), loop(pull, cotangents))


@pytest.mark.parametrize("name", ["SparseSegmentSumWithNumSegments", "GatherRows"])
def test_row_sparse_gradients_are_dense_under_vmap(name: str) -> None:
    def value(table: Any, ids: Any) -> Any:
        if name == "GatherRows":
            return weighted_sum(raw.GatherRows(table, ids, gradient="rows"))
        return weighted_sum(raw.SparseSegmentSumWithNumSegments(table, ids, SEGMENTS, 4, sparse_gradient=True))

    expected = torch.stack([grad(value)(t, i).to_dense() for t, i in zip(TABLES, IDS, strict=True)])
    same(vmap(grad(value))(TABLES, IDS), expected)
    same(jacrev(value)(TABLES[0], IDS[0]), expected[0])


@pytest.mark.parametrize("way", WAYS)
def test_is_grads_batched(way: str) -> None:
    table = TABLES[0].clone().requires_grad_()
    output = WAYS[way]("GatherRows")(table, IDS[0])
    cotangents = torch.eye(output.numel(), dtype=torch.float64).reshape(-1, *output.shape)
    (got,) = torch.autograd.grad(output, table, cotangents, is_grads_batched=True)
    same(got, jacrev(lambda t: raw.GatherRows(t, IDS[0]))(TABLES[0]).reshape(-1, *table.shape))


@pytest.mark.parametrize("name", [op.name for op in KERNEL_OPS if floats(op)])
def test_empty_batches(name: str) -> None:
    op = CATALOG[name]
    batched = floats(op)
    inputs = tensors(op, batched)
    call = apply(OPS[name], inputs, batched)
    shapes = [o.shape for o in as_tuple(call(*(inputs[n][0] for n in batched)))]
    outputs = as_tuple(vmap(call)(*(inputs[n][:0] for n in batched)))
    assert [o.shape for o in outputs] == [(0, *shape) for shape in shapes]
    assert mean(TABLES[0], IDS[0]).shape == vmap(mean)(TABLES[:0], IDS[:0]).shape[1:]


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "argument", "bad"),
    [
        ("SparseSegmentMeanWithNumSegments", "indices", [5, -1, 1 << 40]),
        ("SparseSegmentMeanWithNumSegments", "segment_ids", [4, -1]),
        ("WeightedSparseSegmentMeanGradGrad", "segment_ids", [4, -1]),
        ("SparseSegmentMeanGradGrad", "indices", [5, -1]),
        ("SparseSegmentSumGrad", "indices", [6, -2]),
        ("SparseSegmentSqrtNGrad", "segment_ids", [5, -2]),
        ("WeightedSparseSegmentSumGradRows", "segment_ids", [5, -1]),
        ("GatherRows", "indices", [5, -1]),
        ("ScatterRows", "indices", [6, -1]),
        ("SparseSegmentDot", "indices", [5, -1]),
        ("SparseFillEmptyRowsGrad", "reverse_index_map", [5, -1]),
        ("RaggedFillEmptyRowsGradGrad", "reverse_index_map", [5, -1]),
    ],
)
def test_ids_out_of_range_in_one_item_raise(name: str, argument: str, bad: list[int], way: str) -> None:
    """Such an id would address a row of a neighbouring item; the error is that of the item alone."""
    op = CATALOG[name]
    size = {"num_segments": 4, "output_dim0": 6, "num_rows": 6}
    tables = {"data": TABLES, "grad": TABLES, "params": TABLES, "grad_values": TABLES[:, :, 0]}
    short = {"indices": IDS, "segment_ids": IDS.sort().values.clamp(max=3), "reverse_index_map": IDS}
    short |= {"weights": TABLES[:, :3, 0], "dd_values": TABLES[:, :3, 0], "dd_default_value": TABLES[:, 0, 0]}
    inputs: dict[str, Any] = {n: {**size, **tables, **short}[n] for n in op.input_names}
    if name == "ScatterRows":
        inputs["grad"] = TABLES[:, :3]
    batched = tuple(a.name for a in op.inputs if not a.host)
    function = WAYS[way](name)
    vmap(apply(function, inputs, batched))(*(inputs[n] for n in batched))
    for value in bad:
        ids = inputs[argument].clone()
        ids[1, 2 if value > 0 else 0] = value  # keeps sorted ids sorted
        changed = {**inputs, argument: ids}
        call = apply(function, changed, batched)
        with pytest.raises(OpError) as alone:
            call(*(changed[n][1] for n in batched))
        with pytest.raises(OpError) as together:
            vmap(call)(*(changed[n] for n in batched))
        assert type(together.value) is type(alone.value)
        assert together.value.value == value
        for fact in ("message", "op", "argument", "position", "value", "bound"):
            assert getattr(together.value, fact) == getattr(alone.value, fact)
        item, *call_note = together.value.__notes__
        assert item == "in item 1 of the batch"
        assert call_note == ([f"in {name}({together.value.call})"] if together.value.call else [])


def test_bad_ids_in_nested_batches_raise() -> None:
    ids = IDS.clone()
    ids[1, 2] = 5
    with pytest.raises(InvalidArgumentError, match=r"indices\[2\] = 5 is not in \[0, 5\)"):
        vmap(vmap(raw.GatherRows, (0, None)), (None, 0))(TABLES, ids)


def test_unsorted_ids_in_one_item_raise() -> None:
    segments = torch.tensor([[0, 1, 2], [0, 2, 1], [0, 0, 0]])
    with pytest.raises(InvalidArgumentError, match="segment ids are not increasing"):
        vmap(mean)(TABLES, IDS, segments)
    with pytest.raises(InvalidArgumentError, match="segment ids are not increasing"):
        vmap(lambda t: raw.SegmentSum(t, torch.tensor([0, 1, 0, 0, 0])))(TABLES)


def test_errors_about_shapes_and_dtypes_describe_one_item() -> None:
    with pytest.raises(InvalidArgumentError, match="Shape must be at least rank 1"):
        vmap(mean)(TABLES[:, 0, 0], IDS)
    with pytest.raises(InvalidArgumentError, match="segment_ids and indices should have same size"):
        vmap(mean, (0, 0, None))(TABLES, IDS, SEGMENTS[:2])
    with pytest.raises(InvalidArgumentError, match="indices must be one of int32, int64"):
        vmap(mean)(TABLES, IDS.to(torch.int16))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("SparseSegmentMean", "use SparseSegmentMeanWithNumSegments"),
        ("SparseSegmentSumGradV2", "use SparseSegmentSumGrad"),
        ("WeightedSparseSegmentSqrtN", "use WeightedSparseSegmentSqrtNWithNumSegments"),
        ("PlannedSparseSegmentSumGrad", "use the op that takes ids"),
        ("SparseFillEmptyRows", "determines the number of output rows"),
        ("SparseAdd", "the values determine which sums"),
        ("SparseSliceGrad", "subtract it"),
    ],
)
def test_errors_recommend_a_batchable_op(name: str, advice: str) -> None:
    op = CATALOG[name]
    batched = tuple(a.name for a in op.inputs if not a.host and a.name in unbatchable(op))[-1:]
    inputs = tensors(op, batched)
    with pytest.raises(InvalidArgumentError, match=advice) as raised:
        vmap(apply(OPS[name], inputs, batched))(inputs[batched[0]])
    assert raised.value.argument == batched[0]
    assert raised.value.op == name


def test_sizes_that_differ_between_items_raise() -> None:
    with pytest.raises(InvalidArgumentError, match="num_segments must be the same"):
        vmap(lambda t, n: raw.SparseSegmentSumWithNumSegments(t, IDS[0], SEGMENTS, n))(TABLES, torch.tensor([3, 3, 3]))


# -- sizes and input formats -------------------------------------------------------------------------------------------


def test_numbers_and_lists_next_to_tensors() -> None:
    same(
        vmap(lambda t: mean(t, [1, 0, 4], [0, 0, 2]))(TABLES), loop(lambda t: mean(t, [1, 0, 4], [0, 0, 2]), TABLES)[0]
    )
    filled = vmap(lambda v: raw.RaggedFillEmptyRows([0, 0, 2], v, 4, -1.0).output_values)(TABLES[:, :3, 0])
    assert filled[:, [2, 4]].eq(-1.0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gradient_of_a_default_value_is_summed_in_order(dtype: torch.dtype) -> None:
    values, defaults, scale = (torch.randn(n).to(dtype) for n in (ITEMS * 3, ITEMS, 500))

    def value(values: Any, default: Any) -> Any:
        return (raw.RaggedFillEmptyRows([3, 100, 7], values, 500, default).output_values * scale).sum()

    arguments = values.reshape(ITEMS, 3), defaults
    expected = loop(grad(value, (0, 1)), *arguments)
    same(vmap(grad(value, (0, 1)))(*arguments), expected)
    same(grad(lambda *a: vmap(value)(*a).sum(), (0, 1))(*arguments), expected)


def test_int32_ids_are_widened_when_rows_exceed_int32() -> None:
    rows = 1 << 30  # three such tables have more rows than an int32 can count
    tables, ids = torch.empty(ITEMS, rows, 0), torch.tensor([[rows - 1]] * ITEMS, dtype=torch.int32)
    assert vmap(raw.GatherRows)(tables, ids).shape == (ITEMS, 1, 0)
    with pytest.raises(InvalidArgumentError, match=f"is not in .0, {rows}"):
        vmap(raw.GatherRows)(tables, ids + 1)


def test_items_run_one_by_one_beyond_int32_rows(calls: list[int]) -> None:
    """TensorFlow's output_dim0 is an int32; beyond that, each item is a call."""
    rows, ids = 1 << 30, torch.zeros(ITEMS, 1, dtype=torch.int32)
    result = vmap(lambda g, i: raw.SparseSegmentSumGrad(g, i, [0], rows))(torch.empty(ITEMS, 1, 0), ids)
    assert result.shape == (ITEMS, rows, 0)
    assert len(calls) == ITEMS


def test_a_gradient_with_more_rows_than_its_plan_has_segments() -> None:
    plan = rg.Plan(np.array([1, 0, 1]), np.array([0, 1, 1]), 4)
    arrays = [to_torch(np.array(getattr(plan, n))) if n != "num_rows" else plan.num_rows for n in PLAN]
    weights = torch.rand(ITEMS, 3, dtype=torch.float64)
    call = lambda g, w: raw.PlannedWeightedSparseSegmentMeanGrad(g, w, *arrays)  # noqa: E731
    same(vmap(call)(TABLES, weights), loop(call, TABLES, weights)[0])
    with pytest.raises(InvalidArgumentError, match="the plan has 2 segments, but grad has only 1 rows"):
        vmap(call)(TABLES[:, :1], weights)


def test_subnormals_and_signed_zeros_equal_those_of_one_item() -> None:
    tiny = torch.tensor([[5e-320, -0.0, 1.0], [-0.0, 5e-320, 2.0], [0.0, 0.0, -0.0]], dtype=torch.float64)
    for call in (
        lambda v: raw.SparseFillEmptyRowsGradGrad([0, 1, 3], v, 9.0, torch.zeros(5, dtype=torch.float64)),
        lambda v: raw.SparseFillEmptyRowsGrad([2, 0], v),
        lambda v: raw.ScatterRows(v, [1, 1, 0], 2),
        lambda v: raw.SparseSegmentMean(v, [0, 1, 2], [0, 1, 1]),
        lambda v: raw.WeightedSparseSegmentSum(v, [0, 1, 2], [0, 1, 1], torch.ones(3)),
    ):
        for got, expected in zip(as_tuple(vmap(call)(tiny)), loop(call, tiny), strict=True):
            assert torch.equal(got.view(torch.int64), expected.view(torch.int64))


@pytest.mark.parametrize("include", [False, True])
def test_segment_ids_from_offsets(include: bool, calls: list[int]) -> None:
    offsets = torch.tensor([[0, 2, 2, 5], [0, 0, 4, 5], [0, 5, 5, 5]], dtype=torch.int32)
    call = lambda o: raw.SegmentIdsFromOffsets(o, 5, include_last_offset=include)  # noqa: E731
    (expected,) = loop(call, offsets)
    calls.clear()
    same(vmap(call)(offsets), expected)
    assert len(calls) == 1
    for column, bad in ((0, 1), (1, 5), (3, 6), (3, 4 if include else -1)):
        changed = offsets.clone()
        changed[1, column] = bad
        with pytest.raises(OpError) as alone:
            call(changed[1])
        with pytest.raises(OpError) as together:
            vmap(call)(changed)
        assert str(together.value) == str(alone.value)
    with pytest.raises(InvalidArgumentError, match="call it before vmap"):
        vmap(lambda i: raw.StackBags(i, [0, 1, 2], [3, 2], [0, 3]))(torch.zeros(ITEMS, 2, dtype=torch.int64))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend: str) -> None:
    def value(table: Any, ids: Any, weights: Any) -> Any:
        return weighted_sum(raw.WeightedSparseSegmentMeanGradGrad(table, ids, SEGMENTS, weights, 4))

    weights = torch.rand(ITEMS, 3, dtype=torch.float64)
    expected = vmap(grad(value, (0, 2)))(TABLES, IDS, weights)
    compiled = torch.compile(vmap(grad(value, (0, 2))), fullgraph=True, backend=backend)
    same(compiled(TABLES, IDS, weights), expected)
    leaves = [t.clone().requires_grad_() for t in (TABLES, weights)]
    torch.compile(vmap(value), fullgraph=True, backend=backend)(leaves[0], IDS, leaves[1]).sum().backward()
    same(tuple(leaf.grad for leaf in leaves), expected)


@pytest.mark.parametrize(
    "options", [{"padding_idx": 1}, {"max_norm": 1.0}, {"lookup_max_norm": 1.0}, {"mode": "max"}, {"segment_ids": True}]
)
def test_bags_whose_sizes_depend_on_batched_ids_are_rejected(options: dict[str, Any]) -> None:
    table, ids = torch.rand(4, 2), torch.tensor([[1, 2], [3, 0]])

    def bags(ids: Any) -> Any:
        if "segment_ids" in options:
            return rg.torch.functional.embedding_bag(ids, table, segment_ids=ids)
        return rg.torch.functional.embedding_bag(ids, table, torch.tensor([0, 1]), **options)

    with pytest.raises(
        rg.errors.InvalidArgumentError, match=r"vmap: .*ids must be the same for all items of the batch"
    ):
        torch.func.vmap(bags)(ids)


@pytest.mark.parametrize("option", [{"padding_idx": 2}, {"lookup_max_norm": 1.0}])
def test_ids_that_differ_raise_under_nested_transforms(option: dict[str, Any]) -> None:
    table, ids = torch.rand(5, 2), torch.randint(0, 5, (3, 4, 2))

    def loss(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return rowgrad.torch.functional.embedding_bag(ids, table, **option).square().sum()

    with pytest.raises(rg.errors.InvalidArgumentError, match="ids must be the same for all items of the batch"):
        torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(table, ids)
