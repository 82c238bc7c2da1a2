"""Conv2D, MaxPool, SparseToDense and their gradients compared with what TensorFlow answered."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from rowgrad._catalog.spec import CATALOG
from rowgrad.raw_ops import OPS

_RECORDED = np.load(Path(__file__).parent / "golden" / "images.npz")
CASES: list[dict[str, Any]] = json.loads(_RECORDED["cases"].tobytes())
# Sums of products differ by the order of additions; everything else has the same bits.
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-12}


def array(case: int, name: str) -> Any:
    return _RECORDED[f"{case}/{name}"]


def call(number: int) -> Any:
    case = CASES[number]
    return OPS[case["op"]](**{name: array(number, name) for name in case["inputs"]}, **case["attrs"])


def cases(error: bool) -> list[Any]:
    return [pytest.param(k, id=f"{k}-{c['op']}") for k, c in enumerate(CASES) if bool(c["error"]) is error]


@pytest.mark.parametrize("number", cases(error=False))
def test_results_are_those_of_tensorflow(number: int) -> None:
    got, expected = call(number), array(number, "output")
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    if CASES[number]["op"].startswith("Conv2D"):
        scale = max(float(np.abs(expected).max(initial=0.0)), 1.0)
        np.testing.assert_allclose(got / scale, expected / scale, rtol=0, atol=TOLERANCE[got.dtype])
    else:
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("number", cases(error=True))
def test_errors_are_those_of_tensorflow(number: int) -> None:
    with pytest.raises(rg.errors.OpError) as caught:
        call(number)
    assert caught.value.message == CASES[number]["error"]


def test_every_op_was_recorded() -> None:
    counts = Counter(case["op"] for case in CASES)
    family = {op.name for op in CATALOG.values() if op.category == "Images" and op.tensorflow}
    assert set(counts) == {*family, "SparseToDense"}
    assert min(counts.values()) >= 18


IMAGE = np.zeros((1, 4, 4, 2), np.float32)
HUGE = (1 << 31) - 1
FILTER = np.zeros((2, 2, 2, 3), np.float32)


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "message"),
    [
        ("Conv2D", (IMAGE[0], FILTER), {}, r"input must have 4 dimensions, got shape \[4,4,2\]"),
        ("Conv2D", (IMAGE, FILTER[0]), {}, r"filter must have 4 dimensions"),
        ("Conv2D", (IMAGE, FILTER[:, :, :1]), {}, "filter must have 2 input channels, as the images have; got 1"),
        ("Conv2D", (IMAGE, FILTER), {"strides": [1, 2, 2]}, r"strides must be \[1, height, width, 1\]"),
        ("Conv2D", (IMAGE, FILTER), {"strides": [2, 1, 1, 1]}, r"strides must be \[1, height, width, 1\]"),
        ("Conv2D", (IMAGE, FILTER), {"strides": [1, 0, 1, 1]}, r"strides of 1 or more; got \[1,0,1,1\]"),
        ("Conv2D", (IMAGE, FILTER), {"dilations": [1, -1, 1, 1]}, "dilations of 1 or more"),
        ("Conv2D", (IMAGE, FILTER), {"padding": "EXPLICIT"}, "padding must be one of 'SAME', 'VALID'; got 'EXPLICIT'"),
        ("Conv2D", (IMAGE, FILTER), {"data_format": "NCHW"}, "data_format must be one of 'NHWC'; got 'NCHW'"),
        ("Conv2DBackpropInput", ([1, 4, 4], FILTER, IMAGE), {}, "input_sizes must have length 4, got 3"),
        ("Conv2DBackpropInput", ([1, 4, -4, 2], FILTER, IMAGE), {}, "got -4"),
        ("Conv2DBackpropInput", ([1, 4, 4, 2], FILTER, IMAGE), {}, r"out_backprop must have shape \[1,3,3,3\]"),
        ("Conv2DBackpropFilter", (IMAGE, [2, 2, 2, 3], IMAGE), {}, r"out_backprop must have shape \[1,3,3,3\]"),
        ("MaxPool", (IMAGE,), {"ksize": [1, 0, 1, 1]}, r"ksize must be .* sizes of 1 or more"),
        ("MaxPool", (IMAGE,), {"ksize": [1, 1, 1, 2]}, r"ksize must be \[1, height, width, 1\]"),
        ("MaxPoolGrad", (IMAGE, IMAGE, IMAGE[:, :1]), {}, r"grad must have shape \[1,4,4,2\], got \[1,1,4,2\]"),
    ],
)  # fmt: skip
def test_invalid_calls_raise(op: str, inputs: tuple[Any, ...], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(rg.errors.OpError, match=message):
        OPS[op](*inputs, **attrs)


def test_windows_larger_than_the_image_have_no_result() -> None:
    assert OPS["MaxPool"](IMAGE, ksize=[1, 5, 1, 1]).shape == (1, 0, 4, 2)
    with pytest.raises(rg.errors.OpError, match=r"would be negative: -1 \[input_size: 4, effective_filter_size: 6"):
        OPS["MaxPool"](IMAGE, ksize=[1, 6, 1, 1])
    assert OPS["Conv2D"](IMAGE, np.zeros((5, 5, 2, 3), np.float32)).shape == (1, 0, 0, 3)
    dy = np.zeros((1, 0, 0, 3), np.float32)
    assert not OPS["Conv2DBackpropInput"]([1, 4, 4, 2], np.ones((5, 5, 2, 3), np.float32), dy).any()
    assert not OPS["Conv2DBackpropFilter"](IMAGE, [5, 5, 2, 3], dy).any()


def test_the_gradient_of_dense_values_goes_to_what_was_written() -> None:
    indices, values = np.array([[1], [3], [1]]), np.array([1.0, 2.0, 3.0])
    y = np.array([10.0, 20.0, 30.0, 40.0])
    call = lambda v, d: OPS["SparseToDense"](indices, [4], v, d, validate_indices=False)  # noqa: E731
    assert call(values, np.float64(7)).tolist() == [7.0, 3.0, 7.0, 2.0]
    d_values, d_default = rg.vjp(call, (values, np.float64(7)), y)
    assert d_values.tolist() == [0.0, 40.0, 20.0]
    assert d_default == 40.0
    one = lambda v, d: OPS["SparseToDense"](np.array([0, 2]), [4], v, d)  # noqa: E731
    d_value, d_default = rg.vjp(one, (np.float64(1), np.float64(7)), y)
    assert (d_value, d_default) == (40.0, 60.0)


def test_positions_outside_of_the_image_cost_nothing() -> None:
    """Windows of any size, stride and dilation: what they have in the padding is neither stored nor computed."""
    rng = np.random.default_rng(5)
    image = rng.standard_normal((2, 5, 4, 3)).astype(np.float32)
    wide = rng.standard_normal((301, 201, 3, 2)).astype(np.float32)
    got = OPS["Conv2D"](image, wide, padding="SAME")
    small = wide[150 - 4 : 150 + 5, 100 - 3 : 100 + 4]  # positions that the image has in some window
    np.testing.assert_allclose(got, OPS["Conv2D"](image, small, padding="SAME"), rtol=1e-5, atol=1e-4)
    dy = rng.standard_normal(got.shape).astype(np.float32)
    back = OPS["Conv2DBackpropFilter"](image, wide.shape, dy, padding="SAME")
    assert back.shape == wide.shape
    inner = back[150 - 4 : 150 + 5, 100 - 3 : 100 + 4]
    np.testing.assert_allclose(
        inner, OPS["Conv2DBackpropFilter"](image, small.shape, dy, padding="SAME"), rtol=1e-5, atol=1e-4
    )
    assert np.count_nonzero(back) == np.count_nonzero(inner)
    for options in ({"strides": [1, HUGE, HUGE, 1]}, {"dilations": [1, HUGE, HUGE, 1]}):
        assert OPS["Conv2D"](image, small, padding="SAME", **options).shape[0] == 2
    pooled = OPS["MaxPool"](image, ksize=[1, HUGE, HUGE, 1], strides=[1, HUGE, HUGE, 1], padding="SAME")
    assert np.array_equal(pooled, image.max(axis=(1, 2), keepdims=True))
    grad = OPS["MaxPoolGrad"](image, pooled, np.ones_like(pooled), ksize=[1, HUGE, HUGE, 1], strides=[1, HUGE, HUGE, 1],
                              padding="SAME")  # fmt: skip
    assert np.array_equal(grad, (image == pooled).astype(np.float32))


def test_windows_that_do_not_fit_into_memory_raise() -> None:
    image = np.zeros((1, 3000, 3000, 1), np.float32)
    for call in (
        lambda: OPS["Conv2D"](image, np.zeros((3000, 3000, 1, 1), np.float32), padding="SAME"),
        lambda: OPS["MaxPool"](image, ksize=[1, 3000, 3000, 1], strides=[1, 1, 1, 1], padding="SAME"),
    ):
        with pytest.raises(rg.errors.ResourceExhaustedError, match="OOM"):
            call()
