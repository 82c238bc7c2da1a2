"""The HTTP server: static files of the page, the stream of events, and one route for all verbs."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import json
import queue
import re
import secrets
import sys
import threading
import traceback
from collections.abc import AsyncIterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from ..errors import OpError
from . import verbs
from .access import Access
from .events import Listener
from .http_requests import Body, ByteBudget, Guard, Hosts, RequestError, Workers, error_bytes, parse_object
from .limits import LIMITS, Limits

if TYPE_CHECKING:
    from .studio import Studio

# -- static files ------------------------------------------------------------------------------------------------------

FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
_PACKED = {".html", ".js", ".css", ".json", ".svg", ".txt"}


class _File(NamedTuple):
    changed: int
    plain: bytes
    packed: bytes | None
    kind: str
    tag: str


class StaticFiles:
    """The files that exist when the server starts. Requests are looked up by exact name, never on disk."""

    def __init__(self, folder: Path = FOLDER) -> None:
        found = (p for p in sorted(folder.rglob("*")) if p.suffix in _TYPES and p.is_file())
        self._paths = {f"/{p.relative_to(folder).as_posix()}": p for p in found}
        if "/index.html" in self._paths:
            self._paths["/"] = self._paths["/index.html"]
        self._files: dict[Path, _File] = {}
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Response:
        """Answer with the file of a path, compressed if the browser accepts that, or with 304 if it is unchanged."""
        name = request.scope["raw_path"].decode("latin-1")
        path = self._paths.get(name)
        if path is None:
            if name == "/":
                raise RequestError(503, "NotBuilt", "Studio's page is not built: static/index.html is missing")
            raise RequestError(404, "NotFound", f"no such file: {name[:80]!r}")
        file = self._read(path)
        accepted = {part.partition(";")[0].strip() for part in request.headers.get("accept-encoding", "").split(",")}
        packed = file.packed if "gzip" in accepted else None
        tag = f'"{file.tag}{"-gz" if packed is not None else ""}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if tag in (part.strip() for part in request.headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=headers)
        if packed is not None:
            headers["Content-Encoding"] = "gzip"
        return Response(file.plain if packed is None else packed, headers=headers | {"Content-Type": file.kind})

    def _read(self, path: Path) -> _File:
        """Return the current file, which may be rebuilt while the server runs."""
        changed = path.stat().st_mtime_ns
        with self._lock:
            file = self._files.get(path)
            if file is None or file.changed != changed:
                plain = path.read_bytes()
                packed = gzip.compress(plain, 6, mtime=0) if path.suffix in _PACKED else None
                tag = hashlib.sha256(plain).hexdigest()[:24]
                file = self._files[path] = _File(changed, plain, packed, _TYPES[path.suffix], tag)
            return file


# -- `GET /api/events`: a stream of events, one JSON document per line -------------------------------------------------

_WINDOW = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BEAT = {"event": "beat"}


class EventsStream:
    """Streams of a studio's events. Each waits in its own thread, so their number is bounded."""

    def __init__(self, studio: Studio, limits: Limits) -> None:
        self._hub, self._limits = studio.hub, limits
        self._workers = Workers("rowgrad-events", limits.windows, limits.windows)

    def answer(self, request: Request) -> Response:
        """Start a stream."""
        window = request.query_params.get("window", "")
        if not _WINDOW.fullmatch(window):
            message = f"events: window must be 1 to 64 letters, digits, - or _; got {window[:80]!r}"
            raise RequestError(400, "InvalidArgumentError", message)
        try:
            listener = self._hub.listen(window)
        except queue.Full as full:
            raise RequestError(503, "Busy", str(full)) from None
        return StreamingResponse(
            self._lines(listener), media_type="application/x-ndjson", headers={"Cache-Control": "no-store"}
        )

    async def _lines(self, listener: Listener) -> AsyncIterator[bytes]:
        """Yield a heartbeat at once, so that the window knows it is connected; then events, or heartbeats."""
        try:
            yield _line(_BEAT)
            while not listener.closed:
                waiting = self._workers.submit(partial(listener.take, self._limits.beat_seconds))
                events = await asyncio.wrap_future(waiting)
                if events or not listener.closed:
                    yield b"".join(map(_line, events or (_BEAT,)))
        finally:  # the client disconnected, or the server stops
            self._hub.leave(listener)


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


# -- the application: routes of files, verbs and events ----------------------------------------------------------------


def make_app(
    studio: Studio, hosts: Hosts, access: Access, limits: Limits = LIMITS, static: Path = FOLDER, debug: bool = False
) -> ASGIApp:
    """Make the application, with the guard in front of it."""
    files, events, answers = StaticFiles(static), EventsStream(studio, limits), _Verbs(studio, limits, debug)

    async def file(request: Request) -> Response:
        return files.answer(request)

    async def stream(request: Request) -> Response:
        return events.answer(request)

    app = Starlette(
        routes=[
            Route("/api/events", stream, methods=["GET"]),
            Route("/api/{verb}", answers.answer, methods=["POST"]),
            Route("/{path:path}", file, methods=["GET"]),  # includes HEAD
        ],
        exception_handlers={
            RequestError: _send_request_error,
            HTTPException: _not_found,
            ClientDisconnect: _disconnected,
            Exception: _internal_error,
        },
    )
    app.router.redirect_slashes = False
    return Guard(app, hosts, access, limits)


class _Verbs:
    """Reads a request, handles its verb in a thread, and waits for the result within a time limit."""

    def __init__(self, studio: Studio, limits: Limits, debug: bool) -> None:
        self._studio, self._limits, self._debug = studio, limits, debug
        self._budget = ByteBudget(limits.total_bytes)
        self._workers = Workers("rowgrad-verb", limits.threads, limits.waiting)

    async def answer(self, request: Request) -> Response:
        name = request.path_params["verb"]
        try:
            takes_file = verbs.find(name).takes_file
        except verbs.UnknownVerbError as error:
            return _json(404, error_bytes(verbs.error_json(error)))
        if not takes_file and request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise RequestError(415, "TypeRefused", f"{name} takes Content-Type: application/json")
        limits = self._limits
        bounds = (limits.file_bytes, 1) if takes_file else (limits.json_bytes, limits.json_weight)
        body = Body(self._budget, *bounds)
        try:
            raw = await body.read(request.headers, request.stream(), limits)
            query = _query(request) if takes_file else None
            future = self._workers.submit(partial(self._work, name, raw, query))
        except BaseException:
            body.release()
            raise
        del raw
        # The thread may run longer than this waits, and refers to the body until it ends.
        future.add_done_callback(partial(_from_thread, asyncio.get_running_loop(), body))
        try:
            async with asyncio.timeout(limits.answer_seconds):
                return _json(*await asyncio.wrap_future(future))
        except TimeoutError:
            message = f"{name} did not finish within {limits.answer_seconds:g} seconds; it may still be running"
            raise RequestError(503, "TooSlow", message) from None

    def _work(self, name: str, raw: bytes, query: dict[str, str] | None) -> tuple[int, bytes]:
        """Return status and document; runs in a thread."""
        try:
            fields, file = (parse_object(raw, self._limits), b"") if query is None else (query, raw)
            result = verbs.answer(self._studio, name, fields, file)
        except (OpError, ValueError, TypeError) as error:
            if self._debug:
                traceback.print_exception(error)
            return 400, _error(verbs.error_json(error))
        except RequestError as error:
            return error.status, error_bytes(error.facts)
        except queue.Full as error:
            return 503, _error(verbs.error_json(error) | {"kind": "Busy"})
        except MemoryError as error:
            return 503, _error(verbs.error_json(error) | {"message": "not enough memory for this request"})
        except OSError as error:  # such as a full disk: the user can do something about it
            return 500, _error(verbs.error_json(error))
        except BaseException as error:  # also SystemExit, which would end the event loop
            return 500, error_bytes(_log_error(error, name))
        try:
            return 200, json.dumps(result, allow_nan=False, separators=(",", ":")).encode()
        except (ValueError, TypeError, RecursionError) as error:  # a bug of the verb, not an error of the client
            return 500, error_bytes(_log_error(error, name))


def _query(request: Request) -> dict[str, str]:
    pairs = request.query_params.multi_items()
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RequestError(400, "InvalidArgumentError", "an argument is repeated in the query")
    return found


def _from_thread(loop: asyncio.AbstractEventLoop, body: Body, future: Future[Any]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop ended before the thread
        loop.call_soon_threadsafe(body.release)


def _json(status: int, document: bytes, headers: dict[str, str] | None = None) -> Response:
    headers = {"Cache-Control": "no-store"} | (headers or {})
    return Response(document, status, headers, "application/json")


def _error(facts: dict[str, Any]) -> bytes:
    return json.dumps({"error": facts}, default=str).encode()


def _log_error(error: BaseException, place: str) -> dict[str, Any]:
    """Log an internal error; return what the client gets: a number to search for in the log, and no details."""
    number = secrets.token_hex(4)
    sys.stderr.write(f"rowgrad studio: error {number} in {place}\n{''.join(traceback.format_exception(error))}")
    sys.stderr.flush()
    message = f"internal error, number {number}; the terminal of `rowgrad studio` shows the traceback"
    return RequestError(500, "Unexpected", message).facts


async def _send_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _json(error.status, error_bytes(error.facts), error.headers)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json(error.status_code, error_bytes(RequestError(404, "NotFound", "no such address").facts))


async def _disconnected(request: Request, error: Exception) -> Response:
    return _json(400, b"")  # the client disconnected


async def _internal_error(request: Request, error: Exception) -> Response:
    return _json(500, error_bytes(_log_error(error, request.url.path)))
