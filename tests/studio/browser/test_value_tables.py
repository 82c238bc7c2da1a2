"""Values as tables: typed, pasted, imported from files; large arrays load in parts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_fixtures import array, block, session
from playwright.sync_api import Locator, Request, expect
from studio_window import StudioWindow

ROWS, COLUMNS = 100_000, 3
LAST = f"{ROWS - 1},{COLUMNS - 1}"


def cell(dialog: Locator, place: str) -> Locator:
    return dialog.locator(f'[data-cell="{place}"]')


def upload(ui: StudioWindow, block: str, path: Path) -> Locator:
    dialog = ui.value_dialog(block, "val", "File")
    dialog.get_by_label("Array file").set_input_files(path)
    return dialog


def large_file(folder: Path) -> tuple[Path, str]:
    """Write a file of 300,000 numbers; return its path and the text of the last number."""
    path = folder / "large.npy"
    numbers = np.arange(ROWS * COLUMNS, dtype=np.float64).reshape(ROWS, COLUMNS) / 7
    np.save(path, numbers)
    return path, repr(float(numbers[-1, -1]))


@pytest.mark.feature("spreadsheet")
@pytest.mark.broken("rowgrad.studio.value_verbs:value_of_cells", "lambda words, *more: original(words[::-1], *more)")
def test_type_values_into_the_grid(ui: StudioWindow) -> None:
    """With the keyboard; rows and columns can be added."""
    ui.open_blocks(block("const", "Const", values={"val": array("float32", [1.0])}))
    dialog = ui.value_dialog("const", "val", "Grid")
    dialog.get_by_role("button", name="+ row").click()
    dialog.get_by_role("button", name="+ column").click()
    cell(dialog, "0,0").click()
    ui.keys.type("1.5")
    ui.key("Tab")
    ui.keys.type("2")
    ui.key("Tab")
    ui.keys.type("-3")
    ui.key("Tab")
    ui.keys.type("4e3")
    ui.key("Enter", "ArrowUp")
    ui.key("F2")
    expect(dialog.get_by_label("Cell 0, 1")).to_have_value("2")
    ui.keys.type("5")
    ui.key("Control+Enter")
    expect(dialog).to_have_count(0)
    wanted = {"dtype": "float32", "shape": [2, 2], "data": [[1.5, 25.0], [-3.0, 4000.0]]}
    assert ui.saved_value("const", "val") == wanted
    ui.press("undo")  # all typing is one undo step
    assert ui.saved_value("const", "val") == array("float32", [1.0])


@pytest.mark.feature("spreadsheet")
@pytest.mark.broken("rowgrad.studio.value_verbs:value_of_cells", "lambda words, *more: original(words[::-1], *more)")
def test_paste_from_a_spreadsheet(ui: StudioWindow) -> None:
    """Tab-separated text."""
    ui.window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ui.open_blocks(block("const", "Const", values={"val": array("int64", [[0, 0], [0, 0]])}))
    dialog = ui.value_dialog("const", "val", "Grid")
    ui.window.evaluate("navigator.clipboard.writeText('1\\t2\\t3\\r\\n4\\t5\\t9007199254740993\\r\\n')")
    cell(dialog, "1,0").click()
    ui.key("Control+v")
    expect(cell(dialog, "2,2")).to_have_text("9007199254740993")
    ui.apply()
    wanted = [[0, 0, 0], [1, 2, 3], [4, 5, "9007199254740993"]]
    assert ui.saved_value("const", "val") == {"dtype": "int64", "shape": [3, 3], "data": wanted}


@pytest.mark.feature("upload")
@pytest.mark.broken("rowgrad.studio.value_input:_npz", "lambda raw: dict(list(original(raw).items())[:1])")
@pytest.mark.broken("rowgrad.studio.value_input:_table_file", "lambda *given: original(*given).T")
def test_import_npy_npz_and_csv(ui: StudioWindow, tmp_path: Path) -> None:
    """An .npz file offers its members to choose from."""
    np.save(tmp_path / "one.npy", np.array([[1, 2], [3, 4]], np.int16))
    np.savez(tmp_path / "many.npz", first=np.zeros(2), second=np.array([0.5, 0.25], np.float16))
    (tmp_path / "table.csv").write_text("height,width\n1,2.5\n3,4\n5,6\n")
    ui.open_blocks(*(block(name, "Const", (0, 150 * k)) for k, name in enumerate(("npy", "npz", "csv"))))
    dialog = upload(ui, "npy", tmp_path / "one.npy")
    expect(cell(dialog, "1,1")).to_have_text("4")
    ui.apply()
    dialog = upload(ui, "npz", tmp_path / "many.npz")
    expect(dialog.get_by_role("listitem")).to_have_text(["first float64[2]", "second float16[2]"])
    dialog.get_by_role("button", name="second").click()
    expect(cell(dialog, "1,0")).to_have_text("0.25")
    ui.apply()
    upload(ui, "csv", tmp_path / "table.csv")
    expect(cell(ui.window.get_by_role("dialog"), "2,1")).to_have_text("6.0")
    ui.apply()
    assert ui.saved_value("npy", "val") == array("int16", [[1, 2], [3, 4]])
    assert ui.saved_value("npz", "val") == array("float16", [0.5, 0.25])
    assert ui.saved_value("csv", "val") == array("float32", [[1.0, 2.5], [3.0, 4.0], [5.0, 6.0]])


@pytest.mark.feature("upload")
@pytest.mark.broken("rowgrad.studio.value_verbs:window_of", "lambda *given: original(*given) | {'all': 'x' * 10**6}")
@pytest.mark.broken(
    "rowgrad.studio.value_text:window_of", "lambda a, at, _, columns: original(a, at, [0, 50], columns)"
)
def test_large_arrays_are_loaded_in_parts(ui: StudioWindow, tmp_path: Path) -> None:
    path, last = large_file(tmp_path)
    ui.open_blocks(block("const", "Const"), session("const.output", at=(340, 0)))
    received: list[Request] = []
    ui.window.on("requestfinished", lambda request: received.append(request))
    dialog = upload(ui, "const", path)
    grid = dialog.get_by_role("grid")
    expect(grid).to_have_attribute("aria-rowcount", str(ROWS))
    grid.focus()
    ui.key("Control+End")
    expect(cell(dialog, LAST)).to_have_text(last)
    ui.apply()
    value = ui.saved_value("const", "val")
    assert value == {"dtype": "float64", "shape": [ROWS, COLUMNS], "file": value["file"]}
    saved = ui.server.folder / "made.json.arrays" / value["file"]
    assert np.load(saved).tobytes() == np.load(path).tobytes()
    ui.run_once()
    assert len(ui.block("const").locator("button.result").inner_text()) < 200
    ui.block("const").locator("button.result").click()
    table = ui.table("const", "output")
    table.focus()
    ui.key("Control+End")
    expect(table.locator(f'[data-row="{ROWS - 1}"] [role=gridcell]').last).to_have_text(last)
    sizes = [request.sizes()["responseBodySize"] for request in received]
    assert len(sizes) > 5
    assert sum(sizes) < 150_000, sizes  # of 2,400,000


@pytest.mark.feature("upload")
@pytest.mark.broken("rowgrad.studio.array_pool:link", "lambda source, target: None")
def test_large_arrays_are_saved_and_reopened(ui: StudioWindow, tmp_path: Path) -> None:
    path, last = large_file(tmp_path)
    name = ui.open_blocks(block("const", "Const"), session("const.output", at=(340, 0)))
    expect(cell(upload(ui, "const", path), "0,0")).to_have_text("0.0")
    ui.apply()
    ui.wait_saved()
    ui.window.close()
    ui.server.kill()
    shutil.rmtree(ui.server.folder / ".rowgrad")  # the server's cache: the page file must be enough
    ui.server.start()
    again = ui.another_window().open(name)
    expect(again.block("const").locator('[data-out="output"]')).to_contain_text(f"float64[{ROWS},{COLUMNS}]")
    dialog = again.value_dialog("const", "val")
    dialog.get_by_label("Go to row, column").fill(LAST)
    again.key("Enter")
    expect(cell(dialog, LAST)).to_have_text(last)
    again.key("Escape")
    again.run_once()
    expect(again.window.locator('[data-result="const.output"]')).to_contain_text(f"float64[{ROWS},{COLUMNS}]")


def inspector_values(ui: StudioWindow) -> dict[str, Any]:
    fields = ui.inspector.locator(".literal-field input").all()
    return {str(field.get_attribute("aria-label")): field.input_value() for field in fields}


@pytest.mark.feature("spreadsheet", "literals")
def test_a_double_click_opens_the_values_of_a_block_or_array(ui: StudioWindow) -> None:
    values = {"data": array("float32", [[1.0, 2.0], [3.0, 4.0]]), "indices": array("int32", [0, 1])}
    ui.open_blocks(block("segments", "SparseSegmentSum", values=values), block("other", "Const", (340, 0)))
    ui.key("Control+i")
    expect(ui.inspector).to_have_count(0)
    ui.block("segments").locator(".block-op").dblclick()
    wanted = {"data": "[[1, 2], [3, 4]]", "indices": "[0, 1]", "segment_ids": ""}
    expect(ui.inspector.get_by_label("Value of segments.data")).to_be_focused()
    assert inspector_values(ui) == {f"Value of segments.{pin}": text for pin, text in wanted.items()}
    ui.block("segments").locator('[data-pin="data"] .literal').dblclick()
    dialog = ui.window.get_by_role("dialog", name="Value of segments.data")
    expect(dialog.get_by_role("gridcell")).to_have_text(["1.0", "2.0", "3.0", "4.0"])
    ui.key("Escape")
    ui.block("segments").locator('[data-pin="indices"] .pin-name').dblclick()
    dialog = ui.window.get_by_role("dialog", name="Value of segments.indices")
    expect(dialog.get_by_role("gridcell")).to_have_text(["0", "1"])
    cell(dialog, "1,0").click()
    ui.keys.type("7")
    ui.key("Control+Enter")
    expect(dialog).to_have_count(0)
    assert ui.saved_block("segments")["values"] == {**values, "indices": array("int32", [0, 7])}


@pytest.mark.feature("copyPaste")
def test_copy_and_paste_parameters_of_a_block(ui: StudioWindow) -> None:
    ui.open_blocks(
        block("a", "MatMul", values={"a": [[1, 2]], "b": [[3, 4]]}, attrs={"transpose_b": True}),
        block("b", "MatMul", (340, 0)),
        block("c", "MatMul", (340, 200), values={"a": [[0]]}),
        block("d", "MatMul", (680, 0), values={"a": [[9]]}),
    )
    ui.select("a")
    ui.choose_command("parameters", "do copy-parameters")
    ui.select("b")
    ui.keys.down("Shift")
    ui.block("c").locator(".block-op").click()
    ui.keys.up("Shift")
    ui.choose_command("parameters", "do paste-parameters")
    a, b, c, d = (ui.saved_block(name) for name in "abcd")
    for pasted in (b, c):
        assert (pasted["values"], pasted["attrs"]) == (a["values"], a["attrs"])
    assert (d["values"], d.get("attrs")) == ({"a": [[9]]}, None)
    ui.press("undo")
    assert ui.saved_block("c")["values"] == {"a": [[0]]}
