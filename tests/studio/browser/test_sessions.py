"""ClientSession blocks: feeds, fetches and targets; several on a page; unrelated errors."""

from __future__ import annotations

import re

import pytest
from page_fixtures import array, block, counter_blocks, session
from playwright.sync_api import expect
from studio_window import StudioWindow


@pytest.mark.feature("wires", "run")
@pytest.mark.broken("rowgrad.graph.session:ClientSession._program", "lambda it, fetches, _: original(it, fetches, ())")
@pytest.mark.broken("rowgrad.graph.session:ClientSession._run", "lambda it, program, given: original(it, program, {})")
def test_a_session_block_feeds_fetches_and_runs_targets(ui: StudioWindow) -> None:
    ui.open_blocks(
        block("x", "Placeholder", attrs={"dtype": "float32", "shape": [2]}),
        block("feed", "FeedType", (340, 0), values={"initializer": [3, 4]}, wires={"input": "x.output"}),
        block("sum", "Add", (340, 130), values={"y": 1}, wires={"x": "x.output"}),
        block("kept", "Variable", (0, 280), values={"initvalues": array("float32", [0.0, 0.0])}),
        block("assign", "Assign", (340, 280), wires={"ref": "kept.ref", "value": "sum.z"}),
        block("operation", "Operation", (680, 280)),
        block("look", "Mul", (340, 420), values={"y": 1}, wires={"x": "kept.ref"}),
        block("session", "ClientSession", (680, 0)),
    )
    ui.wire("feed.output", "session.inputs")
    ui.wire("sum.z", "session.fetch_outputs")
    ui.wire("assign.output_ref", "operation.operation")
    ui.wait_saved()
    ui.key("Control+0")  # the server's answer made the operation wider
    ui.wire("operation.output", "session.run_outputs")
    assert ui.saved_block("session")["in"] == {
        "inputs": "feed.output",
        "fetch_outputs": "sum.z",
        "run_outputs": "operation.output",
    }
    ui.run_once()
    assert ui.result("sum", "z") == [["4.0"], ["5.0"]]
    ui.wire("look.z", "session.fetch_outputs")  # the previous run set the Variable through the operation
    ui.type_value("feed", "initializer", "{0,0}")
    ui.run_once()
    assert ui.result("sum", "z") == [["1.0"], ["1.0"]]
    assert ui.result("look", "z") == [["4.0"], ["5.0"]]


@pytest.mark.feature("run")
@pytest.mark.broken("rowgrad.studio.run_verbs:_run_options", "lambda given: original(given) | {'sessions': []}")
def test_each_session_has_its_own_run_button(ui: StudioWindow) -> None:
    """With several sessions on one page."""
    ui.open_blocks(
        *counter_blocks(),
        block("other", "Variable", (0, 220), values={"initvalues": array("float32", 0.0)}),
        block("tens", "AssignAdd", (340, 220), values={"value": array("float32", 10.0)}, wires={"ref": "other.ref"}),
        session("tens.output_ref", at=(680, 220), name="session_2"),
    )
    for runs in (1, 2):
        ui.block("session_2").get_by_role("button", name="Run", exact=True).click()
        ui.wait_runs(runs)
        ui.wait_run()
    assert float(ui.preview("tens", "output_ref")) == 20
    expect(ui.block("more").locator(".result")).to_have_count(0)
    ui.block("session").get_by_role("button", name="Run", exact=True).click()
    ui.wait_runs(3)
    ui.wait_run()
    assert float(ui.preview("more", "output_ref")) == 1
    other = ui.block("tens").locator(".result")
    expect(other).to_have_text(re.compile("stale .*20$"))  # a result of the previous run
    ui.run_once()  # the toolbar's button runs both
    assert [float(ui.preview(block, "output_ref")) for block in ("more", "tens")] == [2, 30]
    ui.window.get_by_label("Steps to run").fill("5")
    ui.block("session_2").get_by_role("button", name="Run N", exact=True).click()
    ui.wait_run("paused")
    assert float(ui.preview("tens", "output_ref")) == 80
    expect(ui.block("more").locator(".result")).to_have_text(re.compile("stale .*2$"))


@pytest.mark.feature("run")
@pytest.mark.broken(
    "rowgrad.graph.page_builder:Checked.first_fault",
    "lambda self, blocks: next(map(self.fault_of, self.errors), None)",
)
def test_an_error_elsewhere_does_not_prevent_a_run(ui: StudioWindow) -> None:
    ui.open_blocks(
        block("sum", "Add", values={"x": [1, 2], "y": 3}),
        session("sum.z", at=(340, 0)),
        block("wrong", "MatMul", (0, 220), values={"a": [[1.0, 2.0]], "b": [[1.0]]}),
        session("wrong.product", at=(340, 220), name="session_2"),
    )
    expect(ui.block("wrong")).to_have_class(re.compile("faulty"))
    ui.block("session").get_by_role("button", name="Run", exact=True).click()
    ui.wait_run()
    assert ui.result("sum", "z") == [["4"], ["5"]]
    expect(ui.block("wrong")).to_have_class(re.compile("faulty"))
    ui.windows.allow_error("status of 400")
    ui.block("session_2").get_by_role("button", name="Run", exact=True).click()
    ui.wait_message(re.compile(r"^wrong"))
    assert ui.runs() == 1
