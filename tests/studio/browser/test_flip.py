"""The Flip to gradient dialog."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from studio_window import StudioWindow


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
    expect(ui.window.locator("[data-block]")).to_have_count(7)
    ui.wait_message(re.compile("compute the gradients: d_data_output.output"))
    flipped = ui.page_json(name)
    known = {block["id"] for block in before["blocks"]}
    added = {block["id"]: block for block in flipped["blocks"] if block["id"] not in known}
    gradient = added["d_data_output"]
    assert gradient["in"]["indices"] == "indices.output"
    assert gradient["in"]["segment_ids"] == "segment_ids.output"
    assert gradient["in"]["grad"].partition(".")[0] in added
    right = max(block["at"][0] for block in before["blocks"])
    assert all(block["at"][0] > right for block in added.values())
    ui.press("undo")
    expect(ui.window.locator("[data-block]")).to_have_count(5)
    assert ui.page_json(name) == before
    ui.press("redo")
    expect(ui.window.locator("[data-block]")).to_have_count(7)
    assert ui.page_json(name) == flipped
    ui.run_once()  # the session fetches the gradient
    half, one = ["0.5"] * 3, ["1.0"] * 3  # rows 2 and 1 share a segment, row 0 has one alone
    assert ui.result("d_data_output", "output") == [one, half, half]
