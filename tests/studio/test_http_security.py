"""Access checks of requests, the files that are served, and response headers."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterator

import pytest
from server_process import TOKEN, ServerProcess, run_server

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with run_server() as found:
        yield found


def test_a_verb_returns_json(server: ServerProcess) -> None:
    answer = server.post("echo", {"a": [1, 2.5, "ü"]})
    assert (answer.status, answer.json) == (200, {"a": [1, 2.5, "ü"]})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("host", ["localhost:{}", "127.0.0.1:{}", "[::1]:{}", "LOCALHOST:{}"])
def test_local_hosts_are_accepted(server: ServerProcess, host: str) -> None:
    host = host.format(server.port)
    assert server.post("echo", {}, Host=host).status == 200
    assert server.post("echo", {}, Host=host, Origin=f"http://{host}").status == 200
    assert server.request("GET", "/", {"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example:{}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{}", "127.0.0.1:{}.evil.example",
     "evil@127.0.0.1:{}", "127.0.0.2:{}", "0.0.0.0:{}", "[::]:{}", "", ":{}", "localhost:0{}", "localhost :{}"],
)  # fmt: skip
def test_other_hosts_are_rejected(server: ServerProcess, host: str) -> None:
    for path, method in (("/", "GET"), ("/studio.js", "GET"), ("/api/echo", "POST"), ("/api/events?window=a", "GET")):
        answer = server.request(method, path, {"Host": host.format(server.port), "X-Rowgrad-Token": TOKEN})
        assert (answer.status, answer.kind) == (403, "HostRefused")


@pytest.mark.parametrize("extra", ["", "Host: 127.0.0.1:{0}\r\nHost: evil.example\r\n"])
def test_requests_need_exactly_one_host_header(server: ServerProcess, extra: str) -> None:
    request = f"POST /api/echo HTTP/1.1\r\n{extra.format(server.port)}X-Rowgrad-Token: {TOKEN}\r\n\r\n"
    assert server.send_raw(request.encode()).startswith(b"HTTP/1.1 400 ")


def test_http_1_0_without_a_host_is_rejected(server: ServerProcess) -> None:
    assert server.send_raw(f"GET / HTTP/1.0\r\nX-Rowgrad-Token: {TOKEN}\r\n\r\n".encode()).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "", "https://127.0.0.1:{}", "http://127.0.0.1:1", "http://127.0.0.1",
     "http://localhost:{}", "http://127.0.0.1:{}.evil.example", "http://127.0.0.1:{} http://evil.example"],
)  # fmt: skip
def test_other_origins_are_rejected(server: ServerProcess, origin: str) -> None:
    """Including localhost instead of 127.0.0.1: for a browser these are two origins."""
    answer = server.post("echo", {}, Origin=origin.format(server.port))
    assert (answer.status, answer.kind) == (403, "OriginRefused")


def test_two_origin_headers_are_rejected(server: ServerProcess) -> None:
    own = f"http://127.0.0.1:{server.port}"
    request = f"POST /api/echo HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nX-Rowgrad-Token: {TOKEN}\r\n"
    assert server.first_response(f"{request}Origin: {own}\r\nOrigin: {own}\r\n\r\n".encode()).startswith(
        b"HTTP/1.1 400 "
    )


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-site", 403), ("x", 403), ("none", 200)])
def test_cross_site_requests_are_rejected(server: ServerProcess, site: str, status: int) -> None:
    assert server.post("echo", {}, Sec_Fetch_Site=site).status == status
    assert server.request("GET", "/studio.js", {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}).status == status
    assert server.request("GET", "/", {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}).status == status


@pytest.mark.parametrize("site", ["same-site", "cross-site"])
def test_other_sites_may_only_navigate_to_the_page_in_a_top_level_window(server: ServerProcess, site: str) -> None:
    request = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert server.request("GET", "/", request).status == 200
    assert server.request("GET", "/studio.js", request).status == 403
    assert server.request("GET", "/", request | {"Sec-Fetch-Dest": "iframe"}).status == 403
    assert server.request("GET", "/", request | {"Sec-Fetch-Mode": "no-cors"}).status == 403
    assert server.request("GET", "/", request | {"Sec-Fetch-Site": "x"}).status == 403
    events = server.request("GET", "/api/events?window=a", request | {"X-Rowgrad-Token": TOKEN})
    assert (events.status, events.kind) == (403, "OriginRefused")


@pytest.mark.parametrize(
    "token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ü" * 20, f"Bearer {TOKEN}"]
)
@pytest.mark.parametrize("path", ["/api/echo", "/api/no_such_verb", "/api/upload?name=a", "/api/events?window=a"])
def test_requests_without_the_token_are_rejected(server: ServerProcess, token: str | None, path: str) -> None:
    method = "GET" if "events" in path else "POST"
    request = {"Content-Type": "application/json"} | ({} if token is None else {"X-Rowgrad-Token": token})
    answer = server.request(method, path, request, None if method == "GET" else b"{}")
    assert (answer.status, answer.kind) == (401, "AccessRefused")
    answer = server.request(method, f"{path}{'&' if '?' in path else '?'}token={TOKEN}", request, b"")
    assert answer.status == 401  # a token in the URL does not count


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/api/echo"), ("PUT", "/api/echo"), ("OPTIONS", "/api/echo"), ("HEAD", "/api/events?window=a"),
     ("POST", "/api/events?window=a"), ("POST", "/"), ("DELETE", "/studio.js"), ("TRACE", "/"), ("BREW", "/")],
)  # fmt: skip
def test_unsupported_methods_are_rejected(server: ServerProcess, method: str, path: str) -> None:
    answer = server.request(method, path, {"X-Rowgrad-Token": TOKEN})
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


def test_security_headers_are_on_every_response(server: ServerProcess) -> None:
    answers = [server.request("GET", path) for path in ("/", "/studio.js", "/nothing", "/api/echo")]
    answers += [server.post("echo", {}), server.post("fail", {"how": "bug"}), server.post("nothing", {})]
    answers += [server.post("echo", {}, Host="evil.example"), server.post("echo", {}, X_Rowgrad_Token="no")]
    assert [a.status for a in answers] == [200, 200, 404, 405, 200, 500, 404, 403, 401]
    for answer in answers:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert "server" not in answer.headers
    garbage = server.send_raw(b"what is this\r\n\r\n").decode().lower()
    assert all(f"{name}: {value.lower()}\r\n" in garbage for name, value in HEADERS.items())


def test_importing_verbs_imports_no_http_packages() -> None:
    """The notebook widget calls verbs without an HTTP server."""
    call = "import sys, rowgrad.studio.verbs, rowgrad.studio.events; print({'starlette', 'uvicorn'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True).stdout == "set()\n"


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/index.html", "text/html"), ("/studio.js", "text/javascript"), ("/studio.css", "text/css")],
)
def test_front_end_files_are_served_with_gzip_and_etag(server: ServerProcess, path: str, kind: str) -> None:
    answer = server.request("GET", path)
    assert answer.status == 200
    assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    packed = server.request("GET", path, {"Accept-Encoding": "br, gzip;q=1.0"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == answer.body
    assert packed.headers["etag"] != answer.headers["etag"]
    for first, request in ((answer, {}), (packed, {"Accept-Encoding": "gzip"})):
        again = server.request("GET", path, request | {"If-None-Match": first.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
    only_head = server.request("HEAD", path)
    assert (only_head.status, only_head.body) == (200, b"")
    assert only_head.headers["content-length"] == str(len(answer.body))


@pytest.mark.parametrize(
    "path",
    ["/../server.py", "/static/../studio.js", "/%2e%2e/server.py", "/..%2fserver.py", "/%2e%2e%2f%2e%2e%2fetc/passwd",
     "//studio.js", "//etc/passwd", "/./studio.js", "/studio.js/", "/studio.js%00", "/STUDIO.JS", "/studio%2ejs",
     "/notes.secret", "/index.htm", "/\\studio.js", "/api", "/api/", "/api/echo/", "/api/../studio.js", "/%ff",
     "http://127.0.0.1/studio.js", "*", "studio.js", "/studio.js;a", "/etc/passwd"],
)  # fmt: skip
def test_unknown_and_malicious_paths_are_not_found(server: ServerProcess, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n"
    answer = server.send_raw(request.encode())
    assert answer.split(b" ")[1] in (b"404", b"405"), answer
    assert b"console.log" not in answer
    assert b"root:" not in answer
    assert b"location:" not in answer.lower()
