"""ClientSession blocks: what they feed, fetch and run; several on a page; errors that are none of theirs."""

from __future__ import annotations

import re

import pytest
from desk import Desk
from made_pages import array, counting, made, session
from playwright.sync_api import expect


@pytest.mark.feature("wires", "run")
@pytest.mark.broken("rowgrad.graph.session:ClientSession._program", "lambda it, fetches, _: original(it, fetches, ())")
@pytest.mark.broken("rowgrad.graph.session:ClientSession._run", "lambda it, program, given: original(it, program, {})")
def test_feeds_fetches_and_targets(desk: Desk) -> None:
    """Feeds, fetches and run targets on the ClientSession block."""
    desk.open_made(
        made("x", "Placeholder", attrs={"dtype": "float32", "shape": [2]}),
        made("feed", "FeedType", (340, 0), values={"initializer": [3, 4]}, wires={"input": "x.output"}),
        made("sum", "Add", (340, 130), values={"y": 1}, wires={"x": "x.output"}),
        made("kept", "Variable", (0, 280), values={"initvalues": array("float32", [0.0, 0.0])}),
        made("assign", "Assign", (340, 280), wires={"ref": "kept.ref", "value": "sum.z"}),
        made("operation", "Operation", (680, 280)),
        made("look", "Mul", (340, 420), values={"y": 1}, wires={"x": "kept.ref"}),
        made("session", "ClientSession", (680, 0)),
    )
    desk.wire("feed.output", "session.inputs")
    desk.wire("sum.z", "session.fetch_outputs")
    desk.wire("assign.output_ref", "operation.operation")
    desk.wire("operation.output", "session.run_outputs")
    assert desk.saved("session")["in"] == {
        "inputs": "feed.output",
        "fetch_outputs": "sum.z",
        "run_outputs": "operation.output",
    }
    desk.run_once()
    assert desk.result("sum", "z") == [["4.0"], ["5.0"]]
    desk.wire("look.z", "session.fetch_outputs")  # the Variable was set by the run before, through the operation
    desk.type_value("feed", "initializer", "{0,0}")
    desk.run_once()
    assert desk.result("sum", "z") == [["1.0"], ["1.0"]]
    assert desk.result("look", "z") == [["4.0"], ["5.0"]]


@pytest.mark.feature("run")
@pytest.mark.broken("rowgrad.studio.run_verbs:_run_options", "lambda given: original(given) | {'sessions': []}")
def test_each_session_has_its_own_run_button(desk: Desk) -> None:
    """Several sessions on one page: each block's own Run button."""
    desk.open_made(
        *counting(),
        made("other", "Variable", (0, 220), values={"initvalues": array("float32", 0.0)}),
        made("tens", "AssignAdd", (340, 220), values={"value": array("float32", 10.0)}, wires={"ref": "other.ref"}),
        session("tens.output_ref", at=(680, 220), name="session_2"),
    )
    for runs in (1, 2):
        desk.block("session_2").get_by_role("button", name="▶ Run", exact=True).click()
        desk.wait_runs(runs)
        desk.wait_run()
    assert float(desk.preview("tens", "output_ref")) == 20
    expect(desk.block("more").locator(".result")).to_have_count(0)
    desk.block("session").get_by_role("button", name="▶ Run", exact=True).click()
    desk.wait_runs(3)
    desk.wait_run()
    assert float(desk.preview("more", "output_ref")) == 1
    other = desk.block("tens").locator(".result")
    expect(other).to_have_text(re.compile("stale 20$"))  # of the run before, and says so
    desk.run_once()  # the bar's button runs both
    assert [float(desk.preview(block, "output_ref")) for block in ("more", "tens")] == [2, 30]
    desk.window.get_by_label("Steps to run").fill("5")
    desk.block("session_2").get_by_role("button", name="Step", exact=True).click()
    desk.wait_run("paused")
    assert float(desk.preview("tens", "output_ref")) == 80
    expect(desk.block("more").locator(".result")).to_have_text(re.compile("stale 2$"))


@pytest.mark.feature("run")
@pytest.mark.broken(
    "rowgrad.graph.page_builder:Checked.first_fault",
    "lambda self, blocks: next(map(self.fault_of, self.errors), None)",
)
def test_an_error_elsewhere_hinders_nothing(desk: Desk) -> None:
    """Run of a page with an error elsewhere still runs."""
    desk.open_made(
        made("sum", "Add", values={"x": [1, 2], "y": 3}),
        session("sum.z", at=(340, 0)),
        made("wrong", "MatMul", (0, 220), values={"a": [[1.0, 2.0]], "b": [[1.0]]}),
        session("wrong.product", at=(340, 220), name="session_2"),
    )
    expect(desk.block("wrong")).to_have_class(re.compile("faulty"))
    desk.block("session").get_by_role("button", name="▶ Run", exact=True).click()
    desk.wait_run()
    assert desk.result("sum", "z") == [["4"], ["5"]]
    expect(desk.block("wrong")).to_have_class(re.compile("faulty"))
    desk.watch.forgive("status of 400")
    desk.block("session_2").get_by_role("button", name="▶ Run", exact=True).click()
    desk.wait_message(re.compile(r"^wrong"))
    assert desk.runs() == 1
