"""What a review of the page found: work that went astray between pages, keys that did what nobody saw, frames."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from desk import block, const
from playwright.sync_api import expect

if TYPE_CHECKING:
    from desk import Desk
    from playwright.sync_api import Route

SLOW = 0.6  # seconds an answer is held back


def _slow(route: Route) -> None:
    time.sleep(SLOW)
    route.continue_()


@pytest.mark.feature("literals")
def test_a_value_goes_to_the_page_it_was_typed_on(desk: Desk) -> None:
    desk.put_page("one", const("same", (100, 100), 1.0))
    desk.put_page("two", const("same", (100, 100), 2.0))
    desk.open("two")
    desk.go_to("one")
    desk.window.route("**/api/parse", _slow)
    desk.block("same").get_by_role("button", name=re.compile("type a value into same.val$")).click()
    desk.block("same").get_by_label("Value of same.val", exact=True).fill("7")
    desk.tab("two").click()  # leaves the field; the server has not read it yet
    expect(desk.block("same").locator("input")).to_have_count(0)  # nor is it open on the other page
    expect(desk.tab("two")).to_have_attribute("aria-selected", "true")
    desk.tab("one").click()
    expect(desk.block("same").locator(".literal")).to_have_text("7")
    assert desk.saved_block("same", "one")["values"]["val"]["data"] == 7
    assert desk.saved_block("same", "two")["values"]["val"]["data"] == 2


@pytest.mark.feature("literals", "tabs")
def test_a_field_that_is_left_by_a_key_has_what_was_typed(desk: Desk) -> None:
    desk.put_page("one", const("a", (100, 100), 1.0))
    desk.put_page("two", const("b", (100, 100), 2.0))
    desk.open("two")
    desk.go_to("one")
    desk.block("a").get_by_role("button", name=re.compile("type a value into a.val$")).click()
    desk.block("a").get_by_label("Value of a.val", exact=True).fill("7")
    desk.key("Alt+PageDown")
    expect(desk.tab("two")).to_have_attribute("aria-selected", "true")
    desk.tab("one").click()
    expect(desk.block("a").locator(".literal")).to_have_text("7")


@pytest.mark.feature("run", "literals")
def test_a_run_out_of_a_field_has_what_was_typed(desk: Desk) -> None:
    desk.open_made(
        const("a", (100, 100), 1.0),
        block("run", "ClientSession", (500, 100), wires={"fetch_outputs": "a.output"}),
    )
    desk.select("a")
    desk.window.route("**/api/parse", _slow)
    desk.inspector.get_by_label("Value of a.val", exact=True).fill("7")
    desk.key("Control+Enter")
    desk.wait_runs(1)
    desk.wait_run()
    assert desk.preview("a", "output") == "7"


@pytest.mark.feature("keyboard", "undo")
def test_keys_on_the_start_screen_leave_the_page_behind_it_alone(desk: Desk) -> None:
    name = desk.open_made(const("a", (100, 100), 1.0), const("b", (500, 100), 1.0))
    desk.select("a")
    desk.window.locator(".top-bar .brand").click()
    desk.key("Delete")
    desk.tab(name).click()
    expect(desk.window.locator("[data-block]")).to_have_count(2)
    desk.key("Delete")
    expect(desk.window.locator("[data-block]")).to_have_count(1)
    desk.key("Control+z")
    expect(desk.window.locator("[data-block]")).to_have_count(2)


@pytest.mark.feature("keyboard")
def test_a_dialog_that_has_nothing_to_show_leaves_the_keys_alone(desk: Desk) -> None:
    desk.open_made({"id": "odd", "op": "NoSuchBlock", "at": (100, 100)})
    desk.select("odd")
    desk.key("w", "Delete")
    expect(desk.window.locator("[data-block]")).to_have_count(0)


@pytest.mark.feature("frames", "undo")
def test_a_frame_takes_its_blocks_along(desk: Desk) -> None:
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
def test_each_drag_is_a_step_and_others_stay_where_they_were(desk: Desk) -> None:
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


@pytest.mark.feature("keyboard")
def test_wires_of_a_list_that_became_shorter_can_be_cut(desk: Desk) -> None:
    desk.open_made(
        const("x", (50, 100), 1.0),
        const("y", (50, 300), 1.0),
        block("all", "InputList", (350, 100), wires={"outputlist": ["x.output", "y.output"]}),
        block("neg", "Neg", (750, 100), wires={"x": "all.output[1]"}),
    )
    desk.select("all")
    desk.inspector.get_by_label("Cut the wire from y.output to all.outputlist", exact=True).click()
    desk.wait_saved()
    expect(desk.block("all").locator('[data-out="output[1]"]')).to_be_visible()
    desk.wires("neg.x").locator("path").last.click(force=True)
    desk.key("Delete")
    expect(desk.wires("neg.x")).to_have_count(0)
    assert "in" not in desk.saved_block("neg")


@pytest.mark.feature("copyPaste")
def test_duplicates_stand_beside_what_they_are_of(desk: Desk) -> None:
    desk.open_made(const("a", (100, 100), 1.0))
    desk.select("a")
    desk.key("Control+d")
    expect(desk.window.locator("[data-block]")).to_have_count(2)
    desk.block("a").locator(".block-op").click(position={"x": 2, "y": 2})
    desk.wait_selected({"a"})
    desk.key("Control+d")
    expect(desk.window.locator("[data-block]")).to_have_count(3)
    assert [one["at"] for one in desk.page_json()["blocks"]] == [[100, 100], [120, 120], [140, 140]]
