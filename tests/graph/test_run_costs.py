"""The cost of each block of a run, the number of runs, and the run that a value is from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from rowgrad._catalog.spec import Op
from rowgrad.errors import OpError
from rowgrad.graph import AddSymbolicGradients, ClientSession, Const, Scope, ops
from rowgrad.graph.engine import NumpyEngine

NOW = [0.0]  # the clock that costs are measured with


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def tick() -> float:
        NOW[0] += 1e-6
        return NOW[0]

    monkeypatch.setattr("rowgrad.graph.schedule.perf_counter", tick)


class Slow(NumpyEngine):
    """An engine on which some ops are slow."""

    def __init__(self, *names: str, seconds: float = 0.1) -> None:
        super().__init__()
        self.names, self.seconds = names, seconds

    def bind(self, op: Op, attrs: Mapping[str, Any]) -> Callable[[list[Any]], tuple[Any, ...]]:
        run = super().bind(op, attrs)

        def run_slowly(arguments: list[Any]) -> tuple[Any, ...]:
            if op.name in self.names:
                NOW[0] += self.seconds
            return run(arguments)

        return run_slowly


@pytest.fixture
def root() -> Scope:
    root = Scope.new_root_scope()
    x = ops.Placeholder(root.with_op_name("x"), dtype="float32", shape=[-1])
    ops.Exp(root.with_op_name("slow"), x)
    ops.Square(root.with_op_name("fast"), x)
    steady = ops.Exp(root.with_op_name("steady"), Const(root.with_op_name("c"), np.zeros((4, 2))))
    ops.Mean(root.with_op_name("mean"), steady, [0, 1])
    return root


def test_costs_have_seconds_and_bytes(root: Scope) -> None:
    session = ClientSession(root, Slow("Exp"), watch_costs=True)
    assert session.costs == {}
    session.run(["slow", "fast", "mean"], {"x": np.ones(10)})
    costs = session.costs
    assert set(costs) == {"x", "slow", "fast", "steady", "c", "mean"}
    assert 0.1 <= costs["slow"].seconds < 10.0
    assert 0.0 < costs["fast"].seconds < 0.1
    assert costs["x"].seconds == 0.0
    assert {name: cost.bytes for name, cost in costs.items()} == {
        "x": 40, "slow": 40, "fast": 40, "steady": 64, "c": 64, "mean": 8,
    }  # fmt: skip


def test_values_name_the_last_run_that_computed_them(root: Scope) -> None:
    engine = Slow("Exp")
    session = ClientSession(root, engine, watch_costs=True)
    session.run(["slow", "mean"], {"x": np.ones(10)})
    once = session.costs["steady"].seconds
    assert once >= 0.1
    engine.seconds = 0.0
    session.run(["slow", "mean"], {"x": np.ones(20)})
    assert session.costs["steady"].seconds == once  # computed only once
    assert session.costs["slow"].seconds < 0.1
    assert session.costs["slow"].bytes == 80
    session.run("fast", {"x": np.ones(5)})
    assert session.costs["slow"].bytes == 80
    assert session.costs["x"].bytes == session.costs["fast"].bytes == 20
    session.reset()
    assert session.costs == {}


def test_nodes_are_summed_by_block() -> None:
    root = Scope.new_root_scope()
    w = ops.Variable(root.with_op_name("w"), np.ones(3, np.float32))
    y = ops.Exp(root.with_op_name("y"), ops.Exp(root.with_op_name("z"), w))
    AddSymbolicGradients(root.with_op_name("G"), [y], [w])
    ops.Output(root.with_op_name("passed"), y)
    session = ClientSession(root, Slow("Mul"), watch_costs=True)
    session.run(["G", "passed"])
    assert session.costs["G"].seconds >= 0.2  # two products
    assert session.costs["G"].bytes == 12  # of the outputs, without intermediate values
    assert session.costs["y"].bytes == 12
    assert "passed" not in session.costs  # it computes nothing


def test_bytes_of_strings_are_estimated() -> None:
    root = Scope.new_root_scope()
    texts = np.array(["é" * 100] * 5000, object)
    Const(root.with_op_name("t"), texts)
    Const(root.with_op_name("none"), np.array([], object))
    session = ClientSession(root, watch_costs=True)
    session.run(["t", "none"])
    whole = sum(sys.getsizeof(v) for v in session.run("t")) + 5000 * 8
    assert session.costs["t"].bytes == pytest.approx(whole, rel=0.05)
    assert session.costs["none"].bytes == 0


def test_costs_are_measured_only_on_request(root: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    from rowgrad.graph import session as room

    monkeypatch.setattr(room, "time_steps", None)  # a call would fail
    session = ClientSession(root)
    session.run(["slow", "mean"], {"x": [1.0]})
    assert session.costs == {}
    assert session.runs == 1


def test_an_error_names_its_block_with_and_without_costs() -> None:
    root = Scope.new_root_scope()
    ids = ops.Placeholder(root.with_op_name("ids"), dtype="int64", shape=[1])
    ops.GatherRows(root.with_op_name("g"), np.eye(2), ids)
    words = []
    for watch in (False, True):
        session = ClientSession(root, watch_costs=watch)
        with pytest.raises(OpError) as error:
            session.run("g", {"ids": [5]})
        words.append(str(error.value))
        assert session.costs == {}
        assert session.runs == 0
    assert words[0] == words[1]
    assert "g" in words[0]


def test_runs_are_counted(root: Scope) -> None:
    session = ClientSession(root)
    assert session.runs == 0
    assert session.run_of("slow", "y") is None
    session.run("slow", {"x": [1.0]})
    session.run("fast", ({"x": [float(k)]} for k in range(3)))
    assert session.runs == 4
    assert (session.run_of("slow", "y"), session.run_of("fast", "y"), session.run_of("x", "output")) == (1, 4, 4)
    with pytest.raises(OpError):
        session.run("slow", {})  # x is not fed
    assert session.runs == 4
    assert session.run_of("mean", "output") is None
    with pytest.raises(OpError):
        session.run_of("mean", "nothing")
    session.reset()
    assert session.runs == 0
    assert session.run_of("slow", "y") is None


def test_constant_values_count_as_computed_by_the_last_run(root: Scope) -> None:
    session = ClientSession(root)
    session.run("mean")
    session.run("mean")
    assert session.run_of("steady", "y") == session.run_of("c", "output") == 2


def test_run_block_counts_as_a_run_and_lists_report_their_oldest_entry() -> None:
    root = Scope.new_root_scope()
    a, b = (ops.Variable(root.with_op_name(n), [1.0]) for n in "ab")
    both = ops.InputList(root.with_op_name("both"), [a, b])
    ops.ClientSession(root.with_op_name("s"), fetch_outputs=[a])
    session = ClientSession(root)
    session.run_block()
    assert session.runs == 1
    assert session.run_of("both", "output") is None
    session.run(list(both))
    session.run_block("s")
    assert session.run_of("a", "ref") == 3
    assert session.run_of("both", "output") == 2


def test_torch_tensors_have_sizes() -> None:
    pytest.importorskip("torch")
    root = Scope.new_root_scope()
    ops.Exp(root.with_op_name("e"), Const(root, np.zeros((3, 2), np.float32)))
    session = ClientSession(root, "torch", watch_costs=True)
    session.run("e")
    assert session.costs["e"].bytes == 24
