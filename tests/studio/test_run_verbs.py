"""Verbs of runs: their errors, and the command that does the same without a studio."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studio_client import Asking, asking, counting

from rowgrad.cli import main
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import Block, Page

__all__ = ["asking"]


@pytest.mark.parametrize(
    ("verb", "given", "words"),
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
        ("run", {"name": "empty"}, "this page has no ClientSession block to run"),
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
def test_refusals(asking: Asking, verb: str, given: dict[str, Any], words: str) -> None:
    asking.put(counting())
    asking.put(Page("empty", [Block("c", "Const", {"val": 1})]))
    with pytest.raises(InvalidArgumentError, match=words):
        asking.ask(verb, given)
    assert asking.ask("state", name="counting")["phase"] == "idle"


def test_a_rejected_start_leaves_the_run_as_it_is(asking: Asking) -> None:
    asking.put(counting())
    asking.ask("run", name="counting", mode="flat")
    for given in ({"engine": "abacus"}, {"sessions": ["x"]}):
        with pytest.raises(InvalidArgumentError):
            asking.ask("run", {"name": "counting", **given})
    state = asking.ask("state", name="counting")
    assert state["phase"] == "running"
    asking.until("counting", lambda s: s["run"] > state["run"])


def test_idle_pages_have_a_state(asking: Asking) -> None:
    asking.put(counting())
    for verb in ("state", "pause", "stop", "reset"):
        state = asking.ask(verb, name="counting")
        assert (state["phase"], state["run"], state["results"], state["revision"]) == ("idle", 0, {}, None)
    assert asking.ask("snapshots", name="counting") == {"snapshots": []}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, []),
        ({"mode": "steps", "steps": 5}, ["--steps", "5"]),
        ({"mode": "rate", "rate": 50.5, "steps": 3}, ["--steps", "3", "--rate", "50.5"]),
        ({"sessions": ["session"], "engine": "torch:cpu"}, ["--session", "session", "--engine", "torch:cpu"]),
    ],
)
def test_the_command(asking: Asking, given: dict[str, Any], words: list[str]) -> None:
    asking.put(counting("it's mine"))
    text = asking.ask("command", {"name": "it's mine", **given})["text"]
    assert shlex.split(text) == ["rowgrad", "run", str(asking.root / "it's mine.json"), *words]


def test_the_command_does_the_same(asking: Asking, tmp_path: Path) -> None:
    asking.put(counting())
    asking.ask("run", name="counting", mode="steps", steps=3)
    asking.until("counting", lambda s: s["phase"] == "paused")
    (snapshot,) = asking.ask("snapshot", name="counting")["snapshots"]
    asking.ask("run", name="counting")
    asking.ask("restore", name="counting", snapshot=snapshot["id"])
    for _ in range(2):  # the snapshot itself stays what it is
        text = asking.ask("command", name="counting", mode="steps", steps=4)["text"]
        words = shlex.split(text)
        assert words[:2] == ["rowgrad", "run"]
        assert main([*words[1:], "-o", str(tmp_path / "out.npz"), "--quiet"]) == 0
        with np.load(tmp_path / "out.npz") as members:
            assert float(members["more.output_ref"]) == 7.0
    asking.ask("run", name="counting", mode="steps", steps=4)
    asking.until("counting", lambda s: s["phase"] == "paused")
    assert asking.cells("counting", "more", "output_ref") == [["7.0"]]


def test_torch_gives_the_same(asking: Asking) -> None:
    pytest.importorskip("torch")
    name = asking.example("train_embedding")
    previews = []
    for engine in ("numpy", "torch"):
        asking.ask("reset", name=name)
        state = asking.ask("run", name=name, engine=engine)
        assert state["engine"] == engine
        previews.append(state["results"]["loss"]["output"]["preview"])
    assert previews[0] == previews[1]
