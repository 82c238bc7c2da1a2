"""Pages are created, renamed, deleted and restored; if the studio is killed meanwhile, pages stay complete."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pytest
from studio_without_runs import folder_in, large, listed, small

from kill_at_line import killed_at, lines_of
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import Page, PageError, load


def test_pages_are_made_renamed_removed_and_brought_back(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    assert folder.new()["name"] == "page"
    assert folder.new()["name"] == "page 2"
    assert folder.new(page=large("a/b"))["name"] == "a-b"
    revision = folder.info("a-b")["revision"]
    with pytest.raises(InvalidArgumentError, match="already"):
        folder.new("page")
    with pytest.raises(InvalidArgumentError, match="already"):
        folder.rename("a-b", "page")
    assert folder.rename("a-b", "net")["revision"] == revision
    assert folder.rename("net", "net")["name"] == "net"
    bits = large()["a"].values["val"].tobytes()
    assert folder_in(tmp_path).open("net")[0]["a"].values["val"].tobytes() == bits
    assert not (tmp_path / "a-b.json.arrays").exists()
    folder.remove("net")
    assert listed(folder) == ["page", "page 2"]
    assert not (tmp_path / "net.json.arrays").exists()
    for act in (folder.open, folder.remove, folder.info, lambda name: folder.rename(name, "x")):
        with pytest.raises(InvalidArgumentError, match="there is no page 'net'"):
            act("net")
    folder.new("net", small())
    folder.remove("net")
    folder.new("net", small(number=4.0))
    assert folder.bring_back("net")["name"] == "net 2"  # the one removed last, beside the one there is
    assert folder.open("net 2")[0]["a"].values["val"].tolist() == [1.0, 2.0]
    assert folder.bring_back("net")["name"] == "net 3"
    (tmp_path / ".rowgrad" / "arrays").rename(tmp_path / "gone")
    assert folder_in(tmp_path).open("net 3")[0]["a"].values["val"].tobytes() == bits  # with its own arrays
    with pytest.raises(InvalidArgumentError, match="no page 'net' was removed"):
        folder.bring_back("net")


def test_a_page_that_cannot_be_read_is_renamed_and_removed_too(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text("{")
    folder = folder_in(tmp_path)
    assert "error" in folder.rename("cut", "cut off")
    folder.remove("cut off")
    assert "error" in folder.bring_back("cut off")
    assert (tmp_path / "cut off.json").read_text() == "{"


def test_a_project_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="must be a folder"):
        folder_in(tmp_path / "nowhere")


def test_arrays_are_there_before_a_page_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, moves = folder_in(tmp_path), []
    folder.save("p", None, large())
    real = os.rename

    def rename(old: Path, new: Path) -> None:
        moves.append([len(list(Path(f"{path}.arrays").iterdir())) for path in (old, new)])
        real(old, new)

    monkeypatch.setattr(os, "rename", rename)
    folder.rename("p", "q")
    folder.remove("q")
    folder.bring_back("q")
    assert moves == [[1, 1]] * 3


PAGES = [large(seed=seed, count=3000 + seed) for seed in range(3)]


def write_in_turns(root: Path, first: int, last: int = 1 << 30) -> None:
    """Save, rename, remove and bring back a page, again and again. A page was lost if there is none to begin with."""
    folder = folder_in(root)
    for turn in range(first, last):
        name = (listed(folder) or [folder.bring_back("p")["name"]])[0]
        assert folder.save(name, folder.open(name)[1], PAGES[turn % 3]).conflict_page is None
        if turn % 3 == 0:
            folder.rename(name, "q" if name == "p" else "p")
        elif turn % 3 == 1 and name == "p":
            folder.remove("p")
            folder.bring_back("p")


def test_being_killed_leaves_whole_pages(tmp_path: Path) -> None:
    wanted = [page["a"].values["val"].tobytes() for page in PAGES]
    folder_in(tmp_path).save("p", None, PAGES[0])
    draw, seen, left = random.Random(0), set(), 0
    lines = lines_of(lambda: write_in_turns(tmp_path, 0, 6)) // 2
    for trial in range(400):
        if trial >= 40 and len({bits for _, bits in seen}) == 3 and len({name for name, _ in seen}) == 2 and left > 5:
            break
        killed_at(draw.randint(1, lines), partial(write_in_turns, tmp_path, trial))
        files = [p for p in tmp_path.rglob("[pq].json") if p.parent.name != "arrays"]
        assert files  # in the folder, or among what was removed
        for file in files:
            page = load(file)  # as any program reads it, without the pool
            assert isinstance(page, Page)
            seen.add((file.name, wanted.index(page["a"].values["val"].tobytes())))
        left += any(".tmp" in str(p) for p in tmp_path.rglob("*.tmp")) or not (tmp_path / files[0].name).exists()
    assert len({bits for _, bits in seen}) == 3
    assert {name for name, _ in seen} == {"p.json", "q.json"}
    assert left > 5  # many were in the middle of it
    folder = folder_in(tmp_path)
    name = (listed(folder) or [folder.bring_back("p")["name"]])[0]
    assert folder.save(name, folder.open(name)[1], small()).conflict_page is None
