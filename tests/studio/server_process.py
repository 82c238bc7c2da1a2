"""The server in a separate process, and a client that can send anything."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from signal_defaults import restored

LONG = 120  # seconds, for what takes one at most; only a failure waits so long
TOKEN = "a-token-for-tests-0123456789"
# So that the C library gives large blocks back at once, and a process's size is what it holds.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144"}
QUICK = {"head_seconds": 1.5, "body_seconds": 1.5, "write_seconds": 1.5, "answer_seconds": 2.0, "beat_seconds": 0.4}


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def kind(self) -> str:
        kind: str = self.json["error"]["kind"]
        return kind


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], port: int, launch: str = "", control: str = "") -> None:
        self.process, self.port, self.launch, self.control = process, port, launch, control

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONG)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def post(self, verb: str, given: Any, **headers: str) -> Answer:
        body = given if isinstance(given, bytes) else json.dumps(given).encode()
        fields = {"X-Rowgrad-Token": TOKEN, "Content-Type": "application/json"}
        return self.ask("POST", f"/api/{verb}", fields | {k.replace("_", "-"): v for k, v in headers.items()}, body)

    def is_well(self) -> bool:
        return self.process.poll() is None and self.post("echo", {"a": 1}).json == {"a": 1}

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=LONG)

    @contextmanager
    def crowd(self, size: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
        """Many connections that have all sent this; some may be closed by the server meanwhile."""
        with ExitStack() as stack:
            found = [stack.enter_context(self.connect()) for _ in range(size)]
            for connection in found:
                with suppress(OSError):
                    connection.sendall(sent)
            yield found

    def raw(self, sent: bytes, wait: float = LONG) -> bytes:
        """All that comes back for these bytes until the server closes, or `wait` is over."""
        with self.connect() as connection:
            connection.settimeout(wait)
            try:
                connection.sendall(sent)
            except OSError:
                return b""
            return read_all(connection)

    def first(self, sent: bytes) -> bytes:
        """The first that comes back for these bytes."""
        with self.connect() as connection:
            connection.sendall(sent)
            return connection.recv(65536)

    def memory(self, name: str = "VmRSS") -> float:
        """MiB; `VmHWM` is the most there ever was."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) / 1024

    def stop(self, number: int = signal.SIGTERM) -> str:
        """What it has written to stderr."""
        self.process.send_signal(number)
        return self.process.communicate(timeout=LONG)[1]


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes, or the connection's timeout is over."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except OSError:
        pass
    return found


def read_closed(connection: socket.socket) -> bytes:
    """Until the server closes, which it must."""
    found = b""
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            found += part
    return found


def head(path: str = "/api/echo", port: int = 0, method: str = "POST", extra: str = "") -> bytes:
    """The head of a request that is let in."""
    lines = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Rowgrad-Token: {TOKEN}\r\n"
    return f"{lines}Content-Type: application/json\r\n{extra}\r\n".encode()


@contextmanager
def serving(**limits: Any) -> Iterator[Served]:
    """A server with these limits in place of the usual ones."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "index.html").write_text("<!doctype html><title>Studio</title>")
        Path(folder, "studio.js").write_text("console.log(1);\n" * 20_000)
        Path(folder, "studio.css").write_text("body { margin: 0 }\n")
        Path(folder, "notes.secret").write_text("of no type that is served")
        given = json.dumps({"token": TOKEN, "static": folder, "limits": limits})
        script = str(Path(__file__).with_name("fake_studio.py"))
        process = subprocess.Popen(
            restored([sys.executable, "-W", "error", script, given]),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | _MALLOC,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            yield Served(process, **json.loads(line))
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


def wait_until(is_so: Any, seconds: float = LONG) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
