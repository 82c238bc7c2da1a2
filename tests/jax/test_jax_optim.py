"""JAX optimizers: the steps of rowgrad.optim, optax's protocol, tables updated in place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

import rowgrad as rg
from jax_arrays import x64
from rowgrad import optim as updates
from rowgrad.jax import Table, optim, value_and_rows

RULES = {
    "sgd": {},
    "adagrad": {"eps": 1e-7},
    "row_wise_adagrad": {"eps": 1e-7},
    "adam": {"eps": 1e-6, "betas": (0.8, 0.99)},
    "adamw": {"eps": 1e-6},
    "momentum": {"momentum": 0.8, "nesterov": True},
    "lion": {"betas": (0.8, 0.95)},
    "ftrl": {"l1": 0.01, "l2": 0.02, "l2_shrinkage": 0.03},
}
assert RULES.keys() == updates.RULES.keys()
ROWS, COLUMNS, STEPS = 9, 4, 4
random = np.random.default_rng(5)
START = random.standard_normal((ROWS, COLUMNS))
IDS = [np.sort(random.choice(ROWS, 4, replace=False)) for _ in range(STEPS)]
GRADS = [random.standard_normal((4, COLUMNS)) for _ in range(STEPS)]
PADDED_ROWS = 6  # two rows of every gradient are padding


@pytest.fixture(autouse=True)
def _narrow() -> Iterator[None]:
    with x64(False):
        yield


def as_rows(grad: Any, ids: Any, dtype: Any) -> rg.IndexedRows:
    values = np.zeros((PADDED_ROWS, COLUMNS)) + 77.0  # padding may contain anything
    values[: len(ids)] = grad
    padded = np.append(ids, [ROWS] * (PADDED_ROWS - len(ids)))
    return rg.IndexedRows(jnp.asarray(values, dtype), jnp.asarray(padded, jnp.int32), ROWS, is_unique=True)


def after_steps(optimizer: Any, params: Any, grads: Any) -> tuple[Any, Any]:
    """Return parameters and state after one compiled step per gradient."""

    def step(carry: Any, grad: Any) -> Any:
        params, state = carry
        found, state = optimizer.update(grad, state, params)
        return (optim.apply_updates(params, found), state), None

    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *grads)
    run = jax.jit(lambda params: jax.lax.scan(step, (params, optimizer.init(params)), stacked)[0])
    return run(params)


DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
WIDE = {**DTYPES, "float64": np.float64}
CLOSE = {
    "float64": {"rtol": 1e-13, "atol": 1e-14},
    "float32": {"rtol": 2e-6, "atol": 1e-7},
    "bfloat16": {"rtol": 2e-2, "atol": 1e-3},
}


@pytest.mark.parametrize("weight_decay", [0.0, 0.05], ids=["plain", "decay"])
@pytest.mark.parametrize("rule", RULES)
def test_steps_equal_rowgrad_optim(rule: str, weight_decay: float) -> None:
    """Row-sparse and dense, float32 and bfloat16, with JAX's 64-bit mode off and on (then also float64)."""
    with x64(weight_decay > 0):
        compare_steps(rule, weight_decay, WIDE if weight_decay else DTYPES)


def decay(rule: str, weight_decay: float) -> dict[str, float]:
    return {"weight_decay": weight_decay} if "weight_decay" in updates.RULES[rule].defaults else {}


def compare_steps(rule: str, weight_decay: float, dtypes: dict[str, Any]) -> None:
    numbers = {"lr": 0.1, **decay(rule, weight_decay), **RULES[rule]}
    start = {"initial_accumulator_value": 0.25} if updates.RULES[rule].state_defaults else {}
    params, grads, expected = {}, [{} for _ in range(STEPS)], {}
    for name, dtype in dtypes.items():
        table, dense_table = START.astype(dtype), START.astype(dtype)
        slots, dense_slots = (updates.new_slots(rule, table, *start.values()) for _ in range(2))
        for k, (grad, ids) in enumerate(zip(GRADS, IDS, strict=True)):
            step, dense = updates.Step(step=k + 1, **numbers), np.tile(grad, (3, 1))[:ROWS].astype(dtype)
            updates.apply_rows(rule, table, slots, grad.astype(dtype), ids, step)
            updates.apply_all(rule, dense_table, dense_slots, dense, step)
            grads[k][name] = (Table.holding(as_rows(grad, ids, dtype)), jnp.asarray(dense))
        params[name] = (Table(START.astype(dtype)), jnp.asarray(START, dtype))
        expected[name] = ((table, *slots), (dense_table, *dense_slots))
    found, state = after_steps(getattr(optim, rule)(**numbers, **start), params, grads)
    assert int(state.step) == STEPS
    for name, dtype in dtypes.items():
        assert found[name][0].dtype == found[name][1].dtype == dtype
        for part, (weights, *slots) in enumerate(expected[name]):
            found_array = jax.tree.leaves(found[name][part])[0]
            np.testing.assert_allclose(np.float64(found_array), np.float64(weights), **CLOSE[name])
            for slot, expected_slot in zip(updates.RULES[rule].slots, slots, strict=True):
                found_array = jax.tree.leaves(state.slots[slot.name][name][part])[0]
                assert found_array.dtype == expected_slot.dtype
                np.testing.assert_allclose(found_array, expected_slot, **CLOSE[name])


def test_rows_without_a_gradient_keep_every_bit() -> None:
    params = Table(jnp.asarray(START, jnp.float32))
    grads = [Table.holding(as_rows(GRADS[0], IDS[0], jnp.float32))]
    after, state = after_steps(optim.adamw(lr=0.1), params, grads)
    table, untouched = np.asarray(after.array), np.setdiff1d(np.arange(ROWS), IDS[0])
    assert np.array_equal(table[untouched], params.array[untouched])
    assert (table[IDS[0]] != np.asarray(params.array)[IDS[0]]).all()
    assert not any(np.asarray(tree.held)[untouched].any() for tree in state.slots.values())


def test_duplicate_rows_are_summed_first() -> None:
    ids = jnp.asarray([4, 1, 4], jnp.int32)
    values = jnp.asarray([[1.0], [2.0], [3.0]])
    gradient = Table.holding(rg.IndexedRows(values, ids, 6))
    params = Table(jnp.ones((6, 1)))
    found, _ = optim.adagrad(lr=1.0, eps=0.0).update(gradient, optim.adagrad().init(params), params)
    assert optim.apply_updates(params, found).array.ravel().tolist() == [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    assert optim.apply_updates(params, gradient).array.ravel().tolist() == [1.0, 3.0, 1.0, 1.0, 5.0, 1.0]


def test_dense_steps_equal_optax_where_rules_coincide() -> None:
    """Scalars, vectors and matrices; leaves without a gradient are unchanged. Optax computes 1 - 0.999 less exactly."""
    params = {"w": jnp.asarray(START, jnp.float32), "b": jnp.arange(3.0), "s": jnp.array(2.0)}
    grads = [jax.tree.map(lambda x, k=k: jnp.cos(x + k), params) for k in range(STEPS)]
    falling = optax.linear_schedule(0.1, 0.0, 8)
    pairs = [
        (optim.sgd(0.1), optax.sgd(0.1)),
        (optim.adagrad(0.1, eps=0.0, initial_accumulator_value=0.1), optax.adagrad(0.1, 0.1, eps=0.0)),
        (optim.adam(0.1, eps=0.0), optax.adam(0.1, eps=0.0)),
        (optim.adam(falling, eps=0.0), optax.adam(falling, eps=0.0)),
        (optim.adamw(0.1, eps=0.0, weight_decay=0.3), optax.adamw(0.1, eps=0.0, weight_decay=0.3)),
    ]
    for found in jax.jit(lambda: [[after_steps(o, params, grads)[0] for o in pair] for pair in pairs])():
        for a, b in zip(*map(jax.tree.leaves, found), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    scalar, state = after_steps(optim.row_wise_adagrad(0.1), params, grads)
    assert [state.slots["sum"][k].shape for k in ("w", "b", "s")] == [(ROWS,), (3,), (1,)]
    assert scalar["s"].shape == ()
    with_function = {"act": jnp.tanh, "w": jnp.ones(2)}
    done, _ = optim.adam().update({"act": None, "w": jnp.ones(2)}, optim.adam().init(with_function), with_function)
    assert optim.apply_updates(with_function, done)["act"] is jnp.tanh


def test_optax_chain_and_partition() -> None:
    params = {"t": Table(jnp.asarray(START, jnp.float32)), "w": jnp.ones(COLUMNS)}
    ids, bags = jnp.asarray([1, 5, 1]), jnp.asarray([0, 0, 1])

    def loss(params: Any) -> Any:
        return (params["t"].bags(ids, bags, 2) @ params["w"]).sum() ** 2

    dense = optax.chain(optax.clip_by_global_norm(1.0), optax.scale(-0.5))
    together = optax.multi_transform(
        {"rows": optax.chain(optim.adagrad(0.5)), "dense": dense}, lambda p: {"t": "rows", "w": "dense"}
    )

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        _, grads = value_and_rows(loss)(params)
        found, state = together.update(grads, state, params)
        return optim.apply_updates(params, found), state, grads

    after, _, grads = step(params, together.init(params))
    rows = grads["t"].rows
    expected = np.asarray(START, np.float32)
    expected[[1, 5]] -= 0.5 * np.sign(np.asarray(rows.values)[:2])
    np.testing.assert_allclose(after["t"].array, expected, rtol=1e-5)
    norm = np.linalg.norm(grads["w"])
    np.testing.assert_allclose(after["w"], 1 - 0.5 * grads["w"] / max(norm, 1.0), rtol=1e-5)


def test_ids_that_are_not_integers_raise() -> None:
    rows = rg.IndexedRows(jnp.ones((1, COLUMNS)), jnp.ones(1), ROWS)
    with pytest.raises(rg.errors.InvalidArgumentError, match="must be integers; got float32"):
        optim.apply_updates(jnp.ones((ROWS, COLUMNS)), rows)


def test_out_of_range_rows_are_ignored() -> None:
    """Negative ids too, which JAX would count from the end; in lists and in unique rows."""
    start = jnp.arange(1.0, 4.0)[:, None]
    optimizer = optim.adagrad(lr=1.0, eps=0.0)

    @jax.jit
    def step(ids: Any) -> list[Any]:
        found = []
        for is_unique in (True, False):
            rows = rg.IndexedRows(jnp.asarray([[5.0], [-7.0], [9.0]]), ids, 3, is_unique)
            update, state = optimizer.update(rows, optimizer.init(start), start)
            found += [optim.apply_updates(start, rows), optim.apply_updates(start, update), state.slots["sum"]]
        return found

    for ids in ([-1, 1, 3], [-5, 1, 2**31 - 1]):
        for plain, stepped, slot in zip(*[iter(step(jnp.asarray(ids)))] * 3, strict=True):
            assert plain.ravel().tolist() == [1.0, -5.0, 3.0]
            assert stepped.ravel().tolist() == [1.0, 3.0, 3.0]
            assert slot.ravel().tolist() == [0.0, 49.0, 0.0]
    nothing = rg.IndexedRows(jnp.ones((2, 1)), jnp.asarray([-1, 0]), 0, is_unique=True)
    assert optim.apply_updates(jnp.ones((0, 1)), nothing).shape == (0, 1)


def test_updates_of_other_shapes_raise() -> None:
    table, ids = jnp.zeros((3, 2)), jnp.asarray([0, 1])
    others = {
        r"\(3, 2\); got rows of \(5, 2\)": rg.IndexedRows(jnp.ones((2, 2)), ids, 5, is_unique=True),
        r"\(3, 2\); got rows of \(3, 1\)": rg.IndexedRows(jnp.ones((2, 1)), ids, 3, is_unique=True),
        r"\(3, 2\); got rows of \(3,\)": rg.IndexedRows(jnp.ones(2), ids, 3),
        r"\(3, 2\); got \(2,\)": jnp.ones(2),
        r"\(3, 2\); got \(\)": jnp.ones(()),
        "indices must have length 1, got 2": rg.IndexedRows(jnp.ones((1, 2)), ids, 3, is_unique=True),
    }
    for message, update in others.items():
        with pytest.raises(rg.errors.InvalidArgumentError, match=message):
            optim.apply_updates(table, update)
        for optimizer, params in ((optim.sgd(), table), (optim.adam(), None), (optim.adamw(), table)):
            with pytest.raises(rg.errors.InvalidArgumentError, match=message):
                optimizer.update(update, optimizer.init(table), params)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"\(3, …\); got \(5, 2\)"):
        optim.row_wise_adagrad().update(jnp.ones((5, 2)), optim.row_wise_adagrad().init(table))


def test_types_are_converted_explicitly() -> None:
    """They also work under JAX's strict dtype promotion."""
    falling = optax.linear_schedule(0.5, 0.0, 8)
    with x64(), jax.numpy_dtype_promotion("strict"):
        table = jnp.ones((3, 2), jnp.bfloat16)
        rows = rg.IndexedRows(jnp.ones((2, 2), jnp.bfloat16), jnp.asarray([2, 2]), 3)
        for lr, rule in ((0.5, "adamw"), (falling, "adamw"), (0.5, "row_wise_adagrad")):
            optimizer = getattr(optim, rule)(lr)
            state = optimizer.init((table, table))
            update, _ = optimizer.update((rows, table), state, (table, table))
            for found in optim.apply_updates((table, table), update):
                assert found.dtype == jnp.bfloat16
                assert found[2].tolist() == [0.494140625 if rule == "adamw" else 0.5] * 2


def test_a_gradient_may_be_wider_than_its_parameter() -> None:
    with x64():
        table = jnp.ones((3, 1), jnp.float32)
        optimizer = optim.adagrad(0.5, eps=0.0)
        rows = rg.IndexedRows(jnp.full((1, 1), 3.0), jnp.asarray([1]), 3, is_unique=True)
        update, state = optimizer.update(rows, optimizer.init(table), table)
        after, held = optim.apply_updates(table, update), state.slots["sum"]
        assert (rows.dtype, after.dtype, held.dtype) == (jnp.float64, jnp.float32, jnp.float32)
        assert (after.ravel().tolist(), held.ravel().tolist()) == ([1.0, 0.5, 1.0], [0.0, 9.0, 0.0])


def test_parameters_may_be_numpy_arrays_and_numbers() -> None:
    rows = rg.IndexedRows(np.ones((2, 1), np.float32), np.array([2, 2]), 3)
    params = {"t": np.ones((3, 1), np.float32), "w": np.ones(2, np.float32)}
    optimizer = optim.adamw(0.5, weight_decay=0.5)
    update, _ = optimizer.update({"t": rows, "w": np.ones(2, np.float32)}, optimizer.init(params), params)
    after = optim.apply_updates(params, update)
    np.testing.assert_allclose(after["t"], [[1.0], [1.0], [0.25]], rtol=1e-4)
    np.testing.assert_allclose(after["w"], [0.25, 0.25], rtol=1e-4)
    assert optim.apply_updates([1.0, 2.0], [jnp.ones(()), 0.5]) == [2.0, 2.5]


def test_numbers_are_validated_and_decay_needs_parameters() -> None:
    for wrong in ({"lr": -1.0}, {"eps": float("nan")}, {"betas": (0.9, 1.0)}, {"weight_decay": -0.1}):
        with pytest.raises(rg.errors.InvalidArgumentError, match=next(iter(wrong))):
            optim.adam(**wrong)
    with pytest.raises(rg.errors.InvalidArgumentError, match="adamw decays weights"):
        optim.adamw().update(jnp.ones(2), optim.adamw().init(jnp.ones(2)))


def test_state_created_in_the_same_program_changes_no_bit() -> None:
    """A compiler that knows the step number must not compute anything differently."""
    optimizers = [getattr(optim, rule)(0.1, **decay(rule, 0.05), **numbers) for rule, numbers in RULES.items()]
    table, grad = (jnp.asarray(random.standard_normal((33, 5)), jnp.float32) for _ in range(2))
    grads = grad, rg.IndexedRows(grad, jnp.arange(33), 33, is_unique=True)

    def steps(params: Any, states: Any, grads: Any) -> Any:
        found = []
        for o, p, state in zip(optimizers, params, states, strict=True):
            for _ in range(2):
                update, state = o.update(grads, state, p)
                p = optim.apply_updates(p, update)
                found.append((update[0], update[1].values, p, state))
        return found

    def init(params: Any) -> list[Any]:
        return [o.init(p) for o, p in zip(optimizers, params, strict=True)]

    params = [(table, table) for _ in optimizers]
    within = jax.jit(lambda params, grads: steps(params, init(params), grads))(params, grads)
    outside = jax.jit(steps)(params, init(params), grads)
    for a, b in zip(*map(jax.tree.leaves, (within, outside)), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_donated_tables_are_updated_in_place() -> None:
    """Neither donated tables nor slots are copied: results are at their addresses."""
    rows, optimizers = 5000, (optim.adam(), optim.row_wise_adagrad())
    params = tuple({"t": Table(jnp.ones((rows, 8))), "w": jnp.ones(8)} for _ in optimizers)

    def loss(params: Any, ids: Any, bags: Any) -> Any:
        one, two = ((p["t"].bags(ids, bags, 2) @ p["w"]).sum() for p in params)
        return one**2 + two  # linear in the second lookup

    def step(params: Any, states: Any, ids: Any, bags: Any) -> Any:
        value, grads = value_and_rows(loss)(params, ids, bags)
        found, after = zip(*map(lambda o, g, s, p: o.update(g, s, p), optimizers, grads, states, params), strict=True)
        return optim.apply_updates(params, found), after, value

    arguments = (params, tuple(o.init(p) for o, p in zip(optimizers, params, strict=True)))
    batch = (jnp.asarray([1, 5, 1]), jnp.asarray([0, 0, 1]))
    text = jax.jit(step, donate_argnums=(0, 1)).lower(*arguments, *batch).compile().as_text()
    aliased = re.search(r"input_output_alias=\{(.*?\)) \}", text)
    assert aliased
    assert len(re.findall("may-alias|must-alias", aliased[1])) == len(jax.tree.leaves(arguments))
    copies = re.compile(rf"\[{rows}[],][^=]* copy\(")
    assert not copies.search(text)
    assert copies.search(jax.jit(step).lower(*arguments, *batch).compile().as_text()), "no copy without donation"


@pytest.mark.parametrize(
    "number", ["0.1", None, [0.1], np.array([0.1]), np.float32(-1), 1j, jnp.ones(2), jnp.array(1j)], ids=str
)
def test_hyperparameters_must_be_real_scalars(number: Any) -> None:
    for make in (optim.sgd, optim.adagrad, optim.adam):
        with pytest.raises(rg.errors.InvalidArgumentError, match="lr must be a"):
            make(number)
    with pytest.raises(rg.errors.InvalidArgumentError, match="weight_decay must be a"):
        optim.sgd(0.1, weight_decay=number)


def test_schedules_must_return_one_number() -> None:
    table = jnp.ones((ROWS, COLUMNS))
    optimizer = optim.sgd(lambda step: jnp.ones(COLUMNS))
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"lr must be a real number; got float32\[4\]"):
        optimizer.update(table, optimizer.init(table))
    for rate in (np.float32(0.5), jnp.array(0.5), lambda step: 0.5, lambda step: np.float32(0.5)):
        found, _ = optim.sgd(rate).update(table, optim.sgd(rate).init(table))
        assert found.tolist() == (-0.5 * table).tolist()


@pytest.mark.parametrize("rule", RULES)
def test_complex_gradients_are_rejected(rule: str) -> None:
    params = {"layer": jnp.array([1 + 1j])}
    optimizer = getattr(optim, rule)(0.1)
    with pytest.raises(rg.errors.InvalidArgumentError, match="accept real gradients only; got complex64"):
        optimizer.update(params, optimizer.init(params), params)


@pytest.mark.parametrize("rule", RULES)
def test_state_keeps_its_dtype_for_any_gradient_dtype(rule: str) -> None:
    with x64(True):
        params = jnp.ones((ROWS, COLUMNS), jnp.float32)
        optimizer = getattr(optim, rule)(0.1)
        state = optimizer.init(params)
        _, after = optimizer.update(params.astype(jnp.float64), state, params)
        assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, state)


@pytest.mark.parametrize("name", [rule for rule in RULES if updates.RULES[rule].slots])
def test_state_of_other_parameters_raises(name: str) -> None:
    optimizer = getattr(optim, name)(0.1)
    floats, integers = {"a": jnp.ones(3)}, {"a": jnp.arange(3)}
    with pytest.raises(rg.errors.InvalidArgumentError, match="state must be the one that init of this optimizer"):
        optimizer.update(floats, optim.sgd(0.1).init(floats), floats)
    with pytest.raises(rg.errors.InvalidArgumentError, match="state must be the one that init of this optimizer"):
        optimizer.update(floats, optimizer.init({}), floats)
    with pytest.raises(rg.errors.InvalidArgumentError, match="not a floating-point array"):
        optimizer.update(floats, optimizer.init(integers), integers)
    # For integers jax.grad(allow_int=True) returns float0, which means "no gradient".
    gradient = {"a": np.zeros(3, jax.dtypes.float0)}
    assert optimizer.update(gradient, optimizer.init(integers), integers)[0] == {"a": None}


def test_updates_with_missing_leaves_raise() -> None:
    for param, update in ((jnp.ones(2), jnp.array([1 + 2j, 3j])), (jnp.ones(2, jnp.int32), jnp.array([0.6, 0.6]))):
        with pytest.raises(rg.errors.InvalidArgumentError, match="without losing precision"):
            optim.apply_updates(param, update)


@pytest.mark.parametrize("rate", [None, -1.0, "1"])
def test_schedule_values_are_validated_like_lr(rate: Any) -> None:
    params = {"a": jnp.ones(2)}
    optimizer = optim.sgd(lambda step: rate)
    with pytest.raises(rg.errors.InvalidArgumentError, match="lr must be a finite number"):
        optimizer.update(params, optimizer.init(params))
