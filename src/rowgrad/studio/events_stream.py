"""`GET /api/events`: what happens, one JSON document per line, for as long as a window listens."""

from __future__ import annotations

import asyncio
import json
import queue
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from .hub import Listener
from .limits import Limits
from .refusals import RefusedError
from .workers import Workers

if TYPE_CHECKING:
    from .studio import Studio

_WINDOW = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BEAT = {"event": "beat"}


class EventsStream:
    """Streams of a studio's events. Each waits in a thread of its own, so there are no more of them than windows."""

    def __init__(self, studio: Studio, limits: Limits) -> None:
        self._hub, self._limits = studio.hub, limits
        self._workers = Workers("rowgrad-events", limits.windows, limits.windows)

    def answer(self, request: Request) -> Response:
        """Begin to stream."""
        window = request.query_params.get("window", "")
        if not _WINDOW.fullmatch(window):
            text = f"events: window must be 1 to 64 letters, digits, - or _; got {window[:80]!r}"
            raise RefusedError(400, "InvalidArgumentError", text)
        try:
            listener = self._hub.listen(window)
        except queue.Full as full:
            raise RefusedError(503, "Busy", str(full)) from None
        return StreamingResponse(
            self._lines(listener), media_type="application/x-ndjson", headers={"Cache-Control": "no-store"}
        )

    async def _lines(self, listener: Listener) -> AsyncIterator[bytes]:
        """A beat at once, so that the window knows that it is heard; then events, or a beat where there are none."""
        try:
            yield _line(_BEAT)
            while not listener.closed:
                waiting = self._workers.submit(partial(listener.take, self._limits.beat_seconds))
                events = await asyncio.wrap_future(waiting)
                if events or not listener.closed:
                    yield b"".join(map(_line, events or (_BEAT,)))
        finally:  # the client has gone, or the server stops
            self._hub.leave(listener)


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
