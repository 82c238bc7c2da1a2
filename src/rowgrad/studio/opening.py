"""From a studio to an address in a browser: a socket, a server on it until a signal comes, a clean end."""

from __future__ import annotations

import contextlib
import errno
import http.client
import ipaddress
import json
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
from .access import Access
from .address_files import Running
from .connections import protocol_with
from .guard import CONTROL_HEADER, LINK, Hosts
from .limits import LIMITS, Limits
from .server import make_app

if TYPE_CHECKING:
    from .studio import Studio

FIRST_PORT = 8765
_TRIED = 100  # ports from there on
_LINK_SECONDS, _LINK_BYTES = 20.0, 4096  # for the answer to `--link`


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


def address_of(host: str, port: int, launch: str, **shown: str) -> str:
    """What to open in a browser. The secret is in the fragment, which browsers send to nobody."""
    query = f"?{urlencode(shown)}" if shown else ""
    return f"http://{_written(reached_at(host))}:{port}/{query}#launch={launch}"


def reached_at(host: str) -> str:
    """Where this machine itself reaches a server on this host."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def new_launch(running: Running) -> tuple[str, str] | None:
    """A launch secret of a studio that runs, and its token; None where it does not answer, or is another one."""
    connection = http.client.HTTPConnection(reached_at(running.host), running.port, timeout=_LINK_SECONDS)
    try:
        connection.request("POST", LINK, b"", {CONTROL_HEADER: running.control})
        answer = connection.getresponse()
        found = json.loads(answer.read(_LINK_BYTES)) if answer.status == 200 else {}
        return str(found["launch"]), str(found["token"])
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _is_every(host: str) -> bool:
    return host in ("0.0.0.0", "::")


def _written(host: str) -> str:
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
    """Answer until a signal comes; its number. `started` is called once requests are answered. Closes the studio."""
    with contextlib.suppress(verbs.UnknownVerbError):
        verbs.find("hello")  # what verbs need is loaded now, not while the first window waits
    app = make_app(studio, hosts, access, limits, **settings)
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
        access.close()
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
