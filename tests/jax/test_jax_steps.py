"""Steps of tables in place, `optimizer.step`: the bits of rowgrad.optim, transforms, errors."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

import rowgrad as rg
from golden_cases import same_bits
from jax_arrays import x64
from rowgrad import optim as updates
from rowgrad.errors import InvalidArgumentError
from rowgrad.jax import Table, optim, row_step, value_and_rows
from rowgrad.jax import rows as row_arithmetic

RAISED = (jax.errors.JaxRuntimeError, ValueError)
OPTIONS = {
    "sgd": {},
    "adagrad": {"eps": 1e-7},
    "row_wise_adagrad": {"eps": 1e-7},
    "adam": {"eps": 1e-6, "betas": (0.8, 0.99)},
    "adamw": {"eps": 1e-6},
    "momentum": {"momentum": 0.8, "nesterov": True},
    "lion": {"betas": (0.8, 0.95)},
    "ftrl": {"l1": 0.01, "l2": 0.02, "l2_shrinkage": 0.03},
}
assert OPTIONS.keys() == updates.RULES.keys()
DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
ROWS, STEPS = 40, 3
random = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with x64():
        yield


def options_of(rule: str, weight_decay: float) -> dict[str, Any]:
    takes = "weight_decay" in updates.RULES[rule].defaults
    return {**OPTIONS[rule], **({"weight_decay": weight_decay} if takes else {})}


def drawn(shape: Any, dtype: Any) -> np.ndarray:
    return random.standard_normal(shape).astype(dtype)


def padded(values: np.ndarray, ids: np.ndarray, size: int, num_rows: int, dtype: Any = np.int32) -> rg.IndexedRows:
    """Return a row-sparse gradient with padding that contains numbers."""
    rest = size - len(ids)
    return rg.IndexedRows(
        jnp.asarray(np.concatenate([values, np.full((rest, *values.shape[1:]), 77, values.dtype)])),
        jnp.asarray(np.append(ids, [num_rows] * rest).astype(dtype)), num_rows, is_unique=True,
    )  # fmt: skip


def known_steps(
    rule: str, table: np.ndarray, gradients: Any, numbers: list[dict[str, Any]], **more: Any
) -> tuple[np.ndarray, ...]:
    """Return table and slots after steps of `rowgrad.optim`."""
    table = table.copy()
    slots = updates.new_slots(rule, table, *([0.25] if updates.RULES[rule].state_defaults else []))
    for k, ((values, ids), of_step) in enumerate(zip(gradients, numbers, strict=True)):
        updates.apply_rows(rule, table, slots, values, ids, updates.Step(step=k + 1, **of_step, **more))
    return table, *slots


def initial(rule: str) -> dict[str, float]:
    return {"initial_accumulator_value": 0.25} if updates.RULES[rule].state_defaults else {}


def run(optimizer: Any, params: Any, gradients: Any, **options: Any) -> tuple[np.ndarray, ...]:
    """Return table and slots after compiled steps, one program for all."""

    def one(carry: Any, gradient: Any) -> Any:
        params, state = carry
        return optimizer.step(params, state, gradient, **options), None

    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *gradients)
    run_all = jax.jit(lambda params: jax.lax.scan(one, (params, optimizer.init(params)), stacked)[0])
    params, state = run_all(params)
    return np.asarray(jax.tree.leaves(params)[0]), *(np.asarray(jax.tree.leaves(s)[0]) for s in state.slots.values())


def batches(columns: int, dtype: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    return [
        (drawn((size, columns), dtype), np.sort(random.choice(ROWS, size, replace=False))) for size in (9, 0, 17)
    ]  # fmt: skip


@pytest.mark.parametrize("weight_decay", [0.0, 0.05], ids=["plain", "decay"])
@pytest.mark.parametrize("rule", OPTIONS)
def test_bits_of_rowgrad_optim(rule: str, weight_decay: float) -> None:
    """All dtypes, also with a schedule of learning rates, whose values only the program knows."""
    numbers = options_of(rule, weight_decay)
    falling = lambda step: jnp.float32(0.1) / (1 + jnp.float32(step))  # noqa: E731
    for dtype in DTYPES:
        for columns, lr in ((1, 0.1), (8, falling), (13, 0.1)):
            table, gradients = drawn((ROWS, columns), dtype), batches(columns, dtype)
            rows = [Table.holding(padded(*g, 20, ROWS, (np.int32, np.int64)[columns % 2])) for g in gradients]
            rates = [float(lr(k)) if callable(lr) else lr for k in range(STEPS)]
            expected = known_steps(rule, table, gradients, [{"lr": r, **numbers} for r in rates])
            found = run(getattr(optim, rule)(lr=lr, **numbers, **initial(rule)), Table(table), rows)
            assert all(map(same_bits, found, expected)), (dtype, columns)


@pytest.mark.parametrize("rule", ["adam", "adamw"])
def test_the_rate_of_late_steps(rule: str) -> None:
    """1 − βᵗ has the bits of rowgrad.optim, with and without JAX's 64-bit mode."""
    table, values, ids = drawn((4, 3), np.float32), drawn((2, 3), np.float32), np.array([1, 3])
    for wide in (False, True):
        with x64(wide):
            optimizer = getattr(optim, rule)(lr=0.3, betas=(0.9, 0.999))
            step = jax.jit(optimizer.step)
            for number in (1, 2, 3, 10, 999, 1000, 12345, 2**30, 2**31 - 1):
                state = optimizer.init(Table(table))._replace(step=jnp.int32(number - 1))
                found, _ = step(Table(table), state, Table.holding(padded(values, ids, 3, 4)))
                expected, slots = table.copy(), updates.new_slots(rule, table)
                decay = {"weight_decay": 0.01} if rule == "adamw" else {}
                updates.apply_rows(rule, expected, slots, values, ids, updates.Step(lr=0.3, step=number, **decay))
                assert same_bits(np.asarray(found.array), expected), number


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_stochastic_rounding(dtype: Any) -> None:
    """The seed of a table is `seed` plus its position in the tree."""
    table, gradients = drawn((ROWS, 9), dtype), batches(9, dtype)
    rows = [{"a": None, "b": Table.holding(padded(*g, 20, ROWS))} for g in gradients]
    params = {"a": jnp.ones(2), "b": Table(table)}
    optimizer = optim.adagrad(lr=1e-3, initial_accumulator_value=0.25)
    random_options = {"stochastic_rounding": True, "seed": 5}
    numbers = [{"lr": 1e-3, "eps": 1e-10}] * STEPS
    expected = known_steps("adagrad", table, gradients, numbers, stochastic_rounding=True, seed=6)
    state = optimizer.init(params)
    step = jax.jit(lambda p, s, g: optimizer.step(p, s, g, **random_options))
    for gradient in rows:
        params, state = step(params, state, gradient)
    assert same_bits(np.asarray(params["b"].array), expected[0])
    assert not same_bits(expected[0], known_steps("adagrad", table, gradients, numbers)[0])
    with pytest.raises(InvalidArgumentError, match="seed"):
        optimizer.step(params, state, rows[0], stochastic_rounding=True, seed=-1)
    with pytest.raises(InvalidArgumentError, match="stochastic_rounding"):
        optimizer.step(params, state, rows[0], stochastic_rounding=1)


# -- Fused with the gradient of bags -----------------------------------------------------------------------------------


@pytest.mark.parametrize("combiner", updates.COMBINERS)
def test_steps_of_a_model(combiner: str) -> None:
    """A step of a single lookup sums and steps in one call; its bits are those of a step by rows."""
    ids = np.repeat([5, 3, 5, 1], 40)
    bags = np.sort(random.integers(0, 7, len(ids))).astype(np.int32)
    upstream = drawn((7, 6), np.float32)
    table = drawn((9, 6), np.float32)

    def loss(params: Any, size: Any = None) -> Any:
        return (params["items"].bags(ids, bags, num_bags=7, combiner=combiner) * upstream).sum()

    optimizer = optim.row_wise_adagrad(lr=0.1)
    params = {"items": Table(table)}

    def step(params: Any, state: Any, size: Any) -> Any:
        _, grads = value_and_rows(loss, size=size)(params)
        return optimizer.step(params, state, grads)

    expected, slots = table.copy(), updates.new_slots("row_wise_adagrad", table)
    number = updates.Step(lr=0.1)
    updates.apply_bags("row_wise_adagrad", expected, slots, upstream, ids, bags, number, combiner=combiner)
    for size in (None, 5):
        call = jax.jit(step, static_argnums=2)
        found, state = call(params, optimizer.init(params), size)
        assert same_bits(np.asarray(found["items"].array), expected)
        assert same_bits(np.asarray(state.slots["sum"]["items"].held), slots[0])
        text = call.lower(params, optimizer.init(params), size).compile().as_text()
        calls = [line for line in text.splitlines() if "custom-call(" in line]
        assert len(calls) == (2 if size is None else 3), text  # the lookup, perhaps the gradient, the step


def test_scaled_gradients_are_steps_by_rows() -> None:
    params = Table(jnp.zeros((9, 2), jnp.float32))
    ids = jnp.array([4, 4, 1])

    def step(params: Any) -> Any:
        _, grads = value_and_rows(lambda t: t[ids].sum())(params)
        return optim.sgd(lr=1.0).step(params, optim.sgd().init(params), row_arithmetic.scale(grads, 0.5))[0]

    found = np.asarray(jax.jit(step)(params).array)
    assert (-found[:, 0]).tolist() == [0.0, 0.5, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


# -- Many tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["sgd", "adam", "row_wise_adagrad"])
def test_many_tables(rule: str) -> None:
    """Tables of one dtype and width, with gradients of rows, others, and a dense leaf: the bits of each table alone."""
    optimizer = getattr(optim, rule)(lr=0.1, **OPTIONS[rule], **initial(rule))
    shapes = [(40, 8), (7, 8), (300, 8), (5, 8), (40, 3), (40, 8)]
    dtypes = [np.float32] * 5 + [np.float64]
    params, grads, expected = {}, {}, []
    for k, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        table, count = drawn(shape, dtype), min(shape[0], 9) if k != 3 else 0
        values, ids = drawn((count, shape[1]), dtype), np.sort(random.choice(shape[0], count, replace=False))
        params[f"t{k}"] = Table(table)
        grads[f"t{k}"] = Table.holding(padded(values, ids, 9, shape[0], (np.int32, np.int64)[k % 2]))
        expected.append(known_steps(rule, table, [(values, ids)], [{"lr": 0.1, **OPTIONS[rule]}]))
    params["w"], grads["w"] = jnp.ones(3), jnp.ones(3)
    state = optimizer.init(params)
    found, state = jax.jit(optimizer.step)(params, state, grads)
    for k, (table, *slots) in enumerate(expected):
        assert same_bits(np.asarray(found[f"t{k}"].array), table), k
        for slot, name in zip(slots, state.slots, strict=True):
            assert same_bits(np.asarray(state.slots[name][f"t{k}"].held), slot), (k, name)


def test_bags_of_many_tables() -> None:
    """A model's step with several tables: the bits of each table alone."""
    rows, count = (9, 40, 200), 300
    tables = [drawn((r, 6), np.float32) for r in rows]
    ids = [random.integers(0, r, count) for r in rows]
    bags = [np.sort(random.integers(0, 7 + k, count)) for k in range(3)]
    upstreams = [drawn((7 + k, 6), np.float32) for k in range(3)]
    optimizer = optim.row_wise_adagrad(lr=0.1)

    def step(params: Any, state: Any, combiners: Any) -> Any:
        def loss(params: Any) -> Any:
            sums = (
                (table.bags(i, b.astype(np.int32), num_bags=len(u), combiner=c) * u).sum()
                for table, i, b, u, c in zip(params, ids, bags, upstreams, combiners, strict=True)
            )
            return sum(sums, jnp.float32(0))

        return optimizer.step(params, state, value_and_rows(loss)(params)[1])

    for combiners in (("mean",) * 3, ("sum", "sqrtn", "sum")):
        params = [Table(t) for t in tables]
        found, _ = jax.jit(step, static_argnums=2)(params, optimizer.init(params), combiners)
        for k, table in enumerate(tables):
            expected, slots = table.copy(), updates.new_slots("row_wise_adagrad", table)
            number = updates.Step(lr=0.1)
            updates.apply_bags(
                "row_wise_adagrad", expected, slots, upstreams[k], ids[k], bags[k], number, combiner=combiners[k]
            )
            assert same_bits(np.asarray(found[k].array), expected), (combiners, k)


def test_a_table_that_is_two_leaves() -> None:
    """Two leaves with one array: each is stepped from its own copy."""
    optimizer, table = optim.sgd(lr=1.0), jnp.zeros((4, 2), jnp.float32)
    params = (Table(table), Table(table))
    grads = tuple(Table.holding(padded(np.ones((1, 2), np.float32), np.array([k]), 2, 4)) for k in (1, 2))
    (a, b), _ = jax.jit(optimizer.step)(params, optimizer.init(params), grads)
    assert (a.array[:, 0].tolist(), b.array[:, 0].tolist()) == ([0, -1, 0, 0], [0, 0, -1, 0])

    @jax.jit
    def twice(table: Any) -> Any:
        params = (Table(table), Table(table))
        return optimizer.step(params, optimizer.init(params), grads)[0]

    a, b = twice(table)
    assert (a.array[:, 0].tolist(), b.array[:, 0].tolist()) == ([0, -1, 0, 0], [0, 0, -1, 0])


def test_seeds_of_many_tables() -> None:
    """Each table of a call has its own seed and bits of stochastic rounding."""
    table, gradients = drawn((ROWS, 9), np.float16), batches(9, np.float16)[:1]
    optimizer = optim.sgd(lr=1e-3)
    params = [Table(table), Table(table)]
    grads = [Table.holding(padded(*gradients[0], 20, ROWS))] * 2
    found, _ = jax.jit(lambda p, g: optimizer.step(p, optimizer.init(p), g, stochastic_rounding=True, seed=5))(
        params, grads
    )
    for k in range(2):
        expected = known_steps("sgd", table, gradients, [{"lr": 1e-3}], stochastic_rounding=True, seed=5 + k)[0]
        assert same_bits(np.asarray(found[k].array), expected)
    assert not same_bits(np.asarray(found[0].array), np.asarray(found[1].array))


def test_a_bad_id_names_its_table() -> None:
    optimizer = optim.sgd(lr=1.0)
    params = {name: Table(jnp.ones((6, 2))) for name in ("a", "b", "c")}
    grads = {name: Table.holding(padded(np.ones((2, 2)), np.array([1, 4]), 3, 6)) for name in params}
    bad = rg.IndexedRows(jnp.ones((3, 2)), jnp.array([2, 1, 6]), 6, is_unique=True)
    with pytest.raises(RAISED, match="row_ids must be strictly increasing and in") as raised:
        jax.block_until_ready(
            jax.jit(optimizer.step)(params, optimizer.init(params), {**grads, "b": Table.holding(bad)})
        )
    assert "apply_rows(table['b']=float64[6,2], grad=float64[3,2], row_ids=int64[3])" in str(raised.value)
    assert "got row_ids[1] = 1" in str(raised.value)


def test_derivatives_and_vmap_of_many_tables() -> None:
    """As those of `update` and `apply_updates`."""
    optimizer, ids = optim.adagrad(lr=0.1, initial_accumulator_value=0.25), jnp.array([1, 4])
    tables, values = drawn((2, 3, 6, 2), np.float64), drawn((3, 2, 2), np.float64)

    def after(tables: Any, values: Any, by_step: bool) -> Any:
        params = [Table(t) for t in tables]
        grads = [Table.holding(rg.IndexedRows(v, ids, 6, is_unique=True)) for v in values]
        state = optimizer.init(params)
        if by_step:
            params, state = optimizer.step(params, state, grads)
        else:
            changes, state = optimizer.update(grads, state, params)
            params = optim.apply_updates(params, changes)
        return jnp.stack([t.array for t in params])

    mapped = [jax.vmap(lambda t, by=by: after(t, values, by))(jnp.asarray(tables)) for by in (True, False)]
    np.testing.assert_allclose(*mapped, rtol=1e-9)
    slopes = [
        jax.grad(lambda v, by=by: (after(tables[0], v, by) ** 2).sum())(jnp.asarray(values)) for by in (True, False)
    ]
    np.testing.assert_allclose(*slopes, rtol=1e-9)
    assert np.abs(slopes[0]).min() > 0


def test_many_tables_in_a_mesh_keep_what_they_share() -> None:
    """Inside shard_map, a table that all devices share is not in the call of one that differs between them."""
    if not hasattr(jax, "typeof"):
        pytest.skip("this JAX does not track what varies")
    from jax.sharding import Mesh, PartitionSpec

    mesh, split, whole = Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec("x"), PartitionSpec()
    optimizer = optim.sgd(lr=1.0)
    gradient = padded(np.ones((1, 2), np.float32), np.array([1]), 2, 4)

    def step(own: Any, shared: Any) -> Any:
        params = (Table(own), Table(shared))
        after, _ = optimizer.step(params, optimizer.init(params), (Table.holding(gradient),) * 2)
        return tuple(t.array for t in after)

    table = jnp.zeros((4, 2), jnp.float32)
    found = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(split, whole), out_specs=(split, whole)))(table, table)
    assert [x[:, 0].tolist() for x in found] == [[0, -1, 0, 0]] * 2


# -- In place ----------------------------------------------------------------------------------------------------------


def test_donated_tables_are_updated_in_place() -> None:
    optimizer = optim.adam(lr=0.1)
    names = ("items", "users")
    params = {name: Table(jnp.ones((1000, 8), jnp.float32)) for name in names}
    state = optimizer.init(params)
    grads = {n: Table.holding(padded(np.ones((3, 8), np.float32), np.array([1, 5, 999]), 5, 1000)) for n in names}
    step = jax.jit(optimizer.step, donate_argnums=(0, 1))
    text = step.lower(params, state, grads).compile().as_text()
    assert "output_to_operand_aliasing" in text
    assert "copy(" not in text
    leaves = jax.tree.leaves((params, state.slots))
    before = [leaf.unsafe_buffer_pointer() for leaf in leaves]
    params, state = step(params, state, grads)
    after = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((params, state.slots))]
    assert before == after
    assert jax.tree.leaves(leaves)[0].is_deleted()


def test_tables_that_are_needed_later_are_copied() -> None:
    optimizer = optim.sgd(lr=1.0)
    table = Table(jnp.ones((4, 2), jnp.float32))
    gradient = Table.holding(padded(np.ones((1, 2), np.float32), np.array([2]), 2, 4))

    @jax.jit
    def step(table: Any) -> Any:
        after, _ = optimizer.step(table, optimizer.init(table), gradient)
        return after.array, table.array * 1

    found, before = step(table)
    assert found[:, 0].tolist() == [1.0, 1.0, 0.0, 1.0]
    assert before.tolist() == np.ones((4, 2)).tolist()
    assert table.array.tolist() == np.ones((4, 2)).tolist()
    eager, _ = optimizer.step(table, optimizer.init(table), gradient)  # outside of jit
    assert eager.array.tolist() == found.tolist()


# -- Trees, options, transforms ----------------------------------------------------------------------------------------


def test_other_leaves_and_missing_gradients() -> None:
    """Dense gradients step as by `update`; None leaves its parameter unchanged."""
    params = {"t": Table(drawn((5, 2), np.float32)), "w": jnp.ones(3), "s": jnp.array(2.0), "n": jnp.array([1, 2])}
    grads = {"t": Table.holding(padded(np.ones((1, 2), np.float32), np.array([2]), 2, 5)), "w": jnp.arange(3.0)}
    grads |= {"s": jnp.array(0.5), "n": None}
    optimizer = optim.momentum(lr=0.1, weight_decay=0.01)
    found, state = jax.jit(optimizer.step)(params, optimizer.init(params), grads)
    changes, other = optimizer.update(grads, optimizer.init(params), params)
    expected = optim.apply_updates(params, changes)
    assert found["n"].tolist() == [1, 2]
    for a, b in zip(*map(jax.tree.leaves, ((found, state), (expected, other))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert int(state.step) == 1


def test_traced_hyperparameters() -> None:
    """A traced learning rate reaches the kernel; with others the step is made of JAX operations."""
    table, gradient = Table(drawn((5, 2), np.float32)), padded(drawn((2, 2), np.float32), np.array([1, 4]), 3, 5)

    def step(lr: Any, momentum: Any) -> Any:
        optimizer = optim.momentum(lr=lr, momentum=momentum)
        return optimizer.step(table, optimizer.init(table), Table.holding(gradient))[0].array

    expected = np.asarray(step(0.1, 0.5))
    by_kernel = jax.jit(lambda lr: step(lr, 0.5))
    assert "rowgrad_step" in by_kernel.lower(jnp.float32(0.1)).as_text()
    assert same_bits(np.asarray(by_kernel(jnp.float32(0.1))), expected)
    by_operations = jax.jit(step)
    assert "rowgrad_step" not in by_operations.lower(jnp.float32(0.1), jnp.float32(0.5)).as_text()
    np.testing.assert_allclose(by_operations(jnp.float32(0.1), jnp.float32(0.5)), expected, rtol=1e-6)
    injected = optax.inject_hyperparams(optim.sgd)(lr=0.1)
    assert injected.init(table).hyperparams["lr"] == 0.1
    with pytest.raises(Exception, match="stochastic_rounding"):
        jax.jit(
            lambda m: optim.momentum(momentum=m).step(
                table, optim.momentum().init(table), Table.holding(gradient), stochastic_rounding=True
            )
        )(jnp.float32(0.5))


@pytest.mark.parametrize("rule", OPTIONS)
def test_derivatives(rule: str) -> None:
    optimizer = getattr(optim, rule)(lr=0.1, **OPTIONS[rule], **initial(rule))
    table, ids = drawn((6, 3), np.float64), np.array([1, 4])

    def after(values: Any, table: Any, by_step: bool) -> Any:
        gradient = Table.holding(rg.IndexedRows(values, jnp.asarray(ids), 6, is_unique=True))
        params, state = Table(table), optimizer.init(Table(table))
        if by_step:
            params, state = optimizer.step(params, state, gradient)
        else:
            changes, state = optimizer.update(gradient, state, params)
            params = optim.apply_updates(params, changes)
        return (params.array**2).sum() + sum((s.held * 0.3).sum() for s in state.slots.values())

    values = drawn((2, 3), np.float64)
    for compiled in (lambda f, **_: f, jax.jit):
        found, expected = (
            compiled(jax.grad(after, argnums=(0, 1)), static_argnums=2)(values, table, by_step)
            for by_step in (True, False)
        )
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    curved = [jax.hessian(lambda v, by=by: after(v, table, by))(values) for by in (True, False)]
    np.testing.assert_allclose(*curved, rtol=1e-9, atol=1e-12)
    pushed = jax.jvp(lambda v: after(v, table, True), (values,), (np.ones_like(values),))[1]
    np.testing.assert_allclose(pushed, np.asarray(found[0]).sum(), rtol=1e-9)


def test_vmap_and_shard_map() -> None:
    optimizer = optim.adagrad(lr=0.1, initial_accumulator_value=0.25)
    tables = drawn((3, 6, 2), np.float32)
    values, ids = drawn((2, 2), np.float32), np.array([1, 4])
    gradient = Table.holding(padded(values, ids, 3, 6))

    def step(table: Any) -> Any:
        params, state = optimizer.step(Table(table), optimizer.init(Table(table)), gradient)
        return params.array, state.slots["sum"].held

    expected = [known_steps("adagrad", t, [(values, ids)], [{"lr": 0.1, "eps": 1e-10}]) for t in tables]
    for mapped in (jax.vmap(step), jax.jit(jax.vmap(step))):
        found = mapped(jnp.asarray(tables))
        assert same_bits(np.asarray(found[0]), np.stack([e[0] for e in expected]))
    from jax.sharding import Mesh, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    if not hasattr(jax, "shard_map"):
        from jax.experimental.shard_map import shard_map

        split = partial(shard_map, check_rep=False)
    else:
        split = jax.shard_map
    sharded = split(step, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"))
    assert same_bits(
        np.asarray(jax.jit(sharded)(jnp.asarray(tables[0]))[0]), np.asarray(step(jnp.asarray(tables[0]))[0])
    )


# -- Errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [[3, 2, 6], [2, 2, 6], [-1, 3, 6], [2, 7, 6], [6, 2, 6], [2, 6, 3]])
def test_bad_ids(bad: list[int]) -> None:
    """Ids that do not rise, or padding before other ids: an error of the program, the table is unchanged."""
    gradient = Table.holding(rg.IndexedRows(jnp.ones((3, 2)), jnp.asarray(bad), 6, is_unique=True))
    table = Table(jnp.ones((6, 2)))
    optimizer = optim.sgd(lr=1.0)
    with pytest.raises(RAISED, match="row_ids must be strictly increasing and in") as raised:
        jax.block_until_ready(jax.jit(optimizer.step)(table, optimizer.init(table), gradient))
    assert "apply_rows(table=float64[6,2], grad=float64[3,2], row_ids=int64[3])" in str(raised.value)
    assert table.array.tolist() == np.ones((6, 2)).tolist()


@pytest.mark.parametrize(
    ("rule", "lr", "what"),
    [
        ("sgd", float("nan"), "lr must be a finite number; got nan"),
        ("adam", float("inf"), "lr must be a finite number; got inf"),
        ("ftrl", 0.0, "lr must be above 0 for ftrl; got 0.0"),
    ],
)
def test_bad_learning_rates(rule: str, lr: float, what: str) -> None:
    """Values that only the program knows."""
    gradient = Table.holding(padded(np.ones((1, 2), np.float32), np.array([1]), 2, 6))
    table = Table(jnp.ones((6, 2), jnp.float32))
    optimizer = getattr(optim, rule)(lr=lambda step: jnp.float32(lr))
    with pytest.raises(RAISED, match=what):
        jax.block_until_ready(jax.jit(optimizer.step)(table, optimizer.init(table), gradient))


def test_bad_arguments() -> None:
    table = Table(jnp.ones((6, 2), jnp.float32))
    gradient = Table.holding(padded(np.ones((1, 2), np.float32), np.array([1]), 2, 6))
    adagrad = optim.adagrad()
    state = adagrad.init(table)
    with pytest.raises(InvalidArgumentError, match="lr"):
        optim.sgd(lr=1e300).step(table, optim.sgd().init(table), gradient)
    wrong = state._replace(slots={"sum": Table(jnp.ones((6, 2), jnp.float64))})
    with pytest.raises(InvalidArgumentError, match="float32"):
        adagrad.step(table, wrong, gradient)
    with pytest.raises(InvalidArgumentError):
        adagrad.step(table, optim.sgd().init(table), gradient)
    with pytest.raises(InvalidArgumentError):
        adagrad.step(Table(jnp.ones((5, 2), jnp.float32)), state, gradient)
    with pytest.raises(InvalidArgumentError):
        adagrad.step(Table.holding(table.array.astype(int)), state, gradient)


def test_programs_that_rowgrad_did_not_make() -> None:
    """The handler validates every attribute and buffer."""
    table, grad, ids, step = jnp.ones((6, 2)), jnp.ones((1, 2)), jnp.array([1]), jnp.int32(1)
    numbers = [struct.unpack("q", struct.pack("d", x))[0] for x in [1.0] + [0.0] * 11]
    good = [0, 6, 0, 0, 1, 0, 0, 0, 1, 0, 0, *numbers]
    assert len(good) == 23
    free = (3, 6, 7, 9)  # the rows, the seed and the number of the step, which are ignored; the seed of the table
    spoiled = [good[:k] for k in range(len(good))] + [[*good, 0]]
    spoiled += [
        [*good[:k], value, *good[k + 1 :]]
        for k in range(11) if k not in free
        for value in (-(2**63), -1, 3, 99, 2**62)
    ]  # fmt: skip

    def call(script: list[int], operands: Any, aliases: Any) -> Any:
        function = jax.ffi.ffi_call("rowgrad_step", [jax.ShapeDtypeStruct((6, 2), jnp.float64)],
                                    input_output_aliases=aliases)  # fmt: skip
        return np.asarray(function(*operands, call=np.array(script, np.int64), got="", op="apply_rows")[0])

    operands = (table, grad, ids, step)
    assert call(good, operands, {0: 0})[:, 0].tolist() == [1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    for script in spoiled:
        with pytest.raises(RAISED, match="rowgrad"):
            call(script, operands, {0: 0})
    for changed in (
        (table, grad, ids),
        (*operands, step),
        (grad, grad, ids, step),
        (table, grad.astype(jnp.float32), ids, step),
        (table, jnp.ones((2, 2)), ids, step),
        (table, jnp.ones((1, 3)), ids, step),
        (table, grad, ids[None], step),
        (table, grad, ids.astype(jnp.int16), step),
        (table, grad, ids, step[None]),
        (table, grad, ids, jnp.int64(1)),
        (table, grad, ids, jnp.int32(0)),
    ):
        with pytest.raises(RAISED):
            call(good, changed, {0: 0} if changed[0] is table else {})
    with pytest.raises(RAISED, match="not in the memory of its operand"):
        call(good, operands, {})
    assert row_step.TARGETS["cpu"] == "rowgrad_step"
