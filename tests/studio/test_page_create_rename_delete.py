"""Pages are created, renamed, deleted and restored; if the studio is killed meanwhile, pages stay complete."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pytest
from studio_without_runs import listed_names, make_folder, page_with_array, small_page

from kill_at_line import killed_at, lines_of
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import Page, PageError, load


def test_pages_are_created_renamed_removed_and_restored(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    assert folder.new()["name"] == "page"
    assert folder.new()["name"] == "page 2"
    assert folder.new(page=page_with_array("a/b"))["name"] == "a-b"
    revision = folder.info("a-b")["revision"]
    with pytest.raises(InvalidArgumentError, match="already"):
        folder.new("page")
    with pytest.raises(InvalidArgumentError, match="already"):
        folder.rename("a-b", "page")
    assert folder.rename("a-b", "net")["revision"] == revision
    assert folder.rename("net", "net")["name"] == "net"
    bits = page_with_array()["a"].values["val"].tobytes()
    assert make_folder(tmp_path).open("net")[0]["a"].values["val"].tobytes() == bits
    assert not (tmp_path / "a-b.json.arrays").exists()
    folder.remove("net")
    assert listed_names(folder) == ["page", "page 2"]
    assert not (tmp_path / "net.json.arrays").exists()
    for act in (folder.open, folder.remove, folder.info, lambda name: folder.rename(name, "x")):
        with pytest.raises(InvalidArgumentError, match="there is no page 'net'"):
            act("net")
    folder.new("net", small_page())
    folder.remove("net")
    folder.new("net", small_page(number=4.0))
    assert folder.bring_back("net")["name"] == "net 2"  # the one removed last, next to the existing page
    assert folder.open("net 2")[0]["a"].values["val"].tolist() == [1.0, 2.0]
    assert folder.bring_back("net")["name"] == "net 3"
    (tmp_path / ".rowgrad" / "arrays").rename(tmp_path / "gone")
    assert make_folder(tmp_path).open("net 3")[0]["a"].values["val"].tobytes() == bits  # with its own arrays
    with pytest.raises(InvalidArgumentError, match="no page 'net' was removed"):
        folder.bring_back("net")


def test_an_unreadable_page_can_be_renamed_and_removed(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text("{")
    folder = make_folder(tmp_path)
    assert "error" in folder.rename("cut", "cut off")
    folder.remove("cut off")
    assert "error" in folder.bring_back("cut off")
    assert (tmp_path / "cut off.json").read_text() == "{"


def test_a_project_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="must be a folder"):
        make_folder(tmp_path / "nowhere")


def test_arrays_are_moved_before_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, moves = make_folder(tmp_path), []
    folder.save("p", None, page_with_array())
    real = os.rename

    def rename(old: Path, new: Path) -> None:
        moves.append([len(list(Path(f"{path}.arrays").iterdir())) for path in (old, new)])
        real(old, new)

    monkeypatch.setattr(os, "rename", rename)
    folder.rename("p", "q")
    folder.remove("q")
    folder.bring_back("q")
    assert moves == [[1, 1]] * 3


PAGES = [page_with_array(seed=seed, count=3000 + seed) for seed in range(3)]


def write_in_turns(root: Path, first: int, last: int = 1 << 30) -> None:
    """Save, rename, remove and restore a page repeatedly. Fails if there is no page to start with."""
    folder = make_folder(root)
    for turn in range(first, last):
        name = (listed_names(folder) or [folder.bring_back("p")["name"]])[0]
        assert folder.save(name, folder.open(name)[1], PAGES[turn % 3]).conflict_page is None
        if turn % 3 == 0:
            folder.rename(name, "q" if name == "p" else "p")
        elif turn % 3 == 1 and name == "p":
            folder.remove("p")
            folder.bring_back("p")


def test_a_kill_leaves_complete_pages(tmp_path: Path) -> None:
    wanted = [page["a"].values["val"].tobytes() for page in PAGES]
    make_folder(tmp_path).save("p", None, PAGES[0])
    draw, seen, left = random.Random(0), set(), 0
    lines = lines_of(lambda: write_in_turns(tmp_path, 0, 6)) // 2
    for trial in range(400):
        if trial >= 40 and len({bits for _, bits in seen}) == 3 and len({name for name, _ in seen}) == 2 and left > 5:
            break
        killed_at(draw.randint(1, lines), partial(write_in_turns, tmp_path, trial))
        files = [p for p in tmp_path.rglob("[pq].json") if p.parent.name != "arrays"]
        assert files  # in the folder or among the removed pages
        for file in files:
            page = load(file)  # without the pool
            assert isinstance(page, Page)
            seen.add((file.name, wanted.index(page["a"].values["val"].tobytes())))
        left += any(".tmp" in str(p) for p in tmp_path.rglob("*.tmp")) or not (tmp_path / files[0].name).exists()
    assert len({bits for _, bits in seen}) == 3
    assert {name for name, _ in seen} == {"p.json", "q.json"}
    assert left > 5  # many kills hit a partial write
    folder = make_folder(tmp_path)
    name = (listed_names(folder) or [folder.bring_back("p")["name"]])[0]
    assert folder.save(name, folder.open(name)[1], small_page()).conflict_page is None
