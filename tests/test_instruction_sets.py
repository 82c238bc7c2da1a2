"""All instruction-set levels return the same bits; ROWGRAD_LEVEL selects them in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rowgrad import _core

HERE = Path(__file__).parent
LEVELS = ("baseline", "x86-64-v3", "x86-64-v4")
DIGEST = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
import ml_dtypes, numpy as np
from rowgrad import _core
from test_threads import batch, results
digest = hashlib.sha256()
for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
    for result in results(batch(dtype)):
        digest.update(np.ascontiguousarray(result).view(np.uint8).tobytes())
print(_core.level(), digest.hexdigest())
"""


def run(level: str, *command: str) -> str:
    env = {**os.environ, "ROWGRAD_LEVEL": level}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lower_levels() -> list[str]:
    """Return the levels that this machine supports but would not choose."""
    return list(LEVELS[: LEVELS.index(_core.level())])


def test_large_batches_agree() -> None:
    here, digest = run(_core.level(), "-c", DIGEST, str(HERE)).split()
    assert here == _core.level()
    for level in lower_levels():
        assert run(level, "-c", DIGEST, str(HERE)).split() == [level, digest]


@pytest.mark.parametrize("level", LEVELS)
def test_golden_cases_at(level: str) -> None:
    if level not in lower_levels():
        pytest.skip("the level of every other test here, or one this machine does not have")
    tests = [str(HERE / "conformance" / name) for name in ("test_golden.py", "test_golden_lookups.py")]
    out = run(level, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert " passed" in out
