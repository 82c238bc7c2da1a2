"""Loops: steps, rates, pauses that keep state, cancelling."""

from __future__ import annotations

import time

import pytest

from rowgrad.graph import ClientSession, Loop, Scope, ops


def counter() -> tuple[ClientSession, object]:
    root = Scope.new_root_scope()
    return ClientSession(root), ops.AssignAdd(root, ops.Variable(root, 0), 1)


def test_steps_and_progress() -> None:
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
    assert loop.wait_for_steps(3, 10)
    time.sleep(0.05)
    assert loop.done == 3
    loop.resume()
    assert loop.wait_for_steps(50, 10)
    loop.pause()
    time.sleep(0.05)
    paused_at = loop.done
    time.sleep(0.05)
    assert loop.done == paused_at
    loop.resume()
    assert loop.wait_for_steps(paused_at + 10, 10)
    loop.cancel()
    assert loop.wait(10) == loop.done
    assert session.run(step) == loop.done + 1


def test_a_rate_is_kept() -> None:
    session, step = counter()
    began = time.perf_counter()
    Loop(lambda feeds: session.run(step), steps=5, rate=50).run()
    assert time.perf_counter() - began >= 4 / 50


def test_errors_come_back() -> None:
    def fail(feeds: object) -> None:
        raise ValueError("no")

    loop = Loop(fail, steps=2).start()
    with pytest.raises(ValueError, match="no"):
        loop.wait(10)
    assert loop.ended
    for bad in ({"steps": -1}, {"steps": 1.5}, {"rate": 0}, {"rate": float("inf")}):
        with pytest.raises(ValueError, match="must be"):
            Loop(fail, **bad)
