"""Access to a running studio: launch secrets work once and expire, and a session needs cookie and key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_process import TOKEN, Answer, Served, serving

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


def test_there_are_not_any_number_of_launch_secrets() -> None:
    access = Access(8765)
    secrets = [access.new_launch() for _ in range(1000)]
    assert len(access._launches) == 64
    assert not access.use_launch(secrets[0])
    assert access.use_launch(secrets[-1])


def test_every_start_has_secrets_of_its_own_unless_the_token_is_given() -> None:
    one, two = Access(8765), Access(8765)
    assert len({one.token, two.token, one.control, two.control, one.page_key, two.page_key}) == 6
    assert one.cookie != two.cookie
    first, again, other_port = Access(8765, TOKEN), Access(8765, TOKEN), Access(8766, TOKEN)
    assert (first.cookie, first.page_key) == (again.cookie, again.page_key)
    assert first.control != again.control
    assert TOKEN not in first.cookie + first.page_key
    assert {first.cookie, first.page_key}.isdisjoint({other_port.cookie, other_port.page_key})


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


def enter(served: Served, launch: str, **headers: str) -> Answer:
    return served.ask("POST", "/api/enter", {"X-Rowgrad-Launch": launch} | headers)


def link(served: Served) -> str:
    found: str = served.ask("POST", "/api/link", {"X-Rowgrad-Control": served.control}).json["launch"]
    return found


def test_a_launch_secret_is_exchanged_for_a_session(served: Served) -> None:
    answer = enter(served, link(served), Origin=f"http://127.0.0.1:{served.port}")
    assert answer.status == 200
    cookie, *flags = answer.headers["set-cookie"].split("; ")
    assert cookie.startswith(f"rowgrad-studio-{served.port}=")  # browsers send cookies to all ports of a host
    assert flags == ["Path=/", "HttpOnly", "SameSite=Strict"]
    key = answer.json["key"]
    assert TOKEN not in answer.body.decode() + cookie

    def ask(**headers: str) -> int:
        sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): v for name, v in headers.items()}
        return served.ask("POST", "/api/echo", sent, b"{}").status

    assert ask(Cookie=cookie, X_Rowgrad_Page=key) == 200
    assert ask(Cookie=f"a=b; {cookie}; c=d", X_Rowgrad_Page=key) == 200
    assert ask(Cookie=f"{cookie.partition('=')[0]}=of-another-port; {cookie}", X_Rowgrad_Page=key) == 200
    # A request of another site carries the cookie at most, a server on another port may know it.
    assert ask(Cookie=cookie) == 401
    assert ask(X_Rowgrad_Page=key) == 401
    assert ask(Cookie=cookie, X_Rowgrad_Page=key[:-1]) == 401
    assert ask(Cookie=cookie[:-1], X_Rowgrad_Page=key) == 401
    assert ask(Cookie=cookie.replace(str(served.port), "1"), X_Rowgrad_Page=key) == 401
    assert ask(Cookie=cookie, X_Rowgrad_Page=key, Origin="http://evil.example") == 403
    assert ask(Cookie=cookie, X_Rowgrad_Page=key, Sec_Fetch_Site="same-site") == 403
    assert ask(Cookie=cookie, X_Rowgrad_Page=key, Host="evil.example") == 403


def test_a_launch_secret_that_was_used_says_what_to_do(served: Served) -> None:
    launch = link(served)
    assert [enter(served, launch).status for _ in range(2)] == [200, 401]
    for wrong in (launch, "wrong", ""):
        answer = enter(served, wrong)
        assert (answer.status, answer.kind) == (401, "LaunchRefused")
        assert "rowgrad studio --link" in answer.json["error"]["message"]
        assert "set-cookie" not in answer.headers


def test_a_rejected_request_uses_no_launch_secret(served: Served) -> None:
    launch = link(served)
    assert enter(served, launch, Host="evil.example").status == 403
    assert enter(served, launch, Origin="http://evil.example").status == 403
    assert enter(served, launch, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert served.ask("GET", "/api/enter", {"X-Rowgrad-Launch": launch}).status == 405
    assert served.ask("POST", f"/api/enter?{'a' * 9000}", {"X-Rowgrad-Launch": launch}).status == 414
    assert served.ask("POST", f"/api/enter?launch={launch}").status == 401
    assert enter(served, launch).status == 200


def test_only_the_control_secret_makes_launch_secrets(served: Served) -> None:
    for headers in ({}, {"X-Rowgrad-Control": TOKEN}, {"X-Rowgrad-Token": TOKEN}):
        answer = served.ask("POST", "/api/link", headers)
        assert (answer.status, answer.kind) == (401, "AccessRefused")
    sent = {"X-Rowgrad-Token": served.control, "Content-Type": "application/json"}
    assert served.ask("POST", "/api/echo", sent, b"{}").status == 401
    assert served.ask("POST", "/api/link", {"X-Rowgrad-Control": served.control}).json["token"] == TOKEN


def test_two_studios_on_two_ports_share_no_session(served: Served) -> None:
    """Though a browser sends the cookies of both to both."""
    with serving() as other:
        sessions = [(found, enter(found, link(found))) for found in (served, other)]
        cookies = "; ".join(answer.headers["set-cookie"].partition(";")[0] for _, answer in sessions)
        for found, answer in sessions:
            for at in (served, other):
                sent = {"Content-Type": "application/json", "Cookie": cookies, "X-Rowgrad-Page": answer.json["key"]}
                assert (at.ask("POST", "/api/echo", sent, b"{}").status == 200) == (at is found)
