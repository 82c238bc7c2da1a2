"""From a studio to an address in a browser: a socket, a server on it until a signal comes, a clean end."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import uvicorn

from . import verbs
from .connections import protocol_with
from .guard import Hosts
from .limits import LIMITS, Limits
from .server import make_app

if TYPE_CHECKING:
    from .studio import Studio

FIRST_PORT = 8765
_TRIED = 100  # ports from there on


def listen(host: str, port: int, before: int | None = None) -> socket.socket:
    """A socket on this port; with 0 on that of `before`, or the first free from 8765. OSError where there is none."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    ports = [port] if port else [*([before] if before else []), *range(FIRST_PORT, FIRST_PORT + _TRIED), 0]
    for tried in ports:
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((address[0], tried, *address[2:]))
            # Two servers may bind one port, but only one may listen; so that it is known here who does.
            made.listen(128)
            return made
        except OSError as error:
            made.close()
            if error.errno != errno.EADDRINUSE or tried == ports[-1]:
                raise
    raise AssertionError("the last port is tried")


def is_local(host: str) -> bool:
    """Whether only programs of this machine can connect to it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def hosts_of(host: str, port: int) -> Hosts:
    """The names under which a server on this host is asked."""
    if _is_every(host):
        return Hosts(port, [socket.gethostname()], any_address=True)
    return Hosts(port, [_written(host)])


def address_of(host: str, port: int, token: str, **shown: str) -> str:
    """What to open in a browser."""
    name = _written("127.0.0.1" if _is_every(host) else host)
    return f"http://{name}:{port}/?{urlencode({'token': token} | shown)}"


def _is_every(host: str) -> bool:
    return host in ("0.0.0.0", "::")


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def serve(
    studio: Studio,
    listening: socket.socket,
    hosts: Hosts,
    token: str,
    started: Callable[[], None],
    limits: Limits = LIMITS,
    **settings: Any,
) -> int | None:
    """Answer until a signal comes; its number. `started` is called once requests are answered. Closes the studio."""
    with contextlib.suppress(verbs.UnknownVerbError):
        verbs.find("hello")  # what verbs need is loaded now, not while the first window waits
    app = make_app(studio, hosts, token, limits, **settings)
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # what it has to say is told by `server`
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
        studio.close()
    return server.signal_number


class StudioServer(uvicorn.Server):
    """uvicorn's server that says when it has started, ends streams when it stops, and keeps signals to itself."""

    def __init__(self, config: uvicorn.Config, studio: Studio, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._studio, self._tell_started = studio, started
        self.signal_number: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self._tell_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wake the streams of events first, or they would be waited for."""
        self._studio.hub.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals stop the server; its caller ends the process. uvicorn would raise them again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal stops, a second does not wait for requests."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self.signal_number = self.signal_number or sig


def open_browser(address: str) -> bool:
    """Open a window, if there is a browser that has one; whether there is."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    # Browsers of the terminal, which would take it over, have this very class; what BROWSER names has it, too.
    if type(browser) is webbrowser.GenericBrowser and not os.environ.get("BROWSER"):
        return False
    threading.Thread(target=browser.open, args=(address,), daemon=True).start()
    return True
