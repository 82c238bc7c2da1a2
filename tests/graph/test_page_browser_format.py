"""Pages for a browser, which has one number type, saved with a folder of array files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_samples import array_of, basic, load_page, load_page_file, project, same_blocks, varied

from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.graph.io import arrays as page_arrays
from rowgrad.graph.io import browser_tree, dumps, files, read_tree, save, save_tree
from rowgrad.graph.page import Block, Page, PageError


def as_javascript(tree: Any) -> Any:
    """Return numbers as JavaScript writes them: whole floats as integers, -0 as 0."""
    if isinstance(tree, dict):
        return {k: as_javascript(v) for k, v in tree.items()}
    if isinstance(tree, list):
        return [as_javascript(v) for v in tree]
    if isinstance(tree, float) and tree.is_integer() and abs(tree) < 1e21:
        return int(tree)
    return tree


def page_of_odd_numbers() -> Page:
    page = varied()
    page.blocks += [
        Block(
            "floats",
            "Mystery",
            {"one": 3.0, "zero": -0.0, "list": [[1.0, 2], [-0.0, 1e300]], "pair": complex(-0.0, 2.0)},
            attrs={"eps": 1.0, "deep": [2.0, [3, -0.0]], "inf": float("-inf")},
        ),
        Block("zeros", "Const", {"val": np.array([-0.0, 0.0, 2.0], np.float32)}),
        Block("bzeros", "Const", {"val": np.array([-0.0, 1.0], NUMPY_DTYPE["bfloat16"])}),
        Block("czeros", "Const", {"val": np.array([complex(1.0, -0.0)])}),
    ]  # fmt: skip
    return page


def page_with_arrays() -> Page:
    page = page_of_odd_numbers()
    page.blocks += [Block(f"big/{d}", "Const", {"val": array_of(d, (700, 3), i)}) for i, d in enumerate(NUMPY_DTYPE)]
    return page


def write_browser_tree(page: Page, folder: Path) -> dict[str, Any]:
    """Return the page's tree as a browser sends it, with its arrays in a folder."""
    folder.mkdir(exist_ok=True)
    tree, contents = browser_tree(page)
    for name, content in contents.items():
        (folder / name).write_bytes(b"".join(content.buffers))
    sent: dict[str, Any] = json.loads(json.dumps(as_javascript(json.loads(json.dumps(tree)))))
    return sent


def test_floats_are_tagged() -> None:
    page = Page("p", [Block("b", "X", {"a": 3.0, "b": [1, 2.5, True]}, attrs={"c": [0.5, "x", None], "d": 1})])
    block = json.loads(dumps(page, browser=True))["blocks"][0]
    assert block["values"] == {"a": {"float": 3.0}, "b": [1, {"float": 2.5}, True]}
    assert block["attrs"] == {"c": [{"float": 0.5}, "x", None], "d": 1}
    assert json.loads(dumps(page))["blocks"][0]["values"] == {"a": 3.0, "b": [1, 2.5, True]}


def test_special_numbers_are_tagged() -> None:
    values = {"a": -0.0, "b": float("nan"), "c": float("inf"), "d": complex(-0.0, 1.0)}
    block = json.loads(dumps(Page("p", [Block("b", "X", values)]), browser=True))["blocks"][0]
    assert block["values"] == {
        "a": {"float": "-0.0"},
        "b": {"float": "NaN"},
        "c": {"float": "Infinity"},
        "d": {"complex": ["-0.0", 1.0]},
    }


def test_a_browser_returns_what_it_received() -> None:
    for page in (basic(), page_of_odd_numbers()):
        sent = json.dumps(as_javascript(json.loads(dumps(page, browser=True))))
        assert same_blocks(load_page(sent), page)
    plain = json.dumps(as_javascript(json.loads(dumps(page_of_odd_numbers()))))
    assert not same_blocks(load_page(plain), page_of_odd_numbers())


def test_trees_read_back_with_their_array_files(tmp_path: Path) -> None:
    tree = write_browser_tree(page_with_arrays(), tmp_path / "pool")
    found = read_tree(tree, tmp_path / "pool")
    assert isinstance(found, Page)
    assert same_blocks(found, page_with_arrays())
    assert len(os.listdir(tmp_path / "pool")) == len(NUMPY_DTYPE)


def test_save_tree_writes_the_same_files_as_save(tmp_path: Path) -> None:
    tree = write_browser_tree(page_with_arrays(), tmp_path / "pool")
    save_tree(tree, tmp_path / "one.json", tmp_path / "pool")
    save(page_with_arrays(), tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    one, two = tmp_path / "one.json.arrays", tmp_path / "two.json.arrays"
    assert sorted(os.listdir(one)) == sorted(os.listdir(two))
    assert all(os.path.samefile(one / name, tmp_path / "pool" / name) for name in os.listdir(one))
    assert same_blocks(load_page_file(tmp_path / "one.json"), page_with_arrays())
    save_tree(json.loads(dumps(project())), tmp_path / "all.json", tmp_path / "pool")
    save(project(), tmp_path / "all2.json")
    assert (tmp_path / "all.json").read_bytes() == (tmp_path / "all2.json").read_bytes()


def test_files_are_copied_where_hard_links_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*args: Any, **kwargs: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", no_link)
    tree = write_browser_tree(page_with_arrays(), tmp_path / "pool")
    save_tree(tree, tmp_path / "p.json", tmp_path / "pool")
    assert same_blocks(load_page_file(tmp_path / "p.json"), page_with_arrays())
    name = os.listdir(tmp_path / "p.json.arrays")[0]
    assert not os.path.samefile(tmp_path / "p.json.arrays" / name, tmp_path / "pool" / name)


def test_large_inline_arrays_are_moved_to_files(tmp_path: Path) -> None:
    tree = json.loads(dumps(page_with_arrays(), browser=True))
    save_tree(tree, tmp_path / "one.json", tmp_path / "nowhere")
    save(page_with_arrays(), tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_unreferenced_files_are_removed(tmp_path: Path) -> None:
    tree = write_browser_tree(page_with_arrays(), tmp_path / "pool")
    save_tree(tree, tmp_path / "p.json", tmp_path / "pool")
    tree["blocks"] = [b for b in tree["blocks"] if b["id"] in ("big/float32", "big/string")]
    save_tree(tree, tmp_path / "p.json", tmp_path / "nowhere")  # the files are in its own folder
    left = {b["values"]["val"]["file"] for b in tree["blocks"]}
    assert set(os.listdir(tmp_path / "p.json.arrays")) == left
    tree["blocks"] = []
    save_tree(tree, tmp_path / "p.json", tmp_path / "pool")
    assert not (tmp_path / "p.json.arrays").exists()
    assert len(os.listdir(tmp_path / "pool")) == len(NUMPY_DTYPE)


@pytest.mark.parametrize("damage", ["gone", "cut", "bits", "dtype", "shape", "name", "wire"])
def test_an_invalid_tree_raises_and_nothing_is_written(tmp_path: Path, damage: str) -> None:
    save(basic(), tmp_path / "p.json")
    before = (tmp_path / "p.json").read_bytes()
    page = Page("p", [Block(n, "Const", {"val": array_of("float32", (700,), k)}) for k, n in enumerate("ab")])
    tree = write_browser_tree(page, tmp_path / "pool")
    second = tree["blocks"][1]["values"]["val"]
    file = tmp_path / "pool" / second["file"]
    place = "blocks[1].values.val.file"
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-4])
    elif damage == "bits":
        raw = bytearray(file.read_bytes())
        raw[-1] ^= 1
        file.write_bytes(raw)
    elif damage == "dtype":
        second["dtype"] = "int32"
    elif damage == "shape":
        second["shape"] = [350, 2]
    elif damage == "name":
        second["file"] = "../" + second["file"]
    else:
        tree["blocks"][1]["in"] = {"x": "c.output"}
        place = "blocks[1].in.x"
    with pytest.raises(PageError) as caught:
        save_tree(tree, tmp_path / "p.json", tmp_path / "pool")
    assert caught.value.place == place
    assert (tmp_path / "p.json").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["p.json", "pool"]


def test_an_array_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = write_browser_tree(page_with_arrays(), tmp_path / "pool")
    save_tree(tree, tmp_path / "p.json", tmp_path / "pool")
    read: list[str] = []
    whole = page_arrays.read_reference

    def count_reads(reference: page_arrays.Reference, folder: Any) -> Any:
        read.append(reference.name)
        return whole(reference, folder)

    monkeypatch.setattr(page_arrays, "read_reference", count_reads)
    save_tree(tree, tmp_path / "p.json", tmp_path / "pool")
    assert read == []
    name = tree["blocks"][-1]["values"]["val"]["file"]
    os.utime(tmp_path / "p.json.arrays" / name, ns=(1, 1))
    save_tree(tree, tmp_path / "p.json", tmp_path / "pool")
    assert read == [name]


def test_a_damaged_array_file_is_replaced(tmp_path: Path) -> None:
    tree = write_browser_tree(page_with_arrays(), tmp_path / "pool")
    save(page_with_arrays(), tmp_path / "p.json")
    for name in os.listdir(tmp_path / "p.json.arrays"):
        (tmp_path / "p.json.arrays" / name).write_bytes(b"")
    save_tree(tree, tmp_path / "p.json", tmp_path / "pool")
    assert same_blocks(load_page_file(tmp_path / "p.json"), page_with_arrays())


def test_an_error_leaves_no_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = write_browser_tree(page_with_arrays(), tmp_path / "pool")

    def raise_disk_full(*args: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(files, "prepare", raise_disk_full)
    with pytest.raises(OSError, match="disk full"):
        save_tree(tree, tmp_path / "p.json", tmp_path / "pool")
    assert os.listdir(tmp_path) == ["pool"]
