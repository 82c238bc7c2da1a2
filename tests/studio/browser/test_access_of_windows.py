"""How windows get access: by an address that works once, and is not left in the window."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from desk import Desk
from playwright.sync_api import Page, expect
from running import Studio
from watching import Watch

from rowgrad.studio.serve import redirect_path, write_redirect

# A server that accepts no navigation from other sites, which files are for a browser.
REFUSES_FILES = """lambda self, heads, path: 1 / (heads.single("sec-fetch-site") != "cross-site")"""
STORED = "() => JSON.stringify([location.href, document.cookie, {...sessionStorage}, {...localStorage}])"


@pytest.fixture
def opened(studio: Studio, window: Page, watch: Watch) -> tuple[Desk, str]:
    """A window, and the address that opened it."""
    expect.set_options(timeout=watch.milliseconds)
    url = studio.start(token=None).url
    window.goto(url)
    window.locator(".top-bar").wait_for()
    return Desk(window, studio, watch), url


@pytest.mark.broken("rowgrad.studio.access:Access.use_launch", "lambda self, secret: bool(secret)")
def test_the_address_opens_one_browser_and_is_not_left_in_it(opened: tuple[Desk, str]) -> None:
    desk, url = opened
    secret = urlsplit(url).fragment.removeprefix("launch=")
    home = f"http://127.0.0.1:{desk.studio.port}/"
    assert desk.window.url == home
    assert secret not in desk.window.evaluate(STORED)
    assert f"rowgrad-studio-{desk.studio.port}" not in desk.window.evaluate("document.cookie")  # HttpOnly
    desk.window.reload()
    desk.window.locator(".top-bar").wait_for()
    # Another tab of this browser has access, by the bare address, and by one that was used.
    desk.watch.forgive("status of 401")
    for address in (home, url):
        tab = desk.watch.new_window(desk.window)
        tab.goto(address)
        tab.locator(".top-bar").wait_for()
        assert tab.url == home
        tab.close()
    other = desk.watch.new_window()
    other.goto(url)
    expect(other.get_by_role("alert")).to_have_text(re.compile("was used before or has expired"))
    expect(other.get_by_text("rowgrad studio --link prints a new one")).to_be_visible()
    # A new address, pasted into the same window, changes its fragment only.
    other.evaluate("url => { location.href = url; }", desk.studio.url)
    other.locator(".top-bar").wait_for()
    assert other.url == home


@pytest.mark.broken("rowgrad.studio.http_requests:Guard._check_site", REFUSES_FILES)
def test_the_file_a_browser_is_started_with_opens_the_studio(opened: tuple[Desk, str]) -> None:
    desk, _ = opened
    path = redirect_path(desk.studio.folder, desk.studio.port)
    uri = write_redirect(path, desk.studio.page_url("none"))
    desk.watch.forgive("left the machine: file:")
    other = desk.watch.new_window()
    assert uri is not None
    other.goto(uri)
    other.locator(".top-bar").wait_for()
    assert other.url == f"http://127.0.0.1:{desk.studio.port}/?page=none"


@pytest.mark.broken("rowgrad.studio.access:secrets.token_urlsafe", "lambda size: 'the-same-at-every-start'")
def test_a_window_goes_on_when_its_browser_has_access_to_the_studio_started_again(opened: tuple[Desk, str]) -> None:
    desk, _ = opened
    desk.new_page()
    desk.watch.forgive("status of 401|Failed to load resource|failed:")
    desk.studio.kill()
    desk.studio.start(token=None)
    expect(desk.window.get_by_text("rowgrad studio --link")).to_be_visible()
    desk.place("Const")
    tab = desk.watch.new_window(desk.window)
    tab.goto(desk.studio.url)
    tab.locator(".top-bar").wait_for()
    desk.wait_saved()
    assert [block["op"] for block in desk.page_json()["blocks"]] == ["Const"]
