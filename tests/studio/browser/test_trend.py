"""Numbers over the runs."""

from __future__ import annotations

import re

import pytest
from at_the_desk import bring, panel
from desk import Desk
from drawn_pages import block, const, page, session, typed
from playwright.sync_api import expect

BLUE = "#3d87d6"  # the first line of a chart
# Where the line of a colour is, from left to right: x, and the middle of its pixels in that column.
LINE = """(canvas, colour) => {
    const wanted = [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16));
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


def falling(name: str, start: object, by: float) -> list[dict[str, object]]:
    """A Variable that loses a part of itself in every run."""
    return [
        block(f"{name}_var", "Variable", {"initvalues": typed(start, "float64")}),
        const(f"{name}_by", by, "float64"),
        block(name, "ApplyGradientDescent", var=f"{name}_var.ref", alpha=f"{name}_by.output", delta=f"{name}_var.ref"),
    ]


def bend(line: list[list[float]]) -> float:
    """How far the middle of a line is from the straight way between its ends, in parts of its height."""
    (x0, y0), (x1, y1) = line[2], line[-3]
    middle = min(line, key=lambda point: abs(point[0] - (x0 + x1) / 2))
    return abs(middle[1] - (y0 + y1) / 2) / abs(y1 - y0)


@pytest.mark.feature("trend")
@pytest.mark.broken("rowgrad.studio.charts:Trends.record", "lambda *given: None")
def test_a_trend_of_several_numbers_linear_and_logarithmic_and_live(desk: Desk) -> None:
    blocks = [*falling("half", 1024.0, 0.5), *falling("most", 3.0, 0.1), *falling("pair", [[8.0, 4.0]], 0.5)]
    bring(desk, page("p", *blocks, session("half.out", "most.out", "pair.out")))
    desk.run_steps(8)
    below = panel(desk, "trend")
    names = below.locator("[data-series]")
    expect(names).to_have_count(2)  # every single number that is fetched
    expect(below.locator('[data-series="half.out"] .value')).to_have_attribute("title", "run 8: 4")
    expect(below.locator('[data-series="most.out"] .value')).to_have_attribute("title", re.compile("^run 8: 1.29"))
    below.get_by_label("Result to record").select_option("pair.out")
    below.get_by_label("Element to record").fill("0, 1")
    below.get_by_role("button", name="Add", exact=True).click()
    expect(names).to_have_count(3)
    below.get_by_text("Last values as a table").click()
    table = below.get_by_role("table", name="Last values")
    expect(table.get_by_role("columnheader")).to_have_text(["run", "half.out", "most.out", "pair.out[0,1]"])
    expect(table.locator("tbody tr")).to_have_count(8)
    halves = table.locator("tbody tr td:nth-child(2)").all_inner_texts()
    assert [float(text) for text in halves] == [1024 * 0.5**k for k in range(8, 0, -1)]
    canvas = below.locator(".chart canvas")
    assert bend(canvas.evaluate(LINE, BLUE)) > 0.3
    below.get_by_role("button", name="Log", exact=True).click()
    desk._until(lambda: bend(canvas.evaluate(LINE, BLUE)) < 0.08)
    desk.window.get_by_label("Runs per second").fill("50")
    desk.press("stop")
    desk.press("run-rate")
    seen = set()
    value = below.locator('[data-series="pair.out[0,1]"] .value')
    while len(seen) < 4:
        seen.add(value.get_attribute("title"))
        expect(value).not_to_have_attribute("title", value.get_attribute("title") or "")
    assert desk.progress.get_attribute("data-phase") == "running"
    desk.press("stop")
    desk.wait_run("stopped")
