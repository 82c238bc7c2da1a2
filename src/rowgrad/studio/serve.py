"""Serve a studio over HTTP: bounded connections, files that announce a running studio, the server, and the browser."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import html
import http.client
import ipaddress
import json
import logging
import os
import re
import secrets
import signal
import socket
import stat
import threading
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlencode

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..graph import PageError
from ..graph.io import files
from . import array_pool, verbs
from .access import Access
from .http import make_app
from .http_requests import CONTROL_HEADER, HEADERS, LINK, Hosts, RequestError, error_bytes
from .limits import LIMITS, Limits

if TYPE_CHECKING:
    from .studio import Studio

# -- connections, bounded in number and time, because uvicorn waits forever for a request head -------------------------

_STALLED = 2.0  # seconds without reading, after which a connection may be closed in favour of another


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, with timeouts for every connection.

    A connection is closed if it sends no complete request head for too long, or if its client does not read the
    response. If there are too many connections, the one that has been idle for longest is closed for a new one. So
    incomplete heads and unread responses cannot lock other clients out.
    """

    limits: ClassVar[Limits] = LIMITS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close an idle connection if there are too many, then start the timeouts."""
        self._idle_since = self.loop.time()  # the time of the last request
        self._unread = (0, self._idle_since)  # bytes that the client has not read, and since when
        self._watch: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            others = [c for c in self.connections if isinstance(c, BoundedProtocol) and c.may_close and c is not self]
            idlest = min(others, key=lambda c: c._idle_since, default=self)
            self.connections.discard(idlest)
            idlest.transport.abort()
        self._check_timeouts()

    @property
    def may_close(self) -> bool:
        """Return whether the connection is idle, or its client does not read the response."""
        stalls = self.transport.get_write_buffer_size() > 0 and self.loop.time() - self._unread[1] > _STALLED
        return self.is_idle or stalls

    @property
    def is_idle(self) -> bool:
        """Return whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeouts."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Restart the timeout for the next request."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def _check_timeouts(self) -> None:
        """Close the connection after a timeout; called periodically."""
        if self.transport.is_closing() and self.transport.get_write_buffer_size() == 0:
            return
        now, limits = self.loop.time(), self.limits
        left = self.transport.get_write_buffer_size()
        if left == 0 or left != self._unread[0]:
            self._unread = (left, now)
        is_late = self.is_idle and left == 0 and now - self._idle_since > limits.head_seconds
        if is_late or now - self._unread[1] > limits.write_seconds:
            self.transport.abort()
            return
        self._watch = self.loop.call_later(min(limits.head_seconds, limits.write_seconds) / 5, self._check_timeouts)

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid HTTP request with a JSON error if a response is still possible."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = error_bytes(RequestError(400, "HeaderRefused", "this is not a valid HTTP request").facts)
        headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        answer = h11.Response(status_code=400, headers=[*headers, (b"connection", b"close"), *HEADERS])
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def protocol_with(limits: Limits) -> type[BoundedProtocol]:
    """Return the protocol with other limits."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits})


# -- files in `.rowgrad` of a project: the port, the saved token, and running studios ----------------------------------

# A studio that is started again on a project uses the same port. `token` is written with `--keep-token` only.
# `studio-<port>` exists while a studio runs, for `rowgrad studio --link`. Only the owner may read these two. A project
# that was copied or unpacked contains them, and its author would know the secrets: so each file records the inode it
# was written to, and is ignored anywhere else.

TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")
_MOST = 400  # bytes of such a file
_LEAST_PORT = 1024


class Running(NamedTuple):
    """The address of a running studio, and the secret that requests launch addresses from it."""

    host: str
    port: int
    control: str


def saved_token(folder: Path) -> str:
    """Return the saved token of the project, or save and return a new one."""
    path = folder / array_pool.OWN / "token"
    found = _read_private(path)
    if found is None or not TOKEN.fullmatch(found):
        found = secrets.token_urlsafe(32)
        with contextlib.suppress(OSError, PageError):  # a studio can run without saving, such as on a full disk
            _write_private(path, found)
    return found


@contextlib.contextmanager
def running_file(folder: Path, running: Running) -> Iterator[None]:
    """Write the file of a running studio, and delete it at the end."""
    path = folder / array_pool.OWN / f"studio-{running.port}"
    with contextlib.suppress(OSError, PageError):  # without the file, --link does not find this studio
        _write_private(path, f"{running.control} {running.host}")
    try:
        yield
    finally:
        if _read_private(path) == f"{running.control} {running.host}":
            files.remove(path)


def running_studios(folder: Path) -> list[Running]:
    """Return the studios whose files exist, the latest first. Some may have been killed."""
    found = []
    for path in (folder / array_pool.OWN).glob("studio-*"):
        port, text = path.name.removeprefix("studio-"), _read_private(path)
        control, _, host = (text or "").partition(" ")
        if re.fullmatch(r"[0-9]{1,5}", port) and TOKEN.fullmatch(control) and host:
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime_ns, Running(host, int(port), control)))
    return [running for _, running in sorted(found, reverse=True)]


def redirect_path(folder: Path, port: int) -> Path:
    """Return the path of the HTML file that redirects a browser to the studio on this port."""
    return folder / array_pool.OWN / f"open-{port}.html"


def write_redirect(path: Path, address: str) -> str | None:
    """Write the HTML file that redirects to an address; return its URL, or None if it cannot be written.

    Other users can read a browser's command line, but not this file.
    """
    written = html.escape(address)
    text = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={written}">'
    try:
        array_pool.make_folder(path.parent)
        files.remove(path)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f'{text}<title>rowgrad Studio</title><a href="{written}">Open the studio</a>\n')
    except (OSError, PageError):
        return None
    return path.absolute().as_uri()


def saved_port(folder: Path) -> int | None:
    """Return the port of the last studio on this project, or None."""
    raw = _read_short(folder / array_pool.OWN / "port")
    if raw is None or not re.fullmatch(rb"\d{4,5}\n?", raw):
        return None
    return int(raw) if _LEAST_PORT <= int(raw) <= 65535 else None


def save_port(folder: Path, port: int) -> None:
    """Save the port for the next studio on this project."""
    path = folder / array_pool.OWN / "port"
    with contextlib.suppress(OSError, PageError):
        array_pool.make_folder(path.parent)
        array_pool.reject_link(path)
        if _read_short(path) != f"{port}\n".encode():
            files.write_atomically(path, f"{port}\n".encode())


def _read_private(path: Path) -> str | None:
    """Read what `_write_private` wrote; None if the file has another owner, is a copy, or is readable by others."""
    raw = _read_short(path, private=True)
    if raw is None:
        return None
    text, _, inode = raw.decode("latin-1").strip().rpartition(" ")
    with contextlib.suppress(OSError):
        if inode == _inode(os.lstat(path)):
            return text
    return None


def _write_private(path: Path, text: str) -> None:
    array_pool.make_folder(path.parent)
    array_pool.reject_link(path)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{text} {_inode(os.fstat(file.fileno()))}\n")
        os.replace(temporary, path)
    except BaseException:
        files.remove(temporary)
        raise


def _read_short(path: Path, private: bool = False) -> bytes | None:
    """Read a short regular file; return None if it is missing or anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if path.parent.is_symlink() or not stat.S_ISREG(status.st_mode) or status.st_size > _MOST:
            return None
        if private and os.name == "posix" and (status.st_uid != os.getuid() or status.st_mode & 0o077):
            return None
        return file.read(_MOST)


def _inode(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"


# -- the server: bind a socket, serve until a signal arrives, and shut down cleanly ------------------------------------

FIRST_PORT = 8765
_TRIED = 100  # ports to try from there on
_LINK_SECONDS, _LINK_BYTES = 20.0, 4096  # limits of the response to `--link`


def listen(host: str, port: int, before: int | None = None) -> socket.socket:
    """Return a socket that listens on this port; with 0, on the port `before`, or the first free one from 8765.

    Raises:
        OSError: No port is available.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    ports = [port] if port else [*([before] if before else []), *range(FIRST_PORT, FIRST_PORT + _TRIED), 0]
    for candidate in ports:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address[0], candidate, *address[2:]))
            # Two servers can bind one port, but only one can listen; listening now shows which.
            sock.listen(128)
            return sock
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE or candidate == ports[-1]:
                raise
    raise AssertionError("unreachable: the last port raises or returns")


def is_local(host: str) -> bool:
    """Return whether only programs on this machine can connect to the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def hosts_of(host: str, port: int) -> Hosts:
    """Return the names under which clients reach a server on this host."""
    if _is_any_address(host):
        return Hosts(port, [socket.gethostname()], any_address=True)
    return Hosts(port, [_url_host(host)])


def address_of(host: str, port: int, launch: str, **query: str) -> str:
    """Return the URL to open in a browser. The secret is in the fragment, which browsers never send."""
    search = f"?{urlencode(query)}" if query else ""
    return f"http://{_url_host(local_address(host))}:{port}/{search}#launch={launch}"


def local_address(host: str) -> str:
    """Return the address under which this machine reaches a server on this host."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def new_launch(running: Running) -> tuple[str, str] | None:
    """Request a launch secret and the token from a running studio; None if it does not answer or is another one."""
    connection = http.client.HTTPConnection(local_address(running.host), running.port, timeout=_LINK_SECONDS)
    try:
        connection.request("POST", LINK, b"", {CONTROL_HEADER: running.control})
        answer = connection.getresponse()
        found = json.loads(answer.read(_LINK_BYTES)) if answer.status == 200 else {}
        return str(found["launch"]), str(found["token"])
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _is_any_address(host: str) -> bool:
    return host in ("0.0.0.0", "::")


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def serve(
    studio: Studio,
    listening: socket.socket,
    hosts: Hosts,
    access: Access,
    started: Callable[[], None],
    limits: Limits = LIMITS,
    **settings: Any,
) -> int | None:
    """Serve a studio until a signal arrives, then close it.

    Args:
        studio: The studio.
        listening: The socket, from `listen`.
        hosts: The names of this server, from `hosts_of`.
        access: The secrets that requests must carry.
        started: Called once requests are answered.
        limits: Limits of requests and connections.
        **settings: Options of `make_app`.

    Returns:
        The number of the signal, or None.
    """
    with contextlib.suppress(verbs.UnknownVerbError):
        verbs.find("hello")  # imports all verbs now, not while the first window waits
    app = make_app(studio, hosts, access, limits, **settings)
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # `rowgrad studio` reports errors itself
    config = uvicorn.Config(
        app,
        http=protocol_with(limits),
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=128,
        h11_max_incomplete_event_size=limits.head_bytes,
        timeout_graceful_shutdown=limits.stop_seconds,
    )
    server = StudioServer(config, studio, started)
    try:
        server.run([listening])
    finally:
        listening.close()
        access.close()
        studio.close()
    return server.signal_number


class StudioServer(uvicorn.Server):
    """uvicorn's server with a callback when it has started, streams that end when it stops, and its own signals."""

    def __init__(self, config: uvicorn.Config, studio: Studio, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._studio, self._on_started = studio, started
        self.signal_number: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and call the callback."""
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the streams of events first, because uvicorn would wait for them."""
        self._studio.hub.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals stop the server without raising them again, as uvicorn does; the caller ends the process."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal; at a second, do not wait for requests."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self.signal_number = self.signal_number or sig


def open_browser(address: str) -> bool:
    """Open a browser window; return whether there is a graphical browser."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    # Text browsers, which would block the terminal, are of this class; so is a browser that BROWSER names.
    if type(browser) is webbrowser.GenericBrowser and not os.environ.get("BROWSER"):
        return False
    threading.Thread(target=browser.open, args=(address,), daemon=True).start()
    return True
