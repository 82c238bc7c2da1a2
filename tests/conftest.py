from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rowgrad as rg

sys.path.insert(0, str(Path(__file__).parent))  # golden_cases, reference: shared by the folders below
# Threads of torch that wait for work sleep: as many workers as cores run here, and spinning takes another's time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and test items stay to the end. The garbage collector need not look through them again and again:
    in a worker that holds all tests that took as long as the tests themselves."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    before = rg.num_threads()
    yield
    if rg.num_threads() != before:
        rg.set_num_threads(before)
