"""Contents of every kind of enuSpace block, and what an import omits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from enuspace_files import Drawn, Pin, Wires, sample_ops, svg, task

from rowgrad._catalog.spec import CATALOG
from rowgrad.graph.enuspace import Imported, read_enuspace
from rowgrad.graph.page import Block, End


@pytest.fixture(autouse=True)
def _catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, op in sample_ops().items():
        monkeypatch.setitem(CATALOG, name, op)


def read(folder: Path, text: str, name: str = "page.svg") -> Imported:
    (folder / name).write_text(text, encoding="utf-16")
    return read_enuspace(folder / name)


def one(folder: Path, symbol: str, **pins: Pin) -> Block:
    """Write a block in both generations and as a task; return the block that all three read as."""
    blocks = {"ID": Drawn(symbol, pins)}
    kinds = [("page.svg", svg(blocks, [], 3)), ("page.svg", svg(blocks, [], 4)), ("page.json", task(blocks, []))]
    found = [read(folder, text, name).page["ID"] for name, text in kinds]
    for block in found:
        assert described(block) == described(found[0])
    return found[0]


def described(block: Block) -> dict[str, Any]:
    return {name: (str(v.dtype), v.tolist()) for name, v in block.values.items()} | block.attrs


def text(elements: str) -> Pin:
    return Pin(elements=elements)


@pytest.mark.parametrize(
    ("symbol", "pins", "expected"),
    [
        ("Const", {"val": Pin("float", "[2]", [1.5, -2])}, {"val": ("float32", [1.5, -2.0])}),
        ("Const", {"val": Pin("int", "", [7])}, {"val": ("int32", 7)}),
        ("Const", {"val": Pin("bool", "[2]", ["TRUE", "FALSE"])}, {"val": ("bool", [True, False])}),
        ("Const", {"val": Pin("string", "", "{a;b}...")}, {"val": ("object", "{a;b}...")}),
        ("Const", {"val": Pin("string", "[2][1]", ["a b", "c"])}, {"val": ("object", [["a b"], ["c"]])}),
        ("Const", {"val": Pin("double", "[0]", [])}, {"val": ("float64", [])}),
        ("Const", {"val": Pin("double")}, {}),
        ("Const_ex", {"val": Pin("int", "[2]", [2**53 + 1, 7]), "dtype": text("DT_INT64")},
         {"val": ("int64", [2**53 + 1, 7]), "dtype": "int64"}),
        ("Const_ex", {"val": Pin("double", "[2]", ["4.000000", "7.000000"]), "dtype": text("DT_INT64")},
         {"val": ("int64", [4, 7]), "dtype": "int64"}),
        ("Const_ex", {"dtype": text("DT_INT64"), "val": text("{4,7}")}, {"val": ("int64", [4, 7]), "dtype": "int64"}),
        ("Const", {"val": text("{1,1}")}, {"val": ("object", "{1,1}")}),
        ("Const_ex", {"val": text("{1,1}")}, {"val": ("int32", [1, 1])}),
        ("Const_ex", {"dtype": Pin(), "val": text(" {{1.5f},{2}}")}, {"val": ("float32", [[1.5], [2.0]])}),
        ("Const_ex", {"dtype": text("DT_STRING"), "val": text('{"a b","c"}')},
         {"val": ("object", ["a b", "c"]), "dtype": "string"}),
        ("Const_ex", {"dtype": text("DT_STRING"), "val": text("a;b")}, {"val": ("object", "a;b"), "dtype": "string"}),
        ("Const_ex", {"val": text("a b")}, {"val": ("object", "a b")}),
        ("Const_ex", {"val": Pin("string", "[2]", ["a", "1"])}, {"val": ("object", ["a", "1"])}),
        ("Const_ex", {"dtype": text("DT_INT64"), "val": Pin("string", "[2]", [4, 7])},
         {"val": ("int64", [4, 7]), "dtype": "int64"}),
        ("Tensor", {"initvalues": Pin("string", "[2]", [4, 7])}, {"initvalues": ("int32", [4, 7])}),
        ("Tensor", {"dtype": text("DT_STRING"), "initvalues": Pin("string", "[2]", [4, 7])},
         {"initvalues": ("object", ["4", "7"]), "dtype": "string"}),
        ("Input", {"initvalues": Pin("string", "[2]", ["1.5", "2"])}, {"initvalues": ("float64", [1.5, 2.0])}),
        ("Input_Initializer", {"t": Pin("string", "[2]", ['"a"', '"b"'])}, {"t": ("object", ["a", "b"])}),
        ("Input_Initializer", {"t": text("{{1,1}}")}, {"t": ("int32", [[1, 1]])}),
        ("Variable", {"initvalues": Pin("string", "[2]", [1, 1])}, {"initvalues": ("object", ["1", "1"])}),
        ("Variable", {"shape": text("{2,2}"), "dtype": text("DT_FLOAT"), "initvalues": text("{{1,2},{3.5,4}}")},
         {"initvalues": ("float32", [[1.0, 2.0], [3.5, 4.0]]), "shape": [2, 2], "dtype": "float32"}),
        ("Variable", {"shape": text("{2,2}"), "dtype": text("DT_FLOAT"), "initvalues": text("{1,2,3,4}")},
         {"initvalues": ("float32", [[1.0, 2.0], [3.0, 4.0]]), "shape": [2, 2], "dtype": "float32"}),
        ("Variable", {"shape": text("{2,2}"), "dtype": text("DT_FLOAT"), "initvalues": text("0.5")},
         {"initvalues": ("float32", 0.5), "shape": [2, 2], "dtype": "float32"}),
        ("Variable", {"shape": Pin(), "dtype": Pin(), "initvalues": Pin("int", "[2]", [1, 2])},
         {"initvalues": ("int32", [1, 2])}),
        ("Variable", {"initvalues": text("{1.0f}"), "attrs": text("container_ =;shared_name_ =;")},
         {"initvalues": ("float32", [1.0])}),
        ("Placeholder", {"dtype": text("DT_INT32"), "attrs": text("shape_={2}")}, {"dtype": "int32", "shape": [2]}),
        ("Tensor", {"dtype": text("DT_INT8"), "initvalues": text("{4,7}")},
         {"initvalues": ("int8", [4, 7]), "dtype": "int8"}),
        ("Input", {"dtype": Pin(), "initvalues": text("{5,3}")}, {"initvalues": ("int32", [5, 3])}),
        ("Input_Initializer", {"t": Pin("double", "[2]", [1, 2])}, {"t": ("float64", [1.0, 2.0])}),
        ("Mean", {"input": Pin(), "axis": text("{0,1}"), "attrs": text("keep_dims_ = true")},
         {"axis": ("int32", [0, 1]), "keep_dims": True}),
        ("Cast", {"x": Pin(), "DstT": text("DT_HALF")}, {"DstT": "float16"}),
        ("RandomUniform", {"shape": text("{2,3}"), "dtype": text("DT_DOUBLE"), "attrs": text("seed_ = 7;seed2_=0;")},
         {"shape": ("int32", [2, 3]), "dtype": "float64", "seed": 7, "seed2": 0}),
        ("Output", {"output_op": Pin(), "index": text("1")}, {"index": 1}),
        ("SparseSegmentSqrtNGrad", {"data": text("{{1.0f}}"), "output_dim0": text("3")},
         {"grad": ("float32", [[1.0]]), "output_dim0": ("int32", 3)}),
        ("SparseAdd", {"a_indices": text("{{0,1}}"), "thresh": text("0.5f")},
         {"a_indices": ("int64", [[0, 1]]), "thresh": ("float32", 0.5)}),
    ],
)  # fmt: skip
def test_contents_of_every_kind_of_block(
    symbol: str, pins: dict[str, Pin], expected: dict[str, Any], tmp_path: Path
) -> None:
    assert described(one(tmp_path, symbol, **pins)) == expected


CONST = Drawn("Const", {"val": Pin("double", "", [1])})
SESSION = Drawn("ClientSession", {"inputs": Pin(), "fetch_outputs": Pin(), "run_outputs": Pin()}, ("status",))


def remarks(imported: Imported) -> list[str]:
    return [str(remark) for remark in imported.report]


def test_feed_and_operation_wires_are_imported(tmp_path: Path) -> None:
    blocks = {
        "P": Drawn("Placeholder", {"dtype": text("DT_DOUBLE")}), "V": CONST, "N": Drawn("NoOp"),
        "F": Drawn("FeedType", {"input": Pin(), "initializer": Pin()}), "O": Drawn("Operation", {"operation": Pin()}),
        "L": Drawn("InputList", {"outputlist": Pin()}), "S": SESSION,
    }  # fmt: skip
    wires: Wires = [("P", "output", "F", "input"), ("V", "output", "F", "initializer"), ("F", "output", "S", "inputs"),
                    ("N", "output", "O", "operation"), ("O", "output", "S", "run_outputs"),
                    ("V", "output", "L", "outputlist"), ("P", "output", "L", "outputlist"),
                    ("V", "output", "L", "outputlist"), ("L", "output", "S", "fetch_outputs")]  # fmt: skip
    for imported in (read(tmp_path, svg(blocks, wires)), read(tmp_path, task(blocks, wires), "page.json")):
        page = imported.page
        assert page["F"].wires == {"input": [End("P", "output")], "initializer": [End("V", "output")]}
        assert page["L"].wires["outputlist"] == [End("V", "output"), End("P", "output"), End("V", "output")]
        assert page["S"].wires["inputs"] == [End("F", "output")]
        assert page["S"].wires["run_outputs"] == [End("O", "output")]
        assert not any(remark.level == "warning" for remark in imported.report)


def test_omitted_parts_are_reported(tmp_path: Path) -> None:
    blocks = {
        "A": CONST, "Ä b": CONST, "U": Drawn("Nonsense"), "S": SESSION,
        "C": Drawn("Add", {"x": text("5"), "y": text("1"), "w": text("5"), "scope": text("scope")}, ("z",)),
        "V": Drawn("Variable", {"initvalues": text("1"), "attrs": text("container_ = c;mode_=0;")}, ("ref",)),
    }  # fmt: skip
    wires: Wires = [("Ä b", "output", "C", "x"), ("U", "output", "S", "fetch_outputs"), ("A", "output", "U", "x"),
                    ("A", "nix", "C", "y"), ("A", "output", "C", "w"), ("A", "output[1]", "C", "y"),
                    ("gone", "output", "C", "y"), ("V", "ref", "C", "x"), ("A", "result_output", "T", "in"),
                    ("A", "result_output", "C", "y"), ("S", "status", "C", "y"),
                    ("C", "z", "S", "fetch_outputs")]  # fmt: skip
    extra = '<use id="T" type="trend"/><use id="T2" type="trend"/><script>x</script><g><rect/><pg-trend-x/></g>'
    imported = read(tmp_path, svg(blocks, wires, inside=extra))
    page = imported.page
    assert [b.id for b in page] == ["A", "__b", "U", "S", "C", "V"]
    assert page["C"].wires == {"x": [End("__b", "output")], "y": [End("A", "output")]}
    assert page["U"].wires == {"x": [End("A", "output")]}
    assert page["S"].wires == {"fetch_outputs": [End("U", "output"), End("C", "z")]}
    assert remarks(imported) == [
        "note: __b: the id '\\xc4 b' has characters that names do not allow",
        "warning: the wire from gone.output to C.y: there is no block gone; left out",
        "warning: U: rowgrad has no block Nonsense; it is kept with its wires, but does not run",
        "warning: C: the wire from A.output to C.w: there is no pin C.w; left out",
        "warning: C: the wire from A.output[1] to C.y: there is no pin A.output[1]; left out",
        "warning: C: the wire from V.ref to C.x: x takes one wire and already has one from __b.output; left out",
        "warning: C: the wire from A.result_output to C.y: there is no pin A.result_output; left out",
        "warning: C: Add has no pin w; what is typed there is left out: '5'",
        "warning: V: Variable has no attribute container; left out, with its value 'c'",
        "note: charts become trends: A.output",
        "warning: 1 of 6 blocks are of kinds that rowgrad does not have: 'Nonsense' x1",
        "note: script: for display only, left out (1)",
        "note: rect: for display only, left out (1)",
        "note: results saved in the file are not read (6)",
        "note: wires of scope and status, which a page does not need, left out (1)",
        "note: output nix of Const is called output here (1)",
        "note: values typed into pins that have a wire, which are not used (2)",
        "note: attribute mode of Variable, at its default, left out (1)",
    ]


def test_display_only_wires_cause_no_warning(tmp_path: Path) -> None:
    wires: Wires = [("A", "output", "S", "fetch_outputs"), ("A", "result_output", "T", "in"), ("T", "out", "T2", "in"),
                    ("A", "result_output", "chart", "in"), ("A", "output", "chart", "in"), ("chart", "x", "T", "in"),
                    ("A", "result_output", "elsewhere", "in"), ("elsewhere", "out", "T", "in"),
                    ("elsewhere", "out", "nowhere", "in")]  # fmt: skip
    extra = '<use id="T" type="lcd"/><g id="G"><use id="T2" type="splitter"/></g><pg-trend id="chart"/>'
    imported = read(tmp_path, svg({"A": CONST, "S": SESSION}, wires, inside=extra))
    assert "note: wires that are display only, left out (7)" in remarks(imported)
    assert list(map(str, imported.page.trends)) == ["A.output"]
    assert not any(remark.level == "warning" for remark in imported.report)
    assert imported.page["S"].wires == {"fetch_outputs": [End("A", "output")]}
    # A missing input of a block does cause a warning, and so does an output to a missing block.
    wires = [("T", "out", "S", "fetch_outputs"), ("A", "output", "nowhere", "x")]
    warned = [r for r in remarks(read(tmp_path, svg({"A": CONST, "S": SESSION}, wires, inside=extra))) if "warn" in r]
    assert warned == [
        "warning: the wire from T.out to S.fetch_outputs: its source is not a block; left out",
        "warning: the wire from A.output to nowhere.x: there is no block nowhere; left out",
    ]
    assert warned[1:] == [r for r in remarks(read(tmp_path, task({"A": CONST}, wires[1:]), "p.json")) if "warn" in r]


def test_a_wire_listed_only_at_its_output_is_imported(tmp_path: Path) -> None:
    written = task({"A": CONST, "S": SESSION}, [("A", "output", "S", "fetch_outputs")])
    written = written.replace('"in-symbol-id": "A"', '"in-symbol-id": ""')
    imported = read(tmp_path, written, "page.json")
    assert imported.page["S"].wires == {"fetch_outputs": [End("A", "output")]}
    assert "warning: S: fetch_outputs does not list its wire from A.output; the wire is imported" in remarks(imported)


def test_positions_add_up_in_groups(tmp_path: Path) -> None:
    inner = '<use id="A" type="tensorflow" xlink:href="#NoOp" transform="translate(1,42)" x="0.5"/><text>t</text>'
    imported = read(tmp_path, svg({}, [], inside=f'<g transform="translate(10 20)"><g>{inner}</g></g>'))
    assert imported.page["A"].at == (11.5, 62.0)
    assert imported.page.notes[0].at == (10.0, 20.0)
