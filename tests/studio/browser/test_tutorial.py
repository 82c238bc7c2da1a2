"""docs/tutorials/studio.md, step by step: the page does and says what the tutorial promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect
from studio_window import StudioWindow
from window_actions import open_panel

TUTORIAL = (Path(__file__).parents[3] / "docs/tutorials/studio.md").read_text(encoding="utf-8")
BLOCK = "sparse_segment_mean_grad"


def quoted(text: str) -> str:
    """Return a text that the tutorial promises."""
    assert text in TUTORIAL
    return text


@pytest.mark.feature("palette", "paletteSearch", "literals", "run", "trace", "undo", "export")
def test_the_tutorial_from_an_empty_page(ui: StudioWindow, tmp_path: Path) -> None:
    window = ui.window
    expect(window.get_by_role("button", name=re.compile("^Draw a first gradient"))).to_be_visible()
    quoted("**Draw a first gradient**")
    quoted("**New empty page**")
    window.get_by_role("button", name="New empty page").click()
    ui.canvas.wait_for()
    ui.key("/")
    expect(window.get_by_label("Search blocks", exact=True)).to_be_focused()
    ui.keys.type(quoted("SparseSegmentMeanGrad"))
    ui.key("Enter")
    block = ui.block(BLOCK)
    block.wait_for()

    values = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", TUTORIAL, re.MULTILINE)
    assert [pin for pin, _ in values] == ["grad", "indices", "segment_ids", "output_dim0"]
    block.locator('[data-pin="grad"] button.literal').click()
    for k, (_, text) in enumerate(values):
        if k:
            ui.key("Tab")
        ui.keys.type(text)
    ui.key("Enter")
    expect(block.locator('[data-out="output"] .pin-info')).to_contain_text(quoted("float32[4,2]"))
    assert ui.runs() == 0

    ui.key("Control+Enter")
    ui.wait_run()
    rows = re.findall(r"^\| \d \| (\S+), (\S+) \|$", TUTORIAL, re.MULTILINE)
    assert [[float(x) for x in row] for row in ui.result(BLOCK, "output")] == [[float(x) for x in row] for row in rows]

    panel = open_panel(ui, "trace")
    expect(panel.locator(".sum-equation")).to_have_text(quoted("½·[1, 2] + 1·[6, 8] = [6.5, 9]"))
    expect(panel.locator(".sum-verdict")).to_have_text(quoted("✓ gives the result bit for bit"))
    panel.get_by_role("listbox", name=f"Output rows of {BLOCK}").locator('[data-row="0"]').hover()
    expect(panel.locator(".sum-equation")).to_have_text("½·[1, 2] = [0.5, 1]")

    ui.type_value(BLOCK, "indices", quoted("[0,2,99]"))
    ui.press("run")
    expect(block).to_contain_text(quoted("Index 99 out of range [0, 4)."))
    ui.window.locator(".react-flow__pane").click()
    ui.key("Control+z")
    expect(block.locator('[data-pin="indices"] button.literal')).to_have_attribute(
        "title", re.compile(r"^\[0, ?2, ?2\]$")
    )

    ui.key("Control+e")
    dialog = window.get_by_role("dialog", name=re.compile("^Export"))
    quoted("**Python script**")
    quoted("**Command**")
    expect(dialog.get_by_role("tab", name="Command")).to_be_visible()
    dialog.get_by_role("tab", name="Python script").click()
    text = dialog.get_by_label("Python script of the page")
    expect(text).to_have_value(re.compile("SparseSegmentMeanGrad"))
    script = tmp_path / "script.py"
    script.write_text(text.input_value(), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert "6.5" in done.stdout
