"""The gallery on the start screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect
from studio_window import StudioWindow

COUNT_COLORS = """async (image) => {
    await image.decode();
    const pen = new OffscreenCanvas(300, 200).getContext("2d");
    pen.drawImage(image, 0, 0, 300, 200);
    const { data } = pen.getImageData(0, 0, 300, 200);
    return new Set(Array.from({ length: data.length / 4 }, (_, k) => data.slice(4 * k, 4 * k + 4).join())).size;
}"""
PAGES = Path(__file__).parents[3] / "examples" / "pages"


@pytest.mark.feature("gallery")
@pytest.mark.broken("rowgrad.studio.project_verbs:to_svg", "lambda page, thumbnail: original(type(page)(page.name))")
@pytest.mark.broken("rowgrad.studio.project_verbs:_entries", "lambda path: original(path)[1:]")
def test_the_start_screen_shows_every_example_with_a_picture_and_opens_one(ui: StudioWindow) -> None:
    names = [f"start/{path.stem}" for path in sorted((PAGES / "start").glob("*.json"))]
    assert len(names) == 12
    names += sorted(path.stem for path in PAGES.glob("*.json"))
    cards = ui.window.locator("[data-gallery]")
    expect(cards).to_have_count(len(names))
    assert [card.get_attribute("data-gallery") for card in cards.all()] == names
    for card in cards.all():
        card.scroll_into_view_if_needed()
        image = card.locator("img")
        expect(image).to_have_attribute("alt", re.compile("^Drawing of "))
        assert image.evaluate(COUNT_COLORS) > 10, card.inner_text()
    ui.window.get_by_label("Search pages and gallery").fill("08 fill grad")
    expect(cards).to_have_count(1)
    expect(cards.locator("b")).to_have_text(re.compile("08 Sparse fill empty rows grad"))
    cards.click()
    ui.canvas.wait_for()
    assert ui.page == "08_sparse_fill_empty_rows_grad"
    expect(ui.block("op").locator(".block-op")).to_have_text("SparseFillEmptyRowsGrad")
    assert len(ui.page_json()["blocks"]) == len(ui.blocks())
