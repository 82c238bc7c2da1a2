"""Drawing wires: the server is asked, and says why not."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from desk import Desk, block, const
from playwright.sync_api import Request, Route, expect

TAKES_ALL = ("rowgrad.studio.project_verbs:candidates_from", "lambda *given: dict.fromkeys(original(*given))")


def open_page(desk: Desk) -> None:
    desk.put_page(
        "work",
        const("floats", (0, 0), [0.5, 1.5]),
        const("ids", (0, 160), [0, 1], "int32"),
        block("noop", "NoOp", (0, 320)),
        block("sum", "SparseSegmentSum", (360, 0)),
        block("session", "ClientSession", (360, 260)),
    )
    desk.open("work")
    desk.wait_saved()


def takes(desk: Desk) -> dict[str, str]:
    """What pins say while a wire hangs at the mouse."""
    found: dict[str, str] = desk.window.locator("[data-pin][data-takes]").evaluate_all(
        """all => Object.fromEntries(all.map(one =>
            [`${one.closest("[data-block]").dataset.block}.${one.dataset.pin}`, one.dataset.takes]))"""
    )
    return found


@pytest.mark.feature("rejections")
def test_a_drag_asks_once_and_pins_that_refuse_fade(desk: Desk) -> None:
    """When a drag starts the server is asked once, and pins that refuse fade with the reason as title."""
    open_page(desk)
    asked: list[dict[str, Any]] = []

    def hear(request: Request) -> None:
        if request.url.endswith("/api/candidates"):
            asked.append(json.loads(request.post_data or ""))

    desk.window.on("request", hear)
    desk.grab_pin("floats", "output")
    refusing = desk.block("sum").locator('[data-pin="indices"]')
    expect(refusing).to_have_attribute("data-takes", "indices must be one of int32, int64; got float32")
    expect(refusing).to_have_attribute("title", "indices: indices must be one of int32, int64; got float32")
    x, y = desk.middle(desk.pin("sum", "segment_ids"))
    desk.mouse.move(x - 60, y + 30, steps=10)
    desk.mouse.move(x, y, steps=10)
    assert [entry["from"] for entry in asked] == ["floats.output"]
    said = takes(desk)
    assert said["sum.data"] == said["session.fetch_outputs"] == "yes"
    assert "float32" in said["sum.segment_ids"]
    assert said["floats.val"] == ""  # no wire leads to its own block
    fading = {pin: float(desk.style(desk.pin("sum", pin), "opacity")) for pin in ("data", "indices", "segment_ids")}
    assert fading["data"] == 1
    assert fading["indices"] == fading["segment_ids"] < 0.5
    desk.mouse.move(20 + x, y + 200, steps=3)
    desk.mouse.up()  # on nothing
    expect(desk.window.locator("[data-takes]")).to_have_count(0)
    assert float(desk.style(desk.pin("sum", "indices"), "opacity")) == 1
    assert len(asked) == 1
    # From the other end, outputs are asked about.
    desk.grab_pin("sum", "indices", "in")
    expect(desk.block("floats").locator('[data-out="output"]')).to_have_attribute("title", re.compile("got float32"))
    expect(desk.block("ids").locator('[data-out="output"]')).to_have_attribute("data-takes", "yes")
    desk.mouse.up()
    assert [entry.get("to") for entry in asked] == [None, "sum.indices"]


@pytest.mark.feature("rejections")
@pytest.mark.broken(*TAKES_ALL)
def test_a_refusal_says_the_reason(desk: Desk) -> None:
    """Refusals show the reason: a float wire into indices, in passing and in the panel of messages."""
    open_page(desk)
    desk.drag_wire("floats.output", "sum.indices")
    desk.wait_message("indices must be one of int32, int64; got float32")
    expect(desk.window.locator(".toast.error b")).to_have_text("sum.indices")
    expect(desk.wires("sum.indices")).to_have_count(0)
    assert "in" not in desk.saved_block("sum")
    desk.wire("ids.output", "sum.indices")  # what fits is taken
    assert desk.saved_block("sum")["in"] == {"indices": "ids.output"}
    desk.window.locator("#bottom-messages").click()
    expect(desk.window.locator("#bottom-panel")).to_contain_text("indices must be one of int32, int64; got float32")


@pytest.mark.broken(*TAKES_ALL)
def test_the_drop_is_checked_again(desk: Desk) -> None:
    """The drop is checked again: what was said at the beginning of the drag may be wrong by then."""
    open_page(desk)
    answers: list[str] = []

    def lie_first(route: Route) -> None:
        reply = route.fetch()
        said = reply.json()
        answers.append(said["takes"]["sum.indices"])
        if len(answers) == 1:
            route.fulfill(response=reply, json={"takes": dict.fromkeys(said["takes"])})
        else:
            route.fulfill(response=reply)

    desk.window.route("**/api/candidates", lie_first)
    desk.drag_wire("floats.output", "sum.indices")
    desk.wait_message("indices must be one of int32, int64; got float32")
    assert len(answers) == 2
    expect(desk.wires("sum.indices")).to_have_count(0)
    assert "in" not in desk.saved_block("sum")


@pytest.mark.feature("rejections")
@pytest.mark.broken(*TAKES_ALL)
def test_wires_of_another_kind_are_refused(desk: Desk) -> None:
    """Wrong-interface wires are refused: an operation into a value pin, a value into a feed pin."""
    open_page(desk)
    desk.drag_wire("noop.output", "sum.data")
    desk.wait_message("data takes one value; got an operation")
    desk.drag_wire("floats.output", "session.inputs")
    desk.wait_message(re.compile(r"takes a feed, such as the output of FeedType; got floats.output"))
    expect(desk.window.locator(".react-flow__edge")).to_have_count(0)
    assert not [b for b in desk.page_json()["blocks"] if "in" in b]
    desk.wire("noop.output", "session.run_outputs")
    assert desk.saved_block("session")["in"] == {"run_outputs": "noop.output"}


@pytest.mark.feature("wires")
def test_wires_are_drawn_and_cut(desk: Desk) -> None:
    """Wires can be cut: with a click and Delete, and in the inspector; others stay."""
    desk.put_page(
        "work",
        *(const(f"c{k}", (0, 150 * k), [float(k)]) for k in range(3)),
        block("session", "ClientSession", (400, 100), wires={"fetch_outputs": ["c0.output", "c1.output"]}),
    )
    desk.open("work")
    desk.wire("c2.output", "session.fetch_outputs")
    assert desk.saved_block("session")["in"] == {"fetch_outputs": ["c0.output", "c1.output", "c2.output"]}
    desk.wires("session.fetch_outputs").nth(1).locator(".react-flow__edge-interaction").click(force=True)
    expect(desk.window.locator(".wire.selected")).to_have_count(1)
    chosen = desk.window.locator(".react-flow__edge.selected").get_attribute("data-id")
    gone = json.loads(str(chosen))[2]
    desk.key("Delete")
    left = [f"c{k}.output" for k in range(3) if k != gone]
    expect(desk.wires("session.fetch_outputs")).to_have_count(2)
    assert desk.saved_block("session")["in"] == {"fetch_outputs": left}
    desk.select("session")
    desk.inspector.get_by_role("button", name=f"Cut the wire from {left[0]} to session.fetch_outputs").click()
    expect(desk.wires("session.fetch_outputs")).to_have_count(1)
    assert desk.saved_block("session")["in"] == {"fetch_outputs": left[1]}
    desk.key("Control+z")
    expect(desk.wires("session.fetch_outputs")).to_have_count(2)
    assert desk.saved_block("session")["in"] == {"fetch_outputs": left}
    assert len(desk.page_json()["blocks"]) == 4


@pytest.mark.feature("keyboard")
def test_wires_from_missing_list_entries_can_be_removed(desk: Desk) -> None:
    desk.open_made(
        const("x", (50, 100), 1.0),
        const("y", (50, 300), 1.0),
        block("all", "InputList", (350, 100), wires={"outputlist": ["x.output", "y.output"]}),
        block("neg", "Neg", (750, 100), wires={"x": "all.output[1]"}),
    )
    desk.select("all")
    desk.inspector.get_by_label("Cut the wire from y.output to all.outputlist", exact=True).click()
    desk.wait_saved()
    expect(desk.block("all").locator('[data-out="output[1]"]')).to_be_visible()
    desk.wires("neg.x").locator("path").last.click(force=True)
    desk.key("Delete")
    expect(desk.wires("neg.x")).to_have_count(0)
    assert "in" not in desk.saved_block("neg")
