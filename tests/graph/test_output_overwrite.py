"""Outputs never replace a file that the same command reads, a pipe or a device, and hold every result."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from enuspace_files import SAMPLES

from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.cli import main
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import Block, ClientSession, Const, End, Page, Project, Scope, load, save
from rowgrad.graph.export import save_python
from rowgrad.graph.io.state_file import save_arrays


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Page(
        "page",
        [
            Block("x", "Placeholder", attrs={"dtype": "float32", "shape": [2]}),
            Block("w", "Variable", {"initvalues": np.zeros(2, np.float32)}),
            Block("more", "AssignAdd", wires={"ref": [End("w", "ref")], "value": [End("x", "output")]}),
            Block("run", "ClientSession", wires={"fetch_outputs": [End("more", "output_ref")]}),
        ],
    )
    save(page, "page.json")
    np.save("x.npy", np.ones(2, np.float32))
    np.save("days.npy", np.ones((3, 2), np.float32))
    assert main(["run", "page.json", "--feed", "x=x.npy", "--state", "old.state"]) == 0
    os.symlink("page.json", "link.json")
    os.link("x.npy", "same.npy")


RUN = ["run", "page.json", "--feed", "x=x.npy"]


@pytest.mark.parametrize(
    ("args", "used"),
    [
        ([*RUN, "-o", "page.json"], "page.json"),
        ([*RUN, "-o", "./page.json"], "page.json"),
        ([*RUN, "-o", "link.json"], "page.json"),
        ([*RUN, "-o", "x.npy"], "x.npy"),
        ([*RUN, "-o", "same.npy"], "x.npy"),
        (["run", "page.json", "--feed-batches", "x=days.npy", "-o", "days.npy"], "days.npy"),
        ([*RUN, "--state", "old.state", "-o", "old.state"], "old.state"),
        ([*RUN, "--state", "new.state", "-o", "new.state"], "new.state"),
        ([*RUN, "--state", "page.json"], "page.json"),
        (["export", "page.json", "--python", "-o", "page.json"], "page.json"),
        (["export", "page.json", "--svg", "-o", "link.json"], "page.json"),
        (["export", "link.json", "--dot", "-o", "page.json"], "link.json"),
    ],
)
def test_an_output_over_an_input_is_an_error(args: list[str], used: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in Path().iterdir()}
    assert main(args) == 3
    assert f"the output would overwrite {used}, which this command uses" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_an_import_over_its_own_files_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(next(SAMPLES.glob("*.svg")), "old.svg")
    Path("old.dat").write_bytes(b"numbers")
    for out in ("old.svg", "old.dat"):
        assert main(["import", "old.svg", "-o", out, "--force"]) == 3
        assert f"the output would overwrite {out}" in capsys.readouterr().err
    assert Path("old.dat").read_bytes() == b"numbers"


def test_an_output_over_a_file_that_belongs_to_the_page_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    save(Page("big", [Block("a", "Const", {"val": np.arange(1000.0)})]), "big.json")
    (array,) = Path("big.json.arrays").iterdir()
    shutil.copy(SAMPLES / "basic_4x.svg", "old.svg")
    Path("old.dat").write_bytes(b"numbers")
    args = [["run", "big.json", "--fetch", "a"], ["run", "old.svg", "--fetch", "v"]]
    for command, used in zip(args, (str(array), "old.dat"), strict=True):
        before = Path(used).read_bytes()
        for option in ("-o", "--state"):
            assert main([*command, option, used]) == 3
        assert main(["export", command[1], "--svg", "-o", used]) == 3
        assert capsys.readouterr().err.count(f"{used}, which this command uses") == 3
        assert Path(used).read_bytes() == before


@pytest.mark.parametrize("args", [[*RUN, "-o", "pipe"], ["export", "page.json", "--dot", "-o", "pipe"]])
def test_a_pipe_is_not_replaced(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    assert main(args) == 3
    assert "pipe: this is not a regular file" in capsys.readouterr().err
    assert Path("pipe").is_fifo()


def test_writers_do_not_replace_a_pipe() -> None:
    os.mkfifo("pipe")
    root = Scope.new_root_scope()
    Const(root, 1.0)
    page = load("page.json")
    assert isinstance(page, Page)
    writers = [
        lambda: save_arrays("pipe", {"a": np.ones(2)}),
        lambda: ClientSession(root).save("pipe"),
        lambda: save_python(page, "pipe"),
        lambda: save(page, "pipe"),
    ]
    for write in writers:
        with pytest.raises(OSError, match="not a regular file"):
            write()
        assert Path("pipe").is_fifo()
    assert not list(Path().glob(".*.tmp"))


def _constant(page: str, block: str) -> Page:
    fetch = Block("run", "ClientSession", wires={"fetch_outputs": [End(block, "output")]})
    return Page(page, [Block(block, "Const", {"val": np.ones(1, np.float32)}), fetch])


def test_results_of_two_pages_with_one_name_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    save(Project("both", [_constant("a", "b/c"), _constant("a/b", "c")]), "both.json")
    assert main(["run", "both.json", "-o", "out.npz"]) == 1
    assert "two pages have results named a/b/c.output; choose one page with --page" in capsys.readouterr().err
    assert not Path("out.npz").exists()
    assert main(["run", "both.json", "--page", "a", "-o", "out.npz"]) == 0
    save(Project("both", [_constant("a", "c"), _constant("a/b", "c")]), "both.json")
    assert main(["run", "both.json", "-o", "out.npz"]) == 0
    with np.load("out.npz") as found:
        assert sorted(found) == ["a/b/c.output", "a/c.output"]


@pytest.mark.parametrize("names", [("a", "a.dtype"), ("a.dtype", "a"), ("a", "a\0b")])
def test_array_names_that_collide_in_an_archive_raise(names: tuple[str, str]) -> None:
    arrays = {name: np.ones(2, NUMPY_DTYPE["bfloat16"]) if name == "a" else np.ones(2) for name in names}
    with pytest.raises(InvalidArgumentError, match="arrays must be of names that no other member has, without NUL"):
        save_arrays("out.npz", arrays)
    assert not Path("out.npz").exists()


def test_a_script_with_a_linked_array_folder_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    save(Page("large", [Block("a", "Const", {"val": np.arange(999.0)})]), "large.json")
    Path("elsewhere").mkdir()
    os.symlink("elsewhere", "script.py.arrays")
    assert main(["export", "large.json", "--python", "-o", "script.py"]) == 1
    assert "script.py.arrays: this is a symbolic link, which is not followed" in capsys.readouterr().err
    assert not list(Path("elsewhere").iterdir())
    assert not Path("script.py").exists()
