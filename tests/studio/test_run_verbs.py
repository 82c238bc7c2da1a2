"""Verbs of runs: their errors, and the command that does the same without a studio."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studio_client import StudioClient, client, counter_page

from rowgrad.cli import main
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import Page

__all__ = ["client"]


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("run", {}, "run: name must be a string; got 'nothing'"),
        ("run", {"name": "nobody"}, "there is no page 'nobody'"),
        ("run", {"name": "../counting"}, "name"),
        ("run", {"name": "counting", "mode": "twice"}, "mode must be one of once, steps, rate, flat; got 'twice'"),
        ("run", {"name": "counting", "mode": "steps"}, "steps must be an integer; got 'nothing'"),
        ("run", {"name": "counting", "mode": "steps", "steps": 0}, "steps must be an integer from 1"),
        ("run", {"name": "counting", "mode": "steps", "steps": True}, "steps must be an integer from 1"),
        ("run", {"name": "counting", "mode": "rate"}, "rate must be a number; got 'nothing'"),
        ("run", {"name": "counting", "mode": "rate", "rate": 0}, "rate must be a number from 1e-06 to 1e"),
        ("run", {"name": "counting", "sessions": ["sesion"]}, "sessions: 'sesion' .*did you mean 'session'"),
        ("run", {"name": "counting", "sessions": ["count"]}, "sessions: 'count' is not a ClientSession block"),
        ("run", {"name": "counting", "sessions": "session"}, "sessions must be a list"),
        ("run", {"name": "counting", "engine": "abacus"}, "abacus"),
        ("run", {"name": "empty"}, "this page has no block to run"),
        ("run", {"name": "counting", "change": 1}, "change must be true or false"),
        ("pause", {"name": "nobody"}, "there is no page 'nobody'"),
        ("resume", {"name": "counting"}, "name: page 'counting' is idle: nothing to resume"),
        ("step", {"name": "counting", "steps": 0}, "step: steps must be an integer from 1"),
        ("stop", {}, "stop: name must be a string"),
        ("reset", {"name": 3}, "reset: name must be a string; got 3"),
        ("state", {"name": "nobody"}, "there is no page 'nobody'"),
        ("snapshot", {"name": "counting", "label": "x" * 300}, "label must be at most 200 characters"),
        ("restore", {"name": "counting"}, "snapshot must be a string"),
        ("restore", {"name": "counting", "snapshot": "../x"}, "no snapshot '../x'"),
        ("command", {"name": "counting", "mode": "rate", "rate": "x"}, "rate must be a number; got 'x'"),
    ],
)
def test_invalid_requests_raise_and_start_no_run(
    client: StudioClient, verb: str, arguments: dict[str, Any], message: str
) -> None:
    client.save_page(counter_page())
    client.save_page(Page("empty"))
    with pytest.raises(InvalidArgumentError, match=message):
        client.call(verb, arguments)
    assert client.call("state", name="counting")["phase"] == "idle"


def test_a_rejected_start_leaves_the_run_as_it_is(client: StudioClient) -> None:
    client.save_page(counter_page())
    client.call("run", name="counting", mode="flat")
    for arguments in ({"engine": "abacus"}, {"sessions": ["x"]}):
        with pytest.raises(InvalidArgumentError):
            client.call("run", {"name": "counting", **arguments})
    state = client.call("state", name="counting")
    assert state["phase"] == "running"
    client.wait_for("counting", lambda s: s["run"] > state["run"])


def test_pages_that_never_ran_have_an_idle_state(client: StudioClient) -> None:
    client.save_page(counter_page())
    for verb in ("state", "pause", "stop", "reset"):
        state = client.call(verb, name="counting")
        assert (state["phase"], state["run"], state["results"], state["revision"]) == ("idle", 0, {}, None)
    assert client.call("snapshots", name="counting") == {"snapshots": []}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, []),
        ({"mode": "steps", "steps": 5}, ["--steps", "5"]),
        ({"mode": "rate", "rate": 50.5, "steps": 3}, ["--steps", "3", "--rate", "50.5"]),
        ({"sessions": ["session"], "engine": "torch:cpu"}, ["--session", "session", "--engine", "torch:cpu"]),
    ],
)
def test_the_command_lists_the_run_options(
    client: StudioClient, arguments: dict[str, Any], expected: list[str]
) -> None:
    client.save_page(counter_page("it's mine"))
    text = client.call("command", {"name": "it's mine", **arguments})["text"]
    assert shlex.split(text) == ["rowgrad", "run", str(client.root / "it's mine.json"), *expected]


def test_the_command_computes_the_same_results(client: StudioClient, tmp_path: Path) -> None:
    client.save_page(counter_page())
    client.call("run", name="counting", mode="steps", steps=3)
    client.wait_for("counting", lambda s: s["phase"] == "paused")
    (snapshot,) = client.call("snapshot", name="counting")["snapshots"]
    client.call("run", name="counting")
    client.call("restore", name="counting", snapshot=snapshot["id"])
    for _ in range(2):  # the command does not change the snapshot
        text = client.call("command", name="counting", mode="steps", steps=4)["text"]
        expected = shlex.split(text)
        assert expected[:2] == ["rowgrad", "run"]
        assert main([*expected[1:], "-o", str(tmp_path / "out.npz"), "--quiet"]) == 0
        with np.load(tmp_path / "out.npz") as members:
            assert float(members["more.output_ref"]) == 7.0
    client.call("run", name="counting", mode="steps", steps=4)
    client.wait_for("counting", lambda s: s["phase"] == "paused")
    assert client.cells("counting", "more", "output_ref") == [["7.0"]]


def test_torch_computes_the_same_results(client: StudioClient) -> None:
    pytest.importorskip("torch")
    name = client.copy_example("train_embedding")
    previews = []
    for engine in ("numpy", "torch"):
        client.call("reset", name=name)
        state = client.call("run", name=name, engine=engine)
        assert state["engine"] == engine
        previews.append(state["results"]["loss"]["output"]["preview"])
    assert previews[0] == previews[1]
