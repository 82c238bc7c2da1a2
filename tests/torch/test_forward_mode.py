"""Forward mode: tangents of every op, on plain tensors, under torch.func, and in compiled graphs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.utils._pytree import tree_leaves, tree_map

import rowgrad as rg
import rowgrad.torch as rgt
from dense_op_calls import CALLS, inputs_of
from rowgrad._catalog.spec import CATALOG, Op
from rowgrad.raw_ops import OPS
from torch_arrays import floats, split, to_torch

# torch.func.jvp loads decompositions that torch scripts.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

DIFFERENTIABLE = [op for op in CATALOG.values() if op.kernel is not None and op.adjoint is not None]
WAYS: dict[str, Callable[[str], Callable[..., Any]]] = {
    "raw_ops": OPS.__getitem__,
    "torch.ops": lambda name: getattr(torch.ops.rowgrad, name),
}
raw = rg.raw_ops
every_op = pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
# Under torch.func, torch.compile also traces the code that calls kernels.
traces_our_functions = pytest.mark.filterwarnings(
    "ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning"
)
every_way = pytest.mark.parametrize("way", WAYS)

TABLE = torch.tensor([[1.0, -2.0], [0.5, 3.0], [-1.5, 2.0], [4.0, 0.25]], dtype=torch.float64)
WEIGHTS = torch.tensor([0.5, 2.0, 1.5, 1.0], dtype=torch.float64)
IDS = torch.tensor([2, 0, 2, 1])
SEGMENTS = torch.tensor([0, 0, 2, 2])
OFFSETS = torch.tensor([0, 2, 2])


@pytest.fixture
def compiler() -> Iterator[None]:
    """Forget compiled code afterwards, and which functions torch gave up on: all ops share one."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def mean(table: Tensor, weights: Tensor) -> Tensor:
    return raw.WeightedSparseSegmentMeanWithNumSegments(table, IDS, SEGMENTS, weights, 4)


def total(table: Tensor) -> Tensor:
    return raw.SparseSegmentSumWithNumSegments(table, IDS, SEGMENTS, 4)


def call_of(op: Op, way: str, dtype: Any = np.float64, **attrs: Any) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """Return an op as a function of its differentiable arguments that returns its floating-point outputs."""
    args, sampled = split(op, dtype)
    names = op.differentiable

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        return floats(WAYS[way](op.name)(**{**args, **dict(zip(names, values, strict=True))}, **{**sampled, **attrs}))

    return function, tuple(args[name] for name in names)


def cubes(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return a scalar function with nonzero derivatives up to the third order."""
    return lambda *values: sum(o.pow(3).sum() for o in tree_leaves(function(*values)))


def tangents_like(values: Any) -> Any:
    generator = torch.Generator().manual_seed(7)
    return tree_map(lambda v: torch.randn(v.shape, generator=generator, dtype=torch.float64).to(v.dtype), values)


def dual_call(function: Callable[..., Any], values: Any, tangents: Any) -> list[Any]:
    """Return the tangents of a call on dual tensors."""
    with forward_ad.dual_level():
        outputs = function(*tree_map(forward_ad.make_dual, values, tangents))
        return [forward_ad.unpack_dual(o).tangent for o in tree_leaves(outputs)]


def close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


# -- every op ----------------------------------------------------------------------------------------------------------


@every_way
@every_op
def test_jacobian_equals_reverse_mode(op: Op, way: str) -> None:
    function, values = call_of(op, way)
    numbers = tuple(range(len(values)))
    close(jacfwd(function, numbers)(*values), jacrev(function, numbers)(*values))


@every_way
@every_op
def test_derivatives_on_dual_tensors_are_those_of_finite_differences(op: Op, way: str) -> None:
    attrs = {"gradient": "dense"} if "gradient" in op.attrs else {}  # gradcheck takes no sparse gradients
    function, values = call_of(op, way, **attrs)
    leaves = tuple(v.clone().requires_grad_() for v in values)
    options = {"fast_mode": True, "check_batched_grad": False, "check_undefined_grad": False}
    assert torch.autograd.gradcheck(function, leaves, check_forward_ad=True, check_backward_ad=False, **options)
    assert torch.autograd.gradgradcheck(
        lambda *v: tuple(o.pow(2) for o in function(*v)), leaves, check_fwd_over_rev=True, check_rev_over_rev=False,
        fast_mode=True, check_batched_grad=False, check_undefined_grad=False,
    )  # fmt: skip


@every_way
@every_op
def test_second_derivatives_in_every_combination_of_modes(op: Op, way: str) -> None:
    function, values = call_of(op, way)
    numbers = tuple(range(len(values)))
    expected = jacrev(jacrev(cubes(function), numbers), numbers)(*values)
    for outer, inner in ((jacfwd, jacrev), (jacrev, jacfwd), (jacfwd, jacfwd)):
        close(outer(inner(cubes(function), numbers), numbers)(*values), expected)


@every_way
@every_op
def test_each_argument_may_have_a_tangent_alone(op: Op, way: str) -> None:
    function, values = call_of(op, way)
    tangents = tangents_like(values)
    _, together = jvp(function, values, tangents)
    alone = []
    for k in range(len(values)):

        def of_one(x: Tensor, k: int = k) -> Any:
            return function(*values[:k], x, *values[k + 1 :])

        (tangent,) = (dual_call(of_one, (values[k],), (tangents[k],)),)
        close(tuple(tangent), jvp(of_one, (values[k],), (tangents[k],))[1])
        alone.append(tangent)
    close(tuple(sum(parts) for parts in zip(*alone, strict=True)), together)


@every_way
@every_op
def test_batches_of_tangents_and_of_values(op: Op, way: str) -> None:
    function, values = call_of(op, way)
    batches = tuple(torch.stack(t) for t in zip(*(tangents_like(values) for _ in range(2)), strict=True))
    batches = tuple(b * torch.tensor([1.0, -2.0]).reshape(2, *[1] * (b.ndim - 1)) for b in batches)

    def tangent(*ts: Tensor) -> Any:
        return jvp(function, values, ts)[1]

    expected = [tangent(*(b[i] for b in batches)) for i in range(2)]
    close(vmap(tangent)(*batches), tuple(torch.stack(o) for o in zip(*expected, strict=True)))
    if op.name == "SparseAdd":  # values determine its size
        return
    primals = tuple(torch.stack((v, 2 * v)) for v in values)

    def both(vs: Sequence[Tensor], ts: Sequence[Tensor]) -> Any:
        return jvp(function, tuple(vs), tuple(ts))

    items = [both([v[i] for v in primals], [b[i] for b in batches]) for i in range(2)]
    expected_both = tree_map(lambda *x: torch.stack(x), *items)
    close(vmap(both)(primals, batches), expected_both)
    close(jvp(vmap(function), primals, batches), expected_both)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32], ids=lambda d: d.__name__)
@every_op
def test_tangents_have_the_dtype_of_outputs(op: Op, dtype: Any) -> None:
    function, values = call_of(op, "raw_ops", dtype)
    tangents = tangents_like(values)
    results = dual_call(function, values, tangents)
    assert [t.dtype for t in results] == [o.dtype for o in function(*values)]
    wide, doubles = call_of(op, "raw_ops", np.float64)
    expected = jvp(wide, tuple(v.double() for v in values), tuple(t.double() for t in tangents))[1]
    assert [v.shape for v in values] == [v.shape for v in doubles]
    tolerance = {np.float32: 1e-4, np.float16: 2e-2}.get(dtype, 0.15)
    for got, other in zip(results, expected, strict=True):
        torch.testing.assert_close(got.double(), other, rtol=tolerance, atol=10 * tolerance)


@every_way
@every_op
def test_linear_ops_are_applied_to_tangents(op: Op, way: str) -> None:
    """The tangent has the bits of the op's own result for the tangent."""
    if op.linear != op.differentiable or op.is_data_sized:
        return
    function, values = call_of(op, way, np.float32)
    tangents = tangents_like(values)
    for got, expected in zip(dual_call(function, values, tangents), function(*tangents), strict=True):
        assert torch.equal(got, expected)


# -- what decides which entries exist ----------------------------------------------------------------------------------


def test_tangents_of_a_sum_have_its_entries() -> None:
    """Sums below the threshold are dropped; tangents below it are not."""
    indices = torch.tensor([[0, 0], [1, 1], [2, 2]])
    a, b = (torch.tensor(v, dtype=torch.float64) for v in ([1.0, 2.0, 5.0], [3.0, -1.75, 5.0]))
    small, large = torch.full_like(a, 1e-3), torch.full_like(a, 7.0)

    def add(a: Tensor, b: Tensor) -> Tensor:
        return raw.SparseAdd(indices, a, [3, 3], indices, b, [3, 3], 0.5).sum_values

    (tangent,) = dual_call(add, (a, b), (small, small))
    assert tangent.tolist() == [2e-3, 2e-3]
    close(jvp(add, (a, b), (large, -large))[1], torch.zeros(2, dtype=torch.float64))


def test_a_tangent_of_the_threshold_alone_is_zero() -> None:
    indices = torch.tensor([[0, 0], [1, 1]])
    values, threshold = torch.ones(2, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)

    def add(threshold: Tensor) -> Tensor:
        return raw.SparseAdd(indices, values, [2, 2], indices, values, [2, 2], threshold).sum_values

    assert jvp(add, (threshold,), (threshold,))[1].tolist() == [0.0, 0.0]
    (tangent,) = dual_call(add, (threshold,), (threshold,))
    assert tangent is None or tangent.tolist() == [0.0, 0.0]


def test_integer_outputs_have_no_tangent() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(TABLE, TABLE)
        rows, ids = raw.SparseSegmentSumGradV2(dual, IDS, SEGMENTS, 4)
        assert forward_ad.unpack_dual(rows).tangent is not None
        assert forward_ad.unpack_dual(ids).tangent is None


@pytest.mark.parametrize("options", [{}, {"sparse_gradient": True}], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_tangents_of_row_sparse_gradients(options: dict[str, Any], weighted: bool) -> None:
    def function(table: Tensor) -> Tensor:
        if weighted:
            op = raw.WeightedSparseSegmentMeanWithNumSegments
            return op(table, IDS, SEGMENTS, WEIGHTS, 4, **options).pow(3).sum()
        return raw.GatherRows(raw.SparseSegmentMean(table, IDS, SEGMENTS, **options), [0, 2, 2]).pow(3).sum()

    expected = jacrev(jacrev(function))(TABLE)
    direction = tangents_like(TABLE)
    product = torch.einsum("abcd,cd->ab", expected, direction)
    close(jvp(grad(function), (TABLE,), (direction,))[1], product)
    close(hessian(function)(TABLE), expected)
    table = TABLE.clone().requires_grad_()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(table, direction)
        (gradient,) = torch.autograd.grad(function(dual), table, create_graph=True)
        close(forward_ad.unpack_dual(gradient).tangent, product)


# -- gradients of tangents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_through_dual_tensors(sparse: bool) -> None:
    table, tangent, weights = (t.clone().requires_grad_() for t in (TABLE, 2 * TABLE + 1, WEIGHTS))

    def look_up(table: Tensor, weights: Tensor) -> Tensor:
        op = raw.WeightedSparseSegmentSumWithNumSegments
        return op(table, IDS, SEGMENTS, weights, 4, sparse_gradient=sparse)

    with forward_ad.dual_level():
        primal, found = forward_ad.unpack_dual(look_up(forward_ad.make_dual(table, tangent), weights))
        grads = torch.autograd.grad(primal.pow(3).sum() + found.pow(2).sum(), (table, tangent, weights))
    expected = torch.autograd.grad(
        look_up(table, weights).pow(3).sum() + look_up(tangent, weights).pow(2).sum(), (table, tangent, weights)
    )
    for got, other in zip(grads, expected, strict=True):
        close(got.to_dense(), other.to_dense())


def test_gradients_without_tangents_stay_row_sparse() -> None:
    table = TABLE.clone().requires_grad_()
    with forward_ad.dual_level():
        (rows,) = torch.autograd.grad(raw.GatherRows(table, IDS).pow(2).sum(), table)
        assert rows.is_sparse
        scale = forward_ad.make_dual(WEIGHTS, WEIGHTS)
        (dense,) = torch.autograd.grad((raw.GatherRows(table, IDS) * scale[:, None]).pow(2).sum(), table)
        assert not dense.is_sparse
        close(forward_ad.unpack_dual(dense).tangent, 2 * dense)


def test_tangents_need_no_grad_mode() -> None:
    with torch.no_grad():
        (tangent,) = dual_call(total, (TABLE,), (TABLE,))
    assert torch.equal(tangent, total(TABLE))
    assert not tangent.requires_grad


def test_disabled_forward_mode_gives_no_tangent() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(TABLE, TABLE)
        with forward_ad._set_fwd_grad_enabled(False):
            assert forward_ad.unpack_dual(total(dual)).tangent is None
        assert forward_ad.unpack_dual(total(dual)).tangent is not None


def test_three_levels_of_forward_mode() -> None:
    function = cubes(mean)
    expected = jacrev(jacrev(jacrev(function, 1), 1), 1)(TABLE, WEIGHTS)
    close(jacfwd(jacfwd(jacfwd(function, 1), 1), 1)(TABLE, WEIGHTS), expected)
    close(jacfwd(jacrev(jacfwd(function, 1), 1), 1)(TABLE, WEIGHTS), expected)


def test_dual_tensors_under_transforms() -> None:
    """torch.func.grad and vmap of a function of dual tensors."""
    (tangent,) = dual_call(grad(cubes(total)), (TABLE,), (TABLE,))
    close(tangent, jvp(grad(cubes(total)), (TABLE,), (TABLE,))[1])
    (tangent,) = dual_call(vmap(total), (TABLE[None],), (TABLE[None],))
    close(tangent[0], total(TABLE))


def test_hessian_is_symmetric() -> None:
    function = cubes(mean)
    (tt, tw), (wt, ww) = hessian(function, (0, 1))(TABLE, WEIGHTS)
    close(tt, tt.permute(2, 3, 0, 1))
    close(ww, ww.T)
    close(tw, wt.permute(1, 2, 0))
    close(((tt, tw), (wt, ww)), jacrev(jacrev(function, (0, 1)), (0, 1))(TABLE, WEIGHTS))


def test_vjp_of_jvp_and_jvp_of_vjp() -> None:
    tangents = tangents_like((TABLE, WEIGHTS))

    def directional(table: Tensor, weights: Tensor) -> Tensor:
        return jvp(cubes(mean), (table, weights), tangents)[1]

    gradients = vjp(directional, TABLE, WEIGHTS)[1](torch.ones((), dtype=torch.float64))
    close(gradients, jvp(grad(cubes(mean), (0, 1)), (TABLE, WEIGHTS), tangents)[1])


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node.*:UserWarning")  # raised inside torch
def test_linearize() -> None:
    tangents = tangents_like((TABLE, WEIGHTS))
    value, linear = linearize(mean, TABLE, WEIGHTS)
    close(value, mean(TABLE, WEIGHTS))
    close(linear(*tangents), jvp(mean, (TABLE, WEIGHTS), tangents)[1])


@pytest.mark.filterwarnings("ignore:.*_vmap_internals.*", "ignore:.*performance drop.*:UserWarning")
def test_torch_autograd_functional() -> None:
    """Its vectorized forward mode batches tangents by torch's old vmap."""
    values = (TABLE, WEIGHTS)
    jacobian = torch.autograd.functional.jacobian(mean, values, strategy="forward-mode", vectorize=True)
    close(jacobian, jacrev(mean, (0, 1))(*values))
    found = torch.autograd.functional.hessian(
        cubes(mean), values, outer_jacobian_strategy="forward-mode", vectorize=True
    )
    close(found, hessian(cubes(mean), (0, 1))(*values))


# -- inputs ------------------------------------------------------------------------------------------------------------


def test_lists_numbers_and_arrays_next_to_dual_tensors() -> None:
    ids = np.array([2, 0, 2, 1])
    (tangent,) = dual_call(
        lambda t: raw.SparseSegmentSumWithNumSegments(t, ids, [0, 0, 2, 2], torch.tensor(4)), (TABLE,), (TABLE,)
    )
    assert torch.equal(tangent, total(TABLE))
    (tangent,) = dual_call(
        lambda t: raw.WeightedSparseSegmentMean(t, ids, [0, 0, 2, 2], WEIGHTS.tolist()), (TABLE,), (TABLE,)
    )
    close(tangent, mean(TABLE, WEIGHTS)[:3])


def test_strided_and_zero_tangents() -> None:
    (tangent,) = dual_call(total, (TABLE.T.contiguous().T,), (TABLE[:1].expand(4, 2),))
    assert torch.equal(tangent, total(TABLE[:1].expand(4, 2).contiguous()))
    zero = torch._efficientzerotensor((4, 2), dtype=torch.float64)
    (tangent,) = dual_call(total, (TABLE,), (zero,))
    assert tangent.abs().sum() == 0


def test_bad_ids_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="not in"):
        jvp(lambda t: raw.GatherRows(t, [4]), (TABLE,), (TABLE,))


def test_calls_are_freed() -> None:
    gc.collect()
    gc.disable()
    try:
        with forward_ad.dual_level():
            out = mean(forward_ad.make_dual(TABLE.clone().requires_grad_(), TABLE), WEIGHTS)
            alive = weakref.ref(out)
            del out
            assert alive() is None
    finally:
        gc.enable()


# -- dense ops, modules and lookups ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "way"), CALLS)
def test_dense_ops_carry_tangents(op: Op, way: dict[str, Any]) -> None:
    inputs: dict[str, Any] = dict(inputs_of(op, way))
    for arg in op.inputs:
        value = inputs[arg.name]
        if arg.many:
            inputs[arg.name] = [to_torch(np.asarray(v)) for v in value]
        elif not arg.host:
            inputs[arg.name] = to_torch(np.asarray(value))
    names = op.differentiable

    def function(*values: Any) -> Any:
        return floats(OPS[op.name](**{**inputs, **dict(zip(names, values, strict=True))}))

    values = tuple(inputs[name] for name in names)
    numbers = tuple(range(len(values)))
    close(jacfwd(function, numbers)(*values), jacrev(function, numbers)(*values))
    tangents = tangents_like(values)
    for got, expected in zip(dual_call(function, values, tangents), jvp(function, values, tangents)[1], strict=True):
        close(torch.zeros_like(expected) if got is None else got, expected)


MODULES: list[dict[str, Any]] = [
    {}, {"combiner": "sum"}, {"combiner": "sqrtn"}, {"padding_idx": 2}, {"default_id": 3}, {"lookup_max_norm": 1.0},
]  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("grad", ["dense", "rows"])
@pytest.mark.parametrize("options", MODULES, ids=str)
def test_embedding_bag(options: dict[str, Any], grad: str, weighted: bool) -> None:
    bag = rgt.nn.EmbeddingBag(4, 2, grad=grad, dtype=torch.float64, **options)
    values = (TABLE, WEIGHTS) if weighted else (TABLE,)

    def function(table: Tensor, *weights: Tensor) -> Tensor:
        return functional_call(bag, {"weight": table}, (IDS, OFFSETS, *weights))

    numbers = tuple(range(len(values)))
    close(jacfwd(function, numbers)(*values), jacrev(function, numbers)(*values))
    close(hessian(cubes(function), numbers)(*values), jacrev(jacrev(cubes(function), numbers), numbers)(*values))
    tangents = tangents_like(values)
    (tangent,) = dual_call(function, values, tangents)
    close(tangent, jvp(function, values, tangents)[1])


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("options", [{}, {"max_norm": 1.0}, {"allow_fast_lookup": True}], ids=str)
def test_lookups(options: dict[str, Any], safe: bool) -> None:
    """Ids and weights are read as numbers, so transforms must not hide them."""
    entries = torch.tensor([[0, 0], [0, 1], [2, 0], [2, 1]])
    look_up = rg.safe_embedding_lookup_sparse if safe else rg.embedding_lookup_sparse

    def function(table: Tensor, weights: Tensor) -> Tensor:
        ids = rg.SparseTensor(entries, IDS, [4, 2])
        return look_up(table, ids, rg.SparseTensor(entries, weights, [4, 2]), **options)

    values, tangents = (TABLE, WEIGHTS), tangents_like((TABLE, WEIGHTS))
    (got,) = dual_call(function, values, tangents)
    step = 1e-6
    ends = [function(*(v + s * t for v, t in zip(values, tangents, strict=True))) for s in (step, -step)]
    torch.testing.assert_close(got, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-6)
    close(jvp(function, values, tangents)[1], got)
    close(jacfwd(function, (0, 1))(*values), jacrev(function, (0, 1))(*values))
    close(hessian(cubes(function), (0, 1))(*values), jacrev(jacrev(cubes(function), (0, 1)), (0, 1))(*values))
    low = tuple(v.bfloat16() for v in values)
    assert torch.equal(jvp(function, low, low)[0], function(*low))


def test_lookups_of_batched_ids_raise() -> None:
    def of_ids(ids: Tensor) -> Tensor:
        return rg.embedding_lookup_sparse(TABLE, rg.SparseTensor([[0, 0], [0, 1], [1, 0], [1, 1]], ids, [2, 2]))

    assert vmap(lambda table: of_ids(IDS) + table.sum())(TABLE[None]).shape == (1, 2, 2)
    with pytest.raises(rg.errors.InvalidArgumentError, match="sp_ids must be the same for all items"):
        vmap(of_ids)(torch.stack((IDS, IDS)))


def test_fused_tables_raise_rather_than_lose_a_tangent() -> None:
    bag = rgt.nn.EmbeddingBag(4, 2, fused=True, dtype=torch.float64)
    optimizer = rgt.optim.Adagrad(bag.parameters(), lr=0.1)
    assert optimizer.param_groups
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        bag(IDS, OFFSETS, forward_ad.make_dual(WEIGHTS, WEIGHTS))


# -- tracing -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_transforms(backend: str, dynamic: bool) -> None:
    values, tangents = (TABLE, WEIGHTS), tangents_like((TABLE, WEIGHTS))
    for transform in (  # with two argnums and symbolic sizes, torch's compiled jacfwd is wrong, also for its own ops
        lambda t, w: jvp(mean, (t, w), tangents),
        jacfwd(mean, 0 if dynamic else (0, 1)),
        jacfwd(mean, 1),
        lambda t, w: jacfwd(total)(t),
        hessian(cubes(mean), 1),
    ):
        torch._dynamo.reset()
        close(torch.compile(transform, backend=backend, fullgraph=True, dynamic=dynamic)(*values), transform(*values))


@pytest.mark.usefixtures("compiler")
@traces_our_functions
def test_compiled_functions_of_dual_tensors() -> None:
    values, tangents = (TABLE, WEIGHTS), tangents_like((TABLE, WEIGHTS))
    compiled = torch.compile(mean, backend="aot_eager")
    close(dual_call(compiled, values, tangents), dual_call(mean, values, tangents))
    close(jvp(compiled, values, tangents), jvp(mean, values, tangents))
    bag = rgt.nn.EmbeddingBag(4, 2, grad="rows", dtype=torch.float64)

    def look_up(table: Tensor) -> Tensor:
        return functional_call(bag, {"weight": table}, (IDS, OFFSETS))

    compiled = torch.compile(look_up, backend="aot_eager", fullgraph=True)
    close(dual_call(compiled, (TABLE,), (TABLE,)), dual_call(look_up, (TABLE,), (TABLE,)))


@pytest.mark.usefixtures("compiler")
@traces_our_functions
def test_data_dependent_sizes_in_compiled_graphs() -> None:
    """torch's compiler cannot compare the sizes of an output and its tangent; outside of the graph it need not."""
    values, tangents = (TABLE, WEIGHTS), tangents_like((TABLE, WEIGHTS))

    def function(*values: Tensor) -> Any:
        return jvp(lambda t, w: raw.WeightedSparseSegmentMean(t, IDS, SEGMENTS, w), values, tangents)

    torch._dynamo.reset()
    with pytest.raises(Exception, match="data-dependent"):
        torch.compile(function, backend="aot_eager", fullgraph=True)(*values)
    torch._dynamo.reset()
    close(torch.compile(function, backend="aot_eager")(*values), function(*values))


@pytest.mark.usefixtures("compiler")
def test_traced_graphs() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    values, tangents = (TABLE, WEIGHTS), tangents_like((TABLE, WEIGHTS))

    def function(*values: Tensor) -> Any:
        return jvp(mean, values, tangents)

    close(make_fx(function)(*values)(*values), function(*values))
