"""Every kind of invalid page text raises an error that names the place."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
from page_samples import basic, project

from rowgrad.graph.io import dumps, loads
from rowgrad.graph.page import Block, End, Note, Page, PageError, Project

NAN, INF = math.nan, math.inf


def load_error(text: str) -> PageError:
    with pytest.raises(PageError) as caught:
        loads(text)
    assert str(caught.value).startswith(caught.value.place + ": ")
    return caught.value


def changed(path: str, value: Any, tree: dict[str, Any]) -> str:
    """Return the tree's text with one entry set, or deleted for `...`; a value "@text" is inserted verbatim."""
    tree = copy.deepcopy(tree)
    *way, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    holder: Any = tree
    for key in way:
        holder = holder[key]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    if isinstance(value, str) and value.startswith("@"):
        return json.dumps(tree).replace(json.dumps(value), value[1:])
    return json.dumps(tree)


PAGE = json.loads(dumps(basic()))
PROJECT = json.loads(dumps(project()))
VAL = "blocks/0/values/val"
NAMED = "blocks[0].values.val"


def array(dtype: str, shape: list[Any], data: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data": data}


# Path of the changed entry in the basic page, its new value, the place and a part of the error message.
CASES: list[tuple[str, Any, str, str]] = [
    ("format", ..., "format", "missing"),
    ("format", "rowgrad-book", "format", "'rowgrad-page' or 'rowgrad-project'; got 'rowgrad-book'"),
    ("format", ["rowgrad-page"], "format", "got a list of 1"),
    ("version", 7, "version", "written by a newer rowgrad: version 7, this one reads up to 1"),
    ("version", 0, "version", "at least 1"),
    ("version", True, "version", "an integer; got true"),
    ("version", 1.0, "version", "an integer; got 1.0"),
    ("name", ..., "name", "missing"),
    ("name", None, "name", "a string; got null"),
    ("blocks", ..., "blocks", "missing"),
    ("blocks", {}, "blocks", "a list; got an object"),
    ("blcoks", [], "blcoks", "unknown field; did you mean 'blocks'?"),
    ("xyzzy", [], "xyzzy", "unknown field; known are format, version"),
    ("a b", [], '["a b"]', "unknown field"),
    ("notes/0/text", ..., "notes[0].text", "missing"),
    ("notes/0/at", [1], "notes[0].at", "[x, y]"),
    ("blocks/1", 3, "blocks[1]", "an object; got 3"),
    ("blocks/1", '@{"id": "b", "id": "c"}', "blocks[1]", "the key 'id' twice"),
    ("blocks/1/id", ..., "blocks[1].id", "missing"),
    ("blocks/1/id", "A", "blocks[1].id", "blocks[0] has the id 'A' already"),
    ("blocks/1/id", "", "blocks[1].id", "a name"),
    ("blocks/1/id", "b\n", "blocks[1].id", "a name"),
    ("blocks/1/id", '@"\\ud800"', "blocks[1].id", "surrogates"),
    ("blocks/1/op", 3, "blocks[1].op", "a string"),
    ("blocks/1/vlaues", {}, "blocks[1].vlaues", "did you mean 'values'?"),
    ("blocks/1/at", [0, "NaN"], "blocks[1].at[1]", "a number"),
    ("blocks/1/at", "@[0, NaN]", "blocks[1].at[1]", "NaN, which is not JSON"),
    ("blocks/1/at", "@[0, 1e999]", "blocks[1].at[1]", "beyond float64"),
    ("blocks/1/at", [0, 10**400], "blocks[1].at[1]", "beyond float64"),
    ("blocks/2/in", [], "blocks[2].in", "an object"),
    ("blocks/2/in/a", 3, "blocks[2].in.a", "a string"),
    ("blocks/2/in/a", "A", "blocks[2].in.a", "block.pin or block.pin[index]"),
    ("blocks/2/in/a", "A.output[-1]", "blocks[2].in.a", "block.pin or block.pin[index]"),
    ("blocks/2/in/a", f"A.output[{'9' * 5000}]", "blocks[2].in.a", "block.pin or block.pin[index]"),
    ("blocks/2/in/a", "B.output", "blocks[2].in.a", "there is no block 'B'; did you mean 'b'?"),
    ("blocks/2/in/a", ["A.output", "AA.output"], "blocks[2].in.a[1]", "there is no block 'AA'; did you mean 'A'?"),
    ("blocks/2/attrs", None, "blocks[2].attrs", "an object"),
    ("blocks/2/attrs/x", {"a": 1}, "blocks[2].attrs.x.a", "unknown field; known are int, float"),
    ("blocks/2/attrs/x", {"base64": ""}, "blocks[2].attrs.x.base64", "unknown field"),
    ("blocks/2/attrs/x", {}, "blocks[2].attrs.x", "one of the fields int, float; got none"),
    ("blocks/2/attrs/x", "@[[1e999]]", "blocks[2].attrs.x[0][0]", "beyond float64"),
    ("blocks/2/attrs/x", "@[Infinity]", "blocks[2].attrs.x[0]", 'write it as a string, "Infinity"'),
    ("blocks/2/attrs/x", "@" + "9" * 5000, "blocks[2].attrs.x", "an integer of 5000 characters"),
    ("blocks/2/attrs/x", "@" + "[" * 66 + "]" * 66, "blocks[2].attrs.x" + "[0]" * 64, "nested deeper than 64"),
    ("blocks/3/hidden", "a", "blocks[3].hidden", "a list"),
    ("blocks/3/hidden", ["a", 1], "blocks[3].hidden[1]", "a string"),
    (VAL, None, NAMED, "got null"),
    (VAL, {"int": "1.5"}, NAMED + ".int", "a string of digits"),
    (VAL, {"int": "9" * 5000}, NAMED + ".int", "a string of digits"),
    (VAL, {"float": "nan"}, NAMED + ".float", '"NaN"'),
    (VAL, {"complex": [1]}, NAMED + ".complex", "[real part, imaginary part]"),
    (VAL, {"base64": "a"}, NAMED + ".base64", "base64"),
    (VAL, {"itn": "1"}, NAMED + ".itn", "did you mean 'int'?"),
    (VAL, {"int": "1", "float": 1}, NAMED, "one of the fields"),
    (VAL, "@" + "[" * 66 + "]" * 66, NAMED + "[0]" * 64, "nested deeper than 64"),
    (VAL + "/dtype", "floot32", NAMED + ".dtype", "there is no dtype 'floot32'; did you mean 'float32'?"),
    (VAL + "/dtype", ..., NAMED + ".dtype", "missing"),
    (VAL + "/shape", [2, -1], NAMED + ".shape[1]", "at least 0"),
    (VAL + "/shape", [2, 2.0], NAMED + ".shape[1]", "an integer"),
    (VAL + "/shape", [2**31, 2**31], NAMED + ".shape", "too large to address"),
    (VAL + "/shape", [0, 2**62, 2**62], NAMED + ".shape", "too large to address"),
    (VAL + "/shape", [1] * 65, NAMED + ".shape", "at most 64 dimensions"),
    (VAL + "/shape", [2, 3], NAMED + ".data[0]", "a list of 3, as the shape says; got 2"),
    (VAL + "/shape", [2], NAMED + ".data[0]", "a number"),
    (VAL + "/file", "0" * 64 + ".npy", NAMED, "got data and file"),
    (VAL + "/data", ..., NAMED, "one of data, hex and file; got none"),
    (VAL, {"dtype": "int8", "shape": [], "file": "0" * 64 + ".npy"}, NAMED + ".file", "has no array files"),
    (VAL, {"dtype": "int8", "shape": [], "file": "../x.npy"}, NAMED + ".file", "without a folder"),
    (VAL, {"dtype": "int8", "shape": [], "file": "0" * 64 + ".npy\n"}, NAMED + ".file", "without a folder"),
    (VAL, {"dtype": "int8", "shape": [], "file": "0" * 64 + ".json"}, NAMED + ".file", "and .npy"),
    (VAL, {"dtype": "int8", "shape": [2], "hex": "01"}, NAMED + ".hex", "must be 4 digits"),
    (VAL, {"dtype": "int8", "shape": [2], "hex": "01 02"}, NAMED + ".hex", "must be 4 digits"),
    (VAL, {"dtype": "int8", "shape": [2], "hex": "0xff"}, NAMED + ".hex", "hexadecimal"),
    (VAL, {"dtype": "bool", "shape": [1], "hex": "02"}, NAMED + ".hex", "neither 0 nor 1"),
    (VAL, {"dtype": "string", "shape": [0], "hex": ""}, NAMED + ".hex", "not written as hex"),
    (VAL, array("float32", [2, 2], [[1, 2], [3]]), NAMED + ".data[1]", "a list of 2"),
    (VAL, array("float32", [2, 2], [[1, 2], [3, "x"]]), NAMED + ".data[1][1]", "a number"),
    (VAL, array("float32", [1], [True]), NAMED + ".data[0]", "a number"),
    (VAL, array("float32", [1], [1e39]), NAMED + ".data[0]", "in the range of float32; got 1e+39"),
    (VAL, array("float16", [1], [65520]), NAMED + ".data[0]", "in the range of float16"),
    (VAL, array("bfloat16", [], -1e300), NAMED + ".data", "in the range of bfloat16"),
    (VAL, array("float64", [1], [10**400]), NAMED + ".data[0]", "in the range of float64"),
    (VAL, array("int8", [2], [1, 128]), NAMED + ".data[1]", "in the range of int8, -128 to 127; got 128"),
    (VAL, array("uint64", [1], [str(2**64)]), NAMED + ".data[0]", "in the range of uint64"),
    (VAL, array("int64", [1], [1.0]), NAMED + ".data[0]", "an integer; got 1.0"),
    (VAL, array("int64", [1], [True]), NAMED + ".data[0]", "an integer; got true"),
    (VAL, array("int64", [1], ["1_0"]), NAMED + ".data[0]", "an integer"),
    (VAL, array("int64", [1], ["٣"]), NAMED + ".data[0]", "an integer"),
    (VAL, array("quint8", [1], [-1]), NAMED + ".data[0]", "in the range of quint8"),
    (VAL, array("bool", [1], [1]), NAMED + ".data[0]", "true or false"),
    (VAL, array("complex64", [1], [1.0]), NAMED + ".data[0]", "[real part, imaginary part]"),
    (VAL, array("complex64", [1], [[1, "x"]]), NAMED + ".data[0]", "a number"),
    (VAL, array("string", [2], ["a", 3]), NAMED + ".data[1]", "a string"),
    (VAL, array("string", [2], ["a", {"base64": "?"}]), NAMED + ".data[1]", "base64"),
    (VAL, array("string", [1], ["\ud800"]), NAMED + ".data[0]", "a string"),
    ("blocks/0/values/a b", None, 'blocks[0].values["a b"]', "got null"),
]


@pytest.mark.parametrize(("path", "value", "place", "message"), CASES)
def test_one_invalid_entry_raises_with_its_place(path: str, value: Any, place: str, message: str) -> None:
    error = load_error(changed(path, value, PAGE))
    assert error.place == place
    assert message in error.message


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("pages/1/name", "basic", "pages[1].name"),
        ("pages/1/blocks/2/id", 3, "pages[1].blocks[2].id"),
        ("pages/1/blocks/0/values/val/data/1/0", "x", "pages[1].blocks[0].values.val.data[1][0]"),
        ("pages/0/format", "rowgrad-page", "pages[0].format"),
        ("blocks", [], "blocks"),
        ("pages", ..., "pages"),
    ],
)
def test_one_invalid_entry_of_a_project_raises_with_its_place(path: str, value: Any, place: str) -> None:
    assert load_error(changed(path, value, PROJECT)).place == place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "line 1, column 1"),
        ("{\n 'a': 1}", "line 2, column 2"),
        ('{"a": 1}\n}', "line 2, column 1"),
        ('{"a": 01}', "line 1, column 8"),
        ("[" * 100_000, "line 1, column 201"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "line 1, column 206"),
        ("[]", "the whole text"),
        ("NaN", "the whole text"),
        ('{"a": 1, "a": 1}', "the whole text"),
        ("\ufeff{}", "line 1, column 1"),
    ],
    ids=range(10),
)
def test_invalid_json_raises_with_its_place(text: str, place: str) -> None:
    assert load_error(text).place == place


def test_a_newer_version_is_reported_before_its_new_fields() -> None:
    assert "newer rowgrad" in load_error(json.dumps(PAGE | {"version": 2, "colour": "red"})).message


BAD_PAGES: list[tuple[str, Page | Project]] = [
    ("blocks[1].id", Page("p", [Block("a", "X"), Block("a", "Y")])),
    ("blocks[0].id", Page("p", [Block("a b", "X")])),
    ("blocks[0].in.x", Page("p", [Block("a", "X", wires={"x": [End("b", "y")]})])),
    ("blocks[0].in.x", Page("p", [Block("a", "X", wires={"x": [End("a", "not a pin")]})])),
    ("blocks[0].attrs.f", Page("p", [Block("a", "X", attrs={"f": np.float32(1)})])),
    ("blocks[0].attrs.f[1]", Page("p", [Block("a", "X", attrs={"f": [1, b"x"]})])),
    ("blocks[0].at[1]", Page("p", [Block("a", "X", at=(0.0, NAN))])),
    ("notes[0].at[0]", Page("p", notes=[Note("", (INF, 0.0))])),
    ("pages[1].name", Project("all", [Page("p"), Page("p")])),
    ("pages[0].blocks[0].op", Project("all", [Page("p", [Block("a", 3)])])),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("place", "what"), BAD_PAGES, ids=[place for place, _ in BAD_PAGES])
def test_invalid_pages_are_not_written(place: str, what: Page | Project) -> None:
    with pytest.raises(PageError) as caught:
        dumps(what)
    assert caught.value.place == place
