"""Verbs about runs: start, pause, resume, stop, snapshots, and the shell command that does the same without Studio."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError
from ..graph.run_loop import SLOWEST
from .page_session import MODES
from .verbs import Arguments, Json, verb

if TYPE_CHECKING:
    from .studio import Studio

MOST_STEPS = 10**9
FASTEST = 1e6  # steps per second that a request may set


@verb("run")
def run(studio: Studio, args: Arguments) -> Json:
    """Run a page as it is saved.

    Without a ClientSession it computes every block that nothing consumes. If that changes Variables, the response is
    `{"ask": {"variables", "fetch"}}` unless `change` is true.
    """
    name, options = args.text("name"), _run_options(args)
    page, revision = studio.folder.open(name)
    return studio.runs.start(name, page, revision, **options, change=args.truth("change", False))


@verb("pause")
def pause(studio: Studio, args: Arguments) -> Json:
    """Stop after the step in progress."""
    return studio.runs.pause(_page(studio, args))


@verb("resume")
def resume(studio: Studio, args: Arguments) -> Json:
    """Continue after a pause."""
    return studio.runs.resume(_page(studio, args))


@verb("stop")
def stop(studio: Studio, args: Arguments) -> Json:
    """End a run."""
    return studio.runs.stop(_page(studio, args))


@verb("step")
def step(studio: Studio, args: Arguments) -> Json:
    """Run some steps, then pause; a page that is not running starts with them."""
    name, steps = args.text("name"), args.whole("steps", 1, MOST_STEPS, 1)
    if studio.runs.of(_page(studio, args)).is_alive:
        try:
            return studio.runs.step(name, steps)
        except InvalidArgumentError:
            if studio.runs.of(name).is_alive:
                raise
            # The run ended a moment ago, so a new one starts.
    page, revision = studio.folder.open(name)
    engine = studio.runs.state(name)["engine"] or "numpy"
    change = args.truth("change", False)
    return studio.runs.start(name, page, revision, mode="steps", steps=steps, engine=engine, change=change)


@verb("reset")
def reset(studio: Studio, args: Arguments) -> Json:
    """Reset Variables and results."""
    return studio.runs.reset(_page(studio, args))


@verb("state")
def state(studio: Studio, args: Arguments) -> Json:
    """Return the state of a page's run."""
    return studio.runs.state(_page(studio, args))


@verb("snapshot")
def snapshot(studio: Studio, args: Arguments) -> Json:
    """Save a snapshot of a page's state."""
    return {"snapshots": studio.runs.snapshot(_page(studio, args), args.text("label", "", 200))}


@verb("snapshots")
def snapshots(studio: Studio, args: Arguments) -> Json:
    """List the snapshots of a page."""
    return {"snapshots": studio.runs.snapshots(_page(studio, args))}


@verb("restore")
def restore(studio: Studio, args: Arguments) -> Json:
    """Restore a snapshot."""
    name, snapshot_id = args.text("name"), args.text("snapshot", most=100)
    page, revision = studio.folder.open(name)
    return studio.runs.restore(name, snapshot_id, page, revision)


@verb("command")
def command(studio: Studio, args: Arguments) -> Json:
    """Return the shell command that runs the page, from the restored snapshot if there is one.

    For a continuous run, the command has the number of steps that were done.
    """
    name, options = _page(studio, args), _run_options(args)
    state = studio.runs.of(name)
    argv = ["rowgrad", "run", str(studio.folder.root / f"{name}.json")]
    for session in options["sessions"]:
        argv += ["--session", session]
    if state.opened is not None and not state.opened.prepared.sessions and state.opened.prepared.plan().variables:
        argv.append("--change-variables")  # the user agreed to it here
    steps = 1 if options["mode"] == "once" else options["steps"] or max(state.done, 1)
    if steps != 1:
        argv += ["--steps", str(steps)]
    if options["rate"] is not None:
        argv += ["--rate", repr(options["rate"])]
    if options["engine"] != "numpy":
        argv += ["--engine", options["engine"]]
    if state.restored is not None:
        argv += ["--state", str(studio.runs.snapshot_files.copy_for_command(name, state.restored))]
    return {"text": shlex.join(argv)}


def _run_options(args: Arguments) -> dict[str, Any]:
    """Read the options of a run."""
    mode = args.text("mode", "once", 20)
    if mode not in MODES:
        raise args.error("mode", f"one of {', '.join(MODES)}", mode)
    steps = args.whole("steps", 1, MOST_STEPS) if "steps" in args or mode == "steps" else None
    rate = args.number("rate", SLOWEST, FASTEST) if mode == "rate" else None
    return {
        "sessions": args.texts("sessions", [], 1000),
        "mode": mode,
        "steps": None if mode == "once" else steps,
        "rate": rate,
        "engine": args.text("engine", "numpy", 100),
    }


def _page(studio: Studio, args: Arguments) -> str:
    """Return the name of an existing page."""
    name = args.text("name", most=1000)
    if studio.runs.session_of(name) is None:
        studio.folder.open(name)  # raises if there is no such page
    return name
