"""Import enuSpace files by dropping them on the window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect
from studio_window import StudioWindow
from window_actions import drop_files, open_panel

from rowgrad.graph.enuspace import read_enuspace

SAMPLES = Path(__file__).parents[2] / "graph" / "enuspace_samples"
RAISE_PAGE_ERROR = "lambda *given: (_ for _ in ()).throw(PageError('file', 'no'))"


def import_file(ui: StudioWindow, file: str) -> None:
    """Drop a file, check the import report, and open the page."""
    lines = (f"{line.level} {line.place} {line.text}" for line in read_enuspace(SAMPLES / file).report)
    wanted = sorted(" ".join(line.split()) for line in lines)
    assert wanted
    drop_files(ui, SAMPLES / file)
    dialog = ui.window.get_by_role("dialog", name=f"Import {file}")
    lines = dialog.locator("tbody tr")
    expect(lines).to_have_count(len(wanted))
    assert sorted(" ".join(line.split()) for line in lines.all_inner_texts()) == wanted
    dialog.get_by_role("button", name="Open").click()
    dialog.wait_for(state="detached")
    ui.canvas.wait_for()


@pytest.mark.feature("import", "trend")
@pytest.mark.broken(
    "rowgrad.studio.import_export_verbs:read_enuspace", "lambda path: Imported(original(path).page, [])"
)
@pytest.mark.broken("rowgrad.studio.import_export_verbs:pages_of", RAISE_PAGE_ERROR)
def test_an_enuspace_svg_page_is_imported_with_a_report_and_runs(ui: StudioWindow) -> None:
    import_file(ui, "gradient_descent_xw_apply.svg")
    expect(ui.window.locator("[data-block]")).to_have_count(12)
    assert ui.page == "gradient_descent_xw_apply"
    ui.run_steps(3)
    x, w = np.array([1.0, 2.0, 3.0]), 100.0
    for _ in range(3):
        difference = x * w - x
        cost, w = np.mean(difference**2), w - 0.0001 * np.mean(difference * x)
    assert float(ui.result("ID_COST", "output")[0][0]) == pytest.approx(cost, rel=1e-12)
    assert float(ui.result("ID_1eRwic0", "out")[0][0]) == pytest.approx(w, rel=1e-12)
    saved = ui.page_json()
    assert {block["id"] for block in saved["blocks"]} >= {"ID_X", "ID_W", "ID_HYPO"}
    panel = open_panel(ui, "trend")  # which names blocks as the drawing does, and else by their ops
    names = panel.get_by_role("table", name="Series").get_by_role("rowheader")
    expect(names).to_have_text(["COST.output", "ApplyGradientDescent.out"])
    expect(names.last).to_have_attribute("title", "ID_1eRwic0.out")
    expect(panel.get_by_label("Result to record").locator("option", has_text="COST.output")).to_have_count(1)
    assert "Hypothesis" in [note["text"] for note in saved["notes"]]


@pytest.mark.feature("import")
@pytest.mark.broken(
    "rowgrad.studio.import_export_verbs:read_enuspace", "lambda path: Imported(original(path).page, [])"
)
def test_an_enuspace_task_json_is_imported_with_a_report_and_runs(ui: StudioWindow) -> None:
    import_file(ui, "basic.json")
    ui.run_once()
    assert ui.result("ID_MUL", "product") == [["19.0"], ["-3.0"]]
    assert {block["id"] for block in ui.page_json()["blocks"]} >= {"ID_MUL"}


@pytest.mark.feature("import", "messages")
def test_the_report_of_an_import_stays_among_the_messages(ui: StudioWindow) -> None:
    import_file(ui, "gradient_descent_xnwn_b.json")
    panel = open_panel(ui, "messages")
    lines = panel.locator(".message")
    report = read_enuspace(SAMPLES / "gradient_descent_xnwn_b.json").report
    expect(lines).to_have_count(len(report))
    for line, remark in zip(lines.all(), report, strict=True):
        expect(line).to_contain_text(remark.text)
    device = lines.filter(has_text="has no effect")
    device.get_by_role("button").first.click()  # shows the block it is about
    ui.wait_selected({"ID_1dweQR0"})


@pytest.mark.feature("keyboard")
def test_control_and_enter_run_the_page_whatever_button_has_the_focus(ui: StudioWindow) -> None:
    import_file(ui, "basic.json")
    ui.window.get_by_role("button", name="Menu", exact=True).focus()
    ui.key("Control+Enter")
    ui.wait_runs(1)
    expect(ui.window.get_by_role("menu")).to_have_count(0)
