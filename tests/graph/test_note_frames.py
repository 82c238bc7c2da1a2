"""Notes with a size are frames around blocks."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from page_samples import basic, load_page, load_page_file

from rowgrad.graph.export.picture import to_svg
from rowgrad.graph.export.script import to_python
from rowgrad.graph.io import dumps, save
from rowgrad.graph.page import Note, Page, PageError

SVG = "{http://www.w3.org/2000/svg}"


def page_with_frame() -> Page:
    page = basic()
    page.notes = [Note("inputs", (20.0, 10.0), (200.5, 180.0)), Note("plain", (5.0, 6.0))]
    return page


def test_a_frame_round_trips(tmp_path: Path) -> None:
    page = page_with_frame()
    assert load_page(dumps(page)).notes == page.notes
    save(page, tmp_path / "p.json")
    assert load_page_file(tmp_path / "p.json").notes == page.notes
    assert dumps(page).splitlines()[-5:-2] == [
        ' "notes": [',
        '  {"text": "inputs", "at": [20, 10], "size": [200.5, 180]},',
        '  {"text": "plain", "at": [5, 6]}',
    ]


def test_a_frame_needs_no_position() -> None:
    tree = json.loads(dumps(page_with_frame()))
    tree["notes"] = [{"text": "", "size": [1, 2]}]
    assert load_page(json.dumps(tree)).notes == [Note("", (0.0, 0.0), (1.0, 2.0))]


@pytest.mark.parametrize(
    ("size", "place", "message"),
    [
        ([0, 3], "notes[0].size[0]", "must be above 0; got 0"),
        ([3, -1.5], "notes[0].size[1]", "must be above 0; got -1.5"),
        ([3], "notes[0].size", "must be [width, height]; got a list of 1"),
        ({"w": 1}, "notes[0].size", "must be a list; got an object"),
        ([3, True], "notes[0].size[1]", "must be a number; got true"),
        ([10**400, 1], "notes[0].size[0]", "must be a number; got a number beyond float64"),
    ],
)
def test_invalid_sizes_raise_when_read(size: Any, place: str, message: str) -> None:
    tree = json.loads(dumps(page_with_frame()))
    tree["notes"][0]["size"] = size
    with pytest.raises(PageError) as caught:
        load_page(json.dumps(tree))
    assert (caught.value.place, str(caught.value)) == (place, f"{place}: {message}")


def test_invalid_sizes_raise_when_written() -> None:
    for size, place in (
        ((1.0, 0.0), "notes[0].size[1]"),
        ((float("inf"), 1.0), "notes[0].size[0]"),
        ((1.0,), "notes[0].size"),
    ):
        with pytest.raises(PageError) as caught:
            dumps(Page("p", notes=[Note("", size=size)]))  # type: ignore[arg-type]
        assert caught.value.place == place


def test_a_frame_is_drawn_behind_blocks() -> None:
    page = page_with_frame()
    page.notes[0].text = "in <puts>"
    page.notes[0].size = (1900.0, 700.0)
    root = ET.fromstring(to_svg(page))
    parts = [part.tag.removeprefix(SVG) for part in root]
    assert parts[:3] == ["title", "rect", "text"]
    rect, text = root[1], root[2]
    assert [rect.get(k) for k in ("x", "y", "width", "height", "rx")] == ["20", "10", "1900", "700", "10"]
    assert "".join(text.itertext()) == "in <puts>"
    assert parts.index("path") > 1
    assert parts.index("g") > 1
    left, top, width, height = map(float, root.get("viewBox", "").split())
    assert left <= 20
    assert top <= 10
    assert left + width == 20 + 1900 + 20
    assert top + height == 10 + 700 + 20


def test_frames_do_not_change_the_script() -> None:
    page = page_with_frame()
    with_frame = to_python(page)
    page.notes[0].size = None
    assert to_python(page) == with_frame
