"""Candidates for a wire's other end: the result of `check` on the page with the wire, without a rebuild."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from rowgrad._catalog.spec import find_op
from rowgrad.graph import Block, End, Page, PageError, check
from rowgrad.graph.wiring import candidates_from, candidates_to


def wired(name: str, op: str, values: Any = None, **wires: str) -> Block:
    return Block(name, op, values or {}, {pin: [End.parse(e) for e in ends.split()] for pin, ends in wires.items()})


def valid_page() -> Page:
    """Return a page without errors."""
    return Page("p", [
        Block("f", "Const", {"val": np.ones((3, 2), np.float32)}),
        Block("big", "Const", {"val": np.ones((3, 700))}),
        Block("i", "Const", {"val": np.array([0, 1], np.int32)}),
        Block("ph", "Placeholder", attrs={"dtype": "float32", "shape": [3, 2]}),
        Block("v", "Variable", {"initvalues": np.zeros((3, 2), np.float32)}),
        wired("m", "SparseSegmentMean", data="f.output", indices="i.output", segment_ids="i.output"),
        wired("typed", "SparseSegmentSum", {"data": np.ones((9, 600), np.float32), "segment_ids": [0, 1]},
              indices="i.output"),
        wired("a", "Add", {"y": 2}, x="f.output"),
        wired("n", "AddN", inputs="f.output a.z"),
        wired("l", "InputList", outputlist="a.z v.ref"),
        wired("loss", "L2Loss", t="a.z"),
        wired("g", "AddSymbolicGradients", outputs="loss.output", inputs="f.output"),
        wired("as", "AssignAdd", ref="v.ref", value="f.output"),
        wired("feed", "FeedType", input="ph.output", initializer="f.output"),
        Block("st", "SparseTensor", {"indices": [[0, 1]], "values": np.ones(1, np.float32), "dense_shape": [3, 4]}),
        wired("sa", "SparseAdd", {"thresh": 0.0}, a_indices="st.tensor", b_indices="st.tensor"),
        wired("el", "EmbeddingLookupSparse", params="f.output", ids="ids.tensor"),
        Block("ids", "SparseTensor", {"indices": [[0, 1]], "values": [1], "dense_shape": [3, 4]}),
        Block("no", "NoOp"),
        wired("op", "Operation", operation="no.output"),
        wired("s", "ClientSession", inputs="feed.output", fetch_outputs="m.output", run_outputs="no.output"),
    ])  # fmt: skip


def check_wire(page: Page, end: End, block: str, pin: str) -> str | None:
    """Return the error that `check` reports with this wire, or None."""
    page = copy.deepcopy(page)
    target = page[block]
    op = find_op(target.op)
    assert op is not None
    many = next(a.many for a in op.inputs if a.name == pin)
    target.values.pop(pin, None)
    target.wires[pin] = [*(target.wires.get(pin, []) if many else []), end]
    found = check(page)
    for error in found.errors.values():
        if "lead back" in error.message:
            return "circle"
    return found.errors[block].message if block in found.errors else None


def test_candidates_agree_with_check() -> None:
    page = valid_page()
    assert check(page).ok
    seen = 0
    for block in page.blocks:
        op = find_op(block.op)
        assert op is not None
        ends = [End(block.id, o.name) for o in op.outputs]
        for end in [*ends, *([End("l", "output", 1)] if block.id == "l" else [])]:
            for name, why in candidates_from(page, end).items():
                target, pin = name.rsplit(".", 1)
                reason = "circle" if why is not None and "lead back" in why else why
                expected = check_wire(page, end, target, pin)
                if expected is not None and expected.endswith("wire it, or enter a value"):
                    continue  # covered by the test of missing inputs
                assert reason == expected, f"{end} to {name}"
                seen += 1
    assert seen > 800


def test_both_directions_agree() -> None:
    page = valid_page()
    from_ends: dict[tuple[str, str], str | None] = {}
    for end in ("f.output", "i.output", "l.output", "l.output[1]", "feed.output", "st.tensor", "no.output"):
        from_ends |= {(end, pin): why for pin, why in candidates_from(page, end).items()}
    for pin in sorted({pin for _, pin in from_ends}):
        found = candidates_to(page, *pin.rsplit(".", 1))
        for end in {e for e, p in from_ends if p == pin}:
            assert found[end] == from_ends[end, pin], f"{end} to {pin}"
    assert {"l.output", "l.output[0]", "l.output[1]"} <= candidates_to(page, "n", "inputs").keys()
    assert not any(end.startswith("n.") for end in candidates_to(page, "n", "inputs"))
    assert not any(pin.startswith("n.") for pin in candidates_from(page, "n.sum"))


def page_with_missing_inputs() -> Page:
    """Return a page whose blocks lack inputs."""
    return Page("p", [
        Block("f", "Const", {"val": np.ones((3, 2), np.float32)}),
        Block("d", "Const", {"val": np.ones((3, 2))}),
        Block("i", "Const", {"val": np.array([0, 1], np.int32)}),
        Block("ph", "Placeholder"),
        Block("v", "Variable", {"initvalues": [1.0]}),
        Block("m", "SparseSegmentMean"),
        wired("half", "Add", x="f.output"),
        wired("sel", "Select", {"x": 0.5}),
        Block("feed", "FeedType"),
        Block("s", "ClientSession"),
        Block("as", "Assign"),
        wired("gd", "ApplyGradientDescent", var="v.ref"),
        Block("el", "EmbeddingLookupSparse"),
        Block("sa", "SparseAdd"),
        Block("st", "SparseTensor"),
        Block("g", "AddSymbolicGradients"),
        Block("bad", "Neg", {"x": 1.0}, attrs={"nonesuch": 1}),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("end", "pin", "why"),
    [
        ("f.output", "m.indices", "indices must be one of int32, int64; got float32"),
        ("i.output", "m.indices", None),
        ("i.output", "m.data", "data must be one of float16, bfloat16, float32, float64; got int32"),
        ("d.output", "half.y", "y must be float32, the T of the arguments before it; got float64"),
        ("f.output", "feed.input", "only placeholders can be fed, and f.output (float32[3,2]) is not one"),
        ("ph.output", "feed.input", None),
        ("ph.output", "feed.initializer",
         "initializer must be known before the run, but ph.output is computed in it"),
        ("f.output", "feed.initializer", None),
        ("f.output", "s.inputs", "inputs[0] takes a feed, such as the output of FeedType; got f.output (float32[3,2])"),
        ("feed.output", "s.inputs", None),
        ("feed.output", "s.fetch_outputs", "fetch_outputs[0] takes a wire; got a feed"),
        ("feed.output", "m.data", "data takes one value; got a feed"),
        ("f.output", "as.ref", "ref must be wired to a Variable; got f.output (float32[3,2])"),
        ("v.ref", "as.ref", None),
        ("as.output_ref", "as.ref", "absent"),
        ("gd.out", "as.ref", None),
        ("d.output", "gd.delta", "delta must be float32, the T of the arguments before it; got float64"),
        ("f.output", "gd.delta", None),
        ("st.tensor", "sa.a_indices", None),
        ("st.tensor", "sa.a_values", "a_values takes one value; got a sparse tensor"),
        ("st.tensor", "el.ids", None),
        ("f.output", "el.ids", "ids takes a sparse tensor; got f.output (float32[3,2])"),
        ("i.output", "g.inputs", "inputs[0] (i.output) has dtype int32, which has no gradient"),
        ("f.output", "g.inputs", None),
        # The output of half is known to be float32 although an input is missing; that of m may be any float.
        ("half.z", "m.indices", "indices must be one of int32, int64; got float32"),
        ("half.z", "gd.delta", None),
        ("m.output", "gd.delta", None),
        ("m.output", "m.data", "absent"),
        ("m.output", "st.indices", "indices must be int64; got float16"),
        ("m.output", "v.initvalues", None),
        ("f.output", "bad.x", None),
    ],
)  # fmt: skip
def test_candidates_of_blocks_with_missing_inputs(end: str, pin: str, why: str | None) -> None:
    page = page_with_missing_inputs()
    assert candidates_from(page, end).get(pin, "absent") == why
    if why != "absent":
        assert candidates_to(page, *pin.split("."))[end] == why


def test_wires_that_close_a_cycle_are_rejected() -> None:
    page = Page("p", [
        wired("c", "Neg", x="b.y"), wired("b", "Neg", x="a.y"), Block("a", "Neg", {"x": 1.0}), Block("d", "Neg"),
    ])  # fmt: skip
    reason = "c: its wires lead back to itself: c → a → b → c"
    assert candidates_from(page, "c.y") == {
        "b.x": "c: its wires lead back to itself: c → b → c",
        "a.x": reason,
        "d.x": None,
    }
    assert candidates_to(page, "a", "x") == {
        "c.y": reason,
        "b.y": "b: its wires lead back to itself: b → a → b",
        "d.y": None,
    }
    page["a"].wires["x"] = [End("c", "y")]
    del page["a"].values["x"]
    assert check(page).errors["c"].message == reason


def test_wires_without_a_gradient_path_are_rejected() -> None:
    page = valid_page()
    message = 'no gradient flows from outputs to inputs[1] ({}). Pass unconnected_gradients="zero" to get zeros.'
    found = candidates_to(page, "g", "inputs")
    assert (found["a.z"], found["v.ref"]) == (None, message.format("v.ref"))
    page["g"].attrs["unconnected_gradients"] = "zero"
    assert candidates_to(page, "g", "inputs")["v.ref"] is None


def test_existing_errors_of_a_block_do_not_affect_candidates() -> None:
    page = valid_page()
    page["m"].wires["data"] = [End("i", "output")]
    found = candidates_from(page, "f.output")
    assert found["m.data"] is None
    assert found["m.indices"] == "indices must be one of int32, int64; got float32"
    assert candidates_from(page, "i.output")["m.indices"] is None


def test_the_page_is_unchanged() -> None:
    page = valid_page()
    before = copy.deepcopy(page)
    first = candidates_from(page, "f.output")
    assert candidates_from(page, "f.output") == first
    assert [(b.id, b.op, str(b.wires), list(b.values)) for b in page] == [
        (b.id, b.op, str(b.wires), list(b.values)) for b in before
    ]


def test_missing_ends_and_pins_raise() -> None:
    page = valid_page()
    for end, message in (
        ("x.output", "x.output: there is no block 'x'"),
        ("f.z", "f.z: f (Const) has no output 'z'; it has output"),
        ("l.output[9]", "l.output[9]: there is no such entry"),
    ):
        with pytest.raises(PageError) as caught:
            candidates_from(page, end)
        assert str(caught.value) == message
    with pytest.raises(PageError, match=r"m\.z: SparseSegmentMean has no input 'z'; it has data, indices, segment_ids"):
        candidates_to(page, "m", "z")
    with pytest.raises(PageError, match="there is no block 'x'"):
        candidates_to(page, "x", "z")
