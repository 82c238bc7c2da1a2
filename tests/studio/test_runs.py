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
from studio_client import Asking, asking, counting, ends

from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import Block, Page
from rowgrad.studio.page_session import EDITED
from rowgrad.studio.run_control import URGENT, USUAL, EventThrottle, Gate

__all__ = ["asking"]


def count(asking: Asking, name: str = "counting") -> float:
    return float(asking.cells(name, "more", "output_ref")[0][0])


def test_once_answers_with_its_result(asking: Asking) -> None:
    revision = asking.put(counting())
    state = asking.ask("run", name="counting")
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
    assert asking.ask("run", name="counting")["results"]["more"]["output_ref"]["preview"] == "2"
    assert asking.ask("state", name="counting")["run"] == 2


def test_steps_pause_and_the_run_goes_on(asking: Asking) -> None:
    asking.put(counting())
    asking.ask("run", name="counting", mode="steps", steps=5)
    state = asking.until("counting", lambda s: s["phase"] == "paused")
    assert (state["run"], state["steps"], state["done"]) == (5, 5, 5)
    assert count(asking) == 5.0
    assert asking.ask("resume", name="counting")["mode"] == "flat"
    asking.until("counting", lambda s: s["run"] > 50)
    assert asking.ask("pause", name="counting")["phase"] == "paused"


def test_a_pause_keeps_state_and_no_step_follows(asking: Asking) -> None:
    asking.put(counting())
    assert asking.ask("run", name="counting", mode="flat")["phase"] == "running"
    asking.until("counting", lambda s: s["run"] > 10)
    for _ in range(20):
        paused = asking.ask("pause", name="counting")
        time.sleep(0.003)
        again = asking.ask("state", name="counting")
        assert paused["phase"] == again["phase"] == "paused"
        assert paused["run"] == again["run"] == count(asking)
        work = asking.studio.runs.of("counting")._work
        assert work is not None
        assert work.opened.gate.is_spent(work)  # and so a step that is on its way does not pass
        stepped = asking.ask("step", name="counting", steps=3)
        stepped = asking.until("counting", lambda s: s["phase"] == "paused")
        assert stepped["run"] == paused["run"] + 3 == count(asking)
        asking.ask("resume", name="counting")
    stopped = asking.ask("stop", name="counting")
    assert stopped["phase"] == "stopped"
    assert stopped["results"]["more"]


def test_a_rate_is_kept(asking: Asking) -> None:
    asking.put(counting())
    began = time.perf_counter()
    asking.ask("run", name="counting", mode="rate", rate=40.0)
    asking.until("counting", lambda s: s["run"] >= 10)
    took = time.perf_counter() - began
    state = asking.ask("stop", name="counting")
    assert took > 0.2  # nine pauses of 25 ms; a busy machine makes them longer, never shorter
    assert state["rate"] == 40.0


def test_step_begins_a_run_where_there_is_none(asking: Asking) -> None:
    asking.put(counting())
    asking.ask("step", name="counting", steps=4)
    assert asking.until("counting", lambda s: s["phase"] == "paused")["run"] == 4


def test_reset_starts_over(asking: Asking) -> None:
    asking.put(counting())
    asking.ask("run", name="counting", mode="flat")
    asking.until("counting", lambda s: s["run"] > 10)
    state = asking.ask("reset", name="counting")
    assert (state["phase"], state["run"], state["results"]) == ("idle", 0, {})
    assert asking.ask("trend", name="counting") == {"series": [], "run": 0, "chosen": False}
    asking.ask("run", name="counting")
    assert count(asking) == 1.0


def test_an_edit_ends_a_run_and_a_move_does_not(asking: Asking) -> None:
    asking.put(counting())
    asking.ask("run", name="counting", mode="flat")
    asking.until("counting", lambda s: s["run"] > 3)
    moved = counting()
    moved.blocks[0].at = (30.0, 40.0)
    asking.put(moved)
    run = asking.ask("state", name="counting")["run"]
    asking.until("counting", lambda s: s["phase"] == "running" and s["run"] > run)
    asking.put(counting(by=10.0))
    state = asking.ask("state", name="counting")
    assert (state["phase"], state["message"]) == ("stopped", EDITED)
    looked = asking.ask("window", name="counting", block="more", pin="output_ref", rows=[0, 1], columns=[0, 1])
    assert looked["stale"] is True
    assert float(looked["cells"][0][0]) == looked["run"] == state["run"]


def test_a_run_of_a_page_whose_wire_was_moved_to_a_twin_is_another(asking: Asking) -> None:
    """Two Variables may be made alike: which of them a wire begins at still matters."""
    page = counting()
    page.blocks.insert(0, replace(page.blocks[0], id="twin"))
    asking.put(page)
    asking.ask("run", name="counting", mode="steps", steps=3)
    asking.until("counting", lambda s: s["phase"] == "paused")
    page.blocks[2].wires = {"ref": ends("twin.ref")}
    asking.put(page)
    assert asking.ask("state", name="counting")["phase"] == "stopped"
    asking.ask("run", name="counting")
    assert count(asking) == 1.0


def test_variables_live_on_where_their_block_is_what_it_was(asking: Asking) -> None:
    asking.put(counting())
    asking.ask("run", name="counting", mode="steps", steps=3)
    asking.until("counting", lambda s: s["phase"] == "paused")
    asking.put(counting(by=10.0))
    state = asking.ask("run", name="counting")
    assert state["carried"] == ["count"]
    assert count(asking) == 13.0
    assert state["run"] == 4
    asking.put(counting(by=10.0, first=100.0))
    state = asking.ask("run", name="counting")
    assert state["carried"] == []
    assert count(asking) == 110.0


def test_two_pages_run_together(asking: Asking) -> None:
    asking.put(counting("one"))
    asking.put(counting("two", by=2.0))
    for name in ("one", "two"):
        asking.ask("run", name=name, mode="flat")
    before = [asking.ask("state", name=name)["run"] for name in ("one", "two")]
    for name, run in zip(("one", "two"), before, strict=True):
        asking.until(name, lambda s, run=run: s["run"] > run + 20)  # type: ignore[misc]
    runs = [asking.ask("pause", name=name)["run"] for name in ("one", "two")]
    assert [count(asking, "one"), count(asking, "two")] == [runs[0], 2.0 * runs[1]]


def test_a_page_that_waits_holds_up_no_other(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long step delays neither events about its own page nor runs of other pages."""
    from rowgrad.graph.session import ClientSession

    free = threading.Event()
    ended: list[str] = []
    real = ClientSession.run_block

    def slow(self: ClientSession, *given: object, **more: object) -> object:
        if self.graph.name == "slow":
            assert free.wait(120)
            ended.append("slow")
        return real(self, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ClientSession, "run_block", slow)
    asking.put(counting("slow"))
    asking.put(counting("quick"))
    asking.ask("run", name="slow", mode="flat")
    assert asking.ask("run", name="quick")["phase"] == "done"
    assert asking.ask("state", name="slow")["phase"] == "running"
    assert asking.ask("stop", name="slow")["phase"] == "stopped"
    assert not ended
    free.set()
    asking.until("slow", lambda s: s["run"] == 1)


def test_two_sessions_make_one_step(asking: Asking) -> None:
    page = counting()
    page.blocks.append(Block("double", "Add", {"y": 1.0}, {"x": ends("count.ref")}))
    page.blocks.append(Block("second", "ClientSession", wires={"fetch_outputs": ends("double.z")}))
    asking.put(page)
    asking.ask("run", name="counting", mode="steps", steps=2)
    state = asking.until("counting", lambda s: s["phase"] == "paused")
    assert state["run"] == 2
    assert {r["run"] for pins in state["results"].values() for r in pins.values()} == {2}
    state = asking.ask("run", name="counting", sessions=["second"])
    events = {block: pins[next(iter(pins))]["run"] for block, pins in state["results"].items()}
    assert (state["run"], events["double"], events["more"]) == (3, 3, 2)
    looked = asking.ask("window", name="counting", block="more", pin="output_ref", rows=[0, 1], columns=[0, 1])
    assert (looked["run"], looked["stale"]) == (2, True)


def test_a_steady_result_of_an_earlier_step_is_not_stale(asking: Asking) -> None:
    """Nothing a later step could change has a part in it; a new recipe makes it stale all the same."""
    page = counting()
    page.blocks.append(Block("three", "Add", {"x": np.array([1.0, 2.0]), "y": np.array([2.0, 1.0])}))
    page.blocks.append(Block("second", "ClientSession", wires={"fetch_outputs": ends("three.z")}))
    asking.put(page)
    asking.ask("run", name="counting")
    state = asking.ask("run", name="counting", sessions=["session"])
    three, more = state["results"]["three"]["z"], state["results"]["more"]["output_ref"]
    assert (state["run"], three["run"], more["run"]) == (2, 1, 2)
    assert (three["steady"], more["steady"]) == (True, False)
    looked = asking.ask("window", name="counting", block="three", pin="z", rows=[0, 2], columns=[0, 1])
    assert (looked["run"], looked["stale"]) == (1, False)
    page.blocks[3] = replace(page.blocks[3], values={"x": np.array([1.0, 2.0]), "y": np.array([4.0, 1.0])})
    asking.put(page)
    assert asking.ask("window", name="counting", block="three", pin="z", rows=[0, 2], columns=[0, 1])["stale"] is True


def test_states_can_be_ordered(asking: Asking) -> None:
    asking.put(counting())
    first = asking.ask("run", name="counting")["serial"]
    assert first < asking.ask("reset", name="counting")["serial"] < asking.ask("state", name="counting")["serial"]


def test_a_run_that_fails_names_its_block_and_is_not_repeated(asking: Asking) -> None:
    page = counting()
    page.blocks.insert(2, Block("x", "Placeholder", attrs={"dtype": "int32", "shape": [-1]}))
    page.blocks.insert(
        3, Block("ids", "Gather", {"params": np.ones((2, 2), np.float32)}, {"indices": ends("more_ids.z")})
    )
    page.blocks.insert(3, Block("ids_cast", "Cast", wires={"x": ends("count.ref")}, attrs={"DstT": "int32"}))
    page.blocks.insert(4, Block("more_ids", "Add", {"y": np.array([0], np.int32)}, {"x": ends("ids_cast.y")}))
    page.blocks[-1].wires["fetch_outputs"] += ends("ids.output")
    asking.put(page)
    asking.ask("run", name="counting", mode="flat")
    state = asking.until("counting", lambda s: s["phase"] != "running")
    assert state["phase"] == "failed"
    assert state["run"] == 2
    assert state["error"]["block"] == "ids"
    assert "2 is not in [0, 2)" in state["error"]["message"]
    time.sleep(0.02)
    assert asking.ask("state", name="counting")["run"] == 2
    assert float(asking.cells("counting", "count", "ref")[0][0]) == 1.0  # as in the last run that went well


def test_a_step_that_fails_changes_nothing(asking: Asking) -> None:
    """The first session has added already when the second fails."""
    page = counting()
    page.blocks.append(Block("id", "Cast", wires={"x": ends("count.ref")}, attrs={"DstT": "int32"}))
    page.blocks.append(Block("row", "Gather", {"params": np.ones((3, 2), np.float32)}, {"indices": ends("id.y")}))
    page.blocks.append(Block("second", "ClientSession", wires={"fetch_outputs": ends("row.output")}))
    asking.put(page)
    asking.ask("run", name="counting", mode="flat")
    state = asking.until("counting", lambda s: s["phase"] == "failed")
    assert (state["run"], state["error"]["block"]) == (2, "row")
    session = asking.studio.runs.session_of("counting")
    assert session is not None
    assert float(session.variables["count"]) == 2.0


def test_faults_elsewhere_do_not_matter(asking: Asking) -> None:
    page = counting()
    page.blocks.insert(0, Block("first", "MatMul", {"a": np.ones((2, 3)), "b": np.ones((4, 3))}))
    page.blocks.append(Block("wrong", "MatMul", {"a": np.ones((2, 3)), "b": np.ones((2, 3))}))
    asking.put(page)
    assert asking.ask("run", name="counting")["phase"] == "done"
    page.blocks.append(Block("after", "Square", wires={"x": ends("wrong.product")}))
    page.blocks.append(Block("other", "ClientSession", wires={"fetch_outputs": ends("after.y")}))
    asking.put(page)
    with pytest.raises(InvalidArgumentError, match="inner dimension of 3") as caught:
        asking.ask("run", name="counting")
    assert (caught.value.name, caught.value.argument) == ("wrong", "b")
    assert asking.ask("run", name="counting", sessions=["session"])["phase"] == "done"


def test_a_block_of_another_catalogue_is_rejected_by_its_name(asking: Asking) -> None:
    page = counting()
    page.blocks[1].op = "AssignAd"
    asking.put(page)
    with pytest.raises(InvalidArgumentError, match="did you mean 'AssignAdd'") as caught:
        asking.ask("run", name="counting")
    assert caught.value.name == "more"


def test_a_placeholder_that_is_not_fed_fails_at_the_session(asking: Asking) -> None:
    page = Page(
        "fed", [Block("x", "Placeholder"), Block("s", "ClientSession", wires={"fetch_outputs": ends("x.output")})]
    )
    asking.put(page)
    state = asking.ask("run", name="fed")
    assert state["phase"] == "failed"
    assert state["error"]["block"] == "s"
    assert "x" in state["error"]["text"]


def test_snapshots_are_gone_back_to(asking: Asking) -> None:
    asking.put(counting())
    with pytest.raises(InvalidArgumentError, match="name: page 'counting' has not been run"):
        asking.ask("snapshot", name="counting")
    asking.ask("run", name="counting", mode="flat")
    asking.until("counting", lambda s: s["run"] > 5)
    (snapshot,) = asking.ask("snapshot", name="counting", label="here")["snapshots"]
    assert snapshot["label"] == "here"
    asking.until("counting", lambda s: s["run"] > snapshot["run"] + 5)
    state = asking.ask("restore", name="counting", snapshot=snapshot["id"])
    assert (state["phase"], state["run"]) == ("stopped", snapshot["run"])
    assert asking.ask("run", name="counting")["run"] == snapshot["run"] + 1
    assert count(asking) == snapshot["run"] + 1
    points = asking.ask("trend", name="counting")["series"][0]["points"]
    assert [p[0] for p in points] == sorted({p[0] for p in points})
    with pytest.raises(InvalidArgumentError, match="no snapshot 'x'"):
        asking.ask("restore", name="counting", snapshot="x")
    assert (asking.root / ".rowgrad" / "snapshots" / "counting").is_dir()


def test_snapshots_are_bounded(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowgrad.studio.runs.MOST", 3)
    asking.put(counting())
    for k in range(5):
        asking.ask("run", name="counting")
        snapshot = asking.ask("snapshot", name="counting")["snapshots"]
        assert [s["run"] for s in snapshot] == list(range(max(1, k - 1), k + 2))
    asking.ask("rename", name="counting", to="other")
    assert [s["run"] for s in asking.ask("snapshots", name="other")["snapshots"]] == [3, 4, 5]
    assert asking.ask("state", name="other")["run"] == 5


def test_events_are_throttled_and_the_last_is_sent(asking: Asking) -> None:
    asking.put(counting())
    asking.listener.take(0)
    asking.ask("run", name="counting", mode="flat")
    events: list[Any] = []
    began = time.monotonic()
    while len(events) < 6:
        events += [e for e in asking.listener.take(120) if e["event"] == "run"]
    state = asking.ask("pause", name="counting")
    assert len(events) <= (time.monotonic() - began) / USUAL + 3  # hundreds of steps were done
    assert [e["state"]["run"] for e in events] == sorted(e["state"]["run"] for e in events)
    while events[-1]["state"]["phase"] != "paused":
        events += [e for e in asking.listener.take(120) if e["event"] == "run"]
    assert events[-1]["state"]["run"] == state["run"]


def test_removed_pages_run_no_more(asking: Asking) -> None:
    asking.put(counting())
    asking.ask("run", name="counting", mode="flat")
    work = asking.studio.runs.of("counting")._work
    asking.ask("remove", name="counting")
    assert asking.studio.runs.session_of("counting") is None
    assert work is not None
    work.loop.wait(120)


def test_a_thousand_blocks_answer_soon(asking: Asking) -> None:
    blocks = [Block("v", "Variable", {"initvalues": np.full((4, 4), 1.01, np.float32)})]
    for k in range(998):
        before = f"b{k - 1}.y" if k else "v.ref"
        blocks.append(Block(f"b{k}", "Square" if k % 2 else "Sqrt", wires={"x": ends(before)}))
    blocks.append(Block("s", "ClientSession", wires={"fetch_outputs": ends("b997.y")}))
    asking.put(Page("large", blocks))
    began = time.process_time()
    state = asking.ask("run", name="large")
    assert state["phase"] == "done"
    assert len(state["results"]) == 999
    assert time.process_time() - began < 5  # 0.1 s, whatever else the machine does


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
        """Goes off when the test's clock has come so far."""

        def __init__(self, seconds: float, act: Callable[[], None]) -> None:
            self.due, self.act, self.daemon = now[0] + seconds, act, False

        def start(self) -> None:
            timers.append(self)

        def cancel(self) -> None:
            timers.remove(self)

    def pass_by(seconds: float) -> None:
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
    pass_by(USUAL / 2)
    assert len(events) == 1
    assert [timer.due for timer in timers] == [pytest.approx(100.0 + USUAL)]
    pass_by(USUAL)
    assert len(events) == 2
    teller.soon()
    teller.soon(urgent=True)
    assert [timer.due for timer in timers] == [pytest.approx(events[-1] + URGENT)]
    pass_by(2 * URGENT)
    assert len(events) == 3
    teller.soon()
    teller.close()
    teller.soon()
    pass_by(10 * USUAL)
    assert len(events) == 3


def test_calls_in_any_order_from_many_threads(asking: Asking) -> None:
    """Whatever is requested at the same time, a Variable counts the runs, and the run can be ended."""
    asking.put(counting())
    calls = ("pause", "resume", "step", "stop", "run", "state", "snapshots")
    wrong: list[BaseException] = []

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            verb = calls[rng.integers(len(calls))]
            given = {"run": {"mode": ("once", "flat", "steps")[rng.integers(3)], "steps": 2}, "step": {"steps": 2}}
            try:
                asking.ask(verb, {"name": "counting", **given.get(verb, {})})
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
    asking.ask("stop", name="counting")
    time.sleep(0.02)
    state = asking.ask("state", name="counting")
    assert state["phase"] in ("stopped", "done")
    assert count(asking) == state["run"] > 0
    assert asking.ask("run", name="counting")["run"] == state["run"] + 1
