"""Every op's example as blocks: they are valid, have the op, and run without a session."""

from __future__ import annotations

import pytest

from rowgrad._catalog.spec import CATALOG
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import ClientSession, Page
from rowgrad.graph.leaves import leaves_of
from rowgrad.graph.op_example import example_blocks, example_on_page
from rowgrad.graph.page_builder import check
from rowgrad.graph.run_loop import PageStep


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_an_example_has_the_op_and_runs(name: str) -> None:
    page = Page("example", example_blocks(name))
    assert name in {block.op for block in page.blocks}
    checked = check(page)
    assert checked.ok, checked.errors
    session = ClientSession(checked.scope)
    if checked.scope.graph.sessions:
        assert PageStep(session, list(checked.scope.graph.sessions)).run().sessions
        return
    leaves = leaves_of(checked)
    assert not leaves.is_empty
    PageStep(session, [], leaves.values, leaves.operations, leaves.feeds).run()


def test_examples_on_one_page_have_names_of_their_own_and_do_not_overlap() -> None:
    page = Page("p")
    for k, name in enumerate(("AddSymbolicGradients", "AddSymbolicGradients", "SparseSegmentMeanGrad")):
        page.blocks += example_on_page(page, name, (100.0, 400.0 * k))
    assert check(page).ok
    places = [block.at for block in page.blocks]
    assert len(set(places)) == len(places)
    assert min(at[0] for at in places if at) == 100.0


def test_an_unknown_op_has_no_example() -> None:
    with pytest.raises(InvalidArgumentError, match="there is no such op"):
        example_blocks("Frobnicate")
