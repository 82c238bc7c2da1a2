"""Run an example in processes that may be killed, forked from one that has imported torch to save start-up time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "examples"
SERVER = """
import importlib, json, os, sys
example, *_ = [importlib.import_module(name) for name in sys.argv[1:]]
for line in sys.stdin:
    log, before, arguments = json.loads(line)
    if not (child := os.fork()):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        exec(before)
        example.main(arguments)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
# Makes a process kill itself in the nth call of a method or function of the example, or of `os`.
DYING = """
import signal
owner, name, calls = {owner}, {name!r}, iter(range(1, 10**6))
real = getattr(owner, name)

def last(*args, **kwargs):
    if next(calls) == {nth}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)

setattr(owner, name, last)
"""


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def script(name: str, *arguments: str) -> str:
    """Return the output of the example, run from the command line."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Runs:
    """A process that has imported the example and forks runs of it."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self.server = server

    def start(self, log: Path, *arguments: str, before: str = "") -> tuple[int, str]:
        """Return exit status and output. Output goes to a file: workers of a killed process keep its pipes open."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        print(json.dumps([str(log), before, arguments]), file=self.server.stdin, flush=True)
        return int(self.server.stdout.readline()), log.read_text()


@contextmanager
def runs_of(*modules: str) -> Iterator[Runs]:
    """Start a process that has imported the example and these modules."""
    command = [sys.executable, "-c", SERVER, *modules]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as server:
        yield Runs(server)
