"""The dense layer on NumPy: values by plain formulas for every dtype, broadcasting, errors, gradient rules."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rowgrad as rg
from dense_op_calls import HUGE, MEANS, RESHAPED
from rowgrad._catalog.spec import CATALOG, COMPLEX, FLOATS, REALS
from rowgrad._runtime import numpy_dense
from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.raw_ops import OPS

SHORT = ("float16", "bfloat16")
STEP = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-21, "float64": 2.0**-50}
Formula = Callable[..., Any]
NAN, INF = float("nan"), float("inf")


BINARY: dict[str, Formula] = {
    "Add": lambda x, y: x + y,
    "Sub": lambda x, y: x - y,
    "Mul": lambda x, y: x * y,
    "RealDiv": lambda x, y: x / y,
    "DivNoNan": lambda x, y: x / y,
    "Mod": lambda x, y: x - y * np.trunc(x / y),
    "FloorMod": lambda x, y: x - y * np.floor(x / y),
    "FloorDiv": lambda x, y: np.floor(x / y),
    "Pow": lambda x, y: x**y,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "SquaredDifference": lambda x, y: (x - y) ** 2,
    "Equal": lambda x, y: x == y,
    "NotEqual": lambda x, y: x != y,
    "Less": lambda x, y: x < y,
    "LessEqual": lambda x, y: x <= y,
    "Greater": lambda x, y: x > y,
    "GreaterEqual": lambda x, y: x >= y,
}
UNARY: dict[str, Formula] = {
    "Neg": lambda x: -x,
    "Abs": abs,
    "Sign": np.sign,
    "Square": lambda x: x * x,
    "Sqrt": np.sqrt,
    "Rsqrt": lambda x: x**-0.5,
    "Reciprocal": lambda x: 1 / x,
    "Log": np.log,
    "Log1p": lambda x: np.log(1 + x),
    "Exp": np.exp,
    "Expm1": lambda x: np.exp(x) - 1,
    "Sin": np.sin,
    "Cos": np.cos,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": lambda x: (np.exp(x) - np.exp(-x)) / (np.exp(x) + np.exp(-x)),
    "Softplus": lambda x: np.log(1 + np.exp(x)),
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.round,
    "Relu": lambda x: np.where(x > 0, x, 0),
    "ZerosLike": lambda x: 0 * x,
    "OnesLike": lambda x: 0 * x + 1,
    "Identity": lambda x: x,
    "StopGradient": lambda x: x,
}
REDUCTIONS: dict[str, Formula] = {"Sum": np.sum, "Mean": np.mean, "Prod": np.prod, "Max": np.max, "Min": np.min}


def each_dtype(table: dict[str, Formula], allowed: tuple[str, ...]) -> list[Any]:
    return [(n, d) for n in table for d in CATALOG[n].dtypes_of("T") if d in allowed]


def draw(dtype: str, *shape: int, seed: int = 0, low: int = 1, high: int = 5) -> np.ndarray:
    """Return numbers that every dtype represents; positive, so that all formulas are defined."""
    numbers = np.random.default_rng(seed).integers(low * 4, high * 4, shape)
    is_integer = NUMPY_DTYPE[dtype] not in [NUMPY_DTYPE[f] for f in (*FLOATS, *COMPLEX)]
    return np.asarray(numbers // 4 if is_integer else numbers / 4).astype(NUMPY_DTYPE[dtype])


def as_float(array: Any) -> Any:
    return np.asarray(array).astype(complex if np.asarray(array).dtype.kind == "c" else float)


def close(got: Any, expected: Any, dtype: str) -> None:
    step = STEP.get(dtype, 0.0)
    np.testing.assert_allclose(as_float(got), as_float(expected), rtol=step, atol=step)


@pytest.mark.parametrize(("name", "dtype"), each_dtype(BINARY, REALS))
def test_binary_ops(name: str, dtype: str) -> None:
    x, y = draw(dtype, 40), draw(dtype, 40, seed=1)
    got = OPS[name](x, y)
    assert got.dtype == (bool if CATALOG[name].outputs[0].type == "bool" else x.dtype)
    expected = BINARY[name](as_float(x), as_float(y))
    if dtype in REALS and dtype not in FLOATS and got.dtype != bool:
        with np.errstate(all="ignore"):
            expected = expected.astype(np.int64).astype(x.dtype)  # integers wrap
    close(got, expected, dtype)


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", [n for n in BINARY if "complex64" in CATALOG[n].dtypes_of("T")])
def test_complex_numbers(name: str, dtype: str) -> None:
    x, y = draw(dtype, 6) + 1j, draw(dtype, 6, seed=1) - 2j
    x, y = x.astype(dtype), y.astype(dtype)
    np.testing.assert_array_equal(OPS[name](x, y), BINARY[name](x, y))


@pytest.mark.parametrize(("name", "dtype"), each_dtype(UNARY, REALS))
def test_unary_ops(name: str, dtype: str) -> None:
    x = draw(dtype, 3, 40)
    got = OPS[name](x)
    assert got.dtype == x.dtype
    expected = UNARY[name](as_float(x))
    close(got, expected.astype(np.int64).astype(x.dtype) if dtype not in FLOATS else expected, dtype)


@pytest.mark.parametrize(("name", "dtype"), each_dtype(REDUCTIONS, REALS))
@pytest.mark.parametrize("axis", [0, -1, (0, 2), (), (2, 0, 1)])
@pytest.mark.parametrize("keep_dims", [False, True])
def test_reductions(name: str, dtype: str, axis: Any, keep_dims: bool) -> None:
    x = draw(dtype, 2, 3, 2, high=3)
    got = OPS[name](x, axis, keep_dims=keep_dims)
    expected = REDUCTIONS[name](as_float(x), axis=axis, keepdims=keep_dims)
    assert (got.dtype, got.shape) == (x.dtype, expected.shape)
    close(got, np.trunc(expected).astype(np.int64).astype(x.dtype) if dtype not in FLOATS else expected, dtype)


@pytest.mark.parametrize("axis", [0, -2, (0, 1), ()])
def test_all_and_any(axis: Any) -> None:
    x = np.array([[True, False], [True, True]])
    np.testing.assert_array_equal(OPS["All"](x, axis), np.all(x, axis=axis))
    np.testing.assert_array_equal(OPS["Any"](x, axis, keep_dims=True), np.any(x, axis=axis, keepdims=True))


@pytest.mark.parametrize("dtype", [*REALS, "bool"])
def test_argmax_and_argmin(dtype: str) -> None:
    x = draw(dtype, 4, 5)
    for axis, kind in itertools.product((0, 1, -1), ("int32", "int64")):
        most, least = (OPS[n](x, axis, output_type=kind) for n in ("ArgMax", "ArgMin"))
        assert most.dtype == least.dtype == kind
        np.testing.assert_array_equal(most, as_float(x).argmax(axis))
        np.testing.assert_array_equal(least, as_float(x).argmin(axis))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("x", "most", "least"),
    [
        ([NAN, 3, NAN, 1], 1, 3),
        ([1, NAN, 5, NAN], 2, 0),
        ([NAN, NAN], 0, 0),
        ([NAN, -INF, NAN], 0, 1),
        ([NAN, INF], 1, 0),
        ([-INF, NAN, -INF], 0, 0),
        ([NAN, NAN, -INF, 3], 3, 2),
    ],
)
def test_argmax_and_argmin_skip_nan(dtype: str, x: Any, most: int, least: int) -> None:
    array = np.array([x], NUMPY_DTYPE[dtype])
    assert (OPS["ArgMax"](array, 1).tolist(), OPS["ArgMin"](array, 1).tolist()) == ([most], [least])


# -- 16-bit floats: float32 inside, one rounding -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SHORT)
def test_16_bit_floats_round_once(dtype: str) -> None:
    kind, rng = NUMPY_DTYPE[dtype], np.random.default_rng(0)
    x = rng.normal(size=(6, 300)).astype(kind)
    w = x.astype(np.float32)
    pairs = {
        "Sum": (OPS["Sum"](x, 1), w.sum(1)),
        "Mean": (OPS["Mean"](x, 1), w.sum(1) / np.float32(300)),
        "MatMul": (OPS["MatMul"](x, x, transpose_b=True), w @ w.T),
        "AddN": (OPS["AddN"](list(x)), np.add.reduce([*w])),
        "L2Loss": (OPS["L2Loss"](x), (w * w).sum() / np.float32(2)),
        "SumLike": (OPS["SumLike"](x, x[:, :1]), w.sum(1, keepdims=True)),
        "Softmax": (OPS["Softmax"](x), np.exp(w - w.max(1, keepdims=True))),
        "Softplus": (OPS["Softplus"](x), np.logaddexp(w, np.float32(0))),
    }
    powers = pairs["Softmax"][1]
    pairs["Softmax"] = (pairs["Softmax"][0], powers / powers.sum(1, keepdims=True))
    for name, (got, expected) in pairs.items():
        assert got.dtype == kind
        np.testing.assert_array_equal(as_float(got), as_float(expected.astype(kind)), err_msg=name)
    naive = np.add.reduce(list(x.T))
    assert (as_float(naive) != as_float(pairs["Sum"][0])).any()  # rounding at every step would differ


# -- broadcasting ------------------------------------------------------------------------------------------------------

SHAPES = [
    ((), ()), ((3,), ()), ((), (2, 0)), ((2, 1), (3,)), ((0, 3), (1, 3)), ((1,), (0,)), ((4, 1, 2), (3, 1)),
    ((2, 3), (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_broadcasting(name: str, shapes: Any) -> None:
    x, y = draw("float64", *shapes[0]), draw("float64", *shapes[1], seed=1)
    got = OPS[name](x, y)
    assert isinstance(got, np.ndarray)
    assert got.shape == np.broadcast_shapes(*shapes)
    np.testing.assert_allclose(got, BINARY[name](x, y), rtol=1e-12)
    if CATALOG[name].adjoint is not None:
        to_x, to_y = rg.vjp(name, (x, y), np.ones(got.shape))
        assert (to_x.shape, to_y.shape) == shapes


def test_broadcasting_of_three() -> None:
    condition, x, y = np.array([[True], [False]]), np.array([1.0, 2.0]), np.float64(7)
    np.testing.assert_array_equal(OPS["Select"](condition, x, y), [[1, 2], [7, 7]])
    to_x, to_y = rg.vjp(lambda x, y: OPS["Select"](condition, x, y), (x, y), np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert (to_x.tolist(), to_y.tolist()) == ([1, 2], 7)


# -- integers ----------------------------------------------------------------------------------------------------------

SIGNED_AND_NOT = ("int8", "int32", "int64", "uint8", "uint64")


@pytest.mark.parametrize("dtype", SIGNED_AND_NOT)
def test_integer_division(dtype: str) -> None:
    numbers = [-7, -6, -1, 0, 1, 6, 7] if dtype[0] == "i" else [0, 1, 6, 7]
    pairs = [(a, b) for a in numbers for b in numbers if b]
    x, y = (np.array(side, dtype) for side in zip(*pairs, strict=True))
    towards_zero = [math.trunc(a / b) for a, b in pairs]
    assert OPS["Div"](x, y).tolist() == towards_zero
    assert OPS["FloorDiv"](x, y).tolist() == [a // b for a, b in pairs]
    assert OPS["FloorMod"](x, y).tolist() == [a % b for a, b in pairs]
    if dtype in CATALOG["Mod"].dtypes_of("T"):
        assert OPS["Mod"](x, y).tolist() == [math.fmod(a, b) for a, b in pairs]
    assert OPS["Div"](x, y).dtype == dtype


def test_integers_wrap_and_have_no_gradient() -> None:
    assert OPS["Sum"](np.array([100, 100], np.int8), 0) == -56
    assert OPS["Mean"](np.array([-3, -4], np.int32), 0) == -3
    assert OPS["Mean"](np.zeros((0, 2), np.int32), 0).tolist() == [0, 0]
    assert rg.vjp("MatMul", (np.eye(2, dtype=np.int32),) * 2, None) == (None, None)


@pytest.mark.parametrize(("x", "axis", "expected"), MEANS)
def test_means_of_integers_do_not_overflow(x: Any, axis: Any, expected: Any) -> None:
    got = OPS["Mean"](x, axis)
    assert (got.dtype, got.tolist()) == (x.dtype, expected)
    if x.ndim == 1:
        spread = OPS["SpreadLike"](np.array(120, x.dtype), 0, x, mean=True)
        assert (spread.dtype, spread.tolist()) == (x.dtype, [120 // len(x)] * len(x))


def test_extremes_of_integers() -> None:
    """The one quotient that overflows wraps, and must not trap."""
    for dtype in ("int8", "int16", "int32", "int64"):
        low = np.iinfo(dtype).min
        x, y = np.full(9, low, dtype), np.full(9, -1, dtype)
        assert OPS["Div"](x, y).tolist() == OPS["FloorDiv"](x, y).tolist() == [low] * 9
        assert OPS["FloorMod"](x, y).tolist() == [0] * 9
        assert OPS["Abs"](x).tolist() == OPS["Neg"](x).tolist() == [low] * 9


def test_casts() -> None:
    x = np.array([-1.7, 0.0, 1.7, 200.5])
    assert OPS["Cast"](x, DstT="int32").tolist() == [-1, 0, 1, 200]
    assert OPS["Cast"](x, DstT="bool").tolist() == [True, False, True, True]
    assert OPS["Cast"](x + 2j, DstT="float32").tolist() == x.astype(np.float32).tolist()
    assert OPS["Cast"](np.array([0j, 2j, 1j - 1]), DstT="bool").tolist() == [False, False, True]
    assert OPS["Cast"](np.array([True, False])).dtype == np.float32
    for dtype in CATALOG["Cast"].choices["DstT"]:
        assert OPS["Cast"](np.array([0, 1]), DstT=dtype).dtype == NUMPY_DTYPE[dtype]


# -- errors ------------------------------------------------------------------------------------------------------------

ONES = np.ones((2, 3))
INVALID_CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("Add", (ONES, np.ones(2)), {}, r"y of shape \[2\] does not broadcast with \[2,3\]"),
    ("Add", (ONES, np.ones(3, np.float32)), {}, "y must be float64, the T of the arguments before it; got float32"),
    ("Div", (np.array([4, 5]), np.array([2, 0])), {}, r"Integer division by zero: y\[1\] = 0"),
    ("FloorMod", (1, np.array([[2, 3], [0, 1]], np.int32)), {}, r"Integer division by zero: y\[1,0\] = 0"),
    ("Pow", (np.array([2]), np.array([-1])), {}, r"negative integer powers are not allowed: y\[0\]"),
    ("AddN", ([ONES, ONES, ONES[0]],), {}, r"inputs\[2\] must have shape \[2,3\], got \[3\]"),
    ("AddN", ([ONES, ONES.astype(np.float32)],), {}, r"inputs\[1\] must be float64"),
    ("AddN", ([],), {}, "inputs must be a list of at least one array; got an empty list"),
    ("AddN", (ONES,), {}, "inputs must be a list of at least one array; got ndarray"),
    ("Sum", (ONES, 2), {}, r"axis\[0\] = 2 is not in \[-2, 2\)"),
    ("Sum", (ONES, [0, -2]), {}, "axis contains dimension 0 twice"),
    ("Sum", (ONES, 0), {"keep_dims": "yes"}, "attribute keep_dims must be one of False, True; got 'yes'"),
    ("ArgMax", (np.ones((2, 0)), 1), {}, "dimension = 1 is a dimension of size 0"),
    ("ArgMax", (ONES, 1), {"output_type": "int8"}, "attribute output_type must be one of"),
    ("MatMul", (ONES, ONES), {}, "b must have an inner dimension of 3, as a has; got 2"),
    ("MatMul", (ONES[0], ONES), {}, r"a must have 2 dimensions, got shape \[3\]"),
    ("OneHot", (np.array([1]), 3, 1.0, 0.0), {"axis": -2}, r"axis to be -1 or between \[0, 2\).  But received: -2"),
    ("OneHot", (np.array([1]), 3, 1.0, 0.0), {"axis": 2}, r"axis to be -1 or between \[0, 2\).  But received: 2"),
    ("FullLike", (ONES,), {"value": 10**400}, r"value must be a number that fits float64, .*; got an int of 1329 bits"),
    ("FullLike", (ONES,), {"value": 1j}, "value must be a number that fits float64, at most 1.79769313e[+]308; got 1j"),
    ("FullLike", (ONES,), {"value": "7"}, "attribute value must be a number; got '7'"),
    ("FullLike", (ONES.astype(np.float16),), {"value": 7e4}, "a number that fits float16, at most 65504; got 70000.0"),
    ("FullLike", (ONES.astype(np.complex64),), {"value": 1e39j}, "a number whose parts fit float32; got 1e[+]39j"),
    ("FullLike", (ONES.astype(np.int32),), {"value": NAN}, r"in \[-2147483648, 2147483647\]; got nan"),
    ("FullLike", (ONES.astype(np.int32),), {"value": 1.5}, "value must be an integer that fits int32, .*; got 1.5"),
    ("FullLike", (ONES.astype(np.int8),), {"value": 300}, r"in \[-128, 127\]; got 300"),
    ("FullLike", (ONES.astype(np.uint8),), {"value": -1}, r"in \[0, 255\]; got -1"),
    ("AtLeast", (ONES,), {"bound": 10**400}, "bound must be a number that fits float64"),
    ("Reshape", (np.zeros((0, 3)), [-1, 0, -1]), {}, "shape may contain -1 only once"),
    ("Reshape", (ONES, [0, -1]), {}, r"tensor must have as many elements as shape \[0,-1\], got \[2,3\]"),
    ("Reshape", (np.zeros((0, 3)), [2, 3]), {}, r"tensor must have as many elements as shape \[2,3\], got \[0,3\]"),
    ("Reshape", (ONES, 5), {}, r"tensor must have as many elements as shape \[5\], got \[2,3\]"),
    ("Reshape", (ONES, [[2, 3]]), {}, "shape should be a vector"),
    ("Fill", (-1, 1.0), {}, "Expected a non-negative size, got -1"),
    ("Sum", (ONES, [[0], [2]]), {}, r"axis\[1\] = 2 is not in \[-2, 2\)"),
    ("Transpose", (ONES, [0, 0]), {}, r"perm must contain each number in \[0, 2\) once, got \[0,0\]"),
    ("Reshape", (ONES, [4, -1]), {}, r"tensor must have as many elements as shape \[4,-1\], got \[2,3\]"),
    ("Reshape", (ONES, [-1, -1]), {}, "shape may contain -1 only once"),
    ("Reshape", (ONES, [-2, -3]), {}, "Expected a non-negative size, got -2"),
    ("ExpandDims", (ONES, 4), {}, r"dim\[0\] = 4 is not in \[-3, 3\)"),
    ("Squeeze", (ONES,), {"axis": (0,)}, "dimension 0 has size 2"),
    ("Concat", ([ONES, ONES, ONES[:, :2]], 0), {}, r"values\[2\] must have shape \[3\], got \[2\]"),
    ("Concat", ([np.float64(1)], 0), {}, r"values\[0\] must have at least 1 dimensions"),
    ("Pack", ([ONES, ONES[0]],), {}, r"values\[1\] must have shape \[2,3\], got \[3\]"),
    ("Pack", ([ONES],), {"axis": 1.5}, "attribute axis must be a whole number; got 1.5"),
    ("Slice", (ONES, [0, 2], [1, 2]), {}, r"the slice must be inside dimension 1 of size 3, got size\[1\] = 2"),
    ("Slice", (ONES, [0], [1, 2]), {}, "begin must have length 2, got 1"),
    ("Gather", (ONES, np.array([[0, 1], [1, 2]])), {}, r"indices\[1,1\] = 2 is not in \[0, 2\)"),
    ("Gather", (ONES, np.array([0, -1])), {}, r"indices\[1\] = -1 is not in \[0, 2\)"),
    ("OneHot", (np.array([1]), -1, 1.0, 0.0), {}, "Expected a non-negative size, got -1"),
    ("Column", (ONES,), {"index": 3}, r"index = 3 is not in \[-3, 3\)"),
    ("Dimension", (ONES,), {"axis": 2}, r"axis\[0\] = 2 is not in \[-2, 2\)"),
    ("Range", (0, 5, 0), {}, "delta must not be 0"),
    ("Range", (0, 5, -1), {}, "start = 0 never reaches limit = 5 in steps of delta = -1"),
    ("Softmax", (np.float64(1),), {}, "logits must have at least 1 dimensions"),
    ("SoftmaxCrossEntropyWithLogits", (ONES, ONES.T), {}, r"labels must have shape \[2,3\], got \[3,2\]"),
    ("BiasAdd", (ONES, np.ones(2)), {}, r"bias must have shape \[3\], got \[2\]"),
    ("LogicalAnd", (ONES, ONES), {}, "x must be bool; got float64"),
    ("Cast", (ONES,), {"DstT": "string"}, "attribute DstT must be one of"),
    ("Log", (np.array([1, 2]),), {}, "x must be one of float16, bfloat16, float32, float64; got int64"),
]


@pytest.mark.parametrize(("name", "args", "attrs", "message"), INVALID_CALLS)
def test_invalid_calls_raise(name: str, args: Any, attrs: Any, message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message) as caught:
        OPS[name](*args, **attrs)
    assert caught.value.op == name


@pytest.mark.parametrize(("name", "args"), HUGE, ids=[name for name, _ in HUGE])
def test_huge_results_are_rejected_before_allocation(name: str, args: Any) -> None:
    for _ in range(2):  # an error must not be cached as valid
        with pytest.raises(rg.errors.ResourceExhaustedError, match="OOM when allocating tensor with shape"):
            OPS[name](*args)


def test_dtypes_without_a_kernel_raise() -> None:
    for name, args in (("RealDiv", (np.array([1]), np.array([2]))), ("Reciprocal", (np.array([1]),))):
        with pytest.raises(rg.errors.NotFoundError, match="got int64, which has no kernel"):
            OPS[name](*args)


# -- moving elements ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64", "string"])
def test_moving_elements_of_every_dtype(dtype: str) -> None:
    flat = [f"s{i}" for i in range(12)] if dtype == "string" else [i % 2 if dtype == "bool" else i for i in range(12)]
    x = np.array(flat, NUMPY_DTYPE[dtype]).reshape(3, 4)
    same = np.testing.assert_array_equal
    same(OPS["Reshape"](x, [2, -1]), x.reshape(2, 6))
    same(OPS["Transpose"](x, [1, 0]), x.T)
    same(OPS["Concat"]([x, x[:1]], 0), np.concatenate([x, x[:1]]))
    same(OPS["Pack"]([x, x], axis=-1), np.stack([x, x], -1))
    same(OPS["Slice"](x, [1, 0], [-1, 3]), x[1:, :3])
    same(OPS["Gather"](x, np.array([[2, 0]], np.int32)), x[[[2, 0]]])
    same(OPS["Select"](np.array([True, False, True, False]), x, x[0]), np.where([True, False] * 2, x, x[0]))
    same(OPS["Equal"](x, x[0]), x == x[0])
    same(OPS["Squeeze"](OPS["ExpandDims"](x, -1)), x)
    same(OPS["Fill"]([2], x[0, 1]), x[[0, 0], [1, 1]] if dtype != "string" else [x[0, 1]] * 2)


def test_shapes_as_numbers() -> None:
    x = np.zeros((2, 0, 3))
    assert OPS["Shape"](x).tolist() == [2, 0, 3]
    assert OPS["Shape"](x, out_type="int64").dtype == np.int64
    assert (OPS["Size"](x), OPS["Rank"](x), OPS["Dimension"](x, axis=-1)) == (0, 3, 3)
    assert OPS["Reshape"](x, [-1, 2]).shape == (0, 2)
    for start, limit, delta in ((0, 5, 2), (5, 0, -2), (3, 3, 1), (-4, 4, 3)):
        assert OPS["Range"](start, limit, delta).tolist() == list(range(start, limit, delta))
    assert OPS["Range"](np.int64(0), np.int64(2), np.int64(1)).dtype == np.int64


@pytest.mark.parametrize(("shape", "new_shape", "expected"), RESHAPED)
def test_empty_shapes(shape: Any, new_shape: Any, expected: Any) -> None:
    """The size for −1 next to a 0 is TensorFlow's."""
    x = np.zeros(shape)
    assert OPS["Reshape"](x, new_shape).shape == expected
    assert rg.vjp("Reshape", {"tensor": x, "shape": new_shape}, np.zeros(expected))["tensor"].shape == shape


def test_sizes_alone_and_axes_in_arrays() -> None:
    assert OPS["Fill"](3, 7.0).tolist() == [7, 7, 7]
    assert OPS["Fill"](np.array(0), 7.0).shape == (0,)
    assert rg.vjp("Fill", {"dims": 3, "value": 7.0}, np.ones(3, np.float32))["value"] == 3
    assert OPS["Reshape"](ONES, 6).shape == OPS["Reshape"](ONES, np.array(-1)).shape == (6,)
    for axis, keep_dims in itertools.product(([[0, 1]], [[0], [1]]), (False, True)):
        assert OPS["Sum"](ONES, axis, keep_dims=keep_dims).tolist() == ([[6]] if keep_dims else 6)
    assert OPS["Max"](np.arange(6).reshape(2, 3), np.array([[0]])).tolist() == [3, 4, 5]
    found = rg.vjp("Mean", {"input": ONES, "axis": [[1]]}, np.ones(2))["input"]
    np.testing.assert_allclose(found, np.full((2, 3), 1 / 3))


def test_one_hot() -> None:
    indices = np.array([[0, 2], [3, -1]])
    got = OPS["OneHot"](indices, 3, 5.0, 1.0)
    assert got.dtype == np.float32
    assert got.tolist() == [[[5, 1, 1], [1, 1, 5]], [[1, 1, 1], [1, 1, 1]]]
    np.testing.assert_array_equal(OPS["OneHot"](indices, 3, 5.0, 1.0, axis=0), np.moveaxis(got, -1, 0))


def test_where() -> None:
    mask = np.array([[True, False], [True, True]])
    assert OPS["Where"](mask).tolist() == [[0, 0], [1, 0], [1, 1]]
    assert OPS["Where"](np.array(True)).shape == (1, 0)
    assert OPS["Flatnonzero"](mask[0]).tolist() == [0]


def test_results_do_not_alias_inputs() -> None:
    x = np.ones((2, 3))
    for name, args in (("Identity", ()), ("Reshape", ([3, 2],)), ("Transpose", ([0, 1],)), ("Slice", ([0, 0], [2, 3]))):
        got = OPS[name](x, *args)
        assert not np.shares_memory(got, x)
        assert got.flags.c_contiguous
    assert not np.shares_memory(OPS["AddN"]([x]), x)
    assert not np.shares_memory(OPS["Sum"](x, ()), x)
    assert not np.shares_memory(OPS["Concat"]([x], 0), x)


# -- gradients at ties and kinks ---------------------------------------------------------------------------------------


def test_gradients_at_ties_and_kinks() -> None:
    ones = np.ones(3)
    assert rg.vjp("Abs", (np.array([-2.0, 0.0, 2.0]),), ones)[0].tolist() == [-1, 0, 1]
    assert rg.vjp("Relu", (np.array([-2.0, 0.0, 2.0]),), ones)[0].tolist() == [0, 0, 1]
    to_x, to_y = rg.vjp("Maximum", (np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0])), ones)
    assert (to_x.tolist(), to_y.tolist()) == ([0, 1, 1], [1, 0, 0])
    to_x, to_y = rg.vjp("Minimum", (np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0])), ones)
    assert (to_x.tolist(), to_y.tolist()) == ([1, 1, 0], [0, 0, 1])
    to_x, to_y = rg.vjp("DivNoNan", (ones, np.array([0.0, 1.0, 2.0])), ones)
    assert (to_x.tolist(), to_y.tolist()) == ([0, 1, 0.5], [0, -1, -0.25])
    tied = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    np.testing.assert_allclose(
        rg.vjp("Max", {"input": tied, "axis": 1}, np.ones(2))["input"], [[0, 0.5, 0.5], [1 / 3] * 3]
    )
    assert rg.vjp(lambda x, y: OPS["Pow"](x, y), (np.array([0.0, -2.0]), np.array([0.0, 2.0])), np.ones(2))[
        0
    ].tolist() == [0, -4]
    assert rg.vjp("Pow", (np.array([0.0, -2.0]), np.array([2.0, 2.0])), np.ones(2))[1].tolist() == [0, 0]
    with_nan = {"input": np.array([[1.0, np.nan], [1.0, 2.0]]), "axis": 1}
    np.testing.assert_array_equal(rg.vjp("Max", with_nan, np.ones(2))["input"], [[np.nan] * 2, [0, 1]])
    assert rg.vjp("StopGradient", (ones,), ones) == (None,)


def test_gradients_at_infinities_and_nan() -> None:
    """Where TensorFlow's formulas return an infinity or NaN, so do these."""
    same = np.testing.assert_array_equal
    same(OPS["ReluGrad"](np.array([INF, 2.0, NAN, 3.0]), np.array([-1.0, 1.0, 0.0, NAN])), [NAN, 2, NAN, 0])
    same(rg.vjp("Abs", (np.array([NAN, -INF]),), np.ones(2))[0], [NAN, -1])
    same(OPS["Sign"](np.array([NAN, -INF, -0.0])), [NAN, -1, 0])
    same(rg.vjp("FloorMod", (np.array([1.0, -1.0, 0.0, INF]), np.array([0.0, 0.0, 0.0, 2.0])), np.ones(4))[1], [
        -INF, INF, NAN, -INF,
    ])  # fmt: skip
    for name in ("Maximum", "Minimum"):
        x, y = np.array([NAN, 1.0, NAN]), np.array([1.0, NAN, NAN])
        same(OPS[name](x, y), [NAN] * 3)
        same(rg.vjp(name, (x, y), np.ones(3)), [[0] * 3, [1] * 3])
    same(rg.vjp("Pow", (np.array([-2.0, NAN]), np.array([0.5, 2.0])), np.ones(2))[1], [NAN, NAN])
    same(OPS["Softmax"](np.array([INF, 1.0, 2.0])), [NAN] * 3)


def test_16_bit_floats_are_not_rounded_before_division() -> None:
    half = np.float16
    small, large = np.array([1e-5], half), np.array([-710], half)
    assert OPS["FloorDiv"](small, large).tolist() == [0]  # the quotient is −0 before it is rounded down
    kind = NUMPY_DTYPE["bfloat16"]
    assert OPS["FloorDiv"](np.array([-55.25], kind), np.array([18.375], kind)).astype(float).tolist() == [-3]
    found = rg.vjp("RealDiv", (np.zeros(1, half), small), np.ones(1, half))
    assert found[1].tolist() == [0]  # not 0 · ∞


@pytest.mark.parametrize("name", REDUCTIONS)
def test_gradients_of_empty_arrays(name: str) -> None:
    for shape, axis in (((0, 3), 0), ((3, 0), 0), ((0,), 0), ((2, 0), (0, 1))):
        x = np.zeros(shape)
        made = OPS[name](x, axis)
        assert rg.vjp(name, {"input": x, "axis": axis}, np.ones(made.shape))["input"].shape == shape
    empty_result = {"Sum": 0, "Prod": 1, "Max": -np.inf, "Min": np.inf, "Mean": np.nan}[name]
    np.testing.assert_array_equal(OPS[name](np.zeros((2, 0)), 1), [empty_result] * 2)


def test_product_with_zeros() -> None:
    x = np.array([[2.0, 3.0, 4.0], [0.0, 3.0, 4.0], [0.0, 0.0, 4.0]])
    found = rg.vjp("Prod", {"input": x, "axis": 1}, np.ones(3))["input"]
    assert found.tolist() == [[12, 8, 6], [12, 0, 0], [0, 0, 0]]


def test_loss_functions_do_not_overflow() -> None:
    x = np.array([-1000.0, 0.0, 1000.0])
    assert OPS["Softplus"](x).tolist() == [0, math.log(2), 1000]
    assert OPS["Sigmoid"](x).tolist() == [0, 0.5, 1]
    assert OPS["Softmax"](x).tolist() == [0, 0, 1]
    assert OPS["LogSoftmax"](x).tolist() == [-2000, -1000, 0]
    assert OPS["SigmoidCrossEntropyWithLogits"](x, np.ones(3)).tolist() == [1000, math.log(2), 0]
    loss = OPS["SigmoidCrossEntropyWithLogits"](np.array([20.0, -20.0], np.float32), np.array([1.0, 0.0], np.float32))
    np.testing.assert_allclose(loss, [math.exp(-20)] * 2, rtol=1e-6)  # not 20 − 20
    for name in ("Softplus", "Sigmoid", "Softmax", "LogSoftmax"):
        assert np.isfinite(rg.vjp(name, (x,), np.ones(3))[0]).all()


# -- lists, numbers next to arrays, names ------------------------------------------------------------------------------


def test_lists_under_vjp() -> None:
    a, b = np.array([1.0, 2.0]), np.array([3.0])
    found = rg.vjp("Concat", {"values": [a, b], "axis": 0}, np.array([1.0, 2.0, 3.0]))
    assert [g.tolist() for g in found["values"]] == [[1, 2], [3]]
    assert found["axis"] is None
    twice = rg.vjp(lambda x: OPS["AddN"]([x, x, OPS["Neg"](x)]), (a,), np.ones(2))[0]
    assert twice.tolist() == [1, 1]
    mixed = rg.vjp(lambda x: OPS["Concat"]((x, [9.0], b), 0), (a,), np.arange(4.0))[0]
    assert mixed.tolist() == [0, 1]


def test_numbers_mixed_with_arrays() -> None:
    x = np.array([1.0, 4.0])
    assert OPS["Mul"](x, 2).tolist() == [2, 8]
    assert rg.vjp(lambda x: OPS["Pow"](x, 2), (x,), np.ones(2))[0].tolist() == [2, 8]
    assert rg.vjp(lambda x: OPS["Maximum"](x, [2, 2]), (x,), np.ones(2))[0].tolist() == [0, 1]
    assert OPS["Add"](np.ones(2, ml_dtypes.bfloat16), 1.5).dtype == ml_dtypes.bfloat16


def test_aliases() -> None:
    assert OPS["Subtract"] is OPS["Sub"]
    assert rg.dense_ops.multiply is rg.dense_ops.Mul
    assert "Subtract" in OPS
    assert "Subtract" not in list(OPS)
    assert [e["aliases"] for e in rg.catalog() if e["name"] == "Concat"] == [["ConcatV2"]]
    assert "Variable" not in OPS
    assert len(OPS) == len(list(OPS))


def test_list_arguments_in_errors() -> None:
    with pytest.raises(
        rg.errors.InvalidArgumentError, match=r"in Concat\(values=\[float64\[2,3\], float64\[3\]\], axis=0\)"
    ):
        OPS["Concat"]([ONES, ONES[0]], 0)


# -- repeated calls ----------------------------------------------------------------------------------------------------


def test_repeated_calls_use_their_own_data() -> None:
    numpy_dense._PREPARED.clear()
    x = np.arange(6.0).reshape(2, 3)
    for axis, keep in itertools.product((0, 1, 0), (False, True)):
        np.testing.assert_array_equal(OPS["Sum"](x, axis, keep_dims=keep), x.sum(axis, keepdims=keep))
        np.testing.assert_array_equal(OPS["Sum"](-x, axis, keep_dims=keep), -x.sum(axis, keepdims=keep))
    assert numpy_dense._PREPARED
    assert OPS["Add"](x, x).flags.c_contiguous
    turned = np.asfortranarray(x)
    got = OPS["Add"](turned, turned)
    np.testing.assert_array_equal(got, 2 * x)
    assert got.flags.c_contiguous
    for values in ([x, x], [x], [-x, x]):
        np.testing.assert_array_equal(OPS["Concat"](values, 0), np.concatenate(values))
    for word in ("a", 3):
        array = np.array([word], object)
        if word == 3:
            with pytest.raises(rg.errors.InvalidArgumentError, match="object array with an item of type int"):
                OPS["Identity"](array)
        else:
            OPS["Identity"](array)
    with pytest.raises(rg.errors.InvalidArgumentError, match="division by zero"):
        [OPS["Div"](np.array([1]), np.array([n])) for n in (1, 1, 0)]


def test_empty_one_hot_needs_no_memory() -> None:
    on, off = np.float32(1), np.float32(0)
    tracemalloc.start()
    try:
        for axis, shape in ((-1, (0, 3, 10_000_000)), (0, (10_000_000, 0, 3))):
            indices = np.zeros((0, 3), np.int32)
            result = rg.dense_ops.OneHot(indices, 10_000_000, on, off, axis=axis)
            assert (result.shape, result.dtype) == (shape, np.float32)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
