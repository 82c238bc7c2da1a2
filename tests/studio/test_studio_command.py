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

TIMEOUT = 300  # seconds; operations take one, only failures wait this long
# The command, with the verbs of fake_studio.py.
START = f"""
import sys, types
sys.path.insert(0, {str(Path(__file__).parent)!r})
import fake_studio
sys.modules["rowgrad.studio.studio"] = types.SimpleNamespace(Studio=fake_studio.FakeStudio)
from rowgrad.cli import main
sys.exit(main(sys.argv[1:]))
"""


def start(*args: str, **settings: Any) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-W", "error", "-c", START, "studio", *args]
    return subprocess.Popen(restored(command), **(pipes | settings))


@contextmanager
def run_studio(*args: str, **settings: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command; return the process and the first line it prints."""
    process = start("--no-browser", *args, **settings)
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
    return process.communicate(timeout=TIMEOUT)[1]


def link(*args: str) -> tuple[int, str, str]:
    """Run with `--link`; return exit code, stdout and stderr."""
    process = start(*args, "--link")
    output = process.communicate(timeout=TIMEOUT)
    return process.returncode, output[0].strip(), output[1]


def run_failing(*args: str, **settings: Any) -> tuple[int, str]:
    process = start("--no-browser", *args, **settings)
    output = process.communicate(timeout=TIMEOUT)[1]
    return process.returncode, output


def post(url: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], Any]:
    """Return status, headers and JSON of a response."""
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port or 0, timeout=TIMEOUT)
    connection.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, json.loads(answer.read())
    connection.close()
    return found


def launch_of(url: str) -> str:
    return parse_qs(urlsplit(url).fragment)["launch"][0]


def enter(url: str) -> dict[str, str]:
    """Open the address, and return the headers that a window sends from then on."""
    status, headers, document = post(url, "/api/enter", X_Rowgrad_Launch=launch_of(url))
    assert status == 200, document
    cookie = headers["set-cookie"].partition(";")[0]
    return {"Cookie": cookie, "X_Rowgrad_Page": document["key"], "Content_Type": "application/json"}


def echo_status(url: str, session: dict[str, str], **headers: str) -> int:
    return post(url, "/api/echo", b"{}", **(session | headers))[0]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_start_use_and_stop_by_signal(tmp_path: Path, number: int, code: int) -> None:
    with run_studio(str(tmp_path)) as (process, url):
        assert url.startswith("http://127.0.0.1:")
        assert len(launch_of(url)) == 43  # 32 bytes
        assert urlsplit(url).query == ""
        session = enter(url)
        assert (echo_status(url, session), echo_status(url, session)) == (200, 200)
        assert post(url, "/api/enter", X_Rowgrad_Launch=launch_of(url))[0] == 401
        output = end(process, number)
    assert process.returncode == code
    lines = output.splitlines()
    assert lines == [f"rowgrad studio: project {tmp_path}; Ctrl-C stops", "closed", "rowgrad studio: stopped"]


def test_the_first_free_port_is_taken(tmp_path: Path) -> None:
    with run_studio(str(tmp_path)) as (_, first), run_studio(str(tmp_path)) as (_, second):
        assert urlsplit(first).port != urlsplit(second).port
        sessions = enter(first), enter(second)
        assert (echo_status(first, sessions[0]), echo_status(second, sessions[1])) == (200, 200)
        assert (echo_status(first, sessions[1]), echo_status(second, sessions[0])) == (401, 401)


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = run_failing(str(tmp_path), "--port", str(port))
    assert code == 2
    assert output == f"rowgrad studio: port {port} is in use; choose another with --port, or leave it out\n"


def test_json_output_for_programs(tmp_path: Path) -> None:
    with run_studio(str(tmp_path), "--json", "--token", "0123456789abcdef") as (_, line):
        found = json.loads(line)
        assert found["token"] == "0123456789abcdef"
        assert found["project"] == str(tmp_path)
        assert found["url"].startswith(f"http://127.0.0.1:{found['port']}/#launch=")
        assert found["token"] not in found["url"]
        program = {"X_Rowgrad_Token": found["token"], "Content_Type": "application/json"}
        assert (echo_status(found["url"], program), echo_status(found["url"], enter(found["url"]))) == (200, 200)


def test_a_page_argument_opens_its_folder(tmp_path: Path) -> None:
    page = tmp_path / "my page.json"
    page.write_text('{"format": "rowgrad-page", "version": 1, "blocks": []}')
    with run_studio("--json", str(page)) as (_, line):
        found = json.loads(line)
        assert found["project"] == str(tmp_path)
        assert parse_qs(urlsplit(found["url"]).query)["page"] == ["my page"]


def test_the_current_folder_is_the_project(tmp_path: Path) -> None:
    with run_studio("--json", cwd=tmp_path) as (_, line):
        assert json.loads(line)["project"] == str(tmp_path)


def test_a_missing_folder_is_created_only_with_new(tmp_path: Path) -> None:
    code, output = run_failing(str(tmp_path / "a" / "b"))
    assert (code, output) == (3, f"rowgrad studio: {tmp_path}/a/b: no such folder; --new creates it\n")
    with run_studio("--new", str(tmp_path / "a" / "b")):
        assert (tmp_path / "a" / "b").is_dir()


def test_the_gallery_folder_is_removed_unless_a_page_was_saved() -> None:
    for with_page in (False, True):
        with run_studio("--gallery", "--json") as (process, line):
            found = json.loads(line)
            folder = Path(found["project"])
            assert folder.is_dir()
            assert parse_qs(urlsplit(found["url"]).query)["gallery"] == ["1"]
            if with_page:
                (folder / "mine.json").write_text("{}")
            output = end(process, signal.SIGINT)
        assert folder.exists() == with_page
        assert (f"your pages are saved in {folder}" in output) == with_page
    shutil.rmtree(folder)


def test_listening_on_other_hosts_prints_a_warning(tmp_path: Path) -> None:
    with run_studio(str(tmp_path), "--host", "0.0.0.0") as (process, url):
        port = urlsplit(url).port
        session = enter(url)
        hosts = (f"10.1.2.3:{port}", f"[fe80::1]:{port}", f"evil.example:{port}")
        assert [echo_status(url, session, Host=host) for host in hosts] == [200, 200, 403]
        again = link(str(tmp_path))[1]
        assert urlsplit(again).netloc == f"127.0.0.1:{port}"
        assert echo_status(again, enter(again)) == 200
        output = end(process)
    assert "others can connect through 0.0.0.0; the connection is not encrypted" in output


@pytest.mark.parametrize(
    ("args", "message"),
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
def test_wrong_usage_exits_with_code_2_and_a_message(tmp_path: Path, args: list[str], message: str) -> None:
    code, output = run_failing(*args, cwd=tmp_path)
    assert code == 2
    assert message in output
    assert output.count("\n") == 1


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_missing_packages_are_named(missing: str) -> None:
    call = f"import sys; sys.modules[{missing!r}] = None; from rowgrad.cli import main; sys.exit(main(['studio']))"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "rowgrad studio: Studio needs more packages: pip install 'rowgrad[studio]'\n"


def test_a_browser_gets_a_file_and_no_secret(tmp_path: Path) -> None:
    """Other users can read the browser's command line: it names a file that only the owner can read."""
    script, opened = tmp_path / "browser", tmp_path / "opened"
    os.mkfifo(opened)
    script.write_text(f'#!/bin/sh\necho "$1" > "{opened}"\n')
    script.chmod(0o755)
    process = start(str(tmp_path), env=os.environ | {"BROWSER": f"{script} %s &"})
    try:
        assert process.stdout is not None
        printed = process.stdout.readline().strip()
        file_url = opened.read_text().strip()  # waits for the writer
        path = Path(url2pathname(urlsplit(file_url).path))
        assert (urlsplit(file_url).scheme, path.parent) == ("file", tmp_path / ".rowgrad")
        assert path.stat().st_mode & 0o777 == 0o600
        url = re.findall(r"url=(http://[^\"]+)", path.read_text())[0]
        assert launch_of(url) not in (file_url, launch_of(printed))
        assert echo_status(url, enter(url)) == 200
        assert not path.exists()  # removed after use
        assert echo_status(printed, enter(printed)) == 200
    finally:
        end(process)


def test_link_opens_a_running_studio(tmp_path: Path) -> None:
    page = tmp_path / "my page.json"
    page.write_text('{"format": "rowgrad-page", "version": 1, "blocks": []}')
    with run_studio(str(tmp_path), "--json") as (process, line):
        output = json.loads(line)
        code, url, _ = link(str(tmp_path))
        assert code == 0
        assert urlsplit(url).port == output["port"]
        assert launch_of(url) != launch_of(output["url"])
        assert echo_status(url, enter(url)) == 200
        code, url, _ = link(str(page), "--port", str(output["port"]))
        assert parse_qs(urlsplit(url).query) == {"page": ["my page"]}
        assert echo_status(url, enter(url)) == 200
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
    with run_studio(str(tmp_path)) as (process, _):
        process.kill()
        process.communicate()
        assert list((tmp_path / ".rowgrad").glob("studio-*"))
        assert link(str(tmp_path))[0] == 3


def test_with_sigint_ignored_sigterm_stops_it(tmp_path: Path) -> None:
    """As for background processes of a shell script."""
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{START}"
    command = restored([sys.executable, "-c", ignoring, "studio", str(tmp_path), "--no-browser"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        assert echo_status(url, enter(url)) == 200
        end(process)
        assert process.returncode == 143


def test_restored_gives_children_the_default_sigint_handler(tmp_path: Path) -> None:
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    handler = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    child = [sys.executable, "-c", handler]
    for command, answer in ((child, "False"), (restored(child), "True")):
        done = subprocess.run([sys.executable, "-c", ignoring, *command], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == answer
