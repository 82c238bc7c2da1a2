"""Lookups beyond the golden cases: shards, 16-bit sums, max_norm, edge cases, derivatives."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rowgrad as rg
from golden_cases import same_bits
from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.graph import AddSymbolicGradients, ClientSession, Scope, ops
from rowgrad.sharding.div_mod import locate

ROWS, WIDTH = 13, 3
LOOKUPS = (rg.embedding_lookup_sparse, rg.safe_embedding_lookup_sparse)


def table(dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(dtype)


def batch(n: int = 40, bags: int = 6, ids_dtype: Any = np.int64) -> tuple[rg.SparseTensor, rg.SparseTensor]:
    rng = np.random.default_rng(2)
    rows = np.sort(rng.integers(0, bags, n))
    rows[-1] = bags - 1
    places = np.stack([rows, np.arange(n)], axis=1)
    ids = rg.SparseTensor(places, rng.integers(0, ROWS, n).astype(ids_dtype), [bags, n])
    return ids, rg.SparseTensor(places, rng.uniform(0.1, 2, n).astype(np.float32), [bags, n])


def split_rows(rows: np.ndarray, sizes: list[int], strategy: str) -> list[np.ndarray]:
    """Return shards with the rows that the partition rule assigns to them."""
    shard, row = locate(np.arange(len(rows)), sum(sizes), len(sizes), strategy)
    parts = [np.zeros((size, *rows.shape[1:]), rows.dtype) for size in sizes]
    for i, (s, r) in enumerate(zip(shard, row, strict=True)):
        parts[s][r] = rows[i]
    return parts


def test_thirteen_rows_over_five_shards() -> None:
    shard, row = locate(np.arange(13), 13, 5, "div")
    assert [np.flatnonzero(shard == k).tolist() for k in range(5)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [9, 10],
        [11, 12],
    ]
    assert row.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 0, 1]
    shard, row = locate(np.arange(7), 7, 3, "mod")
    assert (shard.tolist(), row.tolist()) == ([0, 1, 2, 0, 1, 2, 0], [0, 0, 0, 1, 1, 1, 2])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_shards_return_the_bits_of_the_whole_table(combiner: str, strategy: str, weighted: bool) -> None:
    whole, (ids, weights) = table(), batch()
    sizes = [5, 4, 4]
    shards = split_rows(whole, sizes, strategy)
    bag_weights = weights if weighted else None
    options = {"combiner": combiner, "partition_strategy": strategy}
    for lookup in LOOKUPS:
        expected = lookup(whole, ids, bag_weights, combiner=combiner, lookup="unique")
        assert same_bits(lookup(shards, ids, bag_weights, **options), expected)
        dy = np.random.default_rng(3).normal(size=expected.shape).astype(np.float32)
        whole_grad = rg.vjp(lookup, (whole, ids, bag_weights), dy, combiner=combiner, lookup="unique")[0]
        parts = rg.vjp(lookup, (shards, ids, bag_weights), dy, **options)[0]
        dense = rg.densify(whole_grad)
        for part, expected_part in zip(parts, split_rows(dense, sizes, strategy), strict=True):
            assert isinstance(part, rg.IndexedRows)
            assert len(np.unique(part.indices)) == len(part.indices)
            assert same_bits(rg.densify(part), expected_part)


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_gradients_of_shards_keep_negative_zero(strategy: str) -> None:
    """As in TensorFlow: −6e-8 / 3 rounds to −0 in float16, and scattering to shards keeps the sign."""
    shards = [np.ones((3, 1), np.float16), np.ones((3, 1), np.float16)]
    ids = rg.SparseTensor([[0, 0], [0, 1], [0, 2]], np.array([0, 1, 4]), [1, 3])
    dy = np.array([[-6e-8]], np.float16)
    options = {"combiner": "mean", "partition_strategy": strategy}
    parts = rg.vjp(rg.embedding_lookup_sparse, (shards, ids), dy, **options)[0]
    rows = np.concatenate([part.values for part in parts])
    assert rows.view(np.uint16).tolist() == [[0x8000]] * 3
    assert [part.indices.tolist() for part in parts] == ([[0, 1], [1]] if strategy == "div" else [[0, 2], [0]])


@pytest.mark.parametrize("bad", [7, -1])
@pytest.mark.parametrize(
    ("options", "shards", "message"),
    [
        ({}, 1, "Bad: indices[0] == {bad} out of range [0, 3)"),
        ({"partition_strategy": "div"}, 2, "partitions[0] = {shard} is not in [0, 2)"),
        # TensorFlow accepts the following ones: without columns it gathers and checks nothing.
        ({"max_norm": 1.0}, 1, "indices[0] = {bad} is not in [0, 3)"),
        ({"partition_strategy": "mod"}, 2, "indices[0] = {row} is not in [0, 3)"),
    ],
)
def test_ids_of_a_table_without_columns(bad: int, options: dict[str, Any], shards: int, message: str) -> None:
    table: Any = np.ones((3, 0), np.float32)
    ids = rg.SparseTensor([[0, 0]], np.array([bad]), [1, 1])
    facts = {"bad": bad, "shard": 2 if bad > 0 else -1, "row": bad // 2}
    with pytest.raises(rg.errors.InvalidArgumentError) as caught:
        rg.embedding_lookup_sparse([table] * shards if shards > 1 else table, ids, None, "sum", **options)
    assert caught.value.message == message.format(**facts)


@pytest.mark.parametrize(
    ("strategy", "bad", "message"),
    [
        ("div", 13, "partitions[1] = 3 is not in [0, 3)"),
        ("div", 100, "partitions[1] = 24 is not in [0, 3)"),
        ("div", -1, "partitions[1] = -1 is not in [0, 3)"),
        ("div", -6, "partitions[1] = -2 is not in [0, 3)"),
        ("mod", 13, "indices[0] = 4 is not in [0, 4)"),
        ("mod", -1, "indices[0] = -1 is not in [0, 4)"),
        ("mod", -6, "indices[1] = -2 is not in [0, 5)"),
    ],
)
def test_ids_outside_all_shards_raise(strategy: str, bad: int, message: str) -> None:
    ids = rg.SparseTensor([[0, 0], [0, 1]], np.array([0, bad]), [1, 2])
    shards = split_rows(table(), [5, 4, 4], strategy)
    with pytest.raises(rg.errors.InvalidArgumentError) as caught:
        rg.embedding_lookup_sparse(shards, ids, partition_strategy=strategy)
    assert caught.value.message == message


def test_invalid_shards_raise() -> None:
    ids, _ = batch()
    with pytest.raises(ValueError, match="Need at least one param"):
        rg.embedding_lookup_sparse([], ids)
    with pytest.raises(ValueError, match="Unrecognized partition strategy: row"):
        rg.embedding_lookup_sparse([table(), table()], ids, partition_strategy="row")
    with pytest.raises(
        rg.errors.InvalidArgumentError, match=r"params\[1\] must have rows of float32\[3\]; got float64"
    ):
        rg.embedding_lookup_sparse([table(), table(np.float64)], ids)
    with pytest.raises(rg.errors.InvalidArgumentError, match="Integer division by zero"):
        rg.embedding_lookup_sparse([table()[:1], table()[:1], table()[:0]], ids)


@pytest.mark.parametrize(("dtype", "rounded"), [(ml_dtypes.bfloat16, 256), (np.float16, 2048)])
def test_accumulate(dtype: Any, rounded: int) -> None:
    """TensorFlow's weighted gradient rounds at every addition; accumulate="float32" does not."""
    n = 4096
    places = np.stack([np.arange(n), np.zeros(n, np.int64)], axis=1)
    ids = rg.SparseTensor(places, np.zeros(n, np.int64), [n, 1])
    ones = rg.SparseTensor(places, np.ones(n, np.float32), [n, 1])
    params, dy = np.ones((1, 1), dtype), np.ones((n, 1), dtype)
    for accumulate, expected in (("T", rounded), ("float32", n)):
        grad = rg.vjp(rg.embedding_lookup_sparse, (params, ids, ones), dy, combiner="sum", accumulate=accumulate)[0]
        assert float(grad.values[0, 0]) == expected


def test_max_norm() -> None:
    params = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    ids = rg.SparseTensor([[0, 0], [1, 0], [2, 0]], np.array([0, 1, 2]), [3, 1])
    clipped = rg.embedding_lookup_sparse(params, ids, max_norm=1.0)
    assert np.allclose(clipped, [[0.6, 0.8], [0.3, 0.4], [0, 0]])
    assert not rg.embedding_lookup_sparse(params, ids, max_norm=0.0).any()
    assert not rg.embedding_lookup_sparse(params, ids, max_norm=-1.0).any()
    # Clipping removes the gradient along the row; rows within the norm keep all of it.
    dy = np.array([[3.0, 4.0], [3.0, 4.0], [1.0, 1.0]])
    grad = rg.densify(rg.vjp(rg.embedding_lookup_sparse, (params, ids), dy, max_norm=1.0)[0])
    assert np.allclose(grad, [[0, 0], [3, 4], [1, 1]])


def numeric(f: Any, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    slope = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[i] += step
        behind[i] -= step
        slope[i] = (f(ahead) - f(behind)) / (2 * step)
    return slope


@pytest.mark.parametrize("options", [{}, {"max_norm": 1.5}, {"allow_fast_lookup": True}, {"lookup": "unique"}])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("function", LOOKUPS)
def test_derivatives_to_second_order(function: Any, combiner: str, options: dict[str, Any]) -> None:
    params, (ids, weights) = table(np.float64), batch()
    w = weights.values.astype(np.float64)
    options = {"combiner": combiner, **options}

    def lookup(p: Any, v: Any) -> Any:
        return function(p, ids, rg.SparseTensor(weights.indices, v, weights.dense_shape), **options)

    dy = np.random.default_rng(4).normal(size=lookup(params, w).shape)

    def gradients(p: Any, v: Any) -> tuple[Any, ...]:
        return tuple(rg.densify(g) for g in rg.vjp(lookup, (p, v), dy))

    to_params, to_weights = gradients(params, w)
    assert np.allclose(to_params, numeric(lambda p: np.vdot(lookup(p, w), dy), params), atol=1e-6)
    assert np.allclose(to_weights, numeric(lambda v: np.vdot(lookup(params, v), dy), w), atol=1e-6)
    along = np.random.default_rng(5).normal(size=w.shape)
    back = rg.vjp(lambda p, v: gradients(p, v)[1], (params, w), along)
    assert np.allclose(rg.densify(back[0]), numeric(lambda p: np.vdot(gradients(p, w)[1], along), params), atol=1e-5)
    if combiner != "sum":
        expected = numeric(lambda v: np.vdot(gradients(params, v)[1], along), w)
        assert np.allclose(rg.densify(back[1]), expected, atol=1e-5)


def test_safe_lookup_on_an_empty_batch() -> None:
    ids = rg.SparseTensor(np.zeros((0, 2)), np.zeros(0, np.int64), [3, 4])
    assert not rg.safe_embedding_lookup_sparse(table(), ids).any()
    filled = rg.safe_embedding_lookup_sparse(table(), ids, default_id=2)
    assert same_bits(filled, np.stack([table()[2]] * 3))
    grad = rg.vjp(rg.safe_embedding_lookup_sparse, (table(), ids), np.ones((3, WIDTH), np.float32), default_id=2)[0]
    assert grad.indices.tolist() == [2]
    assert grad.values.tolist() == [[3, 3, 3]]


def test_nan_in_row_zero_does_not_leak() -> None:
    params = table()
    params[0] = np.nan
    ids = rg.SparseTensor([[1, 0]], np.array([3]), [3, 1])
    found = rg.safe_embedding_lookup_sparse(params, ids)
    assert found[[0, 2]].tolist() == [[0] * WIDTH] * 2


def test_integer_weights_and_int32_ids() -> None:
    ids, weights = batch(ids_dtype=np.int32)
    whole = rg.SparseTensor(weights.indices, np.ones(weights.nnz, np.int32), weights.dense_shape)
    plain = rg.SparseTensor(weights.indices, np.ones(weights.nnz, np.float32), weights.dense_shape)
    assert same_bits(rg.embedding_lookup_sparse(table(), ids, whole), rg.embedding_lookup_sparse(table(), ids, plain))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda ids, w: rg.embedding_lookup_sparse(table(), ids.values), TypeError, "sp_ids must be SparseTensor"),
        (lambda ids, w: rg.embedding_lookup_sparse(table(), ids, w.values), TypeError, "sp_weights must be either"),
        (lambda ids, w: rg.embedding_lookup_sparse(table(), ids, combiner="max"), ValueError, "combiner must be one"),
        (lambda ids, w: rg.embedding_lookup_sparse(table(), ids, lookup="fast"), ValueError, "lookup must be one of"),
        (lambda ids, w: rg.safe_embedding_lookup_sparse(None, ids), ValueError, "Missing embedding_weights None."),
        (lambda ids, w: rg.safe_embedding_lookup_sparse([], ids), ValueError, "Missing embedding_weights"),
        (lambda ids, w: rg.safe_embedding_lookup_sparse(table(), ids, default_id=0.5), TypeError, "default_id must be"),
        (lambda ids, w: rg.safe_embedding_lookup_sparse(table(), ids, ids), ValueError, "sparse_weights must be"),
        (lambda ids, w: rg.safe_embedding_lookup_sparse(table(), [0]), TypeError, "sparse_ids must be SparseTensor"),
        (lambda ids, w: rg.embedding_lookup_sparse(table(), ids, w, accumulate="half", max_norm=1),
         ValueError, "accumulate must be one of 'T' or 'float32'"),
    ],
)  # fmt: skip
def test_invalid_arguments_raise(call: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        call(*batch())


@pytest.mark.parametrize(
    ("shape", "entry", "row"),
    [([2, 2, 2], [0, 3, 1], 3), ([2, 2, 2], [1, -1, 1], 1), ([2, 2, 2], [0, 0, -1], 0), ([4], [-1], 0)],
)
def test_indices_of_other_ranks_are_flattened_row_by_row(shape: list[int], entry: list[int], row: int) -> None:
    ids = rg.SparseTensor([entry], np.array([5]), shape)
    found = rg.safe_embedding_lookup_sparse(table(), ids, combiner="sum").reshape(-1, WIDTH)
    assert np.flatnonzero(found.any(axis=1)).tolist() == [row]


@pytest.mark.parametrize(
    ("shape", "entry", "message"),
    [
        ([2, 2, 2], [0, 1, 9], "indices(0, 0) is invalid: 5 >= 4"),
        ([2, 2, 2], [-1, 0, 0], "indices(0, 0) is invalid: -2 >= 4"),
        ([4], [7], "indices(0, 0) is invalid: 1 >= 1"),
        ([4, 2], [5, 0], "indices(0, 0) is invalid: 5 >= 4"),
        ([2, 0, 2], [0, 0, 0],
         "Input tensor has 1 non zero elements but input shape ([2,0,2]) or output shape ([0,2]) is empty"),
    ],
)  # fmt: skip
def test_indices_out_of_range_raise(shape: list[int], entry: list[int], message: str) -> None:
    ids = rg.SparseTensor([entry], np.array([5]), shape)
    with pytest.raises(rg.errors.InvalidArgumentError) as caught:
        rg.safe_embedding_lookup_sparse(table(), ids)
    assert caught.value.message == message


def test_errors_name_the_lookup_and_its_arguments() -> None:
    ids = rg.SparseTensor([[0, 0]], np.array([99]), [1, 1])
    with pytest.raises(rg.errors.InvalidArgumentError) as caught:
        rg.embedding_lookup_sparse(table(), ids, None, "sum", None, "films")
    error = caught.value
    assert (error.op, error.name, error.argument, error.value) == ("embedding_lookup_sparse", "films", "sp_ids", 99)
    assert "in embedding_lookup_sparse(params=float32[13,3], sp_ids=int64[1,1]" in error.__notes__[0]


def test_non_native_byte_order() -> None:
    ids, weights = batch()
    swapped = rg.SparseTensor(ids.indices, ids.values.astype(">i8"), ids.dense_shape)
    expected = rg.embedding_lookup_sparse(table(), ids, weights)
    assert same_bits(rg.embedding_lookup_sparse(table().astype(">f4"), swapped, weights), expected)
    shards = split_rows(table(), [5, 4, 4], "div")
    shards[1] = shards[1].astype(">f4")
    assert same_bits(rg.embedding_lookup_sparse(shards, swapped, weights), expected)


def test_invalid_default_id_raises() -> None:
    ids = rg.SparseTensor([[0, 0]], np.array([1], np.int32), [2, 1])
    with pytest.raises(rg.errors.InvalidArgumentError, match="default_id must contain values of int32"):
        rg.safe_embedding_lookup_sparse(table(), ids, default_id=2**40)


# dtype, row, max_norm, the clipped row, its gradient for ones. The float32 rows are TensorFlow's results; 16-bit rows
# are clipped in float32, where TensorFlow's squares and products overflow (docs/reference/differences.md).
EXTREME_NORMS: list[tuple[str, list[float], float, list[float], list[float]]] = [
    ("float32", [1e10], 1e30, [np.inf], [1.0]),
    ("float32", [1e20], 1.0, [0.0], [0.0]),
    ("float32", [1e-30, 1.0], 1.0, [1e-30, 1.0], [1.0, 0.0]),
    ("float32", [1.0, 2.0], np.inf, [np.nan, np.nan], [np.nan, np.nan]),
    ("float32", [np.inf, 2.0], 1.0, [np.nan, 0.0], [np.nan, np.nan]),
    ("float16", [200.0, 200.0], 1.0, [0.7071, 0.7071], [0.0, 0.0]),
    ("float16", [3.0, 4.0], 65504.0, [3.0, 4.0], [1.0, 1.0]),
    ("float16", [3.0, 4.0], 70000.0, [3.0, 4.0], [1.0, 1.0]),
    ("float16", [0.0, 0.0], 70000.0, [0.0, 0.0], [1.0, 1.0]),
    ("bfloat16", [3.0, 4.0], 1e37, [3.0, 4.0], [1.0, 1.0]),
]


@pytest.mark.parametrize(("dtype", "row", "max_norm", "expected", "gradient"), EXTREME_NORMS)
def test_max_norm_of_extreme_numbers(
    dtype: str, row: list[float], max_norm: float, expected: list[float], gradient: list[float]
) -> None:
    params = np.array([row], NUMPY_DTYPE[dtype])
    ids = rg.SparseTensor([[0, 0]], np.array([0]), [1, 1])
    with np.errstate(all="ignore"):
        found = rg.embedding_lookup_sparse(params, ids, None, "sum", max_norm=max_norm)
        options = {"combiner": "sum", "max_norm": max_norm}
        back = rg.vjp(rg.embedding_lookup_sparse, (params, ids), np.ones_like(found), **options)[0].values
        root = Scope.new_root_scope()
        x = ops.Variable(root, params)
        out = ops.EmbeddingLookupSparse(root, x, ids, combiner="sum", max_norm=max_norm)
        pulled = list(AddSymbolicGradients(root, [out], [x], [np.ones_like(found)]))
        in_graph = ClientSession(root).run([out, *pulled])
    assert found.dtype == params.dtype
    for got, reference in ((found, expected), (back, gradient), (in_graph[0], expected), (in_graph[1], gradient)):
        np.testing.assert_allclose(got.astype(np.float64), [reference], rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_max_norm_that_float32_cannot_hold(dtype: str) -> None:
    ids = rg.SparseTensor([[0, 0]], np.array([0]), [1, 1])
    with pytest.raises(
        rg.errors.InvalidArgumentError, match=r"max_norm must be a number that fits float32; got 1e\+39"
    ):
        rg.embedding_lookup_sparse(np.ones((1, 2), NUMPY_DTYPE[dtype]), ids, max_norm=1e39)


@pytest.mark.parametrize(
    ("places", "shape", "message"),
    [
        ([[0, 0, 5], [1, 0, 7]], [2, 1, 2**63 - 1], "2 with 9223372036854775807, result: -2"),
        ([[0, 0, 5], [1, 2, 7]], [2, 4, 2**62], "8 with 4611686018427387904, result: -1"),
        ([[0, 0, 2**62]], [2, 1, 2**62], "2 with 4611686018427387904, result: -9223372036854775808"),
        ([[0, 5], [1, 7]], [2, 2**63 - 1], "2 with 9223372036854775807, result: -2"),
        (np.zeros((0, 3), np.int64), [2**32, 2**32, 2], "4294967296 with 4294967296, result: -1"),
    ],
)
def test_shapes_of_ids_beyond_int64_are_rejected(places: Any, shape: list[int], message: str) -> None:
    ids = rg.SparseTensor(places, np.arange(len(places)), shape)
    with pytest.raises(rg.errors.InvalidArgumentError, match=f"Encountered overflow when multiplying {message}"):
        rg.safe_embedding_lookup_sparse(np.ones((3, 2), np.float32), ids, combiner="sum")


def test_a_last_dimension_near_int64_keeps_its_rows() -> None:
    ids = rg.SparseTensor([[0, 0, 5], [1, 0, 7]], np.array([1, 2]), [2, 1, 2**62 - 1])
    table = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    assert rg.safe_embedding_lookup_sparse(table, ids, combiner="sum").tolist() == [[[3, 4]], [[5, 6]]]


def test_max_norm_as_text_raises() -> None:
    ids = rg.SparseTensor([[0, 0]], np.array([1]), [1, 1])
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"max_norm must be a number; got '1\.0'"):
        rg.embedding_lookup_sparse(table(), ids, max_norm="1.0")  # type: ignore[arg-type]
