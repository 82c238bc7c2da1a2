"""HTTP requests before a verb handles them: access checks, bodies within limits, and the threads that run verbs."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import queue
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import InvalidArgumentError
from .access import Access
from .limits import MEBIBYTE, Limits

# -- errors of the server itself, in the format of verbs' errors -------------------------------------------------------


class RequestError(Exception):
    """A request that the server rejects: a status, a short name for programs, and a message."""

    def __init__(self, status: int, kind: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    @property
    def facts(self) -> dict[str, Any]:
        """Return the fields of `verbs.error_json`."""
        facts = {"kind": self.kind, "message": self.message, "text": self.message}
        return facts | {"block": None, "pin": None, "place": None}


def error_bytes(facts: dict[str, Any]) -> bytes:
    """Return the response body of an error."""
    return json.dumps({"error": facts}).encode()


# -- threads that run verbs: a bounded number, a bounded queue, and no thread that keeps the process alive -------------

_Job = tuple[Future[Any], Callable[[], Any]]


class Workers:
    """Runs jobs in threads, which are started as needed. A job whose client disconnected counts until it is done.

    The pools of the standard library and of anyio either wait for such a job at exit or do not count it.
    """

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._name, self._most = name, threads
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._capacity = threads + waiting
        self._active = 0  # pending and running jobs
        self._threads = 0

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Run a job; raise RequestError if too many are pending."""
        with self._lock:
            if self._active >= self._capacity:
                raise RequestError(
                    503, "Busy", f"{self._active} requests are already waiting; try again", retry_after="1"
                )
            self._active += 1
            if self._threads < min(self._active, self._most):
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        future: Future[Any] = Future()
        self._jobs.put((future, job))
        return future

    def close(self) -> None:
        """End threads when they are idle."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _work(self) -> None:
        while (found := self._jobs.get()) is not None:
            future, job = found
            try:
                if future.set_running_or_notify_cancel():  # otherwise its request was cancelled
                    future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
            finally:
                with self._lock:
                    self._active -= 1
            del found, future, job  # an idle thread must not keep a body or a result in memory


# -- strict JSON of requests: one object, in UTF-8, with bounded depth and size ----------------------------------------

# An unclosed string matches up to the end; otherwise the search would restart at every quote in it.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_MOST_DIGITS = 1000  # as in page files


def parse_object(raw: bytes, limits: Limits) -> dict[str, Any]:
    """Parse the arguments of a verb."""
    _check_nesting(raw, limits)
    try:
        found = _DECODER.decode(raw.decode("utf-8"))
        if rb"\u" in raw:  # only an escape can write a lone surrogate, which no file and no response can hold
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"the request is not UTF-8: byte {error.start} is {raw[error.start]:#04x}") from None
    except UnicodeEncodeError:
        raise InvalidArgumentError("the request contains a lone surrogate") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidArgumentError(f"the request is not JSON: {error.msg}, {where}") from None
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"the request must be a JSON object; got {type(found).__name__}")
    return found


def _check_nesting(raw: bytes, limits: Limits) -> None:
    """Reject, before parsing, what would exhaust the stack or memory."""
    brackets = _STRING.sub(b"", raw).translate(None, _NO_BRACKET)
    if len(brackets) > 2 * limits.json_parts:
        raise InvalidArgumentError(f"the request has more than {limits.json_parts} lists and objects")
    opens = np.isin(np.frombuffer(brackets, np.uint8), np.frombuffer(b"[{", np.uint8))
    depth = np.cumsum(np.where(opens, np.int8(1), np.int8(-1)), dtype=np.int32).max(initial=0)
    if depth > limits.json_depth:
        message = f"lists and objects are nested {depth} deep in the request; at most {limits.json_depth} are allowed"
        raise InvalidArgumentError(message)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys: set[str] = set()
        twice = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
        raise InvalidArgumentError(f"the request has an object with the key {twice[:60]!r} twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise InvalidArgumentError(
            f"the request has an integer of {len(digits)} digits; at most {_MOST_DIGITS} are allowed"
        )
    return int(digits)


def _constant(name: str) -> Any:
    raise InvalidArgumentError(f'the request contains {name}, which is not JSON; write it as a string, "{name}"')


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_constant=_constant)


# -- request bodies, bounded in size, in total size and in time --------------------------------------------------------


class ByteBudget:
    """Bytes of all requests in progress. Only the event loop changes it, so it needs no lock."""

    def __init__(self, most: int) -> None:
        self.most, self.now = most, 0

    def reserve(self, size: int) -> None:
        """Reserve bytes; raise RequestError if too many are reserved."""
        if self.now + size > self.most:
            raise RequestError(503, "Busy", "other large requests are being answered; try again", retry_after="1")
        self.now += size

    def release(self, size: int) -> None:
        """Release bytes."""
        self.now -= size


class Body:
    """The body of one request, and its share of the budget; call `release` when nothing refers to it."""

    def __init__(self, budget: ByteBudget, limit: int, weight: int) -> None:
        self._budget, self._limit, self._weight = budget, limit, weight
        self._parts: list[bytes] = []
        self._size = 0

    async def read(self, headers: Mapping[str, str], stream: AsyncIterator[bytes], limits: Limits) -> bytes:
        """Read the whole body."""
        if headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise RequestError(415, "Compressed", "compressed bodies are not supported; send it uncompressed")
        length = headers.get("content-length")
        if length is not None and int(length) > self._limit:  # h11 guarantees digits
            raise self._too_large(f"{int(length)} bytes")
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for part in stream:
                    self._add(part)
        except TimeoutError:
            message = f"the request's body did not arrive within {limits.body_seconds:g} seconds"
            raise RequestError(408, "TooSlow", message, connection="close") from None
        whole = b"".join(self._parts)
        self._parts.clear()
        return whole

    def _add(self, part: bytes) -> None:
        size = self._size + len(part)
        if size > self._limit:
            raise self._too_large("more")
        self._budget.reserve(len(part) * self._weight)
        self._size = size
        self._parts.append(part)

    def release(self) -> None:
        """Drop the bytes, and return them to the budget."""
        self._parts.clear()
        self._budget.release(self._size * self._weight)
        self._size = 0

    def _too_large(self, got: str) -> RequestError:
        most = f"{self._limit / MEBIBYTE:g} MiB" if self._limit >= MEBIBYTE else f"{self._limit} bytes"
        return RequestError(413, "TooLarge", f"a request of this kind may have at most {most}; got {got}")


# -- access control by a request's head, before its body is read -------------------------------------------------------

# A studio listens on the user's machine, where every web page open in the same browser can send requests to it. Three
# checks keep them out: the Host must be ours (an attacker may point a name at 127.0.0.1), the Origin must be ours, and
# every request except for the page's own files must carry the session of a window or the token of a program (`access`).

TOKEN_HEADER = "X-Rowgrad-Token"
PAGE_HEADER = "X-Rowgrad-Page"
LAUNCH_HEADER = "X-Rowgrad-Launch"
CONTROL_HEADER = "X-Rowgrad-Control"
ENTER, LINK = "/api/enter", "/api/link"
_NO_ACCESS = "this window has no access to the studio: run `rowgrad studio --link` and open the address that it prints"
_NO_LAUNCH = (
    "this address was used before or has expired: run `rowgrad studio --link` and open the address that it prints"
)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Hosts:
    """The names of this server in Host headers."""

    def __init__(self, port: int, names: Iterable[str] = (), any_address: bool = False) -> None:
        self._port, self._any_address = port, any_address
        self._names = {name.lower() for name in (*LOCAL_NAMES, *names)}

    def __contains__(self, host: str) -> bool:
        name, colon, port = host.lower().rpartition(":")
        if not colon or host.endswith("]"):  # without a port, which means 80
            name, port = host.lower(), "80"
        if port != str(self._port):
            return False
        return name in self._names or (self._any_address and _is_address(name))


def _is_address(name: str) -> bool:
    """Return whether it is an IP address, which an attacker cannot point elsewhere."""
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True


class Guard:
    """Middleware that checks request heads, counts requests, and adds security headers to every response."""

    def __init__(self, app: ASGIApp, hosts: Hosts, access: Access, limits: Limits) -> None:
        self._app, self._hosts, self._access, self._limits = app, hosts, access, limits
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the application, or answer it with an error."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # uvicorn is configured without other protocols

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        try:
            headers = self._check_head(scope)
            if headers.path in (ENTER, LINK):
                await self._answer_access(headers, send_with_headers)
                return
        except RequestError as error:
            await send_error(error, send_with_headers)
            return
        self._requests += 1
        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            self._requests -= 1

    def _check_head(self, scope: Scope) -> _Headers:
        headers = _Headers(scope)
        if headers.size > self._limits.head_bytes:  # uvicorn does not check heads that arrive in one piece
            message = f"the head is longer than {self._limits.head_bytes} bytes"
            raise RequestError(431, "TooLarge", message, connection="close")
        path = headers.path
        host = headers.single("host") or ""
        if host not in self._hosts:
            raise RequestError(403, "HostRefused", f"{host[:80]!r} is not a host name of this studio")
        origin = headers.single("origin")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            raise RequestError(403, "OriginRefused", f"pages of {origin[:80]!r} may not send requests to this studio")
        self._check_site(headers, path)
        # The checked path must be the routed path: /api%2Fevents would be routed as /api/events.
        if not path.startswith("/") or path != scope["path"]:
            raise RequestError(404, "NotFound", f"no such address: {path[:80]!r}")
        allowed = ("GET", "HEAD") if not path.startswith("/api/") else ("GET",) if path == "/api/events" else ("POST",)
        if scope["method"] not in allowed:
            message = f"{path[:80]} takes {' and '.join(allowed)} only"
            raise RequestError(405, "MethodRefused", message, allow=", ".join(allowed))
        if path.startswith("/api/") and path not in (ENTER, LINK) and not self._has_access(headers):
            raise RequestError(401, "AccessRefused", _NO_ACCESS, www_authenticate=TOKEN_HEADER)
        if len(scope["query_string"]) > self._limits.query_bytes:
            raise RequestError(414, "TooLarge", f"the query is longer than {self._limits.query_bytes} bytes")
        if path.startswith("/api/") and self._requests >= self._limits.requests:
            message = f"{self._limits.requests} requests are in progress already; try again"
            raise RequestError(503, "Busy", message, retry_after="1")
        return headers

    def _has_access(self, headers: _Headers) -> bool:
        cookies, key = headers.get("Cookie"), headers.get(PAGE_HEADER)
        return self._access.is_token(headers.get(TOKEN_HEADER)) or self._access.is_session(cookies, key)

    async def _answer_access(self, headers: _Headers, send: Send) -> None:
        """Answer with a session for a launch secret, or with a launch secret for `rowgrad studio --link`."""
        access = self._access
        if headers.path == ENTER:
            if not access.use_launch(headers.get(LAUNCH_HEADER)):
                raise RequestError(401, "LaunchRefused", _NO_LAUNCH, www_authenticate=LAUNCH_HEADER)
            await _answer(200, {"key": access.page_key}, {"set-cookie": access.cookie}, send)
            return
        if not access.is_control(headers.get(CONTROL_HEADER)):
            raise RequestError(401, "AccessRefused", _NO_ACCESS, www_authenticate=CONTROL_HEADER)
        await _answer(200, {"launch": access.new_launch(), "token": access.token}, {}, send)

    def _check_site(self, headers: _Headers, path: str) -> None:
        """Check the browser's Sec-Fetch headers. Another port of this machine is the same site, not the same origin.

        Any site may open the page itself in a window, because it contains no secrets: browsers send "cross-site" for
        the file that redirects to it. Later requests of that page get the usual checks.
        """
        site = headers.single("sec-fetch-site")
        if site in (None, "same-origin", "none"):
            return
        opens = headers.single("sec-fetch-mode") == "navigate" and headers.single("sec-fetch-dest") == "document"
        if path != "/" or site not in ("same-site", "cross-site") or not opens:
            raise RequestError(403, "OriginRefused", "pages of other origins may not send requests to this studio")


class _Headers:
    """The path and headers of a request; a header that must be unique is rejected if it is repeated."""

    def __init__(self, scope: Scope) -> None:
        self._pairs: list[tuple[bytes, bytes]] = scope["headers"]
        self.path = scope["raw_path"].decode("latin-1")

    @property
    def size(self) -> int:
        """Return the bytes of the path and all headers."""
        return len(self.path) + sum(len(name) + len(value) for name, value in self._pairs)

    def single(self, name: str) -> str | None:
        found = [value for key, value in self._pairs if key == name.encode()]
        if len(found) > 1:
            raise RequestError(400, "HeaderRefused", f"the header {name} occurs {len(found)} times")
        return found[0].decode("latin-1") if found else None

    def get(self, name: str) -> str:
        """Return a header's value, or an empty string if it was not sent."""
        return self.single(name.lower()) or ""


async def send_error(error: RequestError, send: Send) -> None:
    """Send an error response."""
    await _answer(error.status, {"error": error.facts}, error.headers, send)


async def _answer(status: int, document: dict[str, Any], more: dict[str, str], send: Send) -> None:
    body = json.dumps(document).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "cache-control": "no-store"} | more
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
