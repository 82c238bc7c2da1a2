"""Edit commands: undo, redo, copy, paste, select, rename, and the command menu."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from page_fixtures import block, const
from playwright.sync_api import expect
from studio_window import StudioWindow

EXAMPLE = Path(__file__).parents[3] / "examples" / "pages" / "01_sparse_segment_mean.json"
PASTE = """text => {
    const data = new DataTransfer();
    data.setData("text/plain", text);
    document.body.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true}));
}"""


def wired_pair(at: float = 0) -> list[dict[str, object]]:
    """Return two blocks connected by a wire."""
    return [const("x", (at, 0), [1.0, 2.0]), block("neg", "Neg", (at + 300, 0), wires={"x": "x.output"})]


@pytest.mark.feature("undo", "history")
def test_undo_redo_and_the_history_panel(ui: StudioWindow) -> None:
    """Ten steps back and forward; a click in the history panel goes to a step."""
    name = ui.write_page("work", *wired_pair())
    ui.open(name)
    first = ui.page_json(name)
    field = ui.window.get_by_label("Search blocks", exact=True)
    field.fill("Const")
    for k in range(10):
        field.press("Enter")
        expect(ui.window.locator("[data-block]")).to_have_count(3 + k)
    field.press("Escape")
    expect(ui.window.locator(".save-state")).to_have_attribute("data-saving", "saved")
    built = ui.page_json(name)
    assert len(built["blocks"]) == 12
    ui.canvas.click(position={"x": 5, "y": 5})
    for k in range(10):
        ui.key("Control+z")
        expect(ui.window.locator("[data-block]")).to_have_count(11 - k)
    assert ui.page_json(name) == first
    expect(ui.window.locator('[data-command="undo"]')).to_be_disabled()
    for k in range(10):
        ui.key("Control+Shift+z")
        expect(ui.window.locator("[data-block]")).to_have_count(3 + k)
    assert ui.page_json(name) == built
    ui.window.locator("#bottom-history").click()
    steps = ui.window.locator(".history button")
    expect(steps).to_have_count(11)  # the newest first
    expect(steps.first).to_have_text("add Const")
    expect(steps.last).to_have_text("opened")
    steps.nth(6).click()
    expect(ui.window.locator("[data-block]")).to_have_count(6)
    expect(steps.nth(6)).to_have_attribute("aria-current", "step")
    assert ui.page_json(name)["blocks"] == built["blocks"][:6]
    steps.first.click()
    assert ui.page_json(name) == built


@pytest.mark.feature("copyPaste")
def test_copy_and_paste_between_pages(ui: StudioWindow) -> None:
    """Wires among the copies stay; duplicate names change."""
    ui.write_page("left", *wired_pair(), block("out", "ClientSession", (600, 0), wires={"fetch_outputs": "neg.output"}))
    ui.write_page("right", const("x", (0, 0), [9.0]))
    ui.open("left")
    ui.select("neg")
    ui.block("x").locator(".block-op").click(modifiers=["Shift"])
    ui.key("Control+c")
    ui.switch_to("right")
    expect(ui.block("x")).to_be_visible()
    ui.key("Control+v")
    expect(ui.window.locator("[data-block]")).to_have_count(3)
    ui.wait_selected({"x_2", "neg"})
    assert ui.saved_block("neg", "right")["in"] == {"x": "x_2.output"}
    left, right = ui.page_json("left"), ui.page_json("right")
    assert right["blocks"][1]["values"] == left["blocks"][0]["values"]
    assert right["blocks"][0]["values"]["val"]["data"] == [9.0]
    assert [b["id"] for b in left["blocks"]] == ["x", "neg", "out"]


@pytest.mark.feature("copyPaste")
def test_copy_and_paste_as_page_json(ui: StudioWindow) -> None:
    """The clipboard contains the JSON of a page, and such text can be pasted."""
    ui.window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    name = ui.write_page("work", *wired_pair(), notes=[{"text": "why", "at": [0, 200]}])
    ui.open(name)
    expect(ui.block("neg")).to_be_visible()
    ui.key("Control+a", "Control+c")
    text = ui.window.evaluate("navigator.clipboard.readText()")
    assert text.startswith("{"), f"the clipboard contains {text!r}"
    copied = json.loads(text)
    saved = ui.page_json(name)
    assert (copied["format"], copied["version"]) == ("rowgrad-page", 1)
    assert [(b["id"], b["op"], b.get("in")) for b in copied["blocks"]] == [
        ("x", "Const", None),
        ("neg", "Neg", {"x": "x.output"}),
    ]
    assert [n["text"] for n in copied["notes"]] == ["why"]
    example = json.loads(EXAMPLE.read_text())
    ui.window.evaluate(PASTE, "no page at all")
    ui.window.evaluate(PASTE, EXAMPLE.read_text())
    expect(ui.window.locator("[data-block]")).to_have_count(2 + len(example["blocks"]))
    now = ui.page_json(name)
    assert now["blocks"][:2] == saved["blocks"]
    pasted = now["blocks"][2:]
    assert [{**b, "at": 0} for b in pasted] == [{**b, "at": 0} for b in example["blocks"]]
    shifts = {
        (p["at"][0] - b["at"][0], p["at"][1] - b["at"][1]) for p, b in zip(pasted, example["blocks"], strict=True)
    }
    assert len(shifts) == 1  # relative positions stay
    assert [n["text"] for n in now["notes"]] == ["why", "SparseSegmentMean"]


@pytest.mark.feature("multiSelect")
def test_select_several_blocks_and_move_them(ui: StudioWindow) -> None:
    """Selection by a box, by Shift and a click, and by select all."""
    name = ui.write_page("work", *(const(f"c{k}", (300 * (k % 2), 150 * (k // 2)), [1.0]) for k in range(4)))
    ui.open(name)
    expect(ui.block("c3")).to_be_visible()
    before = {b["id"]: b["at"] for b in ui.page_json(name)["blocks"]}
    left, top, _, _ = ui.box(ui.block("c0"))
    right, bottom = ui.box(ui.block("c2"))[2:]
    ui.drag_mouse(left - 20, top - 20, right + 10, bottom + 10)  # the left column
    ui.wait_selected({"c0", "c2"})
    expect(ui.inspector).to_contain_text("2 blocks")
    ui.block("c3").locator(".block-op").click(modifiers=["Shift"])
    ui.wait_selected({"c0", "c2", "c3"})
    ui.block("c0").locator(".block-op").click(modifiers=["Shift"])
    ui.wait_selected({"c2", "c3"})
    ui.drag("c2", (0, 60))
    ui.wait_until(lambda: ui.page_json(name)["blocks"][2]["at"] != before["c2"])
    after = {b["id"]: b["at"] for b in ui.page_json(name)["blocks"]}
    shifts = {k: (after[k][0] - before[k][0], after[k][1] - before[k][1]) for k in before}
    assert shifts["c0"] == shifts["c1"] == (0, 0)
    assert shifts["c2"] == shifts["c3"] != (0, 0)
    ui.key("Control+a")
    ui.wait_selected(set(before))
    ui.key("Delete")
    expect(ui.window.locator("[data-block]")).to_have_count(0)
    assert ui.page_json(name)["blocks"] == []


@pytest.mark.feature("rename")
def test_a_renamed_block_keeps_its_wires(ui: StudioWindow) -> None:
    """Its wires stay; the id of another block is rejected with a message."""
    name = ui.write_page("work", *wired_pair())
    ui.open(name)
    ui.select("x")
    ui.key("F2")
    field = ui.inspector.get_by_label("Name")
    expect(field).to_be_focused()
    field.fill("neg")
    expect(ui.inspector.locator(".fault")).to_have_text("another block is called neg")
    expect(field).to_have_attribute("aria-invalid", "true")
    field.press("Enter")
    assert [b["id"] for b in ui.page_json(name)["blocks"]] == ["x", "neg"]
    field.fill("first/x")
    field.press("Enter")
    expect(ui.block("first/x")).to_be_visible()
    expect(ui.wires("neg.x")).to_have_count(1)
    blocks = ui.page_json(name)["blocks"]
    assert [b["id"] for b in blocks] == ["first/x", "neg"]
    assert blocks[1]["in"] == {"x": "first/x.output"}
    assert blocks[0]["values"]["val"]["data"] == [1.0, 2.0]


@pytest.mark.feature("commandMenu", "search")
def test_the_command_menu_finds_blocks_places_blocks_and_runs_commands(ui: StudioWindow) -> None:
    far = const("needle", (4000, 3000), [1.0])
    name = ui.write_page("work", *wired_pair(), far)
    ui.open(name)
    ui.key("Control+1")
    ui.key("Control+k")
    ui.window.get_by_role("dialog").get_by_role("combobox").fill("needle")
    first = ui.window.get_by_role("dialog").get_by_role("option").first
    expect(first).to_have_text(re.compile("^Go to needle"))
    ui.key("Enter")
    middle = ui.middle(ui.canvas)
    ui.wait_until(lambda: max(abs(a - b) for a, b in zip(ui.middle(ui.block("needle")), middle, strict=True)) < 5)
    ui.wait_selected({"needle"})
    ui.choose_command("SparseSegmentSum", "put SparseSegmentSum")
    expect(ui.block("sparse_segment_sum")).to_be_in_viewport()
    assert ui.saved_block("sparse_segment_sum", name)["op"] == "SparseSegmentSum"
    ui.choose_command("history", "do tab-history")
    expect(ui.window.locator("#bottom-history")).to_have_attribute("aria-selected", "true")
    expect(ui.window.locator(".history button").first).to_have_text("add SparseSegmentSum")


@pytest.mark.feature("keyboard", "undo")
def test_keys_on_the_start_screen_do_not_edit_the_hidden_page(ui: StudioWindow) -> None:
    name = ui.open_blocks(const("a", (100, 100), 1.0), const("b", (500, 100), 1.0))
    ui.select("a")
    ui.window.locator(".top-bar .brand").click()
    ui.key("Delete")
    ui.tab(name).click()
    expect(ui.window.locator("[data-block]")).to_have_count(2)
    ui.key("Delete")
    expect(ui.window.locator("[data-block]")).to_have_count(1)
    ui.key("Control+z")
    expect(ui.window.locator("[data-block]")).to_have_count(2)


@pytest.mark.feature("keyboard")
def test_a_dialog_without_content_does_not_block_keys(ui: StudioWindow) -> None:
    ui.open_blocks({"id": "odd", "op": "NoSuchBlock", "at": (100, 100)})
    ui.select("odd")
    ui.key("w", "Delete")
    expect(ui.window.locator("[data-block]")).to_have_count(0)


@pytest.mark.feature("copyPaste")
def test_duplicates_are_placed_beside_the_original(ui: StudioWindow) -> None:
    ui.open_blocks(const("a", (100, 100), 1.0), const("b", (600, 100), [1.0, 2.0]))
    ui.select("a")
    ui.key("Control+d")
    expect(ui.window.locator("[data-block]")).to_have_count(3)
    ui.select("a")
    ui.key("Control+d")
    expect(ui.window.locator("[data-block]")).to_have_count(4)
    ui.wait_selected({"a_3"})
    boxes = ui.boxes()
    for one, other in itertools.combinations(boxes, 2):
        a, b = boxes[one], boxes[other]
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (one, other)
    assert {one["at"][1] for one in ui.page_json()["blocks"]} == {100}


@pytest.mark.feature("copyPaste")
def test_the_copy_has_the_focus_and_nothing_has_it_after_its_deletion(ui: StudioWindow) -> None:
    """A ring around a block that is not selected would promise that keys are about it."""
    ui.open_blocks(const("ids", (100, 100), [0, 2], "int32"))
    ui.select("ids")
    ui.key("Control+d")
    ui.wait_selected({"ids_2"})
    focused = ui.window.locator(".react-flow__node:focus")
    expect(focused).to_have_attribute("data-id", "ids_2")
    ui.key("Delete")
    expect(ui.window.locator("[data-block]")).to_have_count(1)
    expect(focused).to_have_count(0)
    ui.select("ids")
    ui.key("ArrowRight")
    expect(focused).to_have_attribute("data-id", "ids")
