"""Runs compute only what is needed, preserve state, apply updates together and refresh results."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rowgrad._catalog.spec import Op
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import AddSymbolicGradients, ClientSession, Const, PageError, Scope, ops
from rowgrad.raw_ops import OPS


@pytest.fixture
def root() -> Scope:
    return Scope.new_root_scope()


def test_results_have_the_structure_of_the_fetches(root: Scope) -> None:
    x = Const(root.with_op_name("x"), [1.0, 2.0])
    y = ops.Add(root.with_op_name("y"), x, x)
    run = ClientSession(root).run
    assert run(y).tolist() == [2.0, 4.0]
    assert [v.tolist() for v in run([x, y.z])] == [[1.0, 2.0], [2.0, 4.0]]
    assert run({"a": x})["a"].tolist() == [1.0, 2.0]
    assert [v.tolist() for v in run({"b": ["y", "y.z"]})["b"]] == [[2.0, 4.0], [2.0, 4.0]]
    assert run([]) == []
    with pytest.raises(InvalidArgumentError, match=r"no 'y.q' in this graph; did you mean 'y.z'"):
        run("y.q")
    several = ops.SparseFillEmptyRows(root, [[0, 0]], [1.0], [2, 2], 0.0)
    assert set(run(several)) == {"output_indices", "output_values", "empty_row_indicator", "reverse_index_map"}


def test_only_what_is_needed_runs(root: Scope) -> None:
    x = ops.Placeholder(root, shape=[])
    bad = ops.SparseSegmentSum(root, Const(root, [[1.0]]), [5], [0])  # index 5 of one row: raises when it runs
    good = Const(root, 1.0)
    session = ClientSession(root)
    assert session.run(good) == 1.0
    with pytest.raises(InvalidArgumentError, match=r"indices\[0\] == 5 out of range"):
        session.run(bad)
    with pytest.raises(InvalidArgumentError, match="Placeholder is not fed"):
        session.run(ops.Add(root, x, 1.0))


def test_errors_of_a_run_name_the_block_and_keep_the_state(root: Scope) -> None:
    x = ops.Variable(root.with_op_name("x"), 0.0)
    ids = ops.Placeholder(root, dtype="int32", shape=[-1])
    grow = ops.AssignAdd(root, x, 1.0)
    bag = ops.SparseSegmentSum(root.with_op_name("bag"), Const(root, [[1.0], [2.0]]), ids, ids)
    session = ClientSession(root)
    session.run([grow, bag], {ids: [0, 1]})
    with pytest.raises(InvalidArgumentError, match=r"SparseSegmentSum \(name: bag\): .*\n.*indices=int32\[1\]"):
        session.run([grow, bag], {ids: [9]})
    assert session.run(x) == 1.0


def test_reads_return_values_from_the_start_of_the_run(root: Scope) -> None:
    x = ops.Variable(root.with_op_name("x"), [1.0, 2.0])
    double = ops.Add(root, x, x)
    step = ops.Assign(root, x, double)
    session = ClientSession(root)
    before, after, read = session.run([x, step, ops.Add(root, x, 0.0)])
    assert (before.tolist(), after.tolist(), read.tolist()) == ([1, 2], [2, 4], [1, 2])
    assert session.run(x).tolist() == [2.0, 4.0]
    session.run([], run_outputs=[step])
    assert session.variables["x"].tolist() == [4.0, 8.0]


def test_two_updates_of_one_variable_are_rejected(root: Scope) -> None:
    x = ops.Variable(root.with_op_name("x"), 1.0)
    a = ops.Assign(root.with_op_name("a"), x, 2.0)
    b = ops.ApplyGradientDescent(root.with_op_name("b"), x, 0.5, 1.0)
    session = ClientSession(root)
    with pytest.raises(InvalidArgumentError, match="x is updated twice in one run, by a and b"):
        session.run([a, b])
    chained = ops.AssignAdd(root.with_op_name("c"), a.output_ref, 1.0)
    with pytest.raises(InvalidArgumentError, match="by a and c"):
        session.run(chained)
    assert session.run(x) == 1.0
    assert session.run(b) == 0.5
    with pytest.raises(InvalidArgumentError, match="ref must be wired to a Variable; got Const"):
        ops.Assign(root, Const(root, 1.0), 2.0)


def test_results_are_copies(root: Scope) -> None:
    start, fed = np.array([1.0, 2.0]), np.array([5.0, 6.0])
    x = ops.Variable(root.with_op_name("x"), start)
    place = ops.Placeholder(root, dtype="float64", shape=[2])
    constant = Const(root, [1.0])
    put = ops.Assign(root, x, place)
    session = ClientSession(root)
    for fetch in (x, constant, ops.Add(root, constant, constant), ops.Identity(root, x)):
        session.run(fetch)[:] = 99.0
    assert session.run(x).tolist() == [1.0, 2.0]
    assert session.run(ops.Add(root, constant, constant)).tolist() == [2.0]
    session.run(put, {place: fed})[:] = 0.0
    fed[:] = -1.0
    assert session.run(x).tolist() == [5.0, 6.0]
    session.run(ops.Assign(root, x, ops.Identity(root, place)), {place: fed})
    fed[:] = 3.0
    assert session.run(x).tolist() == [-1.0, -1.0]


def test_feeds_are_converted_and_validated(root: Scope) -> None:
    x = ops.Placeholder(root.with_op_name("x"), dtype="int64", shape=[-1, 2])
    y = ops.Add(root, x, x)
    run = ClientSession(root).run
    assert run(y, {x: [[1, 2]]}).tolist() == [[2, 4]]
    assert run(y, {"x": np.array([[1, 2]], np.int32)}).dtype == np.int64
    assert [r.tolist() for r in run(y, ({"x": [[k, k]]} for k in range(3)))] == [[[0, 0]], [[2, 2]], [[4, 4]]]
    with pytest.raises(InvalidArgumentError, match=r"Placeholder \(name: x\): x must have shape \[-1,2\], got \[2\]"):
        run(y, {x: [1, 2]})
    with pytest.raises(InvalidArgumentError, match=r"must contain values of int64; got 0\.5"):
        run(y, {x: [[0.5, 1.0]]})
    with pytest.raises(InvalidArgumentError, match=r"only placeholders can be fed, and Add\.z is not one"):
        run(y, {y: [[1, 2]]})


def test_constant_values_are_computed_once(root: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ops.Variable(root, [1.0])
    steady = ops.Add(root, Const(root, [1.0]), Const(root, [2.0]))
    changing = ops.Mul(root, steady, x)
    session = ClientSession(root)
    calls: list[str] = []
    bind = session.engine.bind

    def counting(op: object, attrs: object) -> object:
        run = bind(op, attrs)
        return lambda arguments: (calls.append(op.name), run(arguments))[1]

    monkeypatch.setattr(session.engine, "bind", counting)
    for _ in range(3):
        assert session.run(changing).tolist() == [3.0]
    assert calls == ["Add", "Mul", "Mul", "Mul"]


def test_every_upstream_pin_is_refreshed(root: Scope) -> None:
    x = ops.Variable(root.with_op_name("x"), [1.0])
    y = ops.Add(root.with_op_name("y"), x, x)
    z = ops.Mul(root.with_op_name("z"), y, y)
    step = ops.Assign(root.with_op_name("step"), x, y)
    session = ClientSession(root)
    assert session.result("y", "z") is None
    session.run([z, step])
    session.run([z, step])
    assert {k: {p: v.tolist() for p, v in r.items()} for k, r in session.results.items()} == {
        "x": {"result_ref": [2.0]},
        "y": {"result_z": [4.0]},
        "z": {"result_z": [16.0]},
        "step": {"result_output_ref": [4.0]},
    }
    assert not session.results["y"]["result_z"].flags.writeable


def test_save_restore_and_reset(root: Scope, tmp_path: Path) -> None:
    x = ops.Variable(root.with_op_name("x"), [1.0])
    words = ops.Variable(root.with_op_name("words"), np.array(["a", "b"], object))
    noise = ops.RandomNormal(root.with_op_name("noise"), [1], seed=3)
    step = ops.AssignAdd(root, x, noise)
    session = ClientSession(root)
    session.run(step)
    session.save(tmp_path / "state")
    ahead = [session.run(step).tolist() for _ in range(3)]
    other = ClientSession(root)
    other.restore(tmp_path / "state")
    assert [other.run(step).tolist() for _ in range(3)] == ahead
    assert other.run(words).tolist() == ["a", "b"]
    session.reset()
    assert session.run(x).tolist() == [1.0]
    different = Scope.new_root_scope()
    ops.Variable(different.with_op_name("x"), [1.0, 2.0])
    with pytest.raises(PageError, match=r"x is float32\[1\] in the file"):
        ClientSession(different).restore(tmp_path / "state")


def test_four_ways_to_initialize_a_variable(root: Scope) -> None:
    typed = ops.Variable(root, [[1, 2]], dtype="float64")
    filled = ops.Variable(root, 0.5, dtype="float32", shape=[2, 3])
    wired = ops.Variable(root, Const(root, [1, 2]))
    drawn = ops.Variable(root, ops.RandomUniform(root, [2], seed=4))
    session = ClientSession(root)
    assert session.run(typed).dtype == np.float64
    assert session.run(filled).tolist() == [[0.5] * 3] * 2
    assert session.run(wired).tolist() == [1, 2]
    assert session.run(drawn).tolist() == ClientSession(root).run(drawn).tolist()
    with pytest.raises(InvalidArgumentError, match="initvalues must be entered, or computed from constants"):
        ops.Variable(root, ops.Add(root, typed, typed))
    with pytest.raises(InvalidArgumentError, match=r"as many elements as shape \[3\], got \[2\]"):
        ops.Variable(root, [1.0, 2.0], shape=[3])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_update_rules_match_their_formulas(root: Scope, dtype: str) -> None:
    """With the same rounding."""
    values = {"x": [1.0, -2.0], "m": [0.5, 0.25], "v": [0.5, 2.0], "g": [0.5, -1.5]}
    make = {k: Const(root, v, dtype=dtype).output.value for k, v in values.items()}
    x, m, v, g = make["x"], make["m"], make["v"], make["g"]
    t = x.dtype.type
    lr, mu, b1, b2, eps = t(0.125), t(0.9), t(0.75), t(0.5), t(0.0625)

    def var(name: str) -> object:
        return ops.Variable(root, make[name])

    session = ClientSession(root)
    a, b, c, d = var("x"), var("x"), var("x"), var("x")
    slot_m, slot_v, adam_m, adam_v = var("m"), var("v"), var("m"), var("v")
    new_m, new_v = m * mu + g, v + g * g
    am, av = m + (g - m) * (t(1) - b1), v + (g * g - v) * (t(1) - b2)
    root_v, root_a, root_p = (OPS["Sqrt"](n) for n in (new_v, av, np.asarray(t(1) - b2)))
    expected = [
        x - lr * g,
        x - new_m * lr,
        x - g * lr / root_v,
        x - (lr * root_p / (t(1) - b1)) * am / (root_a + eps),
    ]
    got = session.run(
        [
            ops.ApplyGradientDescent(root, a, lr, g),
            ops.ApplyMomentum(root, b, slot_m, lr, g, mu),
            ops.ApplyAdagrad(root, c, slot_v, lr, g),
            ops.ApplyAdam(root, d, adam_m, adam_v, b1, b2, lr, b1, b2, eps, g),
        ]
    )
    for value, wanted, variable in zip(got, expected, (a, b, c, d), strict=True):
        assert value.tobytes() == wanted.tobytes() == session.run(variable).tobytes()
    for slot, wanted in ((slot_m, new_m), (slot_v, new_v), (adam_m, am), (adam_v, av)):
        assert session.run(slot).tobytes() == wanted.tobytes()


def test_session_blocks_run_their_fetches_and_targets(root: Scope) -> None:
    x = ops.Placeholder(root.with_op_name("x"), dtype="int32", shape=[2])
    feed = ops.FeedType(root, x, [4, 7])
    y = ops.Add(root.with_op_name("y"), x, x)
    count = ops.Variable(root.with_op_name("count"), 0)
    ops.ClientSession(root.with_op_name("s"), [feed], [y], [ops.Operation(root, ops.AssignAdd(root, count, 1))])
    session = ClientSession(root)
    assert {k: v.tolist() for k, v in session.run_block().items()} == {"y.z": [8, 14]}
    assert session.run_block("s", {"x": [0, 1]})["y.z"].tolist() == [0, 2]
    assert session.run(count) == 2
    with pytest.raises(PageError, match="available: s"):
        session.run_block("t")
    with pytest.raises(InvalidArgumentError, match=r"inputs\[0\] takes a feed"):
        ops.ClientSession(root, [x], [y])
    with pytest.raises(InvalidArgumentError, match="only placeholders can be fed"):
        ops.FeedType(root, y, [1, 2])
    with pytest.raises(InvalidArgumentError, match=r"initializer must have shape \[2\], got \[3\]"):
        ops.FeedType(root, x, [1, 2, 3])


def test_engines_agree_and_unknown_ones_are_rejected(root: Scope) -> None:
    rng = np.random.default_rng(0)
    table = ops.Variable(root.with_op_name("table"), rng.normal(size=(6, 4)))
    bag = ops.SparseSegmentSqrtN(root, table, [0, 5, 5, 2], [0, 0, 1, 3])
    words = ops.SparseFillEmptyRows(root, [[0, 0]], np.array(["a"], object), [2, 1], "none").output_values
    (grad,) = AddSymbolicGradients(root, [ops.Mul(root, bag, bag)], [table])
    step = ops.ApplyGradientDescent(root, table, 0.5, grad)
    noise = ops.RandomNormal(root, [3], seed=1)
    sessions = [ClientSession(root, engine=e) for e in ("numpy", "torch")]
    for _ in range(2):
        ours, torchs = (s.run([bag, grad, step, noise, words]) for s in sessions)
        for a, b in zip(ours[:-1], torchs[:-1], strict=True):
            assert a.tobytes() == b.tobytes()
        assert torchs[-1].tolist() == ["a", "none"]
    with pytest.raises(InvalidArgumentError, match="no engine 'abacus'; available: numpy, torch"):
        ClientSession(root, engine="abacus")
    with pytest.raises(InvalidArgumentError, match="engine torch:nowhere is not available"):
        ClientSession(root, engine="torch:nowhere")
    with pytest.raises(InvalidArgumentError, match="engine torch:meta is not available"):
        ClientSession(root, engine="torch:meta")


def test_known_sizes_are_in_host_memory(root: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that a session runs on does not have to be waited for, to read a size that the page states."""
    pytest.importorskip("torch")
    table = ops.Variable(root.with_op_name("table"), np.ones((6, 4)))
    bag = ops.SparseSegmentMeanWithNumSegments(root, table, [0, 5, 2], [0, 0, 1], Const(root, 3))
    (grad,) = AddSymbolicGradients(root, [ops.Mul(root, bag, bag)], [table])
    step = ops.ApplyGradientDescent(root, table, 0.5, grad)
    session = ClientSession(root, engine="torch")
    engine, read, in_host_memory = session.engine, [], set()
    bind, put_size = engine.bind, engine.put_size

    def watched_put_size(array: np.ndarray) -> object:
        tensor = put_size(array)
        in_host_memory.add(id(tensor))
        return tensor

    def watched_bind(op: Op, attrs: Mapping[str, object]) -> object:
        run, hosts = bind(op, attrs), [i for i, arg in enumerate(op.inputs) if arg.host]

        def watched(arguments: list[object]) -> object:
            read.extend((op.name, id(arguments[i]) in in_host_memory) for i in hosts)
            return run(arguments)

        return watched

    monkeypatch.setattr(engine, "put_size", watched_put_size)
    monkeypatch.setattr(engine, "bind", watched_bind)
    for _ in range(2):
        session.run([bag, step])
    assert {name for name, _ in read} >= {"SparseSegmentMeanWithNumSegments", "SparseSegmentMeanGrad"}
    assert all(is_there for _, is_there in read)


def test_concurrent_runs_are_serialized(root: Scope) -> None:
    x = ops.Variable(root, 0.0)
    noise = ops.RandomUniform(root, [], seed=1)
    step = ops.AssignAdd(root, x, noise)
    alone, shared = ClientSession(root), ClientSession(root)
    expected = sorted(float(alone.run([noise, step])[0]) for _ in range(80))
    with ThreadPoolExecutor(4) as pool:
        found = sorted(pool.map(lambda _: float(shared.run([noise, step])[0]), range(80)))
    assert found == expected
    assert shared.run(x) == pytest.approx(float(alone.run(x)), rel=1e-5)


def test_the_cache_of_programs_is_bounded(root: Scope) -> None:
    x = Const(root, 1.0)
    session = ClientSession(root)
    outputs = [ops.Add(root, x, float(k)) for k in range(300)]
    for k, output in enumerate(outputs):
        assert session.run(output) == 1.0 + k
    assert len(session._programs) == len(session._last) == 256
    assert session.run(outputs[0]) == 1.0


def test_constants_that_fail_raise_only_if_needed(root: Scope) -> None:
    bad = ops.Div(root.with_op_name("bad"), Const(root, 1), Const(root, 0))
    session = ClientSession(root)
    assert session.run(Const(root, 5)) == 5
    with pytest.raises(InvalidArgumentError, match=r"Div \(name: bad\)"):
        session.run(bad)


def test_a_scalar_variable_with_an_initial_value_of_unknown_rank() -> None:
    root = Scope.new_root_scope()
    nothing = ops.SparseFillEmptyRows(root, np.zeros((0, 1), np.int64), np.zeros(0, np.int32), [0], 0)
    drawn = ops.RandomUniform(root, nothing.output_values, seed=1)  # the shape turns out to be [] at run time
    variable = ops.Variable(root.with_op_name("v"), drawn, shape=[])
    assert variable.ref.shape == ()
    assert ClientSession(root).run(variable).shape == ()


def test_saving_to_an_impossible_path_names_it(tmp_path: Path) -> None:
    root = Scope.new_root_scope()
    ops.Variable(root, 1.0)
    session = ClientSession(root)
    with pytest.raises(IsADirectoryError, match=f"this is a folder: '{tmp_path}'"):
        session.save(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"there is no folder .*: '{tmp_path}/gone/state'"):
        session.save(tmp_path / "gone/state")
