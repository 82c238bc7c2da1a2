"""AddSymbolicGradients against finite differences: every differentiable block, sparse ones to second order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from rowgrad._catalog.spec import CATALOG, Op
from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import (
    AddSymbolicGradients,
    ClientSession,
    Const,
    Output,
    Scope,
    build,
    dumps,
    loads,
    ops,
    page_of,
)
from samples import sample

SMOOTH = [pytest.param(op, id=op.name) for op in CATALOG.values() if op.differentiable and op.adjoint]
SPARSE = [p for p in SMOOTH if p.values[0].layer == "kernel"]
STEP = 1e-6


class Case:
    """An op in a graph: differentiable inputs are fed, so that they can be varied; the rest is constant."""

    def __init__(self, op: Op, is_open: bool) -> None:
        self.rng = np.random.default_rng(5)
        self.root = Scope.new_root_scope()
        self.feeds: dict[Output, np.ndarray] = {}
        self.is_open = is_open
        given: dict[str, Any] = {}
        self.inputs: list[Output] = []
        for name, value in sample(op.name, self.rng).items():
            if name in op.attrs:
                given[name] = value
            elif name in op.differentiable:
                items = [self.place(v) for v in value] if isinstance(value, list) else [self.place(value)]
                given[name] = items if isinstance(value, list) else items[0]
                self.inputs += items
            elif isinstance(value, list) and any(isinstance(v, np.ndarray) for v in value):
                given[name] = [Const(self.root, v) for v in value]
            else:
                given[name] = value if name in [a.name for a in op.inputs if a.host] else Const(self.root, value)
        placed = getattr(ops, op.name)(self.root, **given)
        self.session = ClientSession(self.root)
        self.outputs = [o for o in placed.pins.values() if o.dtype == "float64"]
        self.seeds = [self.place(self.rng.normal(size=v.shape)) for v in self.run(self.outputs)]

    def place(self, value: Any) -> Output:
        """Return a placeholder for a value, with unknown sizes if the case requests it."""
        array = np.asarray(value, np.float64)
        shape = [-1] * array.ndim if self.is_open else list(array.shape)
        found = ops.Placeholder(self.root, dtype="float64", shape=shape).output
        self.feeds[found] = array
        return found

    def run(self, fetches: list[Output], moved: dict[Output, np.ndarray] | None = None) -> list[np.ndarray]:
        return self.session.run(fetches, {**self.feeds, **(moved or {})})

    def check(self, outputs: list[Output], seeds: list[Output], inputs: list[Output]) -> list[Output]:
        """Compare the gradient along a random direction with the finite difference."""
        gradients = list(AddSymbolicGradients(self.root, outputs, inputs, seeds, unconnected_gradients="zero"))
        found = self.run(gradients)
        for target, gradient in zip(inputs, found, strict=True):
            assert gradient.shape == self.feeds[target].shape
            direction = self.rng.normal(size=gradient.shape)
            ahead, behind = (
                self.run(outputs, {target: self.feeds[target] + s * STEP * direction}) for s in (1.0, -1.0)
            )
            along = sum(
                float(np.sum((a - b) / (2 * STEP) * self.feeds[seed]))
                for a, b, seed in zip(ahead, behind, seeds, strict=True)
            )
            assert np.sum(gradient * direction) == pytest.approx(along, rel=1e-5, abs=1e-6)
        return gradients


@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
@pytest.mark.parametrize("op", SMOOTH)
def test_first_order_gradients_match_finite_differences(op: Op, is_open: bool) -> None:
    case = Case(op, is_open)
    case.check(case.outputs, case.seeds, case.inputs)


@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
@pytest.mark.parametrize("op", SPARSE)
def test_second_order_gradients_match_finite_differences(op: Op, is_open: bool) -> None:
    case = Case(op, is_open)
    first = list(AddSymbolicGradients(case.root, case.outputs, case.inputs, case.seeds, unconnected_gradients="zero"))
    second_seeds = [case.place(case.rng.normal(size=v.shape)) for v in case.run(first)]
    case.check(first, second_seeds, [*case.inputs, *case.seeds])


def test_gradients_have_the_same_bits_as_vjp() -> None:
    rng = np.random.default_rng(1)
    table, dy = rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=(3, 4)).astype(np.float32)
    ids, segments = [0, 5, 5, 2, 0], [0, 0, 1, 2, 2]
    root = Scope.new_root_scope()
    x = Const(root, table)
    y = ops.SparseSegmentSqrtN(root, x, ids, segments)
    (grad,) = AddSymbolicGradients(root, [y], [x], [dy])
    expected = rg.vjp("SparseSegmentSqrtN", (table, ids, segments), dy)[0]
    assert ClientSession(root).run(grad).tobytes() == expected.tobytes()
    rows = ops.SparseSegmentSqrtN(root, x, ids, segments, sparse_gradient=True)
    (grad,) = AddSymbolicGradients(root, [rows], [x], [dy])
    assert ClientSession(root).run(grad).tobytes() == expected.tobytes()


def test_default_seeds_are_ones_and_gradients_of_outputs_are_summed() -> None:
    root = Scope.new_root_scope()
    x = ops.Variable(root, [1.0, 2.0])
    square = ops.Square(root, x)
    run = ClientSession(root).run
    assert [v.tolist() for v in run(AddSymbolicGradients(root, [square], [x]))] == [[2.0, 4.0]]
    assert [v.tolist() for v in run(AddSymbolicGradients(root, [square, x], [x]))] == [[3.0, 5.0]]
    assert [v.tolist() for v in run(AddSymbolicGradients(root, [square], [x, square, x]))] == [[2, 4], [1, 1], [2, 4]]
    (first,) = AddSymbolicGradients(root, [ops.Mul(root, square, x)], [x])
    (second,) = AddSymbolicGradients(root, [first], [x])
    (third,) = AddSymbolicGradients(root, [second], [x])
    assert [v.tolist() for v in run([first, second, third])] == [[3.0, 12.0], [6.0, 12.0], [6.0, 6.0]]


def test_blocks_without_a_gradient_raise_with_their_name() -> None:
    root = Scope.new_root_scope()
    x, other = ops.Variable(root.with_op_name("x"), [1.0]), ops.Variable(root.with_op_name("other"), [1.0])
    y = ops.Square(root, x)
    with pytest.raises(InvalidArgumentError, match=r"no gradient flows from outputs to inputs\[1\] \(other.ref\)"):
        AddSymbolicGradients(root, [y], [x, other])
    zero = AddSymbolicGradients(root, [y], [x, other], unconnected_gradients="zero")[1]
    assert ClientSession(root).run(zero).tolist() == [0.0]
    with pytest.raises(InvalidArgumentError, match=r"outputs\[0\] \(ArgMax.output\) has dtype int64"):
        AddSymbolicGradients(root, [ops.ArgMax(root, x, 0)], [x])
    with pytest.raises(InvalidArgumentError, match="no gradient flows"):
        AddSymbolicGradients(root, [ops.StopGradient(root, y)], [x])
    with pytest.raises(InvalidArgumentError, match=r"grad_inputs\[0\] must have shape \[1\], got \[2\]"):
        AddSymbolicGradients(root, [y], [x], [[1.0, 2.0]])
    with pytest.raises(InvalidArgumentError, match="grad_inputs must have length 1, got 2"):
        AddSymbolicGradients(root, [y], [x], [[1.0], [1.0]])


def test_gradients_flow_through_lookups() -> None:
    """A lookup is several nodes, each with a gradient."""
    rng = np.random.default_rng(2)
    indices = np.array([[0, 0], [0, 1], [1, 0], [3, 0], [3, 1], [3, 2]])
    values, weights = np.array([1, 4, -1, 2, 2, 0]), rng.uniform(0.5, 2.0, 6)
    weights[4] = -0.5
    table = rng.normal(size=(5, 3))
    ids = rg.SparseTensor(indices, values, [5, 3])
    for block, function in (
        ("SafeEmbeddingLookupSparse", rg.safe_embedding_lookup_sparse),
        ("EmbeddingLookupSparse", rg.embedding_lookup_sparse),
    ):
        given = ids if block.startswith("Safe") else rg.SparseTensor(indices, np.abs(values), [5, 3])
        for combiner in ("sum", "mean", "sqrtn"):
            for max_norm in (0.0, 0.7):
                for weighted in (False, True):
                    root = Scope.new_root_scope()
                    x = ops.Variable(root, table)
                    w = ops.Variable(root, weights)
                    out = getattr(ops, block)(
                        root, x, given, w if weighted else None, combiner=combiner, max_norm=max_norm
                    )
                    sparse_weights = rg.SparseTensor(indices, weights, [5, 3])
                    options = {"combiner": combiner, "max_norm": max_norm or None}
                    arguments = (table, given, sparse_weights) if weighted else (table, given)
                    expected = function(*arguments, **options)
                    session = ClientSession(root)
                    assert session.run(out).tobytes() == expected.tobytes()
                    dy = rng.normal(size=expected.shape)
                    wanted = rg.vjp(function, arguments, dy, **options)
                    found = session.run(list(AddSymbolicGradients(root, [out], [x, w] if weighted else [x], [dy])))
                    np.testing.assert_allclose(found[0], rg.densify(wanted[0]), rtol=1e-12, atol=1e-14)
                    if weighted:
                        np.testing.assert_allclose(found[1], rg.densify(wanted[2]), rtol=1e-12, atol=1e-14)


def test_gradients_of_the_default_id_of_a_safe_lookup() -> None:
    root = Scope.new_root_scope()
    ids = rg.SparseTensor([[0, 0], [2, 0]], [1, -3], [3, 1])
    out = ops.SafeEmbeddingLookupSparse(root, [[1.0], [2.0], [3.0]], ids, default_id=2)
    assert ClientSession(root).run(out).tolist() == [[2.0], [3.0], [3.0]]


@pytest.mark.parametrize(
    ("dtype", "weight", "expected"),
    [
        ("float32", 1e-40, 3.0),
        ("float64", 1e-310, 3.0),
        ("bfloat16", 1e-40, 3.0),
        ("float16", 6e-8, 2.0),
        ("float64", 1e-50, 2.0),
    ],
)
def test_subnormal_weights_of_a_safe_lookup(dtype: str, weight: float, expected: float) -> None:
    """As in TensorFlow, subnormal weights count as 0 and their ids are dropped, except in float16."""
    root = Scope.new_root_scope()
    table, weights = (np.array(x, NUMPY_DTYPE[dtype]) for x in ([[1], [2], [3]], [weight]))
    ids = rg.SparseTensor([[0, 0]], [1], [1, 1])
    for combiner in ("mean", "sqrtn"):
        out = ops.SafeEmbeddingLookupSparse(root, table, ids, weights, combiner=combiner, default_id=2)
        assert ClientSession(root).run(out).astype(float).tolist() == [[expected]]


@pytest.mark.parametrize("block", ["EmbeddingLookupSparse", "SafeEmbeddingLookupSparse"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("max_norm", [0.0, 1.1])
def test_gradients_of_lookups_match_finite_differences(block: str, combiner: str, max_norm: float) -> None:
    """First and second order, for table and weights; ids are fed, so all sizes are unknown."""
    case = Case(CATALOG["Add"], is_open=True)
    case.inputs = [case.place(case.rng.normal(size=(5, 3))), case.place(case.rng.uniform(0.5, 2.0, 6))]
    parts = {
        "indices": [[0, 0], [0, 1], [1, 0], [3, 0], [3, 1], [3, 2]],
        "values": [1, 4, 3, 2, 2, 0],
        "dense_shape": [5, 3],
    }
    wires = {}
    for name, value in parts.items():
        shape = [-1] * np.ndim(value) if name != "indices" else [-1, 2]
        wires[name] = ops.Placeholder(case.root, dtype="int64", shape=shape).output
        case.feeds[wires[name]] = np.array(value)
    ids = ops.SparseTensor(case.root, **wires).tensor
    found = getattr(ops, block)(case.root, case.inputs[0], ids, case.inputs[1], combiner=combiner, max_norm=max_norm)
    case.outputs = [found.output]
    case.seeds = [case.place(case.rng.normal(size=v.shape)) for v in case.run(case.outputs)]
    first = case.check(case.outputs, case.seeds, case.inputs)
    second_seeds = [case.place(case.rng.normal(size=v.shape)) for v in case.run(first)]
    case.check(first, second_seeds, [*case.inputs, *case.seeds])


def test_the_mixed_second_derivative_of_a_power_with_exponent_0() -> None:
    root = Scope.new_root_scope()
    x, y = Const(root, [2.0, -4.0, 0.0, np.nan]), Const(root, [0.0, 0.0, 0.0, 0.0])
    power = ops.Pow(root, x, y)
    (to_x,) = AddSymbolicGradients(root, [power], [x])
    (to_x_to_y,) = AddSymbolicGradients(root, [to_x], [y])
    session = ClientSession(root)
    assert session.run(to_x).tolist() == [0.0, 0.0, 0.0, 0.0]
    assert session.run(to_x_to_y).tolist() == [0.5, -0.25, 0.0, 0.0]  # 1 / x where it is finite


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_typed_seeds_keep_the_dtype_of_their_outputs_on_a_page(dtype: Any) -> None:
    root = Scope.new_root_scope()
    x = Const(root.with_op_name("x"), np.array([1.0, 2.0], dtype))
    y = ops.Mul(root.with_op_name("y"), x, x)
    seeded = ops.AddSymbolicGradients(root.with_op_name("seeded"), [y, y], [x], [[1.0, 0.5], y])
    expected = ClientSession(root).run(seeded.grad_outputs[0])
    scope = build(loads(dumps(page_of(root))))
    found = ClientSession(scope).run(scope.graph.blocks["seeded"].grad_outputs[0])
    assert found.dtype == dtype
    assert found.tolist() == expected.tolist()
