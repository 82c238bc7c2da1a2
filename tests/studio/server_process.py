"""Run the HTTP server in a separate process, and send it arbitrary bytes."""

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

TIMEOUT = 120  # seconds; operations take one at most, only failures wait this long
TOKEN = "a-token-for-tests-0123456789"
# Makes the C library return large blocks at once, so that the process size is what it uses.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144"}
SHORT_LIMITS = {
    "head_seconds": 1.5,
    "body_seconds": 1.5,
    "write_seconds": 1.5,
    "answer_seconds": 2.0,
    "beat_seconds": 0.4,
}


class Response(NamedTuple):
    """An HTTP response."""

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


class ServerProcess:
    """A running server, and requests to it."""

    def __init__(self, process: subprocess.Popen[str], port: int, launch: str = "", control: str = "") -> None:
        self.process, self.port, self.launch, self.control = process, port, launch, control

    def request(self, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None) -> Response:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Response(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post(self, verb: str, arguments: Any, **headers: str) -> Response:
        body = arguments if isinstance(arguments, bytes) else json.dumps(arguments).encode()
        fields = {"X-Rowgrad-Token": TOKEN, "Content-Type": "application/json"}
        return self.request("POST", f"/api/{verb}", fields | {k.replace("_", "-"): v for k, v in headers.items()}, body)

    def is_responding(self) -> bool:
        return self.process.poll() is None and self.post("echo", {"a": 1}).json == {"a": 1}

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)

    @contextmanager
    def open_many(self, size: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
        """Open many connections that send these bytes; the server may close some of them."""
        with ExitStack() as stack:
            found = [stack.enter_context(self.connect()) for _ in range(size)]
            for connection in found:
                with suppress(OSError):
                    connection.sendall(sent)
            yield found

    def send_raw(self, sent: bytes, wait: float = TIMEOUT) -> bytes:
        """Send bytes, and return everything received until the server closes or `wait` seconds pass."""
        with self.connect() as connection:
            connection.settimeout(wait)
            try:
                connection.sendall(sent)
            except OSError:
                return b""
            return read_all(connection)

    def first_response(self, sent: bytes) -> bytes:
        """Send bytes, and return the first bytes received."""
        with self.connect() as connection:
            connection.sendall(sent)
            return connection.recv(65536)

    def memory(self, name: str = "VmRSS") -> float:
        """Return MiB of memory; `VmHWM` is the peak."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) / 1024

    def stop(self, number: int = signal.SIGTERM) -> str:
        """Stop the process, and return what it wrote to stderr."""
        self.process.send_signal(number)
        return self.process.communicate(timeout=TIMEOUT)[1]


def read_all(connection: socket.socket) -> bytes:
    """Read until the server closes or the connection times out."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except OSError:
        pass
    return found


def read_until_closed(connection: socket.socket) -> bytes:
    """Read until the server closes, which it must do before the timeout."""
    found = b""
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            found += part
    return found


def head(path: str = "/api/echo", port: int = 0, method: str = "POST", extra: str = "") -> bytes:
    """Return the head of an authorized request."""
    lines = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Rowgrad-Token: {TOKEN}\r\n"
    return f"{lines}Content-Type: application/json\r\n{extra}\r\n".encode()


@contextmanager
def run_server(**limits: Any) -> Iterator[ServerProcess]:
    """Run a server with these limits instead of the defaults."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "index.html").write_text("<!doctype html><title>Studio</title>")
        Path(folder, "studio.js").write_text("console.log(1);\n" * 20_000)
        Path(folder, "studio.css").write_text("body { margin: 0 }\n")
        Path(folder, "notes.secret").write_text("of no type that is served")
        arguments = json.dumps({"token": TOKEN, "static": folder, "limits": limits})
        script = str(Path(__file__).with_name("fake_studio.py"))
        process = subprocess.Popen(
            restored([sys.executable, "-W", "error", script, arguments]),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | _MALLOC,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            yield ServerProcess(process, **json.loads(line))
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


def wait_until(condition: Any, seconds: float = TIMEOUT) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.05)
