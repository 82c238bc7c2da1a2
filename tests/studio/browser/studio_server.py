"""Run a Studio server in a separate process, with parts of it replaced on request."""

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
# Servers are forked from a process that has the imports, which take longer than the start itself.
SERVERS = multiprocessing.get_context("forkserver")
SERVERS.set_forkserver_preload(["rowgrad.cli", "rowgrad.studio.http", "rowgrad.studio.serve", "uvicorn.server"])


class StudioServer:
    """A server process and its project folder; the folder survives `kill` and `restart`."""

    def __init__(self, folder: Path, broken: Sequence[tuple[str, str]] = (), front_end: str = "") -> None:
        self.folder, self.broken, self._front_end = folder, list(broken), front_end
        self._log = folder.parent / f"{folder.name}.log"
        self._process: BaseProcess | None = None
        self._output: IO[str] | None = None
        self.port = 0

    def start(self, token: str | None = TOKEN) -> StudioServer:
        """Start a server; after a `kill` it reuses the port."""
        assert self._process is None, "the server is running"
        command = ["studio", str(self.folder), "--new", "--no-browser", "--json"]
        command += ["--token", token] if token else []
        command += ["--port", str(self.port)] * bool(self.port)
        reading, writing = SERVERS.Pipe(duplex=False)
        args = (command, self.broken, self._front_end, writing, str(self._log))
        self._process = SERVERS.Process(target=launcher.launch, args=args)
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
        """Return a new address that opens Studio once."""
        return self._address()

    def page_url(self, name: str) -> str:
        return self._address(page=name)

    def _address(self, **query: str) -> str:
        (running,) = [found for found in running_studios(self.folder) if found.port == self.port]
        found = new_launch(running)
        assert found is not None, self.log()
        return address_of("127.0.0.1", self.port, found[0], **query)

    def kill(self) -> None:
        """Kill the process, so that it can neither save nor log."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def restart(self) -> StudioServer:
        """Kill the process and start another on the same folder and port."""
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
        """Return what the servers of this folder wrote to stderr."""
        return self._log.read_text() if self._log.exists() else ""

    def page_json(self, name: str) -> dict[str, Any]:
        """Return a page as it is saved on disk."""
        found: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
        return found
