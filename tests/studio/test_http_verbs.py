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
from server_process import QUICK, TOKEN, Answer, Served, head, serving, wait_until

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(beat_seconds=QUICK["beat_seconds"]) as found:
        yield found


def test_an_unknown_verb(served: Served) -> None:
    answer = served.post("no_such", {})
    assert (answer.status, answer.kind) == (404, "UnknownVerbError")
    assert "'no_such'" in answer.json["error"]["message"]


def test_a_file_comes_as_it_is(served: Served) -> None:
    answer = served.post("upload?name=a%20b.npy", b"\0\xff" * 1_000_000, Content_Type="application/octet-stream")
    assert answer.json == {"name": "a b.npy", "bytes": 2_000_000}
    assert served.post("upload?name=a&name=b", b"").status == 400
    assert served.post("upload", b"").json["error"]["pin"] == "name"


@pytest.mark.parametrize(
    ("how", "status", "kind", "message"),
    [
        ("op", 400, "InvalidArgumentError", "ids must be sorted"),
        ("value", 400, "ValueError", "no such value"),
        ("type", 400, "TypeError", "no such type"),
        ("os", 500, "OSError", "[Errno 28] No space left on device"),
    ],
)
def test_errors_of_a_verb(served: Served, how: str, status: int, kind: str, message: str) -> None:
    answer = served.post("fail", {"how": how})
    assert (answer.status, answer.kind, answer.json["error"]["message"]) == (status, kind, message)
    assert set(answer.json["error"]) == {"kind", "message", "text", "block", "pin", "place"}
    if how == "op":
        assert (answer.json["error"]["block"], answer.json["error"]["pin"]) == ("b1", "ids")


def test_internal_errors_are_printed_on_stderr_only() -> None:
    with serving() as served:
        numbers = []
        for how in ("bug", "nan"):
            answer = served.post("fail", {"how": how})
            assert (answer.status, answer.kind) == (500, "Unexpected")
            assert "secret" not in answer.body.decode()
            numbers.append(answer.json["error"]["message"].partition("number ")[2][:8])
        assert served.post("fail", {"how": "exit"}).status == 500  # a verb does not end the server
        assert served.is_well()
        output = served.stop()
    assert all(f"error {number} in fail" in output for number in numbers)
    assert "KeyError: 'a secret of the inside'" in output


@pytest.mark.parametrize(
    ("body", "words"),
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
def test_json_is_read_strictly(served: Served, body: bytes, words: str) -> None:
    answer = served.post("echo", body)
    assert (answer.status, answer.kind) == (400, "InvalidArgumentError")
    assert words in answer.json["error"]["message"]


def test_json_at_its_bounds(served: Served) -> None:
    deep: Any = 1
    for _ in range(99):
        deep = [deep]
    for given in ({"a": deep}, {"a": "[" * 5000 + '\\"' + "{" * 5000}, {"😀": "\u2028"}):
        assert served.post("echo", given).json == given
    assert served.post("echo", b'{"a": "\\ud83d\\ude00"}').json == {"a": "😀"}
    many = b'{"a": [' + b",".join([b"[]"] * 1_000_001) + b"]}"
    assert "more than 1000000 lists and objects" in served.post("echo", many).json["error"]["message"]


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_json_needs_its_content_type(served: Served, kind: str) -> None:
    assert served.post("echo", {}, Content_Type=kind).status == 415


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, identity"])
def test_compressed_bodies_are_rejected(served: Served, coding: str) -> None:
    assert served.post("echo", {}, Content_Encoding=coding).kind == "Compressed"
    assert served.post("upload?name=a", b"x", Content_Encoding=coding).kind == "Compressed"
    assert served.post("echo", {}, Content_Encoding="identity").status == 200


def test_verbs_run_beside_one_another(served: Served) -> None:
    found: list[Answer] = []
    waiting = threading.Thread(target=lambda: found.append(served.post("gate", {"open": False})))
    waiting.start()
    assert served.post("gate", {"open": True}).json == {"opened": True}
    waiting.join()
    assert found[0].json == {"opened": True}


def test_a_verb_that_takes_too_long() -> None:
    """It is answered before the verb ends, which would be after ten minutes, and well."""
    with serving(answer_seconds=0.5) as served:
        answer = served.post("gate", {"open": False})
        assert (answer.status, answer.kind) == (503, "TooSlow")
        wait_until(lambda: served.post("echo", {}).status == 200)


def test_too_many_waiting_requests() -> None:
    """Threads that nobody waits for any more still count, so their number is bounded."""
    with serving(threads=2, waiting=1, answer_seconds=0.3) as served:
        for _ in range(2):
            assert served.post("gate", {"open": False}).kind == "TooSlow"
        assert served.post("echo", {}).kind == "TooSlow"  # waits for a thread, and is forgotten after its time
        results = []
        threads = [
            threading.Thread(target=lambda: results.append(served.post("sleep", {"seconds": 0}))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert "Busy" in {answer.kind for answer in results}
        assert all("retry-after" in answer.headers for answer in results if answer.kind == "Busy")
        served.process.send_signal(signal.SIGUSR1)  # opens the gate
        wait_until(lambda: served.post("echo", {}).status == 200)


# -- events ------------------------------------------------------------------------------------------------------------


class Stream:
    """A window that listens."""

    def __init__(self, served: Served, window: str = "w1") -> None:
        self.connection: socket.socket = served.connect()
        self.connection.sendall(head(f"/api/events?window={window}", served.port, "GET"))
        self.file = self.connection.makefile("rb")
        self.head = b"".join(iter(self.file.readline, b"\r\n"))

    def line(self) -> Any:
        """The next event; None at the end."""
        size = int(self.file.readline() or b"0", 16)
        found = self.file.read(size)
        self.file.readline()
        return json.loads(found) if size else None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()
        self.connection.close()


def test_events(served: Served) -> None:
    with Stream(served) as stream:
        assert b"application/x-ndjson" in stream.head
        assert stream.line() == {"event": "beat"}  # at once
        served.post("tell", {"text": "hello\nworld"})
        assert stream.line() == {"event": "said", "text": "hello\nworld"}
        assert [stream.line() for _ in range(5)] == [{"event": "beat"}] * 5
    with serving(beat_seconds=600) as rare, Stream(rare) as stream:
        assert stream.line() == {"event": "beat"}
        rare.post("tell", {"text": "no beat before"})
        assert stream.line() == {"event": "said", "text": "no beat before"}


@pytest.mark.parametrize("query", ["", "?window=", "?window=a%20b", f"?window={'a' * 65}", "?window=%00"])
def test_a_window_has_a_name(served: Served, query: str) -> None:
    assert served.ask("GET", f"/api/events{query}", {"X-Rowgrad-Token": TOKEN}).status == 400


def listening(served: Served, stack: ExitStack, window: str) -> Stream:
    """A stream that is accepted, which those that were closed a moment ago may delay."""
    while True:
        stream = stack.enter_context(Stream(served, window))
        if b" 200 " in stream.head:
            return stream
        stream.__exit__()


def test_closed_windows_free_their_place(served: Served) -> None:
    """64 may listen; more often than that some come and go."""
    for _ in range(3):
        with ExitStack() as stack:
            streams = [listening(served, stack, f"w{k}") for k in range(64)]
            assert b" 503 " in stack.enter_context(Stream(served, "one-more")).head
            served.post("tell", {"text": "all"})
            for stream in streams:
                stream.line()
                while (event := stream.line()) == {"event": "beat"}:
                    pass
                assert event == {"event": "said", "text": "all"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_stops_ends_its_streams(number: int) -> None:
    with serving(stop_seconds=10_000) as served, ExitStack() as stack:  # it does not wait for them
        streams = [stack.enter_context(Stream(served, f"w{k}")) for k in range(3)]
        assert all(s.line() == {"event": "beat"} for s in streams)
        output = served.stop(number)
        assert all(s.line() is None for s in streams)
        assert output == "closed\n"
        assert served.process.returncode == 0


def test_a_stuck_verb_does_not_keep_the_server_from_stopping() -> None:
    with serving(stop_seconds=1) as served, Stream(served) as stream, served.connect() as asking:
        assert stream.line() == {"event": "beat"}
        asking.sendall(head("/api/gate", served.port, extra="Content-Length: 15\r\n") + b'{"open": false}')
        while stream.line() != {"event": "said", "text": "at the gate"}:  # so that the verb has begun
            pass
        served.stop()  # nobody opens the gate
