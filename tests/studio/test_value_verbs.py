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
from studio_client import StudioClient, client

from rowgrad._catalog.spec import ALL_DTYPES, QUANTIZED
from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import save_arrays
from rowgrad.studio import value_input

__all__ = ["client"]
GRID = {"rows": [0, 1], "columns": [0, 1]}


def value(client: StudioClient, response: dict[str, Any]) -> Any:
    return client.studio.pool.read_value(response["value"], "value")


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
def test_without_a_dtype_values_are_weak(client: StudioClient, text: str, expected: Any) -> None:
    response = client.call("parse", text=text)
    found = value(client, response)
    assert found == expected
    assert type(found) is type(expected)
    assert json.dumps(found, default=str) == json.dumps(expected, default=str)  # 3 is not 3.0, and True not 1
    assert response["weak"] is True
    assert value(client, client.call("parse", text=response["text"])) == expected
    described = client.call("describe", value=response["value"])
    assert described == {k: response[k] for k in ("text", "info", "weak")} | {"cells": None}  # cells were not requested


def test_nan_without_a_dtype_is_weak(client: StudioClient) -> None:
    response = client.call("parse", text="{nan, 1}")
    assert np.isnan(value(client, response)[0])
    assert (response["info"]["text"], response["text"]) == ("float32[2]", "{nan,1.0}")


def test_the_suffix_f_means_float32(client: StudioClient) -> None:
    response = client.call("parse", text="{1.5f, 2}")
    assert response["value"] == {"dtype": "float32", "shape": [2], "data": [1.5, 2.0]}
    assert (response["text"], response["weak"]) == ("{1.5f,2.0f}", False)


def test_long_lists_become_arrays(client: StudioClient) -> None:
    rows = "\n".join("\t".join(str(r + c / 10) for c in range(50)) for r in range(40))
    response = client.call("parse", text=rows)
    assert response["info"]["text"] == "float32[40,50]"
    assert "file" in response["value"]
    assert value(client, response)[39, 49] == np.float32(39 + 49 / 10)
    assert len(response["text"]) == 200


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_values_of_every_dtype_round_trip(client: StudioClient, dtype: str) -> None:
    response = client.call("parse", text="{{1, 0}, {0, 1}}", dtype=dtype)
    found = value(client, response)
    assert found.dtype == NUMPY_DTYPE[dtype]
    assert response["info"] == {
        "text": f"{dtype}[2,2]",
        "kind": "tensor",
        "dtype": dtype,
        "shape": [2, 2],
        "ref": False,
    }
    window = client.call("window", value=response["value"], rows=[0, 2], columns=[0, 2])["cells"]
    flat = [cell for row in window for cell in row]
    again = value(client, client.call("cells", dtype=dtype, shape=[2, 2], cells=flat))
    assert again.tolist() == found.tolist()
    entries = [[1, 1, flat[3]], [0, 0, flat[0]]]
    parts = client.call("sparse_cells", dtype=dtype, shape=[2, 3], entries=entries)
    assert parts["indices"]["data"] == [[0, 0], [1, 1]]
    grid = client.call("sparse", parts, rows=[0, 2], columns=[0, 3])
    assert grid["cells"] == [[flat[0], None, None], [None, flat[3], None]]
    assert grid["info"]["text"] == f"{dtype}[2,3]"


def test_large_integers_keep_all_digits(client: StudioClient) -> None:
    for dtype in ("", "int64", "uint64"):
        response = client.call("parse", text="{9007199254740993, 1}", dtype=dtype)
        shown = client.call("window", value=response["value"], rows=[0, 2], columns=[0, 1])
        assert shown["cells"] == [["9007199254740993"], ["1"]]
    response = client.call("cells", dtype="uint64", shape=[1], cells=["18446744073709551615"])
    assert response["value"]["data"] == ["18446744073709551615"]
    assert client.call("describe", value=response["value"])["text"] == "{18446744073709551615}"


def test_a_scalar_fills_a_shape_and_other_values_must_fit_it(client: StudioClient) -> None:
    assert value(client, client.call("parse", text="0.5", shape=[2, 2])) == [[0.5, 0.5], [0.5, 0.5]]
    assert value(client, client.call("parse", text="{1,2,3,4}", dtype="int8", shape=[2, 2])).tolist() == [
        [1, 2],
        [3, 4],
    ]
    assert client.call("parse", text="{}", dtype="float32", shape=[0, 3])["info"]["text"] == "float32[0,3]"


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
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
def test_invalid_values_raise_with_the_place(
    client: StudioClient, verb: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        client.call(verb, arguments)


def upload(client: StudioClient, name: str, body: bytes, **more: str) -> dict[str, Any]:
    """Upload a file, and return its arrays by name."""
    response = client.call("upload", {"name": name, **more}, body)["arrays"]
    found = {entry["name"]: value(client, entry) for entry in response}
    for entry in response:
        assert entry["info"]["shape"] == list(found[entry["name"]].shape)
    return found


def npy(array: Any) -> bytes:
    made = io.BytesIO()
    np.lib.format.write_array(made, array, allow_pickle=True)
    return made.getvalue()


def test_npy_files_are_read(client: StudioClient) -> None:
    for array in (
        np.arange(6, dtype=">i8").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(7, np.uint8),
        np.zeros((0, 3), np.float32),
        np.array([["a", "bcd"]]),
    ):
        found = upload(client, "a.npy", npy(array))["a"]
        assert found.shape == array.shape
        assert found.tolist() == array.tolist()
    bits = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    assert upload(client, "dir/b.npy", npy(bits))["b"].dtype == bits.dtype
    page_with_array = np.random.default_rng(1).normal(size=(300, 300))
    response = client.call("upload", {"name": "large.npy"}, npy(page_with_array))["arrays"][0]["value"]
    assert response.keys() == {"dtype", "shape", "file"}


def test_npz_files_are_read(client: StudioClient, tmp_path: Path) -> None:
    arrays = {
        "i": np.array([2**62, -5]),
        "b": np.array([[1.5]], ml_dtypes.bfloat16),
        "s": np.array(["a", "é"], object),
        "n": np.array([b"x\0", "y"], object),
        **{q: np.array([1, 2], NUMPY_DTYPE[q][0]).view(NUMPY_DTYPE[q]) for q in QUANTIZED},
    }
    save_arrays(tmp_path / "all.npz", arrays)
    found = upload(client, "all.npz", (tmp_path / "all.npz").read_bytes())
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        if name == "n":
            assert found[name].tolist() == [b"x\0", b"y"]
        else:
            assert (found[name].dtype, found[name].tolist()) == (array.dtype, array.tolist())
    packed = io.BytesIO()
    np.savez_compressed(packed, x=np.zeros(10_000))
    assert upload(client, "z.npz", packed.getvalue())["x"].shape == (10_000,)


def test_csv_and_tsv_tables_are_read(client: StudioClient) -> None:
    found = upload(client, "t.csv", b"\xef\xbb\xbfid,size\r\n1,2.5\r\n3,-4e1\r\n")["t"]
    assert (found.dtype, found.tolist()) == (np.float32, [[1.0, 2.5], [3.0, -40.0]])
    found = upload(client, "t.csv", b"1,2\n3,9007199254740993\n")["t"]
    assert (found.dtype, found.tolist()) == (np.int64, [[1, 2], [3, 9007199254740993]])
    assert upload(client, "t.tsv", b"a b\tc,d\n\te\n")["t"].tolist() == [["a b", "c,d"], ["", "e"]]
    assert upload(client, "t.csv", b'"x, y",z\n"q""r",s\n')["t"].tolist() == [["x, y", "z"], ['q"r', "s"]]
    assert upload(client, "t.csv", b"n\n1\n2\n")["t"].tolist() == [1, 2]
    assert upload(client, "t.csv", b"1,2\n", dtype="float64")["t"].dtype == np.float64
    assert upload(client, "t.csv", b"1;2\n3;4\n")["t"].tolist() == [[1, 2], [3, 4]]


def test_dimensions_after_a_0_are_preserved(client: StudioClient) -> None:
    for shape in ([0, 3], [2, 0, 3], [0]):
        for verb, arguments in (("parse", {"text": "{}"}), ("cells", {"dtype": "", "cells": []})):
            found = client.call(verb, arguments | {"shape": shape})
            assert found["info"]["shape"] == shape
            assert client.call("describe", {"value": found["value"]})["info"]["shape"] == shape


def test_long_lists_reject_numbers_outside_the_float32_range(client: StudioClient) -> None:
    with pytest.raises(InvalidArgumentError, match=r"text: 1e\+39 at element 2000 is too large for float32"):
        client.call("parse", {"text": "{" + "1.5," * 2000 + "1e39}"})


def huge_header() -> bytes:
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)})
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "body", "message"),
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
def test_invalid_files_are_rejected(client: StudioClient, name: str, body: bytes, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        client.call("upload", {"name": name}, body)


def test_files_that_unpack_to_too_much_are_rejected(client: StudioClient, monkeypatch: pytest.MonkeyPatch) -> None:
    made = io.BytesIO()
    np.savez_compressed(made, a=np.zeros(1000), b=np.zeros(1000))
    assert len(made.getvalue()) < 2000
    monkeypatch.setattr("rowgrad.studio.value_input.MOST_BYTES", 16_000)
    with pytest.raises(InvalidArgumentError, match="unpack to more than 16000 bytes"):
        client.call("upload", {"name": "a.npz"}, made.getvalue())
    monkeypatch.setattr("rowgrad.studio.value_input.MOST_BYTES", 17_000)
    assert upload(client, "a.npz", made.getvalue()).keys() == {"a", "b"}
    with pytest.raises(InvalidArgumentError, match=r"t\.csv: it has 17001 bytes; at most 17000 are allowed"):
        client.call("upload", {"name": "t.csv"}, b"1" * 17_001)


def archive(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w", method) as packed:
        warnings.simplefilter("ignore")  # about duplicate names
        for name, body in members:
            packed.writestr(name, body)
    return made.getvalue()


def test_archives_are_bounded_before_they_are_unpacked(client: StudioClient, monkeypatch: pytest.MonkeyPatch) -> None:
    one = npy(np.zeros(1))
    bomb = archive([("a.npy", bytes(300 << 20))])
    assert len(bomb) < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError, match="unpack to more than 268435456 bytes"):
            client.call("upload", {"name": "a.npz"}, bomb)
        with pytest.raises(InvalidArgumentError, match="it has more than 1000 members"):
            client.call("upload", {"name": "a.npz"}, archive([(f"{k}.txt", b"") for k in range(1001)]))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(InvalidArgumentError, match=r"'a\.npy': two members have this name"):
        client.call("upload", {"name": "a.npz"}, archive([("a.npy", one), ("a.npy", npy(np.ones(1)))]))
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with pytest.raises(InvalidArgumentError, match=f"unsupported compression method {method}; NumPy uses 0 and 8"):
            client.call("upload", {"name": "a.npz"}, archive([("a.npy", one)], method))
    monkeypatch.setattr("rowgrad.studio.value_input.MOST_CELLS", 3)
    with pytest.raises(InvalidArgumentError, match=r"it has about 4 cells; the limit is 3; save it as a \.npy file"):
        client.call("upload", {"name": "t.csv"}, b"1,2\n3,4\n")


def test_files_are_unpacked_one_at_a_time(client: StudioClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory limit of one file holds for all of them."""
    seen = []
    monkeypatch.setattr(
        "rowgrad.studio.value_verbs.arrays_of", lambda *_: seen.append(value_input.unpacking.locked()) or {}
    )
    client.call("upload", {"name": "a.npy"}, npy(np.zeros(1)))
    assert seen == [True]
