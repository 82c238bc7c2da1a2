"""embedding_bag on JAX arrays: the bits of the torch runner, eager and compiled, forward and gradient; errors."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rowgrad as rg
import rowgrad.jax as rgj
from golden_cases import same_bits
from jax_arrays import placed

pytest.importorskip("torch.nn")  # not "torch", which would find the folder tests/torch
import torch

import rowgrad.torch as rgt
from torch_arrays import to_numpy, to_torch

ROWS, COLUMNS, BAGS, PAD, DEFAULT = 7, 5, 6, 3, -2
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"padding_idx": PAD},
    {"default_id": DEFAULT},
    {"padding_idx": PAD - ROWS, "default_id": DEFAULT},
    {"max_norm": 1.5},
    {"padding_idx": PAD, "default_id": DEFAULT, "max_norm": 1.5},
)
FORMS = ("matrix", "offsets", "closed offsets", "segments", "sparse")


class Case(NamedTuple):
    id_format: str
    weighted: bool
    options: dict[str, Any]
    dtype: str
    arrays: dict[str, np.ndarray]  # arrays that can be traced: table, ids, bag starts, weights, upstream gradient


def cases() -> list[Case]:
    random = np.random.default_rng(4)
    found = []
    for k, (option, weighted, combiner) in enumerate(product(OPTIONS, (False, True), ("sum", "mean", "sqrtn"))):
        id_format, dtype = FORMS[k % len(FORMS)], ("float32", "bfloat16")[k % 9 == 4]
        lengths = np.full(BAGS, 3) if id_format == "matrix" else np.array([3, 0, 1, 12, 0, 2])
        ids = random.choice([i for i in range(1, ROWS) if i != PAD], lengths.sum()).astype((np.int32, np.int64)[k % 2])
        ids[[*range(lengths[0]), 7, 9]] = PAD  # a bag of padding only; the default row is also looked up elsewhere
        table = random.normal(size=(ROWS, COLUMNS)).astype(jnp.dtype(dtype))
        table[0] = np.nan  # never looked up, so its gradient is zero
        dy = random.normal(size=(BAGS, COLUMNS)).astype(jnp.dtype(dtype))
        arrays = {"table": table, "ids": ids, "dy": dy}
        if id_format == "matrix":
            arrays["ids"] = ids.reshape(BAGS, -1)
        elif "offsets" in id_format:
            arrays["begin"] = np.append(0, np.cumsum(lengths))[: None if id_format == "closed offsets" else -1]
        else:
            arrays["begin"] = np.repeat(np.arange(BAGS), lengths)
        if weighted:
            arrays["weights"] = random.normal(size=arrays["ids"].shape).astype(jnp.dtype(dtype))
            arrays["weights"][arrays["ids"] == PAD] = np.nan  # weights of padding must not matter
        if "padding_idx" in option:
            table[PAD] = np.inf
        else:
            arrays = {k: np.nan_to_num(v, nan=1.0) if k == "weights" else v for k, v in arrays.items()}
        found.append(Case(id_format, weighted, {"combiner": combiner, **option}, dtype, arrays))
    return found


CASES = cases()


def bag(function: Any, case: Case, table: Any, ids: Any, weights: Any, begin: Any) -> Any:
    options: dict[str, Any] = {"per_sample_weights": weights, **case.options}
    if "offsets" in case.id_format:
        return function(table, ids, begin, include_last_offset=case.id_format == "closed offsets", **options)
    if case.id_format == "segments":
        return function(table, ids, segment_ids=begin, num_bags=BAGS, **options)
    if case.id_format == "sparse":
        xp = jnp if isinstance(begin, jax.Array) else np
        ids = rg.SparseTensor(xp.stack([begin, begin], axis=1), ids, [BAGS, BAGS])
    return function(table, ids, **options)


def torch_embedding_bag(table: Any, ids: Any, *args: Any, max_norm: float | None = None, **options: Any) -> Any:
    """Call torch's function, whose arguments are torch's: `max_norm` of JAX's is `lookup_max_norm` there."""
    return rgt.functional.embedding_bag(ids, table, *args, lookup_max_norm=max_norm, **options)


def by_torch(case: Case) -> list[np.ndarray]:
    arrays = {k: to_torch(v) for k, v in case.arrays.items()}
    leaves = [arrays[k].requires_grad_() for k in ("table", "weights") if k in arrays]
    begin = case.arrays.get("begin") if case.id_format == "sparse" else arrays.get("begin")
    y = bag(torch_embedding_bag, case, leaves[0], arrays["ids"], (*leaves, None)[1], begin)
    return [to_numpy(y.detach()), *map(to_numpy, torch.autograd.grad(y, leaves, arrays["dy"]))]


def by_jax(case: Case, arrays: dict[str, Any]) -> list[Any]:
    leaves = [arrays[k] for k in ("table", "weights") if k in arrays]

    def forward(table: Any, weights: Any = None) -> Any:
        return bag(rgj.embedding_bag, case, table, arrays["ids"], weights, arrays.get("begin"))

    y, pull = jax.vjp(forward, *leaves)
    return [y, *pull(arrays["dy"])]


def assert_same(case: Case, found: list[Any], compiled: bool) -> None:
    expected = by_torch(case)
    for what, got, expected_array in zip(("y", "dtable", "dweights"), found, expected, strict=False):
        # JAX differentiates max_norm, which uses dense ops, itself. Compiled, these may round once where others round
        # twice; the gradients of weights use them too.
        dense = what == "dweights" or "max_norm" in case.options
        if (compiled and dense) or (what != "y" and "max_norm" in case.options):
            tolerance = 3e-2 if case.dtype == "bfloat16" else 1e-5
            wide = [np.asarray(x).astype(np.float64) for x in (got, expected_array)]
            np.testing.assert_allclose(*wide, tolerance, tolerance, err_msg=f"{what} {case}")
        else:
            assert same_bits(got, expected_array), f"{what} {case}\n{got}\n{expected_array}"


def test_eager_bits() -> None:
    for case in CASES:
        if "max_norm" in case.options and case.options["combiner"] != "mean":
            continue  # differs from other cases only in the last op
        arrays = {k: placed(v) if k != "ids" else v for k, v in case.arrays.items()}
        assert_same(case, by_jax(case, arrays), compiled=False)


def test_compiled_bits() -> None:
    """Compile all cases as one program."""
    args = [{k: placed(v) for k, v in case.arrays.items()} for case in CASES]
    program = jax.jit(lambda arrays: [by_jax(c, a) for c, a in zip(CASES, arrays, strict=True)])
    for case, found in zip(CASES, program(args), strict=True):
        assert_same(case, found, compiled=True)


def test_any_argument_may_be_traced() -> None:
    """Only the table and weights traced, only offsets traced, and ids traced with concrete offsets."""
    table, ids, begin = jnp.arange(14.0).reshape(7, 2), np.array([3, 1, 3, 6]), np.array([0, 1, 1])
    weights = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    options = {"padding_idx": 3, "default_id": 5, "combiner": "sqrtn"}

    def look_up(table: Any, ids: Any, begin: Any, weights: Any) -> Any:
        return rgj.embedding_bag(table, ids, begin, per_sample_weights=weights, **options)

    expected = look_up(table, ids, begin, weights)
    assert expected[0].tolist() == expected[1].tolist() == [10.0, 11.0]

    @jax.jit
    def program(table: Any, traced_ids: Any, traced_begin: Any, traced_weights: Any) -> list[Any]:
        return [
            look_up(table, ids, begin, weights),
            look_up(table, ids, begin, traced_weights),
            look_up(table, ids, traced_begin, weights),
            look_up(table, traced_ids, begin, weights),
        ]

    for found in program(table, ids, begin, weights):
        assert same_bits(found, expected)


def test_a_plan_passes_through_jit() -> None:
    table, ids, segments = jnp.arange(8.0).reshape(4, 2), np.array([3, 0, 3]), np.array([0, 0, 2])
    plan = rg.Plan(ids, segments, 4, 3)

    @jax.jit
    def gradient(table: Any, plan: rg.Plan, ids: Any) -> Any:
        def loss(table: Any) -> Any:
            bags = rgj.embedding_bag(table, ids, segment_ids=segments, num_bags=3, plan=plan, combiner="sum")
            return (bags**2).sum()

        return jax.grad(loss)(table)

    assert gradient(table, plan, ids).tolist() == [[12.0, 16.0], [0.0, 0.0], [0.0, 0.0], [24.0, 30.0]]
    with pytest.raises(rg.errors.InvalidArgumentError, match="cannot be combined with padding_idx or default_id"):
        rgj.embedding_bag(table, ids, segment_ids=segments, plan=plan, padding_idx=0)
    with pytest.raises(rg.errors.InvalidArgumentError, match="the plan has 3 bags, but the bags have 4"):
        rgj.embedding_bag(table, ids, segment_ids=segments, plan=plan, num_bags=4)


def test_integer_tables() -> None:
    table, ids = jnp.arange(6).reshape(3, 2), np.array([[2, 0], [1, 2], [0, 0]])
    options = {"combiner": "sum", "padding_idx": 0}
    expected = [[4, 5], [6, 8], [0, 0]]
    assert rgj.embedding_bag(table, ids, **options).tolist() == expected
    assert jax.jit(lambda t, i: rgj.embedding_bag(t, i, **options))(table, ids).tolist() == expected


TABLE = jnp.ones((4, 2))
SPARSE = rg.SparseTensor([[0, 0]], np.array([1]), [2, 1])
OTHER = rg.SparseTensor([[0, 0, 0]], np.ones(1, np.float32), [2, 1, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": [[0, 4]]}, r"Bad: indices\[1\] == 4 out of range \[0, 4\)"),
        ({"ids": [-1], "offsets": [0]}, r"== -1 out of range"),
        ({"ids": [[0.5]]}, "ids must be one of int32, int64; got float64"),
        ({"ids": [0, 1]}, "a vector of ids needs offsets or segment_ids, got neither"),
        ({"ids": [[[0]]]}, "ids must have 1 or 2 dimensions, got 3. For bags along the last of more dimensions"),
        (
            {"ids": [[0]], "offsets": [0]},
            "offsets must be None, because a matrix of ids defines its own bags",
        ),
        (
            {"ids": [[0]], "segment_ids": [0]},
            "segment_ids must be None, because a matrix of ids defines",
        ),
        ({"ids": [[0]], "num_bags": 3}, "got 3, expected 1, the rows of ids"),
        ({"ids": [0], "offsets": [0], "num_bags": 3}, "got 3, expected 1, as offsets say"),
        ({"ids": SPARSE, "num_bags": 3}, "got 3, expected 2, as dense_shape says"),
        ({"ids": SPARSE, "per_sample_weights": OTHER}, r"indices must have shape \(1, 2\), got \(1, 3\)"),
        ({"ids": [0], "segment_ids": [0], "num_bags": 2.9}, "got 2.9, expected an int of at least 0"),
        ({"ids": [0], "segment_ids": [0], "num_bags": True}, "got True, expected an int of at least 0"),
        ({"ids": [0], "segment_ids": [0], "num_bags": 2**31}, "got 2147483648, expected an int .* at most 2147483647"),
        ({"ids": [0], "segment_ids": [0], "num_bags": 2**62}, "num_bags: got .* at most 2147483647"),
        ({"ids": [[0]], "padding_idx": True}, "padding_idx must be an int; got True"),
        ({"ids": [[0]], "default_id": False}, "default_id must be an int; got False"),
        ({"ids": [0, 1], "segment_ids": [1, 0]}, "segment ids"),
        ({"ids": [[0]], "padding_idx": 4}, "padding_idx = 4 is not a row of a table of 4"),
        ({"ids": [[0]], "default_id": -5}, "default_id = -5 is not a row"),
        ({"ids": [[0]], "combiner": "max"}, "combiner must be one of sum, mean, sqrtn; got 'max'"),
        ({"ids": [[0]], "per_sample_weights": [1.0]}, r"per_sample_weights must have shape \(1, 1\)"),
        ({"ids": [0], "offsets": [0], "per_sample_weights": [1.0, 2.0], "padding_idx": 0}, "per_sample_weights must"),
    ],
)
def test_invalid_arguments_raise(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        rgj.embedding_bag(TABLE, **arguments)


def test_invalid_arguments_raise_while_tracing() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="pass num_bags with traced segment_ids"):
        jax.jit(lambda s: rgj.embedding_bag(TABLE, [0, 1], segment_ids=s))(jnp.array([0, 1]))
    with pytest.raises(rg.errors.InvalidArgumentError, match="num_bags determines a shape"):
        jax.jit(lambda n: rgj.embedding_bag(TABLE, [0, 1], segment_ids=[0, 1], num_bags=n))(2)


def test_sizes_are_validated_while_tracing() -> None:
    """With options for which no op validates the original arguments."""

    def trace(ids: Any, *args: Any, **options: Any) -> Any:
        return jax.eval_shape(lambda ids, *args: rgj.embedding_bag(TABLE, ids, *args, **options), ids, *args)

    ids, none = jnp.array([0, 1, 2]), jnp.zeros(0, jnp.int32)
    bad: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("got -1, expected an int of at least 0", (ids,), {"segment_ids": [0, 0, 0], "num_bags": -1, "padding_idx": 1}),
        (
            "offsets must end with the number of ids, 3, got 0",
            (ids, none),
            {"include_last_offset": True, "padding_idx": 1},
        ),
        ("should have same size", (ids,), {"segment_ids": [0], "num_bags": 1, "padding_idx": 1}),
        (r"weights must have shape \(3,\)", (ids, ids * 0), {"per_sample_weights": [[1.0]] * 3, "default_id": 1}),
        ("to be non-negative, got -1", (rg.SparseTensor(ids[:, None], ids, [-1]),), {"padding_idx": 1}),
    ]
    for message, arguments, options in bad:
        with pytest.raises(rg.errors.InvalidArgumentError, match=message):
            trace(*arguments, **options)
    assert trace(ids, segment_ids=[0, 0, 0], num_bags=np.int64(2), padding_idx=1).shape == (2, 2)


def test_lists_of_traced_numbers() -> None:
    table = jnp.arange(8.0).reshape(4, 2)

    @jax.jit
    def program(a: Any, b: Any) -> list[Any]:
        options = {"combiner": "sum"}
        matrix = rgj.embedding_bag(table, [[a, 1], [2, b]], **options)
        return [matrix, rgj.embedding_bag(table, (a, b), [0], **options), rgj.embedding_bag(table, [3], [a], **options)]

    assert [found.tolist() for found in program(0, 3)] == [[[2.0, 4.0], [10.0, 12.0]], [[6.0, 8.0]], [[6.0, 7.0]]]
    with pytest.raises(rg.errors.InvalidArgumentError, match="ids must be one of int32, int64; got float32"):
        jax.eval_shape(lambda a: rgj.embedding_bag(table, [a, 0.5], [0]), 0)


def test_bad_ids_raise_in_compiled_programs() -> None:
    """Bad ids and segment ids; a segment id equal to the number of bags must not pass as padding."""

    @jax.jit
    def program(ids: Any, segments: Any) -> Any:
        return rgj.embedding_bag(TABLE, ids, segment_ids=segments, num_bags=2, padding_idx=0, default_id=1)

    assert program(jnp.array([0, 2]), jnp.array([2, 0])).tolist() == [[1.0, 1.0], [1.0, 1.0]]  # padding has no bag
    for ids, segments in (([4, 2], [0, 0]), ([-1, 2], [0, 0]), ([3, 2], [0, 2]), ([3, 2], [-1, 0])):
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="out of range"):
            jax.block_until_ready(program(jnp.array(ids), jnp.array(segments)))


MASKED = np.ma.array([1, 2], mask=[False, True])
UNFIT: tuple[tuple[Any, Any, dict[str, Any], str], ...] = (
    (np.ones((4, 2)), MASKED, {}, "ids must be an array; got a masked array"),
    (np.ones((4, 2)), [[1], [2, 3]], {"offsets": None}, "ids is a list of lists of different lengths"),
    (
        np.ones((4, 2)),
        [1, 2],
        {"per_sample_weights": MASKED * 1.0},
        "per_sample_weights must be an array; got a masked",
    ),
    (np.ones((4, 2)), [1, 2], {"per_sample_weights": "ab"}, "per_sample_weights must be an array; got <U2"),
    (np.ma.ones((4, 2)), [1, 2], {}, "table must be an array; got a masked array"),
    (np.float32(1.0), [1, 2], {}, "table: got a scalar, expected rank 1 or more"),
    (None, [1, 2], {}, "table must be an array; got NoneType"),
    (np.ones((4, 2)), [1, 2], {"max_norm": [1.0]}, "max_norm must be a number"),
)


@pytest.mark.parametrize(("table", "ids", "options", "message"), UNFIT, ids=range(len(UNFIT)))
def test_non_numeric_arguments_raise(table: Any, ids: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        rgj.embedding_bag(table, ids, **{"offsets": [0], **options})


def test_max_norm_in_a_compiled_lookup() -> None:
    table, ids = jnp.ones((4, 2)), jnp.array([[1, 2]])
    look_up = jax.jit(lambda ids, norm: rgj.embedding_bag(table, ids, max_norm=norm), static_argnums=1)
    expected = np.asarray(look_up(ids, 1.0))
    for number in (np.array(1.0), jnp.array(1.0)):
        found = jax.jit(lambda ids, norm=number: rgj.embedding_bag(table, ids, max_norm=norm))(ids)
        assert same_bits(np.asarray(found), expected)
    with pytest.raises(rg.errors.InvalidArgumentError, match="max_norm must be a number"):
        jax.jit(lambda ids, norm: rgj.embedding_bag(table, ids, max_norm=norm))(ids, 1.0)


def test_num_bags_beyond_the_segment_id_dtype_raises() -> None:
    look_up = jax.jit(
        lambda i: rgj.embedding_bag(jnp.ones((4, 0)), i, segment_ids=i, num_bags=2**31 - 1, padding_idx=0)
    )
    with pytest.raises(rg.errors.InvalidArgumentError, match="num_bags must contain values of int32; got 2147483647"):
        look_up(jnp.array([1], jnp.int32))


@pytest.mark.parametrize(
    "value", [None, "ab", [[1.0], [2.0, 3.0]], rgj.Table(np.ones((2, 2)))], ids=lambda x: type(x).__name__
)
def test_table_rejects_values_that_are_not_arrays(value: Any) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="array"):
        rgj.Table(value)
    with pytest.raises(rg.errors.InvalidArgumentError, match="combiner"):
        rgj.Table(np.ones((2, 2))).bags([0], [0], 1, combiner=["sum"])  # type: ignore[arg-type]


def test_deleted_weights_and_bool_rows_raise() -> None:
    weights = jnp.zeros((1, 1)) + 1
    weights.delete()
    for options in ({}, {"padding_idx": 0}):
        with pytest.raises(rg.errors.InvalidArgumentError, match="per_sample_weights has no memory"):
            rgj.embedding_bag(jnp.ones((2, 2)), jnp.array([[1]]), per_sample_weights=weights, **options)
    for option in ("padding_idx", "default_id"):
        with pytest.raises(rg.errors.InvalidArgumentError, match=f"{option} must be an int; got True"):
            rgj.embedding_bag(jnp.ones((2, 2)), jnp.array([[1]]), **{option: True})
