"""What runs leave behind: Variables, snapshots, results, errors; and what an edit does to them."""

from __future__ import annotations

import re

import pytest
from desk import Desk
from made_pages import array, counting, made, session
from playwright.sync_api import expect

ONLY_FETCHED = "lambda *given: {k: v for k, v in original(*given).items() if k == 'product'}"


def counted(desk: Desk, block: str = "more") -> float:
    return float(desk.preview(block, "output_ref"))


@pytest.mark.feature("snapshots", "run")
@pytest.mark.broken("rowgrad.studio.page_session:PageRun.restore", "lambda *given: None")
@pytest.mark.broken("rowgrad.studio.page_session:PageRun.reset", "lambda run: None")
def test_snapshot_restore_and_reset(desk: Desk) -> None:
    """Snapshot and restore of Variables, reset."""
    desk.watch.forgive("status of 400.*/api/window")  # a table may ask for a result while it is forgotten
    desk.open_made(*counting())
    desk.run_steps(3)
    desk.press("snapshot")
    desk.wait_message("The Variables of made are kept")
    desk.run_steps(2)
    assert counted(desk) == 5
    desk.press("snapshots")
    dialog = desk.window.get_by_role("dialog", name="Snapshots of made")
    dialog.get_by_label("Label of the snapshot").fill("at five")
    dialog.get_by_role("button", name="Take a snapshot").click()
    expect(dialog.locator("tbody tr")).to_have_count(2)
    expect(dialog.locator("tbody tr").first).to_contain_text(re.compile(r"at five\s*5"))
    dialog.get_by_role("button", name="Restore run 3").click()
    expect(dialog).to_have_count(0)
    desk.wait_run("stopped")
    assert desk.runs() == 3
    desk.run_once()
    assert (desk.runs(), counted(desk)) == (4, 4)
    desk.press("snapshots")
    dialog.get_by_role("button", name="Restore at five").click()
    expect(dialog).to_have_count(0)
    desk.run_once()
    assert (desk.runs(), counted(desk)) == (6, 6)
    desk.press("reset")
    desk.wait_run("idle")
    assert desk.runs() == 0
    expect(desk.window.locator(".result-preview")).to_have_count(0)
    desk.run_once()
    assert (desk.runs(), counted(desk)) == (1, 1)


@pytest.mark.feature("results")
@pytest.mark.broken("rowgrad.studio.page_session:results_json", ONLY_FETCHED)
def test_fetch_refreshes_upstream_results(desk: Desk) -> None:
    """Fetch refreshes upstream results."""
    desk.open_made(
        made("a", "Const", values={"val": array("int32", [1, 2])}),
        made("sum", "Add", (250, 0), values={"y": 10}, wires={"x": "a.output"}),
        made("product", "Mul", (500, 0), values={"y": 2}, wires={"x": "sum.z"}),
        made("beside", "Add", (250, 250), values={"y": 1}, wires={"x": "a.output"}),
        session("product.z", at=(750, 0)),
    )
    desk.run_once()
    assert sorted(desk.all_results()) == [("a", "output"), ("product", "z"), ("sum", "z")]
    assert desk.result("sum", "z") == [["11"], ["12"]]
    desk.type_value("a", "val", "{5,6}")
    expect(desk.block("sum").locator(".result")).to_have_class(re.compile("stale"))
    desk.run_once()
    expect(desk.window.locator("[data-block] .result.stale")).to_have_count(0)
    assert desk.result("a", "output") == [["5"], ["6"]]
    assert desk.result("sum", "z") == [["15"], ["16"]]
    assert desk.result("product", "z") == [["30"], ["32"]]


@pytest.mark.feature("results")
@pytest.mark.broken(
    "rowgrad.studio.page_session:info_of", "lambda array: original(array) | {'text': 'int32[?]', 'shape': None}"
)
def test_result_has_the_live_shape(desk: Desk) -> None:
    """result_<pin> with live shape (shape changes between runs by feeding another value)."""
    desk.open_made(
        made("x", "Placeholder", attrs={"dtype": "int32"}),
        made("feed", "FeedType", (340, 200), values={"initializer": [1, 2]}, wires={"input": "x.output"}),
        made("twice", "Add", (340, 0), wires={"x": "x.output", "y": "x.output"}),
        session("twice.z", inputs="feed.output"),
    )
    expect(desk.block("twice").locator('[data-out="z"]')).to_contain_text("int32[…]")
    for text, shape, table in (
        ("{1,2}", "[2]", [["2"], ["4"]]),
        ("{{1,2,3},{4,5,6}}", "[2,3]", [["2", "4", "6"], ["8", "10", "12"]]),
        ("7", "[]", [["14"]]),
    ):
        desk.type_value("feed", "initializer", text)
        desk.run_once()
        expect(desk.window.locator('[data-result="twice.z"]')).to_contain_text(f"int32{shape} ")
        expect(desk.block("twice").locator(".result")).to_have_attribute(
            "title", re.compile(rf"^result_z int32{re.escape(shape)}, run")
        )
        assert desk.result("twice", "z") == table


@pytest.mark.feature("errors")
@pytest.mark.broken("rowgrad.studio.page_session:PageRun._fail", "lambda run, work, error: None")
@pytest.mark.broken("rowgrad.studio.page_session:failure_json", "lambda *given: original(*given) | {'block': None}")
def test_a_run_error_names_its_block_and_is_said_once(desk: Desk) -> None:
    """A run error names its block and does not repeat each cycle."""
    desk.open_made(
        made("at", "Variable", values={"initvalues": array("int32", [0])}),
        made("next", "AssignAdd", (250, 0), values={"value": array("int32", [1])}, wires={"ref": "at.ref"}),
        made("rows", "Gather", (500, 0), values={"params": [10, 20, 30]}, wires={"indices": "next.output_ref"}),
        session("rows.output", at=(750, 0)),
    )
    desk.press("run-flat")
    desk.wait_run("failed")
    expect(desk.block("rows")).to_have_class(re.compile("faulty"))
    assert "3" in desk.fault("rows")
    desk.wait_message(re.compile(r"rows.*3"))
    assert desk.runs() == 2  # rows 1 and 2; the third run failed and is not repeated
    desk.window.get_by_role("tab", name=re.compile("^Messages")).click()
    said = desk.window.locator(".messages .message.error")
    expect(said).to_have_count(1)
    expect(said.locator("b")).to_have_text(re.compile("^rows"))
    expect(said.locator(".count")).to_have_count(0)
    again = desk.another_window().open("made")  # nothing goes on behind the page's back
    again.wait_run("failed")
    assert again.runs() == 2
    desk.press("reset")
    desk.wait_run("idle")
    expect(desk.block("rows")).not_to_have_class(re.compile("faulty"))


@pytest.mark.feature("rate")
@pytest.mark.broken("rowgrad.studio.page_session:PageRun.edited", "lambda *given: None")
@pytest.mark.broken("rowgrad.studio.page_session:logic_of", "lambda *given: {'any': ('edit', {})}")
def test_an_edit_of_the_logic_stops_the_run(desk: Desk) -> None:
    """An edit of the logic stops the run, moving a block does not."""
    desk.open_made(*counting())
    desk.window.get_by_label("Runs per second").fill("50")
    desk.press("run-rate")
    desk.wait_runs(2)
    before = desk.saved("more")["at"]
    desk.drag("more", (40, 120))
    assert desk.saved("more")["at"] != before
    runs = desk.runs()
    desk.wait_runs(runs + 5)
    desk.wait_run("running")
    desk.type_value("more", "value", "2")
    desk.wait_run("stopped")
    expect(desk.progress).to_contain_text("the page was edited")


@pytest.mark.feature("run")
@pytest.mark.broken("rowgrad.studio.page_session:PageSession.adopt_variables", "lambda *given: []")
@pytest.mark.broken(
    "rowgrad.studio.page_session:PageSession.adopt_variables", "lambda *given: (original(*given), ['something'])[1]"
)
def test_variables_are_carried_over_an_edit(desk: Desk) -> None:
    """Variables are carried over an edit and the page says which."""
    desk.watch.forgive("status of 400.*/api/window")  # a table may ask for a result while it is forgotten
    desk.open_made(
        *counting()[:2],
        made("other", "Variable", (0, 200), values={"initvalues": array("float32", 0.0)}),
        made("less", "AssignAdd", (340, 200), values={"value": array("float32", -1.0)}, wires={"ref": "other.ref"}),
        session("more.output_ref", "less.output_ref"),
    )
    desk.run_steps(3)
    assert (counted(desk), counted(desk, "less")) == (3, -3)
    assert not desk.messages()
    desk.type_value("more", "value", "10")
    desk.type_value("other", "initvalues", "100")  # this one is not what it was
    desk.run_once()
    desk.wait_message("Variable count goes on with its value.")
    assert (counted(desk), counted(desk, "less")) == (13, 99)
    desk.drag("more", (0, 40))
    desk.run_once()
    assert len(desk.messages()) == 1
