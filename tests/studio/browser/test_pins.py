"""Pins and wires show roles, dtypes, shapes, list order and missing inputs."""

from __future__ import annotations

import re

import pytest
from page_fixtures import array, block, const
from playwright.sync_api import expect
from studio_window import StudioWindow

ROLES = {  # block, pin and side that have each role
    "values": ("sum", "data", "in"),
    "ids": ("sum", "indices", "in"),
    "size": ("sum", "num_segments", "in"),
    "variable": ("assign", "ref", "in"),
    "operation": ("operation", "operation", "in"),
    "feed": ("feed", "output", "out"),
    "sparse": ("sparse", "tensor", "out"),
    "any": ("output", "output_op", "in"),
}


@pytest.mark.feature("pinRoles")
def test_pin_roles_differ_in_color_and_shape(ui: StudioWindow) -> None:
    """Every role has its own color; all but plain values also have their own shape."""
    ops = ["SparseSegmentSumWithNumSegments", "Assign", "Operation", "FeedType", "SparseTensor", "Output"]
    ids = ["sum", "assign", "operation", "feed", "sparse", "output"]
    ui.write_page(
        "work", *(block(i, op, (300 * (k % 3), 220 * (k // 3))) for k, (i, op) in enumerate(zip(ids, ops, strict=True)))
    )
    ui.open("work")
    looks: dict[str, tuple[str, tuple[str, ...]]] = {}
    for role, where in ROLES.items():
        pin = ui.pin(*where)
        expect(pin).to_be_visible()
        ground, edge = ui.style(pin, "background-color"), ui.style(pin, "border-top-color")
        hollow = ground == "rgba(0, 0, 0, 0)"
        shape = (ui.style(pin, "clip-path"), ui.style(pin, "border-top-left-radius"), str(hollow))
        looks[role] = (edge if hollow else ground, shape)
    assert len(set(looks.values())) == len(ROLES), looks
    assert len({color for color, _ in looks.values()}) == len(ROLES), looks  # no two share a color
    round_ones = {role for role, (_, shape) in looks.items() if shape == looks["values"][1]}
    assert round_ones == {"values", "any"}  # plain circles
    assert len({shape for _, shape in looks.values()}) == len(ROLES) - 1, looks
    # A list is taller than a pin for one wire.
    ui.place("ClientSession", (60, 300))
    tall = ui.pin("client_session", "fetch_outputs")
    assert ui.style(tall, "height") != ui.style(ui.pin(*ROLES["any"]), "height")


@pytest.mark.feature("wireShapes")
def test_wires_show_dtype_and_shape(ui: StudioWindow) -> None:
    ui.write_page(
        "work",
        const("data", (0, 0), [[1.0, 2.0], [3.0, 4.0]], "float64"),
        const("ids", (0, 150), [0, 1], "int32"),
        block("sum", "SparseSegmentSum", (340, 0), wires={"data": "data.output", "indices": "ids.output"}),
        block("neg", "Neg", (680, 0), wires={"x": "sum.output"}),
        block("noop", "NoOp", (0, 300)),
        block("session", "ClientSession", (1000, 0), wires={"fetch_outputs": "neg.y", "run_outputs": "noop.output"}),
    )
    ui.open("work")
    labels = ui.window.locator(".wire-text")
    expect(ui.wires("sum.data").locator(".wire-text")).to_have_text("float64[2,2]")
    expect(ui.wires("sum.indices").locator(".wire-text")).to_have_text("int32[2]")
    expect(ui.wires("session.run_outputs").locator(".wire-text")).to_have_text("operation")
    expect(ui.wires("neg.x").locator(".wire-text")).to_have_text("")  # a pin of sum is still missing
    ui.zoom(2)
    ui.type_value("sum", "segment_ids", "{0,0}")
    expect(ui.wires("neg.x").locator(".wire-text")).to_have_text("float64[?,2]")
    expect(ui.wires("session.fetch_outputs").locator(".wire-text")).to_have_text("float64[?,2]")
    ui.type_value("data", "val", "{{1,2,3},{4,5,6}}")
    for wire in ("sum.data", "neg.x", "session.fetch_outputs"):
        expect(ui.wires(wire).locator(".wire-text")).to_have_text(re.compile(r"^float64\[[2?],3\]$"))
    assert labels.count() == ui.window.locator(".react-flow__edge").count() == 5
    expect(ui.block("neg").locator('[data-out="y"] .pin-info')).to_have_text("float64[?,3]")


@pytest.mark.feature("wireShapes")
def test_unknown_shapes_are_allowed_and_marked(ui: StudioWindow) -> None:
    """For Placeholders of unknown shape, and the blocks after them."""
    ui.write_page(
        "work",
        block("open", "Placeholder", (0, 0), attrs={"shape": [-1, 3]}),
        block("unknown", "Placeholder", (0, 200)),
        block("known", "Placeholder", (0, 400), attrs={"shape": [2, 3]}),
        *(block(f"neg{k}", "Neg", (340, 200 * k)) for k in range(3)),
    )
    ui.open("work")
    for k, name in enumerate(("open", "unknown", "known")):
        ui.wire(f"{name}.output", f"neg{k}.x")
    marks = [ui.wires(f"neg{k}.x").locator(".wire-text") for k in range(3)]
    expect(marks[0]).to_have_text("float32[?,3]")
    expect(marks[1]).to_have_text("float32[…] ?")
    expect(marks[2]).to_have_text("float32[2,3]")
    assert [ui.style(mark, "font-style") for mark in marks] == ["italic", "italic", "normal"]
    assert ui.style(marks[0], "fill") == ui.style(marks[1], "fill") != ui.style(marks[2], "fill")
    for k in range(3):
        assert ui.saved_block(f"neg{k}")["in"].keys() == {"x"}
        expect(ui.block(f"neg{k}").locator(".block-message")).to_have_count(0)
    expect(ui.block("neg1").locator('[data-out="y"]')).to_contain_text("?")  # unknown downstream as well


@pytest.mark.feature("listPins")
def test_list_pins_show_and_change_the_order_of_their_wires(ui: StudioWindow) -> None:
    """One entry of a list output can be wired alone."""
    ui.write_page(
        "work",
        *(const(f"c{k}", (0, 150 * k), [float(k)] * (k + 1)) for k in range(3)),
        block("all", "InputList", (340, 0)),
        block("neg", "Neg", (680, 100)),
    )
    ui.open("work")
    for k in range(3):
        ui.wire(f"c{k}.output", "all.outputlist")
    assert ui.saved_block("all")["in"] == {"outputlist": ["c0.output", "c1.output", "c2.output"]}
    expect(ui.block("all").locator('[data-pin="outputlist"]')).to_contain_text("3 wires")
    ui.wire("all.output[1]", "neg.x")
    assert ui.saved_block("neg")["in"] == {"x": "all.output[1]"}
    expect(ui.wires("neg.x").locator(".wire-text")).to_have_text("float32[2]")
    ui.select("all")
    order = ui.inspector.locator('[data-pin="outputlist"] .end-name')
    expect(order).to_have_text(["c0.output", "c1.output", "c2.output"])
    ui.inspector.get_by_role("button", name="Move c2.output up").click()
    expect(order).to_have_text(["c0.output", "c2.output", "c1.output"])
    assert ui.saved_block("all")["in"] == {"outputlist": ["c0.output", "c2.output", "c1.output"]}
    expect(ui.wires("neg.x").locator(".wire-text")).to_have_text("float32[3]")  # entry 1 is now c2
    ui.inspector.get_by_role("button", name="Move c0.output down").click()
    expect(order).to_have_text(["c2.output", "c0.output", "c1.output"])
    expect(ui.wires("neg.x").locator(".wire-text")).to_have_text("float32[1]")


@pytest.mark.feature("errors")
@pytest.mark.broken("rowgrad.studio.project_verbs:summary", "lambda page: original(page) | {'errors': {}}")
def test_a_missing_pin_is_named_on_the_block(ui: StudioWindow) -> None:
    """In a message and by color, until the last missing pin has a value."""
    ui.write_page(
        "work",
        const("x", (0, 0), [[1.0]]),
        block("sum", "SparseSegmentSum", (340, 0), wires={"data": "x.output"}),
    )
    ui.open("work")
    message = ui.block("sum").locator(".block-message")
    expect(message).to_have_text("indices is missing: wire it, or enter a value")
    pins = ui.block("sum").locator("[data-pin]")
    colors = {str(p.get_attribute("data-pin")): ui.style(p.locator(".pin-name"), "color") for p in pins.all()}
    assert colors["indices"] == colors["segment_ids"] != colors["data"]
    expect(ui.block("sum")).to_have_class(re.compile("needs"))  # a new block lacks values: that is no error
    expect(ui.block("sum")).not_to_have_class(re.compile("faulty"))
    expect(ui.tab("needs values work")).to_be_visible()
    ui.type_value("sum", "indices", "{0}")
    expect(message).to_have_text("segment_ids is missing: wire it, or enter a value")
    ui.type_value("sum", "segment_ids", "{0}")
    expect(message).to_have_count(0)
    expect(ui.block("sum")).not_to_have_class(re.compile("faulty|needs"))


@pytest.mark.feature("errors")
@pytest.mark.broken(
    "rowgrad.graph.node_builder:missing_input", "lambda arg: make_error('pin_missing', argument=arg.name)"
)
def test_a_missing_pin_that_takes_only_wires_asks_for_a_wire(ui: StudioWindow) -> None:
    """Studio has no field for a value there."""
    variable = block("v", "Variable", (0, 0), values={"initvalues": array("float32", [1.0])})
    ui.write_page("work", variable, block("step", "Assign", (340, 0)))
    ui.open("work")
    message = ui.block("step").locator(".block-message")
    expect(message).to_have_text("ref is missing: wire it to a Variable")
    ui.select("step")
    expect(ui.inspector.get_by_label("Value of step.value")).to_be_visible()
    expect(ui.inspector.get_by_label("Value of step.ref")).to_have_count(0)
    ui.wire("v.ref", "step.ref")
    expect(message).to_have_text("value is missing: wire it, or enter a value")
