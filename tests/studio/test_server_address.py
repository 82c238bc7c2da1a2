"""A restarted studio reuses its port, and on request its token; files from elsewhere are ignored."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from rowgrad.studio import serve
from rowgrad.studio.serve import TOKEN, save_port, saved_port, saved_token

_MAIN = "import sys; from rowgrad.cli import main; sys.exit(main(sys.argv[1:]))"


@contextlib.contextmanager
def run_studio(project: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    words = [sys.executable, "-c", _MAIN, "studio", str(project), "--no-browser", "--json", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGKILL)


def request_status(address: dict[str, Any]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", address["port"], timeout=300)
    headers = {"X-Rowgrad-Token": address["token"], "Content-Type": "application/json"}
    connection.request("POST", "/api/hello", b"{}", headers)
    status = connection.getresponse().status
    connection.close()
    return status


def unused_port() -> int:
    """Return a free port outside of the default and ephemeral ranges, which no other test uses."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise OSError("a hundred ports are taken")


def test_a_restarted_server_reuses_port_and_token(tmp_path: Path) -> None:
    port = unused_port()
    save_port(tmp_path, port)
    with run_studio(tmp_path, "--keep-token") as (_, first):
        assert first["port"] == port
        assert request_status(first) == 200
    with run_studio(tmp_path, "--keep-token") as (_, again):
        assert again == first | {"url": again["url"]}
        assert again["url"] != first["url"]
        assert request_status(first) == 200
        with run_studio(tmp_path, "--keep-token") as (_, beside):  # another port, the same token
            assert beside["port"] != first["port"]
            assert beside["token"] == first["token"]
            assert request_status(beside) == 200


def test_every_start_has_a_new_token(tmp_path: Path) -> None:
    tokens = set()
    for _ in range(2):
        with run_studio(tmp_path) as (_, address):
            assert request_status(address) == 200
            tokens.add(address["token"])
            stale = address
    assert len(tokens) == 2
    assert not (tmp_path / ".rowgrad" / "token").exists()
    with run_studio(tmp_path, "--port", str(stale["port"])) as (_, address):
        assert request_status(address | {"token": stale["token"]}) == 401


def test_a_token_from_the_command_line_is_not_saved(tmp_path: Path) -> None:
    token = "given-on-the-command-line"
    with run_studio(tmp_path, "--token", token) as (_, address):
        assert address["token"] == token
    assert not (tmp_path / ".rowgrad" / "token").exists()
    assert saved_token(tmp_path) != token


def test_the_token_file_is_private_or_replaced(tmp_path: Path) -> None:
    token = saved_token(tmp_path)
    path = tmp_path / ".rowgrad" / "token"
    assert TOKEN.fullmatch(token)
    assert saved_token(tmp_path) == token
    assert (tmp_path / ".rowgrad" / ".gitignore").read_text() == "*\n"
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o644)
        assert saved_token(tmp_path) != token  # others may have read it
        assert path.stat().st_mode & 0o777 == 0o600


def test_the_token_of_a_copied_project_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    token = saved_token(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert saved_token(tmp_path / "b") != token
    assert saved_token(tmp_path / "a") == token


@pytest.mark.parametrize("text", ["", "x", "a b c", "a" * 16, "ä" * 20 + " 1:2", "a" * 500, "\0" * 30])
def test_an_invalid_token_file_is_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / ".rowgrad" / "token"
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o600)
    token = saved_token(tmp_path)
    assert TOKEN.fullmatch(token)
    assert token not in (text, "")
    assert saved_token(tmp_path) == token


@pytest.mark.skipif(os.name != "posix", reason="links and pipes")
def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    own = tmp_path / ".rowgrad"
    own.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("8999\n")
    (own / "port").symlink_to(elsewhere)
    os.mkfifo(own / "token")
    assert saved_port(tmp_path) is None
    assert TOKEN.fullmatch(saved_token(tmp_path))
    save_port(tmp_path, 8123)
    assert elsewhere.read_text() == "8999\n"


@pytest.mark.parametrize("text", ["", "80", "1023", "65536", "99999", "-8765", "8765.0", "８７６５", "8765 8766", "x"])
def test_an_invalid_saved_port_is_ignored(tmp_path: Path, text: str) -> None:
    save_port(tmp_path, 8765)
    assert saved_port(tmp_path) == 8765
    (tmp_path / ".rowgrad" / "port").write_text(text)
    assert saved_port(tmp_path) is None


def test_is_local() -> None:
    local = ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LocalHost"]
    assert all(map(serve.is_local, local))
    assert not any(map(serve.is_local, ["0.0.0.0", "::", "192.168.1.2", "example.org", "localhost.example.org", ""]))


def test_open_browser_skips_text_browsers_unless_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BROWSER", raising=False)
    monkeypatch.setattr(webbrowser, "_tryorder", [])
    assert not serve.open_browser("http://127.0.0.1:1/")
    text_browser = webbrowser.GenericBrowser([sys.executable, "-c", "import sys; open(sys.argv[1], 'x')", "%s"])
    monkeypatch.setattr(webbrowser, "_tryorder", ["w3m"])
    monkeypatch.setattr(webbrowser, "_browsers", {"w3m": [None, text_browser]})
    assert not serve.open_browser(str(tmp_path / "not opened"))
    monkeypatch.setenv("BROWSER", "w3m")
    before = set(threading.enumerate())
    assert serve.open_browser(str(tmp_path / "opened"))
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert os.listdir(tmp_path) == ["opened"]
