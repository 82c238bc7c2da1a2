"""Results drawn as a heat map and as a surface."""

from __future__ import annotations

from typing import Any

import pytest
from grid_pages import block, const, page, session
from playwright.sync_api import Locator, expect
from studio_window import StudioWindow
from window_actions import open_page, open_panel

CELLS = [[0.0, 1.0, 2.0], [3.0, 30.0, 0.0]]
# The color in the middle of every cell.
CELL_COLORS = """(canvas, [rows, columns]) => {
    const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    pen.drawImage(canvas, 0, 0);
    const at = (k, n, size) => Math.floor(((k + 0.5) * size) / n);
    return Array.from({ length: rows }, (_, r) => Array.from({ length: columns }, (_, c) =>
        [...pen.getImageData(at(c, columns, canvas.width), at(r, rows, canvas.height), 1, 1).data]));
}"""
COUNT_PIXELS = """canvas => {
    const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    pen.drawImage(canvas, 0, 0);
    const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
    const found = new Set();
    let count = 0;
    for (let k = 0; k < data.length; k += 4) if (data[k + 3] > 200) { count++; found.add(data.slice(k, k + 3).join()); }
    return [count, found.size];
}"""


def open_heat_map(ui: StudioWindow) -> Locator:
    """Run a page, and return the panel with the heat map of its result."""
    open_page(ui, page("p", const("a", CELLS), block("twice", "Add", x="a.output", y="a.output"), session("twice.z")))
    ui.run_once()
    return open_panel(ui, "map")


def color_distance(one: list[int], other: list[int]) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5


@pytest.mark.feature("heatMap")
@pytest.mark.broken("rowgrad.studio.value_verbs:heat_of", "lambda array, *given: original(array * 0, *given)")
def test_a_heat_map_colors_numbers_and_can_be_read_by_keyboard(ui: StudioWindow) -> None:
    panel = open_heat_map(ui)
    canvas = panel.locator("canvas.heat")
    canvas.wait_for()
    colors: list[list[list[int]]] = canvas.evaluate(CELL_COLORS, [2, 3])
    low, high, same = colors[0][0], colors[1][1], colors[1][2]
    assert low[3] == high[3] == 255
    assert low == same
    assert color_distance(low, high) > 150
    steps = [color_distance(low, one) for one in (colors[0][1], colors[0][2], colors[1][0], high)]
    assert steps == sorted(steps)
    assert steps[0] > 0
    canvas.focus()
    ui.key("ArrowRight", "ArrowDown", "ArrowRight")
    expect(panel.locator(".map-words")).to_have_text("row 1, column 1: 60.0")
    assert color_distance(canvas.evaluate(CELL_COLORS, [2, 3])[1][1], high) < 10  # cursor drawn outside
    box: Any = canvas.bounding_box()
    ui.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)
    expect(panel.locator(".map-words")).to_have_text("row 0, column 1: 2.0")


@pytest.mark.feature("heatMap")
@pytest.mark.broken(
    "rowgrad.studio.value_verbs:heat_of", "lambda *given: original(*given) | {'cells': [[None] * 3] * 2}"
)
def test_a_surface_is_drawn_and_rotates_by_keys(ui: StudioWindow) -> None:
    panel = open_heat_map(ui)
    panel.get_by_role("button", name="Surface").click()
    canvas = panel.locator("canvas.surface")
    expect(canvas).to_have_attribute("data-turn", "0.524")
    pixels, colors = canvas.evaluate(COUNT_PIXELS)
    assert pixels > 2000
    assert colors > 20
    pictures = [canvas.evaluate("canvas => canvas.toDataURL()")]
    canvas.focus()
    for key, part, value in (("ArrowRight", "turn", "0.654"), ("ArrowUp", "tilt", "0.702")):
        ui.key(key)
        expect(canvas).to_have_attribute(f"data-{part}", value)
        ui.wait_until(lambda: canvas.evaluate("canvas => canvas.toDataURL()") not in pictures)
        pictures.append(canvas.evaluate("canvas => canvas.toDataURL()"))
        assert canvas.evaluate(COUNT_PIXELS)[0] > 2000
