"""The trace panel: which input rows feed an output row."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect
from studio_window import StudioWindow
from window_actions import open_panel

SHIFT_INPUT_ROWS = """lambda *given: (t := original(*given)).__class__(
    t.outputs, t.inputs, [(a, b + 1) for a, b in t.pairs], t.total, t.cut)"""


def row_lists(panel: Locator) -> tuple[Locator, Locator]:
    return (
        panel.get_by_role("listbox", name="Output rows of op"),
        panel.get_by_role("listbox", name="Input rows of op"),
    )


def highlighted(rows: Locator) -> list[str]:
    return [str(row.get_attribute("data-row")) for row in rows.locator(".lit").all()]


@pytest.mark.feature("trace")
@pytest.mark.broken("rowgrad.studio.row_verbs:trace_rows", SHIFT_INPUT_ROWS)
def test_rows_of_a_segment_op_are_traced_in_both_directions(ui: StudioWindow) -> None:
    ui.open_gallery("01_sparse_segment_mean")
    ui.run_once()
    panel = open_panel(ui, "trace")
    outputs, inputs = row_lists(panel)
    status = panel.locator(".trace-words")
    outputs.locator('[data-row="0"]').hover()
    expect(status).to_have_text("output row 0 is fed by data rows 2, 1")
    assert (highlighted(outputs), highlighted(inputs)) == (["0"], ["1", "2"])
    expect(panel.locator(".trace-lines path.lit")).to_have_count(2)
    inputs.locator('[data-row="0"]').hover()
    expect(status).to_have_text("data row 0 feeds output row 1")
    assert (highlighted(outputs), highlighted(inputs)) == (["1"], ["0"])
    expect(panel.locator(".trace-lines path.lit")).to_have_count(1)
    # The same in the result tables of the op and of its input.
    ui.result("op", "output")
    ui.table("op", "output").locator('[data-row="1"]').hover()
    expect(panel.locator(".trace-words")).to_have_text("row 1 is fed by data row 0")
    ui.result("data", "output")
    ui.table("data", "output").locator('[data-row="2"]').hover()
    expect(panel.locator(".trace-words")).to_have_text("row 2 feeds op: output row 0")


@pytest.mark.feature("trace")
@pytest.mark.broken("rowgrad.studio.row_verbs:trace_rows", SHIFT_INPUT_ROWS)
def test_rows_of_slice_and_fill_are_traced_in_both_directions(ui: StudioWindow) -> None:
    ui.open_gallery("09_sparse_slice")  # keeps b of a, b, c, d
    ui.run_once()
    panel = open_panel(ui, "trace")
    outputs, inputs = row_lists(panel)
    status = panel.locator(".trace-words")
    outputs.locator('[data-row="0"]').hover()
    expect(status).to_have_text("output_values row 0 is fed by values row 1")
    inputs.locator('[data-row="0"]').hover()
    expect(status).to_have_text("values row 0 feeds no row")
    ui.open_gallery("06_sparse_fill_empty_rows")
    ui.run_once()
    outputs.locator('[data-row="2"]').hover()  # the row that was filled
    expect(status).to_have_text("output_values row 2 is fed by no row")
    inputs.focus()
    ui.key("End", "ArrowUp")
    expect(status).to_have_text("values row 2 feeds output_values row 3")
    assert (highlighted(outputs), highlighted(inputs)) == (["3"], ["2"])
