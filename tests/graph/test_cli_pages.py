"""Pages on the command line: check, run, export, import."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enuspace_files import SAMPLES

from rowgrad._catalog.spec import CATALOG
from rowgrad.cli import main
from rowgrad.cli.terminal import Progress, clock, show_columns
from rowgrad.errors import make_error
from rowgrad.graph import Block, End, Page, Project, load, save
from signal_defaults import restored

Captured = pytest.CaptureFixture[str]
SUM, PRODUCT = (f"{block}.{CATALOG[op].outputs[0].name}" for block, op in (("sum", "Add"), ("half", "Mul")))


def wired(op: str, name: str, **ends: str) -> Block:
    return Block(name, op, wires={pin: [End.parse(end)] for pin, end in ends.items()})


def accumulator_page(name: str = "counting") -> Page:
    """Return a page with w ← w + x and half of w, and two sessions."""
    return Page(
        name,
        [
            wired("ClientSession", "grow", fetch_outputs="keep.output_ref"),
            Block("x", "Placeholder", attrs={"dtype": "float32", "shape": [2]}),
            Block("w", "Variable", {"initvalues": np.array([1.0, 2.0], np.float32)}),
            wired("Add", "sum", x="w.ref", y="x.output"),
            wired("Assign", "keep", ref="w.ref", value=SUM),
            Block("c", "Const", {"val": np.float32([0.5, 0.5])}),
            wired("Mul", "half", x="w.ref", y="c.output"),
            wired("ClientSession", "halve", fetch_outputs=PRODUCT),
        ],
    )


def random_walk_page() -> Page:
    """Return a page with w ← w + random numbers."""
    return Page(
        "walking",
        [
            Block("w", "Variable", {"initvalues": np.zeros(3, np.float32)}),
            Block("r", "RandomUniform", {"shape": np.array([3], np.int32)}, attrs={"dtype": "float32", "seed": 7}),
            wired("Add", "sum", x="w.ref", y="r.output"),
            wired("Assign", "keep", ref="w.ref", value=SUM),
            wired("ClientSession", "s", fetch_outputs="keep.output_ref"),
        ],
    )


def page_with_errors() -> Page:
    """Return a page with two errors, and a block downstream of one of them."""
    return Page(
        "broken",
        [
            Block("a", "Const", {"val": np.ones((2, 2), np.float32)}),
            Block("b", "Const", {"val": np.ones(3, np.float32)}),
            wired("Add", "sum", x="a.output", y="b.output"),
            Block("odd", "SparseSegmentMaen"),
            wired("ClientSession", "s", fetch_outputs=SUM),
        ],
    )


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(accumulator_page(), "page.json")
    save(random_walk_page(), "walking.json")
    save(page_with_errors(), "broken.json")
    save(Project("both", [accumulator_page("one"), accumulator_page("two"), Page("none", [])]), "project.json")


def run_json(args: list[str], capsys: Captured, status: int = 0) -> Any:
    """Run a command with --json, and return its output."""
    assert main([*args, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def values(document: dict[str, Any]) -> dict[str, Any]:
    return {name: result["data"] for name, result in document["results"].items()}


def run_failing(args: list[str], status: int, capsys: Captured) -> str:
    """Run a command that must fail, and return its one line on stderr."""
    assert main(args) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert shown.err.startswith(f"rowgrad {args[0]}: ")
    error = run_json(args, capsys, status)["error"]
    assert error["message"] in shown.err
    assert set(error) >= {"type", "message", "block", "argument"}
    return shown.err.strip()


# -- run ---------------------------------------------------------------------------------------------------------------


def test_sessions_run_in_the_pages_order_and_share_their_state(capsys: Captured) -> None:
    assert main(["run", "page.json", "--feed", "x={1,2}", "--steps", "3"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[:4] == ["keep.output_ref  float32[2]", "  [4. 8.]", f"{PRODUCT}  float32[2]", "  [2. 4.]"]
    assert lines[4].startswith("3 steps in ")
    assert shown.err == ""


def test_run_json_has_results_and_steps(capsys: Captured) -> None:
    document = run_json(["run", "page.json", "--feed", "x={1,2}"], capsys)
    assert document["page"] == "counting"
    assert document["steps"] == 1
    assert document["seconds"] > 0
    assert document["results"]["keep.output_ref"] == {"dtype": "float32", "shape": [2], "data": [2.0, 4.0]}


def test_run_one_session(capsys: Captured) -> None:
    document = run_json(["run", "page.json", "--session", "halve"], capsys)
    assert values(document) == {PRODUCT: [0.5, 1.0]}
    assert "there is no 'hlave'" in run_failing(["run", "page.json", "--session", "hlave"], 1, capsys)
    assert "name a ClientSession block" in run_failing(["run", "page.json", "--session", "sum"], 1, capsys)


def test_fetch_option(capsys: Captured) -> None:
    document = run_json(["run", "page.json", "--fetch", "w", "--fetch", "half"], capsys)
    assert values(document) == {"w.ref": [1.0, 2.0], PRODUCT: [0.5, 1.0]}
    after = ["run", "page.json", "--session", "grow", "--fetch", "w", "--feed", "x={1,1}", "--steps", "2"]
    assert values(run_json(after, capsys)) == {"keep.output_ref": [3.0, 4.0], "w.ref": [3.0, 4.0]}
    assert "did you mean 'half" in run_failing(["run", "page.json", "--fetch", "hlaf"], 1, capsys)
    assert "run it with --session grow" in run_failing(["run", "page.json", "--fetch", "grow"], 1, capsys)


def test_fetch_of_lists_sparse_tensors_and_operations(capsys: Captured) -> None:
    indices = np.array([[0, 1]], np.int64)
    blocks = [
        Block("v", "Variable", {"initvalues": np.float32(1)}),
        Block("set", "Assign", {"value": np.float32(5)}, {"ref": [End("v", "ref")]}),
        Block("do", "Operation", wires={"operation": [End("set", "output_ref")]}),
        Block("l", "InputList", wires={"outputlist": [End("v", "ref"), End("set", "output_ref")]}),
        Block("sp", "SparseTensor", {"indices": indices, "values": np.float32([2]), "dense_shape": np.array([3, 3])}),
        Block("f", "FeedType", {"initializer": 1.0}, {"input": [End("p", "output")]}),
        Block("p", "Placeholder", attrs={"dtype": "float32", "shape": []}),
    ]
    save(Page("kinds", blocks), "kinds.json")
    fetch = ["--fetch", "l", "--fetch", "sp.tensor", "--fetch", "sp", "--fetch", "l.output[1]"]
    found = values(run_json(["run", "kinds.json", *fetch], capsys))
    assert list(found) == [
        "l.output[0]", "l.output[1]", "sp.tensor.indices", "sp.tensor.values", "sp.tensor.dense_shape", "sp.indices",
        "sp.values", "sp.dense_shape",
    ]  # fmt: skip
    assert found["sp.tensor.values"] == [2.0]
    document = run_json(["run", "kinds.json", "--fetch", "do", "--fetch", "v", "--steps", "2"], capsys)
    assert values(document) == {"v.ref": 5.0}
    assert "takes a value or an operation; got feed" in run_failing(["run", "kinds.json", "--fetch", "f"], 1, capsys)
    assert "only placeholders can be fed" in run_failing(
        ["run", "kinds.json", "--fetch", "v", "--feed", "v=1"], 1, capsys
    )


def test_run_a_page_without_a_session(capsys: Captured) -> None:
    save(Page("still", [Block("a", "Const", {"val": np.array(["x", b"\xff"], object)})]), "still.json")
    for options in ([], ["--fetch", "a"]):
        assert main(["run", "still.json", *options]) == 0
        assert capsys.readouterr().out == "a.output  string[2]\n  ['x' b'\\xff']\n"
    save(Page("empty"), "empty.json")
    assert "no block of it has a value to compute" in run_failing(["run", "empty.json"], 1, capsys)


def test_without_a_session_everything_that_nothing_consumes_runs_with_its_feeds(capsys: Captured) -> None:
    blocks = [
        Block("x", "Placeholder", attrs={"dtype": "float32", "shape": [2]}),
        Block("feed", "FeedType", {"initializer": [1.0, 2.0]}, {"input": [End("x", "output")]}),
        Block("double", "Add", wires={"x": [End("x", "output")], "y": [End("x", "output")]}),
        Block("twice", "Add", wires={"x": [End("double", "z")], "y": [End("double", "z")]}),
        Block("one", "Const", {"val": 1}),
    ]
    save(Page("feeds", blocks), "feeds.json")
    assert values(run_json(["run", "feeds.json"], capsys)) == {"twice.z": [4.0, 8.0], "one.output": 1}
    assert values(run_json(["run", "feeds.json", "--feed", "x={3,4}"], capsys))["twice.z"] == [12.0, 16.0]


def test_a_page_without_a_session_changes_variables_only_on_request(capsys: Captured) -> None:
    blocks = [
        Block("v", "Variable", {"initvalues": [1.0]}),
        Block("more", "AssignAdd", {"value": [2.0]}, {"ref": [End("v", "ref")]}),
    ]
    save(Page("adds", blocks), "adds.json")
    error = run_failing(["run", "adds.json"], 1, capsys)
    assert "running all its blocks changes v; allow that with --change-variables" in error
    document = run_json(["run", "adds.json", "--change-variables", "--steps", "2"], capsys)
    assert values(document) == {"more.output_ref": [5.0]}


def test_large_results_are_abbreviated(capsys: Captured) -> None:
    blocks = [
        Block("cube", "Const", {"val": np.arange(20.0**3).reshape(20, 20, 20)}),
        Block("long", "Const", {"val": np.array("z" * 5000, object)}),
    ]
    save(Page("large", blocks), "large.json")
    assert main(["run", "large.json", "--fetch", "cube", "--fetch", "long"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cube.output  float64[20,20,20]"
    assert lines[7] == "long.output  string[]"
    assert max(map(len, lines)) <= 122


def test_nan_and_infinity_in_json_output(capsys: Captured) -> None:
    blocks = [
        Block("a", "Const", {"val": np.array([np.nan, np.inf, 1.5])}),
        Block("b", "Const", {"val": np.array([2**62, 3])}),
    ]
    save(Page("odd", blocks), "odd.json")
    document = run_json(["run", "odd.json", "--fetch", "a", "--fetch", "b"], capsys)
    assert values(document) == {"a.output": ["NaN", "Infinity", 1.5], "b.output": ["4611686018427387904", 3]}


def test_results_are_written_to_a_file(capsys: Captured) -> None:
    assert main(["run", "page.json", "--feed", "x={1,2}", "-o", "out.npz"]) == 0
    with np.load("out.npz") as found:
        assert {name: found[name].tolist() for name in found} == {"keep.output_ref": [2.0, 4.0], PRODUCT: [1.0, 2.0]}


def test_feeds_are_read_from_files(capsys: Captured) -> None:
    np.save("x.npy", np.array([10.0, 20.0]))
    assert values(run_json(["run", "page.json", "--feed", "x=x.npy"], capsys))["keep.output_ref"] == [11.0, 22.0]
    np.save("many.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    document = run_json(["run", "page.json", "--feed-batches", "x=many.npy"], capsys)
    assert document["steps"] == 3
    assert values(document)["keep.output_ref"] == [1.0 + 6, 2.0 + 9]
    document = run_json(["run", "page.json", "--feed-batches", "x=many.npy", "--steps", "2"], capsys)
    assert values(document)["keep.output_ref"] == [1.0 + 2, 2.0 + 4]


def test_a_feed_that_names_a_file_and_a_value_reads_the_file(capsys: Captured) -> None:
    with Path("{1,2}").open("wb") as file:
        np.save(file, np.array([5.0, 5.0]))
    assert values(run_json(["run", "page.json", "--feed", "x={1,2}"], capsys))["keep.output_ref"] == [6.0, 7.0]


def test_bfloat16_from_a_file(capsys: Captured) -> None:
    import ml_dtypes

    save(Page("b", [Block("x", "Placeholder", attrs={"dtype": "bfloat16", "shape": [2]})]), "b.json")
    np.save("x.npy", np.array([1.5, 2.5], ml_dtypes.bfloat16))
    document = run_json(["run", "b.json", "--fetch", "x", "--feed", "x=x.npy"], capsys)
    assert document["results"]["x.output"] == {"dtype": "bfloat16", "shape": [2], "data": [1.5, 2.5]}


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        ([], 1, "x is not fed, but sum needs it"),
        (["--feed", "x={1,2,3}"], 1, "must have shape [2]"),
        (["--feed", "x={1,two}"], 1, "rowgrad run: x: "),
        (["--feed", "x=missing.npy"], 3, "missing.npy: No such file"),
        (["--feed", "x=page.json"], 1, "page.json: not a .npy file"),
        (["--feed", "x=empty.npy"], 1, "empty.npy: not a .npy file"),
        (["--feed", "x=cut.npy"], 1, "cut.npy: not a .npy file"),
        (["--feed", "x=objects.npy"], 1, "objects.npy: not a .npy file"),
        (["--feed", "x=out.npz"], 1, "out.npz: not a .npy file"),
        (["--feed", "x"], 2, "--feed x: write name=FILE.npy"),
        (["--feed", "x=1", "--feed", "x=2"], 2, "x is fed twice"),
        (["--feed", "x=1", "--feed-batches", "x=many.npy"], 2, "x is fed twice"),
        (["--feed", "x={1,2}", "--feed", "x.output={3,4}"], 2, "x is fed twice"),
        (["--feed", "x={1,2}", "--feed-batches", "x.output=many.npy"], 2, "x is fed twice"),
        (["--feed", "x=truth_in_shape.npy"], 1, "truth_in_shape.npy: not a .npy file"),
        (["--feed", "x=open_bracket.npy"], 1, "open_bracket.npy: not a .npy file"),
        (["--feed", "x=beyond_int64.npy"], 1, "beyond_int64.npy: not a .npy file"),
        (["--feed-batches", "x=beyond_int64.npy"], 1, "beyond_int64.npy: not a .npy file"),
        (["--feed", "x=overflowing.npy"], 1, "overflowing.npy: not a .npy file"),
        (["--feed", "y={1,2}"], 1, "there is no 'y'"),
        (["--feed", "sum={1,2}"], 1, "only placeholders can be fed, and sum is not one"),
        (["--feed-batches", "x=many.npy", "--steps", "4"], 2, "--steps 4: x has only 3 batches"),
        (["--feed-batches", "x=many.npy", "--feed-batches", "z=two.npy"], 2, "z has 2 batches, x has 3"),
        (["--feed-batches", "x=nothing.npy"], 1, "no batches for x"),
        (["--feed", "x={1,2}", "--engine", "abacus"], 1, "there is no engine 'abacus'"),
        (["--feed", "x={1,2}", "-o", "no/where.npz"], 3, "there is no folder"),
        (["--feed", "x={1,2}", "--state", "."], 3, "this is a folder"),
        (["--page", "countng"], 1, "did you mean 'counting'?"),
    ],
)
def test_run_rejects_invalid_arguments(args: list[str], status: int, message: str, capsys: Captured) -> None:
    page = accumulator_page()
    page.blocks.append(Block("z", "Placeholder", attrs={"dtype": "float32", "shape": []}))
    save(page, "page.json")
    np.savez("out.npz", a=np.ones(2))
    Path("empty.npy").touch()
    np.save("objects.npy", np.array([{}, {}], object), allow_pickle=True)
    np.save("many.npy", np.ones((3, 2), np.float32))
    Path("cut.npy").write_bytes(Path("many.npy").read_bytes()[:-4])
    np.save("two.npy", np.ones(2, np.float32))
    np.save("nothing.npy", np.ones((0, 2), np.float32))
    shapes = {"truth_in_shape": "(True,)", "open_bracket": "((", "beyond_int64": f"({2**64}, 0)"}
    for name, shape in (shapes | {"overflowing": f"({2**62}, 2000)"}).items():
        head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        Path(f"{name}.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(8))
    assert message in run_failing(["run", "page.json", *args], status, capsys)


def test_a_pin_fetched_by_two_sessions_has_two_results(capsys: Captured) -> None:
    page = accumulator_page()
    page.blocks.append(wired("ClientSession", "look", fetch_outputs="w.ref"))
    page.blocks.insert(0, wired("ClientSession", "first", fetch_outputs="w.ref"))
    save(page, "page.json")
    results = values(run_json(["run", "page.json", "--feed", "x={1,2}", "-o", "out.npz"], capsys))
    assert (results["first/w.ref"], results["look/w.ref"]) == ([1.0, 2.0], [2.0, 4.0])
    assert "w.ref" not in results
    with np.load("out.npz") as saved:
        assert saved["look/w.ref"].tolist() == [2.0, 4.0]
    args = ["run", "page.json", "--feed", "x={1,2}", "--session", "first", "--session", "grow", "--fetch", "w.ref"]
    results = values(run_json(args, capsys))
    assert (results["first/w.ref"], results["w.ref"]) == ([1.0, 2.0], [2.0, 4.0])


def test_batch_files_in_every_memory_order(capsys: Captured) -> None:
    days = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    save(Page("b", [Block("x", "Placeholder", attrs={"dtype": "float32", "shape": [-1, 2]})]), "b.json")
    for number, array in enumerate((days, np.asfortranarray(days), days.astype(">f4"), days[:, :0])):
        np.save(f"{number}.npy", array)
        results = run_json(["run", "b.json", "--fetch", "x", "--feed-batches", f"x={number}.npy"], capsys)
        assert results["steps"] == 3
        assert values(results)["x.output"] == array[2].tolist()


def test_a_truncated_batch_file_loses_only_one_step(capsys: Captured) -> None:
    code = """
import os, sys
import rowgrad.cli.pages
from rowgrad.cli import main

step = rowgrad.cli.pages.PageRun.step
def step_and_cut(self, feeds):
    step(self, feeds)
    os.truncate("many.npy", 200)
rowgrad.cli.pages.PageRun.step = step_and_cut
sys.exit(main(["run", "page.json", "--feed-batches", "x=many.npy", "--state", "s"]))
"""
    np.save("many.npy", np.ones((5000, 2), np.float32))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "the state after 1 of 5000 steps is saved in s" in done.stderr
    assert "many.npy: the file changed while it was read" in done.stderr


def test_files_that_are_not_pages_are_rejected(capsys: Captured) -> None:
    Path("text.json").write_text("hello", encoding="utf-8")
    assert "line 1, column 1: not JSON: Expecting value (in text.json)" in run_failing(["run", "text.json"], 1, capsys)
    for text in ('{"format": 5}', '{"format": "rowgrad-page", "format": 1}', "{", "\\xff"):
        Path("text.json").write_bytes(text.encode("latin-1").replace(b"\\xff", b"\xff"))
        assert "text.json" in run_failing(["check", "text.json"], 1, capsys)
    assert "No such file" in run_failing(["check", "gone.json"], 3, capsys)
    assert "this is a folder" in run_failing(["check", "."], 3, capsys)
    save(Page("big", [Block("a", "Const", {"val": np.ones(1000)})]), "big.json")
    next(Path("big.json.arrays").iterdir()).unlink()
    assert "No such file" in run_failing(["check", "big.json"], 3, capsys)


def test_a_page_with_errors_is_not_run(capsys: Captured) -> None:
    error = run_json(["run", "broken.json"], capsys, 1)["error"]
    assert error["block"] == "sum"
    assert error["op"] == "Add"


def test_a_missing_engine_library_is_an_error(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr("rowgrad.cli.pages.open_engine", fail)
    assert "engine torch: No module named 'torch'" in run_failing(["run", "page.json", "--engine", "torch"], 1, capsys)


# -- projects ----------------------------------------------------------------------------------------------------------


def test_every_page_of_a_project_runs_separately(capsys: Captured) -> None:
    assert main(["run", "project.json", "--feed", "x={1,2}", "--steps", "2", "-o", "out.npz"]) == 0
    shown = capsys.readouterr()
    assert [line for line in shown.out.splitlines() if line.startswith(("one/keep", "two/keep"))] == [
        "one/keep.output_ref  float32[2]",
        "two/keep.output_ref  float32[2]",
    ]
    assert shown.out.count("[3. 6.]") == 2
    assert shown.err == "rowgrad run: page none: no block to run\n"
    with np.load("out.npz") as found:
        assert found["two/keep.output_ref"].tolist() == [3.0, 6.0]
    document = run_json(["run", "project.json", "--feed", "x={1,2}"], capsys)
    assert [page["page"] for page in document["pages"]] == ["one", "two"]


def test_run_one_page_of_a_project(capsys: Captured) -> None:
    assert run_json(["run", "project.json", "--page", "two", "--feed", "x={1,2}"], capsys)["page"] == "two"
    assert "did you mean 'two'?" in run_failing(["run", "project.json", "--page", "tow"], 1, capsys)
    assert "--page: one, two, none" in run_failing(["run", "project.json", "--state", "s"], 2, capsys)
    assert "--page: one, two, none" in run_failing(["export", "project.json", "--svg"], 2, capsys)
    save(Project("empty", []), "empty.json")
    assert "this project has no pages" in run_failing(["run", "empty.json"], 1, capsys)


# -- state and signals -------------------------------------------------------------------------------------------------


def test_a_run_continues_from_a_saved_state(capsys: Captured) -> None:
    whole = run_json(["run", "walking.json", "--steps", "7"], capsys)["results"]
    assert main(["run", "walking.json", "--steps", "3", "--state", "s"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["run", "walking.json", "--steps", "4", "--state", "s", "-o", "out.npz"]) == 0
    assert capsys.readouterr().err == "rowgrad run: state restored from s\n"
    with np.load("out.npz") as found:
        assert found["keep.output_ref"].tolist() == np.float32(whole["keep.output_ref"]["data"]).tolist()
    assert main(["run", "walking.json", "--state", "s", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_an_invalid_state_file_is_an_error(capsys: Captured) -> None:
    Path("s").write_bytes(b"nothing")
    run_failing(["run", "walking.json", "--state", "s"], 1, capsys)
    assert Path("s").read_bytes() == b"nothing"


def test_an_error_leaves_the_state_file_unchanged(capsys: Captured) -> None:
    assert main(["run", "page.json", "--feed", "x={1,2}", "--state", "s"]) == 0
    before = Path("s").read_bytes()
    capsys.readouterr()
    run_failing(["run", "page.json", "--feed", "x={1,2,3}", "--state", "s", "--quiet"], 1, capsys)
    assert Path("s").read_bytes() == before


def dividing_page() -> Page:
    """Return a page with w ← w + 6 // x between two other sessions; the middle session fails if x is 0."""
    return Page(
        "dividing",
        [
            Block("x", "Placeholder", attrs={"dtype": "int32", "shape": []}),
            Block("w", "Variable", {"initvalues": np.int32(0)}),
            Block("n", "Variable", {"initvalues": np.int32(0)}),
            Block("count", "AssignAdd", {"value": np.int32(1)}, {"ref": [End("n", "ref")]}),
            Block("part", "FloorDiv", {"x": np.int32(6)}, {"y": [End("x", "output")]}),
            wired("AssignAdd", "grow", ref="w.ref", value=f"part.{CATALOG['FloorDiv'].outputs[0].name}"),
            wired("ClientSession", "a", fetch_outputs="count.output_ref"),
            wired("ClientSession", "b", fetch_outputs="grow.output_ref"),
        ],
    )


def test_a_failed_step_loses_only_that_step(capsys: Captured) -> None:
    save(dividing_page(), "dividing.json")
    np.save("x.npy", np.array([1, 2, 0, 3], np.int32))
    args = ["run", "dividing.json", "--feed-batches", "x=x.npy", "--state", "s"]
    assert main(args) == 1
    saved, error = capsys.readouterr().err.splitlines()
    assert saved == "rowgrad run: the state after 2 of 4 steps is saved in s"
    assert error.startswith("rowgrad run: FloorDiv (name: part)")
    shown = run_json(["run", "dividing.json", "--fetch", "w", "--fetch", "n", "--state", "s", "--quiet"], capsys)
    assert values(shown) == {"w.ref": 9, "n.ref": 2}  # the third step is undone completely


def test_a_failed_step_with_an_unwritable_state_reports_both(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device", "s")

    save(dividing_page(), "dividing.json")
    np.save("x.npy", np.array([1, 0], np.int32))
    monkeypatch.setattr("rowgrad.graph.session.ClientSession.save", full)
    assert main(["run", "dividing.json", "--feed-batches", "x=x.npy", "--state", "s"]) == 1
    saved, error = capsys.readouterr().err.splitlines()
    assert saved.endswith("the state after 1 of 2 steps could not be saved: s: No space left on device")
    assert "FloorDiv" in error


# The command, which announces on stderr when it pauses between two steps.
ANNOUNCE_REST = """
import sys
from rowgrad.cli import main
from rowgrad.graph.run_loop import Loop
real = Loop._rest
Loop._rest = lambda self, due: (print("resting", file=sys.stderr, flush=True), real(self, due))
sys.exit(main(sys.argv[1:]))
"""


@contextlib.contextmanager
def rowgrad(*args: str, code: str = "", **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run the command in a process that receives signals even if the tests run in the background."""
    command = restored([sys.executable, *(["-c", code] if code else ["-m", "rowgrad"]), *args])
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("number", "status", "word"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")])
def test_a_signal_stops_after_the_step_and_saves_the_state(
    number: str, status: int, word: str, capsys: Captured
) -> None:
    assert main(["run", "walking.json", "--steps", "3", "--state", "s", "--quiet"]) == 0
    args = ["run", "walking.json", "--steps", "1000000000", "--state", "s", "--json"]
    with rowgrad(*args, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert "state restored from s" in process.stderr.readline()  # from here on signals are handled
        process.send_signal(getattr(signal, number))
        out, err = process.communicate(timeout=120)
    assert process.returncode == status
    document = json.loads(out)
    assert document["interrupted"] == number
    assert f"{word} after {document['steps']} of 1000000000 steps; state saved in s" in err
    capsys.readouterr()
    total = run_json(["run", "walking.json", "--steps", "5", "--state", "s", "--quiet"], capsys)["results"]
    assert run_json(["run", "walking.json", "--steps", str(3 + document["steps"] + 5)], capsys)["results"] == total


def test_a_signal_interrupts_the_pause_between_steps(capsys: Captured) -> None:
    Path("s").unlink(missing_ok=True)
    assert main(["run", "walking.json", "--state", "s"]) == 0
    args = ["run", "walking.json", "--steps", "9", "--rate", "0.0001", "--state", "s"]
    with rowgrad(*args, code=ANNOUNCE_REST, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while process.stderr.readline() != "resting\n":
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)  # without the signal it would wait for hours
    assert process.returncode == 130
    assert "interrupted after 1 of 9 steps" in err
    assert "1 steps in" in out


def test_a_second_signal_stops_immediately(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(*args: object) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise make_error("engine_unknown", value="", bound="")

    monkeypatch.setattr("rowgrad.graph.session.ClientSession.run_block", twice)
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes ignore it
    try:
        assert main(["run", "walking.json", "--state", "s"]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, outside)
    assert "nothing was saved" in capsys.readouterr().err
    assert not Path("s").exists()


# -- progress ----------------------------------------------------------------------------------------------------------


def run_on_terminal(*args: str, code: str = "", stream: str = "stderr") -> str:
    """Run a command on a terminal, and return what it prints there."""
    master, slave = pty.openpty()
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | {stream: slave}
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    with rowgrad(*args, code=code, env=environment, **streams) as process:
        os.close(slave)
        output = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:  # raised by Linux when the other end is closed
                break
            if not part:
                break
            output += part
    os.close(master)
    assert process.returncode == 0
    return output.decode()


def strip_control_sequences(text: str) -> str:
    """Remove colors and other control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_progress_on_a_terminal() -> None:
    pytest.importorskip("rich", reason="the extra `cli` is not installed")
    output = run_on_terminal("run", "walking.json", "--steps", "90", "--rate", "100")
    assert output.endswith("\x1b[2K")  # it is erased
    lines = [line for line in strip_control_sequences(output).split("\r") if line.strip()]
    assert 2 <= len(lines) <= 9
    assert all(re.search(r"\d+/90 +\d+% +[\d.]+ steps/s 0:0\d left", line) for line in lines)


def test_no_progress_without_rich() -> None:
    """The results are printed, without a progress bar."""
    code = "import sys; sys.modules['rich'] = None; from rowgrad.cli import main; exit(main(sys.argv[1:]))"
    args = ("run", "walking.json", "--steps", "70", "--rate", "100")
    assert run_on_terminal(*args, code=code) == ""


def test_no_progress_with_quiet_or_json() -> None:
    for flag in ("--quiet", "--json"):
        assert run_on_terminal("run", "walking.json", "--steps", "60", "--rate", "100", flag) == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_starts_only_for_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="the extra `cli` is not installed")
    now = [0.0]
    monkeypatch.setattr("rowgrad.cli.terminal.time.monotonic", lambda: now[0])
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    progress = Progress(1000, True, out)
    for _ in range(400):
        now[0] += 0.005
        progress.step()
    drawn = strip_control_sequences(out.getvalue()).split("\r")
    assert sum(" steps/s " in line for line in drawn) == pytest.approx(15, abs=1)
    assert re.search(r"\d+/1000 +\d+% 200 steps/s 0:03 left$", drawn[-1].rstrip())
    progress.clear()
    assert out.getvalue().endswith("\x1b[2K")
    out = Terminal()
    progress = Progress(10, True, out)
    progress.step()
    progress.clear()
    assert out.getvalue() == ""
    assert [clock(s) for s in (0, 83, 3600 + 62)] == ["0:00", "1:23", "1:01:02"]


# -- tables ------------------------------------------------------------------------------------------------------------


def test_tables_are_wrapped_on_a_terminal(capsys: Captured) -> None:
    pytest.importorskip("rich", reason="the extra `cli` is not installed")
    assert main(["ops"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) > 100
    shown = strip_control_sequences(run_on_terminal("ops", stream="stdout"))
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    assert "".join(shown.split()) == "".join(text.split())  # long words are split


def test_tables_are_plain_without_rich(capsys: Captured) -> None:
    code = "import sys; sys.modules['rich'] = None; from rowgrad.cli import main; exit(main(sys.argv[1:]))"
    for args in (["ops"], ["check", "page.json"]):
        assert main(args) == 0
        shown = run_on_terminal(*args, code=code, stream="stdout")
        assert shown.replace("\r\n", "\n") == capsys.readouterr().out


def test_tables_escape_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="the extra `cli` is not installed")
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    show_columns(["head\x1b[31m", ["a\x07", "[bold]b[/bold]"]])
    assert strip_control_sequences(out.getvalue()).split() == ["head\\x1b[31m", "a\\x07", "[bold]b[/bold]"]


# -- check, export, import ---------------------------------------------------------------------------------------------


def test_check_a_valid_page(capsys: Captured) -> None:
    assert main(["check", "page.json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["x", "Placeholder", "output", "float32[2]"]
    assert lines[-1] == "all 8 blocks are valid"
    assert len(lines) == 9
    document = run_json(["check", "page.json"], capsys)
    assert document["ok"] is True
    assert document["blocks"][1] == {
        "id": "x", "op": "Placeholder", "outputs": {"output": {"dtype": "float32", "shape": [2]}}, "error": None,
    }  # fmt: skip


def test_check_reports_every_error(capsys: Captured) -> None:
    assert main(["check", "broken.json"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("error: sum (Add): ")
    assert lines[1] == "error: odd: there is no block 'SparseSegmentMaen'; did you mean 'SparseSegmentMean'?"
    assert lines[2] == "waiting: s (ClientSession) depends on a block with an error"
    assert lines[3] == "2 of 5 blocks have errors, 1 depend on them"
    document = run_json(["check", "broken.json"], capsys, 1)
    assert not document["ok"]
    assert document["waiting"] == ["s"]
    assert {b["id"]: b["error"]["block"] for b in document["blocks"] if b["error"]} == {"sum": "sum", "odd": "odd"}


def test_check_escapes_characters_that_the_terminal_cannot_print() -> None:
    ring = [wired("Identity", name, input=f"{other}.output") for name, other in (("a", "b"), ("b", "a"))]
    save(Page("cyclic", ring), "cyclic.json")
    for flags in ([], ["--json"]):
        command = [sys.executable, "-m", "rowgrad", "check", "cyclic.json", *flags]
        done = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
        assert done.returncode == 1
        assert "\\u2192" in done.stdout.decode("ascii")
        assert done.stderr == b""


def test_check_a_project(capsys: Captured) -> None:
    assert main(["check", "project.json"]) == 0
    assert capsys.readouterr().out.count("blocks are valid") == 3
    assert [p["page"] for p in run_json(["check", "project.json"], capsys)["pages"]] == ["one", "two", "none"]


def test_check_shows_unknown_shapes_and_other_interfaces(capsys: Captured) -> None:
    blocks = [
        Block("any", "Placeholder"),
        Block("open", "Placeholder", attrs={"shape": [-1, 2]}),
        Block("no", "NoOp"),
        Block("l", "InputList", wires={"outputlist": [End("any", "output"), End("open", "output")]}),
    ]
    save(Page("kinds", blocks), "kinds.json")
    assert main(["check", "kinds.json"]) == 0
    text = capsys.readouterr().out
    assert all(message in text for message in ("float32[…]", "float32[?,2]", "operation", "[float32[…], float32[?,2]]"))
    found = {b["id"]: b["outputs"] for b in run_json(["check", "kinds.json"], capsys)["blocks"]}
    assert found["any"]["output"] == {"dtype": "float32", "shape": None}
    assert found["l"]["output"][1] == {"dtype": "float32", "shape": [None, 2]}
    assert found["no"]["output"] == {"kind": "operation"}


def test_export_in_every_format(capsys: Captured) -> None:
    for form, begin in (("--svg", "<svg "), ("--dot", "digraph "), ("--python", '"""A page of')):
        assert main(["export", "walking.json", form]) == 0
        text = capsys.readouterr().out
        assert text.startswith(begin)
        assert run_json(["export", "walking.json", form], capsys) == {"text": text}
        assert run_json(["export", "walking.json", form, "-o", "out.txt"], capsys) == {"file": "out.txt"}
        assert Path("out.txt").read_text(encoding="utf-8") == text
    assert main(["export", "project.json", "--svg", "--page", "two"]) == 0


def test_an_exported_script_computes_the_same(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["export", "walking.json", "--python", "-o", "walking.py"]) == 0
    monkeypatch.setattr(sys, "argv", ["walking.py", "--steps", "3", "--out", "script.npz"])
    runpy.run_path("walking.py", run_name="__main__")
    capsys.readouterr()
    assert main(["run", "walking.json", "--steps", "3", "-o", "run.npz"]) == 0
    with np.load("script.npz") as one, np.load("run.npz") as other:
        assert {n: one[n].tobytes() for n in one} == {n: other[n].tobytes() for n in other}


def test_an_export_is_utf8_in_any_locale() -> None:
    save(Page("ä→", [Block("a", "Const", {"val": np.array("ä→", object)})]), "odd.json")
    for form in ("--svg", "--python", "--dot"):
        command = [sys.executable, "-m", "rowgrad", "export", "odd.json", form]
        strip_control_sequences, other = (
            subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": e}, capture_output=True, check=True).stdout
            for e in ("utf-8", "latin-1")
        )
        assert strip_control_sequences.decode() == other.decode()


def test_a_page_with_errors_is_exported_as_drawing_but_not_as_script(capsys: Captured) -> None:
    run_failing(["export", "broken.json", "--python"], 1, capsys)
    assert main(["export", "broken.json", "--svg"]) == 0
    assert main(["export", "broken.json", "--dot"]) == 0
    capsys.readouterr()
    assert "there is no folder" in run_failing(["export", "page.json", "--svg", "-o", "no/x.svg"], 3, capsys)


def copy_sample(name: str) -> str:
    Path(name).write_bytes((SAMPLES / name).read_bytes())
    return name


def test_import_an_svg_page(capsys: Captured) -> None:
    assert main(["import", copy_sample("basic_4x.svg")]) == 0
    shown = capsys.readouterr().out
    assert "note: " in shown
    assert "4 blocks written to basic_4x.json, 0 warnings" in shown
    page = load("basic_4x.json")
    assert isinstance(page, Page)
    assert len(page.blocks) == 4
    assert "--force" in run_failing(["import", "basic_4x.svg"], 3, capsys)
    document = run_json(["import", "basic_4x.svg", "--force"], capsys)
    assert document["page"] == "basic_4x"
    assert document["file"] == "basic_4x.json"
    assert {remark["level"] for remark in document["report"]} == {"note"}


def test_import_a_task(capsys: Captured) -> None:
    assert main(["import", copy_sample("basic.json")]) == 0
    assert Path("basic.page.json").exists()
    assert "written to basic.page.json" in capsys.readouterr().out
    run_failing(["import", "basic.json", "-o", "basic.json", "--force"], 3, capsys)
    assert "not a page (SVG) or task" in run_failing(["import", "page.json"], 1, capsys)
    assert "No such file" in run_failing(["import", "gone.svg"], 3, capsys)


def test_strict_import_exits_with_1_on_warnings(capsys: Captured) -> None:
    text = (SAMPLES / "basic.json").read_bytes().decode("utf-16").replace("#MatMul", "#NoSuchBlock")
    Path("odd.json").write_text(text, encoding="utf-8")
    assert main(["import", "odd.json", "-o", "a.json"]) == 0
    assert "warning: " in capsys.readouterr().out
    assert main(["import", "odd.json", "-o", "b.json", "--strict"]) == 1
    assert Path("b.json").exists()


def test_run_an_enuspace_file_directly(capsys: Captured) -> None:
    assert main(["run", copy_sample("basic_4x.svg")]) == 0
    shown = capsys.readouterr()
    assert "float64[2,2]" in shown.out
    assert shown.err.startswith("rowgrad run: basic_4x.svg: note: ")
    assert main(["run", "basic_4x.svg", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


# -- pages with errors -------------------------------------------------------------------------------------------------


def test_an_error_stops_a_run_only_if_its_block_is_needed(capsys: Captured) -> None:
    page = Page("loose", [
        Block("a", "Const", {"val": 3.0}), Block("q", "Square", wires={"x": [End("a", "output")]}),
        Block("s", "ClientSession", wires={"fetch_outputs": [End("q", "y")]}), Block("z", "Add"),
        Block("y", "Neg", wires={"x": [End("z", "z")]}), Block("none", "ClientSession"),
    ])  # fmt: skip
    save(page, "loose.json")
    assert main(["run", "loose.json"]) == 0
    out, err = capsys.readouterr()
    assert "q.y" in out
    assert "skipped, because nothing that runs needs it: Add (name: z): x is missing: wire it, or enter a value" in err
    assert main(["run", "loose.json", "--fetch", "q"]) == 0
    assert main(["check", "loose.json"]) == 1
    capsys.readouterr()
    for args in (["--fetch", "y.y"], ["--fetch", "z"], ["--session", "none"]):
        assert main(["run", "loose.json", *args]) == 1
        assert re.search("is missing: wire it(, or enter a value| to an output)", capsys.readouterr().err)
    page["s"].wires["fetch_outputs"].append(End("y", "y"))
    save(page, "loose.json")
    assert main(["run", "loose.json"]) == 1
    assert "Add (name: z)" in capsys.readouterr().err


def test_what_a_run_leaves_out_is_told_from_what_it_does_not_need(capsys: Captured) -> None:
    page = Page("ghosts", [
        Block("a", "Const", {"val": 3.0}), Block("queue", "FIFOQueue"), Block("other", "Barrier"),
        Block("cost", "Square", wires={"x": [End("queue", "out")]}),
        Block("s", "ClientSession", wires={"fetch_outputs": [End("a", "output"), End("cost", "y")]}),
    ])  # fmt: skip
    save(page, "ghosts.json")
    assert main(["run", "ghosts.json"]) == 0
    lines = capsys.readouterr().err.splitlines()
    (queue,) = (line for line in lines if "FIFOQueue" in line)
    (other,) = (line for line in lines if "Barrier" in line)
    assert "left out: queue" in queue
    assert "skipped, because nothing that runs needs it" not in queue
    assert "skipped, because nothing that runs needs it" in other
    assert any(line.endswith("s runs without cost.y") for line in lines)


def test_importing_a_page_does_not_overwrite_a_task_of_the_same_name(tmp_path: Path, capsys: Captured) -> None:
    for name in ("basic.json", "basic_4x.svg"):
        shutil.copy(SAMPLES / name, tmp_path / name.replace("_4x", ""))
    task = (tmp_path / "basic.json").read_bytes()
    assert main(["import", str(tmp_path / "basic.svg"), "--force"]) == 0
    assert (tmp_path / "basic.json").read_bytes() == task
    assert main(["run", str(tmp_path / "basic.page.json")]) == 0
