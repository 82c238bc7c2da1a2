"""Results: exact tables, every output, stale marks, and costs."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from grid_pages import block, const, page, session
from playwright.sync_api import Response, expect
from studio_window import StudioWindow
from window_actions import open_page, open_panel, read_result_table

from golden_cases import FOLDER
from rowgrad.graph import Block, End, Page, save

ROWS = 100_000
FIRST_LIST_ENTRY_ONLY = """lambda *given: {block: {pin: r[:1] if isinstance(r, list) else r for pin, r in pins.items()}
    for block, pins in original(*given).items()}"""


def large_page() -> Page:
    """Return a matrix of 100,000 rows of integers that float64 cannot represent."""
    array = np.arange(3 * ROWS, dtype=np.int64).reshape(ROWS, 3) + 2**53
    return Page(
        "large",
        [
            Block("x", "Const", values={"val": array}, at=(0.0, 0.0)),
            Block("y", "Neg", wires={"x": [End("x", "output")]}, at=(260.0, 0.0)),
            Block("session", "ClientSession", wires={"fetch_outputs": [End("y", "y")]}, at=(520.0, 0.0)),
        ],
    )


@pytest.mark.feature("results")
@pytest.mark.broken(
    "rowgrad.studio.value_verbs:window_of", "lambda array, *given: original(array.astype('f8'), *given)"
)
def test_result_tables_are_exact_and_large_ones_load_in_parts(ui: StudioWindow) -> None:
    ui.server.folder.mkdir(exist_ok=True)
    save(large_page(), ui.server.folder / "large.json")
    ui.open("large")
    cell_counts: list[int] = []

    def count(reply: Response) -> None:
        if reply.url.endswith("/api/window"):
            cell_counts.append(sum(len(row) for row in reply.json()["cells"]))

    ui.window.on("response", count)
    ui.run_once()
    ui.block("y").get_by_role("button", name=re.compile("result_y")).click()
    table = ui.table("y", "y")
    expect(table.locator('[data-row="0"] [role=gridcell]')).to_have_text([str(-(2**53) - k) for k in range(3)])
    table.evaluate("grid => grid.scrollTo(0, grid.scrollHeight)")
    last = [str(-(2**53) - 3 * (ROWS - 1) - k) for k in range(3)]
    expect(table.locator(f'[data-row="{ROWS - 1}"] [role=gridcell]')).to_have_text(last)
    assert table.get_attribute("aria-rowcount") == str(ROWS)
    assert table.get_by_role("row").count() < 100
    assert 2 <= len(cell_counts) <= 12
    assert max(cell_counts) <= 1000


@pytest.mark.feature("stale")
def test_an_edit_upstream_marks_results_as_stale(ui: StudioWindow) -> None:
    blocks = [const("a", [1.0, 2.0]), block("minus", "Neg", x="a.output"), const("b", [3.0])]
    open_page(ui, page("p", *blocks, block("squared", "Square", x="b.output"), session("minus.y", "squared.y")))
    ui.run_once()
    minus, squared = (ui.block(name).locator("button.result") for name in ("minus", "squared"))
    minus.click()
    expect(minus).to_have_text(re.compile(r"^result_y\b(?!.*stale)"))
    ui.type_value("a", "val", "{5,6}")
    expect(minus).to_have_class(re.compile(r"\bstale\b"))
    expect(minus).to_contain_text("result_y stale")
    minus.click()
    label = ui.window.locator("#bottom-panel .stale-words")
    expect(label).to_have_text("stale: the block or something before it has changed since run 1")
    expect(ui.window.locator('[data-result="minus.y"]')).to_contain_text("stale")
    expect(squared).not_to_have_class(re.compile(r"\bstale\b"))
    assert read_result_table(ui, "minus", "result_y") == [["-1.0"], ["-2.0"]]
    ui.run_once()
    expect(minus).not_to_have_class(re.compile(r"\bstale\b"))
    expect(label).to_have_count(0)
    expect(ui.table("minus", "y").get_by_role("gridcell")).to_have_text(["-5.0", "-6.0"])


@pytest.mark.feature("results")
@pytest.mark.broken("rowgrad.studio.page_session:results_json", FIRST_LIST_ENTRY_ONLY)
def test_all_outputs_and_all_entries_of_a_list_are_shown(ui: StudioWindow) -> None:
    examples = json.loads((FOLDER / "blocks_examples.json").read_text())
    gradients = list(examples[12]["derived_gradients"].values())
    assert len(gradients) == 6
    ui.open_gallery("13_symbolic_gradients")
    ui.run_once()
    open_panel(ui, "results")
    for k, wanted in enumerate(gradients):
        ui.window.locator(f'[data-result="grads.grad_outputs[{k}]"]').click()
        got = np.array(read_result_table(ui, "grads", f"result_grad_outputs[{k}]"), float)
        np.testing.assert_allclose(got, np.array(wanted["values"]).reshape(wanted["shape"]), rtol=1e-5, atol=1e-6)
    ui.open_gallery("06_sparse_fill_empty_rows")
    ui.run_once()
    shown = ui.block("op").locator(".result-name")
    names = ["output_indices", "output_values", "empty_row_indicator", "reverse_index_map"]
    expect(shown).to_have_text([f"result_{name}" for name in names])


@pytest.mark.feature("costs")
@pytest.mark.broken(
    "rowgrad.studio.page_session:costs_json", "lambda of: {b: {'seconds': 1, 'bytes': 7} for b in original(of)}"
)
def test_each_block_shows_time_and_bytes_of_the_last_run(ui: StudioWindow) -> None:
    blocks = [const("a", [[1.0]] * 64), const("b", [[2.0] * 32]), block("minus", "Neg", x="b.output")]
    wide = block("wide", "MatMul", a="a.output", b="minus.y")
    open_page(ui, page("p", *blocks, wide, session("wide.product")))
    assert ui.window.locator(".block-cost").count() == 0
    ui.run_once()
    for name, size in (("wide", "16 KiB"), ("minus", "256 B")):
        cost = ui.block(name).locator(".block-cost")
        expect(cost).to_have_text(re.compile(rf"^\d+(\.\d+)? (µs|ms) · {size}$"))
        assert float((cost.text_content() or "0").split()[0]) > 0
