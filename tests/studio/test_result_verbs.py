"""Verbs that show results: windows, heat maps, rows and their sources; and the results of every example."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studio_client import PAGES, StudioClient, client, counter_page, ends

from golden_cases import FOLDER
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import Block, Page
from rowgrad.graph.page import End
from rowgrad.studio.value_input import value_of_cells

__all__ = ["client"]
EXAMPLES = json.loads((FOLDER / "blocks_examples.json").read_text())
NUMBERED = [
    pytest.param(example, next(PAGES.glob(f"{k:02}_*.json")), id=f"{k}-{example['op']}")
    for k, example in enumerate(EXAMPLES, 1)
]


def read_result(client: StudioClient, name: str, end: End) -> np.ndarray[Any, Any]:
    """Return a result, assembled from its windows."""
    arguments = {"name": name, "block": end.block, "pin": end.pin, "rows": [0, 99], "columns": [0, 99]}
    window = client.call("window", arguments, **({} if end.index is None else {"entry": end.index}))
    assert window["stale"] is False
    info = window["info"]
    assert len(info["shape"]) <= 2
    cells = [cell for row in window["cells"] for cell in row]
    found: np.ndarray[Any, Any] = value_of_cells(cells, info["dtype"], info["shape"])
    return found


@pytest.mark.parametrize(("example", "path"), NUMBERED)
def test_examples_match_the_recorded_results(client: StudioClient, example: dict[str, Any], path: Path) -> None:
    name = client.copy_example(path.stem)
    if "int_thresh" in name:
        with pytest.raises(InvalidArgumentError, match="thresh must be float32") as caught:
            client.call("run", name=name)
        assert caught.value.argument == "thresh"
        assert caught.value.name
        return
    steps = example.get("runs", 1)
    client.call("run", name=name, **({"mode": "steps", "steps": steps} if steps > 1 else {"mode": "once"}))
    client.wait_for(name, lambda s: s["phase"] in ("done", "paused"))
    session = client.studio.runs.session_of(name)
    assert session is not None
    fetched = {n: End.parse(n) for s in session.graph.sessions.values() for n in s.names or []}
    expected = {k: (k, v) for k, v in example["outputs"].items()}
    for k, (label, value) in enumerate(example.get("derived_gradients", {}).items()):
        expected[label] = (f"grads.grad_outputs[{k}]", value)
    assert expected
    for label, (pin, entry) in expected.items():
        end = next(e for n, e in fetched.items() if n in (pin, f"op.{pin}") or n.rpartition(".")[0] == pin)
        got = read_result(client, name, end)
        wanted = np.array(entry["values"], object if entry["dtype"] == "string" else entry["dtype"])
        assert list(got.shape) == entry["shape"]
        if wanted.dtype.kind == "f":
            tolerance = example.get("tolerance_used", 0.0)
            np.testing.assert_allclose(got, wanted.reshape(got.shape), rtol=1e-6, atol=tolerance, err_msg=label)
        else:
            assert got.tolist() == wanted.reshape(got.shape).tolist(), label


def matrices(name: str = "shown") -> Page:
    array = np.arange(24, dtype=np.int64).reshape(2, 3, 4) + 2**53
    rows = {"indices": [3, 0, 1], "segment_ids": [0, 0, 2]}
    return Page(
        name,
        [
            Block("cube", "Const", {"val": array}),
            Block("list", "InputList", wires={"outputlist": ends("cube.output", "table.output")}),
            Block("table", "Const", {"val": np.arange(8.0).reshape(4, 2)}),
            Block("sums", "SparseSegmentSum", rows, {"data": ends("table.output")}),
            Block("unused", "Square", wires={"x": ends("table.output")}),
            Block("s", "ClientSession", wires={"fetch_outputs": ends("list.output", "sums.output")}),
        ],
    )


def test_windows_of_results_and_list_entries(client: StudioClient) -> None:
    client.save_page(matrices())
    client.call("run", name="shown")
    assert client.cells("shown", "cube", "output", at=[1])[2][3] == "9007199254741015"
    assert client.cells("shown", "cube", "output")[0][0] == str(2**53)
    assert client.cells("shown", "list", "output", entry=1)[3] == ["6.0", "7.0"]
    state = client.call("state", name="shown")
    assert [r["info"]["text"] for r in state["results"]["list"]["output"]] == ["int64[2,3,4]", "float64[4,2]"]


def test_heat_maps_and_row_traces(client: StudioClient) -> None:
    client.save_page(matrices())
    client.call("run", name="shown")
    response = client.call("map", name="shown", block="sums", pin="output", most=2)
    assert (response["rows"], response["columns"], response["step"], response["low"], response["high"]) == (
        3,
        2,
        [2, 1],
        0.0,
        8.0,
    )
    assert response["cells"] == [[6.0, 8.0], [2.0, 3.0]]
    found = client.call("trace", name="shown", block="sums")
    assert found == {
        "outputs": ["output"],
        "inputs": ["data"],
        "pairs": [[0, 3], [0, 0], [2, 1]],
        "total": 3,
        "cut": False,
    }


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("window", {"name": "nobody", "block": "sums", "pin": "output"}, "there is no page 'nobody'"),
        ("window", {"name": "fresh", "block": "sums", "pin": "output"}, "name must be a page that has been run"),
        ("window", {"name": "shown", "block": "sum", "pin": "output"}, "block must be a block of the page"),
        (
            "window",
            {"name": "shown", "block": "sums", "pin": "x"},
            "pin must be an output of sums, which has output; got 'x'",
        ),
        ("window", {"name": "shown", "block": "sums"}, "pin must be a string"),
        ("window", {"name": "shown", "block": "unused", "pin": "y"}, "no run has computed unused.y"),
        ("window", {"name": "shown", "block": "list", "pin": "output"}, "entry must be an integer"),
        (
            "window",
            {"name": "shown", "block": "list", "pin": "output", "entry": 2},
            r"entry must be in \[0, 2\); got 2",
        ),
        ("window", {"name": "shown", "block": "sums", "pin": "output", "entry": 0}, "entry must be left out"),
        (
            "window",
            {"name": "shown", "block": "cube", "pin": "output", "at": [2]},
            r"at\[0\] must be in \[0, 2\); got 2",
        ),
        ("window", {"name": "shown", "block": "cube", "pin": "output", "at": [0, 0]}, "at must be 1 indices"),
        (
            "map",
            {"name": "shown", "block": "sums", "pin": "output", "most": 5000},
            "most must be an integer from 1 to 1024",
        ),
        ("map", {"name": "shown", "block": "nothing", "pin": "output"}, "map: block must be"),
        ("trace", {"name": "shown", "block": "nothing"}, "trace: block must be"),
        ("trace", {"name": "shown", "block": "cube"}, "no record of which rows"),
        ("trace", {"name": "fresh", "block": "sums"}, "name must be a page that has been run"),
        ("trend", {"name": "shown", "since": -1}, "since must be an integer from 0"),
        ("trend", {"name": "nobody"}, "there is no page 'nobody'"),
        ("watch", {"name": "nobody", "series": []}, "there is no page 'nobody'"),
    ],
)
def test_invalid_requests_raise(client: StudioClient, verb: str, arguments: dict[str, Any], message: str) -> None:
    client.save_page(matrices())
    client.save_page(matrices("fresh"))
    client.call("run", name="shown")
    with pytest.raises(InvalidArgumentError, match=message):
        client.call(verb, {"rows": [0, 1], "columns": [0, 1], **arguments})


def test_an_edit_marks_results_as_stale(client: StudioClient) -> None:
    page = matrices()
    client.save_page(page)
    client.call("run", name="shown")
    page["table"].values["val"] = np.ones((4, 2))
    client.save_page(page)

    def stale(block: str, **more: Any) -> bool:
        arguments = {"name": "shown", "block": block, "pin": "output", "rows": [0, 1], "columns": [0, 1]}
        return bool(client.call("window", arguments, **more)["stale"])

    assert [stale("cube"), stale("table"), stale("sums")] == [False, True, True]
    client.call("run", name="shown")
    assert [stale("cube"), stale("table"), stale("sums")] == [False, False, False]


def test_results_can_be_read_during_a_run(client: StudioClient) -> None:
    client.save_page(counter_page())
    client.call("run", name="counting", mode="flat")
    client.wait_for("counting", lambda s: s["run"] > 0)
    observed = [float(client.cells("counting", "more", "output_ref")[0][0])]
    end = time.monotonic() + 120  # only a failure waits this long
    while len(set(observed)) < 5 and time.monotonic() < end:
        observed.append(float(client.cells("counting", "more", "output_ref")[0][0]))
    assert observed == sorted(observed)
    assert len(set(observed)) == 5
