"""Access to a running studio: launch secrets work once and expire, and a session needs cookie and key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_process import TOKEN, Response, ServerProcess, run_server

from rowgrad.studio.access import LAUNCH_SECONDS, Access

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_launch_secret_works_once() -> None:
    ended: list[str] = []
    access = Access(8765)
    secret = access.new_launch(lambda: ended.append("used"))
    assert not access.use_launch("")
    assert not access.use_launch(secret[:-1])
    assert not access.use_launch("\udcff")
    assert access.use_launch(secret)
    assert not access.use_launch(secret)
    assert ended == ["used"]


def test_a_launch_secret_expires() -> None:
    clock, ended = Clock(), []
    access = Access(8765, clock=clock)
    first = access.new_launch(lambda: ended.append("first"))
    clock.now = LAUNCH_SECONDS - 1
    second = access.new_launch(lambda: ended.append("second"))
    clock.now = LAUNCH_SECONDS
    assert not access.use_launch(first)
    assert ended == ["first"]
    assert access.use_launch(second)
    access.new_launch(lambda: ended.append("third"))
    access.close()
    assert ended == ["first", "second", "third"]


def test_the_number_of_launch_secrets_is_bounded() -> None:
    access = Access(8765)
    secrets = [access.new_launch() for _ in range(1000)]
    assert len(access._launches) == 64
    assert not access.use_launch(secrets[0])
    assert access.use_launch(secrets[-1])


def test_every_start_has_new_secrets_unless_a_token_is_passed() -> None:
    one, two = Access(8765), Access(8765)
    assert len({one.token, two.token, one.control, two.control, one.page_key, two.page_key}) == 6
    assert one.cookie != two.cookie
    first, again, other_port = Access(8765, TOKEN), Access(8765, TOKEN), Access(8766, TOKEN)
    assert (first.cookie, first.page_key) == (again.cookie, again.page_key)
    assert first.control != again.control
    assert TOKEN not in first.cookie + first.page_key
    assert {first.cookie, first.page_key}.isdisjoint({other_port.cookie, other_port.page_key})


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with run_server() as found:
        yield found


def enter(server: ServerProcess, launch: str, **headers: str) -> Response:
    return server.request("POST", "/api/enter", {"X-Rowgrad-Launch": launch} | headers)


def new_launch(server: ServerProcess) -> str:
    found: str = server.request("POST", "/api/link", {"X-Rowgrad-Control": server.control}).json["launch"]
    return found


def test_a_launch_secret_is_exchanged_for_a_session(server: ServerProcess) -> None:
    answer = enter(server, new_launch(server), Origin=f"http://127.0.0.1:{server.port}")
    assert answer.status == 200
    cookie, *flags = answer.headers["set-cookie"].split("; ")
    assert cookie.startswith(f"rowgrad-studio-{server.port}=")  # browsers send cookies to all ports of a host
    assert flags == ["Path=/", "HttpOnly", "SameSite=Strict"]
    key = answer.json["key"]
    assert TOKEN not in answer.body.decode() + cookie

    def status(**headers: str) -> int:
        sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): v for name, v in headers.items()}
        return server.request("POST", "/api/echo", sent, b"{}").status

    assert status(Cookie=cookie, X_Rowgrad_Page=key) == 200
    assert status(Cookie=f"a=b; {cookie}; c=d", X_Rowgrad_Page=key) == 200
    assert status(Cookie=f"{cookie.partition('=')[0]}=of-another-port; {cookie}", X_Rowgrad_Page=key) == 200
    # Another site can at most send the cookie; a server on another port may know it.
    assert status(Cookie=cookie) == 401
    assert status(X_Rowgrad_Page=key) == 401
    assert status(Cookie=cookie, X_Rowgrad_Page=key[:-1]) == 401
    assert status(Cookie=cookie[:-1], X_Rowgrad_Page=key) == 401
    assert status(Cookie=cookie.replace(str(server.port), "1"), X_Rowgrad_Page=key) == 401
    assert status(Cookie=cookie, X_Rowgrad_Page=key, Origin="http://evil.example") == 403
    assert status(Cookie=cookie, X_Rowgrad_Page=key, Sec_Fetch_Site="same-site") == 403
    assert status(Cookie=cookie, X_Rowgrad_Page=key, Host="evil.example") == 403


def test_a_used_launch_secret_is_rejected_with_advice(server: ServerProcess) -> None:
    launch = new_launch(server)
    assert [enter(server, launch).status for _ in range(2)] == [200, 401]
    for wrong in (launch, "wrong", ""):
        answer = enter(server, wrong)
        assert (answer.status, answer.kind) == (401, "LaunchRefused")
        assert "rowgrad studio --link" in answer.json["error"]["message"]
        assert "set-cookie" not in answer.headers


def test_a_rejected_request_uses_no_launch_secret(server: ServerProcess) -> None:
    launch = new_launch(server)
    assert enter(server, launch, Host="evil.example").status == 403
    assert enter(server, launch, Origin="http://evil.example").status == 403
    assert enter(server, launch, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert server.request("GET", "/api/enter", {"X-Rowgrad-Launch": launch}).status == 405
    assert server.request("POST", f"/api/enter?{'a' * 9000}", {"X-Rowgrad-Launch": launch}).status == 414
    assert server.request("POST", f"/api/enter?launch={launch}").status == 401
    assert enter(server, launch).status == 200


def test_only_the_control_secret_creates_launch_secrets(server: ServerProcess) -> None:
    for headers in ({}, {"X-Rowgrad-Control": TOKEN}, {"X-Rowgrad-Token": TOKEN}):
        answer = server.request("POST", "/api/link", headers)
        assert (answer.status, answer.kind) == (401, "AccessRefused")
    sent = {"X-Rowgrad-Token": server.control, "Content-Type": "application/json"}
    assert server.request("POST", "/api/echo", sent, b"{}").status == 401
    assert server.request("POST", "/api/link", {"X-Rowgrad-Control": server.control}).json["token"] == TOKEN


def test_two_studios_on_two_ports_share_no_session(server: ServerProcess) -> None:
    """A browser sends the cookies of both servers to both."""
    with run_server() as other:
        sessions = [(found, enter(found, new_launch(found))) for found in (server, other)]
        cookies = "; ".join(answer.headers["set-cookie"].partition(";")[0] for _, answer in sessions)
        for found, answer in sessions:
            for at in (server, other):
                sent = {"Content-Type": "application/json", "Cookie": cookies, "X-Rowgrad-Page": answer.json["key"]}
                assert (at.request("POST", "/api/echo", sent, b"{}").status == 200) == (at is found)
