from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rowgrad as rg

sys.path.insert(0, str(Path(__file__).parent))  # for golden_cases, reference and other shared modules
# Idle torch threads sleep: there are as many workers as cores, and spinning would take time from other workers.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from scanning modules and test items, which live until the end. In a worker that
    holds all tests, that took as long as the tests themselves."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _restore_num_threads() -> Iterator[None]:
    before = rg.num_threads()
    yield
    if rg.num_threads() != before:
        rg.set_num_threads(before)
