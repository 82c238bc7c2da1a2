"""The Flip to gradient dialog."""

from __future__ import annotations

import re

import pytest
from page_fixtures import array, block
from playwright.sync_api import expect
from studio_window import StudioWindow
from window_actions import open_panel


@pytest.mark.feature("flip")
@pytest.mark.broken(
    "rowgrad.studio.project_verbs:gradient_blocks",
    "lambda *given: (made := original(*given))[0][0].attrs.update(value=2.0) or made",
)
def test_flip_places_and_wires_the_gradient_and_one_undo_removes_it(ui: StudioWindow) -> None:
    name = ui.open_gallery("01_sparse_segment_mean")
    before = ui.page_json(name)
    ui.select("op")
    ui.key("g")
    dialog = ui.window.get_by_role("dialog", name="Flip to gradient")
    expect(dialog).to_be_visible()
    outputs, inputs = dialog.locator("fieldset").all()
    for side, wanted in ((outputs, "op.output"), (inputs, "data.output")):
        for box in side.locator("input[type=checkbox]:checked").all():
            box.uncheck()
        side.locator(f'[data-end="{wanted}"] input').check()
    dialog.get_by_role("button", name="Add the gradient blocks").click()
    dialog.wait_for(state="detached")
    expect(ui.window.locator("[data-block]")).to_have_count(8)
    ui.wait_message(re.compile("compute the gradients: d_data_output.output"))
    flipped = ui.page_json(name)
    known = {block["id"] for block in before["blocks"]}
    added = {block["id"]: block for block in flipped["blocks"] if block["id"] not in known}
    gradient = added["d_data_output"]
    assert gradient["in"]["indices"] == "indices.output"
    assert gradient["in"]["segment_ids"] == "segment_ids.output"
    assert added[gradient["in"]["output_dim0"].partition(".")[0]]["in"] == {"x": "data.output"}
    assert gradient["in"]["grad"].partition(".")[0] in added
    right = max(block["at"][0] for block in before["blocks"])
    assert all(block["at"][0] > right for block in added.values())
    ui.press("undo")
    expect(ui.window.locator("[data-block]")).to_have_count(5)
    assert ui.page_json(name) == before
    ui.press("redo")
    expect(ui.window.locator("[data-block]")).to_have_count(8)
    assert ui.page_json(name) == flipped
    ui.run_once()  # the session fetches the gradient
    half, one = ["0.5"] * 3, ["1.0"] * 3  # rows 2 and 1 share a segment, row 0 has one alone
    assert ui.result("d_data_output", "output") == [one, half, half]


TYPED = {
    "data": array("float32", [[1, 2], [3, 4], [5, 6], [7, 8]]),
    "indices": array("int32", [0, 2, 2]),
    "segment_ids": array("int32", [0, 0, 1]),
}


@pytest.mark.feature("flip")
@pytest.mark.broken("rowgrad.graph.wiring:_move_to_constants", "lambda checked, pins: original(checked, pins[:1])")
def test_typed_ids_move_to_blocks_that_the_gradient_shares(ui: StudioWindow) -> None:
    ui.open_blocks(block("op", "SparseSegmentMean", values=TYPED))
    before = ui.page_json()
    ui.run_once()
    ui.select("op")
    ui.key("g")
    dialog = ui.window.get_by_role("dialog", name="Flip to gradient")
    # The output itself is not offered as an input.
    expect(dialog.locator('fieldset:nth-of-type(2) [data-end="op.data"] input')).to_be_checked()
    expect(dialog.locator('fieldset:nth-of-type(2) [data-end="op.output"]')).to_have_count(0)
    expect(dialog).to_contain_text("move to Const blocks")
    dialog.get_by_role("button", name="Add the gradient blocks").click()
    ui.wait_message(re.compile("share: op.data, op.indices, op.segment_ids"))
    ui.wait_message(re.compile("compute the gradients: d_op_data_output.output"))
    assert "values" not in ui.saved_block("op")
    # The trace of the run before has all rows, although the table moved to a block without a result.
    rows = open_panel(ui, "trace").locator(".row-side h3")
    expect(rows).to_have_text(["From data (4)", "Into output (2)"])
    ui.run_once()
    assert ui.result("d_op_data_output", "output") == [["0.5"] * 2, ["0.0"] * 2, ["1.5"] * 2, ["0.0"] * 2]
    # Other ids: both the lookup and its gradient read them.
    ui.key("Control+0")
    ui.type_value("op_indices", "val", "[0,1,3]")
    ui.run_once()
    assert ui.result("op", "output") == [["2.0", "3.0"], ["7.0", "8.0"]]
    assert ui.result("d_op_data_output", "output") == [["0.5"] * 2, ["0.5"] * 2, ["0.0"] * 2, ["1.0"] * 2]
    # One step for the new ids, one for all that the flip did.
    for left in (7, 1):
        ui.press("undo")
        expect(ui.window.locator("[data-block]")).to_have_count(left)
    assert ui.page_json() == before
