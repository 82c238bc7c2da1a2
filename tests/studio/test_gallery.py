"""The gallery of example pages: all of them open and check, and installed ones come first."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import PageError, Project, save
from rowgrad.graph.page_summary import summary
from rowgrad.studio import project_verbs
from rowgrad.studio.array_pool import Pool

NAMES = [entry["name"] for entry in project_verbs.entries()]
WITH_ERRORS = {"11_sparse_add_int_thresh_refused"}  # shows what an error looks like


def test_every_gallery_page_has_a_title_and_a_description() -> None:
    assert len(NAMES) == 12 + 33
    for entry in project_verbs.entries():
        assert entry.keys() == {"name", "title", "blocks", "text", "reference"}
        assert entry["title"][0].isupper()
        assert "_" not in entry["title"]
        assert entry["text"]
        assert "\n" not in entry["text"]
        assert entry["blocks"] > 0
    curated = [entry for entry in project_verbs.entries() if not entry["reference"]]
    assert [entry["name"].partition("_")[2] for entry in curated] == [
        "lookup", "lookup_gradient", "mean_or_sqrtn", "empty_rows", "slice_and_gradient", "unique_rows", "weights",
        "train_embedding", "two_towers", "xor", "symbolic_gradients", "one_hot",
    ]  # fmt: skip
    assert curated == project_verbs.entries()[:12]
    for entry in curated:
        assert len(re.findall(r"[.?](?= |$)", entry["text"])) == 2, entry["text"]
    assert next(e for e in project_verbs.entries() if e["name"] == "09_sparse_slice")["title"] == "Sparse slice"


@pytest.mark.parametrize("name", NAMES)
def test_every_gallery_page_is_encoded_checked_and_drawn(name: str, tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    page = pool.read_page(json.loads(json.dumps(pool.write_page(project_verbs.page(name)), allow_nan=False)))
    checked = json.loads(json.dumps(summary(page), allow_nan=False))
    assert bool(checked["errors"]) == (name in WITH_ERRORS)
    if not name.startswith("start/"):
        assert bool(checked["sessions"]) == (name not in WITH_ERRORS)
    assert ElementTree.fromstring(project_verbs.gallery_picture(name)).tag.endswith("svg")


def test_an_installed_package_contains_the_gallery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "a" / "b" / "c" / "rowgrad" / "studio"
    package.mkdir(parents=True)
    monkeypatch.setattr(project_verbs, "__file__", str(package / "gallery.py"))
    assert project_verbs.folder() is None
    assert project_verbs.entries() == []
    with pytest.raises(InvalidArgumentError, match="it is empty"):
        project_verbs.page("x")
    (package / "gallery_pages").mkdir()
    assert project_verbs.folder() == package / "gallery_pages"


def test_a_project_in_the_gallery_is_reported_as_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gallery_pages").mkdir()
    save(Project("x"), tmp_path / "gallery_pages" / "x.json")
    monkeypatch.setattr(project_verbs, "__file__", str(tmp_path / "gallery.py"))
    (entry,) = project_verbs.entries()
    assert "only have pages" in entry["text"]
    with pytest.raises(PageError, match="only have pages"):
        project_verbs.page("x")
