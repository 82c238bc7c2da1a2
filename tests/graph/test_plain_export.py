"""Pages as plain calls: the same bits as a session, and errors for what has no plain form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rowgrad.cli import main
from rowgrad.graph import Block, ClientSession, End, Page, PageError, build, load
from rowgrad.graph.export import save_python, to_plain_python

PAGES = sorted((Path(__file__).parents[2] / "examples/pages").glob("*.json"))
RANDOM = {"train_embedding"}  # draws its Variables
INVALID = {"11_sparse_add_int_thresh_refused"}


def run_script(text: str, path: str = "script.py") -> dict[str, Any]:
    names: dict[str, Any] = {"__file__": path}
    exec(compile(text, path, "exec"), names)
    return names


def session_of(page: Page, steps: int = 1) -> dict[str, np.ndarray]:
    scope = build(page)
    session, results = ClientSession(scope), {}
    for _ in range(steps):
        for block in scope.graph.sessions:
            results.update(session.run_block(block))
    return results


def check_same(found: dict[str, Any], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        assert value.dtype == object or found[name].tobytes() == value.tobytes(), name
        assert value.dtype != object or found[name].tolist() == value.tolist(), name


@pytest.mark.parametrize("path", [p for p in PAGES if p.stem not in RANDOM | INVALID], ids=lambda p: p.stem)
def test_plain_scripts_have_the_bits_of_sessions(path: Path) -> None:
    page = load(path)
    text = to_plain_python(page)
    assert "ClientSession" not in text
    assert "import rowgrad as rg\n" in text
    check_same(run_script(text)["results"], session_of(page))
    longer = text.replace("in range(1):", "in range(3):")
    assert (longer != text) == ("Variable" in {block.op for block in page.blocks})
    check_same(run_script(longer)["results"], session_of(page, 3))


def test_the_script_is_plain() -> None:
    page = Page("p", [
        Block("table", "Const", {"val": np.ones((3, 2), np.float32)}),
        Block("m", "SparseSegmentMean", {"indices": [0, 2], "segment_ids": [0, 0]}, {"data": [End("table", "output")]}),
        Block("s", "ClientSession", wires={"fetch_outputs": [End("m", "output")]}),
    ])  # fmt: skip
    lines = to_plain_python(page).splitlines()
    assert lines[:5] == [
        '"""A page of 3 blocks as plain calls, written out by rowgrad."""', "", "import numpy as np", "",
        "import rowgrad as rg",
    ]  # fmt: skip
    assert "table = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], np.float32)" in lines
    at = lines.index("m = rg.raw_ops.SparseSegmentMean(")
    assert lines[at + 1 : at + 5] == [
        "    data=table,",
        "    indices=np.array([0, 2], np.int32),",
        "    segment_ids=np.array([0, 0], np.int32),",
        ")",
    ]  # fmt: skip
    assert "results['m.output'] = m" in lines
    assert "for step" not in "".join(lines)


def random_page() -> Page:
    return Page("p", [
        Block("r", "RandomNormal", {"shape": [2]}, attrs={"dtype": "float32"}),
        Block("n", "Neg", wires={"x": [End("r", "output")]}),
        Block("s", "ClientSession", wires={"fetch_outputs": [End("n", "y")]}),
    ])  # fmt: skip


def unfed_page() -> Page:
    return Page("p", [
        Block("x", "Placeholder", attrs={"dtype": "float32", "shape": [2]}),
        Block("n", "Neg", wires={"x": [End("x", "output")]}),
        Block("s", "ClientSession", wires={"fetch_outputs": [End("n", "y")]}),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (random_page(), "r: random numbers have no plain form; export without --plain"),
        (unfed_page(), "x: nothing feeds this placeholder, so the plain script has no value for it"),
        (Page("empty", []), "empty: a page without a ClientSession block has no plain form"),
    ],
)
def test_pages_without_a_plain_form(page: Page, message: str, tmp_path: Path) -> None:
    with pytest.raises(PageError) as caught:
        save_python(page, tmp_path / "script.py", to_plain_python)
    assert str(caught.value) == message
    assert not list(tmp_path.iterdir())


def test_the_command_writes_large_arrays_beside_the_script(tmp_path: Path, capsys: Any) -> None:
    from rowgrad.graph import save

    table = np.arange(1000, dtype=np.float32).reshape(500, 2)
    page = Page("p", [
        Block("table", "Const", {"val": table}),
        Block("n", "Neg", wires={"x": [End("table", "output")]}),
        Block("s", "ClientSession", wires={"fetch_outputs": [End("n", "y")]}),
    ])  # fmt: skip
    save(page, tmp_path / "p.json")
    assert main(["export", str(tmp_path / "p.json"), "--python", "--plain", "-o", str(tmp_path / "p.py")]) == 0
    done = subprocess.run([sys.executable, tmp_path / "p.py"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("n.y  float32[500, 2]\n")
    text = (tmp_path / "p.py").read_text()
    assert "np.load(" in text
    assert np.array_equal(run_script(text, str(tmp_path / "p.py"))["n"], -table)
    assert main(["export", str(tmp_path / "p.json"), "--svg", "--plain"]) == 2
    assert "--plain is for --python" in capsys.readouterr().err
