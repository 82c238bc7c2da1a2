"""Building graphs: names, shape inference, and errors that name node, pin and values immediately."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import rowgrad as rg
import rowgrad.graph
from rowgrad._catalog.spec import CATALOG
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import ClientSession, Const, PageError, Scope, ops


@pytest.fixture
def root() -> Scope:
    return Scope.new_root_scope()


def test_the_graph_of_the_guide(root: Scope) -> None:
    a = Const(root, [[3.0, 2.0], [-1.0, 0.0]])
    b = Const(root, [[3.0, 5.0]])
    v = ops.MatMul(root.with_op_name("v"), a, b, transpose_b=True)
    assert v.name == "v"
    assert repr(v.product) == "<v.product float32[2,1]>"
    assert ClientSession(root).run(v).tolist() == [[19.0], [-3.0]]


def test_names_are_made_unique_and_scopes_prefix_them(root: Scope) -> None:
    layer = root.new_sub_scope("layer").new_sub_scope("inner")
    names = [Const(s, 1).name for s in (root, root, root.with_op_name("w"), root.with_op_name("w"), layer, layer)]
    assert names == ["Const", "Const_1", "w", "w_1", "layer/inner/Const", "layer/inner/Const_1"]


@pytest.mark.parametrize("name", ["", "a b", "-x", 3, "ä"])
def test_invalid_names_raise(root: Scope, name: object) -> None:
    with pytest.raises(InvalidArgumentError, match="a name may contain letters"):
        root.with_op_name(name)


def test_every_op_of_the_catalog_is_a_function() -> None:
    for op in CATALOG.values():
        for name in (op.name, *op.aliases):
            assert getattr(ops, name).__doc__ == op.doc
    assert "SparseSegmentMeanGrad" in dir(ops)
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = ops.Nonsense


def test_errors_name_node_pin_and_values(root: Scope) -> None:
    table = Const(root.with_op_name("table"), np.ones((4, 2), np.float32))
    with pytest.raises(InvalidArgumentError) as caught:
        ops.SparseSegmentSum(root.with_op_name("bag"), table, Const(root, [0, 1]), Const(root, [0.0]))
    (note,) = caught.value.__notes__
    assert "SparseSegmentSum (name: bag)" in str(caught.value)
    assert caught.value.argument == "segment_ids"
    assert "segment_ids=float32[1] from Const_1.output" in note
    assert "data=float32[4,2] from table.output" in note


def test_a_rejected_block_leaves_nothing_behind(root: Scope) -> None:
    before = len(root.graph.nodes)
    for _ in range(3):
        with pytest.raises(InvalidArgumentError):
            ops.ApplyGradientDescent(root.with_op_name("step"), Const(root.with_op_name("c"), 1.0), 0.1, 1.0)
        assert not root.graph.has("step")
    assert all(n.block.startswith("c") for n in root.graph.nodes[before:])
    assert ops.NoOp(root.with_op_name("step")).name == "step"


def test_missing_unknown_and_ambiguous_pins_raise(root: Scope) -> None:
    x = Const(root, [1.0])
    with pytest.raises(InvalidArgumentError, match="y is missing: wire it, or enter a value"):
        ops.Add(root, x)
    with pytest.raises(TypeError, match="no argument 'q'"):
        ops.Add(root, x, x, q=1)
    with pytest.raises(TypeError, match="takes 2 arguments, got 3"):
        ops.Add(root, x, x, x)
    with pytest.raises(TypeError, match="first argument is a Scope"):
        ops.Add(x, x)
    filled = ops.SparseFillEmptyRows(root.with_op_name("f"), [[0, 0]], [1.0], [2, 2], 0.0)
    with pytest.raises(InvalidArgumentError, match=r"several outputs. Choose one of output_indices, output_values"):
        ops.Add(root, filled, x)
    with pytest.raises(AttributeError, match="has no output 'nothing'"):
        _ = filled.nothing
    other = Const(Scope.new_root_scope(), [1.0])
    with pytest.raises(InvalidArgumentError, match="comes from another graph"):
        ops.Add(root, x, other)


def test_attributes_are_validated(root: Scope) -> None:
    with pytest.raises(InvalidArgumentError, match="attribute dtype must be str; got 3"):
        ops.Placeholder(root, dtype=3)
    with pytest.raises(InvalidArgumentError, match=r"attribute dtype must be one of .*; got 'float7'"):
        ops.Placeholder(root, dtype="float7")
    with pytest.raises(InvalidArgumentError, match="attribute shape must be a list of whole numbers"):
        ops.Placeholder(root, shape=["a"])
    with pytest.raises(InvalidArgumentError, match="attribute unconnected_gradients must be one of"):
        ops.AddSymbolicGradients(root, [Const(root, 1.0)], [Const(root, 1.0)], unconnected_gradients="some")


def test_unknown_sizes_propagate(root: Scope) -> None:
    ids = ops.Placeholder(root, dtype="int64", shape=[-1])
    any_rank = ops.Placeholder(root, dtype="float32")
    rows = ops.SparseSegmentSum(root, Const(root, np.ones((4, 2))), ids, ids)
    assert rows.output.shape == (None, 2)
    assert ops.Add(root, any_rank, any_rank).z.shape is None
    size = ops.Dimension(root, rows, axis=1)
    assert size.output.value is not None
    assert size.output.value.tolist() == 2
    grad = ops.SparseSegmentSumGrad(root, rows, ids, ids, size)
    assert grad.output.shape == (2, 2)


def test_an_output_is_neither_array_nor_sequence(root: Scope) -> None:
    x = Const(root, [1.0, 2.0]).output
    with pytest.raises(TypeError, match="has no value before a session runs"):
        np.asarray(x)
    with pytest.raises(TypeError):
        list(x)
    with pytest.raises(TypeError):
        np.ones(2) + x


def test_constants_are_copied_into_the_graph(root: Scope) -> None:
    mine = np.array([1.0, 2.0])
    x = Const(root, mine)
    y = ops.Add(root, mine, mine)
    mine[:] = 7
    assert ClientSession(root).run([x, y])[0].tolist() == [1.0, 2.0]
    assert ClientSession(root).run(y).tolist() == [2.0, 4.0]


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ([4, 7], "int64", np.array([4, 7], np.int64)),
        ([2**53 + 1], "int64", np.array([2**53 + 1], np.int64)),
        ([1, 0], "bool", np.array([True, False])),
        ([True, False], "int8", np.array([1, 0], np.int8)),
        ([2.0], "int32", np.array([2], np.int32)),
        (np.array([1.5]), "bfloat16", np.array([1.5], rg._runtime.arrays.NUMPY_DTYPE["bfloat16"])),
        ([1, -2], "qint8", np.array([(1,), (-2,)], rg._runtime.arrays.NUMPY_DTYPE["qint8"])),
        ("word", "string", np.array("word", object)),
        ([1], "complex64", np.array([1], np.complex64)),
    ],
)
def test_const_ex_converts_to_the_requested_dtype(root: Scope, value: object, dtype: str, expected: np.ndarray) -> None:
    got = ClientSession(root).run(ops.Const_ex(root, value, dtype=dtype))
    assert got.dtype == expected.dtype
    assert np.array_equal(got, expected)


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        ([300], "int8", "must contain values of int8; got 300"),
        ([1.5], "int32", "must contain values of int32; got 1.5"),
        (["a"], "float32", "must be float32; got string"),
        ([2], "bool", "must contain values of bool; got 2"),
        (1e300, "float32", "must contain numbers in the range of float32; got 1e"),
        ([1.0, 1e300], "", "position 1"),
        (np.array([1e6]), "float16", "must contain numbers in the range of float16"),
        (1j, "float32", "must be float32; got complex128"),
    ],
)
def test_values_that_do_not_fit_their_dtype_raise(root: Scope, value: object, dtype: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ops.Const_ex(root, value, dtype=dtype)


def test_shapes_of_constants(root: Scope) -> None:
    run = ClientSession(root).run
    assert run(Const(root, [1, 2, 3, 4], shape=[2, 2])).tolist() == [[1, 2], [3, 4]]
    assert run(Const(root, 3.0, shape=[2, 2])).tolist() == [[3.0, 3.0], [3.0, 3.0]]
    with pytest.raises(InvalidArgumentError, match=r"val must have as many elements as shape \[3\], got \[2\]"):
        Const(root, [1, 2], shape=[3])
    with pytest.raises(InvalidArgumentError, match="non-negative, got -1"):
        Const(root, [1, 2], shape=[-1])


def test_one_wire_carries_a_sparse_tensor(root: Scope) -> None:
    a = ops.SparseTensor(root, [[0, 1], [2, 0]], np.array([1.0, 2.0]), [3, 4])
    b = rg.SparseTensor([[0, 1]], np.array([5.0]), [3, 4])
    run = ClientSession(root).run
    both = ops.SparseAdd(root, a.tensor, b, 0.0)
    assert run(both.sum_values).tolist() == [6.0, 2.0]
    assert run(ops.SparseAdd(root, a, a, 0.0).sum_values).tolist() == [2.0, 4.0]
    cut = ops.SparseSlice(root, a.tensor, [0, 0], [2, 2])
    assert run(cut.output_indices).tolist() == [[0, 1]]
    with pytest.raises(InvalidArgumentError, match="b_values takes nothing, because b_indices is a sparse tensor"):
        ops.SparseAdd(root, a.tensor, b_indices=a.tensor, b_values=[1.0], thresh=0.0)
    with pytest.raises(InvalidArgumentError, match="values must have length 2, got 1"):
        ops.SparseTensor(root, [[0, 1], [2, 0]], [1.0], [3, 4])


def test_lists_of_wires(root: Scope) -> None:
    items = ops.InputList(root, [Const(root, [1.0]), Const(root, [2.0])])
    total = ops.AddN(root, [items, Const(root, [4.0])])
    assert ClientSession(root).run(total).tolist() == [7.0]
    with pytest.raises(InvalidArgumentError, match=r"x takes one value; got a list of wires"):
        ops.Add(root, items, 1.0)


def test_page_errors_are_op_errors() -> None:
    assert issubclass(PageError, rg.errors.OpError)


MODULES = [m.name for m in pkgutil.walk_packages(rowgrad.graph.__path__, "rowgrad.graph.")]


@pytest.mark.parametrize("name", ["rowgrad.graph", *MODULES])
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_public_functions_and_classes_have_an_example() -> None:
    blocks = {"Const", "AddSymbolicGradients", "ops"}  # documented by the catalog
    missing = [
        n for n in rowgrad.graph.__all__ if n not in blocks and ">>>" not in (getattr(rowgrad.graph, n).__doc__ or "")
    ]
    assert not missing
