"""Output of a training program: progress, a plot of the loss, files written atomically."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO


def write_atomically(path: Path, write: Callable[[Any], object]) -> None:
    """Write a file so that it has the old or the new content, even if the process or the machine dies."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # persist the new name, too
    finally:
        os.close(folder)


def check_same_options(path: Path, found: Any, expected: Any) -> None:
    """Exit if a checkpoint is of a run with other options."""
    other = [f"--{k.replace('_', '-')} {found.get(k)}" for k in expected if found.get(k) != expected[k]]
    if other:
        raise SystemExit(f"{path} is of a run with {', '.join(other)}")


class Progress:
    """A bar that is redrawn on a terminal; elsewhere, one line per ten percent."""

    def __init__(self, total: int, first: int = 0, out: TextIO | None = None) -> None:
        self.total, self.first, self.out = total, first, out or sys.stderr
        self.live = self.out.isatty()
        self.began = self.drawn = time.monotonic()

    def show(self, done: int, text: str) -> None:
        """Show that `done` steps are done."""
        now, last = time.monotonic(), done == self.total
        if self.live and (last or now - self.drawn > 0.1):
            self.drawn = now
            end = "\n" if last else ""
            self.out.write(f"\r{self.bar(done)} {self.line(done, now, text)}\x1b[K{end}")
        elif not self.live and (last or done * 10 // self.total > (done - 1) * 10 // self.total):
            self.out.write(f"{self.line(done, now, text)}\n")
        self.out.flush()

    def bar(self, done: int, width: int = 30) -> str:
        """Return the bar as text."""
        full = width * done // self.total
        return "━" * full + "─" * (width - full)

    def line(self, done: int, now: float, text: str) -> str:
        """Return the progress in numbers, and the estimated remaining time."""
        left = int((now - self.began) / max(done - self.first, 1) * (self.total - done))
        return f"step {done}/{self.total}  {text}  {left // 60}:{left % 60:02} left"


def smooth(values: Sequence[float], share: float = 0.03) -> list[float]:
    """Return a running mean that weights recent values most."""
    found: list[float] = []
    for k, value in enumerate(values):
        weight = max(share, 1 / (k + 1))
        found.append(value if not found else found[-1] + weight * (value - found[-1]))
    return found


def loss_plot(losses: Sequence[float], width: int = 720, height: int = 360) -> str:
    """Return a plot of the loss by step as SVG: every step in grey, a running mean in blue."""
    left, top, right, bottom = 60, 30, width - 20, height - 50
    low, high = min(losses), max(losses)
    span = (high - low) or 1.0

    def line(values: Sequence[float], style: str) -> str:
        across = (right - left) / max(len(values) - 1, 1)
        points = " ".join(
            f"{left + across * k:.1f},{bottom - (v - low) / span * (bottom - top):.1f}" for k, v in enumerate(values)
        )
        return f'<polyline fill="none" {style} points="{points}"/>'

    def label(x: float, y: float, text: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'

    marks = []
    for k in range(6):
        y, x = bottom - k / 5 * (bottom - top), left + k / 5 * (right - left)
        marks.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#ddd"/>')
        marks.append(label(left - 6, y + 4, f"{low + k / 5 * span:.3f}", "end"))
        marks.append(label(x, bottom + 18, f"{k * len(losses) // 5}"))
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *marks,
        line(losses, 'stroke="#bbb" stroke-width="0.8"'),
        line(smooth(losses), 'stroke="#1f5fbf" stroke-width="2"'),
        label((left + right) / 2, height - 10, "step"),
        label(left, top - 10, "log loss of the batch", "start"),
        "</svg>",
        "",
    ])  # fmt: skip
