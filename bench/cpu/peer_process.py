"""Peers as processes: start them and exchange JSON lines with them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parent / "worker.py"


class PeerEndedError(RuntimeError):
    """A peer's process has ended."""


class Peer:
    """A worker process and the connection to it."""

    def __init__(self, name: str, python: str, threads: int | None = None) -> None:
        self.name, self.ended = name, False
        with contextlib.ExitStack() as opened:
            self._errors = opened.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            self._process = opened.enter_context(
                subprocess.Popen(
                    # -P: files next to the worker must not shadow libraries of the same name.
                    [python, "-P", str(WORKER), name, str(threads or 0)],
                    text=True,
                    env=_environment(threads),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                )
            )
            self._opened = opened.pop_all()
        self.version: str = self._read()["version"]

    def send(self, do: str, **details: Any) -> dict[str, Any]:
        """Send a command and wait for its response."""
        with contextlib.suppress(BrokenPipeError):  # if it has ended, reading reports how
            print(json.dumps({"do": do, **details}), file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):  # libraries may print other lines
                answer: dict[str, Any] = json.loads(line)
                return answer
        last_error = self._last_error()
        self.ended = True
        self.close()
        raise PeerEndedError(last_error)

    def _last_error(self) -> str:
        """Return the last line of its stderr, or its exit status."""
        status = self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return lines[-1] if lines else f"ended with status {status}"

    def close(self) -> None:
        """Close the process's stdin, which ends it, and wait."""
        with contextlib.suppress(BrokenPipeError):  # a command that it did not read
            self._opened.close()


def _environment(threads: int | None) -> dict[str, str]:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    if threads is None:
        return {**os.environ, **quiet}
    counts = ("ROWGRAD_NUM_THREADS", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    return {**os.environ, **quiet, **dict.fromkeys(counts, str(threads))}


def start_peers(names: list[str], peers_python: str, threads: int | None = None) -> list[Peer]:
    """Start a process for every peer; print and skip those that are missing."""
    found: list[Peer] = []
    for name in names:
        python = sys.executable if name == "rowgrad" else peers_python
        try:
            found.append(Peer(name, python, threads))
        except (PeerEndedError, OSError) as error:
            if name == "rowgrad":
                raise
            print(f"without {name}: {error} (--peers-python names an interpreter that has it)", file=sys.stderr)
    return found
