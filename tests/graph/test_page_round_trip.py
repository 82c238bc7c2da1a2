"""The values of a page survive saving and loading to the bit, as text and in files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from page_samples import array_of, load_page, page_of, same, through_file

from rowgrad._runtime.arrays import NUMPY_DTYPE, Array
from rowgrad.graph.io import dumps, save
from rowgrad.graph.page import PageError

NAN, INF = math.nan, math.inf


def round_trip(value: Any) -> Any:
    return load_page(dumps(page_of(value)))["c"].values["val"]


def encoded(value: Any) -> Any:
    return json.loads(dumps(page_of(value)))["blocks"][0]["values"]["val"]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (5,), (2, 3), (700, 3)], ids=str)
@pytest.mark.parametrize("dtype", NUMPY_DTYPE)
def test_every_dtype_round_trips_to_the_bit(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    for seed in range(3):
        array = array_of(dtype, shape, seed)
        assert same(round_trip(array), array)
        assert same(through_file(array, tmp_path / "page.json"), array)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_special_values_are_readable(dtype: str) -> None:
    array = np.array([0.0, -0.0, 1.1, NAN, INF, -INF, 1e-5], dtype=NUMPY_DTYPE[dtype])
    assert same(round_trip(array), array)
    elements = encoded(array)["data"]
    parts = [x[0] for x in elements] if dtype.startswith("complex") else elements
    assert parts == [0.0, -0.0, 1.1, "NaN", "Infinity", "-Infinity", 1e-5]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_finite_16_bit_value_has_a_decimal_text(dtype: str) -> None:
    array = np.arange(65536, dtype=np.uint16).view(NUMPY_DTYPE[dtype])
    array = array[np.isfinite(array.astype(np.float32))]
    assert "data" in encoded(array)
    assert same(round_trip(array), array)


def test_bits_that_decimal_text_cannot_express_are_hex() -> None:
    odd = np.array([0x7FC00001, 0xFFC00000, 0x7F800001, 0x3F800000], dtype=np.uint32).view(np.float32)
    assert encoded(odd) == {"dtype": "float32", "shape": [4], "hex": "0100c07f0000c0ff0100807f0000803f"}
    assert same(round_trip(odd), odd)


def test_integers_a_browser_would_round_are_strings() -> None:
    for dtype in ("int64", "uint64"):
        info = np.iinfo(dtype)
        array = np.array([info.min, 0, 2**53, 2**53 + 1, info.max], dtype=dtype)
        assert same(round_trip(array), array)
        assert encoded(array)["data"][2:] == [2**53, str(2**53 + 1), str(info.max)]
    assert encoded(2**53 + 1) == {"int": "9007199254740993"}


PLAIN = [
    0, -3, 2**53, 2**53 + 1, -(2**200), True, False, 0.0, -0.0, 1.0, 1e300, NAN, INF, -INF, "", "NaN", "ünï\n\u2028",
    b"", b"\xff\x00", 1.5 - 2j, complex(NAN, -INF), [], [[]], [1, [2.5, "a"], b"x"], [np.float32([1.1]), np.int8(3)],
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_preserve_their_type(value: Any, tmp_path: Path) -> None:
    wanted = [np.asarray(i) if isinstance(i, np.generic) else i for i in value] if isinstance(value, list) else value
    assert same(round_trip(value), wanted)
    assert same(through_file(value, tmp_path / "p"), wanted)


def test_a_number_can_be_tagged_as_a_float() -> None:
    text = dumps(page_of(3.0)).replace("3.0", '{"float": 3}')
    assert same(load_page(text)["c"].values["val"], 3.0)


@settings(max_examples=300, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from(["f2", "f4", "f8", "c8", "i8", "u8", "i1", "?", ">f4", ">i8"]), hnp.array_shapes(min_side=0)
    )
)
def test_any_array_round_trips(array: Array) -> None:
    assert same(round_trip(array), array.astype(array.dtype.newbyteorder("=")))


STRINGS = st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.binary())
VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), STRINGS, st.complex_numbers()), st.lists, max_leaves=8
)


@settings(max_examples=200, deadline=None)
@given(VALUES, st.lists(STRINGS, max_size=5))
def test_any_value_round_trips(value: Any, strings: list[str | bytes]) -> None:
    array = np.empty(len(strings), dtype=object)
    array[:] = strings
    assert same(round_trip(value), value)
    assert same(round_trip(array), array)


def test_arrays_in_other_layouts_and_dtypes_are_normalized() -> None:
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert same(round_trip(grid.T), grid.T.copy())
    assert same(round_trip(grid[:, ::2]), grid[:, ::2].copy())
    assert same(round_trip(grid.astype(">f4")), grid)
    assert same(round_trip(np.array(["a", "bé"])), np.array(["a", "bé"], dtype=object))
    assert same(round_trip(np.array(["a", "bé"], dtype=np.dtypes.StringDType())), np.array(["a", "bé"], dtype=object))
    assert same(round_trip(np.array([b"a"])), np.array([b"a"], dtype=object))
    assert same(round_trip(np.float32(1.1)), np.array(1.1, dtype=np.float32))
    assert same(round_trip(np.zeros((10**12, 0))), np.zeros((10**12, 0)))
    assert same(round_trip(np.array([0, 1, 2], dtype=np.uint8).view(bool)), np.array([False, True, True]))


@pytest.mark.parametrize(
    "value",
    [None, object(), {"a": 1}, np.array([object()]), np.array(["2020"], "M8[Y]"), np.ma.masked_array([1], [True]),
     "\ud800", np.array(["\ud800"], dtype=object), 10**1000, np.zeros(2, "f2,f4"), [None]],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_unsupported_values_raise_with_their_place(value: Any, tmp_path: Path) -> None:
    with pytest.raises(PageError) as caught:
        save(page_of(value), tmp_path / "p.json")
    assert caught.value.place.startswith("blocks[0].values.val")
    assert not list(tmp_path.iterdir())
