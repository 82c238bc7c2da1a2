"""Parts of arrays as exact text: every rank, every dtype, and nothing out of range."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rowgrad._catalog.spec import ALL_DTYPES, COMPLEX, FLOATS, QUANTIZED
from rowgrad._runtime.arrays import NUMPY_DTYPE, Array
from rowgrad.errors import InvalidArgumentError
from rowgrad.studio.value_input import parse_value, value_of_cells
from rowgrad.studio.value_text import heat_of, literal_text, preview, short_text, window_of


def awkward_elements(dtype: str, count: int = 300) -> Array:
    """Return elements at the bounds of a dtype, and random bits."""
    rng = np.random.default_rng(ALL_DTYPES.index(dtype))
    if dtype == "string":
        texts: list[Any] = ["", " a", "a b", '"q"', "näh", "tab\t", b"\xff\x00", "x;", "{1}", "é" * 3, "line\n", "\\"]
        made = np.empty(count, dtype=object)
        made[:] = [texts[k % len(texts)] for k in range(count)]
        return made
    target = NUMPY_DTYPE[dtype]
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    bits = rng.integers(0, 256, count * target.itemsize, dtype=np.uint8).view(target)
    if dtype in FLOATS or dtype in COMPLEX:
        with np.errstate(invalid="ignore"):
            bits[np.isnan(bits)] = 1
        special = np.array([np.inf, -np.inf, 0.0, -0.0, 0.1, 1 / 3]).astype(target)
        bits[: len(special)] = special
    else:
        plain = bits.view(target[0]) if dtype in QUANTIZED else bits
        plain[:2] = np.iinfo(plain.dtype).min, np.iinfo(plain.dtype).max
    return bits


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_cell_texts_parse_back_to_the_same_bits(dtype: str) -> None:
    array = awkward_elements(dtype)
    window = json.loads(json.dumps(window_of(array, [], [0, 300], [0, 5])))
    assert window["info"]["text"] == f"{dtype}[300]"
    words = [cell for row in window["cells"] for cell in row]
    back = value_of_cells(words, dtype, [300])
    assert back.dtype == array.dtype
    if dtype == "string":
        assert back.tolist() == array.tolist()
    else:
        assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_literals_parse_back_to_the_same_bits(dtype: str) -> None:
    array = awkward_elements(dtype, 24).reshape(2, 3, 4)
    text = literal_text(array, 10_000)
    back = parse_value(text, dtype)
    assert back.shape == (2, 3, 4)
    assert back.tolist() == array.tolist()
    assert len(literal_text(array, 30)) <= 30
    assert len(preview(array)) <= 120


def test_floats_have_the_shortest_text() -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        array = np.array([0.1, 1.5, 3e-5, np.nan]).astype(NUMPY_DTYPE[dtype])
        cells = window_of(array, [], [0, 4], [0, 1])["cells"]
        assert [c[0] for c in cells] == ["0.1", "1.5", "3e-05", "nan"]
        assert window_of(array.astype(np.complex64), [], [0, 1], [0, 1])["cells"][0][0].endswith("+0.0j")


def test_windows_of_every_rank() -> None:
    array = np.arange(120).reshape(2, 3, 4, 5)
    cells = [[str(v) for v in row] for row in array[1, 2, 1:3, 2:5].tolist()]
    window = window_of(array, [1, 2], [1, 3], [2, 9])
    assert window["cells"] == cells
    assert (window["rows"], window["columns"], window["of"], window["at"]) == ([1, 3], [2, 5], [4, 5], [1, 2])
    assert window_of(array[0], [1], [3, 4], [0, 2])["cells"] == [["35", "36"]]
    assert window_of(array[0, 0], [], [3, 4], [0, 2])["cells"] == [["15", "16"]]
    assert window_of(array[0, 0, 0], [], [3, 9], [0, 2])["cells"] == [["3"], ["4"]]
    assert window_of(array[0, 0, 0, 0], [], [0, 9], [0, 9])["cells"] == [["0"]]
    assert window_of(array, [0, 0], [9, 12], [0, 2])["cells"] == []
    assert window_of(np.zeros((3, 0)), [], [0, 3], [0, 3])["cells"] == [[], [], []]
    assert window_of(array.T, [4, 3], [0, 1], [0, 1])["cells"] == [[str(array[0, 0, 3, 4])]]


def test_windows_out_of_range_or_too_large_raise() -> None:
    array = np.zeros((3, 200, 200))
    with pytest.raises(InvalidArgumentError, match=r"at must be 1 indices, as float64\[3,200,200\] requires; got \[\]"):
        window_of(array, [], [0, 1], [0, 1])
    with pytest.raises(InvalidArgumentError, match=r"at\[0\] must be in \[0, 3\); got 3"):
        window_of(array, [3], [0, 1], [0, 1])
    with pytest.raises(InvalidArgumentError, match="at most 10000 cells; got 101 x 100"):
        window_of(array, [0], [0, 101], [0, 100])
    assert len(window_of(array, [0], [0, 100], [0, 100])["cells"]) == 100


def test_texts_of_large_arrays_are_truncated() -> None:
    text = short_text(np.zeros((1000, 1000, 4), np.float32))
    assert len(text) == 200
    assert text.startswith("{{{0.0f,0.0f,0.0f,0.0f},{0.0f,")
    assert text.endswith("…")
    assert short_text([[1.5, 0.1], [2.0, 3.0]]) == "{{1.5,0.1},{2.0,3.0}}"
    assert short_text([]) == "{}"
    assert preview(np.arange(100)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 …"


def test_previews_have_all_elements_of_small_float_arrays() -> None:
    random = np.random.default_rng(0).standard_normal((8, 2)).astype(np.float32) * 1e-5
    text = preview(random)
    assert [row.split(", ") for row in text.split("; ")] == [[f"{x:.3g}" for x in row] for row in random.tolist()]
    assert preview(random[:2, :2]) == "; ".join(", ".join(f"{x:.6g}" for x in row) for row in random[:2, :2].tolist())
    assert preview(np.tile(random, (2, 1))).endswith("…")


def test_small_pictures_have_the_peaks_of_large_arrays() -> None:
    line = np.zeros(3000, np.float32)
    line[[7, 1203, 2999]] = 5, -6, 7
    cells = heat_of(line, [], 48, peaks=True)["cells"]
    assert len(cells) <= 48
    assert [one for (one,) in cells if one] == [5.0, -6.0, 7.0]
    line[1500] = np.inf
    assert heat_of(line, [], 48, peaks=True)["cells"].count([None]) == 2
    table = np.zeros((100, 90))
    table[[3, 57], [88, 11]] = -2, 3
    heat = heat_of(table, [], 40, peaks=True)
    found = np.array(heat["cells"])
    places = {(i // heat["step"][0], j // heat["step"][1]): value for i, j, value in ((3, 88, -2), (57, 11, 3))}
    assert {(int(i), int(j)): found[i, j] for i, j in np.argwhere(found)} == places
    assert heat_of(np.zeros((4, 1)), [], 40, peaks=True)["cells"] == [[0.0]] * 4


def test_heat_maps_sample_rows_and_skip_non_finite_numbers() -> None:
    array = np.arange(1000.0 * 6).reshape(1000, 6)
    array[0, 0], array[4, 1] = np.nan, np.inf
    heat = json.loads(json.dumps(heat_of(array, [], 256), allow_nan=False))
    assert (heat["rows"], heat["columns"], heat["step"]) == (1000, 6, [4, 1])
    assert len(heat["cells"]) == 250
    assert heat["cells"][0] == [None, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert heat["cells"][1][:2] == [24.0, None]
    assert (heat["low"], heat["high"]) == (1.0, 5999.0)
    assert heat_of(np.full((2, 2), np.nan), [], 4)["low"] is None
    assert heat_of(np.array([3 + 4j]), [], 4)["cells"] == [[5.0]]
    assert heat_of(awkward_elements("qint8")[:2], [], 4)["cells"] == [[-128.0], [127.0]]
    assert heat_of(awkward_elements("qint8")[:2], [], 4)["info"]["text"] == "qint8[2]"
    with pytest.raises(InvalidArgumentError, match="numbers; got string"):
        heat_of(awkward_elements("string"), [], 4)
