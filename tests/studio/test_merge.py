"""Merges of two changed versions of a page: fields of either side arrive; only fields of both sides are conflicts."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowgrad.graph import Block, End, Note, Page
from rowgrad.graph.io import page_json
from rowgrad.studio.array_pool import Pool
from rowgrad.studio.merge import merge
from rowgrad.studio.project import Folder

Tree = dict[str, Any]
IDS = ("a", "b", "c", "d")
PINS = ("x", "y")


def page(blocks: list[Tree], notes: list[Tree] | None = None) -> Tree:
    return {"format": "rowgrad-page", "version": 1, "name": "p", "blocks": blocks} | ({"notes": notes} if notes else {})


def block(name: str, op: str = "Add", **fields: Any) -> Tree:
    return {"id": name, "op": op, **fields}


def field_of(tree: Tree, name: str) -> dict[Any, Any]:
    """Return the fields of a block, independent of how the merge represents them."""
    found = next((b for b in tree["blocks"] if b["id"] == name), None)
    if found is None:
        return {"": None}
    fields: dict[Any, Any] = {"": True, "op": found["op"], "at": found.get("at")}
    for pin in PINS:
        fields["pin", pin] = json.dumps([found.get("values", {}).get(pin), found.get("in", {}).get(pin)])
        fields["hidden", pin] = pin in found.get("hidden", [])
    return fields | {("attr", k): v for k, v in found.get("attrs", {}).items()}


# -- generated pages ---------------------------------------------------------------------------------------------------


@st.composite
def pages(draw: st.DrawFn) -> Tree:
    names = draw(st.lists(st.sampled_from(IDS), unique=True, min_size=1))
    return page([draw(blocks(name, names)) for name in names], draw(st.lists(notes(), max_size=2)))


def notes() -> Any:
    return st.builds(lambda text: {"text": text, "at": [0, 0]}, st.sampled_from(["one", "two", "three"]))


@st.composite
def blocks(draw: st.DrawFn, name: str, names: list[str]) -> Tree:
    found = block(name, draw(st.sampled_from(["Add", "Mul"])), at=draw(st.sampled_from([[0, 0], [5, 5]])))
    for pin in PINS:
        kind = draw(st.sampled_from(["none", "value", "wire"]))
        if kind == "value":
            found.setdefault("values", {})[pin] = draw(st.integers(0, 3))
        elif kind == "wire":
            found.setdefault("in", {})[pin] = f"{draw(st.sampled_from(names))}.z"
    if draw(st.booleans()):
        found["attrs"] = {"k": draw(st.integers(0, 3))}
    return found


@st.composite
def edited(draw: st.DrawFn, before: Tree) -> Tree:
    """Return a page after some edits like those of a window, in which no wire begins at a missing block."""
    tree = copy.deepcopy(before)
    for _ in range(draw(st.integers(0, 3))):
        names = [b["id"] for b in tree["blocks"]]
        change = draw(st.sampled_from(["replace", "add", "remove", "note"]))
        if change == "replace" and names:
            name = draw(st.sampled_from(names))
            tree["blocks"] = [draw(blocks(name, names)) if b["id"] == name else b for b in tree["blocks"]]
        elif change == "add" and (free := [n for n in IDS if n not in names]):
            name = draw(st.sampled_from(free))
            tree["blocks"].append(draw(blocks(name, [*names, name])))
        elif change == "remove" and names:
            gone = draw(st.sampled_from(names))
            tree["blocks"] = [b for b in tree["blocks"] if b["id"] != gone]
            for b in tree["blocks"]:
                b["in"] = {pin: end for pin, end in b.get("in", {}).items() if end != f"{gone}.z"}
        elif change == "note":
            tree["notes"] = [*tree.get("notes", []), draw(notes())]
    return tree


@st.composite
def versions(draw: st.DrawFn) -> tuple[Tree, Tree, Tree]:
    base = draw(pages())
    return base, draw(edited(base)), draw(edited(base))


def valid(tree: Tree) -> None:
    page_json.decode(tree, lambda value, place: None)


@given(versions())
@settings(max_examples=150, deadline=None)
def test_changes_of_one_side_are_the_result(found: tuple[Tree, Tree, Tree]) -> None:
    base, mine, _ = found
    for sides in ((mine, base), (base, mine), (mine, mine)):
        merged = merge(base, *sides)
        assert merged.conflicts == []
        for name in IDS:
            assert field_of(merged.tree, name) == field_of(mine, name)
        texts = [sorted(note["text"] for note in tree.get("notes", [])) for tree in (merged.tree, mine)]
        assert texts[0] == texts[1]


@given(versions())
@settings(max_examples=300, deadline=None)
def test_every_field_is_of_the_side_that_changed_it(found: tuple[Tree, Tree, Tree]) -> None:
    base, mine, theirs = found
    merged = merge(base, mine, theirs)
    valid(merged.tree)
    for name in IDS:
        if any(conflict.block == name for conflict in merged.conflicts):
            continue
        before, here, there, now = (field_of(tree, name) for tree in (base, mine, theirs, merged.tree))
        for key in {**before, **here, **there}:
            values = [fields.get(key) for fields in (before, here, there, now)]
            assert values[3] in values[1:3], (name, key, values)
            if values[1] != values[0] and here[""] and there[""]:
                assert values[3] == values[1], (name, key, values)
            if values[2] != values[0] and here[""] and there[""]:
                assert values[3] == values[2], (name, key, values)


@given(versions())
@settings(max_examples=150, deadline=None)
def test_choices_decide_every_conflict(found: tuple[Tree, Tree, Tree]) -> None:
    base, mine, theirs = found
    for side in ("mine", "theirs"):
        choices: dict[str, str] = {}
        for _ in range(20):  # a choice may bring up another question
            merged = merge(base, mine, theirs, choices)
            valid(merged.tree)
            if not merged.conflicts:
                break
            choices |= {conflict.key: side for conflict in merged.conflicts}
        assert merged.conflicts == []


@given(versions())
@settings(max_examples=100, deadline=None)
def test_both_orders_have_the_same_conflicts(found: tuple[Tree, Tree, Tree]) -> None:
    base, mine, theirs = found
    one, two = merge(base, mine, theirs), merge(base, theirs, mine)
    if not one.conflicts:
        assert two.conflicts == []
        for name in IDS:
            assert field_of(one.tree, name) == field_of(two.tree, name)


# -- single cases ------------------------------------------------------------------------------------------------------

BASE = page([block("a", "Const", values={"val": 1}), block("b", at=[0, 0], **{"in": {"x": "a.output"}})])


def changed(name: str, **fields: Any) -> Tree:
    return page([b | fields if b["id"] == name else b for b in BASE["blocks"]])


@pytest.mark.parametrize(
    ("mine", "theirs", "keys"),
    [
        (changed("a", values={"val": 2}), changed("b", at=[9, 9]), []),
        (changed("b", at=[5, 5]), changed("b", attrs={"k": 1}), []),
        (changed("a", values={"val": 2}), changed("a", values={"val": 2}), []),
        (changed("a", values={"val": 2}), changed("a", values={"val": 3}), [["a", "pin", "val"]]),
        (changed("a", values={"val": 1.0}), changed("a", values={"val": True}), [["a", "pin", "val"]]),
        (changed("b", **{"in": {}}, values={"x": 4}), changed("b", **{"in": {"x": "b.z"}}), [["b", "pin", "x"]]),
        (changed("a", op="Const_ex"), changed("a", values={"val": 3}), [["a", "block", ""]]),
        (page([block("b", at=[0, 0])]), changed("a", values={"val": 3}), [["a", "block", ""]]),
        (page([block("b", at=[0, 0])]), changed("b", **{"in": {"x": "a.output", "y": "a.output"}}),
         [["a", "removed", ""]]),
        (page([*BASE["blocks"], block("n")]), page([*BASE["blocks"], block("n", "Mul")]), [["n", "block", ""]]),
        (page([*BASE["blocks"], block("n")]), page([*BASE["blocks"], block("m")]), []),
    ],
)  # fmt: skip
def test_conflicts_are_fields_that_both_changed(mine: Tree, theirs: Tree, keys: list[Any]) -> None:
    for sides in ((mine, theirs), (theirs, mine)):
        merged = merge(BASE, *sides)
        valid(merged.tree)
        assert [json.loads(conflict.key) for conflict in merged.conflicts] == keys


def test_conflicts_show_both_values() -> None:
    (conflict,) = merge(BASE, changed("a", values={"val": 2}), changed("a", values={})).conflicts
    assert (conflict.mine, conflict.theirs) == ("2", "removed")


# -- saves of a folder -------------------------------------------------------------------------------------------------


def network(number: float = 1.0, **place: Any) -> Page:
    values = np.arange(500.0) * number
    return Page(
        "p",
        [
            Block("big", "Const", values={"val": values}),
            Block("neg", "Neg", wires={"x": [End("big", "output")]}, at=place.get("at", (0.0, 0.0))),
        ],
        place.get("notes", []),
    )


def test_saves_of_different_blocks_are_merged(tmp_path: Path) -> None:
    folder = Folder(tmp_path, Pool(tmp_path))
    base = folder.save("p", None, network()).revision
    first = folder.save("p", base, network(3.0))
    second = folder.save("p", base, network(at=(70.0, 7.0), notes=[Note("mine")]))
    assert second.conflict_page is None
    assert second.written
    assert second.merged is not None
    saved, revision = folder.open("p")
    assert revision == second.revision != first.revision
    for found in (saved, second.merged):
        assert found["big"].values["val"][2] == 6.0
        assert found["neg"].at == (70.0, 7.0)
        assert [note.text for note in found.notes] == ["mine"]
    assert [path.name for path in tmp_path.glob("*.json")] == ["p.json"]
    # The response was lost, and the window sends it again; then an edit on the version it began from.
    again = folder.save("p", base, network(at=(70.0, 7.0), notes=[Note("mine")]))
    assert (again.revision, again.written) == (revision, False)
    third = folder.save("p", base, network(at=(80.0, 7.0), notes=[Note("mine")]))
    assert third.conflicts[0].key == '["neg", "at", ""]'
    # A window continues from what it sent, which has its own change.
    fourth = folder.save("p", second.sent, network(at=(80.0, 7.0), notes=[Note("mine")]))
    assert fourth.merged is not None
    assert fourth.merged["neg"].at == (80.0, 7.0)
    assert fourth.merged["big"].values["val"][2] == 6.0


def test_choices_finish_a_merge(tmp_path: Path) -> None:
    folder = Folder(tmp_path, Pool(tmp_path))
    base = folder.save("p", None, network()).revision
    folder.save("p", base, network(2.0, notes=[Note("theirs")]))
    conflict = folder.save("p", base, network(5.0, at=(1.0, 1.0)))
    assert conflict.conflict_page is not None
    (field,) = conflict.conflicts
    assert (field.block, field.kind, field.name) == ("big", "pin", "val")
    for side, number in (("theirs", 4.0), ("mine", 10.0)):
        saved = folder.save("p", base, network(5.0, at=(1.0, 1.0)), {field.key: side})
        assert saved.conflict_page is None
        if side == "theirs":
            assert folder.open("p")[0]["big"].values["val"][2] == number
    page = folder.open("p")[0]
    assert page["big"].values["val"][2] == 10.0
    assert page["neg"].at == (1.0, 1.0)
    assert [note.text for note in page.notes] == ["theirs"]


def test_an_unknown_version_is_a_conflict_without_fields(tmp_path: Path) -> None:
    folder = Folder(tmp_path, Pool(tmp_path))
    folder.save("p", None, network())
    saved = Folder(tmp_path, Pool(tmp_path)).save("p", "0" * 32, network(2.0))
    assert saved.conflict_page is not None
    assert saved.conflicts == ()
