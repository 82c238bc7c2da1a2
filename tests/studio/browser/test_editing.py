"""Undo and redo, copies between pages and as text, selections, names, the menu."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from desk import Desk, block, const
from playwright.sync_api import expect

EXAMPLE = Path(__file__).parents[3] / "examples" / "pages" / "01_sparse_segment_mean.json"
PASTE = """text => {
    const data = new DataTransfer();
    data.setData("text/plain", text);
    document.body.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true}));
}"""


def pair(at: float = 0) -> list[dict[str, object]]:
    """Two blocks and a wire."""
    return [const("x", (at, 0), [1.0, 2.0]), block("neg", "Neg", (at + 300, 0), wires={"x": "x.output"})]


@pytest.mark.feature("undo", "history")
def test_undo_redo_and_the_history(desk: Desk) -> None:
    """Undo/redo with history: ten steps back, ten forward; a click in the panel goes to a step."""
    name = desk.put_page("work", *pair())
    desk.open(name)
    first = desk.page_json(name)
    field = desk.window.get_by_label("Search blocks", exact=True)
    field.fill("Const")
    for k in range(10):
        field.press("Enter")
        expect(desk.window.locator("[data-block]")).to_have_count(3 + k)
    field.press("Escape")
    expect(desk.window.locator(".save-state")).to_have_attribute("data-saving", "saved")
    built = desk.page_json(name)
    assert len(built["blocks"]) == 12
    desk.canvas.click(position={"x": 5, "y": 5})
    for k in range(10):
        desk.key("Control+z")
        expect(desk.window.locator("[data-block]")).to_have_count(11 - k)
    assert desk.page_json(name) == first
    expect(desk.window.locator('[data-command="undo"]')).to_be_disabled()
    for k in range(10):
        desk.key("Control+Shift+z")
        expect(desk.window.locator("[data-block]")).to_have_count(3 + k)
    assert desk.page_json(name) == built
    desk.window.locator("#bottom-history").click()
    steps = desk.window.locator(".history button")
    expect(steps).to_have_count(11)  # the last one first
    expect(steps.first).to_have_text("add Const")
    expect(steps.last).to_have_text("opened")
    steps.nth(6).click()
    expect(desk.window.locator("[data-block]")).to_have_count(6)
    expect(steps.nth(6)).to_have_attribute("aria-current", "step")
    assert desk.page_json(name)["blocks"] == built["blocks"][:6]
    steps.first.click()
    assert desk.page_json(name) == built


@pytest.mark.feature("copyPaste")
def test_copies_go_from_page_to_page(desk: Desk) -> None:
    """Copy/paste between pages: wires among the copies stay, names that are taken change."""
    desk.put_page("left", *pair(), block("out", "ClientSession", (600, 0), wires={"fetch_outputs": "neg.output"}))
    desk.put_page("right", const("x", (0, 0), [9.0]))
    desk.open("left")
    desk.select("neg")
    desk.block("x").locator(".block-op").click(modifiers=["Shift"])
    desk.key("Control+c")
    desk.go_to("right")
    expect(desk.block("x")).to_be_visible()
    desk.key("Control+v")
    expect(desk.window.locator("[data-block]")).to_have_count(3)
    desk.wait_selected({"x_2", "neg"})
    assert desk.saved_block("neg", "right")["in"] == {"x": "x_2.output"}
    left, right = desk.page_json("left"), desk.page_json("right")
    assert right["blocks"][1]["values"] == left["blocks"][0]["values"]
    assert right["blocks"][0]["values"]["val"]["data"] == [9.0]
    assert [b["id"] for b in left["blocks"]] == ["x", "neg", "out"]


@pytest.mark.feature("copyPaste")
def test_a_copy_is_the_text_of_a_page(desk: Desk) -> None:
    """Copy/paste as JSON: the clipboard's text is a page, and the text of a page can be pasted."""
    desk.window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    name = desk.put_page("work", *pair(), notes=[{"text": "why", "at": [0, 200]}])
    desk.open(name)
    expect(desk.block("neg")).to_be_visible()
    desk.key("Control+a", "Control+c")
    text = desk.window.evaluate("navigator.clipboard.readText()")
    assert text.startswith("{"), f"on the clipboard is {text!r}"
    copied = json.loads(text)
    saved = desk.page_json(name)
    assert (copied["format"], copied["version"]) == ("rowgrad-page", 1)
    assert [(b["id"], b["op"], b.get("in")) for b in copied["blocks"]] == [
        ("x", "Const", None),
        ("neg", "Neg", {"x": "x.output"}),
    ]
    assert [n["text"] for n in copied["notes"]] == ["why"]
    example = json.loads(EXAMPLE.read_text())
    desk.window.evaluate(PASTE, "no page at all")
    desk.window.evaluate(PASTE, EXAMPLE.read_text())
    expect(desk.window.locator("[data-block]")).to_have_count(2 + len(example["blocks"]))
    now = desk.page_json(name)
    assert now["blocks"][:2] == saved["blocks"]
    pasted = now["blocks"][2:]
    assert [{**b, "at": 0} for b in pasted] == [{**b, "at": 0} for b in example["blocks"]]
    shifts = {
        (p["at"][0] - b["at"][0], p["at"][1] - b["at"][1]) for p, b in zip(pasted, example["blocks"], strict=True)
    }
    assert len(shifts) == 1  # as they stood to each other
    assert [n["text"] for n in now["notes"]] == ["why", "SparseSegmentMean"]


@pytest.mark.feature("multiSelect")
def test_several_blocks_are_selected(desk: Desk) -> None:
    """Multi-select: a box drawn with the mouse, Shift and a click, select all; they move together."""
    name = desk.put_page("work", *(const(f"c{k}", (300 * (k % 2), 150 * (k // 2)), [1.0]) for k in range(4)))
    desk.open(name)
    expect(desk.block("c3")).to_be_visible()
    before = {b["id"]: b["at"] for b in desk.page_json(name)["blocks"]}
    left, top, _, _ = desk.box(desk.block("c0"))
    right, bottom = desk.box(desk.block("c2"))[2:]
    desk._pull(left - 20, top - 20, right + 10, bottom + 10)  # the left column
    desk.wait_selected({"c0", "c2"})
    expect(desk.inspector).to_contain_text("2 blocks")
    desk.block("c3").locator(".block-op").click(modifiers=["Shift"])
    desk.wait_selected({"c0", "c2", "c3"})
    desk.block("c0").locator(".block-op").click(modifiers=["Shift"])
    desk.wait_selected({"c2", "c3"})
    desk.drag("c2", (0, 60))
    desk._until(lambda: desk.page_json(name)["blocks"][2]["at"] != before["c2"])
    after = {b["id"]: b["at"] for b in desk.page_json(name)["blocks"]}
    shifts = {k: (after[k][0] - before[k][0], after[k][1] - before[k][1]) for k in before}
    assert shifts["c0"] == shifts["c1"] == (0, 0)
    assert shifts["c2"] == shifts["c3"] != (0, 0)
    desk.key("Control+a")
    desk.wait_selected(set(before))
    desk.key("Delete")
    expect(desk.window.locator("[data-block]")).to_have_count(0)
    assert desk.page_json(name)["blocks"] == []


@pytest.mark.feature("rename")
def test_a_renamed_block_keeps_its_wires(desk: Desk) -> None:
    """Rename a block: its wires stay; an id another block has is refused with words."""
    name = desk.put_page("work", *pair())
    desk.open(name)
    desk.select("x")
    desk.key("F2")
    field = desk.inspector.get_by_label("Name")
    expect(field).to_be_focused()
    field.fill("neg")
    expect(desk.inspector.locator(".fault")).to_have_text("another block is called neg")
    expect(field).to_have_attribute("aria-invalid", "true")
    field.press("Enter")
    assert [b["id"] for b in desk.page_json(name)["blocks"]] == ["x", "neg"]
    field.fill("first/x")
    field.press("Enter")
    expect(desk.block("first/x")).to_be_visible()
    expect(desk.wires("neg.x")).to_have_count(1)
    blocks = desk.page_json(name)["blocks"]
    assert [b["id"] for b in blocks] == ["first/x", "neg"]
    assert blocks[1]["in"] == {"x": "first/x.output"}
    assert blocks[0]["values"]["val"]["data"] == [1.0, 2.0]


@pytest.mark.feature("commandMenu", "search")
def test_the_menu_finds_places_and_does(desk: Desk) -> None:
    """Search Ctrl-K finds a block on the page and centres it; places a block; runs a command."""
    far = const("needle", (4000, 3000), [1.0])
    name = desk.put_page("work", *pair(), far)
    desk.open(name)
    desk.key("Control+1")
    desk.key("Control+k")
    desk.window.get_by_role("dialog").get_by_role("combobox").fill("needle")
    first = desk.window.get_by_role("dialog").get_by_role("option").first
    expect(first).to_have_text(re.compile("^Go to needle"))
    desk.key("Enter")
    middle = desk.middle(desk.canvas)
    desk._until(lambda: max(abs(a - b) for a, b in zip(desk.middle(desk.block("needle")), middle, strict=True)) < 5)
    desk.wait_selected({"needle"})
    desk.menu("SparseSegmentSum", "put SparseSegmentSum")
    expect(desk.block("sparse_segment_sum")).to_be_in_viewport()
    assert desk.saved_block("sparse_segment_sum", name)["op"] == "SparseSegmentSum"
    desk.menu("history", "do tab-history")
    expect(desk.window.locator("#bottom-history")).to_have_attribute("aria-selected", "true")
    expect(desk.window.locator(".history button").first).to_have_text("add SparseSegmentSum")


@pytest.mark.feature("keyboard", "undo")
def test_keys_on_the_start_screen_do_not_edit_the_hidden_page(desk: Desk) -> None:
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
def test_a_dialog_without_content_does_not_block_keys(desk: Desk) -> None:
    desk.open_made({"id": "odd", "op": "NoSuchBlock", "at": (100, 100)})
    desk.select("odd")
    desk.key("w", "Delete")
    expect(desk.window.locator("[data-block]")).to_have_count(0)


@pytest.mark.feature("copyPaste")
def test_duplicates_are_placed_beside_the_original(desk: Desk) -> None:
    desk.open_made(const("a", (100, 100), 1.0))
    desk.select("a")
    desk.key("Control+d")
    expect(desk.window.locator("[data-block]")).to_have_count(2)
    desk.block("a").locator(".block-op").click(position={"x": 2, "y": 2})
    desk.wait_selected({"a"})
    desk.key("Control+d")
    expect(desk.window.locator("[data-block]")).to_have_count(3)
    assert [one["at"] for one in desk.page_json()["blocks"]] == [[100, 100], [120, 120], [140, 140]]
