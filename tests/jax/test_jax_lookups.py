"""Lookups on JAX arrays compared with TensorFlow's results: eager, differentiated, compiled with traced ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rowgrad as rg
from conformance.test_golden_lookups import FUNCTIONS, arguments, close, is_fixed
from golden_cases import Case, cases, same_bits
from jax_arrays import to_jax, x64
from rowgrad._runtime.arrays import NUMPY_DTYPE
from test_embedding_lookup import EXTREME_NORMS

CASES = list(cases("valid", composites=True))


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with x64():
        yield


def test_jax_supports_the_dtypes_of_all_cases() -> None:
    dtypes = {array.dtype for case in CASES for array in case.inputs.values()}
    assert all(to_jax(np.zeros(1, dtype)) is not None for dtype in dtypes)


def jax_arguments(case: Case) -> tuple[list[Any], dict[str, Any]]:
    """Return table, ids and weights as JAX arrays, and the options."""
    (params, ids, weights), options = arguments(case)
    found = [rg.SparseTensor(s.indices, to_jax(s.values), s.dense_shape) for s in (ids, weights) if s is not None]
    return [to_jax(params), *found], options


WEIGHTED = {(c.op, c.attrs["combiner"]): c.id for c in CASES if "weights" in c.inputs and c.tag == "w"}


def results(case: Case, inputs: list[Any], options: dict[str, Any], dy: Any) -> dict[str, Any]:
    """Return the lookup, the gradient of its table and, for some cases of each combiner, of its weights."""
    table, ids, *tail = inputs
    weights = tail[0].values if tail else None
    with_weights = case.id in WEIGHTED.values() and jnp.issubdtype(weights.dtype, jnp.floating)
    leaves = [table, weights] if with_weights else [table]

    def forward(table: Any, weights: Any = weights) -> Any:
        bag_weights = None if weights is None else rg.SparseTensor(tail[0].indices, weights, tail[0].dense_shape)
        return FUNCTIONS[case.op](table, ids, bag_weights, **options)

    if dy is None:
        return {"y": forward(table)}
    y, pull = jax.vjp(forward, *leaves)
    return {"y": y, **dict(zip(("dparams", "dweights"), pull(dy), strict=False))}


def differentiated() -> set[int]:
    """Return all cases, except that of those with dense ops, which JAX compiles for every shape, one of each kind."""
    found: dict[Any, int] = {}
    for case in CASES:
        kind: Any = case.id
        if case.attrs["max_norm"] is not None:
            kind = case.op
        elif case.op.startswith("safe") and case.attrs["default_id"] is None:
            kind = ("weights" in case.inputs, case.tag)
        found.setdefault(kind, case.id)
    return set(found.values())


DIFFERENTIATED = differentiated()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lookup(case: Case) -> None:
    inputs, options = jax_arguments(case)
    agree(case, "y", FUNCTIONS[case.op](*inputs, **options))
    if "dy" in case.inputs and case.id in DIFFERENTIATED:
        for name, found in results(case, inputs, options, to_jax(case.inputs["dy"])).items():
            agree(case, name, found)


def one_of_each() -> list[Case]:
    """Return safe lookups for every combiner, with and without weights and defaults, and the special cases."""
    common = ("w", "no-w", "variable", "long-rows", "row-of-16+")
    found: dict[Any, Case] = {}
    for case in (c for c in CASES if c.op.startswith("safe")):
        kind = (case.attrs["combiner"], case.attrs["default_id"] is None) if case.tag in common else ()
        found.setdefault((*kind, "weights" in case.inputs, "" if kind else case.tag.partition("-")[0]), case)
    return list(found.values())


SAFE = one_of_each()


def test_compiled_with_traced_ids() -> None:
    """Compile one case of every kind as one program."""
    prepared = [(case, *jax_arguments(case)) for case in SAFE]

    @jax.jit
    def program(traced: list[Any], dys: list[Any]) -> list[dict[str, Any]]:
        parts = zip(prepared, traced, dys, strict=True)
        return [results(case, inputs, options, dy) for (case, _, options), inputs, dy in parts]

    dys = [to_jax(case.inputs["dy"]) if "dy" in case.inputs else None for case in SAFE]
    for case, found in zip(SAFE, program([inputs for _, inputs, _ in prepared], dys), strict=True):
        for name, array in found.items():
            agree(case, name, array)


def dense(case: Case, name: str, rows: int) -> np.ndarray | None:
    """Return TensorFlow's gradient as a table; duplicate rows are summed in rowgrad's order."""
    if name in case.outputs:
        return case.outputs[name]
    if f"{name}_values" not in case.outputs:
        return None
    return rg.densify(rg.IndexedRows(case.outputs[f"{name}_values"], case.outputs[f"{name}_indices"], rows))


def agree(case: Case, name: str, got: Any) -> None:
    assert isinstance(got, jax.Array)
    found, expected = np.asarray(got), dense(case, name, got.shape[0])
    if expected is None:
        return
    # TensorFlow rounds one row per id before it sums them; JAX's gradient of a table sums first.
    ids = case.outputs.get(f"{name}_indices", np.zeros(0)).tolist()
    fixed = is_fixed(case, name) and len(set(ids)) == len(ids)
    good = same_bits(found, expected) if fixed else close(found, expected, case)
    assert good, f"{case} {name}\n{found}\n{expected}"


def test_concrete_ids_with_a_traced_table() -> None:
    """Ids may be constants under jit; then they determine the number of output rows."""
    table, values = np.arange(12.0).reshape(6, 2), np.array([5, 2, 0, 3])
    ids = rg.SparseTensor([[0, 0], [0, 1], [2, 0], [2, 1]], values, [4, 2])
    weights = rg.SparseTensor(ids.indices, np.array([1, 2, 3, 4]), [4, 2])
    shards = [table[:3], table[3:]]

    def lookups(table: Any, shards: Any, weights: Any) -> list[Any]:
        return [
            rg.embedding_lookup_sparse(table, ids),
            rg.embedding_lookup_sparse(table, ids, weights, allow_fast_lookup=True),
            rg.embedding_lookup_sparse(table, ids, weights, "sum"),
            rg.embedding_lookup_sparse(shards, ids, combiner="sqrtn", max_norm=3.0),
            rg.safe_embedding_lookup_sparse(table, ids, default_id=1),
            rg.safe_embedding_lookup_sparse(shards, ids, combiner="sum"),
        ]

    for found, expected in zip(jax.jit(lookups)(table, shards, weights), lookups(table, shards, weights), strict=True):
        np.testing.assert_allclose(found, expected, 1e-15)
    unsorted = rg.SparseTensor([[1, 0], [0, 0], [1, 1]], [0, 1, 2], [2, 2])
    for other in (None, rg.SparseTensor(unsorted.indices, np.ones(3), [2, 2])):
        with pytest.raises(rg.errors.InvalidArgumentError, match="segment ids are not increasing"):
            jax.jit(lambda table, w=other: rg.embedding_lookup_sparse(table, unsorted, w, "sum"))(table)


def test_invalid_arguments_raise_while_tracing() -> None:
    table = jnp.ones((3, 2))
    ids = rg.SparseTensor([[0, 0]], jnp.array([1]), [1, 1])
    with pytest.raises(
        rg.errors.InvalidArgumentError, match=r"use safe_embedding_lookup_sparse.*dense_shape\[0\]"
    ) as it:
        jax.jit(rg.embedding_lookup_sparse)(table, ids)
    assert (it.value.argument, it.value.op) == ("sp_ids", "embedding_lookup_sparse")
    with pytest.raises(rg.errors.InvalidArgumentError, match="looked up in one table, but not in 2 shards"):
        jax.jit(rg.safe_embedding_lookup_sparse)([table, table], ids)
    with pytest.raises(rg.errors.InvalidArgumentError, match="dense_shape determines a shape"):
        jax.jit(lambda shape: rg.SparseTensor([[0, 0]], [1], shape))(jnp.array([1, 1]))
    with pytest.raises(rg.errors.InvalidArgumentError, match="indices must be int64; got float64"):
        jax.jit(lambda indices: rg.SparseTensor(indices, [1], [1, 1]))(jnp.ones((1, 2)))
    with pytest.raises(rg.errors.InvalidArgumentError, match="sparse_ids must be one of int32, int64; got float64"):
        jax.jit(rg.safe_embedding_lookup_sparse)(table, rg.SparseTensor([[0, 0]], jnp.array([1.0]), [1, 1]))
    with pytest.raises(rg.errors.InvalidArgumentError, match="slice index 1 of dimension 0 out of bounds"):
        jax.jit(rg.safe_embedding_lookup_sparse)(table[:, 0], ids)
    with pytest.raises(ValueError, match="accumulate must be one of"):
        jax.jit(lambda ids: rg.safe_embedding_lookup_sparse(table, ids, accumulate="T32"))(ids)


def test_bad_ids_raise_in_compiled_programs() -> None:
    """Bad ids and rows outside of dense_shape raise; pruned ids are not validated."""
    program = jax.jit(lambda ids: rg.safe_embedding_lookup_sparse(jnp.ones((3, 2)), ids, combiner="sum"))

    def run(row: int, value: int) -> Any:
        return jax.block_until_ready(program(rg.SparseTensor([[0, 0], [row, 0]], jnp.array([1, value]), [2, 1])))

    assert run(1, 2).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert run(7, -1).tolist() == [[1.0, 1.0], [0.0, 0.0]]
    for row, value in ((1, 3), (2, 0), (7, 0)):
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="out of range"):
            run(row, value)


def test_traced_indices_of_any_rank_equal_concrete_ones() -> None:
    """Coordinates out of range too; a row number beyond 32 bits raises instead of wrapping to an existing row."""
    table, ids, errors = jnp.arange(6.0).reshape(3, 2), np.array([1]), (ValueError, jax.errors.JaxRuntimeError)

    def outcome(function: Any, indices: Any) -> Any:
        try:
            return np.asarray(jax.block_until_ready(function(indices))).tolist()
        except errors:
            return "error"

    far = 2**30
    places_by_shape: dict[tuple[int, ...], list[tuple[int, ...]]] = {
        (2, 4, 2): [(0, 0, -1), (0, 0, -2), (0, 0, -3), (1, 0, -3), (1, -1, 0), (-1, 4, -1), (0, 0, 3), (1, 3, 5)],
        (2, 4, 1): [(far, 0, 0), (-far, 0, 0), (1 - far // 2, -2 * far, 0), (0, -2 * far, -2 * far), (1, 3, 0)],
        (2, 4, 2**40): [(1, 0, 5), (1, 0, -5), (0, 0, -5), (0, -1, -5)],
        (4,): [(3,), (4,), (-1,), (-4,)],
    }
    with x64(False):
        for shape, places in places_by_shape.items():

            def look_up(at: Any, shape: Any = shape) -> Any:
                return rg.safe_embedding_lookup_sparse(table, rg.SparseTensor(at, ids, shape), combiner="sum")

            compiled = jax.jit(look_up)
            for place in places:
                at = jnp.asarray([place], jnp.int32)
                assert outcome(compiled, at) == outcome(look_up, at), f"{place} in {shape}"


def test_sparse_tensor_is_a_pytree() -> None:
    ids = rg.SparseTensor([[0, 1], [1, 0]], np.array([5, 7]), [2, 2])
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(ids)]
    assert paths == [".indices", ".values"]
    with x64(False):
        twice = jax.jit(lambda s: rg.SparseTensor(s.indices, s.values * 2, s.dense_shape))(ids)
        assert isinstance(twice, rg.SparseTensor)
        assert twice.indices.dtype == twice.dtype == jnp.int32
        assert twice.to_dense().tolist() == [[0, 10], [14, 0]]  # its indices are JAX arrays
        assert rg.embedding_lookup_sparse(jnp.arange(15.0), twice, combiner="sum").tolist() == [10.0, 14.0]
        safe = rg.safe_embedding_lookup_sparse(jnp.arange(30.0).reshape(15, 2), twice, combiner="sum")
        assert safe.tolist() == [[20.0, 21.0], [28.0, 29.0]]
    assert jax.tree_util.tree_map(lambda x: x, ids).shape == ids.shape


def test_max_norm_of_extreme_numbers() -> None:
    """All numbers in one compiled program, and one number eagerly."""

    def rows_and_gradient(table: Any, ids: Any, max_norm: float) -> Any:
        def look_up(table: Any) -> Any:
            sparse = rg.SparseTensor(np.zeros((1, 2), np.int64), ids, [1, 1])
            return rg.safe_embedding_lookup_sparse(table, sparse, None, "sum", max_norm=max_norm, default_id=0)

        found, pull = jax.vjp(look_up, table)
        return found, pull(jnp.ones_like(found))[0]

    def agree(results: Any, expected: list[float], gradient: list[float]) -> None:
        for got, reference in zip(results, (expected, gradient), strict=True):
            np.testing.assert_allclose(np.asarray(got, np.float64), [reference], rtol=1e-3)

    tables = [to_jax(np.array([row], NUMPY_DTYPE[dtype])) for dtype, row, *_ in EXTREME_NORMS]
    norms = [max_norm for _, _, max_norm, *_ in EXTREME_NORMS]
    ids = to_jax(np.zeros(1, np.int64))
    found = jax.jit(lambda ids: [rows_and_gradient(t, ids, n) for t, n in zip(tables, norms, strict=True)])(ids)
    for results, (*_, expected, gradient) in zip(found, EXTREME_NORMS, strict=True):
        agree(results, expected, gradient)
    agree(rows_and_gradient(tables[0], ids, norms[0]), *EXTREME_NORMS[0][3:])
