"""Verbs over HTTP: arguments, errors, threads, timeouts; and the event stream."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from server_process import SHORT_LIMITS, TOKEN, Response, ServerProcess, head, run_server, wait_until

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with run_server(beat_seconds=SHORT_LIMITS["beat_seconds"]) as found:
        yield found


def test_an_unknown_verb_is_not_found(server: ServerProcess) -> None:
    answer = server.post("no_such", {})
    assert (answer.status, answer.kind) == (404, "UnknownVerbError")
    assert "'no_such'" in answer.json["error"]["message"]


def test_a_file_body_is_passed_unchanged(server: ServerProcess) -> None:
    answer = server.post("upload?name=a%20b.npy", b"\0\xff" * 1_000_000, Content_Type="application/octet-stream")
    assert answer.json == {"name": "a b.npy", "bytes": 2_000_000}
    assert server.post("upload?name=a&name=b", b"").status == 400
    assert server.post("upload", b"").json["error"]["pin"] == "name"


@pytest.mark.parametrize(
    ("how", "status", "kind", "message"),
    [
        ("op", 400, "InvalidArgumentError", "ids must be sorted"),
        ("value", 400, "ValueError", "no such value"),
        ("type", 400, "TypeError", "no such type"),
        ("os", 500, "OSError", "[Errno 28] No space left on device"),
    ],
)
def test_errors_of_a_verb_become_error_responses(
    server: ServerProcess, how: str, status: int, kind: str, message: str
) -> None:
    answer = server.post("fail", {"how": how})
    assert (answer.status, answer.kind, answer.json["error"]["message"]) == (status, kind, message)
    assert set(answer.json["error"]) == {"kind", "message", "text", "block", "pin", "place"}
    if how == "op":
        assert (answer.json["error"]["block"], answer.json["error"]["pin"]) == ("b1", "ids")


def test_internal_errors_are_printed_on_stderr_only() -> None:
    with run_server() as server:
        numbers = []
        for how in ("bug", "nan"):
            answer = server.post("fail", {"how": how})
            assert (answer.status, answer.kind) == (500, "Unexpected")
            assert "secret" not in answer.body.decode()
            numbers.append(answer.json["error"]["message"].partition("number ")[2][:8])
        assert server.post("fail", {"how": "exit"}).status == 500  # SystemExit in a verb does not stop the server
        assert server.is_responding()
        output = server.stop()
    assert all(f"error {number} in fail" in output for number in numbers)
    assert "KeyError: 'a secret of the inside'" in output


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object; got list"),
        (b"null", "must be a JSON object"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1, "a": 2}', "'a' twice"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "5001 digits"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": ' + b"[" * 101 + b"]" * 101 + b"}", "102 deep"),
        (b'{"a": ' + b"[" * 100_000, "nested 100001 deep"),
        (b'{"a":' * 100_000, "nested 100000 deep"),
        (b'{"a": "\\"", "b": ' + b"[" * 200 + b"]" * 200 + b"}", "201 deep"),
    ],
)
def test_invalid_json_is_rejected(server: ServerProcess, body: bytes, message: str) -> None:
    answer = server.post("echo", body)
    assert (answer.status, answer.kind) == (400, "InvalidArgumentError")
    assert message in answer.json["error"]["message"]


def test_json_at_its_limits_is_accepted(server: ServerProcess) -> None:
    deep: Any = 1
    for _ in range(99):
        deep = [deep]
    for given in ({"a": deep}, {"a": "[" * 5000 + '\\"' + "{" * 5000}, {"😀": "\u2028"}):
        assert server.post("echo", given).json == given
    assert server.post("echo", b'{"a": "\\ud83d\\ude00"}').json == {"a": "😀"}
    many = b'{"a": [' + b",".join([b"[]"] * 1_000_001) + b"]}"
    assert "more than 1000000 lists and objects" in server.post("echo", many).json["error"]["message"]


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_json_needs_its_content_type(server: ServerProcess, kind: str) -> None:
    assert server.post("echo", {}, Content_Type=kind).status == 415


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, identity"])
def test_compressed_bodies_are_rejected(server: ServerProcess, coding: str) -> None:
    assert server.post("echo", {}, Content_Encoding=coding).kind == "Compressed"
    assert server.post("upload?name=a", b"x", Content_Encoding=coding).kind == "Compressed"
    assert server.post("echo", {}, Content_Encoding="identity").status == 200


def test_verbs_run_concurrently(server: ServerProcess) -> None:
    found: list[Response] = []
    waiting = threading.Thread(target=lambda: found.append(server.post("gate", {"open": False})))
    waiting.start()
    assert server.post("gate", {"open": True}).json == {"opened": True}
    waiting.join()
    assert found[0].json == {"opened": True}


def test_a_slow_verb_times_out() -> None:
    """The response comes before the verb ends, which takes ten minutes."""
    with run_server(answer_seconds=0.5) as server:
        answer = server.post("gate", {"open": False})
        assert (answer.status, answer.kind) == (503, "TooSlow")
        wait_until(lambda: server.post("echo", {}).status == 200)


def test_the_number_of_waiting_requests_is_bounded() -> None:
    """Threads whose request timed out still count."""
    with run_server(threads=2, waiting=1, answer_seconds=0.3) as server:
        for _ in range(2):
            assert server.post("gate", {"open": False}).kind == "TooSlow"
        assert server.post("echo", {}).kind == "TooSlow"  # waits for a thread until it times out
        results = []
        threads = [
            threading.Thread(target=lambda: results.append(server.post("sleep", {"seconds": 0}))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert "Busy" in {answer.kind for answer in results}
        assert all("retry-after" in answer.headers for answer in results if answer.kind == "Busy")
        server.process.send_signal(signal.SIGUSR1)  # opens the gate
        wait_until(lambda: server.post("echo", {}).status == 200)


# -- events ------------------------------------------------------------------------------------------------------------


class Stream:
    """The event stream of a window."""

    def __init__(self, server: ServerProcess, window: str = "w1") -> None:
        self.connection: socket.socket = server.connect()
        self.connection.sendall(head(f"/api/events?window={window}", server.port, "GET"))
        self.file = self.connection.makefile("rb")
        self.head = b"".join(iter(self.file.readline, b"\r\n"))

    def line(self) -> Any:
        """Return the next event, or None at the end."""
        size = int(self.file.readline() or b"0", 16)
        found = self.file.read(size)
        self.file.readline()
        return json.loads(found) if size else None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()
        self.connection.close()


def test_events_are_streamed_to_a_window(server: ServerProcess) -> None:
    with Stream(server) as stream:
        assert b"application/x-ndjson" in stream.head
        assert stream.line() == {"event": "beat"}  # at once
        server.post("tell", {"text": "hello\nworld"})
        assert stream.line() == {"event": "said", "text": "hello\nworld"}
        assert [stream.line() for _ in range(5)] == [{"event": "beat"}] * 5
    with run_server(beat_seconds=600) as rare, Stream(rare) as stream:
        assert stream.line() == {"event": "beat"}
        rare.post("tell", {"text": "no beat before"})
        assert stream.line() == {"event": "said", "text": "no beat before"}


@pytest.mark.parametrize("query", ["", "?window=", "?window=a%20b", f"?window={'a' * 65}", "?window=%00"])
def test_an_event_stream_needs_a_valid_window_name(server: ServerProcess, query: str) -> None:
    assert server.request("GET", f"/api/events{query}", {"X-Rowgrad-Token": TOKEN}).status == 400


def open_stream(server: ServerProcess, stack: ExitStack, window: str) -> Stream:
    """Open a stream, with retries: recently closed streams may still occupy slots."""
    while True:
        stream = stack.enter_context(Stream(server, window))
        if b" 200 " in stream.head:
            return stream
        stream.__exit__()


def test_closed_streams_free_their_slot(server: ServerProcess) -> None:
    """Of the 64 slots."""
    for _ in range(3):
        with ExitStack() as stack:
            streams = [open_stream(server, stack, f"w{k}") for k in range(64)]
            assert b" 503 " in stack.enter_context(Stream(server, "one-more")).head
            server.post("tell", {"text": "all"})
            for stream in streams:
                stream.line()
                while (event := stream.line()) == {"event": "beat"}:
                    pass
                assert event == {"event": "said", "text": "all"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_stops_ends_its_streams(number: int) -> None:
    with (
        run_server(stop_seconds=10_000) as server,
        ExitStack() as stack,
    ):  # longer than the test: it does not wait for streams
        streams = [stack.enter_context(Stream(server, f"w{k}")) for k in range(3)]
        assert all(s.line() == {"event": "beat"} for s in streams)
        output = server.stop(number)
        assert all(s.line() is None for s in streams)
        assert output == "closed\n"
        assert server.process.returncode == 0


def test_a_stuck_verb_does_not_keep_the_server_from_stopping() -> None:
    with run_server(stop_seconds=1) as server, Stream(server) as stream, server.connect() as client:
        assert stream.line() == {"event": "beat"}
        client.sendall(head("/api/gate", server.port, extra="Content-Length: 15\r\n") + b'{"open": false}')
        while stream.line() != {"event": "said", "text": "at the gate"}:  # until the verb runs
            pass
        server.stop()  # with the gate closed
