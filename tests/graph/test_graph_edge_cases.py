"""Edge cases of graphs, each from a former bug."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rowgrad as rg
from rowgrad.errors import InvalidArgumentError, ResourceExhaustedError
from rowgrad.graph import (
    AddSymbolicGradients,
    Block,
    ClientSession,
    Const,
    End,
    Note,
    Page,
    PageError,
    Scope,
    build,
    check,
    dumps,
    loads,
    ops,
    page_of,
)
from rowgrad.graph.export import save_python, to_dot, to_python, to_svg


@pytest.fixture
def root() -> Scope:
    return Scope.new_root_scope()


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_rejected_block_releases_only_its_own_name(root: Scope) -> None:
    layer = root.new_sub_scope("L")
    a = ops.Variable(layer.with_op_name("w"), [1.0])
    with pytest.raises(InvalidArgumentError):
        ops.MatMul(root.with_op_name("L"), 1.0, 2.0)
    b = ops.Variable(layer.with_op_name("w"), [5.0])
    assert [a.name, b.name] == ["L/w", "L/w_1"]
    assert [v.tolist() for v in ClientSession(root).run([a, b])] == [[1.0], [5.0]]


def test_inner_nodes_do_not_use_names_of_blocks() -> None:
    page = Page(
        "p", [Block("v", "Variable", {"initvalues": [1.0]}), Block("v/Const", "Neg", wires={"x": [End("v", "ref")]})]
    )
    page.blocks.append(Block("v/Assign", "Assign", {"value": [3.0]}, {"ref": [End("v", "ref")]}))
    assert check(page).ok


def test_a_rejected_call_does_not_use_up_its_name(root: Scope) -> None:
    x = Const(root, [1.0, 2.0])
    assert ops.Add(root.with_op_name("ok"), x, ([1.0, 2.0], [3.0, 4.0])).z.shape == (2, 2)
    sparse = ops.SparseTensor(root, [[0, 0]], [1.0], [1, 1])
    with pytest.raises(
        InvalidArgumentError, match=r"AddN \(name: q\): inputs\[0\] takes one value; got a sparse tensor"
    ):
        ops.AddN(root.with_op_name("q"), [sparse.tensor])
    assert ops.Add(root.with_op_name("q"), x, x).name == "q"


# -- other graphs ------------------------------------------------------------------------------------------------------


def test_outputs_of_another_graph_are_rejected(root: Scope) -> None:
    mine = ops.Variable(root.with_op_name("v"), [1.0])
    other = Scope.new_root_scope()
    theirs = ops.Variable(other.with_op_name("v"), [1.0])
    update = ops.Assign(other.with_op_name("as"), theirs, [7.0])
    place = ops.Placeholder(other, shape=[1])
    sparse = ops.SparseTensor(other, [[0]], [1.0], [1])
    session = ClientSession(root)
    with pytest.raises(InvalidArgumentError, match=r"run_outputs\[0\] comes from another graph"):
        session.run([], run_outputs=[update])
    with pytest.raises(InvalidArgumentError, match="fetches comes from another graph"):
        session.run(theirs)
    attempts: list[Any] = [
        lambda: ops.InputList(root, [theirs]), lambda: ops.FeedType(root, place, [1.0]),
        lambda: ops.Output(root, theirs), lambda: ops.Variable(root, Const(other, 1.0)),
        lambda: ops.Operation(root, update), lambda: ops.SparseSlice(root, sparse.tensor, [0], [1]),
        lambda: ops.ClientSession(root, fetch_outputs=[theirs]), lambda: ops.Assign(root, mine, theirs),
        lambda: AddSymbolicGradients(root, [theirs], [mine]),
    ]  # fmt: skip
    for attempt in attempts:
        with pytest.raises(InvalidArgumentError, match="comes from another graph"):
            attempt()
    assert session.run(mine).tolist() == [1.0]


# -- ownership of arrays ------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_returned_arrays_are_not_shared_with_the_session(root: Scope, engine: str) -> None:
    v = ops.Variable(root.with_op_name("v"), [1.0, 2.0])
    c = Const(root.with_op_name("c"), [3.0, 4.0])
    x = ops.Placeholder(root.with_op_name("x"), shape=[2])
    steady = ops.Add(root.with_op_name("steady"), c, c)
    y = ops.Neg(root.with_op_name("y"), x)
    put = ops.Assign(root.with_op_name("put"), v, x)
    session = ClientSession(root, engine=engine)
    fed = np.array([5.0, 6.0], np.float32)
    first = session.run([v, c, steady, y, y, x, put], {x: fed})
    for array in first:
        array[:] = 99.0
    assert fed.tolist() == [5.0, 6.0]
    fed[:] = -1.0
    assert [session.run(f).tolist() for f in (v, c, steady)] == [[5.0, 6.0], [3.0, 4.0], [6.0, 8.0]]
    assert session.result("y", "y").tolist() == [-5.0, -6.0]
    assert session.result("x", "output").tolist() == [5.0, 6.0]


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_fed_string_arrays_are_copied(root: Scope, engine: str) -> None:
    v = ops.Variable(root, np.array(["a", "b"], object))
    x = ops.Placeholder(root, dtype="string", shape=[2])
    session = ClientSession(root, engine=engine)
    fed = np.array(["c", "d"], object)
    session.run(ops.Assign(root, v, x), {x: fed})
    fed[0] = "changed"
    assert session.run(v).tolist() == ["c", "d"]
    joined = ops.Concat(root, [v, v], 0)
    assert session.run(joined).tolist() == ["c", "d", "c", "d"]


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_oversized_values_are_rejected_before_allocation(root: Scope) -> None:
    for attempt in (
        lambda: Const(root, 1.0, shape=[10**7, 10**7]),
        lambda: ops.Variable(root, 1.0, shape=[10**7, 10**7]),
        lambda: ops.RandomUniform(root, [10**7, 10**7]),
    ):
        with pytest.raises(ResourceExhaustedError, match=r"OOM when allocating tensor with shape\[10000000,10000000\]"):
            attempt()
    with pytest.raises(InvalidArgumentError, match="shape must be of at most 32 dimensions; got 100"):
        Const(root, 1.0, shape=[1] * 100)
    size = ops.Placeholder(root, dtype="int64", shape=[2])
    numbers = ops.RandomUniform(root.with_op_name("numbers"), size, seed=1)
    session = ClientSession(root)
    with pytest.raises(ResourceExhaustedError):
        session.run(numbers, {size: [10**7, 10**7]})
    with pytest.raises(InvalidArgumentError, match=r"RandomUniform \(name: numbers\): .*non-negative, got -1"):
        session.run(numbers, {size: [-1, 2]})
    with pytest.raises(InvalidArgumentError, match="Encountered overflow"):
        session.run(numbers, {size: [2**40, 2**40]})
    assert session.state.counters == {}


# -- feeds and states --------------------------------------------------------------------------------------------------


def test_contradictory_and_invalid_feeds_raise(root: Scope) -> None:
    x = ops.Placeholder(root.with_op_name("x"), shape=[])
    session = ClientSession(root)
    with pytest.raises(InvalidArgumentError, match="x is fed twice"):
        session.run(x, {x: 1.0, "x": 2.0})
    feeds = [ops.FeedType(root, x, 1.0), ops.FeedType(root, x, 2.0)]
    with pytest.raises(InvalidArgumentError, match=r"x is fed twice \(inputs\[1\]\)"):
        ops.ClientSession(root, feeds, [x])
    for bad, words in (
        ("abc", "got str"),
        (5, "got int"),
        ([1], r"feeds\[0\] must be a mapping"),
        ([("x", 1)], "got tuple"),
    ):
        with pytest.raises(TypeError, match=words):
            session.run(x, bad)


def test_a_state_with_a_counter_for_another_block_raises(root: Scope, tmp_path: Path) -> None:
    numbers = ops.RandomUniform(root.with_op_name("a"), [1], seed=1)
    session = ClientSession(root)
    session.run(numbers)
    session.save(tmp_path / "state")
    assert session.results
    session.restore(tmp_path / "state")
    assert not session.results
    other = Scope.new_root_scope()
    ops.Variable(other.with_op_name("a"), 1.0)
    with pytest.raises(PageError, match="a counter for a, which is not a random block"):
        ClientSession(other).restore(tmp_path / "state")


# -- gradients ---------------------------------------------------------------------------------------------------------


def test_gradients_of_unknown_rank(root: Scope) -> None:
    x = ops.Placeholder(root.with_op_name("x"), dtype="float64")
    y = ops.Mul(root, ops.Sigmoid(root, x), ops.Sub(root, x, 2.0))
    (first,) = AddSymbolicGradients(root, [y], [x])
    (second,) = AddSymbolicGradients(root, [first], [x])
    session = ClientSession(root)
    for value in (np.array(0.5), np.array([[0.5, -1.0]])):
        s = 1 / (1 + np.exp(-value))
        slope = s * (1 - s)
        got = session.run([first, second], {x: value})
        np.testing.assert_allclose(got[0], slope * (value - 2) + s, rtol=1e-12)
        np.testing.assert_allclose(got[1], slope * (1 - 2 * s) * (value - 2) + 2 * slope, rtol=1e-12)
    bag = ops.SparseSegmentSum(root, x, [0, 1], [0, 0])
    (grad,) = AddSymbolicGradients(root, [bag], [x])
    assert session.run(grad, {x: np.ones((3, 2))}).tolist() == [[1, 1], [1, 1], [0, 0]]


# -- pages -------------------------------------------------------------------------------------------------------------


def test_every_cycle_is_reported_and_nothing_else() -> None:
    def neg(name: str, source: str) -> Block:
        return Block(name, "Neg", wires={"x": [End(source, "y")]})

    page = Page(
        "p", [neg("a", "b"), neg("b", "a"), neg("c", "d"), neg("d", "c"), neg("e", "b"), neg("f", "e"), neg("g", "g")]
    )
    found = check(page)
    assert {k: str(v) for k, v in found.errors.items()} == {
        "a": "a: its wires lead back to itself: a → b → a", "c": "c: its wires lead back to itself: c → d → c",
        "g": "g: its wires lead back to itself: g → g",
    }  # fmt: skip
    assert sorted(found.waiting) == ["b", "d", "e", "f"]


def test_fetches_use_the_names_of_the_page() -> None:
    page = Page("p", [
        Block("c", "Const", {"val": 3.0}), Block("i", "Input", wires={"initvalues": [End("x", "output")]}),
        Block("x", "Placeholder", attrs={"shape": []}),
        Block("f", "FeedType", {"initializer": 1.0}, {"input": [End("x", "output")]}),
        Block("l", "InputList", wires={"outputlist": [End("i", "input"), End("c", "output")]}),
        Block("t", "SparseTensor", {"indices": np.zeros((1, 1), np.int64), "values": [1.0], "dense_shape": [1]}),
        Block("s", "ClientSession", wires={
            "inputs": [End("f", "output")],
            "fetch_outputs": [End("i", "input"), End("l", "output"), End("l", "output", 1), End("t", "tensor")],
        }),
    ])  # fmt: skip
    names = list(ClientSession(check(page).scope).run_block())
    assert names == ["i.input", "l.output[0]", "l.output[1]", "t.indices", "t.values", "t.dense_shape"]


@pytest.mark.parametrize(
    "block",
    [
        Block("a", "Const", {"val": 1.0}, attrs={"dtype=print(1) or 'float32', shape": None}),
        Block('b"), print(2), root.with_op_name("c', "Const", {"val": 1.0}),
        Block("a", "Const", {"val": 1.0, "bogus, x": 2.0}),
        Block("a", "Neg", wires={"x": [End("a.y, print(3)", "y")]}),
        Block("a", "Neg", wires={"x": [End("z", "y")]}),
        Block("a", "Neg", wires={"x": []}),
    ],
)
def test_scripts_reject_invalid_blocks_and_write_nothing(block: Block, tmp_path: Path) -> None:
    large = Block("large", "Const", {"val": np.ones(1000)})
    with pytest.raises(PageError):
        save_python(Page("p", [large, block]), tmp_path / "script.py")
    assert list(tmp_path.iterdir()) == []


def test_python_keywords_and_builtins_as_names_in_scripts(tmp_path: Path) -> None:
    ids = ["print", "range", "float", "list", "__name__", "__file__", "bytes", "complex", "dict"]
    large = np.array([np.nan] * 600 + [complex(0.0, -0.0), complex(np.inf, 1)], np.complex128)
    blocks = [Block(i, "Const", {"val": large if k % 2 else np.array([np.nan, 1.5])}) for k, i in enumerate(ids)]
    blocks.append(Block("full", "FullLike", {"x": np.zeros(2)}, attrs={"value": float("nan")}))
    blocks.append(Block("big", "Const", {"val": np.array([1.0, 2.0], ">f4")}))
    blocks.append(Block("weak", "Const", {"val": complex(float("nan"), -0.0)}))
    page = Page("C:\\new\\Users %s", blocks)
    save_python(page, tmp_path / "script.py")
    scope: dict[str, Any] = {"__file__": str(tmp_path / "script.py"), "__name__": "script"}
    exec(compile((tmp_path / "script.py").read_text(), "script.py", "exec"), scope)
    session, expected = ClientSession(scope["root"]), ClientSession(check(page).scope)
    for name in (*ids, "full", "big", "weak"):
        assert session.run(name).tobytes() == expected.run(name).tobytes(), name


def test_drawings_of_names_with_backslashes_and_large_positions() -> None:
    page = Page("x\\", [Block("a\\", "Const", {"val": 1.0}, at=(1e308, -1e308))], [Note("n", (1e308, 0.0))])
    assert 'digraph "x\\\\" {' in to_dot(page)
    assert '  "a\\\\" [label=' in to_dot(page)
    assert "inf" not in to_svg(page)
    assert "nan" not in to_svg(page)


def test_page_names_are_never_code() -> None:
    page = loads(dumps(Page('x"""\nprint("no")\n"""', [Block("a", "Const", {"val": 1.0})])))
    assert isinstance(page, Page)
    calls = [ast.unparse(n) for n in ast.parse(to_python(page)).body if isinstance(n, ast.Expr)]
    assert not any("print" in c for c in calls)


def test_shapes_are_inferred_without_allocating(root: Scope) -> None:
    x = ops.Placeholder(root, shape=[10**6, -1, 10**6])
    known = ops.Placeholder(root, shape=[10**6, 10**6, 3])
    for block, value in (
        (ops.Dimension(root, x, axis=-1), 10**6), (ops.Dimension(root, x, axis=1), None), (ops.Rank(root, x), 3),
        (ops.Shape(root, x), None), (ops.Shape(root, known), [10**6, 10**6, 3]),
        (ops.Size(root, known, out_type="int64"), 3 * 10**12),
    ):  # fmt: skip
        found = block.output.value
        assert (None if found is None else found.tolist()) == value
    with pytest.raises(
        InvalidArgumentError, match="input has a size of 3000000000000, which out_type int32 cannot represent"
    ):
        ops.Size(root, known)


def test_booleans_are_not_integers(root: Scope) -> None:
    with pytest.raises(InvalidArgumentError, match="condition must be bool; got int32"):
        ops.Select(root, Const(root, [1, 0]), [1.0, 2.0], [3.0, 4.0])

    for condition in (np.array([1, 0], np.int32), torch.tensor([1, 0], dtype=torch.int32)):
        with pytest.raises(InvalidArgumentError, match="condition must be bool; got int32"):
            rg.dense_ops.Select(condition, condition, condition)


def test_numbers_with_thousands_of_digits_raise_a_clear_error(root: Scope) -> None:
    with pytest.raises(InvalidArgumentError, match="value") as caught:
        rg.dense_ops.FullLike(np.zeros(2), value=10**5000)
    assert caught.value.argument == "value"
    assert "int of 16610 bits" in str(caught.value)


def test_gradients_past_a_placeholder_of_unknown_rank(root: Scope) -> None:
    w = ops.Variable(root, np.array([[1.0], [2.0]]))
    label = ops.Placeholder(root, dtype="float64")
    loss = ops.Mean(root, ops.Square(root, ops.Sub(root, ops.Tanh(root, w), label)), [0, 1])
    (grad,) = AddSymbolicGradients(root, [loss], [w])
    got = ClientSession(root).run(grad, {label: np.array([[0.5], [0.5]])})
    t = np.tanh([[1.0], [2.0]])
    np.testing.assert_allclose(got, (t - 0.5) * (1 - t * t), rtol=1e-12)


def test_blocks_are_built_in_page_order(root: Scope) -> None:
    """So that gradients are summed in the same order however the graph was built."""
    w = ops.Variable(root.with_op_name("w"), np.random.default_rng(0).normal(size=16).astype(np.float32))
    c = Const(root.with_op_name("c"), 0.1)
    a = ops.Tanh(root.with_op_name("a1"), ops.Add(root.with_op_name("a0"), w, c))
    b, d = ops.Sigmoid(root.with_op_name("b"), w), ops.Sin(root.with_op_name("d"), w)
    total = ops.AddN(root.with_op_name("t"), [a, b, d])
    grads = AddSymbolicGradients(root.with_op_name("g"), [total], [w])
    text = dumps(page_of(root))
    again = build(loads(text))
    assert dumps(page_of(again)) == text
    assert ClientSession(again).run("g.grad_outputs[0]").tobytes() == ClientSession(root).run(grads[0]).tobytes()
