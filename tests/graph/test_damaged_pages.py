"""Ten thousand damaged pages: each one loads or raises an error that names a place."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

import pytest
from page_samples import mutations, same_blocks

from rowgrad.errors import OpError
from rowgrad.graph import ClientSession, check, load
from rowgrad.graph.export import to_dot, to_python, to_svg
from rowgrad.graph.io import dumps, loads
from rowgrad.graph.page import Page, PageError, Project

EXAMPLES = Path(__file__).parents[2] / "examples" / "pages"

PLACE = re.compile(r"line \d+(, column \d+)?|the whole text|[\w\[].*", re.DOTALL)


def outcome(text: str) -> Page | Project | PageError:
    try:
        return loads(text)
    except PageError as error:
        return error


@pytest.mark.parametrize("seed", range(4))
def test_damaged_pages_are_read_or_rejected(seed: int) -> None:
    read = rejected = 0
    slowest = 0.0
    for text in mutations(2500, seed):
        begun = time.process_time()
        found = outcome(text)
        slowest = max(slowest, time.process_time() - begun)
        if isinstance(found, PageError):
            rejected += 1
            assert PLACE.fullmatch(found.place), text
            assert str(found).startswith(f"{found.place}: "), text
            assert len(str(found)) < 1000, text
            continue
        read += 1
        again = loads(dumps(found))  # a page that loads can be saved
        pages, others = ([what] if isinstance(what, Page) else what.pages for what in (found, again))
        assert all(same_blocks(one, other) for one, other in zip(pages, others, strict=True)), text
    assert slowest < 2
    assert read > 100
    assert rejected > 1000


@pytest.mark.parametrize("seed", range(4))
def test_damaged_pages_are_built_and_run_or_rejected(seed: int) -> None:
    """The examples, damaged: what loads is validated, drawn and, if valid, run; every error names a block."""
    texts = [dumps(load(path)) for path in sorted(EXAMPLES.glob("*.json"))]
    built = faulty = ran = 0
    for text in mutations(2500, seed, texts):
        begun = time.process_time()
        found = outcome(text)
        if not isinstance(found, Page):
            continue
        checked = check(found)
        built += 1
        assert set(checked.errors) | set(checked.waiting) <= {b.id for b in found.blocks}
        to_svg(found), to_dot(found)
        if not checked.ok:
            faulty += 1
            assert checked.errors, "blocks wait for none that is faulty"
            assert all(str(error) for error in checked.errors.values())
            continue
        compile(to_python(found), "script", "exec")
        session = ClientSession(checked.scope)
        for name in checked.scope.graph.sessions:
            with contextlib.suppress(OpError):
                session.run_block(name)
                ran += 1
        assert time.process_time() - begun < 2, text
    assert built > 200
    assert faulty > 100
    assert ran > 100
