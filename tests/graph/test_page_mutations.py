"""Ten thousand damaged pages: each loads, or is refused in words that name a place."""

from __future__ import annotations

import re
import time

import pytest
from page_makers import mutations, same_blocks

from rowgrad.graph.io import dumps, loads
from rowgrad.graph.page import Page, PageError, Project

PLACE = re.compile(r"line \d+(, column \d+)?|the whole text|[\w\[].*", re.DOTALL)


def outcome(text: str) -> Page | Project | PageError:
    try:
        return loads(text)
    except PageError as error:
        return error


@pytest.mark.parametrize("seed", range(4))
def test_damaged_pages_are_read_or_refused(seed: int) -> None:
    read = refused = 0
    slowest = 0.0
    for text in mutations(2500, seed):
        begun = time.perf_counter()
        found = outcome(text)
        slowest = max(slowest, time.perf_counter() - begun)
        if isinstance(found, PageError):
            refused += 1
            assert PLACE.fullmatch(found.place), text
            assert str(found).startswith(f"{found.place}: "), text
            assert len(str(found)) < 1000, text
            continue
        read += 1
        again = loads(dumps(found))  # what was taken can be written
        pages, others = ([what] if isinstance(what, Page) else what.pages for what in (found, again))
        assert all(same_blocks(one, other) for one, other in zip(pages, others, strict=True)), text
    assert slowest < 2
    assert read > 100
    assert refused > 1000
