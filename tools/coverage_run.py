"""What both halves of the coverage report need."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "coverage"


def run(*words: object, **more: str) -> int:
    """A command in the project's folder, with `more` in its environment."""
    print("$", *words, flush=True)
    return subprocess.run([str(word) for word in words], cwd=ROOT, env={**os.environ, **more}).returncode
