"""A real server in a process of its own, on a folder of its own, with parts replaced on purpose."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

import launcher

from rowgrad.studio.serve import address_of, new_launch, running_studios

TOKEN = "a-token-for-tests-0123456789"
# Servers are forked from a process that has imported what they need, which takes longer than to start one.
SERVERS = multiprocessing.get_context("forkserver")
SERVERS.set_forkserver_preload(["rowgrad.cli", "rowgrad.studio.http", "rowgrad.studio.serve", "uvicorn.server"])


class Studio:
    """`start`, `kill` and `restart` are what happens to a server in real life; the folder outlives it."""

    def __init__(self, folder: Path, broken: Sequence[tuple[str, str]] = (), page: str = "") -> None:
        self.folder, self.broken, self._page = folder, list(broken), page
        self._log = folder.parent / f"{folder.name}.log"
        self._process: BaseProcess | None = None
        self._output: IO[str] | None = None
        self.port = 0

    def start(self, token: str | None = TOKEN) -> Studio:
        """Start a server; after a `kill` it has the same port, and the same token if one is given."""
        assert self._process is None, "the server is running"
        words = ["studio", str(self.folder), "--new", "--no-browser", "--json"]
        words += ["--token", token] if token else []
        words += ["--port", str(self.port)] * bool(self.port)
        reading, writing = SERVERS.Pipe(duplex=False)
        given = (words, self.broken, self._page, writing, str(self._log))
        self._process = SERVERS.Process(target=launcher.launch, args=given)
        self._process.start()
        writing.close()
        self._output = os.fdopen(os.dup(reading.fileno()))
        reading.close()
        line = self._output.readline()
        message = json.loads(line) if line else {}
        assert "url" in message, f"the server did not start: {line}{self.log()}"
        self.port = message["port"]
        return self

    @property
    def url(self) -> str:
        """A new address, which opens the studio once."""
        return self._address()

    def page_url(self, name: str) -> str:
        return self._address(page=name)

    def _address(self, **shown: str) -> str:
        (running,) = [found for found in running_studios(self.folder) if found.port == self.port]
        found = new_launch(running)
        assert found is not None, self.log()
        return address_of("127.0.0.1", self.port, found[0], **shown)

    def kill(self) -> None:
        """End it with no chance to save or say anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def restart(self) -> Studio:
        """Kill it and start another on the same folder and port."""
        self.kill()
        return self.start()

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None or process.pid is None or self._output is None:
            return
        if process.is_alive():
            os.kill(process.pid, number)
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()
        self._output.close()

    def log(self) -> str:
        """What the servers of this folder have written to stderr."""
        return self._log.read_text() if self._log.exists() else ""

    def page_json(self, name: str) -> dict[str, Any]:
        """A page as it stands on the disk."""
        found: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
        return found
