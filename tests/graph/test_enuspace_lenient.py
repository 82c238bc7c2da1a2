"""enuSpace files with irregularities that do not matter are read, with a remark where it is useful."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enuspace_files import Blocks, Drawn, Pin, sample_ops, svg, task

from rowgrad._catalog.spec import CATALOG
from rowgrad.graph.enuspace import Imported, read_enuspace
from rowgrad.graph.page import End, PageError

CONST = Drawn("Const", {"val": Pin("double", "", [1])})


@pytest.fixture(autouse=True)
def _catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, op in sample_ops().items():
        monkeypatch.setitem(CATALOG, name, op)


def read(folder: Path, text: str) -> Imported:
    (folder / "page.svg").write_text(text, encoding="utf-16")
    return read_enuspace(folder / "page.svg")


def text_pin(elements: str) -> Pin:
    return Pin(elements=elements)


def remarks(imported: Imported, level: str = "warning") -> list[str]:
    return [f"{r.place}: {r.text}" for r in imported.report if r.level == level]


@pytest.mark.parametrize(
    ("drawn", "at", "odd"),
    [
        ('<text x="10px" y="2">a</text>', (10.0, 2.0), 0),
        ('<text x="10 20 30" y="1,2">a</text>', (10.0, 1.0), 0),
        ('<g x="50%" y="3"><text>a</text></g>', (0.0, 3.0), 1),
        ('<text x="1" transform="translate(-1.#IND,4.00)">a</text>', (1.0, 4.0), 1),
        ('<text x="1" transform="translate()">a</text>', (1.0, 0.0), 1),
        ('<text x="1e999" y="zero">a</text>', (0.0, 0.0), 2),
        ('<g x="1e308"><text x="1.5e308">a</text></g>', (0.0, 0.0), 1),
    ],
)
def test_invalid_positions_are_read_as_zero(drawn: str, at: tuple[float, float], odd: int, tmp_path: Path) -> None:
    imported = read(tmp_path, svg({}, [], inside=drawn))
    assert [(n.text, n.at) for n in imported.page.notes] == [("a", at)]
    expected = [f": coordinates that are not numbers, read as 0 ({odd})"]
    assert remarks(imported, "note") == (expected if odd else [])


@pytest.mark.parametrize("around", ["pg-layer", "a", "svg", "switch", "unheard-of", "pg-layer><a"])
def test_blocks_inside_other_elements_are_read(around: str, tmp_path: Path) -> None:
    plain = svg({"A": CONST, "B": Drawn("Square", {"x": Pin()}, ("y",))}, [("A", "output", "B", "x")])
    head, mark, rest = plain.partition("<use")
    closing = "".join(f"</{name}>" for name in reversed(around.split("><")))
    page = read(tmp_path, f"{head}<{around}>{mark}{rest.removesuffix('</svg>')}{closing}</svg>").page
    assert [b.id for b in page] == ["A", "B"]
    assert page["B"].wires == {"x": [End("A", "output")]}


@pytest.mark.parametrize("around", ["defs", "symbol"])
def test_svg_definitions_are_not_blocks(around: str, tmp_path: Path) -> None:
    inside = f'<{around}><use id="Z" type="tensorflow" href="#Const"/></{around}>'
    imported = read(tmp_path, svg({"A": CONST}, [], inside=inside))
    assert [b.id for b in imported.page] == ["A"]
    assert f": {around}: for display only, left out (1)" in remarks(imported, "note")


def test_unused_pins_are_ignored(tmp_path: Path) -> None:
    blocks = {"A": CONST, "B": Drawn("Square", {"x": Pin("double", "[2]", [1, 2])}, ("y",))}
    good = svg(blocks, [("A", "output", "B", "x")])
    output = '<pg-set-pin variable="#output" shape="" type="string" value=""/>'
    for pin in (
        '<pg-set-pin variable="#output"/>',
        '<pg-set-pin variable="#output" type="double" save-type="binary" binary-pos=""/>',
        '<pg-set-pin variable="#m_nColor" type="color" value="rgb(1,2,3)"/>',
        '<pg-set-pin variable="#m_size" type="int" value="3"/>',
    ):
        imported = read(tmp_path, good.replace(output, pin))
        assert len(imported.page.blocks) == 2
        assert not remarks(imported)
    imported = read(tmp_path, good.replace('value="{1,2}"', 'save-type="binary" binary-pos=""'))
    assert imported.page["B"].wires == {"x": [End("A", "output")]}
    with pytest.raises(PageError, match=r"B\.x: '' is not an offset in a file"):
        read(tmp_path, svg(blocks, []).replace('value="{1,2}"', 'save-type="binary" binary-pos=""'))


@pytest.mark.parametrize(
    ("op", "attribute", "lost"),
    [
        ("Gather", "validate_indices_ = true", False),
        ("Gather", "validate_indices_ = false", True),
        ("BiasAdd", "data_format_ = NHWC", False),
        ("BiasAdd", 'data_format_ = "NCHW"', True),
        ("Gather", "use_locking_ = true; Tidx = DT_INT64; validate_shape = true; container_ =; shared_name =", False),
    ],
)
def test_attributes_at_their_default_cause_no_warning(op: str, attribute: str, lost: bool, tmp_path: Path) -> None:
    assert bool(remarks(read(tmp_path, svg({"A": Drawn(op, {"attrs": text_pin(attribute)})}, [])))) is lost


def test_tasks_with_raw_newlines_backslashes_and_trailing_nuls(tmp_path: Path) -> None:
    written = task({"A": Drawn("Const", {"val": text_pin("TEXT")})}, [])
    for text, value in (("a\nb\tc", "a\nb\tc"), (r"D:\data\new", r"D:\data\new"), (r"a\\b\n", "a\\b\n")):
        imported = read(tmp_path, written.replace("TEXT", text) + " \n\0\0")
        assert imported.page["A"].values["val"].item() == value
        assert any("backslashes" in note for note in remarks(imported, "note")) is text.startswith("D:")
    assert read(tmp_path, svg({"A": CONST}, []) + "\n\0").page["A"].op == "Const"


@pytest.mark.parametrize(
    ("block", "name", "expected"),
    [
        (Drawn("Const", {"val": Pin("double", "[3]", "{1,2,3,}")}), "val", [1, 2, 3]),
        (Drawn("Const", {"val": Pin("double", "[2]", "1;2;;")}), "val", [1, 2]),
        (
            Drawn("Const_ex", {"val": text_pin("{{1,2},{3,4}};"), "dtype": text_pin("DT_FLOAT;")}),
            "val",
            [[1, 2], [3, 4]],
        ),
        (Drawn("Variable", {"shape": text_pin("{2,}"), "initvalues": text_pin("{1,2}")}), "initvalues", [1, 2]),
        (Drawn("Variable", {"shape": text_pin("2"), "initvalues": text_pin("{1,2}")}), "initvalues", [1, 2]),
        (Drawn("Variable", {"shape": text_pin("{2,3}"), "initvalues": text_pin("{0.5f}")}), "initvalues", 0.5),
        (Drawn("Variable", {"shape": text_pin("{1,1}"), "initvalues": text_pin("{0.5f}")}), "initvalues", [[0.5]]),
    ],
)
def test_values_with_extra_separators_and_short_shapes(block: Drawn, name: str, expected: Any, tmp_path: Path) -> None:
    imported = read(tmp_path, svg({"A": block}, []))
    assert imported.page["A"].values[name].tolist() == expected
    assert not remarks(imported)


def test_a_list_attribute_of_one_number(tmp_path: Path) -> None:
    for text in ("0", "{0}", "[0]", "{0,}"):
        page = read(tmp_path, svg({"A": Drawn("Squeeze", {"attrs": text_pin(f"axis_ = {text};")})}, [])).page
        assert page["A"].attrs == {"axis": [0]}


def test_a_variable_without_initial_values_starts_with_zeros(tmp_path: Path) -> None:
    imported = read(
        tmp_path, svg({"A": Drawn("Variable", {"shape": text_pin("{2}"), "dtype": text_pin("DT_INT64")})}, [])
    )
    zero = imported.page["A"].values["initvalues"]
    assert (zero.dtype, zero.shape, zero.item()) == (np.int64, (), 0)
    assert remarks(imported) == ["A: it has no initial values; it starts with zeros"]


def test_declarations_inside_comments_and_cdata_are_ignored(tmp_path: Path) -> None:
    inside = "<!-- <!DOCTYPE a> --><text><![CDATA[<!ENTITY a>]]></text>"
    (note,) = read(tmp_path, svg({}, [], inside=inside)).page.notes
    assert note.text == "<!ENTITY a>"


def test_a_repeated_attribute_must_have_one_value(tmp_path: Path) -> None:
    def written(text: str) -> str:
        return svg({"A": Drawn("MatMul", {"attrs": text_pin(text)})}, [])

    assert read(tmp_path, written("transpose_a_ = true; transpose_a = true")).page["A"].attrs == {"transpose_a": True}
    with pytest.raises(PageError, match=r"A\.attrs: attribute transpose_a is set twice: 'true' and 'false'"):
        read(tmp_path, written("transpose_a_ = true; transpose_a = false"))


def test_a_wire_with_an_empty_end_is_omitted_with_a_warning(tmp_path: Path) -> None:
    imported = read(tmp_path, svg({"A": CONST}, [("A", "output", "", "x"), ("A", "output", "A", "")]))
    assert len(remarks(imported)) == 2
    assert all("one end is empty; left out" in warning for warning in remarks(imported))


def test_alternative_names_of_pins_and_blocks(tmp_path: Path) -> None:
    zero = Drawn("Const", {"val": Pin("int", "", "0")})
    blocks: Blocks = {
        "Z": zero,
        "O": Drawn("Const", {"val": Pin("int", "", "1")}),
        "E": Drawn("ExpandDims", {"axis": text_pin("1")}),
        "F": Drawn("ExpandDims", {"axis": Pin()}),
        "G": Drawn("GatherV2", {"axis": text_pin("0")}),
        "H": Drawn("GatherV2", {"axis": Pin()}),
        "W": Drawn("Where3", {"x": text_pin("1"), "y": text_pin("2")}),
    }
    imported = read(tmp_path, svg(blocks, [("Z", "output", "F", "axis"), ("Z", "output", "H", "axis")]))
    page = imported.page
    assert page["E"].values["dim"].item() == 1
    assert page["F"].wires == {"dim": [End("Z", "output")]}
    assert page["W"].op == "Select"
    assert sorted(page["W"].values) == ["x", "y"]
    assert not remarks(imported)
    assert len([note for note in remarks(imported, "note") if "axis 0" in note]) == 2
    blocks = {**blocks, "G": Drawn("GatherV2", {"axis": text_pin("1")})}
    lost = remarks(read(tmp_path, svg(blocks, [("O", "output", "H", "axis")])))
    assert len(lost) == 2
    assert all("left out" in warning for warning in lost)
