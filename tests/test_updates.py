"""Optimizer steps in place: every rule compared with NumPy, fused with unfused, any number of threads, errors."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rowgrad as rg
from golden_cases import same_bits
from reference import updates as reference
from rowgrad import _core, optim
from rowgrad.optim import Memory, Step

DTYPES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32), np.dtype(np.float64))
SHORT = DTYPES[:2]
Array = np.ndarray[Any, Any]


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return rng.normal(size=shape).astype(dtype)


class State:
    """A table and its slots, and copies of them for other functions."""

    def __init__(self, rule: str, table: Array, slots: tuple[Array, ...] | None = None) -> None:
        self.rule, self.table = rule, table
        rng = np.random.default_rng(9)
        new_slots_ = optim.new_slots(rule, table)
        self.slots = tuple(rng.random(s.shape).astype(s.dtype) for s in new_slots_) if slots is None else slots

    def copy(self) -> State:
        return State(self.rule, self.table.copy(), tuple(s.copy() for s in self.slots))

    def apply(self, function: Any, *arguments: Any, **options: Any) -> State:
        """Return a copy after an update."""
        after = self.copy()
        function(self.rule, after.table, after.slots, *arguments, **options)
        return after

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, State)
        return same_bits(self.table, other.table) and all(map(same_bits, self.slots, other.slots))

    __hash__ = None  # type: ignore[assignment]


def some_ids(rng: np.random.Generator, rows: int, k: int) -> Array:
    return np.sort(rng.choice(rows, size=k, replace=False)).astype(rng.choice([np.int32, np.int64]))


STEP = Step(lr=0.05, eps=1e-6, betas=(0.8, 0.95), step=3)
STEPS = [
    pytest.param(STEP, id="plain"),
    pytest.param(Step(lr=0.05, eps=1e-6, weight_decay=0.1, betas=(0.8, 0.95), step=3), id="decay"),
    pytest.param(Step(lr=0.05, eps=1e-6, weight_decay=0.1, lazy=False, step=7), id="all rows"),
    pytest.param(Step(lr=0.05, momentum=0.7, nesterov=True, l1=0.1, l2=0.02, l2_shrinkage=0.03), id="regularized"),
    pytest.param(Step(lr=0.05, lr_power=-0.7, l1=0.1), id="power"),
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rule", optim.RULES)
def test_rules(rule: str, dtype: np.dtype[Any], step: Step) -> None:
    rng = np.random.default_rng(1)
    for cols in (1, 2, 3, 7, 8, 16, 33, 67, 130):
        rows, k = 23, 11
        before = State(rule, numbers(rng, (rows, cols), dtype))
        grad, ids = numbers(rng, (k, cols), dtype), some_ids(rng, rows, k)
        expected = before.apply(reference.apply_rows, grad, ids, step)
        assert before.apply(optim.apply_rows, grad, ids, step) == expected
        everywhere = numbers(rng, (rows, cols), dtype)
        expected = before.apply(reference.apply_rows, everywhere, np.arange(rows), step)
        assert before.apply(optim.apply_all, everywhere, step) == expected


@pytest.mark.parametrize("shape", [(5,), (5, 2, 3), (0, 3), (4, 0), (4, 3, 0)])
@pytest.mark.parametrize("rule", optim.RULES)
def test_shapes(rule: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    before = State(rule, numbers(rng, shape, DTYPES[2]))
    ids = np.arange(0, shape[0], 2)
    grad = numbers(rng, (len(ids), *shape[1:]), DTYPES[2])
    expected = before.apply(reference.apply_rows, grad, ids, STEP) if before.table.size else before
    assert before.apply(optim.apply_rows, grad, ids, STEP) == expected
    assert before.apply(optim.apply_bags, grad, ids, np.arange(len(ids)), STEP) == expected


# -- fused ------------------------------------------------------------------------------------------------------------

COMBINERS = {"sum": "Sum", "mean": "Mean", "sqrtn": "SqrtN"}


class Bags:
    """The gradient of bags, and the row gradient of the equivalent two steps."""

    def __init__(self, rng: np.random.Generator, dtype: np.dtype[Any], rows: int, cols: int, n: int, hot: bool = False):
        self.rows, segments = rows, max(n // 3, 1)
        self.grad = numbers(rng, (segments, cols), dtype)
        self.indices = rng.integers(0, rows, n).astype(rng.choice([np.int32, np.int64]))
        if hot:
            self.indices[rng.random(n) < 0.9] = rows // 2
        self.segment_ids = rng.integers(0, segments, n).astype(rng.choice([np.int32, np.int64]))
        self.weights = numbers(rng, (n,), rng.choice(DTYPES))

    def rows_of(self, combiner: str, weighted: bool, accumulate: str, order: str) -> tuple[Array, Array]:
        name = f"SparseSegment{COMBINERS[combiner]}Grad"
        if not weighted:
            arguments = (self.grad, self.indices, self.segment_ids, self.rows)
            result = getattr(rg.raw_ops, name + "V2")(*arguments, order=order)
            return result.output, result.sorted_unique_indices
        arguments = (self.grad, self.indices, self.segment_ids, self.weights, self.rows)
        dense = getattr(rg.raw_ops, "Weighted" + name)(*arguments, accumulate=accumulate, order=order)
        ids = np.unique(self.indices)
        return dense[ids], ids


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rule", optim.RULES)
def test_fused_equals_two_steps(rule: str, dtype: np.dtype[Any], weighted: bool) -> None:
    rng = np.random.default_rng(3)
    for combiner in COMBINERS:
        for rows, cols, n, hot in (
            (50, 5, 200, False),
            (50, 5, 700, True),
            (300, 70, 150, False),
            (3000, 4, 5000, False),
        ):
            bags = Bags(rng, dtype, rows, cols, n, hot)
            before = State(rule, numbers(rng, (rows, cols), dtype))
            step = Step(lr=0.1, weight_decay=float(rng.choice([0, 0.1])), lazy=bool(rng.integers(2)), step=2)
            how: dict[str, Any] = {"combiner": combiner, "order": str(rng.choice(["sequential", "blocked"]))}
            how["accumulate"] = str(rng.choice(["T", "float32"]))
            grad, ids = bags.rows_of(combiner, weighted, how["accumulate"], how["order"])
            expected = before.apply(optim.apply_rows, grad, ids, step)
            if weighted:
                how["weights"] = bags.weights
            assert before.apply(optim.apply_bags, bags.grad, bags.indices, bags.segment_ids, step, **how) == expected
            plan = rg.Plan(bags.indices, bags.segment_ids, rows)
            assert before.apply(optim.apply_planned, bags.grad, plan, step, **how) == expected


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("rule", optim.RULES)
def test_empty_batch(rule: str, lazy: bool) -> None:
    before = State(rule, numbers(np.random.default_rng(4), (6, 3), DTYPES[2]))
    step = Step(lr=0.1, lazy=lazy)
    none, ids = np.zeros((0, 3), np.float32), np.zeros(0, np.int64)
    expected = before.apply(reference.apply_rows, none, ids, step)
    assert before.apply(optim.apply_rows, none, ids, step) == expected
    assert before.apply(optim.apply_bags, np.ones((2, 3), np.float32), ids, ids, step) == expected
    plan = rg.Plan(ids, ids, 6, num_segments=2)
    assert before.apply(optim.apply_planned, np.ones((2, 3), np.float32), plan, step) == expected
    assert (expected == before) == (lazy or not optim.RULES[rule].fades)


@pytest.mark.parametrize("columns", [(), (3,)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rule", optim.RULES)
def test_gradient_formats(rule: str, dtype: np.dtype[Any], columns: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    before, step = State(rule, numbers(rng, (9, *columns), dtype)), Step(lr=0.1, weight_decay=0.1, step=2)
    ids, grad = np.array([7, 2, 0]), numbers(rng, (3, *columns), dtype)
    sort = np.argsort(ids)
    expected = before.apply(reference.apply_rows, grad[sort], ids[sort], step)
    for rows in (rg.IndexedRows(grad, ids, 9), rg.IndexedRows(grad[sort], ids[sort], 9, is_unique=True)):
        assert before.apply(optim.apply_gradient, rows, step) == expected
    twice = rg.IndexedRows(np.concatenate([grad, grad]), np.concatenate([ids, ids]), 9)
    expected = before.apply(reference.apply_rows, (grad + grad)[sort], ids[sort], step)
    assert before.apply(optim.apply_gradient, twice, step) == expected
    dense = numbers(rng, (9, *columns), dtype)
    assert before.apply(optim.apply_gradient, dense, step) == before.apply(optim.apply_all, dense, step)


@pytest.mark.parametrize("shape", [(8, 3), (9, 2)])
def test_gradient_of_another_table_raises(shape: tuple[int, int]) -> None:
    before = State("adagrad", np.ones((9, 3), np.float32))
    after, rows = before.copy(), rg.IndexedRows(np.ones((1, shape[1]), np.float32), np.array([1]), shape[0])
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"apply_gradient: grad must have shape \[9,3\]"):
        optim.apply_gradient("adagrad", after.table, after.slots, rows, Step(lr=0.1))
    assert after == before


# -- independent of threads and instruction sets ----------------------------------------------------------------------


def results() -> list[State]:
    """Return the results of steps large enough to be parallel."""
    found = []
    for seed, dtype in enumerate(DTYPES):
        for rule in optim.RULES:
            rng = np.random.default_rng(seed)
            bags = Bags(rng, dtype, 4000, 20, 30000)
            before = State(rule, numbers(rng, (4000, 20), dtype))
            step = Step(lr=0.1, lazy=False, stochastic_rounding=True, seed=5, step=2)
            grad, ids = bags.rows_of("mean", False, "T", "sequential")
            plan = rg.Plan(bags.indices, bags.segment_ids, 4000)
            found += [
                before.apply(optim.apply_rows, grad, ids, step),
                before.apply(optim.apply_all, numbers(rng, (4000, 20), dtype), step),
                before.apply(optim.apply_bags, bags.grad, bags.indices, bags.segment_ids, step, combiner="mean"),
                before.apply(optim.apply_planned, bags.grad, plan, step, combiner="sqrtn", weights=bags.weights),
            ]
    return found


def test_threads_do_not_change_results() -> None:
    rg.set_num_threads(1)
    expected = results()
    for threads in (2, 3, 8):
        rg.set_num_threads(threads)
        assert results() == expected


DIGEST = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from test_updates import results
digest = hashlib.sha256()
for state in results():
    for array in (state.table, *state.slots):
        digest.update(array.tobytes())
print(digest.hexdigest())
"""


def test_instruction_sets_do_not_change_results() -> None:
    here = Path(__file__).parent
    found = set()
    for level in ("baseline", "x86-64-v3", "x86-64-v4"):  # an unsupported level selects the one below it
        command = [sys.executable, "-c", DIGEST, str(here)]
        env = {**os.environ, "ROWGRAD_LEVEL": level}
        found.add(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1


# -- stochastic rounding ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("rule", optim.RULES)
def test_stochastic_rounding_uses_the_documented_hash(rule: str, dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(6)
    step = Step(lr=0.01, stochastic_rounding=True, seed=2**62 + 3, step=4)
    for cols in (1, 5, 40):
        before = State(
            rule, (numbers(rng, (9, cols), dtype).astype(np.float64) * 4.0 ** -np.arange(cols)).astype(dtype)
        )
        grad = numbers(rng, (9, cols), dtype)
        assert before.apply(optim.apply_all, grad, step) == before.apply(reference.apply_rows, grad, np.arange(9), step)


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("weight", [1.0, -3.25, 1e-5, 250.0])
def test_stochastic_rounding_is_unbiased(dtype: np.dtype[Any], weight: float) -> None:
    n = 1 << 18
    table = np.full((n // 16, 16), weight, dtype)
    base = float(table[0, 0])
    unit = abs(float(np.nextafter(table[0, 0], dtype.type(np.inf))) - base)
    share = 0.3
    optim.apply_all("sgd", table, (), np.ones_like(table), Step(lr=-share * unit, stochastic_rounding=True, seed=1))
    moved = (table.astype(np.float64) - base) / unit
    assert set(np.unique(moved).tolist()) == {0.0, 1.0}
    assert abs(moved.mean() - share) < 5 * (share * (1 - share) / n) ** 0.5


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_small_steps_are_lost_without_stochastic_rounding(dtype: np.dtype[Any]) -> None:
    grad = np.full((64, 8), 1.0, dtype)
    plain, chance = np.ones((64, 8), dtype), np.ones((64, 8), dtype)
    for t in range(1, 201):
        optim.apply_all("sgd", plain, (), grad, Step(lr=1e-4, step=t))
        optim.apply_all("sgd", chance, (), grad, Step(lr=1e-4, step=t, stochastic_rounding=True))
    assert (plain == 1).all()
    assert abs(chance.astype(np.float64).mean() - 0.98) < 0.002


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_stochastic_rounding_keeps_infinities_and_nan(dtype: np.dtype[Any]) -> None:
    table = np.array([[np.inf, -np.inf, np.nan, 0.0, -0.0]], dtype)
    for t in range(1, 50):
        optim.apply_all("sgd", table, (), np.zeros((1, 5), dtype), Step(lr=1.0, step=t, stochastic_rounding=True))
    assert table[0, :2].tolist() == [np.inf, -np.inf]
    assert np.isnan(table[0, 2])
    assert table[0, 3:].tolist() == [0.0, 0.0]


def test_stochastic_rounding_depends_only_on_seed_and_step() -> None:
    def once(**options: int) -> Array:
        table = np.ones((100, 8), DTYPES[1])
        grad = np.full_like(table, 1e-3)
        optim.apply_all("sgd", table, (), grad, Step(lr=1.0, stochastic_rounding=True, **options))
        return table

    first = once(seed=1, step=1)
    assert same_bits(once(seed=1, step=1), first)
    assert not same_bits(once(seed=2, step=1), first)
    assert not same_bits(once(seed=1, step=2), first)


def test_stochastic_rounding_does_not_affect_wide_tables() -> None:
    before = State("adam", numbers(np.random.default_rng(7), (9, 5), DTYPES[2]))
    grad = np.ones((9, 5), np.float32)
    plain = before.apply(optim.apply_all, grad, Step(lr=0.1))
    assert before.apply(optim.apply_all, grad, Step(lr=0.1, stochastic_rounding=True)) == plain


# -- memory owned by other libraries ----------------------------------------------------------------------------------


def test_memory_by_address() -> None:
    rng = np.random.default_rng(8)
    before = State("adam", numbers(rng, (9, 5), DTYPES[1]))
    grad, ids = numbers(rng, (3, 5), DTYPES[1]), np.array([1, 4, 8], np.int32)
    after = before.copy()

    def memory(array: Array) -> Memory:
        return Memory(array.ctypes.data, array.dtype.name, array.shape)

    optim.apply_rows("adam", memory(after.table), [*map(memory, after.slots)], memory(grad), memory(ids), STEP)
    assert after == before.apply(optim.apply_rows, grad, ids, STEP)
    assert not same_bits(after.table, before.table)


# -- errors -----------------------------------------------------------------------------------------------------------

F4 = np.float32
INVALID_UPDATES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("apply_rows", r"row_ids\[1\] = 4", {"row_ids": [0, 4]}, {"argument": "row_ids", "position": 1, "bound": 4}),
    ("apply_rows", r"row_ids\[0\] = -1", {"row_ids": [-1, 2]}, {"position": 0, "value": -1, "bound": 4}),
    ("apply_rows", "must be strictly increasing", {"row_ids": [2, 2]}, {"position": 1, "value": 2}),
    ("apply_rows", "row_ids must have length 2, got 1", {"row_ids": [1]}, {"argument": "row_ids"}),
    ("apply_rows", "row_ids should be a vector", {"row_ids": [[1, 2]]}, {}),
    ("apply_rows", "row_ids must be one of int32, int64", {"row_ids": np.array([1.0, 2.0])}, {}),
    ("apply_rows", "grad must be float32, as the table; got float64", {"grad": np.zeros((2, 3))}, {}),
    ("apply_rows", r"grad must have rows of shape \[3\], got \[2\]", {"grad": np.zeros((2, 2), F4)}, {}),
    ("apply_rows", "rule must be one of 'sgd'", {"rule": "rprop"}, {"value": "'rprop'"}),
    ("apply_rows", "slots must be 1, sum; got 0", {"slots": ()}, {"argument": "slots"}),
    (
        "apply_rows",
        r"sum is updated in place and must be float32\[4,3\]; got float32\[4\]",
        {"slots": (np.ones(4, F4),)},
        {},
    ),
    ("apply_rows", r"sum .* must be float32\[4,3\]; got float64\[4,3\]", {"slots": (np.ones((4, 3)),)}, {}),
    ("apply_rows", "table .* must be an array; got list", {"table": [[1.0] * 3] * 4}, {"argument": "table"}),
    ("apply_rows", "table must be one of float16", {"table": np.zeros((4, 3), np.int32)}, {}),
    ("apply_rows", r"got strided float32\[4,3\]", {"table": np.zeros((3, 4), F4).T}, {}),
    ("apply_all", r"grad must have shape \[4,3\], got \[2,3\]", {}, {"argument": "grad"}),
    ("apply_bags", "Index 4 out of range", {"indices": [0, 4, 1]}, {"argument": "indices", "position": 1, "bound": 4}),
    ("apply_bags", "Segment id -1 out of range", {"segment_ids": [0, -1, 1]}, {"position": 1, "bound": 2}),
    ("apply_bags", "Invalid number of segments", {"segment_ids": [0, 1, 2]}, {"position": 2, "value": 2, "bound": 2}),
    ("apply_bags", "segment_ids and indices should have same size", {"segment_ids": [0, 1]}, {}),
    ("apply_bags", "combiner must be one of", {"combiner": "max"}, {"argument": "combiner"}),
    ("apply_bags", r"weights and indices should have same size, got \[2\] and 3", {"weights": np.ones(2)}, {}),
    ("apply_bags", "weights must be one of float16", {"weights": np.ones(3, np.int64)}, {"argument": "weights"}),
    ("apply_planned", "plan must be a rowgrad.Plan", {"plan": 3}, {}),
    ("apply_planned", "a table of 5 rows, but this table has 4", {"plan": rg.Plan([1], [0], 5)}, {"argument": "plan"}),
    ("apply_planned", "3 segments, but grad has only 2 rows", {"plan": rg.Plan([1], [2], 4)}, {"argument": "grad"}),
]


@pytest.mark.parametrize(("name", "message", "changed", "facts"), INVALID_UPDATES)
def test_invalid_updates_raise_and_write_nothing(name: str, message: str, changed: Any, facts: Any) -> None:
    arguments: dict[str, Any] = {
        "rule": "adagrad", "table": np.ones((4, 3), F4), "slots": (np.ones((4, 3), F4),), "grad": np.ones((2, 3), F4)
    }  # fmt: skip
    own = {
        "apply_rows": {"row_ids": [0, 2]},
        "apply_all": {},
        "apply_bags": {"indices": [0, 1, 2], "segment_ids": [0, 0, 1]},
        "apply_planned": {"plan": rg.Plan([0, 1, 2], [0, 0, 1], 4)},
    }
    arguments = {**arguments, **own[name], **changed, "step": STEP}
    before = [np.array(a, copy=True) for a in (arguments["table"], *arguments["slots"])]
    with pytest.raises(rg.errors.InvalidArgumentError, match=message) as caught:
        getattr(optim, name)(**arguments)
    assert all(map(np.array_equal, (arguments["table"], *arguments["slots"]), before))
    assert caught.value.op == name
    assert {k: getattr(caught.value, k) for k in facts} == facts


def test_updated_arrays_must_not_overlap() -> None:
    table = np.ones((4, 3), F4)
    with pytest.raises(rg.errors.InvalidArgumentError, match="table is updated in place, but shares memory with grad"):
        optim.apply_all("sgd", table, (), table, STEP)
    slot = np.ones((4, 3), F4)
    with pytest.raises(rg.errors.InvalidArgumentError, match="shares memory with exp_avg_sq"):
        optim.apply_all("adam", table, (slot, slot), np.ones((4, 3), F4), STEP)
    table.flags.writeable = False
    with pytest.raises(rg.errors.InvalidArgumentError, match="read-only"):
        optim.apply_all("sgd", table, (), np.ones((4, 3), F4), STEP)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"lr": float("nan")}, "lr must be a finite number; got nan"),
        ({"lr": "fast"}, "lr must be a finite number; got 'fast'"),
        ({"lr": 1.0, "eps": -1.0}, "eps must be a finite number of at least 0; got -1.0"),
        ({"lr": 1.0, "weight_decay": -1.0}, "weight_decay must be"),
        ({"lr": 1.0, "betas": (0.9, 1.0)}, r"betas must be two numbers in \[0, 1\)"),
        ({"lr": 1.0, "betas": 0.9}, "betas must be two numbers"),
        ({"lr": 1.0, "step": 0}, "step must be an int from 1"),
        ({"lr": 1.0, "seed": -1}, "seed must be an int from 0"),
        ({"lr": 1.0, "rate": float("inf")}, "rate must be a finite number"),
    ],
)
def test_invalid_hyperparameters_raise(numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        Step(**numbers)


def test_update_kernels_are_a_separate_list() -> None:
    names = [name for name, _ in _core.update_kernels()]
    assert names == ["apply_rows", "apply_all", "apply_bags", "apply_planned"]
    assert not set(names) & {name for name, _ in _core.kernels()}


def test_masked_arrays_are_rejected_with_nothing_written() -> None:
    table, slots = np.ones((2, 1), np.float32), optim.new_slots("adagrad", np.ones((2, 1), np.float32))
    grad, masked = np.ones((2, 1), np.float32), {"mask": [[True], [False]]}
    for arrays in ((np.ma.array(table, copy=False, **masked), slots), (table, (np.ma.array(slots[0], **masked),))):
        with pytest.raises(rg.errors.InvalidArgumentError, match="got a masked array, whose mask would be lost"):
            optim.apply_all("adagrad", *arrays, grad, Step(lr=1.0))
    assert (table.ravel().tolist(), slots[0].ravel().tolist()) == ([1, 1], [0, 0])


@pytest.mark.parametrize(
    ("table", "initial", "message"),
    [
        ([[1.0]], 0.0, "table must be an array; got list"),
        (np.ones((), np.float32), 0.0, "table is updated in place and must be of rank 1 or more"),
        (np.ones((2, 2), np.int64), 0.0, "table must be one of float16, bfloat16, float32, float64; got int64"),
        (np.ones((2, 2), np.float32), "x", "initial must be a finite number of at least 0; got 'x'"),
        (np.ones((2, 2), np.float32), float("nan"), "initial must be a finite number of at least 0; got nan"),
        (np.ones((2, 2), np.float32), np.array([1.0, 2.0]), "initial must be a finite number"),
        (np.ones((2, 2), np.float32), 1e300, r"initial must be a number that fits float32; got 1e\+300"),
    ],
)
def test_invalid_arguments_of_new_slots_raise(table: Any, initial: Any, message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        optim.new_slots("row_wise_adagrad", table, initial=initial)


def test_slots_of_a_read_only_table() -> None:
    table = np.ones((2, 2), np.float32)
    table.flags.writeable = False
    assert optim.new_slots("adagrad", table, initial=0.5)[0].tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_rows_that_are_lists_are_rejected() -> None:
    rows = rg.IndexedRows([[1.0]], [0], 2)
    with pytest.raises(rg.errors.InvalidArgumentError, match="grad must be an array; got IndexedRows of list"):
        optim.apply_gradient("sgd", np.ones((2, 1), np.float32), (), rows, Step(lr=1.0))


def test_decimals_and_fractions_as_hyperparameters() -> None:
    assert Step(lr=Decimal("0.5"), eps=Fraction(1, 4), step=3).numbers() == Step(lr=0.5, eps=0.25, step=3).numbers()


@pytest.mark.parametrize("values", [1, 3])
@pytest.mark.parametrize("unique", [False, True])
def test_rows_and_indices_of_different_lengths_raise(values: int, unique: bool) -> None:
    table = np.ones((4, 2), np.float32)
    rows = rg.IndexedRows(np.ones((values, 2), np.float32), np.array([1, 2]), 4, unique)
    with pytest.raises(rg.errors.InvalidArgumentError, match=rf"indices must have shape \[{values}\], got \[2\]"):
        optim.apply_gradient("sgd", table, (), rows, Step(lr=1.0))
    assert (table == 1).all()


@pytest.mark.parametrize("indices", [np.array(1), None, iter([1]), np.ma.array([1])])
def test_row_indices_that_are_not_a_vector_raise(indices: Any) -> None:
    rows = rg.IndexedRows(np.ones((1, 2), np.float32), indices, 4)
    with pytest.raises(rg.errors.InvalidArgumentError, match="apply_gradient: indices must"):
        optim.apply_gradient("sgd", np.ones((4, 2), np.float32), (), rows, Step(lr=1.0))


@pytest.mark.parametrize(
    ("rule", "hyperparameters", "message"),
    [
        ("sgd", {"lr": 1e39}, "lr must be a number that fits float32; got 1e"),
        ("sgd", {"lr": 1, "weight_decay": 1e39}, "weight_decay must be a number that fits float32"),
        ("adagrad", {"lr": 1, "eps": 1e39}, "eps must be a number that fits float32"),
        ("adam", {"lr": 3e38}, "rate must be a number that fits float32"),
        ("adamw", {"lr": 1, "rate": -1e39}, "rate must be a number that fits float32"),
        ("adam", {"lr": 1, "betas": (0.9, 1 - 1e-9)}, "betas must be below 1 in float32; got 0.999999999"),
    ],
)
def test_hyperparameters_beyond_float32_raise(rule: str, hyperparameters: dict[str, Any], message: str) -> None:
    if rule == "adam" and "betas" not in hyperparameters:
        hyperparameters = hyperparameters | {"betas": (0.99, 0.9)}  # an lr_t above lr
    table = np.ones((4, 2), np.float32)
    slots = optim.new_slots(rule, table)
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        optim.apply_rows(rule, table, slots, np.ones((1, 2), np.float32), [1], Step(**hyperparameters))
    assert (table == 1).all()
    assert not any(slot.any() for slot in slots)
    wide = np.ones((4, 2))
    optim.apply_rows(rule, wide, optim.new_slots(rule, wide), np.ones((1, 2)), [1], Step(**hyperparameters))


def test_unused_hyperparameters_are_not_validated() -> None:
    table = np.ones((2, 1), np.float32)
    optim.apply_rows("sgd", table, (), table[:1].copy(), [1], Step(lr=0.5, eps=1e300, rate=1e300))
    assert table.ravel().tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("dtype", "shape", "offset", "message"),
    [
        ("float32", (-4, 2), 0, r"shape of table must be a tuple of sizes; got \(-4, 2\)"),
        ("float32", [4, 2], 0, "shape of table must be a tuple of sizes"),
        ("float32", (4.0, 2), 0, "shape of table must be a tuple of sizes"),
        (np.dtype(np.float32), (4, 2), 0, "dtype of table must be a str"),
        ("float32", (3, 2), 1, "address of table must be a multiple of 4 above 0"),
        ("float32", (2**62, 2), 0, "address of table must be an address"),
        ("float32", (4, 2), None, "address of table must be an address"),
    ],
)
def test_invalid_memory_raises(dtype: Any, shape: Any, offset: Any, message: str) -> None:
    table = np.ones((4, 2), np.float32)
    memory = Memory(None if offset is None else table.ctypes.data + offset, dtype, shape)  # type: ignore[arg-type]
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        optim.apply_rows("sgd", memory, (), np.ones((1, 2), np.float32), [1], Step(lr=1.0))
    assert (table == 1).all()


def test_a_table_of_non_native_byte_order_raises() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"table must be one of .*; got >f4"):
        optim.apply_rows("sgd", np.ones((4, 2), ">f4"), (), np.ones((1, 2), np.float32), [1], Step(lr=1.0))


def test_slots_beyond_memory_raise() -> None:
    with pytest.raises(rg.errors.ResourceExhaustedError, match="new_slots: OOM"):
        optim.new_slots("adam", Memory(64, "float32", (2**58, 2)))


def test_negative_initial_slots_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="initial must be a finite number of at least 0; got -1"):
        optim.new_slots("adagrad", np.ones((2, 2), np.float32), initial=-1.0)


def test_initial_slots_follow_the_rule() -> None:
    """With an accumulator of 0, FTRL would divide 0 by 0 at the first gradient of 0."""
    table = np.ones((2, 3), np.float32)
    accumulator, linear = optim.new_slots("ftrl", table)
    assert accumulator.tolist() == np.full((2, 3), 0.1, np.float32).tolist()
    assert not linear.any()
    assert not optim.new_slots("adagrad", table)[0].any()
    optim.apply_all("ftrl", table, (accumulator, linear), np.zeros((2, 3), np.float32), STEP)
    assert table.tolist() == np.zeros((2, 3)).tolist()
    assert optim.new_slots("ftrl", table, initial=0.5)[0].tolist() == [[0.5] * 3] * 2
