"""Attributes of every kind: edited in the inspector, saved, and used by the next run."""

from __future__ import annotations

import pytest
from page_fixtures import array, block, session
from playwright.sync_api import expect
from studio_window import StudioWindow

MATRIX = array("float64", [[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.feature("attributes")
def test_attributes_of_every_kind_are_saved_and_change_results(ui: StudioWindow) -> None:
    ui.open_blocks(
        block("matmul", "MatMul", values={"a": MATRIX, "b": MATRIX}),
        block("cast", "Cast", (0, 260), values={"x": array("float32", [1.5, 2.5])}),
        block("squeeze", "Squeeze", (0, 480), values={"input": array("int32", [[[1], [2]]])}),
        block("full", "FullLike", (330, 0), values={"x": array("float64", [1.0, 2.0])}),
        block("c", "Const", (330, 220), values={"val": array("int32", [1, 2, 3])}),
        block("pack", "Pack", (660, 220), wires={"values": ["c.output", "c.output"]}),
        block("count", "Variable", (330, 480), values={"initvalues": array("float32", [1.0])}),
        block("assign", "Assign", (660, 480), values={"value": array("float32", [2.0])}, wires={"ref": "count.ref"}),
        session(
            *("matmul.product", "cast.y", "squeeze.output", "full.output", "pack.output", "assign.output_ref"),
            at=(990, 0),
        ),
    )
    ui.run_once()
    assert ui.result("matmul", "product") == [["7.0", "10.0"], ["15.0", "22.0"]]
    ui.select("matmul")
    ui.inspector.get_by_label("transpose_b of matmul", exact=True).select_option("true")
    ui.select("cast")
    ui.inspector.get_by_label("DstT of cast", exact=True).select_option("int64")
    ui.select("squeeze")
    ui.type_in_inspector("axis of squeeze", "{0}")
    ui.select("full")
    ui.type_in_inspector("value of full", "0.001")
    ui.select("pack")
    ui.type_in_inspector("axis of pack", "1")
    ui.select("assign")
    ui.inspector.get_by_label("validate_shape of assign", exact=True).uncheck()
    wanted = {
        "matmul": {"transpose_b": True},
        "cast": {"DstT": "int64"},
        "squeeze": {"axis": [0]},
        "full": {"value": 0.001},
        "pack": {"axis": 1},
        "assign": {"validate_shape": False},
    }
    attrs = {block["id"]: block["attrs"] for block in ui.page_json()["blocks"] if "attrs" in block}
    assert attrs == wanted
    assert {name: {k: type(v) for k, v in a.items()} for name, a in attrs.items()} == {
        name: {k: type(v) for k, v in a.items()} for name, a in wanted.items()
    }
    ui.run_once()
    assert ui.result("matmul", "product") == [["5.0", "11.0"], ["11.0", "25.0"]]
    assert ui.result("cast", "y") == [["1"], ["2"]]
    assert ui.result("squeeze", "output") == [["1"], ["2"]]
    assert ui.result("full", "output") == [["0.001"], ["0.001"]]
    assert ui.result("pack", "output") == [["1", "1"], ["2", "2"], ["3", "3"]]
    ui.select("pack")
    field = ui.inspector.get_by_label("axis of pack", exact=True)
    field.fill("1.5")
    expect(ui.inspector.get_by_role("alert")).to_have_text("axis is a whole number")
    ui.key("Escape")
    expect(field).to_have_value("1")
