"""How much a client may ask for. Every bound of the server stands here, and tests set smaller ones."""

from __future__ import annotations

from dataclasses import dataclass

# -- How much a client may ask for -------------------------------------------------------------------------------------

# How much a client may ask for. Every bound of the server stands here, and tests set smaller ones.

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes, seconds and numbers."""

    json_bytes: int = 16 * MEBIBYTE  # of one request that is JSON
    file_bytes: int = 64 * MEBIBYTE  # of one that is a file
    held_bytes: int = 256 * MEBIBYTE  # of all requests that are being read or answered
    json_weight: int = 8  # JSON takes about so many times its length once it is parsed
    json_depth: int = 100  # lists and objects in one another; a page has about ten
    json_parts: int = 1_000_000  # lists and objects in all
    head_bytes: int = 32 * 1024  # request line and headers
    query_bytes: int = 8 * 1024
    head_seconds: float = 10.0  # until a connection has sent a whole head; idle ones are closed by then, too
    body_seconds: float = 30.0  # until a body is there
    write_seconds: float = 30.0  # that a client may read nothing of what it asked for
    answer_seconds: float = 60.0  # for one verb
    stop_seconds: int = 3  # that requests have left when the server stops
    beat_seconds: float = 10.0  # between signs of life in the stream of events
    connections: int = 160  # below 256, the number of open files macOS begins with
    requests: int = 128  # at a time, streams of events among them
    threads: int = 8  # verbs that are answered at a time
    waiting: int = 64  # verbs that wait for a thread
    windows: int = 64  # streams of events


LIMITS = Limits()


# -- How much goes into or comes out of a studio at once ---------------------------------------------------------------

MOST_IMPORTED = 256 << 20  # bytes of a file
MOST_EXPORTED = 16 << 20  # bytes of arrays that are written out as text, several characters for each
