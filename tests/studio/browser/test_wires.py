"""Drawing wires: the server validates them and explains rejections."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from page_fixtures import block, const
from playwright.sync_api import Request, Route, expect
from studio_window import StudioWindow

ACCEPT_ALL = ("rowgrad.studio.project_verbs:candidates_from", "lambda *given: dict.fromkeys(original(*given))")


def open_page(ui: StudioWindow) -> None:
    ui.write_page(
        "work",
        const("floats", (0, 0), [0.5, 1.5]),
        const("ids", (0, 160), [0, 1], "int32"),
        block("noop", "NoOp", (0, 320)),
        block("sum", "SparseSegmentSum", (360, 0)),
        block("session", "ClientSession", (360, 260)),
    )
    ui.open("work")
    ui.wait_saved()


def pin_states(ui: StudioWindow) -> dict[str, str]:
    """Return each pin's response to the wire that is being dragged: "yes" or the reason why not."""
    found: dict[str, str] = ui.window.locator("[data-pin][data-takes]").evaluate_all(
        """all => Object.fromEntries(all.map(one =>
            [`${one.closest("[data-block]").dataset.block}.${one.dataset.pin}`, one.dataset.takes]))"""
    )
    return found


@pytest.mark.feature("rejections")
def test_a_drag_sends_one_request_and_fades_rejecting_pins(ui: StudioWindow) -> None:
    """One request when the drag starts; the tooltip of a faded pin is the reason."""
    open_page(ui)
    requests: list[dict[str, Any]] = []

    def record(request: Request) -> None:
        if request.url.endswith("/api/candidates"):
            requests.append(json.loads(request.post_data or ""))

    ui.window.on("request", record)
    ui.start_wire("floats", "output")
    rejecting = ui.block("sum").locator('[data-pin="indices"]')
    expect(rejecting).to_have_attribute("data-takes", "indices must be one of int32, int64; got float32")
    expect(rejecting).to_have_attribute("title", "indices: indices must be one of int32, int64; got float32")
    x, y = ui.middle(ui.pin("sum", "segment_ids"))
    ui.mouse.move(x - 60, y + 30, steps=10)
    ui.mouse.move(x, y, steps=10)
    assert [entry["from"] for entry in requests] == ["floats.output"]
    states = pin_states(ui)
    assert states["sum.data"] == states["session.fetch_outputs"] == "yes"
    assert "float32" in states["sum.segment_ids"]
    assert states["floats.val"] == ""  # a block cannot be wired to itself
    opacities = {pin: float(ui.style(ui.pin("sum", pin), "opacity")) for pin in ("data", "indices", "segment_ids")}
    assert opacities["data"] == 1
    assert opacities["indices"] == opacities["segment_ids"] < 0.5
    ui.mouse.move(*ui.middle(ui.block("sum").locator(".block-head")), steps=3)
    ui.mouse.up()  # not on a pin; on the empty canvas it would open the search, with requests of its own
    expect(ui.window.locator("[data-takes]")).to_have_count(0)
    assert float(ui.style(ui.pin("sum", "indices"), "opacity")) == 1
    assert len(requests) == 1
    # A drag from an input asks about outputs.
    ui.start_wire("sum", "indices", "in")
    expect(ui.block("floats").locator('[data-out="output"]')).to_have_attribute("title", re.compile("got float32"))
    expect(ui.block("ids").locator('[data-out="output"]')).to_have_attribute("data-takes", "yes")
    ui.mouse.up()
    assert [entry.get("to") for entry in requests] == [None, "sum.indices"]


@pytest.mark.feature("rejections")
@pytest.mark.broken(*ACCEPT_ALL)
def test_a_rejected_wire_shows_the_reason(ui: StudioWindow) -> None:
    """In a toast and in the messages panel."""
    open_page(ui)
    ui.drag_wire("floats.output", "sum.indices")
    ui.wait_message("indices must be one of int32, int64; got float32")
    expect(ui.window.locator(".toast.error b")).to_have_text("sum.indices")
    expect(ui.wires("sum.indices")).to_have_count(0)
    assert "in" not in ui.saved_block("sum")
    ui.window.locator("#bottom-messages").click()
    message = ui.window.locator("#bottom-panel .message", has_text="indices must be one of int32, int64; got float32")
    expect(message).to_contain_text("work sum.indices")
    ui.wire("ids.output", "sum.indices")
    assert ui.saved_block("sum")["in"] == {"indices": "ids.output"}
    expect(message).to_have_count(0)  # it is solved


@pytest.mark.broken(*ACCEPT_ALL)
def test_the_drop_is_validated_again(ui: StudioWindow) -> None:
    """The response from the start of the drag may be outdated."""
    open_page(ui)
    answers: list[str] = []

    def accept_all_first(route: Route) -> None:
        reply = route.fetch()
        states = reply.json()
        answers.append(states["takes"]["sum.indices"])
        if len(answers) == 1:
            route.fulfill(response=reply, json={"takes": dict.fromkeys(states["takes"])})
        else:
            route.fulfill(response=reply)

    ui.window.route("**/api/candidates", accept_all_first)
    ui.drag_wire("floats.output", "sum.indices")
    ui.wait_message("indices must be one of int32, int64; got float32")
    assert len(answers) == 2
    expect(ui.wires("sum.indices")).to_have_count(0)
    assert "in" not in ui.saved_block("sum")


@pytest.mark.feature("rejections")
@pytest.mark.broken(*ACCEPT_ALL)
def test_wires_between_different_interfaces_are_rejected(ui: StudioWindow) -> None:
    """An operation into a value pin, a value into a feed pin."""
    open_page(ui)
    ui.drag_wire("noop.output", "sum.data")
    ui.wait_message("data takes one value; got an operation")
    ui.drag_wire("floats.output", "session.inputs")
    ui.wait_message(re.compile(r"takes a feed, such as the output of FeedType; got floats.output"))
    expect(ui.window.locator(".react-flow__edge")).to_have_count(0)
    assert not [b for b in ui.page_json()["blocks"] if "in" in b]
    ui.wire("noop.output", "session.run_outputs")
    assert ui.saved_block("session")["in"] == {"run_outputs": "noop.output"}


@pytest.mark.feature("wires")
def test_wires_are_drawn_and_removed(ui: StudioWindow) -> None:
    """With a click and Delete, and in the inspector; other wires stay."""
    ui.write_page(
        "work",
        *(const(f"c{k}", (0, 150 * k), [float(k)]) for k in range(3)),
        block("session", "ClientSession", (400, 100), wires={"fetch_outputs": ["c0.output", "c1.output"]}),
    )
    ui.open("work")
    ui.wire("c2.output", "session.fetch_outputs")
    assert ui.saved_block("session")["in"] == {"fetch_outputs": ["c0.output", "c1.output", "c2.output"]}
    ui.click_wire(ui.wires("session.fetch_outputs").nth(1))
    expect(ui.window.locator(".wire.selected")).to_have_count(1)
    chosen = ui.window.locator(".react-flow__edge.selected").get_attribute("data-id")
    gone = json.loads(str(chosen))[2]
    ui.key("Delete")
    left = [f"c{k}.output" for k in range(3) if k != gone]
    expect(ui.wires("session.fetch_outputs")).to_have_count(2)
    assert ui.saved_block("session")["in"] == {"fetch_outputs": left}
    ui.select("session")
    ui.inspector.get_by_role("button", name=f"Cut the wire from {left[0]} to session.fetch_outputs").click()
    expect(ui.wires("session.fetch_outputs")).to_have_count(1)
    assert ui.saved_block("session")["in"] == {"fetch_outputs": left[1]}
    ui.key("Control+z")
    expect(ui.wires("session.fetch_outputs")).to_have_count(2)
    assert ui.saved_block("session")["in"] == {"fetch_outputs": left}
    assert len(ui.page_json()["blocks"]) == 4


@pytest.mark.feature("keyboard")
def test_wires_from_missing_list_entries_can_be_removed(ui: StudioWindow) -> None:
    ui.open_blocks(
        const("x", (50, 100), 1.0),
        const("y", (50, 300), 1.0),
        block("all", "InputList", (350, 100), wires={"outputlist": ["x.output", "y.output"]}),
        block("neg", "Neg", (750, 100), wires={"x": "all.output[1]"}),
    )
    ui.select("all")
    ui.inspector.get_by_label("Cut the wire from y.output to all.outputlist", exact=True).click()
    ui.wait_saved()
    expect(ui.block("all").locator('[data-out="output[1]"]')).to_be_visible()
    ui.click_wire(ui.wires("neg.x"))
    ui.key("Delete")
    expect(ui.wires("neg.x")).to_have_count(0)
    assert "in" not in ui.saved_block("neg")


COUNT_COLORS = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(Array.from({ length: data.length / 4 }, (_, k) => data.slice(4 * k, 4 * k + 3).join())).size;
}"""


@pytest.mark.feature("wireHover")
@pytest.mark.broken("rowgrad.studio.value_verbs:heat_of", "lambda array, at, most: original(array * 0, at, most)")
def test_a_wire_under_the_pointer_shows_what_it_carried(ui: StudioWindow) -> None:
    matrix = [[float(10 * i + j) for j in range(9)] for i in range(40)]
    ui.open_blocks(
        const("m", (0, 0), matrix),
        const("v", (0, 260), [1.0, 3.0]),
        block("neg", "Neg", (460, 0), wires={"x": "m.output"}),
        block("square", "Square", (460, 260), wires={"x": "v.output"}),
    )
    hover = ui.window.locator(".wire-hover")
    ui.mouse.move(*ui.point_on_wire(ui.wires("neg.x")))
    expect(hover).to_contain_text("m.output float32[40,9]")
    expect(hover).to_contain_text("no run has computed it yet")
    ui.mouse.move(*ui.middle(ui.block("neg").locator(".block-op")))
    expect(hover).to_have_count(0)
    ui.run_once()
    ui.mouse.move(*ui.point_on_wire(ui.wires("neg.x")))
    expect(hover.locator(".mini-range")).to_have_text("0 … 398")
    heat = hover.locator("canvas.mini-heat")
    ui.wait_until(lambda: heat.evaluate(COUNT_COLORS) > 20)
    ui.mouse.move(*ui.point_on_wire(ui.wires("square.x")))
    expect(hover).to_contain_text("v.output float32[2]")
    expect(hover.locator(".mini-table > span")).to_have_text(["1", "3"])
    ui.mouse.move(*ui.middle(ui.canvas))
    expect(hover).to_have_count(0)
    ui.key("Tab")  # the keyboard is used, so the focus is visible
    ui.wires("square.x").focus()
    expect(hover).to_contain_text("v.output float32[2]")
    ui.key("Tab")
    expect(hover).to_have_count(0)
