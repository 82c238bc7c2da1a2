"""Verbs that export pages in other formats and import dropped files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studio_without_runs import FilesStudio, everything, large, small, studio_in

from rowgrad.errors import InvalidArgumentError, ResourceExhaustedError
from rowgrad.graph import Block, Page, PageError, Project, dumps, load, loads, save
from rowgrad.studio import import_export_verbs

SAMPLES = Path(__file__).parents[1] / "graph" / "enuspace_samples"


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FilesStudio:
    return studio_in(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("form", "file", "begins"),
    [("python", "p.py", '"""A page'), ("json", "p.json", "{\n"), ("svg", "p.svg", "<svg"), ("dot", "p.dot", "digraph")],
)
def test_a_page_leaves_as_text(studio: FilesStudio, form: str, file: str, begins: str) -> None:
    response = studio.ask("export", {"page": studio.pool.write_page(large()), "as": form})
    assert response.keys() == {"name", "text"}
    assert response["name"] == file
    assert response["text"].startswith(begins)


def test_exported_json_holds_everything(studio: FilesStudio) -> None:
    page = large()
    text = studio.ask("export", {"page": studio.pool.write_page(page), "as": "json"})["text"]
    assert text == dumps(page)
    assert "file" not in json.loads(text)["blocks"][0]["values"]["val"]
    found = loads(text)
    assert isinstance(found, Page)
    assert found["a"].values["val"].tobytes() == page["a"].values["val"].tobytes()


def test_an_exported_script_runs(studio: FilesStudio) -> None:
    text = studio.ask("export", {"page": studio.pool.write_page(small("a/b")), "as": "python"})
    assert text["name"] == "a-b.py"
    scope: dict[str, Any] = {"__name__": "script"}
    exec(compile(text["text"], "script", "exec"), scope)
    assert scope["root"]


def test_large_exports_are_bounded(studio: FilesStudio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_export_verbs, "MOST_EXPORTED", 3999)
    page = studio.pool.write_page(large())
    for form in ("python", "json"):
        with pytest.raises(ResourceExhaustedError, match=r"4000 bytes.*at most 3999"):
            studio.ask("export", {"page": page, "as": form})
    assert studio.ask("export", {"page": page, "as": "svg"})["text"]
    monkeypatch.setattr(import_export_verbs, "MOST_EXPORTED", 4000)
    assert studio.ask("export", {"page": page, "as": "json"})["text"]


def test_strings_count_as_what_they_are(studio: FilesStudio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_export_verbs, "MOST_EXPORTED", 3999)
    page = Page("p", [Block("a", "Const", {"val": np.array(["x" * 4000], dtype=object)})])
    with pytest.raises(ResourceExhaustedError):
        studio.ask("export", {"page": studio.pool.write_page(page), "as": "json"})


def test_a_script_of_an_invalid_page(studio: FilesStudio) -> None:
    page = studio.pool.write_page(Page("p", [Block("a", "NoSuchOp")]))
    with pytest.raises(PageError, match="NoSuchOp"):
        studio.ask("export", {"page": page, "as": "python"})
    assert "NoSuchOp" in studio.ask("export", {"page": page, "as": "svg"})["text"]
    mixed = Page("p", [Block("a", "Add", {"x": np.zeros(2, np.float32), "y": np.zeros(3, np.float32)})])
    with pytest.raises(InvalidArgumentError, match="Add"):  # each block can be written, and the page does not hold
        studio.ask("export", {"page": studio.pool.write_page(mixed), "as": "python"})
    with pytest.raises(InvalidArgumentError, match="as must be one of python, json, svg, dot; got 'png'"):
        studio.ask("export", {"page": page, "as": "png"})


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.iterdir()))
def test_old_pages_come_in_with_a_report(studio: FilesStudio, sample: str) -> None:
    response = studio.ask("import", {"name": f"C:\\pages\\{sample}"}, (SAMPLES / sample).read_bytes())
    assert response["page"]["name"] == Path(sample).stem
    assert response["page"]["blocks"]
    assert response["pages"] == [response["page"]]
    assert all(remark.keys() == {"level", "place", "message"} for remark in response["report"])
    assert not everything(studio.root)  # it becomes a page when the window says so
    assert studio.ask("new", {"page": response["page"]})["blocks"] == len(response["page"]["blocks"])


DRAWING = """<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">
<use type="tensorflow" id="c" xlink:href="#Const" x="10" y="20">
<pg-set-pin variable="val" type="float" shape="[3]" save-type="binary" binary-pos="4"/></use></svg>"""


def test_a_dat_file_is_found_by_its_drawing(studio: FilesStudio) -> None:
    with pytest.raises(PageError, match=r"old\.dat"):
        studio.ask("import", {"name": "old.svg"}, DRAWING.encode())
    data = np.array([9.0, 1.0, 2.0, 3.0], np.float32).tobytes()
    response = studio.ask("import", {"name": "old.dat"}, data)
    assert response["page"] is None
    assert "old.svg" in response["report"][0]["message"]
    page = studio.pool.read_page(studio.ask("import", {"name": "old.svg"}, DRAWING.encode())["page"])
    assert np.ravel(page["c"].values["val"]).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(PageError, match=r"other\.dat"):
        studio.ask("import", {"name": "other.svg"}, DRAWING.encode())


def test_a_dat_file_does_not_leave_the_project(studio: FilesStudio) -> None:
    studio.ask("import", {"name": "../../../x.dat"}, b"1234")
    assert (studio.root / ".rowgrad" / "imports" / "x.dat").read_bytes() == b"1234"
    (studio.root / ".rowgrad" / "imports" / "x.dat").unlink()
    (studio.root / ".rowgrad" / "imports").rmdir()
    (studio.root / ".rowgrad" / "imports").symlink_to(studio.root.parent)
    with pytest.raises(PageError, match="symbolic link"):
        studio.ask("import", {"name": "x.dat"}, b"1234")
    (studio.root.parent / "old.dat").write_bytes(bytes(16))
    with pytest.raises(PageError, match="symbolic link"):
        studio.ask("import", {"name": "old.svg"}, DRAWING.encode())


def test_pages_of_our_own_come_in(studio: FilesStudio) -> None:
    response = studio.ask("import", {"name": "x.json"}, dumps(small("net")).encode())
    assert response["page"] == studio.pool.write_page(small("net"))
    assert response["report"] == []
    whole = Project("all", [small("one"), large("two")])
    response = studio.ask("import", {"name": "x.json"}, dumps(whole).encode())
    assert [page["name"] for page in response["pages"]] == ["one", "two"]
    assert "2 pages: one, two" in response["report"][0]["message"]


def test_a_project_in_the_folder_is_taken_apart(studio: FilesStudio) -> None:
    save(Project("all", [small("one"), large("two")]), studio.root / "all.json")
    response = studio.ask("import", {"name": "all.json"})
    for page in response["pages"]:
        studio.ask("new", {"page": page})
    found = load(studio.root / "two.json")
    assert isinstance(found, Page)
    assert found["a"].values["val"].tobytes() == large()["a"].values["val"].tobytes()
    assert "error" in studio.folder.info("all")  # the file stays


def test_arrays_that_did_not_come_with_a_page(studio: FilesStudio) -> None:
    other = studio.root / "other"
    other.mkdir()
    save(large(), other / "p.json")
    with pytest.raises(PageError, match=r"blocks\[0\]\.values\.val\.file: .* was not sent"):
        studio.ask("import", {"name": "p.json"}, (other / "p.json").read_bytes())


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("x.json", b'{"format": "rowgrad-page", "version": 1', "not JSON"),
        ("x.json", b'{"format": "rowgrad-page", "version": 9}', "newer rowgrad"),
        ("x.json", b'{"format": "rowgrad-project", "version": 1, "name": "", "pages": []}', "a project without any"),
        ("x.json", b"[1, 2]", "neither a page (SVG) nor a task (JSON)"),
        ("x.svg", b"<svg", "not XML"),
        ("x.svg", b'<!DOCTYPE svg [<!ENTITY a "b">]><svg>&a;</svg>', "declarations"),
        ("x.png", b"\x89PNG\r\n", "x: "),
        ("x.json", b"", "there is no page 'x'"),
        ("..", b"", "must be a page's name"),
    ],
)
def test_files_that_are_not_pages(studio: FilesStudio, name: str, body: bytes, words: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        studio.ask("import", {"name": name}, body)
    assert words in str(caught.value)
    assert "/tmp" not in str(caught.value)


def test_large_imports_are_bounded(studio: FilesStudio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_export_verbs, "MOST_IMPORTED", 10)
    with pytest.raises(InvalidArgumentError, match="at most 10 bytes; got 11"):
        studio.ask("import", {"name": "x.dat"}, b"x" * 11)
