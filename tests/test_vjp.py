"""vjp: the formats of its inputs and results, and its errors."""

from __future__ import annotations

import gc
import re
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rowgrad as rg
from rowgrad import optim
from rowgrad.raw_ops import OPS

TABLE = np.arange(6.0).reshape(3, 2)
X = {"data": TABLE, "indices": np.array([0, 2]), "segment_ids": np.array([0, 0])}
DY = np.ones((1, 2))


def test_by_name_by_function_and_by_position() -> None:
    by_name = rg.vjp("SparseSegmentMean", X, DY)
    assert set(by_name) == set(X)
    assert by_name["indices"] is None
    by_function = rg.vjp(rg.raw_ops.sparse_segment_mean, tuple(X.values()), DY)
    assert isinstance(by_function, tuple)
    assert np.array_equal(by_name["data"], by_function[0])
    assert by_name["data"].tolist() == [[0.5, 0.5], [0, 0], [0.5, 0.5]]


def test_sparse_gradient() -> None:
    rows = rg.vjp("SparseSegmentSum", X, DY, sparse_gradient=True)["data"]
    assert isinstance(rows, rg.IndexedRows)
    assert (rows.indices.tolist(), rows.num_rows, rows.shape, rows.dtype) == ([0, 2], 3, (3, 2), np.float64)
    assert np.array_equal(rg.densify(rows), rg.vjp("SparseSegmentSum", X, DY)["data"])


def test_several_outputs_and_missing_cotangents() -> None:
    x = {"indices": [[0, 0]], "values": np.array([2.0]), "dense_shape": [3, 1], "default_value": 0.5}
    grads = rg.vjp("SparseFillEmptyRows", x, (None, np.array([1.0, 10.0, 100.0]), None, None))
    assert grads["values"].tolist() == [1.0]
    assert grads["default_value"] == 110.0


def test_integers_have_no_gradient() -> None:
    assert rg.vjp("SparseSegmentSum", {**X, "data": TABLE.astype(np.int32)}, DY)["data"] is None


def test_python_lists_have_gradients() -> None:
    grads = rg.vjp("SparseSegmentSum", {**X, "data": [[1.0], [2.0], [3.0]]}, np.ones((1, 1), np.float32))
    assert grads["data"].tolist() == [[1], [0], [1]]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("kind", ["Sum", "Mean", "SqrtN"])
def test_gradients_keep_the_dtype(kind: str, dtype: Any) -> None:
    x = (TABLE.astype(dtype), X["indices"], X["segment_ids"], np.ones(2, dtype))
    to_data, _, _, to_weights = rg.vjp(f"WeightedSparseSegment{kind}", x, DY.astype(dtype))
    assert to_data.dtype == to_weights.dtype == dtype


def test_gradients_of_a_value_used_twice_are_summed() -> None:
    def twice(table: Any) -> Any:
        first = OPS["SparseSegmentSum"](table, [0], [0])
        second = OPS["SparseSegmentSum"](table, [0, 1], [0, 0], sparse_gradient=True)
        return OPS["Add"](first, second)

    assert rg.vjp(twice, (TABLE,), DY)[0].tolist() == [[2, 2], [1, 1], [0, 0]]


def test_independent_outputs_have_no_gradient() -> None:
    assert rg.vjp(lambda a, b: OPS["Neg"](a), (TABLE, TABLE), np.ones((3, 2)))[1] is None


def test_an_unused_input_through_a_constant_function() -> None:
    assert rg.vjp(lambda a: TABLE, (TABLE,), np.ones((3, 2))) == (None,)


def test_cotangent_of_another_shape_raises() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"cotangents\[0\] must have shape \[1,2\], got \[2,2\]"):
        rg.vjp("SparseSegmentSum", X, np.ones((2, 2)))


def test_too_many_cotangents_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="cotangents must have length 1, got 2"):
        rg.vjp("SparseSegmentSum", X, (DY, DY))


def test_numpy_functions_on_a_traced_value_are_rejected() -> None:
    with pytest.raises(TypeError):
        rg.vjp(lambda a: a + 1, (TABLE,), TABLE)
    with pytest.raises(TypeError, match="supports rowgrad's ops only"):
        rg.vjp(np.asarray, (TABLE,), TABLE)


def test_out_is_rejected_under_vjp() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="absent under vjp"):
        rg.vjp(lambda a: OPS["Neg"](a, out=np.empty((3, 2))), (TABLE,), TABLE)


def test_errors_inside_name_the_op() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="SparseSegmentSum: Bad: indices"):
        rg.vjp("SparseSegmentSum", {**X, "indices": np.array([0, 7])}, DY)


def test_an_empty_batch_has_zero_gradient() -> None:
    x = {"data": TABLE, "indices": [], "segment_ids": [], "num_segments": 2}
    assert not rg.vjp("SparseSegmentMeanWithNumSegments", x, np.ones((2, 2)))["data"].any()


def test_sparse_functions_can_be_differentiated() -> None:
    eye = rg.SparseTensor.from_dense(np.eye(2))
    to_a, to_b = rg.vjp(lambda a, b: rg.sparse.add(a, b).values, (eye, eye), ([1.0, 2.0],))
    assert to_a.tolist() == to_b.tolist() == [1, 2]
    assert rg.vjp(lambda a: rg.sparse.slice(a, [1, 0], [1, 2]).values, (eye,), ([3.0],))[0].tolist() == [0, 3]
    tall = rg.SparseTensor(eye.indices, eye.values, [3, 2])
    filled = rg.vjp(lambda a: rg.sparse.fill_empty_rows(a, 0.0).tensor.values, (tall,), ([1.0, 2.0, 3.0],))
    assert filled[0].tolist() == [1, 2]


def test_a_list_of_outputs() -> None:
    def both(data: Any) -> list[Any]:
        return [OPS["SparseSegmentSum"](data, [0], [0]), OPS["Neg"](data)]

    assert rg.vjp(both, (TABLE,), [DY, np.ones((3, 2))])[0].tolist() == [[0, 0], [-1, -1], [-1, -1]]


def test_functions_that_do_not_return_arrays_raise() -> None:
    def gradient(y: Any) -> Any:
        return rg.vjp("SparseSegmentSum", X, y, sparse_gradient=True)["data"]

    with pytest.raises(TypeError, match="must return arrays, got IndexedRows"):
        rg.vjp(gradient, (DY,), TABLE)


def test_cotangent_of_another_dtype_raises() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"cotangents\[0\] must be float64, as the output"):
        rg.vjp("SparseSegmentSum", X, DY.astype(np.float32))


def test_name_reaches_errors_through_vjp() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"SparseSegmentSum \(name: here\)"):
        rg.vjp("SparseSegmentSum", {**X, "indices": np.array([0, 7])}, DY, name="here")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x - 1.0, "Instead of - use rowgrad.dense_ops.Sub"),
        (lambda x: 1.0 / x, "Instead of / use rowgrad.dense_ops.RealDiv"),
        (lambda x: x @ TABLE.T, "Instead of @ use rowgrad.dense_ops.MatMul"),
        (lambda x: TABLE * x, r"Instead of np.multiply use rowgrad.dense_ops.Mul"),
        (lambda x: -x, "Instead of - use rowgrad.dense_ops.Neg"),
    ],
)
def test_an_operator_names_the_op_to_use(function: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        rg.vjp(function, (TABLE,), TABLE)
    op = message.rpartition(".")[2]
    assert callable(getattr(rg.dense_ops, op))


def test_cotangent_of_a_sparse_output_is_for_its_values() -> None:
    tensor = rg.SparseTensor([[0, 1], [1, 0], [1, 2]], np.array([1.0, 2.0, 4.0]), [2, 3])
    dy = np.array([10.0, 20.0])
    gradient, *others = rg.vjp(rg.sparse.slice, (tensor, [0, 1], [2, 2]), dy)
    assert gradient.tolist() == [10.0, 0.0, 20.0]
    assert others == [None, None]
    assert rg.vjp(lambda w: rg.sparse.slice(w, [0, 1], [2, 2]).values, (tensor,), dy)[0].tolist() == gradient.tolist()
    rows = rg.SparseTensor([[1, 0]], np.array([3.0]), [2, 1])
    assert rg.vjp(rg.sparse.fill_empty_rows, (rows, 0.5), (dy, None))[0].tolist() == [20.0]
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"cotangents\[0\] must have shape \[2\]"):
        rg.vjp(rg.sparse.slice, (tensor, [0, 1], [2, 2]), np.ones(3))


def test_gradients_do_not_share_memory() -> None:
    x, dy = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    first, second = rg.vjp(rg.dense_ops.Add, (x, x), dy)
    first *= 2
    assert (first.max(), second.max(), dy.max()) == (2, 1, 1)
    (same,) = rg.vjp(lambda v: v, (x,), dy)
    same *= 2
    assert dy.max() == 1
    whole = np.ones((4, 3), np.float32)
    (part,) = rg.vjp(rg.dense_ops.Identity, (x,), whole[:2])
    part *= 2
    assert whole.max() == 1


def test_rows_do_not_change_when_a_batch_is_reused() -> None:
    ids, dy = np.array([2, 0]), np.ones((2, 1), np.float32)
    (rows,) = rg.vjp(lambda t: rg.raw_ops.GatherRows(t, ids), (np.zeros((3, 1), np.float32),), dy)
    ids[:], dy[:] = 1, 7
    assert (rows.indices.tolist(), rows.values.tolist()) == ([2, 0], [[1], [1]])


def test_a_tuple_of_shards_raises() -> None:
    a, b = np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)
    ids = rg.SparseTensor([[0, 0], [1, 0]], np.array([0, 1]), [2, 1])
    assert rg.embedding_lookup_sparse((a, b), ids).shape == (2, 2, 2)
    with pytest.raises(rg.errors.InvalidArgumentError, match="params must be an array; got tuple"):
        rg.vjp(rg.embedding_lookup_sparse, ((a, b), ids), np.ones((2, 2), np.float32))


def test_gradients_of_a_tuple_are_a_tuple() -> None:
    x, dy = np.ones(2), np.array([1.0, 2.0])
    for kind in (list, tuple):
        (found,) = rg.vjp("AddN", (kind([x, x]),), dy)
        assert type(found) is kind
        assert [g.tolist() for g in found] == [[1, 2], [1, 2]]


def test_gradient_of_indexed_rows_is_for_their_values() -> None:
    rows = rg.IndexedRows(np.ones((2, 1)), np.array([2, 0]), 3)
    (found,) = rg.vjp(rg.densify, (rows,), np.array([[5.0], [6.0], [7.0]]))
    assert found.tolist() == [[7], [5]]


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda x: x if x == 0 else rg.dense_ops.Mul(x, x), "== use rowgrad.dense_ops.Equal"),
        (lambda x: x if x != 0 else rg.dense_ops.Mul(x, x), "!= use rowgrad.dense_ops.NotEqual"),
        (lambda x: x < np.ones(()), "< use rowgrad.dense_ops.Less"),
        (lambda x: np.zeros(()) < x, "np.less use rowgrad.dense_ops.Less"),
        (lambda x: x > np.zeros(()), "> use rowgrad.dense_ops.Greater"),
        (lambda x: x or x, "its truth value use rowgrad.dense_ops.Greater or Equal"),
        (lambda x: x[0], "use rowgrad.dense_ops.Slice or Gather"),
        (abs, "use rowgrad.dense_ops.Abs"),
        (lambda x: x // 2, "// use rowgrad.dense_ops.FloorDiv"),
        (lambda x: 2 % x, "% use rowgrad.dense_ops.FloorMod"),
    ],
)
def test_branches_and_other_operators_name_the_op_to_use(function: Any, op: str) -> None:
    with pytest.raises(TypeError, match=re.escape(op)):
        rg.vjp(function, (np.zeros(()),), 1.0)


def test_branches_on_the_results_of_ops() -> None:
    def function(x: Any) -> Any:
        return rg.dense_ops.Neg(x) if rg.dense_ops.Less(x, 0.0) else x

    assert rg.vjp(function, (np.array(-2.0),), 1.0)[0] == -1
    assert rg.vjp(function, (np.array(2.0),), 1.0)[0] == 1


@pytest.mark.parametrize(
    ("cotangent", "message"),
    [
        ("abc", r"cotangents\[0\] must be float64, as the output; got object"),
        (1j, r"cotangents\[0\] must be float64, as the output; got complex128"),
        ({"a": 1}, r"cotangents\[0\] must be an array; got dict"),
    ],
)
def test_cotangents_that_are_not_real_numbers_raise(cotangent: Any, message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        rg.vjp(rg.dense_ops.Square, (np.ones(()),), cotangent)


def test_two_lookups_concatenate_their_rows() -> None:
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    first = rg.SparseTensor([[0, 0], [1, 0]], np.array([1, 2], np.int32), [2, 1])
    second = rg.SparseTensor([[0, 0], [1, 0]], np.array([2, 5]), [2, 1])

    def two_lookups(t: Any) -> Any:
        ten_times = rg.dense_ops.Mul(rg.safe_embedding_lookup_sparse(t, first), np.float32(10))
        return rg.dense_ops.Add(ten_times, rg.safe_embedding_lookup_sparse(t, second))

    rows = rg.vjp(two_lookups, (table,), np.ones((2, 2), np.float32))[0]
    assert isinstance(rows, rg.IndexedRows)  # as in TensorFlow: the last lookup first
    assert (rows.indices.tolist(), rows.num_rows, rows.is_unique) == ([2, 5, 1, 2], 6, False)
    assert rows.values.tolist() == [[1, 1], [1, 1], [10, 10], [10, 10]]

    def with_dense_use(t: Any) -> Any:
        return rg.dense_ops.Add(two_lookups(t), rg.dense_ops.Sum(t, axis=[0, 1]))

    whole = rg.vjp(with_dense_use, (table,), np.ones((2, 2), np.float32))[0]
    assert whole.tolist() == [[4, 4], [14, 14], [15, 15], [4, 4], [4, 4], [5, 5]]


def test_rows_of_two_lookups_are_differentiable() -> None:
    ids = rg.SparseTensor([[0, 0], [1, 0]], np.array([1, 2]), [2, 1])

    def squares(t: Any) -> Any:
        return rg.dense_ops.Mul(rg.embedding_lookup_sparse(t, ids), rg.embedding_lookup_sparse(t, ids))

    def table_gradient(t: Any) -> Any:
        return rg.densify(rg.vjp(squares, (t,), np.ones((2, 2)))[0])

    assert rg.densify(rg.vjp(table_gradient, (TABLE,), np.ones((3, 2)))[0]).tolist() == [[0, 0], [2, 2], [2, 2]]


def test_a_step_with_a_shared_table_keeps_other_rows() -> None:
    table = np.ones((4, 1), np.float32)
    slots = optim.new_slots("adam", table, initial=0.5)
    rows = rg.vjp(
        lambda t: OPS["Add"](OPS["GatherRows"](t, [1]), OPS["GatherRows"](t, [3])), (table,), np.ones((1, 1), "f4")
    )[0]
    optim.apply_gradient("adam", table, slots, rows, optim.Step(lr=0.1))
    assert (table[[0, 2]] == 1).all()
    assert (table[[1, 3]] < 1).all()


def test_arrays_are_freed_after_the_gradient() -> None:
    references: list[Any] = []

    def function(x: Any) -> Any:
        y = OPS["Neg"](x)
        references.append(weakref.ref(y.value))
        return OPS["Mul"](y, y)

    gc.disable()
    try:
        rg.vjp(function, (TABLE,), np.ones((3, 2)))
        with pytest.raises(rg.errors.InvalidArgumentError):
            rg.vjp(function, (TABLE,), np.ones(3))
        assert [value() for value in references] == [None, None]
    finally:
        gc.enable()


def test_ids_as_a_list_become_an_array_in_the_gradient() -> None:
    ids = [2, 0]
    rows = rg.vjp("GatherRows", (TABLE, ids), np.ones((2, 2)))[0]
    ids[0] = 1
    assert rows.indices.tolist() == [2, 0]


def test_lists_of_numbers_have_the_dtype_of_the_call() -> None:
    wide, numbers = np.array([3.0, 7.0]), [0.1, 0.2]
    to_wide, to_numbers = rg.vjp(OPS["Mul"], (wide, numbers), np.ones(2))
    assert to_wide.tolist() == numbers  # in float64, as Mul(wide, numbers) reads them
    assert (to_numbers.dtype, to_numbers.tolist()) == (np.float64, [3, 7])

    def inner(values: Any) -> Any:
        return rg.vjp(lambda v: OPS["Mul"](v, OPS["Mul"](v, wide)), (values,), np.ones(2))[0]

    assert rg.vjp(inner, (numbers,), np.ones(2))[0].tolist() == [6, 14]


def test_a_nested_list_of_numbers_is_a_list_of_shards() -> None:
    ids = rg.SparseTensor([[0, 0]], np.array([1]), [1, 1])
    shards = [[1.0, 2.0], [3.0, 4.0]]
    assert rg.embedding_lookup_sparse(shards, ids).tolist() == [2.0]  # two shards of rank 1
    with pytest.raises(rg.errors.InvalidArgumentError, match="params must be an array; got a list of numbers"):
        rg.vjp(rg.embedding_lookup_sparse, (shards, ids), np.ones((1, 2), np.float32))


def test_lists_of_different_lengths_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="Neg: x is a list of lists of different lengths"):
        rg.vjp(OPS["Neg"], ([[1.0, 2.0], [3.0]],), 1.0)


def test_containers_of_arrays_keep_their_type_and_dtype() -> None:
    def function(arrays: Any, weights: Any) -> Any:
        return OPS["Add"](OPS["Mul"](arrays["a"], weights[0][0]), OPS["Neg"](weights[1]))

    arrays, weights = {"a": np.array([2.0, 3.0]), "n": 5}, [[np.array([0.1, 0.2])], np.zeros(2)]
    to_arrays, to_weights = rg.vjp(function, (arrays, weights), np.ones(2))
    assert (to_arrays["a"].tolist(), to_arrays["n"]) == ([0.1, 0.2], None)
    assert (to_weights[0][0].tolist(), to_weights[1].tolist()) == ([2, 3], [-1, -1])
    tensors = [rg.SparseTensor([[k]], np.ones(1), [2]) for k in range(2)]
    both = rg.vjp(lambda pair: rg.sparse.add(*pair), (tensors,), np.array([3.0, 4.0]))[0]
    assert [gradient.tolist() for gradient in both] == [[3], [4]]


def test_cotangents_of_non_native_byte_order() -> None:
    assert rg.vjp(OPS["Neg"], (TABLE,), TABLE.astype(">f8"))[0].tobytes() == (-TABLE).tobytes()
    assert rg.vjp(lambda x: x, (TABLE.astype(">f8"),), TABLE)[0].tolist() == TABLE.tolist()


def test_cotangents_of_constants_have_their_shape() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"cotangents\[1\] must have shape \[3,2\], got \[2\]"):
        rg.vjp(lambda x: (OPS["Neg"](x), TABLE), (TABLE,), (TABLE, np.ones(2)))


def test_cotangents_beyond_the_dtype_raise() -> None:
    half = np.ones((), np.float16)
    with pytest.raises(
        rg.errors.InvalidArgumentError, match=r"cotangents\[0\] must contain values of float16; got 10+"
    ):
        rg.vjp(OPS["Neg"], (half,), 1e9)
    assert rg.vjp(OPS["Neg"], (half,), float("inf"))[0] == -np.inf


@pytest.mark.parametrize("number", [1.5, [1.5, 1.5]])
@pytest.mark.parametrize("dtypes", [(np.float64, np.float32), (np.float16, ml_dtypes.bfloat16)])
def test_numbers_mixed_with_two_dtypes(number: Any, dtypes: tuple[Any, Any]) -> None:
    first, second = (np.full(np.shape(number), k + 2, dtype) for k, dtype in enumerate(dtypes))
    products = rg.vjp(lambda x: (OPS["Mul"](x, first), OPS["Mul"](second, x)), (number,), (first, second))[0]
    assert products.dtype == (np.float64 if np.float64 in dtypes else np.float32)
    assert products.tolist() == np.full(np.shape(number), 13.0).tolist()
