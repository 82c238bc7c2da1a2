"""Layout of a page: alignment, frames, notes, grid, minimap, zoom, automatic layout, theme."""

from __future__ import annotations

import itertools
import re

import pytest
from page_fixtures import block, const
from playwright.sync_api import expect
from studio_window import StudioWindow


def open_three_blocks(ui: StudioWindow) -> str:
    """Open a page with three unaligned blocks of different heights."""
    name = ui.write_page(
        "work",
        const("a", (35, 0), [1.0]),
        block("b", "SparseSegmentMeanGrad", (170, 130)),
        const("c", (90, 420), [1.0]),
    )
    ui.open(name)
    expect(ui.block("c")).to_be_visible()
    return name


@pytest.mark.feature("align")
def test_align_left_and_spread_down(ui: StudioWindow) -> None:
    name = open_three_blocks(ui)
    ui.key("Control+a", "Alt+ArrowLeft")
    places = [b["at"] for b in ui.page_json(name)["blocks"]]
    lefts = [box[0] for box in ui.boxes().values()]
    assert max(lefts) - min(lefts) < 0.5
    assert places == [[35, 0], [35, 130], [35, 420]]
    ui.choose_command("Spread evenly down", "do spread-down")
    after = [b["at"] for b in ui.page_json(name)["blocks"]]
    assert (after[0], after[2]) == (places[0], places[2])  # the outermost blocks do not move
    assert after[1] != places[1]
    boxes = [ui.boxes()[b] for b in "abc"]
    gaps = [below[1] - above[3] for above, below in itertools.pairwise(boxes)]
    assert abs(gaps[0] - gaps[1]) < 1.5, gaps


@pytest.mark.feature("frames")
def test_a_frame_encloses_the_selection_and_can_be_resized(ui: StudioWindow) -> None:
    name = open_three_blocks(ui)
    ui.select("a")
    ui.block("b").locator(".block-op").click(modifiers=["Shift"])
    ui.key("f")
    ui.window.get_by_role("dialog").get_by_label("Text").fill("Both")
    ui.key("Control+Enter")
    frame = ui.window.locator(".note.frame")
    expect(frame).to_have_text("Both")
    (note,) = ui.page_json(name)["notes"]
    assert note["text"] == "Both"
    left, top, right, bottom = ui.box(frame)
    for inside in "ab":
        x, y, to_x, to_y = ui.box(ui.block(inside))
        assert left < x < to_x < right, inside
        assert top < y < to_y < bottom, inside
    assert ui.box(ui.block("c"))[1] > bottom
    assert note["size"] == pytest.approx([(right - left) / ui.zoom_level(), (bottom - top) / ui.zoom_level()], abs=2)
    handle = ui.window.locator(".react-flow__resize-control.handle.bottom.right")
    x, y = ui.middle(handle)
    ui.drag_mouse(x, y, x + 60, y + 40)
    ui.wait_until(lambda: ui.page_json(name)["notes"][0]["size"] != note["size"])
    (larger,) = ui.page_json(name)["notes"]
    assert larger["at"] == note["at"]
    grown = [larger["size"][k] - note["size"][k] for k in (0, 1)]
    assert grown == pytest.approx([60 / ui.zoom_level(), 40 / ui.zoom_level()], abs=12)
    ui.reload()
    found = ui.box(ui.window.locator(".note.frame"))
    assert (found[2] - found[0]) / ui.zoom_level() == pytest.approx(larger["size"][0], abs=2)


@pytest.mark.feature("notes")
def test_notes_are_added_edited_and_deleted(ui: StudioWindow) -> None:
    name = open_three_blocks(ui)
    ui.key("n")
    text = ui.window.get_by_role("dialog").get_by_label("Text")
    text.fill("First line\nand a second")
    ui.key("Control+Enter")
    note = ui.window.locator(".note:not(.frame)")
    expect(note).to_have_text("First line\nand a second")
    (saved,) = ui.page_json(name)["notes"]
    assert saved["text"] == "First line\nand a second"
    assert "size" not in saved
    note.dblclick()
    expect(text).to_have_value("First line\nand a second")
    text.fill("Other words")
    ui.window.get_by_role("button", name="Take it").click()
    expect(note).to_have_text("Other words")
    x, y = ui.middle(note)
    ui.drag_mouse(x, y, x + 50, y + 30)
    ui.wait_until(lambda: ui.page_json(name)["notes"][0]["at"] != saved["at"])
    assert ui.page_json(name)["notes"][0]["text"] == "Other words"
    note.click()
    ui.key("Delete")
    expect(note).to_have_count(0)
    assert "notes" not in ui.page_json(name)
    ui.key("Control+z")
    expect(note).to_have_text("Other words")


@pytest.mark.feature("gridSnap")
def test_blocks_snap_to_the_grid(ui: StudioWindow) -> None:
    """Positions are multiples of 10, unless snapping is off."""
    name = ui.new_page()
    ui.place("Const", (203, 117))
    placed = ui.saved_block("const", name)["at"]
    assert [n % 10 for n in placed] == [0, 0]
    ui.drag("const", (57, 33))
    ui.wait_until(lambda: ui.saved_block("const", name)["at"] != placed)
    moved = ui.saved_block("const", name)["at"]
    assert [n % 10 for n in moved] == [0, 0]
    assert [moved[k] - placed[k] for k in (0, 1)] == pytest.approx([57, 33], abs=10)
    ui.choose_command("Snap to the grid", "do snap")
    ui.drag("const", (33, 47))
    ui.wait_until(lambda: ui.saved_block("const", name)["at"] != moved)
    free = ui.saved_block("const", name)["at"]
    assert all(n % 10 for n in free), free


@pytest.mark.feature("minimap")
def test_the_minimap_shows_every_block_and_moves_the_view(ui: StudioWindow) -> None:
    open_three_blocks(ui)
    for _ in range(4):
        ui.key("Control+=")
    minimap = ui.window.locator(".react-flow__minimap")
    expect(minimap.locator(".mini-block")).to_have_count(3)
    # The same order as on the page: a above b above c.
    tops = [float(str(one.get_attribute("y"))) for one in minimap.locator(".mini-block").all()]
    assert tops == sorted(tops)
    before = ui.box(ui.block("a"))
    x, y = ui.middle(minimap)
    ui.drag_mouse(x, y, x + 15, y + 10)
    ui.wait_until(lambda: ui.box(ui.block("a")) != before)
    after = ui.box(ui.block("a"))
    assert after[0] < before[0] - 5
    assert after[1] < before[1] - 5
    ui.key("m")
    expect(minimap).to_have_count(0)
    ui.key("m")
    expect(minimap).to_be_visible()


@pytest.mark.feature("zoom")
def test_zoom_by_keys_and_wheel(ui: StudioWindow) -> None:
    """Keys and Ctrl+wheel change the zoom; fit shows the whole page."""
    open_three_blocks(ui)
    ui.key("Control+1")
    ui.wait_until(lambda: ui.zoom_level() == 1)
    ui.key("Control+=")
    ui.wait_until(lambda: abs(ui.zoom_level() - 1.25) < 0.01)
    ui.key("Control+-", "Control+-")
    ui.wait_until(lambda: abs(ui.zoom_level() - 0.8) < 0.01)
    x, y = ui.middle(ui.block("b").locator(".block-op"))
    ui.mouse.move(x, y)
    ui.keys.down("Control")
    ui.mouse.wheel(0, -100)
    ui.keys.up("Control")
    ui.wait_until(lambda: ui.zoom_level() > 0.85)
    # The point under the mouse stays there.
    assert ui.middle(ui.block("b").locator(".block-op")) == pytest.approx((x, y), abs=3)
    for _ in range(5):
        ui.key("Control+=")
    ui.wait_until(lambda: ui.zoom_level() > 2.5)
    ui.key("Control+0")
    ui.wait_until(lambda: ui.zoom_level() <= 1)
    left, top, right, bottom = ui.box(ui.canvas)
    for name, (x, y, to_x, to_y) in ui.boxes().items():
        assert left <= x < to_x <= right, name
        assert top <= y < to_y <= bottom, name


@pytest.mark.feature("layout")
def test_automatic_layout_has_no_overlaps_and_wires_go_left_to_right(ui: StudioWindow) -> None:
    name = ui.write_page(
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
    ui.open(name)
    ui.wait_saved()
    expect(ui.window.locator(".react-flow__edge")).to_have_count(6)
    before = ui.page_json(name)
    ui.key("Control+Shift+l")
    ui.wait_until(lambda: ui.page_json(name) != before)
    after = ui.page_json(name)
    assert [{**b, "at": 0} for b in after["blocks"]] == [{**b, "at": 0} for b in before["blocks"]]
    ui.key("Control+0")
    names = [b["id"] for b in after["blocks"]]
    boxes = ui.boxes()
    for one, other in itertools.combinations(names, 2):
        a, b = boxes[one], boxes[other]
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], f"{one} overlaps {other}"
    for b in after["blocks"]:
        for ends in b.get("in", {}).values():
            for end in [ends] if isinstance(ends, str) else ends:
                source = end.rpartition(".")[0]
                assert boxes[source][2] < boxes[b["id"]][0], f"{source} is not left of {b['id']}"


@pytest.mark.feature("hiddenWires")
def test_hidden_wires_are_dashed(ui: StudioWindow) -> None:
    """Hidden wires are dashed and unlabelled; the flag is saved and can be cleared."""
    wires = {"x": "x.output"}
    name = ui.write_page("work", const("x", (0, 0), [1.0]), block("neg", "Neg", (340, 0), wires=wires, hidden=["x"]))
    ui.open(name)
    line = ui.wires("neg.x").locator("path.react-flow__edge-path")
    label = ui.wires("neg.x").locator(".wire-text")

    def is_dashed() -> bool:
        dashes, strength = ui.style(line, "stroke-dasharray"), float(ui.style(line, "opacity"))
        assert (dashes == "none") == (strength == 1)
        return re.fullmatch(r"\d+px, \d+px", dashes) is not None and strength < 0.5

    expect(line).to_have_count(1)
    assert is_dashed()
    expect(label).to_have_count(0)
    ui.select("neg")
    ui.inspector.get_by_label("hide the wire").uncheck()
    expect(label).to_have_text("float32[1]")
    assert not is_dashed()
    assert "hidden" not in ui.saved_block("neg", name)
    ui.inspector.get_by_label("hide the wire").check()
    expect(label).to_have_count(0)
    assert is_dashed()
    assert ui.saved_block("neg", name)["hidden"] == ["x"]
    assert ui.saved_block("neg", name)["in"] == {"x": "x.output"}


@pytest.mark.feature("theme")
def test_the_theme_changes_colors_and_survives_a_reload(ui: StudioWindow) -> None:
    open_three_blocks(ui)

    def brightness() -> float:
        numbers = re.findall(r"[\d.]+", ui.style(ui.canvas, "background-color"))
        return sum(float(n) for n in numbers[:3]) / 3

    studio = ui.window.locator(".studio")
    expect(studio).to_have_attribute("data-theme", "system")
    ui.press("theme")
    expect(studio).to_have_attribute("data-theme", "light")
    assert brightness() > 200
    ui.press("theme")
    expect(studio).to_have_attribute("data-theme", "dark")
    assert brightness() < 60
    # Text stays readable: light on dark.
    text = re.findall(r"[\d.]+", ui.style(ui.window.locator(".top-bar"), "color"))
    assert sum(float(n) for n in text[:3]) / 3 > 180
    ui.reload()
    expect(studio).to_have_attribute("data-theme", "dark")
    assert brightness() < 60
    ui.key("Control+Shift+d")
    expect(studio).to_have_attribute("data-theme", "system")


@pytest.mark.feature("frames", "undo")
def test_a_frame_moves_its_blocks(ui: StudioWindow) -> None:
    frame = {"text": "Both", "at": (50, 50), "size": (700, 400)}
    ui.write_page(
        "framed",
        const("a", (100, 100), 1.0),
        const("b", (400, 100), 1.0),
        const("outside", (900, 100), 1.0),
        notes=[frame],
    )
    ui.open("framed")
    before = ui.boxes()
    x, y, _, _ = ui.box(ui.window.locator("[data-note]"))
    ui.drag_mouse(x + 40, y + 10, x + 90, y + 60)
    ui.wait_until(lambda: ui.boxes()["a"][0] > before["a"][0] + 30)
    saved = {one["id"]: one["at"] for one in ui.page_json()["blocks"]}
    note = ui.page_json()["notes"][0]["at"]
    assert saved["outside"] == [900, 100]
    assert saved["a"][0] - 100 == saved["b"][0] - 400 == note[0] - 50 != 0
    assert saved["a"][1] - 100 == saved["b"][1] - 100 == note[1] - 50 != 0
    expect(ui.window.locator(".note.selected")).to_have_count(1)
    ui.select("b")  # a selected frame does not cover its blocks
    ui.key("Control+z")
    assert {one["id"]: one["at"] for one in ui.page_json()["blocks"]}["a"] == [100, 100]
    assert ui.page_json()["notes"][0]["at"] == [50, 50]


@pytest.mark.feature("undo")
def test_each_drag_is_one_undo_step_and_other_blocks_stay(ui: StudioWindow) -> None:
    a, b = const("a", (0, 0), 1.0), const("b", (0, 0), 1.0)
    ui.write_page("unplaced", *({key: one[key] for key in one if key != "at"} for one in (a, b)))
    ui.open("unplaced")
    start = ui.boxes()
    ui.drag("a", (200, 30))
    ui.wait_saved()
    assert ui.boxes()["b"] == start["b"]
    ui.drag("b", (60, 60))  # not to an edge, where the canvas scrolls
    ui.wait_until(lambda: ui.boxes()["b"] != start["b"])
    ui.key("Control+z")
    ui.wait_until(lambda: ui.boxes()["b"] == start["b"])
    assert ui.boxes()["a"][0] > start["a"][0] + 100


@pytest.mark.feature("zoom")
def test_a_large_page_opens_at_its_beginning_and_stays_in_view(ui: StudioWindow) -> None:
    ui.open(ui.write_page("large", *(const(f"c{k}", (500 * (k % 8), 300 * (k // 8)), 1.0) for k in range(40))))
    expect(ui.window.locator('[data-command="zoom-actual"]')).to_have_text("60 %")
    left, top, right, below = ui.box(ui.canvas)

    def in_view() -> list[str]:
        return [
            name
            for name, (x, y, to_x, to_y) in ui.boxes().items()
            if x < right and to_x > left and y < below and to_y > top
        ]

    assert "c0" in in_view()
    assert "c39" not in in_view()
    ui.mouse.move(*ui.middle(ui.canvas))
    for by in ((9000, 9000), (-20000, 0), (0, -20000), (20000, 0)):
        ui.mouse.wheel(*by)
        ui.wait_until_still(ui.block("c0"))
        assert in_view(), by
    ui.press("fit")
    ui.wait_until(lambda: len(in_view()) == 40)
