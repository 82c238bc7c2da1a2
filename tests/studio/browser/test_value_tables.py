"""Values as tables: typed, pasted, out of files; large ones by pages; of blocks and of arrays."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from desk import Desk
from made_pages import array, made, session
from playwright.sync_api import Locator, Request, expect

ROWS, COLUMNS = 100_000, 3
LAST = f"{ROWS - 1},{COLUMNS - 1}"


def cell(dialog: Locator, place: str) -> Locator:
    return dialog.locator(f'[data-cell="{place}"]')


def upload(desk: Desk, block: str, path: Path) -> Locator:
    dialog = desk.value_dialog(block, "val", "File")
    dialog.get_by_label("Array file").set_input_files(path)
    return dialog


def large(folder: Path) -> tuple[Path, str]:
    """A file of 300,000 numbers, and the text of its last."""
    path = folder / "large.npy"
    made_array = np.arange(ROWS * COLUMNS, dtype=np.float64).reshape(ROWS, COLUMNS) / 7
    np.save(path, made_array)
    return path, repr(float(made_array[-1, -1]))


@pytest.mark.feature("spreadsheet")
@pytest.mark.broken("rowgrad.studio.value_verbs:value_of_cells", "lambda words, *more: original(words[::-1], *more)")
def test_spreadsheet_grid(desk: Desk) -> None:
    """Spreadsheet grid (keyboard entry, add row/column, apply to a saved array)."""
    desk.open_made(made("const", "Const", values={"val": array("float32", [1.0])}))
    dialog = desk.value_dialog("const", "val", "Grid")
    dialog.get_by_role("button", name="+ row").click()
    dialog.get_by_role("button", name="+ column").click()
    cell(dialog, "0,0").click()
    desk.keys.type("1.5")
    desk.key("Tab")
    desk.keys.type("2")
    desk.key("Tab")
    desk.keys.type("-3")
    desk.key("Tab")
    desk.keys.type("4e3")
    desk.key("Enter", "ArrowUp")
    desk.key("F2")
    expect(dialog.get_by_label("Cell 0, 1")).to_have_value("2")
    desk.keys.type("5")
    desk.key("Control+Enter")
    expect(dialog).to_have_count(0)
    wanted = {"dtype": "float32", "shape": [2, 2], "data": [[1.5, 25.0], [-3.0, 4000.0]]}
    assert desk.saved_value("const", "val") == wanted
    desk.press("undo")  # one step, whatever was typed
    assert desk.saved_value("const", "val") == array("float32", [1.0])


@pytest.mark.feature("spreadsheet")
@pytest.mark.broken("rowgrad.studio.value_verbs:value_of_cells", "lambda words, *more: original(words[::-1], *more)")
def test_paste_from_a_spreadsheet(desk: Desk) -> None:
    """Paste from a spreadsheet (TSV)."""
    desk.window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    desk.open_made(made("const", "Const", values={"val": array("int64", [[0, 0], [0, 0]])}))
    dialog = desk.value_dialog("const", "val", "Grid")
    desk.window.evaluate("navigator.clipboard.writeText('1\\t2\\t3\\r\\n4\\t5\\t9007199254740993\\r\\n')")
    cell(dialog, "1,0").click()
    desk.key("Control+v")
    expect(cell(dialog, "2,2")).to_have_text("9007199254740993")
    desk.apply()
    wanted = [[0, 0, 0], [1, 2, 3], [4, 5, "9007199254740993"]]
    assert desk.saved_value("const", "val") == {"dtype": "int64", "shape": [3, 3], "data": wanted}


@pytest.mark.feature("upload")
@pytest.mark.broken("rowgrad.studio.value_input:_npz", "lambda raw: dict(list(original(raw).items())[:1])")
@pytest.mark.broken("rowgrad.studio.value_input:_table", "lambda *given: original(*given).T")
def test_import_npy_npz_and_csv(desk: Desk, tmp_path: Path) -> None:
    """Import .npy, .npz (choose one), .csv."""
    np.save(tmp_path / "one.npy", np.array([[1, 2], [3, 4]], np.int16))
    np.savez(tmp_path / "many.npz", first=np.zeros(2), second=np.array([0.5, 0.25], np.float16))
    (tmp_path / "table.csv").write_text("height,width\n1,2.5\n3,4\n5,6\n")
    desk.open_made(*(made(name, "Const", (0, 150 * k)) for k, name in enumerate(("npy", "npz", "csv"))))
    dialog = upload(desk, "npy", tmp_path / "one.npy")
    expect(cell(dialog, "1,1")).to_have_text("4")
    desk.apply()
    dialog = upload(desk, "npz", tmp_path / "many.npz")
    expect(dialog.get_by_role("listitem")).to_have_text(["first float64[2]", "second float16[2]"])
    dialog.get_by_role("button", name="second").click()
    expect(cell(dialog, "1,0")).to_have_text("0.25")
    desk.apply()
    upload(desk, "csv", tmp_path / "table.csv")
    expect(cell(desk.window.get_by_role("dialog"), "2,1")).to_have_text("6.0")
    desk.apply()
    assert desk.saved_value("npy", "val") == array("int16", [[1, 2], [3, 4]])
    assert desk.saved_value("npz", "val") == array("float16", [0.5, 0.25])
    assert desk.saved_value("csv", "val") == array("float32", [[1.0, 2.5], [3.0, 4.0], [5.0, 6.0]])


@pytest.mark.feature("upload")
@pytest.mark.broken("rowgrad.studio.value_verbs:window_of", "lambda *given: original(*given) | {'all': 'x' * 10**6}")
@pytest.mark.broken(
    "rowgrad.studio.value_text:window_of", "lambda a, at, _, columns: original(a, at, [0, 50], columns)"
)
def test_large_arrays_are_paged(desk: Desk, tmp_path: Path) -> None:
    """Large arrays are paged, never dumped."""
    path, last = large(tmp_path)
    desk.open_made(made("const", "Const"), session("const.output", at=(340, 0)))
    received: list[Request] = []
    desk.window.on("requestfinished", lambda request: received.append(request))
    dialog = upload(desk, "const", path)
    grid = dialog.get_by_role("grid")
    expect(grid).to_have_attribute("aria-rowcount", str(ROWS))
    grid.focus()
    desk.key("Control+End")
    expect(cell(dialog, LAST)).to_have_text(last)
    desk.apply()
    value = desk.saved_value("const", "val")
    assert value == {"dtype": "float64", "shape": [ROWS, COLUMNS], "file": value["file"]}
    kept = desk.studio.folder / "made.json.arrays" / value["file"]
    assert np.load(kept).tobytes() == np.load(path).tobytes()
    desk.run_once()
    assert desk.preview("const", "output").count(",") < 60
    desk.block("const").locator("button.result").click()
    table = desk.table("const", "output")
    table.focus()
    desk.key("Control+End")
    expect(table.locator(f'[data-row="{ROWS - 1}"] [role=gridcell]').last).to_have_text(last)
    sizes = [request.sizes()["responseBodySize"] for request in received]
    assert len(sizes) > 5
    assert sum(sizes) < 150_000, sizes  # of 2,400,000


@pytest.mark.feature("upload")
@pytest.mark.broken("rowgrad.studio.array_pool:link", "lambda source, target: None")
def test_large_arrays_are_saved_and_reopened(desk: Desk, tmp_path: Path) -> None:
    """Save and reopen with large arrays."""
    path, last = large(tmp_path)
    name = desk.open_made(made("const", "Const"), session("const.output", at=(340, 0)))
    expect(cell(upload(desk, "const", path), "0,0")).to_have_text("0.0")
    desk.apply()
    desk.wait_saved()
    desk.window.close()
    desk.studio.kill()
    shutil.rmtree(desk.studio.folder / ".rowgrad")  # what the server keeps for itself: the page has to be enough
    desk.studio.start()
    again = desk.another_window().open(name)
    expect(again.block("const").locator('[data-out="output"]')).to_contain_text(f"float64[{ROWS},{COLUMNS}]")
    dialog = again.value_dialog("const", "val")
    dialog.get_by_label("Go to row, column").fill(LAST)
    again.key("Enter")
    expect(cell(dialog, LAST)).to_have_text(last)
    again.key("Escape")
    again.run_once()
    expect(again.window.locator('[data-result="const.output"]')).to_contain_text(f"float64[{ROWS},{COLUMNS}]")


def values_in(desk: Desk) -> dict[str, Any]:
    fields = desk.inspector.locator(".literal-field input").all()
    return {str(field.get_attribute("aria-label")): field.input_value() for field in fields}


@pytest.mark.feature("spreadsheet", "literals")
def test_value_tables_of_blocks_and_arrays(desk: Desk) -> None:
    """Value tables per block and per array (double-click opens)."""
    values = {"data": array("float32", [[1.0, 2.0], [3.0, 4.0]]), "indices": array("int32", [0, 1])}
    desk.open_made(made("segments", "SparseSegmentSum", values=values), made("other", "Const", (340, 0)))
    desk.key("Control+i")
    expect(desk.inspector).to_have_count(0)
    desk.block("segments").locator(".block-op").dblclick()
    wanted = {"data": "{{1,2},{3,4}}", "indices": "{0,1}", "segment_ids": ""}
    expect(desk.inspector.get_by_label("Value of segments.data")).to_be_focused()
    assert values_in(desk) == {f"Value of segments.{pin}": text for pin, text in wanted.items()}
    desk.block("segments").locator('[data-pin="data"] .literal').dblclick()
    dialog = desk.window.get_by_role("dialog", name="Value of segments.data")
    expect(dialog.get_by_role("gridcell")).to_have_text(["1.0", "2.0", "3.0", "4.0"])
    desk.key("Escape")
    desk.block("segments").locator('[data-pin="indices"] .pin-name').dblclick()
    dialog = desk.window.get_by_role("dialog", name="Value of segments.indices")
    expect(dialog.get_by_role("gridcell")).to_have_text(["0", "1"])
    cell(dialog, "1,0").click()
    desk.keys.type("7")
    desk.key("Control+Enter")
    expect(dialog).to_have_count(0)
    assert desk.saved("segments")["values"] == {**values, "indices": array("int32", [0, 7])}


@pytest.mark.feature("copyPaste")
def test_copy_and_paste_parameters(desk: Desk) -> None:
    """Copy/paste a block's parameters."""
    desk.open_made(
        made("a", "MatMul", values={"a": [[1, 2]], "b": [[3, 4]]}, attrs={"transpose_b": True}),
        made("b", "MatMul", (340, 0)),
        made("c", "MatMul", (340, 200), values={"a": [[0]]}),
        made("d", "MatMul", (680, 0), values={"a": [[9]]}),
    )
    desk.select("a")
    desk.command("do copy-parameters", "parameters")
    desk.select("b")
    desk.keys.down("Shift")
    desk.block("c").locator(".block-op").click()
    desk.keys.up("Shift")
    desk.command("do paste-parameters", "parameters")
    a, b, c, d = (desk.saved(name) for name in "abcd")
    for pasted in (b, c):
        assert (pasted["values"], pasted["attrs"]) == (a["values"], a["attrs"])
    assert (d["values"], d.get("attrs")) == ({"a": [[9]]}, None)
    desk.press("undo")
    assert desk.saved("c")["values"] == {"a": [[0]]}
