"""Values that are typed, pasted, entered in grids or uploaded: nothing is lost, and errors name the place."""

from __future__ import annotations

import io
import json
import tracemalloc
import warnings
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from studio_client import Asking, asking

from rowgrad._catalog.spec import ALL_DTYPES, QUANTIZED
from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import save_arrays
from rowgrad.studio import value_input

__all__ = ["asking"]
GRID = {"rows": [0, 1], "columns": [0, 1]}


def value(asking: Asking, response: dict[str, Any]) -> Any:
    return asking.studio.pool.read_value(response["value"], "value")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", 3),
        ("3.0", 3.0),
        ("1e3", 1000.0),
        ("{1,2}", [1, 2]),
        ("{1,2.5}", [1.0, 2.5]),
        ("{{1,2},{3,4}};", [[1, 2], [3, 4]]),
        ("true", True),
        ("{true, FALSE}", [True, False]),
        ('"a b"', "a b"),
        ('{"a", "}"}', ["a", "}"]),
        ("9007199254740993", 9007199254740993),
        ("1+2j", 1 + 2j),
        ("inf", float("inf")),
        ("[[1, 2], [3, 4]]", [[1, 2], [3, 4]]),
        ("[[1. 2.]\n [3. 4.]]", [[1.0, 2.0], [3.0, 4.0]]),
        ("(1, 2, 3)", [1, 2, 3]),
        ('["a]", \'b"c\']', ["a]", 'b"c']),
        ("[true, false]", [True, False]),
        ("[]", []),
        ("1\t2\n3\t4\n", [[1, 2], [3, 4]]),
        ("1,2\r\n3,4.5", [[1.0, 2.0], [3.0, 4.5]]),
        ("1;2\n3;4", [[1, 2], [3, 4]]),
        ("1 2 3", [1, 2, 3]),
        ("1, 2, 3", [1, 2, 3]),
        ("1\n2\n3", [1, 2, 3]),
        ("-1 +2\n3 4", [[-1, 2], [3, 4]]),
    ],
)
def test_without_a_dtype_values_are_weak(asking: Asking, text: str, expected: Any) -> None:
    response = asking.ask("parse", text=text)
    found = value(asking, response)
    assert found == expected
    assert type(found) is type(expected)
    assert json.dumps(found, default=str) == json.dumps(expected, default=str)  # 3 is not 3.0, and True not 1
    assert response["weak"] is True
    assert value(asking, asking.ask("parse", text=response["text"])) == expected
    described = asking.ask("describe", value=response["value"])
    assert described == {k: response[k] for k in ("text", "info", "weak")} | {"cells": None}  # which was not requested


def test_nan_is_weak_too(asking: Asking) -> None:
    response = asking.ask("parse", text="{nan, 1}")
    assert np.isnan(value(asking, response)[0])
    assert (response["info"]["text"], response["text"]) == ("float32[2]", "{nan,1.0}")


def test_an_f_says_float32(asking: Asking) -> None:
    response = asking.ask("parse", text="{1.5f, 2}")
    assert response["value"] == {"dtype": "float32", "shape": [2], "data": [1.5, 2.0]}
    assert (response["text"], response["weak"]) == ("{1.5f,2.0f}", False)


def test_long_lists_become_arrays(asking: Asking) -> None:
    rows = "\n".join("\t".join(str(r + c / 10) for c in range(50)) for r in range(40))
    response = asking.ask("parse", text=rows)
    assert response["info"]["text"] == "float32[40,50]"
    assert "file" in response["value"]
    assert value(asking, response)[39, 49] == np.float32(39 + 49 / 10)
    assert len(response["text"]) == 200


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_every_dtype(asking: Asking, dtype: str) -> None:
    response = asking.ask("parse", text="{{1, 0}, {0, 1}}", dtype=dtype)
    found = value(asking, response)
    assert found.dtype == NUMPY_DTYPE[dtype]
    assert response["info"] == {
        "text": f"{dtype}[2,2]",
        "kind": "tensor",
        "dtype": dtype,
        "shape": [2, 2],
        "ref": False,
    }
    window = asking.ask("window", value=response["value"], rows=[0, 2], columns=[0, 2])["cells"]
    flat = [cell for row in window for cell in row]
    again = value(asking, asking.ask("cells", dtype=dtype, shape=[2, 2], cells=flat))
    assert again.tolist() == found.tolist()
    entries = [[1, 1, flat[3]], [0, 0, flat[0]]]
    parts = asking.ask("sparse_cells", dtype=dtype, shape=[2, 3], entries=entries)
    assert parts["indices"]["data"] == [[0, 0], [1, 1]]
    grid = asking.ask("sparse", parts, rows=[0, 2], columns=[0, 3])
    assert grid["cells"] == [[flat[0], None, None], [None, flat[3], None]]
    assert grid["info"]["text"] == f"{dtype}[2,3]"


def test_large_integers_survive(asking: Asking) -> None:
    for dtype in ("", "int64", "uint64"):
        response = asking.ask("parse", text="{9007199254740993, 1}", dtype=dtype)
        shown = asking.ask("window", value=response["value"], rows=[0, 2], columns=[0, 1])
        assert shown["cells"] == [["9007199254740993"], ["1"]]
    response = asking.ask("cells", dtype="uint64", shape=[1], cells=["18446744073709551615"])
    assert response["value"]["data"] == ["18446744073709551615"]
    assert asking.ask("describe", value=response["value"])["text"] == "{18446744073709551615}"


def test_a_shape_is_filled_or_kept(asking: Asking) -> None:
    assert value(asking, asking.ask("parse", text="0.5", shape=[2, 2])) == [[0.5, 0.5], [0.5, 0.5]]
    assert value(asking, asking.ask("parse", text="{1,2,3,4}", dtype="int8", shape=[2, 2])).tolist() == [[1, 2], [3, 4]]
    assert asking.ask("parse", text="{}", dtype="float32", shape=[0, 3])["info"]["text"] == "float32[0,3]"


@pytest.mark.parametrize(
    ("verb", "given", "words"),
    [
        ("parse", {}, "parse: text must be a string; got 'nothing'"),
        ("parse", {"text": "{1,x}"}, "text: 'x' at character 4 is not a valid int32"),
        ("parse", {"text": ""}, "text: there is no value"),
        ("parse", {"text": "{1,{2}}"}, "text: braces beside values"),
        ("parse", {"text": "1,2\n3"}, "text: row 1 has 1 cells where row 0 has 2"),
        ("parse", {"text": "1\t2\n3\t"}, "text: no value in row 1, cell 1"),
        ("parse", {"text": "1\t2\n3\tx"}, "text: 'x' in row 1, cell 1 is not a valid int32"),
        ("parse", {"text": "300", "dtype": "int8"}, r"text: '300' at character 1 is not in \[-128, 127\]"),
        ("parse", {"text": "1", "dtype": "int7"}, "dtype: 'int7' is not a dtype"),
        ("parse", {"text": "{1,2}", "shape": [3]}, r"shape \[3\] has 3 elements; the text has 2"),
        ("parse", {"text": "1", "shape": [10**5, 10**5]}, "shape must be of at most 1000000 elements"),
        ("parse", {"text": "1", "shape": [-1]}, r"shape\[0\] must be an integer >= 0; got -1"),
        ("parse", {"text": "[" * 99}, "text: more than 32 brackets"),
        ("parse", {"text": '["a'}, "text: a quote is not closed"),
        (
            "cells",
            {"dtype": "int32", "shape": [2, 2], "cells": ["1", "2", "3", "y"]},
            r"'y' in cell \[1, 1\] is not a valid int32",
        ),
        ("parse", {"text": "[1,2)"}, r"text: '\)' closes a bracket of another kind"),
        ("parse", {"text": "([1,2),3]", "dtype": "int32"}, "closes a bracket of another kind"),
        ("parse", {"text": "(1,2}", "dtype": "float32"}, "text: write brackets or braces, not both: '2}'"),
        ("parse", {"text": "[1,{2}]"}, "write brackets or braces, not both"),
        ("cells", {"dtype": "int32", "shape": [2], "cells": ["1", " "]}, r"cells: no value in cell \[1\]"),
        (
            "cells",
            {"dtype": "int32", "shape": [2], "cells": ["1"]},
            r"cells must be 2 texts, as shape \[2\] requires; got 1",
        ),
        ("cells", {"dtype": "int32", "shape": [1], "cells": [1]}, r"cells\[0\] must be a string; got 1"),
        ("cells", {"dtype": "x", "shape": [1], "cells": ["1"]}, "dtype: 'x' is not a dtype"),
        ("describe", {}, "describe: value must be a value; got 'nothing'"),
        ("describe", {"value": {"dtype": "int8", "shape": [1], "data": [300]}}, r"value.data\[0\]"),
        ("window", {"value": [1], "rows": [0], "columns": [0, 1]}, r"rows must be \[first, beyond\]"),
        ("window", {"value": [1], "rows": [2, 1], "columns": [0, 1]}, r"rows must be \[first, beyond\]"),
        ("window", {"value": [1], "rows": [0, 1]}, "columns must be a list; got 'nothing'"),
        ("sparse_cells", {"dtype": "", "shape": [2], "entries": []}, r"shape must be \[rows, columns\]"),
        (
            "sparse_cells",
            {"dtype": "", "shape": [2, 2], "entries": [[0, 2, "1"]]},
            r"entries\[0\]\[1\] must be an integer in \[0, 2\); got 2",
        ),
        (
            "sparse_cells",
            {"dtype": "", "shape": [2, 2], "entries": [[0, 1, "1"], [0, 1, "2"]]},
            r"entries\[1\] must be at an unused position; entries\[0\]",
        ),
        (
            "sparse_cells",
            {"dtype": "int8", "shape": [2, 2], "entries": [[0, 1, "x"]]},
            "'x' at row 0, column 1 is not a valid int8",
        ),
        ("sparse_cells", {"dtype": "q", "shape": [2, 2], "entries": []}, "dtype must be allowed are"),
        (
            "sparse",
            {"indices": [[0, 5]], "values": [1], "dense_shape": [2, 2], **GRID},
            r"indices\[0\] must be inside dense_shape \[2, 2\]; got \[0, 5\]",
        ),
        (
            "sparse",
            {"indices": [[0, 0]], "values": [1, 2], "dense_shape": [2, 2], **GRID},
            r"indices must be of shape \[2,2\]",
        ),
        ("sparse", {"indices": [[0]], "values": [1], "dense_shape": [2], **GRID}, "dense_shape must be two sizes"),
    ],
)
def test_refusals(asking: Asking, verb: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        asking.ask(verb, given)


def sent(asking: Asking, name: str, body: bytes, **more: str) -> dict[str, Any]:
    """The arrays of a file by name, as the pool has them."""
    response = asking.ask("upload", {"name": name, **more}, body)["arrays"]
    found = {entry["name"]: value(asking, entry) for entry in response}
    for entry in response:
        assert entry["info"]["shape"] == list(found[entry["name"]].shape)
    return found


def npy(array: Any) -> bytes:
    made = io.BytesIO()
    np.lib.format.write_array(made, array, allow_pickle=True)
    return made.getvalue()


def test_npy_files(asking: Asking) -> None:
    for array in (
        np.arange(6, dtype=">i8").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(7, np.uint8),
        np.zeros((0, 3), np.float32),
        np.array([["a", "bcd"]]),
    ):
        found = sent(asking, "a.npy", npy(array))["a"]
        assert found.shape == array.shape
        assert found.tolist() == array.tolist()
    bits = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    assert sent(asking, "dir/b.npy", npy(bits))["b"].dtype == bits.dtype
    large = np.random.default_rng(1).normal(size=(300, 300))
    response = asking.ask("upload", {"name": "large.npy"}, npy(large))["arrays"][0]["value"]
    assert response.keys() == {"dtype", "shape", "file"}


def test_npz_files(asking: Asking, tmp_path: Path) -> None:
    arrays = {
        "i": np.array([2**62, -5]),
        "b": np.array([[1.5]], ml_dtypes.bfloat16),
        "s": np.array(["a", "é"], object),
        "n": np.array([b"x\0", "y"], object),
        **{q: np.array([1, 2], NUMPY_DTYPE[q][0]).view(NUMPY_DTYPE[q]) for q in QUANTIZED},
    }
    save_arrays(tmp_path / "all.npz", arrays)
    found = sent(asking, "all.npz", (tmp_path / "all.npz").read_bytes())
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        if name == "n":
            assert found[name].tolist() == [b"x\0", b"y"]
        else:
            assert (found[name].dtype, found[name].tolist()) == (array.dtype, array.tolist())
    packed = io.BytesIO()
    np.savez_compressed(packed, x=np.zeros(10_000))
    assert sent(asking, "z.npz", packed.getvalue())["x"].shape == (10_000,)


def test_tables(asking: Asking) -> None:
    found = sent(asking, "t.csv", b"\xef\xbb\xbfid,size\r\n1,2.5\r\n3,-4e1\r\n")["t"]
    assert (found.dtype, found.tolist()) == (np.float32, [[1.0, 2.5], [3.0, -40.0]])
    found = sent(asking, "t.csv", b"1,2\n3,9007199254740993\n")["t"]
    assert (found.dtype, found.tolist()) == (np.int64, [[1, 2], [3, 9007199254740993]])
    assert sent(asking, "t.tsv", b"a b\tc,d\n\te\n")["t"].tolist() == [["a b", "c,d"], ["", "e"]]
    assert sent(asking, "t.csv", b'"x, y",z\n"q""r",s\n')["t"].tolist() == [["x, y", "z"], ['q"r', "s"]]
    assert sent(asking, "t.csv", b"n\n1\n2\n")["t"].tolist() == [1, 2]
    assert sent(asking, "t.csv", b"1,2\n", dtype="float64")["t"].dtype == np.float64
    assert sent(asking, "t.csv", b"1;2\n3;4\n")["t"].tolist() == [[1, 2], [3, 4]]


def test_sizes_behind_a_size_of_0_are_kept(asking: Asking) -> None:
    for shape in ([0, 3], [2, 0, 3], [0]):
        for verb, given in (("parse", {"text": "{}"}), ("cells", {"dtype": "", "cells": []})):
            found = asking.ask(verb, given | {"shape": shape})
            assert found["info"]["shape"] == shape
            assert asking.ask("describe", {"value": found["value"]})["info"]["shape"] == shape


def test_long_texts_hold_numbers_that_float32_reaches(asking: Asking) -> None:
    with pytest.raises(InvalidArgumentError, match=r"text: 1e\+39 at element 2000 is too large for float32"):
        asking.ask("parse", {"text": "{" + "1.5," * 2000 + "1e39}"})


def huge_header() -> bytes:
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)})
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("a.txt", b"1", "name must end in .npy, .npz, .csv, .tsv; got 'a.txt'"),
        ("a.npy", b"", "a.npy: this is not a .npy file"),
        ("a.npy", npy(np.array([{}], object)), "a.npy: it contains Python objects"),
        ("a.npy", npy(np.zeros(4))[:-1], "a.npy: its header declares 32 bytes, but the file has 31"),
        ("a.npy", huge_header(), "a.npy: its header declares 8796093022208 bytes, but the file has 0"),
        ("a.npy", npy(np.zeros(2, "M8[s]")), "a.npy: .*datetime64"),
        ("a.npz", b"PK", "a.npz: this is not an .npz file"),
        ("a.csv", b"", "a.csv: it has no cells"),
        ("a.csv", b"1,2\n3", "a.csv: row 1 has 1 cells where row 0 has 2"),
        ("a.csv", b"x,y\n1,2\n3,q", "a.csv: 'q' in row 2, cell 1 is not a valid int32"),
        ("a.csv", b"1,2\n3,", "a.csv: no value in row 1, cell 1"),
        ("a.csv", b"\xff\xfe", "a.csv: it is not UTF-8 text: byte 0"),
        ("a.csv", b"1,1e39\n2.5,1", r"a.csv: 1e\+39 in row 0, cell 1 is too large for float32"),
        ("a.csv", b"size\n1e400\n2", "a.csv: '1e400' in row 1, cell 0 is too large for float64"),
    ],
)
def test_files_that_are_rejected(asking: Asking, name: str, body: bytes, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        asking.ask("upload", {"name": name}, body)


def test_files_that_unpack_to_too_much_are_rejected(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    made = io.BytesIO()
    np.savez_compressed(made, a=np.zeros(1000), b=np.zeros(1000))
    assert len(made.getvalue()) < 2000
    monkeypatch.setattr("rowgrad.studio.value_input.MOST_BYTES", 16_000)
    with pytest.raises(InvalidArgumentError, match="unpack to more than 16000 bytes"):
        asking.ask("upload", {"name": "a.npz"}, made.getvalue())
    monkeypatch.setattr("rowgrad.studio.value_input.MOST_BYTES", 17_000)
    assert sent(asking, "a.npz", made.getvalue()).keys() == {"a", "b"}
    with pytest.raises(InvalidArgumentError, match=r"t\.csv: it has 17001 bytes; at most 17000 are allowed"):
        asking.ask("upload", {"name": "t.csv"}, b"1" * 17_001)


def archive(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w", method) as packed:
        warnings.simplefilter("ignore")  # about names that are there twice
        for name, body in members:
            packed.writestr(name, body)
    return made.getvalue()


def test_archives_are_bounded_before_they_are_unpacked(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    one = npy(np.zeros(1))
    bomb = archive([("a.npy", bytes(300 << 20))])
    assert len(bomb) < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError, match="unpack to more than 268435456 bytes"):
            asking.ask("upload", {"name": "a.npz"}, bomb)
        with pytest.raises(InvalidArgumentError, match="it has more than 1000 members"):
            asking.ask("upload", {"name": "a.npz"}, archive([(f"{k}.txt", b"") for k in range(1001)]))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(InvalidArgumentError, match=r"'a\.npy': two members have this name"):
        asking.ask("upload", {"name": "a.npz"}, archive([("a.npy", one), ("a.npy", npy(np.ones(1)))]))
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with pytest.raises(InvalidArgumentError, match=f"unsupported compression method {method}; NumPy uses 0 and 8"):
            asking.ask("upload", {"name": "a.npz"}, archive([("a.npy", one)], method))
    monkeypatch.setattr("rowgrad.studio.value_input.MOST_CELLS", 3)
    with pytest.raises(InvalidArgumentError, match=r"it has about 4 cells; the limit is 3; save it as a \.npy file"):
        asking.ask("upload", {"name": "t.csv"}, b"1,2\n3,4\n")


def test_files_are_unpacked_one_at_a_time(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the bound of one file is the bound of all."""
    seen = []
    monkeypatch.setattr(
        "rowgrad.studio.value_verbs.arrays_of", lambda *_: seen.append(value_input.unpacking.locked()) or {}
    )
    asking.ask("upload", {"name": "a.npy"}, npy(np.zeros(1)))
    assert seen == [True]
