"""Malicious and broken clients: the server rejects or survives all of them, with bounded memory."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from server_process import SHORT_LIMITS, TOKEN, ServerProcess, head, read_all, read_until_closed, run_server, wait_until

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
MEBIBYTE = 1024 * 1024
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with run_server(**SHORT_LIMITS) as found:
        yield found
        # No traceback and no warning: a client's mistake is not a server error.
        assert found.stop() == "closed\n"


@pytest.fixture(scope="module")
def patient_server() -> Iterator[ServerProcess]:
    """A server with long timeouts, for busy machines."""
    with run_server(head_seconds=600.0, body_seconds=600.0, write_seconds=600.0, answer_seconds=600.0) as found:
        yield found
        assert found.stop() == "closed\n"


@pytest.fixture(autouse=True)
def _still_answers(server: ServerProcess) -> Iterator[None]:
    yield
    wait_until(lambda: _is_responding(server))


def send_until_rejected(connection: socket.socket, part: bytes, times: int) -> bytes:
    """Return the response; the server may reject the request while the client still sends."""
    try:
        for _ in range(times):
            connection.sendall(part)
    except OSError:
        pass
    with contextlib.suppress(OSError):
        return connection.recv(65536)
    return b""


@needs_proc
@pytest.mark.parametrize("verb", ["echo", "upload?name=a"])
@pytest.mark.parametrize("how", ["length", "chunked", "no token"])
def test_a_body_of_100_megabytes_is_rejected(patient_server: ServerProcess, verb: str, how: str) -> None:
    """With a Content-Length before it is read, otherwise once the limit is reached."""
    server, before = patient_server, patient_server.memory("VmHWM")
    extra = "Transfer-Encoding: chunked\r\n" if how == "chunked" else f"Content-Length: {100 * MEBIBYTE}\r\n"
    payload = head(f"/api/{verb}", server.port, extra=extra)
    if how == "no token":
        payload = payload.replace(TOKEN.encode(), b"x" * len(TOKEN))
    part = b"x" * MEBIBYTE
    if how == "chunked":
        part = b"%x\r\n" % len(part) + part + b"\r\n"
    with server.connect() as connection:
        connection.sendall(payload)
        answer = send_until_rejected(connection, part, 100)
    assert answer.startswith(b"HTTP/1.1 401 " if how == "no token" else b"HTTP/1.1 413 "), answer[:200]
    allowed = 0 if how != "chunked" else 16 if verb == "echo" else 64
    assert server.memory("VmHWM") - before < 2 * allowed + 12


@needs_proc
def test_concurrent_large_bodies_share_one_memory_limit() -> None:
    """Six files of 20 MiB: at most 48 MiB together are in memory."""
    with run_server(total_bytes=48 * MEBIBYTE) as server:
        body = bytes(20 * MEBIBYTE)
        start = head("/api/upload?name=a", server.port, extra=f"Content-Length: {len(body)}\r\n")
        before = server.memory()
        with server.open_many(6, start + body[:-1]) as slow:  # all but the last byte
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.sendall(b"\0" + head("/", server.port, "GET", "Connection: close\r\n"))
            statuses = Counter(read_all(connection)[:13] for connection in slow)
        assert statuses == {b"HTTP/1.1 200 ": 2, b"HTTP/1.1 503 ": 4}
        assert server.memory("VmHWM") - before < 3 * 48
        assert server.post("upload?name=a", body).status == 200  # the memory is available again


@needs_proc
def test_requests_do_not_leak_memory(patient_server: ServerProcess) -> None:
    server = patient_server
    body = b'{"a": "' + b"x" * (4 * MEBIBYTE) + b'"}'
    for _ in range(3):
        assert server.post("echo", body).status == 200
    before = server.memory()
    for _ in range(8):
        assert server.post("echo", body).status == 200
        assert server.post("echo", b"[" * MEBIBYTE).status == 400
    assert server.memory() - before < 30


def test_an_invalid_content_length_is_rejected(server: ServerProcess) -> None:
    for extra in ("Content-Length: -1\r\n", "Content-Length: 1e9\r\n", "Content-Length: 2\r\nContent-Length: 3\r\n",
                  f"Content-Length: {'9' * 30}\r\n", "Transfer-Encoding: gzip, chunked\r\n"):  # fmt: skip
        answer = server.send_raw(head(port=server.port, extra=extra) + b"{}")
        assert answer[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 413 ", b"HTTP/1.1 501 "), (extra, answer)
    # With both a length and chunks, the chunks count, and the bytes after them are another request.
    both = (
        head(port=server.port, extra="Content-Length: 50\r\nTransfer-Encoding: chunked\r\n") + b"2\r\n{}\r\n0\r\n\r\n"
    )
    assert server.send_raw(both + b"GET /smuggled HTTP/1.1\r\n\r\n", 1).count(b"HTTP/1.1 200 ") <= 1


def test_a_thousand_concurrent_requests_are_all_answered(patient_server: ServerProcess) -> None:
    """With a result or a rejection; most with a result, since verbs are fast."""

    def ask(_: int) -> int:
        try:
            return patient_server.post("echo", {"a": 1}).status
        except (OSError, http.client.HTTPException):
            return 0

    with ThreadPoolExecutor(150) as pool:
        found = Counter(pool.map(ask, range(1000)))
    assert set(found) <= {0, 200, 503}
    assert found[200] > 300, found


@needs_proc
def test_connections_beyond_the_limit_are_closed() -> None:
    with run_server(connections=40, head_seconds=60.0) as server:  # longer than the test
        before = server.memory()
        payload = head(port=server.port, extra="Content-Length: 2\r\n") + b"{}"
        with server.open_many(300, payload) as connections:
            # All were answered or rejected before; until then, a further connection may be rejected.
            wait_until(lambda: len(select.select(connections, [], [], 0)[0]) == len(connections))
            assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < 60  # 40, and the server's own files
            assert server.is_responding()
            assert server.memory() - before < 30


def test_requests_beyond_the_limit_are_rejected() -> None:
    """Event streams count; requests that need no token do not."""
    with run_server(requests=10) as server:
        with server.open_many(10, head("/api/events?window=a", server.port, "GET")) as streams:
            assert all(connection.recv(12) == b"HTTP/1.1 200" for connection in streams)
            answer = server.post("echo", {})
            assert (answer.status, answer.kind) == (503, "Busy")
            assert server.request("GET", "/").status == 200
        wait_until(lambda: server.post("echo", {}).status == 200)


def test_incomplete_headers_do_not_block_others(server: ServerProcess, patient_server: ServerProcess) -> None:
    """Slowloris: headers sent byte by byte, on more connections than the limit; others are still answered."""
    half = b"POST /api/echo HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A"
    with patient_server.open_many(240, half):  # none of them times out
        assert patient_server.is_responding()
    with server.open_many(240, half) as slow:
        closed: set[socket.socket] = set()

        def send_a_byte() -> bool:
            for connection in set(slow) - closed:
                try:
                    connection.sendall(b"a")
                except OSError:
                    closed.add(connection)
            return len(closed) == len(slow)

        wait_until(send_a_byte)  # further bytes do not extend the timeout


def test_idle_connections_are_closed(server: ServerProcess) -> None:
    """Connections without a request and connections after a response."""
    with (
        server.open_many(5) as new,
        server.open_many(5, head(port=server.port, extra="Content-Length: 2\r\n") + b"{}") as used,
    ):
        for connection in new + used:
            assert (b" 200 " in read_until_closed(connection)) == (connection in used)


def test_incomplete_bodies_time_out(server: ServerProcess) -> None:
    with server.open_many(100, head(port=server.port, extra="Content-Length: 1000\r\n") + b'{"a": ') as slow:
        wait_until(lambda: _is_responding(server))  # meanwhile
        answers = Counter(read_until_closed(connection)[:13] for connection in slow)
        assert answers == {b"HTTP/1.1 408 ": 100}


@needs_proc
def test_clients_that_do_not_read_are_disconnected() -> None:
    given = b'{"bytes": 10000000}'
    with run_server(write_seconds=SHORT_LIMITS["write_seconds"]) as server:
        before = server.memory()
        with server.open_many(10, head("/api/large", server.port, extra=f"Content-Length: {len(given)}\r\n") + given):
            wait_until(lambda: server.memory("VmHWM") - before > 30)
            wait_until(lambda: server.memory() - before < 20)  # connections are closed and responses dropped


def test_unread_responses_do_not_block_others() -> None:
    """Also for files that need no token: the script is requested repeatedly and never read."""
    with run_server(connections=20, write_seconds=30) as server:
        payload = head("/studio.js", server.port, "GET").replace(TOKEN.encode(), b"none") * 400
        with server.open_many(25, payload):
            time.sleep(2.5)  # until the unread responses stall
            wait_until(lambda: _is_responding(server))


def _is_responding(server: ServerProcess) -> bool:
    try:
        return server.is_responding()
    except (OSError, http.client.HTTPException):
        return False


def test_oversized_headers_are_rejected(server: ServerProcess) -> None:
    start = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n".encode()
    for payload in (start + b"X-A: " + b"a" * 100_000, start + b"X-A: b\r\n" * 20_000, b"GET /" + b"a" * 100_000):
        with server.connect() as connection:
            assert send_until_rejected(connection, payload + b" HTTP/1.1\r\n\r\n", 1)[:13] in (
                b"",
                b"HTTP/1.1 400 ",
                b"HTTP/1.1 431 ",
            )
    assert server.first_response(head(f"/api/upload?name={'a' * 10_000}", server.port)).startswith(b"HTTP/1.1 414 ")


def test_malformed_requests_are_rejected(server: ServerProcess) -> None:
    chance = random.Random(7)
    start = head(port=server.port, extra="Transfer-Encoding: chunked\r\n")
    sent = [chance.randbytes(chance.randrange(1, 3000)) + b"\r\n\r\n" for _ in range(40)]
    sent += [start + chance.randbytes(200) + b"\r\n" for _ in range(10)]
    sent += [start + b"ffffffffffffffffffff\r\n", start + b"-1\r\n", start + b"2\r\n{}\r\nzz\r\n"]
    sent += [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200 + b"\r\n\r\n", b"\r\n" * 5000]
    sent += [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET\r\n\r\n", b"\0" * 40_000]
    sent += [bytes([b]) for b in range(256)]
    with ThreadPoolExecutor(32) as pool:
        for answer in pool.map(lambda s: server.send_raw(s, 0.3), sent):
            assert answer == b"" or answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 405", b"HTTP/1.1 403")


def test_protocol_upgrades_are_ignored(server: ServerProcess) -> None:
    extra = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: abc\r\n"
    answer = server.first_response(head("/", server.port, "GET", extra))
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_pipelined_requests_are_answered_in_order(patient_server: ServerProcess) -> None:
    server = patient_server
    payload = b"".join(
        head(port=server.port, extra=f"Content-Length: {len(body)}\r\n") + body
        for body in (b'{"n": %d}' % n for n in range(500))
    )
    answer = server.send_raw(payload + head("/", server.port, "GET", "Connection: close\r\n"))
    assert answer.count(b"HTTP/1.1 200 ") == 501
    places = [answer.index(b'{"n":%d}' % n) for n in range(500)]
    assert places == sorted(places)


def test_clients_that_disconnect_do_no_harm(server: ServerProcess) -> None:
    """In the headers, in the body, before the response, and during it."""
    for sent in (b"POST /api", head(port=server.port, extra="Content-Length: 100\r\n") + b"{",
                 head("/api/sleep", server.port, extra="Content-Length: 16\r\n") + b'{"seconds": 0.2}',
                 head("/api/large", server.port, extra="Content-Length: 19\r\n") + b'{"bytes": 10000000}',
                 head("/api/events?window=a", server.port, "GET")):  # fmt: skip
        for _ in range(10):
            with server.connect() as connection:
                connection.sendall(sent)
                if b"events" in sent or b"large" in sent:
                    connection.recv(10)
