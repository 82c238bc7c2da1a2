"""A window gets access with a launch URL that works once and is not stored in the window."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from browser_windows import BrowserWindows
from playwright.sync_api import Page, expect
from studio_server import StudioServer
from studio_window import StudioWindow

from rowgrad.studio.serve import redirect_path, write_redirect

# Reject navigation from other sites; browsers count file: URLs as such.
REJECT_CROSS_SITE = """lambda self, heads, path: 1 / (heads.single("sec-fetch-site") != "cross-site")"""
STORED_STATE = "() => JSON.stringify([location.href, document.cookie, {...sessionStorage}, {...localStorage}])"


@pytest.fixture
def opened(server: StudioServer, window: Page, windows: BrowserWindows) -> tuple[StudioWindow, str]:
    """A window, and the launch URL that opened it."""
    expect.set_options(timeout=windows.milliseconds)
    url = server.start(token=None).url
    window.goto(url)
    window.locator(".top-bar").wait_for()
    return StudioWindow(window, server, windows), url


@pytest.mark.broken("rowgrad.studio.access:Access.use_launch", "lambda self, secret: bool(secret)")
def test_the_launch_url_works_once_and_is_not_stored(opened: tuple[StudioWindow, str]) -> None:
    ui, url = opened
    secret = urlsplit(url).fragment.removeprefix("launch=")
    home = f"http://127.0.0.1:{ui.server.port}/"
    assert ui.window.url == home
    assert secret not in ui.window.evaluate(STORED_STATE)
    assert f"rowgrad-studio-{ui.server.port}" not in ui.window.evaluate("document.cookie")  # HttpOnly
    ui.window.reload()
    ui.window.locator(".top-bar").wait_for()
    # Another tab of the same browser has access, with the bare address and with a used launch URL.
    ui.windows.allow_error("status of 401")
    for address in (home, url):
        tab = ui.windows.new_window(ui.window)
        tab.goto(address)
        tab.locator(".top-bar").wait_for()
        assert tab.url == home
        tab.close()
    other = ui.windows.new_window()
    other.goto(url)
    expect(other.get_by_role("alert")).to_have_text(re.compile("was used before or has expired"))
    expect(other.get_by_text("rowgrad studio --link prints a new one")).to_be_visible()
    # A new launch URL in the same window changes only the fragment.
    other.evaluate("url => { location.href = url; }", ui.server.url)
    other.locator(".top-bar").wait_for()
    assert other.url == home


@pytest.mark.broken("rowgrad.studio.http_requests:Guard._check_site", REJECT_CROSS_SITE)
def test_the_redirect_file_opens_studio(opened: tuple[StudioWindow, str]) -> None:
    ui, _ = opened
    path = redirect_path(ui.server.folder, ui.server.port)
    uri = write_redirect(path, ui.server.page_url("none"))
    ui.windows.allow_error("left the machine: file:")
    other = ui.windows.new_window()
    assert uri is not None
    other.goto(uri)
    other.locator(".top-bar").wait_for()
    assert other.url == f"http://127.0.0.1:{ui.server.port}/?page=none"


@pytest.mark.broken("rowgrad.studio.access:secrets.token_urlsafe", "lambda size: 'the-same-at-every-start'")
def test_a_window_resumes_once_its_browser_can_access_the_restarted_server(
    opened: tuple[StudioWindow, str],
) -> None:
    ui, _ = opened
    ui.new_page()
    ui.windows.allow_error("status of 401|Failed to load resource|failed:")
    ui.server.kill()
    ui.server.start(token=None)
    expect(ui.window.get_by_text("rowgrad studio --link")).to_be_visible()
    ui.place("Const")
    tab = ui.windows.new_window(ui.window)
    tab.goto(ui.server.url)
    tab.locator(".top-bar").wait_for()
    ui.wait_saved()
    assert [block["op"] for block in ui.page_json()["blocks"]] == ["Const"]
