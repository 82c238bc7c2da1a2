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
from server_process import QUICK, TOKEN, Served, head, read_all, read_closed, serving, wait_until

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
MEBIBYTE = 1024 * 1024
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(**QUICK) as found:
        yield found
        # No traceback, no warning: what clients do wrong is no error of the server.
        assert found.stop() == "closed\n"


@pytest.fixture(scope="module")
def patient() -> Iterator[Served]:
    """A server that waits for clients on a busy machine as long as they need."""
    with serving(head_seconds=600.0, body_seconds=600.0, write_seconds=600.0, answer_seconds=600.0) as found:
        yield found
        assert found.stop() == "closed\n"


@pytest.fixture(autouse=True)
def _still_answers(served: Served) -> Iterator[None]:
    yield
    wait_until(lambda: _is_well(served))


def send_until_rejected(connection: socket.socket, part: bytes, times: int) -> bytes:
    """The answer; a client that is refused may be stopped while it sends."""
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
def test_a_body_of_100_megabytes(patient: Served, verb: str, how: str) -> None:
    """With its length in the head it is refused before it is read, without after as much as is allowed."""
    served, before = patient, patient.memory("VmHWM")
    extra = "Transfer-Encoding: chunked\r\n" if how == "chunked" else f"Content-Length: {100 * MEBIBYTE}\r\n"
    payload = head(f"/api/{verb}", served.port, extra=extra)
    if how == "no token":
        payload = payload.replace(TOKEN.encode(), b"x" * len(TOKEN))
    part = b"x" * MEBIBYTE
    if how == "chunked":
        part = b"%x\r\n" % len(part) + part + b"\r\n"
    with served.connect() as connection:
        connection.sendall(payload)
        answer = send_until_rejected(connection, part, 100)
    assert answer.startswith(b"HTTP/1.1 401 " if how == "no token" else b"HTTP/1.1 413 "), answer[:200]
    allowed = 0 if how != "chunked" else 16 if verb == "echo" else 64
    assert served.memory("VmHWM") - before < 2 * allowed + 12


@needs_proc
def test_large_bodies_at_a_time_share_what_is_allowed() -> None:
    """Six files of 20 MiB: more than 48 MiB together are not held."""
    with serving(total_bytes=48 * MEBIBYTE) as served:
        body = bytes(20 * MEBIBYTE)
        start = head("/api/upload?name=a", served.port, extra=f"Content-Length: {len(body)}\r\n")
        before = served.memory()
        with served.crowd(6, start + body[:-1]) as slow:  # all of it but for the last byte
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.sendall(b"\0" + head("/", served.port, "GET", "Connection: close\r\n"))
            statuses = Counter(read_all(connection)[:13] for connection in slow)
        assert statuses == {b"HTTP/1.1 200 ": 2, b"HTTP/1.1 503 ": 4}
        assert served.memory("VmHWM") - before < 3 * 48
        assert served.post("upload?name=a", body).status == 200  # all was given back


@needs_proc
def test_requests_leave_no_memory_behind(patient: Served) -> None:
    served = patient
    body = b'{"a": "' + b"x" * (4 * MEBIBYTE) + b'"}'
    for _ in range(3):
        assert served.post("echo", body).status == 200
    before = served.memory()
    for _ in range(8):
        assert served.post("echo", body).status == 200
        assert served.post("echo", b"[" * MEBIBYTE).status == 400
    assert served.memory() - before < 30


def test_wrong_content_length(served: Served) -> None:
    for extra in ("Content-Length: -1\r\n", "Content-Length: 1e9\r\n", "Content-Length: 2\r\nContent-Length: 3\r\n",
                  f"Content-Length: {'9' * 30}\r\n", "Transfer-Encoding: gzip, chunked\r\n"):  # fmt: skip
        answer = served.raw(head(port=served.port, extra=extra) + b"{}")
        assert answer[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 413 ", b"HTTP/1.1 501 "), (extra, answer)
    # Both a length and chunks: the chunks count, and what comes after them is a request of its own.
    both = (
        head(port=served.port, extra="Content-Length: 50\r\nTransfer-Encoding: chunked\r\n") + b"2\r\n{}\r\n0\r\n\r\n"
    )
    assert served.raw(both + b"GET /smuggled HTTP/1.1\r\n\r\n", 1).count(b"HTTP/1.1 200 ") <= 1


def test_a_thousand_requests_at_a_time(patient: Served) -> None:
    """Every one is answered, or refused; most are answered, since verbs are quick."""

    def ask(_: int) -> int:
        try:
            return patient.post("echo", {"a": 1}).status
        except (OSError, http.client.HTTPException):
            return 0

    with ThreadPoolExecutor(150) as pool:
        found = Counter(pool.map(ask, range(1000)))
    assert set(found) <= {0, 200, 503}
    assert found[200] > 300, found


@needs_proc
def test_more_connections_than_there_may_be() -> None:
    with serving(connections=40, head_seconds=60.0) as served:  # nobody leaves for being idle
        before = served.memory()
        payload = head(port=served.port, extra="Content-Length: 2\r\n") + b"{}"
        with served.crowd(300, payload) as crowd:
            # Every one was answered or turned away: before, all there may be can be at work, and one more has no place.
            wait_until(lambda: len(select.select(crowd, [], [], 0)[0]) == len(crowd))
            assert len(os.listdir(f"/proc/{served.process.pid}/fd")) < 60  # 40, and files of its own
            assert served.is_well()
            assert served.memory() - before < 30


def test_more_requests_than_there_may_be() -> None:
    """Streams of events count, too; what needs no token does not."""
    with serving(requests=10) as served:
        with served.crowd(10, head("/api/events?window=a", served.port, "GET")) as streams:
            assert all(connection.recv(12) == b"HTTP/1.1 200" for connection in streams)
            answer = served.post("echo", {})
            assert (answer.status, answer.kind) == (503, "Busy")
            assert served.ask("GET", "/").status == 200
        wait_until(lambda: served.post("echo", {}).status == 200)


def test_incomplete_headers_do_not_block_others(served: Served, patient: Served) -> None:
    """Slow loris: heads sent byte by byte, on more connections than there may be; one more is answered all the same."""
    half = b"POST /api/echo HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A"
    with patient.crowd(240, half):  # none of which leaves for being late
        assert patient.is_well()
    with served.crowd(240, half) as slow:
        closed: set[socket.socket] = set()

        def send_a_byte() -> bool:
            for connection in set(slow) - closed:
                try:
                    connection.sendall(b"a")
                except OSError:
                    closed.add(connection)
            return len(closed) == len(slow)

        wait_until(send_a_byte)  # bytes now and then prolong nothing


def test_idle_connections_are_closed(served: Served) -> None:
    """Connections without a request and connections after a response."""
    with served.crowd(5) as new, served.crowd(5, head(port=served.port, extra="Content-Length: 2\r\n") + b"{}") as used:
        for connection in new + used:
            assert (b" 200 " in read_closed(connection)) == (connection in used)


def test_half_sent_bodies_end_with_their_time(served: Served) -> None:
    with served.crowd(100, head(port=served.port, extra="Content-Length: 1000\r\n") + b'{"a": ') as slow:
        wait_until(lambda: _is_well(served))  # beside them
        answers = Counter(read_closed(connection)[:13] for connection in slow)
        assert answers == {b"HTTP/1.1 408 ": 100}


@needs_proc
def test_clients_that_do_not_read() -> None:
    given = b'{"bytes": 10000000}'
    with serving(write_seconds=QUICK["write_seconds"]) as served:
        before = served.memory()
        with served.crowd(10, head("/api/large", served.port, extra=f"Content-Length: {len(given)}\r\n") + given):
            wait_until(lambda: served.memory("VmHWM") - before > 30)
            wait_until(lambda: served.memory() - before < 20)  # they are closed, and their responses are dropped


def test_unread_responses_do_not_block_others() -> None:
    """Not even those that need no token: the script, requested again and again and never read."""
    with serving(connections=20, write_seconds=30) as served:
        payload = head("/studio.js", served.port, "GET").replace(TOKEN.encode(), b"none") * 400
        with served.crowd(25, payload):
            time.sleep(2.5)  # so that they stall; more time changes nothing
            wait_until(lambda: _is_well(served))


def _is_well(served: Served) -> bool:
    try:
        return served.is_well()
    except (OSError, http.client.HTTPException):
        return False


def test_huge_heads(served: Served) -> None:
    start = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n".encode()
    for payload in (start + b"X-A: " + b"a" * 100_000, start + b"X-A: b\r\n" * 20_000, b"GET /" + b"a" * 100_000):
        with served.connect() as connection:
            assert send_until_rejected(connection, payload + b" HTTP/1.1\r\n\r\n", 1)[:13] in (
                b"",
                b"HTTP/1.1 400 ",
                b"HTTP/1.1 431 ",
            )
    assert served.first(head(f"/api/upload?name={'a' * 10_000}", served.port)).startswith(b"HTTP/1.1 414 ")


def test_garbage(served: Served) -> None:
    chance = random.Random(7)
    start = head(port=served.port, extra="Transfer-Encoding: chunked\r\n")
    sent = [chance.randbytes(chance.randrange(1, 3000)) + b"\r\n\r\n" for _ in range(40)]
    sent += [start + chance.randbytes(200) + b"\r\n" for _ in range(10)]
    sent += [start + b"ffffffffffffffffffff\r\n", start + b"-1\r\n", start + b"2\r\n{}\r\nzz\r\n"]
    sent += [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200 + b"\r\n\r\n", b"\r\n" * 5000]
    sent += [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET\r\n\r\n", b"\0" * 40_000]
    sent += [bytes([b]) for b in range(256)]
    with ThreadPoolExecutor(32) as pool:
        for answer in pool.map(lambda s: served.raw(s, 0.3), sent):
            assert answer == b"" or answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 405", b"HTTP/1.1 403")


def test_upgrades_are_not_followed(served: Served) -> None:
    extra = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: abc\r\n"
    answer = served.first(head("/", served.port, "GET", extra))
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_pipelined_requests_are_answered_in_order(patient: Served) -> None:
    served = patient
    payload = b"".join(
        head(port=served.port, extra=f"Content-Length: {len(body)}\r\n") + body
        for body in (b'{"n": %d}' % n for n in range(500))
    )
    answer = served.raw(payload + head("/", served.port, "GET", "Connection: close\r\n"))
    assert answer.count(b"HTTP/1.1 200 ") == 501
    places = [answer.index(b'{"n":%d}' % n) for n in range(500)]
    assert places == sorted(places)


def test_clients_that_leave(served: Served) -> None:
    """In the head, in the body, before the answer, in the middle of it."""
    for sent in (b"POST /api", head(port=served.port, extra="Content-Length: 100\r\n") + b"{",
                 head("/api/sleep", served.port, extra="Content-Length: 16\r\n") + b'{"seconds": 0.2}',
                 head("/api/large", served.port, extra="Content-Length: 19\r\n") + b'{"bytes": 10000000}',
                 head("/api/events?window=a", served.port, "GET")):  # fmt: skip
        for _ in range(10):
            with served.connect() as connection:
                connection.sendall(sent)
                if b"events" in sent or b"large" in sent:
                    connection.recv(10)
