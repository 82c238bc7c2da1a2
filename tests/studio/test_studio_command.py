"""`rowgrad studio`: the address it listens on, what it opens, how it stops."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import url2pathname

import pytest

from signal_defaults import restored

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

LONG = 300  # seconds, for what takes one; only a failure waits so long
# The command itself, on a studio of a few made-up verbs.
START = f"""
import sys, types
sys.path.insert(0, {str(Path(__file__).parent)!r})
import fake_studio
sys.modules["rowgrad.studio.studio"] = types.SimpleNamespace(Studio=fake_studio.FakeStudio)
from rowgrad.cli import main
sys.exit(main(sys.argv[1:]))
"""


def start(*words: str, **settings: Any) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-W", "error", "-c", START, "studio", *words]
    return subprocess.Popen(restored(command), **(pipes | settings))


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
    return process.communicate(timeout=LONG)[1]


def link(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `--link`."""
    process = start(*words, "--link")
    output = process.communicate(timeout=LONG)
    return process.returncode, output[0].strip(), output[1]


def run_rejected(*words: str, **settings: Any) -> tuple[int, str]:
    process = start("--no-browser", *words, **settings)
    output = process.communicate(timeout=LONG)[1]
    return process.returncode, output


def post(url: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], Any]:
    """Status, headers and document of an answer."""
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port or 0, timeout=LONG)
    connection.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, json.loads(answer.read())
    connection.close()
    return found


def launch_of(url: str) -> str:
    return parse_qs(urlsplit(url).fragment)["launch"][0]


def enter(url: str) -> dict[str, str]:
    """The headers of a window that has opened this address."""
    status, headers, document = post(url, "/api/enter", X_Rowgrad_Launch=launch_of(url))
    assert status == 200, document
    cookie = headers["set-cookie"].partition(";")[0]
    return {"Cookie": cookie, "X_Rowgrad_Page": document["key"], "Content_Type": "application/json"}


def hello(url: str, session: dict[str, str], **headers: str) -> int:
    return post(url, "/api/echo", b"{}", **(session | headers))[0]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_from_start_to_end(tmp_path: Path, number: int, code: int) -> None:
    with started(str(tmp_path)) as (process, url):
        assert url.startswith("http://127.0.0.1:")
        assert len(launch_of(url)) == 43  # 32 bytes
        assert urlsplit(url).query == ""
        session = enter(url)
        assert (hello(url, session), hello(url, session)) == (200, 200)
        assert post(url, "/api/enter", X_Rowgrad_Launch=launch_of(url))[0] == 401
        output = end(process, number)
    assert process.returncode == code
    lines = output.splitlines()
    assert lines == [f"rowgrad studio: project {tmp_path}; Ctrl-C stops", "closed", "rowgrad studio: stopped"]


def test_the_first_free_port_is_taken(tmp_path: Path) -> None:
    with started(str(tmp_path)) as (_, first), started(str(tmp_path)) as (_, second):
        assert urlsplit(first).port != urlsplit(second).port
        sessions = enter(first), enter(second)
        assert (hello(first, sessions[0]), hello(second, sessions[1])) == (200, 200)
        assert (hello(first, sessions[1]), hello(second, sessions[0])) == (401, 401)


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = run_rejected(str(tmp_path), "--port", str(port))
    assert code == 2
    assert output == f"rowgrad studio: port {port} is in use; choose another with --port, or leave it out\n"


def test_for_programs(tmp_path: Path) -> None:
    with started(str(tmp_path), "--json", "--token", "0123456789abcdef") as (_, line):
        found = json.loads(line)
        assert found["token"] == "0123456789abcdef"
        assert found["project"] == str(tmp_path)
        assert found["url"].startswith(f"http://127.0.0.1:{found['port']}/#launch=")
        assert found["token"] not in found["url"]
        program = {"X_Rowgrad_Token": found["token"], "Content_Type": "application/json"}
        assert (hello(found["url"], program), hello(found["url"], enter(found["url"]))) == (200, 200)


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
    code, output = run_rejected(str(tmp_path / "a" / "b"))
    assert (code, output) == (3, f"rowgrad studio: {tmp_path}/a/b: no such folder; --new creates it\n")
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
            output = end(process, signal.SIGINT)
        assert folder.exists() == keeps
        assert (f"your pages are saved in {folder}" in output) == keeps
    shutil.rmtree(folder)


def test_another_host_is_warned_of(tmp_path: Path) -> None:
    with started(str(tmp_path), "--host", "0.0.0.0") as (process, url):
        port = urlsplit(url).port
        session = enter(url)
        hosts = (f"10.1.2.3:{port}", f"[fe80::1]:{port}", f"evil.example:{port}")
        assert [hello(url, session, Host=host) for host in hosts] == [200, 200, 403]
        again = link(str(tmp_path))[1]
        assert urlsplit(again).netloc == f"127.0.0.1:{port}"
        assert hello(again, enter(again)) == 200
        output = end(process)
    assert "others can connect through 0.0.0.0; the connection is not encrypted" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--token", "short"], "--token must be 16 to 128"),
        (["--token", "with spaces in it, and long"], "--token must be"),
        (["--port", "65536"], "argument --port: '65536' is not a port"),
        (["--port", "http"], "argument --port: 'http' is not a port"),
        (["--gallery", "."], "omit PROJECT"),
        (["--link", "--new"], "--link can only be combined with PROJECT, --port and --json"),
        (["--link", "--host", "0.0.0.0"], "--link can only be combined with"),
        (["--host", "203.0.113.7"], "--host 203.0.113.7: this machine has no such address"),
        ([__file__], "is not a folder or a page .json"),
    ],
)
def test_wrong_usage(tmp_path: Path, words: list[str], message: str) -> None:
    code, output = run_rejected(*words, cwd=tmp_path)
    assert code == 2
    assert message in output
    assert output.count("\n") == 1


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_the_packages(missing: str) -> None:
    call = f"import sys; sys.modules[{missing!r}] = None; from rowgrad.cli import main; sys.exit(main(['studio']))"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "rowgrad studio: Studio needs more packages: pip install 'rowgrad[studio]'\n"


def test_a_browser_gets_a_file_and_no_secret(tmp_path: Path) -> None:
    """`BROWSER` names a program. Others can read its command line, which names a file that only the owner can read."""
    script, opened = tmp_path / "browser", tmp_path / "opened"
    os.mkfifo(opened)
    script.write_text(f'#!/bin/sh\necho "$1" > "{opened}"\n')
    script.chmod(0o755)
    process = start(str(tmp_path), env=os.environ | {"BROWSER": f"{script} %s &"})
    try:
        assert process.stdout is not None
        printed = process.stdout.readline().strip()
        handed = opened.read_text().strip()  # waits for the writer
        path = Path(url2pathname(urlsplit(handed).path))
        assert (urlsplit(handed).scheme, path.parent) == ("file", tmp_path / ".rowgrad")
        assert path.stat().st_mode & 0o777 == 0o600
        url = re.findall(r"url=(http://[^\"]+)", path.read_text())[0]
        assert launch_of(url) not in (handed, launch_of(printed))
        assert hello(url, enter(url)) == 200
        assert not path.exists()  # it was used
        assert hello(printed, enter(printed)) == 200
    finally:
        end(process)


def test_a_link_opens_a_studio_that_runs(tmp_path: Path) -> None:
    page = tmp_path / "my page.json"
    page.write_text('{"format": "rowgrad-page", "version": 1, "blocks": []}')
    with started(str(tmp_path), "--json") as (process, line):
        output = json.loads(line)
        code, url, _ = link(str(tmp_path))
        assert code == 0
        assert urlsplit(url).port == output["port"]
        assert launch_of(url) != launch_of(output["url"])
        assert hello(url, enter(url)) == 200
        code, url, _ = link(str(page), "--port", str(output["port"]))
        assert parse_qs(urlsplit(url).query) == {"page": ["my page"]}
        assert hello(url, enter(url)) == 200
        again = json.loads(link(str(tmp_path), "--json")[1])
        assert again == output | {"url": again["url"]}
        code, url, error = link(str(tmp_path), "--port", "1")
        assert (code, url) == (3, "")
        assert "no studio is running on port 1 here; `rowgrad studio` starts one" in error
        (control,) = (tmp_path / ".rowgrad").glob("studio-*")
        assert control.stat().st_mode & 0o777 == 0o600
        assert output["token"] not in control.read_text()
        end(process)
    assert not list((tmp_path / ".rowgrad").glob("studio-*"))
    assert not list((tmp_path / ".rowgrad").glob("open-*"))
    assert "no studio is running here" in link(str(tmp_path))[2]


def test_a_killed_studio_has_no_link(tmp_path: Path) -> None:
    with started(str(tmp_path)) as (process, _):
        process.kill()
        process.communicate()
        assert list((tmp_path / ".rowgrad").glob("studio-*"))
        assert link(str(tmp_path))[0] == 3


def test_with_sigint_ignored_sigterm_stops_it(tmp_path: Path) -> None:
    """As in the background of a shell script, where Ctrl-C is for another."""
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{START}"
    command = restored([sys.executable, "-c", ignoring, "studio", str(tmp_path), "--no-browser"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        assert hello(url, enter(url)) == 200
        end(process)
        assert process.returncode == 143


def test_where_sigint_was_ignored_children_of_tests_still_stop_by_it(tmp_path: Path) -> None:
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    handler = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    child = [sys.executable, "-c", handler]
    for command, answer in ((child, "False"), (restored(child), "True")):
        done = subprocess.run([sys.executable, "-c", ignoring, *command], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == answer
