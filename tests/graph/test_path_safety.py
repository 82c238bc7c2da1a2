"""Links, paths, pipes and devices: no access outside of a page's folder, and no read blocks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enuspace_files import Drawn, Pin, svg

import rowgrad as rg
from rowgrad._runtime.plain_file import open_plain
from rowgrad.checkpoint import Checkpoint
from rowgrad.cli import main
from rowgrad.cli.terminal import printable
from rowgrad.errors import CheckpointError
from rowgrad.graph import ClientSession, Page, PageError, build
from rowgrad.graph.enuspace import read_enuspace
from rowgrad.graph.io import load, save
from rowgrad.graph.io.state_file import load_state
from rowgrad.graph.page import Block, End
from rowgrad.studio import page_names

sys.path.append(str(Path(__file__).parents[1]))
from checkpoint_files import write_tensors

LARGE = np.arange(1000, dtype=np.float64)


def page(name: str = "p") -> Page:
    run = Block("run", "ClientSession", wires={"fetch_outputs": [End("c", "output")]})
    return Page(name, [Block("c", "Const", {"val": LARGE}), run])


def test_a_linked_array_folder_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(page(), tmp_path / "p.json")
    os.rename(tmp_path / "p.json.arrays", tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", tmp_path / "p.json.arrays")
    with pytest.raises(PageError, match=r"p\.json\.arrays: this is a symbolic link, which is not followed"):
        load(tmp_path / "p.json")
    before = sorted(os.listdir(tmp_path / "elsewhere"))
    changed = page()
    changed.blocks[0].values["val"] = LARGE + 1
    with pytest.raises(PageError, match="this is a symbolic link, which is not followed"):
        save(changed, tmp_path / "p.json")
    assert sorted(os.listdir(tmp_path / "elsewhere")) == before
    assert load(tmp_path / "p.json", follow_links=True)["c"].values["val"].tolist() == LARGE.tolist()
    for command in ("run", "check", "export"):
        words = [command, str(tmp_path / "p.json"), *(["--dot"] if command == "export" else [])]
        assert main(words) == 1
        assert "symbolic link" in capsys.readouterr().err
        assert main([*words, "--follow-links"]) == 0
    save(changed, tmp_path / "p.json", follow_links=True)
    assert sorted(os.listdir(tmp_path / "elsewhere")) != before


def test_a_linked_array_file_is_rejected(tmp_path: Path) -> None:
    save(page(), tmp_path / "p.json")
    (array,) = (tmp_path / "p.json.arrays").iterdir()
    shutil.move(array, tmp_path / "elsewhere.npy")
    os.symlink(tmp_path / "elsewhere.npy", array)
    with pytest.raises(PageError, match="this is a symbolic link, which is not followed"):
        load(tmp_path / "p.json")
    assert load(tmp_path / "p.json", follow_links=True)["c"].values["val"].shape == (1000,)


def test_a_linked_dat_file_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = svg({"A": Drawn("Const", {"val": Pin("double", "[3]", dat=0)})}, [])
    (tmp_path / "page.svg").write_text(drawn, encoding="utf-16")
    (tmp_path / "secret").write_bytes(np.arange(3.0).tobytes())
    os.symlink(tmp_path / "secret", tmp_path / "page.dat")
    with pytest.raises(PageError, match="this is a symbolic link, which is not followed"):
        read_enuspace(tmp_path / "page.svg")
    assert main(["import", str(tmp_path / "page.svg")]) != 0
    assert "symbolic link" in capsys.readouterr().err
    assert not (tmp_path / "page.json").exists()
    found = read_enuspace(tmp_path / "page.svg", follow_links=True)
    assert found.page["A"].values["val"].tolist() == [0.0, 1.0, 2.0]
    assert main(["import", str(tmp_path / "page.svg"), "--follow-links"]) == 0


@pytest.mark.parametrize("named", ["../outside/model", "{root}/outside/model", "link/model"])
def test_a_checkpoint_that_names_files_outside_its_directory_is_rejected(tmp_path: Path, named: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside").mkdir()
    os.symlink(tmp_path / "outside", tmp_path / "inside" / "link")
    write_tensors(tmp_path / "outside" / "model", {"t": np.ones((2, 2), np.float32)})
    state = tmp_path / "inside" / "checkpoint"
    state.write_text(f'model_checkpoint_path: "{named.format(root=tmp_path)}"')
    with pytest.raises(CheckpointError, match=r"which is outside its directory\. Pass that path, or"):
        Checkpoint(tmp_path / "inside")
    assert Checkpoint(tmp_path / "inside", follow_links=True)["t"].tolist() == [[1, 1], [1, 1]]
    write_tensors(tmp_path / "inside" / "model", {"t": np.zeros((2, 2), np.float32)})  # as if it had been moved
    assert Checkpoint(tmp_path / "inside")["t"].tolist() == [[0, 0], [0, 0]]


def test_a_checkpoint_may_name_files_in_its_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write_tensors(tmp_path / "sub" / "model", {"t": np.ones(2, np.float32)})
    for named in ("sub/model", "sub/../sub/model", f"{tmp_path}/sub/model"):
        (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{named}"')
        assert Checkpoint(tmp_path)["t"].tolist() == [1, 1]


def _enuspace_data(path: Path) -> None:
    drawn = svg({"A": Drawn("Const", {"val": Pin("double", "[3]", dat=0)})}, [])
    path.with_suffix(".svg").write_text(drawn, encoding="utf-16")
    os.rename(path, path.with_suffix(".dat"))
    read_enuspace(path.with_suffix(".svg"))


def _data_of_a_checkpoint(path: Path) -> None:
    prefix = path.with_name("model")
    write_tensors(prefix, {"t": np.ones(2, np.float32)})
    data = prefix.with_name("model.data-00000-of-00001")
    data.unlink()
    os.rename(path, data)
    Checkpoint(prefix).read("t")


def _index_of_a_checkpoint(path: Path) -> None:
    os.rename(path, path.with_name("model.index"))
    Checkpoint(path.with_name("model.index"))


def _state_of_a_checkpoint(path: Path) -> None:
    os.rename(path, path.with_name("checkpoint"))
    Checkpoint(path.parent)


def _parts(path: Path, ending: str) -> None:
    os.rename(path, path.with_name(f"part-00000-of-00001.{ending}"))
    rg.reshard(path.parent, path.parent.with_name("out"), parts=1, strategy="div", from_strategy="div")


def _feed(path: Path) -> None:
    hungry = Page("p", [Block("x", "Placeholder", attrs={"dtype": "float32", "shape": [2]})])
    save(hungry, path.with_name("page.json"))
    if main(["run", str(path.with_name("page.json")), "--fetch", "x", "--feed", f"x={path}"]):
        raise OSError


def _array(path: Path) -> None:
    save(page(), path.with_name("page.json"))
    (array,) = path.with_name("page.json.arrays").iterdir()
    array.unlink()
    os.rename(path, array)
    load(path.with_name("page.json"))


READERS: dict[str, Callable[[Path], Any]] = {
    "page": load,
    "array": _array,
    "enuspace": read_enuspace,
    "dat": _enuspace_data,
    "state": load_state,
    "data": _data_of_a_checkpoint,
    "index": _index_of_a_checkpoint,
    "latest": _state_of_a_checkpoint,
    "npy part": lambda path: _parts(path, "npy"),
    "safetensors part": lambda path: _parts(path, "safetensors"),
    "feed": _feed,
}


@pytest.mark.parametrize("reader", READERS)
def test_pipes_are_rejected_without_blocking(tmp_path: Path, reader: str) -> None:
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in" / "pipe")
    with pytest.raises((rg.errors.OpError, OSError)):
        READERS[reader](tmp_path / "in" / "pipe")


def test_a_pipe_that_replaces_a_file_before_open_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be replaced between the check and the open."""
    write_tensors(tmp_path / "model", {"t": np.ones(2, np.float32)})
    checkpoint = Checkpoint(tmp_path / "model")
    data = tmp_path / "model.data-00000-of-00001"
    data.unlink()
    os.mkfifo(data)
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    monkeypatch.setattr(os.path, "isfile", lambda _: True)
    with pytest.raises(OSError, match="not a regular file"):
        checkpoint.read("t")


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    os.symlink(tmp_path / "file", tmp_path / "link")
    with open_plain(tmp_path / "link") as file:
        assert file.read() == b"x"
    with pytest.raises(OSError, match="symbolic link"):
        open_plain(tmp_path / "link", follow_links=False)
    with pytest.raises(OSError, match="not a regular file"):
        open_plain("/dev/zero")
    with pytest.raises(IsADirectoryError, match="this is a folder"):
        open_plain(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_plain(tmp_path / "none", follow_links=False)


# -- control characters --------------------------------------------------------------------------

EVIL = "\x1b]0;title\x07\x9b31m\u202e"


def test_control_characters_are_escaped() -> None:
    assert printable(f"a{EVIL}\tb\nc") == "a\\x1b]0;title\\x07\\x9b31m\\u202e\tb\nc"
    assert printable("größe → 5") == "größe → 5"


@pytest.mark.parametrize("flag", [[], ["--json"], ["--debug"]])
def test_commands_escape_control_characters_from_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: list[str]
) -> None:
    wrong = Page(EVIL, [Block("c", EVIL, {"val": LARGE}), Block("d", "Const", {"val": np.array([EVIL], object)})])
    both = page(EVIL), wrong
    from rowgrad.graph import Project

    save(Project(EVIL, [both[0], Page(f"{EVIL}2", wrong.blocks)]), tmp_path / "project.json")
    drawn = svg({EVIL.replace("\x1b", "").replace("\x07", ""): Drawn("Const", {"val": Pin("double", "", [1])})}, [])
    (tmp_path / "old.svg").write_text(drawn, encoding="utf-16")
    project = str(tmp_path / "project.json")
    commands = [
        ["check", project],
        ["run", project],
        ["run", project, "--page", EVIL],
        ["run", project, "--fetch", EVIL],
        ["run", project, "--page", f"{EVIL}2", "--fetch", "d"],
        ["run", f"{tmp_path}/{EVIL}"],
        ["run", project, "--state", str(tmp_path / "s"), "--page", EVIL],
        ["import", str(tmp_path / "old.svg"), "--force"],
        ["export", project, "--dot", "--page", "x"],
        ["ops", EVIL],
        ["reshard", f"{tmp_path}/{EVIL}", str(tmp_path / "out"), "--parts", "1", "--strategy", "div"],
        [EVIL],
    ]
    for words in commands:
        with contextlib.suppress(SystemExit):
            main([*words, *flag])
        shown = capsys.readouterr()
        found = {c for c in shown.out + shown.err if (c in EVIL and not c.isascii()) or c in "\x1b\x07\x9b"}
        assert not found, (words, shown)
        if flag == ["--json"] and shown.out:
            json.loads(shown.out)


def test_a_drawing_on_a_terminal_has_no_control_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    save(page(EVIL), tmp_path / "p.json")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert main(["export", str(tmp_path / "p.json"), "--dot"]) == 0
    assert "\x1b" not in sys.stdout.getvalue()  # type: ignore[attr-defined]


# -- names of pages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["a*b", "a?", "c:d", 'a"b', "a<b", "a>b", "a|b", "a.", "a ", " a", "con", "nul.txt", "com1", "LPT9.x", "com¹",
     "CON", "CONIN$", "aux .b", "a\x1bb", "a\nb", "a\u202eb", "..", ".a", "a/b", "a\\b", ""],
)  # fmt: skip
def test_invalid_page_names_raise(name: str) -> None:
    assert page_names.fault(name) is not None
    with pytest.raises(rg.errors.InvalidArgumentError):
        page_names.checked(name)
    assert page_names.fault(page_names.valid_name(name)) is None


def test_valid_page_names_are_accepted() -> None:
    for name in ("a", "Größe 2", "a.b", "console", "a-b_c", "comma", "日本"):
        assert page_names.checked(name) == name


def test_a_loaded_page_still_runs(tmp_path: Path) -> None:
    save(page(), tmp_path / "p.json")
    found = load(tmp_path / "p.json")
    assert isinstance(found, Page)
    assert ClientSession(build(found)).run_block()["c.output"].shape == (1000,)
