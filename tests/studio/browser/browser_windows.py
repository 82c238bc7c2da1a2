"""Browser windows that record console errors, failed requests and requests to other hosts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

SIZE = {"width": 1280, "height": 800}


class BrowserWindows:
    """Opens windows that share no storage or cookies, and records their errors. `script` runs before each page."""

    def __init__(self, browser: Browser, seconds: float, script: str = "") -> None:
        self._browser, self._milliseconds, self._script = browser, seconds * 1000, script
        self._contexts: list[BrowserContext] = []
        self._allowed: list[re.Pattern[str]] = []
        self._messages: list[str] = []
        self._closing = False

    def new_window(self, beside: Page | None = None, **settings: Any) -> Page:
        """Open a window, or with `beside` another tab of the same browser."""
        if beside is None:
            context = self._browser.new_context(**{"viewport": SIZE, **settings})
            context.set_default_timeout(self._milliseconds)
            if self._script:
                context.add_init_script(self._script)
            self._contexts.append(context)
        else:
            context = beside.context
        page = context.new_page()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._record(f"uncaught: {error}"))
        page.on("request", self._request)
        page.on("requestfailed", self._failed)
        return page

    @property
    def milliseconds(self) -> float:
        return self._milliseconds

    def allow_error(self, pattern: str) -> None:
        """Ignore matching messages that the test provokes: browsers log every response with status >= 400."""
        self._allowed.append(re.compile(pattern))

    @property
    def unexpected_messages(self) -> list[str]:
        return [text for text in self._messages if not any(pattern.search(text) for pattern in self._allowed)]

    def take_screenshots(self, stem: Path) -> list[Path]:
        stem.parent.mkdir(parents=True, exist_ok=True)
        pages = [page for context in self._contexts for page in context.pages if not page.is_closed()]
        paths = [Path(f"{stem}.{k}.png") for k in range(len(pages))]
        for page, path in zip(pages, paths, strict=True):
            page.screenshot(path=path)
        return paths

    def close(self) -> None:
        self._closing = True
        for context in self._contexts:
            context.close()

    def _record(self, text: str) -> None:
        if not self._closing:
            self._messages.append(text)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._record(f"console {message.type}: {message.text} ({message.location.get('url', '')})")

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.hostname != "127.0.0.1":
            self._record(f"a request left the machine: {request.url}")

    def _failed(self, request: Request) -> None:
        # A window that closes or reloads aborts its pending requests, such as the event stream.
        if request.failure != "net::ERR_ABORTED":
            self._record(f"failed: {request.method} {urlsplit(request.url).path} {request.failure}")
