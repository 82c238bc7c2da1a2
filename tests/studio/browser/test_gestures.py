"""Gestures on the canvas: menus, the search at a point, insertion on a wire, copies by dragging, keys of fields."""

from __future__ import annotations

import re

import pytest
from page_fixtures import block, const, counter_blocks
from playwright.sync_api import Locator, expect
from studio_window import StudioWindow


def open_pair(ui: StudioWindow) -> str:
    """Open a page with two blocks and the wire between them."""
    return ui.open_blocks(const("x", (0, 0), [1.0, 2.0]), block("neg", "Neg", (420, 0), wires={"x": "x.output"}))


def menu(ui: StudioWindow) -> Locator:
    return ui.window.get_by_role("menu")


def finder(ui: StudioWindow) -> Locator:
    return ui.window.locator(".finder")


def free_point(ui: StudioWindow) -> tuple[float, float]:
    """Return a point of the canvas below the blocks."""
    left, top, right, bottom = ui.box(ui.canvas)
    return (left + right) / 2, top + 0.55 * (bottom - top)


@pytest.mark.feature("copyPaste")
def test_menus_of_blocks_wires_pins_and_the_canvas(ui: StudioWindow) -> None:
    open_pair(ui)
    ui.block("neg").locator(".block-op").click(button="right")
    ui.wait_selected({"neg"})
    menu(ui).get_by_role("menuitem", name="Duplicate").click()
    expect(ui.window.locator("[data-block]")).to_have_count(3)
    ui.key("Control+z")
    ui.pin("neg", "x").click(button="right")
    ui.wait_selected({"neg"})  # so that its command to draw a wire is about this block
    menu(ui).get_by_role("menuitem", name="Cut the wire").click()
    expect(ui.wires("neg.x")).to_have_count(0)
    ui.key("Control+z")
    expect(ui.wires("neg.x")).to_have_count(1)
    ui.click_wire(ui.wires("neg.x"), button="right")
    menu(ui).get_by_role("menuitem", name="Hide the wire").click()
    assert ui.saved_block("neg")["hidden"] == ["x"]
    ui.key("Control+0")  # the view had moved to the duplicate
    ui.mouse.click(*free_point(ui), button="right")
    ui.key("ArrowDown", "ArrowDown")  # letters and arrows belong to the menu
    expect(menu(ui).get_by_role("menuitem", name="Add a note")).to_be_focused()
    ui.key("Escape")
    expect(menu(ui)).to_have_count(0)


@pytest.mark.feature("wires")
def test_a_double_click_and_a_dropped_wire_search_for_blocks_that_fit(ui: StudioWindow) -> None:
    name = open_pair(ui)
    point = free_point(ui)
    ui.mouse.dblclick(*point)
    expect(finder(ui).get_by_role("combobox")).to_be_focused()
    ui.keys.type("SparseSegmentSum")
    ui.key("Enter")
    placed = ui.block("sparse_segment_sum")
    expect(ui.window.locator('.react-flow__node[data-id="sparse_segment_sum"]')).to_be_focused()
    left, top, _, _ = ui.box(placed)
    assert (left, top) == pytest.approx(point, abs=25)
    ui.key("Control+z")
    x, y = ui.middle(ui.pin("neg", "y", "out"))
    ui.drag_mouse(x, y, *point)
    found = finder(ui).get_by_role("option")
    expect(found.filter(has_text="Square").first).to_be_visible()
    expect(found.filter(has_text=re.compile("^FeedType"))).to_have_count(1)  # of `any`
    expect(found.filter(has_text=re.compile("^RandomUniform"))).to_have_count(0)  # its inputs are sizes
    ui.keys.type("square")
    ui.key("Enter")
    expect(ui.wires("square.x")).to_have_count(1)
    assert ui.saved_block("square", name)["in"] == {"x": "neg.y"}
    ui.key("Control+z")  # the block and its wire are one step
    expect(ui.block("square")).to_have_count(0)


@pytest.mark.feature("wires", "paletteDrag")
def test_a_block_is_inserted_on_a_wire(ui: StudioWindow) -> None:
    name = open_pair(ui)
    ui.click_wire(ui.wires("neg.x"), button="right")
    menu(ui).get_by_role("menuitem", name="Insert a block").click()
    expect(finder(ui).get_by_role("combobox")).to_be_focused()
    ui.keys.type("Square")
    ui.key("Enter")
    expect(ui.block("square")).to_be_visible()
    assert ui.saved_block("square", name)["in"] == {"x": "x.output"}
    assert ui.saved_block("neg", name)["in"] == {"x": "square.y"}
    ui.key("Control+z")
    x, y = ui.point_on_wire(ui.wires("neg.x"))
    left, top, _, _ = ui.box(ui.canvas)
    ui.place("Abs", (x - left, y - top))
    expect(ui.wires("abs.x")).to_have_count(1)
    assert ui.saved_block("neg", name)["in"] == {"x": "abs.y"}


@pytest.mark.feature("copyPaste")
def test_alt_and_drag_duplicates_and_paste_is_at_the_pointer(ui: StudioWindow) -> None:
    name = open_pair(ui)
    ui.keys.down("Alt")
    ui.drag("x", (40, 160))
    ui.keys.up("Alt")
    expect(ui.window.locator("[data-block]")).to_have_count(3)
    ui.wait_selected({"x_2"})
    assert ui.saved_block("x", name)["at"] == [0, 0]
    moved = ui.saved_block("x_2", name)["at"]
    assert moved == pytest.approx([40 / ui.zoom_level(), 160 / ui.zoom_level()], abs=25)
    ui.select("neg")
    ui.key("Control+c")
    point = free_point(ui)
    ui.mouse.move(*point)
    ui.key("Control+v")
    expect(ui.block("neg_2")).to_be_visible()
    assert ui.box(ui.block("neg_2"))[:2] == pytest.approx(point, abs=40)


@pytest.mark.feature("paletteSearch", "undo")
def test_slash_clears_the_search_escape_leaves_and_undo_works_in_fields(ui: StudioWindow) -> None:
    open_pair(ui)
    field = ui.window.get_by_label("Search blocks", exact=True)
    field.fill("Square")
    ui.key("Escape")
    ui.select("neg")
    field.fill("rubbish")
    ui.canvas.click(position={"x": 5, "y": 5})
    ui.key("/")
    expect(field).to_be_focused()
    expect(field).to_have_value("")
    ui.keys.type("Square")
    ui.key("Enter")
    expect(ui.window.locator('.react-flow__node[data-id="square"]')).to_be_focused()
    ui.key("Enter")  # the block is selected: on to its first value
    value = ui.inspector.get_by_label("Value of square.x")
    expect(value).to_be_focused()
    ui.keys.type("7")
    ui.key("Control+z")  # what was typed, not the block
    expect(ui.block("square")).to_be_visible()
    value.fill("8")
    ui.key("Enter")
    expect(ui.block("square").locator(".literal")).to_have_text("8")
    ui.key("Control+z")  # nothing is being typed any more: the page's last step
    expect(ui.block("square").locator(".literal")).not_to_have_text("8")
    ui.key("Escape")
    expect(ui.window.locator('.react-flow__node[data-id="square"]')).to_be_focused()


@pytest.mark.feature("attributes", "literals", "undo")
def test_several_blocks_are_changed_together(ui: StudioWindow) -> None:
    ui.open_blocks(*(block(f"s{k}", "SparseSegmentMeanGrad", (300 * k, 0)) for k in range(3)))
    ui.key("Control+a")
    expect(ui.inspector.get_by_role("heading", name="3 blocks")).to_be_visible()
    field = ui.inspector.get_by_label("Value of segment_ids of 3 blocks")
    field.fill("{0,0}")
    field.press("Enter")
    ui.wait_until(lambda: all("values" in one for one in ui.page_json()["blocks"]))
    order = ui.inspector.get_by_label("order of 3 blocks")
    order.select_option(index=1)
    order.focus()
    ui.wait_until(lambda: all("attrs" in one for one in ui.page_json()["blocks"]))
    blocks = ui.page_json()["blocks"]
    assert len({str(one["values"]) for one in blocks}) == len({str(one["attrs"]) for one in blocks}) == 1
    ui.key("Control+z", "Control+z")  # in the field that the choice was made in
    assert not any("values" in one or "attrs" in one for one in ui.page_json()["blocks"])


@pytest.mark.feature("rename")
def test_an_illegal_name_says_why(ui: StudioWindow) -> None:
    open_pair(ui)
    ui.select("neg")
    ui.key("F2")
    ui.inspector.get_by_label("Name").fill("not a name")
    expect(ui.inspector.locator(".fault")).to_contain_text("use letters a–z, digits")
    ui.key("Tab")
    ui.wait_message(re.compile("still called neg"))
    assert ui.saved_block("neg")["op"] == "Neg"


@pytest.mark.feature("palette", "zoom")
def test_a_narrow_window_has_the_canvas_and_opens_panels_over_it(ui: StudioWindow) -> None:
    open_pair(ui)
    ui.window.set_viewport_size({"width": 390, "height": 844})
    expect(ui.inspector).to_have_count(0)
    expect(ui.window.get_by_label("Palette")).to_have_count(0)
    left, _, right, _ = ui.box(ui.canvas)
    assert (left, right) == (0, 390)
    ui.key("Control+0")
    ui.wait_until(lambda: all(left <= box[0] and box[2] <= right for box in ui.boxes().values()))
    ui.window.get_by_role("button", name="Menu").click()
    ui.window.get_by_role("menuitemcheckbox", name="Palette").click()
    field = ui.window.get_by_label("Search blocks", exact=True)
    field.fill("Square")
    field.press("Enter")
    expect(ui.block("square")).to_be_visible()
    expect(ui.window.get_by_label("Palette")).to_have_count(0)
    ui.window.set_viewport_size({"width": 1280, "height": 800})
    expect(ui.inspector).to_be_visible()


@pytest.mark.feature("zoom", "multiSelect")
def test_buttons_zoom_and_space_with_a_drag_moves_the_page(ui: StudioWindow) -> None:
    name = open_pair(ui)
    ui.press("zoom-actual")
    ui.wait_until(lambda: ui.zoom_level() == 1)
    ui.press("zoom-in")
    ui.wait_until(lambda: abs(ui.zoom_level() - 1.25) < 0.01)
    ui.press("zoom-out")
    ui.wait_until(lambda: abs(ui.zoom_level() - 1) < 0.01)
    ui.press("fit")
    ui.wait_until(lambda: all(is_in_canvas(ui, box) for box in ui.boxes().values()))
    ui.canvas.click(position={"x": 5, "y": 5})  # no field has the focus
    before = ui.boxes()
    x, y = free_point(ui)
    ui.keys.down("Space")
    ui.drag_mouse(x, y, x + 60, y - 40)
    ui.keys.up("Space")
    shift = [now - then for now, then in zip(ui.boxes()["neg"], before["neg"], strict=True)]
    assert shift == pytest.approx([60, -40, 60, -40], abs=2)
    expect(ui.window.locator(".block.selected")).to_have_count(0)
    assert ui.saved_block("neg", name)["at"] == [420, 0]  # the page moved, not its blocks
    ui.drag_mouse(x, y, x + 60, y - 40)  # without Space, a drag selects
    assert ui.boxes()["neg"] == pytest.approx([then + by for then, by in zip(before["neg"], shift, strict=True)], abs=1)


def is_in_canvas(ui: StudioWindow, box: tuple[float, float, float, float]) -> bool:
    left, top, right, bottom = ui.box(ui.canvas)
    return left <= box[0] and top <= box[1] and box[2] <= right and box[3] <= bottom


@pytest.mark.feature("pause", "steps")
@pytest.mark.parametrize("width", [390, 900])
def test_a_run_can_be_followed_and_stopped_in_a_narrow_window(ui: StudioWindow, width: int) -> None:
    ui.open_blocks(*counter_blocks())
    ui.window.set_viewport_size({"width": width, "height": 844})
    ui.window.get_by_label("Steps to run").fill("100000000")
    ui.press("run-steps")
    ui.wait_run("running")
    ui.window.locator(".run-bar").evaluate("bar => { bar.scrollLeft = 0 }")
    for what in (ui.progress, ui.window.locator('[data-command="pause"]'), ui.window.locator('[data-command="stop"]')):
        left, _, right, _ = ui.box(what)
        assert 0 <= left < right <= width, what
    expect(ui.progress).to_contain_text("running · step")
    ui.press("stop")
    ui.wait_run("stopped")
