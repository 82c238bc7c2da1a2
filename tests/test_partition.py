"""Partition ids into shards and stitch them back, by TensorFlow's rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from rowgrad.errors import InvalidArgumentError

STRATEGIES = ["div", "mod"]


def expected_ids(rows: int, parts: int, strategy: str) -> list[list[int]]:
    """Return the ids of every part: round robin for "mod", contiguous runs for "div"."""
    ids = list(range(rows))
    if strategy == "mod":
        return [ids[k::parts] for k in range(parts)]
    sizes = [rows // parts + (k < rows % parts) for k in range(parts)]
    return [[ids.pop(0) for _ in range(size)] for size in sizes]


def lists(arrays: list[Any]) -> list[list[int]]:
    return [a.tolist() for a in arrays]


def test_thirteen_ids_over_five_parts() -> None:
    found = rg.partition(np.arange(13), 5, num_rows=13)
    assert lists(found.positions) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10], [11, 12]]
    assert lists(found.rows) == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1], [0, 1]]
    dealt_out = rg.partition(np.arange(13), 5, "mod")
    assert lists(dealt_out.positions) == [[0, 5, 10], [1, 6, 11], [2, 7, 12], [3, 8], [4, 9]]
    assert lists(dealt_out.rows) == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1], [0, 1]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_small_table(strategy: str) -> None:
    rng = np.random.default_rng(7)
    for rows in range(41):
        for parts in range(1, 8):
            ids_of_part = expected_ids(rows, parts, strategy)
            for number, own in enumerate(ids_of_part):
                local = np.arange(len(own))
                assert rg.global_ids(number, local, parts, strategy, num_rows=rows).tolist() == own
            if rows < parts and strategy == "div":
                continue
            ids = rng.integers(0, rows, 9) if rows else np.zeros(0, np.int64)
            found = rg.partition(ids, parts, strategy, num_rows=rows)
            assert all(ids_of_part[p][r] == i for p, r, i in zip(found.part, found.row, ids, strict=True))
            for number, (local, places) in enumerate(zip(found.rows, found.positions, strict=True)):
                assert places.tolist() == np.flatnonzero(found.part == number).tolist()
                assert local.tolist() == found.row[places].tolist()
            table = rng.normal(size=(rows, 2))
            values = [table[own][local] for own, local in zip(ids_of_part, found.rows, strict=True)]
            assert rg.stitch(values, found).tolist() == table[ids].tolist()
            assert rg.global_ids(found.part, found.row, parts, strategy, num_rows=rows).tolist() == ids.tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_dtypes_shapes_and_values_with_columns(dtype: Any) -> None:
    ids = np.array([[6, 0], [3, 6]], dtype)
    found = rg.partition(ids, 3, num_rows=7)
    assert [a.dtype for a in (found.row, *found.rows)] == [np.dtype(dtype)] * 4
    assert lists(found.positions) == [[1], [2], [0, 3]]
    assert rg.global_ids(found.part, found.row, 3, num_rows=7).dtype == dtype
    values = [np.full((n, 2, 3), k, np.float16) for k, n in enumerate((1, 1, 2))]
    assert rg.stitch(values, found)[:, 1, 2].tolist() == [2, 0, 1, 2]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_empty_ids(strategy: str) -> None:
    found = rg.partition([], 3, strategy, num_rows=1)  # so few rows that "div" has empty parts
    assert lists(found.rows) == lists(found.positions) == [[], [], []]
    assert rg.stitch([np.zeros((0, 4))] * 3, found).shape == (0, 4)


def test_many_parts_and_large_tables() -> None:
    ids = np.array([2**62, 5, 70_001], np.int64)
    found = rg.partition(ids, 70_000, num_rows=2**63 - 1)
    assert rg.global_ids(found.part, found.row, 70_000, num_rows=2**63 - 1).tolist() == ids.tolist()
    narrow = rg.partition(np.array([2**31 - 1], np.int32), 2, num_rows=2**40)
    assert (narrow.part.tolist(), narrow.row.tolist()) == ([0], [2**31 - 1])
    last = np.array([2**63 - 1])
    found = rg.partition(last, 1, "mod")
    assert rg.global_ids(0, found.row, 1, "mod").tolist() == last.tolist()


@pytest.mark.parametrize(
    ("call", "message", "facts"),
    [
        (lambda: rg.partition([1, 9, 10], 2, num_rows=9), "ids[1] = 9 is not in [0, 9), the rows of the table",
         ("ids", 1, 9, 9)),
        (lambda: rg.partition([1, -1], 2, num_rows=9), "ids[1] = -1 is not in [0, 9), the rows of the table",
         ("ids", 1, -1, 9)),
        (lambda: rg.partition([0, 9], 2, "mod", num_rows=9), "ids[1] = 9 is not in [0, 9)", ("ids", 1, 9, 9)),
        (lambda: rg.partition([[0], [-7]], 2, "mod"), "ids[1] must be >= 0, got -7", ("ids", 1, -7, 0)),
        (lambda: rg.partition([0], 2), "num_rows is required", ("num_rows", None, None, None)),
        (lambda: rg.partition([1], 5, num_rows=3),
         '"div" partitioning cannot place 3 rows into 5 shards, because 3 // 5 = 0',
         ("num_rows", None, 3, 5)),
        (lambda: rg.partition([1], 0, "mod"), "num_parts must be an integer of at least 1; got 0",
         ("num_parts", None, "0", 1)),
        (lambda: rg.partition([1], True, "mod"), "num_parts must be an integer", ("num_parts", None, "True", 1)),
        (lambda: rg.partition([1], 2, num_rows=-1), "num_rows must be an integer", ("num_rows", None, "-1", 0)),
        (lambda: rg.partition([1.5], 2, "mod"), "ids must be one of int32, int64; got float32",
         ("ids", None, np.dtype("float32"), "int32, int64")),
        (lambda: rg.global_ids(2, [0], 2, "mod"), "part[0] = 2 is not in [0, 2), the shards", ("part", 0, 2, 2)),
        (lambda: rg.global_ids([0, 1], [0, 0, 0], 2, "mod"), "must have shape (3,)", ("part", None, (2,), (3,))),
        (lambda: rg.global_ids(1, [0, 4], 2, num_rows=9), "rows[1] = 4 is not in [0, 4)", ("rows", 1, 4, 4)),
        (lambda: rg.global_ids(0, [4, 5], 2, "mod", num_rows=9), "rows[1] = 5 is not in [0, 5)", ("rows", 1, 5, 5)),
        (lambda: rg.global_ids(1, np.array([2**62]), 2, "mod"), "is not in [0, 46116", ("rows", 0, 2**62, 2**62)),
        (lambda: rg.stitch([np.zeros(1)], rg.partition([1], 2, "mod")), "one array for each of 2 shards; got 1",
         ("values", None, 1, 2)),
        (lambda: rg.stitch([np.zeros(1), np.zeros(1)], rg.partition([1], 2, "mod")),
         "values[0] must be float64[0]; got float64[1]", ("values[0]", None, "float64[1]", "float64[0]")),
    ],
)  # fmt: skip
def test_invalid_arguments_raise(call: Any, message: str, facts: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        call()
    error = caught.value
    assert message in str(error)
    assert (error.argument, error.position, error.value, error.bound) == facts
    assert str(error).startswith(("partition: ", "global_ids: ", "stitch: "))


def test_unknown_strategies_raise() -> None:
    for call in (rg.partition, lambda *a: rg.global_ids(0, *a)):
        with pytest.raises(ValueError, match="Unrecognized partition strategy: round"):
            call([1], 2, "round")


def test_torch_tensors_and_their_gradients() -> None:
    torch = pytest.importorskip("torch")
    ids = torch.tensor([6, 0, 3, 6], dtype=torch.int32)
    found = rg.partition(ids, 3, num_rows=7)
    assert all(isinstance(a, torch.Tensor) for a in (found.part, found.row, *found.rows, *found.positions))
    assert found.rows[2].dtype == torch.int32
    assert rg.global_ids(found.part, found.row, 3, num_rows=7).tolist() == ids.tolist()
    values = [torch.full((len(p), 2), float(k), requires_grad=True) for k, p in enumerate(found.positions)]
    together = rg.stitch(values, found)
    assert together[:, 0].tolist() == [2, 0, 1, 2]
    (together * torch.arange(4.0)[:, None]).sum().backward()
    assert [v.grad[:, 0].tolist() for v in values] == [[1], [2], [0, 3]]


def test_jax_arrays_and_their_gradients() -> None:
    jax = pytest.importorskip("jax")
    ids = jax.numpy.array([6, 0, 3, 6])
    found = rg.partition(ids, 3, num_rows=7)
    assert all(isinstance(a, jax.Array) for a in (found.part, found.row, *found.rows, *found.positions))
    values = [jax.numpy.full((len(p), 2), float(k)) for k, p in enumerate(found.positions)]
    weights = jax.numpy.arange(4.0)[:, None]
    gradients = jax.jit(jax.grad(lambda v: (rg.stitch(v, found) * weights).sum()))(values)
    assert [g[:, 0].tolist() for g in gradients] == [[1], [2], [0, 3]]
    with pytest.raises(InvalidArgumentError, match="ids must be a concrete array"):
        jax.jit(lambda i: rg.partition(i, 3, num_rows=7).part)(ids)


def test_counts_of_any_integer_type() -> None:
    found = rg.partition([100], np.int8(3), "div", num_rows=np.int16(1000))
    assert (found.part.tolist(), found.row.tolist()) == ([0], [100])
    assert rg.global_ids(0, [100], np.int8(3), "div", num_rows=1000).tolist() == [100]


def test_largest_possible_table() -> None:
    last = 2**63 - 2
    found = rg.partition(np.array([0, last]), 1, "div", num_rows=2**63 - 1)
    assert (found.part.tolist(), found.row.tolist()) == ([0, 0], [0, last])
    found = rg.partition(np.array([0, last]), 2, "div", num_rows=2**63 - 1)
    assert (found.part.tolist(), found.row.tolist()) == ([0, 1], [0, 2**62 - 2])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_parts_beyond_memory_raise(strategy: str) -> None:
    for parts in (2**40, 2**62):
        with pytest.raises(rg.errors.ResourceExhaustedError, match=f"workspace for {parts} elements"):
            rg.partition([], parts, strategy, num_rows=3)


def test_masked_values_are_rejected() -> None:
    found = rg.partition([0, 1, 2], 2, "mod")
    with pytest.raises(InvalidArgumentError, match=r"values\[0\] must be an array; got a masked array"):
        rg.stitch([np.ma.array([1, 2], mask=[True, False]), np.array([3])], found)


@pytest.mark.parametrize("strategy", [np.array(["div", "mod"]), ["div"], None])
def test_strategies_that_are_not_text_raise(strategy: Any) -> None:
    with pytest.raises(ValueError, match="Unrecognized partition strategy"):
        rg.partition([0], 2, strategy, num_rows=3)


def test_stitch_rejects_other_arguments() -> None:
    found = rg.partition([0, 1], 2, "mod")
    with pytest.raises(
        rg.errors.InvalidArgumentError, match="partitioned must be what partition returns; got NoneType"
    ):
        rg.stitch([np.ones(1), np.ones(1)], None)  # type: ignore[arg-type]
    with pytest.raises(rg.errors.InvalidArgumentError, match="values must be a list of arrays; got generator"):
        rg.stitch((np.ones(1) for _ in range(2)), found)  # type: ignore[arg-type]
    assert found == found
    assert found != rg.partition([0, 1], 2, "mod")
    rows = rg.IndexedRows(np.ones((2, 1)), np.array([0, 1]), 2)
    assert rows in [rows]
    assert rows != rg.IndexedRows(rows.values, rows.indices, 2)
