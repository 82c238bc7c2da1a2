"""Numbers out of a dtype's range and shapes known only at run time raise errors; nothing wraps or broadcasts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import AddSymbolicGradients, Block, ClientSession, Const, Page, Scope, build, ops

TOO_LARGE = [
    (200, "qint8"),
    (-1, "quint8"),
    ([0, 2**31], "qint32"),
    (1e39, "bfloat16"),
    (1e300, "complex64"),
    ([0.0, 1e300j], "complex64"),
]


@pytest.mark.parametrize(("value", "dtype"), TOO_LARGE)
def test_numbers_out_of_the_range_of_a_dtype_raise(value: Any, dtype: str) -> None:
    root = Scope.new_root_scope()
    fed = ops.Placeholder(root, dtype=dtype)
    makers = [
        lambda: Const(root, value, dtype=dtype),
        lambda: ops.Variable(root, value, dtype=dtype),
        lambda: ClientSession(root).run(fed, {fed: value}),
        lambda: build(Page("p", [Block("a", "Const_ex", {"val": value}, attrs={"dtype": dtype})])),
    ]
    for make in makers:
        with pytest.raises(InvalidArgumentError, match="must contain"):
            make()


def test_strings_with_lone_surrogates_raise() -> None:
    root = Scope.new_root_scope()
    fed = ops.Placeholder(root, dtype="string")
    makers = [
        lambda: Const(root, ["a", "\ud800"]),
        lambda: ops.Variable(root, "\udfff"),
        lambda: ClientSession(root).run(fed, {fed: np.array(["\ud800"], dtype=object)}),
    ]
    for make in makers:
        with pytest.raises(InvalidArgumentError, match="must be text without lone surrogates"):
            make()
    assert ClientSession(root).run(Const(root, ["\u00e9\U0001f600", b"\xff"])).tolist() == ["\u00e9\U0001f600", b"\xff"]


def test_numbers_at_the_bounds_of_a_dtype_are_accepted() -> None:
    root = Scope.new_root_scope()
    session = ClientSession(root)
    assert session.run(Const(root, [-128, 127], dtype="qint8")).tolist() == [(-128,), (127,)]
    assert np.isinf(session.run(Const(root, [np.inf, -np.inf], dtype="bfloat16")).astype(np.float32)).all()
    assert session.run(Const(root, complex(1e38, -np.inf), dtype="complex64")).item() == complex(
        np.float32(1e38), -np.inf
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_number_next_to_a_wire_must_fit_its_dtype(dtype: str) -> None:
    root = Scope.new_root_scope()
    x = Const(root, 1.0, dtype=dtype)
    with pytest.raises(InvalidArgumentError, match=f"y must contain numbers in the range of {dtype}; got 1e\\+300"):
        ops.Mul(root, x, 1e300)
    with pytest.raises(InvalidArgumentError, match=r"inputs\[1\] must contain numbers"):
        ops.AddN(root, [x, -1e300])
    assert np.isinf(ClientSession(root).run(ops.Mul(root, x, np.inf)).astype(np.float32))


@pytest.mark.parametrize("engine", ["numpy", "torch"])
@pytest.mark.parametrize("name", ["Neg", "Identity", "Square"])
def test_a_seed_of_unknown_shape_must_fit_at_run_time(engine: str, name: str) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    root = Scope.new_root_scope()
    x = ops.Variable(root, [1.0, 2.0, 3.0])
    seed = ops.Placeholder(root, dtype="float32")
    y = getattr(ops, name)(root, x)
    (expected,) = AddSymbolicGradients(root, [y], [x], grad_inputs=[[1.0, -0.0, 2.0]])
    (found,) = AddSymbolicGradients(root, [y], [x], grad_inputs=[seed])
    (again,) = AddSymbolicGradients(root, [found], [seed])
    session = ClientSession(root, engine=engine)
    first, second = session.run([expected, found], {seed: [1.0, -0.0, 2.0]})
    assert first.tobytes() == second.tobytes()
    assert session.run(again, {seed: [1.0, 1.0, 1.0]}).shape == (3,)
    for shape in ((), (1,), (1, 3), (2, 3), (4,)):
        with pytest.raises(InvalidArgumentError, match=r"must have shape \[3\]"):
            session.run(found, {seed: np.ones(shape, np.float32)})


def test_a_seed_for_an_output_of_unknown_shape_must_fit_at_run_time() -> None:
    root = Scope.new_root_scope()
    x = ops.Placeholder(root, dtype="float32", shape=[-1, 2])
    seed = ops.Placeholder(root, dtype="float32", shape=[-1, 2])
    (found,) = AddSymbolicGradients(root, [ops.Square(root, x)], [x], grad_inputs=[seed])
    session, ones = ClientSession(root), np.ones((2, 2), np.float32)
    assert session.run(found, {x: ones, seed: ones}).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    with pytest.raises(InvalidArgumentError, match=r"must have shape \[2,2\], got \[1,2\]"):
        session.run(found, {x: ones, seed: ones[:1]})


def test_typed_seeds_take_the_dtype_of_their_output() -> None:
    root = Scope.new_root_scope()
    x = ops.Variable(root, np.array([1.0, 2.0]))
    (found,) = AddSymbolicGradients(root, [ops.Square(root, x)], [x], grad_inputs=[[0.1, 1]])
    assert ClientSession(root).run(found).tolist() == [0.1 * 2.0, 4.0]
    with pytest.raises(InvalidArgumentError, match="must be float64, as its output; got float32"):
        AddSymbolicGradients(root, [ops.Square(root, x)], [x], grad_inputs=[np.ones(2, np.float32)])


def _updates(root: Scope, lr: Any, grad: Any) -> dict[str, Any]:
    x, a, m = (ops.Variable(root.with_op_name(name), [1.0, 2.0, 3.0]) for name in "xam")
    return {
        "AssignAdd": ops.AssignAdd(root, x, grad),
        "AssignSub": ops.AssignSub(root, x, grad),
        "ApplyGradientDescent": ops.ApplyGradientDescent(root, x, lr, grad),
        "ApplyMomentum": ops.ApplyMomentum(root, x, a, lr, grad, 0.9),
        "ApplyAdagrad": ops.ApplyAdagrad(root, x, a, lr, grad),
        "ApplyAdam": ops.ApplyAdam(root, x, a, m, 0.9, 0.99, lr, 0.9, 0.99, 1e-3, grad),
    }


def test_updates_of_unknown_shape_must_fit_at_run_time() -> None:
    root = Scope.new_root_scope()
    lr, grad = (ops.Placeholder(root, dtype="float32") for _ in range(2))
    for name, update in _updates(root, lr, grad).items():
        session = ClientSession(root)
        before = session.variables
        feeds = {grad: np.ones(3, np.float32)} | ({} if name.startswith("Assign") else {lr: 0.1})
        for shape in ((), (1,), (1, 3), (2, 3)):
            with pytest.raises(InvalidArgumentError, match=rf"{name} .*must have shape \[3\]"):
                session.run(update, feeds | {grad: np.ones(shape, np.float32)})
        if lr in feeds:
            with pytest.raises(InvalidArgumentError, match=f"{name} .*should be a scalar"):
                session.run(update, feeds | {lr: np.full(3, 0.1, np.float32)})
        assert all(np.array_equal(before[key], value) for key, value in session.variables.items())
        session.run(update, feeds)
        assert not np.array_equal(before["x"], session.variables["x"])


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_lookups_in_shards_of_unknown_shape_must_fit_at_run_time(safe: bool, combiner: str) -> None:
    root = Scope.new_root_scope()
    indices, values, shape = (ops.Placeholder(root, dtype="int64") for _ in range(3))
    weights = ops.Placeholder(root, dtype="float32")
    lookup = ops.SafeEmbeddingLookupSparse if safe else ops.EmbeddingLookupSparse
    bags = ops.SparseTensor(root, indices, values, shape).tensor
    plain = lookup(root, Const(root, np.eye(3, dtype=np.float32)), bags, combiner=combiner)
    weighted = lookup(root, Const(root, np.eye(3, dtype=np.float32)), bags, weights, combiner=combiner)
    session = ClientSession(root)
    feeds = {indices: [[0, 0], [1, 0]], values: [1, 2], shape: [2, 1]}
    assert session.run(plain, feeds).tolist() == [[0, 1, 0], [0, 0, 1]]
    assert session.run(weighted, feeds | {weights: [1.0, 1.0]}).tolist() == [[0, 1, 0], [0, 0, 1]]
    wrong: list[dict[Any, Any]] = [
        {values: [1]},
        {values: [1, 2, -1]},
        {values: [[1, 2]]},
        {indices: np.zeros((2, 1), np.int64), shape: [2]},
        {indices: [0, 1]},
    ]
    for part in [*wrong, *([{shape: [2]}, {shape: [2, 1, 1]}] if safe else [])]:
        with pytest.raises(InvalidArgumentError):
            session.run(plain, feeds | part)
    for given in ([1.0], [1.0, 1.0, 0.0], [[1.0, 1.0]], 1.0):
        with pytest.raises(InvalidArgumentError):
            session.run(weighted, feeds | {weights: given})
