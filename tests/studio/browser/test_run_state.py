"""State after runs: Variables, snapshots, results and errors, and the effect of edits."""

from __future__ import annotations

import re

import pytest
from page_fixtures import array, block, counter_blocks, session
from playwright.sync_api import expect
from studio_window import StudioWindow

ONLY_FETCHED = "lambda *given: {k: v for k, v in original(*given).items() if k == 'product'}"


def counter(ui: StudioWindow, block: str = "more") -> float:
    return float(ui.preview(block, "output_ref"))


@pytest.mark.feature("snapshots", "run")
@pytest.mark.broken("rowgrad.studio.page_session:PageRun.restore", "lambda *given: None")
@pytest.mark.broken("rowgrad.studio.page_session:PageRun.reset", "lambda run: None")
def test_snapshot_restore_and_reset_of_variables(ui: StudioWindow) -> None:
    ui.windows.allow_error("status of 400.*/api/window")  # a table may request a result that is being discarded
    ui.open_blocks(*counter_blocks())
    ui.run_steps(3)
    ui.press("snapshot")
    ui.wait_message("The Variables of made are saved in a snapshot")
    ui.run_steps(2)
    assert counter(ui) == 5
    ui.press("snapshots")
    dialog = ui.window.get_by_role("dialog", name="Snapshots of made")
    dialog.get_by_label("Label of the snapshot").fill("at five")
    dialog.get_by_role("button", name="Take a snapshot").click()
    expect(dialog.locator("tbody tr")).to_have_count(2)
    expect(dialog.locator("tbody tr").first).to_contain_text(re.compile(r"at five\s*5"))
    dialog.get_by_role("button", name="Restore run 3").click()
    expect(dialog).to_have_count(0)
    ui.wait_run("stopped")
    assert ui.runs() == 3
    ui.run_once()
    assert (ui.runs(), counter(ui)) == (4, 4)
    ui.press("snapshots")
    dialog.get_by_role("button", name="Restore at five").click()
    expect(dialog).to_have_count(0)
    ui.run_once()
    assert (ui.runs(), counter(ui)) == (6, 6)
    ui.press("reset")
    ui.wait_run("idle")
    assert ui.runs() == 0
    expect(ui.window.locator(".result-preview")).to_have_count(0)
    ui.run_once()
    assert (ui.runs(), counter(ui)) == (1, 1)


@pytest.mark.feature("snapshots")
@pytest.mark.broken("rowgrad.studio.runs:Runs._save_at_end", "lambda *given: None")
def test_variables_go_on_after_studio_was_stopped_and_started_again(ui: StudioWindow) -> None:
    ui.windows.allow_error("status of|ERR_|Failed to")  # while there is no server
    name = ui.open_blocks(*counter_blocks())
    ui.run_steps(3)
    ui.server.stop()
    ui.server.port = 0  # any free one
    ui.server.start()
    ui.open(name)
    expect(ui.progress).to_contain_text("not run yet")
    ui.progress.get_by_role("button", name="Continue from run 3").click()
    ui.wait_run("stopped")
    expect(ui.progress.get_by_role("button")).to_have_count(0)
    ui.run_once()
    assert (ui.runs(), counter(ui)) == (4, 4)


@pytest.mark.feature("results")
@pytest.mark.broken("rowgrad.studio.page_session:results_json", ONLY_FETCHED)
def test_fetch_refreshes_upstream_results(ui: StudioWindow) -> None:
    ui.open_blocks(
        block("a", "Const", values={"val": array("int32", [1, 2])}),
        block("sum", "Add", (250, 0), values={"y": 10}, wires={"x": "a.output"}),
        block("product", "Mul", (500, 0), values={"y": 2}, wires={"x": "sum.z"}),
        block("beside", "Add", (250, 250), values={"y": 1}, wires={"x": "a.output"}),
        session("product.z", at=(750, 0)),
    )
    ui.run_once()
    assert sorted(ui.all_results()) == [("a", "output"), ("product", "z"), ("sum", "z")]
    assert ui.result("sum", "z") == [["11"], ["12"]]
    ui.type_value("a", "val", "{5,6}")
    expect(ui.block("sum").locator(".result")).to_have_class(re.compile("stale"))
    ui.run_once()
    expect(ui.window.locator("[data-block] .result.stale")).to_have_count(0)
    assert ui.result("a", "output") == [["5"], ["6"]]
    assert ui.result("sum", "z") == [["15"], ["16"]]
    assert ui.result("product", "z") == [["30"], ["32"]]


@pytest.mark.feature("results")
@pytest.mark.broken(
    "rowgrad.studio.page_session:info_of", "lambda array: original(array) | {'text': 'int32[?]', 'shape': None}"
)
def test_a_result_shows_the_shape_of_the_last_run(ui: StudioWindow) -> None:
    """The shape changes between runs with the value that is fed."""
    ui.open_blocks(
        block("x", "Placeholder", attrs={"dtype": "int32"}),
        block("feed", "FeedType", (340, 200), values={"initializer": [1, 2]}, wires={"input": "x.output"}),
        block("twice", "Add", (340, 0), wires={"x": "x.output", "y": "x.output"}),
        session("twice.z", inputs="feed.output"),
    )
    expect(ui.block("twice").locator('[data-out="z"]')).to_contain_text("int32[…]")
    for text, shape, table in (
        ("{1,2}", "[2]", [["2"], ["4"]]),
        ("{{1,2,3},{4,5,6}}", "[2,3]", [["2", "4", "6"], ["8", "10", "12"]]),
        ("7", "[]", [["14"]]),
    ):
        ui.type_value("feed", "initializer", text)
        ui.run_once()
        expect(ui.window.locator('[data-result="twice.z"]')).to_contain_text(f"int32{shape} ")
        expect(ui.block("twice").locator(".result")).to_have_attribute(
            "title", re.compile(rf"^result_z int32{re.escape(shape)}, run")
        )
        assert ui.result("twice", "z") == table


@pytest.mark.feature("errors")
@pytest.mark.broken("rowgrad.studio.page_session:PageRun._fail", "lambda run, work, error: None")
@pytest.mark.broken("rowgrad.studio.page_session:failure_json", "lambda *given: original(*given) | {'block': None}")
def test_a_run_error_names_its_block_and_is_reported_once(ui: StudioWindow) -> None:
    ui.open_blocks(
        block("at", "Variable", values={"initvalues": array("int32", [0])}),
        block("next", "AssignAdd", (250, 0), values={"value": array("int32", [1])}, wires={"ref": "at.ref"}),
        block("rows", "Gather", (500, 0), values={"params": [10, 20, 30]}, wires={"indices": "next.output_ref"}),
        session("rows.output", at=(750, 0)),
    )
    ui.press("run-flat")
    ui.wait_run("failed")
    expect(ui.block("rows")).to_have_class(re.compile("faulty"))
    assert "3" in ui.block_error("rows")
    ui.wait_message(re.compile(r"rows.*3"))
    assert ui.runs() == 2  # rows 1 and 2; the third run failed and is not repeated
    ui.window.get_by_role("tab", name=re.compile("^Messages")).click()
    errors = ui.window.locator(".messages .message.error")
    expect(errors).to_have_count(1)
    expect(errors.locator("b")).to_have_text(re.compile("^rows"))
    expect(errors.locator(".count")).to_have_count(0)
    again = ui.another_window().open("made")  # the server does not continue either
    again.wait_run("failed")
    assert again.runs() == 2
    ui.press("reset")
    ui.wait_run("idle")
    expect(ui.block("rows")).not_to_have_class(re.compile("faulty"))


@pytest.mark.feature("rate")
@pytest.mark.broken("rowgrad.studio.page_session:PageRun.edited", "lambda *given: None")
@pytest.mark.broken("rowgrad.studio.page_session:logic_of", "lambda *given: {'any': ('edit', {})}")
def test_an_edit_of_the_logic_stops_the_run_and_a_move_does_not(ui: StudioWindow) -> None:
    ui.open_blocks(*counter_blocks())
    ui.window.get_by_label("Runs per second").fill("50")
    ui.press("run-rate")
    ui.wait_runs(2)
    before = ui.saved_block("more")["at"]
    ui.drag("more", (40, 120))
    assert ui.saved_block("more")["at"] != before
    runs = ui.runs()
    ui.wait_runs(runs + 5)
    ui.wait_run("running")
    ui.type_value("more", "value", "2")
    ui.wait_run("stopped")
    expect(ui.progress).to_contain_text("the page was edited")


@pytest.mark.feature("run")
@pytest.mark.broken("rowgrad.studio.page_session:PageSession.adopt_variables", "lambda *given: []")
@pytest.mark.broken(
    "rowgrad.studio.page_session:PageSession.adopt_variables", "lambda *given: (original(*given), ['something'])[1]"
)
def test_variables_keep_their_values_over_an_edit(ui: StudioWindow) -> None:
    """A message names them."""
    ui.windows.allow_error("status of 400.*/api/window")  # a table may request a result that is being discarded
    ui.open_blocks(
        *counter_blocks()[:2],
        block("other", "Variable", (0, 200), values={"initvalues": array("float32", 0.0)}),
        block("less", "AssignAdd", (340, 200), values={"value": array("float32", -1.0)}, wires={"ref": "other.ref"}),
        session("more.output_ref", "less.output_ref"),
    )
    ui.run_steps(3)
    assert (counter(ui), counter(ui, "less")) == (3, -3)
    assert not ui.messages()
    ui.type_value("more", "value", "10")
    ui.type_value("other", "initvalues", "100")  # this Variable's definition changed
    ui.run_once()
    ui.wait_message("Variable count goes on with its value.")
    assert (counter(ui), counter(ui, "less")) == (13, 99)
    ui.drag("more", (0, 40))
    ui.run_once()
    assert not ui.messages()  # a run takes the messages of the one before away, and this one has none
