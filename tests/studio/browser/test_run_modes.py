"""Run modes: once, N steps, at a rate, continuously; pause, resume, stop; another engine."""

from __future__ import annotations

import re
import time

import pytest
from page_fixtures import array, block, counter_blocks, session
from playwright.sync_api import expect
from studio_window import StudioWindow

TWO_PER_SECOND = "lambda given: original(given) | {'rate': 2.0}"


def counter(ui: StudioWindow) -> float:
    """Return the page's counter, which grows by one with every run."""
    return float(ui.preview("more", "output_ref"))


def wait_and_check_counter(ui: StudioWindow, phase: str) -> None:
    """Wait for the phase; the counter must equal the number of runs."""
    ui.wait_run(phase)
    assert counter(ui) == ui.runs()


@pytest.mark.feature("run")
@pytest.mark.broken("rowgrad.graph.run_loop:PageStep.run", "lambda *_: StepResult({}, {})")
def test_run_once_runs_the_page_once(ui: StudioWindow) -> None:
    ui.open_blocks(*counter_blocks())
    expect(ui.progress).to_have_text("not run yet")
    ui.run_once()
    assert (ui.runs(), counter(ui)) == (1, 1)
    ui.key("Control+Enter")
    ui.wait_runs(2)
    wait_and_check_counter(ui, "done")
    assert ui.runs() == 2


@pytest.mark.feature("steps")
@pytest.mark.broken("rowgrad.studio.run_verbs:_run_options", "lambda given: original(given) | {'steps': 6}")
def test_run_steps_pauses_after_n_steps(ui: StudioWindow) -> None:
    ui.open_blocks(*counter_blocks())
    ui.run_steps(7)
    assert (ui.runs(), counter(ui)) == (7, 7)
    ui.run_steps(3)
    assert (ui.runs(), counter(ui)) == (10, 10)


@pytest.mark.feature("rate")
@pytest.mark.broken("rowgrad.studio.run_verbs:_run_options", "lambda given: original(given) | {'rate': 40.0}")
@pytest.mark.broken("rowgrad.studio.run_verbs:_run_options", TWO_PER_SECOND)
def test_run_at_a_rate(ui: StudioWindow) -> None:
    """The rate is roughly the requested one."""
    ui.open_blocks(*counter_blocks())
    ui.window.get_by_label("Runs per second").fill("5")
    ui.press("run-rate")
    ui.wait_runs(1)
    begun, before = time.monotonic(), ui.runs()
    ui.wait_runs(before + 5)
    seconds = time.monotonic() - begun
    assert 3 < 5 / seconds < 8, f"5 runs in {seconds:.2f} s"
    expect(ui.progress).to_contain_text("/ s")
    ui.press("stop")
    ui.wait_run("stopped")


@pytest.mark.feature("run")
@pytest.mark.broken("rowgrad.studio.run_verbs:_run_options", TWO_PER_SECOND)
def test_run_continuously(ui: StudioWindow) -> None:
    ui.open_blocks(*counter_blocks())
    ui.press("run-flat")
    ui.wait_runs(500)
    ui.press("stop")
    wait_and_check_counter(ui, "stopped")
    assert ui.runs() >= 500


@pytest.mark.feature("pause")
@pytest.mark.broken("rowgrad.studio.page_session:PageRun.pause", "lambda run: None")
@pytest.mark.broken("rowgrad.studio.page_session:PageRun.resume", "lambda run: None")
def test_pause_keeps_state_and_resume_continues(ui: StudioWindow) -> None:
    ui.open_blocks(*counter_blocks())
    ui.press("run-flat")
    ui.wait_runs(20)
    ui.press("pause")
    wait_and_check_counter(ui, "paused")
    paused = ui.runs()
    again = ui.another_window().open("made")  # the server has stopped stepping as well
    assert again.runs() == paused
    again.wait_run("paused")
    ui.press("resume")
    ui.wait_runs(paused + 20)
    ui.wait_run("running")
    ui.press("pause")
    wait_and_check_counter(ui, "paused")
    assert ui.runs() > paused


@pytest.mark.feature("run")
@pytest.mark.broken("rowgrad.studio.page_session:PageRun.stop", "lambda run, message=None: None")
def test_stop_keeps_results_and_disables_pause_and_resume(ui: StudioWindow) -> None:
    ui.open_blocks(*counter_blocks())
    ui.press("run-flat")
    ui.wait_runs(20)
    ui.press("stop")
    wait_and_check_counter(ui, "stopped")
    stopped = ui.runs()
    for command in ("pause", "resume", "stop"):
        expect(ui.window.locator(f'[data-command="{command}"]')).to_be_disabled()
    assert [float(x) for [x] in ui.result("more", "output_ref")] == [stopped]  # results stay
    ui.run_once()
    assert ui.runs() == counter(ui) == stopped + 1


@pytest.mark.feature("run")
@pytest.mark.broken("rowgrad.studio.run_control:EventThrottle.soon", "lambda teller, urgent=False: None")
def test_progress_is_updated_during_a_run(ui: StudioWindow) -> None:
    ui.open_blocks(*counter_blocks())
    steps = 2_000_000
    ui.window.get_by_label("Steps to run").fill(str(steps))
    ui.press("run-steps")
    bar = ui.window.get_by_role("progressbar", name="Progress of the run")
    expect(bar).to_have_attribute("max", str(steps))
    observed: set[tuple[int, float]] = set()
    while len(observed) < 4:
        before = ui.runs()
        ui.wait_runs(before + 1)
        assert ui.progress.get_attribute("data-phase") == "running"
        observed.add((ui.runs(), float(bar.get_attribute("value") or 0)))
    assert len({value for _, value in observed}) >= 3
    expect(ui.progress).to_contain_text(f"of {steps}")
    ui.press("stop")
    wait_and_check_counter(ui, "stopped")
    expect(bar).to_have_count(0)


@pytest.mark.feature("engines")
@pytest.mark.broken("rowgrad.studio.run_verbs:_run_options", "lambda given: original(given) | {'engine': 'numpy'}")
def test_engines_are_listed_with_versions_and_torch_agrees(ui: StudioWindow) -> None:
    torch = pytest.importorskip("torch")
    values = {"data": array("float64", [[1.5, 2.0], [3.0, 4.25], [5.0, 6.0]]), "indices": [0, 2], "segment_ids": [0, 0]}
    ui.open_blocks(block("mean", "SparseSegmentMean", values=values), session("mean.output"))
    field = ui.window.get_by_label("Engine")
    names = [text.strip() for text in field.locator("option").all_inner_texts()]
    assert f"torch {torch.__version__.partition('+')[0]}" in [name.partition("+")[0] for name in names]
    assert all(re.fullmatch(r"\w+ (\d[\w.+]*|\(not installed\))", name) for name in names), names
    ui.run_once()
    by_numpy = ui.result("mean", "output")
    assert by_numpy == [["3.25", "4.0"]]
    ui.press("reset")
    ui.wait_run("idle")
    field.select_option("torch")
    with ui.window.expect_response("**/api/run") as response:
        ui.press("run")
    assert response.value.json()["engine"] == "torch"
    ui.wait_run("done")
    assert ui.result("mean", "output") == by_numpy
