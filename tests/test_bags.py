"""torch and JAX read bags by the same rules: the same results, the same argument and message in every error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rowgrad as rg

rgt = pytest.importorskip("rowgrad.torch")
rgj = pytest.importorskip("rowgrad.jax")
to_torch = pytest.importorskip("torch_arrays").to_torch

TABLE = np.arange(20, dtype=np.float32).reshape(10, 2)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def sparse(rows: tuple[int, ...], values: Any, shape: tuple[int, ...] = (2, 2)) -> rg.SparseTensor:
    indices = np.array([[row, column] for column, row in enumerate(rows)], np.int64).reshape(-1, 2)
    return rg.SparseTensor(indices, np.asarray(values), shape)


def weights(rows: tuple[int, ...], shape: tuple[int, ...] = (2, 2)) -> rg.SparseTensor:
    return sparse(rows, np.arange(1, len(rows) + 1, dtype=np.float32), shape)


ONES = np.ones(3, np.float32)
CASES: dict[str, dict[str, Any]] = {
    "offsets": {"ids": ints(1, 2, 3), "offsets": ints(0, 2)},
    "offsets with the end": {"ids": ints(1, 2, 3), "offsets": ints(0, 2, 3), "include_last_offset": True},
    "offsets and num_bags": {"ids": ints(1, 2), "offsets": ints(0, 1), "num_bags": 2},
    "no offsets and no ids": {"ids": ints(), "offsets": ints()},
    "segments": {"ids": ints(1, 2), "segment_ids": ints(0, 3), "num_bags": 5},
    "segments counted": {"ids": ints(1, 2), "segment_ids": ints(0, 3)},
    "no segments": {"ids": ints(), "segment_ids": ints()},
    "matrix": {"ids": ints([1, 2], [3, 3])},
    "matrix without rows": {"ids": np.zeros((0, 3), np.int64)},
    "matrix without columns": {"ids": np.zeros((3, 0), np.int64), "default_id": 2},
    "sparse": {"ids": sparse((0, 1), [1, 2])},
    "sparse vector": {"ids": rg.SparseTensor(ints([0], [2]), ints(1, 2), [3])},
    "sparse without entries": {"ids": sparse((), ints()), "default_id": 1},
    "sparse weights": {"ids": sparse((0, 1), [1, 2]), "per_sample_weights": weights((0, 1))},
    "sparse weights of offsets": {"ids": ints(1, 2), "offsets": ints(0, 1), "per_sample_weights": weights((0, 1))},
    "sparse weights of segments": {
        "ids": ints(1, 2), "segment_ids": ints(0, 1), "num_bags": 2, "per_sample_weights": weights((0, 1)),
    },
    "list of weights": {"ids": ints(1, 2), "offsets": ints(0), "per_sample_weights": [1.0, 2.0]},
    "only padding": {"ids": ints(1, 1), "offsets": ints(0, 1), "padding_idx": 1},
    "padding, default and weights": {
        "ids": ints(1, 2, 1), "offsets": ints(0, 1, 2), "padding_idx": 1, "default_id": 3,
        "per_sample_weights": ONES * 2,
    },
    "default and weights": {
        "ids": ints(1, 2, 1), "offsets": ints(0, 1, 1, 3), "default_id": -1, "per_sample_weights": ONES * 2,
    },
}  # fmt: skip
NEITHER = (
    "a vector of ids needs offsets or segment_ids, got neither. Pass offsets (where each bag begins) or segment_ids"
    " (the bag of each id), or a matrix of ids with one bag in each row."
)
BOTH = "offsets and segment_ids both say where bags begin. Pass one of them."
OTHER_ROWS = "per_sample_weights: got a SparseTensor of other rows, expected the same bags as ids"
OTHER_INDICES = "per_sample_weights: got a SparseTensor of other indices, expected the indices of ids"
ERRORS: list[tuple[dict[str, Any], str, str]] = [
    ({"ids": ints(1)}, "offsets", NEITHER),
    (
        {"ids": ints(1), "offsets": ints(0), "segment_ids": ints(0)},
        "offsets",
        BOTH,
    ),
    ({"ids": np.array(1)}, "ids", "ids must have 1 or 2 dimensions, got 0"),
    ({"ids": ints([[1]])}, "ids", "ids must have 1 or 2 dimensions, got 3"),
    ({"ids": ONES, "offsets": ints(0)}, "ids", "ids must be one of int32, int64; got float32"),
    ({"ids": ints(1), "offsets": ints([0])}, "offsets", "offsets: got 2 dimensions, expected 1"),
    ({"ids": ints(1), "offsets": np.array(0)}, "offsets", "offsets: got 0 dimensions, expected 1"),
    ({"ids": ints(1), "segment_ids": ints([0])}, "segment_ids", "segment_ids: got 2 dimensions, expected 1"),
    ({"ids": ints(1, 2), "segment_ids": ints(0)}, "segment_ids", "segment_ids and indices should have same size."),
    ({"ids": ints(1, 2), "segment_ids": ints(0, -3)}, "num_segments", "segment ids must be >= 0"),
    (
        {"ids": ints(1, 2), "segment_ids": ints(0), "num_bags": 2, "default_id": 1},
        "segment_ids",
        "segment_ids and indices should have same size.",
    ),
    (
        {"ids": ints(1, 2), "offsets": ints(), "include_last_offset": True},
        "offsets",
        "offsets must end with the number of ids, 2, got 0",
    ),
    ({"ids": ints(1), "offsets": ints(0), "num_bags": 3}, "num_bags", "num_bags: got 3, expected 1, as offsets say"),
    ({"ids": ints([1]), "num_bags": 3}, "num_bags", "num_bags: got 3, expected 1, the rows of ids"),
    (
        {"ids": sparse((0, 1), [1, 2]), "num_bags": 3},
        "num_bags",
        "num_bags: got 3, expected 2, as dense_shape says",
    ),
    (
        {"ids": ints([1]), "offsets": ints(0)},
        "offsets",
        "offsets must be None, because a matrix of ids defines its own bags. Drop offsets, or pass a vector of ids.",
    ),
    (
        {"ids": sparse((0, 1), [1, 2]), "segment_ids": ints(0)},
        "segment_ids",
        "segment_ids must be None, because a SparseTensor defines its own bags. Drop segment_ids, or pass a vector of"
        " ids.",
    ),
    ({"ids": rg.SparseTensor(np.zeros((1, 0), int), [1], [])}, "dense_shape", "Dense shape cannot be empty."),
    (
        {"ids": rg.SparseTensor(ints([0], [1]), ints(1, 2), [-3])},
        "dense_shape",
        "Expected shape dimensions to be non-negative, got -3",
    ),
    *(
        (
            {"ids": ints(1, 2), "offsets": ints(0), "per_sample_weights": ONES, **options},
            "per_sample_weights",
            "per_sample_weights must have shape (2,), got (3,)",
        )
        for options in ({"padding_idx": 1}, {"default_id": 1})
    ),
    (
        {"ids": ints([1, 2]), "per_sample_weights": ONES},
        "per_sample_weights",
        "per_sample_weights must have shape (1, 2), got (3,)",
    ),
    (
        {"ids": sparse((0, 1), [1, 2]), "per_sample_weights": weights((0,))},
        "per_sample_weights.indices",
        "per_sample_weights.indices must have shape (2, 2), got (1, 2)",
    ),
    *(
        ({"ids": sparse((0, 1), [1, 2]), "per_sample_weights": other}, "per_sample_weights", OTHER_INDICES)
        for other in (weights((0, 0)), weights((0, 1), (3, 2)))
    ),
    *(
        ({"ids": ints(1, 2), "offsets": ints(0, 1), "per_sample_weights": other}, "per_sample_weights", OTHER_ROWS)
        for other in (weights((0, 0)), weights((0, 1), (3, 2)))
    ),
]


def by_torch(ids: Any, **options: Any) -> Any:
    def convert(value: Any) -> Any:
        return to_torch(value) if isinstance(value, np.ndarray) else value

    options = {name: convert(value) for name, value in options.items()}
    return rgt.functional.embedding_bag(convert(ids), to_torch(TABLE), **options).numpy()


def by_jax(ids: Any, **options: Any) -> Any:
    return np.asarray(rgj.embedding_bag(TABLE, ids, **options))


@pytest.mark.parametrize("case", CASES)
def test_both_read_the_same_bags(case: str) -> None:
    found, expected = by_jax(**CASES[case]), by_torch(**CASES[case])
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("call", "argument", "message"), ERRORS, ids=[f"{k} {e[2]}" for k, e in enumerate(ERRORS)])
def test_both_raise_the_same_error(call: dict[str, Any], argument: str, message: str) -> None:
    for lookup in (by_torch, by_jax):
        with pytest.raises(rg.errors.InvalidArgumentError) as raised:
            lookup(**call)
        assert raised.value.argument == argument
        assert raised.value.message.replace("torch.", "") == message


def test_traced_weights_must_have_the_shape_of_the_ids() -> None:
    """Shapes are checked while tracing, although values are unknown."""
    jax = pytest.importorskip("jax")
    ids, other = sparse((0, 1), ints(1, 2)), sparse((0, 1), np.ones(2, np.float32), (3, 2))
    run = jax.jit(lambda weights: rgj.embedding_bag(TABLE, ids, per_sample_weights=weights))
    assert run(weights((0, 1))).tolist() == by_torch(ids, per_sample_weights=weights((0, 1))).tolist()
    with pytest.raises(rg.errors.InvalidArgumentError, match="a SparseTensor of other indices"):
        run(other)
