"""Blocks that do not fit together raise an error that names the place when the page is built."""

from __future__ import annotations

import pytest

from rowgrad.graph.page import Block, End, Page, PageError
from rowgrad.graph.page_builder import build, check, value_at

ONE = Block("c", "Const", {"val": [1.0, 2.0]})
BOTH = Block("l", "InputList", wires={"outputlist": [End("c", "output"), End("c", "output")]})


def page_reading(*ends: End) -> Page:
    """Return a page whose last block reads these outputs."""
    return Page("p", [ONE, BOTH, Block("n", "Identity", wires={"input": [*ends]})])


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (End("x", "output"), "there is no block 'x'"),
        (End("cc", "output"), "there is no block 'cc'; did you mean 'c'?"),
        (End("c", "out"), "c (Const) has no output 'out'; it has output"),
        (End("c", "output", 0), "c.output is not a list; write it without [0]"),
        (End("l", "output", 2), "l.output[2] is not there: l.output has 2 entries"),
    ],
)
def test_a_wire_from_a_missing_output_raises(end: End, message: str) -> None:
    page = page_reading(end)
    assert [(name, str(error)) for name, error in check(page).errors.items()] == [("n", f"n.input: {message}")]
    with pytest.raises(PageError) as raised:
        build(page)
    assert raised.value.place == "n.input"


def test_two_blocks_with_one_id_raise() -> None:
    with pytest.raises(PageError, match=r"^c: two blocks have this id$"):
        check(Page("p", [ONE, BOTH, ONE]))


def test_arriving_returns_none_for_missing_ends() -> None:
    graph = build(page_reading(End("l", "output", 1))).graph
    assert value_at(graph, End("l", "output", 1)) is value_at(graph, End("l", "output"))[1]
    for end in (End("l", "output", 2), End("c", "output", 0), End("c", "out"), End("x", "output")):
        assert value_at(graph, end) is None
