"""The fixes that errors on a page offer: each one, applied, removes the error and changes nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rowgrad._error_messages import MESSAGES
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import Block, ClientSession, End, Page, PageError, fixes
from rowgrad.graph.fixes import Fix, apply_fix, fetch_fix, fixes_of
from rowgrad.graph.leaves import leaves_of
from rowgrad.graph.page_builder import check
from rowgrad.graph.wiring import rejected_wire

IDS = {"grad": [[1, 2], [6, 8]], "indices": [0, 2, 2], "segment_ids": [0, 0, 1], "output_dim0": 4}


def page_of(values: dict[str, Any], op: str = "SparseSegmentMeanGrad", *more: Block) -> Page:
    """Return a page with one block `g`, whose pins are typed or, if the value is an End, wired."""
    wires = {pin: [v] for pin, v in values.items() if isinstance(v, End)}
    typed = {pin: v for pin, v in values.items() if not isinstance(v, End)}
    return Page("p", [*more, Block("g", op, typed, wires, at=(400.0, 100.0))])


def fixed(page: Page, fix: Fix) -> Page:
    changed = {b.id: b for b in apply_fix(page, fix)}
    blocks = [changed.pop(b.id, b) for b in page.blocks]
    return Page(page.name, [*blocks, *changed.values()], page.notes)


def titles(page: Page) -> list[str]:
    """Return the titles of the fixes of block `g`, after checking that each one removes its error."""
    checked = check(page)
    found = fixes_of(checked, "g", checked.errors["g"])
    for fix in found:
        again = check(fixed(page, Fix(**fix.json())))
        assert "g" not in again.errors, f"{fix.title}: {again.errors['g']}"
    return [fix.title for fix in found]


C = End("c", "output")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"indices": [0, 2, 2, 1]}, ["Use indices with 3 values", "Use segment_ids with 4 values"]),
        ({"segment_ids": [0]}, ["Use indices with 1 value", "Use segment_ids with 3 values"]),
        ({"indices": [[0, 2, 2]]}, ["Reshape to a vector"]),
        ({"indices": [0.0, 2.0, 2.0]}, ["Convert to int32"]),
        ({"indices": [0.5, 2.0, 2.0]}, []),  # no conversion drops the fraction of a typed value
        ({"grad": np.array([[1, 2], [6, 8]], np.int64)}, ["Convert to float32"]),
        ({"output_dim0": [4]}, ["Reshape to a scalar"]),
        ({"output_dim0": [4, 5]}, []),
    ],
)
def test_typed_values_are_fixed_in_place(values: dict[str, Any], expected: list[str]) -> None:
    assert titles(page_of(IDS | values)) == expected


def test_values_of_a_constant_that_nothing_else_reads_are_fixed_there() -> None:
    page = page_of(IDS | {"grad": C}, "SparseSegmentMeanGrad", Block("c", "Const", {"val": [[1, 2], [6, 8]]}))
    assert titles(page) == ["Convert to float32"]
    checked = check(page)
    (fix,) = fixes_of(checked, "g", checked.errors["g"])
    after = fixed(page, fix)
    assert [b.id for b in after.blocks] == ["c", "g"]
    assert after["c"].values["val"].dtype == np.float32


def test_a_computed_value_gets_a_block_on_its_wire() -> None:
    more = [Block("c", "Const", {"val": [[1, 2], [6, 8]]}, at=(0.0, 0.0)), Block("i", "Identity", wires={"input": [C]})]
    page = page_of(IDS | {"grad": End("i", "output")}, "SparseSegmentMeanGrad", *more)
    assert titles(page) == ["Convert to float32"]
    checked = check(page)
    after = fixed(page, fixes_of(checked, "g", checked.errors["g"])[0])
    assert after["g_grad_float32"].wires == {"x": [End("i", "output")]}
    assert after["g"].wires["grad"] == [End("g_grad_float32", "y")]
    assert page["g"].wires["grad"] == [End("i", "output")]  # the page itself is unchanged


def test_fractions_of_a_computed_value_are_named() -> None:
    more = [Block("c", "Const", {"val": [0.5, 2.0, 2.0]}), Block("i", "Identity", wires={"input": [C]})]
    page = page_of(IDS | {"indices": End("i", "output")}, "SparseSegmentMeanGrad", *more)
    assert titles(page) == ["Convert to int64, without fractions"]


@pytest.mark.parametrize(
    ("values", "title", "changed"),
    [
        ({"indices": [0, 6, 2]}, "Use output_dim0 = 7", {"output_dim0": 7}),
        ({"output_dim0": np.array(2, np.int32)}, "Use output_dim0 = 3", {"output_dim0": 3}),
        ({"data": [[1, 2], [3, 4]]}, "Limit indices to 0 … 1", {"indices": [0, 1, 1]}),
        ({"data": [[1, 2]], "indices": np.array([-1, 0, 0], np.int64)}, "Limit indices to 0", {"indices": [0, 0, 0]}),
        (
            {"segment_ids": [1, 0, 0]},
            "Sort indices and segment_ids by segment",
            {"indices": [2, 2, 0], "segment_ids": [0, 0, 1]},
        ),
    ],
)
def test_errors_of_a_run_have_fixes_too(values: dict[str, Any], title: str, changed: dict[str, Any]) -> None:
    given, op = IDS | values, "SparseSegmentMeanGrad"
    if values.keys() & {"segment_ids", "data"}:
        lookup = {"data": [[1, 2], [3, 4], [5, 6]], "indices": IDS["indices"], "segment_ids": IDS["segment_ids"]}
        given, op = lookup | values, "SparseSegmentMean"
    page = page_of(given, op)
    checked = check(page)
    with pytest.raises(InvalidArgumentError) as caught:
        ClientSession(checked.scope).run("g.output")
    found = fixes_of(checked, "g", caught.value)
    assert [fix.title for fix in found] == [title]
    after = fixed(page, found[0])
    assert {pin: np.asarray(after["g"].values[pin]).tolist() for pin in changed} == changed
    ClientSession(check(after).scope).run("g.output")


def test_ids_are_limited_in_the_constant_that_several_lookups_read() -> None:
    ids = Block("c", "Const", {"val": np.array([0, 2, 9], np.int32)})
    again = Block("h", "SparseSegmentSum", {"data": [[1.0]] * 3, "segment_ids": [0, 0, 1]}, {"indices": [C]})
    page = page_of({"data": [[1.0]] * 3, "indices": C, "segment_ids": [0, 0, 1]}, "SparseSegmentMean", ids, again)
    checked = check(page)
    with pytest.raises(InvalidArgumentError) as caught:
        ClientSession(checked.scope).run("g.output")
    (fix,) = fixes_of(checked, "g", caught.value)
    assert fix.title == "Limit c to 0 … 2"
    (changed,) = apply_fix(page, fix)
    assert (changed.id, changed.values["val"].tolist(), changed.values["val"].dtype) == ("c", [0, 2, 2], np.int32)


@pytest.mark.parametrize("values", [{}, {"indices": [0, 2]}])
def test_a_rejected_wire_is_drawn_with_a_conversion_although_other_inputs_are_missing(values: dict[str, Any]) -> None:
    page = page_of(values, "SparseSegmentMeanGrad", Block("c", "Const", {"val": [[1, 2], [6, 8]]}))
    checked, error = rejected_wire(page, C, "g", "grad")
    assert error is not None
    (fix,) = fixes_of(checked, "g", error, C)
    assert fix.title == "Convert to float32"
    after = fixed(page, fix)
    assert after["g"].wires["grad"] == [C]
    assert rejected_wire(after, C, "g", "grad")[1] is None
    assert rejected_wire(page, C, "g", "segment_ids")[1] is None


def test_a_session_that_fetches_the_leaves() -> None:
    page = page_of(IDS)
    fix = fetch_fix(leaves_of(check(page)).ends)
    assert fix.title == "Add a ClientSession fetching g.output"
    after = fixed(page, fix)
    assert ClientSession(check(after).scope).run_block("session")["g.output"].shape == (4, 2)
    assert after["session"].at is not None


def test_a_session_without_wires_fetches_the_leaves() -> None:
    page = page_of(IDS, "SparseSegmentMeanGrad", Block("s", "ClientSession"))
    checked = check(page)
    (fix,) = fixes_of(checked, "s", checked.errors["s"])
    assert fix.title == "Fetch g.output"
    assert check(fixed(page, fix)).ok


def test_an_untouched_block_takes_the_values_of_its_example() -> None:
    assert titles(page_of({})) == ["Use the values of its example"]
    assert titles(page_of({"grad": [[1, 2]]})) == []


@pytest.mark.parametrize(
    ("fix", "message"),
    [
        (Fix("", "frobnicate", "g", "grad", None), "action must be one of convert"),
        (Fix("", "convert", "g", "grad", "float33"), "value must be a dtype"),
        (Fix("", "convert", "h", "grad", "float32"), "there is no block 'h'"),
        (Fix("", "convert", "g", "nothing", "float32"), "there is no such pin"),
        (Fix("", "resize", "g", "indices", 0), "value must be from 1"),
        (Fix("", "resize", "g", "indices", "3"), "value must be a whole number"),
        (Fix("", "limit", "g", "indices", 0), "value must be at least 1"),
        (Fix("", "limit", "g", "output_dim0", "3"), "value must be a whole number"),
        (Fix("", "resize", "g", "weights", 3), "there is no such pin"),
        (Fix("", "reshape", "g", "grad", [2, 2]), r"value must be \[-1\] or \[\]"),
        (Fix("", "fetch", "", "", "g.output"), "value must be a list"),
        (Fix("", "attr", "g", "order", 3), "value must be a text"),
    ],
)
def test_invalid_fixes_raise(fix: Fix, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        apply_fix(page_of(IDS), fix)


def test_every_rule_is_for_a_message() -> None:
    assert set(fixes._RULES) <= set(MESSAGES)


def test_a_fix_of_a_value_that_is_gone_raises() -> None:
    page = page_of({pin: v for pin, v in IDS.items() if pin != "indices"})
    with pytest.raises(PageError, match="it no longer has a typed value"):
        apply_fix(page, Fix("", "resize", "g", "indices", 3))
