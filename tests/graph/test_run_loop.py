"""Run loops: steps, rates, pauses that preserve state, cancellation."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from rowgrad.errors import OpError
from rowgrad.graph import Block, ClientSession, End, Loop, Page, Scope, build, check, ops
from rowgrad.graph.run_loop import SLOWEST, PageStep, Tick


def counter() -> tuple[ClientSession, object]:
    root = Scope.new_root_scope()
    return ClientSession(root), ops.AssignAdd(root, ops.Variable(root, 0), 1)


def test_the_loop_runs_its_steps_and_reports_progress() -> None:
    session, step = counter()
    seen = []
    loop = Loop(
        lambda feeds: session.run(step), steps=5, progress=lambda t: seen.append((t.step, t.steps, int(t.result)))
    )
    assert loop.run() == 5
    assert seen == [(k, 5, k) for k in range(1, 6)]
    assert loop.ended


def test_batches_end_the_loop() -> None:
    root = Scope.new_root_scope()
    x = ops.Placeholder(root, dtype="int32", shape=[])
    total = ops.AssignAdd(root, ops.Variable(root, 0), x)
    session = ClientSession(root)
    assert Loop(lambda feeds: session.run(total, feeds), feeds=({x: k} for k in (1, 2, 3))).run() == 6


def test_pause_keeps_state_and_cancel_ends() -> None:
    session, step = counter()
    loop = Loop(lambda feeds: int(session.run(step)))
    loop.pause()
    loop.start()
    time.sleep(0.05)
    assert loop.done == 0
    loop.step_on(3)
    assert loop.wait_for_steps(3, 120)
    time.sleep(0.05)
    assert loop.done == 3
    loop.resume()
    assert loop.wait_for_steps(50, 120)
    loop.pause()
    paused_at = loop.done
    time.sleep(0.05)
    assert loop.done <= paused_at + 1  # the step in progress
    loop.resume()
    assert loop.wait_for_steps(paused_at + 10, 120)
    loop.cancel()
    assert loop.wait(120) == loop.done
    assert session.run(step) == loop.done + 1


def test_the_loop_keeps_its_rate() -> None:
    session, step = counter()
    began = time.perf_counter()
    Loop(lambda feeds: session.run(step), steps=5, rate=50).run()
    assert time.perf_counter() - began >= 4 / 50


def test_errors_of_a_step_are_raised_by_run() -> None:
    def fail(feeds: object) -> None:
        raise ValueError("no")

    loop = Loop(fail, steps=2).start()
    with pytest.raises(ValueError, match="no"):
        loop.wait(120)
    assert loop.ended


@pytest.mark.parametrize("own_thread", [True, False])
def test_errors_of_the_progress_callback_end_the_loop(own_thread: bool) -> None:
    loop = Loop(lambda feeds: 7, steps=5, progress=lambda tick: 1 / 0)
    if own_thread:
        loop.start()
    for _ in range(2):  # the second call runs no step
        with pytest.raises(ZeroDivisionError):
            loop.wait(120) if own_thread else loop.run()
        assert loop.ended
        assert (loop.done, loop.paused) == (1, False)


@pytest.mark.parametrize(
    "bad",
    [{"steps": -1}, {"steps": 1.5}, {"steps": True}, {"rate": 0}, {"rate": float("inf")}, {"rate": 1e-300},
     {"rate": float("nan")}, {"rate": True}, {"rate": 10**400}, {"rate": "5"}],
    ids=lambda bad: str(bad)[:20],
)  # fmt: skip
def test_invalid_steps_and_rates_raise(bad: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        Loop(int, **bad)


def test_a_slow_loop_can_be_cancelled() -> None:
    loop = Loop(lambda feeds: 1, rate=SLOWEST).start()
    assert loop.wait_for_steps(1, 120)
    loop.cancel()
    assert loop.wait(120) == 1


def test_run_returns_on_pause_and_can_be_resumed() -> None:
    def pause(tick: Tick) -> None:
        if tick.step % 2:
            loop.pause()

    loop = Loop(lambda feeds: loop.done, steps=4, progress=pause)
    assert [(loop.run(), loop.paused, loop.ended) for _ in range(4)] == [
        (0, True, False), (2, True, False), (3, False, True), (3, False, True)
    ]  # fmt: skip
    loop = Loop(lambda feeds: loop.done)
    loop.step_on(3)
    assert (loop.run(), loop.paused) == (2, True)
    loop.pause()
    loop.cancel()
    assert loop.ended
    assert (loop.run(), loop.done) == (2, 3)


def test_run_returns_when_another_thread_pauses() -> None:
    loop = Loop(lambda feeds: 1, rate=SLOWEST)
    other = threading.Thread(target=lambda: (loop.wait_for_steps(1, 120), loop.pause()))
    other.start()
    assert loop.run() == 1  # during the pause between steps
    assert loop.paused
    other.join(120)


def test_single_steps() -> None:
    begun, go_on = Queue[int](), threading.Semaphore(0)
    loop = Loop(lambda feeds: (begun.put(1), go_on.acquire(timeout=120))).start()
    begun.get(timeout=120)
    loop.pause()  # while a step is in progress
    assert loop.done == 0
    go_on.release()
    assert loop.wait_for_steps(1, 120)
    for more in range(1, 4):
        loop.step_on()
        begun.get(timeout=120)
        go_on.release()
        assert loop.wait_for_steps(1 + more, 120)
    for bad in (0, -3, 1.5, True):
        with pytest.raises(ValueError, match="n must be"):
            loop.step_on(bad)
    time.sleep(0.05)
    assert begun.empty()
    assert loop.done == 4
    loop.cancel()
    loop.wait(120)


def test_a_running_loop_cannot_be_run_again() -> None:
    loop = Loop(lambda feeds: 1).start()
    for again in (loop.run, loop.start):
        with pytest.raises(RuntimeError, match="this loop was started"):
            again()
    loop.cancel()
    loop.wait(120)
    seen: list[str] = []

    def again_inside(feeds: object) -> None:
        for again in (inner.run, inner.start, inner.wait, lambda: inner.wait_for_steps(1)):
            with pytest.raises(RuntimeError, match=r"running already|cannot wait"):
                again()
            seen.append("refused")

    inner = Loop(again_inside, steps=1)
    inner.run()
    assert len(seen) == 4


def test_wait_for_a_run_in_another_thread() -> None:
    begun, go_on = threading.Event(), threading.Event()
    loop = Loop(lambda feeds: (begun.set(), go_on.wait(120))[1], steps=1)
    other = threading.Thread(target=loop.run)
    other.start()
    assert begun.wait(120)
    with pytest.raises(TimeoutError, match="at step 0"):
        loop.wait(0.01)
    go_on.set()
    assert loop.wait(120) is True
    other.join(120)


def test_an_invalid_batch_raises() -> None:
    loop = Loop(lambda feeds: 1, feeds=[{}, None])
    with pytest.raises(ValueError, match="batch 1 is None"):
        loop.run()
    assert (loop.done, loop.ended) == (1, True)


def test_the_rate_restarts_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now, times = [0.0], list[float]()

    def rest(self: Loop, due: float) -> None:
        now[0] = max(now[0], due)

    monkeypatch.setattr("rowgrad.graph.run_loop.time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(Loop, "_rest", rest)

    def pause(tick: Tick) -> None:
        if tick.step == 1:
            loop.pause()

    loop = Loop(lambda feeds: times.append(now[0]), steps=4, rate=10, progress=pause)
    loop.start()
    while not loop.paused and not loop.ended:
        time.sleep(0.001)
    now[0] += 0.35
    loop.resume()
    loop.wait(120)
    assert [after - before for before, after in pairwise(times[1:])] == [pytest.approx(0.1)] * 2


# -- one step of a page ------------------------------------------------------------------------------------------------


def two_sessions() -> Page:
    """A page whose first session counts, and whose second gathers a fed row."""
    return Page(
        "page",
        [
            Block("count", "Variable", {"initvalues": 0}),
            Block("more", "AssignAdd", {"value": 1}, {"ref": [End("count", "ref")]}),
            Block("row", "Placeholder", attrs={"dtype": "int64", "shape": [1]}),
            Block("pick", "Gather", {"params": [10.0, 20.0]}, {"indices": [End("row", "output")]}),
            Block("first", "ClientSession", wires={"fetch_outputs": [End("more", "output_ref")]}),
            Block("second", "ClientSession", wires={"fetch_outputs": [End("pick", "output")]}),
        ],
    )


def test_a_step_runs_its_sessions_in_order_and_then_fetches() -> None:
    session = ClientSession(build(two_sessions()))
    step = PageStep(session, ["first", "second"], {"now": session.find("count.ref")})
    for count in (1, 2):
        result = step.run({"row": [1]})
        assert {block: list(values) for block, values in result.sessions.items()} == {
            "first": ["more.output_ref"],
            "second": ["pick.output"],
        }
        assert (result.sessions["first"]["more.output_ref"], result.fetched["now"]) == (count, count)
    assert step.block == "second"


def test_a_step_that_fails_changes_nothing_and_names_its_session() -> None:
    session = ClientSession(build(two_sessions()))
    step = PageStep(session, ["first", "second"])
    with pytest.raises(OpError):
        step.run({"row": [7]})
    assert step.block == "second"
    assert session.variables["count"] == 0
    step.run({"row": [0]})
    assert session.variables["count"] == 1


def test_the_first_error_is_that_of_an_upstream_block() -> None:
    page = two_sessions()
    page["pick"].values["params"] = [[1.0], [2.0, 3.0]]
    page.blocks.append(Block("elsewhere", "Unknown"))
    checked = check(page)
    assert checked.first_fault(["first"]) is None
    fault = checked.first_fault(["first", "second"])
    assert fault is not None
    assert (fault.block, fault.error.name) == ("pick", "pick")
    assert fault.error is checked.errors["pick"]
    assert list(checked.errors) == ["pick", "elsewhere"]
