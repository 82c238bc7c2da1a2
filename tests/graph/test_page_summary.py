"""The summary of a checked page as plain data."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rowgrad._catalog.spec import catalog
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import Block, End, Page, check
from rowgrad.graph.page_summary import recipes, summarize, summary


def tensor(text: str, dtype: str, *shape: int | None, ref: bool = False) -> dict[str, Any]:
    return {"text": text, "kind": "tensor", "dtype": dtype, "shape": list(shape), "ref": ref}


def wired(name: str, op: str, **wires: str) -> Block:
    return Block(name, op, wires={pin: [End.parse(e) for e in ends.split()] for pin, ends in wires.items()})


def test_types_of_pins() -> None:
    page = Page("p", [
        Block("v", "Variable", {"initvalues": [1.0, 2.0]}),
        Block("a", "Add", {"y": 3}, {"x": [End("v", "ref")]}),
        wired("l", "InputList", outputlist="v.ref a.z"),
        Block("ph", "Placeholder", attrs={"dtype": "int64", "shape": [-1, 2]}),
        Block("st", "SparseTensor", {"indices": [[0, 1]], "values": np.array([2.0]), "dense_shape": [3, 4]}),
        Block("f", "FeedType", {"initializer": [[1, 2]]}, {"input": [End("ph", "output")]}),
        Block("no", "NoOp"),
        wired("s", "ClientSession", inputs="f.output", fetch_outputs="l.output st.tensor", run_outputs="no.output"),
        Block("as", "Assign", {"value": [0, 0]}, {"ref": [End("v", "ref")]}),
    ])  # fmt: skip
    summarized = summary(page)
    json.dumps(summarized, allow_nan=False)
    blocks = summarized["blocks"]
    v, z = tensor("float32[2]", "float32", 2, ref=True), tensor("float32[2]", "float32", 2)
    assert blocks["v"] == {"outputs": {"ref": v}, "inputs": {"initvalues": z}}
    assert blocks["a"] == {"outputs": {"z": z}, "inputs": {"x": v, "y": tensor("float32[]", "float32")}}
    assert blocks["l"] == {"outputs": {"output": [v, z]}, "inputs": {"outputlist": [v, z]}}
    assert blocks["ph"]["outputs"] == {"output": tensor("int64[?,2]", "int64", None, 2)}
    sparse = {"text": "sparse float64[3,4]", "kind": "sparse", "dtype": "float64", "shape": [3, 4], "ref": False}
    assert blocks["st"]["outputs"]["tensor"] == sparse
    feed = {"text": "feed of int64[1,2]", "kind": "feed", "dtype": "int64", "shape": [1, 2], "ref": False}
    assert blocks["f"]["outputs"] == {"output": feed}
    nothing = {"text": "operation", "kind": "operation", "dtype": None, "shape": None, "ref": False}
    assert blocks["s"] == {
        "outputs": {}, "inputs": {"inputs": [feed], "fetch_outputs": [v, z, sparse], "run_outputs": [nothing]},
    }  # fmt: skip
    assert blocks["as"]["outputs"] == {"output_ref": v}
    assert (summarized["errors"], summarized["waiting"], summarized["sessions"]) == ({}, [], ["s"])


def test_errors_name_their_pins() -> None:
    page = Page("p", [
        Block("c", "Const", {"val": np.ones(2, np.float32)}),
        wired("missing", "MatMul", a="c.output"),
        wired("after", "Neg", x="missing.product"),
        Block("attr", "Const", {"val": 1}, attrs={"dtype": "float33"}),
        wired("list", "AddN", inputs="c.output ints.output"),
        Block("ints", "Const", {"val": np.arange(3)}),
        wired("pin", "Neg", y="c.output"),
        Block("op", "Nonesuch"),
        Block("both", "Neg", {"x": 1.0}, {"x": [End("c", "output")]}),
        wired("s", "ClientSession"),
        wired("r1", "Neg", x="r2.y"),
        wired("r2", "Neg", x="r1.y"),
    ])  # fmt: skip
    summarized = summarize(check(page))
    pins = {name: error["pin"] for name, error in summarized["errors"].items()}
    assert pins == {
        "missing": "b", "attr": "dtype", "list": "inputs", "pin": "y", "op": None, "both": "x", "s": "fetch_outputs",
        "r1": None,
    }  # fmt: skip
    assert summarized["errors"]["missing"] == {
        "kind": "InvalidArgumentError",
        "message": "b is missing: wire it, or enter a value",
        "text": (
            "MatMul (name: missing): b is missing: wire it, or enter a value\nin MatMul(a=float32[2] from c.output)"
        ),
        "pin": "b",
        "fixes": [],
    }
    assert summarized["errors"]["both"]["kind"] == "PageError"
    assert summarized["blocks"]["missing"] == {"outputs": {}, "inputs": {"a": tensor("float32[2]", "float32", 2)}}
    assert summarized["blocks"]["after"] == {"outputs": {}, "inputs": {}}
    assert sorted(summarized["waiting"]) == ["after", "r2"]
    assert summarized["sessions"] == []
    assert list(summarized["recipes"]) == [b.id for b in page.blocks]


@pytest.mark.parametrize(
    ("op", "values", "message"),
    [
        ("Add", {"x": 1.0}, "y is missing: wire it, or enter a value"),
        ("AddN", {}, "inputs is missing: wire it, or enter a value"),
        ("Output", {}, "output_op is missing: wire it, or enter a value"),
        ("Assign", {}, "ref is missing: wire it to a Variable"),
        ("ClientSession", {}, "fetch_outputs is missing: wire it to an output"),
        ("AddSymbolicGradients", {}, "outputs is missing: wire it to an output"),
        ("AddSymbolicGradients", {"outputs": [], "inputs": []}, "outputs is missing: wire it to an output"),
        ("Operation", {}, "operation is missing: wire it to an operation"),
        ("EmbeddingLookupSparse", {"params": [[1.0]]}, "ids is missing: wire it to a sparse tensor"),
    ],
)
def test_a_missing_input_suggests_a_value_only_where_one_can_be_entered(
    op: str, values: dict[str, Any], message: str
) -> None:
    error = check(Page("p", [Block("b", op, values)])).errors["b"]
    assert isinstance(error, InvalidArgumentError)
    assert error.message == message


def test_an_error_in_an_inner_op_names_no_pin() -> None:
    page = Page("p", [
        Block("st", "SparseTensor", {"indices": [[0, 0]], "values": [0], "dense_shape": [1, 1]}),
        Block("e", "EmbeddingLookupSparse", {"params": np.ones((2, 2), np.int32)}, {"ids": [End("st", "tensor")]}),
    ])  # fmt: skip
    error = check(page).errors["e"]
    assert error.argument == "data"
    assert summary(page)["errors"]["e"]["pin"] is None


def recipe_page() -> Page:
    return Page("p", [
        Block("c", "Const", {"val": np.arange(3.0)}),
        Block("d", "Const", {"val": [1, 2, 3]}),
        wired("n", "Neg", x="c.output"),
        wired("m", "Neg", x="n.y"),
        wired("o", "Neg", x="d.output"),
    ])  # fmt: skip


def changed_recipes(change: Any) -> set[str]:
    page = recipe_page()
    before = recipes(page)
    change(page)
    after = recipes(page)
    assert all(len(r) == 16 for r in after.values())
    return {name for name in before if before[name] != after[name]}


def test_recipes_change_with_the_computation() -> None:
    def put(block: str, **fields: Any) -> Any:
        def change(page: Page) -> None:
            for name, value in fields.items():
                setattr(page[block], name, value)

        return change

    assert changed_recipes(lambda page: None) == set()
    assert changed_recipes(put("c", at=(3.0, 4.0), hidden=("val",))) == set()
    assert changed_recipes(lambda page: page.blocks.reverse()) == set()
    assert changed_recipes(put("c", values={"val": np.array([0.0, 1.0, 2.0])})) == set()
    assert changed_recipes(put("c", attrs={"dtype": ""})) == set()
    assert changed_recipes(put("c", values={"val": np.array([0.0, 1.0, 3.0])})) == {"c", "n", "m"}
    assert changed_recipes(put("c", values={"val": np.arange(3.0).reshape(3, 1)})) == {"c", "n", "m"}
    assert changed_recipes(put("c", values={"val": np.arange(3.0, dtype=np.float32)})) == {"c", "n", "m"}
    assert changed_recipes(put("c", attrs={"dtype": "float32"})) == {"c", "n", "m"}
    assert changed_recipes(put("d", values={"val": [1, 2, 3.0]})) == {"d", "o"}
    assert changed_recipes(put("n", op="Tanh")) == {"n", "m"}
    assert changed_recipes(put("m", wires={"x": [End("c", "output")]})) == {"m"}


def test_recipes_of_cycles_are_stable() -> None:
    page = Page("p", [wired("a", "Neg", x="b.y"), wired("b", "Neg", x="a.y"), wired("c", "Neg", x="b.y")])
    assert recipes(page) == recipes(page)
    before = recipes(page)
    page["a"].op = "Tanh"
    assert recipes(page)["a"] != before["a"]


def test_recipes_of_large_arrays_follow_their_content() -> None:
    def recipe(array: Any) -> str:
        return recipes(Page("p", [Block("c", "Const", {"val": array})]))["c"]

    one = np.zeros(100_000)
    first = recipe(one)
    one[7] = 1.0
    assert recipe(one) != first  # a writable array is hashed again
    one.flags.writeable = False
    second = recipe(one)
    assert recipe(one) == second
    del one
    for k in range(20):  # possibly at the same address
        other = np.full(100_000, float(k + 2))
        other.flags.writeable = False
        assert recipe(other) not in (first, second)
        del other


def test_the_catalog_tells_which_blocks_run_and_are_traced() -> None:
    summarized = {record["name"]: record for record in catalog()}
    assert [name for name, record in summarized.items() if record["runs"]] == ["ClientSession"]
    assert summarized["SparseSegmentMean"]["traced"]
    kernels = [r for r in summarized.values() if r["layer"] == "kernel"]
    assert {r["name"] for r in kernels if not r["traced"]} == {
        "RowPositions", "SegmentIdsFromOffsets", "RowPlan", "PlannedIds",
    }  # fmt: skip
    assert not summarized["Add"]["traced"]


def test_recipes_distinguish_identical_variables() -> None:
    def recipes_with(source: str) -> dict[str, str]:
        twins = [Block(name, "Variable", {"initvalues": [1.0]}) for name in ("v", "w")]
        return recipes(Page("p", [*twins, Block("n", "Neg", wires={"x": [End(source, "ref")]})]))

    assert recipes_with("v")["n"] != recipes_with("w")["n"]
    assert recipes_with("v")["v"] != recipes_with("v")["w"]
