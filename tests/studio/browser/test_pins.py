"""What pins show: their role, what comes along them, what is missing, and lists."""

from __future__ import annotations

import re

import pytest
from desk import Desk, block, const
from playwright.sync_api import expect

ROLES = {  # where each is to be seen; values have a colour for each side
    "values": ("sum", "data", "in"),
    "values out": ("sum", "output", "out"),
    "ids": ("sum", "indices", "in"),
    "size": ("sum", "num_segments", "in"),
    "variable": ("assign", "ref", "in"),
    "operation": ("operation", "operation", "in"),
    "feed": ("feed", "output", "out"),
    "sparse": ("sparse", "tensor", "out"),
    "any": ("output", "output_op", "in"),
}


@pytest.mark.feature("pinRoles")
def test_roles_have_colours_and_shapes(desk: Desk) -> None:
    """Roles by colour AND shape: every role has its own pair, and a shape that no other has where docs say so."""
    ops = ["SparseSegmentSumWithNumSegments", "Assign", "Operation", "FeedType", "SparseTensor", "Output"]
    ids = ["sum", "assign", "operation", "feed", "sparse", "output"]
    desk.put_page(
        "work", *(block(i, op, (300 * (k % 3), 220 * (k // 3))) for k, (i, op) in enumerate(zip(ids, ops, strict=True)))
    )
    desk.open("work")
    looks: dict[str, tuple[str, tuple[str, ...]]] = {}
    for role, where in ROLES.items():
        pin = desk.pin(*where)
        expect(pin).to_be_visible()
        ground, edge = desk.style(pin, "background-color"), desk.style(pin, "border-top-color")
        hollow = ground == "rgba(0, 0, 0, 0)"
        shape = (desk.style(pin, "clip-path"), desk.style(pin, "border-top-left-radius"), str(hollow))
        looks[role] = (edge if hollow else ground, shape)
    assert len(set(looks.values())) == len(ROLES), looks
    assert len({colour for colour, _ in looks.values()}) == len(ROLES), looks  # no two share a colour
    round_ones = {role for role, (_, shape) in looks.items() if shape == looks["values"][1]}
    assert round_ones == {"values", "values out", "any"}  # plain circles; every other role has a shape of its own
    assert len({shape for _, shape in looks.values()}) == len(ROLES) - 2, looks
    # A list is taller than a pin for one wire.
    desk.place("ClientSession", (60, 300))
    tall = desk.pin("client_session", "fetch_outputs")
    assert desk.style(tall, "height") != desk.style(desk.pin(*ROLES["any"]), "height")


@pytest.mark.feature("wireShapes")
def test_wires_say_dtype_and_shape(desk: Desk) -> None:
    """Dtype and shape on every wire as soon as known."""
    desk.put_page(
        "work",
        const("data", (0, 0), [[1.0, 2.0], [3.0, 4.0]], "float64"),
        const("ids", (0, 150), [0, 1], "int32"),
        block("sum", "SparseSegmentSum", (340, 0), wires={"data": "data.output", "indices": "ids.output"}),
        block("neg", "Neg", (680, 0), wires={"x": "sum.output"}),
        block("noop", "NoOp", (0, 300)),
        block("session", "ClientSession", (1000, 0), wires={"fetch_outputs": "neg.y", "run_outputs": "noop.output"}),
    )
    desk.open("work")
    words = desk.window.locator(".wire-text")
    expect(desk.wires("sum.data").locator(".wire-text")).to_have_text("float64[2,2]")
    expect(desk.wires("sum.indices").locator(".wire-text")).to_have_text("int32[2]")
    expect(desk.wires("session.run_outputs").locator(".wire-text")).to_have_text("operation")
    expect(desk.wires("neg.x").locator(".wire-text")).to_have_text("")  # a pin of sum is still missing
    desk.zoom(2)
    desk.type_value("sum", "segment_ids", "{0,0}")
    expect(desk.wires("neg.x").locator(".wire-text")).to_have_text("float64[?,2]")
    expect(desk.wires("session.fetch_outputs").locator(".wire-text")).to_have_text("float64[?,2]")
    desk.type_value("data", "val", "{{1,2,3},{4,5,6}}")
    for wire in ("sum.data", "neg.x", "session.fetch_outputs"):
        expect(desk.wires(wire).locator(".wire-text")).to_have_text(re.compile(r"^float64\[[2?],3\]$"))
    assert words.count() == desk.window.locator(".react-flow__edge").count() == 5
    expect(desk.block("neg").locator('[data-out="y"] .pin-info')).to_have_text("float64[?,3]")


@pytest.mark.feature("wireShapes")
def test_unknown_shapes_are_allowed_and_marked(desk: Desk) -> None:
    """Unknown shapes are allowed and marked: a Placeholder with an open shape."""
    desk.put_page(
        "work",
        block("open", "Placeholder", (0, 0), attrs={"shape": [-1, 3]}),
        block("unknown", "Placeholder", (0, 200)),
        block("known", "Placeholder", (0, 400), attrs={"shape": [2, 3]}),
        *(block(f"neg{k}", "Neg", (340, 200 * k)) for k in range(3)),
    )
    desk.open("work")
    for k, name in enumerate(("open", "unknown", "known")):
        desk.wire(f"{name}.output", f"neg{k}.x")
    marks = [desk.wires(f"neg{k}.x").locator(".wire-text") for k in range(3)]
    expect(marks[0]).to_have_text("float32[?,3]")
    expect(marks[1]).to_have_text("float32[…] ?")
    expect(marks[2]).to_have_text("float32[2,3]")
    assert [desk.style(mark, "font-style") for mark in marks] == ["italic", "italic", "normal"]
    assert desk.style(marks[0], "fill") == desk.style(marks[1], "fill") != desk.style(marks[2], "fill")
    for k in range(3):
        assert desk.saved_block(f"neg{k}")["in"].keys() == {"x"}
        expect(desk.block(f"neg{k}").locator(".block-message")).to_have_count(0)
    expect(desk.block("neg1").locator('[data-out="y"]')).to_contain_text("?")  # what follows from it is unknown too


@pytest.mark.feature("listPins")
def test_list_pins_take_wires_in_an_order(desk: Desk) -> None:
    """List pins: several wires, their order shown and changeable, one entry of a list output wired alone."""
    desk.put_page(
        "work",
        *(const(f"c{k}", (0, 150 * k), [float(k)] * (k + 1)) for k in range(3)),
        block("all", "InputList", (340, 0)),
        block("neg", "Neg", (680, 100)),
    )
    desk.open("work")
    for k in range(3):
        desk.wire(f"c{k}.output", "all.outputlist")
    assert desk.saved_block("all")["in"] == {"outputlist": ["c0.output", "c1.output", "c2.output"]}
    expect(desk.block("all").locator('[data-pin="outputlist"]')).to_contain_text("3 wires")
    desk.wire("all.output[1]", "neg.x")
    assert desk.saved_block("neg")["in"] == {"x": "all.output[1]"}
    expect(desk.wires("neg.x").locator(".wire-text")).to_have_text("float32[2]")
    desk.select("all")
    order = desk.inspector.locator('[data-pin="outputlist"] .end-name')
    expect(order).to_have_text(["c0.output", "c1.output", "c2.output"])
    desk.inspector.get_by_role("button", name="Move c2.output up").click()
    expect(order).to_have_text(["c0.output", "c2.output", "c1.output"])
    assert desk.saved_block("all")["in"] == {"outputlist": ["c0.output", "c2.output", "c1.output"]}
    expect(desk.wires("neg.x").locator(".wire-text")).to_have_text("float32[3]")  # the second is another one now
    desk.inspector.get_by_role("button", name="Move c0.output down").click()
    expect(order).to_have_text(["c2.output", "c0.output", "c1.output"])
    expect(desk.wires("neg.x").locator(".wire-text")).to_have_text("float32[1]")


@pytest.mark.feature("errors")
@pytest.mark.broken("rowgrad.studio.project_verbs:summary", "lambda page: original(page) | {'errors': {}}")
def test_a_missing_pin_is_named_on_the_block(desk: Desk) -> None:
    """Missing pin is named on the block: in words, and in colour; with the last of them it is gone."""
    desk.put_page(
        "work",
        const("x", (0, 0), [[1.0]]),
        block("sum", "SparseSegmentSum", (340, 0), wires={"data": "x.output"}),
    )
    desk.open("work")
    message = desk.block("sum").locator(".block-message")
    expect(message).to_have_text("indices is missing: wire it, or enter a value")
    pins = desk.block("sum").locator("[data-pin]")
    colours = {str(p.get_attribute("data-pin")): desk.style(p.locator(".pin-name"), "color") for p in pins.all()}
    assert colours["indices"] != colours["data"] == colours["segment_ids"]
    expect(desk.block("sum")).to_have_class(re.compile("faulty"))
    expect(desk.tab("has errors work")).to_be_visible()
    desk.type_value("sum", "indices", "{0}")
    expect(message).to_have_text("segment_ids is missing: wire it, or enter a value")
    desk.type_value("sum", "segment_ids", "{0}")
    expect(message).to_have_count(0)
    expect(desk.block("sum")).not_to_have_class(re.compile("faulty"))
