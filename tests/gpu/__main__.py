"""Run the tests of this folder with pytest, or without it if pytest is not installed.

PYTHONPATH=src python3 tests/gpu                      all tests
PYTHONPATH=src python3 tests/gpu streams golden       files whose names contain these words
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
import traceback
from pathlib import Path
from unittest import SkipTest

HERE = Path(__file__).resolve().parent


def chosen(patterns: list[str]) -> list[Path]:
    """Return the requested files."""
    return [p for p in sorted(HERE.glob("test_*.py")) if not patterns or any(w in p.stem for w in patterns)]


def run_plainly(files: list[Path]) -> int:
    """Run without pytest: tests are functions without arguments; a failure ends only its test."""
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    counts = {"passed": 0, "failed": 0, "skipped": 0}

    def attempt(name: str, run: object) -> object:
        begun, result, outcome = time.perf_counter(), None, "passed"
        try:
            result = run()  # type: ignore[operator]
        except SkipTest as reason:
            outcome = f"skipped: {reason}"
        except Exception:
            traceback.print_exc(file=sys.stdout)
            outcome = "failed"
        if result is None:
            counts[outcome.partition(":")[0]] += 1
            print(f"{name}: {outcome} ({time.perf_counter() - begun:.1f} s)", flush=True)
        return result

    for path in files:
        module = attempt(path.stem, lambda path=path: importlib.import_module(path.stem))
        for name in dir(module) if module is not None else ():
            if name.startswith("test_"):
                attempt(f"{path.stem}.{name}", getattr(module, name))
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if counts["failed"] or not counts["passed"] else 0


def main() -> int:
    """Return the exit status: 0 if tests ran and none failed; without a device, nothing was tested."""
    files = chosen(sys.argv[1:])
    if not files:
        print(f"no file has a name with {' or '.join(sys.argv[1:])}")
        return 2
    if importlib.util.find_spec("pytest") is None or os.environ.get("ROWGRAD_PLAIN_TESTS"):
        return run_plainly(files)
    import pytest

    # Warnings of the installed torch version are not failures.
    return int(pytest.main(["-v", "-p", "no:cacheprovider", "-W", "default", *map(str, files)]))


if __name__ == "__main__":
    sys.exit(main())
