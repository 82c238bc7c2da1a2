"""Connections within bounds of number and time: uvicorn waits for ever for a head that does not come."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .guard import HEADERS
from .limits import LIMITS, Limits
from .refusals import RefusedError, error_bytes

_STALLED = 2.0  # seconds without reading, after which a connection makes room where others wait


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, with a watch on every connection.

    Closed are connections that have asked nothing for too long, whether they are idle or send a head byte by byte, and
    those whose client reads nothing of its answer. Where there are too many, the one that has done so for longest makes
    room for a new one; so half-sent heads and answers nobody reads, however many, keep nobody out.
    """

    limits: ClassVar[Limits] = LIMITS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room, then begin to watch."""
        self._quiet_since = self.loop.time()  # no request has come since then
        self._written = (0, self._quiet_since)  # bytes that wait to be read by the client, and since when so many
        self._watch: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            others = [c for c in self.connections if isinstance(c, BoundedProtocol) and c.may_go and c is not self]
            leaves = min(others, key=lambda c: c._quiet_since, default=self)
            self.connections.discard(leaves)
            leaves.transport.abort()
        self._look()

    @property
    def may_go(self) -> bool:
        """Whether nothing is lost but a client's patience: it asks nothing, or does not read what it asked for."""
        stalls = self.transport.get_write_buffer_size() > 0 and self.loop.time() - self._written[1] > _STALLED
        return self.is_quiet or stalls

    @property
    def is_quiet(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Watch no longer."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Time runs for the next request."""
        self._quiet_since = self.loop.time()
        super().on_response_complete()

    def _look(self) -> None:
        """Every now and then: is the client still doing its part?"""
        if self.transport.is_closing() and self.transport.get_write_buffer_size() == 0:
            return
        now, limits = self.loop.time(), self.limits
        left = self.transport.get_write_buffer_size()
        if left == 0 or left != self._written[0]:
            self._written = (left, now)
        is_late = self.is_quiet and left == 0 and now - self._quiet_since > limits.head_seconds
        if is_late or now - self._written[1] > limits.write_seconds:
            self.transport.abort()
            return
        self._watch = self.loop.call_later(min(limits.head_seconds, limits.write_seconds) / 5, self._look)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets an answer like others, where one can still be given."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = error_bytes(RefusedError(400, "HeaderRefused", "this is no HTTP request that can be read").facts)
        headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        answer = h11.Response(status_code=400, headers=[*headers, (b"connection", b"close"), *HEADERS])
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def protocol_with(limits: Limits) -> type[BoundedProtocol]:
    """The protocol with other limits."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits})
