"""Accepted inputs (layouts, byte orders, Python numbers, strings, quantized numbers) and rejected ones."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rowgrad as rg
from golden_cases import same_bits
from rowgrad._catalog.spec import CATALOG
from rowgrad.graph import Scope, ops
from rowgrad.raw_ops import OPS
from samples import sample

KERNELS = [pytest.param(op.name, id=op.name) for op in CATALOG.values() if op.kernel]


def strided(a: np.ndarray) -> np.ndarray:
    wide = np.empty((*a.shape[:-1], 2 * a.shape[-1]), a.dtype) if a.ndim else a.copy()
    if a.ndim:
        wide[...] = 0
        wide = wide[..., ::2]
        wide[...] = a
    return wide


def reversed_twice(a: np.ndarray) -> np.ndarray:
    return a[::-1].copy()[::-1] if a.ndim else a


def read_only(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


def swapped(a: np.ndarray) -> np.ndarray:
    return a.astype(a.dtype.newbyteorder())


def column_major(a: np.ndarray) -> np.ndarray:
    return a.copy(order="F")


def unaligned(a: np.ndarray) -> np.ndarray:
    raw = np.empty(a.nbytes + 1, np.uint8)[1:]
    view = raw.view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


@pytest.mark.parametrize("layout", [strided, reversed_twice, read_only, swapped, unaligned, column_major])
@pytest.mark.parametrize("name", KERNELS)
def test_results_do_not_depend_on_layout(name: str, layout: Any) -> None:
    x = {k: np.asarray(v) for k, v in sample(name, np.random.default_rng(6)).items()}
    copies = {k: v.copy() for k, v in x.items()}
    arranged = {k: layout(v) for k, v in x.items()}
    first = OPS[name](**arranged)
    expected = OPS[name](**x)
    for got in (first, OPS[name](**arranged), OPS[name](**arranged)):  # repeated: a repeated call takes a fast path
        pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
        for g, e in pairs:
            assert same_bits(g, e)
            assert not any(np.shares_memory(g, v) for v in arranged.values())
    assert all(same_bits(x[k], copies[k]) for k in x), "inputs are never written"


def test_outputs_do_not_alias_inputs_even_when_equal() -> None:
    full = (np.array([[0, 0], [1, 0]]), np.array([1.0, 2.0]), np.array([2, 2]))
    filled = rg.raw_ops.SparseFillEmptyRows(*full, 0.0)
    cut = rg.raw_ops.SparseSlice(*full, [0, 0], [2, 2])
    for result in (*filled, *cut):
        assert not any(np.shares_memory(result, x) for x in full)


def test_python_numbers_are_float32_and_int32() -> None:
    out, ids = rg.raw_ops.SparseSegmentSumGradV2([[1.0, 2.0]], [3, 3], [0, 0], 5)
    assert (out.dtype, ids.dtype) == (np.float32, np.int32)
    assert out.tolist() == [[2.0, 4.0]]


def test_python_numbers_take_the_dtype_of_other_arguments() -> None:
    filled = rg.raw_ops.SparseFillEmptyRows([[0, 0]], np.ones(1, ml_dtypes.bfloat16), [2, 1], -1)
    assert filled.output_values.dtype == ml_dtypes.bfloat16
    assert filled.output_values.tolist() == [1, -1]


def test_python_integers_out_of_range_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="default_value must contain values of int8; got 300"):
        rg.raw_ops.SparseFillEmptyRows([[0, 0]], np.ones(1, np.int8), [2, 1], 300)


def test_empty_python_lists() -> None:
    assert rg.raw_ops.SparseSegmentSum(np.ones((2, 2)), [], []).shape == (0, 2)
    assert rg.raw_ops.SparseSegmentSumGrad(np.ones((0, 2)), [], [], 3).tolist() == [[0, 0]] * 3


# Empty lists and the dtypes of TensorFlow's results: an empty list is float32, or int32 if only integers are allowed.
NO_ENTRIES = np.zeros((0, 2), np.int64)
EMPTY_LISTS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("RaggedFillEmptyRows", {"value_rowids": [], "values": [], "nrows": 2, "default_value": 1.5},
     ["int64", "float32", "bool", "int64"]),
    ("RaggedFillEmptyRows", {"value_rowids": [], "values": [], "nrows": 2, "default_value": 1},
     ["int64", "float32", "bool", "int64"]),
    ("SparseFillEmptyRows", {"indices": NO_ENTRIES, "values": [], "dense_shape": [2, 2], "default_value": 1},
     ["int64", "float32", "bool", "int64"]),
    ("SparseFillEmptyRowsGrad", {"reverse_index_map": [], "grad_values": []}, ["float32", "float32"]),
    ("SparseSegmentMean", {"data": [[]], "indices": [0], "segment_ids": [0]}, ["float32"]),
    ("SparseSegmentSum", {"data": [[]], "indices": [], "segment_ids": []}, ["float32"]),
    ("SparseSegmentSumGrad", {"grad": [[]], "indices": [], "segment_ids": [], "output_dim0": 2}, ["float32"]),
    ("SparseSegmentSumGradV2", {"grad": [[]], "indices": [], "segment_ids": [], "dense_output_dim0": 2},
     ["float32", "int32"]),
    ("SparseSlice", {"indices": NO_ENTRIES, "values": [], "shape": [2, 2], "start": [0, 0], "size": [1, 1]},
     ["int64", "float32", "int64"]),
    ("SparseAdd",
     {"a_indices": NO_ENTRIES, "a_values": [], "a_shape": [2, 2], "b_indices": [[0, 0]], "b_values": [1],
      "b_shape": [2, 2], "thresh": 0}, ["int64", "float32", "int64"]),
    ("SparseAddGrad",
     {"backprop_val_grad": [], "a_indices": NO_ENTRIES, "b_indices": NO_ENTRIES, "sum_indices": NO_ENTRIES},
     ["float32", "float32"]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arguments", "dtypes"), EMPTY_LISTS)
def test_empty_lists_are_float32_or_int32(op: str, arguments: dict[str, Any], dtypes: list[str]) -> None:
    found = getattr(rg.raw_ops, op)(**arguments)
    assert [str(x.dtype) for x in (found if isinstance(found, tuple) else (found,))] == dtypes
    root = Scope.new_root_scope()
    block = getattr(ops, op)(root, **arguments)
    assert [pin.dtype for pin in block.pins.values()] == dtypes


def test_empty_lists_mixed_with_arrays_take_their_dtype() -> None:
    for default in (np.float64(1), np.array(1, np.int16), np.array(1, ml_dtypes.bfloat16), np.array("a", object)):
        filled = rg.raw_ops.RaggedFillEmptyRows([], [], 2, default)
        assert filled.output_values.dtype == default.dtype
        assert filled.output_values.tolist() == [default.tolist()] * 2


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint8, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_fixed_integer_arguments_take_any_integers_that_fit(dtype: Any) -> None:
    indices = np.array([[0, 1], [1, 0]], dtype)
    filled = rg.raw_ops.SparseFillEmptyRows(indices, np.ones(2), np.array([3, 2], dtype), 0.0)
    assert filled.output_indices.dtype == np.int64
    grad = rg.raw_ops.SparseSegmentSumGrad(np.ones((1, 1)), [0], [0], np.array(2, dtype))
    assert grad.tolist() == [[1], [0]]


def test_fixed_integers_out_of_range_raise() -> None:
    with pytest.raises(
        rg.errors.InvalidArgumentError, match="output_dim0 must contain values of int32; got 4294967296"
    ):
        rg.raw_ops.SparseSegmentSumGrad(np.ones((1, 1)), [0], [0], np.array(2**32))
    huge = np.array([[0, 1], [2**64 - 1, 0]], np.uint64)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"indices must contain values of int64") as caught:
        rg.raw_ops.SparseFillEmptyRows(huge, np.ones(2), [3, 2], 0.0)
    assert caught.value.position == 2


@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.float64])
def test_fixed_integer_arguments_reject_other_types(dtype: Any) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="output_dim0 must be int32; got"):
        rg.raw_ops.SparseSegmentSumGrad(np.ones((1, 1)), [0], [0], np.array(1, dtype))


TEXTS = [
    np.array(["ä", "b", ""], object),
    np.array([b"\xff", b"b", b""], object),
    np.array(["ä", "b", ""], np.dtypes.StringDType()),
    np.array(["ä", "b", ""]),
    np.array([b"a", b"b", b""]),
]


@pytest.mark.parametrize("values", TEXTS, ids=lambda a: str(a.dtype))
def test_strings(values: np.ndarray) -> None:
    default = values[1]
    filled = rg.raw_ops.SparseFillEmptyRows([[2, 0], [0, 0], [2, 1]], values, [3, 2], default)
    assert filled.output_values.tolist() == [values[1], values[1], values[0], values[2]]
    assert filled.output_values.dtype == (values.dtype if values.dtype.kind == "T" else np.dtype(object))
    cut = rg.raw_ops.SparseSlice([[0, 0], [0, 1], [1, 1]], values, [2, 2], [0, 1], [2, 1])
    assert cut.output_values.tolist() == [values[1], values[2]]


@pytest.mark.parametrize(("name", "plain"), [("qint8", np.int8), ("quint8", np.uint8), ("qint32", np.int32)])
def test_quantized(name: str, plain: Any) -> None:
    dtype = np.dtype([(name, plain)])
    values = np.array([1, 2, 3], plain).view(dtype)
    places = [[0, 0], [0, 1], [1, 1]]
    cut = rg.raw_ops.SparseSlice(places, values, [2, 2], [0, 1], [2, 1])
    assert cut.output_values.dtype == dtype
    assert cut.output_values.view(plain).tolist() == [2, 3]
    back = rg.raw_ops.SparseSliceGrad(cut.output_values, places, [0, 1], cut.output_indices)
    assert back.dtype == dtype
    assert back.view(plain).tolist() == [0, 2, 3]
    with pytest.raises(rg.errors.InvalidArgumentError, match=f"got {name}"):
        rg.raw_ops.SparseFillEmptyRows(places, values, [2, 2], values[0])


INVALID_INPUTS = [
    (np.ma.masked_array(np.ones((2, 2)), True), "masked array"),
    (None, "data must be an array; got NoneType"),
    (object(), "data must be an array; got object"),
    (np.ones((2, 2), np.longdouble), "data must be one of"),
    (np.array(["2020-01-01"], "M8[D]"), "data must be one of"),
    (np.array([1, "a"], object), "object array with an item of type int"),
    ([[1.0], [2.0, 3.0]], "data is a list of lists of different lengths"),
    (np.zeros(1, [("a", "i4"), ("b", "f4")]), "data must be one of"),
]


@pytest.mark.parametrize(("data", "message"), INVALID_INPUTS, ids=range(len(INVALID_INPUTS)))
def test_invalid_inputs_raise(data: Any, message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        rg.raw_ops.SparseSegmentSum(data, [0], [0])


def test_index_arguments_are_not_converted() -> None:
    for dtype in (np.int16, np.uint32, np.uint64, np.float32, bool):
        with pytest.raises(rg.errors.InvalidArgumentError, match="indices must be one of int32, int64"):
            rg.raw_ops.SparseSegmentSum(np.ones((2, 2)), np.zeros(1, dtype), [0])


def test_numpy_scalars_keep_their_dtype() -> None:
    filled = rg.raw_ops.RaggedFillEmptyRows([1], [0.1], 2, np.float64(0.2))
    assert filled.output_values.dtype == np.float64


def test_large_python_integers() -> None:
    filled = rg.raw_ops.RaggedFillEmptyRows([0, 0], [0, 2**64 - 1], 1, np.uint64(8))
    assert filled.output_values.tolist() == [0, 2**64 - 1]
    with pytest.raises(
        rg.errors.InvalidArgumentError, match="values must contain values of int64; got 18446744073709551616"
    ):
        rg.raw_ops.RaggedFillEmptyRows([0], [2**64], 1, 0)


def test_strings_keep_trailing_null_bytes() -> None:
    filled = rg.raw_ops.RaggedFillEmptyRows([], np.zeros(0, object), 1, b"\xff\x00")
    assert filled.output_values.tolist() == [b"\xff\x00"]


def test_quantized_at_odd_addresses() -> None:
    dtype = np.dtype([("qint32", np.int32)])
    values = np.frombuffer(b"?" + np.array([1, 2, 3], np.int32).tobytes(), dtype, offset=1)
    cut = rg.raw_ops.SparseSlice([[0, 0], [0, 1], [1, 1]], values, [2, 2], [0, 1], [2, 1])
    assert cut.output_values.view(np.int32).tolist() == [2, 3]
