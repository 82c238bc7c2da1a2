"""A session stays within its memory limit: a value that does not fit raises an error before it is allocated."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rowgrad.cli import main
from rowgrad.errors import ResourceExhaustedError
from rowgrad.graph import ClientSession, Const, Page, Scope, build, check, ops
from rowgrad.graph.io import save
from rowgrad.graph.page import Block, End

MIB = 1 << 20


def doubling_page(times: int, shape: list[int] | None = None) -> Page:
    """Return a chain of blocks that each concatenate two copies of the previous one."""
    first = Block("c0", "Const", {"val": np.zeros(1024, np.float64)})
    if shape is not None:
        first = Block("c0", "Placeholder", attrs={"dtype": "float64", "shape": shape})
    blocks = [first]
    for k in range(times):
        ends = [End(f"c{k}", "output")] * 2
        blocks.append(Block(f"c{k + 1}", "Concat", {"axis": 0}, {"values": ends}))
    fetch = Block("run", "ClientSession", wires={"fetch_outputs": [End(f"c{times}", "output")]})
    return Page("doubling", [*blocks, fetch])


def fail_if_a_block_runs(session: ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(*_: Any) -> Any:
        def run(_: Any) -> Any:
            raise AssertionError("a block has run")

        return run

    monkeypatch.setattr(session.engine, "bind", bind)


def test_known_shapes_are_checked_before_any_block_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ClientSession(build(doubling_page(30)), memory=64 * MIB)
    fail_if_a_block_runs(session, monkeypatch)
    with pytest.raises(
        ResourceExhaustedError, match="need 67108864 bytes, but only 8192 of the session's 67108864"
    ) as caught:
        session.run_block()
    assert caught.value.name == "c13"
    exact = ClientSession(build(doubling_page(3)), memory=15 * 8192)
    assert exact.run_block()["c3.output"].shape == exact.run_block()["c3.output"].shape
    assert ClientSession(build(doubling_page(3)), memory=MIB).run_block()["c3.output"].shape == (8192,)


def test_the_default_limit_is_a_part_of_the_machine_s_memory() -> None:
    session = ClientSession(build(doubling_page(40)))
    assert session.memory < 1 << 50
    with pytest.raises(ResourceExhaustedError, match="the values need"):
        session.run_block()


@pytest.mark.parametrize("watch_costs", [False, True])
def test_unknown_shapes_are_computed_from_feeds(watch_costs: bool) -> None:
    session = ClientSession(build(doubling_page(20, [-1])), watch_costs=watch_costs, memory=MIB)
    with pytest.raises(ResourceExhaustedError, match="the values need 1048576 bytes") as caught:
        session.run_block(feeds={"c0": np.zeros(1024)})
    assert caught.value.name == "c7"
    small = ClientSession(build(doubling_page(3, [-1])), watch_costs=watch_costs, memory=MIB)
    for _ in range(3):  # also with the shapes of the previous run
        assert small.run_block(feeds={"c0": np.zeros(1024)})["c3.output"].shape == (8192,)
    with pytest.raises(ResourceExhaustedError):
        small.run_block(feeds={"c0": np.zeros(1 << 16)})
    assert small.run_block(feeds={"c0": np.zeros(1)})["c3.output"].shape == (8,)


@pytest.mark.parametrize("op", ["Fill", "OneHot", "Range"])
def test_fed_sizes_are_checked_before_the_block_runs(op: str) -> None:
    root = Scope.new_root_scope()
    size = ops.Placeholder(root.with_op_name("n"), dtype="int32", shape=[1] if op == "Fill" else [])
    if op == "Fill":
        made = ops.Fill(root.with_op_name("big"), size, 1.0)
    elif op == "Range":
        made = ops.Range(root.with_op_name("big"), 0, size, 1)
    else:
        made = ops.OneHot(root.with_op_name("big"), Const(root, [0, 1, 2]), size, 1.0, 0.0)
    session = ClientSession(root, memory=MIB)
    feed = {size: np.array([5] if op == "Fill" else 5, np.int32)}
    assert 5 in session.run(made, feed).shape
    feed = {size: np.array([1 << 30] if op == "Fill" else 1 << 30, np.int32)}
    with pytest.raises(ResourceExhaustedError, match="of the session's 1048576 bytes are left") as caught:
        session.run(made, feed)
    assert caught.value.name == "big"


def test_random_numbers_of_a_fed_shape_are_counted() -> None:
    root = Scope.new_root_scope()
    shape = ops.Placeholder(root, dtype="int64", shape=[2])
    numbers = ops.RandomUniform(root.with_op_name("numbers"), shape, seed=1)
    session = ClientSession(root, memory=MIB)
    assert session.run(numbers, {shape: [2, 3]}).shape == (2, 3)
    with pytest.raises(ResourceExhaustedError, match="need 4194304 bytes, but only 1048560 of") as caught:
        session.run(numbers, {shape: [1024, 1024]})
    assert caught.value.name == "numbers"


def test_initial_values_of_variables_are_counted() -> None:
    root = Scope.new_root_scope()
    table = ops.Variable(root.with_op_name("v"), 0.0, shape=[1 << 20, 1 << 6], dtype="float32")
    with pytest.raises(ResourceExhaustedError, match="the values need"):
        ClientSession(root, memory=MIB).run(table)


def test_earlier_results_are_released_before_a_run_is_rejected() -> None:
    root = Scope.new_root_scope()
    x = ops.Placeholder(root.with_op_name("x"), dtype="float64", shape=[1 << 15])
    one, other = ops.Neg(root.with_op_name("one"), x), ops.Neg(root.with_op_name("other"), x)
    feed = {x: np.zeros(1 << 15)}
    session = ClientSession(root, memory=MIB)  # each run needs half of it
    session.run(one, feed)
    session.run(other, feed)
    assert session.result("one", "y") is not None
    session.run([one, other], feed)
    assert session.result("one", "y") is not None
    assert session._last.bytes <= MIB
    roomy = ClientSession(root)
    for _ in range(3):
        roomy.run(one, feed)
    assert roomy._last.bytes == 1 << 19


def test_an_invalid_memory_limit_raises() -> None:
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="memory must be a positive number of bytes"):
            ClientSession(Scope.new_root_scope(), memory=wrong)  # type: ignore[arg-type]


def test_a_failed_allocation_names_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ClientSession(build(doubling_page(1)))

    def bind(*_: Any) -> Any:
        def run(_: Any) -> Any:
            raise MemoryError("Unable to allocate 16 GiB")

        return run

    monkeypatch.setattr(session.engine, "bind", bind)
    with pytest.raises(ResourceExhaustedError, match="OOM: Unable to allocate 16 GiB") as caught:
        session.run_block()
    assert caught.value.name == "c1"
    session = ClientSession(build(doubling_page(1)))
    monkeypatch.setattr(session, "_out", lambda _: (_ for _ in ()).throw(MemoryError("no copy")))
    with pytest.raises(ResourceExhaustedError, match="OOM: no copy"):
        session.run_block()


def test_the_command_has_a_memory_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(doubling_page(12), tmp_path / "page.json")
    assert main(["run", str(tmp_path / "page.json"), "--memory", "8"]) == 1
    assert "OOM: the values need" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "page.json"), "--memory", "8", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["type"], error["block"]) == ("ResourceExhaustedError", "c10")
    assert main(["run", str(tmp_path / "page.json"), "--memory", "80"]) == 0


def test_the_command_reports_missing_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(doubling_page(1), tmp_path / "page.json")

    def load(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr("rowgrad.cli.pages.load", load)
    assert main(["run", str(tmp_path / "page.json")]) == 1
    assert capsys.readouterr().err == "rowgrad run: out of memory\n"


def test_constant_values_of_earlier_fetches_are_released() -> None:
    root = Scope.new_root_scope()
    constant = Const(root, 0.5, shape=[1024, 128], dtype="float64")
    session = ClientSession(root, memory=4 * MIB)
    alive = []
    for k in range(8):
        steady = ops.Exp(root.with_op_name(f"steady_{k}"), constant)
        session.run(ops.Sum(root, steady, [0, 1]))
        found = session.result(f"steady_{k}", "y")
        assert isinstance(found, np.ndarray)
        owner = found.base if found.base is not None else found
        alive.append(weakref.ref(owner))
        del found, owner
    gc.collect()
    assert sum(array() is not None for array in alive) <= 3
    total = ops.Sum(root, steady, [0, 1])
    session.run(total)
    program = next(reversed(session._programs.values()))
    session.run(total)
    assert next(reversed(session._programs.values())) is program  # also cached with a small memory limit


def test_constant_values_of_a_failed_run_are_released() -> None:
    root = Scope.new_root_scope()
    steady = ops.Exp(root, Const(root, 0.5, shape=[1024], dtype="float64"))
    fed = ops.Placeholder(root.with_op_name("fed"), dtype="float64", shape=[])
    session = ClientSession(root)
    with pytest.raises(ValueError, match="fed"):
        session.run(ops.Mul(root, steady, fed))
    assert not session._programs


def test_variables_that_a_run_does_not_read_are_counted() -> None:
    root = Scope.new_root_scope()
    session = ClientSession(root, memory=4 * MIB - 1)
    tables = [ops.Variable(root.with_op_name(f"v{k}"), 1.0, shape=[1024, 128], dtype="float64") for k in range(5)]
    for table in tables[:3]:
        session.run(ops.Sum(root, table, [0, 1]))
    with pytest.raises(ResourceExhaustedError, match="the values need 1048576 bytes"):
        session.run(ops.Sum(root, tables[3], [0, 1]))
    session.reset()
    assert session.run(ops.Sum(root, tables[4], [0, 1])) == 1024 * 128


def test_a_page_with_exponentially_many_gradients_is_an_error() -> None:
    blocks = [Block("x", "Variable", {"initvalues": [0.5]}), Block("y", "Tanh", wires={"x": [End("x", "ref")]})]
    last = End("y", "y")
    for k in range(40):
        wires = {"outputs": [last], "inputs": [End("x", "ref")]}
        blocks.append(Block(f"g{k}", "AddSymbolicGradients", wires=wires))
        last = End(f"g{k}", "grad_outputs", 0)
    checked = check(Page("deep", blocks))
    (name,) = checked.errors
    assert isinstance(checked.errors[name], ResourceExhaustedError)
    assert "the page needs more than" in str(checked.errors[name])
    assert name in checked.errors[name].name
    assert len(checked.waiting) == 40 - int(name[1:]) - 1
    assert len(checked.scope.graph.nodes) < 1 << 17
