"""Limits of the server on sizes, numbers and times. Tests set smaller ones."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of HTTP requests, connections and threads."""

    json_bytes: int = 16 * MEBIBYTE  # of one JSON request
    file_bytes: int = 64 * MEBIBYTE  # of one request with a file
    total_bytes: int = 256 * MEBIBYTE  # of all requests in progress
    json_weight: int = 8  # memory of parsed JSON, in multiples of its length
    json_depth: int = 100  # nested lists and objects; a page has about ten
    json_parts: int = 1_000_000  # lists and objects in total
    head_bytes: int = 32 * 1024  # request line and headers
    query_bytes: int = 8 * 1024
    head_seconds: float = 10.0  # until a connection has sent a whole head; idle connections are closed then too
    body_seconds: float = 30.0  # until a body has arrived
    write_seconds: float = 30.0  # that a client may stop reading a response
    answer_seconds: float = 60.0  # for one verb
    stop_seconds: int = 3  # for requests in progress when the server stops
    beat_seconds: float = 10.0  # between heartbeats in the stream of events
    connections: int = 160  # below 256, macOS's default limit of open files
    requests: int = 128  # at a time, streams of events included
    threads: int = 8  # verbs that run at a time
    waiting: int = 64  # pending verbs
    windows: int = 64  # streams of events


LIMITS = Limits()
MOST_IMPORTED = 256 << 20  # bytes of an imported file
MOST_EXPORTED = 16 << 20  # bytes of arrays in an exported text, which has several characters for each
