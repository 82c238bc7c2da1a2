"""Take the screenshots of Studio for the documentation, headless: `make screenshots`, or only those that are named."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "studio" / "browser"))

import chromium
from browser_windows import BrowserWindows
from page_fixtures import block, const
from studio_server import StudioServer
from studio_window import StudioWindow

if TYPE_CHECKING:
    from playwright.sync_api import Locator

FOLDER = ROOT / "docs" / "images"
SECONDS = 30.0


class Picture(NamedTuple):
    """A picture of the documentation: what a user does first, in which theme."""

    prepare: Callable[[StudioWindow], None]
    theme: Literal["light", "dark"]
    size: tuple[int, int] = (1280, 800)


def take(desk: StudioWindow, name: str) -> None:
    desk.window.wait_for_timeout(700)  # until animations have finished
    path = FOLDER / f"studio_{name}.png"
    desk.window.screenshot(path=path)
    print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size / 1e3:.0f} kB")


def arrange(desk: StudioWindow) -> None:
    """Lay out the page again, because results make blocks larger, and show all."""
    desk.key("Control+Shift+l", "Control+0")
    desk.wait_saved()
    desk.mouse.move(2, 2)  # away from everything with a hover effect


def trace(desk: StudioWindow, view: str) -> Locator:
    """Open a view of the trace panel, with more space for it."""
    desk.key("Control+i")
    desk.window.locator("#bottom-trace").click()
    panel = desk.window.locator("#bottom-panel")
    panel.get_by_role("button", name=view, exact=True).click()
    return panel


def gradient_blocks(grad: Any, indices: list[int], segment_ids: list[int], rows: int) -> list[dict[str, Any]]:
    """Return the blocks of a gradient, with its ids typed."""
    values = {"indices": indices, "segment_ids": segment_ids, "output_dim0": rows}
    gradient = block("gradient", "SparseSegmentMeanGrad", (360, 0), values=values, wires={"grad": "upstream.output"})
    return [const("upstream", (0, 40), grad), gradient]


def gallery(desk: StudioWindow) -> None:
    desk.window.locator("[data-gallery] img").first.wait_for()
    desk.window.wait_for_timeout(1500)  # all pictures
    desk.window.get_by_text(str(desk.server.folder)).evaluate("element => (element.textContent = '~/my_pages')")
    desk.mouse.move(2, 2)


def sparse_gradient(desk: StudioWindow) -> None:
    """A gradient, with the sum behind a row written out."""
    desk.open_blocks(*gradient_blocks([[1, 2], [6, 8]], [0, 2, 2], [0, 0, 1], 4), name="gradient")
    desk.run_once()
    trace(desk, "Sums").locator(".sum-equation").wait_for()
    arrange(desk)


def scatter(desk: StudioWindow) -> None:
    """Ids on their way to rows, in the blocked order of addition."""
    grad = [[round(0.1 * (k % 7) + 0.001 * k, 3)] for k in range(180)]
    ids = [k % 3 * 2 if k % 5 == 0 else 4 for k in range(180)]
    desk.open_blocks(*gradient_blocks(grad, ids, list(range(180)), 7), name="gradient")
    desk.run_once()
    panel = trace(desk, "Scatter")
    panel.get_by_label("Order of addition", exact=True).select_option("blocked")
    panel.get_by_label("Ids in the order of addition").fill("100")
    arrange(desk)


def spy(desk: StudioWindow) -> None:
    """10,000 ids of a batch, of which three rows are hot."""
    count, rows, bags = 10_000, 3_000, 500
    ids = [(7, 1200, 2500)[k % 3] if k % 10 < 4 else (k * k * 31 + 17 * k) % rows for k in range(count)]
    grad = [[1.0]] * bags
    desk.open_blocks(*gradient_blocks(grad, ids, sorted(k % bags for k in range(count)), rows), name="large_batch")
    desk.run_once()
    trace(desk, "Spy plot").get_by_role("img", name="Spy plot").wait_for()
    arrange(desk)


def training(desk: StudioWindow) -> None:
    """A page that trains, while it runs: the names of its blocks, which fill them, and the loss as a chart."""
    desk.open_gallery("start/08_train_embedding")
    desk.run_once()
    desk.key("Control+b", "Control+i", "Control+0")
    desk.window.get_by_label("Runs per second").fill("20")
    desk.window.locator("#bottom-trend").click()
    desk.press("run-rate")
    desk.wait_until(lambda: desk.runs() > 40)
    desk.key("Control+0")
    desk.mouse.move(2, 2)


def row_changes(desk: StudioWindow) -> None:
    """The rows of a table that each step changed."""
    desk.open_gallery("start/09_two_towers")
    desk.run_steps(60)
    trace(desk, "Over time")
    desk.window.locator(".spy-canvas canvas").wait_for()
    desk.key("Control+0")
    desk.window.locator(".spy-canvas canvas").hover(position={"x": 90, "y": 50})


PICTURES = {
    "gallery": Picture(gallery, "light"),
    "sparse_gradient": Picture(sparse_gradient, "light", (1280, 1040)),
    "training": Picture(training, "dark", (1120, 760)),
    "scatter": Picture(scatter, "dark", (1280, 900)),
    "spy": Picture(spy, "light", (1280, 900)),
    "row_changes": Picture(row_changes, "dark"),
}

if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium.launched() as browser:
        for name in sys.argv[1:] or PICTURES:
            picture = PICTURES[name]
            home = Path(folder, name)
            home.mkdir()
            studio = StudioServer(home / "my_pages").start()
            watch = BrowserWindows(browser, SECONDS)
            try:
                desk = StudioWindow(
                    watch.new_window(
                        color_scheme=picture.theme, viewport=dict(zip(("width", "height"), picture.size, strict=True))
                    ),
                    studio,
                    watch,
                ).open()
                picture.prepare(desk)
                take(desk, name)
            finally:
                watch.close()
                studio.stop()
            if watch.unexpected_messages:
                sys.exit("\n".join(watch.unexpected_messages))
