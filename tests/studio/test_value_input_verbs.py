"""Verbs about values, as a window's editors call them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studio_without_runs import FilesStudio

from rowgrad.errors import InvalidArgumentError
from rowgrad.studio import verbs


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FilesStudio:
    monkeypatch.setattr(verbs, "_VERB_MODULES", ("value_verbs",))
    return FilesStudio(tmp_path)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("{{1,2},{3,4}}", ""),
        ("{9007199254740993}", "int64"),
        ("{{{1,2}},{{3,4}},{{5,6}}}", "int32"),
        ("{0.1234567891234,1.0,nan,inf}", ""),
        ("{true,false}", ""),
        ("3", ""),
        ('{"a b","c\\n"}', "string"),
        ("{1+2j,-0.5j}", "complex64"),
        ("1.5", "float32"),
        ("{}", "float32"),
    ],
)
def test_the_cells_of_a_value_round_trip(studio: FilesStudio, text: str, dtype: str) -> None:
    typed = studio.call("parse", {"text": text, "dtype": dtype})
    response = studio.call("describe", {"value": typed["value"], "most": 2000, "characters": 2000})
    back = studio.call("cells", {"dtype": dtype, "shape": response["info"]["shape"], "cells": response["cells"]})
    assert back["value"] == typed["value"]
    assert response["weak"] == (dtype == "")


def test_cells_are_sent_only_for_small_values(studio: FilesStudio) -> None:
    value = studio.pool.write_value(np.zeros(2001, np.float32))
    assert studio.call("describe", {"value": value, "most": 2000})["cells"] is None
    assert studio.call("describe", {"value": [1, 2]})["cells"] is None
    assert studio.call("describe", {"value": [1, 2], "most": 2})["cells"] == ["1", "2"]


def test_a_longer_text_can_be_requested(studio: FilesStudio) -> None:
    value = studio.pool.write_value(np.arange(200, dtype=np.int32))
    assert studio.call("describe", {"value": value})["text"].endswith("…")
    assert studio.call("describe", {"value": value, "characters": 2000})["text"].endswith("199}")


def test_many_bracketed_rows_do_not_exceed_the_nesting_limit(studio: FilesStudio) -> None:
    text = "[" + ",".join(f"[{k},1.5]" for k in range(900)) + "]"
    assert studio.call("parse", {"text": text})["info"]["text"] == "float32[900,2]"
    with pytest.raises(InvalidArgumentError, match="more than 32 brackets inside one another"):
        studio.call("parse", {"text": "[" * 33 + "1" + "]" * 33})


def test_entries_of_a_sparse_matrix_are_listed(studio: FilesStudio) -> None:
    entries = [[0, 2, "1.5"], [3, 1, "-2.0"], [999, 0, "3.0"]]
    parts = studio.call("sparse_cells", {"dtype": "float32", "shape": [1000, 3], "entries": entries})
    response = studio.call("sparse_list", parts | {"entries": [0, 10]})
    assert response["entries"] == entries
    assert (response["total"], response["of"], response["info"]["text"]) == (3, [1000, 3], "float32[1000,3]")
    assert studio.call("sparse_list", parts | {"entries": [1, 2]})["entries"] == entries[1:2]


@pytest.mark.parametrize(
    ("change", "place"),
    [({"entries": [0, 20_000]}, "entries"), ({"dense_shape": [2]}, "dense_shape"), ({"values": [1, 2, 3]}, "indices")],
)
def test_invalid_sparse_matrices_are_rejected(studio: FilesStudio, change: dict[str, Any], place: str) -> None:
    parts: dict[str, Any] = {
        "indices": studio.pool.write_value(np.zeros((20_000, 2), np.int64)),
        "values": studio.pool.write_value(np.ones(20_000, np.float32)),
        "dense_shape": [1, 1],
        "entries": [0, 1],
    }
    with pytest.raises(InvalidArgumentError, match=place):
        studio.call("sparse_list", parts | change)
