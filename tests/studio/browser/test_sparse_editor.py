"""A sparse matrix typed into a grid in which empty cells are no entries."""

from __future__ import annotations

import pytest
from desk import Desk
from made_pages import array, made, session
from playwright.sync_api import expect


@pytest.mark.feature("sparseEditor")
@pytest.mark.broken("rowgrad.studio.value_verbs:sparse_parts", "lambda *given: original(*given)[::-1]")
def test_sparse_tensor_as_a_grid(desk: Desk) -> None:
    """SparseTensor editor as a grid of a sparse matrix."""
    desk.open_made(made("sparse", "SparseTensor"), session("sparse.indices", "sparse.values", "sparse.dense_shape"))
    desk.select("sparse")
    desk.inspector.get_by_role("button", name="Edit as a sparse matrix").click()
    dialog = desk.window.get_by_role("dialog", name="Sparse matrix sparse")
    for label, size in (("Rows", "3"), ("Columns", "5")):
        dialog.get_by_label(label, exact=True).fill(size)
        desk.key("Enter")
    expect(dialog.get_by_role("gridcell")).to_have_count(15)
    dialog.get_by_label("Dtype").select_option("int64")
    dialog.locator('[data-cell="2,4"]').click()
    desk.keys.type("9007199254740993")
    desk.key("Enter")
    dialog.locator('[data-cell="0,1"]').click()
    desk.keys.type("5")
    desk.key("Enter", "Delete")  # the cell under it, in which there is nothing
    expect(dialog.get_by_label("Entries in all")).to_have_text("2 entries")
    desk.apply()
    assert desk.saved("sparse")["values"] == {
        "indices": array("int64", [[0, 1], [2, 4]]),
        "values": {"dtype": "int64", "shape": [2], "data": [5, "9007199254740993"]},
        "dense_shape": array("int64", [3, 5]),
    }
    desk.run_once()
    assert desk.result("sparse", "indices") == [["0", "1"], ["2", "4"]]
    assert desk.result("sparse", "dense_shape") == [["3"], ["5"]]
    desk.inspector.get_by_role("button", name="Edit as a sparse matrix").click()
    expect(dialog.locator(".sheet-cell:not(.nothing)")).to_have_text(["5", "9007199254740993"])
    dialog.locator('[data-cell="0,1"]').click()
    desk.key("Delete")
    desk.apply()
    assert desk.saved("sparse")["values"]["indices"] == array("int64", [[2, 4]])
    desk.press("undo")  # all three pins are one step
    assert desk.saved("sparse")["values"]["indices"] == array("int64", [[0, 1], [2, 4]])
    assert desk.saved("sparse")["values"]["dense_shape"] == array("int64", [3, 5])
