"""Verbs about the project: the first response to a window, and pages that are added and removed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from studio_without_runs import FilesStudio, make_studio, page_with_array, project_files, small_page

from rowgrad._catalog.spec import ALL_DTYPES, CATALOG
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import Page, PageError, save
from rowgrad.studio import project_verbs


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FilesStudio:
    return make_studio(tmp_path, monkeypatch)


def test_hello_lists_everything_a_window_needs(studio: FilesStudio) -> None:
    save(small_page(), studio.root / "p.json")
    (studio.root / "cut.json").write_text("{")
    response = studio.call("hello")
    assert response.keys() == {"version", "project", "catalog", "dtypes", "engines", "limits", "gallery", "tour"}
    assert response["project"]["name"] == studio.root.name
    assert [(page["name"], page.get("error") is None) for page in response["project"]["pages"]] == [
        ("cut", False),
        ("p", True),
    ]
    assert {record["name"] for record in response["catalog"]} == set(CATALOG)
    assert response["dtypes"] == list(ALL_DTYPES)
    assert len(response["gallery"]) == 45
    assert all(type(limit) is int for limit in response["limits"].values())


def test_float_attributes_are_tagged_as_floats(studio: FilesStudio) -> None:
    response = {record["name"]: record["attrs"] for record in studio.call("hello")["catalog"]}
    seen = 0
    for name, op in CATALOG.items():
        for attr, default in op.attrs.items():
            if isinstance(default, float):
                seen += 1
                assert response[name][attr]["default"] == {"float": default}
    assert seen > 0


def test_engines_are_listed_without_import(studio: FilesStudio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_verbs, "engine_names", lambda: ["numpy", "torch", "json", "no_such_engine"])
    had = "torch" in sys.modules
    engines = {engine["name"]: engine for engine in studio.call("hello")["engines"]}
    assert ("torch" in sys.modules) == had
    assert engines["numpy"]["available"]
    assert engines["numpy"]["version"].startswith("2.")
    assert engines["torch"]["available"] == (importlib.util.find_spec("torch") is not None)
    assert engines["json"] == {"name": "json", "version": None, "available": True, "why": None}
    assert not engines["no_such_engine"]["available"]
    assert "pip install 'rowgrad[no_such_engine]'" in engines["no_such_engine"]["why"]


def test_creating_renaming_and_removing_pages_notifies_windows(studio: FilesStudio) -> None:
    made = studio.call("new", {"name": "net", "page": studio.pool.write_page(page_with_array("x"))})
    assert made.keys() == {"name", "revision", "blocks", "modified"}
    assert (made["name"], made["blocks"]) == ("net", 1)
    page_event, project_event = studio.events()
    assert page_event == {"event": "page", "name": "net", "revision": made["revision"], "window": ""}
    assert project_event == {"event": "project", "pages": [made]}
    assert studio.call("rename", {"name": "net", "to": "dense"})["name"] == "dense"
    assert [event["pages"][0]["name"] for event in studio.events()] == ["dense"]
    assert studio.call("remove", {"name": "dense"}) == {}
    assert studio.events() == [{"event": "project", "pages": []}]
    assert not project_files(studio.root)
    back = studio.call("bring_back", {"name": "dense"})
    assert back["revision"] == made["revision"]
    assert [event["event"] for event in studio.events()] == ["page", "project"]
    assert studio.runs.calls == [
        ("edited", "net", 1, made["revision"]),
        ("renamed", "net", "dense"),
        ("forget", "dense"),
        ("edited", "dense", 1, made["revision"]),
    ]


def test_new_without_a_name_chooses_one(studio: FilesStudio) -> None:
    page = studio.pool.write_page(small_page("net"))
    assert [studio.call("new", arguments)["name"] for arguments in ({}, {}, {"page": page}, {"page": page})] == [
        "page",
        "page 2",
        "net",
        "net 2",
    ]


def test_an_unreadable_page_can_be_restored(studio: FilesStudio) -> None:
    (studio.root / "cut.json").write_text("{")
    studio.call("remove", {"name": "cut"})
    assert "error" in studio.call("bring_back", {"name": "cut"})
    assert studio.events()[-1]["pages"][0]["name"] == "cut"


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("new", {"name": "../x"}, "must not contain / or"),
        ("new", {"name": "P"}, "already has a file 'p.json'"),
        ("new", {"name": 3}, "new: name must be a string; got 3"),
        ("new", {"name": "q", "page": {"format": "rowgrad-page"}}, "version: this field is missing"),
        ("rename", {"name": "p"}, "rename: to must be a string"),
        ("rename", {"name": "p", "to": "a/b"}, "to must be a page's name"),
        ("rename", {"name": "pp", "to": "q"}, "there is no page 'pp' in this project; did you mean 'p'?"),
        ("remove", {"name": "x"}, "there is no page 'x'"),
        ("remove", {}, "remove: name must be a string"),
        ("bring_back", {"name": "p"}, "no page 'p' was removed"),
        ("gallery", {"name": "x"}, "the gallery has no page 'x'; it has start/01_"),
        ("gallery", {"name": "../../docs/x"}, "the gallery has no page"),
        ("picture", {"gallery": "x"}, "the gallery has no page 'x'"),
    ],
)
def test_what_is_rejected_changes_nothing(
    studio: FilesStudio, verb: str, arguments: dict[str, Any], message: str
) -> None:
    save(small_page(), studio.root / "p.json")
    before = project_files(studio.root)
    with pytest.raises((InvalidArgumentError, PageError)) as caught:
        studio.call(verb, arguments)
    assert message in str(caught.value)
    assert project_files(studio.root) == before
    assert not studio.events()
    assert not studio.runs.calls


def test_a_gallery_page_is_copied_into_the_project(studio: FilesStudio) -> None:
    response = studio.call("gallery", {"name": "train_embedding"})
    assert studio.call("new", {"page": response["page"]})["name"] == "train_embedding"
    page, _ = studio.folder.open("train_embedding")
    assert isinstance(page, Page)
    assert (studio.root / "train_embedding.json.arrays").is_dir()
    assert studio.call("picture", {"gallery": "train_embedding"})["svg"].startswith("<svg")
