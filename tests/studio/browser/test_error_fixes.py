"""Fixes of errors as buttons, the question before Variables change, and examples from the help of an op."""

from __future__ import annotations

import re

import pytest
from page_fixtures import block, const
from playwright.sync_api import expect
from studio_window import StudioWindow
from window_actions import open_panel

IDS = {"grad": [[1, 2], [6, 8]], "indices": [0, 2, 2, 1], "segment_ids": [0, 0, 1], "output_dim0": 4}


@pytest.mark.feature("fixes")
@pytest.mark.broken("rowgrad.studio.project_verbs:apply_fix", "lambda page, fix: []")
def test_a_fix_is_a_button_on_the_block_and_one_step_of_the_history(ui: StudioWindow) -> None:
    ui.open_blocks(block("g", "SparseSegmentMeanGrad", values=IDS))
    before = ui.page_json()
    expect(ui.block("g")).to_contain_text("segment_ids and indices should have same size.")
    ui.block("g").get_by_role("button", name="Use indices with 3 values").click()
    expect(ui.block("g").locator(".block-message")).to_have_count(0)
    assert ui.saved_value("g", "indices") == [0, 2, 2]
    ui.run_once()
    assert ui.result("g", "output")[2] == ["6.5", "9.0"]
    ui.press("undo")
    assert ui.page_json() == before


@pytest.mark.feature("fixes", "run")
def test_the_message_of_a_rejected_run_offers_the_fix(ui: StudioWindow) -> None:
    ui.windows.allow_error("status of 400")
    ui.open_blocks(block("g", "SparseSegmentMeanGrad", values=IDS))
    expect(ui.block("g")).to_contain_text("segment_ids and indices should have same size.")
    ui.press("run")
    toast = ui.window.locator(".toast.error", has_text="segment_ids and indices should have same size.")
    toast.get_by_role("button", name="Use indices with 3 values").click()
    expect(toast).to_have_count(0)
    ui.run_once()
    assert ui.result("g", "output")[2] == ["6.5", "9.0"]


@pytest.mark.feature("fixes", "steps")
@pytest.mark.broken("rowgrad.graph.fixes:_RULES", "{k: v for k, v in original.items() if k != 'index_not_in_data'}")
def test_an_id_beyond_the_table_is_limited_on_a_training_page(ui: StudioWindow) -> None:
    ui.open_gallery("start/08_train_embedding")
    ui.block("ids").click()
    ui.type_in_inspector("Value of ids.val", "[0, 1, 2, 3, 3, 99]")
    ui.wait_saved()
    ui.press("run-steps")
    toast = ui.window.locator(".toast.error", has_text="out of range [0, 6)")
    toast.get_by_role("button", name="Limit ids to 0 … 5").click()
    expect(toast).to_have_count(0)
    assert ui.saved_value("ids", "val")["data"] == [0, 1, 2, 3, 3, 5]
    ui.run_steps(3)


@pytest.mark.feature("fixes", "rejections")
@pytest.mark.broken("rowgrad.studio.project_verbs:fixes_of", "lambda *given: []")
def test_a_rejected_wire_is_drawn_by_its_fix(ui: StudioWindow) -> None:
    ui.open_blocks(const("c", (0, 0), [[1, 2], [6, 8]], "int32"), block("g", "SparseSegmentMeanGrad", (340, 0)))
    ui.drag_wire("c.output", "g.grad")
    toast = ui.window.locator(".toast.error", has_text="g.grad")
    toast.get_by_role("button", name="Convert to float32").click()
    expect(ui.wires("g.grad")).to_have_count(1)
    expect(toast).to_have_count(0)  # it is solved
    assert ui.saved_value("c", "val")["dtype"] == "float32"


@pytest.mark.feature("run", "fixes")
@pytest.mark.broken("rowgrad.graph.leaves:Leaves.changed_variables", "lambda *given: []")
def test_a_run_without_a_session_asks_before_it_changes_variables(ui: StudioWindow) -> None:
    ui.open_blocks(
        block("v", "Variable", values={"initvalues": [1.0]}),
        block("more", "AssignAdd", (340, 0), values={"value": [2.0]}, wires={"ref": "v.ref"}),
    )
    dialog = ui.window.get_by_role("dialog", name="Run made and change Variables?")
    ui.press("run")
    dialog.get_by_role("button", name="Cancel").click()
    expect(ui.progress).to_have_attribute("data-run", "0")
    ui.press("run")
    dialog.get_by_role("button", name="Run and change v").click()
    ui.wait_run()
    assert ui.result("more", "output_ref") == [["3.0"]]
    ui.press("run")
    dialog.get_by_role("button", name="Add a ClientSession fetching more.output_ref").click()
    expect(ui.window.locator("[data-block]")).to_have_count(3)
    ui.run_once()
    assert ui.result("more", "output_ref") == [["5.0"]]


@pytest.mark.feature("help")
@pytest.mark.broken("rowgrad.studio.project_verbs:example_on_page", "lambda *given: []")
def test_the_help_of_an_op_inserts_its_example(ui: StudioWindow) -> None:
    ui.open_blocks(const("c", (0, 0), [1.0]))
    item = ui.window.locator('.palette-item[data-op="SparseSegmentSqrtNGrad"]')
    ui.window.get_by_label("Search blocks", exact=True).fill("SparseSegmentSqrtNGrad")
    item.focus()
    ui.key("F1")
    ui.window.get_by_role("dialog").get_by_role("button", name="Insert this example").click()
    expect(ui.window.locator("[data-block]")).to_have_count(2)
    ui.press("undo")
    ui.place("SparseSegmentSqrtNGrad")  # where the example would be
    ui.window.get_by_label("Search blocks", exact=True).fill("SparseSegmentSqrtNGrad")
    item.focus()
    ui.key("F1")
    ui.window.get_by_role("dialog").get_by_role("button", name="Insert this example").click()
    expect(ui.window.locator("[data-block]")).to_have_count(3)
    ui.wait_until_still(ui.block("sparse_segment_sqrt_n_grad"), ui.block("sparse_segment_sqrt_n_grad_2"))
    _, top, _, bottom = ui.box(ui.block("sparse_segment_sqrt_n_grad"))
    _, y, _, v = ui.box(ui.block("sparse_segment_sqrt_n_grad_2"))
    assert bottom <= y or v <= top  # it covers no block
    ui.run_once()
    assert len(ui.result("sparse_segment_sqrt_n_grad_2", "output")) == 4


@pytest.mark.feature("undo", "fixes")
def test_a_failure_is_over_once_its_edit_is_undone(ui: StudioWindow) -> None:
    ids = IDS | {"indices": [0, 2, 2]}
    ui.open_blocks(const("ids", (0, 0), [0, 2, 2], "int32"), block("g", "SparseSegmentMeanGrad", (340, 0), values=ids))
    ui.drag_wire("ids.output", "g.indices")
    ui.wait_saved()
    ui.run_once()
    ui.type_value("ids", "val", "[0, 2, 99]")
    ui.press("run")
    ui.wait_run("failed")
    toast = ui.window.locator(".toast.error")
    expect(toast.get_by_role("button", name="Use output_dim0 = 100")).to_be_visible()
    open_panel(ui, "trace")
    expect(ui.window.locator("#bottom-panel")).to_contain_text("The last run failed: nothing to trace.")
    ui.press("undo")
    expect(ui.progress).to_have_text("edited since the failed run")
    expect(ui.progress).not_to_have_class(re.compile("failed"))
    expect(toast).to_have_count(0)
    expect(ui.block("g").locator(".block-message")).to_have_count(0)
    ui.run_once()
    assert ui.result("g", "output")[2] == ["6.5", "9.0"]
