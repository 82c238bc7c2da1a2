"""The trace panel: which input rows feed an output row, and the sum it is computed by."""

from __future__ import annotations

import re

import pytest
from grid_pages import Json, array_value, block, const, page, session
from playwright.sync_api import Locator, expect
from studio_window import StudioWindow
from window_actions import open_page, open_panel

COUNT_COLORS = """canvas => {
    const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    if (!canvas.width || !canvas.height) return 0;
    pen.drawImage(canvas, 0, 0);
    const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
    const found = new Set();
    for (let k = 0; k < data.length; k += 4) found.add(data.slice(k, k + 3).join());
    return found.size;
}"""
IS_ON_TOP = """one => {
    const box = one.getBoundingClientRect();
    return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2) === one;
}"""
RESULT_FIRST = """lambda self, path: (file := original(self, path))._replace(packed=None, plain=file.plain + b'''
    .trace-panel .look-bar > label { order: -1 }''' * (path.suffix == ".css"))"""
SHIFT_INPUT_ROWS = """lambda *given: (t := original(*given)).__class__(
    t.outputs, t.inputs, [(a, b + 1) for a, b in t.pairs], t.total, t.cut)"""


def row_lists(panel: Locator) -> tuple[Locator, Locator]:
    return (
        panel.get_by_role("listbox", name="Output rows of op"),
        panel.get_by_role("listbox", name="Input rows of op"),
    )


def highlighted(rows: Locator) -> list[str]:
    return [str(row.get_attribute("data-row")) for row in rows.locator(".lit").all()]


@pytest.mark.feature("trace")
@pytest.mark.broken("rowgrad.studio.row_verbs:trace_rows", SHIFT_INPUT_ROWS)
def test_rows_of_a_segment_op_are_traced_in_both_directions(ui: StudioWindow) -> None:
    ui.open_gallery("01_sparse_segment_mean")
    ui.run_once()
    panel = open_panel(ui, "trace")
    outputs, inputs = row_lists(panel)
    status = panel.locator(".trace-words")
    outputs.locator('[data-row="0"]').hover()
    expect(status).to_have_text("output row 0 is fed by data rows 2, 1")
    assert (highlighted(outputs), highlighted(inputs)) == (["0"], ["1", "2"])
    expect(panel.locator(".trace-lines path.lit")).to_have_count(2)
    inputs.locator('[data-row="0"]').hover()
    expect(status).to_have_text("data row 0 feeds output row 1")
    assert (highlighted(outputs), highlighted(inputs)) == (["1"], ["0"])
    expect(panel.locator(".trace-lines path.lit")).to_have_count(1)
    # The same in the result tables of the op and of its input.
    ui.result("op", "output")
    ui.table("op", "output").locator('[data-row="1"]').hover()
    expect(panel.locator(".trace-words")).to_have_text("row 1 is fed by data row 0")
    ui.result("data", "output")
    ui.table("data", "output").locator('[data-row="2"]').hover()
    expect(panel.locator(".trace-words")).to_have_text("row 2 feeds op: output row 0")


@pytest.mark.feature("trace")
@pytest.mark.broken("rowgrad.studio.row_verbs:trace_rows", SHIFT_INPUT_ROWS)
def test_rows_of_slice_and_fill_are_traced_in_both_directions(ui: StudioWindow) -> None:
    ui.open_gallery("09_sparse_slice")  # keeps b of a, b, c, d
    ui.run_once()
    panel = open_panel(ui, "trace")
    outputs, inputs = row_lists(panel)
    status = panel.locator(".trace-words")
    outputs.locator('[data-row="0"]').hover()
    expect(status).to_have_text("output_values row 0 is fed by values row 1")
    inputs.locator('[data-row="0"]').hover()
    expect(status).to_have_text("values row 0 feeds no row")
    ui.open_gallery("06_sparse_fill_empty_rows")
    ui.run_once()
    outputs.locator('[data-row="2"]').hover()  # the row that was filled
    expect(status).to_have_text("output_values row 2 is fed by no row")
    inputs.focus()
    ui.key("End", "ArrowUp")
    expect(status).to_have_text("values row 2 feeds output_values row 3")
    assert (highlighted(outputs), highlighted(inputs)) == (["3"], ["2"])


def gradient_page(name: str, grad: object, indices: list[int], segment_ids: list[int], rows: int) -> Json:
    inputs = {"indices": indices, "segment_ids": segment_ids, "output_dim0": rows}
    op = block("op", "SparseSegmentMeanGrad", inputs, grad="grad.output")
    return page(name, const("grad", grad, "float32"), op, session("op.output"))


@pytest.mark.feature("trace")
@pytest.mark.broken("rowgrad.graph.row_sums:multiply", "lambda row, by: row")
def test_the_sum_of_a_row_is_written_out_with_ribbons(ui: StudioWindow) -> None:
    open_page(ui, gradient_page("p", [[1, 2], [6, 8]], [0, 2, 2], [0, 0, 1], 4))
    ui.run_once()
    panel = open_panel(ui, "trace")
    outputs, _ = row_lists(panel)
    outputs.locator('[data-row="2"]').hover()
    pane = panel.get_by_role("region", name="The sum of the row")
    expect(pane.locator(".sum-equation")).to_have_text("½·[1, 2] + 1·[6, 8] = [6.5, 9]")
    expect(pane.locator(".sum-verdict")).to_have_text("✓ gives the result bit for bit")
    expect(panel.locator(".look-bar")).to_contain_text(["", "3 ids"])
    cells = ["indices[2] = 2", "grad 1", "1 because bag 1 has 1 id", "[6, 8]", "[6, 8]", "[6.5, 9]"]
    expect(pane.locator('[data-term="1"] td')).to_have_text(cells)
    expect(pane.locator('[data-term="0"] td').nth(2)).to_have_text("½ because bag 0 has 2 ids")
    expect(panel.locator(".trace-lines text")).to_have_text(["½", "1"])
    widths = panel.locator(".trace-lines path.lit").evaluate_all(
        "all => all.map(one => parseFloat(getComputedStyle(one).strokeWidth))"
    )
    assert widths[0] < widths[1]
    note = ui.window.get_by_test_id("trace-note")
    expect(note.locator(".sum-equation")).to_have_text("½·[1, 2] + 1·[6, 8] = [6.5, 9]")
    expect(note.locator(".factor title")).to_have_text(["½ because bag 0 has 2 ids", "1 because bag 1 has 1 id"])
    assert note.locator(".factor").first.evaluate(IS_ON_TOP)  # so a pointer there shows its title
    outputs.locator('[data-row="1"]').hover()
    expect(pane.locator(".sum-equation")).to_contain_text("No row is added to it")
    ui.window.locator("#bottom-results").click()
    expect(note).to_have_count(0)


@pytest.mark.feature("trace", "stale")
def test_a_stale_sum_is_not_called_the_result(ui: StudioWindow) -> None:
    open_page(ui, gradient_page("p", [[1, 2], [6, 8]], [0, 2, 2], [0, 0, 1], 4))
    ui.run_once()
    panel = open_panel(ui, "trace")
    verdict, note = panel.locator(".sum-verdict"), ui.window.get_by_test_id("trace-note")
    expect(verdict).to_have_text("✓ gives the result bit for bit")
    ui.type_value("grad", "val", "[[1, 2], [6, 9]]")
    expect(verdict).to_have_text("stale: of an earlier run")
    expect(verdict).not_to_have_class(re.compile("good"))
    expect(note).to_contain_text("stale: of an earlier run")
    ui.run_once()
    expect(verdict).to_have_text("✓ gives the result bit for bit")
    expect(note).not_to_contain_text("stale")


@pytest.mark.feature("trace")
@pytest.mark.parametrize(("width", "height"), [(1400, 900), (900, 700), (390, 844)])
def test_the_card_of_a_row_is_in_view_and_beside_its_block(ui: StudioWindow, width: int, height: int) -> None:
    """At every place of the block in the window, it does not cover it; where there is no space, it is hidden."""
    ui.window.set_viewport_size({"width": width, "height": height})
    open_page(ui, gradient_page("p", [[1, 2], [6, 8]], [0, 2, 2], [0, 0, 1], 4))
    ui.run_once()
    open_panel(ui, "trace")
    note, tools = ui.window.get_by_test_id("trace-note"), ui.window.locator(".canvas-tools")
    ui.key("Control+0")
    expect(note).to_be_visible()
    x, y = ui.box(ui.canvas)[:2]
    shown = 0
    for across, down in ((0, 0), (120, 90), (-260, -160), (-160, 200), (300, -60), (0, -40)):
        ui.mouse.move(x + 20, y + 20)
        ui.mouse.wheel(-across, -down)
        ui.wait_until_still(note, ui.block("op"))
        if note.is_visible():
            shown += 1
            card, own, frame, bar = (ui.box(one) for one in (note, ui.block("op"), ui.canvas, tools))
            assert frame[0] <= card[0] < card[2] <= frame[2], (across, down)
            assert frame[1] <= card[1] < card[3] <= frame[3], (across, down)
            for other in (own, bar):
                apart = card[2] <= other[0] or other[2] <= card[0] or card[3] <= other[1] or other[3] <= card[1]
                assert apart, (across, down, card, other)
    assert shown >= 3


@pytest.mark.feature("trace")
@pytest.mark.broken("rowgrad.graph.row_sums:_ORDERS", "dict.fromkeys(original, original['sequential'])")
def test_orders_of_addition_are_compared_and_the_tree_is_drawn(ui: StudioWindow) -> None:
    grad = [[0.1 * (k % 7) + 1e-4 * k] for k in range(300)]
    open_page(ui, gradient_page("p", grad, [0] * 300, list(range(300)), 2))
    ui.run_once()
    panel = open_panel(ui, "trace")
    row_lists(panel)[0].locator('[data-row="0"]').hover()
    verdict = panel.locator(".sum-verdict")
    expect(verdict).to_have_text("✓ gives the result bit for bit")
    order = panel.get_by_label("Order of addition", exact=True)
    order.select_option("blocked")
    expect(verdict).to_have_text("≠ differs from the result in 1 of 1 columns")
    expect(panel.locator('.tree-sum[data-depth="1"]')).to_have_count(5)
    panel.get_by_role("button", name="Scatter").click()
    order.select_option("blocked")
    expect(panel.locator(".addition-tree .run")).to_have_count(6)
    panel.get_by_label("Ids in the order of addition").fill("100")
    expect(panel.locator(".addition-tree .run.finished")).to_have_count(1)
    expect(panel.locator(".addition-tree .run.current title").first).to_contain_text("Run 2: 36 of 64 ids")


@pytest.mark.feature("trace")
@pytest.mark.broken("rowgrad.studio.row_verbs:_scattered", "lambda found, wide: []")
def test_the_scatter_view_moves_ids_to_rows(ui: StudioWindow) -> None:
    open_page(ui, gradient_page("p", [[1, 2], [6, 8]], [0, 2, 2], [0, 0, 1], 4))
    ui.run_once()
    panel = open_panel(ui, "trace")
    panel.get_by_role("button", name="Scatter").click()
    words = panel.locator(".scatter-words")
    expect(words).to_have_text("indices[2] = 2, 3 of 3: grad row 1 is added to output row 2: [6.5, 9]")
    slider = panel.get_by_label("Ids in the order of addition")
    slider.focus()
    ui.key("ArrowLeft")
    expect(words).to_have_text("indices[1] = 2, 2 of 3: ½·grad row 0 is added to output row 2: [0.5, 1]")
    rows = panel.locator(".slot.target")
    expect(rows).to_have_count(4)
    classes = [str(row.get_attribute("class")).split()[-1] for row in rows.all()]
    assert classes == ["touched", "untouched", "current", "untouched"]
    expect(panel.locator("path.current")).to_have_attribute("data-to", "2")
    rows.nth(2).click()
    expect(panel.locator(".sum-equation")).to_have_text("½·[1, 2] + 1·[6, 8] = [6.5, 9]")


@pytest.mark.feature("trace")
@pytest.mark.broken("rowgrad.studio.row_verbs:_axis", "lambda *given: original(*given) | {'hot': []}")
def test_the_spy_plot_shows_a_large_batch_and_names_hot_rows(ui: StudioWindow) -> None:
    ids = [7] * 3000 + [(k * 37) % 5000 for k in range(7000)]
    open_page(ui, gradient_page("p", [[1.0]] * 1000, ids, sorted(k % 1000 for k in range(10_000)), 5000))
    ui.run_once()
    panel = open_panel(ui, "trace")
    panel.get_by_role("button", name="Spy plot").click()
    canvas = panel.get_by_role("img", name="Spy plot of 10000 ids")
    canvas.wait_for()
    ui.wait_until(lambda: canvas.evaluate(COUNT_COLORS) > 3)
    expect(panel.locator(".spy-hot li").first).to_contain_text("row 73,002 ids (30.0 %)")
    expect(panel.locator(".spy-histogram").first.locator("tr")).to_have_count(13)
    canvas.focus()
    ui.key("ArrowDown")
    expect(panel.locator(".spy-words")).to_have_text(re.compile(r"^grad rows 4 to 6, output rows 0 to 15: \d+ ids$"))
    panel.locator(".spy-hot button").first.click()
    expect(panel.locator(".sum-head")).to_contain_text("op.output, row 7")
    expect(panel.locator(".sum-terms")).to_contain_text("The first 64 of 3,002 terms are listed.")


@pytest.mark.feature("trace")
@pytest.mark.broken("rowgrad.graph.trace:summed_pins", "lambda call: original(call)[:1]")
def test_what_goes_into_the_default_of_filled_rows_is_written_out(ui: StudioWindow) -> None:
    values = {"reverse_index_map": [0, 1, 3], "grad_values": array_value([1.0, 2.0, 4.0, 8.0, 16.0], "float32")}
    open_page(ui, page("p", block("fill", "SparseFillEmptyRowsGrad", values)))
    ui.run_once()
    panel = open_panel(ui, "trace")
    panel.get_by_label("Block to trace").select_option(label="fill.d_default_value")
    expect(panel.locator(".sum-equation")).to_have_text("4 + 16 = 20")
    expect(panel.locator(".sum-verdict")).to_have_text("✓ gives the result bit for bit")
    expect(panel.locator(".sum-terms tbody tr td:nth-child(2)")).to_have_text(["grad_values 2", "grad_values 4"])
    expect(ui.window.get_by_test_id("trace-note")).to_contain_text("d_default_value")
    panel.get_by_label("Block to trace").select_option(label="fill.d_values")
    expect(panel.locator(".sum-head")).to_contain_text("fill.d_values")


@pytest.mark.feature("trace")
@pytest.mark.broken("rowgrad.graph.trace:_origins", "lambda *given: {}")
def test_symbolic_gradients_are_traced_through(ui: StudioWindow) -> None:
    table = {"initvalues": array_value([[0, 1], [2, 3], [4, 5], [6, 7]], "float32")}
    ids = {"indices": [0, 2, 2], "segment_ids": [0, 0, 1]}
    blocks = (
        block("table", "Variable", table),
        block("mean", "SparseSegmentMean", ids, data="table.ref"),
        block("square", "Square", x="mean.output"),
        block("G", "AddSymbolicGradients", outputs=["square.y"], inputs=["table.ref"]),
        session("G.grad_outputs"),
    )
    open_page(ui, page("p", *blocks))
    ui.run_once()
    panel = open_panel(ui, "trace")
    panel.get_by_label("Block to trace").select_option(label="G.grad_outputs[0]")
    panel.get_by_role("listbox", name="Output rows of G").locator('[data-row="2"]').hover()
    expect(panel.locator(".sum-equation")).to_have_text("½·[4, 6] + 1·[8, 10] = [10, 13]")
    panel.locator('[data-term="1"] .sum-follow').click()
    expect(panel.locator(".sum-head")).to_contain_text("Mul inside G, row 1")
    expect(panel.locator(".sum-equation")).to_have_text("Mul(x[1], y[1]) = [8, 10]")
    panel.get_by_role("button", name="← Back").click()
    expect(panel.locator(".sum-head")).to_contain_text("G.grad_outputs, row 2")


@pytest.mark.feature("trace")
@pytest.mark.broken("rowgrad.studio.http:StaticFiles._read", RESULT_FIRST)
def test_the_buttons_of_the_views_stay_where_they_are(ui: StudioWindow) -> None:
    ui.open_gallery("start/08_train_embedding")
    ui.run_once()
    panel = open_panel(ui, "trace")
    buttons = panel.locator(".trace-views button")
    panel.get_by_label("Block to trace").wait_for()
    places = [ui.box(button) for button in buttons.all()]
    assert len(places) == 5
    for name in ("Over time", "Compare", "Spy plot"):
        panel.get_by_role("button", name=name, exact=True).click()
        expect(panel.get_by_role("button", name=name, exact=True)).to_have_attribute("aria-pressed", "true")
        assert [ui.box(button) for button in buttons.all()] == places


@pytest.mark.feature("trace")
@pytest.mark.broken("rowgrad.studio.compare_verbs:_with_order", "lambda page, order, args: page")
def test_a_page_is_compared_under_two_orders(ui: StudioWindow) -> None:
    grad = [[0.1 * (k % 7) + 1e-4 * k] for k in range(300)]
    open_page(ui, gradient_page("p", grad, [0] * 300, list(range(300)), 2))
    ui.run_once()
    panel = open_panel(ui, "trace")
    panel.get_by_role("button", name="Compare", exact=True).click()
    panel.get_by_role("button", name="Compare one step").click()
    expect(panel.locator(".compare-words")).to_have_text("1 of 2 results differ")
    expect(panel.locator('[data-compared="op.output"] td').nth(1)).to_have_text("1 of 2")
    expect(panel.locator('[data-compared="op.output"] mark')).to_have_count(2)
    panel.get_by_label("Order of the second step").select_option("sequential")
    panel.get_by_role("button", name="Compare one step").click()
    expect(panel.locator(".compare-words")).to_have_text("all bits of 2 results are the same")
    assert ui.runs() == 1
