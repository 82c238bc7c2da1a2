"""`rowgrad studio`: open the block editor in the browser, on a folder of pages."""

from __future__ import annotations

import argparse
import errno
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .._hints import install_command
from ..errors import UnimplementedError
from .errors import OK, UsageError, no_such_file
from .terminal import emit, say

if TYPE_CHECKING:
    from ..studio.studio import Studio

_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")
_HOST = "127.0.0.1"
_PACKAGES = ("starlette", "uvicorn", "h11", "anyio")
_remark = partial(say, "studio")


def command(options: argparse.Namespace) -> int:
    """Serve until a signal arrives, or print an address of the running studio."""
    if options.token is not None and not _TOKEN.fullmatch(options.token):
        raise UsageError("--token must be 16 to 128 letters, digits, - or _")
    _check_installed()
    if options.link:
        return _link(options)
    with _project(options) as (folder, query), _listening(options.host, options.port, folder) as listening:
        from ..studio.studio import Studio

        number = _serve(options, Studio(folder), folder, listening, query)
    if number is None:
        return OK
    _remark("stopped")
    return 128 + number


def _serve(
    options: argparse.Namespace, studio: Studio, folder: Path, listening: socket.socket, query: dict[str, str]
) -> int | None:
    from ..graph.io import files
    from ..studio.access import Access
    from ..studio.serve import (
        Running,
        address_of,
        hosts_of,
        is_local,
        open_browser,
        redirect_path,
        running_file,
        saved_token,
        serve,
        write_redirect,
    )

    port = listening.getsockname()[1]
    access = Access(port, options.token or (saved_token(folder) if options.keep_token else None))

    def open_window() -> bool:
        """Open the browser with a separate secret, so that the printed address stays valid."""
        path = redirect_path(folder, port)
        launch = access.new_launch(partial(files.remove, path))
        address = address_of(options.host, port, launch, **query)
        return open_browser(write_redirect(path, address) or address) or not access.use_launch(launch)

    def started() -> None:
        if not is_local(options.host):
            _remark(f"others can connect through {options.host}; the connection is not encrypted")
        _print_address(options, folder, port, access.new_launch(), access.token, query)
        _remark(f"project {folder}; Ctrl-C stops")
        if not options.no_browser and not open_window():
            _remark("no browser was found; open the address in one")

    with running_file(folder, Running(options.host, port, access.control)):
        return serve(studio, listening, hosts_of(options.host, port), access, started, debug=options.debug)


def _print_address(
    options: argparse.Namespace, folder: Path, port: int, launch: str, token: str, query: dict[str, str]
) -> None:
    from ..studio.serve import address_of

    address = address_of(options.host, port, launch, **query)
    if options.json:
        emit({"url": address, "token": token, "host": options.host, "port": port, "project": str(folder)})
    else:
        print(address)
    sys.stdout.flush()


def _link(options: argparse.Namespace) -> int:
    from ..studio.serve import new_launch, running_studios

    if options.new or options.gallery or options.token or options.keep_token or options.host != _HOST:
        raise UsageError("--link can only be combined with PROJECT, --port and --json")
    with _project(options) as (folder, query):
        for running in running_studios(folder):
            if options.port in (0, running.port) and (found := new_launch(running)) is not None:
                options.host = running.host
                _print_address(options, folder, running.port, *found, query)
                return OK
    where = f" on port {options.port}" if options.port else ""
    raise FileNotFoundError(errno.ENOENT, f"no studio is running{where} here; `rowgrad studio` starts one", str(folder))


def _check_installed() -> None:
    try:
        from ..studio import serve as serve_module  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise UnimplementedError(f"Studio needs more packages: {install_command('studio')}") from None


@contextmanager
def _project(options: argparse.Namespace) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield the folder, and the query that selects what the browser shows first."""
    if options.gallery:
        if options.project is not None or options.new:
            raise UsageError("--gallery uses a temporary folder: omit PROJECT and --new")
        folder = Path(tempfile.mkdtemp(prefix="rowgrad-gallery-"))
        try:
            yield folder, {"gallery": "1"}
        finally:
            _remove_gallery(folder)
        return
    path = Path(options.project or ".")
    if path.is_file():
        yield _folder_of_page(path), {"page": path.stem}
        return
    if not path.exists():
        if not options.new:
            is_page = path.suffix in (".json", ".svg")
            raise no_such_file(str(path), "no such page" if is_page else "no such folder; --new creates it")
        path.mkdir(parents=True)
    folder = path.resolve()
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "pages cannot be written to this folder", str(path))
    yield folder, {}


def _folder_of_page(path: Path) -> Path:
    from .pages import is_enuspace, read_bytes

    if is_enuspace(read_bytes(str(path))):
        raise UsageError(f"{path} is a file of enuSpace-TensorFlow; `rowgrad import {path}` converts it to a page")
    if path.suffix != ".json":
        raise UsageError(f"{path} is not a folder or a page .json")
    return path.resolve().parent


def _remove_gallery(folder: Path) -> None:
    """Remove the folder unless pages were saved in it."""
    if any(folder.glob("*.json")):
        _remark(f"your pages are saved in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _listening(host: str, port: int, folder: Path) -> Iterator[socket.socket]:
    from ..studio.serve import listen, save_port, saved_port

    try:
        opened = listen(host, port, saved_port(folder))
    except socket.gaierror as error:
        raise UsageError(f"--host {host}: {error.strerror}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} is in use; choose another with --port, or leave it out") from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"--host {host}: this machine has no such address") from None
        if error.errno == errno.EACCES:
            raise UsageError(f"port {port} is reserved for the system; choose one from 1024") from None
        raise
    with opened:
        save_port(folder, opened.getsockname()[1])
        yield opened
