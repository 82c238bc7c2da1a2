"""The array pool of a project: arrays are stored by name, verified, shared, and links are not followed."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studio_without_runs import page_with_array, small_page

from rowgrad.graph import Block, Page, PageError
from rowgrad.studio import array_pool as pool_module
from rowgrad.studio.array_pool import Pool


def through_json(tree: Any) -> Any:
    return json.loads(json.dumps(tree))


def file_of(tree: Any) -> str:
    return str(tree["blocks"][0]["values"]["val"]["file"])


def test_a_page_round_trips_with_its_arrays(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    page = page_with_array()
    tree = through_json(pool.write_page(page))
    assert tree["blocks"][0]["values"]["val"].keys() == {"dtype", "shape", "file"}
    back = pool.read_page(tree)
    assert back["a"].values["val"].tobytes() == page["a"].values["val"].tobytes()
    assert not back["a"].values["val"].flags.writeable
    assert Pool(tmp_path).read_page(tree)["a"].values["val"].tobytes() == page["a"].values["val"].tobytes()
    assert (tmp_path / ".rowgrad" / ".gitignore").read_text() == "*\n"


def test_string_arrays_are_stored_as_json_files(tmp_path: Path) -> None:
    words = np.array([f"word {k}" for k in range(500)], dtype=object)
    tree = through_json(Pool(tmp_path).write_page(Page("p", [Block("a", "Const", {"val": words})])))
    assert file_of(tree).endswith(".json")
    assert Pool(tmp_path).read_page(tree)["a"].values["val"].tolist() == words.tolist()


def test_pages_without_large_arrays_create_no_folder(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.read_page(through_json(pool.write_page(small_page())))
    assert not list(tmp_path.iterdir())


def test_floats_are_tagged_and_survive_javascript(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    block = Block("a", "Const", {"val": [3.0, [1, 2.5]], "w": float("nan")}, attrs={"alpha": 2.0, "n": 2, "l": [1.0]})
    encoded = pool.write_page(Page("p", [block]))["blocks"][0]
    assert encoded["values"] == {"val": [{"float": 3.0}, [1, {"float": 2.5}]], "w": {"float": "NaN"}}
    assert encoded["attrs"] == {"alpha": {"float": 2.0}, "n": 2, "l": [{"float": 1.0}]}
    js = json.loads(
        json.dumps(encoded).replace("3.0", "3").replace("2.0", "2").replace("1.0", "1")
    )  # as JavaScript does
    back = pool.read_page({"format": "rowgrad-page", "version": 1, "name": "p", "blocks": [js]})["a"]
    found = (back.values["val"][0], back.values["val"][1][0], back.attrs["alpha"], back.attrs["n"])
    assert [type(number) for number in found] == [float, int, float, int]
    assert pool.write_value(3.0) == {"float": 3.0}
    assert pool.read_value({"float": 3}, "value") == 3.0


def test_an_array_is_read_and_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Pool(tmp_path).write_page(page_with_array())
    pool = Pool(tmp_path)
    first = pool.read_page(through_json(tree))["a"].values["val"]
    monkeypatch.setattr(hashlib, "sha256", None)  # hashing fails from now on
    monkeypatch.setattr(hashlib, "file_digest", None)
    page = pool.read_page(through_json(tree))
    assert page["a"].values["val"] is first
    assert pool.write_page(page) == tree


def test_the_cache_of_arrays_is_bounded(tmp_path: Path) -> None:
    pool = Pool(tmp_path, most=10_000)
    trees = [pool.write_page(page_with_array(seed=seed)) for seed in range(5)]
    pages = [pool.read_page(through_json(tree)) for tree in trees]
    assert sum(size for _, size in pool._decoded.values()) <= 10_000
    assert pool.write_page(pages[0]) == trees[0]  # also for an evicted array
    del pages
    assert len(pool._names) == len(pool._decoded) == 2


def test_the_last_used_array_stays_cached_at_any_size(tmp_path: Path) -> None:
    pool = Pool(tmp_path, most=10)
    tree = pool.write_page(page_with_array())
    assert (
        pool.read_page(through_json(tree))["a"].values["val"] is pool.read_page(through_json(tree))["a"].values["val"]
    )


def test_an_array_file_with_a_wrong_shape_raises(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    tree = through_json(pool.write_page(page_with_array()))
    pool.read_page(tree)
    for shape in ([1001], [1000.0], [True, 1000], [10, 100]):
        tree["blocks"][0]["values"]["val"]["shape"] = shape
        with pytest.raises(PageError, match=r"blocks\[0\].values.val"):
            pool.read_page(tree)


@pytest.mark.parametrize("name", ["../x.npy", "x.npy", "/etc/passwd", f"{'a' * 64}.npz", f"../{'a' * 64}.npy", 3, None])
def test_invalid_names(name: Any, tmp_path: Path) -> None:
    value = {"dtype": "float32", "shape": [1000], "file": name}
    with pytest.raises(PageError, match="value"):
        Pool(tmp_path).read_value(value, "value")


def test_a_missing_array_file_raises(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"value\.file.*No such file"):
        Pool(tmp_path).read_value({"dtype": "float32", "shape": [1000], "file": f"{'a' * 64}.npy"}, "value")


def test_a_damaged_file_is_rejected_and_rewritten(tmp_path: Path) -> None:
    page = page_with_array()
    tree = through_json(Pool(tmp_path).write_page(page))
    file = tmp_path / ".rowgrad" / "arrays" / file_of(tree)
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    pool = Pool(tmp_path)
    with pytest.raises(PageError, match="not what its name says"):
        pool.read_page(tree)
    assert through_json(pool.write_page(page)) == tree
    assert pool.read_page(tree)["a"].values["val"].tobytes() == page["a"].values["val"].tobytes()


def test_pickled_arrays_are_rejected_without_unpickling(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "bomb"),)

    folder = tmp_path / ".rowgrad" / "arrays"
    folder.mkdir(parents=True)
    array = folder / "x"
    with array.open("wb") as file:
        np.save(file, np.array([Bomb()] * 300, dtype=object), allow_pickle=True)
    pickle.dumps(Bomb())
    name = f"{hashlib.sha256(array.read_bytes()).hexdigest()}.npy"
    array.rename(folder / name)
    size = (folder / name).stat().st_size
    with pytest.raises(PageError):
        Pool(tmp_path).read_value({"dtype": "int8", "shape": [size - 128], "file": name}, "value")
    assert not (tmp_path / "bomb").exists()


def test_symbolic_links_are_rejected(tmp_path: Path) -> None:
    outside, project = tmp_path / "outside", tmp_path / "project"
    outside.mkdir()
    project.mkdir()
    tree = through_json(Pool(outside).write_page(page_with_array()))
    stored = outside / ".rowgrad" / "arrays"
    (project / ".rowgrad" / "arrays").mkdir(parents=True)
    (project / ".rowgrad" / "arrays" / file_of(tree)).symlink_to(stored / file_of(tree))
    with pytest.raises(PageError, match="symbolic link"):
        Pool(project).read_page(tree)
    for link, to in ((".rowgrad", stored.parent), (".rowgrad/arrays", stored)):
        other = tmp_path / link.replace("/", "_")
        (other / link).parent.mkdir(parents=True)
        (other / link).symlink_to(to)
        with pytest.raises(PageError, match="symbolic link"):
            Pool(other)


def test_old_unreferenced_arrays_are_removed_at_startup(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    trees = [pool.write_page(page_with_array(seed=seed)) for seed in range(4)]
    stored = [tmp_path / ".rowgrad" / "arrays" / file_of(tree) for tree in trees]
    for folder, file in (("p.json.arrays", stored[1]), (".rowgrad/removed/t/q.json.arrays", stored[2])):
        (tmp_path / folder).mkdir(parents=True)
        os.link(file, tmp_path / folder / file.name)
    week = time.time() - pool_module._KEEP_SECONDS
    for file in stored[:3]:
        os.utime(file, (week - 60, week - 60))
    os.utime(stored[3], (week + 60, week + 60))
    Pool(tmp_path)
    assert [file.exists() for file in stored] == [False, True, True, True]


def test_using_an_array_resets_its_age(tmp_path: Path) -> None:
    tree = through_json(Pool(tmp_path).write_page(page_with_array()))
    file = tmp_path / ".rowgrad" / "arrays" / file_of(tree)
    pool = Pool(tmp_path)
    os.utime(file, (0, 0))
    pool.read_page(tree)
    Pool(tmp_path)
    assert file.exists()
