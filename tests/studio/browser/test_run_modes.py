"""Ways to run a page: once, steps, at a rate, flat out; paused, gone on with, stopped; on another engine."""

from __future__ import annotations

import re
import time

import pytest
from desk import Desk
from made_pages import array, counting, made, session
from playwright.sync_api import expect

SLOWLY = "lambda given: original(given) | {'rate': 2.0}"


def counted(desk: Desk) -> float:
    """What the page has counted to: it goes up by one with every run."""
    return float(desk.preview("more", "output_ref"))


def at_rest(desk: Desk, phase: str) -> None:
    """The numbers that are shown belong together."""
    desk.wait_run(phase)
    assert counted(desk) == desk.runs()


@pytest.mark.feature("run")
@pytest.mark.broken("rowgrad.graph.run_loop:PageStep.run", "lambda *_: StepResult({}, {})")
def test_run_once(desk: Desk) -> None:
    """Once."""
    desk.open_made(*counting())
    expect(desk.progress).to_have_text("not run yet")
    desk.run_once()
    assert (desk.runs(), counted(desk)) == (1, 1)
    desk.key("Control+Enter")
    desk.wait_runs(2)
    at_rest(desk, "done")
    assert desk.runs() == 2


@pytest.mark.feature("steps")
@pytest.mark.broken("rowgrad.studio.run_verbs:_run_options", "lambda given: original(given) | {'steps': 6}")
def test_steps_then_pause(desk: Desk) -> None:
    """Step-n then pause."""
    desk.open_made(*counting())
    desk.run_steps(7)
    assert (desk.runs(), counted(desk)) == (7, 7)
    desk.run_steps(3)
    assert (desk.runs(), counted(desk)) == (10, 10)


@pytest.mark.feature("rate")
@pytest.mark.broken("rowgrad.studio.run_verbs:_run_options", "lambda given: original(given) | {'rate': 40.0}")
@pytest.mark.broken("rowgrad.studio.run_verbs:_run_options", SLOWLY)
def test_cyclic_at_a_rate(desk: Desk) -> None:
    """Cyclic at a chosen Hz: the rate is roughly kept."""
    desk.open_made(*counting())
    desk.window.get_by_label("Runs per second").fill("5")
    desk.press("run-rate")
    desk.wait_runs(1)
    begun, before = time.monotonic(), desk.runs()
    desk.wait_runs(before + 5)
    seconds = time.monotonic() - begun
    assert 3 < 5 / seconds < 8, f"5 runs in {seconds:.2f} s"
    expect(desk.progress).to_contain_text("/ s")
    desk.press("stop")
    desk.wait_run("stopped")


@pytest.mark.feature("run")
@pytest.mark.broken("rowgrad.studio.run_verbs:_run_options", SLOWLY)
def test_flat_out(desk: Desk) -> None:
    """Flat out (many runs)."""
    desk.open_made(*counting())
    desk.press("run-flat")
    desk.wait_runs(500)
    desk.press("stop")
    at_rest(desk, "stopped")
    assert desk.runs() >= 500


@pytest.mark.feature("pause")
@pytest.mark.broken("rowgrad.studio.page_session:PageRun.pause", "lambda run: None")
@pytest.mark.broken("rowgrad.studio.page_session:PageRun.resume", "lambda run: None")
def test_pause_keeps_state_and_go_on_continues(desk: Desk) -> None:
    """Pause keeps state and go on continues."""
    desk.open_made(*counting())
    desk.press("run-flat")
    desk.wait_runs(20)
    desk.press("pause")
    at_rest(desk, "paused")
    paused = desk.runs()
    again = desk.another_window().open("made")  # the server has not gone on either
    assert again.runs() == paused
    again.wait_run("paused")
    desk.press("resume")
    desk.wait_runs(paused + 20)
    desk.wait_run("running")
    desk.press("pause")
    at_rest(desk, "paused")
    assert desk.runs() > paused


@pytest.mark.feature("run")
@pytest.mark.broken("rowgrad.studio.page_session:PageRun.stop", "lambda run, message=None: None")
def test_stop(desk: Desk) -> None:
    """Stop."""
    desk.open_made(*counting())
    desk.press("run-flat")
    desk.wait_runs(20)
    desk.press("stop")
    at_rest(desk, "stopped")
    stopped = desk.runs()
    for command in ("pause", "resume", "stop"):
        expect(desk.window.locator(f'[data-command="{command}"]')).to_be_disabled()
    assert [float(x) for [x] in desk.result("more", "output_ref")] == [stopped]  # results stay
    desk.run_once()
    assert desk.runs() == counted(desk) == stopped + 1


@pytest.mark.feature("run")
@pytest.mark.broken("rowgrad.studio.run_control:EventThrottle.soon", "lambda teller, urgent=False: None")
def test_live_progress(desk: Desk) -> None:
    """Live progress (progress element, run count moves while running)."""
    desk.open_made(*counting())
    steps = 2_000_000
    desk.window.get_by_label("Steps to run").fill(str(steps))
    desk.press("run-steps")
    bar = desk.window.get_by_role("progressbar", name="Progress of the run")
    expect(bar).to_have_attribute("max", str(steps))
    seen: set[tuple[int, float]] = set()
    while len(seen) < 4:
        before = desk.runs()
        desk.wait_runs(before + 1)
        assert desk.progress.get_attribute("data-phase") == "running"
        seen.add((desk.runs(), float(bar.get_attribute("value") or 0)))
    assert len({value for _, value in seen}) >= 3
    expect(desk.progress).to_contain_text(f"of {steps}")
    desk.press("stop")
    at_rest(desk, "stopped")
    expect(bar).to_have_count(0)


@pytest.mark.feature("engines")
@pytest.mark.broken("rowgrad.studio.run_verbs:_run_options", "lambda given: original(given) | {'engine': 'numpy'}")
def test_engine_choice_with_versions(desk: Desk) -> None:
    """Engine choice with versions (torch gives the same numbers)."""
    torch = pytest.importorskip("torch")
    values = {"data": array("float64", [[1.5, 2.0], [3.0, 4.25], [5.0, 6.0]]), "indices": [0, 2], "segment_ids": [0, 0]}
    desk.open_made(made("mean", "SparseSegmentMean", values=values), session("mean.output"))
    field = desk.window.get_by_label("Engine")
    names = [text.strip() for text in field.locator("option").all_inner_texts()]
    assert f"torch {torch.__version__.partition('+')[0]}" in [name.partition("+")[0] for name in names]
    assert all(re.fullmatch(r"\w+ (\d[\w.+]*|\(not installed\))", name) for name in names), names
    desk.run_once()
    by_numpy = desk.result("mean", "output")
    assert by_numpy == [["3.25", "4.0"]]
    desk.press("reset")
    desk.wait_run("idle")
    field.select_option("torch")
    with desk.window.expect_response("**/api/run") as response:
        desk.press("run")
    assert response.value.json()["engine"] == "torch"
    desk.wait_run("done")
    assert desk.result("mean", "output") == by_numpy
