"""What is shown can be read: names, axes, keys and tabs in windows of every width."""

from __future__ import annotations

import itertools
import re

import pytest
from grid_pages import array_value, page
from grid_pages import block as grid_block
from page_fixtures import block, const
from playwright.sync_api import expect
from studio_window import StudioWindow
from window_actions import is_in_view, open_page, open_panel

KEPT_COLUMNS = """lambda self, path: (file := original(self, path))._replace(packed=None, plain=file.plain + b'''
    .studio .desk { grid-template-columns: 190px 1fr 240px !important }''' * (path.suffix == ".css"))"""
SMALL_NAMES = """lambda self, path: (file := original(self, path))._replace(packed=None, plain=file.plain + b'''
    .studio .canvas .block .block-op { font-size: 14px !important }''' * (path.suffix == ".css"))"""


@pytest.mark.feature("commandMenu")
@pytest.mark.parametrize("width", [390, 1400])
def test_the_list_of_keys_fits_the_window(ui: StudioWindow, width: int) -> None:
    ui.window.set_viewport_size({"width": width, "height": 844})
    ui.open_blocks(const("x", (0, 0), [1.0]))
    ui.choose_command("Keys", "do keys")
    dialog = ui.window.get_by_role("dialog", name="Keys")
    keys, texts = dialog.locator(".keys dt kbd"), dialog.locator(".keys dd")
    keys.first.wait_for()
    frame = ui.box(dialog)
    find = "all => all.map(one => one.getBoundingClientRect()).map(b => [b.left, b.top, b.right, b.bottom])"
    boxes = [*keys.evaluate_all(find), *texts.evaluate_all(find)]
    assert len(boxes) > 60
    assert all(frame[0] <= box[0] and box[2] <= frame[2] for box in boxes)
    for a, b in itertools.combinations(boxes, 2):
        assert a[2] <= b[0] + 1 or b[2] <= a[0] + 1 or a[3] <= b[1] + 1 or b[3] <= a[1] + 1, (a, b)


@pytest.mark.feature("tabs")
@pytest.mark.parametrize("width", [390, 1000])
def test_the_active_tab_is_in_view(ui: StudioWindow, width: int) -> None:
    ui.window.set_viewport_size({"width": width, "height": 800})
    names = [ui.write_page(f"a_page_with_a_long_name_{k}", const("x", (0, 0), [1.0])) for k in range(7)]
    ui.open(names[0])
    for name in names[1:]:
        ui.switch_to(name)
    strip = ui.window.locator(".tab-list")
    ui.wait_until(lambda: is_in_view(ui, ui.tab(names[-1]), strip) or width == 390)
    for key, name in (("Alt+PageUp", names[-2]), ("Alt+PageDown", names[-1]), ("Alt+PageDown", names[0])):
        ui.key(key)
        expect(ui.tab(name)).to_have_attribute("aria-selected", "true")
        ui.wait_until(lambda name=name: begins_in_view(ui, name))


def begins_in_view(ui: StudioWindow, name: str) -> bool:
    strip, tab = ui.box(ui.window.locator(".tab-list")), ui.box(ui.tab(name))
    return strip[0] - 1 <= tab[0] < strip[2] - 20 or (tab[0] < strip[0] and tab[2] > strip[2] - 40)


@pytest.mark.broken("rowgrad.studio.http:StaticFiles._read", KEPT_COLUMNS)
@pytest.mark.parametrize("width", [1000, 1280, 2100])
def test_the_canvas_takes_the_space_of_hidden_panels(ui: StudioWindow, width: int) -> None:
    ui.window.set_viewport_size({"width": width, "height": 800})
    ui.open_blocks(const("x", (0, 0), [1.0]))
    ui.key("Control+b", "Control+i")
    expect(ui.inspector).to_have_count(0)
    assert [ui.box(ui.canvas)[side] for side in (0, 2)] == [0, width]


@pytest.mark.feature("palette")
def test_long_names_are_shortened_in_their_middle(ui: StudioWindow) -> None:
    """The palette shows names that differ, and the inspector the end of a name on the same line."""
    ui.open_blocks(block("g", "PlannedSparseSegmentMeanGrad"))
    ui.window.locator(".category", has_text="Plan").click()
    item = ui.window.locator('.palette-item[data-op="PlannedSparseSegmentMeanGrad"]')
    head, tail = item.locator(".middle-text > span").all()
    item.scroll_into_view_if_needed()
    assert is_in_view(ui, tail, ui.window.locator(".palette"))
    assert head.evaluate("one => one.scrollWidth > one.clientWidth")  # what is cut
    expect(tail).to_have_text("gmentMeanGrad")
    ui.select("g")
    title = ui.inspector.locator(".block-title-op")
    assert title.evaluate("one => one.getClientRects().length") == 1
    assert ui.box(title)[3] - ui.box(title)[1] < 30
    assert is_in_view(ui, title.locator(".middle-text > span").last, ui.inspector)


@pytest.mark.feature("zoom")
def test_zoomed_out_blocks_show_the_names_that_users_gave(ui: StudioWindow) -> None:
    ui.open_blocks(block("W1", "Variable"), block("variable_2", "Variable", (0, 300)), block("neg", "Neg", (300, 0)))
    for _ in range(6):
        ui.key("Control+-")
    expect(ui.window.locator(".canvas.far")).to_be_visible()
    shown = "one => getComputedStyle(one, '::after').content + getComputedStyle(one.firstElementChild).display"
    texts = {b: ui.block(b).locator(".block-op").evaluate(shown) for b in ("W1", "variable_2", "neg")}
    assert texts["W1"] == '"W1"none'
    assert "none" not in texts["variable_2"].removeprefix("none")
    assert "none" not in texts["neg"].removeprefix("none")


@pytest.mark.broken("rowgrad.studio.http:StaticFiles._read", SMALL_NAMES)
def test_names_fill_the_blocks_of_a_page_that_is_zoomed_out(ui: StudioWindow) -> None:
    ui.open_gallery("start/08_train_embedding")
    ui.run_once()
    for _ in range(3):
        ui.key("Control+-")
    expect(ui.window.locator(".canvas.far")).to_be_visible()
    ratio = """one => { const text = document.createRange();
        text.selectNodeContents(one.querySelector('.block-op'));
        const size = parseFloat(getComputedStyle(one.querySelector('.block-op')).fontSize);
        return [size, one.offsetWidth, one.offsetHeight]; }"""
    for name in ui.blocks():
        size, width, height = ui.block(name).evaluate(ratio)
        assert 0.5 * len(name) * size <= width, name  # it fits
        assert size >= min(24, 0.3 * height), name


@pytest.mark.feature("preview")
@pytest.mark.broken("rowgrad.studio.value_text:_envelope", "lambda line, step: line[:: step // 2]")
def test_pictures_on_a_block_show_the_peaks_and_the_range_of_long_vectors(ui: StudioWindow) -> None:
    ids = [7 * k % 2000 for k in range(400)]
    peaks = [[9.0 if k in (7, 1203, 1999) else 0.0] for k in range(2000)]
    ui.open_blocks(
        const("table", (0, 0), peaks),
        block("g", "SparseSegmentMean", (420, 0), values={"indices": ids, "segment_ids": sorted(k // 4 for k in ids)}),
    )
    for pin, text in (("indices", "0 … 1995"), ("segment_ids", "0 … 498")):
        picture = ui.block("g").locator(f'[data-pin="{pin}"] button.literal')
        expect(picture.locator(".mini-range")).to_have_text(text)
        assert is_in_view(ui, picture.locator(".mini-range"), picture)
    ui.run_once()
    path = ui.block("table").locator(".result .mini-line path")
    heights = re.findall(r"[ML][\d.]+ ([\d.]+)", path.get_attribute("d") or "")
    assert heights.count(min(heights, key=float)) == 3


@pytest.mark.feature("heatMap")
def test_a_heat_map_numbers_its_rows_and_columns(ui: StudioWindow) -> None:
    values = {"val": array_value([[float(r + c) for c in range(5)] for r in range(40)], "float32")}
    open_page(ui, page("p", grid_block("x", "Const", values)))
    ui.run_once()
    panel = open_panel(ui, "map")
    canvas = ui.box(panel.locator("canvas.heat"))
    columns = panel.locator(".map-column")
    expect(columns.first).to_have_text("0")
    for column in columns.all():
        left, _, right, _ = ui.box(column)
        middle = canvas[0] + (canvas[2] - canvas[0]) * (int(column.inner_text()) + 0.5) / 5
        assert abs((left + right) / 2 - middle) < 2
    rows = [int(text) for text in panel.locator(".map-row").all_inner_texts()]
    assert rows[0] == 0
    assert 2 < len(rows) <= 20
    boxes = [ui.box(row) for row in panel.locator(".map-row").all()]
    assert all(box[2] <= canvas[0] for box in boxes)
    assert all(above[3] <= below[1] + 1 for above, below in itertools.pairwise(boxes))
    for row, box in zip(rows, boxes, strict=True):
        middle = canvas[1] + (canvas[3] - canvas[1]) * (row + 0.5) / 40
        assert abs((box[1] + box[3]) / 2 - middle) < 2
