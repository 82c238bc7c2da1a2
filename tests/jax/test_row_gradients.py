"""Row-sparse gradients: the looked-up rows of jax.grad's dense gradients; unsupported uses raise."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rowgrad as rg
import rowgrad.jax as rgj
from golden_cases import same_bits
from jax_arrays import x64
from rowgrad.jax import Table, rows, value_and_rows

ROWS, COLUMNS, BAGS = 12, 3, 5
IDS = np.array([7, 2, 7, 0, 11, 2, 7, 5], np.int32)
SEGMENTS = np.array([0, 0, 1, 1, 1, 3, 3, 3], np.int32)
UNIQUE = [0, 2, 5, 7, 11]


@pytest.fixture(autouse=True)
def _narrow() -> Iterator[None]:
    with x64(False):
        yield


def table_of(seed: int, rows: int = ROWS, dtype: Any = jnp.float32) -> Any:
    return jnp.asarray(np.random.default_rng(seed).standard_normal((rows, COLUMNS)), dtype)


def params_of(dtype: Any = jnp.float32) -> dict[str, Any]:
    return {
        "a": Table(table_of(1, dtype=dtype)),
        "b": Table(table_of(2, 20, dtype)),
        "idle": Table(table_of(3, 4, dtype)),
        "mix": table_of(4, COLUMNS),
        "importance": jnp.linspace(0.5, 2.0, len(IDS)),
    }


def loss(params: Any, ids: Any, segments: Any) -> Any:
    """Several different lookups in one table, trained weights, a second table, and an unused table."""
    weights = params["importance"] ** 2
    bags = [
        params["a"].bags(ids, segments, BAGS, combiner="sum"),
        params["b"].bags(ids + 3, segments, BAGS, weights, combiner="sqrtn"),
        params["a"].bags(ids[::-1], segments, BAGS),
        params["a"].bags(ids // 2, segments, BAGS, weights, combiner="mean"),
    ]
    return jnp.sin(sum(bags).astype(jnp.float32) @ params["mix"]).sum(), [b.sum() for b in bags]


def dense_of(rows: rg.IndexedRows) -> np.ndarray[Any, Any]:
    """Return the rows as a dense table after checking their promised properties."""
    ids, values = np.asarray(rows.indices), np.asarray(rows.values)
    in_range = ids < rows.num_rows
    assert rows.is_unique
    assert np.all(np.diff(ids[in_range]) > 0)
    assert np.all(ids[~in_range] == rows.num_rows)
    assert np.all(in_range[: in_range.sum()]), "looked-up rows come first"
    assert not values[~in_range].any()
    table = np.zeros(rows.shape, values.dtype)
    table[ids[in_range]] = values[in_range]
    return table


def test_rows_equal_dense_gradients_eager_and_compiled() -> None:
    params = params_of()
    (expected, aux), dense_grads = jax.value_and_grad(loss, has_aux=True)(params, IDS, SEGMENTS)
    found = value_and_rows(loss, has_aux=True)
    for (value, found_aux), grads in (found(params, IDS, SEGMENTS), jax.jit(found)(params, jnp.asarray(IDS), SEGMENTS)):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        np.testing.assert_allclose(found_aux, aux, rtol=1e-6)
        for name in ("mix", "importance"):
            np.testing.assert_allclose(grads[name], dense_grads[name], rtol=1e-4, atol=1e-6)
        for name in ("a", "b", "idle"):
            np.testing.assert_allclose(dense_of(grads[name].rows), dense_grads[name].array, rtol=1e-4, atol=1e-6)
        assert grads["a"].rows.indices.shape == (ROWS,), "capped at the number of rows"
        assert grads["b"].rows.indices.shape == IDS.shape
        assert grads["idle"].rows.indices.shape == (0,)
        assert jax.tree.structure(params) == jax.tree.structure(jax.tree.map(lambda _: 0, grads, is_leaf=is_rows))


def is_rows(x: Any) -> bool:
    return isinstance(x, rg.IndexedRows)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("combiner", ["Sum", "Mean", "SqrtN"])
def test_one_lookup_has_the_bits_of_its_gradient_op(combiner: str, weighted: bool, dtype: Any) -> None:
    weights = jnp.linspace(0.3, 1.7, len(IDS)) if weighted else None
    upstream = table_of(5, BAGS, dtype)

    def linear(table: Table) -> Any:
        return (table.bags(IDS, SEGMENTS, BAGS, weights, combiner.lower()) * upstream).sum()

    _, grads = value_and_rows(linear, size=7)(Table(table_of(1, dtype=dtype)))
    prefix, more = ("Weighted", {"weights": weights}) if weighted else ("", {})
    op = getattr(rg.raw_ops, f"{prefix}SparseSegment{combiner}Grad")
    expected = op(grad=upstream, indices=IDS, segment_ids=SEGMENTS, output_dim0=ROWS, **more)
    assert same_bits(dense_of(grads.rows), np.asarray(expected))
    assert grads.rows.indices.tolist() == [*UNIQUE, ROWS, ROWS]


def test_gradients_of_several_lookups_are_summed_in_order() -> None:
    """The order is visible: 1e8 + 1 - 1e8 is 0 in this order, and 1 if the large numbers are added first."""
    table = Table(jnp.ones((3, 1)))

    def three_lookups(table: Table) -> Any:
        lookups = [table.bags([1], [0], 1, combiner=c) for c in ("sum", "mean", "sum")]
        return sum(s * x.sum() for s, x in zip((1e8, 1.0, -1e8), lookups, strict=True))

    def one_sum(table: Table) -> Any:
        return table.bags([1], [0], 1).sum() + (table.bags([1, 1], [0, 1], 2) * jnp.array([[1e8], [-1e8]])).sum()

    for f in (three_lookups, one_sum):
        assert value_and_rows(f)(table)[1].rows.values[0].tolist() == [0.0]


def test_steps_in_a_scan_with_spare_capacity() -> None:
    def idle(params: Any, ids: Any) -> Any:
        return (params["a"].bags(ids, SEGMENTS, BAGS) ** 2).sum()

    def step(params: Any, ids: Any) -> Any:
        value, grads = value_and_rows(idle, size=9)(params, ids)
        rows = grads["a"].rows
        table = params["a"].array.at[rows.indices].add(-0.1 * rows.values, mode="drop")
        return {**params, "a": Table(table)}, (value, grads)

    params = {"a": Table(table_of(1)), "idle": Table(table_of(2, 4))}
    after, (values, grads) = jax.jit(lambda p, many: jax.lax.scan(step, p, many))(params, jnp.stack([IDS, IDS[::-1]]))
    whole = params["a"].array
    for k, ids in enumerate((IDS, IDS[::-1])):
        value, grad = jax.value_and_grad(idle)({"a": Table(whole)}, ids)
        whole = whole - 0.1 * grad["a"].array
        np.testing.assert_allclose(values[k], value, rtol=1e-6)
    np.testing.assert_allclose(after["a"].array, whole, rtol=1e-5, atol=1e-6)
    assert grads["a"].rows.indices[0].tolist() == [*UNIQUE, ROWS, ROWS, ROWS, ROWS]
    assert grads["idle"].rows.indices.tolist() == [[4] * 9] * 2
    assert not grads["idle"].rows.values.any()


def test_equinox_modules() -> None:
    class Model(eqx.Module):
        table: Table
        layer: eqx.nn.MLP
        name: str

        def __call__(self, ids: Any) -> Any:
            return jax.vmap(self.layer)(self.table.bags(ids, SEGMENTS, BAGS)).sum()

    model = Model(Table(table_of(1)), eqx.nn.MLP(COLUMNS, 1, 4, 1, key=jax.random.key(0)), "clicks")
    params, static = eqx.partition(model, eqx.is_inexact_array)

    @eqx.filter_jit
    def gradients_of(model: Model, params: Any) -> Any:
        whole = eqx.filter_value_and_grad(lambda m: m(IDS))(model)
        rows = [value_and_rows(f)(x) for f, x in (
            (lambda m: m(IDS), model),
            (lambda p: eqx.combine(p, static)(IDS), params),
            (lambda p: eqx.combine(static, p)(IDS), params),
        )]  # fmt: skip
        return whole, rows

    (value, dense), found = gradients_of(model, params)
    for other, grads in found:
        np.testing.assert_allclose(other, value)
        np.testing.assert_allclose(dense_of(grads.table.rows), dense.table.array, rtol=1e-5)
        for a, b in zip(jax.tree.leaves(grads.layer), jax.tree.leaves(dense.layer), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def outside(table: Table, transform: Callable[[Callable[..., Any]], Any]) -> Any:
    return transform(lambda ids: table.bags(ids, SEGMENTS, BAGS).sum())


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda t: t.bags(IDS, SEGMENTS, BAGS).sum() + (t.array**2).sum(), r"read only by table\[ids\]"),
        (
            lambda t: sum(x.sum() for x in jax.tree.leaves(jax.tree.map(lambda x: 2 * x, t))),
            r"read only by table\[ids\]",
        ),
        (lambda t: outside(t, lambda f: jax.jit(f)(IDS)), "inside jit"),
        (lambda t: outside(t, lambda f: jax.vmap(f)(np.stack([IDS, IDS])).sum()), "inside jit, vmap"),
        (lambda t: outside(t, lambda f: jax.checkpoint(f)(IDS)), "checkpoint"),
        (lambda t: outside(t, lambda f: jax.lax.cond(IDS[0] > 3, f, lambda _: 0.0, IDS)), "cond"),
        (lambda t: jax.lax.map(lambda _: t.bags(IDS, SEGMENTS, BAGS).sum(), jnp.arange(2)).sum(), "scan"),
        (lambda t: t.bags(IDS, SEGMENTS, BAGS, combiner="max").sum(), "combiner"),
    ],
    ids=["regularizer", "map", "jit", "vmap", "checkpoint", "cond", "scan", "combiner"],
)
def test_uses_that_would_lose_a_gradient_raise(use: Callable[[Table], Any], message: str) -> None:
    for transform in (lambda f: f, jax.jit):
        with pytest.raises(rg.errors.InvalidArgumentError, match=message):
            transform(value_and_rows(use))(Table(table_of(1)))


def look_up(table: Table) -> Any:
    return table.bags(IDS, SEGMENTS, BAGS).sum()


@pytest.mark.parametrize(
    "use",
    [
        lambda f, a: jax.jit(f)(a),
        lambda f, a: jax.jit(lambda: f(a))(),
        lambda f, a: f(jax.jit(lambda x: x)(a.astype(jnp.float16)).astype(jnp.float32)),
        lambda f, a: jax.checkpoint(f)(a),
        lambda f, a: jax.lax.cond(a[0, 0] > 0, f, lambda _: 0.0, a),
        lambda f, a: jax.lax.scan(lambda c, _: (c, f(c)), a, None, length=2)[1].sum(),
        lambda f, a: jax.vmap(lambda w: w * f(a))(jnp.ones(2)).sum(),
        lambda f, a: (jax.grad(jax.jit(f))(a) ** 2).sum(),
    ],
    ids=["jit", "jit-closure", "cast", "checkpoint", "cond", "scan", "vmap", "grad"],
)
def test_flattened_tables_raise_in_inner_functions(use: Callable[..., Any]) -> None:
    """Its array would be a plain parameter with a dense gradient."""
    leaves, tree = jax.tree.flatten(Table(table_of(1)))
    for transform in (lambda f: f, jax.jit):
        with pytest.raises(rg.errors.InvalidArgumentError, match="a Table was flattened"):
            transform(value_and_rows(lambda p: use(lambda a: look_up(tree.unflatten([a])), p[0])))(leaves)


def test_flattened_tables_raise_in_already_compiled_functions() -> None:
    (array,), tree = jax.tree.flatten(Table(table_of(1)))
    inner = jax.jit(lambda a: look_up(tree.unflatten([a])))
    inner(array)
    jax.grad(inner)(array)
    with pytest.raises(rg.errors.InvalidArgumentError, match="a Table was flattened"):
        value_and_rows(inner.__call__)(array)
    with pytest.raises(rg.errors.InvalidArgumentError, match="a Table was flattened"):
        value_and_rows(lambda a: inner(a))(array)


def test_frozen_tables_pass_through_inner_functions() -> None:
    inner = jax.jit(lambda scale, table: scale * look_up(table))
    frozen, whole = Table(table_of(2)), table_of(1)

    def loss(params: Any, frozen: Table) -> Any:
        scaled = jax.tree.map(lambda x: x * params["scale"], frozen)
        return inner(params["scale"], frozen) + look_up(scaled) + look_up(params["table"])

    params = {"table": Table(whole), "scale": jnp.float32(2)}
    for run in (value_and_rows(loss), jax.jit(value_and_rows(loss))):
        _, grads = run(params, frozen)
        np.testing.assert_allclose(grads["scale"], 2 * look_up(frozen), rtol=1e-5)
        dense = jax.grad(lambda t: look_up(Table(t)))(jnp.asarray(whole))
        np.testing.assert_allclose(dense_of(grads["table"].rows), dense, rtol=1e-5)
    assert "custom_jvp" not in jax.jit(look_up).lower(frozen).as_text()


def test_bad_sizes_and_tables_raise() -> None:
    def bags(table: Table) -> Any:
        return table.bags(IDS, SEGMENTS, BAGS).sum()

    with pytest.raises(
        rg.errors.InvalidArgumentError, match="size must be at least the number of looked-up rows, 5, got 4"
    ):
        value_and_rows(bags, size=4)(Table(table_of(1)))
    with pytest.raises(rg.errors.InvalidArgumentError, match="size"):
        value_and_rows(bags, size=-1)
    with pytest.raises(rg.errors.InvalidArgumentError, match="floating-point"):
        Table(jnp.arange(3))
    with pytest.raises(rg.errors.InvalidArgumentError, match="rank 1"):
        Table(jnp.float32(3))
    _, grads = value_and_rows(bags)(Table(table_of(1)))
    with pytest.raises(rg.errors.InvalidArgumentError, match="a row-sparse gradient"):
        _ = grads.array
    with pytest.raises(rg.errors.InvalidArgumentError, match="use array"):
        _ = Table(table_of(1)).rows
    assert repr(grads) == "Table(rows of float32[12,3])"
    assert repr(Table(table_of(1))) == "Table(float32[12,3])"


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", [{}, {"padding_idx": 7}, {"padding_idx": 7, "default_id": 1}], ids=str)
def test_embedding_bag_of_a_table(options: dict[str, Any], weighted: bool) -> None:
    """Ignored ids yield no row; without `value_and_rows` a Table behaves like its array."""
    matrix = np.array([[7, 2, 7], [0, 11, 2], [7, 7, 7]], np.int32)
    weights = jnp.arange(1.0, 10.0).reshape(3, 3) if weighted else None
    table = Table(table_of(1))

    def loss(table: Any, ids: Any) -> Any:
        return (rg.jax.embedding_bag(table, ids, per_sample_weights=weights, combiner="sqrtn", **options) ** 2).sum()

    added = {1} if "default_id" in options else set()
    used = sorted(set(matrix.ravel().tolist()) - ({7} if options else set()) | added)
    value, whole = jax.value_and_grad(loss)(table.array, matrix)
    for found in (value_and_rows(loss), jax.jit(value_and_rows(loss))):
        got, rows = found(table, matrix)
        assert rows.rows.indices.tolist()[: len(used)] == used
        np.testing.assert_allclose(got, value, rtol=1e-6)
        np.testing.assert_allclose(dense_of(rows.rows), whole, rtol=1e-6)
    exact = jax.jit(value_and_rows(loss, size=len(used)))(table, matrix)[1]
    assert exact.rows.indices.tolist() == used
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="number of looked-up rows"):
        jax.block_until_ready(jax.jit(value_and_rows(loss, size=len(used) - 1))(table, matrix))
    assert same_bits(np.asarray(loss(table, matrix)), np.asarray(loss(table.array, matrix)))


@pytest.mark.parametrize("option", ["max_norm", "plan"])
def test_optionsunsupported_by_value_and_rows_raise(option: str) -> None:
    plan = rg.Plan(IDS, SEGMENTS, ROWS, BAGS)
    options = {"max_norm": {"max_norm": 1.0}, "plan": {"plan": plan}}[option]

    def loss(table: Any) -> Any:
        return rg.jax.embedding_bag(table, IDS, segment_ids=SEGMENTS, num_bags=BAGS, **options).sum()

    with pytest.raises(rg.errors.InvalidArgumentError, match=f"does not support {option}"):
        value_and_rows(loss)(Table(table_of(1)))
    assert np.isfinite(loss(Table(table_of(1))))


def test_size_equal_to_the_number_of_rows() -> None:
    """Ignored ids, of which there are none here, must not take the place of a row."""

    def loss(table: Any, ids: Any) -> Any:
        return (rg.jax.embedding_bag(table, ids, padding_idx=0, combiner="sum") ** 2).sum()

    ids, table = jnp.array([[1, 2], [3, 4]]), Table(table_of(1))
    assert jax.jit(value_and_rows(loss, size=4))(table, ids)[1].rows.indices.tolist() == [1, 2, 3, 4]
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="number of looked-up rows"):
        jax.block_until_ready(jax.jit(value_and_rows(loss, size=3))(table, ids))


@pytest.mark.parametrize("bad", [ROWS, ROWS + 1, -1])
def test_bad_ids_raise_and_do_not_count_as_padding(bad: int) -> None:
    """Also with a linear loss, where XLA drops the lookup itself, and next to another lookup."""

    def loss(table: Any, ids: Any) -> Any:
        return (rg.jax.embedding_bag(table, ids, padding_idx=0) + table.bags(ids[0], [0, 1], 2)).sum()

    rows = jax.jit(lambda table, ids: value_and_rows(loss)(table, ids)[1])
    for place in ((0, 0), (1, 1)):
        ids = np.array([[1, 2], [3, 4]])
        ids[place] = bad
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="out of range"):
            jax.block_until_ready(rows(Table(table_of(1)), ids))


def test_value_and_rows_is_differentiable() -> None:
    def by_rows(array: Any) -> Any:
        value, grads = value_and_rows(lambda table: (table.bags([0, 1], [0, 1], 2) ** 3).sum())(Table(array))
        return value + grads.rows.values.sum()

    def plain(array: Any) -> Any:
        return (array[:2] ** 3 + 3 * array[:2] ** 2).sum()

    array = table_of(1)
    np.testing.assert_allclose(jax.grad(by_rows)(array), jax.grad(plain)(array), rtol=1e-5)
    np.testing.assert_allclose(jax.jvp(by_rows, (array,), (array,)), jax.jvp(plain, (array,), (array,)), rtol=1e-5)


def test_a_function_with_varying_lookups_is_rejected() -> None:
    turns = iter("abba")

    def loss(params: Any) -> Any:
        return params[next(turns)].bags([0], [0], 1).sum() + 2 * params[next(turns)].bags([0], [0], 1).sum()

    with pytest.raises(rg.errors.InvalidArgumentError, match="the same table lookups when it was traced again"):
        value_and_rows(loss)({"a": Table(table_of(1)), "b": Table(table_of(2))})


@pytest.mark.parametrize(
    "use",
    [
        lambda leaf: leaf == 0,
        lambda leaf: leaf.astype(jnp.bfloat16),
        lambda leaf: np.asarray(leaf),
        lambda leaf: jnp.sum(leaf),
        lambda leaf: (jnp.zeros(()), leaf),
    ],
    ids=["==", "astype", "asarray", "sum", "returned"],
)
def test_using_the_placeholder_of_a_table_raises(use: Any) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"read only by table\[ids\] and table\.bags"):
        value_and_rows(lambda table: use(table.held), has_aux=True)(Table(table_of(1)))


@pytest.mark.parametrize("differentiate", [lambda f: f, value_and_rows])
def test_differentiating_a_table_by_jax_grad_raises(differentiate: Callable[[Any], Any]) -> None:
    ids = rg.SparseTensor([[0, 0], [1, 0]], jnp.array([3, -1]), [2, 1])
    weights = rg.SparseTensor(ids.indices, jnp.ones(2), [2, 1])
    for args in ((ids,), (ids, weights)):
        with pytest.raises(rg.errors.InvalidArgumentError, match="embedding_weights must be an array; got Table"):
            differentiate(lambda t, args=args: rg.safe_embedding_lookup_sparse(t, *args).sum())(Table(table_of(1)))


@pytest.mark.parametrize(
    "wrap",
    [
        jax.jit,
        jax.checkpoint,
        lambda f: jax.jit(jax.checkpoint(f)),
        lambda f: jax.checkpoint(jax.jit(f), policy=jax.checkpoint_policies.everything_saveable),
        lambda f: jax.jit(f, static_argnames="count"),
    ],
    ids=["jit", "checkpoint", "jit of checkpoint", "checkpoint of jit", "static"],
)
def test_the_function_may_be_compiled_or_recomputed(wrap: Any) -> None:
    params = {"table": Table(table_of(1)), "w": jnp.asarray(2.0)}

    def loss(params: Any, ids: Any, count: int = 2) -> Any:
        return (jnp.tanh(params["table"].bags(ids, [0, 0, 1], count)) * params["w"]).sum(), {"ids": ids}

    ids = jnp.asarray([2, 5, 2])
    (value, _), grads = value_and_rows(loss, has_aux=True)(params, ids)
    for transform in (lambda f: f, jax.jit):
        (found, aux), by_rows = transform(value_and_rows(wrap(loss), has_aux=True))(params, ids)
        np.testing.assert_allclose(found, value, rtol=1e-6)
        np.testing.assert_allclose(by_rows["w"], grads["w"], rtol=1e-6)
        np.testing.assert_allclose(by_rows["table"].rows.values, grads["table"].rows.values, rtol=1e-6)
        assert by_rows["table"].rows.indices.tolist() == grads["table"].rows.indices.tolist()
        assert aux["ids"].tolist() == ids.tolist()


def test_checkpoint_recomputes_what_follows_the_lookups() -> None:
    def loss(table: Any) -> Any:
        return jnp.sin(jnp.sin(table.bags([2, 5], [0, 1], 2))).sum()

    table = Table(table_of(1))
    counts = [str(jax.make_jaxpr(value_and_rows(f))(table)).count(" sin ") for f in (loss, jax.checkpoint(loss))]
    assert counts[1] > counts[0]


@pytest.mark.parametrize("wrap", [jax.vmap, jax.grad, lambda f: lambda t: jax.jit(f)(t)], ids=["vmap", "grad", "jit"])
def test_unsupported_transformations_raise(wrap: Any) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="outside of jit, vmap, grad, scan, cond and checkpoint"):
        value_and_rows(wrap(lambda table: table.bags([0], [0], 1).sum()))(Table(table_of(1)))


@pytest.mark.parametrize("options", [{"padding_idx": 0}, {"ignore_id": -1}, {"default_id": 2}], ids=str)
@pytest.mark.parametrize("id_format", ["matrix", "segments", "sparse"])
def test_ids_may_be_computed_inside_without_jit(id_format: str, options: dict[str, Any]) -> None:
    ids, table = jnp.asarray(np.array([7, 0, 7, 2, 11, 2])), table_of(1)

    def loss(table: Any) -> Any:
        if id_format == "matrix":
            found = rgj.embedding_bag(table, ids.reshape(3, 2), **options)
        elif id_format == "segments":
            found = rgj.embedding_bag(
                table, jnp.flip(ids), segment_ids=jnp.repeat(jnp.arange(3), 2), num_bags=4, **options
            )
        else:
            indices = jnp.stack([jnp.repeat(jnp.arange(3), 2), jnp.tile(jnp.arange(2), 3)], axis=1)
            found = rgj.embedding_bag(table, rg.SparseTensor(indices, ids, [3, 2]), **options)
        return jnp.sin(found).sum()

    expected = jax.value_and_grad(loss)(table)
    for run in (value_and_rows(loss), jax.jit(value_and_rows(loss))):
        value, grads = run(Table(table))
        np.testing.assert_allclose(value, expected[0], rtol=1e-6)
        np.testing.assert_allclose(rows.to_dense(grads).array, expected[1], rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_vmap_over_tables_that_share_ids(compiled: bool) -> None:
    def run(table: Any) -> Any:
        return value_and_rows(lambda t: jnp.sin(t.bags(IDS, SEGMENTS, BAGS)).sum())(table)

    tables = jnp.stack([table_of(1), table_of(2)])
    many = jax.vmap(run)
    value, grads = (jax.jit(many) if compiled else many)(Table(tables))
    for k in range(2):
        expected_value, expected = run(Table(tables[k]))
        np.testing.assert_allclose(value[k], expected_value, rtol=1e-6)
        assert grads.rows.indices[k].tolist() == expected.rows.indices.tolist()
        np.testing.assert_allclose(grads.rows.values[k], expected.rows.values, rtol=1e-6)
    assert many(Table(tables[:0]))[1].rows.values.shape == (0, len(IDS), COLUMNS)


@pytest.mark.parametrize("pick", [eqx.is_array, eqx.is_inexact_array, lambda x: isinstance(x, jax.Array)])
def test_filters_for_arrays_do_not_skip_tables(pick: Callable[[Any], bool]) -> None:
    def penalty(params: Any) -> Any:
        return sum((x**2).sum() for x in jax.tree.leaves(params) if pick(x))

    with pytest.raises(
        rg.errors.InvalidArgumentError, match=r"a table can be read only by table\[ids\] and table\.bags"
    ):
        value_and_rows(penalty)({"table": Table(table_of(1)), "layer": table_of(2)})


def test_strict_promotion_of_dtypes() -> None:
    params = {"table": Table(table_of(1, dtype=jnp.bfloat16)), "weights": jnp.linspace(0.5, 2.0, len(IDS))}

    def loss(params: Any) -> Any:
        plain = params["table"].bags(IDS, SEGMENTS, BAGS)
        weighted = params["table"].bags(IDS, SEGMENTS, BAGS, params["weights"], "sum")
        return (plain.astype(jnp.float32) + weighted.astype(jnp.float32)).sum()

    expected = value_and_rows(loss)(params)[1]
    norm = rows.global_norm(expected)
    with jax.numpy_dtype_promotion("strict"):
        found = value_and_rows(loss)(params)[1]
        assert same_bits(np.asarray(rows.global_norm(found)), np.asarray(norm))
        rows.clip_by_global_norm(found, 1.0)
    assert same_bits(np.asarray(found["table"].rows.values), np.asarray(expected["table"].rows.values))


def test_size_may_be_a_numpy_integer() -> None:
    def loss(table: Any) -> Any:
        return table.bags(IDS, SEGMENTS, BAGS).sum()

    assert value_and_rows(loss, size=np.int64(6))(Table(table_of(1)))[1].rows.indices.shape == (6,)  # type: ignore[arg-type]
    with pytest.raises(rg.errors.InvalidArgumentError, match="size must be None or an int of at least 0; got True"):
        value_and_rows(loss, size=True)


@pytest.mark.parametrize("num_bags", [2**31, 2**62, True, -1])
@pytest.mark.parametrize("compile_", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_invalid_num_bags_raises(num_bags: Any, compile_: Any) -> None:
    ids = jnp.zeros(1, jnp.int32)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"num_bags: got .*, expected an int of at least 0"):
        compile_(lambda array: Table(array).bags(ids, ids, num_bags))(jnp.ones((9, 2)))


def test_numpy_makes_no_array_of_a_table() -> None:
    table = Table(table_of(1))
    _, gradient = value_and_rows(lambda t: t[jnp.array([1, 2])].sum())(table)
    # Older versions of JAX reject what is no array themselves.
    conversions = (np.asarray, np.array, *([jnp.asarray] if jax.__version_info__ >= (0, 7) else []))
    for convert, value in itertools.product(conversions, (table, gradient)):
        with pytest.raises(rg.errors.InvalidArgumentError, match=r"a Table is not an array\. .*use table\.array"):
            convert(value)
    assert np.asarray(table.array).shape == table.shape


@pytest.mark.parametrize(
    ("ids", "kind"), [((jnp.array([1, 2]), 0), "tuple"), (slice(1, 3), "slice"), (None, "NoneType"), (..., "ellipsis")]
)
def test_a_table_is_indexed_by_ids_only(ids: Any, kind: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=rf"array or a list of row numbers; got a {kind}\."):
        Table(table_of(1))[ids]


@pytest.mark.parametrize(("ids", "place"), [([[1, 2], [3, -1]], "1, 1"), ([0, 99], "1"), (99, r"\(\)")])
def test_a_bad_id_is_reported_at_its_place(ids: Any, place: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=rf"^ids\[{place}\] = .* is not in \[0, \d+\)") as raised:
        Table(table_of(1))[jnp.array(ids)]
    assert raised.value.argument == "ids"


def test_row_gradients_of_row_gradients_name_the_alternative() -> None:
    def squares(table: Any) -> Any:
        return (table[jnp.array([1, 2, 1])] ** 2).sum()

    def of_rows(table: Any) -> Any:
        return (value_and_rows(squares)(table)[1].rows.values ** 2).sum()

    table = Table(table_of(1))
    with pytest.raises(rg.errors.UnimplementedError, match=r"jax\.grad around value_and_rows"):
        value_and_rows(of_rows)(table)
    assert jax.grad(of_rows)(table).array.shape == table.shape
    with pytest.raises(rg.errors.InvalidArgumentError, match="Pass the parameters, not their gradients"):
        value_and_rows(squares)(value_and_rows(squares)(table)[1])


def test_the_package_lists_what_it_documents() -> None:
    names = [name for name in dir(rgj) if not name.startswith("__")]
    assert names == ["Table", "embedding_bag", "optim", "rows", "sharded", "synchronize", "value_and_rows"]
