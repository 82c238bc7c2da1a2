from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rowgrad as rg

DENSE = np.array([[0, 5, 0], [0, 0, 0], [7, 0, -1]], np.float32)


def test_dense_round_trip() -> None:
    st = rg.SparseTensor.from_dense(DENSE)
    assert st.indices.tolist() == [[0, 1], [2, 0], [2, 2]]
    assert st.values.tolist() == [5, 7, -1]
    assert (st.shape, st.nnz, st.dtype) == ((3, 3), 3, np.float32)
    assert np.array_equal(st.to_dense(), DENSE)
    assert repr(st) == "SparseTensor(shape=(3, 3), nnz=3, dtype=float32)"


def test_scipy_round_trip() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    for make in (sparse.csr_array, sparse.csc_array, sparse.coo_array, sparse.csr_matrix, sparse.lil_matrix):
        st = rg.SparseTensor.from_scipy(make(DENSE))
        assert st.indices.tolist() == [[0, 1], [2, 0], [2, 2]], make
        assert np.array_equal(st.to_scipy().toarray(), DENSE)
    empty = rg.SparseTensor.from_scipy(sparse.csr_array((2, 3)))
    assert (empty.nnz, empty.shape) == (0, (2, 3))


def test_strings_and_default() -> None:
    st = rg.SparseTensor.from_dense([["a", ""], ["", "b"]])
    assert st.values.tolist() == ["a", "b"]
    assert st.to_dense("-").tolist() == [["a", "-"], ["-", "b"]]
    assert rg.SparseTensor([[0]], [2.0], [2]).to_dense(-1.0).tolist() == [2, -1]


def test_duplicate_entries_are_summed() -> None:
    assert rg.SparseTensor([[1], [1]], [2, 3], [2]).to_dense().tolist() == [0, 5]


def test_empty() -> None:
    st = rg.SparseTensor(np.zeros((0, 2)), np.zeros(0), [0, 4])
    assert st.to_dense().shape == (0, 4)
    assert rg.SparseTensor.from_dense(np.zeros((2, 2))).nnz == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([0, 1], [1.0, 2.0], [2]), r"indices must have shape a matrix, got \[2\]"),
        (([[0]], [[1.0]], [2]), r"values must have shape a vector, got \[1,1\]"),
        (([[0]], [1.0], 2), r"dense_shape must have shape a vector, got \[\]"),
        (([[0], [1]], [1.0], [2]), "values must have length 2, got 1"),
        (([[0, 1]], [1.0], [2]), "dense_shape must have length 2, got 1"),
        (([[0.5]], [1.0], [2]), "indices must be int64; got float64"),
    ],
)
def test_malformed_arguments_raise(args: tuple, message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        rg.SparseTensor(*args)


def test_indices_outside_the_shape_raise() -> None:
    st = rg.SparseTensor([[0, 0], [1, 5]], [1.0, 2.0], [2, 3])
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"indices\[1, 1\] = 5 is not in \[0, 3\)"):
        st.to_dense()


def test_fixed_width_strings_are_not_truncated() -> None:
    st = rg.SparseTensor([[0], [2]], np.array(["ham", "eggs"]), [3])
    assert st.to_dense("sausage").tolist() == ["ham", "sausage", "eggs"]


def test_indices_and_shapes_beyond_int64_are_rejected() -> None:
    with pytest.raises(
        rg.errors.InvalidArgumentError, match="indices must contain values of int64; got 9223372036854775809"
    ):
        rg.SparseTensor(np.array([[2**63 + 1]], np.uint64), [1], [5])
    with pytest.raises(rg.errors.InvalidArgumentError, match="dense_shape must contain values of int64"):
        rg.SparseTensor([[0]], [1], [2**64 - 1])
    assert rg.SparseTensor(np.array([[3]], np.uint64), [1], [5]).indices.tolist() == [[3]]


def test_masked_arrays_are_rejected() -> None:
    masked = np.ma.array([1, 2], mask=[True, False])
    with pytest.raises(rg.errors.InvalidArgumentError, match="values must be an array; got a masked array"):
        rg.SparseTensor([[0], [1]], masked, [2])
    with pytest.raises(rg.errors.InvalidArgumentError, match="array must be an array; got a masked array"):
        rg.SparseTensor.from_dense(masked)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64])
def test_dense_arrays_keep_negative_zeros(dtype: Any) -> None:
    st = rg.SparseTensor([[0], [2], [2]], np.array([-0.0, 1, 2], dtype), [3])
    dense = st.to_dense()
    assert np.signbit(dense.real).tolist() == [True, False, False]
    assert dense.tolist() == [0, 0, 3]


def test_dense_scalars() -> None:
    scalar = rg.SparseTensor(np.zeros((2, 0), np.int64), np.array([1.5, 2.0]), [])
    assert (scalar.to_dense().shape, scalar.to_dense().item()) == ((), 3.5)
    assert rg.SparseTensor(np.zeros((0, 0), np.int64), np.zeros(0), []).to_dense(7) == 7


@pytest.mark.parametrize(
    ("values", "default", "message"),
    [
        (np.array([1]), 0.5, "default_value must be int64, as the values; got float32"),
        (np.array([1], np.uint8), -1, "default_value must contain values of uint8; got -1"),
        (np.array([1.0]), 1j, "default_value must be float64, as the values; got complex128"),
        (np.array([1.0]), "x", "default_value must be float64, as the values; got object"),
        (np.array([1.0]), [1.0, 2.0], "default_value must have shape"),
        (np.array([True]), 2, "default_value must be bool, as the values"),
        (np.array(["a"]), 5, "default_value must be a string; got int"),
    ],
)
def test_unsuitable_defaults_raise(values: np.ndarray, default: Any, message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        rg.SparseTensor([[0]], values, [2]).to_dense(default)


def test_defaults_in_the_dtype_of_the_values() -> None:
    def dense(values: np.ndarray, default: Any) -> list[Any]:
        return rg.SparseTensor([[0]], values, [2]).to_dense(default).tolist()

    assert dense(np.array([1.0], np.float32), -1) == [1.0, -1.0]
    assert dense(np.array([1.0], np.float32), np.float64(0.5)) == [1.0, 0.5]
    assert dense(np.array([1], ml_dtypes.bfloat16), 0.5) == [1.0, 0.5]
    assert dense(np.array([True]), True) == dense(np.array([True]), 1) == [True, True]
    assert dense(np.array([False]), 0) == [False, False]
    assert dense(np.array([1], np.uint8), np.int64(200)) == [1, 200]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_duplicate_16_bit_entries_are_summed_in_float32(dtype: Any) -> None:
    values = np.ones(3000, dtype)
    rows = rg.densify(rg.IndexedRows(values, np.zeros(3000, np.int64), 2))
    assert rg.SparseTensor(np.zeros((3000, 1), np.int64), values, [2]).to_dense().tobytes() == rows.tobytes()


def test_duplicate_strings_raise() -> None:
    st = rg.SparseTensor([[1, 0], [0, 1], [1, 0]], np.array(["a", "b", "c"]), [2, 2])
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"indices\[2\] repeats an earlier entry") as caught:
        st.to_dense()
    assert caught.value.position == 2
    assert rg.SparseTensor([[1, 0], [0, 1]], np.array(["a", "b"]), [2, 2]).to_dense().tolist() == [["", "b"], ["a", ""]]


def test_entries_in_any_order_and_rank() -> None:
    rng = np.random.default_rng(0)
    for shape in ((7,), (3, 4), (2, 3, 4), (1, 1, 5, 2)):
        indices = np.stack([rng.integers(0, d, 30) for d in shape], axis=1)
        values, dense = rng.integers(-9, 9, 30).astype(np.float32), np.zeros(shape, np.float32)
        np.add.at(dense, tuple(indices.T), values)
        assert np.array_equal(rg.SparseTensor(indices, values, shape).to_dense(), dense)


def test_scalars() -> None:
    assert rg.SparseTensor.from_dense(np.array(3.0)).to_dense().tolist() == 3.0
    assert rg.SparseTensor.from_dense(np.array(0.0)).nnz == 0
    pytest.importorskip("scipy.sparse")
    with pytest.raises(rg.errors.InvalidArgumentError, match="at least 1 dimensions"):
        rg.SparseTensor(np.zeros((1, 0), np.int64), [1.0], []).to_scipy()


def test_shapes_that_numpy_does_not_support_raise() -> None:
    with pytest.raises(rg.errors.ResourceExhaustedError):
        rg.SparseTensor(np.zeros((0, 2)), np.zeros(0), [0, 2**62]).to_dense()
    with pytest.raises(rg.errors.InvalidArgumentError, match="dense_shape must have at most 64 dimensions, got 70"):
        rg.SparseTensor(np.zeros((1, 70), np.int64), [1.0], [1] * 70).to_dense()


def test_objects_that_are_not_scipy_matrices_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="matrix must be a sparse matrix or array of SciPy"):
        rg.SparseTensor.from_scipy(np.ones((2, 2)))


def test_weights_of_non_native_byte_order() -> None:
    ids = rg.SparseTensor([[0, 0]], np.array([1]), [1, 1])
    weights = rg.SparseTensor([[0, 0]], np.array([2.0], ">f4"), [1, 1])
    found = rg.safe_embedding_lookup_sparse(np.eye(2, dtype=np.float32), ids, weights, combiner="sum")
    assert found.tolist() == [[0, 2]]
