"""Verbs that export pages in other formats and import dropped files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studio_without_runs import FilesStudio, make_studio, page_with_array, project_files, small_page

from rowgrad.errors import InvalidArgumentError, ResourceExhaustedError
from rowgrad.graph import Block, Page, PageError, Project, dumps, load, loads, save
from rowgrad.studio import import_export_verbs

SAMPLES = Path(__file__).parents[1] / "graph" / "enuspace_samples"


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FilesStudio:
    return make_studio(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("format", "file", "prefix"),
    [("python", "p.py", '"""A page'), ("json", "p.json", "{\n"), ("svg", "p.svg", "<svg"), ("dot", "p.dot", "digraph")],
)
def test_a_page_is_exported_in_every_format(studio: FilesStudio, format: str, file: str, prefix: str) -> None:
    response = studio.call("export", {"page": studio.pool.write_page(page_with_array()), "as": format})
    assert response.keys() == {"name", "text"}
    assert response["name"] == file
    assert response["text"].startswith(prefix)


def test_exported_json_contains_all_arrays(studio: FilesStudio) -> None:
    page = page_with_array()
    text = studio.call("export", {"page": studio.pool.write_page(page), "as": "json"})["text"]
    assert text == dumps(page)
    assert "file" not in json.loads(text)["blocks"][0]["values"]["val"]
    found = loads(text)
    assert isinstance(found, Page)
    assert found["a"].values["val"].tobytes() == page["a"].values["val"].tobytes()


def test_an_exported_script_runs(studio: FilesStudio) -> None:
    text = studio.call("export", {"page": studio.pool.write_page(small_page("a/b")), "as": "python"})
    assert text["name"] == "a-b.py"
    scope: dict[str, Any] = {"__name__": "script"}
    exec(compile(text["text"], "script", "exec"), scope)
    assert scope["root"]


def test_large_exports_are_bounded(studio: FilesStudio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_export_verbs, "MOST_EXPORTED", 3999)
    page = studio.pool.write_page(page_with_array())
    for format in ("python", "json"):
        with pytest.raises(ResourceExhaustedError, match=r"4000 bytes.*at most 3999"):
            studio.call("export", {"page": page, "as": format})
    assert studio.call("export", {"page": page, "as": "svg"})["text"]
    monkeypatch.setattr(import_export_verbs, "MOST_EXPORTED", 4000)
    assert studio.call("export", {"page": page, "as": "json"})["text"]


def test_the_export_limit_counts_string_bytes(studio: FilesStudio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_export_verbs, "MOST_EXPORTED", 3999)
    page = Page("p", [Block("a", "Const", {"val": np.array(["x" * 4000], dtype=object)})])
    with pytest.raises(ResourceExhaustedError):
        studio.call("export", {"page": studio.pool.write_page(page), "as": "json"})


def test_exporting_an_invalid_page_as_script_raises(studio: FilesStudio) -> None:
    page = studio.pool.write_page(Page("p", [Block("a", "NoSuchOp")]))
    with pytest.raises(PageError, match="NoSuchOp"):
        studio.call("export", {"page": page, "as": "python"})
    assert "NoSuchOp" in studio.call("export", {"page": page, "as": "svg"})["text"]
    rest = Page("p", [Block("a", "NoSuchOp"), Block("b", "Const", {"val": np.zeros(2, np.float32)})])
    script = studio.call("export", {"page": studio.pool.write_page(rest), "as": "python"})["text"]
    assert "# a = NoSuchOp()" in script
    mixed = Page("p", [Block("a", "Add", {"x": np.zeros(2, np.float32), "y": np.zeros(3, np.float32)})])
    with pytest.raises(InvalidArgumentError, match="Add"):  # each block is valid, the page is not
        studio.call("export", {"page": studio.pool.write_page(mixed), "as": "python"})
    with pytest.raises(InvalidArgumentError, match="as must be one of python, json, svg, dot; got 'png'"):
        studio.call("export", {"page": page, "as": "png"})


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.iterdir()))
def test_enuspace_files_are_imported_with_a_report(studio: FilesStudio, sample: str) -> None:
    response = studio.call("import", {"name": f"C:\\pages\\{sample}"}, (SAMPLES / sample).read_bytes())
    assert response["page"]["name"] == Path(sample).stem
    assert response["page"]["blocks"]
    assert response["pages"] == [response["page"]]
    assert all(remark.keys() == {"level", "place", "message"} for remark in response["report"])
    assert not project_files(studio.root)  # nothing is saved until the window requests it
    assert studio.call("new", {"page": response["page"]})["blocks"] == len(response["page"]["blocks"])


DRAWING = """<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">
<use type="tensorflow" id="c" xlink:href="#Const" x="10" y="20">
<pg-set-pin variable="val" type="float" shape="[3]" save-type="binary" binary-pos="4"/></use></svg>"""


def test_an_uploaded_dat_file_is_used_by_its_svg(studio: FilesStudio) -> None:
    with pytest.raises(PageError, match=r"old\.dat"):
        studio.call("import", {"name": "old.svg"}, DRAWING.encode())
    data = np.array([9.0, 1.0, 2.0, 3.0], np.float32).tobytes()
    response = studio.call("import", {"name": "old.dat"}, data)
    assert response["page"] is None
    assert "old.svg" in response["report"][0]["message"]
    page = studio.pool.read_page(studio.call("import", {"name": "old.svg"}, DRAWING.encode())["page"])
    assert np.ravel(page["c"].values["val"]).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(PageError, match=r"other\.dat"):
        studio.call("import", {"name": "other.svg"}, DRAWING.encode())


def test_a_dat_file_is_stored_inside_the_project(studio: FilesStudio) -> None:
    studio.call("import", {"name": "../../../x.dat"}, b"1234")
    assert (studio.root / ".rowgrad" / "imports" / "x.dat").read_bytes() == b"1234"
    (studio.root / ".rowgrad" / "imports" / "x.dat").unlink()
    (studio.root / ".rowgrad" / "imports").rmdir()
    (studio.root / ".rowgrad" / "imports").symlink_to(studio.root.parent)
    with pytest.raises(PageError, match="symbolic link"):
        studio.call("import", {"name": "x.dat"}, b"1234")
    (studio.root.parent / "old.dat").write_bytes(bytes(16))
    with pytest.raises(PageError, match="symbolic link"):
        studio.call("import", {"name": "old.svg"}, DRAWING.encode())


def test_rowgrad_pages_and_projects_are_imported(studio: FilesStudio) -> None:
    response = studio.call("import", {"name": "x.json"}, dumps(small_page("net")).encode())
    assert response["page"] == studio.pool.write_page(small_page("net"))
    assert response["report"] == []
    whole = Project("all", [small_page("one"), page_with_array("two")])
    response = studio.call("import", {"name": "x.json"}, dumps(whole).encode())
    assert [page["name"] for page in response["pages"]] == ["one", "two"]
    assert "2 pages: one, two" in response["report"][0]["message"]


def test_importing_a_project_returns_its_pages(studio: FilesStudio) -> None:
    save(Project("all", [small_page("one"), page_with_array("two")]), studio.root / "all.json")
    response = studio.call("import", {"name": "all.json"})
    for page in response["pages"]:
        studio.call("new", {"page": page})
    found = load(studio.root / "two.json")
    assert isinstance(found, Page)
    assert found["a"].values["val"].tobytes() == page_with_array()["a"].values["val"].tobytes()
    assert "error" in studio.folder.info("all")  # the file stays


def test_importing_a_page_without_its_array_files(studio: FilesStudio) -> None:
    other = studio.root / "other"
    other.mkdir()
    save(page_with_array(), other / "p.json")
    with pytest.raises(PageError, match=r"blocks\[0\]\.values\.val\.file: .* was not sent"):
        studio.call("import", {"name": "p.json"}, (other / "p.json").read_bytes())


@pytest.mark.parametrize(
    ("name", "body", "message"),
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
def test_files_that_are_not_pages_are_rejected(studio: FilesStudio, name: str, body: bytes, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        studio.call("import", {"name": name}, body)
    assert message in str(caught.value)
    assert "/tmp" not in str(caught.value)


def test_large_imports_are_bounded(studio: FilesStudio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_export_verbs, "MOST_IMPORTED", 10)
    with pytest.raises(InvalidArgumentError, match="at most 10 bytes; got 11"):
        studio.call("import", {"name": "x.dat"}, b"x" * 11)
