"""Export of pages as scripts and drawings, and of graphs as pages."""

from __future__ import annotations

import ast
import re
import runpy
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from rowgrad._catalog.spec import ALL_DTYPES, CATALOG
from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.graph import (
    AddSymbolicGradients,
    Block,
    ClientSession,
    Const,
    End,
    Note,
    Page,
    Scope,
    build,
    dumps,
    loads,
    ops,
    page_of,
)
from rowgrad.graph.export import picture, save_python, to_dot, to_python, to_svg

ROOT = Path(__file__).parents[2]
HOSTILE = 'x\0\x0c\u2028"""\n\'\'\'; import os; os._exit(3) #\r\\ {} % <script>alert(1)</script> & ]]> |<a> "'


def values(dtype: str) -> np.ndarray:
    if dtype == "string":
        found = np.empty(3, object)
        found[:] = [HOSTILE, b"\xff\0", ""]
        return found
    target = NUMPY_DTYPE[dtype]
    if target.names:
        return np.array([1, 0, 3], target[0]).view(target)
    if dtype == "bool":
        return np.array([True, False, True])
    if target.kind in "iu":
        return np.array([np.iinfo(target).min, 0, np.iinfo(target).max], target)
    special = [1.1, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3.0000001]
    return np.array(special).astype(target)


def run_script(page: Page, folder: Path) -> dict[str, Any]:
    save_python(page, folder / "script.py")
    return runpy.run_path(str(folder / "script.py"))


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_every_dtype_survives_a_script(dtype: str, large: bool, tmp_path: Path) -> None:
    array = values(dtype)
    if large:
        array = np.tile(array, 1000)
    page = Page(HOSTILE, [Block("c", "Const", {"val": array})], [Note(HOSTILE)])
    found = run_script(page, tmp_path)
    got = ClientSession(found["root"]).run(found["c"])
    assert got.dtype == array.dtype
    assert got.tolist() == array.tolist() if dtype == "string" else got.tobytes() == array.tobytes()
    assert (tmp_path / "script.py.arrays").exists() == (large and dtype != "string" and not dtype.startswith("q"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "int64", "string"])
def test_arrays_in_a_list_survive_a_script(dtype: str, tmp_path: Path) -> None:
    page = Page("p", [Block("both", "Pack", {"values": [values(dtype), np.tile(values(dtype), 1)[::-1]]})])
    wanted = ClientSession(build(page)).run("both")
    found = ClientSession(run_script(page, tmp_path)["root"]).run("both")
    assert found.dtype == wanted.dtype
    assert found.tolist() == wanted.tolist() if dtype == "string" else found.tobytes() == wanted.tobytes()


def test_nan_payloads_survive(tmp_path: Path) -> None:
    array = np.array([0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
    found = run_script(Page("p", [Block("c", "Const", {"val": array})]), tmp_path)
    assert ClientSession(found["root"]).run(found["c"]).tobytes() == array.tobytes()


def test_ids_that_are_not_python_names(tmp_path: Path) -> None:
    ids = ["class", "np", "root", "a.b/c", "1st", "a-b", "a>b", "ops", "x\\y", "main", "print", "range"]
    blocks = [Block(i, "Const", {"val": np.float64(k)[...]}) for k, i in enumerate(ids)]
    blocks.append(Block("sum", "AddN", wires={"inputs": [End(i, "output") for i in ids]}))
    blocks.append(Block("s", "ClientSession", wires={"fetch_outputs": [End("sum", "sum")]}))
    found = run_script(Page("p", blocks), tmp_path)
    assert ClientSession(found["root"]).run_block("s")["sum.sum"] == sum(range(len(ids)))


def test_scripts_contain_only_calls_on_literals() -> None:
    page = Page(HOSTILE, [Block("c", "Const", {"val": HOSTILE}, attrs={"dtype": "string"})], [Note(HOSTILE)])
    page.blocks.append(Block("p", "Placeholder", attrs={"dtype": "float32", "shape": [-1, 2]}))
    tree = ast.parse(to_python(page))
    calls = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    assert "os._exit" not in calls
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.Import) and n.names[0].name == "os"]


def test_drawings_are_well_formed_and_inert() -> None:
    page = Page(
        HOSTILE, [Block("a", "Const", at=(10.0, 20.0)), Block("b", "Nonsense"), Block("c", "Add")], [Note(HOSTILE)]
    )
    page.blocks[2].wires = {"x": [End("a", "output")], "y": [End("b", "what")], "z": [End("nowhere", "q")]}
    page.blocks[2].hidden = ("y",)
    drawn = ElementTree.fromstring(to_svg(page))
    tags = {e.tag.rpartition("}")[2] for e in drawn.iter()}
    assert tags == {"svg", "title", "path", "g", "rect", "text", "circle", "tspan"}
    assert len([e for e in drawn.iter() if e.tag.endswith("path")]) == 2
    assert [e.get("id") for e in drawn.iter() if e.tag.endswith("}g")] == ["a", "b", "c"]
    dot = to_dot(page)
    assert dot.count("->") == 3
    assert dot.startswith('digraph "')
    assert '"a":"out_output" -> "c":"in_x";' in dot
    assert "[style=dashed]" in dot
    empty = ElementTree.fromstring(to_svg(Page("nothing")))
    assert [e.tag.rpartition("}")[2] for e in empty] == ["title"]


def test_drawings_have_the_colours_of_studio() -> None:
    """By category of op and by what a wire carries, as web/src/palette/families.ts and the theme name them."""
    web = ROOT / "web" / "src"
    families = dict(
        re.findall(r'^  "?([A-Z][\w ]+)"?: \{ name: "(\w+)"', (web / "palette/families.ts").read_text(), re.M)
    )
    theme = (web / "styles" / "theme.css").read_text()
    colours = dict(re.findall(r"--family-(\w+): (#\w+);", theme))
    assert {category: colours[family] for category, family in families.items()} == picture.FAMILY_COLOURS
    assert colours["other"] == picture.OTHER_FAMILY
    assert dict(re.findall(r"--carry-(\w+): light-dark\((#\w+),", theme)) == picture.WIRE_COLOURS
    assert {op.category for op in CATALOG.values()} <= picture.FAMILY_COLOURS.keys()


def test_a_thumbnail_has_the_names_of_ops_in_the_colours_of_their_families() -> None:
    page = Page("p", [Block("a", "SparseSegmentMeanGrad", at=(0.0, 0.0)), Block("b", "Nonsense", at=(400.0, 0.0))])
    page.blocks[1].wires = {"x": [End("a", "output")]}
    page.notes = [Note("a text", (0.0, -50.0))]
    drawn = ElementTree.fromstring(to_svg(page, thumbnail=True))
    texts = ["".join(e.itertext()) for e in drawn.iter() if e.tag.endswith("}text")]
    assert texts == ["SparseSegmentMeanGrad", "Nonsense"]
    assert [e.get("fill") for e in drawn.iter() if e.tag.endswith("rect")] == ["#0b7269", picture.OTHER_FAMILY]
    (wire,) = [e for e in drawn.iter() if e.tag.endswith("path")]
    assert wire.get("stroke") == picture.WIRE_COLOURS["values"]


def test_a_cycle_can_be_drawn() -> None:
    page = Page("p", [Block("a", "Neg", wires={"x": [End("b", "y")]}), Block("b", "Neg", wires={"x": [End("a", "y")]})])
    assert to_svg(page).count("<g ") == 2


def test_a_graph_exported_as_a_page_computes_the_same() -> None:
    root = Scope.new_root_scope("made")
    mine = np.arange(6.0).reshape(3, 2)
    table = ops.Variable(root.with_op_name("table"), mine)
    x = ops.Placeholder(root.with_op_name("x"), dtype="float64", shape=(3, 2))
    total = ops.AddN(root.with_op_name("total"), [table, np.ones((3, 2)), x, 2.0 * np.ones((3, 2))])
    sparse = ops.SparseAdd(
        root.with_op_name("sparse"),
        rg.SparseTensor([[0, 0]], [1.5], [2, 2]),
        rg.SparseTensor([[0, 0]], [2.5], [2, 2]),
        0.0,
    )
    ids = rg.SparseTensor([[0, 0], [1, 0]], [2, 0], [2, 1])
    bags = ops.EmbeddingLookupSparse(root.with_op_name("bags"), table, ids)
    grads = AddSymbolicGradients(root.with_op_name("grads"), [total, bags], [table])
    step = ops.ApplyGradientDescent(root.with_op_name("step"), table, 0.5, grads[0])
    ops.ClientSession(
        root.with_op_name("s"), [ops.FeedType(root, x, np.ones((3, 2)))], [total, sparse, step, Const(root, "word")]
    )
    expected = ClientSession(root).run_block("s")
    mine[:] = 99.0
    page = page_of(root)
    text = dumps(page)
    assert dumps(page_of(root)) == text
    again = ClientSession(build(loads(text))).run_block("s")
    assert again.keys() == expected.keys()
    assert {k: v.tolist() for k, v in again.items()} == {k: v.tolist() for k, v in expected.items()}
