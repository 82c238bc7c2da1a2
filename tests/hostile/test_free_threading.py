"""Many threads do the same thing at the same time, especially for the first time.

docs/explanation/threads_and_memory.md describes the guarantees.

What holds without a GIL also holds with one, so every Python runs these tests, with the shortest switch interval.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from golden_cases import same_bits
from rowgrad._runtime import numpy_dense, numpy_runner
from rowgrad.graph import ClientSession, Scope, ops
from rowgrad.raw_ops import OPS, OpTable

THREADS = 32


@pytest.fixture(autouse=True)
def _shortest_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Return the results of this many threads that start together; raise what one of them raised."""
    begin = threading.Barrier(threads)
    found: list[Any] = [None] * threads
    raised: list[BaseException] = []

    def run(k: int) -> None:
        try:
            begin.wait(60)
            found[k] = work(k)
        except BaseException as error:
            raised.append(error)

    workers = [threading.Thread(target=run, args=(k,)) for k in range(threads)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    if raised:
        raise raised[0]
    return found


# -- first calls -------------------------------------------------------------------------------------------------------

FIRST = """
import hashlib, importlib, random, sys, threading
sys.setswitchinterval(1e-6)
sys.path[:0] = {path!r}
import numpy as np

THREADS, MODULES = 32, {modules!r}
begin = threading.Barrier(THREADS)
answers, functions, raised = [None] * THREADS, [None] * THREADS, []

def answer(k):
    import rowgrad as rg

    order = random.Random(k)
    for name in order.sample(MODULES, len(MODULES)):
        importlib.import_module(name)
    from rowgrad import graph
    from rowgrad.raw_ops import OPS
    from rowgrad._catalog.spec import CATALOG
    from samples import sample

    names = [op.name for op in CATALOG.values() if op.layer != "graph"]
    results = {{}}
    for name in order.sample(names, len(names)):
        result = OPS[name](**sample(name, np.random.default_rng(5)))
        results[name] = [np.asarray(r).tobytes() for r in (result if isinstance(result, tuple) else (result,))]
        if k % 8 == 0:
            rg.set_num_threads(1 + order.randrange(4))
    root = graph.Scope.new_root_scope()
    table = graph.ops.Variable(root.with_op_name("table"), np.ones((4, 2)))
    bags = graph.ops.SparseSegmentSum(root, table, [0, 3, 3], [0, 0, 1])
    grown = graph.ops.AssignAdd(root, table, np.full((4, 2), 0.5))
    session = graph.ClientSession(root)
    results["runs"] = [session.run([bags, grown])[0].tobytes() for _ in range(3)]
    results["table"] = session.variables["table"].tobytes()
    functions[k] = [OPS[name] for name in names] + [graph.ops.function_of(op) for op in CATALOG]
    return hashlib.sha256(repr(sorted(results.items())).encode()).hexdigest()

def work(k):
    try:
        begin.wait(60)
        answers[k] = answer(k)
    except BaseException as error:
        raised.append(repr(error))

threads = [threading.Thread(target=work, args=(k,)) for k in range(THREADS)]
for t in threads:
    t.start()
for t in threads:
    t.join()
if not raised:
    again = answer(1)  # alone
    same = all(f is g for fs in functions for f, g in zip(fs, functions[1], strict=True))
    raised = [] if set(answers) == {{again}} and same else [len(set(answers)), answers[0] == again, same]
print(raised)
"""
MODULES = ["rowgrad.graph", "rowgrad.graph.export", "rowgrad.graph.enuspace", "rowgrad.optim", "rowgrad.checkpoint",
           "rowgrad.compat.v1", "rowgrad.cli", "rowgrad.tour", "samples"]  # fmt: skip


def test_first_calls_of_every_op_from_all_threads() -> None:
    """In a new process, threads import rowgrad and call every op, each in its own order."""
    code = FIRST.format(path=[str(Path(__file__).parents[1])], modules=MODULES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_all_threads_get_the_same_function_for_an_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two functions would create two types of named tuples."""
    for _ in range(20):
        monkeypatch.setattr(ops, "_FUNCTIONS", {})
        table = OpTable()
        found = at_once(lambda k, t=table: (t["SparseSegmentSumGradV2"], ops.function_of("SparseSegmentSumGradV2")))
        assert len(set(found)) == 1


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has a GIL")
def test_no_module_enables_the_gil() -> None:
    """Python enables it for a module that does not declare that it is safe without."""
    code = (
        f"import importlib, sys; [importlib.import_module(m) for m in {MODULES[:-1]!r}]; print(sys._is_gil_enabled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_threads_that_read_the_same_arrays() -> None:
    rng = np.random.default_rng(3)
    table, ids = rng.normal(size=(50, 4)).astype(np.float32), rng.integers(0, 50, 200)
    segments = np.sort(rng.integers(0, 20, 200))
    plan = rg.Plan(ids, segments, num_rows=50, num_segments=20)
    expected = OPS["SparseSegmentMean"](table, ids, segments)
    grad = rng.normal(size=(20, 4)).astype(np.float32)
    rows = OPS["SparseSegmentSumGradV2"](grad, ids, segments, 50)

    def work(k: int) -> bool:
        right = True
        for _ in range(60):
            right &= same_bits(OPS["SparseSegmentMean"](table, ids, segments), expected)
            planned = OPS["SparseSegmentSumGradV2"](grad, plan=plan)
            right &= all(map(same_bits, planned, rows))
        return right

    assert all(at_once(work))


def test_validation_cache_evicted_by_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share shapes, and the cache is so small that entries are evicted all the time."""
    monkeypatch.setattr(numpy_runner, "_MAX_PREPARED", 3)
    monkeypatch.setattr(numpy_dense, "_MAX_PREPARED", 3)

    def work(k: int) -> bool:
        right = True
        for i in range(60):
            columns = 1 + (k + i) % 7
            data = np.full((3, columns), 2.0)
            right &= OPS["SparseSegmentSum"](data, np.array([0, 2]), np.array([0, 0])).tolist() == [[4.0] * columns]
            right &= OPS["Add"](data, data).tolist() == [[4.0] * columns] * 3
        return right

    assert all(at_once(work))


# -- sizes that another thread changes during a call -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_size_that_changes_after_validation(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    """The call, and later calls with that size, use the validated size: ids beyond it raise."""
    grad, ids, segments = np.ones((2, 4), np.float32), np.array([0, 2]), np.array([0, 1])
    size, original = np.array(3, dtype), numpy_runner.infer

    def infer(*args: Any) -> Any:
        inferred = original(*args)
        change = threading.Thread(target=size.fill, args=(40,))
        change.start()
        change.join()
        return inferred

    numpy_runner._PREPARED.clear()
    monkeypatch.setattr(numpy_runner, "infer", infer)
    assert OPS["SparseSegmentSumGrad"](grad, ids, segments, size).shape == (3, 4)
    monkeypatch.undo()
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"30 out of range \[0, 3\)"):
        OPS["SparseSegmentSumGrad"](grad, np.array([0, 30]), segments, np.array(3, dtype))
    assert OPS["SparseSegmentSumGrad"](grad, ids, segments, np.array(40, dtype)).shape == (40, 4)


@pytest.mark.parametrize("make", [np.array, list])
def test_sizes_of_a_dense_op_that_change_before_validation(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[list[int]], Any]
) -> None:
    """The cache stores what was validated, not the caller's sizes a moment before."""
    x, sizes, original = np.arange(12.0), make([3, 4]), numpy_dense.admit

    def admit(*args: Any) -> Any:
        sizes[0], sizes[1] = 4, 3
        return original(*args)

    numpy_dense._PREPARED.clear()
    monkeypatch.setattr(numpy_dense, "admit", admit)
    assert OPS["Reshape"](x, sizes).shape == (3, 4)
    monkeypatch.undo()
    assert OPS["Reshape"](x, make([3, 4])).shape == (3, 4)
    assert OPS["Reshape"](x, make([4, 3])).shape == (4, 3)


# -- sessions ----------------------------------------------------------------------------------------------------------


def counting_session() -> tuple[ClientSession, Any]:
    """Return a session with two Variables that every run increments, and what to run."""
    root = Scope.new_root_scope()
    pair = [ops.Variable(root.with_op_name(name), np.zeros(3)) for name in "ab"]
    return ClientSession(root), [ops.AssignAdd(root, v, np.ones(3)) for v in pair]


def test_no_update_of_a_variable_is_lost() -> None:
    session, steps = counting_session()
    at_once(lambda k: [session.run(steps) for _ in range(20)])
    assert session.runs == 20 * THREADS
    assert {name: v.tolist() for name, v in session.variables.items()} == dict.fromkeys("ab", [20.0 * THREADS] * 3)


def test_variables_are_read_between_runs(tmp_path: Path) -> None:
    """While some threads run, others read and save Variables; both Variables must always agree."""
    session, steps = counting_session()

    def read(k: int) -> bool:
        observed = [session.variables]
        if session.runs % 8 == k:
            session.save(tmp_path / f"{k}.state")
            other, _ = counting_session()
            other.restore(tmp_path / f"{k}.state")
            observed.append(other.variables)
        return all(v["a"].tolist() == v["b"].tolist() for v in observed)

    def work(k: int) -> bool:
        together = True
        while session.runs < 400:
            if k % 2:
                session.run(steps)
            else:
                together &= read(k)
        return together

    assert all(at_once(work, 8))


def test_reading_does_not_reset_variables() -> None:
    """One thread reads Variables that no run has initialized yet, while others run."""
    for _ in range(60):
        session, steps = counting_session()
        at_once(lambda k, s=session, t=steps: s.variables if k % 2 else s.run(t), 8)
        assert session.variables["a"].tolist() == [4.0] * 3


def test_threads_build_separate_graphs() -> None:
    def work(k: int) -> list[float]:
        root = Scope.new_root_scope()
        x = ops.Placeholder(root, shape=[-1, 2])
        y = ops.MatMul(root, x, ops.Variable(root, np.full((2, 2), float(k), np.float32)))
        loss = ops.ReduceSum(root, ops.Square(root, y), [0, 1])
        return ClientSession(root).run([loss], {x: np.ones((3, 2), np.float32)})[0].tolist()

    assert at_once(work) == [6.0 * (2.0 * k) ** 2 for k in range(THREADS)]
