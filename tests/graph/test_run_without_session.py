"""What a run of a page without a ClientSession computes, and what its exported script computes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rowgrad._catalog.spec import CATALOG
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import Block, ClientSession, End, Page, build
from rowgrad.graph.export import save_python
from rowgrad.graph.inputs import typed_value
from rowgrad.graph.leaves import leaves_of
from rowgrad.graph.page_builder import check
from rowgrad.graph.run_loop import PageStep


def mixed_page() -> Page:
    """Return a page with every kind of leaf: values, entries of a list, a sparse tensor, an operation, a feed."""
    return Page(
        "mixed",
        [
            Block("x", "Placeholder", attrs={"dtype": "float32", "shape": [2]}),
            Block("feed", "FeedType", {"initializer": [1, 2]}, {"input": [End("x", "output")]}),
            Block("square", "Square", wires={"x": [End("x", "output")]}),
            Block("list", "InputList", wires={"outputlist": [End("square", "y"), End("x", "output")]}),
            Block("sparse", "SparseTensor", {"indices": [[0, 1]], "values": [3.0], "dense_shape": [1, 2]}),
            Block("v", "Variable", {"initvalues": [1.0]}),
            Block("more", "AssignAdd", {"value": [2.0]}, {"ref": [End("v", "ref")]}),
            Block("do", "Operation", wires={"operation": [End("more", "output_ref")]}),
        ],
    )


def test_every_pin_that_nothing_consumes_is_a_leaf() -> None:
    checked = check(mixed_page())
    leaves = leaves_of(checked)
    parts = ["sparse.indices", "sparse.values", "sparse.dense_shape"]
    assert list(leaves.values) == ["list.output[0]", "list.output[1]", *parts]
    assert [str(end) for end in leaves.feed_ends] == ["feed.output"]
    assert leaves.changed_variables(checked.scope.graph) == ["v"]
    session = ClientSession(checked.scope)
    found = PageStep(session, [], leaves.values, leaves.operations, leaves.feeds).run().fetched
    assert [value.tolist() for value in found.values()][:2] == [[1.0, 4.0], [1.0, 2.0]]
    assert session.run("v").tolist() == [3.0]


def test_a_faulty_block_consumes_nothing() -> None:
    blocks = [Block("a", "Const", {"val": 1}), Block("b", "MatMul", wires={"a": [End("a", "output")]})]
    leaves = leaves_of(check(Page("p", blocks)))
    assert list(leaves.values) == ["a.output"]
    assert leaves.left_out == ["b"]


def test_a_placeholder_that_is_fed_twice_is_an_error() -> None:
    page = mixed_page()
    page.blocks.append(Block("again", "FeedType", {"initializer": [1, 2]}, {"input": [End("x", "output")]}))
    with pytest.raises(InvalidArgumentError, match="x is fed twice"):
        leaves_of(check(page))


def test_the_exported_script_computes_the_same(tmp_path: Path) -> None:
    page = mixed_page()
    checked = check(page)
    leaves = leaves_of(checked)
    expected = PageStep(ClientSession(checked.scope), [], leaves.values, leaves.operations, leaves.feeds).run().fetched
    save_python(page, tmp_path / "script.py")
    command = [sys.executable, str(tmp_path / "script.py"), "--out", str(tmp_path / "out.npz")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    with np.load(tmp_path / "out.npz") as found:
        assert {name: found[name].tolist() for name in found} == {n: v.tolist() for n, v in expected.items()}


def test_typed_integers_become_floats_on_pins_for_floats_only() -> None:
    for op in CATALOG.values():
        for arg in op.inputs:
            dtypes = op.dtypes_of(arg.type)
            (number,) = typed_value(op, arg, [2])
            is_float = set(dtypes) <= {"float16", "bfloat16", "float32", "float64", "complex64", "complex128"}
            assert type(number) is (float if is_float else int), f"{op.name}.{arg.name} takes {dtypes}"


def test_a_typed_value_takes_the_dtype_of_its_pin() -> None:
    values = {"grad": [[1, 2], [6, 8]], "indices": [0, 2, 2], "segment_ids": [0, 0, 1], "output_dim0": 4}
    scope = build(Page("p", [Block("g", "SparseSegmentMeanGrad", values)]))
    found = ClientSession(scope).run("g.output")
    assert found.dtype == np.float32
    assert found.tolist() == [[0.5, 1.0], [0.0, 0.0], [6.5, 9.0], [0.0, 0.0]]
    half = Block("g", "SparseSegmentMeanGrad", values | {"grad": np.array(values["grad"], np.float16)})
    assert ClientSession(build(Page("p", [half]))).run("g.output").dtype == np.float16
