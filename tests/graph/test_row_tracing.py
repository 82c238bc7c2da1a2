"""Row tracing: which input rows a result depends on, compared with the effect of changing a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rowgrad._catalog.spec import CATALOG, Op
from rowgrad.errors import OpError
from rowgrad.graph import AddSymbolicGradients, ClientSession, Const, Scope, ops
from rowgrad.graph.trace import trace
from rowgrad.raw_ops import OPS
from samples import sample

TRACED = [op for op in CATALOG.values() if op.rows is not None and op.linear]


def session_of(op: Op, inputs: dict[str, Any]) -> ClientSession:
    root = Scope.new_root_scope()
    wired = {k: Const(root.with_op_name(k), v) if i % 2 else v for i, (k, v) in enumerate(inputs.items())}
    ops.function_of(op.name)(root.with_op_name("it"), **wired)
    session = ClientSession(root)
    session.run("it")
    return session


def rows_of(pins: list[str], arrays: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the rows of the pins in order."""
    return [(pin, k) for pin in pins for k in range(len(arrays[pin]))]


@pytest.mark.parametrize("op", TRACED, ids=lambda op: op.name)
def test_a_changed_row_affects_exactly_the_traced_rows(op: Op) -> None:
    """NaN in one input row appears in exactly the rows traced to it."""
    inputs = dict(sample(op.name, np.random.default_rng(6)))
    found = trace(session_of(op, inputs), "it")
    assert found.total == len(found.pairs)
    assert not found.cut
    names = [o.name for o in op.outputs]

    def results(inputs_: dict[str, Any]) -> dict[str, Any]:
        got = OPS[op.name](**inputs_)
        return dict(zip(names, got if isinstance(got, tuple) else (got,), strict=True))

    plain = results(inputs)
    sources, targets = rows_of(found.inputs, inputs), rows_of(found.outputs, plain)
    assert sources
    assert targets
    assert all(0 <= b < len(sources) and 0 <= a < len(targets) for a, b in found.pairs)
    for k, (pin, row) in enumerate(sources):
        changed = np.array(inputs[pin], copy=True)
        changed[row] += 1 if op.name == "SparseAdd" else np.nan  # SparseAdd drops NaN
        now = results({**inputs, pin: changed})
        if op.name == "SparseAdd" and len(now["sum_values"]) != len(plain["sum_values"]):
            continue
        moved = {
            t for t, (name, place) in enumerate(targets) if not np.array_equal(plain[name][place], now[name][place])
        }
        assert moved == {a for a, b in found.pairs if b == k}, (pin, row)


def test_traced_pins_of_every_op() -> None:
    found = {op.name: trace(session_of(op, sample(op.name, np.random.default_rng(0))), "it") for op in TRACED}
    pins = {name: (t.outputs, t.inputs) for name, t in found.items()}
    assert pins["SparseSegmentMean"] == (["output"], ["data"])
    assert pins["SparseSegmentMeanGradV2"] == (["output"], ["grad"])
    assert pins["SparseFillEmptyRows"] == (["output_values"], ["values"])
    assert pins["SparseFillEmptyRowsGrad"] == (["d_values"], ["grad_values"])
    assert pins["SparseSlice"] == (["output_values"], ["values"])
    assert pins["SparseAdd"] == (["sum_values"], ["a_values", "b_values"])
    assert pins["SparseAddGrad"] == (["a_val_grad", "b_val_grad"], ["backprop_val_grad"])
    assert pins["SparseSegmentDot"] == (["output"], ["grad"])


def test_entries_dropped_by_a_sum_have_no_source() -> None:
    root = Scope.new_root_scope()
    ops.SparseAdd(root.with_op_name("sum"), [[0], [1], [2]], [1.0, 2.0, 3.0], [4], [[1], [3]], [-2.0, 5.0], [4], 0.5)
    session = ClientSession(root)
    assert session.run("sum")["sum_values"].tolist() == [1.0, 3.0, 5.0]
    assert trace(session, "sum").pairs == [(0, 0), (1, 2), (2, 4)]


def test_pairs_are_those_of_the_last_run() -> None:
    root = Scope.new_root_scope()
    ids = ops.Placeholder(root.with_op_name("ids"), dtype="int64", shape=[-1])
    ops.GatherRows(root.with_op_name("g"), np.eye(4), ids)
    ops.Identity(root.with_op_name("other"), ids)
    session = ClientSession(root)
    with pytest.raises(OpError, match="g: no run has computed it yet"):
        trace(session, "g")
    session.run("g", {"ids": [3, 3, 0]})
    assert trace(session, "g").pairs == [(0, 3), (1, 3), (2, 0)]
    session.run("g", {"ids": [1]})
    session.run("other", {"ids": [2, 2]})  # feeds other ids, without running the block
    assert trace(session, "g").pairs == [(0, 1)]
    session.reset()
    with pytest.raises(OpError, match="no run"):
        trace(session, "g")


def test_long_traces_are_truncated() -> None:
    root = Scope.new_root_scope()
    ops.GatherRows(root.with_op_name("g"), np.eye(2), np.zeros(30_000, np.int64))
    session = ClientSession(root)
    session.run("g")
    found = trace(session, "g")
    assert (len(found.pairs), found.total, found.cut) == (20_000, 30_000, True)
    found = trace(session, "g", most=30_000)
    assert (len(found.pairs), found.total, found.cut) == (30_000, 30_000, False)
    assert trace(session, "g", most=0).pairs == []


def test_tracing_many_empty_rows_is_fast() -> None:
    """Recomputing the op would take a day; tracing uses the results of the run."""
    root = Scope.new_root_scope()
    rows = np.arange(0, 200_000, 2)
    indices = np.stack([rows, np.zeros_like(rows)], axis=1)
    ops.SparseFillEmptyRows(root.with_op_name("f"), indices, np.ones(len(rows)), [200_000, 1], 0.0)
    session = ClientSession(root)
    session.run("f")
    found = trace(session, "f", most=3)
    assert (found.pairs, found.total) == ([(0, 0), (2, 1), (4, 2)], 100_000)


def test_tracing_a_plan_is_fast() -> None:
    root = Scope.new_root_scope()
    ids = np.arange(60_000)[::-1].copy()
    plan = ops.RowPlan(root, ids, np.zeros(60_000, np.int64), 60_000, 1)
    ops.PlannedSparseSegmentSumGrad(root.with_op_name("p"), np.ones((1, 1)), *plan, 60_000)
    session = ClientSession(root)
    session.run("p")
    found = trace(session, "p", most=60_000)
    assert sorted(found.pairs) == [(row, 0) for row in range(60_000)]


@pytest.mark.parametrize("max_norm", [0.0, 0.5])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("typed", [False, True])
def test_lookups_are_traced(max_norm: float, weighted: bool, typed: bool) -> None:
    table = np.random.default_rng(1).normal(size=(5, 3))

    def run(name: str, table: Any, ids: list[int], **attrs: Any) -> ClientSession:
        root = Scope.new_root_scope()
        bags = ops.SparseTensor(root.with_op_name("bags"), [[0, 0], [0, 1], [2, 0]], np.array(ids), [4, 2])
        params = table if typed else ops.Variable(root.with_op_name("table"), table)
        more = {"weights": Const(root, np.array([1.0, 2.0, 3.0]))} if weighted else {}
        ops.function_of(name)(root.with_op_name("found"), params, bags.tensor, max_norm=max_norm, **attrs, **more)
        session = ClientSession(root)
        session.run("found")
        return session

    found = trace(run("EmbeddingLookupSparse", table, [4, 1, 4]), "found")
    assert (found.outputs, found.inputs) == (["output"], ["params"])
    assert found.pairs == [(0, 4), (0, 1), (2, 4)]
    safe = trace(run("SafeEmbeddingLookupSparse", table, [4, -1, 3]), "found")
    assert safe.pairs == [(0, 4), (2, 3)]  # rows 1 and 3 have no id
    default = trace(run("SafeEmbeddingLookupSparse", table, [4, -1, 3], default_id=2), "found")
    assert default.pairs == [(0, 4), (1, 2), (2, 3), (3, 2)]


def test_a_lookup_is_traced_in_one_run() -> None:
    """A later run of a part of the lookup, without its output, does not change the trace."""
    root = Scope.new_root_scope()
    ids = ops.Placeholder(root.with_op_name("ids"), dtype="int64", shape=[2])
    bags = ops.SparseTensor(root, [[0, 0], [1, 0]], ids, [2, 1])
    table = ops.Variable(root, np.eye(4))
    ops.EmbeddingLookupSparse(root.with_op_name("found"), table, bags.tensor, combiner="sum", max_norm=9.0)
    gathered = next(n for n in root.graph.nodes if n.block == "found" and n.op.name == "GatherRows")
    session = ClientSession(root)
    session.run("found", {"ids": [3, 2]})
    assert session.run(gathered.outputs[0], {"ids": [0, 1]}).tolist() == np.eye(4)[:2].tolist()
    assert session.run_of("found", "output") == 1
    assert trace(session, "found").pairs == [(0, 3), (1, 2)]


def test_untraceable_requests_raise() -> None:
    root = Scope.new_root_scope()
    w = ops.Variable(root.with_op_name("w"), [1.0, 2.0])
    square = ops.Square(root.with_op_name("square"), w)
    AddSymbolicGradients(root.with_op_name("G"), [square], [w])
    ops.ApplyGradientDescent(root.with_op_name("step"), w, 0.1, square)
    ops.RowPositions(root.with_op_name("positions"), [1, 2], [2])
    session = ClientSession(root)
    session.run(["square", "G", "step", "positions"])
    for block in ("w", "square", "G", "step", "positions"):
        with pytest.raises(OpError, match=f"^{block}: .* has no record of which rows"):
            trace(session, block)
    with pytest.raises(OpError, match="squar: there is no such block; did you mean 'square'"):
        trace(session, "squar")


def test_tracing_is_the_same_on_other_engines() -> None:
    pytest.importorskip("torch")
    root = Scope.new_root_scope()
    ops.SparseSegmentSum(root.with_op_name("s"), Const(root, np.eye(3)), Const(root, [2, 0]), [0, 1])
    session = ClientSession(root, engine="torch")
    session.run("s")
    assert trace(session, "s").pairs == [(0, 2), (1, 0)]
