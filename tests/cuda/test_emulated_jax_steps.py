"""Steps of JAX's tables on a CUDA device, emulated on the host: the bits of rowgrad.optim, faults, no partial step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax.numpy", reason="the extra `jax` is not installed")

import jax
import jax.numpy as jnp
import ml_dtypes
from emulated_xla import on_cuda

import rowgrad as rg
import rowgrad.jax as rgj
from golden_cases import same_bits
from jax_arrays import x64
from rowgrad import optim as updates
from rowgrad.errors import InvalidArgumentError
from rowgrad.jax import Table, optim, value_and_rows
from rowgrad.jax.row_step import Bags

RAISED = (jax.errors.JaxRuntimeError, ValueError)  # how JAX raises an error of XLA
DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
ROWS = 50
OPTIONS = {
    "sgd": {"weight_decay": 0.05},
    "adagrad": {"eps": 1e-7},
    "row_wise_adagrad": {"eps": 1e-7, "weight_decay": 0.05},
    "adam": {"eps": 1e-6, "betas": (0.8, 0.99)},
    "adamw": {"eps": 1e-6, "weight_decay": 0.05},
    "momentum": {"momentum": 0.8, "nesterov": True},
    "lion": {"betas": (0.8, 0.95), "weight_decay": 0.05},
    "ftrl": {"l1": 0.01, "l2": 0.02, "l2_shrinkage": 0.03},
}
assert OPTIONS.keys() == updates.RULES.keys()
random = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with x64():
        yield


def drawn(shape: Any, dtype: Any) -> np.ndarray:
    return random.standard_normal(shape).astype(dtype)


def padded(values: np.ndarray, ids: Any, size: int, dtype: Any = np.int64) -> Table:
    rest = size - len(ids)
    values = np.concatenate([values, np.full((rest, *values.shape[1:]), np.nan, values.dtype)])
    ids = np.append(ids, [ROWS] * rest).astype(dtype)
    return Table.holding(rg.IndexedRows(jnp.asarray(values), jnp.asarray(ids), ROWS, is_unique=True))


def state_of(rule: str, table: np.ndarray) -> tuple[np.ndarray, ...]:
    return updates.new_slots(rule, table, *([0.25] if updates.RULES[rule].state_defaults else []))


def optimizer_of(rule: str, lr: Any) -> Any:
    start = {"initial_accumulator_value": 0.25} if updates.RULES[rule].state_defaults else {}
    return getattr(optim, rule)(lr=lr, **OPTIONS[rule], **start)


def arrays(params: Any, state: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves((params, state.slots))]


# -- Bits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", OPTIONS)
def test_steps_by_rows(rule: str) -> None:
    """Every dtype; the learning rate is a number, or a schedule whose value is known to the device only."""
    falling = lambda step: jnp.float32(0.1) / (1 + jnp.float32(step))  # noqa: E731
    with on_cuda() as device:
        for dtype in DTYPES:
            for columns, lr, ids_dtype in ((1, 0.1, np.int32), (8, falling, np.int64), (67, 0.1, np.int32)):
                table = drawn((ROWS, columns), dtype)
                optimizer = optimizer_of(rule, lr)
                params, state = Table(table), optimizer.init(Table(table))
                step = jax.jit(optimizer.step)
                expected, slots = table.copy(), state_of(rule, table)
                for number, count in enumerate((17, 0, 30)):
                    values = drawn((count, columns), dtype)
                    ids = np.sort(random.choice(ROWS, count, replace=False))
                    params, state = step(params, state, padded(values, ids, 30, ids_dtype))
                    rate = float(lr(number)) if callable(lr) else lr
                    known = updates.Step(lr=rate, step=number + 1, **OPTIONS[rule])
                    updates.apply_rows(rule, expected, slots, values, ids, known)
                assert all(map(same_bits, arrays(params, state), (expected, *slots))), (dtype, columns)
        assert "synchronize" not in device.driver.log
        assert {name.split("<")[0] for name in device.launched} >= {"check_row_ids", "step_rows"}


@pytest.mark.parametrize("combiner", updates.COMBINERS)
def test_steps_from_bags(combiner: str) -> None:
    """A model's step sums and steps in one call, in the order "blocked"."""
    ids = np.repeat([5, 3, 5, 1, 3, 3], 100)
    bags = np.sort(random.integers(0, 9, len(ids)))

    def step(params: Any, state: Any, upstream: Any, ids: Any, optimizer: Any) -> Any:
        def loss(table: Any) -> Any:
            return (table.bags(ids, bags, num_bags=9, combiner=combiner) * upstream).sum()

        return optimizer.step(params, state, value_and_rows(loss)(params)[1])

    for dtype in DTYPES:
        for rule, lr in (("row_wise_adagrad", 0.1), ("adam", lambda step: jnp.float32(0.1) / (1 + step))):
            table, upstream = drawn((ROWS, 12), dtype), drawn((9, 12), dtype)

            optimizer = optimizer_of(rule, lr)
            expected, slots = table.copy(), state_of(rule, table)
            with on_cuda() as device:
                params, state = Table(table), optimizer.init(Table(table))
                call = jax.jit(step, static_argnums=4)
                for number in range(2):
                    params, state = call(params, state, upstream, ids, optimizer)
                    rate = float(lr(number)) if callable(lr) else lr
                    known = updates.Step(lr=rate, step=number + 1, **OPTIONS[rule])
                    updates.apply_bags(
                        rule, expected, slots, upstream, ids, bags, known, combiner=combiner, order="blocked"
                    )
                assert all(map(same_bits, arrays(params, state), (expected, *slots))), (dtype, rule)
                assert not any("pad" in name or "check_row_ids" in name for name in device.launched)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_stochastic_rounding(dtype: Any) -> None:
    """The number of the step, which only the device knows, is part of the random numbers."""
    optimizer = optimizer_of("sgd", 0.01)
    table = drawn((ROWS, 9), dtype)
    expected = table.copy()
    with on_cuda():
        params, state = Table(table), optimizer.init(Table(table))
        step = jax.jit(lambda p, s, g: optimizer.step(p, s, g, stochastic_rounding=True, seed=11))
        for number in range(3):
            values, ids = drawn((20, 9), dtype), np.sort(random.choice(ROWS, 20, replace=False))
            params, state = step(params, state, padded(values, ids, 25))
            known = updates.Step(lr=0.01, weight_decay=0.05, stochastic_rounding=True, seed=11, step=number + 1)
            updates.apply_rows("sgd", expected, (), values, ids, known)
        assert same_bits(np.asarray(params.array), expected)


def test_transforms() -> None:
    optimizer = optimizer_of("adagrad", 0.1)
    table, values, ids = drawn((ROWS, 4), np.float32), drawn((3, 4), np.float32), np.array([0, 7, 49])

    def after(table: Any, values: Any, count: int = 1) -> Any:
        gradient = Table.holding(rg.IndexedRows(values, jnp.asarray(ids), ROWS, is_unique=True))

        def one(carry: Any, _: Any) -> Any:
            return optimizer.step(*carry, gradient), None

        (params, _), _ = jax.lax.scan(one, (Table(table), optimizer.init(Table(table))), None, length=count)
        return params.array

    expected, slots = table.copy(), state_of("adagrad", table)
    known = [expected]
    for number in range(2):
        updates.apply_rows("adagrad", expected, slots, values, ids, updates.Step(lr=0.1, step=number + 1, eps=1e-7))
        known.append(expected.copy())
    with on_cuda():
        for found in (
            jax.jit(after, static_argnums=2)(table, values, 2),
            after(table, values, 2),
            jax.vmap(lambda t, v: after(t, v, 2))(jnp.stack([table, table]), jnp.stack([values, values]))[1],
            sharded_over_one(lambda t: after(t, values, 2))(table),
        ):
            assert same_bits(np.asarray(found), known[2])
        slope = jax.grad(lambda v: (after(table, v) ** 2).sum())(jnp.asarray(values))
    expected_slope = jax.grad(lambda v: (after(table, v) ** 2).sum())(jnp.asarray(values))
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-6)


def sharded_over_one(function: Any) -> Any:
    from jax.sharding import Mesh, PartitionSpec

    mesh, spec = Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec("x")
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


def test_donated_tables_are_updated_in_place() -> None:
    optimizer = optimizer_of("adam", 0.1)
    with on_cuda():
        params = Table(jnp.ones((ROWS, 4), jnp.float32))
        state = optimizer.init(params)
        pointers = [x.unsafe_buffer_pointer() for x in jax.tree.leaves((params, state.slots))]
        gradient = padded(np.ones((1, 4), np.float32), [3], 2)
        params, state = jax.jit(optimizer.step, donate_argnums=(0, 1))(params, state, gradient)
        assert [x.unsafe_buffer_pointer() for x in jax.tree.leaves((params, state.slots))] == pointers


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (4, 3, 2), (5,)])
def test_shapes(shape: tuple[int, ...]) -> None:
    for rule in ("sgd", "row_wise_adagrad", "adam"):
        table = drawn(shape, np.float32)
        count = min(2, shape[0])
        values, ids = drawn((count, *shape[1:]), np.float32), np.arange(count)
        gradient = Table.holding(rg.IndexedRows(jnp.asarray(values), jnp.asarray(ids), shape[0], is_unique=True))
        optimizer = optimizer_of(rule, 0.1)
        expected, slots = table.copy(), state_of(rule, table)
        updates.apply_rows(rule, expected, slots, values, ids, updates.Step(lr=0.1, **OPTIONS[rule]))
        with on_cuda():
            found = jax.jit(optimizer.step)(Table(table), optimizer.init(Table(table)), gradient)
            assert all(map(same_bits, arrays(*found), (expected, *slots)))


# -- Many tables in one call -------------------------------------------------------------------------------------------

COUNTS = (ROWS, 7, 0, 900, 33)  # rows of tables, of which one has none


def drawn_gradients(columns: int, dtype: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the gradient of each table; one has no rows."""
    found = []
    for rows, most in zip(COUNTS, (20, 7, 0, 30, 0), strict=True):
        count = min(rows, most)
        found.append((drawn((count, columns), dtype), np.sort(random.choice(rows, count, replace=False))))
    return found


def held(values: np.ndarray, ids: Any, size: int, num_rows: int, dtype: Any) -> Table:
    """Return a gradient with padding, for a table of any number of rows."""
    rest = size - len(ids)
    values = np.concatenate([values, np.full((rest, *values.shape[1:]), np.nan, values.dtype)])
    ids = np.append(ids, [num_rows] * rest).astype(dtype)
    return Table.holding(rg.IndexedRows(jnp.asarray(values), jnp.asarray(ids), num_rows, is_unique=True))


@pytest.mark.parametrize("rule", OPTIONS)
@pytest.mark.parametrize("columns", [8, 300])
def test_rows_of_many_tables(rule: str, columns: int) -> None:
    """One check and one step for all tables; a rule with one slot per row steps wide rows table by table."""
    falling = lambda step: jnp.float32(0.1) / (1 + jnp.float32(step))  # noqa: E731
    for dtype, lr in ((np.float32, 0.1), (ml_dtypes.bfloat16, falling)):
        tables, optimizer = [drawn((rows, columns), dtype) for rows in COUNTS], optimizer_of(rule, lr)
        expected = [(table.copy(), state_of(rule, table)) for table in tables]
        with on_cuda() as device:
            params = [Table(table) for table in tables]
            state = optimizer.init(params)
            step = jax.jit(optimizer.step)
            for number in range(2):
                gradients = drawn_gradients(columns, dtype)
                grads = [
                    held(*g, 35 if rows else 0, rows, (np.int32, np.int64)[k % 2])
                    for k, (g, rows) in enumerate(zip(gradients, COUNTS, strict=True))
                ]
                params, state = step(params, state, grads)
                known = updates.Step(lr=float(lr(number)) if callable(lr) else lr, step=number + 1, **OPTIONS[rule])
                for (table, slots), gradient in zip(expected, gradients, strict=True):
                    updates.apply_rows(rule, table, slots, *gradient, known)
            names = [name.split("<")[0] for name in device.launched]
        for k, (table, slots) in enumerate(expected):
            found = [params[k].array, *(state.slots[name][k].held for name in state.slots)]
            assert all(map(same_bits, map(np.asarray, found), (table, *slots))), (dtype, k)
        assert names.count("check_table_lists") == 2
        assert "check_row_ids" not in names
        is_wide = updates.RULES[rule].per_row and columns == 300
        assert names.count("step_table_lists") == (0 if is_wide else 2)
        assert names.count("update_rows") == (2 * 4 if is_wide else 0)  # tables with rows


@pytest.mark.parametrize("combiner", updates.COMBINERS)
@pytest.mark.parametrize("columns", [12, 300])
def test_bags_of_many_tables(combiner: str, columns: int) -> None:
    """One sort, sums and step for all tables, with the bits of each alone; ids and bags of different numbers."""
    for dtype, rule in ((np.float32, "row_wise_adagrad"), (np.float16, "adam")):
        rows, optimizer = (ROWS, 3, 900, 70), optimizer_of(rule, 0.1)
        tables = [drawn((r, columns), dtype) for r in rows]
        sizes, bags = (600, 100, 33, 0), (9, 17, 1, 4)
        ids = [
            random.integers(0, r, n).astype(t) for r, n, t in zip(rows, sizes, (np.int32, np.int64) * 2, strict=True)
        ]
        segments = [np.sort(random.integers(0, b, n)).astype(np.int32) for b, n in zip(bags, sizes, strict=True)]
        upstreams = [drawn((b, columns), dtype) for b in bags]

        def step(params: Any, state: Any, ids: Any, segments: Any, upstreams: Any, optimizer: Any) -> Any:
            def loss(params: Any) -> Any:
                return sum(
                    (t.bags(i, s, num_bags=u.shape[0], combiner=combiner) * u).sum().astype(np.float32)
                    for t, i, s, u in zip(params, ids, segments, upstreams, strict=True)
                )

            return optimizer.step(params, state, value_and_rows(loss)(params)[1])

        with on_cuda() as device:
            params = [Table(t) for t in tables]
            call = jax.jit(step, static_argnums=5)
            params, state = call(params, optimizer.init(params), ids, segments, upstreams, optimizer)
            jax.block_until_ready(params)
            names = [name.split("<")[0] for name in device.launched]
        for k, table in enumerate(tables):
            expected, slots = table.copy(), state_of(rule, table)
            known = updates.Step(lr=0.1, **OPTIONS[rule])
            updates.apply_bags(
                rule, expected, slots, upstreams[k], ids[k], segments[k], known, combiner=combiner, order="blocked"
            )
            found = [params[k].array, *(state.slots[name][k].held for name in state.slots)]
            assert all(map(same_bits, map(np.asarray, found), (expected, *slots))), (dtype, k)
        assert names.count("stack_table_bags") == 1
        is_wide = updates.RULES[rule].per_row and columns == 300
        assert names.count("step_table_rows") == (0 if is_wide else 1)
        assert names.count("find_rows") == (3 if is_wide else 1)  # sorts


def test_many_tables_need_few_launches() -> None:
    """Twenty tables are stepped by as many launches and memsets as two, but for the passes of a longer sort."""
    optimizer = optimizer_of("row_wise_adagrad", 0.1)
    bags = np.repeat(np.arange(4), 3).astype(np.int32)

    def step(params: Any, state: Any, ids: Any) -> Any:
        grads = value_and_rows(lambda params: sum((t.bags(ids, bags, 4) ** 2).sum() for t in params))(params)[1]
        return optimizer.step(params, state, grads)

    queued = []
    for count in (2, 20):
        params = [Table(drawn((40, 4), np.float32)) for _ in range(count)]
        with on_cuda() as device:
            jax.block_until_ready(jax.jit(step)(params, optimizer.init(params), jnp.arange(12)))
            lookups = sum(name.startswith("sum_bags") for name in device.launched)
            queued.append((len(device.launched) - lookups, device.driver.log.count("memset")))
        assert lookups == count
    # Twice put_words, stack_table_bags, scan_ids, sort_pass, find_rows, sum_feature_rows, step_table_rows; then another
    # pass, because there are more than 1,024 rows, and join_runs.
    assert queued == [(8, 3), (10, 3)]


def test_bad_ids_of_one_of_many_tables() -> None:
    """No table is updated, and the error names the table."""
    optimizer = optimizer_of("adagrad", 0.1)
    tables = {name: drawn((ROWS, 4), np.float32) for name in ("a", "b", "c")}
    good = {name: padded(np.ones((2, 4), np.float32), [3, 9], 3) for name in tables}
    bad = Table.holding(rg.IndexedRows(jnp.ones((3, 4)), jnp.array([7, 2, 50]), ROWS, is_unique=True))
    step = jax.jit(optimizer.step)
    with on_cuda():
        params = {name: Table(table) for name, table in tables.items()}
        before = params, optimizer.init(params)
        after = step(*before, {**good, "b": bad})
        assert all(map(same_bits, arrays(*after), arrays(*before)))
        with pytest.raises(InvalidArgumentError, match=r"strictly increasing .* got row_ids\[1\] = 2") as raised:
            rgj.synchronize()
        assert (raised.value.argument, raised.value.position) == ("row_ids", 1)
        assert "in apply_rows(table['b']=float32[50,4], grad=float32[3,4]" in raised.value.__notes__[0]
        after = step(*before, {**good, "c": lowest(3)})  # a rejected gradient: reported when it was rejected
        rgj.synchronize()
        assert all(map(same_bits, arrays(*after), arrays(*before)))
        after = step(*before, good)
        assert not any(map(same_bits, arrays(*after), arrays(*before)))


def test_a_bad_learning_rate_of_many_tables() -> None:
    optimizer = optimizer_of("sgd", lambda step: jnp.float32(np.nan))
    with on_cuda():
        params = [Table(drawn((ROWS, 4), np.float32)) for _ in range(2)]
        before = params, optimizer.init(params)
        after = jax.jit(optimizer.step)(*before, [padded(np.ones((1, 4), np.float32), [3], 2)] * 2)
        assert all(map(same_bits, arrays(*after), arrays(*before)))
        with pytest.raises(InvalidArgumentError, match=r"lr must be .*; got nan") as raised:
            rgj.synchronize()
        assert not hasattr(raised.value, "__notes__")  # the number is that of all tables: none is named


@pytest.mark.parametrize("columns", [0, 4])
def test_transforms_of_many_tables(columns: int) -> None:
    """vmap steps one element after the other; tables without columns have nothing to step."""
    optimizer, values = optimizer_of("adagrad", 0.1), drawn((3, columns), np.float32)
    ids, tables = np.array([0, 7, 49]), drawn((2, 3, ROWS, columns), np.float32)

    def step(tables: Any) -> Any:
        params = [Table(t) for t in tables]
        grads = [Table.holding(rg.IndexedRows(jnp.asarray(values), jnp.asarray(ids), ROWS, is_unique=True))] * 3
        return [t.array for t in optimizer.step(params, optimizer.init(params), grads)[0]]

    with on_cuda() as device:
        for found in (jax.vmap(step)(jnp.asarray(tables)), jax.jit(jax.vmap(step))(jnp.asarray(tables))):
            for k, of_table in enumerate(found):
                for element, table in zip(of_table, tables[:, k], strict=True):
                    expected = table.copy()
                    slots, known = state_of("adagrad", expected), updates.Step(lr=0.1, eps=1e-7)
                    updates.apply_rows("adagrad", expected, slots, values, ids, known)
                    assert same_bits(np.asarray(element), expected)
        assert any("check_table_lists" in name for name in device.launched) == (columns > 0)  # XLA removes empty arrays


@pytest.mark.parametrize("columns", [4, 300])
@pytest.mark.parametrize(
    ("ids", "segments", "message", "position"),
    [
        ([1, 50, 2], [0, 0, 1], r"50 out of range \[0, 50\)", 1),
        ([1, 5, 2], [0, 7, 1], r"7 out of range \[0, 2\)", 1),
        ([1, 5, 2], [0, 1, 2], r"segment_ids", None),
    ],
)
def test_bad_bags_of_one_of_many_tables(
    ids: list[int], segments: list[int], message: str, position: int | None, columns: int
) -> None:
    optimizer, upstream = optimizer_of("row_wise_adagrad", 0.1), jnp.ones((2, columns), np.float32)

    @jax.jit
    def step(params: Any, state: Any, ids: Any, segments: Any) -> Any:
        grads = {}
        for name in params:
            rows = rg.IndexedRows(jnp.zeros((3, columns), np.float32), jnp.arange(3), ROWS, is_unique=True)
            own = (ids, segments) if name == "b" else (jnp.arange(3), jnp.array([0, 0, 1]))
            object.__setattr__(rows, "_bags", Bags("Mean", upstream, *own))  # without the lookup, which rejects them
            grads[name] = Table.holding(rows)
        return optimizer.step(params, state, grads)

    with on_cuda():
        params = {name: Table(drawn((ROWS, columns), np.float32)) for name in ("a", "b", "c")}
        before = params, optimizer.init(params)
        after = step(*before, jnp.array(ids), jnp.array(segments))
        assert all(map(same_bits, arrays(*after), arrays(*before)))
        with pytest.raises(InvalidArgumentError, match=message) as raised:
            rgj.synchronize()
        if position is not None:
            assert raised.value.position == position
        assert f"in apply_bags(table['b']=float32[50,{columns}]" in raised.value.__notes__[0]


# -- Faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "position"),
    [([3, 2, 50], 1), ([2, 2, 50], 1), ([-1, 3, 50], 0), ([2, 51, 50], 1), ([50, 2, 50], 0), ([2, 50, 3], 1)],
)
def test_bad_rows_leave_everything_unchanged(bad: list[int], position: int) -> None:
    table, optimizer = drawn((ROWS, 4), np.float32), optimizer_of("adagrad", 0.1)
    gradient = Table.holding(rg.IndexedRows(jnp.ones((3, 4), jnp.float32), jnp.asarray(bad), ROWS, is_unique=True))
    step = jax.jit(optimizer.step)
    with on_cuda():
        before = Table(table), optimizer.init(Table(table))
        after = step(*before, gradient)
        assert all(map(same_bits, arrays(*after), arrays(*before)))
        with pytest.raises(InvalidArgumentError) as raised:
            rgj.synchronize()
        slots, grad, number = state_of("adagrad", table), np.ones((3, 4), np.float32), updates.Step(lr=0.1)
        with pytest.raises(InvalidArgumentError) as expected:
            updates.apply_rows("adagrad", table, slots, grad, bad, number)
        assert raised.value.message == expected.value.message
        assert (raised.value.position, raised.value.argument) == (position, "row_ids")
        assert "in apply_rows(table=float32[50,4]" in "".join(raised.value.__notes__)
        good = step(*before, padded(np.ones((1, 4), np.float32), [3], 2))
        assert not same_bits(np.asarray(good[0].array), table)


@pytest.mark.parametrize(("ids", "size"), [([1, 50, 2], None), ([1, 50, 2], 3), ([1, 4, 2], 2)])
def test_rejected_gradients_are_no_steps(ids: list[int], size: int | None) -> None:
    """A bad id, or more rows than `size`: the gradient's error is the only one."""
    table, optimizer = drawn((ROWS, 4), np.float32), optimizer_of("adam", 0.1)
    gradient = jax.jit(value_and_rows(lambda t, ids: t[ids].sum(), size=size))
    step = jax.jit(optimizer.step)
    with on_cuda():
        before = Table(table), optimizer.init(Table(table))
        with pytest.raises(RAISED, match=r"not in \[0, 50\)" if 50 in ids else "size"):  # at the latest by the step
            jax.block_until_ready(step(*before, gradient(before[0], jnp.array(ids))[1]))
        after = step(*before, lowest(size or 3))
        rgj.synchronize()  # nothing else is reported
        assert all(map(same_bits, arrays(*after), arrays(*before)))
        good = gradient(before[0], jnp.array([1, 4, 4]))[1]
        assert not same_bits(np.asarray(step(*before, good)[0].array), table)


def lowest(size: int) -> Table:
    """Return what a rejected gradient leaves: see poison.h."""
    ids = jnp.full(size, np.iinfo(np.int64).min)
    return Table.holding(rg.IndexedRows(jnp.full((size, 4), np.nan, np.float32), ids, ROWS, is_unique=True))


def test_a_rejected_gradient_leaves_the_lowest_ids() -> None:
    call = jax.jit(lambda ids: rg.raw_ops.SparseSegmentSumGradV2(
        jnp.ones((1, 4), np.float32), ids, jnp.zeros(3, np.int64), ROWS, size=3))  # fmt: skip
    with on_cuda():
        for ids in ([1, 50, 2], [-1, 2, 3]):
            found = call(jnp.array(ids))
            assert np.array_equal(found.sorted_unique_indices, lowest(3).rows.indices)
            with pytest.raises(InvalidArgumentError):
                rgj.synchronize()


def test_bad_ids_of_a_fused_step() -> None:
    table, optimizer = drawn((ROWS, 4), np.float32), optimizer_of("row_wise_adagrad", 0.1)
    upstream, bags = jnp.ones((1, 4), np.float32), jnp.zeros(3, np.int32)

    @jax.jit
    def step(params: Any, state: Any, ids: Any) -> Any:
        rows = rg.IndexedRows(jnp.zeros((3, 4), np.float32), jnp.arange(3), ROWS, is_unique=True)
        object.__setattr__(rows, "_bags", Bags("Sum", upstream, ids, bags))  # without the lookup, which rejects them
        return optimizer.step(params, state, Table.holding(rows))

    with on_cuda():
        before = Table(table), optimizer.init(Table(table))
        after = step(*before, jnp.array([1, 50, 2]))
        assert all(map(same_bits, arrays(*after), arrays(*before)))
        with pytest.raises(InvalidArgumentError, match=r"50 out of range \[0, 50\)") as raised:
            rgj.synchronize()
        assert (raised.value.argument, raised.value.position) == ("indices", 1)
        assert "in apply_bags(table=float32[50,4], grad=float32[1,4], indices=int64[3]" in raised.value.__notes__[0]


@pytest.mark.parametrize(("rule", "lr"), [("sgd", float("nan")), ("ftrl", 0.0), ("adam", float("inf"))])
def test_bad_learning_rates(rule: str, lr: float) -> None:
    """Values that only the device knows: nothing is updated, and the error is that of rowgrad.optim."""
    table = drawn((ROWS, 4), np.float32)
    gradient = padded(np.ones((1, 4), np.float32), [3], 2)
    optimizer = optimizer_of(rule, lambda step: jnp.float32(lr))
    with on_cuda():
        before = Table(table), optimizer.init(Table(table))
        after = jax.jit(optimizer.step)(*before, gradient)
        assert all(map(same_bits, arrays(*after), arrays(*before)))
        with pytest.raises(InvalidArgumentError, match=f"lr must be .*; got {lr}"):
            rgj.synchronize()


def test_programs_for_cuda_call_the_kernels() -> None:
    optimizer = optimizer_of("adagrad", 0.1)
    table = Table(jnp.ones((ROWS, 4), jnp.float32))
    gradient = padded(np.ones((1, 4), np.float32), [3], 2)
    traced = jax.jit(optimizer.step, donate_argnums=(0, 1)).trace(table, optimizer.init(table), gradient)
    assert "@rowgrad_cuda_step" in traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "@rowgrad_step" in traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "@rowgrad" not in traced.lower(lowering_platforms=("tpu",)).as_text()
