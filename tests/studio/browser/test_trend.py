"""The trend chart: numbers over runs."""

from __future__ import annotations

import re
import sys

import pytest
from grid_pages import array_value, block, const, page, session
from playwright.sync_api import Route, expect
from studio_window import StudioWindow
from window_actions import open_page, open_panel

BLUE = "#3d87d6"  # color of the first line
# Pixels of the line with this color, from left to right: x, and the mean y in that column.
LINE_PIXELS = """(canvas, color) => {
    const wanted = [1, 3, 5].map((k) => parseInt(color.slice(k, k + 2), 16));
    const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    pen.drawImage(canvas, 0, 0);
    const { data, width, height } = pen.getImageData(0, 0, canvas.width, canvas.height);
    const found = [];
    for (let x = 0; x < width; x++) {
        const rows = [];
        for (let y = 0; y < height; y++)
            if (wanted.every((part, k) => Math.abs(data[4 * (y * width + x) + k] - part) < 30)) rows.push(y);
        if (rows.length) found.push([x, rows.reduce((sum, y) => sum + y, 0) / rows.length]);
    }
    return found;
}"""

SET_SIZE = """(box, [width, height]) => {
    Object.assign(box.style, { flex: "none", minHeight: 0, width: `${width}px`, height: `${height}px` });
}"""


def decaying(name: str, start: object, by: float) -> list[dict[str, object]]:
    """Return a Variable that shrinks by the factor 1 - `by` in every run."""
    return [
        block(f"{name}_var", "Variable", {"initvalues": array_value(start, "float64")}),
        const(f"{name}_by", by, "float64"),
        block(name, "ApplyGradientDescent", var=f"{name}_var.ref", alpha=f"{name}_by.output", delta=f"{name}_var.ref"),
    ]


def deviation_from_line(line: list[list[float]]) -> float:
    """Return how far the middle of a curve is from the straight line between its ends, relative to its height."""
    (x0, y0), (x1, y1) = line[2], line[-3]
    middle = min(line, key=lambda point: abs(point[0] - (x0 + x1) / 2))
    return abs(middle[1] - (y0 + y1) / 2) / abs(y1 - y0)


@pytest.mark.feature("trend")
@pytest.mark.broken("rowgrad.studio.charts:Trends.record", "lambda *given: None")
def test_the_trend_chart_is_linear_or_logarithmic_and_updates_live(ui: StudioWindow) -> None:
    blocks = [*decaying("half", 1024.0, 0.5), *decaying("most", 3.0, 0.1), *decaying("pair", [[8.0, 4.0]], 0.5)]
    open_page(ui, page("p", *blocks, session("half.out", "most.out", "pair.out")))
    ui.run_steps(8)
    panel = open_panel(ui, "trend")
    names = panel.locator("[data-series]")
    expect(names).to_have_count(2)  # every fetched scalar
    expect(panel.locator('[data-series="half.out"] .value')).to_have_attribute("title", "run 8: 4")
    expect(panel.locator('[data-series="most.out"] .value')).to_have_attribute("title", re.compile("^run 8: 1.29"))
    panel.get_by_label("Result to record").select_option("pair.out")
    panel.get_by_label("Element to record").fill("0, 1")
    panel.get_by_role("button", name="Add", exact=True).click()
    expect(names).to_have_count(3)
    panel.get_by_text("Last values as a table").click()
    table = panel.get_by_role("table", name="Last values")
    expect(table.get_by_role("columnheader")).to_have_text(["run", "half.out", "most.out", "pair.out[0,1]"])
    expect(table.locator("tbody tr")).to_have_count(8)
    halves = table.locator("tbody tr td:nth-child(2)").all_inner_texts()
    assert [float(text) for text in halves] == [1024 * 0.5**k for k in range(8, 0, -1)]
    canvas = panel.locator(".chart canvas")
    assert deviation_from_line(canvas.evaluate(LINE_PIXELS, BLUE)) > 0.3
    panel.get_by_role("button", name="Log", exact=True).click()
    ui.wait_until(lambda: deviation_from_line(canvas.evaluate(LINE_PIXELS, BLUE)) < 0.08)
    ui.window.get_by_label("Runs per second").fill("50")
    ui.press("stop")
    ui.press("run-rate")
    observed: set[str | None] = set()
    value = panel.locator('[data-series="pair.out[0,1]"] .value')
    while len(observed) < 4:
        observed.add(value.get_attribute("title"))
        expect(value).not_to_have_attribute("title", value.get_attribute("title") or "")
    assert ui.progress.get_attribute("data-phase") == "running"
    ui.press("stop")
    ui.wait_run("stopped")


@pytest.mark.feature("trend")
def test_a_logarithmic_chart_shows_values_down_to_the_smallest_number(ui: StudioWindow) -> None:
    """A value that is halved 1,050 times goes through every magnitude between 1 and 1e-316."""
    open_page(ui, page("p", *decaying("half", 1.0, 0.5), session("half.out")))
    panel = open_panel(ui, "trend")
    panel.get_by_role("button", name="Log", exact=True).click()
    canvas = panel.locator(".chart canvas")
    for runs in (90, 130, 1050):  # to 1e-27, 1e-39 and 1e-316
        ui.run_steps(runs - ui.runs())
        expect(panel.locator('[data-series="half.out"] .value')).to_have_attribute("title", f"run {runs}: {0.5**runs}")
        ui.wait_until(lambda: len(canvas.evaluate(LINE_PIXELS, BLUE)) > 100)
        assert deviation_from_line(canvas.evaluate(LINE_PIXELS, BLUE)) < 0.02


LARGEST, SMALLEST = sys.float_info.max, 5e-324
EXTREME_VALUES: list[list[float | None]] = [
    [5.0],
    [0.0],
    [None],
    [SMALLEST],
    [LARGEST],
    [0.0, 0.0, 0.0],
    [None, None, -2.0],
    [SMALLEST, LARGEST],
    [-LARGEST, LARGEST],
    [0.0, SMALLEST],
    [-1.0, 0.0, 1e-30],
    [1e17, 1e17 + 16, 1e17 + 32],
    [1e33, 5e37, 3.4e38],
    [1.0, 1.0 + 2e-16],
    [3e-26, 4e-25],
    [],
]


@pytest.mark.feature("trend")
@pytest.mark.parametrize("first_run", [1, 123_456_789_012])
def test_no_value_or_size_breaks_the_chart(ui: StudioWindow, first_run: int) -> None:
    """An error in the chart fails the test when the window closes, and an endless loop lets the next click time out."""
    open_page(ui, page("p", *decaying("half", 1.0, 0.5), session("half.out")))
    ui.run_steps(2)
    panel = open_panel(ui, "trend")
    values: list[float | None] = []

    def reply(route: Route) -> None:
        series = {"label": "half.out", "points": [[first_run + k, value] for k, value in enumerate(values)]}
        route.fulfill(json={"series": [series], "run": first_run + 9, "chosen": False})

    ui.window.route("**/api/trend", reply)
    canvas = panel.locator(".chart canvas")
    title = panel.locator('[data-series="half.out"] .value')
    for values in EXTREME_VALUES:
        with ui.window.expect_response("**/api/trend"):
            ui.run_once()
        expect(title).to_have_attribute("title", re.compile(f"^run {first_run + len(values) - 1}:") if values else "")
        for scale in ("Log", "Linear"):
            panel.get_by_role("button", name=scale, exact=True).click()
            for _ in range(2):
                panel.get_by_label("Auto-scale").click()
                drawn = canvas.evaluate(LINE_PIXELS, BLUE)
                assert drawn or scale == "Log" or values in ([], [None]), values
    values = [0.5**k for k in range(40)]
    with ui.window.expect_response("**/api/trend"):
        ui.run_once()
    for _ in range(6):  # zoom in to less than one run
        box = panel.locator(".chart .u-over").bounding_box()
        assert box
        ui.window.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 20)
        ui.window.mouse.down()
        ui.window.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 30)
        ui.window.mouse.up()
    for width, height in [(0, 0), (1, 1), (130, 60), (40, 400), (400, 40), (2000, 1000)]:
        panel.locator(".chart").evaluate(SET_SIZE, [width, height])
        for scale in ("Log", "Linear"):
            panel.get_by_role("button", name=scale, exact=True).click()
