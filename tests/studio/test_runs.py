"""Runs of pages: every mode, pauses that preserve state, edits that end a run, persistent Variables."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from studio_client import StudioClient, client, counter_page, ends

from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import Block, Page
from rowgrad.studio.page_session import EDITED
from rowgrad.studio.run_control import URGENT, USUAL, EventThrottle, Gate

__all__ = ["client"]


def count(client: StudioClient, name: str = "counting") -> float:
    return float(client.cells(name, "more", "output_ref")[0][0])


def test_run_once_returns_its_results(client: StudioClient) -> None:
    revision = client.save_page(counter_page())
    state = client.call("run", name="counting")
    assert (state["phase"], state["run"], state["mode"], state["revision"]) == ("done", 1, "once", revision)
    assert state["results"]["more"]["output_ref"] == {
        "info": {"text": "float32[]", "kind": "tensor", "dtype": "float32", "shape": [], "ref": False},
        "run": 1,
        "steady": False,
        "preview": "1",
    }
    assert state["costs"]["more"]["bytes"] == 4
    assert state["seconds"] > 0
    assert state["error"] is None
    assert client.call("run", name="counting")["results"]["more"]["output_ref"]["preview"] == "2"
    assert client.call("state", name="counting")["run"] == 2


def test_a_run_pauses_after_its_steps_and_resumes(client: StudioClient) -> None:
    client.save_page(counter_page())
    client.call("run", name="counting", mode="steps", steps=5)
    state = client.wait_for("counting", lambda s: s["phase"] == "paused")
    assert (state["run"], state["steps"], state["done"]) == (5, 5, 5)
    assert count(client) == 5.0
    assert client.call("resume", name="counting")["mode"] == "flat"
    client.wait_for("counting", lambda s: s["run"] > 50)
    assert client.call("pause", name="counting")["phase"] == "paused"


def test_a_pause_keeps_state_and_no_step_follows(client: StudioClient) -> None:
    client.save_page(counter_page())
    assert client.call("run", name="counting", mode="flat")["phase"] == "running"
    client.wait_for("counting", lambda s: s["run"] > 10)
    for _ in range(20):
        paused = client.call("pause", name="counting")
        time.sleep(0.003)
        again = client.call("state", name="counting")
        assert paused["phase"] == again["phase"] == "paused"
        assert paused["run"] == again["run"] == count(client)
        work = client.studio.runs.of("counting")._work
        assert work is not None
        assert work.opened.gate.is_spent(work)  # a step that is waiting at the gate does not start
        stepped = client.call("step", name="counting", steps=3)
        stepped = client.wait_for("counting", lambda s: s["phase"] == "paused")
        assert stepped["run"] == paused["run"] + 3 == count(client)
        client.call("resume", name="counting")
    stopped = client.call("stop", name="counting")
    assert stopped["phase"] == "stopped"
    assert stopped["results"]["more"]


def test_a_run_keeps_its_rate(client: StudioClient) -> None:
    client.save_page(counter_page())
    began = time.perf_counter()
    client.call("run", name="counting", mode="rate", rate=40.0)
    client.wait_for("counting", lambda s: s["run"] >= 10)
    took = time.perf_counter() - began
    state = client.call("stop", name="counting")
    assert took > 0.2  # nine pauses of at least 25 ms
    assert state["rate"] == 40.0


def test_step_starts_a_run_if_there_is_none(client: StudioClient) -> None:
    client.save_page(counter_page())
    client.call("step", name="counting", steps=4)
    assert client.wait_for("counting", lambda s: s["phase"] == "paused")["run"] == 4


def test_reset_starts_over(client: StudioClient) -> None:
    client.save_page(counter_page())
    client.call("run", name="counting", mode="flat")
    client.wait_for("counting", lambda s: s["run"] > 10)
    state = client.call("reset", name="counting")
    assert (state["phase"], state["run"], state["results"]) == ("idle", 0, {})
    assert client.call("trend", name="counting") == {"series": [], "run": 0, "chosen": False}
    client.call("run", name="counting")
    assert count(client) == 1.0


def test_an_edit_ends_a_run_and_a_move_does_not(client: StudioClient) -> None:
    client.save_page(counter_page())
    client.call("run", name="counting", mode="flat")
    client.wait_for("counting", lambda s: s["run"] > 3)
    moved = counter_page()
    moved.blocks[0].at = (30.0, 40.0)
    client.save_page(moved)
    run = client.call("state", name="counting")["run"]
    client.wait_for("counting", lambda s: s["phase"] == "running" and s["run"] > run)
    client.save_page(counter_page(by=10.0))
    state = client.call("state", name="counting")
    assert (state["phase"], state["message"]) == ("stopped", EDITED)
    looked = client.call("window", name="counting", block="more", pin="output_ref", rows=[0, 1], columns=[0, 1])
    assert looked["stale"] is True
    assert float(looked["cells"][0][0]) == looked["run"] == state["run"]


def test_moving_a_wire_to_an_identical_variable_changes_the_run(client: StudioClient) -> None:
    """Variables with equal definitions are still different."""
    page = counter_page()
    page.blocks.insert(0, replace(page.blocks[0], id="twin"))
    client.save_page(page)
    client.call("run", name="counting", mode="steps", steps=3)
    client.wait_for("counting", lambda s: s["phase"] == "paused")
    page.blocks[2].wires = {"ref": ends("twin.ref")}
    client.save_page(page)
    assert client.call("state", name="counting")["phase"] == "stopped"
    client.call("run", name="counting")
    assert count(client) == 1.0


def test_variables_keep_their_value_unless_their_block_changed(client: StudioClient) -> None:
    client.save_page(counter_page())
    client.call("run", name="counting", mode="steps", steps=3)
    client.wait_for("counting", lambda s: s["phase"] == "paused")
    client.save_page(counter_page(by=10.0))
    state = client.call("run", name="counting")
    assert state["carried"] == ["count"]
    assert count(client) == 13.0
    assert state["run"] == 4
    client.save_page(counter_page(by=10.0, first=100.0))
    state = client.call("run", name="counting")
    assert state["carried"] == []
    assert count(client) == 110.0


def test_two_pages_run_concurrently(client: StudioClient) -> None:
    client.save_page(counter_page("one"))
    client.save_page(counter_page("two", by=2.0))
    for name in ("one", "two"):
        client.call("run", name=name, mode="flat")
    before = [client.call("state", name=name)["run"] for name in ("one", "two")]
    for name, run in zip(("one", "two"), before, strict=True):
        client.wait_for(name, lambda s, run=run: s["run"] > run + 20)  # type: ignore[misc]
    runs = [client.call("pause", name=name)["run"] for name in ("one", "two")]
    assert [count(client, "one"), count(client, "two")] == [runs[0], 2.0 * runs[1]]


def test_a_slow_page_does_not_delay_others(client: StudioClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long step delays neither events about its own page nor runs of other pages."""
    from rowgrad.graph.session import ClientSession

    free = threading.Event()
    ended: list[str] = []
    real = ClientSession.run_block

    def slow(self: ClientSession, *args: object, **more: object) -> object:
        if self.graph.name == "slow":
            assert free.wait(120)
            ended.append("slow")
        return real(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ClientSession, "run_block", slow)
    client.save_page(counter_page("slow"))
    client.save_page(counter_page("quick"))
    client.call("run", name="slow", mode="flat")
    assert client.call("run", name="quick")["phase"] == "done"
    assert client.call("state", name="slow")["phase"] == "running"
    assert client.call("stop", name="slow")["phase"] == "stopped"
    assert not ended
    free.set()
    client.wait_for("slow", lambda s: s["run"] == 1)


def test_one_step_runs_all_sessions(client: StudioClient) -> None:
    page = counter_page()
    page.blocks.append(Block("double", "Add", {"y": 1.0}, {"x": ends("count.ref")}))
    page.blocks.append(Block("second", "ClientSession", wires={"fetch_outputs": ends("double.z")}))
    client.save_page(page)
    client.call("run", name="counting", mode="steps", steps=2)
    state = client.wait_for("counting", lambda s: s["phase"] == "paused")
    assert state["run"] == 2
    assert {r["run"] for pins in state["results"].values() for r in pins.values()} == {2}
    state = client.call("run", name="counting", sessions=["second"])
    events = {block: pins[next(iter(pins))]["run"] for block, pins in state["results"].items()}
    assert (state["run"], events["double"], events["more"]) == (3, 3, 2)
    looked = client.call("window", name="counting", block="more", pin="output_ref", rows=[0, 1], columns=[0, 1])
    assert (looked["run"], looked["stale"]) == (2, True)


def test_a_constant_result_of_an_earlier_step_is_not_stale(client: StudioClient) -> None:
    """It depends on nothing that a step changes; an edit of its block still makes it stale."""
    page = counter_page()
    page.blocks.append(Block("three", "Add", {"x": np.array([1.0, 2.0]), "y": np.array([2.0, 1.0])}))
    page.blocks.append(Block("second", "ClientSession", wires={"fetch_outputs": ends("three.z")}))
    client.save_page(page)
    client.call("run", name="counting")
    state = client.call("run", name="counting", sessions=["session"])
    three, more = state["results"]["three"]["z"], state["results"]["more"]["output_ref"]
    assert (state["run"], three["run"], more["run"]) == (2, 1, 2)
    assert (three["steady"], more["steady"]) == (True, False)
    looked = client.call("window", name="counting", block="three", pin="z", rows=[0, 2], columns=[0, 1])
    assert (looked["run"], looked["stale"]) == (1, False)
    page.blocks[3] = replace(page.blocks[3], values={"x": np.array([1.0, 2.0]), "y": np.array([4.0, 1.0])})
    client.save_page(page)
    assert client.call("window", name="counting", block="three", pin="z", rows=[0, 2], columns=[0, 1])["stale"] is True


def test_states_have_increasing_numbers(client: StudioClient) -> None:
    client.save_page(counter_page())
    first = client.call("run", name="counting")["serial"]
    assert first < client.call("reset", name="counting")["serial"] < client.call("state", name="counting")["serial"]


def test_a_run_that_fails_names_its_block_and_is_not_repeated(client: StudioClient) -> None:
    page = counter_page()
    page.blocks.insert(2, Block("x", "Placeholder", attrs={"dtype": "int32", "shape": [-1]}))
    page.blocks.insert(
        3, Block("ids", "Gather", {"params": np.ones((2, 2), np.float32)}, {"indices": ends("more_ids.z")})
    )
    page.blocks.insert(3, Block("ids_cast", "Cast", wires={"x": ends("count.ref")}, attrs={"DstT": "int32"}))
    page.blocks.insert(4, Block("more_ids", "Add", {"y": np.array([0], np.int32)}, {"x": ends("ids_cast.y")}))
    page.blocks[-1].wires["fetch_outputs"] += ends("ids.output")
    client.save_page(page)
    client.call("run", name="counting", mode="flat")
    state = client.wait_for("counting", lambda s: s["phase"] != "running")
    assert state["phase"] == "failed"
    assert state["run"] == 2
    assert state["error"]["block"] == "ids"
    assert "2 is not in [0, 2)" in state["error"]["message"]
    time.sleep(0.02)
    assert client.call("state", name="counting")["run"] == 2
    assert float(client.cells("counting", "count", "ref")[0][0]) == 1.0  # the value after the last successful run


def test_a_step_that_fails_changes_nothing(client: StudioClient) -> None:
    """Even if the first session has updated its Variable before the second fails."""
    page = counter_page()
    page.blocks.append(Block("id", "Cast", wires={"x": ends("count.ref")}, attrs={"DstT": "int32"}))
    page.blocks.append(Block("row", "Gather", {"params": np.ones((3, 2), np.float32)}, {"indices": ends("id.y")}))
    page.blocks.append(Block("second", "ClientSession", wires={"fetch_outputs": ends("row.output")}))
    client.save_page(page)
    client.call("run", name="counting", mode="flat")
    state = client.wait_for("counting", lambda s: s["phase"] == "failed")
    assert (state["run"], state["error"]["block"]) == (2, "row")
    session = client.studio.runs.session_of("counting")
    assert session is not None
    assert float(session.variables["count"]) == 2.0


def test_errors_in_unrelated_blocks_do_not_prevent_a_run(client: StudioClient) -> None:
    page = counter_page()
    page.blocks.insert(0, Block("first", "MatMul", {"a": np.ones((2, 3)), "b": np.ones((4, 3))}))
    page.blocks.append(Block("wrong", "MatMul", {"a": np.ones((2, 3)), "b": np.ones((2, 3))}))
    client.save_page(page)
    assert client.call("run", name="counting")["phase"] == "done"
    page.blocks.append(Block("after", "Square", wires={"x": ends("wrong.product")}))
    page.blocks.append(Block("other", "ClientSession", wires={"fetch_outputs": ends("after.y")}))
    client.save_page(page)
    with pytest.raises(InvalidArgumentError, match="inner dimension of 3") as caught:
        client.call("run", name="counting")
    assert (caught.value.name, caught.value.argument) == ("wrong", "b")
    assert client.call("run", name="counting", sessions=["session"])["phase"] == "done"


def test_an_unknown_op_raises_with_its_name(client: StudioClient) -> None:
    page = counter_page()
    page.blocks[1].op = "AssignAd"
    client.save_page(page)
    with pytest.raises(InvalidArgumentError, match="did you mean 'AssignAdd'") as caught:
        client.call("run", name="counting")
    assert caught.value.name == "more"


def test_a_placeholder_without_a_feed_fails_at_the_session(client: StudioClient) -> None:
    page = Page(
        "fed", [Block("x", "Placeholder"), Block("s", "ClientSession", wires={"fetch_outputs": ends("x.output")})]
    )
    client.save_page(page)
    state = client.call("run", name="fed")
    assert state["phase"] == "failed"
    assert state["error"]["block"] == "s"
    assert "x" in state["error"]["text"]


def test_snapshots_are_restored(client: StudioClient) -> None:
    client.save_page(counter_page())
    with pytest.raises(InvalidArgumentError, match="name: page 'counting' has not been run"):
        client.call("snapshot", name="counting")
    client.call("run", name="counting", mode="flat")
    client.wait_for("counting", lambda s: s["run"] > 5)
    (snapshot,) = client.call("snapshot", name="counting", label="here")["snapshots"]
    assert snapshot["label"] == "here"
    client.wait_for("counting", lambda s: s["run"] > snapshot["run"] + 5)
    state = client.call("restore", name="counting", snapshot=snapshot["id"])
    assert (state["phase"], state["run"]) == ("stopped", snapshot["run"])
    assert client.call("run", name="counting")["run"] == snapshot["run"] + 1
    assert count(client) == snapshot["run"] + 1
    points = client.call("trend", name="counting")["series"][0]["points"]
    assert [p[0] for p in points] == sorted({p[0] for p in points})
    with pytest.raises(InvalidArgumentError, match="no snapshot 'x'"):
        client.call("restore", name="counting", snapshot="x")
    assert (client.root / ".rowgrad" / "snapshots" / "counting").is_dir()


def test_variables_are_saved_when_studio_stops_and_offered_at_the_next_start(client: StudioClient) -> None:
    client.save_page(counter_page())
    assert client.call("state", name="counting")["saved"] is None
    for _ in range(3):
        client.call("run", name="counting")
    client.restart()
    saved = client.call("state", name="counting")["saved"]
    assert (saved["label"], saved["run"], saved["automatic"]) == ("when Studio stopped", 3, True)
    assert client.call("restore", name="counting", snapshot=saved["id"])["saved"] is None
    client.call("run", name="counting")
    assert count(client) == 4
    client.restart()
    # The newer one has replaced it; a run from the initial values drops the offer, and is saved in its turn.
    assert client.call("state", name="counting")["saved"]["run"] == 4
    assert [s["run"] for s in client.call("snapshots", name="counting")["snapshots"]] == [4]
    assert client.call("run", name="counting")["saved"] is None
    assert count(client) == 1


def test_what_a_snapshot_has_is_not_saved_again(client: StudioClient) -> None:
    client.save_page(counter_page())
    client.call("run", name="counting")
    client.call("snapshot", name="counting", label="mine")
    client.restart()
    assert [s["label"] for s in client.call("snapshots", name="counting")["snapshots"]] == ["mine"]
    assert client.call("state", name="counting")["saved"]["label"] == "mine"
    client.call("run", name="counting")
    client.call("reset", name="counting")  # there is nothing left to save
    client.restart()
    assert [s["label"] for s in client.call("snapshots", name="counting")["snapshots"]] == ["mine"]


def test_studio_stops_although_the_variables_cannot_be_saved(
    client: StudioClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client.save_page(counter_page())
    client.call("run", name="counting")

    def fail(*given: object, **named: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("rowgrad.studio.runs.Snapshots.take", fail)
    client.studio.runs.close()
    assert capsys.readouterr().err == "rowgrad studio: the Variables of page counting were not saved: no space left\n"


def test_snapshots_are_bounded(client: StudioClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowgrad.studio.runs.MOST", 3)
    client.save_page(counter_page())
    for k in range(5):
        client.call("run", name="counting")
        snapshot = client.call("snapshot", name="counting")["snapshots"]
        assert [s["run"] for s in snapshot] == list(range(max(1, k - 1), k + 2))
    client.call("rename", name="counting", to="other")
    assert [s["run"] for s in client.call("snapshots", name="other")["snapshots"]] == [3, 4, 5]
    assert client.call("state", name="other")["run"] == 5


def test_events_are_throttled_and_the_last_is_sent(client: StudioClient) -> None:
    client.save_page(counter_page())
    client.listener.take(0)
    client.call("run", name="counting", mode="flat")
    events: list[Any] = []
    began = time.monotonic()
    while len(events) < 6:
        events += [e for e in client.listener.take(120) if e["event"] == "run"]
    state = client.call("pause", name="counting")
    assert len(events) <= (time.monotonic() - began) / USUAL + 3  # hundreds of steps were done
    assert [e["state"]["run"] for e in events] == sorted(e["state"]["run"] for e in events)
    while events[-1]["state"]["phase"] != "paused":
        events += [e for e in client.listener.take(120) if e["event"] == "run"]
    assert events[-1]["state"]["run"] == state["run"]


def test_removing_a_page_stops_its_run(client: StudioClient) -> None:
    client.save_page(counter_page())
    client.call("run", name="counting", mode="flat")
    work = client.studio.runs.of("counting")._work
    client.call("remove", name="counting")
    assert client.studio.runs.session_of("counting") is None
    assert work is not None
    work.loop.wait(120)


def test_a_page_of_a_thousand_blocks_runs_quickly(client: StudioClient) -> None:
    blocks = [Block("v", "Variable", {"initvalues": np.full((4, 4), 1.01, np.float32)})]
    for k in range(998):
        before = f"b{k - 1}.y" if k else "v.ref"
        blocks.append(Block(f"b{k}", "Square" if k % 2 else "Sqrt", wires={"x": ends(before)}))
    blocks.append(Block("s", "ClientSession", wires={"fetch_outputs": ends("b997.y")}))
    client.save_page(Page("large", blocks))
    began = time.process_time()
    state = client.call("run", name="large")
    assert state["phase"] == "done"
    assert len(state["results"]) == 999
    assert time.process_time() - began < 5  # usually 0.1 s


def test_gate_admits_only_allowed_steps() -> None:
    gate = Gate()
    one, two = object(), object()
    assert not gate.enter(one)
    gate.allow(one, 2)
    assert not gate.enter(two)
    assert gate.enter(one)
    assert not gate.wait_idle(0.01)
    with pytest.raises(TimeoutError, match="has not ended"), gate.between(0.01):
        pass
    gate.leave()
    assert gate.enter(one)
    gate.leave()
    assert gate.is_spent(one)
    assert not gate.enter(one)
    with gate.between(1):
        assert not gate.wait_idle(0.01)


def test_throttled_events_include_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now, events = [100.0], list[float]()

    class Timer:
        """Fires by the test's clock."""

        def __init__(self, seconds: float, act: Callable[[], None]) -> None:
            self.due, self.act, self.daemon = now[0] + seconds, act, False

        def start(self) -> None:
            timers.append(self)

        def cancel(self) -> None:
            timers.remove(self)

    def advance_clock(seconds: float) -> None:
        now[0] += seconds
        for timer in [timer for timer in timers if timer.due <= now[0]]:
            timers.remove(timer)
            timer.act()

    timers: list[Timer] = []
    monkeypatch.setattr("rowgrad.studio.run_control.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("rowgrad.studio.run_control.threading.Timer", Timer)
    teller = EventThrottle(lambda: events.append(now[0]))
    for _ in range(50):
        teller.soon()
    assert events == [100.0]
    advance_clock(USUAL / 2)
    assert len(events) == 1
    assert [timer.due for timer in timers] == [pytest.approx(100.0 + USUAL)]
    advance_clock(USUAL)
    assert len(events) == 2
    teller.soon()
    teller.soon(urgent=True)
    assert [timer.due for timer in timers] == [pytest.approx(events[-1] + URGENT)]
    advance_clock(2 * URGENT)
    assert len(events) == 3
    teller.soon()
    teller.close()
    teller.soon()
    advance_clock(10 * USUAL)
    assert len(events) == 3


def test_concurrent_calls_keep_the_run_count_consistent(client: StudioClient) -> None:
    """The Variable equals the number of runs, and the run can still be stopped."""
    client.save_page(counter_page())
    calls = ("pause", "resume", "step", "stop", "run", "state", "snapshots")
    wrong: list[BaseException] = []

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            verb = calls[rng.integers(len(calls))]
            args = {"run": {"mode": ("once", "flat", "steps")[rng.integers(3)], "steps": 2}, "step": {"steps": 2}}
            try:
                client.call(verb, {"name": "counting", **args.get(verb, {})})
            except InvalidArgumentError as error:
                if "nothing to resume" not in str(error):
                    wrong.append(error)
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not wrong
    client.call("stop", name="counting")
    time.sleep(0.02)
    state = client.call("state", name="counting")
    assert state["phase"] in ("stopped", "done")
    assert count(client) == state["run"] > 0
    assert client.call("run", name="counting")["run"] == state["run"] + 1
