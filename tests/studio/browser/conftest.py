"""Fixtures: a Studio server, Chromium, and a window with Studio in it. README.md explains how to write a test."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import mutations
from browser_windows import BrowserWindows
from mutations import Mutation
from studio_server import StudioServer
from studio_window import StudioWindow

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCREENSHOTS = Path(__file__).parents[3] / "build" / "browser"
TIMEOUT, TIMEOUT_MUTATED = 15, 2  # seconds; waiting longer for a disabled feature is useless


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--switched-off", action="store_true", help="run each test without its feature: it must fail")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.browser)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if mutations.requested(metafunc.config):
        mutations.parametrize(metafunc)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    mutation = pyfuncitem.funcargs.get("mutation")
    if isinstance(mutation, Mutation) and mutation != Mutation():
        return (yield from mutations.must_fail(pyfuncitem, mutation))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Save screenshots of a failed test in build/browser, and show what the server printed."""
    report = yield
    windows = getattr(item, "funcargs", {}).get("windows")
    if report.when == "call" and report.failed and isinstance(windows, BrowserWindows):
        for path in windows.take_screenshots(SCREENSHOTS / re.sub(r"[^\w.-]+", "_", item.name)):
            report.sections.append(("screenshot", str(path)))
        if item.funcargs.get("server") and (log := item.funcargs["server"].log()):
            report.sections.append(("server", log))
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if mutations.requested(config):
        mutations.summary(terminalreporter)


@pytest.fixture(autouse=True)
def mutation(request: pytest.FixtureRequest) -> Mutation:
    """What is disabled in this test; nothing without `--switched-off`."""
    found: Mutation = getattr(request, "param", Mutation())
    return found


@pytest.fixture
def server(tmp_path: Path, mutation: Mutation) -> Iterator[StudioServer]:
    """A server on an empty folder, not started yet: `ui` starts it, or the test, with its own options."""
    server = StudioServer(tmp_path / "project", mutation.broken, str(mutation.front_end or ""))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    import chromium

    with chromium.launched() as browser:
        yield browser


@pytest.fixture
def timeout(mutation: Mutation) -> float:
    """Seconds to wait for anything."""
    return TIMEOUT if mutation == Mutation() else TIMEOUT_MUTATED


@pytest.fixture
def windows(chromium: Browser, timeout: float, mutation: Mutation) -> Iterator[BrowserWindows]:
    """Browser windows; the test fails if one logs an error or sends a request to another host."""
    windows = BrowserWindows(chromium, timeout, mutation.script)
    yield windows
    windows.close()
    if mutation == Mutation():
        assert not windows.unexpected_messages, "\n".join(windows.unexpected_messages)


@pytest.fixture
def window(windows: BrowserWindows) -> Page:
    """An empty window without cookies or storage."""
    return windows.new_window()


@pytest.fixture
def ui(server: StudioServer, window: Page, windows: BrowserWindows) -> StudioWindow:
    """A window with Studio's start screen; starts the server if the test has not done so."""
    if not server.port:
        server.start()
    window.set_default_timeout(1000 * TIMEOUT)  # to open it takes as long without a feature
    ui = StudioWindow(window, server, windows).open()
    window.set_default_timeout(windows.milliseconds)
    return ui
