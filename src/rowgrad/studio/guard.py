"""Who may ask: judged from a request's head alone, before anything of its body is read.

A studio listens on the user's own machine, where every page of the internet that is open in the same browser can send
requests, too. What keeps them out: the Host must be ours (or a name that an attacker points at 127.0.0.1 would do), the
Origin must be ours, and every request but those for the page's own files must carry the session of a window or the
token of a program (`access`).
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import Access
from .limits import Limits
from .refusals import RefusedError

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
    """The names this server goes by, as a Host header writes them."""

    def __init__(self, port: int, names: Iterable[str] = (), any_address: bool = False) -> None:
        self._port, self._any_address = port, any_address
        self._names = {name.lower() for name in (*LOCAL_NAMES, *names)}

    def __contains__(self, host: str) -> bool:
        name, colon, port = host.lower().rpartition(":")
        if not colon or host.endswith("]"):  # without a port, which is 80 then
            name, port = host.lower(), "80"
        if port != str(self._port):
            return False
        return name in self._names or (self._any_address and _is_address(name))


def _is_address(name: str) -> bool:
    """Whether it is an address: nobody but its owner can make a browser connect to it under that name."""
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True


class Guard:
    """Stands before the application: judges heads, counts requests, and puts its headers on every answer."""

    def __init__(self, app: ASGIApp, hosts: Hosts, access: Access, limits: Limits) -> None:
        self._app, self._hosts, self._access, self._limits = app, hosts, access, limits
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or answer it here."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # uvicorn is told to speak no other protocol

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        try:
            heads = self._judge(scope)
            if heads.path in (ENTER, LINK):
                await self._answer_access(heads, send_with_headers)
                return
        except RefusedError as refused:
            await answer_refused(refused, send_with_headers)
            return
        self._requests += 1
        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            self._requests -= 1

    def _judge(self, scope: Scope) -> _Heads:
        heads = _Heads(scope)
        if heads.size > self._limits.head_bytes:  # uvicorn lets pass what comes in one piece
            text = f"the head is longer than {self._limits.head_bytes} bytes"
            raise RefusedError(431, "TooLarge", text, connection="close")
        path = heads.path
        host = heads.single("host") or ""
        if host not in self._hosts:
            raise RefusedError(403, "HostRefused", f"this studio is not called {host[:80]!r}")
        origin = heads.single("origin")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            raise RefusedError(403, "OriginRefused", f"pages of {origin[:80]!r} may not ask this studio")
        self._judge_site(heads, path)
        # What is judged here must be what is routed behind: /api%2Fevents would be routed as /api/events.
        if not path.startswith("/") or path != scope["path"]:
            raise RefusedError(404, "NotFound", f"there is no {path[:80]!r}")
        allowed = ("GET", "HEAD") if not path.startswith("/api/") else ("GET",) if path == "/api/events" else ("POST",)
        if scope["method"] not in allowed:
            text = f"{path[:80]} takes {' and '.join(allowed)} only"
            raise RefusedError(405, "MethodRefused", text, allow=", ".join(allowed))
        if path.startswith("/api/") and path not in (ENTER, LINK) and not self._has_access(heads):
            raise RefusedError(401, "AccessRefused", _NO_ACCESS, www_authenticate=TOKEN_HEADER)
        if len(scope["query_string"]) > self._limits.query_bytes:
            raise RefusedError(414, "TooLarge", f"the query is longer than {self._limits.query_bytes} bytes")
        if path.startswith("/api/") and self._requests >= self._limits.requests:
            text = f"{self._limits.requests} requests are being answered already; try again"
            raise RefusedError(503, "Busy", text, retry_after="1")
        return heads

    def _has_access(self, heads: _Heads) -> bool:
        cookies, key = heads.sent("Cookie"), heads.sent(PAGE_HEADER)
        return self._access.is_token(heads.sent(TOKEN_HEADER)) or self._access.is_session(cookies, key)

    async def _answer_access(self, heads: _Heads, send: Send) -> None:
        """A session for the window that has a launch secret; a launch secret for `rowgrad studio --link`."""
        access = self._access
        if heads.path == ENTER:
            if not access.use_launch(heads.sent(LAUNCH_HEADER)):
                raise RefusedError(401, "LaunchRefused", _NO_LAUNCH, www_authenticate=LAUNCH_HEADER)
            await _answer(200, {"key": access.page_key}, {"set-cookie": access.cookie}, send)
            return
        if not access.is_control(heads.sent(CONTROL_HEADER)):
            raise RefusedError(401, "AccessRefused", _NO_ACCESS, www_authenticate=CONTROL_HEADER)
        await _answer(200, {"launch": access.new_launch(), "token": access.token}, {}, send)

    def _judge_site(self, heads: _Heads, path: str) -> None:
        """What the browser says of who asks. Another port of this machine is the same site, not the same origin.

        The page itself, which holds nothing secret, may be opened in a window of its own from anywhere: browsers say
        "cross-site" of the file that opens it. Later requests of that page get the usual checks.
        """
        site = heads.single("sec-fetch-site")
        if site in (None, "same-origin", "none"):
            return
        opens = heads.single("sec-fetch-mode") == "navigate" and heads.single("sec-fetch-dest") == "document"
        if path != "/" or site not in ("same-site", "cross-site") or not opens:
            raise RefusedError(403, "OriginRefused", "pages of other origins may not ask this studio")


class _Heads:
    """Headers by name; one that must stand once is refused where it stands twice."""

    def __init__(self, scope: Scope) -> None:
        self._pairs: list[tuple[bytes, bytes]] = scope["headers"]
        self.path = scope["raw_path"].decode("latin-1")

    @property
    def size(self) -> int:
        """Bytes of names and values, and of the path."""
        return len(self.path) + sum(len(name) + len(value) for name, value in self._pairs)

    def single(self, name: str) -> str | None:
        found = [value for key, value in self._pairs if key == name.encode()]
        if len(found) > 1:
            raise RefusedError(400, "HeaderRefused", f"the header {name} stands {len(found)} times")
        return found[0].decode("latin-1") if found else None

    def sent(self, name: str) -> str:
        """The header's value; an empty text where it was not sent."""
        return self.single(name.lower()) or ""


async def answer_refused(refused: RefusedError, send: Send) -> None:
    """Send a refusal."""
    await _answer(refused.status, {"error": refused.facts}, refused.headers, send)


async def _answer(status: int, document: dict[str, Any], more: dict[str, str], send: Send) -> None:
    body = json.dumps(document).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "cache-control": "no-store"} | more
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
