"""Find and launch Chromium: from ROWGRAD_CHROMIUM, from PATH, or Playwright's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VARIABLE = "ROWGRAD_CHROMIUM"
MISSING = (
    "Chromium was not found: install it (Debian: apt-get install chromium), set ROWGRAD_CHROMIUM to its path, "
    "or let Playwright download its own (python -m playwright install chromium)"
)
# No network access: host names other than the server's address do not resolve.
ARGUMENTS = [
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--disable-gpu",
    "--no-first-run",
]


def find() -> str | None:
    """Return the path of the program, or None to use Playwright's own."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def launched() -> Iterator[Browser]:
    """Launch a headless browser."""
    from playwright.sync_api import Error, sync_playwright

    as_root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        path = find()
        try:
            browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS + as_root)
        except Error as error:
            raise RuntimeError(MISSING if path is None else f"{path} does not start: {error.message}") from None
        with browser:
            yield browser
