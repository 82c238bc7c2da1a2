"""Verbs about runs: started, paused, gone on with, kept; and the command that does the same without a studio."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError
from ..graph.run_loop import SLOWEST
from .page_session import MODES
from .verbs import Asked, Json, verb

if TYPE_CHECKING:
    from .studio import Studio

MOST_STEPS = 10**9
FASTEST = 1e6  # steps per second that may be asked for


@verb("run")
def run(studio: Studio, given: Asked) -> Json:
    """Run a page as it was saved."""
    name, asked = given.text("name"), _asked(given)
    page, revision = studio.folder.open(name)
    return studio.runs.start(name, page, revision, **asked)


@verb("pause")
def pause(studio: Studio, given: Asked) -> Json:
    """Stop after the step in progress."""
    return studio.runs.pause(_page(studio, given))


@verb("resume")
def resume(studio: Studio, given: Asked) -> Json:
    """Go on after a pause."""
    return studio.runs.resume(_page(studio, given))


@verb("stop")
def stop(studio: Studio, given: Asked) -> Json:
    """End a run."""
    return studio.runs.stop(_page(studio, given))


@verb("step")
def step(studio: Studio, given: Asked) -> Json:
    """So many steps, then pause; a page that is not running begins with them."""
    name, steps = given.text("name"), given.whole("steps", 1, MOST_STEPS, 1)
    if studio.runs.of(_page(studio, given)).is_alive:
        try:
            return studio.runs.step(name, steps)
        except InvalidArgumentError:
            if studio.runs.of(name).is_alive:
                raise
            # It ended a moment ago, so that it begins anew.
    page, revision = studio.folder.open(name)
    engine = studio.runs.state(name)["engine"] or "numpy"
    return studio.runs.start(name, page, revision, mode="steps", steps=steps, engine=engine)


@verb("reset")
def reset(studio: Studio, given: Asked) -> Json:
    """Begin anew."""
    return studio.runs.reset(_page(studio, given))


@verb("state")
def state(studio: Studio, given: Asked) -> Json:
    """How a page's run stands."""
    return studio.runs.state(_page(studio, given))


@verb("snapshot")
def snapshot(studio: Studio, given: Asked) -> Json:
    """Keep a page's state."""
    return {"snapshots": studio.runs.snapshot(_page(studio, given), given.text("label", "", 200))}


@verb("snapshots")
def snapshots(studio: Studio, given: Asked) -> Json:
    """The states that were kept."""
    return {"snapshots": studio.runs.snapshots(_page(studio, given))}


@verb("restore")
def restore(studio: Studio, given: Asked) -> Json:
    """Go back to a state that was kept."""
    name, kept = given.text("name"), given.text("snapshot", most=100)
    page, revision = studio.folder.open(name)
    return studio.runs.restore(name, kept, page, revision)


@verb("command")
def command(studio: Studio, given: Asked) -> Json:
    """The line that runs the page in a shell. It begins from the snapshot that was restored, if one was.

    A run without an end has none there: the line asks for as many steps as were done.
    """
    name, asked = _page(studio, given), _asked(given)
    state = studio.runs.of(name)
    words = ["rowgrad", "run", str(studio.folder.root / f"{name}.json")]
    for session in asked["sessions"]:
        words += ["--session", session]
    steps = 1 if asked["mode"] == "once" else asked["steps"] or max(state.done, 1)
    if steps != 1:
        words += ["--steps", str(steps)]
    if asked["rate"] is not None:
        words += ["--rate", repr(asked["rate"])]
    if asked["engine"] != "numpy":
        words += ["--engine", asked["engine"]]
    if state.restored is not None:
        words += ["--state", str(studio.runs.kept.copy_for_command(name, state.restored))]
    return {"text": shlex.join(words)}


def _asked(given: Asked) -> dict[str, Any]:
    """What is run, and how."""
    mode = given.text("mode", "once", 20)
    if mode not in MODES:
        raise given.refuse("mode", f"one of {', '.join(MODES)}", mode)
    steps = given.whole("steps", 1, MOST_STEPS) if "steps" in given or mode == "steps" else None
    rate = given.number("rate", SLOWEST, FASTEST) if mode == "rate" else None
    return {
        "sessions": given.texts("sessions", [], 1000),
        "mode": mode,
        "steps": None if mode == "once" else steps,
        "rate": rate,
        "engine": given.text("engine", "numpy", 100),
    }


def _page(studio: Studio, given: Asked) -> str:
    """The name of a page that is there."""
    name = given.text("name", most=1000)
    if studio.runs.session_of(name) is None:
        studio.folder.open(name)  # raises where there is none
    return name
