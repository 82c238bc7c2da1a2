"""A result as colours and as a surface."""

from __future__ import annotations

from typing import Any

import pytest
from at_the_desk import bring, panel
from desk import Desk
from drawn_pages import block, const, page, session
from playwright.sync_api import Locator, expect

CELLS = [[0.0, 1.0, 2.0], [3.0, 30.0, 0.0]]
# The colour in the middle of every cell, as the screen has it.
COLOURS = """(canvas, [rows, columns]) => {
    const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    pen.drawImage(canvas, 0, 0);
    const at = (k, n, size) => Math.floor(((k + 0.5) * size) / n);
    return Array.from({ length: rows }, (_, r) => Array.from({ length: columns }, (_, c) =>
        [...pen.getImageData(at(c, columns, canvas.width), at(r, rows, canvas.height), 1, 1).data]));
}"""
DRAWN = """canvas => {
    const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    pen.drawImage(canvas, 0, 0);
    const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
    const found = new Set();
    let count = 0;
    for (let k = 0; k < data.length; k += 4) if (data[k + 3] > 200) { count++; found.add(data.slice(k, k + 3).join()); }
    return [count, found.size];
}"""


def painted(desk: Desk) -> Locator:
    """The panel with a heat map of a matrix that was computed."""
    bring(desk, page("p", const("a", CELLS), block("twice", "Add", x="a.output", y="a.output"), session("twice.z")))
    desk.run_once()
    return panel(desk, "map")


def far(one: list[int], other: list[int]) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5


@pytest.mark.feature("heatMap")
@pytest.mark.broken("rowgrad.studio.value_verbs:heat_of", "lambda array, *given: original(array * 0, *given)")
def test_a_heat_map_has_colours_for_numbers_and_tells_them_to_the_keyboard(desk: Desk) -> None:
    below = painted(desk)
    canvas = below.locator("canvas.heat")
    canvas.wait_for()
    colours: list[list[list[int]]] = canvas.evaluate(COLOURS, [2, 3])
    low, high, same = colours[0][0], colours[1][1], colours[1][2]
    assert low[3] == high[3] == 255
    assert low == same
    assert far(low, high) > 150
    steps = [far(low, one) for one in (colours[0][1], colours[0][2], colours[1][0], high)]
    assert steps == sorted(steps)
    assert steps[0] > 0
    canvas.focus()
    desk.key("ArrowRight", "ArrowDown", "ArrowRight")
    expect(below.locator(".map-words")).to_have_text("row 1, column 1: 60.0")
    assert far(canvas.evaluate(COLOURS, [2, 3])[1][1], high) < 10  # the mark of the cell leaves its colour
    box: Any = canvas.bounding_box()
    desk.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)
    expect(below.locator(".map-words")).to_have_text("row 0, column 1: 2.0")


@pytest.mark.feature("heatMap")
@pytest.mark.broken(
    "rowgrad.studio.value_verbs:heat_of", "lambda *given: original(*given) | {'cells': [[None] * 3] * 2}"
)
def test_a_surface_is_drawn_and_turns_by_keys(desk: Desk) -> None:
    below = painted(desk)
    below.get_by_role("button", name="Surface").click()
    canvas = below.locator("canvas.surface")
    expect(canvas).to_have_attribute("data-turn", "0.524")
    pixels, colours = canvas.evaluate(DRAWN)
    assert pixels > 2000
    assert colours > 20
    pictures = [canvas.evaluate("canvas => canvas.toDataURL()")]
    canvas.focus()
    for key, part, value in (("ArrowRight", "turn", "0.654"), ("ArrowUp", "tilt", "0.702")):
        desk.key(key)
        expect(canvas).to_have_attribute(f"data-{part}", value)
        desk._until(lambda: canvas.evaluate("canvas => canvas.toDataURL()") not in pictures)
        pictures.append(canvas.evaluate("canvas => canvas.toDataURL()"))
        assert canvas.evaluate(DRAWN)[0] > 2000
