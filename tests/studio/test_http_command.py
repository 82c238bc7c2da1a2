"""`rowgrad studio`: where it listens, what it opens, how it ends."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

# The command itself, on a studio of a few made-up verbs.
START = f"""
import sys, types
sys.path.insert(0, {str(Path(__file__).parent)!r})
import http_stand_in
sys.modules["rowgrad.studio.studio"] = types.SimpleNamespace(Studio=http_stand_in.StandIn)
from rowgrad.cli import main
sys.exit(main(sys.argv[1:]))
"""


def start(*words: str, **settings: Any) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-W", "error", "-c", START, "studio", *words], **(pipes | settings))


@contextmanager
def started(*words: str, **settings: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the line it prints."""
    process = start("--no-browser", *words, **settings)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, line.strip()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> str:
    process.send_signal(number)
    return process.communicate(timeout=20)[1]


def refusal(*words: str, **settings: Any) -> tuple[int, str]:
    process = start("--no-browser", *words, **settings)
    told = process.communicate(timeout=20)[1]
    return process.returncode, told


def hello(url: str, host: str | None = None) -> int:
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port or 0, timeout=10)
    told = {"X-Rowgrad-Token": parse_qs(at.query)["token"][0], "Content-Type": "application/json"}
    connection.request("POST", "/api/echo", b"{}", told | ({} if host is None else {"Host": host}))
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_from_start_to_end(tmp_path: Path, number: int, code: int) -> None:
    with started(str(tmp_path)) as (process, url):
        assert url.startswith("http://127.0.0.1:")
        assert len(parse_qs(urlsplit(url).query)["token"][0]) == 43  # 32 bytes
        assert hello(url) == 200
        told = end(process, number)
    assert process.returncode == code
    lines = told.splitlines()
    assert lines == [f"rowgrad studio: project {tmp_path}; Ctrl-C stops", "closed", "rowgrad studio: stopped"]


def test_the_first_free_port_is_taken(tmp_path: Path) -> None:
    with started(str(tmp_path)) as (_, first), started(str(tmp_path)) as (_, second):
        assert urlsplit(first).port != urlsplit(second).port
        assert (hello(first), hello(second)) == (200, 200)


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, told = refusal(str(tmp_path), "--port", str(port))
    assert code == 2
    assert told == f"rowgrad studio: port {port} is in use; choose another with --port, or leave it out\n"


def test_for_programs(tmp_path: Path) -> None:
    with started(str(tmp_path), "--json", "--token", "0123456789abcdef", "--without", "run, gallery") as (_, line):
        found = json.loads(line)
        assert found["token"] == "0123456789abcdef"
        assert found["project"] == str(tmp_path)
        assert found["url"] == f"http://127.0.0.1:{found['port']}/?token=0123456789abcdef"
        assert hello(found["url"]) == 200


def test_a_page_opens_its_folder(tmp_path: Path) -> None:
    page = tmp_path / "my page.json"
    page.write_text('{"format": "rowgrad-page", "version": 1, "blocks": []}')
    with started("--json", str(page)) as (_, line):
        found = json.loads(line)
        assert found["project"] == str(tmp_path)
        assert parse_qs(urlsplit(found["url"]).query)["page"] == ["my page"]


def test_the_current_folder_is_the_project(tmp_path: Path) -> None:
    with started("--json", cwd=tmp_path) as (_, line):
        assert json.loads(line)["project"] == str(tmp_path)


def test_a_new_folder(tmp_path: Path) -> None:
    code, told = refusal(str(tmp_path / "a" / "b"))
    assert (code, told) == (3, f"rowgrad studio: {tmp_path}/a/b: there is no such folder; --new makes it\n")
    with started("--new", str(tmp_path / "a" / "b")):
        assert (tmp_path / "a" / "b").is_dir()


def test_a_gallery_goes_unless_a_page_was_kept() -> None:
    for keeps in (False, True):
        with started("--gallery", "--json") as (process, line):
            found = json.loads(line)
            folder = Path(found["project"])
            assert folder.is_dir()
            assert parse_qs(urlsplit(found["url"]).query)["gallery"] == ["1"]
            if keeps:
                (folder / "mine.json").write_text("{}")
            told = end(process, signal.SIGINT)
        assert folder.exists() == keeps
        assert (f"your pages are kept in {folder}" in told) == keeps
    shutil.rmtree(folder)


def test_another_host_is_warned_of(tmp_path: Path) -> None:
    with started(str(tmp_path), "--host", "0.0.0.0") as (process, url):
        port = urlsplit(url).port
        assert [hello(url, h) for h in (f"10.1.2.3:{port}", f"[fe80::1]:{port}", f"evil.example:{port}")] == [
            200,
            200,
            403,
        ]
        told = end(process)
    assert "the token is the only lock" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--token", "short"], "--token must be 16 to 128"),
        (["--token", "with spaces in it, and long"], "--token must be"),
        (["--port", "65536"], "argument --port: '65536' is not a port"),
        (["--port", "http"], "argument --port: 'http' is not a port"),
        (["--without", "A b"], "--without: 'A b' is no name"),
        (["--gallery", "."], "leave out PROJECT"),
        (["--host", "203.0.113.7"], "--host 203.0.113.7: this machine has no such address"),
        ([__file__], "is no folder and no page .json"),
    ],
)
def test_wrong_usage(tmp_path: Path, words: list[str], message: str) -> None:
    code, told = refusal(*words, cwd=tmp_path)
    assert code == 2
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_the_packages(missing: str) -> None:
    call = f"import sys; sys.modules[{missing!r}] = None; from rowgrad.cli import main; sys.exit(main(['studio']))"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "rowgrad studio: the studio needs packages of its own: pip install 'rowgrad[studio]'\n"


def test_a_browser_is_opened(tmp_path: Path) -> None:
    """`BROWSER` names a program; it is handed the address."""
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > "{tmp_path}/opened"\n')
    script.chmod(0o755)
    process = start(str(tmp_path), env=os.environ | {"BROWSER": f"{script} %s &"})
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        for _ in range(100):
            if (tmp_path / "opened").exists() and (tmp_path / "opened").read_text():
                break
            time.sleep(0.05)
        assert (tmp_path / "opened").read_text().strip() == url
    finally:
        end(process)
