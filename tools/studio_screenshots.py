"""Take the screenshots of Studio for the documentation, headless: `make screenshots`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "studio" / "browser"))

import chromium
from browser_windows import BrowserWindows
from studio_server import StudioServer
from studio_window import StudioWindow

FOLDER = ROOT / "docs" / "images"
SECONDS = 30.0


def take(desk: StudioWindow, name: str) -> None:
    desk.mouse.move(2, 798)  # away from everything with a hover effect
    desk.window.wait_for_timeout(700)  # until animations have finished
    path = FOLDER / f"studio_{name}.png"
    desk.window.screenshot(path=path)
    print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size / 1e3:.0f} kB")


def arrange(desk: StudioWindow) -> None:
    """Lay out the page again, because results make blocks larger, and show all."""
    desk.key("Control+Shift+l", "Control+0")
    desk.wait_saved()


def gallery(desk: StudioWindow) -> None:
    desk.window.locator("[data-gallery] img").first.wait_for()
    take(desk, "gallery")


def sparse_gradient(desk: StudioWindow) -> None:
    desk.open_gallery("02_sparse_segment_mean_grad")
    desk.run_once()
    desk.result("op", "output")
    arrange(desk)
    take(desk, "sparse_gradient")


def training(desk: StudioWindow) -> None:
    """Show the loss of a training page as a chart."""
    desk.open_gallery("train_embedding")
    desk.run_once()
    desk.result("loss", "output")
    desk.window.get_by_role("button", name="Show in trend").click()
    desk.run_steps(60)
    desk.window.locator("#bottom-trend").click()
    arrange(desk)
    take(desk, "training")


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium.launched() as browser:
        studio = StudioServer(Path(folder, "project")).start()
        watch = BrowserWindows(browser, SECONDS)
        try:
            desk = StudioWindow(watch.new_window(color_scheme="light"), studio, watch).open()
            for picture in (gallery, sparse_gradient, training):
                picture(desk)
        finally:
            watch.close()
            studio.stop()
        if watch.unexpected_messages:
            sys.exit("\n".join(watch.unexpected_messages))
