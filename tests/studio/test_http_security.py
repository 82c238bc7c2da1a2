"""Access checks of requests, the files that are served, and response headers."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterator

import pytest
from server_process import TOKEN, Served, serving

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


def test_a_verb_is_answered(served: Served) -> None:
    answer = served.post("echo", {"a": [1, 2.5, "ü"]})
    assert (answer.status, answer.json) == (200, {"a": [1, 2.5, "ü"]})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("host", ["localhost:{}", "127.0.0.1:{}", "[::1]:{}", "LOCALHOST:{}"])
def test_hosts_that_are_ours(served: Served, host: str) -> None:
    host = host.format(served.port)
    assert served.post("echo", {}, Host=host).status == 200
    assert served.post("echo", {}, Host=host, Origin=f"http://{host}").status == 200
    assert served.ask("GET", "/", {"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example:{}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{}", "127.0.0.1:{}.evil.example",
     "evil@127.0.0.1:{}", "127.0.0.2:{}", "0.0.0.0:{}", "[::]:{}", "", ":{}", "localhost:0{}", "localhost :{}"],
)  # fmt: skip
def test_hosts_that_are_not(served: Served, host: str) -> None:
    for path, method in (("/", "GET"), ("/studio.js", "GET"), ("/api/echo", "POST"), ("/api/events?window=a", "GET")):
        answer = served.ask(method, path, {"Host": host.format(served.port), "X-Rowgrad-Token": TOKEN})
        assert (answer.status, answer.kind) == (403, "HostRefused")


@pytest.mark.parametrize("extra", ["", "Host: 127.0.0.1:{0}\r\nHost: evil.example\r\n"])
def test_one_host_exactly(served: Served, extra: str) -> None:
    request = f"POST /api/echo HTTP/1.1\r\n{extra.format(served.port)}X-Rowgrad-Token: {TOKEN}\r\n\r\n"
    assert served.raw(request.encode()).startswith(b"HTTP/1.1 400 ")


def test_http_1_0_without_a_host(served: Served) -> None:
    assert served.raw(f"GET / HTTP/1.0\r\nX-Rowgrad-Token: {TOKEN}\r\n\r\n".encode()).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "", "https://127.0.0.1:{}", "http://127.0.0.1:1", "http://127.0.0.1",
     "http://localhost:{}", "http://127.0.0.1:{}.evil.example", "http://127.0.0.1:{} http://evil.example"],
)  # fmt: skip
def test_origins_that_are_not_ours(served: Served, origin: str) -> None:
    """Also that of localhost to 127.0.0.1: for a browser they are two."""
    answer = served.post("echo", {}, Origin=origin.format(served.port))
    assert (answer.status, answer.kind) == (403, "OriginRefused")


def test_two_origins(served: Served) -> None:
    own = f"http://127.0.0.1:{served.port}"
    request = f"POST /api/echo HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nX-Rowgrad-Token: {TOKEN}\r\n"
    assert served.first(f"{request}Origin: {own}\r\nOrigin: {own}\r\n\r\n".encode()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-site", 403), ("x", 403), ("none", 200)])
def test_fetch_metadata_of_the_browser(served: Served, site: str, status: int) -> None:
    assert served.post("echo", {}, Sec_Fetch_Site=site).status == status
    assert served.ask("GET", "/studio.js", {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}).status == status
    assert served.ask("GET", "/", {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}).status == status


@pytest.mark.parametrize("site", ["same-site", "cross-site"])
def test_links_and_files_may_open_the_page_in_a_window_of_its_own(served: Served, site: str) -> None:
    request = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert served.ask("GET", "/", request).status == 200
    assert served.ask("GET", "/studio.js", request).status == 403
    assert served.ask("GET", "/", request | {"Sec-Fetch-Dest": "iframe"}).status == 403
    assert served.ask("GET", "/", request | {"Sec-Fetch-Mode": "no-cors"}).status == 403
    assert served.ask("GET", "/", request | {"Sec-Fetch-Site": "x"}).status == 403
    events = served.ask("GET", "/api/events?window=a", request | {"X-Rowgrad-Token": TOKEN})
    assert (events.status, events.kind) == (403, "OriginRefused")


@pytest.mark.parametrize(
    "token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ü" * 20, f"Bearer {TOKEN}"]
)
@pytest.mark.parametrize("path", ["/api/echo", "/api/no_such_verb", "/api/upload?name=a", "/api/events?window=a"])
def test_without_the_token_nothing_is_answered(served: Served, token: str | None, path: str) -> None:
    method = "GET" if "events" in path else "POST"
    request = {"Content-Type": "application/json"} | ({} if token is None else {"X-Rowgrad-Token": token})
    answer = served.ask(method, path, request, None if method == "GET" else b"{}")
    assert (answer.status, answer.kind) == (401, "AccessRefused")
    answer = served.ask(method, f"{path}{'&' if '?' in path else '?'}token={TOKEN}", request, b"")
    assert answer.status == 401  # an address is no place for it


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/api/echo"), ("PUT", "/api/echo"), ("OPTIONS", "/api/echo"), ("HEAD", "/api/events?window=a"),
     ("POST", "/api/events?window=a"), ("POST", "/"), ("DELETE", "/studio.js"), ("TRACE", "/"), ("BREW", "/")],
)  # fmt: skip
def test_methods_that_are_not_used(served: Served, method: str, path: str) -> None:
    answer = served.ask(method, path, {"X-Rowgrad-Token": TOKEN})
    assert answer.status == 405
    assert "access-control-allow-origin" not in answer.headers


HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def test_headers_on_every_answer(served: Served) -> None:
    answers = [served.ask("GET", path) for path in ("/", "/studio.js", "/nothing", "/api/echo")]
    answers += [served.post("echo", {}), served.post("fail", {"how": "bug"}), served.post("nothing", {})]
    answers += [served.post("echo", {}, Host="evil.example"), served.post("echo", {}, X_Rowgrad_Token="no")]
    assert [a.status for a in answers] == [200, 200, 404, 405, 200, 500, 404, 403, 401]
    for answer in answers:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert "server" not in answer.headers
    garbage = served.raw(b"what is this\r\n\r\n").decode().lower()
    assert all(f"{name}: {value.lower()}\r\n" in garbage for name, value in HEADERS.items())


def test_the_verbs_load_no_server() -> None:
    """The notebook's widget calls verbs, too, and needs no packages of HTTP."""
    call = "import sys, rowgrad.studio.verbs, rowgrad.studio.events; print({'starlette', 'uvicorn'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True).stdout == "set()\n"


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/index.html", "text/html"), ("/studio.js", "text/javascript"), ("/studio.css", "text/css")],
)
def test_files_of_the_page(served: Served, path: str, kind: str) -> None:
    answer = served.ask("GET", path)
    assert answer.status == 200
    assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    packed = served.ask("GET", path, {"Accept-Encoding": "br, gzip;q=1.0"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == answer.body
    assert packed.headers["etag"] != answer.headers["etag"]
    for first, request in ((answer, {}), (packed, {"Accept-Encoding": "gzip"})):
        again = served.ask("GET", path, request | {"If-None-Match": first.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
    only_head = served.ask("HEAD", path)
    assert (only_head.status, only_head.body) == (200, b"")
    assert only_head.headers["content-length"] == str(len(answer.body))


@pytest.mark.parametrize(
    "path",
    ["/../server.py", "/static/../studio.js", "/%2e%2e/server.py", "/..%2fserver.py", "/%2e%2e%2f%2e%2e%2fetc/passwd",
     "//studio.js", "//etc/passwd", "/./studio.js", "/studio.js/", "/studio.js%00", "/STUDIO.JS", "/studio%2ejs",
     "/notes.secret", "/index.htm", "/\\studio.js", "/api", "/api/", "/api/echo/", "/api/../studio.js", "/%ff",
     "http://127.0.0.1/studio.js", "*", "studio.js", "/studio.js;a", "/etc/passwd"],
)  # fmt: skip
def test_other_paths_lead_nowhere(served: Served, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nConnection: close\r\n\r\n"
    answer = served.raw(request.encode())
    assert answer.split(b" ")[1] in (b"404", b"405"), answer
    assert b"console.log" not in answer
    assert b"root:" not in answer
    assert b"location:" not in answer.lower()
