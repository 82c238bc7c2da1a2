"""Find a Chromium for Studio's tests, or install one: `make browser-ready`. Needs only Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "studio" / "browser"))

import chromium


def downloaded_by_playwright() -> Path | None:
    """Return a browser that Playwright has downloaded."""
    given = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    folders = (
        [Path(given)] if given else [Path.home() / ".cache/ms-playwright", Path.home() / "Library/Caches/ms-playwright"]
    )
    return next((found for folder in folders for found in sorted(folder.glob("chromium*"))), None)


def install() -> bool:
    """Install it from the system's packages, if that needs no confirmation."""
    if not Path("/etc/debian_version").exists() or os.geteuid() != 0 or not shutil.which("apt-get"):
        return False
    print("installing chromium with apt-get …", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install_chromium = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
    for command in (["apt-get", "update", "-qq"], install_chromium):
        done = subprocess.run(command, env=quiet, capture_output=True, text=True)
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
    return chromium.find() is not None


if __name__ == "__main__":
    if not (chromium.find() or downloaded_by_playwright() or install()):
        sys.exit(chromium.MISSING)
