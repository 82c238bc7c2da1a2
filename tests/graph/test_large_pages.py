"""Work on pages is linear in the number of blocks, not quadratic."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import numpy as np
import pytest

from rowgrad.cli.check import _faults
from rowgrad.graph.export import to_dot, to_python, to_svg
from rowgrad.graph.page import Block, End, Page, PageError
from rowgrad.graph.page_builder import check
from rowgrad.graph.page_order import ordered

FEW, MANY = 500, 4000
MARGIN = 3.0  # linear work takes 1, quadratic work MANY / FEW = 8


def cpu_seconds(work: Callable[[Page], object], page: Page) -> float:
    """Return the processor time of this process, the minimum of three measurements."""
    taken = []
    for _ in range(3):
        gc.collect()
        began = time.process_time()
        work(page)
        taken.append(time.process_time() - began)
    return min(taken)


def chain(many: int) -> Page:
    return Page("p", [Block(f"b{i}", "Neg", wires={"x": [End(f"b{i - 1}", "y")]} if i else {}) for i in range(many)])


def half_invalid(many: int) -> Page:
    """Return valid blocks between invalid ones, which are removed from a growing graph."""
    good, bad = {"val": np.float32(1)}, {"x": np.zeros(2), "y": np.zeros(3)}
    return Page("p", [Block(f"b{i}", *(("Const", good), ("Add", bad))[i % 2]) for i in range(many)])


def unknown_ops(many: int) -> Page:
    return Page("p", [Block(f"b{i}", f"Consst{i % 7}") for i in range(many)])


def waiting_blocks(many: int) -> Page:
    page = chain(many)
    page.blocks[0].op = "Consst"
    return page


def two_block_cycles(many: int) -> Page:
    """Return cycles of two blocks."""
    return Page("p", [Block(f"b{i}", "Neg", wires={"x": [End(f"b{i ^ 1}", "y")]}) for i in range(many)])


def behind_a_cycle(many: int) -> Page:
    return Page("p", [Block(f"b{i}", "Neg", wires={"x": [End(f"b{max(i - 1, 0)}", "y")]}) for i in range(many)])


def similar_ids(many: int) -> Page:
    """Return blocks whose ids differ only in characters that Python names cannot contain."""
    spelled = [format(i, "012b").replace("0", ".").replace("1", "-") for i in range(many)]
    return Page("p", [Block(f"b{name}", "Const", {"val": np.float32(1)}) for name in spelled])


def check_all(page: Page) -> None:
    list(_faults(check(page)))


@pytest.mark.parametrize(
    ("work", "page"),
    [
        (to_svg, chain),
        (to_dot, chain),
        (to_python, similar_ids),
        (check_all, half_invalid),
        (check_all, unknown_ops),
        (check_all, waiting_blocks),
        (check_all, two_block_cycles),
        (check_all, behind_a_cycle),
    ],
)
def test_work_grows_linearly_with_the_number_of_blocks(
    work: Callable[[Page], object], page: Callable[[int], Page]
) -> None:
    few, many = cpu_seconds(work, page(FEW)), cpu_seconds(work, page(MANY))
    assert many / MANY < MARGIN * few / FEW


def test_comparisons_of_ids_grow_linearly() -> None:
    class Counted(str):
        comparisons = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    def comparisons(work: Callable[[Page], object], many: int) -> int:
        page = waiting_blocks(many)
        for block in page.blocks:
            block.id = Counted(block.id)
        Counted.compared = 0
        work(page)
        return Counted.compared

    for work in (to_svg, check_all):
        assert comparisons(work, 400) < 3 * comparisons(work, 200) + 100


def test_suggestions_are_limited_to_the_first_unknown_blocks() -> None:
    blocks = [Block("table", "Const", {"val": np.float32(1)})]
    blocks += [Block(f"b{i}", "Neg", wires={"x": [End("tabel", "output")]}) for i in range(100)]
    errors = [str(error) for error in check(Page("p", blocks)).errors.values()]
    assert errors[0] == "b0.x: there is no block 'tabel'; did you mean 'table'?"
    assert errors[-1] == "b99.x: there is no block 'tabel'"


def test_cycles_and_blocks_that_depend_on_them() -> None:
    """Several cycles upstream of the first block, and blocks downstream of it."""
    wires = {"z": ["m"], "m": ["c1", "a1", "b1"], "a1": ["a2"], "a2": ["a1"], "b1": ["b1"], "c1": ["c2", "a1"],
             "c2": ["c1"], "y": ["z", "b1"], "free": []}  # fmt: skip
    page = Page("p", [Block(n, "AddN", wires={"inputs": [End(s, "sum") for s in f]}) for n, f in wires.items()])
    found = ordered(page)
    assert [b.id for b in found.blocks] == ["free"]
    assert found.circles == [["a1", "a2"], ["b1"], ["c1", "c2"]]
    assert found.waiting == ["m", "z", "y"]


def test_the_error_of_a_long_cycle_is_abbreviated() -> None:
    many = 1000
    page = Page("p", [Block(f"b{i}", "Neg", wires={"x": [End(f"b{(i + 1) % many}", "y")]}) for i in range(many)])
    (error,) = check(page).errors.values()
    assert isinstance(error, PageError)
    assert str(error).startswith("b0: its wires lead back to itself: b0 → b999 → b998 → ")
    assert str(error).endswith("→ (980 more) → b1 → b0")
    assert len(str(error)) < 300
