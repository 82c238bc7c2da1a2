"""A session on an edited page continues from the session on the page before the edit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from page_samples import same

from rowgrad.graph import ClientSession, Scope, ops


def training(width: int = 3, dtype: str = "float64", extra: bool = False, seed: int = 7) -> Scope:
    """Return a graph that adds noise to weights in every run and counts the runs."""
    root = Scope.new_root_scope()
    w = ops.Variable(root.with_op_name("w"), np.ones(width, dtype))
    count = ops.Variable(root.with_op_name("count"), 0.0)
    noise = ops.RandomUniform(root.with_op_name("noise"), [width], dtype=dtype, seed=seed)
    ops.AssignAdd(root.with_op_name("step"), w, noise)
    ops.AssignAdd(root.with_op_name("more"), count, 1.0)
    if extra:
        ops.Variable(root.with_op_name("new"), 5.0)
    return root


def run(session: ClientSession, times: int) -> None:
    for _ in range(times):
        session.run(run_outputs=["step", "more"])


@pytest.mark.parametrize(("before", "after"), [("numpy", "numpy"), ("numpy", "torch"), ("torch", "numpy")])
def test_results_continue_with_the_same_bits(before: str, after: str) -> None:
    if "torch" in (before, after):
        pytest.importorskip("torch")
    whole = ClientSession(training())
    run(whole, 5)
    first = ClientSession(training(), before)
    run(first, 2)
    second = ClientSession(training(extra=True), after)
    assert second.adopt(first) == ["w", "count"]
    assert second.runs == 2
    run(second, 3)
    assert second.runs == 5
    assert same(second.variables["w"], whole.variables["w"])
    assert float(second.variables["count"]) == 5.0
    assert float(second.variables["new"]) == 5.0


def test_the_first_session_is_unchanged() -> None:
    first = ClientSession(training())
    run(first, 1)
    before = first.variables["w"]
    second = ClientSession(training())
    second.adopt(first)
    run(second, 3)
    assert same(first.variables["w"], before)
    assert first.runs == 1
    run(first, 3)
    assert same(first.variables["w"], second.variables["w"])


@pytest.mark.parametrize("changed", [{"width": 4}, {"dtype": "float32"}])
def test_state_that_does_not_fit_is_reset(changed: dict[str, Any]) -> None:
    first = ClientSession(training())
    run(first, 2)
    second = ClientSession(training(**changed))
    assert second.adopt(first) == ["count"]
    assert same(second.variables["w"], ClientSession(training(**changed)).variables["w"])


def test_changed_blocks_are_reset() -> None:
    first = ClientSession(training())
    run(first, 2)
    second = ClientSession(training())
    assert second.adopt(first, unless={"w", "noise"}) == ["count"]
    run(second, 2)
    assert same(second.variables["w"], first.variables["w"])  # reset, including the random numbers
    third = ClientSession(training())
    third.adopt(first, unless=["w"])
    run(third, 2)
    assert not same(third.variables["w"], first.variables["w"])  # the random numbers continued


def test_state_is_not_adopted_by_different_blocks_of_the_same_name() -> None:
    first = ClientSession(training())
    run(first, 2)
    root = Scope.new_root_scope()
    ops.Square(root.with_op_name("w"), np.ones(3))
    ops.RandomNormal(root.with_op_name("noise"), [3], dtype="float64", seed=7)
    ops.Variable(root.with_op_name("other"), np.ones(3))
    second = ClientSession(root)
    assert second.adopt(first) == []
    assert same(second.run("noise"), ClientSession(root).run("noise"))


def test_adopting_a_session_that_never_ran() -> None:
    second = ClientSession(training())
    assert second.adopt(ClientSession(training())) == []
    assert second.runs == 0


def test_strings_and_16_bit_floats_are_adopted_across_engines() -> None:
    pytest.importorskip("torch")

    def graph() -> Scope:
        root = Scope.new_root_scope()
        t = ops.Variable(root.with_op_name("t"), np.array(["a", "b"], object))
        ops.Assign(root.with_op_name("set"), t, np.array(["c", "dd"], object))
        h = ops.Variable(root.with_op_name("h"), 1.5, dtype="bfloat16")
        ops.AssignAdd(root.with_op_name("up"), h, h)
        return root

    first = ClientSession(graph(), "torch")
    first.run(run_outputs=["set", "up"])
    second = ClientSession(graph())
    assert second.adopt(first) == ["t", "h"]
    assert second.variables["t"].tolist() == first.variables["t"].tolist() == ["c", "dd"]
    assert float(second.variables["h"]) == 3.0
