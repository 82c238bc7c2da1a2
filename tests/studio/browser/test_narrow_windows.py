"""A window as narrow as a telephone: panels over the canvas, menus, and everything that is read is in reach."""

from __future__ import annotations

import pytest
from page_fixtures import block, const
from playwright.sync_api import Locator, expect
from studio_window import StudioWindow
from window_actions import is_in_view, open_panel

WIDTH, HEIGHT = 390, 844
STATIC = "rowgrad.studio.http:StaticFiles._read"
NOT_SCROLLED = """lambda self, path: (file := original(self, path))._replace(packed=None, plain=file.plain + b'''
    .studio .bottom-panel.bottom-panel.bottom-panel { overflow: hidden !important }''' * (path.suffix == ".css"))"""
IDS = {"indices": [0, 2, 2], "segment_ids": [0, 0, 1], "output_dim0": 4}


@pytest.fixture
def narrow(ui: StudioWindow) -> StudioWindow:
    ui.window.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    return ui


def open_gradient(ui: StudioWindow) -> None:
    grad = const("grad", (0, 40), [[1, 2], [6, 8]])
    ui.open_blocks(grad, block("op", "SparseSegmentMeanGrad", (360, 0), values=IDS, wires={"grad": "grad.output"}))
    ui.key("Control+0")


def scroll_to_end(ui: StudioWindow, panel: Locator) -> None:
    panel.hover(position={"x": 5, "y": 60})
    ui.mouse.wheel(0, 2000)


@pytest.mark.feature("narrowPanels")
def test_panels_over_the_canvas_close_by_escape_and_by_a_click_beside_them(narrow: StudioWindow) -> None:
    ui = narrow
    open_gradient(ui)
    palette = ui.window.get_by_role("navigation", name="Palette")
    for key, panel in (("Control+b", palette), ("Control+i", ui.inspector), ("/", palette)):
        ui.key(key)
        panel.wait_for()
        ui.key("Escape")
        expect(panel).to_have_count(0)
    ui.key("/")
    ui.keys.type("Neg")
    ui.key("Escape")
    expect(palette).to_have_count(0)
    ui.key("Control+i")
    name = ui.inspector.get_by_label("Name", exact=True)
    ui.select("grad")
    name.fill("other")
    name.press("Escape")  # is about the text first
    expect(ui.inspector).to_be_visible()
    ui.mouse.click(20, 120)
    expect(ui.inspector).to_have_count(0)


@pytest.mark.feature("narrowPanels")
def test_a_menu_within_a_menu_fits_the_window(narrow: StudioWindow) -> None:
    ui = narrow
    open_gradient(ui)
    ui.window.get_by_role("button", name="Menu", exact=True).click()
    for name in ("Light", "Dark", "Like the system"):
        assert is_in_view(ui, ui.window.get_by_role("menuitemcheckbox", name=name))
    ui.window.get_by_role("menuitemcheckbox", name="Dark").click()
    expect(ui.window.locator(".studio")).to_have_attribute("data-theme", "dark")
    ui.select("grad")
    ui.key("Control+a")
    ui.block("op").locator(".block-op").click(button="right")
    entry = ui.window.get_by_role("menuitem", name="Align left")
    entry.scroll_into_view_if_needed()
    assert is_in_view(ui, entry)
    entry.click()
    expect(ui.window.get_by_role("menu")).to_have_count(0)
    assert ui.saved_block("op")["at"][0] == ui.saved_block("grad")["at"][0]


@pytest.mark.feature("trace")
@pytest.mark.broken(STATIC, NOT_SCROLLED)
def test_the_sum_of_a_row_and_the_scatter_view_are_in_reach(narrow: StudioWindow) -> None:
    ui = narrow
    open_gradient(ui)
    ui.run_once()
    panel = open_panel(ui, "trace")
    equation = panel.locator(".sum-equation")
    expect(equation).to_have_text("½·[1, 2] + 1·[6, 8] = [6.5, 9]")
    scroll_to_end(ui, panel)
    ui.wait_until(lambda: is_in_view(ui, equation, panel))
    ui.mouse.wheel(0, -2000)
    panel.get_by_role("button", name="Scatter", exact=True).click()
    words = panel.locator(".scatter-sum")
    words.wait_for()
    scroll_to_end(ui, panel)
    ui.wait_until(lambda: is_in_view(ui, words, panel))
    lowest = ui.box(panel.locator(".scatter .slot").last)
    assert lowest[3] <= ui.box(words)[1] + 1  # the text is below the drawing
    panel.get_by_role("button", name="Spy plot", exact=True).scroll_into_view_if_needed()
    panel.get_by_role("button", name="Spy plot", exact=True).click()
    panel.get_by_role("img", name="Spy plot").wait_for()
    hot = panel.locator(".spy-side")
    scroll_to_end(ui, panel)
    ui.wait_until(lambda: is_in_view(ui, hot.locator("h3").first, panel))


@pytest.mark.feature("zoom")
def test_a_wide_page_opens_with_names_that_can_be_read(narrow: StudioWindow) -> None:
    ui = narrow
    row = [block(f"neg_{k}", "Neg", (400 * k, 0), wires={"x": f"neg_{k - 1}.y"} if k else {}) for k in range(9)]
    ui.open(ui.write_page("wide", *row))
    expect(ui.window.locator('[data-command="zoom-actual"]')).to_have_text("60 %")
    assert is_in_view(ui, ui.block("neg_0"), ui.canvas)
    assert not is_in_view(ui, ui.block("neg_8"), ui.canvas)
    ui.press("fit")
    ui.wait_until(lambda: is_in_view(ui, ui.block("neg_8"), ui.canvas))
