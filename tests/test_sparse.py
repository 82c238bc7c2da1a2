"""The functions of rowgrad.sparse return the results of the raw ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rowgrad as rg

A = rg.SparseTensor.from_dense(np.array([[0.0, 5, 0], [0, 0, 0], [7, 0, -1]]))
B = rg.SparseTensor.from_dense(np.array([[0.0, -5, 2], [0, 0, 0], [1, 0, 0]]))
TABLE = np.arange(8.0).reshape(4, 2)


def test_slice() -> None:
    sliced = rg.sparse.slice(A, [1, 0], [2, 2])
    assert sliced.to_dense().tolist() == [[0, 0], [7, 0]]


def test_fill_empty_rows() -> None:
    filled = rg.sparse.fill_empty_rows(A, -1.0)
    assert filled.empty_row_indicator.tolist() == [False, True, False]
    assert filled.tensor.to_dense().tolist() == [[0, 5, 0], [-1, 0, 0], [7, 0, -1]]
    assert not np.shares_memory(filled.tensor.dense_shape, A.dense_shape)


def test_add() -> None:
    assert np.array_equal(rg.sparse.add(A, B).to_dense(), A.to_dense() + B.to_dense())
    assert rg.sparse.add(A, B, threshold=0.5).nnz == rg.sparse.add(A, B).nnz - 1
    assert rg.sparse.add(A, B, 0).values.dtype == np.float64


@pytest.mark.parametrize(
    ("kind", "expected"), [("sum", [4, 6]), ("mean", [2, 3]), ("sqrt_n", [4 / 2**0.5, 6 / 2**0.5])]
)
def test_segments(kind: str, expected: list[float]) -> None:
    function = getattr(rg.sparse, f"segment_{kind}")
    assert np.allclose(function(TABLE, [0, 2], [0, 0]), [expected])
    assert np.allclose(function(TABLE, [0, 2], [0, 0], 2), [expected, [0, 0]])
    gradient = rg.vjp(function, (TABLE, [0, 2], [0, 0]), np.ones((1, 2)), sparse_gradient=True)[0]
    assert gradient.indices.tolist() == [0, 2]


def test_errors_name_the_function() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"SparseSlice \(name: cut\)"):
        rg.sparse.slice(A, [0], [1], name="cut")


@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_strings_stay_missing_or_are_rejected(missing: Any) -> None:
    with_missing, plain = np.dtypes.StringDType(na_object=missing), np.dtypes.StringDType()
    places, shape = [[0, 0], [2, 0]], [3, 1]
    values = np.array(["a", missing], dtype=with_missing)
    filled = rg.raw_ops.SparseFillEmptyRows(places, values, shape, np.array("x", dtype=plain)).output_values
    assert filled[:2].tolist() == ["a", "x"]
    assert not isinstance(filled[2], str)
    for others in (np.array(["a", "b"], dtype=plain), np.array(["a", "b"], object)):
        with pytest.raises(rg.errors.InvalidArgumentError, match="default_value must contain only strings"):
            rg.raw_ops.SparseFillEmptyRows(places, others, shape, np.array(missing, dtype=with_missing))


def test_bytes_that_are_not_text_mixed_with_text() -> None:
    values = np.array(["a", "b"], dtype=np.dtypes.StringDType())
    with pytest.raises(rg.errors.InvalidArgumentError, match="default_value must be text"):
        rg.raw_ops.SparseFillEmptyRows([[0, 0], [2, 0]], values, [3, 1], b"\xff")
