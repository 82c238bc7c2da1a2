from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rowgrad as rg

sys.path.insert(0, str(Path(__file__).parent))  # golden_cases, reference: shared by the folders below


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    before = rg.num_threads()
    yield
    if rg.num_threads() != before:
        rg.set_num_threads(before)
