"""Pages in files: the text, the folder of arrays beside it, and errors in either."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_samples import (
    array_of,
    basic,
    load_page,
    load_page_file,
    page_of,
    project,
    same,
    same_blocks,
    through_file,
    varied,
)

from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.graph.io import dumps, load, loads, save
from rowgrad.graph.io import store as page_store
from rowgrad.graph.page import Block, Page, PageError, Project


def test_pages_and_projects_round_trip(tmp_path: Path) -> None:
    for page in (basic(), varied(), Page("")):
        assert same_blocks(load_page(dumps(page)), page)
        save(page, tmp_path / "p.json")
        again = load_page_file(tmp_path / "p.json")
        assert same_blocks(again, page)
    save(project(), tmp_path / "all.json")
    again = load(tmp_path / "all.json")
    assert isinstance(again, Project)
    assert again.name == "all"
    assert all(map(same_blocks, again.pages, project().pages))
    with pytest.raises(TypeError):
        save({}, tmp_path / "x")  # type: ignore[arg-type]


def test_the_text_of_a_page() -> None:
    const = '"op": "Const", "at": [40, {}], "values": {{"val": {{"dtype": "float64", "shape": {}, "data": {}}}}}'
    assert dumps(basic()).splitlines() == [
        "{",
        ' "format": "rowgrad-page", "version": 1, "name": "basic",',
        ' "blocks": [',
        '  {"id": "A", ' + const.format(40, "[2, 2]", "[[3.0, 2.0], [-1.0, 0.0]]") + "},",
        '  {"id": "b", ' + const.format(140, "[1, 2]", "[[3.0, 5.0]]") + "},",
        '  {"id": "v", "op": "MatMul", "at": [200, 60.5], "in": {"a": "A.output", "b": "b.output"}, '
        '"attrs": {"transpose_b": true}},',
        '  {"id": "s", "op": "ClientSession", "in": {"fetch_outputs": "v.product"}, "hidden": ["fetch_outputs"]}',
        " ],",
        ' "notes": [',
        '  {"text": "A·bᵀ: the example every page begins with", "at": [0, 0]}',
        " ]",
        "}",
    ]
    assert dumps(Page("é")) == '{\n "format": "rowgrad-page", "version": 1, "name": "é",\n "blocks": []\n}\n'


def test_saving_a_loaded_page_changes_nothing(tmp_path: Path) -> None:
    big = varied()
    big.blocks += [Block(f"big/{d}", "Const", {"val": array_of(d, (700, 3), i)}) for i, d in enumerate(NUMPY_DTYPE)]
    path = tmp_path / "page.json"
    save(big, path)
    first = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert len(first) == 1 + len(NUMPY_DTYPE)
    times = {p: p.stat().st_mtime_ns for p in first if p != path}
    save(load(path), path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == first
    assert {p: p.stat().st_mtime_ns for p in times} == times  # files are not rewritten
    for text in (dumps(big), dumps(project())):
        assert dumps(loads(text)) == text


@pytest.mark.parametrize("which", range(4))
def test_editing_one_block_changes_only_its_lines(which: int) -> None:
    before, page = dumps(basic()).splitlines(), basic()
    page.blocks[which].at = (7.0, 7.0)
    after = dumps(page).splitlines()
    assert [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == [3 + which]


def test_long_blocks_span_several_lines() -> None:
    page = varied()
    page.blocks.append(Block("long", "Const", {"val": np.arange(100)}, attrs={"words": ["a, b"] * 100}))
    assert max(map(len, dumps(page).splitlines())) <= 160
    lines = dumps(page_of("x" * 500)).splitlines()
    assert lines[3:8] == ["  {", '   "id": "c",', '   "op": "Const",', '   "values": {', f'    "val": "{"x" * 500}"']


def test_large_arrays_are_files_that_numpy_reads(tmp_path: Path) -> None:
    path = tmp_path / "basic.json"
    shared = array_of("float32", (300, 4))
    texts = np.array(["é" * 50] * 30, dtype=object)
    page = Page("p", [Block(f"b{i}", "Const", {"val": v}) for i, v in enumerate((shared, shared.copy(), texts))])
    page.blocks.append(Block("small", "Const", {"val": np.zeros(128), "bf": array_of("bfloat16", (600,))}))
    save(page, path)
    encoded = [b["values"]["val"] for b in json.loads(path.read_text())["blocks"]]
    assert encoded[0] == encoded[1]
    assert "data" in encoded[3]
    found = sorted(p.suffix for p in (tmp_path / "basic.json.arrays").iterdir())
    assert found == [".json", ".npy", ".npy"]
    assert same(np.load(tmp_path / "basic.json.arrays" / encoded[0]["file"], allow_pickle=False), shared)
    again = load_page_file(path)
    assert same_blocks(again, page)
    assert np.shares_memory(again["b0"].values["val"], again["b1"].values["val"])
    save(basic(), path)  # refers to no array file
    assert [p.name for p in tmp_path.iterdir()] == ["basic.json"]


def test_a_page_of_ten_megabytes_round_trips(tmp_path: Path) -> None:
    array = array_of("float64", (1310, 1000))
    assert same(through_file(array, tmp_path / "p.json"), array)
    assert (tmp_path / "p.json").stat().st_size < 500


@pytest.mark.parametrize("damage", ["missing", "changed", "shorter", "longer", "folder", "pipe", "other"])
@pytest.mark.parametrize("dtype", ["float32", "string"])
def test_damaged_array_files_raise_with_their_name(dtype: str, damage: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    save(page_of(array_of(dtype, (700, 3))), path)
    (file,) = (tmp_path / "p.json.arrays").iterdir()
    raw = file.read_bytes()
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage == "pipe":
        os.mkfifo(file)
    elif damage != "missing":
        middle = len(raw) // 2
        changed = raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :]
        file.write_bytes({"changed": changed, "shorter": raw[:-1], "longer": raw + b"\n", "other": b""}[damage])
    with pytest.raises(PageError, match=str(file)) as caught:
        load(path)
    assert caught.value.place == "blocks[0].values.val.file"


@pytest.mark.parametrize(
    ("key", "value"),
    [("shape", [3, 700]), ("shape", [2100]), ("dtype", "int32"), ("dtype", "qint32"), ("shape", [10**15])],
)
def test_array_files_must_match_the_page(key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    save(page_of(array_of("float32", (700, 3))), path)
    tree = json.loads(path.read_text())
    tree["blocks"][0]["values"]["val"][key] = value
    path.write_text(json.dumps(tree))
    with pytest.raises(PageError, match=r"p\.json\.arrays") as caught:
        load(path)
    assert caught.value.place == "blocks[0].values.val.file"


def test_missing_folders_and_undecodable_page_files_raise(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError):
        save(basic(), tmp_path / "none" / "p.json")
    for act in (load, lambda p: save(basic(), p)):
        with pytest.raises(PageError, match="folder"):
            act(tmp_path)
    (tmp_path / "p.json").write_bytes(b'{\n "name": "\xff"}')
    with pytest.raises(PageError, match="not UTF-8") as caught:
        load(tmp_path / "p.json")
    assert caught.value.place == "line 2"
    assert caught.value.__notes__ == [f"in {tmp_path / 'p.json'}"]


def test_saving_preserves_links_and_permissions(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "p.json"
    save(basic(), target)
    target.chmod(0o640)
    (tmp_path / "link.json").symlink_to(target)
    save(page_of(array_of("int8", (2000,))), tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert isinstance(load(tmp_path / "link.json"), Page)


def test_leftover_temporary_files_are_removed(tmp_path: Path) -> None:
    path, folder = tmp_path / "p.json", tmp_path / "p.json.arrays"
    save(page_of(array_of("int8", (2000,))), path)
    token = "0123456789abcdef"
    left = [tmp_path / f".p.json.{token}.tmp", folder / f".{'0' * 64}.npy.{token}.tmp"]
    others = [tmp_path / f".q.json.{token}.tmp", folder / "README", tmp_path / ".p.json.swp", folder / ("0" * 64)]
    fresh = [tmp_path / f".p.json.{token[::-1]}.tmp"]
    for file in (*left, *others, *fresh):
        file.write_bytes(b"")
        if file not in fresh:
            os.utime(file, (0, 0))
    (folder / f"{'1' * 64}.npy").write_bytes(b"")
    save(page_of(array_of("int8", (2000,))), path)
    assert not any(file.exists() for file in left)
    assert all(file.exists() for file in (*others, *fresh))
    assert not (folder / f"{'1' * 64}.npy").exists()


def test_concurrent_readers_see_complete_pages(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    pages = [page_of([array_of("float32", (400,), seed), array_of("int8", (3000,), seed)]) for seed in range(2)]
    save(pages[0], path)
    stop, faults = threading.Event(), list[BaseException]()

    def repeat(act: Callable[[], Any]) -> None:
        try:
            while not stop.is_set():
                act()
        except BaseException as fault:
            faults.append(fault)

    def read() -> None:
        page = load_page_file(path)
        assert any(same_blocks(page, p) for p in pages)

    work = [lambda: save(pages[0], path), lambda: save(pages[1], path), read]
    threads = [threading.Thread(target=repeat, args=(act,)) for act in work]
    for thread in threads:
        thread.start()
    stop.wait(1.5)
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults
    read()


def test_an_array_changed_during_the_save_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.json"
    save(basic(), path)
    array = array_of("int8", (5000,))
    there = page_store.arrays.is_there

    def change_then_compare(*args: Any) -> bool:
        array[0] += 1
        return there(*args)

    monkeypatch.setattr(page_store.arrays, "is_there", change_then_compare)
    with pytest.raises(PageError, match="changed while"):
        save(page_of(array), path)
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]
    page = load_page_file(path)
    assert same_blocks(page, basic())
