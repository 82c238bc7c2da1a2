"""Which Chromium is used: one that is named, one that is installed, Playwright's own."""

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
    "there is no Chromium: install one (Debian: apt-get install chromium), name one in ROWGRAD_CHROMIUM, "
    "or let Playwright fetch its own (python -m playwright install chromium)"
)
# Nothing is fetched from anywhere: names other than the server's address are not even looked up.
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
    """The program, or None where Playwright's own is to be used."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser without a window."""
    from playwright.sync_api import Error, sync_playwright

    as_root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        path = find()
        try:
            made = playwright.chromium.launch(executable_path=path, args=ARGUMENTS + as_root)
        except Error as error:
            raise RuntimeError(MISSING if path is None else f"{path} does not start: {error.message}") from None
        with made:
            yield made
