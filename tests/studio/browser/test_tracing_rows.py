"""Which rows of the input a row of the output is made of."""

from __future__ import annotations

import pytest
from at_the_desk import panel
from desk import Desk
from playwright.sync_api import Locator, expect

SHIFTED = """lambda *given: (t := original(*given)).__class__(
    t.outputs, t.inputs, [(a, b + 1) for a, b in t.pairs], t.total, t.cut)"""


def lists(below: Locator) -> tuple[Locator, Locator]:
    return (
        below.get_by_role("listbox", name="Output rows of op"),
        below.get_by_role("listbox", name="Input rows of op"),
    )


def lit(rows: Locator) -> list[str]:
    return [str(row.get_attribute("data-row")) for row in rows.locator(".lit").all()]


@pytest.mark.feature("trace")
@pytest.mark.broken("rowgrad.studio.value_verbs:trace_rows", SHIFTED)
def test_rows_of_a_segment_op_are_traced_both_ways(desk: Desk) -> None:
    desk.open_gallery("01_sparse_segment_mean")
    desk.run_once()
    below = panel(desk, "trace")
    outputs, inputs = lists(below)
    words = below.locator(".trace-words")
    outputs.locator('[data-row="0"]').hover()
    expect(words).to_have_text("output row 0 is fed by data rows 2, 1")
    assert (lit(outputs), lit(inputs)) == (["0"], ["1", "2"])
    expect(below.locator(".trace-lines path.lit")).to_have_count(2)
    inputs.locator('[data-row="0"]').hover()
    expect(words).to_have_text("data row 0 feeds output row 1")
    assert (lit(outputs), lit(inputs)) == (["1"], ["0"])
    expect(below.locator(".trace-lines path.lit")).to_have_count(1)
    # The same in the tables of results, from the op's and from its input's.
    desk.result("op", "output")
    desk.table("op", "output").locator('[data-row="1"]').hover()
    expect(below.locator(".trace-words")).to_have_text("row 1 is fed by data row 0")
    desk.result("data", "output")
    desk.table("data", "output").locator('[data-row="2"]').hover()
    expect(below.locator(".trace-words")).to_have_text("row 2 feeds op: output row 0")


@pytest.mark.feature("trace")
@pytest.mark.broken("rowgrad.studio.value_verbs:trace_rows", SHIFTED)
def test_rows_of_slice_and_fill_are_traced_both_ways(desk: Desk) -> None:
    desk.open_gallery("09_sparse_slice")  # b of a, b, c, d is left
    desk.run_once()
    below = panel(desk, "trace")
    outputs, inputs = lists(below)
    words = below.locator(".trace-words")
    outputs.locator('[data-row="0"]').hover()
    expect(words).to_have_text("output_values row 0 is fed by values row 1")
    inputs.locator('[data-row="0"]').hover()
    expect(words).to_have_text("values row 0 feeds no row")
    desk.open_gallery("06_sparse_fill_empty_rows")
    desk.run_once()
    outputs.locator('[data-row="2"]').hover()  # the row that was filled
    expect(words).to_have_text("output_values row 2 is fed by no row")
    inputs.focus()
    desk.key("End", "ArrowUp")
    expect(words).to_have_text("values row 2 feeds output_values row 3")
    assert (lit(outputs), lit(inputs)) == (["3"], ["2"])
