"""A project's folder: the first writer wins, no edit is lost, and no path leads out of the folder."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from studio_without_runs import listed_names, make_folder, page_with_array, project_files, small_page

from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import Page, PageError, Project, load, save
from rowgrad.studio import page_names
from rowgrad.studio.array_pool import Pool
from rowgrad.studio.project import MOST_FILE, Folder, Listing


def test_pages_are_listed_by_name(tmp_path: Path) -> None:
    save(small_page("other"), tmp_path / "net.json")
    save(page_with_array(), tmp_path / "Big.json")
    (tmp_path / "package.json").write_text('{"name": "x"}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / ".hidden.json").write_text("x")
    (tmp_path / "old.json").write_bytes('{"object": []}'.encode("utf-16"))
    (tmp_path / "folder.json").mkdir()
    pages = make_folder(tmp_path).pages()
    assert [(p["name"], p["blocks"], "error" in p) for p in pages] == [("Big", 1, False), ("net", 2, False)]
    assert pages[1]["modified"] == (tmp_path / "net.json").stat().st_mtime
    page, revision = make_folder(tmp_path).open("net")
    assert (page.name, revision) == ("net", pages[1]["revision"])


def test_unreadable_pages_are_listed_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('{"format": "rowgrad-page", "ver')
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "new.json").write_text('{"format": "rowgrad-page", "version": 99}')
    (tmp_path / "twice.json").write_text('{"format": "rowgrad-page", "format": "rowgrad-page"}')
    (tmp_path / f"{'x' * 120}.json").write_text('{"format": "rowgrad-page", "version": 1, "name": "", "blocks": []}')
    (tmp_path / "away.json").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe.json")
    folder = make_folder(tmp_path)
    error_texts = {entry["name"]: entry["error"] for entry in folder.pages()}
    assert error_texts.keys() == {"cut", "empty", "new", "twice", "x" * 120, "away", "pipe"}
    for name, words in {
        "cut": "not JSON",
        "new": "newer rowgrad",
        "away": "symbolic link",
        "pipe": "not a regular file",
    }.items():
        assert words in error_texts[name]
        with pytest.raises(PageError, match=words):
            folder.open(name)
    (tmp_path / "cut.json").write_text('{"format": "rowgrad-page", "version": 1, "name": "", "blocks": []}')
    assert "error" not in folder.info("cut")


def test_oversized_special_and_missing_files_raise(tmp_path: Path) -> None:
    (tmp_path / "long.json").touch()
    os.truncate(tmp_path / "long.json", MOST_FILE + 1)  # a sparse file
    os.mknod(tmp_path / "socket.json", stat.S_IFSOCK | 0o600)
    assert {entry["name"]: entry["error"] for entry in make_folder(tmp_path).pages()} == {
        "long": f"long.json: a page's file has at most {MOST_FILE} bytes",
        "socket": f"{tmp_path / 'socket.json'}: this is not a regular file",
    }
    assert Listing(tmp_path)._read_entry("gone") is None


def test_a_project_file_is_not_opened_as_a_page(tmp_path: Path) -> None:
    save(Project("all", [small_page("one"), page_with_array("two")]), tmp_path / "all.json")
    folder = make_folder(tmp_path)
    assert folder.info("all")["pages"] == ["one", "two"]
    assert "import it" in folder.info("all")["error"]
    with pytest.raises(PageError, match="project"):
        folder.open("all")
    assert [page.name for page in folder.pages_of("all")] == ["one", "two"]


BAD_NAMES = ["", ".", "..", "../x", "a/b", "a\\b", ".x", "x.", " x", "a\nb", "a\0b", "a\u202eb", "\ud800", "x" * 101,
             "한" * 99, "NUL", "com1.x", "/etc/passwd"]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_invalid_page_names(name: str, tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    save(small_page(), tmp_path / "x.json")
    save(small_page(), root / "p.json")
    folder, before = make_folder(root), project_files(tmp_path)
    for act in (
        lambda: folder.open(name), lambda: folder.save(name, None, small_page()), lambda: folder.new(name),
        lambda: folder.rename("p", name), lambda: folder.rename(name, "q"), lambda: folder.remove(name),
        lambda: folder.bring_back(name), lambda: folder.pages_of(name),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match="must be a page's name"):
            act()
    assert project_files(tmp_path) == before
    assert page_names.fault(page_names.valid_name(name)) is None
    assert page_names.fault(page_names.valid_name(name, 30) + "x" * 30) is None


def test_names_that_differ_only_in_case_conflict(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    folder.new("Net")
    for act in (lambda: folder.new("net"), lambda: folder.save("NET", None, small_page())):
        with pytest.raises(InvalidArgumentError, match=r"already has a file 'Net\.json'"):
            act()
    assert folder.rename("Net", "net")["name"] == "net"
    assert listed_names(folder) == ["net"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "project", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    save(page_with_array(), outside / "x.json")
    before = project_files(outside)
    (root / "x.json").symlink_to(outside / "x.json")
    (root / "y.json.arrays").symlink_to(outside / "x.json.arrays")
    folder = make_folder(root)
    for act in (
        lambda: folder.open("x"), lambda: folder.save("x", None, small_page()), lambda: folder.remove("x"),
        lambda: folder.rename("x", "z"), lambda: folder.save("y", None, page_with_array(seed=3)),
        lambda: folder.pages_of("x"),
    ):  # fmt: skip
        with pytest.raises(PageError, match="symbolic link"):
            act()
    save(small_page(), root / "q.json")
    (root / ".rowgrad").mkdir(exist_ok=True)
    (root / ".rowgrad" / "removed").symlink_to(outside)
    with pytest.raises(PageError, match="symbolic link"):
        folder.remove("q")
    assert project_files(outside) == before


def test_a_saved_page_is_complete_without_the_pool(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    page = page_with_array("called otherwise")
    saved = folder.save("p", None, page)
    found = load(tmp_path / "p.json")
    assert isinstance(found, Page)
    assert found.name == "p"
    assert found["a"].values["val"].tobytes() == page["a"].values["val"].tobytes()
    assert folder.open("p")[1] == saved.revision == folder.info("p")["revision"]
    other = tmp_path / "other"
    other.mkdir()
    save(found, other / "p.json")
    assert project_files(other) == {k: v for k, v in project_files(tmp_path).items() if not k.startswith("other")}
    folder.save("p", saved.revision, small_page())
    assert project_files(tmp_path).keys() - {f"other/{k}" for k in project_files(other)} == {
        "p.json"
    }  # no array is left


def test_the_same_page_is_not_written_again(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    first = folder.save("p", None, page_with_array())
    before = os.stat(tmp_path / "p.json")
    again = folder.save("p", "anything", page_with_array())
    assert (again.revision, again.conflict_page, again.written) == (first.revision, None, False)
    assert os.stat(tmp_path / "p.json").st_ino == before.st_ino
    (file,) = (tmp_path / "p.json.arrays").iterdir()
    file.unlink()
    assert folder.save("p", first.revision, page_with_array()).written  # missing files are written again
    assert load(tmp_path / "p.json")


def test_the_first_writer_wins_and_the_other_becomes_a_copy(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    base = folder.save("p", None, small_page()).revision
    first = folder.save("p", base, small_page(number=5.0))
    second = folder.save("p", base, page_with_array(seed=7))
    assert first.conflict_page is None
    assert second.conflict_page is not None
    assert second.conflict_page.startswith("p (kept ")
    assert second.revision == first.revision
    assert folder.open("p")[0]["a"].values["val"].tolist() == [5.0, 2.0]
    conflicting, _ = folder.open(second.conflict_page)
    assert conflicting.name == second.conflict_page
    assert conflicting["a"].values["val"].tobytes() == page_with_array(seed=7)["a"].values["val"].tobytes()
    # A repeated save, as after a lost response, creates no further copy; another edit does.
    again = folder.save("p", base, page_with_array(seed=7))
    assert (again.revision, again.conflict_page, again.written) == (first.revision, second.conflict_page, False)
    assert [(conflict.block, conflict.name) for conflict in again.conflicts] == [("a", "val")]
    third = folder.save("p", base, page_with_array(seed=8)).conflict_page
    assert third not in (None, second.conflict_page)
    folder.save(second.conflict_page, "old", small_page())
    assert len(listed_names(folder)) == 4
    assert all(name.count("kept") == 1 for name in listed_names(folder) if name != "p")


def test_edits_by_another_program_count_as_conflicts(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    base = folder.save("p", None, small_page()).revision
    save(page_with_array("p", seed=1), tmp_path / "p.json")
    before = project_files(tmp_path)
    saved = folder.save("p", base, small_page(number=9.0))
    assert saved.conflict_page is not None
    assert before.items() <= project_files(tmp_path).items()
    (tmp_path / "p.json").write_text("<<<<<<< a merge")
    saved = folder.save("p", saved.revision, small_page(number=10.0))
    assert saved.conflict_page is not None
    assert (tmp_path / "p.json").read_text() == "<<<<<<< a merge"


def test_a_page_without_a_base_overwrites_nothing(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    folder.save("p", None, small_page())
    assert folder.save("p", None, small_page(number=3.0)).conflict_page is not None


def test_saving_a_deleted_page_creates_it_again(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    base = folder.save("p", None, page_with_array()).revision
    (tmp_path / "p.json").unlink()
    assert folder.save("p", base, page_with_array(seed=2)).conflict_page is None
    assert folder.open("p")[0]["a"].values["val"].tobytes() == page_with_array(seed=2)["a"].values["val"].tobytes()


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    base = folder.save("p", None, small_page()).revision
    results = []
    threads = [
        threading.Thread(target=lambda k=k: results.append(folder.save("p", base, small_page(number=k + 10.0))))
        for k in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(saved.conflict_page is None for saved in results) == 1
    numbers = {folder.open(name)[0]["a"].values["val"][0] for name in listed_names(folder)}
    assert numbers == {k + 10.0 for k in range(8)}


def test_a_large_array_survives_removal_and_undo(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    folder = Folder(tmp_path, pool)
    page = page_with_array(count=2_621_440)  # 10 MB
    bits = page["a"].values["val"].tobytes()
    revision = folder.save("p", None, page).revision
    tree = json.loads(json.dumps(pool.write_page(folder.open("p")[0])))
    revision = folder.save("p", revision, Page("p")).revision  # the block is deleted
    assert project_files(tmp_path).keys() == {"p.json"}
    restarted = Pool(tmp_path)  # after a restart
    folder = Folder(tmp_path, restarted)
    begun = time.process_time()
    folder.save("p", revision, restarted.read_page(tree))  # undo
    assert time.process_time() - begun < 5
    found = load(tmp_path / "p.json")
    assert isinstance(found, Page)
    assert found["a"].values["val"].tobytes() == bits
    (file,) = (tmp_path / "p.json.arrays").iterdir()
    assert os.stat(file).st_nlink == 2  # one file for pool and page


def test_arrays_are_copied_once_where_hard_links_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", fail)
    folder = make_folder(tmp_path)
    page = page_with_array()
    revision = folder.save("p", None, page).revision
    (file,) = (tmp_path / "p.json.arrays").iterdir()
    before = os.stat(file)
    page.blocks[0].at = (1.0, 2.0)
    folder.save("p", revision, page)
    assert (os.stat(file).st_nlink, os.stat(file).st_ino) == (1, before.st_ino)
    assert folder.rename("p", "q")["blocks"] == 1
    assert np.array_equal(make_folder(tmp_path).open("q")[0]["a"].values["val"], page["a"].values["val"])


def test_pool_and_page_restore_missing_arrays_from_each_other(tmp_path: Path) -> None:
    save(page_with_array(), tmp_path / "p.json")
    (file,) = (tmp_path / "p.json.arrays").iterdir()
    arrays = tmp_path / ".rowgrad" / "arrays"
    arrays.mkdir(parents=True)
    (arrays / file.name).write_bytes(b"damaged")
    folder = make_folder(tmp_path)
    assert folder.open("p")[0]["a"].values["val"].size == 1000
    file.unlink()  # in the other direction
    assert make_folder(tmp_path).open("p")[0]["a"].values["val"].size == 1000


def test_a_damaged_array_is_reported_and_not_copied(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    folder = Folder(tmp_path, pool)
    folder.save("p", None, page_with_array())
    page, revision = folder.open("p")
    (file,) = (tmp_path / "p.json.arrays").iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"!")  # both names are links to this file
    page.blocks[0].at = (1.0, 1.0)
    with pytest.raises(PageError, match="not what its name says"):
        make_folder(tmp_path).open("p")
    file.unlink()
    with pytest.raises(PageError, match="damaged"):
        folder.save("p", revision, page)
    assert not file.exists()
