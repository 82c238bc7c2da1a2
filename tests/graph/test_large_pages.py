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
    """Processor time of this process, which other processes do not add to; the least of three."""
    taken = []
    for _ in range(3):
        gc.collect()
        began = time.process_time()
        work(page)
        taken.append(time.process_time() - began)
    return min(taken)


def chain(many: int) -> Page:
    return Page("p", [Block(f"b{i}", "Neg", wires={"x": [End(f"b{i - 1}", "y")]} if i else {}) for i in range(many)])


def half_wrong(many: int) -> Page:
    """Good blocks between bad ones: each bad block is taken back out of a graph that has grown."""
    good, bad = {"val": np.float32(1)}, {"x": np.zeros(2), "y": np.zeros(3)}
    return Page("p", [Block(f"b{i}", *(("Const", good), ("Add", bad))[i % 2]) for i in range(many)])


def unknown_ops(many: int) -> Page:
    return Page("p", [Block(f"b{i}", f"Consst{i % 7}") for i in range(many)])


def waiting(many: int) -> Page:
    page = chain(many)
    page.blocks[0].op = "Consst"
    return page


def pairs(many: int) -> Page:
    """Circles of two blocks."""
    return Page("p", [Block(f"b{i}", "Neg", wires={"x": [End(f"b{i ^ 1}", "y")]}) for i in range(many)])


def behind_a_circle(many: int) -> Page:
    return Page("p", [Block(f"b{i}", "Neg", wires={"x": [End(f"b{max(i - 1, 0)}", "y")]}) for i in range(many)])


def alike(many: int) -> Page:
    """Ids that differ only in characters a Python name does not have."""
    spelled = [format(i, "012b").replace("0", ".").replace("1", "-") for i in range(many)]
    return Page("p", [Block(f"b{name}", "Const", {"val": np.float32(1)}) for name in spelled])


def faults(page: Page) -> None:
    list(_faults(check(page)))


@pytest.mark.parametrize(
    ("work", "page"),
    [
        (to_svg, chain),
        (to_dot, chain),
        (to_python, alike),
        (faults, half_wrong),
        (faults, unknown_ops),
        (faults, waiting),
        (faults, pairs),
        (faults, behind_a_circle),
    ],
)
def test_work_grows_with_the_number_of_blocks(work: Callable[[Page], object], page: Callable[[int], Page]) -> None:
    few, many = cpu_seconds(work, page(FEW)), cpu_seconds(work, page(MANY))
    assert many / MANY < MARGIN * few / FEW


def test_comparisons_of_ids_grow_with_the_number_of_blocks() -> None:
    class Counted(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    def compared(work: Callable[[Page], object], many: int) -> int:
        page = waiting(many)
        for block in page.blocks:
            block.id = Counted(block.id)
        Counted.compared = 0
        work(page)
        return Counted.compared

    for work in (to_svg, faults):
        assert compared(work, 400) < 3 * compared(work, 200) + 100


def test_suggestions_are_limited_to_the_first_unknown_blocks() -> None:
    blocks = [Block("table", "Const", {"val": np.float32(1)})]
    blocks += [Block(f"b{i}", "Neg", wires={"x": [End("tabel", "output")]}) for i in range(100)]
    errors = [str(error) for error in check(Page("p", blocks)).errors.values()]
    assert errors[0] == "b0.x: there is no block 'tabel'; did you mean 'table'?"
    assert errors[-1] == "b99.x: there is no block 'tabel'"


def test_circles_and_what_waits_for_them() -> None:
    """Several circles behind one block, which is walked from first, and blocks behind that one."""
    wires = {"z": ["m"], "m": ["c1", "a1", "b1"], "a1": ["a2"], "a2": ["a1"], "b1": ["b1"], "c1": ["c2", "a1"],
             "c2": ["c1"], "y": ["z", "b1"], "free": []}  # fmt: skip
    page = Page("p", [Block(n, "AddN", wires={"inputs": [End(s, "sum") for s in f]}) for n, f in wires.items()])
    found = ordered(page)
    assert [b.id for b in found.blocks] == ["free"]
    assert found.circles == [["a1", "a2"], ["b1"], ["c1", "c2"]]
    assert found.waiting == ["m", "z", "y"]


def test_the_error_of_a_long_circle_names_some_of_its_blocks() -> None:
    many = 1000
    page = Page("p", [Block(f"b{i}", "Neg", wires={"x": [End(f"b{(i + 1) % many}", "y")]}) for i in range(many)])
    (error,) = check(page).errors.values()
    assert isinstance(error, PageError)
    assert str(error).startswith("b0: its wires lead back to itself: b0 → b999 → b998 → ")
    assert str(error).endswith("→ (980 more) → b1 → b0")
    assert len(str(error)) < 300
