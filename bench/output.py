"""Output of a run: progress on stderr, results as JSON and CSV, plots as SVG."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, TextIO

Row = dict[str, Any]
# Ids inside an SVG come from a fixed salt instead of random numbers, and text stays text: the same numbers yield the
# same bytes.
STEADY: Any = {"svg.hashsalt": "rowgrad", "svg.fonttype": "none"}


class Progress:
    """A counter of steps: one line that is overwritten on a terminal, otherwise one line per step."""

    def __init__(self, total: int, out: TextIO | None = None) -> None:
        self.total, self.done = total, 0
        self._out = out or sys.stderr
        self._started = time.monotonic()

    def begin(self, what: str) -> None:
        """Print which step begins, the elapsed time and an estimate of the remaining time."""
        elapsed = time.monotonic() - self._started
        left = f", about {clock(elapsed / self.done * (self.total - self.done))} left" if self.done else ""
        width = len(str(self.total))
        text = f"[{self.done + 1:{width}}/{self.total}] {what}  {clock(elapsed)} elapsed{left}"
        self._out.write(f"\r\x1b[K{text}" if self._out.isatty() else f"{text}\n")
        self._out.flush()
        self.done += 1

    def clear(self) -> None:
        """Erase the line on a terminal, so that something else can be printed."""
        if self._out.isatty():
            self._out.write("\r\x1b[K")
            self._out.flush()


def clock(seconds: float) -> str:
    """Format seconds: 83 -> 1:23."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def place(out: str) -> Path:
    """Return the path of results without suffix: a bare name goes into bench/results if that exists."""
    folder = Path("bench", "results")
    return folder / out if Path(out).name == out and folder.is_dir() else Path(out)


def write(stem: Path, facts: dict[str, Any], parts: dict[str, Any], rows: list[Row]) -> list[Path]:
    """Write everything as `stem`.json, and one line per measurement as `stem`.csv."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    as_json, as_csv = (stem.with_name(stem.name + suffix) for suffix in (".json", ".csv"))
    dated = {**facts, "date": date.today().isoformat()}
    as_json.write_text(json.dumps({"facts": dated, **parts}, indent=1) + "\n")
    with open(as_csv, "w", newline="") as f:
        table = csv.DictWriter(f, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return [as_json, as_csv]


def draw_if_possible(requested: bool, written: list[Path], draw: Callable[[], list[Path]]) -> None:
    """Draw if matplotlib is installed, otherwise print a hint if requested; print the files written."""
    if importlib.util.find_spec("matplotlib"):
        written = [*written, *draw()]
    elif requested:
        print("no plots: `pip install 'rowgrad[bench]'` brings matplotlib, which draws them", file=sys.stderr)
    print(f"written: {', '.join(map(str, written))}", file=sys.stderr)


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> Path:
    """Write the figure as SVG; return the path."""
    import matplotlib

    with matplotlib.rc_context(STEADY):
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path
