"""Files in the style of enuSpace-TensorFlow 1.5, 2.0 and 2.0.1, with what each of them writes differently.

Page files of 2.0 name the plugin in `type` and the op in the link; task files of 2.0.1 write elements without braces.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest

from rowgrad.graph import ClientSession, End, Page, PageError, Trend, build, check, dumps, loads
from rowgrad.graph.block_height import block_height
from rowgrad.graph.enuspace import Imported, read_enuspace
from rowgrad.graph.enuspace.positions import WIDTH
from rowgrad.graph.export import to_dot, to_python, to_svg

Pins = dict[str, tuple[str, str, str]]  # name: type, shape, value
Blocks = dict[str, tuple[str, Pins, tuple[float, float]]]  # id: symbol, pins, position
Wires = list[tuple[str, str, str, str]]

# How each version writes a page: the attributes of a `use`, the name of a pin's type, and a vector.
STYLES = {
    "1.5": ('type="tensorflow" xlink:href="#{}"', "var-type", lambda e: ";".join(e), "3.0.2.0"),
    "2.0": ('type="enu_tensorflow2_0" xlink:href="#{}"', "type", lambda e: "{" + ",".join(e) + "}", "4.0.3.0"),
    "2.0.1": ('type="enu_tensorflow2_0" xlink:href="tf_core.svg#{}"', "type", lambda e: ",".join(e), "4.0.5.0"),
}


def page_text(blocks: Blocks, wires: Wires, style: str = "2.0", inside: str = "") -> str:
    use, kind, vector, version = STYLES[style]
    lines = ['<?xml version="1.0" encoding="UTF-16"?>',
             f'<svg id="ID_P" enuspace-version="{version}" xmlns="http://www.w3.org/2000/svg"',
             '     xmlns:xlink="http://www.w3.org/1999/xlink" width="1920" height="1080">']  # fmt: skip
    for name, (symbol, pins, (x, y)) in blocks.items():
        where = f'transform="translate({x},{y}) rotate(0) scale(1, 1)"'
        lines.append(f'<use id="{name}" {where} {use.format(symbol)} x="0.00" y="0.00">')
        for pin, (typed, shape, value) in pins.items():
            value = vector(value.split()) if shape else value
            lines.append(f'<pg-set-pin variable="#{pin}{shape}" auto="true" shape="{shape}" {kind}="{typed}"'
                         f" value={quoteattr(value)}/>")  # fmt: skip
        lines.append("</use>")
    for source, output, target, pin in wires:
        link = f'from-id="{source}" param-from="{output}" to-id="{target}" param-to="{pin}"'
        lines.append(f'<polyline points="0,0 1,1"><pg-link type="tensorflow" {link}></pg-link></polyline>')
    return "\n".join([*lines, inside, "</svg>"])


def read(folder: Path, text: str, name: str = "page.svg") -> Imported:
    (folder / name).write_text(text, encoding="utf-16")
    return read_enuspace(folder / name)


def warnings_of(imported: Imported) -> list[str]:
    return [str(remark) for remark in imported.report if remark.level == "warning"]


MATRIX: Blocks = {
    "ID_A": ("Const", {"val": ("double", "[2][2]", "3 2 -1 0"), "scope": ("string", "", "scope")}, (100, 100)),
    "ID_B": ("Const", {"val": ("double", "[1][2]", "3 5"), "scope": ("string", "", "scope")}, (100, 200)),
    "ID_MUL": ("MatMul", {"attrs": ("string", "", "transpose_a_ = false;transpose_b_ = true;")}, (300, 150)),
    "ID_S": ("ClientSession", {"INFINITE_LOOP": ("bool", "", "FALSE")}, (450, 150)),
}
MATRIX_WIRES: Wires = [
    ("ID_A", "output", "ID_MUL", "a"),
    ("ID_B", "output", "ID_MUL", "b"),
    ("ID_MUL", "product", "ID_S", "fetch_outputs"),
]


@pytest.mark.parametrize("style", STYLES)
def test_pages_of_every_version_run(style: str, tmp_path: Path) -> None:
    imported = read(tmp_path, page_text(MATRIX, MATRIX_WIRES, style))
    assert [(b.id, b.op) for b in imported.page] == [
        ("ID_A", "Const"), ("ID_B", "Const"), ("ID_MUL", "MatMul"), ("ID_S", "ClientSession"),
    ]  # fmt: skip
    assert not warnings_of(imported)
    result = ClientSession(build(imported.page)).run_block()
    assert result["ID_MUL.product"].tolist() == [[19.0], [-3.0]]


def test_a_page_without_any_known_block_says_so(tmp_path: Path) -> None:
    drawing = '<svg xmlns="http://www.w3.org/2000/svg"><rect width="10"/><path d="M0 0"/></svg>'
    imported = read(tmp_path, drawing)
    assert imported.page.blocks == []
    assert warnings_of(imported) == ["warning: this file has no blocks; is it a page of enuSpace-TensorFlow?"]
    other = page_text(MATRIX, []).replace("enu_tensorflow2_0", "keras")
    with pytest.raises(PageError, match="none of its 4 blocks can be imported: 'Const' as use of type 'keras' x2"):
        read(tmp_path, other)


# -- task files --------------------------------------------------------------------------------------------------------


def task_pin(name: str, typed: str = "string", shape: str = "", value: str = "", **more: str) -> dict[str, Any]:
    return {"pin-name": name, "pin-type": typed, "pin-save": "text", "pin-shape": shape, "pin-interface": "Input",
            "pin-datatype": "", "pin-initial": value} | more  # fmt: skip


def task_text(*objects: tuple[str, str, list[dict[str, Any]]]) -> str:
    listed = [{"symbol-name": f"#{s}", "id": i, "input": pins, "output": []} for i, s, pins in objects]
    return json.dumps({"object": listed}, indent=1)


@pytest.mark.parametrize(
    ("typed", "shape", "text", "expected"),
    [
        ("double", "[2][2]", "1,2,3,4", [[1.0, 2.0], [3.0, 4.0]]),
        ("double", "[2][2]", "1 2 3 4", [[1.0, 2.0], [3.0, 4.0]]),
        ("double", "[2][2]", " 1 ,2\t3;\n4 ; ", [[1.0, 2.0], [3.0, 4.0]]),
        ("double", "[2][2]", "{1 2 3 4}", [[1.0, 2.0], [3.0, 4.0]]),
        ("double", "[2][2]", "{1;2;3;4};", [[1.0, 2.0], [3.0, 4.0]]),
        ("double", "[2][2]", "{ {1 2} {3 4} }", [[1.0, 2.0], [3.0, 4.0]]),
        ("float", "[3]", "1.#INF,-1.#INF00,1e3", [np.inf, -np.inf, 1000.0]),
        ("double", "[2]", "1.#J;1.#INF", [np.inf, np.inf]),
        ("int", "[3]", "1,2,3", [1, 2, 3]),
        ("bool", "[2]", "TRUE,false", [True, False]),
        ("double", "", "5", 5.0),
        ("double", "", "1,2,3", [1.0, 2.0, 3.0]),
        ("", "[2]", "1,2.5", [1.0, 2.5]),
        ("", "", "{1,2}", [1, 2]),
    ],
)
def test_values_of_task_files(typed: str, shape: str, text: str, expected: Any, tmp_path: Path) -> None:
    imported = read(tmp_path, task_text(("A", "Const", [task_pin("val", typed, shape, text)])), "task.json")
    assert imported.page["A"].values["val"].tolist() == expected
    assert not warnings_of(imported)


def test_numbers_that_are_none(tmp_path: Path) -> None:
    text = "1.#QNAN,-1.#IND,-1.#IND00,1.#SNAN"
    imported = read(tmp_path, task_text(("A", "Const", [task_pin("val", "float", "[4]", text)])), "task.json")
    assert np.isnan(imported.page["A"].values["val"]).all()
    assert imported.page["A"].values["val"].dtype == np.float32


@pytest.mark.parametrize(
    ("typed", "text", "message"),
    [
        ("double", "1,2,3", r"the shape \[2, 2\] has 4 elements; got 3"),
        ("double", "1,,2,3", "is not a valid float64"),
        ("double", "1,2,3,x", "'x' at element 3 is not a valid float64"),
        ("int", "1,2,3,1.#INF", "is not an integer"),
        ("int", "1,2,3,4.5", "is not an integer"),
    ],
)
def test_invalid_values_of_task_files_name_the_pin(typed: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(PageError, match=f"task.json: A.val: .*{message}"):
        read(tmp_path, task_text(("A", "Const", [task_pin("val", typed, "[2][2]", text)])), "task.json")


def test_strings_keep_their_commas_and_blanks(tmp_path: Path) -> None:
    text = task_text(("A", "Const", [task_pin("val", "string", "[2]", "a, b;c d")]))
    assert read(tmp_path, text, "task.json").page["A"].values["val"].tolist() == ["a, b", "c d"]


@pytest.mark.parametrize("key", ["pin-type", "pin-save", "pin-shape", "pin-interface", "pin-datatype", "output"])
def test_task_files_without_a_key(key: str, tmp_path: Path) -> None:
    text = task_text(("A", "Const", [task_pin("val", "double", "[4]", "1,2,3,4")]))
    content = json.loads(text)
    content["object"][0].pop(key, None)
    content["object"][0]["input"][0].pop(key, None)
    imported = read(tmp_path, json.dumps(content), "task.json")
    assert imported.page["A"].values["val"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert not warnings_of(imported)


def test_blocks_and_pins_without_names(tmp_path: Path) -> None:
    content = json.loads(task_text(("A", "Const", [task_pin("val", "double", "", "1")]), ("B", "Const", [])))
    del content["object"][0]["id"], content["object"][1]["symbol-name"]
    content["object"][1]["input"] = [{"pin-initial": "7"}]
    imported = read(tmp_path, json.dumps(content), "task.json")
    assert [(b.id, b.op) for b in imported.page] == [("Const_1", "Const"), ("B", "Unknown")]
    assert [w.partition(";")[0] for w in warnings_of(imported)] == [
        "warning: B: symbol-name, the kind of the block, is missing",
        "warning: B: a pin without a name is left out: '7'",
        "warning: Const_1: a Const without an id, which no wire can name",
        "warning: B: rowgrad has no block Unknown",
        "warning: 1 of 2 blocks are of kinds that rowgrad does not have: 'Unknown' x1",
    ]
    svg = page_text(MATRIX, [("ID_A", "output", "ID_MUL", "a")]).replace(" to-id=", " two-id=")
    assert "one end is empty" in warnings_of(read(tmp_path, svg))[0]
    unnamed = page_text({"A": MATRIX["ID_A"]}, []).replace('xlink:href="#Const"', "")
    assert [b.op for b in read(tmp_path, unnamed).page] == ["Unknown"]


# -- blocks that rowgrad does not have ---------------------------------------------------------------------------------

LRN: Pins = {
    "attrs": ("string", "", "depth_radius_ = 5;alpha_ = 0.0001;beta_ =;"),
    "weights": ("double", "[2]", "0.5 1.5"),
    "mode": ("string", "", "across channels"),
    "input": ("string", "", ""),
}
GHOSTS: Blocks = {
    **{name: block for name, block in MATRIX.items() if name != "ID_S"},
    "ID_LRN": ("LRN", LRN, (500, 100)),
    "ID_SQ": ("Square", {}, (700, 100)),
    "ID_S": ("ClientSession", {}, (900, 150)),
    "ID_S2": ("ClientSession", {}, (900, 300)),
}
GHOST_WIRES: Wires = [
    *MATRIX_WIRES,
    ("ID_MUL", "product", "ID_LRN", "input"),
    ("ID_LRN", "output", "ID_SQ", "x"),
    ("ID_SQ", "y", "ID_S", "fetch_outputs"),
    ("ID_SQ", "y", "ID_S2", "fetch_outputs"),
]


def ghost_page(folder: Path) -> Page:
    return read(folder, page_text(GHOSTS, GHOST_WIRES)).page


def test_unknown_blocks_keep_wires_values_and_attributes(tmp_path: Path) -> None:
    imported = read(tmp_path, page_text(GHOSTS, GHOST_WIRES))
    ghost = imported.page["ID_LRN"]
    assert ghost.op == "LRN"
    assert ghost.wires == {"input": [End("ID_MUL", "product")]}
    assert imported.page["ID_SQ"].wires == {"x": [End("ID_LRN", "output")]}
    assert ghost.attrs == {"depth_radius": "5", "alpha": "0.0001", "mode": "across channels"}
    assert ghost.values["weights"].tolist() == [0.5, 1.5]
    assert ghost.at is not None
    assert warnings_of(imported) == [
        "warning: ID_LRN: rowgrad has no block LRN; it is kept with its wires, but does not run",
        "warning: 1 of 7 blocks are of kinds that rowgrad does not have: 'LRN' x1",
    ]


def test_unknown_blocks_survive_saving_and_every_export(tmp_path: Path) -> None:
    page = ghost_page(tmp_path)
    again = loads(dumps(page))
    assert isinstance(again, Page)
    assert dumps(again) == dumps(page)
    assert again["ID_LRN"].attrs == page["ID_LRN"].attrs
    assert again["ID_SQ"].wires == {"x": [End("ID_LRN", "output")]}
    assert ">LRN<" in to_svg(page)
    assert "LRN" in to_dot(page)
    script = to_python(page)
    assert "# ID_LRN = LRN(input=[ID_MUL.product]" in script
    assert "depth_radius='5'" in script
    scope: dict[str, Any] = {"__name__": "script"}
    exec(compile(script, "script", "exec"), scope)
    result = ClientSession(scope["root"]).run_block("ID_S")
    assert list(result) == ["ID_MUL.product"]


def test_a_page_with_unknown_blocks_runs_what_does_not_need_them(tmp_path: Path) -> None:
    checked = check(ghost_page(tmp_path))
    assert list(checked.errors) == ["ID_LRN"]
    assert "there is no block 'LRN': rowgrad does not have this op" in checked.errors["ID_LRN"].message
    assert checked.waiting == ["ID_SQ", "ID_S2"]
    assert checked.partial == {"ID_S": [End("ID_SQ", "y")]}
    assert checked.first_fault(["ID_S"]) is None
    fault = checked.first_fault(["ID_S2"])
    assert fault is not None
    assert fault.block == "ID_LRN"
    result = ClientSession(checked.scope).run_block("ID_S")
    assert {name: value.tolist() for name, value in result.items()} == {"ID_MUL.product": [[19.0], [-3.0]]}


def test_a_session_needs_all_fetches_of_blocks_with_other_errors(tmp_path: Path) -> None:
    """Only an op that rowgrad lacks cannot be corrected; any other error must not shorten a step in silence."""
    page = ghost_page(tmp_path)
    page["ID_SQ"].wires = {}
    checked = check(page)
    assert set(checked.errors) == {"ID_LRN", "ID_SQ"}
    assert checked.partial == {}
    assert "ID_S" in checked.waiting


# -- positions and charts ----------------------------------------------------------------------------------------------


def overlaps(page: Page) -> list[tuple[str, str]]:
    boxes = [(b.id, *b.at, block_height(b)) for b in page if b.at is not None]
    return [
        (a, b)
        for k, (a, x, y, height) in enumerate(boxes)
        for b, u, v, other in boxes[:k]
        if abs(x - u) < WIDTH and y < v + other and v < y + height
    ]


@pytest.mark.parametrize("seed", range(8))
def test_blocks_do_not_overlap_and_keep_their_order(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    across = rng.permutation(6)
    blocks: Blocks = {f"B{k}": ("Add", {}, (40.0 * across[k % 6] * 3, 30.0 * (k // 6))) for k in range(24)}
    blocks |= {f"T{k}": ("Const", {}, (float(x), float(y))) for k, (x, y) in enumerate(rng.integers(0, 900, (10, 2)))}
    blocks |= {"SAME1": ("Const", {}, (7, 7)), "SAME2": ("Const", {}, (7, 7))}
    texts = "".join(f'<text x="{x}" y="{y}">label {x}\nand more</text>' for x, y in rng.integers(0, 500, (6, 2)))
    page = read(tmp_path, page_text(blocks, [], inside=texts)).page
    assert overlaps(page) == []
    column = [page[f"B{k}"] for k in range(0, 24, 6)]
    assert len({b.at[0] for b in column if b.at}) == 1
    heights = [b.at[1] for b in column if b.at]
    assert heights == sorted(heights)
    for note in page.notes:
        for block in page:
            assert block.at is not None
            x, y = block.at
            inside = x <= note.at[0] <= x + WIDTH and y <= note.at[1] <= y + block_height(block)
            assert not inside, (note, block.id)


def test_pages_with_enough_distance_are_not_moved(tmp_path: Path) -> None:
    blocks: Blocks = {f"B{k}": ("Const", {}, (460.0 * k + 3, 10.0)) for k in range(4)}
    page = read(tmp_path, page_text(blocks, [])).page
    assert [b.at for b in page] == [(3.0, 10.0), (463.0, 10.0), (923.0, 10.0), (1383.0, 10.0)]


def test_charts_become_trends(tmp_path: Path) -> None:
    inside = """<pg-trend id="T1" x="3"/><use id="T2" type="trend" xlink:href="#pg_trend"/>
        <pg-trend id="T3"><pg-trend-item variable="ID_MUL.result_product[1][0]" color="red"/></pg-trend>
        <pg-trend-multi id="T4" source="ID_GONE.result_x"/>"""
    wires = [*MATRIX_WIRES, ("ID_A", "result_output", "T1", "in"), ("ID_B", "result_output[0][1]", "T2", "in")]
    imported = read(tmp_path, page_text(MATRIX, wires, inside=inside))
    assert imported.page.trends == [
        Trend(End("ID_A", "output")), Trend(End("ID_B", "output"), (0, 1)), Trend(End("ID_MUL", "product"), (1, 0)),
    ]  # fmt: skip
    assert warnings_of(imported) == ["warning: the chart of ID_GONE.result_x: there is no such result; left out"]
    again = loads(dumps(imported.page))
    assert isinstance(again, Page)
    assert again.trends == imported.page.trends


# -- the evaluation of a convolutional network, as in the samples ------------------------------------------------------


def _maxima(x: np.ndarray) -> np.ndarray:
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def _convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Convolve in float64, padded to the same size, as four loops."""
    batch, height, width, _ = x.shape
    size, outputs = w.shape[0], w.shape[3]
    padded = np.pad(x.astype(np.float64), ((0, 0), (size // 2,) * 2, (size // 2,) * 2, (0, 0)))
    y = np.zeros((batch, height, width, outputs))
    for n in range(batch):
        for i in range(height):
            for j in range(width):
                for k in range(outputs):
                    y[n, i, j, k] = np.sum(padded[n, i : i + size, j : j + size] * w[:, :, :, k])
    return y


def test_the_evaluation_of_a_convolutional_network(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    images, labels = rng.normal(size=(4, 64)).astype("f4"), [3, 0, 2, 1]
    w1, w2 = (rng.normal(size=s).astype("f4") for s in ((5, 5, 1, 3), (3, 3, 3, 2)))
    w3, b3 = rng.normal(size=(8, 4)).astype("f4"), rng.normal(size=4).astype("f4")

    def const(value: Any, kind: str = "float") -> tuple[str, Pins, tuple[float, float]]:
        array = np.asarray(value)
        pin = (kind, "".join(f"[{n}]" for n in array.shape), " ".join(map(repr, array.ravel().tolist())))
        return "Const", {"val": pin}, (0, 0)

    def conv() -> tuple[str, Pins, tuple[float, float]]:
        pins = {"strides": ("string", "", "{1,1,1,1}"), "padding": ("string", "", "SAME"),
                "attrs": ("string", "", "use_cudnn_on_gpu_ = true;data_format_ = NHWC;")}  # fmt: skip
        return "Conv2D", pins, (0, 0)

    def pool() -> tuple[str, Pins, tuple[float, float]]:
        pins = {"ksize": ("string", "", "{1,2,2,1}"), "strides": ("string", "", "{1,2,2,1}"),
                "padding": ("string", "", '"SAME"'), "attrs": ("string", "", "data_format_ = NHWC;")}  # fmt: skip
        return "MaxPool", pins, (0, 0)

    blocks: Blocks = {
        "X": const(images), "W1": const(w1), "W2": const(w2), "W3": const(w3), "B3": const(b3),
        "SHAPE": const([4, 8, 8, 1], "int"), "FLAT": const([4, 8], "int"), "AXIS": const(1, "int"),
        "IMAGE": ("Reshape", {}, (0, 0)), "C1": conv(), "R1": ("Relu", {}, (0, 0)), "P1": pool(),
        "C2": conv(), "R2": ("Relu", {}, (0, 0)), "P2": pool(), "ROWS": ("Reshape", {}, (0, 0)),
        "MUL": ("MatMul", {}, (0, 0)), "SUM": ("Add", {}, (0, 0)), "SOFT": ("Softmax", {}, (0, 0)),
        "BEST": ("ArgMax", {}, (0, 0)),
        "ENTRIES": const([[k, label] for k, label in enumerate(labels)], "int"), "SIZE": const([4, 4], "int"),
        "ONE": const(1.0), "ZERO": const(0.0), "LABELS": ("SparseToDense", {}, (0, 0)),
        "TRUTH": ("ArgMax", {}, (0, 0)), "SAME": ("Equal", {}, (0, 0)), "S": ("ClientSession", {}, (0, 0)),
    }  # fmt: skip
    wires: Wires = [
        ("X", "output", "IMAGE", "tensor"), ("SHAPE", "output", "IMAGE", "shape"),
        ("IMAGE", "output", "C1", "input"), ("W1", "output", "C1", "filter"), ("C1", "output", "R1", "features"),
        ("R1", "activations", "P1", "input"), ("P1", "output", "C2", "input"), ("W2", "output", "C2", "filter"),
        ("C2", "output", "R2", "features"), ("R2", "activations", "P2", "input"), ("P2", "output", "ROWS", "tensor"),
        ("FLAT", "output", "ROWS", "shape"), ("ROWS", "output", "MUL", "a"), ("W3", "output", "MUL", "b"),
        ("MUL", "product", "SUM", "x"), ("B3", "output", "SUM", "y"), ("SUM", "z", "SOFT", "logits"),
        ("SOFT", "softmax", "BEST", "input"), ("AXIS", "output", "BEST", "dimension"),
        ("ENTRIES", "output", "LABELS", "sparse_indices"), ("SIZE", "output", "LABELS", "output_shape"),
        ("ONE", "output", "LABELS", "sparse_values"), ("ZERO", "output", "LABELS", "default_value"),
        ("LABELS", "dense", "TRUTH", "input"), ("AXIS", "output", "TRUTH", "dimension"),
        ("BEST", "output", "SAME", "x"), ("TRUTH", "output", "SAME", "y"),
        ("SOFT", "softmax", "S", "fetch_outputs"), ("SAME", "z", "S", "fetch_outputs"),
    ]  # fmt: skip
    imported = read(tmp_path, page_text(blocks, wires))
    assert not warnings_of(imported)
    result = ClientSession(build(imported.page)).run_block()
    x = _maxima(np.maximum(_convolved(images.reshape(4, 8, 8, 1), w1), 0))
    x = _maxima(np.maximum(_convolved(x, w2), 0)).reshape(4, 8)
    powers = np.exp((logits := x @ w3 + b3) - logits.max(1, keepdims=True))
    np.testing.assert_allclose(result["SOFT.softmax"], powers / powers.sum(1, keepdims=True), atol=1e-5)
    assert result["SAME.z"].tolist() == [int(np.argmax(p)) == label for p, label in zip(powers, labels, strict=True)]


def test_a_session_that_needs_an_unknown_op_does_not_stop_the_others(tmp_path: Path) -> None:
    from rowgrad.studio.page_session import prepare

    prepared = prepare(ghost_page(tmp_path), "r")
    plan = prepared.plan()
    assert plan.blocks == ["ID_S"]
    assert plan.leaves.left_out == ["ID_S2"]
    with pytest.raises(PageError, match="there is no block 'LRN'"):
        prepared.plan(["ID_S2"])
