"""Rows over time: which rows of a Variable each training step changed, and how far each moved."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from grid_pages import Json, array_value, block, page, session
from playwright.sync_api import expect
from studio_window import StudioWindow
from test_row_trace import COUNT_COLORS
from window_actions import open_page, open_panel

from rowgrad.graph import ClientSession, build, load

TABLE = [[1.0, 2.0], [3.0, -1.0], [0.5, 0.5], [2.0, 2.0], [1.0, 0.0]]
SHIFTED = "lambda before, after: (lambda rows, moved: (rows + 1, moved))(*original(before, after))"
WITHOUT_ROW_NUMBERS = """lambda self, path: (file := original(self, path))._replace(packed=None, plain=file.plain + b'''
    .studio .spy-rows.spy-rows { display: none !important }''' * (path.suffix == ".css"))"""
FORGETFUL = "lambda *given: (original(*given)[0], original(*given)[1] * 0)"


def training_page() -> Json:
    """Rows 0, 1 and 3 are looked up and trained; 2 and 4 are not."""
    ids = {"indices": [0, 3, 3, 1], "segment_ids": [0, 0, 1, 1]}
    return page(
        "training",
        block("table", "Variable", {"initvalues": array_value(TABLE, "float32")}),
        block("mean", "SparseSegmentMean", ids, data="table.ref"),
        block("loss", "L2Loss", t="mean.output"),
        block("G", "AddSymbolicGradients", outputs=["loss.output"], inputs=["table.ref"]),
        block("rate", "Const", {"val": array_value(0.25, "float32")}),
        block("step", "ApplyGradientDescent", var="table.ref", alpha="rate.output", delta="G.grad_outputs"),
        session("loss.output", "step.out"),
    )


@pytest.mark.feature("trace", "steps")
@pytest.mark.broken("rowgrad.studio.http:StaticFiles._read", WITHOUT_ROW_NUMBERS)
@pytest.mark.broken("rowgrad.studio.row_changes:changed_rows", SHIFTED)
@pytest.mark.broken("rowgrad.studio.row_changes:changed_rows", FORGETFUL)
def test_rows_over_time_show_what_each_step_changed(ui: StudioWindow) -> None:
    name = open_page(ui, training_page())
    ui.run_steps(6)
    computed = ClientSession(build(load(ui.server.folder / f"{name}.json")))
    tables = [computed.variables["table"]]
    for _ in range(6):
        computed.run_block("session")
        tables.append(computed.variables["table"])
    moved = [np.linalg.norm(b.astype(float) - a, axis=1) for a, b in pairwise(tables)]
    panel = open_panel(ui, "trace")
    panel.get_by_role("button", name="Over time").click()
    expect(panel.locator(".changes-words")).to_have_text("steps 1 to 6 changed 3 of 5 rows")
    canvas = panel.get_by_role("img", name="5 rows over 6 steps")
    ui.wait_until(lambda: canvas.evaluate(COUNT_COLORS) > 4)
    numbers = panel.locator(".spy-rows span")
    expect(numbers).to_have_text(["0", "1", "2", "3", "4"])
    left, top, _, bottom = ui.box(canvas)
    for row, number in enumerate(numbers.all()):  # each beside the middle of its row
        box = number.bounding_box()
        assert box is not None
        assert abs(box["y"] - (top + (bottom - top) * (row + 0.5) / 5)) < 2
        assert box["x"] + box["width"] <= left
    canvas.focus()
    ui.key("ArrowDown", "ArrowRight")
    words = panel.locator(".spy-words")
    expect(words).to_have_text(f"row 1, step 2: moved {moved[1][1]:.3g}")
    ui.key("ArrowDown")
    expect(words).to_have_text("row 2, step 2: unchanged")
    totals = np.sum(moved, axis=0)
    rows = panel.locator(".spy-hot li")
    expect(rows).to_have_count(3)
    assert [int(row.get_attribute("data-row") or -1) for row in rows.all()] == np.argsort(-totals)[:3].tolist()
    expect(rows.first).to_contain_text("in 6 steps")
    expect(panel.locator(".spy-hot")).to_contain_text("2 rows have not changed.")
    ui.press("reset")
    expect(panel.locator(".spy-plot")).to_have_count(0)
