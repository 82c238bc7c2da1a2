from __future__ import annotations

import numpy as np
import pytest

import rowgrad as rg

DENSE = np.array([[0, 5, 0], [0, 0, 0], [7, 0, -1]], np.float32)


def test_dense_and_back() -> None:
    st = rg.SparseTensor.from_dense(DENSE)
    assert st.indices.tolist() == [[0, 1], [2, 0], [2, 2]]
    assert st.values.tolist() == [5, 7, -1]
    assert (st.shape, st.nnz, st.dtype) == ((3, 3), 3, np.float32)
    assert np.array_equal(st.to_dense(), DENSE)
    assert repr(st) == "SparseTensor(shape=(3, 3), nnz=3, dtype=float32)"


def test_scipy_and_back() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    for form in (sparse.csr_array, sparse.csc_array, sparse.coo_array, sparse.csr_matrix, sparse.lil_matrix):
        st = rg.SparseTensor.from_scipy(form(DENSE))
        assert st.indices.tolist() == [[0, 1], [2, 0], [2, 2]], form
        assert np.array_equal(st.to_scipy().toarray(), DENSE)
    empty = rg.SparseTensor.from_scipy(sparse.csr_array((2, 3)))
    assert (empty.nnz, empty.shape) == (0, (2, 3))


def test_strings_and_default() -> None:
    st = rg.SparseTensor.from_dense([["a", ""], ["", "b"]])
    assert st.values.tolist() == ["a", "b"]
    assert st.to_dense("-").tolist() == [["a", "-"], ["-", "b"]]
    assert rg.SparseTensor([[0]], [2.0], [2]).to_dense(-1.0).tolist() == [2, -1]


def test_entries_at_one_place_add_up() -> None:
    assert rg.SparseTensor([[1], [1]], [2, 3], [2]).to_dense().tolist() == [0, 5]


def test_empty() -> None:
    st = rg.SparseTensor(np.zeros((0, 2)), np.zeros(0), [0, 4])
    assert st.to_dense().shape == (0, 4)
    assert rg.SparseTensor.from_dense(np.zeros((2, 2))).nnz == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (([0, 1], [1.0, 2.0], [2]), r"indices must have shape a matrix, got \[2\]"),
        (([[0]], [[1.0]], [2]), r"values must have shape a vector, got \[1,1\]"),
        (([[0]], [1.0], 2), r"dense_shape must have shape a vector, got \[\]"),
        (([[0], [1]], [1.0], [2]), "values must have length 2, got 1"),
        (([[0, 1]], [1.0], [2]), "dense_shape must have length 2, got 1"),
        (([[0.5]], [1.0], [2]), "indices must be int64; got float64"),
    ],
)
def test_malformed(args: tuple, words: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=words):
        rg.SparseTensor(*args)


def test_outside_the_shape() -> None:
    st = rg.SparseTensor([[0, 0], [1, 5]], [1.0, 2.0], [2, 3])
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"indices\[1, 1\] = 5 is outside \[0, 3\)"):
        st.to_dense()


def test_fixed_width_strings_are_not_cut() -> None:
    st = rg.SparseTensor([[0], [2]], np.array(["ham", "eggs"]), [3])
    assert st.to_dense("sausage").tolist() == ["ham", "sausage", "eggs"]
