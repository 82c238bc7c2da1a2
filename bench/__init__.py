"""The benchmarks: `bench/run.py` is the command line, README.md describes what is measured."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def child_environment(**changes: str) -> dict[str, str]:
    """Return the environment of a child process that imports this package, wherever the command was started."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **changes}
