"""Where things stand on a page, and how it is looked at."""

from __future__ import annotations

import itertools
import re

import pytest
from desk import Desk, block, const
from playwright.sync_api import expect


def three(desk: Desk) -> str:
    """Blocks of different heights, anyhow."""
    name = desk.put_page(
        "work",
        const("a", (35, 0), [1.0]),
        block("b", "SparseSegmentMeanGrad", (170, 130)),
        const("c", (90, 420), [1.0]),
    )
    desk.open(name)
    expect(desk.block("c")).to_be_visible()
    return name


@pytest.mark.feature("align")
def test_blocks_are_aligned_and_spread(desk: Desk) -> None:
    """Align: left, and spread down."""
    name = three(desk)
    desk.key("Control+a", "Alt+ArrowLeft")
    places = [b["at"] for b in desk.page_json(name)["blocks"]]
    lefts = [box[0] for box in desk.boxes().values()]
    assert max(lefts) - min(lefts) < 0.5
    assert places == [[35, 0], [35, 130], [35, 420]]
    desk.menu("Spread evenly down", "do spread-down")
    after = [b["at"] for b in desk.page_json(name)["blocks"]]
    assert (after[0], after[2]) == (places[0], places[2])  # the outermost stay
    assert after[1] != places[1]
    boxes = [desk.boxes()[b] for b in "abc"]
    gaps = [below[1] - above[3] for above, below in itertools.pairwise(boxes)]
    assert abs(gaps[0] - gaps[1]) < 1.5, gaps


@pytest.mark.feature("frames")
def test_a_frame_round_blocks(desk: Desk) -> None:
    """Frames: round the selection, saved with a size, made larger with the mouse."""
    name = three(desk)
    desk.select("a")
    desk.block("b").locator(".block-op").click(modifiers=["Shift"])
    desk.key("f")
    desk.window.get_by_role("dialog").get_by_label("Text").fill("Both")
    desk.key("Control+Enter")
    frame = desk.window.locator(".note.frame")
    expect(frame).to_have_text("Both")
    (note,) = desk.page_json(name)["notes"]
    assert note["text"] == "Both"
    left, top, right, bottom = desk.box(frame)
    for inside in "ab":
        x, y, to_x, to_y = desk.box(desk.block(inside))
        assert left < x < to_x < right, inside
        assert top < y < to_y < bottom, inside
    assert desk.box(desk.block("c"))[1] > bottom
    assert note["size"] == pytest.approx([(right - left) / desk.zoomed(), (bottom - top) / desk.zoomed()], abs=2)
    handle = desk.window.locator(".react-flow__resize-control.handle.bottom.right")
    x, y = desk.middle(handle)
    desk._pull(x, y, x + 60, y + 40)
    desk._until(lambda: desk.page_json(name)["notes"][0]["size"] != note["size"])
    (larger,) = desk.page_json(name)["notes"]
    assert larger["at"] == note["at"]
    grown = [larger["size"][k] - note["size"][k] for k in (0, 1)]
    assert grown == pytest.approx([60 / desk.zoomed(), 40 / desk.zoomed()], abs=12)
    desk.reload()
    found = desk.box(desk.window.locator(".note.frame"))
    assert (found[2] - found[0]) / desk.zoomed() == pytest.approx(larger["size"][0], abs=2)


@pytest.mark.feature("notes")
def test_notes_are_written_and_deleted(desk: Desk) -> None:
    """Text notes: add, edit, delete."""
    name = three(desk)
    desk.key("n")
    text = desk.window.get_by_role("dialog").get_by_label("Text")
    text.fill("First line\nand a second")
    desk.key("Control+Enter")
    note = desk.window.locator(".note:not(.frame)")
    expect(note).to_have_text("First line\nand a second")
    (saved,) = desk.page_json(name)["notes"]
    assert saved["text"] == "First line\nand a second"
    assert "size" not in saved
    note.dblclick()
    expect(text).to_have_value("First line\nand a second")
    text.fill("Other words")
    desk.window.get_by_role("button", name="Take it").click()
    expect(note).to_have_text("Other words")
    x, y = desk.middle(note)
    desk._pull(x, y, x + 50, y + 30)
    desk._until(lambda: desk.page_json(name)["notes"][0]["at"] != saved["at"])
    assert desk.page_json(name)["notes"][0]["text"] == "Other words"
    note.click()
    desk.key("Delete")
    expect(note).to_have_count(0)
    assert "notes" not in desk.page_json(name)
    desk.key("Control+z")
    expect(note).to_have_text("Other words")


@pytest.mark.feature("gridSnap")
def test_blocks_keep_to_the_grid(desk: Desk) -> None:
    """Grid snap: places are multiples of 10; switched off, they are not."""
    name = desk.new_page()
    desk.place("Const", (203, 117))
    placed = desk.saved_block("const", name)["at"]
    assert [n % 10 for n in placed] == [0, 0]
    desk.drag("const", (57, 33))
    desk._until(lambda: desk.saved_block("const", name)["at"] != placed)
    moved = desk.saved_block("const", name)["at"]
    assert [n % 10 for n in moved] == [0, 0]
    assert [moved[k] - placed[k] for k in (0, 1)] == pytest.approx([57, 33], abs=10)
    desk.menu("Snap to the grid", "do snap")
    desk.drag("const", (33, 47))
    desk._until(lambda: desk.saved_block("const", name)["at"] != moved)
    free = desk.saved_block("const", name)["at"]
    assert all(n % 10 for n in free), free


@pytest.mark.feature("minimap")
def test_the_minimap_shows_and_moves(desk: Desk) -> None:
    """Minimap: every block is on it, a drag on it moves the view, a key hides it."""
    three(desk)
    for _ in range(4):
        desk.key("Control+=")
    minimap = desk.window.locator(".react-flow__minimap")
    expect(minimap.locator(".mini-block")).to_have_count(3)
    # As on the page: a above b above c.
    tops = [float(str(one.get_attribute("y"))) for one in minimap.locator(".mini-block").all()]
    assert tops == sorted(tops)
    before = desk.box(desk.block("a"))
    x, y = desk.middle(minimap)
    desk._pull(x, y, x + 15, y + 10)
    desk._until(lambda: desk.box(desk.block("a")) != before)
    after = desk.box(desk.block("a"))
    assert after[0] < before[0] - 5
    assert after[1] < before[1] - 5
    desk.key("m")
    expect(minimap).to_have_count(0)
    desk.key("m")
    expect(minimap).to_be_visible()


@pytest.mark.feature("zoom")
def test_zoom_by_keys_and_wheel(desk: Desk) -> None:
    """Zoom: keys and Ctrl+wheel; fit shows the whole page."""
    three(desk)
    desk.key("Control+1")
    desk._until(lambda: desk.zoomed() == 1)
    desk.key("Control+=")
    desk._until(lambda: abs(desk.zoomed() - 1.25) < 0.01)
    desk.key("Control+-", "Control+-")
    desk._until(lambda: abs(desk.zoomed() - 0.8) < 0.01)
    x, y = desk.middle(desk.block("b").locator(".block-op"))
    desk.mouse.move(x, y)
    desk.keys.down("Control")
    desk.mouse.wheel(0, -100)
    desk.keys.up("Control")
    desk._until(lambda: desk.zoomed() > 0.85)
    # What is under the mouse stays there.
    assert desk.middle(desk.block("b").locator(".block-op")) == pytest.approx((x, y), abs=3)
    for _ in range(5):
        desk.key("Control+=")
    desk._until(lambda: desk.zoomed() > 2.5)
    desk.key("Control+0")
    desk._until(lambda: desk.zoomed() <= 1)
    left, top, right, bottom = desk.box(desk.canvas)
    for name, (x, y, to_x, to_y) in desk.boxes().items():
        assert left <= x < to_x <= right, name
        assert top <= y < to_y <= bottom, name


@pytest.mark.feature("layout")
def test_automatic_layout(desk: Desk) -> None:
    """Automatic layout: no two blocks overlap after it, and wires lead left to right."""
    name = desk.put_page(
        "work",
        block("session", "ClientSession", (0, 0), wires={"fetch_outputs": ["mean.output", "neg.y"]}),
        block("neg", "Neg", (20, 10), wires={"x": "data.output"}),
        block(
            "mean",
            "SparseSegmentMean",
            (40, 20),
            wires={"data": "neg.y", "indices": "ids.output", "segment_ids": "segments.output"},
        ),
        const("data", (60, 30), [[1.0, 2.0], [3.0, 4.0]]),
        const("ids", (80, 40), [0, 1], "int32"),
        const("segments", (100, 50), [0, 0], "int32"),
    )
    desk.open(name)
    desk.wait_saved()
    expect(desk.window.locator(".react-flow__edge")).to_have_count(6)
    before = desk.page_json(name)
    desk.key("Control+Shift+l")
    desk._until(lambda: desk.page_json(name) != before)
    after = desk.page_json(name)
    assert [{**b, "at": 0} for b in after["blocks"]] == [{**b, "at": 0} for b in before["blocks"]]
    desk.key("Control+0")
    names = [b["id"] for b in after["blocks"]]
    boxes = desk.boxes()
    for one, other in itertools.combinations(names, 2):
        a, b = boxes[one], boxes[other]
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], f"{one} overlaps {other}"
    for b in after["blocks"]:
        for ends in b.get("in", {}).values():
            for end in [ends] if isinstance(ends, str) else ends:
                source = end.rpartition(".")[0]
                assert boxes[source][2] < boxes[b["id"]][0], f"{source} is not left of {b['id']}"


@pytest.mark.feature("hiddenWires")
def test_hidden_wires_are_dashes(desk: Desk) -> None:
    """Hidden wires: drawn as dashes, saved in the file, shown again."""
    wires = {"x": "x.output"}
    name = desk.put_page("work", const("x", (0, 0), [1.0]), block("neg", "Neg", (340, 0), wires=wires, hidden=["x"]))
    desk.open(name)
    line = desk.wires("neg.x").locator("path.react-flow__edge-path")
    words = desk.wires("neg.x").locator(".wire-text")

    def is_dashed() -> bool:
        dashes, strength = desk.style(line, "stroke-dasharray"), float(desk.style(line, "opacity"))
        assert (dashes == "none") == (strength == 1)
        return re.fullmatch(r"\d+px, \d+px", dashes) is not None and strength < 0.5

    expect(line).to_have_count(1)
    assert is_dashed()
    expect(words).to_have_count(0)
    desk.select("neg")
    desk.inspector.get_by_label("hide the wire").uncheck()
    expect(words).to_have_text("float32[1]")
    assert not is_dashed()
    assert "hidden" not in desk.saved_block("neg", name)
    desk.inspector.get_by_label("hide the wire").check()
    expect(words).to_have_count(0)
    assert is_dashed()
    assert desk.saved_block("neg", name)["hidden"] == ["x"]
    assert desk.saved_block("neg", name)["in"] == {"x": "x.output"}


@pytest.mark.feature("theme")
def test_light_and_dark(desk: Desk) -> None:
    """Light and dark: the switch changes the colours, and a reload keeps them."""
    three(desk)

    def brightness() -> float:
        numbers = re.findall(r"[\d.]+", desk.style(desk.canvas, "background-color"))
        return sum(float(n) for n in numbers[:3]) / 3

    studio = desk.window.locator(".studio")
    expect(studio).to_have_attribute("data-theme", "system")
    desk.press("theme")
    expect(studio).to_have_attribute("data-theme", "light")
    assert brightness() > 200
    desk.press("theme")
    expect(studio).to_have_attribute("data-theme", "dark")
    assert brightness() < 60
    # What is written stays readable: light on dark.
    text = re.findall(r"[\d.]+", desk.style(desk.window.locator(".top-bar"), "color"))
    assert sum(float(n) for n in text[:3]) / 3 > 180
    desk.reload()
    expect(studio).to_have_attribute("data-theme", "dark")
    assert brightness() < 60
    desk.key("Control+Shift+d")
    expect(studio).to_have_attribute("data-theme", "system")


@pytest.mark.feature("frames", "undo")
def test_a_frame_moves_its_blocks(desk: Desk) -> None:
    frame = {"text": "Both", "at": (50, 50), "size": (700, 400)}
    desk.put_page(
        "framed",
        const("a", (100, 100), 1.0),
        const("b", (400, 100), 1.0),
        const("outside", (900, 100), 1.0),
        notes=[frame],
    )
    desk.open("framed")
    before = desk.boxes()
    x, y, _, _ = desk.box(desk.window.locator("[data-note]"))
    desk._pull(x + 40, y + 10, x + 90, y + 60)
    desk._until(lambda: desk.boxes()["a"][0] > before["a"][0] + 30)
    saved = {one["id"]: one["at"] for one in desk.page_json()["blocks"]}
    note = desk.page_json()["notes"][0]["at"]
    assert saved["outside"] == [900, 100]
    assert saved["a"][0] - 100 == saved["b"][0] - 400 == note[0] - 50 != 0
    assert saved["a"][1] - 100 == saved["b"][1] - 100 == note[1] - 50 != 0
    expect(desk.window.locator(".note.selected")).to_have_count(1)
    desk.select("b")  # a selected frame does not cover what is in it
    desk.key("Control+z")
    assert {one["id"]: one["at"] for one in desk.page_json()["blocks"]}["a"] == [100, 100]
    assert desk.page_json()["notes"][0]["at"] == [50, 50]


@pytest.mark.feature("undo")
def test_each_drag_is_one_step_and_other_blocks_stay(desk: Desk) -> None:
    a, b = const("a", (0, 0), 1.0), const("b", (0, 0), 1.0)
    desk.put_page("unplaced", *({key: one[key] for key in one if key != "at"} for one in (a, b)))
    desk.open("unplaced")
    start = desk.boxes()
    desk.drag("a", (200, 30))
    desk.wait_saved()
    assert desk.boxes()["b"] == start["b"]
    desk.drag("b", (60, 120))
    desk._until(lambda: desk.boxes()["b"] != start["b"])
    desk.key("Control+z")
    desk._until(lambda: desk.boxes()["b"] == start["b"])
    assert desk.boxes()["a"][0] > start["a"][0] + 100
