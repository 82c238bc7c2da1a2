"""A real server, a real Chromium, and a desk to work at. README.md in this folder says how to write a test."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import switched_off
from desk import Desk
from running import Studio
from switched_off import Off
from watching import Watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PICTURES = Path(__file__).parents[3] / "build" / "browser"
SECONDS, SECONDS_OFF = 15, 2  # a test waits so long at most; what is switched off does not come however long


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--switched-off", action="store_true", help="run each test without its feature: it must fail")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.browser)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if switched_off.asked(metafunc.config):
        switched_off.parametrize(metafunc)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    off = pyfuncitem.funcargs.get("off")
    if isinstance(off, Off) and off != Off():
        return (yield from switched_off.must_fail(pyfuncitem, off))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A test that failed leaves pictures of its windows in build/browser, and says what the server said."""
    report = yield
    watch = getattr(item, "funcargs", {}).get("watch")
    if report.when == "call" and report.failed and isinstance(watch, Watch):
        for path in watch.take_pictures(PICTURES / re.sub(r"[^\w.-]+", "_", item.name)):
            report.sections.append(("picture", str(path)))
        if item.funcargs.get("studio") and (said := item.funcargs["studio"].log()):
            report.sections.append(("server", said))
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if switched_off.asked(config):
        switched_off.summary(terminalreporter)


@pytest.fixture(autouse=True)
def off(request: pytest.FixtureRequest) -> Off:
    """What this test has to do without; nothing, usually."""
    found: Off = getattr(request, "param", Off())
    return found


@pytest.fixture
def studio(tmp_path: Path, off: Off) -> Iterator[Studio]:
    """A server that is not started yet, on an empty folder: `desk` starts it, or a test does with what it needs."""
    made = Studio(tmp_path / "project", off.broken, str(off.page or ""))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    import chromium as ours

    with ours.launched() as made:
        yield made


@pytest.fixture
def seconds(off: Off) -> float:
    """How long anything is waited for."""
    return SECONDS if off == Off() else SECONDS_OFF


@pytest.fixture
def watch(chromium: Browser, seconds: float, off: Off) -> Iterator[Watch]:
    """Makes windows and watches them: at the end of the test none may have complained or gone elsewhere."""
    made = Watch(chromium, seconds, off.script)
    yield made
    made.close()
    if off == Off():
        assert not made.troubles, "\n".join(made.troubles)


@pytest.fixture
def window(watch: Watch) -> Page:
    """An empty window of a browser that has never been here."""
    return watch.new_window()


@pytest.fixture
def desk(studio: Studio, window: Page, watch: Watch) -> Desk:
    """The studio in a window, started if the test has not done so, on its start screen."""
    if not studio.port:
        studio.start()
    return Desk(window, studio, watch).open()
