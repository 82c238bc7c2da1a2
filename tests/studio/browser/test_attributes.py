"""Attributes of every kind, and that they count."""

from __future__ import annotations

import pytest
from desk import Desk
from made_pages import array, made, session
from playwright.sync_api import expect

MATRIX = array("float64", [[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.feature("attributes")
def test_attributes_of_every_kind(desk: Desk) -> None:
    """Attributes: choice, bool, list, float, int."""
    desk.open_made(
        made("matmul", "MatMul", values={"a": MATRIX, "b": MATRIX}),
        made("cast", "Cast", (0, 170), values={"x": array("float32", [1.5, 2.5])}),
        made("squeeze", "Squeeze", (0, 340), values={"input": array("int32", [[[1], [2]]])}),
        made("full", "FullLike", (300, 0), values={"x": array("float64", [1.0, 2.0])}),
        made("c", "Const", (300, 200), values={"val": array("int32", [1, 2, 3])}),
        made("pack", "Pack", (600, 200), wires={"values": ["c.output", "c.output"]}),
        made("count", "Variable", (300, 340), values={"initvalues": array("float32", [1.0])}),
        made("assign", "Assign", (600, 340), values={"value": array("float32", [2.0])}, wires={"ref": "count.ref"}),
        session(
            *("matmul.product", "cast.y", "squeeze.output", "full.output", "pack.output", "assign.output_ref"),
            at=(900, 0),
        ),
    )
    desk.run_once()
    assert desk.result("matmul", "product") == [["7.0", "10.0"], ["15.0", "22.0"]]
    desk.select("matmul")
    desk.inspector.get_by_label("transpose_b of matmul", exact=True).select_option("true")
    desk.select("cast")
    desk.inspector.get_by_label("DstT of cast", exact=True).select_option("int64")
    desk.select("squeeze")
    desk.type_in_inspector("axis of squeeze", "{0}")
    desk.select("full")
    desk.type_in_inspector("value of full", "0.001")
    desk.select("pack")
    desk.type_in_inspector("axis of pack", "1")
    desk.select("assign")
    desk.inspector.get_by_label("validate_shape of assign", exact=True).uncheck()
    wanted = {
        "matmul": {"transpose_b": True},
        "cast": {"DstT": "int64"},
        "squeeze": {"axis": [0]},
        "full": {"value": 0.001},
        "pack": {"axis": 1},
        "assign": {"validate_shape": False},
    }
    attrs = {block["id"]: block["attrs"] for block in desk.page_json()["blocks"] if "attrs" in block}
    assert attrs == wanted
    assert {name: {k: type(v) for k, v in a.items()} for name, a in attrs.items()} == {
        name: {k: type(v) for k, v in a.items()} for name, a in wanted.items()
    }
    desk.run_once()
    assert desk.result("matmul", "product") == [["5.0", "11.0"], ["11.0", "25.0"]]
    assert desk.result("cast", "y") == [["1"], ["2"]]
    assert desk.result("squeeze", "output") == [["1"], ["2"]]
    assert desk.result("full", "output") == [["0.001"], ["0.001"]]
    assert desk.result("pack", "output") == [["1", "1"], ["2", "2"], ["3", "3"]]
    desk.select("pack")
    field = desk.inspector.get_by_label("axis of pack", exact=True)
    field.fill("1.5")
    expect(desk.inspector.get_by_role("alert")).to_have_text("axis is a whole number")
    desk.key("Escape")
    expect(field).to_have_value("1")
