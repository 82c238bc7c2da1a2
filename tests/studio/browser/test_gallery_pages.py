"""Every gallery page opens, runs, and shows the recorded results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect
from studio_window import StudioWindow

from golden_cases import FOLDER

PAGES = Path(__file__).parents[3] / "examples" / "pages"
EXAMPLES: list[dict[str, Any]] = json.loads((FOLDER / "blocks_examples.json").read_text())


def recorded(example: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the recorded values by pin; entries of list pins are named `pin[k]`."""
    found = dict(example["outputs"])
    derived = example.get("derived_gradients", {})
    return found | {f"grad_outputs[{k}]": value for k, value in enumerate(derived.values())}


def read(text: str, dtype: str) -> Any:
    if dtype == "string":
        return json.loads(text) if text.startswith('"') else text
    return text == "true" if dtype == "bool" else float(text)


def compare(table: list[list[str]], entry: dict[str, Any], tolerance: float) -> None:
    wanted = np.array(entry["values"], object if entry["dtype"] == "string" else None).reshape(entry["shape"])
    rows = wanted.reshape(1, 1) if wanted.ndim == 0 else wanted.reshape(-1, 1) if wanted.ndim == 1 else wanted
    got = [[read(text, entry["dtype"]) for text in row] for row in table]
    if entry["dtype"] in ("string", "bool"):
        assert got == rows.tolist()
    else:
        np.testing.assert_allclose(np.array(got), rows.astype(float), rtol=1e-6, atol=tolerance)


def check_example(ui: StudioWindow, example: dict[str, Any], name: str) -> None:
    ui.open_gallery(name)
    if "refused" in name:
        expect(ui.window.locator(".block-message").first).to_contain_text("thresh must be float32")
        return
    runs = example.get("runs", 1)
    if runs == 1:
        ui.run_once()
    else:
        ui.run_steps(runs)
    expect(ui.window.locator("[data-block] .result-name").first).to_be_attached()  # drawn after the run has ended
    ui.press("fit")
    ui.wait_until_still(ui.window.locator("[data-block]").first)
    shown = ui.all_results()
    for key, entry in recorded(example).items():
        # Keys are a pin, of block `op` if several blocks have that pin, or a block.
        found = [(b, p) for b, p in shown if (b, p) == ("op", key)] or [(b, p) for b, p in shown if key in (b, p)]
        assert found, f"nothing shows {key}: {shown}"
        compare(ui.result(*found[0]), entry, example.get("tolerance_used", 0.0))


@pytest.mark.feature("gallery", "run", "results")
def test_all_gallery_pages_show_the_recorded_results(ui: StudioWindow) -> None:
    for k, example in enumerate(EXAMPLES, 1):
        name = next(PAGES.glob(f"{k:02}_*.json")).stem
        try:
            check_example(ui, example, name)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
        ui.key("Alt+w")
