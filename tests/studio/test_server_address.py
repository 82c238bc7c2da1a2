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
def started(project: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    words = [sys.executable, "-c", _MAIN, "studio", str(project), "--no-browser", "--json", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGKILL)


def asks(address: dict[str, Any]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", address["port"], timeout=300)
    headers = {"X-Rowgrad-Token": address["token"], "Content-Type": "application/json"}
    connection.request("POST", "/api/hello", b"{}", headers)
    status = connection.getresponse().status
    connection.close()
    return status


def nobodys_port() -> int:
    """A free port that no other test looks for: none next to the usual one, and none of the system's own choice."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise OSError("a hundred ports are taken")


def test_killed_and_started_again_it_is_found_where_it_was(tmp_path: Path) -> None:
    port = nobodys_port()
    save_port(tmp_path, port)
    with started(tmp_path, "--keep-token") as (_, first):
        assert first["port"] == port
        assert asks(first) == 200
    with started(tmp_path, "--keep-token") as (_, again):
        assert again == first | {"url": again["url"]}
        assert again["url"] != first["url"]
        assert asks(first) == 200
        with started(tmp_path, "--keep-token") as (_, beside):  # the port is taken, the token is the project's
            assert beside["port"] != first["port"]
            assert beside["token"] == first["token"]
            assert asks(beside) == 200


def test_every_start_has_a_token_of_its_own(tmp_path: Path) -> None:
    tokens = set()
    for _ in range(2):
        with started(tmp_path) as (_, address):
            assert asks(address) == 200
            tokens.add(address["token"])
            stale = address
    assert len(tokens) == 2
    assert not (tmp_path / ".rowgrad" / "token").exists()
    with started(tmp_path, "--port", str(stale["port"])) as (_, address):
        assert asks(address | {"token": stale["token"]}) == 401


def test_a_token_that_was_given_is_not_kept(tmp_path: Path) -> None:
    given = "given-on-the-command-line"
    with started(tmp_path, "--token", given) as (_, address):
        assert address["token"] == given
    assert not (tmp_path / ".rowgrad" / "token").exists()
    assert saved_token(tmp_path) != given


def test_only_the_owner_reads_the_token(tmp_path: Path) -> None:
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


def test_a_token_of_a_copied_project_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    token = saved_token(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert saved_token(tmp_path / "b") != token
    assert saved_token(tmp_path / "a") == token


@pytest.mark.parametrize("text", ["", "x", "a b c", "a" * 16, "ä" * 20 + " 1:2", "a" * 500, "\0" * 30])
def test_something_else_in_place_of_a_token(tmp_path: Path, text: str) -> None:
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
def test_invalid_port(tmp_path: Path, text: str) -> None:
    save_port(tmp_path, 8765)
    assert saved_port(tmp_path) == 8765
    (tmp_path / ".rowgrad" / "port").write_text(text)
    assert saved_port(tmp_path) is None


def test_who_can_connect_to_a_host() -> None:
    local = ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LocalHost"]
    assert all(map(serve.is_local, local))
    assert not any(map(serve.is_local, ["0.0.0.0", "::", "192.168.1.2", "example.org", "localhost.example.org", ""]))


def test_a_window_is_opened_where_there_is_a_browser_that_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BROWSER", raising=False)
    monkeypatch.setattr(webbrowser, "_tryorder", [])
    assert not serve.open_browser("http://127.0.0.1:1/")
    of_the_terminal = webbrowser.GenericBrowser([sys.executable, "-c", "import sys; open(sys.argv[1], 'x')", "%s"])
    monkeypatch.setattr(webbrowser, "_tryorder", ["w3m"])
    monkeypatch.setattr(webbrowser, "_browsers", {"w3m": [None, of_the_terminal]})
    assert not serve.open_browser(str(tmp_path / "not opened"))
    monkeypatch.setenv("BROWSER", "w3m")
    before = set(threading.enumerate())
    assert serve.open_browser(str(tmp_path / "opened"))
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert os.listdir(tmp_path) == ["opened"]
