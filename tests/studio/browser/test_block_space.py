"""Blocks have space for their results: nothing overlaps after a run."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from page_fixtures import block, const
from playwright.sync_api import expect
from studio_window import StudioWindow

START = sorted((Path(__file__).parents[3] / "examples" / "pages" / "start").glob("*.json"))
# Blocks with the names above them, and notes; all measured at the same time.
_AREAS = """all => all.map(one => {
    const name = one.dataset.block ?? `note ${one.dataset.note}`;
    const boxes = [one, ...one.querySelectorAll(".block-id")].map(part => part.getBoundingClientRect());
    return [name, [Math.min(...boxes.map(b => b.left)), Math.min(...boxes.map(b => b.top)),
                   Math.max(...boxes.map(b => b.right)), Math.max(...boxes.map(b => b.bottom))]];
})"""
_CROWDED = (
    """lambda name: [page := original(name), *(setattr(b, "at", (b.at[0], 0.6 * b.at[1])) for b in page.blocks)][0]"""
)


def overlaps(ui: StudioWindow) -> list[tuple[str, str]]:
    """Return the pairs of blocks and notes that intersect, the names above blocks included."""
    areas = ui.window.locator("[data-block], [data-note]:not(.frame)").evaluate_all(_AREAS)
    return [
        (a, b)
        for (a, one), (b, other) in itertools.combinations(areas, 2)
        if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
    ]


@pytest.mark.parametrize("name", [path.stem for path in START])
@pytest.mark.feature("gallery")
@pytest.mark.broken("rowgrad.studio.project_verbs:page", _CROWDED)
def test_nothing_overlaps_on_a_curated_page_after_a_run(ui: StudioWindow, name: str) -> None:
    ui.open_gallery(f"start/{name}")
    saved = ui.page_json()
    ui.run_once()
    pictures = ui.window.locator("[data-block] .mini-picture:not(:has(canvas, svg))")
    expect(pictures).to_have_count(0)  # every picture of a result has arrived
    expect(ui.window.locator("[data-block] .result-name").first).to_be_attached()
    assert overlaps(ui) == []
    assert ui.page_json() == saved  # by its own layout: no block had to make space


def crowded(ui: StudioWindow) -> str:
    """Open a page whose results are higher than the space below their blocks."""
    name = ui.write_page(
        "work",
        const("x", (0, 0), [[1.0, 2.0], [3.0, 4.0]]),
        block("a", "Neg", (300, 0), wires={"x": "x.output"}),
        block("b", "Neg", (320, 100), wires={"x": "a.y"}),
        block("c", "Neg", (300, 200), wires={"x": "b.y"}),
        block("aside", "Neg", (700, 60), wires={"x": "x.output"}),
        notes=[{"text": "below", "at": [310, 300]}],
    )
    ui.open(name)
    expect(ui.block("aside")).to_be_visible()
    return name


@pytest.mark.feature("makeSpace")
def test_a_run_moves_the_neighbours_below_a_growing_block(ui: StudioWindow) -> None:
    name = crowded(ui)
    assert overlaps(ui) == []
    before = ui.page_json()
    ui.run_once()
    ui.wait_until(lambda: ui.page_json() != before)
    ui.wait_until(lambda: overlaps(ui) == [])
    places = {b["id"]: b["at"] for b in ui.page_json(name)["blocks"]}
    assert [places[b] for b in ("x", "a", "aside")] == [[0, 0], [300, 0], [700, 60]]
    assert [places[b][0] for b in "bc"] == [320, 300]
    assert 100 < places["b"][1] < places["c"][1] - 120
    # It is no step of its own: undo takes back the last edit of the user.
    expect(ui.window.locator('[data-command="undo"]').first).to_be_disabled()


@pytest.mark.feature("layout")
def test_automatic_layout_leaves_space_for_results(ui: StudioWindow) -> None:
    crowded(ui)
    ui.key("Control+Shift+l")
    ui.wait_until(lambda: ui.saved_block("b")["at"] != [320, 100])
    laid_out = ui.page_json()
    ui.run_once()
    expect(ui.window.locator("[data-block] .result-name")).to_have_count(5)
    assert overlaps(ui) == []
    assert ui.page_json() == laid_out
