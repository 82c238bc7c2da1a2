"""Import of enuSpace pages: the samples, the same pages in other encodings, large arrays, and omitted parts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enuspace_files import SAMPLES, Blocks, Drawn, Pin, Wires, sample_ops, svg, task

from rowgrad._catalog.spec import CATALOG
from rowgrad.graph.enuspace import Imported, read_enuspace
from rowgrad.graph.page import End, Page

ENCODINGS = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff", "utf-8": b"", "utf-8-sig": b""}


@pytest.fixture(autouse=True)
def _catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, op in sample_ops().items():
        monkeypatch.setitem(CATALOG, name, op)


def plain(page: Page, places: bool = True) -> list[Any]:
    """Return a page as data that == can compare."""
    return [
        (
            block.id,
            block.op,
            {name: (str(v.dtype), v.shape, v.tolist()) for name, v in block.values.items()},
            {pin: [str(end) for end in ends] for pin, ends in block.wires.items()},
            block.attrs,
            block.at if places else None,
            sorted(block.hidden) if places else None,
        )
        for block in page
    ] + [(note.text, note.at) for note in page.notes if places]


def read(folder: Path, text: str, name: str = "page.svg", encoding: str = "utf-16-le") -> Imported:
    path = folder / name
    path.write_bytes(ENCODINGS[encoding] + text.encode(encoding))
    return read_enuspace(path)


def wires_of(page: Page) -> list[str]:
    return [f"{end} {b.id}.{pin}" for b in page for pin, ends in b.wires.items() for end in ends]


def warnings_of(imported: Imported) -> list[str]:
    return [str(remark) for remark in imported.report if remark.level == "warning"]


def same(array: Any, value: Any, dtype: str) -> bool:
    return bool(array.dtype == dtype and array.shape == np.shape(value) and array.tolist() == value)


def test_a_task_file() -> None:
    imported = read_enuspace(SAMPLES / "basic.json")
    page = imported.page
    assert page.name == "basic"
    assert [(b.id, b.op) for b in page] == [
        ("ID_B", "Const"), ("ID_A", "Const"), ("ID_MUL", "MatMul"), ("ID_SESSION", "ClientSession"),
    ]  # fmt: skip
    assert same(page["ID_B"].values["val"], [[3.0, 5.0]], "float64")
    assert same(page["ID_A"].values["val"], [[3.0, 2.0], [-1.0, 0.0]], "float64")
    assert wires_of(page) == ["ID_A.output ID_MUL.a", "ID_B.output ID_MUL.b", "ID_MUL.product ID_SESSION.fetch_outputs"]
    assert page["ID_MUL"].attrs == {"transpose_a": False, "transpose_b": True}
    assert page["ID_SESSION"].attrs == {"device": "/cpu:0", "show_debug": True, "infinite_loop": False}
    assert [str(remark) for remark in imported.report] == ["note: results saved in the file are not read (3)"]


def test_a_page_of_the_fourth_generation() -> None:
    imported = read_enuspace(SAMPLES / "basic_4x.svg")
    page = imported.page
    # Scaled by 1.938 about the upper left corner, (1042, 351): the Add is 430 to the right of a Const up to 390 wide.
    assert [(b.id, b.op, *map(round, b.at or ())) for b in page] == [
        ("ID_1hvfQR0", "ClientSession", 1817, 390),
        ("ID_1hvfQV0", "Const", 1042, 351),
        ("ID_1hvgd641", "Const", 1050, 653),
        ("ID_1hvgdT0", "Add", 1472, 596),
    ]
    assert same(page["ID_1hvfQV0"].values["val"], [[1.0, 2.0], [3.0, 4.0]], "float64")
    assert wires_of(page) == [
        "ID_1hvgdT0.z ID_1hvfQR0.fetch_outputs", "ID_1hvfQV0.output ID_1hvgdT0.x", "ID_1hvgd641.output ID_1hvgdT0.y",
    ]  # fmt: skip
    (note,) = page.notes
    assert note.at[0] < 0
    assert note.text.startswith("// tensorflow/cc/example/example.cc")
    assert "std::vector<Tensor> outputs;" in note.text
    for name in ("m_Debug", "m_bInfiniteLoop"):
        assert f"note: {name}: a setting of enuSpace, left out (1)" in map(str, imported.report)
    assert not warnings_of(imported)


def test_a_page_of_the_third_generation() -> None:
    imported = read_enuspace(SAMPLES / "gradient_descent_xw_apply.svg")
    page = imported.page
    assert {b.id: b.op for b in page} == {
        "ID_1dweQR0": "ClientSession", "ID_X": "Variable", "ID_HYPO": "Multiply", "ID_W": "Variable",
        "ID_Y": "Variable", "ID_1dwerO0": "Square", "ID_1dwerp0": "Subtract", "ID_COST": "Mean",
        "ID_1dwevA20": "Multiply", "ID_1dwexe24": "Mean", "ID_1eRwic0": "ApplyGradientDescent", "ID_1eRwjD0": "Const",
    }  # fmt: skip
    assert same(page["ID_X"].values["initvalues"], [1.0, 2.0, 3.0], "float64")
    assert same(page["ID_W"].values["initvalues"], [100.0], "float64")
    assert page["ID_W"].attrs == {"shape": [1], "dtype": "float64"}
    assert same(page["ID_COST"].values["axis"], 0, "int32")
    assert page["ID_COST"].attrs == {"keep_dims": True}
    assert same(page["ID_1eRwjD0"].values["val"], 0.0001, "float64")
    assert page["ID_1eRwic0"].attrs == {"use_locking": False}
    assert page["ID_1dweQR0"].attrs["infinite_loop"] is True
    assert sorted(wires_of(page)) == sorted([
        "ID_X.ref ID_HYPO.x", "ID_W.ref ID_HYPO.y", "ID_HYPO.z ID_1dwerp0.x", "ID_Y.ref ID_1dwerp0.y",
        "ID_1dwerp0.z ID_1dwerO0.x", "ID_1dwerO0.y ID_COST.input", "ID_1dwerp0.z ID_1dwevA20.x",
        "ID_X.ref ID_1dwevA20.y", "ID_1dwevA20.z ID_1dwexe24.input", "ID_COST.output ID_1dweQR0.fetch_outputs",
        "ID_1dwexe24.output ID_1eRwic0.delta", "ID_W.ref ID_1eRwic0.var", "ID_1eRwjD0.output ID_1eRwic0.alpha",
        "ID_1eRwic0.out ID_1dweQR0.fetch_outputs",
    ])  # fmt: skip
    assert [str(end) for end in page["ID_1dweQR0"].wires["fetch_outputs"]] == ["ID_COST.output", "ID_1eRwic0.out"]
    first, second = page.notes[:2]
    assert (first.text, second.text) == ("Hypothesis", "x")
    assert first.at[0] - second.at[0] > 495.57 - 294.28
    assert not warnings_of(imported)
    assert "note: attribute container of Variable, at its default, left out (3)" in map(str, imported.report)


def test_a_task_with_lists_and_repeated_pins() -> None:
    imported = read_enuspace(SAMPLES / "gradient_descent_xnwn_b.json")
    page = imported.page
    assert len(page.blocks) == 16
    assert len(wires_of(page)) == 21
    assert [str(end) for end in page["ID_1dweQR0"].wires["fetch_outputs"]] == [
        "ID_COST.output", "ID_APPLY.out", "ID_1e1zPY122.out",
    ]  # fmt: skip
    assert page["ID_APPLY"].wires == {
        "var": [End("ID_W", "ref")], "alpha": [End("ID_1dwlRh0", "output")], "delta": [End("ID_1dwexe24", "output")],
    }  # fmt: skip
    assert same(page["ID_W"].values["initvalues"], [[1.5, 3.5, 0.5]], "float64")
    assert same(page["ID_B"].values["initvalues"], [[0.5]], "float64")
    assert page["ID_X1"].values["initvalues"][5].tolist() == [6.0, 44.0, 7.0]
    assert page["ID_Y"].values["initvalues"].shape == (8, 1)
    assert page["ID_1dweQR0"].attrs["device"] == "/gpu:0"
    (remark,) = (r for r in imported.report if "device" in r.text)
    assert (remark.place, remark.level) == ("ID_1dweQR0", "note")
    assert remark.text.startswith("device '/gpu:0' is kept, but it has no effect: --engine")
    assert not warnings_of(imported)


@pytest.mark.parametrize("sample", sorted(p.name for p in SAMPLES.iterdir()))
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_reads_as_the_same_page(sample: str, encoding: str, tmp_path: Path) -> None:
    text = (SAMPLES / sample).read_text(encoding="utf-16")
    imported, expected = read(tmp_path, text, sample, encoding), read_enuspace(SAMPLES / sample)
    assert plain(imported.page) == plain(expected.page)
    assert imported.report == expected.report
    (tmp_path / sample).write_bytes(text.encode("utf-16-be"))  # without a byte order mark
    assert plain(read_enuspace(tmp_path / sample).page) == plain(expected.page)


def test_samples_rewritten_in_the_other_generation_read_the_same(tmp_path: Path) -> None:
    old = (SAMPLES / "gradient_descent_xw_apply.svg").read_text(encoding="utf-16").replace("var-type=", "type=")
    new = (SAMPLES / "basic_4x.svg").read_text(encoding="utf-16")
    new = re.sub(r"(<pg-set-pin.*)type=(.*)value=\"\{(.*)\}\"", lambda m: semicolons(*m.groups()), new)
    for name, text in (("gradient_descent_xw_apply.svg", old), ("basic_4x.svg", new)):
        assert plain(read(tmp_path, text, name).page) == plain(read_enuspace(SAMPLES / name).page)
    assert "var-type" in new
    assert "1;2;3;4" in new


def semicolons(before: str, between: str, elements: str) -> str:
    return f'{before}var-type={between}value="{elements.replace(",", ";")}"'


GRADIENTS: Blocks = {
    "ID_X": Drawn("Const", {"val": Pin("double", "[2][2]", [1, 2, 3, 4])}),
    "ID_W": Drawn("Variable", {"shape": Pin(), "dtype": Pin(),
                               "initvalues": Pin("float", "[2][1]", [0.5, -1])}, ("ref",)),
    "ID_B": Drawn("Variable", {"shape": Pin(elements="{1}"), "dtype": Pin(elements="DT_FLOAT"),
                               "initvalues": Pin(elements="{0}")}, ("ref",)),
    "ID_G": Drawn("AddSymbolicGradients", {"outputs": Pin(), "inputs": Pin()}, ("grad_outputs",)),
    "ID_1": Drawn("ApplyGradientDescent", {"var": Pin(), "alpha": Pin(elements="0.1f"), "delta": Pin()}, ("out",)),
    "ID_2": Drawn("ApplyGradientDescent", {"var": Pin(), "alpha": Pin(elements="0.1f"), "delta": Pin()}, ("out",)),
    "ID_S": Drawn("ClientSession", {"fetch_outputs": Pin()}, ("status",)),
}  # fmt: skip
GRADIENT_WIRES: Wires = [
    ("ID_X", "output", "ID_G", "outputs"), ("ID_B", "ref", "ID_G", "inputs", "hidden"),
    ("ID_W", "ref", "ID_G", "inputs", "hidden"), ("ID_G", "grad_outputs[1]", "ID_1", "delta", "hidden"),
    ("ID_G", "grad_outputs[0]", "ID_2", "delta", "hidden"), ("ID_W", "ref", "ID_1", "var"),
    ("ID_B", "ref", "ID_2", "var"), ("ID_2", "out", "ID_S", "fetch_outputs"),
    ("ID_1", "out", "ID_S", "fetch_outputs", "hidden"),
]  # fmt: skip


def test_gradients_hidden_wires_and_list_entries(tmp_path: Path) -> None:
    imported = read(tmp_path, svg(GRADIENTS, GRADIENT_WIRES, 3))
    page = imported.page
    assert page["ID_G"].wires == {
        "outputs": [End("ID_X", "output")],
        "inputs": [End("ID_B", "ref"), End("ID_W", "ref")],
    }
    assert page["ID_1"].wires["delta"] == [End("ID_G", "grad_outputs", 1)]
    assert page["ID_2"].wires["delta"] == [End("ID_G", "grad_outputs", 0)]
    assert page["ID_G"].hidden == ("inputs",)
    assert page["ID_1"].hidden == ("delta",)
    assert page["ID_S"].hidden == ()  # one of its two wires is visible
    assert same(page["ID_1"].values["alpha"], np.float32(0.1).item(), "float32")
    assert same(page["ID_W"].values["initvalues"], [[0.5], [-1.0]], "float32")
    assert page["ID_W"].attrs == {}
    assert same(page["ID_B"].values["initvalues"], [0.0], "float32")
    assert page["ID_B"].attrs == {"shape": [1], "dtype": "float32"}
    assert not warnings_of(imported)
    assert plain(read(tmp_path, svg(GRADIENTS, GRADIENT_WIRES, 4)).page) == plain(page)
    again = read(tmp_path, task(GRADIENTS, GRADIENT_WIRES), "page.json").page
    assert plain(again, places=False) == plain(page, places=False)


def test_large_arrays_are_read_from_the_dat_file(tmp_path: Path) -> None:
    indices = np.arange(250, dtype="<i4")[::-1].copy()
    table = np.random.default_rng(0).standard_normal((30, 10)).astype("<f8")
    (tmp_path / "page.dat").write_bytes(indices.tobytes() + b"\xaa" * 3 + table.tobytes())
    blocks = {
        "ID_I": Drawn("Const", {"val": Pin("int", "[250]", dat=0)}),
        "ID_L": Drawn("Const_ex", {"val": Pin("int", "[250]", dat=0), "dtype": Pin(elements="DT_INT64")}),
        "ID_T": Drawn("Variable", {"shape": Pin(), "dtype": Pin(), "initvalues": Pin("double", "[30][10]", dat=1003)}),
        "ID_H": Drawn("OneHot", {"indices": Pin(), "depth": Pin(elements="250"), "on_value": Pin(elements="1.0f"),
                                 "off_value": Pin(elements="0.0f"), "attrs": Pin(elements="axis_ = -1;")}),
    }  # fmt: skip
    wires: Wires = [("ID_I", "output", "ID_H", "indices")]
    pages = [
        read(tmp_path, svg(blocks, wires, 3)).page,
        read(tmp_path, svg(blocks, wires, 4)).page,
        read(tmp_path, task(blocks, wires), "page.json").page,
    ]
    for page in pages:
        assert same(page["ID_I"].values["val"], indices.tolist(), "int32")
        assert same(page["ID_L"].values["val"], indices.tolist(), "int64")
        assert page["ID_L"].attrs == {"dtype": "int64"}
        assert same(page["ID_T"].values["initvalues"], table.tolist(), "float64")
        assert same(page["ID_H"].values["depth"], 250, "int32")
        assert same(page["ID_H"].values["on_value"], 1.0, "float32")
        assert page["ID_H"].attrs == {"axis": -1}
