"""A page of 1,000 blocks in the browser: load time, frame rate while a block moves, latency of a run.

Run it alone: figures of a busy machine are meaningless. Without a graphics card the processor renders.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "studio" / "browser")]

import chromium
from browser_windows import BrowserWindows
from studio_server import StudioServer
from studio_window import StudioWindow

from bench import machine
from bench.page import make_page
from rowgrad.graph import save

RUNS = 9
MOST_LOAD_MS, LEAST_FRAMES = 2000.0, 50.0  # the targets at 1,000 blocks
DRAG_SECONDS = 2.0
NAME = "many"

_COUNT_FRAMES = """() => {
  window.frames_seen = []; window.count_frames = true;
  const count = now => { window.frames_seen.push(now); if (window.count_frames) requestAnimationFrame(count); };
  requestAnimationFrame(count);
}"""
_STOP_COUNTING = "() => { window.count_frames = false; return window.frames_seen; }"
# From the click to the state of the next run, by the browser's clock.
_RUN = """() => new Promise(done => {
  const shown = document.querySelector(".progress[data-phase]"), before = shown.dataset.run, begun = performance.now();
  const look = () => {
    const now = document.querySelector(".progress[data-phase]");
    if (now.dataset.run !== before && now.dataset.phase === "done") done(performance.now() - begun);
    else requestAnimationFrame(look);
  };
  document.querySelector('[data-command="run"]').click();
  look();
})"""


def write_page(folder: Path, blocks: int) -> None:
    """Write the page of other benchmarks, in rows of 40 so that every block has a position."""
    page = make_page(blocks - 3)  # it adds a Variable, the ids and a session
    page.name = NAME
    for k, block in enumerate(page.blocks):
        block.at = (360.0 * (k % 40), 200.0 * (k // 40))
    folder.mkdir(parents=True, exist_ok=True)
    save(page, folder / f"{NAME}.json")


def load(desk: StudioWindow, blocks: int) -> float:
    """Return the milliseconds from the address to all blocks in the minimap."""
    begun = time.perf_counter()
    desk.open(NAME)
    desk.window.wait_for_function(
        "n => document.querySelectorAll('.react-flow__minimap-node').length >= n"
        " && document.querySelectorAll('[data-block]').length > 0",
        arg=blocks,
    )
    return (time.perf_counter() - begun) * 1e3


def drag(desk: StudioWindow) -> dict[str, float]:
    """Return the frame rate while a block moves back and forth under the mouse."""
    desk.window.wait_for_timeout(500)
    shown = desk.window.locator("[data-block]")
    middle = desk.middle(desk.canvas)
    boxes = [(box, one) for one in shown.all() if (box := one.bounding_box())]
    box, _ = min(boxes, key=lambda found: abs(found[0]["x"] - middle[0]) + abs(found[0]["y"] - middle[1]))
    x, y = box["x"] + box["width"] / 2, box["y"] + min(6.0, box["height"] / 4)
    desk.mouse.move(x, y)
    desk.mouse.down()
    desk.window.evaluate(_COUNT_FRAMES)
    end, step = time.perf_counter() + DRAG_SECONDS, 0
    while time.perf_counter() < end:
        step += 1
        desk.mouse.move(x + 3 * (step % 40), y + 2 * (step % 30))
    times: list[float] = desk.window.evaluate(_STOP_COUNTING)
    desk.mouse.up()
    gaps = [b - a for a, b in itertools.pairwise(times)]
    return {"frames_per_second": 1e3 * len(gaps) / sum(gaps), "longest_frame_ms": max(gaps), "moves": step}


def runs(desk: StudioWindow) -> list[float]:
    desk.run_once()  # the first run prepares the page
    return [desk.window.evaluate(_RUN) for _ in range(RUNS)]


def measure(blocks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, chromium.launched() as browser:
        studio = StudioServer(Path(folder, "project"))
        write_page(studio.folder, blocks)
        studio.start()
        watch = BrowserWindows(browser, 120.0)
        try:
            desk = StudioWindow(watch.new_window(), studio, watch)
            loaded = load(desk, blocks)
            answers = runs(desk)
            return {
                "blocks": blocks,
                "load_ms": loaded,
                "drag": drag(desk),
                "run_ms": {"median": statistics.median(answers), "all": answers},
                "chromium": browser.version,
            }
        finally:
            watch.close()
            studio.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "studio.json")
    chosen = parser.parse_args()
    found = measure(chosen.blocks)
    drawn, frames, answer = found["load_ms"], found["drag"]["frames_per_second"], found["run_ms"]["median"]
    print(f"{chosen.blocks} blocks: drawn after {drawn:.0f} ms, dragged at {frames:.0f} frames/s, run {answer:.1f} ms")
    for what, text, holds in (
        ("drawn", f"within {MOST_LOAD_MS / 1e3:g} s", drawn <= MOST_LOAD_MS),
        ("dragged", f"at {LEAST_FRAMES:g} frames/s or more", frames >= LEAST_FRAMES),
    ):
        print(f"{'holds' if holds else 'MISSED'}: {what} {text}")
    chosen.out.write_text(json.dumps({"machine": machine.facts(), "studio": found}, indent=1) + "\n")
    print(f"wrote {chosen.out}")
