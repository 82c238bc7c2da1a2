"""Rerun failed tests that depend on timing, alone.

    python tools/rerun_timing_tests.py

Tests in which a browser or several processes must respond in time share two cores with other tests. If one of them
fails, it is rerun alone; the result of the second run counts, and the test is named either way. All other failures are
final: those results do not depend on what else runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AGAINST_THE_CLOCK = (
    "tests/studio/browser/",  # edits that must be saved within a second, runs at a rate
    "tests/torch/test_sharded",  # a rank that must time out
)
AT_MOST = 5  # more failures are not a coincidence


def failed() -> list[str]:
    """Return the failed tests of the previous run, from pytest's cache."""
    found = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
    return sorted(json.loads(found.read_text(encoding="utf-8"))) if found.exists() else []


def main() -> int:
    names = failed()
    others = [name for name in names if not name.startswith(AGAINST_THE_CLOCK)]
    if not names or others or len(names) > AT_MOST:
        return 1
    print(f"\nci: failed beside others, and run again alone: {', '.join(names)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:xdist", *names], cwd=ROOT).returncode
    if summary := os.environ.get("ROWGRAD_CI_SUMMARY"):
        with open(summary, "a", encoding="utf-8") as said:
            said.write(f"run again alone, then {'failed' if done else 'passed'}: {', '.join(names)}\n")
    return done


if __name__ == "__main__":
    sys.exit(main())
